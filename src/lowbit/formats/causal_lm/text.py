"""Calibration text as sequences of tokens: from `.txt` and `.jsonl` files, strings, or tokens themselves."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem, Unsupported

MAX_SEQUENCES, SEQUENCE_LENGTH = 32, 1024
_MAX_TEXT = 1 << 28  # bytes of text that are tokenized
_SUFFIXES = (".txt", ".jsonl")
_DENSE = 0.75  # tokens per character, above which a tokenizer does not fit its text
_MOST_UNKNOWN = 0.02


@dataclass(frozen=True)
class Text:
    """Sequences of tokens, and what a person should know about them."""

    sequences: Sequence[Array]
    notes: tuple[str, ...] = field(default=())

    @property
    def tokens(self) -> int:
        return sum(map(len, self.sequences))

    def shard(self, index: int, count: int) -> Text:
        """Every `count`-th sequence, from `index` on."""
        return Text(self.sequences[index::count], self.notes)

    def digest(self) -> str:
        """What identifies the sequences, whatever their order."""
        each = sorted(hashlib.sha256(np.ascontiguousarray(s, "<i8").tobytes()).hexdigest() for s in self.sequences)
        return hashlib.sha256("".join(each).encode()).hexdigest()


def tokenized(
    data: Any,
    folder: Path,
    vocabulary: int,
    *,
    sequence_length: int | None = None,
    max_sequences: int | None = None,
    positions: int | None = None,
) -> Text:
    """Sequences of at most `sequence_length` tokens, spread evenly over the data.

    data: a `.txt` file, a `.jsonl` file with a string or an object with "text" on each line, a folder of such files,
    strings, or sequences of tokens. Text is tokenized by the tokenizer in `folder`; each line of a `.jsonl` file, and
    each string, is cut into sequences of its own. vocabulary: tokens that the model knows; positions: that it can take.
    """
    length = _natural("sequence_length", sequence_length, min(SEQUENCE_LENGTH, positions or SEQUENCE_LENGTH))
    if positions is not None and length > positions:
        raise InvalidProblem(f"sequence_length: {length}; the model takes {positions} tokens at most")
    most = _natural("max_sequences", max_sequences, MAX_SEQUENCES)
    notes: list[str] = []
    given = _documents(data)
    first = next(given, None)
    if first is None:
        raise InvalidProblem(f"data: {_shown(data)} holds no text; expected some to calibrate on")
    documents = [first, *given]
    if isinstance(first, str):
        cut = _cut_text(documents, folder, vocabulary, length, notes)
    else:
        cut = [part for tokens in documents for part in _cut(_checked(tokens, vocabulary), length, [])]
    longest = max(map(len, cut), default=0)
    if not longest:
        raise InvalidProblem(f"data: {_shown(data)} gives no tokens; expected some text to calibrate on")
    # The ends of documents are short; they are left out where there are enough whole sequences.
    whole = [s for s in cut if len(s) == length]
    cut = whole if len(whole) >= most else [s for s in cut if len(s) > 1] or cut
    return Text([cut[i] for i in spread(len(cut), most)], tuple(notes))


def refuse_other_files(data: Any) -> None:
    """Raise for a path that is no text; nothing is read."""
    for path in [data] if isinstance(data, str | os.PathLike) else data if isinstance(data, list | tuple) else []:
        if not isinstance(path, os.PathLike) and path is not data:
            continue
        if not Path(path).is_dir() and Path(path).suffix not in _SUFFIXES:
            raise InvalidProblem(
                f"data: {path}; a checkpoint is calibrated on text: a .txt or .jsonl file, or a folder of them"
            )
        if not Path(path).exists():
            raise InvalidProblem(f"data: {path}: not there; expected a .txt or .jsonl file")


def spread(count: int, most: int) -> list[int]:
    """At most `most` of the first `count` numbers, evenly.

    >>> spread(9, 3)
    [1, 4, 7]
    """
    return list(range(count)) if count <= most else [(2 * i + 1) * count // (2 * most) for i in range(most)]


def _documents(data: Any) -> Iterator[Any]:
    if isinstance(data, str | os.PathLike):
        yield from _file_documents(Path(data))
    elif isinstance(data, Iterable):
        for each in data:
            if isinstance(each, os.PathLike):
                yield from _file_documents(Path(each))
            elif not isinstance(each, str) or each.strip():
                yield each
    else:
        raise InvalidProblem(
            f"data: {type(data).__name__}; expected a .txt or .jsonl file, strings, or lists of tokens"
        )


def _file_documents(path: Path) -> Iterator[str]:
    if path.is_dir():
        files = sorted(f for f in path.iterdir() if f.suffix in _SUFFIXES and f.is_file())
        if not files:
            raise InvalidProblem(f"data: {path} has no .txt or .jsonl file")
        for file in files:
            yield from _file_documents(file)
        return
    refuse_other_files(path)
    if path.stat().st_size > _MAX_TEXT:
        raise InvalidProblem(f"data: {path} has {path.stat().st_size:,} bytes; expected at most {_MAX_TEXT:,}")
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidProblem(f"data: {path} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    if path.suffix == ".txt":
        if text.strip():
            yield text
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            yield from _line(line, f"{path}, line {number}")


def _line(line: str, place: str) -> Iterator[str]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidProblem(f"data: {place}: not JSON ({error})") from None
    text = found.get("text") if isinstance(found, dict) else found
    if not isinstance(text, str):
        raise InvalidProblem(f'data: {place}: no text; expected a string, or an object with "text"')
    if text.strip():
        yield text


def _cut_text(documents: Sequence[Any], folder: Path, vocabulary: int, length: int, notes: list[str]) -> list[Array]:
    tokenizer = load_tokenizer(folder)
    if len(tokenizer) > vocabulary:
        notes.append(
            f"the tokenizer knows {len(tokenizer):,} tokens and the model {vocabulary:,}: is it this model's tokenizer?"
        )
    empty = tokenizer("").input_ids
    prefix = empty[:1] if empty and empty[0] == tokenizer.bos_token_id else []
    cut, characters, tokens, unknown = [], 0, 0, 0
    for text in documents:
        if not isinstance(text, str):
            raise InvalidProblem(f"data: {type(text).__name__} among strings; expected strings")
        ids = _checked(tokenizer(text, add_special_tokens=False, verbose=False).input_ids, vocabulary)
        characters, tokens = characters + len(text), tokens + len(ids)
        if tokenizer.unk_token_id is not None:
            unknown += int((ids == tokenizer.unk_token_id).sum())
        cut += _cut(ids, length, prefix)
    if unknown > _MOST_UNKNOWN * tokens:
        notes.append(f"{unknown / tokens:.0%} of the tokens are unknown ones: the tokenizer does not fit the text")
    if tokens > _DENSE * characters:
        notes.append(
            f"{tokens / characters:.2f} tokens per character: the tokenizer does not fit the text, or not this model"
        )
    return cut


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer that lies in a folder."""
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise Unsupported("text needs transformers: pip install 'lowbit[llm]'") from None
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever its file makes transformers raise
        raise InvalidProblem(f"data: no tokenizer in {folder} that reads text ({_brief(error)})") from None


def _checked(tokens: Any, vocabulary: int) -> Array:
    ids = np.asarray(tokens)
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise InvalidProblem(f"data: {ids.dtype} of shape {ids.shape}; expected text, or a list of tokens")
    ids = ids.astype(np.int64)
    if ids.size and (ids.min() < 0 or ids.max() >= vocabulary):
        worst = int(ids.min() if ids.min() < 0 else ids.max())
        raise InvalidProblem(
            f"data: token {worst}; the model has embeddings for {vocabulary}: it is another model's tokenizer"
        )
    return ids


def _cut(ids: Array, length: int, prefix: Sequence[int]) -> list[Array]:
    step = max(1, length - len(prefix))
    start = np.asarray(prefix, np.int64)
    return [np.concatenate([start, ids[at : at + step]]) for at in range(0, len(ids), step)]


def _natural(name: str, value: int | None, default: int) -> int:
    if value is None:
        return default
    if type(value) is not int or value < 1:
        raise InvalidProblem(f"{name}: {value!r}; expected an integer of at least 1")
    return value


def _shown(data: Any) -> str:
    return str(data) if isinstance(data, str | os.PathLike) and len(str(data)) < 200 else "it"


def _brief(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
