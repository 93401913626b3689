"""lowbit observe: the same bytes however it is run, what it prints, and errors before any work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from typer.testing import CliRunner

import lowbit as lb
from lowbit.cli.app import _app
from lowbit.formats.observing import observe_file
from lowbit.formats.statistics import open_statistics
from lowbit.numerics.errors import InvalidProblem
from onnx_builder import Builder

RECORDS = 24


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("LOWBIT_TRACEBACK", raising=False)
    return lambda line: CliRunner().invoke(_app(), ["observe", *line.split()])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model of convolutions and products, and its data in one file and in several."""
    b = Builder({"x": ["n", 3, 13, 11]})
    y = b.add("Relu", b.add("Conv", "x", b.normal(20, 3, 3, 3, name="kernel1"), kernel_shape=[3, 3]))
    y = b.add("GlobalAveragePool", b.add("Relu", b.add("Conv", y, b.normal(48, 20, 3, 3, name="kernel2"))))
    y = b.add("Relu", b.add("Gemm", b.add("Flatten", y), b.normal(48, 700, name="up"), b.normal(700)))
    z = b.add("Add", b.add("MatMul", y, b.normal(700, 9, name="one")), b.add("MatMul", y, b.normal(700, 9, name="two")))
    (tmp_path / "m.onnx").write_bytes(b.model(z).SerializeToString())
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((RECORDS, 3, 13, 11)) * 10.0 ** rng.integers(-3, 3, (RECORDS, 1, 1, 1))).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    (tmp_path / "many").mkdir()
    for i, part in enumerate(np.array_split(x[rng.permutation(RECORDS)], 5)):
        np.save(tmp_path / "many" / f"{i}.npy", part)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path | str) -> dict[str, bytes]:
    return {f.name: f.read_bytes() for f in sorted(Path(folder).iterdir())}


def start(line: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "lowbit", "observe", *line.split(), "--json"], stdout=subprocess.DEVNULL
    )


# ---- the same bytes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["--gram", "--diagonal"])
def test_threads_order_files_passes_and_batches_change_no_byte(run: Any, here: Path, kind: str) -> None:
    assert run(f"m.onnx --data x.npy -o s {kind}").exit_code == 0
    expected = contents("s")
    assert run(f"m.onnx --data many -o order {kind}").exit_code == 0
    assert run(f"m.onnx --data x.npy -o passes {kind} --max-memory 1kB").exit_code == 0
    before = lb.get_num_threads()
    try:
        for threads in (1, 2, 7):
            lb.set_num_threads(threads)
            assert run(f"m.onnx --data many -o t{threads} {kind}").exit_code == 0
    finally:
        lb.set_num_threads(before)
    for other in ("order", "passes", "t1", "t2", "t7"):
        assert contents(other) == expected, other
    found = open_statistics("s")
    assert [group.names for group in found.shared()] == [("kernel1",), ("kernel2",), ("one", "two"), ("up",)]
    assert found["up"].count == RECORDS
    assert found.of("one").has_gram == (kind == "--gram")


def test_threads_of_the_runtime_change_no_byte(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sums depend on its threads: with 2 and with 7, products of one row have other last bits than with 1."""
    from lowbit.formats.onnx import runtime

    new_session, found = runtime.new_session, []
    np.save("images.npy", np.random.default_rng(0).standard_normal((20, 1, 8, 8)).astype(np.float32))
    for threads in (1, 2, 7):
        monkeypatch.setattr(
            runtime,
            "new_session",
            lambda model, n=threads, **o: new_session(model, **o | {"threads": o["threads"] or n}),
        )
        with resources.as_file(resources.files("lowbit.data") / "digits_cnn.onnx") as model:
            observe_file(model, "images.npy", f"t{threads}", progress=False)
        found.append(contents(f"t{threads}"))
    assert found[0] == found[1] == found[2]


def test_three_processes_merge_to_the_bytes_of_one(run: Any, here: Path) -> None:
    processes = [start(f"m.onnx --data x.npy -o p{i} --shard {i}/3") for i in (1, 2, 3)]
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert run("m.onnx --data x.npy -o s").exit_code == 0
    result = run("--merge p3 p1 p2 -o merged")
    assert result.exit_code == 0, result.output
    assert contents("merged") == contents("s")
    two = run("--merge p3 p1 -o two")
    assert "Note: The statistics lack shard 2/3 of the data" in two.stdout
    assert "16 records" in two.stdout


def test_a_run_that_is_killed_is_resumed_to_the_same_bytes(run: Any, here: Path) -> None:
    """Killed as soon as the first layer is finished: each layer has a pass of its own."""
    assert run("m.onnx --data x.npy -o s").exit_code == 0
    np.save("long.npy", np.tile(np.load("x.npy"), (40, 1, 1, 1)))
    process = start("m.onnx --data long.npy -o killed --max-memory 1kB")
    deadline = time.monotonic() + 120
    manifest = here / ".killed.partial" / ".lowbit-manifest.json"
    while not (manifest.is_file() and ".safetensors" in manifest.read_text()):
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert not Path("killed").exists()
    result = run("m.onnx --data long.npy -o killed")
    assert "an unfinished run is in .killed.partial; resume it, or overwrite" in result.stderr
    finished = contents(".killed.partial")
    times = {name: os.stat(here / ".killed.partial" / name).st_mtime_ns for name in finished if name[0] != "."}
    assert run("m.onnx --data long.npy -o killed --resume").exit_code == 0
    assert run("m.onnx --data long.npy -o whole").exit_code == 0
    assert contents("killed") == contents("whole")
    kept = [name for name, at in times.items() if os.stat(here / "killed" / name).st_mtime_ns == at]
    assert kept, "nothing of the killed run was used"
    again = run("m.onnx --data long.npy -o killed --resume")  # nothing is left to do
    assert again.exit_code == 0
    assert contents("killed") == contents("whole")


def test_a_batch_size_and_a_limit_count(run: Any, here: Path) -> None:
    assert run("m.onnx --data x.npy -o s --batch-size 5 --max-batches 3").exit_code == 0
    found = open_statistics("s")
    assert (found["up"].count, found.records, found.options["batch_size"]) == (15, 3, 5)
    assert run("m.onnx --data x.npy -o t --max-batches 3").exit_code == 0
    assert open_statistics("t")["up"].count == 3
    result = run("--merge s t -o u")
    assert result.exit_code == 2
    assert "t: collected with batch_size 1 (not 5)" in result.stderr


def test_a_fixed_batch_is_a_record(run: Any, here: Path) -> None:
    b = Builder({"x": [4, 64]})
    Path("fixed.onnx").write_bytes(b.model(b.add("MatMul", "x", b.normal(64, 32, name="w"))).SerializeToString())
    np.save("f.npy", np.random.default_rng(0).standard_normal((12, 64)).astype(np.float32))
    assert run("fixed.onnx --data f.npy -o s").exit_code == 0
    found = open_statistics("s")
    assert (found["w"].count, found.records) == (12, 3)
    for i in (1, 2, 3):
        assert run(f"fixed.onnx --data f.npy -o p{i} --shard {i}/3").exit_code == 0
    assert run("--merge p1 p2 p3 -o m").exit_code == 0
    assert contents("m") == contents("s")


# ---- what it prints -----------------------------------------------------------------------------------


def test_the_table_fits_and_says_what_rows_are_too_few_for(run: Any, here: Path) -> None:
    result = run("m.onnx --data x.npy -o s")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    said = " ".join(result.stdout.split())
    assert "one, two 700 24 E[x xᵀ]" in said
    assert f"5 layers, {RECORDS} records" in said
    assert "Note: 3 layers have more inputs than rows of data (one: 700 inputs, 24 rows)" in said
    inspected = CliRunner().invoke(_app(), ["inspect", "s", "--sort", "size", "--top", "1"])
    assert inspected.exit_code == 0
    assert "one, two" in inspected.stdout
    assert "kernel" not in inspected.stdout
    filtered = CliRunner().invoke(_app(), ["inspect", "s", "--filter", "kernel*", "--json"])
    assert [layer["names"] for layer in json.loads(filtered.stdout)["layers"]] == [["kernel1"], ["kernel2"]]
    assert CliRunner().invoke(_app(), ["inspect", "s", "--sort", "dtype"]).exit_code == 2


def test_json_is_the_index(run: Any, here: Path) -> None:
    found = json.loads(run("m.onnx --data x.npy -o s --json --diagonal").stdout)
    index = json.loads(Path("s/statistics.json").read_text())
    assert found["model"] == index["model"]
    assert found["data"] == index["data"]
    assert [layer["rows"] for layer in found["layers"]][-1] == RECORDS


# ---- errors -------------------------------------------------------------------------------------------

NOTHING = (
    ("m.onnx -o s", "--data: missing"),
    ("m.onnx --data none.npz -o s", "none.npz: not there"),
    ("m.onnx --data empty.npy -o s", "empty.npy: 'x' has no rows"),
    ("m.onnx --data folder -o s", "folder: no .npy or .npz file in it"),
    ("m.onnx --data zero.npy -o s", "zero.npy: not a NumPy file"),
    ("m.onnx --data other.npy -o s", "other.npy: 'x' has shape (1, 3); the model takes (n, 3, 13, 11)"),
    ("bare.onnx --data x.npy -o s", "bare.onnx: no MatMul, Gemm, Conv or recurrent layer with a weight"),
    ("none.onnx --data x.npy -o s", "none.onnx: not there"),
    ("m.onnx --data x.npy -o m.onnx", "a file; expected a folder"),
    ("m.onnx --data x.npy -o folder2", "already there"),
    ("m.onnx --data x.npy -o folder2 --overwrite", "not written by lowbit"),
    ("m.onnx --data many -o many/s", "which is read; choose a folder outside"),
    ("m.onnx --data x.npy -o /proc/s", "no file can be written here"),
    ("m.onnx --data x.npy -o s --shard 4/3", "shard: 4/3; expected 1/n to n/n"),
    ("m.onnx --data x.npy -o s --shard half", "shard: 'half'; expected i/n"),
    ("m.onnx --data x.npy -o s --shard 1/30", "the data have 24 records, and each shard needs one"),
    ("m.onnx --data x.npy -o s --max-memory lots", "--max-memory: 'lots'; expected a size such as"),
    ("m.onnx --data x.npy -o s --max-memory 0", "--max-memory: '0'"),
    ("m.onnx m.onnx --data x.npy -o s", "sources: 2; expected one model"),
    ("--merge m.onnx folder -o s", "m.onnx: not a folder of statistics"),
    ("--merge none folder -o s", "none: not there"),
    ("--merge folder -o s", "folder: not a folder of statistics"),
    ("--merge folder folder2 -o s --data x.npy", "--data: given; --merge adds up"),
    ("--merge folder folder2 -o s --diagonal", "--gram: given; --merge adds up"),
    ("--merge folder folder2 -o s --shard 1/2", "--shard: given; --merge adds up"),
)


@pytest.mark.parametrize(("line", "message"), NOTHING, ids=[line for line, _ in NOTHING])
def test_what_cannot_end_well_is_one_line_before_any_work(
    run: Any, here: Path, line: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lowbit.formats.onnx import moments

    def worked(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was run")

    monkeypatch.setattr(moments, "values_of", worked)
    np.save("empty.npy", np.zeros((0, 3, 13, 11), np.float32))
    np.save("other.npy", np.zeros((4, 3), np.float32))
    b = Builder({"x": ["n", 3]})
    Path("bare.onnx").write_bytes(b.model(b.add("Relu", "x")).SerializeToString())
    Path("zero.npy").write_bytes(b"")
    Path("folder").mkdir()
    Path("folder2").mkdir()
    Path("folder2/precious").write_text("x")
    before = sorted(here.rglob("*"))
    result = run(line)
    assert result.exit_code == 2, result.output
    said = result.stderr.strip()
    assert said.startswith("lowbit: ")
    assert "\n" not in said
    assert message in said
    assert sorted(here.rglob("*")) == before


@pytest.mark.parametrize("shard", ["", " --shard 2/2"])
def test_activations_that_are_not_finite_are_named(run: Any, here: Path, shard: str) -> None:
    x = np.load("x.npy")
    x[7, 1, 2, 3] = np.nan
    np.save("nan.npy", x)
    result = run(f"m.onnx --data nan.npy -o s{shard}")
    assert result.exit_code == 2
    assert f"batch {3 if shard else 7}: 'x' is nan at index (0, 1, 2, 3)" in result.stderr
    assert ("numbered within shard 2/2" in result.stderr) == bool(shard)
    assert not Path("s").exists()
    assert not Path(".s.partial").exists()


def test_statistics_of_another_model_are_told_apart(run: Any, here: Path) -> None:
    assert run("m.onnx --data x.npy -o s --diagonal").exit_code == 0
    proto = Path("m.onnx").read_bytes()
    Path("n.onnx").write_bytes(proto.replace(b"kernel2", b"kernel3"))
    assert run("n.onnx --data x.npy -o t --diagonal").exit_code == 0
    result = run("--merge s t -o u")
    assert result.exit_code == 2
    assert "t: statistics of another model" in result.stderr
    assert "already" in run("s --data x.npy -o v").stderr


def test_batches_in_memory_are_records(here: Path) -> None:
    x = np.load("x.npy")
    batches = [{"x": x[i : i + 1]} for i in range(RECORDS)]
    found = observe_file("m.onnx", batches, "s", progress=False)
    assert found["up"].count == RECORDS
    with pytest.raises(InvalidProblem, match="data: an iterator"):
        observe_file("m.onnx", iter(batches), "t", progress=False)
    with pytest.raises(InvalidProblem, match="data: no records"):
        observe_file("m.onnx", [], "t", progress=False)
