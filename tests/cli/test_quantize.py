"""`lowbit quantize`, `lowbit compare` and `lowbit demo`: what they print, write and leave alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

ort = pytest.importorskip("onnxruntime")
from typer.testing import CliRunner  # noqa: E402

from lowbit.cli.app import _app  # noqa: E402
from lowbit.formats.files import default_target, kind_of, quantize_file  # noqa: E402
from lowbit.models import Recipe  # noqa: E402
from lowbit.numerics.errors import InvalidProblem  # noqa: E402
from lowbit.runtime.files.container import write_arrays  # noqa: E402
from onnx_builder import Builder, residual_cnn  # noqa: E402


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    return lambda *arguments: CliRunner().invoke(_app(), [str(a) for a in arguments])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    path.write_bytes(residual_cnn().SerializeToString())
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    for i in range(3):
        x = rng.standard_normal((20, 3, 16, 16)).astype(np.float32)
        np.savez(folder / f"{i}.npz", x=x, labels=np.arange(20))
    return folder


METRIC = """
calls = []

def mean_label(predict, batches):
    total = 0.0
    for batch in batches:
        found = predict(batch)
        name, = found
        assert len(found[name]) == len(batch["labels"])
        total += float(batch["labels"].sum())
    return total

def text(predict, batches):
    return "good"
"""


def test_static_from_end_to_end(run: Any, model: Path, data: Path, tmp_path: Path) -> None:
    page, out = tmp_path / "r.html", tmp_path / "net8.onnx"
    result = run(
        "quantize", model, "-o", out, "-r", "static-int8", "--data", data, "--report", page, "--seconds", "0.1"
    )
    assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "7 of 7 weights" in said
    assert "smaller" in said
    assert "over 60 samples" in said
    assert "1 thread" in said
    assert "Asked for and not done" not in said
    assert page.read_text().startswith("<!doctype html>") or page.read_text().startswith("<!DOCTYPE html>")
    onnx.checker.check_model(onnx.load(out), full_check=True)
    ort.InferenceSession(str(out), providers=["CPUExecutionProvider"])


def test_json_is_all_that_is_printed_and_the_report_says_the_same(
    run: Any, model: Path, data: Path, tmp_path: Path
) -> None:
    arguments = ("-r", "W8A16", "--data", data, "--report", tmp_path / "r.json", "--json", "--seconds", "0")
    result = run("quantize", model, "-o", tmp_path / "o.onnx", *arguments)
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed == json.loads((tmp_path / "r.json").read_text())
    assert printed["bytes_after"] == (tmp_path / "o.onnx").stat().st_size
    assert printed["bytes_before"] == model.stat().st_size
    assert printed["accuracy"][0]["samples"] == 60
    assert printed["latency"] == []


def test_the_users_metric_is_asked_of_both(
    run: Any, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_metric.py").write_text(METRIC)
    monkeypatch.chdir(tmp_path)
    common = ("quantize", model, "-o", "o.onnx", "--data", data, "--seconds", "0", "--overwrite")
    result = run(*common, "--metric", "my_metric:mean_label")
    assert result.exit_code == 0, result.output
    assert f"my_metric:mean_label: {3 * 190} → {3 * 190}" in " ".join(result.stdout.split())
    result = run(*common, "--metric", "my_metric:text")
    assert result.exit_code == 2
    assert "expected a number" in result.stderr


def test_the_command_lines_changes_of_a_recipe(run: Any, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.onnx"
    arguments = ("-r", "W4A16", "--group-size", "16", "--skip", "fc1", "--skip", "/^w/")
    result = run("quantize", model, "-o", out, *arguments, "--json", "--seconds", "0")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["recipe"]["weights"]["group_size"] == 16
    by_name = {r["name"]: r for r in printed["rows"]}
    assert by_name["fc1"]["why_not"] == "the recipe skips 'fc1'"
    assert not by_name["fc1"]["asked"]
    assert any("not measured" in n for n in printed["notes"])


def test_an_existing_file_is_replaced_only_when_asked(run: Any, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.onnx"
    out.write_text("precious")
    assert run("quantize", model, "-o", out).exit_code == 2
    assert out.read_text() == "precious"
    assert run("quantize", model, "-o", out, "--overwrite").exit_code == 0
    onnx.load(out)
    before = model.read_bytes()
    assert run("quantize", model, "-o", model).exit_code == 2
    assert model.read_bytes() == before
    assert run("quantize", model, "-o", model, "--overwrite").exit_code == 0
    assert model.read_bytes() != before


@pytest.mark.parametrize(
    "name", ["net.json", "o.json", "sub", "there.json", "link.json", "absent/r.json", "/proc/r.json"]
)
def test_a_report_replaces_nothing_unasked_and_never_the_model(
    run: Any, model: Path, tmp_path: Path, name: str
) -> None:
    """The output and the source may have any name; nothing is computed before the report's place is settled."""
    source = model.rename(tmp_path / "net.json.onnx")
    (tmp_path / "net.json").symlink_to(source)
    (tmp_path / "o.json").symlink_to("o.onnx")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub.json").mkdir()
    (tmp_path / "there.json").write_text("precious")
    (tmp_path / "link.json").symlink_to("there.json")
    report = tmp_path / ("sub.json" if name == "sub" else name)
    before = {f.name: f.read_bytes() for f in tmp_path.iterdir() if f.is_file()}
    found = run("quantize", source, "-o", tmp_path / "o.onnx", "--report", report)
    assert found.exit_code == 2
    assert found.stderr.count("\n") == 1
    assert "report" in found.stderr or name.startswith("/proc")
    assert {f.name: f.read_bytes() for f in tmp_path.iterdir() if f.is_file()} == before
    if name == "there.json":
        assert run("quantize", source, "-o", tmp_path / "o.onnx", "--report", report, "--overwrite").exit_code == 0
        assert json.loads(report.read_text())["rows"]


def test_a_report_is_not_put_into_a_checkpoint_or_over_the_source(run: Any, tmp_path: Path) -> None:
    weights = {"a.q_proj.weight": np.ones((64, 128), np.float32)}
    (tmp_path / "llm").mkdir()
    write_arrays(tmp_path / "llm" / "model.safetensors", weights, {"format": "pt"})
    (tmp_path / "llm" / "config.json").write_text("{}")
    for report in ("ck/config.json", "ck/new.json", "llm/config.json"):
        found = run("quantize", tmp_path / "llm", "-o", tmp_path / "ck", "--report", tmp_path / report, "--overwrite")
        assert found.exit_code == 2
        assert "report: " in found.stderr
    assert sorted(f.name for f in tmp_path.iterdir()) == ["llm"]
    assert (tmp_path / "llm" / "config.json").read_text() == "{}"


def test_a_failure_after_the_writing_says_what_is_kept(
    run: Any, model: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("def broken(predict, batches):\n    return 'text'\n")
    monkeypatch.chdir(tmp_path)
    common = ("quantize", model, "-o", "o.onnx", "--data", data, "--seconds", "0")
    found = run(*common, "--metric", "mine:broken")
    assert found.exit_code == 2
    assert "o.onnx is written and kept" in found.stderr
    assert found.stderr.strip().count("\n") == 0
    onnx.checker.check_model(onnx.load("o.onnx"))

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lowbit.models.ModelReport.save", full)
    found = run(*common, "--overwrite", "--report", "r.json")
    assert found.exit_code == 2
    assert "No space left on device; o.onnx is written and kept" in found.stderr


def test_a_symlinked_checkpoint_target_works_and_a_foreign_one_is_refused(run: Any, tmp_path: Path) -> None:
    source, real = tmp_path / "model.safetensors", tmp_path / "real"
    write_arrays(source, {"a.q_proj.weight": np.ones((64, 128), np.float32)}, {"format": "pt"})
    (tmp_path / "link").symlink_to(real)
    assert run("quantize", source, "-o", tmp_path / "link").exit_code == 0
    assert (real / "model.safetensors").exists()
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis").write_text("x")
    found = run("quantize", source, "-o", tmp_path / "home", "--overwrite")
    assert found.exit_code == 2
    assert "not written by lowbit" in found.stderr
    assert (tmp_path / "home" / "thesis").read_text() == "x"
    (tmp_path / ".new.partial").symlink_to("home")
    found = run("quantize", source, "-o", tmp_path / "new", "--resume")
    assert found.exit_code == 2
    assert ".new.partial: a link or a file" in found.stderr
    assert (tmp_path / "home" / "thesis").read_text() == "x"


def test_a_dangling_link_is_an_existing_model(run: Any, model: Path, tmp_path: Path) -> None:
    (tmp_path / "o.onnx").symlink_to("absent.onnx")
    assert run("quantize", model, "-o", tmp_path / "o.onnx").exit_code == 2
    assert (tmp_path / "o.onnx").is_symlink()
    assert not (tmp_path / "absent.onnx").exists()


def test_names_of_targets(tmp_path: Path) -> None:
    recipe = Recipe.of("W4A16")
    (tmp_path / "llm").mkdir()
    assert default_target(tmp_path / "llm", recipe) == tmp_path / "llm-W4A16"
    assert default_target("a/model.safetensors", recipe) == Path("a/model-W4A16")
    assert default_target("a/model.safetensors.index.json", recipe) == Path("a/model-W4A16")
    assert kind_of(tmp_path / "llm") == "checkpoint"


def test_the_folder_one_stands_in_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llm" / "inner").mkdir(parents=True)
    for place, source in (("llm", "."), ("llm/inner", ".."), ("", "llm")):
        monkeypatch.chdir(tmp_path / place)
        assert default_target(source, Recipe.of("W4A16")).resolve() == tmp_path / "llm-W4A16"
    with pytest.raises(InvalidProblem, match="no name"):
        default_target("/", Recipe.of("W4A16"))


def test_data_may_be_an_iterable(model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    made = ({"x": rng.standard_normal((4, 3, 16, 16)).astype(np.float32)} for _ in range(3))
    report = quantize_file(model, tmp_path / "o.onnx", "static-int8", data=made, seconds=0, progress=False)
    assert report.accuracy[0].samples == 12
    assert report.accuracy[0].sqnr_db > 30
    assert {h.kind for h in report.histograms} == {"weight", "activation"}
    assert {h.name for h in report.histograms if h.kind == "weight"} == {r.name for r in report.treated}


def test_a_fixed_batch_is_kept(tmp_path: Path) -> None:
    b = Builder({"x": [4, 64]})
    path = tmp_path / "fixed.onnx"
    path.write_bytes(b.model(b.add("MatMul", "x", b.normal(64, 64))).SerializeToString())
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((10, 64)).astype(np.float32))
    report = quantize_file(path, None, "static-int8", data=tmp_path / "x.npy", seconds=0, progress=False)
    assert report.accuracy[0].samples == 8
    assert Path(report.target) == tmp_path / "fixed.static-int8.onnx"


# ---- checkpoints --------------------------------------------------------------------------------------


def test_a_checkpoint_and_its_comparison(run: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    folder = tmp_path / "llm"
    folder.mkdir()
    w = {f"layers.{i}.q_proj.weight": rng.standard_normal((64, 256)).astype(np.float32) for i in range(3)}
    w["norm.weight"] = np.ones(64, np.float32)
    write_arrays(folder / "model.safetensors", w, {"format": "pt"})
    result = run("quantize", folder, "-o", tmp_path / "q4", "-r", "W4A16")
    assert result.exit_code == 0, result.output
    assert "3 of" in result.stdout
    assert run("quantize", folder, "-o", tmp_path / "q4", "-r", "W4A16").exit_code == 2
    result = run("compare", folder, tmp_path / "q4", "--json")
    assert result.exit_code == 0, result.output
    rows = {r["name"]: r for r in json.loads(result.stdout)["weights"]}
    assert rows["norm.weight"]["sqnr_db"] == "inf"
    assert 15 < rows["layers.0.q_proj.weight"]["sqnr_db"] < 25
    assert rows["layers.0.q_proj.weight"]["second"] == "int4 symmetric, groups of 128"
    assert "SQNR" in run("compare", folder, tmp_path / "q4").stdout


# ---- compare ------------------------------------------------------------------------------------------


def test_two_models_side_by_side(run: Any, model: Path, data: Path, tmp_path: Path) -> None:
    other = tmp_path / "net8.onnx"
    assert run("quantize", model, "-o", other, "-r", "W8A16").exit_code == 0
    result = run(
        "compare", model, other, "--data", data, "--seconds", "0.1", "--threads", "1", "--threads", "2", "--json"
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["accuracy"][0]["samples"] == 60
    assert [t["threads"] for t in found["latency"]] == [1, 2]
    assert all(t["speedup"] == pytest.approx(t["float_ms"] / t["quantized_ms"]) for t in found["latency"])
    result = run("compare", model, other, "--seconds", "0")
    assert "inputs are random" in " ".join(result.stdout.split())


def test_a_model_compared_with_itself(run: Any, model: Path) -> None:
    result = run("compare", model, model, "--seconds", "0", "--json")
    found = json.loads(result.stdout)["accuracy"][0]
    assert (found["sqnr_db"], found["max_error"]) == ("inf", 0.0)


@pytest.mark.parametrize("other", ["absent.onnx", "llm", "mlp.onnx"])
def test_what_cannot_be_compared(run: Any, model: Path, tmp_path: Path, other: str) -> None:
    (tmp_path / "llm").mkdir()
    b = Builder({"y": [4, 64]})
    (tmp_path / "mlp.onnx").write_bytes(b.model(b.add("MatMul", "y", b.normal(64, 64))).SerializeToString())
    result = run("compare", model, tmp_path / other)
    assert result.exit_code == 2
    assert result.stderr.startswith("lowbit: ")
    assert len(result.stderr.strip().splitlines()) == 1


# ---- demo ---------------------------------------------------------------------------------------------


def test_demo(run: Any, tmp_path: Path) -> None:
    result = run("demo", "--folder", tmp_path / "d", "--seconds", "0", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert set(found) == {"int8 static", "int4 weights"}
    for r in found.values():
        (metric,) = r["metrics"]
        assert metric["float_value"] > 97
        assert abs(metric["quantized_value"] - metric["float_value"]) < 1.5
        assert Path(r["target"]).stat().st_size == r["bytes_after"] < r["bytes_before"] / 3
        assert (Path(r["target"]).parent / "report.html").exists()
    assert "float32" in run("demo", "--folder", tmp_path / "d", "--seconds", "0.1").stdout
