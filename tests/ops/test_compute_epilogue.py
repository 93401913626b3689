"""The epilogue of products: biases of any size, bounds however they are said, and codes of out_params of every dtype,
scheme and granularity, by the table of docs/guide/compute.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowbit as lb
from lowbit import InvalidProblem, QuantizationParams, QuantizedTensor
from lowbit.reference import compute as reference_compute
from problems import F32, constant, output_params, same, scales, tensor

RNG = np.random.default_rng(21)
INF = float("inf")
Op = Callable[..., Any]  # of (bias, **options of the epilogue)


def matmul(a: Any, b: Any) -> Op:
    return lambda bias=None, **options: lb.qmatmul(a, b, bias=bias, **options)


def conv(x: Any, w: Any, **geometry: Any) -> Op:
    return lambda bias=None, **options: lb.qconv2d(x, w, bias, **geometry, **options)


def linear(w: Any, x: Any, **made: Any) -> Op:
    return lambda bias=None, **options: lb.QuantizedLinear(w, bias, **made, **options)(x)


def images(w: Any, x: Any, **made: Any) -> Op:
    return lambda bias=None, **options: lb.QuantizedConv2d(w, bias, **made, **options)(x)


A, B = tensor(RNG, (6, 9), "uint8"), tensor(RNG, (9, 4), "int8", 1)
X, W = tensor(RNG, (2, 6, 5, 4), "uint8"), tensor(RNG, (4, 3, 2, 2), "int8", 0)
BLOCKS = lb.quantize(RNG.standard_normal((9, 4)).astype(F32), "int4", axis=0, group_size=4)
LOG = lb.quantize(RNG.standard_normal((9, 4)).astype(F32), scheme="logarithmic")
WIDE = lb.quantize(RNG.standard_normal((6, 9)).astype(F32), "int16")
BITS = lb.quantize(RNG.standard_normal((6, 9)).astype(F32), "binary"), lb.quantize(B.dequantize(), "binary", axis=1)
ROWS, WEIGHT = RNG.standard_normal((6, 9)).astype(F32), B.dequantize().T.copy()
IMAGES, KERNEL = X.dequantize(), W.dequantize()
GROUPS = {"groups": 2, "padding": 1}

SHORT = ROWS.astype(np.float16)
WIDENED = linear(WEIGHT, SHORT.astype(F32), dtype="int4", group_size=4, activation_dtype="float")

# By the type of their sums. Results have 4 columns, or 4 channels on axis 1 or 3.
INTEGER: dict[str, Op] = {
    "qmatmul": matmul(A, B),
    "qmatmul packed": matmul(A, lb.prepack(B)),
    "qmatmul by row": matmul(lb.quantize(ROWS, axis=0), B),
    "qmatmul integer16": matmul(WIDE, B),
    "qmatmul binary": matmul(*BITS),
    "qconv2d": conv(X, W, **GROUPS),
    "qconv2d packed": conv(X, lb.prepack_conv2d(W, 2), padding=1),
    "qconv2d integer16": conv(lb.quantize(IMAGES, "int16"), W, **GROUPS),
    "qconv2d binary": conv(*(lb.quantize(t, "binary") for t in (IMAGES, KERNEL)), **GROUPS),
    "linear": linear(WEIGHT, ROWS),
    "linear uint8": linear(WEIGHT, ROWS, activation_dtype="uint8"),
    "linear given": linear(WEIGHT, ROWS, input_params=output_params("uint8", 0.03, 90)),
    "conv2d layer": images(W, IMAGES, **GROUPS),
    "conv2d layer nhwc": images(W, np.moveaxis(IMAGES, 1, -1).copy(), layout="NHWC", **GROUPS),
    "conv2d layer depthwise": images(RNG.standard_normal((4, 1, 2, 2)).astype(F32), IMAGES[:, :4], groups=4),
}
FLOATS: dict[str, Op] = {
    "qmatmul groups": matmul(lb.quantize(ROWS, axis=0), BLOCKS),
    "qmatmul blocks": matmul(A, BLOCKS),
    "qmatmul general": matmul(A, LOG),
    "qconv2d general": conv(lb.quantize(IMAGES, scheme="logarithmic"), W, **GROUPS),
    "linear groups": linear(WEIGHT, ROWS, dtype="int4", group_size=4),
    "linear blocks": linear(WEIGHT, ROWS, group_size=4),
    "linear float": linear(WEIGHT, ROWS, activation_dtype="float"),
    "linear float16": linear(WEIGHT, SHORT, dtype="int4", group_size=4, activation_dtype="float"),
    "linear general": linear(lb.quantize(WEIGHT, lb.QuantizedDType.mixed([8, 4, 1, 16]), axis=0), ROWS),
    "conv2d layer general": images(lb.quantize(KERNEL, axis=3), IMAGES, **GROUPS),
}
EVERY = INTEGER | FLOATS
every = pytest.mark.parametrize("op", EVERY.values(), ids=EVERY)


def by_channel(op: Op, y: Any) -> Any:
    """The four outputs first."""
    return np.moveaxis(y, 1 if y.ndim == 4 and op is not EVERY["conv2d layer nhwc"] else -1, 0)


def codes_of(y: Any) -> Any:
    assert isinstance(y, QuantizedTensor)
    return y.unpack().astype(np.int64)


# ---- biases ------------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize("size", [1e9, 1e10, 1e19, 1e20, 1e30, 3e38, INF], ids=str)
def test_a_bias_far_beyond_the_codes_saturates(op: Op, size: float) -> None:
    """Whatever the steps of the sums: 1e20 of them, or as many as no integer counts."""
    out = output_params("int8", 0.5, 3, qmin=-100, qmax=90)
    bias = np.float32([size, -size, 0, size])
    found = by_channel(op, codes_of(op(bias, out_params=out)))
    assert (found[[0, 3]] == 90).all()
    assert (found[1] == -100).all()
    plain = by_channel(op, codes_of(op(np.zeros(4, F32), out_params=out)))
    assert (found[2] == plain[2]).all()


@every
def test_an_infinite_bias_stays_so_in_floats(op: Op) -> None:
    found = by_channel(op, op(np.float32([INF, -INF, 1, INF])))
    assert (found[[0, 3]] == INF).all()
    assert (found[1] == -INF).all()
    assert np.isfinite(found[2]).all()


@every
@pytest.mark.parametrize("out", [None, output_params("int8", 0.5, 3)], ids=["floats", "codes"])
def test_a_bias_that_is_nan_is_named(op: Op, out: QuantizationParams | None) -> None:
    with pytest.raises(InvalidProblem, match=r"^bias: nan at index 2; expected numbers"):
        op(np.float32([1, INF, np.nan, np.nan]), out_params=out)


@pytest.mark.parametrize("a_axis", [None, 0], ids=["one scale", "by row"])
def test_a_bias_above_the_integers_is_added_as_a_number(a_axis: int | None) -> None:
    """2^62 steps and more: quantize(f32(acc) * (sa * sb) + bias), which need not saturate."""
    count = () if a_axis is None else (2,)
    a = QuantizedTensor(
        np.int8([[3, -7], [5, 1]]), QuantizationParams("int8", scale=np.full(count, 1e-12, F32), axis=a_axis)
    )
    b = QuantizedTensor(
        np.int8([[1, 2, 3], [4, 5, 6]]), QuantizationParams("int8", scale=np.full(3, 1e-13, F32), axis=1)
    )
    bias = np.float32([1e-6, 40.0, -7.6e30])
    out = QuantizationParams("int16", scale=F32(2.0))
    found = codes_of(lb.qmatmul(a, b, bias=bias, out_params=out))
    assert (found == [[0, 20, -32768]] * 2).all()
    huge = output_params("int8", 1e30, 1)
    assert (codes_of(lb.qmatmul(a, b, bias=bias, out_params=huge)) == [[1, 1, -7]] * 2).all()


def test_a_bias_where_the_product_of_scales_is_too_small_for_float32() -> None:
    a, b = (QuantizedTensor(np.int8([[3]]), QuantizationParams("int8", scale=F32(2.0**-100))) for _ in range(2))
    for bias, code in ((0.0, 5), (-4.0, 3), (4.0, 7), (INF, 127), (-INF, -128)):
        found = lb.qmatmul(a, b, bias=F32([bias]), out_params=output_params("int8", 2.0, 5))
        assert found.data.item() == code


@pytest.mark.parametrize("k", [4, 33026], ids=["shallow", "past the exact depth"])
@pytest.mark.parametrize("steps", [2**31 - 128, 2**31, 2**32, 2**40, 2**61, 2**62, 2**63], ids=str)
def test_a_bias_of_many_steps_of_the_sums(k: int, steps: int) -> None:
    """Kernels add int32 steps; what they do not hold is added in int64, or as a number."""
    a, b = constant(0, (2, k), "int8"), constant(1, (k, 2), "int8")
    out = output_params("int8", F32(steps / 64), 0)
    for sign in (1, -1):
        bias = np.full(2, sign * steps, F32)
        assert (codes_of(lb.qmatmul(a, b, bias=bias, out_params=out)) == sign * 64).all()
        assert (codes_of(lb.qmatmul(a, lb.prepack(b), bias=bias, out_params=out)) == sign * 64).all()


@pytest.mark.parametrize("k", [1, 1000, 33025, 33026, 40000])
@pytest.mark.parametrize("sign", [1, -1])
def test_integer_biases_next_to_what_int32_holds(k: int, sign: int) -> None:
    """The sum and the bias together leave int32: 255 * 255 * k + bias."""
    a, b = constant(255, (1, k), "uint8"), constant(255 if sign > 0 else 0, (k, 1), "uint8", 0 if sign > 0 else 255)
    acc = sign * 65025 * k
    for bias in (sign * (2**31 - 1), sign * max(0, 2**31 - 65025 * k), sign * max(0, 2**31 - 1 - 65025 * k)):
        given = np.array([bias], np.int64)
        assert lb.qmatmul(a, b, bias=given).item() == F32(acc + bias)
        out = QuantizationParams("int8", scale=F32(2**26))
        expected = np.clip(np.rint(F32(acc + bias) / F32(2**26)), -128, 127)
        assert codes_of(lb.qmatmul(a, b, bias=given, out_params=out)).item() == expected


def test_unsigned_integers_are_integers() -> None:
    bias = np.array([1, 2, 3, 4])
    for dtype in (np.uint8, np.uint16, np.uint64):
        assert same(lb.qmatmul(A, B, bias=bias.astype(dtype)), lb.qmatmul(A, B, bias=bias))
    with pytest.raises(InvalidProblem, match=r"^bias: integers beyond int32"):
        lb.qmatmul(A, B, bias=np.full(4, 2**63, np.uint64))


def test_biases_of_binary_products_are_numbers() -> None:
    w = lb.quantize(WEIGHT, "binary")
    with pytest.raises(InvalidProblem, match=r"^bias: nan at index 1"):
        lb.binary_matmul(ROWS, w, np.float32([0, np.nan, 0, 0]))
    with pytest.raises(InvalidProblem, match=r"^bias: nan at index 3"):
        lb.binary_conv2d(IMAGES, lb.quantize(KERNEL, "binary"), np.float32([0, 0, 0, np.nan]), groups=2)


# ---- options however they are said ---------------------------------------------------------------------------------

SAID: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"clamp": (0.0, 6.0)}, {"clamp": [0, 6]}),
    ({"clamp": (0.0, 6.0)}, {"clamp": np.array([0, 6])}),
    ({"clamp": (0.0, 6.0)}, {"clamp": (np.float32(0), np.int64(6))}),
    ({"clamp": (0.0, 6.0)}, {"clamp": (-0.0, 6.0)}),
    ({"out_dtype": "float16"}, {"out_dtype": np.float16}),
    ({"out_dtype": "float16"}, {"out_dtype": np.dtype("float16")}),
    ({"out_dtype": "bfloat16"}, {"out_dtype": ml_dtypes.bfloat16}),
    ({"out_dtype": "float16"}, {"out_dtype": np.str_("float16")}),
    ({"activation": "relu"}, {"activation": np.str_("relu")}),
]


@pytest.mark.parametrize(("one", "other"), SAID, ids=str)
@pytest.mark.parametrize("name", ["qmatmul", "qmatmul packed", "qconv2d", "qconv2d packed"])
def test_options_may_be_said_in_many_ways(name: str, one: dict[str, Any], other: dict[str, Any]) -> None:
    """Also where they cannot be part of a key, and whichever comes first."""
    for first, second in ((one, other), (other, one)):
        b, w = lb.prepack(B), lb.prepack_conv2d(W, 2)
        op = {"qmatmul packed": matmul(A, b), "qconv2d packed": conv(X, w, padding=1)}.get(name, EVERY[name])
        plain = {"qmatmul packed": matmul(A, B), "qconv2d packed": conv(X, W, **GROUPS)}.get(name, op)(**one)
        for options in (first, second, first, second):
            assert same(op(**options), plain)


def test_torch_dtypes_name_results() -> None:
    torch = pytest.importorskip("torch")
    packed = lb.prepack(B)
    for _ in range(2):
        assert same(lb.qmatmul(A, packed, out_dtype=torch.float16), lb.qmatmul(A, B, out_dtype="float16"))
        assert same(lb.qmatmul(A, packed, out_dtype=torch.bfloat16), lb.qmatmul(A, B, out_dtype="bfloat16"))


@pytest.mark.parametrize("clamp", [[1], [3, 1], "ab", 5, [[0, 1], [2, 3]], {"least": 0}], ids=str)
@pytest.mark.parametrize("name", ["qmatmul packed", "qconv2d packed"])
def test_bounds_that_are_none_are_named(name: str, clamp: Any) -> None:
    with pytest.raises(InvalidProblem, match=r"^clamp: "):
        EVERY[name](clamp=clamp)


# ---- codes of any kind ---------------------------------------------------------------------------------------------


def outputs(shape: tuple[int, ...]) -> list[QuantizationParams]:
    """Every dtype, scheme and granularity for a result of this shape, but for linear codes with one scale."""
    rng = np.random.default_rng(22)
    found = [QuantizationParams("binary"), QuantizationParams("binary", scale=F32(0.7))]
    found += [QuantizationParams.logarithmic(dtype, F32(40)) for dtype in ("int8", "int4", "int16")]
    for axis in (*range(len(shape)), -1):
        size = shape[axis]
        blocks = [*shape]
        blocks[axis] = -(-size // 3)
        for dtype in ("int8", "uint8", "int4", "uint2", "int16"):
            lo, hi = lb.QuantizedDType.of(dtype).value_range
            zero = rng.integers(lo, hi + 1, size)
            found.append(QuantizationParams(dtype, "asymmetric", 20 * scales(rng, size), zero, axis))
            found.append(QuantizationParams(dtype, "linear", 20 * scales(rng, blocks), axis=axis, group_size=3))
        found.append(QuantizationParams("binary", scale=scales(rng, size), axis=axis))
        found.append(QuantizationParams("int8", "logarithmic", 200 * scales(rng, size), axis=axis))
        widths = rng.choice([1, 2, 4, 8, 16], size)
        found.append(QuantizationParams.mixed(widths, 20 * scales(rng, size), axis=axis))
    found.append(QuantizationParams("int8", scale=0.3, axis=0))  # one number, spread along an axis
    return found


@every
def test_float_results_are_quantized_to_any_codes(op: Op) -> None:
    """Exactly what quantize makes of the result without out_params."""
    bias = np.float32([1, -2, 30, -INF])
    for options in ({}, {"bias": bias}, {"activation": "relu"}, {"clamp": [-1.5, 2]}):
        if not {"activation", "clamp"}.isdisjoint(options) and op.__qualname__.startswith(("linear", "images")):
            continue
        y = (WIDENED if op is EVERY["linear float16"] else op)(**options)
        for p in outputs(y.shape):
            found = op(**options, out_params=p)
            expected = lb.quantize(y, params=p)
            assert found == expected, p
            assert found.params == expected.params


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int4", "uint4", "int2", "uint2", "int8", "uint8"])
@pytest.mark.parametrize("name", ["qmatmul", "qmatmul packed", "qmatmul by row", "qmatmul integer16", "qmatmul binary"])
def test_integer_sums_are_requantized_to_linear_codes_of_any_width(name: str, dtype: str) -> None:
    rng = np.random.default_rng(23)
    left, right = {
        "qmatmul by row": (lb.quantize(ROWS, axis=0), B), "qmatmul integer16": (WIDE, B), "qmatmul binary": BITS,
    }.get(name, (A, B))  # fmt: skip
    if name == "qmatmul binary":
        acc = reference_compute.binary_matmul(left.unpack(), right.unpack())
    else:
        acc = reference_compute.matmul_integer(
            left.unpack(), right.unpack(), left.params.zero_point, right.params.zero_point
        )
    sa, sb = left.params.scale, right.params.scale
    lo, hi = lb.QuantizedDType.of(dtype).value_range
    spread = np.abs(reference_compute.scaled(acc, sa, sb)).mean() / (hi - lo) * 4
    for zero in (0, lo, hi, (lo + hi) // 2):
        p = output_params(dtype, spread, zero)
        for bias in (None, np.int32([1, -1000, 50, 7]), (rng.standard_normal(4) * spread * (hi - lo) / 4).astype(F32)):
            steps = (
                0 if bias is None else bias if bias.dtype == np.int32 else reference_compute.bias_steps(bias, sa, sb)[0]
            )
            expected = reference_compute.requantize(acc + steps, sa, sb, p.scale, zero, lo, hi)
            found = EVERY[name](bias, out_params=p)
            assert found.params == p
            assert (codes_of(found) == expected).all()
            assert (codes_of(EVERY[name](bias, out_params=p, activation="relu")) == np.maximum(expected, zero)).all()
            bounds = [-1.2 * spread, 2.6 * spread]
            limits = np.clip(np.rint(F32(bounds) / p.scale) + zero, lo, hi)
            assert (codes_of(EVERY[name](bias, out_params=p, clamp=bounds)) == np.clip(expected, *limits)).all()


@pytest.mark.parametrize("dtype", ["int16", "uint16", "int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize("name", [name for name in EVERY if "qmatmul" not in name])
def test_convolutions_and_layers_give_linear_codes_of_any_width(name: str, dtype: str) -> None:
    """Within the last rounding of what quantize makes of the float result."""
    y = (WIDENED if name == "linear float16" else EVERY[name])()
    lo, hi = lb.QuantizedDType.of(dtype).value_range
    p = output_params(dtype, np.abs(y).mean() / (hi - lo) * 4, (lo + hi) // 2)
    found, near = EVERY[name](out_params=p), lb.quantize(y, params=p)
    assert found.shape == near.shape
    assert found.params == near.params
    away = np.abs(codes_of(found) - codes_of(near))
    assert away.max() <= 1
    assert (away > 0).mean() < 0.02
    assert len(np.unique(found.unpack())) > 2


@pytest.mark.parametrize("p", [
    QuantizationParams("int8", scale=np.ones(5, F32), axis=1),
    QuantizationParams("int8", scale=np.ones((1, 5), F32), axis=0, group_size=2),
    QuantizationParams.mixed([1, 2, 4, 8, 16, 1, 1], axis=-1),
    QuantizationParams("int8", scale=np.ones(5, F32), axis=7),
], ids=["channels", "blocks", "widths", "axis"])  # fmt: skip
@every
def test_out_params_that_do_not_fit_are_named(op: Op, p: QuantizationParams) -> None:
    with pytest.raises(InvalidProblem, match=r"^out_params: "):
        op(out_params=p)


def test_packed_codes_of_a_repeated_call() -> None:
    """And params that fit one result need not fit the next, whose sizes differ."""
    packed, p = lb.prepack(B), output_params("int4", 3.0, 1)
    first = lb.qmatmul(A, packed, out_params=p)
    assert first.data.shape == (12,)
    assert lb.qmatmul(A, packed, out_params=p) == first == lb.qmatmul(A, B, out_params=p)
    by_row = QuantizationParams("int8", scale=np.full(6, 0.5, F32), axis=0)
    for _ in range(2):
        assert lb.qmatmul(A, packed, out_params=by_row) == lb.quantize(lb.qmatmul(A, B), params=by_row)
        with pytest.raises(InvalidProblem, match=r"^out_params: scale: shape"):
            lb.qmatmul(A[:5], packed, out_params=by_row)


def test_batches_of_codes_of_any_kind() -> None:
    rng = np.random.default_rng(24)
    a, b = tensor(rng, (3, 1, 5, 8), "uint8"), tensor(rng, (2, 8, 7), "int8", 2)
    y = lb.qmatmul(a, b)
    assert y.shape == (3, 2, 5, 7)
    for p in outputs(y.shape):
        assert lb.qmatmul(a, b, out_params=p) == lb.quantize(y, params=p)
    for dtype in ("int4", "int16", "uint8"):
        p = output_params(dtype, 3.0, 2)
        found = lb.qmatmul(a, b, out_params=p)
        for i, j in np.ndindex(3, 2):
            assert (found.unpack()[i, j] == lb.qmatmul(a[i, 0], b[j], out_params=p).unpack()).all()


@pytest.mark.parametrize("layout", ["NCW", "NWC"])
def test_rows_to_codes_of_any_kind(layout: str) -> None:
    rng = np.random.default_rng(25)
    x, w = tensor(rng, (2, 4, 9) if layout == "NCW" else (2, 9, 4), "uint8"), tensor(rng, (6, 4, 3), "int8", 0)
    y = lb.qconv1d(x, w, padding=1, layout=layout)
    for p in (*outputs(y.shape), output_params("int4", 3.0, 2), output_params("int16", 0.3, 2)):
        found = lb.qconv1d(x, w, padding=1, layout=layout, out_params=p)
        assert found.shape == y.shape
        assert found == lb.quantize(y, params=p), p
    with pytest.raises(InvalidProblem, match=r"^out_params: axis 3"):
        lb.qconv1d(x, w, layout=layout, out_params=QuantizationParams("int8", scale=np.ones(2, F32), axis=3))


def test_short_floats_do_not_change_the_codes() -> None:
    """A layer on float16 quantizes its float32 result, not a narrowed one."""
    x = ROWS.astype(np.float16)
    for p in (QuantizationParams("int8", scale=np.full(4, 0.01, F32), axis=1), output_params("int16", 0.001, 0)):
        layer = lb.QuantizedLinear(WEIGHT, out_params=p)
        wide = layer(x.astype(F32))
        assert layer(x) == wide
        assert layer(x.reshape(2, 3, 9)[:, :, None].reshape(6, 9)) == wide


@pytest.mark.filterwarnings("error")
@every
def test_numbers_beyond_float32_are_infinite(op: Op) -> None:
    """Without a warning of NumPy's from inside."""
    huge = np.array([1e300, -1e39, 0, 1e300])
    like = np.float32([INF, -INF, 0, INF])
    assert same(op(huge), op(like))
    for p in (output_params("int8", 0.5, 3), output_params("int16", 0.5, 3), QuantizationParams("binary")):
        assert op(huge, out_params=p) == op(like, out_params=p)
    if op.__qualname__.startswith(("matmul", "conv")):
        for p in (None, output_params("int8", 0.5, 3), output_params("int16", 0.5, 3), QuantizationParams("binary")):
            found, expected = (op(clamp=c, out_params=p) for c in ((0, 1e300), (0, INF)))
            assert same(found, expected) if p is None else found == expected


def test_strided_images_on_general_paths() -> None:
    rng = np.random.default_rng(26)
    for kind in ({"dtype": "int16"}, {"scheme": "logarithmic"}, {"axis": 1}):
        x = lb.quantize(rng.standard_normal((2, 6, 5, 8)).astype(F32), **kind)
        view = QuantizedTensor(x.data[:, :, :, ::2], x.params)
        assert not view.data.flags.c_contiguous
        assert same(lb.qconv2d(view, W, **GROUPS), lb.qconv2d(view.copy(), W, **GROUPS))
