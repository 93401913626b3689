"""Sixty and more bad inputs of `lowbit quantize`: one clear line, exit code 2, nothing written, nothing changed."""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

pytest.importorskip("onnxruntime")
from typer.testing import CliRunner

from lowbit.cli.app import _app
from onnx_builder import Builder

Case = Callable[[Path], list[str]]
CASES: dict[str, tuple[str, Case]] = {}


def bad(name: str, message: str) -> Callable[[Case], Case]:
    """Registers a case: what it is, and what the line must say."""

    def register(case: Case) -> Case:
        assert name not in CASES
        CASES[name] = (message, case)
        return case

    return register


def mlp(folder: Path) -> onnx.ModelProto:
    b = Builder({"x": ["n", 64]})
    y = b.add("Relu", b.add("Gemm", "x", b.normal(64, 64, name="w1"), b.normal(64, name="b1")))
    return b.model(b.add("MatMul", y, b.normal(64, 32, name="w2")))


def saved(folder: Path, model: onnx.ModelProto, name: str = "model.onnx") -> str:
    (folder / name).write_bytes(model.SerializeToString())
    return str(folder / name)


def tensor(model: onnx.ModelProto, name: str) -> TensorProto:
    return next(t for t in model.graph.initializer if t.name == name)


# ---- ONNX files ---------------------------------------------------------------------------------------


@bad("no such file", "not there")
def _(f: Path) -> list[str]:
    return [str(f / "absent.onnx")]


@bad("empty file", "0 bytes")
def _(f: Path) -> list[str]:
    (f / "m.onnx").write_bytes(b"")
    return [str(f / "m.onnx")]


@bad("random bytes", "not an ONNX model")
def _(f: Path) -> list[str]:
    (f / "m.onnx").write_bytes(np.random.default_rng(0).bytes(5000))
    return [str(f / "m.onnx")]


@bad("a text file", "not an ONNX model")
def _(f: Path) -> list[str]:
    (f / "m.onnx").write_text("this is no model\n" * 10)
    return [str(f / "m.onnx")]


for share in (0.1, 0.5, 0.9, 0.999):

    @bad(f"cut off at {share}", "m.onnx")
    def _(f: Path, share: float = share) -> list[str]:
        whole = mlp(f).SerializeToString()
        (f / "m.onnx").write_bytes(whole[: int(len(whole) * share)])
        return [str(f / "m.onnx")]


@bad("a folder named .onnx", "not a file")
def _(f: Path) -> list[str]:
    (f / "m.onnx").mkdir()
    return [str(f / "m.onnx")]


@bad("no graph", "no graph")
def _(f: Path) -> list[str]:
    model = mlp(f)
    model.ClearField("graph")
    return [saved(f, model)]


@bad("no opset", "opset")
def _(f: Path) -> list[str]:
    model = mlp(f)
    model.ClearField("opset_import")
    return [saved(f, model)]


@bad("a cycle", "cycle")
def _(f: Path) -> list[str]:
    model = mlp(f)
    model.graph.node[0].input[0] = model.graph.node[2].output[0]
    return [saved(f, model)]


@bad("a node that reads nothing's result", "no node produces")
def _(f: Path) -> list[str]:
    model = mlp(f)
    model.graph.node[0].input[0] = "ghost"
    return [saved(f, model)]


@bad("two nodes make one tensor", "two node outputs")
def _(f: Path) -> list[str]:
    model = mlp(f)
    model.graph.node[1].output[0] = model.graph.node[0].output[0]
    return [saved(f, model)]


@bad("two initializers of one name", "two initializers")
def _(f: Path) -> list[str]:
    model = mlp(f)
    model.graph.initializer.append(tensor(model, "w1"))
    return [saved(f, model)]


@bad("an output nobody makes", "no node produces")
def _(f: Path) -> list[str]:
    model = mlp(f)
    model.graph.output[0].name = "ghost"
    return [saved(f, model)]


@bad("too few bytes for the shape", "'w1': 16384 bytes of data")
def _(f: Path) -> list[str]:
    model = mlp(f)
    tensor(model, "w1").dims[0] = 65
    return [saved(f, model)]


@bad("a negative dimension", "bad shape")
def _(f: Path) -> list[str]:
    model = mlp(f)
    tensor(model, "w1").dims[0] = -64
    return [saved(f, model)]


@bad("dimensions beyond all memory", "bad shape")
def _(f: Path) -> list[str]:
    model = mlp(f)
    del tensor(model, "w1").dims[:]
    tensor(model, "w1").dims.extend([1 << 40, 1 << 40])
    return [saved(f, model)]


@bad("an unknown element type", "unknown element type")
def _(f: Path) -> list[str]:
    model = mlp(f)
    tensor(model, "w1").data_type = 999
    return [saved(f, model)]


@bad("an operator that does not exist", "Bogus")
def _(f: Path) -> list[str]:
    model = mlp(f)
    model.graph.node[1].op_type = "Bogus"
    return [saved(f, model)]


@bad("NaN in a weight", "w1: nan at index \\(3, 5\\)")
def _(f: Path) -> list[str]:
    return [saved(f, with_weight(f, (3, 5), np.nan))]


@bad("Inf in a weight", "w1: -?inf at index \\(0, 0\\)")
def _(f: Path) -> list[str]:
    return [saved(f, with_weight(f, (0, 0), -np.inf))]


@bad("NaN in a weight, in groups", "w1: nan")
def _(f: Path) -> list[str]:
    return [saved(f, with_weight(f, (3, 5), np.nan)), "-r", "W4A16", "--group-size", "32"]


def with_weight(f: Path, at: tuple[int, int], value: float) -> onnx.ModelProto:
    model = mlp(f)
    w = numpy_helper.to_array(tensor(model, "w1")).copy()
    w[at] = value
    tensor(model, "w1").CopyFrom(numpy_helper.from_array(w, "w1"))
    return model


# ---- external data ------------------------------------------------------------------------------------


def external(f: Path, **entries: str) -> str:
    model = mlp(f)
    t = tensor(model, "w1")
    (f / "weights.bin").write_bytes(t.raw_data)
    t.ClearField("raw_data")
    t.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "weights.bin", "offset": "0", "length": "16384", **entries}.items():
        t.external_data.add(key=key, value=value)
    return saved(f, model)


for label, entries, message in (
    ("data in the parent folder", {"location": "../secret.bin"}, "inside the model's folder"),
    ("data deep out of the folder", {"location": "a/../../secret.bin"}, "inside the model's folder"),
    ("data at an absolute path", {"location": "/etc/passwd"}, "inside the model's folder"),
    ("external data that are not there", {"location": "absent.bin"}, "not there"),
    ("data without a place", {"location": ""}, "inside the model's folder"),
    ("data beyond the file", {"offset": "8192"}, "the file has 16384"),
    ("data of another length", {"length": "8192"}, "needs 16384"),
    ("data at a negative offset", {"offset": "-1"}, "expected a number"),
    ("data at an offset that is no number", {"offset": "0x10"}, "expected a number"),
):

    @bad(label, message)
    def _(f: Path, entries: dict[str, str] = entries) -> list[str]:
        (f.parent / "secret.bin").write_bytes(b"\0" * 16384)
        return [external(f, **entries)]


@bad("data behind a link out of the folder", "out of the model's folder")
def _(f: Path) -> list[str]:
    (f.parent / "secret.bin").write_bytes(b"\0" * 16384)
    os.symlink(f.parent / "secret.bin", f / "link.bin")
    return [external(f, location="link.bin")]


# ---- options and recipes ------------------------------------------------------------------------------


def ordinary(f: Path) -> str:
    return saved(f, mlp(f))


for label, options, message in (
    ("an unknown preset", ["-r", "W3A5"], "expected W8A8"),
    ("a group size of nothing", ["-r", "W4A16", "--group-size", "0"], "group_size: 0"),
    ("a method for dynamic activations", ["--method", "entropy"], "no static activations"),
    ("an unknown method", ["-r", "static-int8", "--method", "magic"], "method: 'magic'"),
    ("static without data", ["-r", "static-int8"], "data: none"),
    ("an unknown operator", ["--operator", "magic"], "operator: 'magic'"),
    ("a report of an unknown kind", ["--report", "report.pdf"], "expected a name that ends in"),
    ("a metric without data", ["--metric", "json:dump"], "metric: given without data"),
    ("a metric of one argument", ["--metric", "math:floor"], "does not take \\(predict, batches\\)"),
    ("a metric that is no function", ["--metric", "json"], "expected module:function"),
    ("a metric of a module that is not there", ["--metric", "no_such_module:f"], "cannot be imported"),
    ("a metric that the module has not", ["--metric", "json:nothing"], "has no function"),
    ("a resumed ONNX model", ["--resume"], "resume"),
    ("a broken skip pattern", ["--skip", "/(/"], "not a regular expression"),
):

    @bad(label, message)
    def _(f: Path, options: list[str] = options) -> list[str]:
        return [ordinary(f), *options]


@bad("the source as the target", "already there")
def _(f: Path) -> list[str]:
    return [ordinary(f), "-o", str(f / "model.onnx")]


@bad("a target that exists", "already there")
def _(f: Path) -> list[str]:
    (f / "other.onnx").write_text("precious")
    return [ordinary(f), "-o", str(f / "other.onnx")]


@bad("a target in no folder", "its folder is not there")
def _(f: Path) -> list[str]:
    return [ordinary(f), "-o", str(f / "no" / "such" / "m.onnx")]


@bad("a recipe with an unknown key", "line 2: weights.bits: unknown")
def _(f: Path) -> list[str]:
    (f / "r.yaml").write_text("weights:\n  bits: 4\n")
    return [ordinary(f), "-r", str(f / "r.yaml")]


@bad("a recipe that is no YAML", "line 2")
def _(f: Path) -> list[str]:
    (f / "r.yaml").write_text("weights: [1\n")
    return [ordinary(f), "-r", str(f / "r.yaml")]


@bad("strict, and something cannot be done", "strict: 1 weights were asked for")
def _(f: Path) -> list[str]:
    b = Builder({"x": [64, 64]})
    y = b.add("MatMul", b.normal(64, 64, name="left"), "x")
    return [saved(f, b.model(y)), "--strict"]


# ---- data ---------------------------------------------------------------------------------------------


def with_data(f: Path, **arrays: Any) -> list[str]:
    np.savez(f / "data.npz", **arrays)
    return [ordinary(f), "-r", "static-int8", "--data", str(f / "data.npz")]


X = np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32)

for label, arrays, message in (
    ("data with a wrong name", {"y": X}, "no array 'x'; the model takes x, the file has y"),
    ("data with a wrong width", {"x": X[:, :63]}, "shape \\(8, 63\\); the model takes \\(n, 64\\)"),
    ("data with a wrong rank", {"x": X[0]}, "the model takes \\(n, 64\\)"),
    ("data with a wrong dtype", {"x": X.astype(np.float64)}, "dtype float64; the model takes float32"),
    ("data without rows", {"x": X[:0]}, "no rows"),
    ("data with NaN", {"x": np.where(X > 2, np.float32(np.nan), X)}, "nan at index"),
    ("data with Inf", {"x": np.where(X > 2, np.float32(np.inf), X)}, "inf at index"),
):

    @bad(label, message)
    def _(f: Path, arrays: dict[str, Any] = arrays) -> list[str]:
        return with_data(f, **arrays)


@bad("data that are not there", "not there; expected a .npy")
def _(f: Path) -> list[str]:
    return [ordinary(f), "--data", str(f / "none")]


@bad("an empty folder of data", "no .npy or .npz file in it")
def _(f: Path) -> list[str]:
    (f / "data").mkdir()
    return [ordinary(f), "--data", str(f / "data")]


@bad("data that are no archive", "not a NumPy file")
def _(f: Path) -> list[str]:
    (f / "data.npz").write_bytes(b"PK\x03\x04 nothing")
    return [ordinary(f), "--data", str(f / "data.npz")]


@bad("data with a pickle inside", "not a NumPy file of plain arrays")
def _(f: Path) -> list[str]:
    np.savez(f / "data.npz", x=np.array([{"a": 1}], object))
    return [ordinary(f), "--data", str(f / "data.npz")]


# ---- checkpoints --------------------------------------------------------------------------------------


def checkpoint(f: Path, header: dict[str, Any] | bytes, body: bytes) -> list[str]:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    (f / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    return [str(f / "model.safetensors"), "-o", str(f / "out")]


def entry(begin: int, end: int, shape: tuple[int, ...] = (64, 128), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


SIZE = 64 * 128 * 4

for label, header, size, message in (
    ("a cut header", b'{"a": {"dtype"', 0, "not JSON"),
    ("a header that is a list", b"[]", 0, "not a JSON object"),
    ("a tensor cut off", {"a.weight": entry(0, SIZE)}, SIZE - 1, "a.weight"),
    ("a tensor of another size", {"a.weight": entry(0, SIZE, (64, 64))}, SIZE, "a.weight"),
    ("overlapping tensors", {"a.weight": entry(0, SIZE), "b.weight": entry(128, SIZE + 128)}, SIZE + 128, "b.weight"),
    ("a gap between tensors", {"a.weight": entry(0, SIZE), "b.weight": entry(SIZE + 4, 2 * SIZE + 4)}, 2 * SIZE + 4,
     "b.weight"),
    ("bytes of nobody", {"a.weight": entry(0, SIZE)}, SIZE + 8, "belong to no entry"),
    ("offsets backwards", {"a.weight": entry(SIZE, 0)}, SIZE, "a.weight"),
    ("a dtype nobody knows", {"a.weight": entry(0, SIZE, dtype="F31")}, SIZE, "F31"),
    ("a negative size", {"a.weight": entry(0, SIZE, (-64, 128))}, SIZE, "bad shape"),
    ("a tensor of all memory", {"a.weight": entry(0, SIZE, (1 << 40, 1 << 40))}, SIZE, "a.weight"),
    ("NaN in a checkpoint", {"a.weight": entry(0, SIZE)}, -SIZE, "a.weight.*nan|nan.*a.weight"),
):  # fmt: skip

    @bad(label, message)
    def _(f: Path, header: Any = header, size: int = size) -> list[str]:
        body = b"\0" * size if size >= 0 else np.full(-size // 4, np.nan, np.float32).tobytes()
        return checkpoint(f, header, body)


@bad("a header longer than the file", "header")
def _(f: Path) -> list[str]:
    (f / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 60) + b"{}")
    return [str(f / "model.safetensors"), "-o", str(f / "out")]


@bad("seven bytes", "too few|bytes")
def _(f: Path) -> list[str]:
    (f / "model.safetensors").write_bytes(b"1234567")
    return [str(f / "model.safetensors"), "-o", str(f / "out")]


for label, index, message in (
    ("an index that leads out", {"weight_map": {"a": "../model.safetensors"}}, "model.safetensors"),
    ("an index of a missing shard", {"weight_map": {"a": "model-00001.safetensors"}}, "model-00001"),
    ("an index without a map", {"metadata": {}}, "weight_map"),
    ("an index that is a list", [], "index"),
):

    @bad(label, message)
    def _(f: Path, index: Any = index) -> list[str]:
        (f / "model.safetensors.index.json").write_text(json.dumps(index))
        return [str(f), "-o", str(f.parent / "out")]


@bad("a folder with nothing in it", "no .safetensors")
def _(f: Path) -> list[str]:
    (f / "empty").mkdir()
    return [str(f / "empty"), "-o", str(f / "out")]


@bad("a pickle that nobody allowed", "pickle")
def _(f: Path) -> list[str]:
    (f / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    return [str(f / "pytorch_model.bin"), "-o", str(f / "out")]


@bad("a file of another kind", "expected an .onnx file")
def _(f: Path) -> list[str]:
    (f / "model.tflite").write_bytes(b"TFL3")
    return [str(f / "model.tflite")]


@bad("data for a checkpoint", "a checkpoint is calibrated on text")
def _(f: Path) -> list[str]:
    np.save(f / "x.npy", X)
    return [*checkpoint(f, {"a.weight": entry(0, SIZE)}, b"\0" * SIZE), "--data", str(f / "x.npy")]


# ---- all of them --------------------------------------------------------------------------------------


def snapshot(folder: Path) -> dict[str, bytes | str]:
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else "folder" for p in sorted(folder.rglob("*"))}


def test_there_are_sixty() -> None:
    assert len(CASES) >= 60


@pytest.mark.parametrize("name", CASES)
def test_a_bad_input_is_one_line_and_nothing_else(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message, case = CASES[name]
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    arguments = case(folder)
    before = snapshot(tmp_path)
    result = CliRunner().invoke(_app(), ["quantize", *arguments])
    assert result.exit_code == 2, (result.output, result.exception)
    said = result.stderr.strip()
    assert said.startswith("lowbit: ")
    assert "\n" not in said
    assert "Traceback" not in result.output
    assert re.search(message, said), said
    assert snapshot(tmp_path) == before


def test_the_ordinary_model_of_these_cases_is_fine(tmp_path: Path) -> None:
    result = CliRunner().invoke(_app(), ["quantize", ordinary(tmp_path), "--seconds", "0"])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "model.dynamic-int8.onnx").exists()
