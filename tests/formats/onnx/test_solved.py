"""Weights quantized with moments of their inputs: the codes, the rows of the report, the bytes of the file."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import onnx_models as made
from lowbit.formats.inspection import inspect_file
from lowbit.formats.onnx import convert
from lowbit.formats.onnx.arrangement import Unrolled
from lowbit.formats.onnx.convert import quantize_onnx
from lowbit.formats.onnx.moments import observe_moments
from lowbit.formats.onnx.solved import SolvedWeights, takes_half
from lowbit.models import Recipe, WeightRecipe
from lowbit.models.weights import LayerInputs, quantize_weight
from lowbit.numerics.errors import InvalidProblem
from onnx_checks import converted, ops, recipe, relative, same_bits
from onnx_models import info, model, node, normal

W4 = recipe("int4", 16)


def correlated(*shape: int, seed: int = 3) -> Any:
    """Rows whose inputs depend on each other, so that GPTQ finds other codes than rounding."""
    x = normal(*shape, seed=seed)
    return x + 2 * np.roll(x, 1, axis=-1) + 3 * normal(*shape[:-1], 1, seed=seed)


def batches(*shape: int, count: int = 3) -> list[dict[str, Any]]:
    return [{"x": correlated(*shape, seed=i)} for i in range(count)]


def rows_of(report: Any) -> dict[str, Any]:
    return {row.name: row for row in report.rows}


def dequantized(rows: Any, r: WeightRecipe, **options: Any) -> Any:
    """What a matrix [outputs, inputs] is after quantization."""
    return quantize_weight(rows, r, scale_dtype="float16" if takes_half(rows, r) else "float32", **options).dequantize()


# ---- codes --------------------------------------------------------------------------------------------


def stack() -> onnx.ModelProto:
    constants = {"w": normal(3, 32, 8)}
    return model([node("MatMul", ["x", "w"], "y")], [info("x", [3, "b", 32])], [info("y", [3, "b", 8])], constants)


def grouped_conv() -> onnx.ModelProto:
    nodes = [node("Conv", ["x", "w"], "y", pads=[1, 1, 1, 1], group=2)]
    return model(nodes, [info("x", ["m", 8, 8, 8])], [info("y", ["m", 16, 8, 8])], {"w": normal(16, 4, 3, 3)})


OPERATORS: dict[str, tuple[Callable[[], onnx.ModelProto], str, tuple[int, ...], tuple[int, ...]]] = {
    # model, weight, axes of its outputs, shape of a batch
    "MatMul": (made.product, "w", (1,), (50, 64)),
    "Gemm": (partial(made.gemm, trans_b=0), "w", (1,), (50, 64)),
    "Gemm, turned": (made.gemm, "w", (0,), (50, 64)),
    "stack": (stack, "w", (0, 2), (3, 60, 32)),
    "Conv": (made.conv, "w", (0,), (4, 8, 8, 8)),
    "grouped Conv": (grouped_conv, "w", (0,), (4, 8, 8, 8)),
    "LSTM": (partial(made.recurrent, directions=2), "W", (0, 1), (5, 3, 24)),
}


@pytest.mark.parametrize("method", ["auto", "weighted"])
@pytest.mark.parametrize("op", OPERATORS)
def test_codes_are_those_of_quantize_weight_with_the_same_moments(tmp_path: Path, op: str, method: str) -> None:
    build, name, axes, shape = OPERATORS[op]
    proto, data, r = build(), batches(*shape), recipe("int4", 16, method=method)
    path, report = converted(proto, tmp_path, r, data=data)
    row = rows_of(report)[name]
    assert row.method == ("gptq" if method == "auto" else "weighted")
    assert row.predicted_db > 10
    found = observe_moments(proto, data, gram=method == "auto", progress=False)
    differs = False
    for stored in proto.graph.initializer:
        array = numpy_helper.to_array(stored)
        if stored.name not in rows_of(report) or not rows_of(report)[stored.name].treated:
            continue
        unrolled = Unrolled(array.shape, axes)
        rows = unrolled.rows(array)
        inputs = LayerInputs(found[stored.name]) if stored.name in found else None
        wanted = plain = dequantized(rows, W4.weights)
        if inputs is not None:
            wanted = dequantized(rows, r.weights, inputs=inputs)
            differs = not np.array_equal(wanted, plain)
        value = wanted.reshape(unrolled.moved).transpose(unrolled.back)
        stored.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), stored.name))
    assert differs
    (y,) = same_bits(path, data[0])
    assert relative(y, made.run(proto, data[0])[0]) < 2e-6


def test_given_statistics_are_used_instead_of_data(tmp_path: Path) -> None:
    proto, data = made.two_layers(), batches(50, 64)
    path, _ = converted(proto, tmp_path, W4, data=data)
    expected = path.read_bytes()
    path, report = converted(proto, tmp_path, W4, stats=observe_moments(proto, data, progress=False), overwrite=True)
    assert path.read_bytes() == expected
    assert {row.method for row in report.rows} == {"gptq"}
    path, report = converted(proto, tmp_path, W4, stats=observe_moments(proto, data, gram=False, progress=False),
                             overwrite=True)  # fmt: skip
    assert {row.method for row in report.rows} == {"weighted"}


def test_a_weight_that_is_read_in_two_layouts_has_moments_for_the_first(tmp_path: Path) -> None:
    proto = model(
        [node("MatMul", ["x", "w"], "h"), node("Gemm", ["h", "w"], "y", transB=1)],
        [info("x", ["m", 64])], [info("y", ["m", 64])], {"w": normal(64, 64)},
    )  # fmt: skip
    data = batches(80, 64)
    path, _ = converted(proto, tmp_path, recipe("int4", 16), data=data, operator="fold")
    inputs = LayerInputs(observe_moments(proto, data, progress=False)["w"])
    first = dequantized(np.ascontiguousarray(normal(64, 64).T), W4.weights, inputs=inputs).T
    second = dequantized(normal(64, 64), W4.weights)
    (y,) = same_bits(path, data[0])
    assert relative(y, data[0]["x"] @ first @ second.T) < 1e-5


# ---- the same bytes -----------------------------------------------------------------------------------


def test_order_cut_and_parts_of_the_data_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proto, data = made.two_layers(), batches(50, 64, count=4)

    def written(given: Any) -> bytes:
        return converted(proto, tmp_path, W4, data=given, overwrite=True)[0].read_bytes()

    expected = written(data)
    assert written(data[::-1]) == expected
    assert written([{"x": part} for batch in data for part in np.split(batch["x"], [7, 20])]) == expected
    assert written(iter(data)) == expected
    assert written(batches(50, 64, count=3)) != expected
    monkeypatch.setattr(convert, "SolvedWeights", lambda stats: SolvedWeights(stats, max_bytes=1))
    assert written(data) == expected
    with pytest.raises(InvalidProblem, match=r"batches: an iterator, which is read once; .* 2 passes"):
        written(iter(data))


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_solved import W4, batches, quantize_onnx
def data():
    for i, batch in enumerate(batches(50, 64)):
        if i == {at}:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
quantize_onnx({source!r}, {target!r}, W4, data=data(), optimize="size", force=True, progress=False)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_run_that_is_killed_as_it_observes_leaves_nothing_and_the_next_gives_the_same_bytes(tmp_path: Path) -> None:
    source, target = made.saved(made.two_layers(), tmp_path), tmp_path / "q.onnx"
    here = Path(__file__)
    for at in (1, 99):
        code = KILLED.format(tests=str(here.parent), at=at, source=str(source), target=str(target))
        done = subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(here.parents[2])}, timeout=300)
        assert done.returncode == (-9 if at == 1 else 0)
        assert target.exists() == (at == 99)
    path, _ = converted(made.two_layers(), tmp_path, W4, data=batches(50, 64))
    assert target.read_bytes() == path.read_bytes()


# ---- what is asked for --------------------------------------------------------------------------------


class Counted:
    """Batches, and how often they were read."""

    def __init__(self, given: list[Any]) -> None:
        self.given, self.passes = given, 0

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        yield from self.given


def test_rows_say_the_method_its_cost_and_the_bits(tmp_path: Path) -> None:
    data = Counted(batches(100, 64))
    _, report = converted(made.product(), tmp_path, W4, data=data, operator="dequantize")
    (row,) = report.rows
    assert (row.method, row.bits) == ("gptq", 4 + 32 / 16)  # scales of float32: they are few
    assert row.seconds > 0
    assert row.predicted_db > row.sqnr_db + 3
    assert data.passes == 1
    _, report = converted(made.product(), tmp_path, W4, overwrite=True)
    (row,) = report.rows
    assert (row.method, row.predicted_db, report.notes) == ("mse", None, [])


def test_eight_bits_are_rounded_and_data_are_not_read_for_them(tmp_path: Path) -> None:
    data = Counted(batches(100, 64))
    _, report = converted(made.product(), tmp_path, recipe("int8"), data=data)
    assert (report.rows[0].method, data.passes) == ("rtn", 0)
    r = Recipe.of("static-int8").but(min_elements=1)
    _, report = converted(made.product(), tmp_path, r, data=data, overwrite=True)
    assert (report.rows[0].method, data.passes) == ("rtn", 1)


@pytest.mark.parametrize("activations", ["static", "dynamic"])
def test_codes_of_gptq_stay_where_the_guard_of_eight_bits_leaves_the_scale(tmp_path: Path, activations: str) -> None:
    r = Recipe.of(f"{activations}-int8").but(weights=WeightRecipe("int8", method="gptq"), min_elements=1)
    data = batches(100, 64)
    path, report = converted(made.product(), tmp_path, r, data=data, target_cpu="vnni")
    assert report.rows[0].method == "gptq"
    inputs = LayerInputs(observe_moments(made.product(), data, progress=False)["w"])
    q = quantize_weight(np.ascontiguousarray(normal(64, 32).T), r.weights, inputs=inputs)
    codes = [numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer if t.name == "w_codes"]
    assert any(np.array_equal(c if c.shape == q.shape else c.T, q.unpack()) for c in codes)


@pytest.mark.parametrize("method", ["gptq", "weighted", "adaround"])
def test_methods_that_need_data_say_so_before_any_work(tmp_path: Path, method: str) -> None:
    with pytest.raises(InvalidProblem, match=rf"data: none; {method} .*--data"):
        quantize_onnx(tmp_path / "not there.onnx", tmp_path / "q.onnx", recipe("int4", 16, method=method))
    assert not list(tmp_path.iterdir())


def test_a_table_has_no_inputs_and_is_rounded_without_data(tmp_path: Path) -> None:
    proto = model(
        [node("Gather", ["table", "i"], "x"), node("MatMul", ["x", "w"], "y")],
        [info("i", ["b"], TensorProto.INT64)], [info("y", ["b", 32])], {"table": normal(300, 64), "w": normal(64, 32)},
    )  # fmt: skip
    data = [{"i": np.arange(200)}]
    for method, note in (("auto", ""), ("gptq", "no statistics for gptq: rows are looked up, not multiplied")):
        r = recipe("int4", 16, method=method)
        _, report = converted(proto, tmp_path, r, data=data, overwrite=True)
        rows = rows_of(report)
        assert (rows["table"].method, rows["w"].method) == ("mse", "gptq")
        assert rows["table"].note == note


def test_ranges_and_moments_need_data_that_can_be_read_twice(tmp_path: Path) -> None:
    r = Recipe.of({
        "preset": "static-int8", "min_elements": 1, "protect": False,
        "overrides": [{"match": "v", "weights": {"dtype": "int4", "group_size": 16}, "activations": None}],
    })  # fmt: skip
    data = Counted(batches(120, 64))
    _, report = converted(made.two_layers(), tmp_path, r, data=data)
    assert {name: row.method for name, row in rows_of(report).items()} == {"u": "rtn", "v": "gptq", "w": "rtn"}
    assert data.passes == 2
    with pytest.raises(
        InvalidProblem, match=r"data: an iterator, which is read once; .* \(v, \.\.\.\) take a pass each"
    ):
        converted(made.two_layers(), tmp_path, r, data=iter(batches(120, 64)), overwrite=True)


def test_fewer_rows_than_inputs_are_noted(tmp_path: Path) -> None:
    _, report = converted(made.product(), tmp_path, W4, data=batches(20, 64))
    assert any(
        note.startswith("1 weight has more inputs than rows of data (w: 64 inputs, 60 rows)") for note in report.notes
    )


def test_statistics_of_something_else_are_refused(tmp_path: Path) -> None:
    found = observe_moments(made.two_layers(), batches(50, 64), progress=False)
    with pytest.raises(InvalidProblem, match=r"stats: '[uv]' is no weight of the model"):
        converted(made.product(), tmp_path, W4, stats=found)
    with pytest.raises(InvalidProblem, match="stats: list; expected a mapping"):
        converted(made.product(), tmp_path, W4, stats=[1])


# ---- scales -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["matmul_nbits", "dequantize", "fold"])
def test_symmetric_weights_store_no_zero_points(tmp_path: Path, operator: str) -> None:
    path, _ = converted(made.product(), tmp_path, W4, operator=operator)
    q = quantize_weight(np.ascontiguousarray(normal(64, 32).T), W4.weights)
    assert (q.params.zero_point == -1).any()
    assert not [t.name for t in onnx.load(path).graph.initializer if "zero" in t.name]
    (y,) = same_bits(path, {"x": np.eye(64, dtype=np.float32)})
    assert np.array_equal(y, q.dequantize().T)


@pytest.mark.parametrize("operator", ["matmul_nbits", "dequantize", "fold"])
def test_many_scales_of_few_bits_are_float16(tmp_path: Path, operator: str) -> None:
    proto, size = made.product(256, 64), made.product(256, 64)
    path, report = converted(proto, tmp_path, W4, operator=operator)
    q = quantize_weight(np.ascontiguousarray(normal(256, 64).T), W4.weights, scale_dtype="float16")
    (y,) = same_bits(path, {"x": np.eye(256, dtype=np.float32)})
    assert np.array_equal(y, q.dequantize().T)
    assert report.rows[0].bits == pytest.approx(4 + 16 / 16, abs=0.01)
    assert "Cast" in ops(path)
    found = inspect_file(path)
    assert [(q.count, q.what) for q in found.quantization] == [
        (1, f"weights {'u' * (operator == 'matmul_nbits')}int4, groups of 16")
    ]
    assert [t.dtype for t in found.tensors if t.quantized == "scales"] == ["float16"]
    tiny = normal(256, 64)
    tiny[:, 5] *= 1e-5  # float16 would hold its scales with few bits
    size.graph.initializer[0].CopyFrom(numpy_helper.from_array(tiny, "w"))
    path, report = converted(size, tmp_path, W4, operator=operator, overwrite=True)
    assert report.rows[0].bits == pytest.approx(4 + 32 / 16, abs=0.01)
    q = quantize_weight(np.ascontiguousarray(tiny.T), W4.weights)
    (y,) = same_bits(path, {"x": np.eye(256, dtype=np.float32)})
    assert np.array_equal(y, q.dequantize().T)


def test_products_of_rounded_activations_keep_float32_scales(tmp_path: Path) -> None:
    """Without optimizations the runtime ignores scales that a Cast gives MatMulNBits, where it rounds activations."""
    r = Recipe.of("W4A8").but(weights=W4.weights, min_elements=1, protect=False)
    path, report = converted(made.product(256, 64), tmp_path, r)
    assert "MatMulNBits" in ops(path)
    assert "Cast" not in ops(path)
    assert report.rows[0].bits == 4 + 32 / 16
