"""Names from files on the terminal: markup stays text, and no control or direction character gets through."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

pytest.importorskip("onnxruntime")
from typer.testing import CliRunner

from lowbit.cli.app import _app
from lowbit.runtime.files.container import write_arrays
from onnx_builder import Builder

# Markup that rich would take, or choke on; a title for the terminal; a new line; text from right to left.
EVIL = "[red]x[/red][/]\x1b]0;owned\x07\n\u202eevil\x9b2J"
PLAIN = "[red]x[/red][/]\\x1b]0;owned\\x07\\n\\u202eevil\\x9b2J"


@pytest.fixture(params=["pipe", "terminal"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.delenv("LOWBIT_TRACEBACK", raising=False)
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    if request.param == "terminal":  # where rich draws bars and colours
        monkeypatch.setenv("FORCE_COLOR", "1")
    return lambda *arguments: CliRunner().invoke(_app(), [str(a) for a in arguments])


def check(result: Any, *, named: bool = True, code: int = 0) -> None:
    assert result.exit_code == code, result.output
    for text in (result.stdout, result.stderr):
        bare = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)  # what rich itself writes on a terminal
        assert [c for c in bare if not (c.isprintable() or c in "\n\r")] == []
    if named:
        bare = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout + result.stderr)
        bare = bare.replace("\n", "").replace("\\n", " ")  # the line of an error has spaces for new lines
        assert PLAIN.replace("\\n", " ") in bare


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = Builder({f"in{EVIL}": ["n", 64]})
    y = b.add("Gemm", f"in{EVIL}", b.normal(64, 64, name=f"w{EVIL}"), b.normal(64, name=f"b{EVIL}"))
    b.nodes[-1].name = f"node{EVIL}"
    b.nodes.append(helper.make_node("Relu", [y], [f"out{EVIL}"], name=f"relu{EVIL}"))
    path = tmp_path / "m[red].onnx"
    path.write_bytes(b.model(f"out{EVIL}").SerializeToString())
    np.savez(tmp_path / "d.npz", **{f"in{EVIL}": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)})
    return path


@pytest.mark.parametrize("recipe", ["dynamic-int8", "static-int8", "W4A16"])
def test_a_model_quantized(run: Any, model: Path, tmp_path: Path, recipe: str) -> None:
    out = tmp_path / "o[bold].onnx"
    check(run("quantize", model, "-o", out, "-r", recipe, "--data", tmp_path / "d.npz", "--seconds", "0.01"))
    check(run("inspect", out))
    check(run("compare", model, out, "--seconds", "0.01"))


def test_a_model_inspected_and_what_is_not_treated(run: Any, model: Path, tmp_path: Path) -> None:
    check(run("inspect", model))
    check(run("quantize", model, "--skip", "*"), named=False, code=2)
    check(run("quantize", model, "--skip", "*", "--force"))
    result = run("quantize", model, "--skip", "nothing", "--overwrite")
    check(result, code=2)


def test_what_the_runtime_says(run: Any, model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A model that loads and cannot run: ONNX Runtime's own log would write the names as they are."""
    b = Builder({"x": ["n", 64]})
    b.add("Gemm", "x", b.normal(64, 64, name=f"w{EVIL}"), b.normal(63, name="b"))
    b.nodes[-1].name = EVIL
    made = helper.make_tensor_value_info(b.nodes[-1].output[0], TensorProto.FLOAT, None)
    model.write_bytes(b.model(made.name).SerializeToString())
    np.savez(tmp_path / "d.npz", x=np.zeros((4, 64), np.float32))
    check(run("quantize", model, "-r", "static-int8", "--data", tmp_path / "d.npz"), named=False, code=2)
    check(run("compare", model, model), named=False, code=2)
    assert capfd.readouterr().err == ""


def test_an_operator_with_such_a_name(run: Any, model: Path) -> None:
    b = Builder({"x": ["n", 64]})
    y = b.add("Gemm", "x", b.normal(64, 64, name=f"w{EVIL}"))
    made = b.model(y)
    made.graph.node[0].domain = made.graph.node[0].op_type = EVIL
    made.opset_import.append(helper.make_opsetid(EVIL, 1))
    model.write_bytes(made.SerializeToString())
    check(run("inspect", model))
    check(run("quantize", model), named=False, code=2)


def test_a_checkpoint(run: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / "ck[red]"
    folder.mkdir()
    w = {f"{EVIL}.{i}.q_proj.weight": rng.standard_normal((64, 256)).astype(np.float32) for i in range(3)}
    write_arrays(folder / "model.safetensors", w, {"format": EVIL})
    (folder / "config.json").write_text(json.dumps({"model_type": EVIL, "architectures": [EVIL]}))
    check(run("quantize", folder, "-o", tmp_path / "q", "-r", "W4A16"))
    check(run("inspect", folder))
    check(run("compare", folder, tmp_path / "q"))
    check(run("quantize", folder, "-o", tmp_path / "q2", "--skip", "nothing"), code=2)


def test_a_recipe(run: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(
        json.dumps({"name": EVIL, "overrides": [{"match": "w*", "skip": True, "reason": EVIL}]})
    )
    check(run("quantize", model, "-r", tmp_path / "r.json", "--force"))
    (tmp_path / "bad.json").write_text(json.dumps({EVIL: 3}))
    check(run("quantize", model, "-r", tmp_path / "bad.json"), code=2)


def test_arrays(run: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a[red].npz", **{EVIL: np.float32([1, 2, 3])})
    check(run("calibrate", tmp_path / "a[red].npz"))
    check(run("inspect", tmp_path / "a[red].npz"))
    np.savez(tmp_path / "nan.npz", **{EVIL: np.float32([1, np.nan, 3])})
    check(run("calibrate", tmp_path / "nan.npz"), code=2)


def test_results_of_benchmarks(run: Any, tmp_path: Path) -> None:
    from lowbit.bench import BenchmarkResult, BenchmarkSummary, Timing

    def summary(seconds: float) -> BenchmarkSummary:
        timing = Timing(seconds, seconds, seconds, seconds, 10, 1)
        results = (BenchmarkResult(EVIL, "matrix", "ok", timing=timing),)
        return BenchmarkSummary(results, {"cpu": EVIL + str(seconds)}, {"isa": "x"}, "1", 1, 0.0, True)

    for name, seconds in (("old.json", 1.0), ("new.json", 5.0)):
        summary(seconds).save(tmp_path / name)
    check(run("bench", "--compare", tmp_path / "old.json", tmp_path / "new.json"), code=1)
    (tmp_path / "bad.json").write_text(json.dumps({EVIL: 1}))
    check(run("bench", "--compare", tmp_path / "bad.json", tmp_path / "new.json"), named=False, code=2)


def test_the_command_line_itself(run: Any) -> None:
    for line in (["inspect", EVIL], ["quantize", EVIL], ["compare", EVIL, EVIL], ["tune", "--matmul", EVIL]):
        check(run(*line), named=False, code=2)
