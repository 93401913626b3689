"""QuantizedLinear and QuantizedConv2d: what a layer makes of floats, to the bit wherever integers are multiplied.
`subject` is the reference's own adapter, then lowbit on each ISA."""

from __future__ import annotations

import pickle
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowbit as lb
from conftest import THREADS
from lowbit import InvalidProblem, QuantizationParams, QuantizedTensor, reference
from lowbit.numerics.ranges import MIN_SCALE
from lowbit.ops.fitting import Products
from lowbit.reference.compute import conv2d_integer, matmul_groups, matmul_integer, requantize, scaled
from problems import F32, constant, output_params, same, same_codes, scales, spread_over, tensor

FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
EPS = 2.0**-23
# (tokens, inputs, outputs)
SIZES = {
    "one": (1, 1, 1),
    "one token": (1, 130, 70),
    "primes": (7, 13, 11),
    "power of two minus one": (15, 63, 31),
    "power of two plus one": (17, 65, 33),
    "few outputs": (9, 40, 3),
    "tiles both ways and a rest": (67, 129, 131),
    "deep": (3, 3001, 5),
    "no tokens": (0, 9, 4),
}
size = pytest.mark.parametrize(("m", "k", "n"), SIZES.values(), ids=SIZES)


def tokens(rng: np.random.Generator, shape: Any, dtype: Any = np.float32) -> Any:
    """Rows whose numbers differ by orders of magnitude, some of one sign."""
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 2, (*shape[:-1], 1))
    return np.where(rng.random((*shape[:-1], 1)) < 0.2, np.abs(x), x).astype(dtype)


def symmetric(x: Any) -> tuple[Any, Any]:
    """Codes within ±127 and the scales of the rows of x: max|x| / 127, 1 for a row of zeros."""
    x = x.astype(F32)
    most = np.abs(x).max(-1)
    scale = np.where(most > 0, np.maximum(most / F32(127), F32(MIN_SCALE)), F32(1))
    return np.clip(np.rint(x / scale[:, None]), -127, 127).astype(np.int8), scale


def asymmetric(x: Any) -> tuple[Any, Any, Any]:
    """Codes of 0 … 255, scales and zero points of the rows of x, each widened to contain 0."""
    x = x.astype(F32)
    lo, hi = np.minimum(x.min(-1), F32(0)), np.maximum(x.max(-1), F32(0))
    scale = np.where(hi > lo, np.maximum((hi - lo) / F32(255), F32(MIN_SCALE)), F32(1))
    zero = np.clip(np.rint(-lo / scale), 0, 255).astype(np.int64)
    codes = np.clip(np.rint(x / scale[:, None]), -zero[:, None], 255 - zero[:, None]) + zero[:, None]
    return codes.astype(np.uint8), scale, zero


def by_output(rng: np.random.Generator, n: int, k: int, dtype: str = "int8") -> QuantizedTensor:
    return tensor(rng, (n, k), dtype, axis=0)


def in_blocks(rng: np.random.Generator, n: int, k: int, dtype: str, block: int) -> QuantizedTensor:
    """Weights with a scale for each `block` inputs of an output; unsigned ones have zero points too."""
    lo, hi = lb.QuantizedDType.of(dtype).value_range
    shape = (n, -(-k // block))
    zero = np.zeros(shape, np.int32) if lo < 0 else rng.integers(lo, hi + 1, shape)
    scheme = "symmetric" if lo < 0 else "asymmetric"
    params = QuantizationParams(dtype, scheme, scales(rng, shape), zero, axis=-1, group_size=block)
    return QuantizedTensor.from_codes(rng.integers(lo, hi + 1, (n, k)), params)


def dense(x: Any, w: QuantizedTensor, bias: Any = 0) -> Any:
    """activation_dtype="int8" over weights with a scale an output."""
    a, sa = symmetric(x)
    return scaled(matmul_integer(a, w.unpack().T, 0, w.params.zero_point), sa, w.params.scale, bias)


def grouped(x: Any, w: QuantizedTensor, bias: Any = 0) -> Any:
    """activation_dtype="int8" over weights in blocks."""
    (a, sa), p = symmetric(x), w.params
    assert p.group_size is not None
    return matmul_groups(a, w.unpack().T, sa, p.scale.T, p.zero_point.T, p.group_size, bias)


# ---- int8 and uint8 activations -----------------------------------------------------------------------------


@size
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_tokens_as_int8(subject: ModuleType, m: int, k: int, n: int, dtype: str) -> None:
    rng = np.random.default_rng(m + k + n)
    x, w, bias = tokens(rng, (m, k)), by_output(rng, n, k, dtype), rng.standard_normal(n).astype(F32)
    assert same(subject.QuantizedLinear(w)(x), dense(x, w))
    layer = subject.QuantizedLinear(w, bias, activation_dtype="int8")
    for _ in range(2):
        assert same(layer(x), dense(x, w, bias))


@size
def test_tokens_as_uint8(subject: ModuleType, m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(m * k + n)
    x, w, bias = tokens(rng, (m, k)), by_output(rng, n, k), rng.standard_normal(n).astype(F32)
    a, sa, za = asymmetric(x)
    expected = scaled(matmul_integer(a, w.data.T, za, w.params.zero_point), sa, w.params.scale, bias)
    assert same(subject.QuantizedLinear(w, bias, activation_dtype="uint8")(x), expected)


def test_weights_with_one_scale(subject: ModuleType) -> None:
    rng = np.random.default_rng(1)
    x, w = tokens(rng, (5, 30)), tensor(rng, (12, 30), "int8")
    assert same(subject.QuantizedLinear(w)(x), dense(x, w))


def test_the_codes_of_a_token_are_within_127(subject: ModuleType) -> None:
    """Weights that pick single inputs show them; ties go to even, and -128 does not occur."""
    x = np.float32([[-127, 127, 0.5, 1.5, 2.5, -0.5, -1.5, -126.5], [-1, 0.5, 0.25, 0, -0.0, 1e-9, 1, -1]])
    w = QuantizedTensor(np.eye(8, dtype=np.int8), QuantizationParams("int8", scale=np.ones(8, F32), axis=0))
    found = subject.QuantizedLinear(w)(x)
    assert found[0].tolist() == [-127, 127, 0, 2, 2, 0, -2, -126]
    step = F32(1) / F32(127)
    assert same(found[1], F32([-127, 64, 32, 0, 0, 0, 127, -127]) * step)


@pytest.mark.parametrize("activation", ["int8", "uint8"])
def test_tokens_of_zeros_give_the_bias(subject: ModuleType, activation: str) -> None:
    rng = np.random.default_rng(2)
    x, w, bias = tokens(rng, (6, 40)), by_output(rng, 11, 40), rng.standard_normal(11).astype(F32)
    x[[0, 3]] = 0
    x[3, 5] = -0.0
    found = subject.QuantizedLinear(w, bias, activation_dtype=activation)(x)
    assert same(found[[0, 3]], np.stack([bias, bias]))
    if activation == "int8":
        assert same(found, dense(x, w, bias))
        blocks = in_blocks(rng, 11, 40, "int4", 16)
        assert same(subject.QuantizedLinear(blocks, bias)(x), grouped(x, blocks, bias))


def test_tokens_too_small_for_a_scale_of_their_own(subject: ModuleType) -> None:
    """Their scale is the least there is, and their codes are small."""
    w = constant(3, (4, 6), "int8")
    x = np.float32([[1e-38, 2e-38, -3e-38, 0, 1e-37, -2e-36], [1e-45, -1e-45, 0, 0, 0, 0]])
    assert same(subject.QuantizedLinear(w)(x), dense(x, w))


# ---- weights in blocks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "uint4", "int2", "uint2"])
@pytest.mark.parametrize(
    ("k", "block"),
    [(64, 16), (96, 32), (256, 128), (100, 32), (37, 16), (130, 128), (20, 32), (33, 32), (385, 128), (1, 16)],
    ids=lambda v: str(v),
)
def test_blocks_of_inputs(subject: ModuleType, dtype: str, k: int, block: int) -> None:
    """Exact within a block; blocks added in order in float32. The last one may be short, or the only one."""
    rng = np.random.default_rng(k + block)
    for m, n in ((1, 33), (5, 7), (34, 20)):
        x, w, bias = tokens(rng, (m, k)), in_blocks(rng, n, k, dtype, block), rng.standard_normal(n).astype(F32)
        assert same(subject.QuantizedLinear(w)(x), grouped(x, w))
        assert same(subject.QuantizedLinear(w, bias)(x), grouped(x, w, bias))


def test_blocks_of_extremes(subject: ModuleType) -> None:
    """All tokens at ±127 and all weights at the end of their range: the largest sums a block can have."""
    for dtype, value in (("int4", -8), ("uint4", 15), ("int2", -2), ("uint2", 3), ("int8", -128), ("uint8", 255)):
        params = QuantizationParams(dtype, "asymmetric", np.ones((9, 3), F32), 0, axis=-1, group_size=128)
        w = QuantizedTensor.from_codes(np.full((9, 300), value), params)
        x = np.full((5, 300), 127, F32) * np.float32([[1], [-1], [2], [0.5], [-3]])
        assert same(subject.QuantizedLinear(w)(x), grouped(x, w)), dtype


# ---- float activations --------------------------------------------------------------------------------------


def quantized_weights(rng: np.random.Generator, dtype: str, scheme: str, block: int | None) -> QuantizedTensor:
    w = rng.standard_normal((45, 150)).astype(F32)
    return lb.quantize(w, dtype, scheme=scheme, axis=0 if block is None else -1, group_size=block)


@pytest.mark.parametrize("m", [1, 4, 33])
@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize(
    ("dtype", "scheme", "block"),
    [
        ("int8", "symmetric", None), ("uint8", "asymmetric", None), ("int4", "symmetric", 32),
        ("uint4", "asymmetric", 128), ("int2", "symmetric", 16), ("uint2", "asymmetric", 32),
        ("binary", "symmetric", None), ("int8", "logarithmic", None), ("int4", "logarithmic", None),
    ],
)  # fmt: skip
def test_float_tokens(subject: ModuleType, dtype: str, scheme: str, block: int | None, element: str, m: int) -> None:
    """Within 4 * eps * sum|terms| of the sum in float64, and the rounding to a short float."""
    rng = np.random.default_rng(3)
    x, w = tokens(rng, (m, 150), FLOATS[element]), quantized_weights(rng, dtype, scheme, block)
    bias = rng.standard_normal(45).astype(F32)
    numbers = reference.dequantize(w.unpack(), w.params, F32).astype(np.float64)
    exact = x.astype(np.float64) @ numbers.T + bias
    terms = np.abs(x.astype(np.float64)) @ np.abs(numbers).T + np.abs(bias)
    found = subject.QuantizedLinear(w, bias, activation_dtype="float")(x)
    assert found.dtype == x.dtype
    narrowing = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}[element] * (np.abs(exact) + 4 * EPS * terms)
    assert (np.abs(found.astype(np.float64) - exact) <= 4 * EPS * terms + narrowing).all()


@pytest.mark.parametrize(("dtype", "scheme"), [("int4", "symmetric"), ("uint4", "asymmetric"), ("int2", "asymmetric")])
def test_float_layers_keep_weights_in_blocks_packed_alone(native: ModuleType, dtype: str, scheme: str) -> None:
    """And their rows do not depend on one another."""
    rng = np.random.default_rng(5)
    x, w = tokens(rng, (19, 150)), quantized_weights(rng, dtype, scheme, 48)
    layer = native.QuantizedLinear(w, activation_dtype="float")
    assert layer.path == "float"
    assert layer.weight == w
    assert layer.nbytes < 2 * w.nbytes
    together = layer(x)
    for i, row in enumerate(x):
        assert same(layer(row), together[i])
    for some in (2, 7, 8, 9):
        assert same(layer(x[:some]), together[:some])


def test_float_tokens_keep_their_nan_to_themselves(subject: ModuleType) -> None:
    rng = np.random.default_rng(4)
    x, w = tokens(rng, (5, 150)), quantized_weights(rng, "int4", "symmetric", 32)
    x[2, 7] = np.nan
    found = subject.QuantizedLinear(w, activation_dtype="float")(x)
    assert np.isnan(found[2]).all()
    assert np.isfinite(found[[0, 1, 3, 4]]).all()


# ---- types and shapes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_the_output_has_the_input_s_type(subject: ModuleType, dtype: Any) -> None:
    """Short floats are widened exactly; the result is narrowed once."""
    rng = np.random.default_rng(5)
    x = tokens(rng, (9, 70), dtype)
    for w, expected in ((by_output(rng, 21, 70), dense), (in_blocks(rng, 21, 70, "int4", 32), grouped)):
        bias = rng.standard_normal(21).astype(F32)
        assert same(subject.QuantizedLinear(w, bias)(x), expected(x, w, bias).astype(dtype))
    a, sa, za = asymmetric(x)
    w = by_output(rng, 21, 70)
    y = scaled(matmul_integer(a, w.data.T, za, w.params.zero_point), sa, w.params.scale)
    assert same(subject.QuantizedLinear(w, activation_dtype="uint8")(x), y.astype(dtype))


def test_any_number_of_leading_dimensions(subject: ModuleType) -> None:
    rng = np.random.default_rng(6)
    for w, expected in ((by_output(rng, 7, 20), dense), (in_blocks(rng, 7, 20, "int4", 16), grouped)):
        layer = subject.QuantizedLinear(w)
        for shape in ((20,), (3, 20), (2, 3, 20), (2, 1, 3, 20), (2, 0, 20), (0, 20)):
            x = tokens(rng, shape)
            assert same(layer(x), expected(x.reshape(-1, 20), w).reshape(*shape[:-1], 7)), shape


@pytest.mark.parametrize(
    "view", [lambda x: x[:, ::2], lambda x: x[::-1, :20], lambda x: x[:20].T[:, :20]], ids=["steps", "back", "turned"]
)
def test_strided_tokens(subject: ModuleType, view: Any) -> None:
    rng = np.random.default_rng(7)
    x, w = view(tokens(rng, (40, 40))), by_output(rng, 9, 20)
    assert same(subject.QuantizedLinear(w)(x), dense(np.array(x, order="C"), w))


# ---- given params -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_input_params_are_used_as_they_are(subject: ModuleType, dtype: str) -> None:
    """Nothing is found in the data then: NaN is the least code, infinities saturate."""
    rng = np.random.default_rng(8)
    x, w, bias = tokens(rng, (9, 50)), by_output(rng, 17, 50), rng.standard_normal(17).astype(F32)
    x[1, 2], x[4, 0], x[4, 1] = np.nan, np.inf, -np.inf
    given_params = output_params(dtype, 0.05, 30)
    acc = matmul_integer(reference.quantize(x, given_params), w.data.T, 30, w.params.zero_point)
    layer = subject.QuantizedLinear(w, bias, input_params=given_params)
    assert same(layer(x), scaled(acc, F32(0.05), w.params.scale, bias))
    out = output_params("uint8", spread_over(acc, 0.05, w.params.scale), 120)
    steps = np.rint(bias / (F32(0.05) * w.params.scale)).astype(np.int64)
    expected = requantize(acc + steps, F32(0.05), w.params.scale, out.scale, 120, 0, 255)
    layer = subject.QuantizedLinear(w, bias, input_params=given_params, out_params=out)
    assert same_codes(layer(x), expected, out)
    assert same_codes(layer(x.reshape(3, 3, 50)), expected.reshape(3, 3, 17), out)


def test_output_params_with_tokens_of_their_own_scales(subject: ModuleType) -> None:
    rng = np.random.default_rng(9)
    x, w = tokens(rng, (9, 50)), by_output(rng, 17, 50)
    a, sa = symmetric(x)
    acc = matmul_integer(a, w.data.T, 0, w.params.zero_point)
    out = output_params("int8", spread_over(acc, sa, w.params.scale), -9)
    expected = requantize(acc, sa, w.params.scale, out.scale, -9, -128, 127)
    assert same_codes(subject.QuantizedLinear(w, out_params=out)(x), expected, out)


# ---- floats as weights, and what a layer is -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "axis", "error"),
    [
        ({}, 0, 0.015),
        ({"dtype": "uint8", "scheme": "asymmetric"}, 0, 0.015),
        ({"dtype": "int8", "group_size": 32}, -1, 0.015),
        ({"dtype": "int4", "group_size": 16}, -1, 0.15),
        ({"dtype": "uint4", "scheme": "asymmetric", "group_size": 32}, -1, 0.15),
        ({"dtype": "int2", "group_size": 128}, -1, 1.0),
    ],
    ids=str,
)
def test_float_weights_are_quantized_by_output_or_in_blocks(
    subject: ModuleType, options: dict[str, Any], axis: int, error: float
) -> None:
    """`error`: of the output, as a share of its size."""
    rng = np.random.default_rng(10)
    weight, x = rng.standard_normal((19, 150)).astype(F32), tokens(rng, (6, 150))
    q = lb.quantize(weight, axis=axis, **options)
    expected = (dense if axis == 0 else grouped)(x, q)
    assert same(subject.QuantizedLinear(weight, **options)(x), expected)
    assert same(subject.QuantizedLinear(q)(x), expected)
    assert np.linalg.norm(expected - x @ weight.T) < error * np.linalg.norm(x @ weight.T)


@pytest.mark.parametrize("products", [2, 4])
@pytest.mark.parametrize("shape", [(33, 70), (8, 6, 3, 3), (4, 5, 3, 3)])
def test_products_of_weights_fit_16_bits(native: ModuleType, shape: tuple[int, ...], products: Products) -> None:
    rng = np.random.default_rng(5)
    make = lb.QuantizedLinear if len(shape) == 2 else lb.QuantizedConv2d
    normal = rng.standard_normal(shape, F32)
    for w in (normal, np.ones(shape, np.float16), normal.astype(FLOATS["bf16"])):
        layer = make(w, fit_products=products)
        packed = layer._packed.native if len(shape) == 2 else layer._packed.parts[0]
        assert packed.fits >= products
        # The codes are those of the nearest steps, and little is lost: a bit or two at most, where all are alike.
        assert layer.weight.error(w.astype(F32)).max_error <= 0.5001 * layer.weight.params.scale.max()
        plain = make(w).weight.params.scale
        assert (layer.weight.params.scale >= plain).all()
        assert (layer.weight.params.scale <= products * plain).all()


def test_products_are_fitted_for_symmetric_int8(native: ModuleType) -> None:
    w = np.eye(4, dtype=F32)
    for options in ({"dtype": "int4"}, {"dtype": "uint8", "scheme": "asymmetric"}, {"group_size": 2}):
        with pytest.raises(lb.Unsupported, match=r"fit_products: .*; expected symmetric int8"):
            lb.QuantizedLinear(w, fit_products=2, **options)
    with pytest.raises(InvalidProblem, match="fit_products: the weight is quantized already"):
        lb.QuantizedLinear(lb.quantize(w, axis=0), fit_products=2)


def test_bytes_of_a_layer(subject: ModuleType) -> None:
    """Those of its weights, their scales and its bias, give or take what the kernels keep beside them."""
    weight = np.random.default_rng(11).standard_normal((256, 512)).astype(F32)
    found = {
        "int8": subject.QuantizedLinear(weight).nbytes,
        "int4": subject.QuantizedLinear(weight, dtype="int4", group_size=128).nbytes,
        "int2": subject.QuantizedLinear(weight, dtype="int2", group_size=128).nbytes,
    }
    for dtype, bits in (("int8", 8), ("int4", 4), ("int2", 2)):
        least = weight.size * bits // 8
        assert least <= found[dtype] <= 1.15 * least + 16 * 256, dtype


def test_a_layer_says_what_it_is(subject: ModuleType) -> None:
    weight = np.ones((10, 24), F32)
    for options, parts in (({}, ("int8",)), ({"dtype": "int4", "group_size": 8}, ("int4",))):
        text = repr(subject.QuantizedLinear(weight, **options))
        assert all(part in text for part in ("QuantizedLinear", "10", "24", *parts)), text


@pytest.mark.parametrize("activation", ["int8", "uint8", "float"])
def test_a_layer_survives_pickling(subject: ModuleType, activation: str) -> None:
    rng = np.random.default_rng(12)
    x, bias = tokens(rng, (5, 60)), rng.standard_normal(13).astype(F32)
    weight = rng.standard_normal((13, 60)).astype(F32)
    layers = [subject.QuantizedLinear(weight, bias, activation_dtype=activation)]
    if activation != "uint8":
        layers.append(subject.QuantizedLinear(weight, bias, dtype="int4", group_size=32, activation_dtype=activation))
    for layer in layers:
        again = pickle.loads(pickle.dumps(layer))
        assert same(again(x), layer(x))
        assert repr(again) == repr(layer)
        assert again.nbytes == layer.nbytes


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(1, 20),
    k=st.integers(1, 300),
    n=st.integers(1, 40),
    dtype=st.sampled_from(["int8", "int4", "uint4", "int2"]),
    block=st.sampled_from([None, 16, 32, 64, 128]),
    element=st.sampled_from(list(FLOATS.values())),
    threads=st.sampled_from(THREADS),
)
def test_any_small_layer(
    subject: ModuleType, seed: int, m: int, k: int, n: int, dtype: str, block: int | None, element: Any, threads: int
) -> None:
    rng = np.random.default_rng(seed)
    lb.set_num_threads(threads)
    x, bias = tokens(rng, (m, k), element), rng.standard_normal(n).astype(F32)
    w = by_output(rng, n, k) if block is None else in_blocks(rng, n, k, dtype, block)
    expected = (dense if block is None else grouped)(x, w, bias)
    assert same(subject.QuantizedLinear(w, bias)(x), expected.astype(element))


@pytest.mark.parametrize("kind", ["dense", "blocks", "float"])
@pytest.mark.parametrize("m", [1, 70])
def test_threads_do_not_change_a_bit(native: ModuleType, isa: str, kind: str, m: int) -> None:
    rng = np.random.default_rng(13)
    x = tokens(rng, (m, 1030))
    w = by_output(rng, 520, 1030) if kind == "dense" else in_blocks(rng, 520, 1030, "int4", 128)
    layer = native.QuantizedLinear(w, activation_dtype="float" if kind == "float" else "int8")
    lb.set_num_threads(1)
    expected = layer(x)
    assert kind == "float" or same(expected, (dense if kind == "dense" else grouped)(x, w))
    for threads in THREADS[1:]:
        lb.set_num_threads(threads)
        assert same(layer(x), expected), threads


# ---- convolutions -------------------------------------------------------------------------------------------

OPTIONS: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 2), "groups": 2}


def convolved(q: Any, zero: int, scale: Any, w: QuantizedTensor, bias: Any = 0) -> Any:
    """Floats [n, out, h, w] of codes q under OPTIONS."""
    acc = conv2d_integer(q, w.data, zero, w.params.zero_point, (2, 1), (1, 0, 2, 1), (1, 2), 2)
    return np.moveaxis(scaled(np.moveaxis(acc, 1, -1), scale, w.params.scale, bias), -1, 1)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", FLOATS.values(), ids=FLOATS)
def test_convolution_of_floats_with_given_params(subject: ModuleType, dtype: Any, layout: str) -> None:
    rng = np.random.default_rng(14)
    x, w = tokens(rng, (3, 6, 9, 10), dtype), tensor(rng, (8, 3, 3, 2), "int8", axis=0)
    bias, p = rng.standard_normal(8).astype(F32), output_params("uint8", 0.04, 90)
    layer = subject.QuantizedConv2d(w, bias, **OPTIONS, layout=layout, input_params=p)
    y = convolved(reference.quantize(x, p), 90, F32(0.04), w, bias).astype(dtype)
    given_x = x if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(x, 1, -1))
    expected = y if layout == "NCHW" else np.moveaxis(y, 1, -1)
    assert same(layer(given_x), expected)
    assert same(pickle.loads(pickle.dumps(layer))(given_x), expected)


def test_convolution_finds_one_int8_scale_in_an_image(subject: ModuleType) -> None:
    rng = np.random.default_rng(15)
    x, w = tokens(rng, (1, 6, 9, 10)), tensor(rng, (8, 3, 3, 2), "int8", axis=0)
    codes, scale = symmetric(x.reshape(1, -1))
    y = convolved(codes.reshape(x.shape), 0, scale[0], w)
    assert same(subject.QuantizedConv2d(w, **OPTIONS)(x), y)


def test_convolution_to_codes_and_from_float_weights(subject: ModuleType) -> None:
    rng = np.random.default_rng(16)
    x, weight = tokens(rng, (2, 6, 9, 10)), rng.standard_normal((8, 3, 3, 2)).astype(F32)
    w, p = lb.quantize(weight, axis=0), output_params("int8", 0.04, 3)
    q = reference.quantize(x, p)
    acc = conv2d_integer(q, w.data, 3, 0, (2, 1), (1, 0, 2, 1), (1, 2), 2)
    out = output_params("uint8", spread_over(acc, 0.04, w.params.scale), 50)
    by = np.moveaxis(acc, 1, -1), F32(0.04), w.params.scale, out.scale, 50, 0, 255
    expected = np.moveaxis(requantize(*by), -1, 1)
    layer = subject.QuantizedConv2d(weight, **OPTIONS, input_params=p, out_params=out)
    assert same_codes(layer(x), expected, out)
    assert same_codes(subject.QuantizedConv2d(w, **OPTIONS, input_params=p, out_params=out)(x), expected, out)
    assert "QuantizedConv2d" in repr(layer)
    assert layer.nbytes >= weight.size


# ---- data without a range -----------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
@pytest.mark.parametrize("activation", ["int8", "uint8"])
def test_a_token_that_is_not_finite_is_named(native: ModuleType, isa: str, activation: str, bad: float) -> None:
    rng = np.random.default_rng(17)
    layer = native.QuantizedLinear(by_output(rng, 8, 40), activation_dtype=activation)
    for index in ((0, 0), (3, 17), (4, 39)):
        x = tokens(rng, (5, 40))
        x[index] = bad
        with pytest.raises(InvalidProblem, match=rf"^x\b.*\({index[0]}, {index[1]}\)"):
            layer(x)
    x = tokens(rng, (2, 3, 40))
    x[1, 2, 5] = bad
    with pytest.raises(InvalidProblem, match=r"^x\b.*\(1, 2, 5\)"):
        layer(x)


def test_an_image_that_is_not_finite_is_named(native: ModuleType) -> None:
    rng = np.random.default_rng(18)
    x = tokens(rng, (1, 6, 9, 10))
    x[0, 2, 3, 4] = np.nan
    with pytest.raises(InvalidProblem, match=r"^x\b.*\(0, 2, 3, 4\)"):
        native.QuantizedConv2d(tensor(rng, (8, 3, 3, 2), "int8", axis=0), **OPTIONS)(x)


# ---- layouts of images --------------------------------------------------------------------------------------


def moved(x: Any, layout: str, other: str) -> Any:
    """From one layout to another."""
    if layout == other:
        return x
    return np.ascontiguousarray(np.moveaxis(x, 1, -1) if other == "NHWC" else np.moveaxis(x, -1, 1))


LAYOUTS = ("NCHW", "NHWC")
FILTERS = {
    "dense": ((8, 6, 3, 2), 1, {}),
    "one by one": ((5, 6, 1, 1), 1, {}),
    "groups": ((8, 3, 3, 2), 2, {}),
    "depthwise": ((6, 1, 3, 3), 6, {}),
    "16 bits": ((8, 3, 2, 2), 2, {"dtype": "int16"}),
    "logarithmic": ((4, 6, 2, 2), 1, {"scheme": "logarithmic"}),
}


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("made", LAYOUTS)
@pytest.mark.parametrize("called", [None, *LAYOUTS])
@pytest.mark.parametrize("wanted", [None, *LAYOUTS])
def test_every_layout_of_layer_image_and_result(
    native: ModuleType, filters: str, made: str, called: str | None, wanted: str | None
) -> None:
    """The layer's layout, the call's and the result's are independent; the numbers are the same."""
    rng = np.random.default_rng(19)
    shape, groups, kind = FILTERS[filters]
    weight, bias = rng.standard_normal(shape).astype(F32), rng.standard_normal(shape[0]).astype(F32)
    options: dict[str, Any] = {"stride": (1, 2), "padding": (1, 0, 2, 1), "groups": groups, **kind}
    # Per channel of the result, wherever that has them.
    results = wanted or called or made
    by_channel = QuantizationParams("int8", "linear", scales(rng, shape[0]), axis=1 if results == "NCHW" else -1)
    for dtype in FLOATS.values():
        x = rng.standard_normal((2, 6, 7, 9)).astype(dtype)  # no two sizes are alike
        given_x = moved(x, "NCHW", called or made)
        for out in (None, output_params("uint8", 0.05, 90), output_params("int4", 0.5, 1), by_channel):
            one = by_channel.replace(axis=1) if out is by_channel else out
            expected = native.QuantizedConv2d(weight, bias, **options, out_params=one)(x)
            found = native.QuantizedConv2d(weight, bias, **options, layout=made, out_params=out)(
                given_x, layout=called, out_layout=wanted
            )
            if out is None:
                assert same(found, moved(expected, "NCHW", results))
            else:
                assert found.params == out.for_compute(F32)
                assert found.shape == moved(expected.unpack(), "NCHW", results).shape
                assert (found.unpack() == moved(expected.unpack(), "NCHW", results)).all()


def test_layouts_that_are_none_are_named(native: ModuleType) -> None:
    layer, x = native.QuantizedConv2d(np.ones((4, 6, 1, 1), F32)), np.ones((1, 6, 3, 3), F32)
    for name in ("layout", "out_layout"):
        for wrong in ("nchw", "CHW", "", 3):
            with pytest.raises(InvalidProblem, match=rf"^{name}: {wrong!r}; expected 'NCHW' or 'NHWC'"):
                layer(x, **{name: wrong})
    with pytest.raises(InvalidProblem, match=r"^x: 3 channels; w has 6"):
        layer(x, layout="NHWC", out_layout="NCHW")


# ---- paths ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
@pytest.mark.parametrize("activation", ["int8", "float"])
def test_16_bit_weights_in_blocks_take_floats(native: ModuleType, dtype: str, activation: str) -> None:
    """The kernels for blocks multiply bytes: 16-bit codes are expanded, and x stays as it is."""
    rng = np.random.default_rng(20)
    x, weight = tokens(rng, (5, 70)), rng.standard_normal((9, 70)).astype(F32)
    w = lb.quantize(weight, dtype, scheme="asymmetric", axis=-1, group_size=32)
    layer = native.QuantizedLinear(w, activation_dtype=activation)
    assert layer.path == "float"
    exact = x.astype(np.float64) @ w.dequantize(dtype=np.float64).T
    terms = np.abs(x.astype(np.float64)) @ np.abs(w.dequantize(dtype=np.float64)).T
    assert (np.abs(layer(x) - exact) <= 4 * EPS * terms).all()
    # Far closer than codes of 8 bits could be, which x would have become on any other path.
    assert np.linalg.norm(layer(x) - x @ weight.T) < 1e-3 * np.linalg.norm(x @ weight.T)


def test_one_layer_serves_each_type_in_turn(native: ModuleType) -> None:
    """What is kept from one call to the next is kept for the type of x."""
    rng = np.random.default_rng(22)
    w, k = rng.standard_normal((9, 32)).astype(F32), rng.standard_normal((4, 3, 2, 2)).astype(F32)
    for options in ({}, {"dtype": "int4", "group_size": 16}, {"activation_dtype": "float"}):
        layer = native.QuantizedLinear(w, **options)
        for dtype in (*FLOATS.values(), *FLOATS.values()):
            x = tokens(rng, (5, 32), dtype)
            assert same(layer(x), native.QuantizedLinear(w, **options)(x))
    layer = native.QuantizedConv2d(k)
    for dtype in (*FLOATS.values(), *FLOATS.values()):
        x = rng.standard_normal((1, 3, 5, 5)).astype(dtype)
        assert same(layer(x), native.QuantizedConv2d(k)(x))
