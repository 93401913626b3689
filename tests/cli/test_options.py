"""Every option of every command either has an effect or is an error: nothing given is silently ignored."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
from typer.testing import CliRunner

from lowbit.cli.app import _app
from lowbit.formats.comparison import compare_files
from lowbit.formats.files import quantize_file
from lowbit.models import Override, Recipe, WeightRecipe
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.files.container import write_arrays
from onnx_builder import Builder

COMMANDS = (
    "hardware", "quantize", "inspect", "compare", "calibrate", "observe", "tune", "recommend", "bench", "dtypes",
    "gpu-check", "demo",
)  # fmt: skip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("LOWBIT_TRACEBACK", raising=False)
    return lambda *arguments: CliRunner().invoke(_app(), [str(a) for a in arguments])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, a model of convolutions alone, two checkpoints and data."""
    rng = np.random.default_rng(0)
    b = Builder({"x": ["n", 64]})
    y = b.add("Relu", b.add("Gemm", "x", b.normal(64, 64, name="encoder.up"), b.normal(64, name="bias")))
    (tmp_path / "m.onnx").write_bytes(b.model(b.add("MatMul", y, b.normal(64, 32, name="head"))).SerializeToString())
    b = Builder({"x": ["n", 16, 8, 8]})
    conv = b.model(b.add("Conv", "x", b.normal(16, 16, 3, 3, name="kernel"), kernel_shape=[3, 3]))
    (tmp_path / "conv.onnx").write_bytes(conv.SerializeToString())
    for name in ("ck", "ck2"):
        (tmp_path / name).mkdir()
        w = {"layers.0.q_proj.weight": rng.standard_normal((64, 256)).astype(np.float32)}
        write_arrays(tmp_path / name / "model.safetensors", w, {"format": "pt"})
    np.savez(tmp_path / "d.npz", x=rng.standard_normal((8, 64)).astype(np.float32))
    np.savez(tmp_path / "e.npz", x=rng.standard_normal((3, 64)).astype(np.float32))
    np.savez(tmp_path / "two.npz", a=np.float32([1, 2]), b=np.float32([3]))
    np.save(tmp_path / "rows.npy", rng.standard_normal((8, 4)).astype(np.float32))
    (tmp_path / "plain4.yaml").write_text("{preset: W4A16, protect: false}")  # the first and last layer at 4 bits, too
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ---- refused: the option, and the words of the line that names it ---------------------------------------

DATA = "--data d.npz --seconds 0"
REFUSED = (
    # names that nothing has
    ("quantize m.onnx --skip encoder.upp", "skip: 'encoder.upp' matches no weight; the nearest names are 'encoder.up'"),
    ("quantize m.onnx --skip *.down", r"skip: '\*.down' matches no weight"),
    ("quantize m.onnx --skip /^decoder/", "matches no weight"),
    ("quantize m.onnx --skip head --skip haed", "skip: 'haed' matches no weight; the nearest names are 'head'"),
    ("quantize ck -o out --skip layers.0.k_proj", "skip: 'layers.0.k_proj' matches no weight.*'layers.0.q_proj"),
    ("quantize m.onnx -r typo.yaml", "overrides: 'encoder.upp' matches no weight; the nearest names are 'encoder.up'"),
    ("quantize ck -o out -r typo.yaml", "overrides: 'encoder.upp' matches no weight"),
    # operator
    ("quantize m.onnx --operator matmul_nbits", "operator: matmul_nbits; .*dynamic-int8"),
    ("quantize m.onnx -r W4A16 --operator matmul_nbits", "operator: matmul_nbits; .*protect: false"),
    ("quantize m.onnx --operator dequantize", "operator: dequantize; .*dynamic-int8"),
    ("quantize m.onnx -r W8A16 --operator matmul_nbits", "operator: matmul_nbits; .*W8A16"),
    ("quantize conv.onnx -r W4A16 --operator matmul_nbits", "operator: matmul_nbits"),
    ("quantize m.onnx -r W4A16 --group-size 24 --operator matmul_nbits", "operator: matmul_nbits"),
    ("quantize ck -o out --operator dequantize", "--operator: given; only ONNX"),
    ("quantize m.onnx --operator fast", "operator: 'fast'; expected auto, fold, dequantize, matmul_nbits"),
    ("quantize m.onnx --operator fold", "operator: fold; .*dynamic-int8"),
    ("quantize ck -o out --operator fold", "--operator: given; only ONNX"),
    # optimize and target CPU
    ("quantize m.onnx --optimize most", "optimize: 'most'; expected balanced, speed, size"),
    ("quantize ck -o out --optimize size", "--optimize: given; only ONNX"),
    ("quantize m.onnx --target-cpu avx2", "target_cpu: 'avx2'; expected any, vnni"),
    ("quantize m.onnx -r W8A16 --target-cpu vnni", "target_cpu: vnni; .*W8A16 makes none"),
    ("quantize conv.onnx --target-cpu vnni", "target_cpu: vnni; .*dynamic-int8 makes none"),
    ("quantize ck -o out --target-cpu vnni", "--target-cpu: given; only ONNX"),
    # a result that is not smaller
    ("quantize m.onnx --skip *", "m.dynamic-int8.onnx: .* no weight is quantized; nothing written; .*--force"),
    ("quantize m.dynamic-int8.onnx", "no weight is quantized; the model is quantized already"),
    ("quantize ck -o out --force", "--force: given; only ONNX"),
    # group size
    ("quantize m.onnx --group-size 32", "group_size: 32; dynamic-int8"),
    ("quantize m.onnx -r W8A8 --group-size 32", "group_size: 32; W8A8"),
    (f"quantize m.onnx -r static-int8 --group-size 32 {DATA}", "group_size: 32; static-int8"),
    # what belongs to static ranges, data, checkpoints or ONNX models
    ("quantize m.onnx --method entropy", "method: 'entropy'; dynamic-int8 has no static activations .* rtn, mse"),
    ("quantize m.onnx --activation-method mse", "activation_method: 'mse'; dynamic-int8 .* use --method for weights"),
    (f"quantize m.onnx -r static-int8 --method mse {DATA}", "method: mse; weights and static activations have it"),
    ("quantize m.onnx -r W4A16 --method gptq", "gptq .*--data"),
    ("quantize m.onnx --sequence-length 9", "--sequence-length: given; only checkpoints"),
    ("quantize m.onnx --max-memory 2GB", "--max-memory: given; only checkpoints"),
    ("quantize ck -o out --sequence-length 9", "--sequence-length: given; without --data"),
    ("quantize ck -o out --max-memory 2GB", "--max-memory: given; without --data"),
    ("quantize ck -o out --method gptq", "gptq needs a Gram matrix of its inputs, and there are none; give data"),
    ("quantize ck -o out --stats ck2", "ck2: not a folder of statistics"),
    ("quantize m.onnx --batch-size 4", "--batch-size: given; without --data"),
    ("quantize m.onnx --max-batches 4", "--max-batches: given; without --data"),
    ("quantize m.onnx --seconds 3", "--seconds: given; without --data"),
    ("quantize m.onnx --threads 1", "--threads: given; without --data"),
    (f"quantize m.onnx --threads 2 {DATA}", "--threads: given; with --seconds 0"),
    ("quantize m.onnx --allow-pickle", "--allow-pickle: given; only checkpoints"),
    ("quantize m.onnx --resume", "resume"),
    ("quantize ck -o out --data d.npz", "data: d.npz; a checkpoint is calibrated on text"),
    ("quantize ck -o out --eval-data e.npz", "--eval-data: given; the result of a checkpoint is not run"),
    ("quantize m.onnx -r static-int8 --eval-data e.npz", "data: none; the recipe has static activations"),
    ("quantize m.onnx --eval-data rows.npy --seconds 0", r"rows.npy: 'x' has shape \(8, 4\); .*\(n, 64\)"),
    ("quantize ck -o out --batch-size 3", "--batch-size: given; the result"),
    ("quantize ck -o out --max-batches 3", "--max-batches: given; without --data"),
    ("quantize ck -o out --metric json:dump", "--metric: given; the result"),
    ("quantize ck -o out --seconds 3", "--seconds: given; the result"),
    ("quantize ck -o out --threads 3", "--threads: given; the result"),
    ("quantize ck -o out --external-data", "--external-data: given; only ONNX"),
    ("quantize ck -o out --method entropy", "method: 'entropy'; W4A16"),
    # compare
    ("compare m.onnx m.onnx --max-batches 3", "--max-batches: given; without --data"),
    ("compare m.onnx m.onnx --metric json:dump", "metric: given without data"),
    ("compare m.onnx m.onnx --seconds 0 --threads 2", "--threads: given; with --seconds 0"),
    ("compare ck ck2 --data d.npz", "--data: given; checkpoints"),
    ("compare ck ck2 --metric json:dump", "--metric: given; checkpoints"),
    ("compare ck ck2 --batch-size 2", "--batch-size: given; checkpoints"),
    ("compare ck ck2 --max-batches 2", "--max-batches: given; checkpoints"),
    ("compare ck ck2 --seconds 1", "--seconds: given; checkpoints"),
    ("compare ck ck2 --threads 1", "--threads: given; checkpoints"),
    # calibrate
    ("calibrate two.npz --state s.safetensors", "state: it keeps one tensor"),
    ("calibrate rows.npy --state begun.safetensors --axis 0", "axis: 0; begun.safetensors was begun with 1"),
    ("calibrate rows.npy --state begun.safetensors --ignore-nonfinite", "was begun without it"),
    ("calibrate two.npz --array c", "array: 'c' is not in"),
    # observe
    ("observe m.onnx -o s --sequence-length 5 --data d.npz", "sequence_length: given; only text has it"),
    ("observe ck -o s --batch-size 5 --data t.txt", "batch_size: given; each sequence"),
    *((f"observe --merge s1 s2 -o s {option}", f"{option.split()[0]}: given; --merge adds up")
      for option in ("--data d.npz", "--shard 1/2", "--batch-size 3", "--max-batches 3", "--sequence-length 3",
                     "--max-memory 1GB", "--gram")),
    # tune and recommend without a workload
    *((f"{command} {option}", f"{option.split()[0]}: given; there is no workload")
      for command in ("tune --clear-cache", "recommend")
      for option in ("--seconds 1", "--max-latency 1", "--min-sqnr 1", "--min-cosine 1", "--memory 1", "--no-cache")),
    ("recommend --no-torch", "torch: given; there is no workload"),
    # bench --compare
    *((f"bench --compare a.json b.json {option}", f"{option.split()[0]}: given; --compare measures nothing")
      for option in ("--only matrix", "--quick", "--seconds 1", "--timeout 1", "--threads 1", "--out x.json",
                     "--roofline x.png")),
    ("bench --roofline x.png --only memory", "--roofline: it draws the matrix family"),
)  # fmt: skip

TYPO = "preset: W8A16\noverrides: [{match: encoder.upp, weights: {dtype: int4, group_size: 32}}]\n"


@pytest.mark.parametrize(("line", "message"), REFUSED, ids=[line for line, _ in REFUSED])
def test_an_option_that_would_be_ignored_is_an_error(run: Any, here: Path, line: str, message: str) -> None:
    (here / "typo.yaml").write_text(TYPO)
    if "begun" in line:
        assert run("calibrate", "rows.npy", "--axis", "1", "--state", "begun.safetensors").exit_code == 0
    if "m.dynamic-int8.onnx" in line:
        assert run("quantize", "m.onnx", "--optimize", "size").exit_code == 0
    before = sorted(here.rglob("*"))
    result = run(*line.split())
    assert result.exit_code == 2, result.output
    said = result.stderr.strip()
    assert said.startswith("lowbit: ")
    assert "\n" not in said
    assert re.search(message, said), said
    assert sorted(here.rglob("*")) == before


# ---- effective: the option, and where its effect is seen in the JSON -------------------------------------

EFFECTIVE: tuple[tuple[str, str], ...] = (
    ("quantize m.onnx --skip head", "rows.1.why_not=the recipe skips 'head'"),
    ("quantize m.onnx --skip bias", "treated=2"),  # a vector, which stays float in any case
    ("quantize m.onnx -r W4A16 --group-size 32", "recipe.weights.group_size=32"),
    ("quantize m.onnx -r W8A16 --group-size 32", "recipe.weights.group_size=32"),
    ("quantize m.onnx -r W4A16 --group-size 32 --operator dequantize", "treated=2"),
    ("quantize m.onnx -r plain4.yaml --group-size 32 --operator matmul_nbits", "treated=2"),
    ("quantize m.onnx -r W8A16 --operator dequantize", "treated=2"),
    (
        "quantize m.onnx -r static-int8 --activation-method mse --data d.npz --seconds 0",
        "recipe.activations.method=mse",
    ),
    ("quantize m.onnx -r static-int8 --method entropy --data d.npz --seconds 0", "recipe.activations.method=entropy"),
    ("quantize m.onnx --method mse", "rows.0.method=mse"),
    ("quantize m.onnx -r W4A16 --method gptq --data d.npz --seconds 0", "recipe.weights.method=gptq"),
    ("quantize ck -o out --method hqq", "rows.0.method=hqq"),
    ("quantize ck -o out --group-size 100", "rows.0.how=int4 symmetric, groups of 64"),
    ("quantize m.onnx --data d.npz --seconds 0 --batch-size 2 --max-batches 2", "accuracy.0.samples=4"),
    ("quantize m.onnx -r static-int8 --data d.npz --seconds 0", "compared_on=calibration data"),
    ("quantize m.onnx -r static-int8 --data d.npz --eval-data e.npz --seconds 0", "compared_on=evaluation data"),
    ("quantize m.onnx -r static-int8 --data d.npz --eval-data e.npz --seconds 0", "accuracy.0.samples=3"),
    ("quantize m.onnx --data d.npz --seconds 0", "compared_on=evaluation data"),  # no range is found in them
    ("quantize m.onnx --eval-data e.npz --seconds 0 --batch-size 2 --max-batches 1", "accuracy.0.samples=2"),
    ("quantize m.onnx", "compared_on="),
    ("quantize m.onnx --data d.npz --seconds 0.01 --threads 2", "latency.0.threads=2"),
    ("quantize conv.onnx -r W8A16 --group-size 32", "rows.0.how=int8 symmetric, groups of 32"),
    # what dynamic-int8 gives, since ONNX Runtime has no other way; the row says so
    (
        "quantize m.onnx -r W8A8 --optimize size",
        "rows.0.note=activations uint8 per tensor, the only kind ONNX Runtime supports",
    ),
    ("quantize m.onnx --skip * --force", "treated=0"),
    ("quantize m.onnx --optimize size --target-cpu vnni", "rows.0.guard_db=0.0"),
    ("quantize m.onnx -r W8A16 --operator fold", "treated=2"),
    ("quantize m.onnx --external-data", "treated=2"),
    ("quantize ck -o out --resume", "treated=1"),
    ("quantize ck -o out --skip lm_head -r W4A16", "treated=1"),  # the usual list, and the head is tied
    ("compare m.onnx m.onnx --seconds 0 --batch-size 3", "accuracy.0.samples=3"),
    ("compare m.onnx m.onnx --data d.npz --seconds 0 --batch-size 3 --max-batches 1", "accuracy.0.samples=3"),
    ("observe m.onnx -o s --data d.npz --diagonal", "layers.0.gram=False"),
    ("observe m.onnx -o s --data d.npz --shard 2/2", "layers.0.rows=4"),
    ("observe m.onnx -o s --data d.npz --max-batches 3", "layers.0.rows=3"),
    ("observe m.onnx -o s --data d.npz --batch-size 3 --max-batches 1", "layers.0.rows=3"),
    ("inspect m.onnx --top 1", "tensors.0.name=encoder.up"),
    ("inspect m.onnx --filter head", "tensors.0.name=head"),
    ("inspect m.onnx --sort name", "tensors.0.name=bias"),
)


@pytest.mark.parametrize(("line", "effect"), EFFECTIVE, ids=[line for line, _ in EFFECTIVE])
def test_an_option_that_applies_has_its_effect(run: Any, here: Path, line: str, effect: str) -> None:
    if "lm_head" in line:
        (here / "ck" / "config.json").write_text(json.dumps({"tie_word_embeddings": True}))
    result = run(*line.split(), "--json")
    assert result.exit_code == 0, result.output
    path, _, expected = effect.partition("=")
    at = json.loads(result.stdout)
    for key in path.split("."):
        at = at[int(key)] if isinstance(at, list) else at[key]
    assert str(at) == expected


def test_operators_write_different_nodes(run: Any, here: Path) -> None:
    import onnx

    ways = {"DequantizeLinear", "MatMulNBits", "Mul"}
    for operator, expected in (("dequantize", "DequantizeLinear"), ("matmul_nbits", "MatMulNBits"), ("fold", "Mul")):
        out = f"{operator}.onnx"
        result = run("quantize", "m.onnx", "-o", out, "-r", "plain4.yaml", "--group-size", 32, "--operator", operator)
        assert result.exit_code == 0, result.output
        ops = {n.op_type for n in onnx.load(out).graph.node}
        assert expected in ops
        assert ops & ways == {expected}


def test_optimize_decides_which_layers_are_measured(run: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowbit.formats.onnx import convert

    asked: list[str] = []
    monkeypatch.setattr(convert, "fastest", lambda rewrite, made, batch, optimize: asked.append(optimize) or made)
    for optimize in ("balanced", "speed", "size"):
        assert run("quantize", "m.onnx", "-o", f"{optimize}.onnx", "--optimize", optimize).exit_code == 0
    assert asked == ["balanced", "speed"]


# ---- the same in Python --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": Recipe.of("W8A16").but(skip=["haed"])}, "skip: 'haed' matches no weight; the nearest .*'head'"),
        ({"recipe": Recipe(overrides=(Override("nothing"),))}, "overrides: 'nothing' matches no weight"),
        ({"recipe": Recipe(overrides=(Override("bias", WeightRecipe("int4")),))}, "overrides: 'bias' matches no"),
        ({"operator": "dequantize"}, "operator: dequantize"),
        ({"target_cpu": "avx2"}, "target_cpu: 'avx2'"),
        ({"recipe": "W8A16", "target_cpu": "vnni"}, "target_cpu: vnni"),
        ({"recipe": Recipe(kinds=("conv",))}, "no weight is quantized; .*force=True"),
        ({"eval_data": [{"x": np.zeros((2, 64), np.float32)}], "batch_size": 3}, "batch_size: given"),
        ({"batch_size": 3}, "batch_size"),
        ({"max_batches": 3}, "max_batches"),
        ({"data": [{"x": np.zeros((2, 64), np.float32)}], "batch_size": 3}, "batch_size: given"),
        ({"data": [{"x": np.zeros((2, 64), np.float32)}], "max_batches": 3}, "max_batches: given"),
        ({"allow_pickle": True}, "allow_pickle"),
        ({"threads": (0,)}, "threads: 0"),
        ({"threads": ()}, "threads"),
        ({"threads": 4}, "threads: 4"),
        ({"threads": (True,)}, "threads: True"),
        ({"seconds": -1}, "seconds: -1"),
        ({"seconds": float("nan")}, "seconds: nan"),
        ({"seconds": "2"}, "seconds: '2'"),
        ({"batch_size": 0, "data": "d.npz"}, "batch_size: 0"),
        ({"max_batches": 0, "data": "d.npz"}, "max_batches: 0"),
    ],
)
def test_quantize_file_ignores_nothing(here: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        quantize_file("m.onnx", "out.onnx", progress=False, **options)
    assert not (here / "out.onnx").exists()


def test_compare_files_ignores_nothing(here: Path) -> None:
    for options in ({"max_batches": 2}, {"threads": [0]}, {"seconds": float("inf")}, {"batch_size": -1}):
        with pytest.raises(InvalidProblem, match=next(iter(options))):
            compare_files("m.onnx", "m.onnx", **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidProblem):
        compare_files("ck", "ck2", batch_size=2)


# ---- found before work ---------------------------------------------------------------------------------

BEFORE_WORK = (
    "quantize m.onnx --threads 0 --data d.npz", "quantize m.onnx --threads -3 --data d.npz",
    "quantize m.onnx --threads 100000 --data d.npz", "compare m.onnx m.onnx --threads 0",
    "compare m.onnx m.onnx --seconds nan", "compare m.onnx m.onnx --seconds -1", "quantize m.onnx --seconds inf",
    "quantize m.onnx --batch-size 0 --data d.npz", "quantize m.onnx --max-batches 0 --data d.npz",
    "demo --seconds nan", "bench --threads 0", "bench --seconds nan", "bench --out x.txt", "bench --out no/x.json",
    "bench --out /proc/x.json", "bench --roofline ck/no/x.png",
    "quantize m.onnx --report no/r.html", "quantize m.onnx --report r.txt", "quantize m.onnx --report ck.html/",
    "quantize m.onnx --report /proc/r.html", "quantize m.onnx -o /proc/out.onnx", "quantize ck -o /proc/out",
    "quantize m.onnx -o no/such/out.onnx", "quantize m.onnx --metric nothing:f --data d.npz",
    "quantize m.onnx --metric broken:f --data d.npz", "quantize m.onnx --metric math:floor --data d.npz",
    "quantize m.onnx --metric math:pi --data d.npz", "compare m.onnx m.onnx --metric broken:f --data d.npz",
    "calibrate rows.npy --plot no/x.png", "calibrate rows.npy --plot x.txt", "calibrate rows.npy --state /proc/s",
    "calibrate rows.npy --method magic", "calibrate rows.npy --dtype int3", "calibrate rows.npy --scheme odd",
    "dtypes --json no/x.json", "dtypes --json /proc/x.json", "dtypes --json ck",
)  # fmt: skip


@pytest.mark.parametrize("line", BEFORE_WORK)
def test_what_cannot_end_well_is_found_before_work(
    run: Any, here: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever does the work is replaced by something that fails the test."""
    from lowbit.bench import QuantizationBenchmarkSuite, survey
    from lowbit.calibration import Calibrator
    from lowbit.formats.compressed_tensors import convert as checkpoint
    from lowbit.formats.onnx import measure, rewrite

    def worked(*_: Any, **__: Any) -> None:
        raise AssertionError("work was begun")

    for module, name in (
        (rewrite, "prepare"), (measure, "open_session"), (checkpoint, "stream_shard"), (survey, "run_survey"),
        (QuantizationBenchmarkSuite, "run"), (Calibrator, "calibrate"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, worked)
    (here / "broken.py").write_text("def f(:\n")
    (here / "ck.html").mkdir()
    before = sorted(p for p in here.rglob("*") if "__pycache__" not in str(p))
    result = run(*line.split())
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.output
    assert sorted(p for p in here.rglob("*") if "__pycache__" not in str(p)) == before


# ---- help, completion, tracebacks, Ctrl-C ---------------------------------------------------------------


@pytest.mark.parametrize("command", [(), *((c,) for c in COMMANDS)], ids=str)
def test_h_is_help(run: Any, command: tuple[str, ...]) -> None:
    short, long = run(*command, "-h"), run(*command, "--help")
    assert short.exit_code == 0
    assert short.stdout == long.stdout
    assert "Usage" in short.stdout


def test_shells_are_told_how_to_complete(run: Any) -> None:
    assert "--install-completion" in run("-h").stdout
    for word, expected in (("qua", "quantize"), ("gp", "gpu-check")):
        found = CliRunner().invoke(
            _app(), [], prog_name="lowbit",
            env={"_LOWBIT_COMPLETE": "complete_bash", "COMP_WORDS": f"lowbit {word}", "COMP_CWORD": "1"},
        )  # fmt: skip
        assert found.stdout.split() == [expected]


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> None:
    import lowbit.formats.inspection as module

    def fault(_: Any) -> None:
        raise RuntimeError("the [bold]impossible[/bold]\nhas \x1b[31mhappened")

    monkeypatch.setattr(module, "inspect_file", fault)


def test_a_fault_of_our_own_is_one_line_too(run: Any, faulty: None) -> None:
    result = run("inspect", "x")
    assert result.exit_code == 70
    assert result.stderr == (
        "lowbit: internal error: RuntimeError: the [bold]impossible[/bold] has \\x1b[31mhappened; "
        "--traceback shows where\n"
    )


@pytest.mark.parametrize("line", [("--traceback", "inspect", "x"), ("inspect", "x", "--traceback")])
def test_the_traceback_is_behind_a_flag(run: Any, faulty: None, line: tuple[str, ...]) -> None:
    result = run(*line)
    assert result.exit_code == 70
    assert "Traceback" in result.stderr
    assert "in fault" in result.stderr
    assert "\x1b" not in result.stderr
    assert "--traceback" in run("-h").stdout


def test_the_traceback_may_be_asked_for_by_the_environment(
    run: Any, faulty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOWBIT_TRACEBACK", "1")
    assert "Traceback" in run("inspect", "x").stderr
    monkeypatch.setenv("LOWBIT_TRACEBACK", "0")
    assert "Traceback" not in run("inspect", "x").stderr


def test_out_of_memory_is_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import lowbit.formats.inspection as module

    def full(_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(module, "inspect_file", full)
    result = run("inspect", "x")
    assert (result.exit_code, result.stderr) == (2, "lowbit: out of memory\n")


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_says_that_nothing_was_written(run: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowbit.formats.onnx import rewrite

    before = sorted(here.iterdir())
    monkeypatch.setattr(rewrite, "prepare", interrupt)
    result = run("quantize", "m.onnx")
    assert (result.exit_code, result.stderr) == (130, "lowbit: interrupted; nothing was written\n")
    assert sorted(here.iterdir()) == before


def test_ctrl_c_says_that_the_model_is_written(run: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowbit.formats.onnx import measure

    monkeypatch.setattr(measure, "compare_outputs", interrupt)
    result = run("quantize", "m.onnx", "-o", "out.onnx", "--data", "d.npz", "--report", "r.html")
    assert result.exit_code == 130
    assert "interrupted; out.onnx is written and kept" in result.stderr
    assert run("inspect", "out.onnx").exit_code == 0
    assert not (here / "r.html").exists()


def test_ctrl_c_says_how_to_go_on_with_a_checkpoint(run: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowbit.formats.compressed_tensors import convert
    from lowbit.formats.work_folder import Assembly

    with monkeypatch.context() as patched:
        patched.setattr(convert, "stream_shard", interrupt)
        result = run("quantize", "ck", "-o", "out")
        assert (result.exit_code, result.stderr) == (130, "lowbit: interrupted; nothing was written\n")
    finish = Assembly.finish
    with monkeypatch.context() as patched:
        patched.setattr(Assembly, "finish", lambda *given: (finish(*given), interrupt()))
        result = run("quantize", "ck", "-o", "out")
        assert result.exit_code == 130
        kept = here / ".out.partial"
        assert f"interrupted; 1 finished shard is kept in {kept}; resume goes on from there" in result.stderr
    assert run("quantize", "ck", "-o", "out", "--resume").exit_code == 0


def test_ctrl_c_shows_what_was_measured(run: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lowbit.bench import QuantizationBenchmarkSuite

    monkeypatch.setenv("LOWBIT_CACHE_DIR", str(here / "cache"))
    monkeypatch.setattr(QuantizationBenchmarkSuite, "_result", interrupt)
    result = run("bench", "--only", "elementwise", "--quick", "--out", "b.json")
    assert result.exit_code == 130
    assert result.stderr.splitlines()[-1] == "lowbit: interrupted; b.json is what was measured until then"
    assert not json.loads((here / "b.json").read_text())["complete"]


def test_ctrl_c_elsewhere_is_one_line(run: Any, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import lowbit.formats.comparison as module

    monkeypatch.setattr(module, "compare_files", interrupt)
    result = run("compare", "m.onnx", "m.onnx")
    assert (result.exit_code, result.stderr) == (130, "lowbit: interrupted; nothing was written\n")


def test_the_installed_command_ends_without_a_traceback(here: Path) -> None:
    """The same in a process of its own, as people run it."""
    done = subprocess.run(
        [sys.executable, "-c", "from lowbit.cli import main; main()", "quantize", "no-such.onnx"],
        capture_output=True, text=True, env=dict(os.environ), timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "lowbit: no-such.onnx: not there; expected a file or folder\n"


def test_all_commands_are_in_the_list(run: Any) -> None:
    import typer

    assert sorted(typer.main.get_command(_app()).commands) == sorted(COMMANDS)  # type: ignore[attr-defined]
