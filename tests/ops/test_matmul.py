"""matmul_integer, qmatmul and prepack: the sums and codes of the reference, to the bit, for every size that has a
reason to fail. `subject` is the reference's own adapter, then lowbit on each ISA."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowbit as lb
from conftest import ISAS, THREADS
from lowbit import QuantizationParams, QuantizedTensor, _core
from lowbit.ops.matmul import path_of
from lowbit.reference.compute import matmul_integer, requantize, scaled
from problems import BYTES, F32, codes, constant, output_params, same, same_codes, scales, spread_over, tensor
from problems import zero_points as zeros_of

# (m, k, n), each named after what it may break.
SIZES = {
    "one": (1, 1, 1),
    "two": (2, 2, 2),
    "less than four deep": (3, 3, 3),
    "primes": (7, 13, 11),
    "power of two minus one": (15, 63, 31),
    "power of two": (16, 64, 32),
    "power of two plus one": (17, 65, 33),
    "one row": (1, 130, 70),
    "one column": (70, 130, 1),
    "one deep": (33, 1, 35),
    "n below a tile": (40, 50, 3),
    "m above a tile": (75, 50, 20),
    "tiles both ways and a rest": (67, 129, 131),
    "deep": (3, 5001, 5),
    "wide": (2, 9, 1030),
    "no rows": (0, 5, 4),
    "no columns": (4, 5, 0),
    "no depth": (4, 0, 5),
    "nothing at all": (0, 0, 0),
}
PAIRS = [(a, b) for a in BYTES for b in BYTES]
size = pytest.mark.parametrize(("m", "k", "n"), SIZES.values(), ids=SIZES)
types = pytest.mark.parametrize(("a_type", "b_type"), PAIRS, ids=lambda name: name)


def summed(a: QuantizedTensor, b: QuantizedTensor) -> Any:
    return matmul_integer(a.unpack(), b.unpack(), a.params.zero_point, b.params.zero_point)


def floats(a: QuantizedTensor, b: QuantizedTensor, bias: Any = 0) -> Any:
    return scaled(summed(a, b), a.params.scale, b.params.scale, bias)


def recoded(a: QuantizedTensor, b: QuantizedTensor, out: QuantizationParams, bias: Any = 0) -> Any:
    """bias: in steps of the sums."""
    zero = int(out.zero_point)
    return requantize(summed(a, b) + bias, a.params.scale, b.params.scale, out.scale, zero, out.qmin, out.qmax)


# ---- sums -------------------------------------------------------------------------------------------------


@size
@types
def test_sums_are_exact(subject: ModuleType, m: int, k: int, n: int, a_type: str, b_type: str) -> None:
    rng = np.random.default_rng(m + k + n)
    a, b = codes(rng, (m, k), a_type), codes(rng, (k, n), b_type)
    assert same(subject.matmul_integer(a, b), matmul_integer(a, b).astype(np.int32))
    za, zb = int(zeros_of(rng, (), a_type)), int(zeros_of(rng, (), b_type))
    assert same(subject.matmul_integer(a, b, za, zb), matmul_integer(a, b, za, zb).astype(np.int32))
    za, zb = zeros_of(rng, m, a_type), zeros_of(rng, n, b_type)
    assert same(subject.matmul_integer(a, b, za, zb), matmul_integer(a, b, za, zb).astype(np.int32))


@pytest.mark.parametrize("k", [1, 2, 3, 4, 31, 32, 33, 64, 67, 257])
@pytest.mark.parametrize(
    ("a_type", "a_value", "b_type", "b_value"),
    [
        ("uint8", 255, "int8", -128),
        ("uint8", 255, "int8", 127),
        ("uint8", 255, "uint8", 255),
        ("int8", -128, "int8", -128),
        ("int8", -128, "int8", 127),
        ("int8", -128, "uint8", 255),
    ],
)
def test_neighbouring_products_do_not_saturate(
    subject: ModuleType, a_type: str, a_value: int, b_type: str, b_value: int, k: int
) -> None:
    a, b = np.full((5, k), a_value, a_type), np.full((k, 19), b_value, b_type)
    found = subject.matmul_integer(a, b)
    assert found.dtype == np.int32
    assert found.shape == (5, 19)
    assert (found == k * a_value * b_value).all()


@types
def test_zero_points_at_the_ends_of_their_range(subject: ModuleType, a_type: str, b_type: str) -> None:
    """Steps of ±255: no code of either type could hold one."""
    a_ends, b_ends = ((np.iinfo(t).min, np.iinfo(t).max) for t in (a_type, b_type))
    for a_value, za in (a_ends, a_ends[::-1]):
        for b_value, zb in (b_ends, b_ends[::-1]):
            a, b = np.full((9, 37), a_value, a_type), np.full((37, 18), b_value, b_type)
            assert (subject.matmul_integer(a, b, za, zb) == 37 * (a_value - za) * (b_value - zb)).all()
            assert (
                subject.matmul_integer(a, b, np.full(9, za), np.full(18, zb)) == 37 * (a_value - za) * (b_value - zb)
            ).all()


@pytest.mark.parametrize("k", [33025, 33026, 40000, 65794, 70000, 131073])
@pytest.mark.parametrize(
    ("a_type", "a_value", "za", "b_type", "b_value", "zb"),
    [
        ("uint8", 255, 0, "uint8", 255, 0),
        ("uint8", 255, 0, "int8", -128, 127),
        ("int8", -128, 127, "int8", -128, 127),
        ("int8", 127, -128, "uint8", 0, 255),
        ("int8", -128, 0, "int8", -128, 0),
    ],
)
def test_depth_past_what_int32_holds(
    subject: ModuleType, k: int, a_type: str, a_value: int, za: int, b_type: str, b_value: int, zb: int
) -> None:
    """255 * 255 * 33025 is the last sum below 2^31; from there on the result is int64."""
    a, b = np.full((2, k), a_value, a_type), np.full((k, 3), b_value, b_type)
    found = subject.matmul_integer(a, b, za, zb)
    assert found.dtype == (np.int32 if k <= 33025 else np.int64)
    assert (found == k * (a_value - za) * (b_value - zb)).all()


def test_floats_and_codes_of_sums_past_int32(subject: ModuleType) -> None:
    k = 70001
    a, b = constant(255, (2, k), "uint8"), constant(255, (k, 3), "uint8")
    acc = np.full((2, 3), 255 * 255 * k)
    assert same(subject.qmatmul(a, b), scaled(acc, 1, 1))
    out = output_params("uint8", 255.0 * k, 3)
    assert same_codes(subject.qmatmul(a, b, out_params=out), np.full((2, 3), 255), out)
    out = output_params("uint8", 1000.0 * k, 3)
    assert same_codes(subject.qmatmul(a, b, out_params=out), np.full((2, 3), 65 + 3), out)


@pytest.mark.parametrize(
    ("left", "right"),
    [((3,), ()), ((), (3,)), ((3,), (3,)), ((2, 1), (3,)), ((1,), (4,)), ((2, 3), (2, 1)), ((0,), ()), ((2, 0), (1,))],
    ids=str,
)
def test_batches_broadcast(subject: ModuleType, left: tuple[int, ...], right: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    a, b = codes(rng, (*left, 5, 18), "uint8"), codes(rng, (*right, 18, 9), "int8")
    za, zb = zeros_of(rng, 5, "uint8"), zeros_of(rng, 9, "int8")
    assert same(subject.matmul_integer(a, b, za, zb), matmul_integer(a, b, za, zb).astype(np.int32))
    p, q = tensor(rng, a.shape, "uint8"), tensor(rng, b.shape, "int8", axis=-1)
    assert same(subject.qmatmul(p, q), floats(p, q))


@pytest.mark.parametrize(
    "view",
    [lambda x: x[::2, ::3], lambda x: x[::-1, ::-1], lambda x: x.T, lambda x: np.broadcast_to(x[:1], x.shape)],
    ids=["steps", "reversed", "transposed", "broadcast"],
)
def test_strided_codes(subject: ModuleType, view: Any) -> None:
    rng = np.random.default_rng(2)
    a = view(codes(rng, (40, 40), "uint8"))
    b = view(codes(rng, (40, 40), "int8")).T
    b.flags.writeable = False
    assert same(subject.matmul_integer(a, b, 3, -4), matmul_integer(a, b, 3, -4).astype(np.int32))
    p, q = (QuantizedTensor(x, QuantizationParams(x.dtype.name, scale=F32(0.5), zero_point=2)) for x in (a, b))
    assert same(subject.qmatmul(p, q), floats(p, q))


# ---- floats -----------------------------------------------------------------------------------------------

GRANULARITIES = [(None, None), (0, None), (None, 1), (0, 1)]
granularity = pytest.mark.parametrize(
    ("a_axis", "b_axis"), GRANULARITIES, ids=["tensor", "token", "column", "token and column"]
)


@size
@granularity
def test_float_output(subject: ModuleType, m: int, k: int, n: int, a_axis: int | None, b_axis: int | None) -> None:
    rng = np.random.default_rng(m * k + n)
    for a_type, b_type in PAIRS:
        a, b = tensor(rng, (m, k), a_type, a_axis), tensor(rng, (k, n), b_type, b_axis)
        assert same(subject.qmatmul(a, b), floats(a, b))
        bias = rng.standard_normal(n).astype(F32)
        assert same(subject.qmatmul(a, b, bias=bias), floats(a, b, bias))


@granularity
def test_an_integer_bias_belongs_to_the_sums(subject: ModuleType, a_axis: int | None, b_axis: int | None) -> None:
    rng = np.random.default_rng(3)
    a, b = tensor(rng, (9, 50), "uint8", a_axis), tensor(rng, (50, 21), "int8", b_axis)
    bias = rng.integers(-(2**31), 2**31, 21).astype(np.int32)  # some sums leave int32
    expected = scaled(summed(a, b) + bias, a.params.scale, b.params.scale)
    assert same(subject.qmatmul(a, b, bias=bias), expected)
    top = np.full(3, 2**31 - 1, np.int32)
    a, b = constant(255, (2, 33000), "uint8"), constant(127, (33000, 3), "int8")
    assert same(subject.qmatmul(a, b, bias=top), scaled(np.full((2, 3), 33000 * 255 * 127 + 2**31 - 1), 1, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["f32", "f16", "bf16"])
def test_output_of_each_float_type(subject: ModuleType, dtype: Any) -> None:
    """Narrowed from float32 once, ties to even; what float16 cannot hold becomes infinite."""
    rng = np.random.default_rng(4)
    a, b = tensor(rng, (33, 70), "uint8", 0), tensor(rng, (70, 45), "int8", 1)
    bias = rng.standard_normal(45).astype(F32)
    with np.errstate(over="ignore"):
        assert same(subject.qmatmul(a, b, bias=bias, out_dtype=np.dtype(dtype).name), floats(a, b, bias).astype(dtype))
        big = constant(127, (3, 700), "int8"), constant(-128, (700, 4), "int8")
        assert same(subject.qmatmul(*big, out_dtype=dtype), floats(*big).astype(dtype))
        ties = constant(1, (1, 1), "int8"), QuantizedTensor(
            np.arange(-128, 128, dtype=np.int8).reshape(1, -1), QuantizationParams("int8", scale=F32(1 + 2**-9))
        )  # fmt: skip
        assert same(subject.qmatmul(*ties, out_dtype=dtype), floats(*ties).astype(dtype))


# ---- codes ------------------------------------------------------------------------------------------------


@size
@granularity
def test_requantized_output(
    subject: ModuleType, m: int, k: int, n: int, a_axis: int | None, b_axis: int | None
) -> None:
    rng = np.random.default_rng(m + k * n)
    for (a_type, b_type), y_type in zip(PAIRS, ("int8", "uint8", "uint8", "int8"), strict=True):
        a, b = tensor(rng, (m, k), a_type, a_axis), tensor(rng, (k, n), b_type, b_axis)
        step = spread_over(summed(a, b), a.params.scale, b.params.scale)
        out = output_params(y_type, step, int(zeros_of(rng, (), y_type)))
        assert same_codes(subject.qmatmul(a, b, out_params=out), recoded(a, b, out), out)
        bias = rng.integers(-20_000, 20_000, n, dtype=np.int32)
        assert same_codes(subject.qmatmul(a, b, bias=bias, out_params=out), recoded(a, b, out, bias), out)


@granularity
def test_a_float_bias_takes_the_steps_of_the_sums(subject: ModuleType, a_axis: int | None, b_axis: int | None) -> None:
    """rne(bias / (sa * sb)), before the sums are rounded: each token has its own where tokens have scales."""
    rng = np.random.default_rng(5)
    a, b = tensor(rng, (11, 60), "int8", a_axis), tensor(rng, (60, 27), "uint8", b_axis)
    out = output_params("int8", spread_over(summed(a, b), a.params.scale, b.params.scale), -3)
    bias = (rng.standard_normal(27) * float(out.scale) * 40).astype(F32)
    sa = a.params.scale[:, None] if a_axis == 0 else a.params.scale
    steps = np.rint(bias / (sa * b.params.scale)).astype(np.int64)
    expected = recoded(a, b, out, steps)
    assert (expected != recoded(a, b, out)).mean() > 0.5
    assert same_codes(subject.qmatmul(a, b, bias=bias, out_params=out), expected, out)


def test_ties_go_to_even_before_the_zero_point(subject: ModuleType) -> None:
    a = QuantizedTensor(np.arange(-128, 128, dtype=np.int8)[:, None], QuantizationParams("int8", scale=F32(0.5)))
    b = constant(1, (1, 1), "int8")
    for zero in (-3, 0, 1, 2):
        out = output_params("int8", 1.0, zero)
        expected = np.clip(np.rint(np.arange(-128, 128) / 2).astype(np.int64) + zero, -128, 127)[:, None]
        assert same_codes(subject.qmatmul(a, b, out_params=out), expected, out)


def test_the_ratio_of_scales_is_a_division(subject: ModuleType) -> None:
    """20.5 / 41 is 0.5, so every other sum is a tie; in float32 20.5 * (1 / 41) is below it."""
    a = QuantizedTensor(np.arange(-128, 128, dtype=np.int8)[:, None], QuantizationParams("int8", scale=F32(20.5)))
    out = output_params("int8", 41.0, 1)
    expected = np.clip(np.rint(np.arange(-128, 128) / 2) + 1, -128, 127).astype(np.int64)[:, None]
    assert same_codes(subject.qmatmul(a, constant(1, (1, 1), "int8"), out_params=out), expected, out)


def test_a_float_bias_is_rounded_to_even_steps(subject: ModuleType) -> None:
    bias = np.float32([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.49, 3.51])
    a, b, out = constant(0, (2, 4), "int8"), constant(1, (4, 8), "int8"), output_params("int8", 1.0, 7)
    expected = np.array([[-2, -2, 0, 0, 2, 2, 0, 4]] * 2) + 7
    assert same_codes(subject.qmatmul(a, b, bias=bias, out_params=out), expected, out)


def test_codes_stay_within_the_range_the_params_ask_for(subject: ModuleType) -> None:
    rng = np.random.default_rng(6)
    a, b = tensor(rng, (9, 30), "uint8"), tensor(rng, (30, 20), "int8", 1)
    for dtype, lo, hi, zero in (("int8", -127, 127, 0), ("uint8", 3, 200, 77), ("int8", -8, -8, -8)):
        out = output_params(dtype, 0.5, zero, qmin=lo, qmax=hi)
        found = subject.qmatmul(a, b, out_params=out)
        assert same_codes(found, recoded(a, b, out), out)
        assert found.data.min() == lo
        assert found.data.max() == hi


@pytest.mark.parametrize("y_type", BYTES)
def test_relu_and_clamp(subject: ModuleType, y_type: str) -> None:
    """Bounds are real numbers: of floats as they are, of codes by the output's own scale."""
    rng = np.random.default_rng(7)
    a, b = tensor(rng, (23, 40), "uint8", 0), tensor(rng, (40, 31), "int8", 1)
    bias, y = rng.standard_normal(31).astype(F32), floats(a, b)
    step = spread_over(summed(a, b), a.params.scale, b.params.scale)
    out = output_params(y_type, step, 10)
    plain, bounds = recoded(a, b, out), (-20.3 * step, 33.7 * step)
    assert same(subject.qmatmul(a, b, bias=bias, activation="relu"), np.maximum(floats(a, b, bias), 0))
    assert same(subject.qmatmul(a, b, clamp=bounds), np.clip(y, F32(bounds[0]), F32(bounds[1])))
    assert same_codes(subject.qmatmul(a, b, out_params=out, activation="relu"), np.maximum(plain, 10), out)
    limits = max(-20 + 10, out.qmin), 34 + 10
    assert same_codes(subject.qmatmul(a, b, out_params=out, clamp=bounds), np.clip(plain, *limits), out)
    assert same(
        subject.qmatmul(a, b, activation="relu", out_dtype="bfloat16"), np.maximum(y, 0).astype(ml_dtypes.bfloat16)
    )


# ---- orders of storage ------------------------------------------------------------------------------------


def transposed(t: QuantizedTensor) -> QuantizedTensor:
    """Stored the other way round; the scales go along."""
    p = t.params
    turned = QuantizationParams(p.dtype, p.scheme, p.scale, p.zero_point, None if p.axis is None else 1 - p.axis)
    return QuantizedTensor(np.ascontiguousarray(t.data.T), turned)


@granularity
@pytest.mark.parametrize(("m", "k", "n"), [(1, 65, 33), (17, 64, 9), (40, 3, 70)], ids=str)
def test_transposed_sides(subject: ModuleType, m: int, k: int, n: int, a_axis: int | None, b_axis: int | None) -> None:
    rng = np.random.default_rng(8)
    a, b = tensor(rng, (m, k), "uint8", a_axis), tensor(rng, (k, n), "int8", b_axis)
    y = floats(a, b)
    assert same(subject.qmatmul(transposed(a), b, transpose_a=True), y)
    assert same(subject.qmatmul(a, transposed(b), transpose_b=True), y)
    assert same(subject.qmatmul(transposed(a), transposed(b), transpose_a=True, transpose_b=True), y)


def test_transposed_batches(subject: ModuleType) -> None:
    rng = np.random.default_rng(9)
    a, b = tensor(rng, (3, 20, 7), "int8"), tensor(rng, (3, 11, 20), "int8")
    acc = matmul_integer(a.data.transpose(0, 2, 1), b.data.transpose(0, 2, 1), a.params.zero_point, b.params.zero_point)
    expected = scaled(acc, a.params.scale, b.params.scale)
    assert same(subject.qmatmul(a, b, transpose_a=True, transpose_b=True), expected)


@size
@types
def test_a_packed_matrix_gives_the_same_bits(
    subject: ModuleType, m: int, k: int, n: int, a_type: str, b_type: str
) -> None:
    rng = np.random.default_rng(m + 2 * k + 3 * n)
    a, b = tensor(rng, (m, k), a_type, 0), tensor(rng, (k, n), b_type, 1)
    packed = subject.prepack(b)
    for _ in range(2):  # it can be used again
        assert same(subject.qmatmul(a, packed), floats(a, b))
    assert same(subject.qmatmul(a, subject.prepack(transposed(b), transpose=True)), floats(a, b))
    out = output_params("uint8", spread_over(summed(a, b), a.params.scale, b.params.scale), 128)
    bias = rng.integers(-999, 999, n, dtype=np.int32)
    assert same_codes(subject.qmatmul(a, packed, bias=bias, out_params=out), recoded(a, b, out, bias), out)


def test_a_packed_matrix_keeps_its_numbers(subject: ModuleType) -> None:
    """Writing into the codes it was made from does not change it, and signed and unsigned left sides both fit it."""
    rng = np.random.default_rng(10)
    b = tensor(rng, (37, 21), "int8", 1)
    sides = [tensor(rng, (5, 37), dtype) for dtype in BYTES]
    expected = [floats(a, b) for a in sides]
    packed = subject.prepack(b)
    b.data[...] = 0
    for a, y in zip(sides, expected, strict=True):
        assert same(subject.qmatmul(a, packed), y)


@pytest.mark.parametrize("packer", ISAS)
@pytest.mark.parametrize("user", ISAS)
def test_a_matrix_packed_under_one_isa_multiplies_under_another(native: ModuleType, packer: str, user: str) -> None:
    rng = np.random.default_rng(11)
    a, b = tensor(rng, (19, 70), "uint8", 0), tensor(rng, (70, 45), "int8", 1)
    _core.set_max_isa(packer)
    packed = native.prepack(b)
    _core.set_max_isa(user)
    assert same(native.qmatmul(a, packed), floats(a, b))


@pytest.mark.parametrize(("m", "k", "n"), [(1, 3000, 1100), (300, 150, 130), (3, 40000, 40), (700, 9, 5)], ids=str)
def test_threads_do_not_change_a_bit(native: ModuleType, isa: str, m: int, k: int, n: int) -> None:
    rng = np.random.default_rng(12)
    a, b = tensor(rng, (m, k), "uint8", 0), tensor(rng, (k, n), "int8", 1)
    y, packed = floats(a, b), native.prepack(b)
    out = output_params("int8", spread_over(summed(a, b), a.params.scale, b.params.scale), 5)
    expected = recoded(a, b, out)
    for threads in THREADS:
        lb.set_num_threads(threads)
        assert same(native.qmatmul(a, b), y), threads
        assert same(native.qmatmul(a, packed), y), threads
        assert same_codes(native.qmatmul(a, packed, out_params=out), expected, out), threads


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1),
    m=st.integers(0, 40),
    k=st.integers(0, 140),
    n=st.integers(0, 80),
    kinds=st.tuples(*[st.sampled_from(BYTES)] * 3),
    axes=st.sampled_from(GRANULARITIES),
    bias_kind=st.sampled_from(["none", "float", "int32"]),
    packed=st.booleans(),
    threads=st.sampled_from(THREADS),
)
def test_any_small_product(
    subject: ModuleType, seed: int, m: int, k: int, n: int, kinds: tuple[str, ...], axes: Any, bias_kind: str,
    packed: bool, threads: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    lb.set_num_threads(threads)
    a, b = tensor(rng, (m, k), kinds[0], axes[0]), tensor(rng, (k, n), kinds[1], axes[1])
    right = subject.prepack(b) if packed else b
    acc, sa, sb = summed(a, b), a.params.scale, b.params.scale
    assert same(subject.matmul_integer(a.data, b.data, a.params.zero_point, b.params.zero_point), acc.astype(np.int32))
    bias: Any = None
    steps: Any = 0
    y = scaled(acc, sa, sb)
    if bias_kind == "float":
        bias = rng.standard_normal(n).astype(F32)
        steps = np.rint(bias / ((sa[:, None] if sa.ndim else sa) * sb)).astype(np.int64)
        y = scaled(acc, sa, sb, bias)
    elif bias_kind == "int32":
        bias = steps = rng.integers(-(2**20), 2**20, n, dtype=np.int32)
        y = scaled(acc + bias, sa, sb)
    assert same(subject.qmatmul(a, right, bias=bias), y)
    out = output_params(kinds[2], spread_over(acc, sa, sb), int(zeros_of(rng, (), kinds[2])))
    assert same_codes(subject.qmatmul(a, right, bias=bias, out_params=out), recoded(a, b, out, steps), out)


# ---- every other dtype ----------------------------------------------------------------------------------------


def any_tensor(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, axis: int | None = None
) -> QuantizedTensor:
    """Random codes of any linear dtype; one scale and zero point, or one along `axis`."""
    lo, hi = lb.QuantizedDType.of(dtype).value_range
    count = () if axis is None else (shape[axis],)
    zero = rng.integers(lo, hi + 1, count)
    params = QuantizationParams(dtype, "asymmetric", scales(rng, count), zero, axis)
    return QuantizedTensor.from_codes(rng.integers(lo, hi + 1, shape), params)


NARROW_AND_WIDE = ["int8", "uint8", "int4", "uint4", "int2", "uint2", "int16", "uint16"]


@pytest.mark.parametrize("left", NARROW_AND_WIDE)
@pytest.mark.parametrize("right", NARROW_AND_WIDE)
def test_sums_of_any_two_linear_dtypes_are_exact(native: ModuleType, left: str, right: str) -> None:
    rng = np.random.default_rng(31)
    for a, b in (
        (any_tensor(rng, (5, 70), left), any_tensor(rng, (70, 9), right)),
        (any_tensor(rng, (5, 70), left, 0), any_tensor(rng, (70, 9), right, 1)),
    ):
        acc = matmul_integer(a.unpack(), b.unpack(), a.params.zero_point, b.params.zero_point)
        assert same(native.qmatmul(a, b), scaled(acc, a.params.scale, b.params.scale))
        bias = rng.integers(-1000, 1000, 9).astype(np.int32)
        assert same(native.qmatmul(a, b, bias=bias), scaled(acc + bias, a.params.scale, b.params.scale))


def test_the_widest_sums_of_16_bits(native: ModuleType) -> None:
    """65535 * 65535 * 1000 needs 42 bits."""
    full = QuantizedTensor.from_codes(np.full((1, 1000), 65535), QuantizationParams("uint16", "asymmetric", F32(1), 0))
    column = QuantizedTensor.from_codes(full.unpack().T, full.params)
    assert native.qmatmul(full, column)[0, 0] == F32(65535 * 65535 * 1000)


def test_bits_on_both_sides(native: ModuleType) -> None:
    rng = np.random.default_rng(32)
    a, b = (lb.quantize(rng.standard_normal(s).astype(F32), "binary") for s in ((5, 77), (77, 9)))
    acc = matmul_integer(2 * a.unpack().astype(int) - 1, 2 * b.unpack().astype(int) - 1)
    assert same(native.qmatmul(a, b), scaled(acc, a.params.scale, b.params.scale))


@pytest.mark.parametrize(
    ("b", "path"),
    [
        ({"dtype": "int4", "axis": 0, "group_size": 16}, "groups"),
        ({"dtype": "int8", "axis": 0, "group_size": 16}, "blocks"),
        ({"dtype": "int8", "scheme": "logarithmic"}, "general"),
        ({"dtype": "int8", "axis": 0}, "general"),
        ({"dtype": "binary"}, "general"),
    ],
    ids=["int4 blocks", "int8 blocks", "logarithmic", "by rows", "bits on one side"],
)
def test_general_paths_are_near_the_product_of_the_numbers(native: ModuleType, b: dict[str, Any], path: str) -> None:
    rng = np.random.default_rng(33)
    left, right = lb.quantize(rng.standard_normal((5, 70)).astype(F32)), lb.quantize(
        rng.standard_normal((70, 9)).astype(F32), **b
    )  # fmt: skip
    assert path_of(left.params, right.params) == path
    exact = left.dequantize(dtype=np.float64) @ right.dequantize(dtype=np.float64)
    terms = np.abs(left.dequantize(dtype=np.float64)) @ np.abs(right.dequantize(dtype=np.float64))
    assert (np.abs(native.qmatmul(left, right) - exact) <= 4 * 2.0**-23 * terms).all()


# ---- calls that repeat --------------------------------------------------------------------------------------

AGAIN = np.random.default_rng(40)
ROWS = tensor(AGAIN, (6, 6), "uint8")
# What a packed matrix keeps calls by; every entry differs from the first in one thing alone.
CALLS: dict[str, tuple[QuantizedTensor, dict[str, Any]]] = {
    "first": (ROWS, {}),
    "rows": (QuantizedTensor(ROWS.data[:4], ROWS.params), {}),
    "order": (QuantizedTensor(ROWS.data.T, ROWS.params), {}),
    "three dimensions": (QuantizedTensor(ROWS.data.reshape(2, 3, 6), ROWS.params), {}),
    "scale of a": (QuantizedTensor(ROWS.data, ROWS.params.replace(scale=F32(0.7))), {}),
    "zero point of a": (QuantizedTensor(ROWS.data, ROWS.params.replace(zero_point=9)), {}),
    "type of a": (QuantizedTensor(ROWS.data.view(np.int8), output_params("int8", ROWS.params.scale, 0)), {}),
    "out_params": (ROWS, {"out_params": output_params("int8", 3.0, 5)}),
    "other out_params": (ROWS, {"out_params": output_params("int8", 2.0, 5)}),
    "packed codes": (ROWS, {"out_params": output_params("int4", 20.0, 1)}),
    "out_dtype": (ROWS, {"out_dtype": "float16"}),
    "activation": (ROWS, {"activation": "relu"}),
    "clamp": (ROWS, {"clamp": (-2.0, 3.0)}),
    "other clamp": (ROWS, {"clamp": (-2.0, 4.0)}),
    "transpose_a": (ROWS, {"transpose_a": True}),
    "bias": (ROWS, {"bias": np.arange(5, dtype=F32)}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_was_settled_serves_no_other(native: ModuleType, name: str) -> None:
    b = tensor(AGAIN, (6, 5), "int8", 1)
    for order in (("first", name), (name, "first")):
        packed = native.prepack(b)
        for again in (*order, *order):
            a, options = CALLS[again]
            found, expected = native.qmatmul(a, packed, **options), native.qmatmul(a, b, **options)
            if isinstance(expected, QuantizedTensor):
                assert found == expected
            else:
                assert same(found, expected)


def test_a_settled_call_is_still_checked(native: ModuleType) -> None:
    packed = native.prepack(tensor(AGAIN, (6, 5), "int8", 1))
    native.qmatmul(ROWS, packed)
    with pytest.raises(lb.InvalidProblem, match=r"^a: 5 columns; b has 6 rows"):
        native.qmatmul(QuantizedTensor(ROWS.data[:, :5].copy(), ROWS.params), packed)
    with pytest.raises(lb.InvalidProblem, match=r"^transpose_b: True"):
        native.qmatmul(ROWS, packed, transpose_b=True)
    with pytest.raises(lb.InvalidProblem, match=r"^activation: "):
        native.qmatmul(ROWS, packed, activation="gelu")


def test_settled_calls_keep_the_params_they_were_settled_for(native: ModuleType) -> None:
    """Params that are no more leave their address to others, which must not be taken for them."""
    b = tensor(AGAIN, (6, 5), "int8", 1)
    packed = native.prepack(b)
    for i in range(50):
        a = QuantizedTensor(ROWS.data, QuantizationParams("uint8", scale=F32(0.01 * (i + 1))))
        assert same(native.qmatmul(a, packed), native.qmatmul(a, b))
        out = output_params("int8", 1.0 + i, i)
        assert native.qmatmul(ROWS, packed, out_params=out) == native.qmatmul(ROWS, b, out_params=out)
        del a, out


@pytest.mark.parametrize("n", [1, 17, 64, 67])
def test_a_sum_of_zero_under_scales_whose_product_overflows_is_the_least_code(isa, n):
    """0 * inf is NaN, which the contract quantizes to qmin, in a vector, in four, and in the last columns alike."""
    a = lb.QuantizedTensor(np.zeros((2, 3), np.int8), lb.QuantizationParams("int8", scale=1e33))
    b = lb.QuantizedTensor(np.ones((3, n), np.int8), lb.QuantizationParams("int8", scale=1e33))
    out = lb.QuantizationParams("int8", scale=1.0, zero_point=5)
    assert (lb.qmatmul(a, b, out_params=out).unpack() == -128).all()
    assert (lb.qmatmul(a, lb.prepack(b), out_params=out).unpack() == -128).all()
