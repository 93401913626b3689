"""What a setting costs and saves: measured on data, or on a stated distribution; never a made-up constant."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import reference
from lowbit.numerics.dtypes import DTypeLike, QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.granularity import Kind
from lowbit.numerics.metrics import ErrorReport, error_report
from lowbit.numerics.params import QuantizationParams, QuantizationScheme
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.quantize import _DEFAULT_BLOCK, quantize
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise

_DISTRIBUTIONS = ("normal", "uniform", "laplace", "relu")
_CHANNELS, _LENGTH = 64, 1024
_CLIPS = np.linspace(1.0, 0.3, 29)  # shares of the range tried by auto_quantize_tensor
_SAMPLES = 1 << 18  # elements it judges them on
_CHUNK = 1 << 20  # elements whose errors are held in float64 at once


class AccuracyImpact(float):
    """The share of the signal's energy that survives (1 is lossless), with the errors behind it."""

    report: ErrorReport
    data: str  # what it was measured on
    sqnr_db: float
    cosine: float
    max_error: float
    mean_error: float

    def __new__(cls, report: ErrorReport, data: str) -> AccuracyImpact:
        made = super().__new__(cls, report.retention)
        made.report, made.data = report, data
        made.sqnr_db, made.cosine = report.sqnr_db, report.cosine
        made.max_error, made.mean_error = report.max_error, report.mean_error
        return made

    def __repr__(self) -> str:
        return f"AccuracyImpact({float(self):.6f}; {self.report}; on {self.data})"


def create_optimal_params(dtype: DTypeLike = "int8", accuracy_priority: bool = True) -> QuantizationParams:
    """Params to start from, before a range is known: call `from_statistics` on them.

    Accuracy first: one scale per channel (axis 0), or per group of 32 where codes have four bits or fewer.
    Speed first: one scale per tensor. Unsigned dtypes map asymmetrically, signed ones symmetrically.

    >>> create_optimal_params("uint8", accuracy_priority=False)
    QuantizationParams(uint8, asymmetric, scale=1.0, zero_point=0)
    >>> create_optimal_params("int4")
    QuantizationParams(int4, symmetric, scale=1.0, axis=-1, group_size=32)
    """
    kind = QuantizedDType.of(dtype)
    scheme = _first_scheme(kind)
    if accuracy_priority and not kind.is_mixed and kind.bits <= 4:
        return QuantizationParams(kind, scheme, axis=-1, group_size=32)
    return QuantizationParams(kind, scheme, axis=0 if accuracy_priority or kind.is_mixed else None)


def auto_quantize_tensor(
    x: Any, dtype: DTypeLike = "int8", *, axis: int | None = None, group_size: int | None = None, name: str = "x"
) -> QuantizedTensor:
    """x quantized with the mapping and clipping that lose the least, found by trying them on the data.

    Candidates: symmetric and asymmetric mappings, each with its range clipped to shares of the full one, and
    logarithmic codes where the dtype has a sign. The granularity is the caller's. Larger arrays are judged on 2^18 of
    their elements, drawn at random, always the same ones. On all of them, the result never loses more than the mapping
    without clipping.

    >>> x = np.random.default_rng(0).standard_normal(4096).astype(np.float32)
    >>> auto_quantize_tensor(x, "int4").error(x).sqnr_db > quantize(x, "int4").error(x).sqnr_db
    True
    """
    kind = QuantizedDType.of(dtype)
    start = quantize(x, kind, axis=axis, group_size=group_size, scheme=_first_scheme(kind), name=name)
    if kind.is_binary or kind.is_mixed:
        return start
    floats = cpu.as_float_array(x, name)
    noise_of = _judge(floats, start.params)
    best, least = start.params, noise_of(start.params)
    lo, hi, _ = elementwise.value_range(floats, start.params.granularity(floats.shape))
    for scheme in ("symmetric", "asymmetric", "logarithmic") if kind.is_signed else ("asymmetric",):
        base = QuantizationParams(kind, scheme, axis=axis, group_size=group_size)
        for share in _CLIPS.astype(lo.dtype):
            candidate = base.from_statistics(lo * share, hi * share)
            noise = noise_of(candidate)
            if noise < least:
                best, least = candidate, noise
    if best is start.params:
        return start
    found = quantize(x, params=best, name=name)
    everything = floats.array.size <= _SAMPLES
    return found if everything or _noise(floats, found) < _noise(floats, start) else start


def _first_scheme(dtype: QuantizedDType) -> str:
    return "symmetric" if dtype.is_signed or dtype.is_binary else "asymmetric"


def _judge(x: cpu.FloatArray, params: QuantizationParams) -> Callable[[QuantizationParams], float]:
    """A function that gives the energy of the error other params of x make, on a sample of x where it is large."""
    compute = cpu.Element.f64 if x.element is cpu.Element.f64 else cpu.Element.f32
    if x.array.size <= _SAMPLES:
        floats = cpu.FloatArray(x.widened(), compute)
        return lambda p: _noise(floats, quantize(floats.array, params=p))
    at = np.sort(np.random.default_rng(20260101).integers(0, x.array.size, _SAMPLES))
    sample = cpu.FloatArray(cpu.FloatArray(x.array.reshape(-1)[at], x.element).widened(), compute)
    g = params.granularity(x.shape)
    outer, index, inner = np.unravel_index(at, (g.outer, g.axis, g.inner))
    scales = (outer * -(-g.axis // g.block) + index // g.block) * g.inner + inner if g.kind is Kind.GROUP else index

    def noise(p: QuantizationParams) -> float:
        if p.axis is not None:  # as many channels as there are elements
            scale, zero = (v.reshape(-1)[scales] for v in (p.scale, p.zero_point))
            p = p.replace(axis=0, group_size=None, scale=scale, zero_point=zero)
        return _noise(sample, quantize(sample.array, params=p))

    return noise


def _noise(x: cpu.FloatArray, q: QuantizedTensor) -> float:
    """Energy of the error."""
    numbers, y = x.array.reshape(-1), q.dequantize().reshape(-1)
    total = 0.0
    for first in range(0, y.size, _CHUNK):
        piece = cpu.FloatArray(numbers[first : first + _CHUNK], x.element).widened().astype(np.float64)
        piece -= y[first : first + _CHUNK]
        total += float(piece @ piece)
    return total


def estimate_memory_savings(
    dtype: DTypeLike,
    shape: tuple[int, ...] | None = None,
    *,
    axis: int | None = None,
    group_size: int | None = None,
    scheme: str | QuantizationScheme = "linear",
    source: npt.DTypeLike = np.float32,
) -> float:
    """The share of memory saved: 1 less the bytes of what `quantize` makes of an array of this shape and source dtype,
    scales, zero points and padding included, over those of the array. Negative where it grows, 0 where it is empty.
    Without a shape, the limit for a tensor without end: codes, and what each block adds. block_wise without a
    group_size has `quantize`'s.

    >>> estimate_memory_savings("int8"), estimate_memory_savings("binary")
    (0.75, 0.96875)
    >>> round(estimate_memory_savings("int4", (4096, 4096), group_size=32), 4)
    0.8438
    """
    kind, how = QuantizedDType.of(dtype), QuantizationScheme.of(scheme)
    if how is QuantizationScheme.BLOCK_WISE and group_size is None:
        group_size = _DEFAULT_BLOCK
    p = QuantizationParams(kind, how, axis=axis, group_size=group_size)
    before = np.dtype(source).itemsize
    scale = reference.compute_dtype(source).itemsize
    if shape is None:
        bits = sum(kind.widths) / len(kind.widths) if kind.is_mixed else float(kind.bits)
        if p.group_size is not None:
            bits += (8 * scale + (0 if p.is_symmetric else kind.bits)) / p.group_size
        return 1.0 - bits / (8 * before)
    elements = math.prod(shape)
    if not elements:
        return 0.0
    sets = math.prod(p.granularity(tuple(shape)).scale_shape)
    zeros = 0 if p.is_symmetric else -(-sets * kind.bits // 8)
    after = p.codes_nbytes(tuple(shape)) + scale * sets + zeros + len(kind.widths)
    return 1.0 - after / (elements * before)


def estimate_accuracy_impact(
    dtype: DTypeLike,
    scheme: str | QuantizationScheme = "symmetric",
    *,
    distribution: str = "normal",
    axis: int | None = None,
    group_size: int | None = None,
) -> AccuracyImpact:
    """What quantizing would do to data of a stated distribution: it is drawn (65,536 values in 64 channels
    whose spread differs by up to 4 times, always the same ones), quantized and compared.

    distribution: "normal", "uniform", "laplace", or "relu" (normal, negatives cut to 0).

    >>> a, b = estimate_accuracy_impact("int8"), estimate_accuracy_impact("int4")
    >>> a > b > 0
    True
    """
    kind, how = QuantizedDType.of(dtype), QuantizationScheme.of(scheme)
    if how is QuantizationScheme.SYMMETRIC and not (kind.is_signed or kind.is_binary):
        how = QuantizationScheme.LINEAR  # a symmetric unsigned range would clip half of the data
    x = _sample(distribution)
    if kind.is_mixed:
        x = np.ascontiguousarray(np.resize(x, (len(kind.widths), x.size // len(kind.widths))))
    q = quantize(x, kind, scheme=how, axis=axis, group_size=group_size)
    return AccuracyImpact(q.error(x), f"a {distribution} distribution of {x.size} values")


@functools.lru_cache(maxsize=len(_DISTRIBUTIONS))
def _sample(distribution: str) -> npt.NDArray[np.float32]:
    if distribution not in _DISTRIBUTIONS:
        raise InvalidProblem(f"distribution: {distribution!r}; expected one of {', '.join(_DISTRIBUTIONS)}")
    rng = np.random.default_rng(20260101)
    shape = (_CHANNELS, _LENGTH)
    if distribution == "uniform":
        x = rng.uniform(-1, 1, shape)
    elif distribution == "laplace":
        x = rng.laplace(size=shape)
    else:
        x = rng.standard_normal(shape)
        x = np.maximum(x, 0) if distribution == "relu" else x
    spread = 2.0 ** np.linspace(-1, 1, _CHANNELS)[:, None]
    return np.asarray(x * spread, np.float32)


def measure_accuracy_impact(x: Any, params: QuantizationParams) -> AccuracyImpact:
    """What these params do to these numbers: quantized, dequantized, compared.

    >>> x = np.float32([0.1, -0.4, 0.25])
    >>> measure_accuracy_impact(x, QuantizationParams("int8", scale=0.05)).max_error < 1e-7
    True
    """
    array = cpu.as_float_array(x)
    y = quantize(x, params=params).dequantize()
    return AccuracyImpact(error_report(array.widened(), y), f"{y.size} given values")
