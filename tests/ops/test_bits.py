"""The first promise: every kernel, on every ISA and any number of threads, gives the reference's bits."""

from __future__ import annotations

import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import lowbit as lb
from conftest import ISAS, THREADS
from lowbit import QuantizationParams, _core, reference
from lowbit.numerics import packing
from lowbit.numerics.ranges import MAX_SCALE
from lowbit.runtime import native
from lowbit.runtime.arrays import as_float_array
from strategies import FLOATS, LINEAR, Case, cases, hard_values

Array = np.ndarray[Any, Any]


def same(a: Array, b: Array) -> bool:
    """Equal to the bit, whatever the type."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same_floats(a: Array, b: Array) -> bool:
    """Equal to the bit but for the payload of a NaN."""
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=True) and same(np.signbit(a), np.signbit(b))


def all_of(dtype: Any) -> Array:
    """Every value of a 16-bit float type, an odd number of times over so that tails differ."""
    return np.arange(65536, dtype=np.uint16).view(dtype)


def settings_of(dtype: str, count: int, seed: int) -> list[QuantizationParams]:
    """Scales over the whole legal range and between, zero points at the edges and inside."""
    rng = np.random.default_rng(seed)
    probe = QuantizationParams(dtype)
    edge = [2.0**-125, 2.0**-24, 2.0**-14, 0.5, 1.0, 3.0, 65504 / 127, 1e30, MAX_SCALE]
    scales = [*edge, *(2.0 ** rng.uniform(-30, 20, count - len(edge)))]
    zeros = [probe.qmin, probe.qmax, 0, *rng.integers(probe.qmin, probe.qmax + 1, count - 3).tolist()]
    return [QuantizationParams(dtype, "linear", float(s), int(z)) for s, z in zip(scales, zeros, strict=True)]


@pytest.mark.parametrize("code", LINEAR)
@pytest.mark.parametrize("element", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_every_16_bit_float_under_100_settings(element: Any, code: str) -> None:
    x = all_of(element)
    for i, params in enumerate(settings_of(code, 100, seed=len(code))):
        want = reference.quantize(x, params)
        for isa in ISAS:
            _core.set_max_isa(isa)
            lb.set_num_threads(THREADS[i % 4])
            got = lb.quantize(x, params=params)
            assert same(got.unpack(), want), (isa, params)


@pytest.mark.parametrize("element", [np.float16, ml_dtypes.bfloat16], ids=["f16", "bf16"])
def test_every_16_bit_float_in_binary_and_logarithmic_codes(element: Any, isa: str) -> None:
    x = all_of(element)
    every = [QuantizationParams.binary(0.5)]
    for code in ("int8", "int4", "int2", "int16"):
        every += [QuantizationParams.logarithmic(code, s) for s in (1.0, 0.037, 65504.0, 1e-20)]
    every += [QuantizationParams.logarithmic("int4", 1.0, steps_per_octave=r) for r in (0.5, 1.5, 3, 100)]
    for params in every:
        assert same(lb.quantize(x, params=params).unpack(), reference.quantize(x, params)), params


@pytest.mark.parametrize("code", [*LINEAR, "binary"])
def test_every_code_dequantizes_to_the_reference(code: str, isa: str) -> None:
    kind = lb.QuantizedDType.of(code)
    codes = np.arange(kind.qmin, kind.qmax + 1).astype(kind.code_dtype)
    codes = np.concatenate([codes, codes[:1], codes])
    schemes = [QuantizationParams(code, scale=s) for s in (0.03, 2.0**-125, 1e-7, 300.0, 5e33)]
    if code in LINEAR:
        schemes += [QuantizationParams(code, scale=0.1, zero_point=z) for z in (kind.qmin, 1, kind.qmax)]
    if kind.is_signed:
        schemes += [QuantizationParams.logarithmic(code, s) for s in (1.0, 3e-38, 3.3)]
    for params in schemes:
        if params.is_logarithmic:
            codes = np.clip(codes, params.qmin, params.qmax)
        q = lb.QuantizedTensor.from_codes(codes, params)
        for dtype in FLOATS:
            compute = q.params.for_compute(reference.compute_dtype(dtype))
            want = reference.dequantize(codes, compute, dtype)
            assert same(q.dequantize(dtype=dtype), want), (params, dtype)


@pytest.mark.parametrize("isa_name", ISAS)
@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_any_array_any_granularity(isa_name: str, case: Case) -> None:
    _core.set_max_isa(isa_name)
    lb.set_num_threads(case.threads)
    params = case.params.for_compute(reference.compute_dtype(case.x.dtype))
    q = lb.quantize(case.x, params=case.params)
    codes = reference.quantize(case.x, params)
    assert same(q.unpack(), codes)
    assert same(q.data, packing.pack(codes, params.dtype, params.axis))
    for dtype in FLOATS:
        want = reference.dequantize(codes, params.for_compute(reference.compute_dtype(dtype)), dtype)
        assert same_floats(q.dequantize(dtype=dtype), want), dtype


def scopes(x: Array, params: QuantizationParams) -> list[Array]:
    """The elements of each scale, in C order: granularity spelled out with indices."""
    index = np.arange(max(1, params.num_parameter_sets)).reshape(params.scale.shape)
    owner = np.broadcast_to(reference.expand(index, params, x.shape), x.shape)
    return [x[owner == i] for i in range(index.size)]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("element", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("shape", "axis", "block"),
    [
        ((70001,), None, None),
        ((6, 257), 0, None),
        ((6, 257), 1, None),
        ((3, 5, 33), 1, None),
        ((4, 256), -1, 32),  # the fused kernel
        ((16, 96), -1, 7),  # odd groups
        ((5, 130), -1, 32),  # a ragged last group
        ((130, 5), 0, 32),
        ((2, 37, 9), 1, 16),
        ((12, 4100), 0, None),  # rows longer than the fused kernel's scratch
    ],
    ids=str,
)
def test_parameters_from_data(
    isa: str, element: Any, shape: tuple[int, ...], axis: int | None, block: int | None, threads: int
) -> None:
    lb.set_num_threads(threads)
    rng = np.random.default_rng(5)
    x = (rng.standard_normal(shape) * rng.uniform(0.1, 9)).astype(element)
    x.reshape(-1)[:: max(1, x.size // 50)] = 0
    for dtype, scheme in [("int8", "symmetric"), ("uint8", "asymmetric"), ("int4", "symmetric"),
                          ("uint4", "asymmetric"), ("int4", "asymmetric"), ("int2", "symmetric"),
                          ("int16", "symmetric"), ("uint16", "asymmetric"), ("binary", "symmetric"),
                          ("int8", "logarithmic")]:  # fmt: skip
        q = lb.quantize(x, dtype, scheme=scheme, axis=axis, group_size=block)
        assert same(q.unpack(), reference.quantize(x, q.params)), (dtype, scheme)
        parts = scopes(reference.widen(x), q.params)
        lo, hi = (np.array(v) for v in zip(*(reference.value_range(part) for part in parts), strict=True))
        mean = np.array([reference.mean_abs(part[None])[0] for part in parts]) if dtype == "binary" else None
        want = QuantizationParams.from_statistics(lo, hi, dtype=dtype, scheme=scheme, mean_abs=mean, axis=0)
        assert same(q.params.scale.reshape(-1), want.scale), (dtype, scheme)
        assert same(q.params.zero_point.reshape(-1), want.zero_point), (dtype, scheme)
        assert (q.params.qmin, q.params.qmax) == (want.qmin, want.qmax)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("element", FLOATS, ids=str)
def test_mixed_widths(isa: str, element: Any, axis: int) -> None:
    rng = np.random.default_rng(axis)
    x = rng.standard_normal((5, 6, 7)).astype(element)
    widths = [1, 2, 4, 8, 16, 4, 1][: x.shape[axis]]
    q = lb.quantize(x, lb.QuantizedDType.mixed(widths), axis=axis)
    codes = reference.quantize(x, q.params)
    assert same(q.unpack(), codes)
    assert same(q.data, packing.pack(codes, q.dtype, axis))
    assert same(q.dequantize(), reference.dequantize(codes, q.params, q.params.scale.dtype))


def test_f32_ties_in_every_position_of_a_block(isa: str) -> None:
    rng = np.random.default_rng(1)
    for n in (*range(1, 140), 4095, 4097, 32767, 32769, 65537):
        x = hard_values(rng, (n,), 0.03, np.dtype(np.float32))
        params = QuantizationParams("int8", scale=0.03, zero_point=3)
        assert same(lb.quantize(x, params=params).data, reference.quantize(x, params)), n


def test_large_outputs_written_past_the_caches(isa: str) -> None:
    x = hard_values(np.random.default_rng(2), ((1 << 24) + 77,), 0.03, np.dtype(np.float32))
    params = QuantizationParams("int8", scale=0.03, zero_point=-5)
    out = np.empty(x.size + 3, np.int8)[3:]  # misaligned
    assert same(lb.quantize(x, params=params, out=out).data, reference.quantize(x, params))


@pytest.mark.deep
@pytest.mark.parametrize(
    ("dtype", "scale", "zero"), [("int8", 0.03, 3), ("uint8", 1.7, 200), ("int4", 2.0**-40, 0), ("int16", 0.001, -9)]
)
def test_every_f32(dtype: str, scale: float, zero: int) -> None:
    params = QuantizationParams(dtype, scale=scale, zero_point=zero)
    for start in range(0, 1 << 32, 1 << 24):
        x = np.arange(start, start + (1 << 24), dtype=np.uint64).astype(np.uint32).view(np.float32)
        want = reference.quantize(x, params)
        for isa in ISAS:
            _core.set_max_isa(isa)
            assert same(lb.quantize(x, params=params).unpack(), want), (isa, hex(start))


@pytest.mark.deep
def test_more_elements_than_32_bits_count() -> None:
    n = (1 << 31) + 1001
    x = np.empty(n, np.float16)
    piece = hard_values(np.random.default_rng(3), (1 << 20,), 0.03, np.dtype(np.float16))
    for start in range(0, n, piece.size):
        x[start : start + piece.size] = piece[: min(piece.size, n - start)]
    params = QuantizationParams("int4", scale=0.03, zero_point=1)
    q = lb.quantize(x, params=params)
    assert q.size == n
    assert q.nbytes == (n + 1) // 2 + params.for_compute(np.float32).nbytes
    want = packing.pack(reference.quantize(piece, params), params.dtype)
    for start in range(0, n - piece.size, piece.size):
        assert same(q.data[start // 2 : (start + piece.size) // 2], want), start
    tail = (n - 1) // piece.size * piece.size
    assert same(q.data[tail // 2 :], packing.pack(reference.quantize(x[tail:], params), params.dtype))
    y = q.dequantize(dtype=np.float16)
    assert same(y[tail:], reference.dequantize(reference.quantize(x[tail:], params), params, np.float16))


@pytest.mark.parametrize("block", [8, 32, 64, 128, 96])
@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        ("int4", {"full_range": True}), ("int8", {"full_range": True}), ("int4", {"qmin": -4, "qmax": 7}),
        ("int4", {"qmin": -7, "qmax": 3}), ("int8", {"qmin": -20, "qmax": 100}), ("uint4", {"qmin": 2, "qmax": 15}),
        ("uint4", {"scheme": "asymmetric", "qmin": 1, "qmax": 9}),
    ],
)  # fmt: skip
def test_blocks_whose_codes_must_be_clamped(isa: str, dtype: str, options: dict[str, Any], block: int) -> None:
    x = np.random.default_rng(block).standard_normal((9, 384)).astype(np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        q = lb.quantize(x, dtype, group_size=block, **options)
    np.testing.assert_array_equal(q.unpack(), reference.quantize(x, q.params))


# ---- bounds and orders that few inputs tell apart -------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("at", [0, 1, 255, 256, 700])
def test_scales_out_of_bounds_are_found_wherever_they_are(dtype: Any, at: int) -> None:
    element = native.ELEMENTS[np.dtype(dtype)]
    least, most = dtype(2.0**-125), dtype(MAX_SCALE)
    layout, x, zero = (
        _core.Granularity(_core.GranularityKind.channel, 1, 701, 1, 1),
        np.ones(701, dtype),
        np.zeros(701, np.int32),
    )

    def first_bad(value: Any) -> int:
        scale = np.ones(701, dtype)
        scale[at:] = value  # the first one counts
        affine = _core.Affine(_core.Code.s8, scale, zero, -128, 127)
        plan = _core.FakeQuantizePlan(element, _core.ScaledShape([701], [701], layout), -128, 127)
        assert plan.run(x, np.empty_like(x), scale, zero) == affine.first_invalid
        return affine.first_invalid

    for good in (least, most, dtype(1)):
        assert first_bad(good) == -1
    for bad in (np.nextafter(most, dtype(np.inf)), np.nextafter(least, dtype(0)), np.inf, np.nan, 0, -1, -np.inf):
        assert first_bad(bad) == at


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("dtype", [d for d in FLOATS if d != np.float16], ids=str)  # sums of float16 are exact
def test_block_sums_of_mean_abs_are_added_in_order(isa: str, dtype: Any, threads: int) -> None:
    lb.set_num_threads(threads)
    rows = np.zeros((6, 5 * 4096 + 7), dtype)
    # Blocks of one great number, and of small ones whose sums are lost or not, as they come after it or before.
    for row, order in zip(rows, ("gssss", "ssssg", "sgsss", "ssgss", "sggss", "sssgs"), strict=True):
        row[: 5 * 4096 : 4096] = [2.0**53 if block == "g" else 1 for block in order]
    out = np.empty(len(rows))
    x = as_float_array(rows)
    _core.mean_abs(x.array, x.element, rows.shape[1], out)
    assert same(out, reference.mean_abs(rows))
    blocks = rows[:, : 5 * 4096 : 4096].astype(np.float64)
    for other in (np.cumsum(blocks[:, ::-1], 1)[:, -1], blocks[:, 1::2].sum(1) + blocks[:, ::2].sum(1)):
        assert (other / rows.shape[1] != out).any()
