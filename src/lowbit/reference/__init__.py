"""The numerical contract in plain NumPy. Every kernel gives the same bits as this page.

x input, s scale, z zero point, [qmin, qmax] codes, rne round half to even. The arithmetic runs in f32 for
f16, bf16 and f32 data, in f64 for f64 data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import Array
from lowbit.numerics.granularity import Granularity, Kind
from lowbit.numerics.granularity import spread as spread
from lowbit.numerics.logarithm import log_tables
from lowbit.numerics.packing import mixed_channels
from lowbit.numerics.params import QuantizationParams


def compute_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """f64 for f64, f32 for everything narrower."""
    return np.dtype(np.float64 if np.dtype(dtype) == np.float64 else np.float32)


def widen(x: Array) -> Array:
    """x in its compute type; exact."""
    return x.astype(compute_dtype(x.dtype), copy=False)


def quantize_affine(x: Array, s: Array, z: Array, qmin: int, qmax: int) -> Array:
    """q = int(clamp(rne(x / s), qmin - z, qmax - z)) + z. NaN gives qmin, ±Inf saturate."""
    with np.errstate(all="ignore"):
        steps = np.rint(x / s)
    low = (qmin - z).astype(x.dtype)
    clamped = np.minimum(np.where(np.isnan(steps), low, np.maximum(steps, low)), (qmax - z).astype(x.dtype))
    codes: Array = clamped.astype(np.int32) + z
    return codes


def dequantize_affine(q: Array, s: Array, z: Array) -> Array:
    """y = float(q - z) * s, the subtraction in integers."""
    return (q.astype(np.int32) - z).astype(s.dtype) * s


def ste_mask(x: Array, s: Array, z: Array, qmin: int, qmax: int) -> npt.NDArray[np.bool_]:
    """qmin <= rne(x / s) + z <= qmax, on the unclamped value; False for NaN and ±Inf."""
    with np.errstate(all="ignore"):
        steps = np.rint(x / s)
    return (steps >= (qmin - z).astype(x.dtype)) & (steps <= (qmax - z).astype(x.dtype))


def quantize_binary(x: Array) -> Array:
    """1 where x > 0, else 0; NaN gives 0."""
    return (x > 0).astype(np.int32)


def quantize_log(x: Array, s: Array, levels: int, steps_per_octave: float) -> Array:
    """sign(x) * m, m the magnitude nearest to |x| / s in the log domain, ties to even; NaN gives -levels."""
    thresholds, _ = log_tables(levels, steps_per_octave, x.dtype)
    with np.errstate(all="ignore"):
        magnitude = np.searchsorted(thresholds, np.abs(x) / s, side="right").astype(np.int32)
    return np.where(x > 0, magnitude, -magnitude)


def dequantize_log(q: Array, s: Array, levels: int, steps_per_octave: float) -> Array:
    """sign(q) * 2^(-(levels - |q|) / r) * s; 0 for code 0."""
    _, magnitudes = log_tables(levels, steps_per_octave, s.dtype)
    table = np.concatenate([-magnitudes[::-1], np.zeros(1, s.dtype), magnitudes])
    y: Array = table[np.maximum(q.astype(np.int32), -levels) + levels] * s
    return y


def expand(values: Array, params: QuantizationParams, shape: tuple[int, ...]) -> Array:
    return spread(values, params.granularity(shape), shape)


def quantize(x: Array, params: QuantizationParams) -> Array:
    """The codes of x, one an element.

    >>> quantize(np.float32([0.5, 1.5, 2.5, -0.5]), QuantizationParams("int8", scale=1.0, zero_point=1))
    array([1, 3, 3, 1], dtype=int8)
    """
    x = widen(x)
    s = expand(params.scale.astype(x.dtype), params, x.shape)
    if params.dtype.is_mixed:
        return _by_channel(quantize, x, params, x.dtype).astype(params.dtype.code_dtype)
    if params.dtype.is_binary:
        codes = quantize_binary(x)
    elif params.is_logarithmic:
        codes = quantize_log(x, s, params.magnitude_levels, params.steps_per_octave or 1.0)
    else:
        codes = quantize_affine(x, s, expand(params.zero_point, params, x.shape), params.qmin, params.qmax)
    return np.asarray(codes).astype(params.dtype.code_dtype)


def dequantize(codes: Array, params: QuantizationParams, dtype: npt.DTypeLike = np.float32) -> Array:
    """Codes, one an element, back to numbers, narrowed to `dtype` with rne."""
    compute = compute_dtype(dtype)
    s = expand(params.scale.astype(compute), params, codes.shape)
    if params.dtype.is_mixed:
        return _by_channel(lambda row, p: dequantize(row, p, compute), codes, params, compute).astype(dtype)
    if params.dtype.is_binary:
        y = (2 * codes.astype(np.int32) - 1).astype(compute) * s
    elif params.is_logarithmic:
        y = dequantize_log(codes, s, params.magnitude_levels, params.steps_per_octave or 1.0)
    else:
        y = dequantize_affine(codes, s, expand(params.zero_point, params, codes.shape))
    with np.errstate(over="ignore"):
        return np.asarray(y).astype(dtype)


def fake_quantize(x: Array, s: Array, z: Array, qmin: int, qmax: int, g: Granularity) -> Array:
    """dequantize(quantize(x)), except that NaN stays NaN; narrowed to x's type.

    >>> from lowbit.numerics.granularity import granularity_of
    >>> fake_quantize(np.float32([0.3, 9.0]), np.float32(0.5), np.int32(0), -2, 2, granularity_of((2,), None, None))
    array([0.5, 1. ], dtype=float32)
    """
    wide = widen(x)
    s, z = (spread(v, g, x.shape) for v in (s.astype(wide.dtype), z))
    y = dequantize_affine(quantize_affine(wide, s, z, qmin, qmax), s, z)
    with np.errstate(over="ignore"):
        return np.asarray(np.where(np.isnan(wide), wide, y)).astype(x.dtype)


def fake_quantize_backward(dy: Array, x: Array, s: Array, z: Array, qmin: int, qmax: int, g: Granularity) -> Array:
    """dx = m ? dy : 0, a select."""
    wide = widen(x)
    s, z = (spread(v, g, x.shape) for v in (s.astype(wide.dtype), z))
    return np.where(ste_mask(wide, s, z, qmin, qmax), dy, np.zeros((), dy.dtype))


def quantize_backward(dy: Array, x: Array, s: Array, z: Array, qmin: int, qmax: int, g: Granularity) -> Array:
    """dx = m ? dy / s : 0, a select; narrowed to dy's type."""
    wide = widen(x)
    s, z = (spread(v, g, x.shape) for v in (s.astype(wide.dtype), z))
    with np.errstate(all="ignore"):
        return np.where(ste_mask(wide, s, z, qmin, qmax), widen(dy) / s, 0).astype(dy.dtype)


def dequantize_backward(dy: Array, s: Array, g: Granularity) -> Array:
    """dq = dy * s; narrowed to dy's type."""
    wide = widen(dy)
    with np.errstate(all="ignore"):
        return np.asarray(wide * spread(s.astype(wide.dtype), g, dy.shape)).astype(dy.dtype)


def fake_quantize_learned_backward(
    dy: Array, x: Array, s: Array, z: Array, qmin: int, qmax: int, g: Granularity
) -> tuple[Array, Array, Array]:
    """(dx, ds, dz) of fake_quantize with a learned scale and zero point.

    ds = sum(dy * t), t = rne(x/s) - x/s inside, qmin - z below, qmax - z above, 0 for NaN. dz = sum(dy * -s) over
    what is below or above. t in the compute type; products and sums in f64; sums narrowed to the compute type.
    """
    wide = widen(x)
    scale, zero = (spread(v, g, x.shape) for v in (s.astype(wide.dtype), z))
    low, high = (qmin - zero).astype(wide.dtype), (qmax - zero).astype(wide.dtype)
    with np.errstate(all="ignore"):
        y = wide / scale
        steps = np.rint(y)
        inside, below, above = (steps >= low) & (steps <= high), steps < low, steps > high
        t = np.where(inside, steps - y, np.where(below, low, np.where(above, high, 0)))
        d = widen(dy).astype(np.float64)
        ds = sum_by_scale(np.where(np.isnan(steps), 0, d * t.astype(np.float64)), g)
        dz = sum_by_scale(np.where(below | above, d * -scale.astype(np.float64), 0), g)
        dx = np.where(inside, dy, np.zeros((), dy.dtype))
        return dx, ds.astype(wide.dtype), dz.astype(wide.dtype)


def value_range(rows: Array) -> tuple[Array, Array]:
    """(min, max) of each row, NaN left out, -0 as +0."""
    rows = widen(rows)
    return np.fmin.reduce(rows, axis=-1) + 0, np.fmax.reduce(rows, axis=-1) + 0


def range_by_scale(x: Array, g: Granularity) -> tuple[Array, Array]:
    """(min, max) of the finite numbers that share each scale, -0 as +0."""
    table = x.reshape(g.outer, g.axis, g.inner)
    if g.kind is Kind.TENSOR:
        lo, hi = x.min(), x.max()
    elif g.kind is Kind.CHANNEL:
        lo, hi = table.min(axis=(0, 2)), table.max(axis=(0, 2))
    else:
        groups = [table[:, first : first + g.block] for first in range(0, g.axis, g.block)]
        lo, hi = (np.stack([f(group, axis=1) for group in groups], axis=1) for f in (np.min, np.max))
    lo, hi = (np.asarray(np.reshape(v, g.scale_shape) + 0) for v in (lo, hi))
    return lo, hi


def sum_rows(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The sum of each row in the one order every kernel adds in: blocks of 4096 elements, eight lanes a block
    (element i to lane i mod 8), lanes folded pairwise, blocks added in order."""
    n = rows.shape[-1]
    padded = np.zeros((*rows.shape[:-1], math.ceil(n / 4096), 4096))
    padded.reshape(*rows.shape[:-1], padded.shape[-2] * 4096)[..., :n] = rows
    blocks = padded.reshape(*padded.shape[:-1], 512, 8)
    lanes = np.zeros((*blocks.shape[:-2], 8))
    for k in range(512):
        lanes += blocks[..., k, :]
    l0, l1, l2, l3, l4, l5, l6, l7 = np.moveaxis(lanes, -1, 0)
    sums = ((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7))
    total = np.zeros(rows.shape[:-1])
    for b in range(sums.shape[-1]):
        total = total + sums[..., b]
    return total


def sum_columns(table: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The sum of each column of [..., rows, columns]: bands of 64 rows from the top, row after row in a band, bands
    added in order."""
    total = np.zeros((*table.shape[:-2], table.shape[-1]))
    for first in range(0, table.shape[-2], 64):
        band = np.zeros_like(total)
        for row in range(first, min(first + 64, table.shape[-2])):
            band = band + table[..., row, :]
        total = total + band
    return total


def sum_by_scale(terms: npt.NDArray[np.float64], g: Granularity) -> npt.NDArray[np.float64]:
    """Sums of the terms that share a scale. With one for all they are one run. Else a run is what lies side by side
    under one index of `outer`, and runs are added in order, also where the axis has one index and runs touch. Where
    neighbours have different scales, columns are added."""
    if terms.size == 0:
        return np.zeros(g.scale_shape)
    table = terms.reshape(g.outer, g.axis, g.inner)
    if g.kind is Kind.TENSOR:
        sums = sum_rows(terms.reshape(-1))
    elif g.kind is Kind.CHANNEL and g.varies:
        sums = sum_columns(table[:, :, 0])
    elif g.kind is Kind.CHANNEL:
        sums = np.zeros(g.axis)
        for o in range(g.outer):
            sums = sums + sum_rows(table[o])
    else:
        starts = range(0, g.axis, g.block)
        parts = [table[:, first : first + g.block] for first in starts]
        found = [sum_columns(part) if g.varies else sum_rows(part[:, :, 0])[:, None] for part in parts]
        sums = np.stack(found, axis=1)
    return np.asarray(sums).reshape(g.scale_shape)


def mean_abs(rows: Array) -> npt.NDArray[np.float64]:
    """mean|x| of each row in f64, summed as in `sum_rows`."""
    return np.asarray(sum_rows(np.abs(rows.astype(np.float64))) / rows.shape[-1])


def _by_channel(
    convert: Callable[[Array, QuantizationParams], Array], array: Array, params: QuantizationParams, compute: Any
) -> Array:
    """An array of a mixed dtype, each channel converted with the params that it has by itself."""
    rows = mixed_channels(array, params.dtype, params.axis)
    scales = np.broadcast_to(params.scale.astype(compute), len(rows))
    made = []
    for c, row in enumerate(rows):
        qmin, qmax = params.channel_range(c)
        own = QuantizationParams(params.dtype.channel(c), "symmetric", np.asarray(scales[c]), qmin=qmin, qmax=qmax)
        made.append(convert(row, own))
    axis = (params.axis or 0) % array.ndim
    moved = (array.shape[axis], *array.shape[:axis], *array.shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(np.stack(made).reshape(moved), 0, axis))
