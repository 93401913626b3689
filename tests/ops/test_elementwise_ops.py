"""Sums, products, bounds and joins of codes: the reference's bits, on every ISA and any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lowbit as lb
from conftest import ISAS, THREADS
from lowbit import InvalidProblem, QuantizationParams, QuantizedTensor, Unsupported, _core, reference
from lowbit.numerics.ranges import MAX_SCALE
from lowbit.reference import compute as reference_compute

Array = np.ndarray[Any, Any]
F32 = np.float32
OPS: dict[str, tuple[Callable[..., QuantizedTensor], Callable[..., Array]]] = {
    "add": (lb.qadd, reference_compute.qadd),
    "mul": (lb.qmul, reference_compute.qmul),
}
BYTES = ("int8", "uint8")
SHORTCUT_AFTER = 1 << 20  # elements under the same params, from when on a cheaper formula may be used


def params(dtype: str, scale: float, zero: int = 0, **options: Any) -> QuantizationParams:
    return QuantizationParams(dtype, "linear", F32(scale), zero, **options)


def every_code(dtype: str) -> Array:
    return np.arange(256, dtype=np.uint8).view(np.dtype(dtype))


def pairs(da: str, db: str) -> tuple[Array, Array]:
    """All 65,536 pairs of codes."""
    return np.repeat(every_code(da), 256), np.tile(every_code(db), 256)


def expected(op: str, a: QuantizedTensor, b: QuantizedTensor, p: QuantizationParams) -> Array:
    """By the reference, for tensors with one scale."""
    pa, pb, py = a.params, b.params, p.for_compute(F32)
    args: tuple[Any, ...] = (
        a.unpack(),
        pa.scale,
        pa.zero_point,
        b.unpack(),
        pb.scale,
        pb.zero_point,
        py.scale,
        py.zero_point,
    )
    with np.errstate(over="ignore"):
        return OPS[op][1](*args, p.qmin, p.qmax).astype(p.dtype.code_dtype)


def random_codes(rng: np.random.Generator, dtype: str, shape: Any) -> Array:
    kind = lb.QuantizedDType.of(dtype)
    return rng.integers(kind.qmin, kind.qmax + 1, shape).astype(kind.code_dtype)


def random_params(rng: np.random.Generator, dtype: str, scale: float) -> QuantizationParams:
    kind = lb.QuantizedDType.of(dtype)
    lo, hi = kind.qmin, kind.qmax
    if rng.random() < 0.3:
        lo, hi = sorted(rng.integers(lo, hi + 1, 2).tolist())
    zero = int(rng.integers(lo, hi + 1)) if rng.random() < 0.7 else int(np.clip(0, lo, hi))
    return params(dtype, scale, zero, qmin=lo, qmax=hi)


# ---- sums and products --------------------------------------------------------------------------------------

# (sa, sb, sy): generic, alike, all sums half-way between codes, powers of two, one operand all but nothing, overflows,
# the ends of what scales may be, above what the quotient is proven for
SCALES = {
    "generic": (0.0231, 0.0177, 0.0313),
    "alike": (0.03, 0.03, 0.03),
    "ties": (0.03, 0.03, 0.06),
    "ties of a power of two": (0.25, 0.125, 0.5),
    "halves": (0.5, 0.5, 1.0),
    "one is tiny": (1.0, 1e-6, 1.0),
    "steep": (3.0, 5.0, 0.01),
    "flat": (0.001, 0.002, 1.0),
    "least": (2.0**-125, 2.0**-125, 2.0**-125),
    "greatest": (float(F32(MAX_SCALE)), 1e33, 1e30),
    "beyond the proof": (1e30, 3e29, 2e30),
    "far apart": (1e-30, 1e-28, 1e30),
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES.keys())
def test_every_pair_of_codes(op: str, scales: tuple[float, float, float], isa: str) -> None:
    """Under the equation, and repeated until a shortcut may have taken over."""
    rng = np.random.default_rng(3)
    for da, db, dy in [("int8", "int8", "int8"), ("uint8", "uint8", "uint8"), ("int8", "uint8", "uint8"),
                       ("uint8", "int8", "int8")]:  # fmt: skip
        ca, cb = pairs(da, db)
        for i in range(3):
            pa, pb, py = (
                random_params(rng, d, s) if i else params(d, s) for d, s in zip((da, db, dy), scales, strict=True)
            )
            a, b = QuantizedTensor(ca, pa), QuantizedTensor(cb, pb)
            want = expected(op, a, b, py)
            few = OPS[op][0](a, b, out_params=py)
            np.testing.assert_array_equal(few.data, want)
            assert few.params == py.for_compute(F32)
            if isa == ISAS[-1] or i == 0:
                many = 1 + SHORTCUT_AFTER // ca.size
                a, b = QuantizedTensor(np.tile(ca, many), pa), QuantizedTensor(np.tile(cb, many), pb)
                got = OPS[op][0](a, b, out_params=py).data.reshape(many, -1)
                assert (got == want).all()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("isa_name", ISAS)
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_shapes_that_broadcast(isa_name: str, op: str, data: st.DataObject) -> None:
    _core.set_max_isa(isa_name)
    lb.set_num_threads(data.draw(st.sampled_from(THREADS)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    sizes = st.sampled_from([1, 2, 3, 5, 7, 16, 31, 64, 65, 130])
    shape = tuple(data.draw(st.lists(sizes, min_size=0, max_size=4)))
    if np.prod(shape) > 300_000:
        shape = shape[:2]
    of: list[tuple[int, ...]] = []
    for _ in range(2):
        kept = [n if data.draw(st.integers(0, 3)) else 1 for n in shape]
        of.append(tuple(kept[data.draw(st.integers(0, len(kept))) if data.draw(st.booleans()) else 0 :]))
    base = data.draw(st.sampled_from([0.03, 1.0, 2.0**-3, 1e-5, 7.77]))
    kinds = [data.draw(st.sampled_from(BYTES)) for _ in range(3)]
    pa, pb, py = (random_params(rng, kind, base * rng.choice([0.5, 1.0, 2.0, rng.uniform(0.1, 3)])) for kind in kinds)
    a, b = (QuantizedTensor(random_codes(rng, k, s), p) for k, s, p in zip(kinds, of, (pa, pb), strict=False))
    got = OPS[op][0](a, b, out_params=py)
    want = expected(op, a, b, py)
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.data, want)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(
    ("one", "two"),
    [
        ((70001,), (70001,)),
        ((300, 257), (257,)),  # a short row, repeated
        ((40, 5000), (5000,)),  # a long one
        ((300, 257), (300, 1)),  # a code for each row
        ((300, 257), ()),
        ((1,), (300, 257)),
        ((4, 16, 31, 33), (4, 16, 1, 1)),
        ((4, 16, 31, 33), (16, 1, 33)),
        ((3000, 1), (1, 70)),
        ((20, 1, 70), (1, 50, 1)),
        ((0, 5), (5,)),
        ((2, 0, 3), (1, 3)),
        ((), ()),
    ],
    ids=str,
)
def test_broadcasting_across_tasks(isa: str, one: tuple[int, ...], two: tuple[int, ...], threads: int) -> None:
    lb.set_num_threads(threads)
    rng = np.random.default_rng(4)
    pa, pb, py = params("int8", 0.02, 3), params("uint8", 0.013, 100), params("int8", 0.03, -9)
    a, b = QuantizedTensor(random_codes(rng, "int8", one), pa), QuantizedTensor(random_codes(rng, "uint8", two), pb)
    for op in OPS:
        np.testing.assert_array_equal(OPS[op][0](a, b, out_params=py).data, expected(op, a, b, py))
        np.testing.assert_array_equal(OPS[op][0](b, a, out_params=py).data, expected(op, b, a, py))


@pytest.mark.parametrize("op", OPS)
def test_lengths_around_a_vector_and_odd_addresses(op: str, isa: str) -> None:
    rng = np.random.default_rng(5)
    pa, pb, py = params("int8", 0.0231, 3), params("int8", 0.0177, -7), params("int8", 0.0313, 11)
    for n in (*range(140), 255, 1003):
        for shift in (0, 1, 17):
            room = random_codes(rng, "int8", n + shift)
            a, b = QuantizedTensor(room[shift:], pa), QuantizedTensor(random_codes(rng, "int8", n), pb)
            out = np.full(n + shift + 1, 99, np.int8)
            OPS[op][0](a, b, out_params=py, out=out[shift:-1])
            np.testing.assert_array_equal(out[shift:-1], expected(op, a, b, py))
            assert (np.delete(out, np.s_[shift:-1]) == 99).all()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("threads", [1, 3])
def test_large_results_written_past_the_caches(op: str, threads: int, isa: str) -> None:
    lb.set_num_threads(threads)
    n = (64 << 20) // 3 + 12345
    ca, cb = (np.resize(c, n) for c in pairs("int8", "uint8"))
    a, b = QuantizedTensor(ca, params("int8", 0.0231, 3)), QuantizedTensor(cb, params("uint8", 0.0177, 70))
    py = params("uint8", 0.0313, 111)
    out = np.empty(n + 3, np.uint8)[3:]  # misaligned
    OPS[op][0](a, b, out_params=py, out=out)
    want = expected(op, a[:65536], b[:65536], py)
    assert (out == np.resize(want, n)).all()


def test_strided_views() -> None:
    rng = np.random.default_rng(6)
    p = params("int8", 0.02, 3)
    codes = random_codes(rng, "int8", (40, 50))
    a, b = QuantizedTensor(codes[::2, ::-1], p), QuantizedTensor(codes.T[:20, ::2].reshape(1, 20, 20)[0, :, :1], p)
    np.testing.assert_array_equal(lb.qadd(a, b).data, expected("add", a, b, p))


def test_in_place_and_overlapping_outputs() -> None:
    rng = np.random.default_rng(7)
    p, q = params("int8", 0.02, 3), params("int8", 0.03, -3)
    for shape_b in ((70, 1003), (1003,), (70, 1), ()):
        codes = random_codes(rng, "int8", (70, 1003))
        a, b = QuantizedTensor(codes.copy(), p), QuantizedTensor(random_codes(rng, "int8", shape_b), q)
        want = expected("add", a, b, p)
        assert lb.qadd(a, b, out=a) is a
        np.testing.assert_array_equal(a.data, want)
    memory = random_codes(rng, "int8", 10_001)
    before = memory.copy()
    a, b = QuantizedTensor(memory[:-1], p), QuantizedTensor(memory[1:], p)
    want = expected("add", QuantizedTensor(before[:-1], p), QuantizedTensor(before[1:], p), p)
    lb.qadd(a, b, out=b)  # a would be read after b was written there
    np.testing.assert_array_equal(memory[1:], want)
    square = QuantizedTensor(memory[:-1].reshape(100, 100), p)
    row = square[0]  # is written first, and needed for all the others
    want = expected("add", QuantizedTensor(row.data.copy(), p), square, p)
    lb.qadd(row, square, out=square)
    np.testing.assert_array_equal(square.data, want)


def test_the_params_of_a_are_the_default() -> None:
    rng = np.random.default_rng(8)
    a = QuantizedTensor(random_codes(rng, "int8", 100), params("int8", 0.02, 3, qmin=-100, qmax=90))
    b = QuantizedTensor(random_codes(rng, "uint8", 100), params("uint8", 0.03))
    got = lb.qadd(a, b)
    assert got.params == a.params
    np.testing.assert_array_equal(got.data, expected("add", a, b, a.params))


GENERAL = {
    "int16": QuantizationParams("int16", scale=F32(0.001), zero_point=5),
    "uint16": QuantizationParams("uint16", scale=F32(0.001), zero_point=30000),
    "int4": QuantizationParams("int4", scale=F32(0.2), zero_point=1),
    "uint4": QuantizationParams("uint4", scale=F32(0.2), zero_point=7),
    "int2": QuantizationParams("int2", scale=F32(1.1)),
    "uint2": QuantizationParams("uint2", scale=F32(1.1), zero_point=1),
    "channels": QuantizationParams(
        "int8", scale=np.linspace(0.01, 0.03, 7, dtype=F32), zero_point=np.arange(7), axis=1
    ),
    "last axis": QuantizationParams("uint8", scale=np.linspace(0.01, 0.03, 9, dtype=F32), zero_point=90, axis=-1),
    "blocks": QuantizationParams("int4", scale=np.full((5, 7, 3), 0.2, F32), axis=-1, group_size=4),
    "logarithmic": QuantizationParams.logarithmic("int8", F32(2.0)),
    "binary": QuantizationParams.binary(F32(0.7)),
    "mixed": QuantizationParams(lb.QuantizedDType.mixed([1, 2, 4, 8, 16, 4, 8]), scale=F32(0.1), axis=1),
    "byte": params("int8", 0.02, 4),
}


def general_tensor(rng: np.random.Generator, p: QuantizationParams) -> QuantizedTensor:
    return lb.quantize(rng.uniform(-2, 2, (5, 7, 9)).astype(F32), params=p)


@pytest.mark.parametrize("kind", GENERAL)
@pytest.mark.parametrize("op", OPS)
def test_every_kind_of_tensor_meets_every_other(op: str, kind: str) -> None:
    """By the general path: dequantize, compute, quantize."""
    rng = np.random.default_rng(9)
    a = general_tensor(rng, GENERAL[kind])
    for other in GENERAL.values():
        b = general_tensor(rng, other)
        x, y = (reference.dequantize(t.unpack(), t.params) for t in (a, b))
        value = x + y if op == "add" else x * y
        for p in GENERAL.values():
            got = OPS[op][0](a, b, out_params=p)
            np.testing.assert_array_equal(got.unpack(), reference.quantize(value, p.for_compute(F32)))
    single = lb.quantize(F32(0.5), params=params("uint8", 0.01))
    got = OPS[op][0](a, single)
    x = reference.dequantize(a.unpack(), a.params)
    half = reference.dequantize(single.unpack(), single.params)
    np.testing.assert_array_equal(got.unpack(), reference.quantize(x + half if op == "add" else x * half, a.params))
    kept = got.copy()
    assert OPS[op][0](a, single, out=got) is got
    assert got == kept


def test_tensors_of_float64_compute_in_float64() -> None:
    rng = np.random.default_rng(10)
    x, y = rng.standard_normal(1000), rng.standard_normal(1000)
    a, b = lb.quantize(x), lb.quantize(y.astype(F32))
    got = lb.qadd(a, b, out_params=QuantizationParams("int16", scale=0.001))
    value = reference.dequantize(a.unpack(), a.params, np.float64)
    value = value + reference.dequantize(b.unpack(), b.params.for_compute(np.float64), np.float64)
    assert got.params.scale.dtype == np.float64
    np.testing.assert_array_equal(got.unpack(), reference.quantize(value, got.params))


def test_what_cannot_be_is_refused() -> None:
    p = params("int8", 0.02)
    a, b = QuantizedTensor(np.zeros((3, 4), np.int8), p), QuantizedTensor(np.zeros((3, 5), np.int8), p)
    for call in (lb.qadd, lb.qmul):
        with pytest.raises(InvalidProblem, match=r"\(3, 4\) and \(3, 5\) do not broadcast"):
            call(a, b)
        with pytest.raises(InvalidProblem, match="b: ndarray; expected a QuantizedTensor"):
            call(a, a.data)
        with pytest.raises(InvalidProblem, match="a: float"):
            call(1.0, a)
        with pytest.raises(InvalidProblem, match="out_params: dict"):
            call(a, a, out_params={})
        with pytest.raises(InvalidProblem, match=r"out_params: scale: shape \(5,\)"):
            call(a, a, out_params=QuantizationParams("int8", scale=np.ones(5, F32), axis=1))
        with pytest.raises(InvalidProblem, match="out: "):
            call(a, a, out=np.zeros((3, 5), np.int8))
        with pytest.raises(InvalidProblem, match="out: "):
            call(a, a, out=QuantizedTensor(np.zeros((3, 4), np.uint8), params("uint8", 1.0)))
        with pytest.raises(InvalidProblem, match="out: expected a writable"):
            call(a, a, out=np.zeros((4, 3), np.int8).T)
    channels = QuantizedTensor(np.zeros(4, np.int8), QuantizationParams("int8", scale=np.ones(4, F32), axis=0))
    with pytest.raises(InvalidProblem, match="none, and a's do not fit the result"):
        lb.qadd(channels, a)


# ---- bounds -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("threads", THREADS)
def test_relu_and_clamp_of_bytes(isa: str, dtype: str, threads: int) -> None:
    lb.set_num_threads(threads)
    rng = np.random.default_rng(11)
    for n in (*range(70), 127, 1003, 200_001):
        p = random_params(rng, dtype, 0.03)
        codes = random_codes(rng, dtype, n).clip(p.qmin, p.qmax).astype(dtype)
        a = QuantizedTensor(codes, p)
        relu = lb.qrelu(a)
        np.testing.assert_array_equal(relu.data, np.maximum(codes, p.zero_point).astype(dtype))
        assert relu.params is a.params
        lo, hi = sorted(rng.uniform(-5, 5, 2).astype(F32).tolist())
        low, high = reference.quantize(np.array([lo, hi], F32), p)
        np.testing.assert_array_equal(lb.qclamp(a, lo, hi).data, codes.clip(low, high))
        np.testing.assert_array_equal(lb.qclamp(a, lo).data, np.maximum(codes, low))
        np.testing.assert_array_equal(lb.qclamp(a, None, hi).data, np.minimum(codes, high))
        assert lb.qclamp(a) == a
        again = QuantizedTensor(codes.copy(), p)
        assert lb.qrelu(again, out=again) is again
        assert again == relu


def test_large_bounds_written_past_the_caches(isa: str) -> None:
    codes = np.resize(every_code("int8"), (32 << 20) + 777)
    a = QuantizedTensor(codes, params("int8", 0.1, 5))
    assert (lb.qrelu(a, out=np.empty(codes.size + 5, np.int8)[5:]).data == np.maximum(codes, 5)).all()


@pytest.mark.parametrize("kind", sorted(set(GENERAL) - {"binary", "mixed"}))
def test_relu_and_clamp_of_every_kind(kind: str) -> None:
    rng = np.random.default_rng(12)
    a = general_tensor(rng, GENERAL[kind])
    x = reference.dequantize(a.unpack(), a.params)
    np.testing.assert_array_equal(lb.qrelu(a).unpack(), reference.quantize(np.maximum(x, F32(0)), a.params))
    if not a.params.is_logarithmic:
        zero = reference.expand(a.params.zero_point, a.params, a.shape)
        np.testing.assert_array_equal(lb.qrelu(a).unpack(), np.maximum(a.unpack(), zero))
    got = lb.qclamp(a, -0.4, 0.7)
    np.testing.assert_array_equal(got.unpack(), reference.quantize(x.clip(F32(-0.4), F32(0.7)), a.params))
    assert lb.qclamp(a) == a
    assert lb.qrelu(a, out=a) is a


def test_mixed_widths_without_bits_are_bounded() -> None:
    x = np.random.default_rng(13).uniform(-2, 2, (4, 9)).astype(F32)
    a = lb.quantize(x, lb.QuantizedDType.mixed([2, 4, 8, 16]), axis=0)
    np.testing.assert_array_equal(lb.qrelu(a).unpack(), np.maximum(a.unpack(), 0))


def test_bounds_that_cannot_be_are_refused() -> None:
    a = QuantizedTensor(np.zeros(3, np.int8), params("int8", 0.1))
    for lo, hi in ((np.nan, 1.0), (0.0, np.nan), (1.0, 0.5), ("low", None)):
        with pytest.raises(InvalidProblem, match=r"lo|hi"):
            lb.qclamp(a, lo, hi)  # type: ignore[arg-type]
    for kind in ("binary", "mixed"):
        with pytest.raises(Unsupported, match="binary"):
            lb.qrelu(general_tensor(np.random.default_rng(0), GENERAL[kind]))
    with pytest.raises(InvalidProblem, match="a: list"):
        lb.qrelu([1.0])  # type: ignore[arg-type]


# ---- joins --------------------------------------------------------------------------------------------------


def requantized(t: QuantizedTensor, p: QuantizationParams) -> Array:
    return reference.quantize(reference.dequantize(t.unpack(), t.params), p)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_concat_of_bytes(isa: str, axis: int, threads: int) -> None:
    lb.set_num_threads(threads)
    rng = np.random.default_rng(14)
    parts = []
    for i, n in enumerate((3, 1, 70, 0, 33)):
        shape = [37, 19, 23]
        shape[axis] = n
        dtype = BYTES[i % 2]
        p = random_params(rng, dtype, 0.02 * (i + 1))
        parts.append(QuantizedTensor(random_codes(rng, dtype, shape).clip(p.qmin, p.qmax), p))
    for out_params in (params("uint8", 0.05, 99), params("int8", 0.002, 1), params("int8", 0.02, 0, qmin=-3, qmax=5)):
        got = lb.qconcat(parts, axis, out_params=out_params)
        np.testing.assert_array_equal(got.data, np.concatenate([requantized(t, out_params) for t in parts], axis))
        assert got.params == out_params
    got = lb.qconcat(parts, axis)
    np.testing.assert_array_equal(got.data, np.concatenate([requantized(t, parts[0].params) for t in parts], axis))
    assert lb.qconcat(parts, axis, out=got.copy()) == got


def test_every_code_through_a_table(isa: str) -> None:
    rng = np.random.default_rng(15)
    for source in BYTES:
        for n in (256, 1000, 257):
            t = QuantizedTensor(np.resize(every_code(source), n), params(source, 0.03, 7))
            for target in BYTES:
                p = random_params(rng, target, 0.05)
                np.testing.assert_array_equal(lb.qconcat([t], out_params=p).data, requantized(t, p))


def test_concat_of_alike_copies_codes() -> None:
    p = params("int8", 0.02, 3, qmin=-100, qmax=100)
    t = QuantizedTensor(np.int8([[1, 2], [3, 4]]), p)
    assert lb.qconcat([t, t], 1).data.tolist() == [[1, 2, 1, 2], [3, 4, 3, 4]]


@pytest.mark.parametrize("kind", GENERAL)
def test_concat_of_every_kind(kind: str) -> None:
    rng = np.random.default_rng(16)
    p = GENERAL[kind]
    first = general_tensor(rng, p)
    same = lb.qconcat([first, first], 0) if kind != "blocks" else None
    if same is not None:
        np.testing.assert_array_equal(same.unpack(), np.concatenate([first.unpack()] * 2))
        assert same.params == p.for_compute(F32)
    others = [general_tensor(rng, q) for q in GENERAL.values()]
    numbers = np.concatenate([reference.dequantize(t.unpack(), t.params) for t in others])
    if kind != "blocks":
        np.testing.assert_array_equal(lb.qconcat(others, out_params=p).unpack(), reference.quantize(numbers, p))


def test_concat_along_the_channels_joins_their_scales() -> None:
    rng = np.random.default_rng(17)
    x, y = (rng.standard_normal((4, n)).astype(F32) for n in (3, 5))
    for dtype in ("int8", "int4", "uint8"):
        a, b = (lb.quantize(v, dtype, axis=1, scheme="asymmetric") for v in (x, y))
        got = lb.qconcat([a, b], -1)
        np.testing.assert_array_equal(got.unpack(), np.concatenate([a.unpack(), b.unpack()], 1))
        np.testing.assert_array_equal(got.dequantize(), np.concatenate([a.dequantize(), b.dequantize()], 1))


def test_joins_that_cannot_be_are_refused() -> None:
    p = params("int8", 0.02)
    a = QuantizedTensor(np.zeros((3, 4), np.int8), p)
    with pytest.raises(InvalidProblem, match="tensors: none"):
        lb.qconcat([])
    with pytest.raises(InvalidProblem, match=r"tensors\[1\]: ndarray"):
        lb.qconcat([a, a.data])  # type: ignore[list-item]
    with pytest.raises(InvalidProblem, match="axis: 2"):
        lb.qconcat([a, a], 2)
    with pytest.raises(InvalidProblem, match=r"tensors\[1\]: shape \(4, 3\)"):
        lb.qconcat([a, QuantizedTensor(np.zeros((4, 3), np.int8), p)], 0)
    with pytest.raises(InvalidProblem, match="axis: 0"):
        lb.qconcat([QuantizedTensor(np.array(1, np.int8), p)])
    blocks = lb.quantize(np.ones((3, 8), F32), "int4", group_size=4)
    with pytest.raises(InvalidProblem, match=r"out_params: none, and tensors\[0\]'s"):
        lb.qconcat([blocks, blocks])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(("qmin", "qmax"), [(30, 90), (0, 90), (30, 127), (0, 127)], ids=str)
def test_a_concatenation_stays_within_a_narrower_range(dtype: str, qmin: int, qmax: int) -> None:
    """Codes are copied only where all of theirs are codes of the result; otherwise they saturate."""
    full = QuantizationParams(dtype, scale=F32(0.5), zero_point=40, qmin=0, qmax=127)
    narrow = full.replace(qmin=qmin, qmax=qmax)
    codes = np.arange(128).astype(dtype)
    a = QuantizedTensor(codes, full)
    expected = np.clip(codes, qmin, qmax)
    assert lb.qconcat([a, a], out_params=narrow) == QuantizedTensor(np.tile(expected, 2), narrow)
    inside = QuantizedTensor(expected, narrow)
    assert lb.qconcat([inside, a]).data.tolist() == [*expected, *expected]
    assert lb.qconcat([a, inside]).data.tolist() == [*codes, *expected]
