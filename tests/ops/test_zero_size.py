"""Arrays without elements: every public function gives what the reference gives, or says what is missing.

Nothing may be read that nobody wrote: calls run twice, with memory from `np.empty` filled with two different bytes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compute_reference
import lowbit as lb
from lowbit import plans, reference
from lowbit.numerics.granularity import granularity_of

Array = np.ndarray[Any, Any]
F32 = np.float32
SIZES = (0, 0, 1, 2, 3, 7, 17, 64, 65)
few = settings(max_examples=60)


@contextmanager
def poisoned(byte: int) -> Iterator[None]:
    """Memory that np.empty and np.empty_like give is full of a byte."""
    with pytest.MonkeyPatch.context() as patch:
        for make in (np.empty, np.empty_like):

            def filled(*args: Any, make: Any = make, **options: Any) -> Array:
                made: Array = make(*args, **options)
                made.reshape(-1).view(np.uint8)[...] = byte
                return made

            patch.setattr(np, make.__name__, filled)
        yield


def arrays_of(result: Any) -> list[Array]:
    if isinstance(result, lb.QuantizedTensor):
        return [result.data, np.asarray(result.params.scale), np.asarray(result.params.zero_point)]
    if isinstance(result, tuple):
        return [a for part in result for a in arrays_of(part)]
    return [np.asarray(result)]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, whatever was in memory before, as a list of arrays; or the kind of error of lowbit."""
    found: list[Any] = []
    for byte in (0x5A, 0xA5):
        with poisoned(byte):
            try:
                found.append([a.copy() for a in arrays_of(call())])
            except (lb.InvalidProblem, lb.Unsupported) as error:
                found.append(type(error))
    assert same(found[0], found[1]), "uninitialised memory"
    return found[0]


def same(a: Any, b: Any) -> bool:
    if not isinstance(a, list) or not isinstance(b, list):
        return bool(a == b) if not isinstance(a, list) and not isinstance(b, list) else False
    return len(a) == len(b) and all(
        x.shape == y.shape and x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f")
        for x, y in zip(a, b, strict=True)
    )


def check(call: Callable[[], Any], expected: Any) -> None:
    found = outcome(call)
    assert isinstance(found, list), found
    assert same(found, arrays_of(expected))


def numbers(shape: tuple[int, ...], dtype: Any = F32) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(dtype)


def codes(shape: tuple[int, ...], dtype: Any = np.int8) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(len(shape)).integers(info.min, info.max + 1, shape).astype(dtype)


def sizes(n: int) -> st.SearchStrategy[tuple[int, ...]]:
    """n sizes, one of them 0."""
    return st.tuples(*[st.sampled_from(SIZES)] * n).filter(lambda shape: 0 in shape)


@st.composite
def shapes(draw: st.DrawFn) -> tuple[tuple[int, ...], int | None, int | None]:
    """A shape with a 0 in it, and a granularity."""
    shape = draw(sizes(draw(st.integers(1, 4))))
    axis = draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    return shape, axis, None if axis is None else draw(st.sampled_from([None, 1, 2, 64]))


def scales_of(shape: tuple[int, ...], axis: int | None, block: int | None, dtype: Any = F32) -> tuple[Array, Any]:
    g = granularity_of(shape, axis, block)
    return np.full(g.scale_shape, 0.1, dtype), g


# ---- element by element ------------------------------------------------------------------------------------

DTYPES = ("int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2", "binary", "log8", "log4")


@few
@given(shapes(), st.sampled_from(DTYPES), st.sampled_from([F32, np.float64, np.float16]))
def test_codes_of_nothing_are_nothing(problem: Any, dtype: str, element: Any) -> None:
    shape, axis, block = problem
    x, (scale, _) = numbers(shape, element), scales_of(*problem)
    kind, scheme = (f"int{dtype[3:]}", "logarithmic") if dtype.startswith("log") else (dtype, "symmetric")
    params = lb.QuantizationParams(kind, scheme, scale, axis=axis, group_size=block)
    check(lambda: lb.quantize(x, params=params).unpack(), reference.quantize(x, params))
    q = lb.quantize(x, params=params)
    assert q.shape == shape
    check(lambda: lb.dequantize(q, dtype=element), np.zeros(shape, element))
    assert outcome(lambda: lb.quantize(x, kind, scheme=scheme, axis=axis, group_size=block)) is lb.InvalidProblem


@few
@given(shapes(), st.sampled_from([F32, np.float64, np.float16]))
def test_gradients_of_nothing_are_zero(problem: Any, element: Any) -> None:
    shape, axis, block = problem
    x, (scale, g) = numbers(shape, element), scales_of(*problem, np.float64 if element is np.float64 else F32)
    zero, options = np.zeros(scale.shape, np.int32), {"axis": axis, "group_size": block}
    check(lambda: lb.fake_quantize(x, scale, zero, **options), x)
    check(lambda: lb.fake_quantize_backward(x, x, scale, zero, **options), x)
    check(lambda: lb.quantize_backward(x, x, scale, zero, **options), x)
    check(lambda: lb.dequantize_backward(x, scale, **options), x)
    expected = reference.fake_quantize_learned_backward(x, x, scale, zero, -128, 127, g)
    check(lambda: lb.fake_quantize_learned_backward(x, x, scale, zero, **options), expected)
    assert not expected[1].any()
    assert not expected[2].any()


def test_learned_gradients_of_groups_along_an_axis_before_an_empty_one() -> None:
    x = np.zeros((128, 13, 0), F32)
    dx, ds, dz = lb.fake_quantize_learned_backward(x, x, 0.1, axis=1, group_size=64)
    assert dx.shape == x.shape
    assert ds.shape == dz.shape == (128, 1, 0)


@few
@given(sizes(3), st.sampled_from(["int8", "uint8"]))
def test_codes_combine_to_nothing(shape: tuple[int, ...], dtype: str) -> None:
    p = lb.QuantizationParams(dtype, "asymmetric", 0.5, 3)
    a = lb.QuantizedTensor(codes(shape, dtype), p)
    b = lb.QuantizedTensor(codes((1, 1, shape[-1]), dtype), p)
    one = lb.QuantizedTensor(codes((1, 1, 1), dtype), p)
    for other in (a, b, one):
        check(lambda o=other: lb.qadd(a, o, out_params=p).data, a.data)
        check(lambda o=other: lb.qmul(a, o, out_params=p).data, a.data)
    check(lambda: lb.qrelu(a).data, a.data)
    check(lambda: lb.qclamp(a, -1, 1).data, a.data)
    for axis in range(3):
        full = tuple(2 if i == axis else n for i, n in enumerate(shape))
        some = lb.QuantizedTensor(codes(full, dtype), p)
        check(lambda s=some, i=axis: lb.qconcat([a, s, a], i).data, np.concatenate([a.data, some.data, a.data], axis))


@few
@given(sizes(4), st.sampled_from(["NCHW", "NHWC"]), st.integers(1, 3), st.integers(0, 1))
def test_pools_of_nothing_are_nothing_or_refused(shape: Any, layout: str, kernel: int, padding: int) -> None:
    p = lb.QuantizationParams("int8", "asymmetric", 0.5, 3)
    x = lb.QuantizedTensor(codes(shape), p)
    options: Any = {"stride": 1, "padding": min(padding, kernel - 1), "layout": layout}
    for pool in (lb.qmax_pool2d, lb.qavg_pool2d):
        found = outcome(lambda f=pool: f(x, kernel, **options).data)
        if isinstance(found, list):  # else there was no window
            assert found[0].size == 0
        else:
            assert found is lb.InvalidProblem


# ---- products ----------------------------------------------------------------------------------------------


@few
@given(sizes(3), st.sampled_from(["int8", "uint8"]), st.sampled_from(["int8", "uint8"]), st.booleans())
def test_products_with_a_size_of_nothing(mnk: Any, left: str, right: str, per_channel: bool) -> None:
    m, n, k = mnk
    a, b = codes((m, k), left), codes((k, n), right)
    za, zb = 3, np.full(n, 5) if per_channel else 5
    check(lambda: lb.matmul_integer(a, b, za, zb), compute_reference.matmul_integer(a, b, za, zb))
    qa = lb.QuantizedTensor(a, lb.QuantizationParams(left, "asymmetric", 0.5, za))
    scale, axis = (np.full(n, 0.25), 1) if per_channel else (0.25, None)
    qb = lb.QuantizedTensor(b, lb.QuantizationParams(right, "asymmetric", scale, zb, axis))
    y = lb.QuantizationParams("uint8", "asymmetric", 0.1, 7)
    for options in ({}, {"bias": numbers((n,))}, {"bias": np.arange(n, dtype=np.int32)}, {"out_dtype": "float16"},
                    {"out_params": y}, {"out_params": y, "bias": numbers((n,))}, {"activation": "relu"}):  # fmt: skip
        expected = compute_reference.qmatmul(qa, qb, **options)
        check(lambda o=options: lb.qmatmul(qa, qb, **o), expected)
        check(lambda o=options: lb.qmatmul(qa, lb.prepack(qb), **o), expected)


@few
@given(sizes(3), st.sampled_from(["int8", "int4", "int2", "binary", "int16"]), st.sampled_from([None, 8, 64]),
       st.sampled_from(["int8", "uint8", "float"]), st.booleans())  # fmt: skip
def test_layers_with_a_size_of_nothing(mnk: Any, dtype: str, block: int | None, activation: str, bias: bool) -> None:
    m, n, k = mnk
    g = granularity_of((n, k), 1 if block else 0, block)
    params = lb.QuantizationParams(
        dtype, "symmetric", np.full(g.scale_shape, 0.5, F32), axis=1 if block else 0, group_size=block
    )
    weight = lb.quantize(numbers((n, k)), params=params)
    b = numbers((n,)) if bias else None
    expected = np.zeros((m, n), F32) + (0 if b is None else b)
    for element in (F32, np.float16):
        x = numbers((m, k), element)
        found = outcome(lambda x=x: lb.QuantizedLinear(weight, b, activation_dtype=activation)(x))
        assert found is lb.InvalidProblem or found is lb.Unsupported or same(found, [expected.astype(element)])
        if dtype == "int8" and block is None:
            assert isinstance(found, list)


@few
@given(sizes(3), st.sampled_from([F32, np.float16]))
def test_plans_of_products_with_a_size_of_nothing(mnk: Any, element: Any) -> None:
    m, n, k = mnk
    p = lb.QuantizationParams("int8", "symmetric", 0.5)
    a, b, bias = lb.QuantizedTensor(codes((m, k)), p), lb.QuantizedTensor(codes((k, n)), p), numbers((n,))
    weight = lb.quantize(numbers((n, k)), params=lb.QuantizationParams("int8", "symmetric", np.ones(n), axis=0))
    layer = lb.QuantizedLinear(weight, bias)

    def product() -> Array:
        plan = plans.MatMulPlan.select(plans.MatMulDescriptor(m, n, k, p, p, out_dtype=element))
        out = np.empty((m, n), element)
        plan.run(plans.MatMulArgs(a, b, out, bias))
        return out

    def linear() -> Array:
        kind = "f32" if element is F32 else "f16"
        plan = plans.LinearPlan.select(plans.LinearDescriptor(m, k, n, layer.params, "int8", None, None, kind))
        out = np.empty((m, n), element)
        plan.run(plans.LinearArgs(numbers((m, k), element), layer, out))
        return out

    expected = (np.zeros((m, n), F32) + bias).astype(element)
    check(product, expected)
    check(linear, expected)


@few
@given(sizes(3), st.booleans())
def test_products_of_bits_with_a_size_of_nothing(mnk: Any, bias: bool) -> None:
    m, n, k = mnk
    p = lb.QuantizationParams("binary", "symmetric", 0.5)
    a, b = (lb.quantize(numbers(shape), params=p) for shape in ((m, k), (n, k)))
    c = numbers((n,)) if bias else None
    for right in (b, lb.prepack_binary(b)):
        check(lambda b=right: lb.binary_matmul(a, b, c), np.zeros((m, n), F32) + (0 if c is None else c))


CONVOLUTIONS = st.tuples(
    st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 3]), st.sampled_from([0, 2, 3]),  # batch, channels, outputs
    st.sampled_from([(5, 11), (3, 7), (0, 11)]), st.sampled_from([(2, 7), (1, 1), (3, 3)]),  # image, kernel
    st.integers(1, 2), st.integers(0, 3), st.integers(1, 2), st.sampled_from(["NCHW", "NHWC"]),
).filter(lambda c: 0 in (*c[:3], *c[3]))  # fmt: skip


@settings(max_examples=150)
@given(CONVOLUTIONS, st.sampled_from(["int8", "uint8"]), st.booleans(), st.integers(1, 2))
def test_convolutions_with_a_size_of_nothing(problem: Any, dtype: str, bias: bool, groups: int) -> None:
    batch, channels, outputs, image, kernel, stride, padding, dilation, layout = problem
    outputs *= groups
    x, w = codes((batch, channels * groups, *image), dtype), codes((outputs, channels, *kernel))
    x = x if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(x, 1, -1))
    options: Any = {
        "stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout
    }  # fmt: skip
    if any(i + 2 * padding < dilation * (k - 1) + 1 for i, k in zip(image, kernel, strict=True)):
        assert outcome(lambda: lb.conv2d_integer(x, w, 3, 1, **options)) is lb.InvalidProblem
        return
    check(lambda: lb.conv2d_integer(x, w, 3, 1, **options), compute_reference.conv2d_integer(x, w, 3, 1, **options))
    qx = lb.QuantizedTensor(x, lb.QuantizationParams(dtype, "asymmetric", 0.5, 3))
    qw = lb.QuantizedTensor(w, lb.QuantizationParams("int8", "symmetric", np.full(outputs, 0.25), axis=0))
    b = numbers((outputs,)) if bias else None
    y = lb.QuantizationParams("uint8", "asymmetric", 0.1, 7)
    for more in ({}, {"out_params": y}):
        expected = compute_reference.qconv2d(qx, qw, b, **options, **more)
        check(lambda m=more: lb.qconv2d(qx, qw, b, **options, **m), expected)
        packed = lb.prepack_conv2d(qw, groups)
        check(lambda m=more, w=packed: lb.qconv2d(qx, w, b, **options, **m), expected)
        layer = lb.QuantizedConv2d(qw, b, input_params=qx.params, **options, **more)
        floats = reference.dequantize(qx.data, qx.params)
        check(lambda f=layer, v=floats: f(v), expected)


@few
@given(CONVOLUTIONS)
def test_convolutions_along_one_axis_with_a_size_of_nothing(problem: Any) -> None:
    batch, channels, outputs, (_, width), (_, kernel), stride, padding, dilation, _ = problem
    if width + 2 * padding < dilation * (kernel - 1) + 1:
        return
    p = lb.QuantizationParams("int8", "asymmetric", 0.5, 3)
    x, w = (lb.QuantizedTensor(codes(s), p) for s in ((batch, channels, width), (outputs, channels, kernel)))
    options: Any = {"stride": stride, "padding": padding, "dilation": dilation}
    check(lambda: lb.qconv1d(x, w, **options), compute_reference.qconv1d(x, w, **options))


@few
@given(CONVOLUTIONS, st.booleans())
def test_convolutions_of_bits_with_a_size_of_nothing(problem: Any, bias: bool) -> None:
    batch, channels, outputs, image, kernel, stride, padding, dilation, layout = problem
    if any(i + 2 * padding < dilation * (k - 1) + 1 for i, k in zip(image, kernel, strict=True)):
        return
    p = lb.QuantizationParams("binary", "symmetric", 0.5)
    shape, of_w = (batch, channels, *image), (outputs, channels, *kernel)
    if layout == "NHWC":
        shape, of_w = (batch, *image, channels), (outputs, *kernel, channels)
    x, w = lb.quantize(numbers(shape), params=p), lb.quantize(numbers(of_w), params=p)
    c = numbers((outputs,)) if bias else None
    options: Any = {"stride": stride, "padding": padding, "dilation": dilation, "layout": layout}
    found = outcome(lambda: lb.binary_conv2d(x, w, c, **options))
    if channels == 0:
        assert found is lb.InvalidProblem
        return
    out = [(i + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for i, k in zip(image, kernel, strict=True)]
    expected = np.zeros((batch, *out, outputs), F32) + (0 if c is None else c)
    expected = expected if layout == "NHWC" else np.moveaxis(expected, -1, 1)
    assert same(found, [expected])
    packed = lb.prepack_binary_conv2d(w, layout=layout)
    assert same(outcome(lambda: lb.binary_conv2d(x, packed, c, **options)), [expected])


# ---- data that choose parameters ---------------------------------------------------------------------------


@few
@given(shapes())
def test_parameters_are_not_chosen_from_nothing(problem: Any) -> None:
    shape, axis, block = problem
    x = numbers(shape)
    assert outcome(lambda: lb.auto_quantize_tensor(x, axis=axis, group_size=block)) is lb.InvalidProblem
    assert outcome(lambda: lb.calibrate([x], axis=axis, group_size=block).scale) is lb.InvalidProblem
    for calibrator in (lb.Calibrator("minmax", axis=axis, group_size=block), lb.PercentileCalibrator(99.0)):
        assert outcome(lambda c=calibrator: (c.add(x), c.calibrate().scale)[1]) is lb.InvalidProblem
    scale, _ = scales_of(*problem)
    params = lb.QuantizationParams("int8", "symmetric", scale, axis=axis, group_size=block)
    assert lb.measure_accuracy_impact(x, params).max_error == 0


def test_small_conversions_of_nothing() -> None:
    check(lambda: lb.quantize_to_int8(np.zeros((3, 0), F32), 0.5), np.zeros((3, 0), np.int8))
    check(lambda: lb.dequantize_from_int8(np.zeros((3, 0), np.int8), 0.5), np.zeros((3, 0), F32))


@few
@given(shapes(), st.sampled_from(DTYPES[:9]))
def test_tensors_of_nothing_keep_their_shape(problem: Any, dtype: str) -> None:
    shape, axis, block = problem
    scale, _ = scales_of(*problem)
    q = lb.quantize(
        numbers(shape), params=lb.QuantizationParams(dtype, "symmetric", scale, axis=axis, group_size=block)
    )
    assert q.copy().shape == q.unpack().shape == q.dequantize().shape == shape
    assert lb.QuantizedTensor.from_codes(q.unpack(), q.params).shape == shape
    assert q.nbytes == q.params.nbytes
    if axis is None:
        assert q.reshape(0).shape == (0,)


def test_every_public_function_of_arrays_is_tested_here() -> None:
    without_arrays = {
        "create_optimal_params", "create_quantization_system", "estimate_accuracy_impact", "estimate_memory_savings",
        "get_num_threads", "hardware", "set_num_threads",
    }  # fmt: skip
    source = Path(__file__).read_text()
    functions = {name for name in lb.__all__ if inspect.isfunction(getattr(lb, name))} - without_arrays
    assert {name for name in functions if not re.search(rf"\blb\.{name}\b", source)} == set()
