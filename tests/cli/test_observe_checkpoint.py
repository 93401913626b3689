"""lowbit observe on causal language models: the same bytes however it is run, and errors before any work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("typer")
import tokenizers
import transformers
from typer.testing import CliRunner

import lowbit as lb
import torch
from lowbit.cli.app import _app
from lowbit.formats.statistics import open_statistics
from lowbit.numerics.errors import InvalidProblem

LAYERS, SEQUENCE = 3, 30
WORDS = ["<unk>", *(f"w{i}" for i in range(40))]
COMMAND = f"llm --data text.txt --sequence-length {SEQUENCE}"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small Llama, its tokenizer, and 600 words."""
    folder = tmp_path_factory.mktemp("made")
    config = transformers.LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "llm", max_shard_size="20KB")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>").save_pretrained(folder / "llm")
    rng = np.random.default_rng(0)
    (folder / "text.txt").write_text(" ".join(f"w{i}" for i in rng.integers(0, 40, 600)))
    return folder


@pytest.fixture
def run(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("llm", "text.txt"):
        (tmp_path / name).symlink_to(made / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("LOWBIT_TRACEBACK", raising=False)
    return lambda line: CliRunner().invoke(_app(), ["observe", *line.split()])


def contents(folder: str) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(Path(folder).iterdir())}


def test_threads_passes_and_shards_change_no_byte(run: Any) -> None:
    result = run(f"{COMMAND} -o s")
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "self_attn.{k_proj,q_proj," in result.stdout
    before = lb.get_num_threads()
    try:
        for threads in (1, 7):
            lb.set_num_threads(threads)
            assert run(f"{COMMAND} -o t{threads}").exit_code == 0
    finally:
        lb.set_num_threads(before)
    assert run(f"{COMMAND} -o passes --max-memory 60kB").exit_code == 0
    for i in (1, 2, 3):
        assert run(f"{COMMAND} -o p{i} --shard {i}/3").exit_code == 0
    assert run("--merge p2 p3 p1 -o merged").exit_code == 0
    for other in ("t1", "t7", "passes", "merged"):
        assert contents(other) == contents("s"), other
    found = open_statistics("s")
    assert (len(found), len(found.shared()), found.records) == (7 * LAYERS, 4 * LAYERS, 600 // SEQUENCE)
    assert found["model.layers.0.self_attn.q_proj.weight"].count == 600


def test_a_run_that_is_killed_is_resumed_to_the_same_bytes(run: Any) -> None:
    """Killed after the first decoder layers: the rest of the sums are those of a run that was not."""
    line = f"{COMMAND} --diagonal --max-batches 200"
    Path("text.txt").unlink()
    rng = np.random.default_rng(0)
    Path("text.txt").write_text(" ".join(f"w{i}" for i in rng.integers(0, 40, 6000)))
    process = subprocess.Popen(
        [sys.executable, "-m", "lowbit", "observe", *f"{line} -o killed --json".split()], stdout=subprocess.DEVNULL
    )
    manifest = Path(".killed.partial/.lowbit-manifest.json")
    deadline = time.monotonic() + 120
    while not (manifest.is_file() and ".safetensors" in manifest.read_text()):
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert not Path("killed").exists()
    times = {f.name: os.stat(f).st_mtime_ns for f in Path(".killed.partial").glob("*.safetensors")}
    assert run(f"{line} -o killed --resume").exit_code == 0
    assert run(f"{line} -o whole").exit_code == 0
    assert contents("killed") == contents("whole")
    assert [name for name, at in times.items() if os.stat(Path("killed") / name).st_mtime_ns == at]


def test_text_that_does_not_fit_is_noted_before_the_model_runs(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowbit.formats.causal_lm import statistics

    def stopped(*_: Any, **__: Any) -> None:
        raise InvalidProblem("before the run")

    monkeypatch.setattr(statistics, "observe_layers", stopped)
    Path("other.txt").write_text("another language " * 100)
    said = " ".join(run("llm --data other.txt -o s").stderr.split())
    assert "Note: 100% of the tokens are unknown ones" in said
    Path("short.txt").write_text("w1 w2 w3 " * 12)
    said = " ".join(run("llm --data short.txt -o s").stderr.split())
    assert "Note: 36 tokens, fewer than the 48 inputs of the widest layer" in said
    assert "Note" not in run("llm --data short.txt -o s --diagonal").stderr


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("llm --data none.txt -o s", "none.txt: not there"),
        ("llm --data empty.txt -o s", "empty.txt holds no text"),
        ("llm --data text.txt -o llm/s", "which is read; choose a folder outside"),
        ("llm --data text.txt -o full", "already there"),
        (f"{COMMAND} -o s --shard 1/30", "the data have 20 records, and each shard needs one"),
        ("llm --data text.txt -o s --sequence-length 65", "sequence_length: 65; the model takes 64 tokens"),
        ("llm -o s", "--data: missing"),
    ],
)
def test_what_cannot_end_well_is_one_line_before_any_work(
    run: Any, line: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowbit.formats.causal_lm import statistics

    def worked(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was run")

    monkeypatch.setattr(statistics, "observe_layers", worked)
    Path("empty.txt").write_text("")
    Path("full").mkdir()
    Path("full/precious").write_text("x")
    before = sorted(Path().iterdir())
    result = run(line)
    assert result.exit_code == 2, result.output
    said = result.stderr.strip().splitlines()[-1]
    assert said.startswith("lowbit: ")
    assert message in said
    assert sorted(Path().iterdir()) == before
    assert not list(Path("llm").glob("*stat*"))
