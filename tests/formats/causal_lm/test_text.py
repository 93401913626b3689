"""Text as sequences of tokens: files, strings and tokens, their cutting, and what does not fit the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
from lowbit.formats.causal_lm.text import Text, spread, tokenized
from lowbit.numerics.errors import InvalidProblem
from tiny_llm import WORDS, words, write_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tokenizer(tmp_path / "llm")
    return tmp_path


def cut(data: Any, folder: Path, **options: Any) -> Text:
    return tokenized(data, folder / "llm", len(WORDS), **({"sequence_length": 10} | options))


def ids(text: str) -> list[int]:
    return [WORDS.index(word) if word in WORDS else 0 for word in text.split()]


def test_a_file_is_cut_into_sequences(folder: Path) -> None:
    text = words(25)
    (folder / "a.txt").write_text(text)
    found = cut(folder / "a.txt", folder)
    assert [len(s) for s in found.sequences] == [10, 10, 5]
    assert np.concatenate(found.sequences).tolist() == ids(text)
    assert found.tokens == 25
    # Where there are enough whole sequences, the rest is left out.
    assert [len(s) for s in cut(folder / "a.txt", folder, max_sequences=2).sequences] == [10, 10]


def test_lines_and_strings_are_documents_of_their_own(folder: Path) -> None:
    documents = [words(12, 1), words(4, 2), words(20, 3)]
    lines = [
        json.dumps({"text": documents[0], "n": 1}),
        "",
        json.dumps(documents[1]),
        json.dumps({"text": documents[2]}),
    ]
    (folder / "a.jsonl").write_text("\n".join(lines))
    expected = [ids(d)[at : at + 10] for d in documents for at in range(0, len(d.split()), 10)]
    for data in (
        folder / "a.jsonl",
        str(folder / "a.jsonl"),
        documents,
        [ids(d) for d in documents],
        [folder / "a.jsonl"],
    ):
        assert [s.tolist() for s in cut(data, folder).sequences] == expected


def test_a_folder_gives_its_files_in_order(folder: Path) -> None:
    (folder / "d").mkdir()
    (folder / "d" / "b.txt").write_text(words(10, 1))
    (folder / "d" / "a.txt").write_text(words(10, 2))
    (folder / "d" / "notes.md").write_text("not text for a model")
    assert [s.tolist() for s in cut(folder / "d", folder).sequences] == [ids(words(10, 2)), ids(words(10, 1))]


def test_sequences_are_spread_over_the_text(folder: Path) -> None:
    (folder / "a.txt").write_text(words(1000))
    whole, few = cut(folder / "a.txt", folder, max_sequences=1000), cut(folder / "a.txt", folder, max_sequences=4)
    assert [s.tolist() for s in few.sequences] == [whole.sequences[i].tolist() for i in spread(100, 4)]
    assert spread(100, 4) == [12, 37, 62, 87]


def test_each_sequence_begins_with_the_token_that_the_tokenizer_puts_first(folder: Path) -> None:
    import tokenizers
    import transformers

    fast = transformers.AutoTokenizer.from_pretrained(folder / "llm").backend_tokenizer
    fast.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=fast, unk_token="<unk>", bos_token="<s>")
    made.save_pretrained(folder / "llm")
    found = cut([words(18)], folder).sequences
    assert [s.tolist() for s in found] == [[1, *ids(words(18))[:9]], [1, *ids(words(18))[9:]]]


def test_shards_are_disjoint_and_the_digest_ignores_order(folder: Path) -> None:
    text = cut([words(95)], folder)
    parts = [text.shard(i, 3) for i in range(3)]
    assert sorted(s.tobytes() for p in parts for s in p.sequences) == sorted(s.tobytes() for s in text.sequences)
    assert Text(text.sequences[::-1]).digest() == text.digest() != parts[0].digest()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("none.txt", "not there"), ("x.csv", r"\.txt or \.jsonl"), ("empty.txt", "holds no text"),
        ([], "holds no text"), ("empty", r"no \.txt or \.jsonl"),
        ("bad.jsonl", "line 2: not JSON"), ("bare.jsonl", "line 1: no text"),
        ("latin.txt", "not UTF-8"), (3, "int"), ([[1, 2], [1, 200]], "token 200; the model has embeddings for 62"),
        ([[-1]], "token -1"), ([[0.5]], "float64"), ([["a"]], "expected text"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_data(data: Any, message: str, folder: Path) -> None:
    (folder / "x.csv").write_text("a,b")
    (folder / "empty.txt").write_text(" \n")
    (folder / "empty").mkdir()
    (folder / "bad.jsonl").write_text('"a"\n{"text":')
    (folder / "bare.jsonl").write_text("[1]")
    (folder / "latin.txt").write_bytes(b"caf\xe9")
    given = folder / data if isinstance(data, str) else data
    with pytest.raises(InvalidProblem, match=message):
        cut(given, folder)


@pytest.mark.parametrize("options", [{"sequence_length": 0}, {"sequence_length": 2.0}, {"max_sequences": 0}])
def test_bad_lengths(options: dict[str, Any], folder: Path) -> None:
    with pytest.raises(InvalidProblem, match=next(iter(options))):
        cut([words(9)], folder, **options)
    with pytest.raises(InvalidProblem, match="sequence_length: 65; the model takes 64"):
        cut([words(9)], folder, sequence_length=65, positions=64)


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "llm").mkdir()
    with pytest.raises(InvalidProblem, match="no tokenizer in"):
        cut([words(9)], tmp_path)
    assert cut([[3, 4]], tmp_path).tokens == 2  # tokens need none


def test_a_tokenizer_that_does_not_fit_is_told(folder: Path) -> None:
    assert not cut([words(50)], folder).notes
    [note] = cut(["cat dog " * 30], folder).notes
    assert "100% of the tokens are unknown" in note
    write_tokenizer(folder / "llm", [*WORDS, *"abcdefgh"])
    [size] = cut([words(50)], folder).notes
    assert "70 tokens and the model 62" in size
    with pytest.raises(InvalidProblem, match="another model's tokenizer"):
        cut(["a b c"], folder)
