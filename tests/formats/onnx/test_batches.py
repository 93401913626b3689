"""Batches from files: which axis of each array is cut, what is passed whole, and what an error says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
import onnx
from onnx import TensorProto, helper

from lowbit.formats.files import quantize_file
from lowbit.formats.inspection import inspect_file
from lowbit.formats.onnx.batches import Batches, random_feed
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.inputs import given_inputs
from lowbit.numerics.errors import InvalidProblem
from onnx_zoo import MODELS

Shape = list[Any]


def model(**inputs: Shape) -> onnx.ModelProto:
    """A model that gives its inputs back."""
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in inputs]
    outputs = [helper.make_tensor_value_info(f"{name}_out", TensorProto.FLOAT, None) for name in inputs]
    return helper.make_model(helper.make_graph(nodes, "g", infos, outputs))


def numbered(*shape: int) -> Any:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def read(tmp_path: Path, proto: onnx.ModelProto, size: int | None = None, **arrays: Any) -> list[dict[str, Any]]:
    np.savez(tmp_path / "d.npz", **arrays)
    return list(Batches(tmp_path / "d.npz", proto, size, None))


# (declared shapes, stored shapes, batch size, shapes of each batch)
CUT: tuple[tuple[dict[str, Shape], dict[str, Shape], int | None, list[dict[str, Shape]]], ...] = (
    # the first axis, where it is dynamic: by name, or as old exporters write it
    ({"x": ["n", 3]}, {"x": [5, 3]}, 2, [{"x": [2, 3]}, {"x": [2, 3]}, {"x": [1, 3]}]),
    ({"x": [-1, 3]}, {"x": [5, 3]}, 4, [{"x": [4, 3]}, {"x": [1, 3]}]),
    ({"x": [-1, -1]}, {"x": [5, 3]}, 4, [{"x": [4, 3]}, {"x": [1, 3]}]),
    ({"x": ["n", 3]}, {"x": [40, 3]}, None, [{"x": [32, 3]}, {"x": [8, 3]}]),
    # a batch that the model fixes
    ({"x": [2, 3]}, {"x": [5, 3]}, None, [{"x": [2, 3]}, {"x": [2, 3]}]),
    ({"x": [2, 3]}, {"x": [2, 3]}, None, [{"x": [2, 3]}]),
    ({"x": [2, 3], "y": ["n", 4]}, {"x": [4, 3], "y": [4, 4]}, None, 2 * [{"x": [2, 3], "y": [2, 4]}]),
    # an array of the very shape that is fixed goes whole to every call
    ({"input": [1, 1, 4], "state": [2, 1, 4]}, {"input": [1, 1, 4], "state": [2, 1, 4]}, None,
     [{"input": [1, 1, 4], "state": [2, 1, 4]}]),
    ({"input": [1, 1, 4], "state": [2, 1, 4]}, {"input": [3, 1, 4], "state": [2, 1, 4]}, None,
     3 * [{"input": [1, 1, 4], "state": [2, 1, 4]}]),
    ({"state": [2, 1, 4], "input": [1, 1, 4]}, {"input": [3, 1, 4], "state": [2, 3, 4]}, None,
     3 * [{"input": [1, 1, 4], "state": [2, 1, 4]}]),
    # the batch of a state is its second axis: by its name, or by its size
    ({"input": ["n", 4], "state": [2, "n", 4]}, {"input": [3, 4], "state": [2, 3, 4]}, 2,
     [{"input": [2, 4], "state": [2, 2, 4]}, {"input": [1, 4], "state": [2, 1, 4]}]),
    ({"input": [-1, 4], "state": [2, -1, 4]}, {"input": [3, 4], "state": [2, 3, 4]}, 2,
     [{"input": [2, 4], "state": [2, 2, 4]}, {"input": [1, 4], "state": [2, 1, 4]}]),
    # time comes first
    ({"x": ["time", "batch", 4]}, {"x": [5, 3, 4]}, 2, [{"x": [5, 2, 4]}, {"x": [5, 1, 4]}]),
    ({"x": ["time", 1, 4]}, {"x": [50, 1, 4]}, None, [{"x": [50, 1, 4]}]),
    ({"x": [1, 1, "samples"]}, {"x": [1, 1, 50]}, None, [{"x": [1, 1, 50]}]),
    ({"x": [1, 1, "samples"]}, {"x": [2, 1, 50]}, None, 2 * [{"x": [1, 1, 50]}]),
    # a mask is of the sequence alone
    ({"ids": ["n", "s"], "mask": ["s", "s"]}, {"ids": [4, 4], "mask": [4, 4]}, 2,
     2 * [{"ids": [2, 4], "mask": [4, 4]}]),
    # different numbers of rows that may differ are one call
    ({"x": ["n", 3], "y": ["m", 3]}, {"x": [5, 3], "y": [40, 3]}, 2, [{"x": [5, 3], "y": [40, 3]}]),
)  # fmt: skip


@pytest.mark.parametrize(("declared", "stored", "size", "expected"), CUT)
def test_each_array_is_cut_along_its_own_batch_axis(
    tmp_path: Path, declared: dict[str, Shape], stored: dict[str, Shape], size: int | None, expected: Any
) -> None:
    arrays = {name: numbered(*shape) for name, shape in stored.items()}
    got = read(tmp_path, model(**declared), size, **arrays)
    assert [{name: list(a.shape) for name, a in batch.items()} for batch in got] == expected
    for name, whole in arrays.items():  # the pieces are the array, in order, or the whole of it each time
        if all(batch[name].shape == whole.shape for batch in got):
            assert all(np.array_equal(batch[name], whole) for batch in got)
            continue
        axis = next(i for i, (a, b) in enumerate(zip(got[0][name].shape, whole.shape, strict=True)) if a != b)
        joined = np.concatenate([batch[name] for batch in got], axis)
        assert np.array_equal(joined, np.take(whole, range(joined.shape[axis]), axis))


def test_labels_are_cut_like_the_first_input(tmp_path: Path) -> None:
    arrays = {"input": numbered(3, 1, 4), "state": numbered(2, 1, 4), "labels": np.arange(3), "classes": np.arange(10)}
    got = read(tmp_path, model(input=[1, 1, 4], state=[2, 1, 4]), **arrays)
    assert [list(b["labels"]) for b in got] == [[0], [1], [2]]
    assert all(len(b["classes"]) == 10 for b in got)


def test_a_folder_of_files_has_one_call_per_file(tmp_path: Path) -> None:
    proto = model(a=["n", "m"], b=[2, -1], c=["k"])
    (tmp_path / "calls").mkdir()
    shapes = [{"a": (3, 5), "b": (2, 7), "c": (1,)}, {"a": (1, 1), "b": (2, 1), "c": (9,)}]
    for i, one in enumerate(shapes):
        np.savez(tmp_path / "calls" / f"{i}.npz", **{name: numbered(*shape) for name, shape in one.items()})
    got = list(Batches(tmp_path / "calls", proto, None, None))
    assert [{name: a.shape for name, a in batch.items()} for batch in got] == shapes


@pytest.mark.parametrize(
    ("declared", "arrays", "size", "message"),
    [
        ({"x": ["n", 3, 8, 8]}, {"x": numbered(5, 8, 8, 3)}, None,
         r"d.npz: 'x' has shape \(5, 8, 8, 3\); the model takes \(n, 3, 8, 8\); .*np.moveaxis\(array, -1, 1\)"),
        ({"x": [-1, 1, 8, 8]}, {"x": numbered(5, 8, 8)}, None, r"takes \(\?, 1, 8, 8\); .*np.expand_dims\(array, 1\)"),
        ({"x": [1, 3]}, {"x": numbered(3)}, None, r"np.expand_dims\(array, 0\)"),
        ({"x": ["n", 3]}, {"x": numbered(5, 4)}, None, r"shape \(5, 4\); the model takes \(n, 3\); .*any size"),
        ({"x": ["n", 3]}, {"x": np.zeros((5, 3))}, None, r"d.npz: 'x' has dtype float64; .*\.astype\('float32'\)"),
        ({"x": ["n", 3]}, {"y": numbered(5, 3)}, None, r"d.npz: no array 'x'; .*np.savez"),
        ({"x": ["n", 3], "y": ["n", 3]}, {"x": numbered(5, 3), "y": numbered(4, 3)}, None, "'y' has 4 rows, 'x' has 5"),
        ({"x": ["n", 3]}, {"x": numbered(0, 3)}, None, "'x' has no rows"),
        ({"x": [2, 3]}, {"x": numbered(4, 3)}, 3, "batch_size: 3; the model's is fixed at 2"),
        ({"x": [2, 3], "y": ["n", 3]}, {"x": numbered(4, 3), "y": numbered(4, 3)}, 3, "fixed at 2 for 'x'"),
    ],
)  # fmt: skip
def test_an_error_names_file_array_and_remedy(
    tmp_path: Path, declared: dict[str, Shape], arrays: dict[str, Any], size: int | None, message: str
) -> None:
    with pytest.raises(InvalidProblem, match=message):
        read(tmp_path, model(**declared), size, **arrays)


def test_random_inputs_agree_in_axes_of_the_same_name() -> None:
    inputs = given_inputs(model(input=["n", "s", 4], state=[2, "n", 4], mask=["s", "s"], old=[-1, -1]))
    shapes = {name: a.shape for name, a in random_feed(inputs, 3).items()}
    assert shapes == {"input": (3, 8, 4), "state": (2, 3, 4), "mask": (8, 8), "old": (3, 8)}


def test_a_size_of_minus_one_is_unknown(tmp_path: Path) -> None:
    onnx.save(model(x=[-1, 3]), tmp_path / "m.onnx")
    assert Graph.load(tmp_path / "m.onnx").shape("x") == (None, 3)


def test_a_model_with_a_state_is_quantized_with_one_call_per_file(tmp_path: Path) -> None:
    entry = MODELS["lstm_state"]()
    onnx.save(entry.model, tmp_path / "m.onnx")
    (tmp_path / "calls").mkdir()
    for i, feed in enumerate(entry.feeds(5)):
        np.savez(tmp_path / "calls" / f"{i}.npz", **feed)
    report = quantize_file(
        tmp_path / "m.onnx",
        tmp_path / "q.onnx",
        "static-int8",
        data=tmp_path / "calls",
        optimize="size",
        progress=False,
    )
    assert report.accuracy[0].samples == 5
    assert report.accuracy[0].sqnr_db > 30
    assert inspect_file(tmp_path / "m.onnx").facts["inputs"] == "input float32 (1, 1, 128); state float32 (2, 1, 128)"
