"""lowbit inspect: what it finds in each format, and that bad files are one line of error and nothing else."""

from __future__ import annotations

import importlib
import io
import json
import os
import resource
import struct
import zipfile

import numpy as np
import pytest

import lowbit as lb
from lowbit.formats.gguf.header import GGML_TYPES
from lowbit.formats.inspection import inspect_file
from lowbit.runtime.files.container import write_arrays

typer_testing = pytest.importorskip("typer.testing")
onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402


@pytest.fixture
def run(monkeypatch):
    from lowbit.cli.app import _app

    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    runner = typer_testing.CliRunner()
    return lambda *arguments: runner.invoke(_app(), ["inspect", *map(str, arguments)])


def found_in(path) -> dict[str, tuple[str, int, int | None, int | None]]:
    return {q.scheme: (q.what, q.count, q.bits, q.group_size) for q in inspect_file(path).quantization}


def roles(path) -> dict[str, str]:
    return {t.name: t.quantized for t in inspect_file(path).tensors}


def save_onnx(path, nodes, tensors=(), inputs=("x",), outputs=("y",), **options):
    def value(name):
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    graph = helper.make_graph(nodes, "g", [*map(value, inputs)], [*map(value, outputs)], list(tensors))
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path, **options)
    return path


def tensor(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def save_gguf(path, tensors, keys=b"", count_keys=0, version=3, data=None, count=None):
    """tensors: (name, dims fastest first, type, offset, bytes)."""
    text = lambda s: struct.pack("<Q", len(s.encode())) + s.encode()  # noqa: E731
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors) if count is None else count, count_keys) + keys
    for name, dims, kind, offset, _ in tensors:
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
    body = bytes(sum(t[4] for t in tensors)) if data is None else data
    path.write_bytes(head + bytes(-len(head) % 32) + body)
    return path


# ---- ONNX ----------------------------------------------------------------------------------------------


def test_an_onnx_model_in_float(run, tmp_path):
    path = save_onnx(
        tmp_path / "m.onnx",
        [
            helper.make_node("Constant", [], ["bias"], value=tensor("", np.float32([1, 2]))),
            helper.make_node("MatMul", ["x", "w"], ["p"]),
            helper.make_node("Add", ["p", "bias"], ["y"]),
        ],
        [tensor("w", np.zeros((3, 2), np.float16))],
    )
    result = run(path)
    assert result.exit_code == 0, result.stderr
    for words in ("float16", "3×2", "12 bytes", "60.0%", "bias", "no, or in a layout", "ai.onnx 21"):
        assert words in result.stdout
    seen = json.loads(run(path, "--json").stdout)
    assert seen == json.loads(json.dumps(inspect_file(path).to_dict()))
    assert [t["name"] for t in seen["tensors"]] == ["w", "bias"]
    assert seen["by_dtype"] == {"float16": {"tensors": 1, "bytes": 12}, "float32": {"tensors": 1, "bytes": 8}}


def test_qdq_weights_activations_and_embeddings(tmp_path):
    path = save_onnx(
        tmp_path / "m.onnx",
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
            helper.make_node("DequantizeLinear", ["w", "ws"], ["wd"], axis=1),
            helper.make_node("MatMul", ["xd", "wd"], ["h"]),
            helper.make_node("Gather", ["table", "i"], ["row"]),
            helper.make_node("Gather", ["table_scale", "i"], ["row_scale"]),
            helper.make_node("DequantizeLinear", ["row", "row_scale"], ["e"], axis=0),
            helper.make_node("Add", ["h", "e"], ["y"]),
        ],
        [
            tensor("s", np.float32(0.1)), tensor("z", np.uint8(3)), tensor("w", np.zeros((4, 2), np.int8)),
            tensor("ws", np.ones(2, np.float32)), tensor("table", np.zeros((9, 2), np.int8)),
            tensor("table_scale", np.ones(9, np.float32)),
        ],
        inputs=("x", "i"),
    )  # fmt: skip
    kinds = {(q.scheme, q.what, q.count, q.bits) for q in inspect_file(path).quantization}
    assert kinds == {("QDQ", "weights int8, per channel", 2, 8), ("QDQ", "activations uint8, static", 1, 8)}
    assert roles(path) == {
        "s": "scales", "z": "zero points", "w": "int8, per channel", "ws": "scales", "table": "int8, per channel",
        "table_scale": "scales",
    }  # fmt: skip


def test_blocks_of_four_bits(tmp_path):
    codes = helper.make_tensor("w", TensorProto.INT4, (64, 8), bytes(256), raw=True)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wd"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "wd"], ["h"]),
        helper.make_node(
            "MatMulNBits", ["h", "p", "ps"], ["y"], domain="com.microsoft", K=8, N=4, bits=2, block_size=16
        ),
    ]
    stored = [codes, tensor("s", np.ones((2, 8), np.float32)), tensor("p", np.zeros((4, 1, 4), np.uint8))]
    path = save_onnx(tmp_path / "m.onnx", nodes, [*stored, tensor("ps", np.ones((4, 1), np.float32))])
    assert found_in(path) == {
        "QDQ": ("weights int4, groups of 32", 1, 4, 32),
        "MatMulNBits": ("weights uint2, groups of 16", 1, 2, 16),
    }
    assert inspect_file(path).tensors[0].nbytes == 256


def test_dynamic_operators_and_bodies_of_if(tmp_path):
    inner = helper.make_graph(
        [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["a", "as", "az"]),
            helper.make_node("MatMulInteger", ["a", "w", "az"], ["c"]),
        ],
        "then", [], [helper.make_tensor_value_info("c", TensorProto.INT32, None)],
        [tensor("w", np.zeros((2, 2), np.uint8))],
    )  # fmt: skip
    path = save_onnx(
        tmp_path / "m.onnx", [helper.make_node("If", ["q"], ["y"], then_branch=inner, else_branch=inner)],
        inputs=("x", "q"),
    )  # fmt: skip
    assert found_in(path)["DynamicQuantizeLinear"] == ("activations uint8, dynamic per tensor", 2, 8, None)
    assert found_in(path)["MatMulInteger"][0] == "weights uint8, scaled afterwards"
    assert len(inspect_file(path).tensors) == 2


def test_data_beside_the_model_are_counted_and_not_read(tmp_path):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = save_onnx(
        tmp_path / "m.onnx", nodes, [tensor("w", np.zeros((64, 64), np.float32))], save_as_external_data=True,
        location="w.bin", size_threshold=0,
    )  # fmt: skip
    seen = inspect_file(path)
    assert seen.nbytes == 16384
    assert seen.file_bytes == path.stat().st_size + (tmp_path / "w.bin").stat().st_size
    assert seen.facts["files beside it"] == "w.bin"


# ---- checkpoints ---------------------------------------------------------------------------------------


def test_a_folder_of_shards(run, tmp_path):
    write_arrays(tmp_path / "a.safetensors", {"l.0.weight": np.zeros((4, 8), np.float32)}, {})
    write_arrays(tmp_path / "b.safetensors", {"l.10.weight": np.zeros((4, 8), np.float16)}, {})
    named = {"weight_map": {"l.0.weight": "a.safetensors", "l.10.weight": "b.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(named))
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        seen = inspect_file(path)
        assert [(t.name, t.dtype, t.nbytes) for t in seen.tensors] == [
            ("l.0.weight", "float32", 128), ("l.10.weight", "float16", 64),
        ]  # fmt: skip
    assert len(inspect_file(tmp_path / "a.safetensors").tensors) == 1
    assert "Files" in run(tmp_path).stdout


def test_compressed_tensors(tmp_path):
    arrays = {
        "a.weight_packed": np.zeros((8, 16), np.int32), "a.weight_scale": np.ones((8, 2), np.float32),
        "a.weight_shape": np.int64([8, 128]), "b.weight": np.zeros((4, 4), np.int8),
        "b.weight_scale": np.ones((4, 1), np.float32), "norm.weight": np.ones(4, np.float32),
    }  # fmt: skip
    write_arrays(tmp_path / "model.safetensors", arrays, {})
    assert found_in(tmp_path)["compressed-tensors"] == ("bits not said", 1, None, None)
    weights = {"num_bits": 4, "group_size": 64, "type": "int", "strategy": "group"}
    config = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    found = {q.what: q.count for q in inspect_file(tmp_path).quantization}
    assert found == {"int4, groups of 64": 1, "int8": 1}
    assert roles(tmp_path / "model.safetensors") == {
        "a.weight_packed": "int4, groups of 64", "a.weight_scale": "scales", "a.weight_shape": "shape",
        "b.weight": "int8", "b.weight_scale": "scales", "norm.weight": "",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("scheme", "qweight", "bits"), [("GPTQ", (64, 256), 4), ("GPTQ", (128, 256), 8), ("AWQ", (512, 32), 4)]
)
def test_gptq_and_awq_are_told_by_their_shapes(tmp_path, scheme, qweight, bits):
    arrays = {
        "m.qweight": np.zeros(qweight, np.int32), "m.qzeros": np.zeros((4, 256 * bits // 32), np.int32),
        "m.scales": np.ones((4, 256), np.float16),
    }  # fmt: skip
    write_arrays(tmp_path / "x.safetensors", arrays, {})
    assert found_in(tmp_path / "x.safetensors") == {scheme: (f"int{bits}, groups of 128", 1, bits, 128)}
    assert roles(tmp_path / "x.safetensors")["m.qzeros"] == "zero points"


@pytest.mark.parametrize(
    ("dtype", "options", "what"),
    [
        ("int4", {"block_size": 32}, "int4 linear, groups of 32"),
        ("uint8", {"axis": 0, "scheme": "asymmetric"}, "uint8 asymmetric, per channel"),
        ("int16", {}, "int16 linear, per tensor"),
    ],
)
def test_tensors_that_lowbit_saved(tmp_path, dtype, options, what):
    lb.quantize(np.ones((4, 64), np.float32), dtype, **options).save(tmp_path / "q.safetensors")
    seen = inspect_file(tmp_path / "q.safetensors")
    (found,) = seen.quantization
    assert (found.scheme, found.bits, found.group_size) == (
        "lowbit",
        int(dtype.strip("uint")),
        options.get("block_size"),
    )
    assert found.what.split(", ")[1] == what.split(", ")[1]
    assert seen.facts == {"shape": "4 × 64"}


def test_only_headers_are_read(run, tmp_path):
    """A file of 64 GB, all hole: reading it would take minutes, and more memory than there is."""
    size = 64 << 30
    entry = {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}
    header = json.dumps({"huge": entry}).encode()
    path = tmp_path / "huge.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    try:
        os.truncate(path, 8 + len(header) + size)
    except OSError:
        pytest.skip("this file system has no holes")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = run(path)
    assert result.exit_code == 0, result.stderr
    assert "68.7 GB" in result.stdout
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


# ---- GGUF and NumPy ------------------------------------------------------------------------------------


def test_gguf(run, tmp_path):
    text = lambda s: struct.pack("<Q", len(s)) + s  # noqa: E731
    keys = text(b"general.architecture") + struct.pack("<I", 8) + text(b"llama")
    keys += text(b"tokens") + struct.pack("<IIQ", 9, 8, 2) + text(b"a") + text(b"bc")
    keys += text(b"scores") + struct.pack("<IIQ", 9, 6, 3) + bytes(12)
    stored = [("w", (64, 3), 2, 0, 108 + 20), ("norm", (8,), 0, 128, 32)]
    path = save_gguf(tmp_path / "m.gguf", stored, keys, 3)
    seen = inspect_file(path)
    assert [(t.name, t.dtype, t.shape, t.nbytes) for t in seen.tensors] == [
        ("w", "Q4_0", (3, 64), 108), ("norm", "F32", (8,), 32),
    ]  # fmt: skip
    assert found_in(path) == {"GGUF Q4_0": ("4.5 bits per weight, blocks of 32", 1, 4, 32)}
    assert seen.facts == {"architecture": "llama"}
    assert run(path).exit_code == 0


def test_gguf_types_are_ggmls():
    constants = importlib.import_module("gguf.constants")
    theirs = {int(k): (k.name, *v) for k, v in constants.GGML_QUANT_SIZES.items()}
    assert {k: v for k, v in theirs.items() if k in GGML_TYPES} == GGML_TYPES


def test_numpy_files(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", w=np.zeros((3, 4), np.float16), n=np.int64(1))
    np.save(tmp_path / "b.npy", np.zeros((2, 2), ">f4"))
    np.savez(tmp_path / "c.npz", o=np.array([None]))
    assert [(t.name, t.dtype, t.shape, t.nbytes) for t in inspect_file(tmp_path / "a.npz").tensors] == [
        ("w", "float16", (3, 4), 24), ("n", "int64", (), 8),
    ]  # fmt: skip
    assert inspect_file(tmp_path / "b.npy").tensors[0].nbytes == 16
    assert inspect_file(tmp_path / "c.npz").tensors[0].dtype == "object (pickled)"


# ---- the command ---------------------------------------------------------------------------------------


@pytest.fixture
def three(tmp_path):
    arrays = {
        "b.weight": np.zeros(100, np.float32),
        "a.weight": np.zeros(10, np.int8),
        "a.bias": np.zeros(9, np.float32),
    }
    np.savez(tmp_path / "three.npz", **arrays)
    return tmp_path / "three.npz"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["b.weight", "a.weight", "a.bias"]),
        (["--sort", "name"], ["a.bias", "a.weight", "b.weight"]),
        (["--sort", "size"], ["b.weight", "a.bias", "a.weight"]),
        (["--sort", "dtype"], ["b.weight", "a.bias", "a.weight"]),
        (["--filter", "a.*"], ["a.weight", "a.bias"]),
        (["--filter", "/^b/"], ["b.weight"]),
        (["--sort", "size", "--top", "1"], ["b.weight"]),
    ],
)
def test_order_filter_and_top(run, three, options, expected):
    assert [t["name"] for t in json.loads(run(three, "--json", *options).stdout)["tensors"]] == expected
    shown = run(three, *options).stdout
    assert sorted(expected, key=shown.index) == expected
    assert ("not shown" in shown) == ("--top" in options)


def test_names_cannot_command_the_terminal(run, tmp_path):
    write_arrays(tmp_path / "x.safetensors", {"\x1b[2J\u202e[red]a\nb": np.zeros(1, np.float32)}, {})
    shown = run(tmp_path / "x.safetensors").stdout
    assert "\\x1b[2J\\u202e[red]a\\nb" in shown
    assert "\x1b" not in shown


# ---- bad files -----------------------------------------------------------------------------------------


def safetensors(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def npy(header: str, body: bytes = b"", version: int = 1) -> bytes:
    length = struct.pack("<H" if version == 1 else "<I", len(header))
    return b"\x93NUMPY" + bytes([version, 0]) + length + header.encode() + body


def zipped(**members: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return made.getvalue()


PLAIN = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }\n"
BAD = {
    "empty.safetensors": b"",
    "cut.safetensors": safetensors({"a": entry([2], 0, 8)}, bytes(8))[:-3],
    "length.safetensors": safetensors({}, length=1 << 60),
    "overlap.safetensors": safetensors({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, bytes(12)),
    "gap.safetensors": safetensors({"a": entry([2], 4, 12)}, bytes(12)),
    "dtype.safetensors": safetensors({"a": entry([2], 0, 8, "Q9")}, bytes(8)),
    "negative.safetensors": safetensors({"a": entry([-2], 0, 8)}, bytes(8)),
    "overflow.safetensors": safetensors({"a": entry([1 << 62, 1 << 62, 0], 0, 0)}),
    "twice.safetensors": safetensors(b'{"a":{},"a":{}}'),
    "deep.safetensors": safetensors(b"[" * 100_000),
    "claims.safetensors": safetensors({"__metadata__": {"format": "lowbit"}, "codes": entry([1], 0, 4)}, bytes(4)),
    "text.onnx": b"this is not a model",
    "empty.onnx": b"",
    "short.npy": b"\x93NUM",
    "cut.npy": npy(PLAIN, bytes(7)),
    "long.npy": npy(PLAIN, bytes(9)),
    "negative.npy": npy(PLAIN.replace("(2,)", "(-2,)"), bytes(8)),
    "code.npy": npy("__import__('os').abort()\n"),
    "nested.npy": npy("(" * 9000),
    "header.npy": b"\x93NUMPY\x02\x00" + struct.pack("<I", (1 << 32) - 1),
    "version.npy": npy(PLAIN, bytes(8), 9),
    "not.npz": b"PK\x03\x04 and no more",
    "text.npz": zipped(a=b"hello, I am no array"),
    "claims.npz": zipped(a=npy(PLAIN.replace("(2,)", f"({1 << 40},)"), bytes(8))),
    "magic.gguf": b"GGML" + bytes(100),
    "cut.gguf": b"GGUF" + struct.pack("<I", 3),
    "version.gguf": b"GGUF" + struct.pack("<IQQ", 9, 0, 0),
    "swapped.gguf": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "tensors.gguf": b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
    "keys.gguf": b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60),
    "key.gguf": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 62) + bytes(64),
    "array.gguf": b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 1 << 61) + bytes(64),
    "nest.gguf": b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 500 + bytes(64),
    "pickle.pt": b"\x80\x02cos\nsystem\n(S'true'\ntR.",
    "what.txt": b"some text",
}


def assert_refused(result, word=""):
    assert result.exit_code == 2, result.stdout
    assert result.stdout == ""
    assert result.stderr.startswith("lowbit: ")
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 600
    assert word in result.stderr


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_one_line(run, tmp_path, name):
    (tmp_path / name).write_bytes(BAD[name])
    assert_refused(run(tmp_path / name), name)
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    ("stored", "word"),
    [
        ([("a", (64,), 2, 0, 10)], "claims bytes"),
        ([("a", (33,), 2, 0, 64)], "blocks of 32"),
        ([("a", (8,), 99, 0, 64)], "ggml type 99"),
        ([("a", (8,), 0, 0, 32), ("b", (8,), 0, 16, 32)], "inside another"),
        ([("a", (8,), 0, 0, 32), ("a", (8,), 0, 32, 32)], "twice"),
        ([("a", (1 << 62, 1 << 62), 0, 0, 64)], "claims bytes"),
        ([("a", (1,) * 9, 0, 0, 64)], "dimensions"),
        ([("a", (8,), 0, (1 << 64) - 1, 64)], "claims bytes"),
    ],
)
def test_gguf_tensors_that_cannot_be(run, tmp_path, stored, word):
    assert_refused(run(save_gguf(tmp_path / "m.gguf", stored)), word)


@pytest.mark.parametrize(
    ("counts", "left", "word"),
    [
        ((1, 0), 23, "1 tensors claimed, more than 23 bytes can hold"),
        ((10, 0), 239, "10 tensors claimed, more than 239 bytes can hold"),
        ((1 << 60, 0), 400, f"{1 << 60} tensors claimed, more than 400 bytes can hold"),
        ((0, 1), 11, "1 keys claimed, more than 11 bytes can hold"),
        ((0, 10), 119, "10 keys claimed, more than 119 bytes can hold"),
    ],
)
def test_a_gguf_header_that_claims_more_entries_than_bytes_are_left(run, tmp_path, counts, left, word):
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *counts) + bytes(left))
    assert_refused(run(tmp_path / "m.gguf"), word)


@pytest.mark.parametrize(("inner", "length", "left"), [(8, 5, 39), (8, 1 << 60, 64), (9, 4, 31)])
def test_a_gguf_array_that_claims_more_entries_than_bytes_are_left(run, tmp_path, inner, length, left):
    start = b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, inner, length)
    (tmp_path / "m.gguf").write_bytes(start + bytes(left))
    assert_refused(run(tmp_path / "m.gguf"), f"'k' claims {length} entries, the file has {left} bytes left")


def test_a_gguf_array_that_fits_is_read(tmp_path):
    start = b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"k", 9, 8, 5)
    (tmp_path / "m.gguf").write_bytes(start + bytes(40))
    assert inspect_file(tmp_path / "m.gguf").tensors == ()


def lowbit_tensor(described: object) -> bytes:
    metadata = {"format": "lowbit", "version": "1", "tensor": json.dumps(described)}
    return safetensors({"__metadata__": metadata, "codes": entry([1], 0, 4)}, bytes(4))


DESCRIBED = {
    "dtype": "int8", "scheme": "linear", "axis": None, "block_size": None, "qmin": -128, "qmax": 127,
    "steps_per_octave": None, "shape": [4],
}  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"dtype": "int²"}, {"dtype": "int" + "9" * 5000}, {"dtype": 3}, {"dtype": {"mixed": ["²"]}}, {"dtype": {}},
        {"scheme": "²"}, {"scheme": [1]}, {"shape": 3}, {"shape": [[[]]]}, {"shape": [-1]}, {"shape": ["4"]},
        {"shape": [[[[[[[[[[]]]]]]]]]]},
    ],
    ids=lambda change: str(change)[:40],
)  # fmt: skip
def test_a_description_that_is_none_of_lowbits(run, tmp_path, change):
    (tmp_path / "q.safetensors").write_bytes(lowbit_tensor(DESCRIBED))
    assert run(tmp_path / "q.safetensors").exit_code == 0
    (tmp_path / "q.safetensors").write_bytes(lowbit_tensor(DESCRIBED | change))
    assert_refused(run(tmp_path / "q.safetensors"), "q.safetensors")


@pytest.mark.parametrize("shape", [(), (4,), (1, 1, 4)])
def test_zero_points_that_are_no_matrix(run, tmp_path, shape):
    arrays = {
        "m.qweight": np.zeros((64, 256), np.int32), "m.qzeros": np.zeros(shape, np.int32),
        "m.scales": np.ones((4, 256), np.float16),
    }  # fmt: skip
    write_arrays(tmp_path / "x.safetensors", arrays, {})
    assert_refused(run(tmp_path / "x.safetensors"), "'m.qzeros' has shape")


@pytest.mark.parametrize("config", [{"quantization_config": 3}, {"quantization_config": {"quant_method": [[]]}}])
def test_a_config_of_another_kind(run, tmp_path, config):
    write_arrays(tmp_path / "model.safetensors", {"w": np.zeros(1, np.float32)}, {})
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert_refused(run(tmp_path), "config")


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "missing.bin", "w.bin"])
def test_external_data_stay_in_the_models_folder(run, tmp_path, location):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (folder / "w.bin").write_bytes(bytes(8))  # shorter than the tensor
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[16], data_location=TensorProto.EXTERNAL)
    w.external_data.add(key="location", value=location)
    path = save_onnx(folder / "m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], [w])
    assert_refused(run(path), "'w'")


def test_an_onnx_tensor_shorter_than_its_shape(run, tmp_path):
    w = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[16], raw_data=bytes(60))
    path = save_onnx(tmp_path / "m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], [w])
    assert_refused(run(path), "60 bytes of data")


def test_an_index_may_not_lead_out_of_its_folder(run, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    write_arrays(tmp_path / "out.safetensors", {"w": np.zeros(1, np.float32)}, {})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": "../out.safetensors"}}))
    assert_refused(run(folder), "leads out")


@pytest.mark.parametrize("config", ["[]", "{", "[" * 100_000, "\ud800"])
def test_a_bad_config(run, tmp_path, config):
    write_arrays(tmp_path / "model.safetensors", {"w": np.zeros(1, np.float32)}, {})
    (tmp_path / "config.json").write_bytes(config.encode("utf-8", "surrogatepass"))
    assert_refused(run(tmp_path), "config.json")


def test_bad_questions(run, three, tmp_path):
    assert_refused(run(three, "--sort", "colour"), "size, name, dtype")
    assert_refused(run(three, "--filter", "/(/"), "not a regular expression")
    assert_refused(run(tmp_path / "missing.onnx"), "no such file")
    (tmp_path / "empty").mkdir()
    assert_refused(run(tmp_path / "empty"), "no .safetensors file")
