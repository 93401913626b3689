"""Rounding to nearest, on scales of three kinds: of the range, of least squared error, of least weighted error.

    error of a group = sum over its inputs j of d_j * e(w_j) * (w_j - s * p_j)^2,
    p_j = clamp(rne(w_j / s), qmin - z, qmax - z)

`rtn` takes s and z from the range of the group. `mse` searches them with d_j = e = 1, and `weighted` with
d_j = E[x_j^2], the mean square of the input that w_j is multiplied with, and e(w) = sqrt(m + w^2), m the mean square of
the row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit.algorithms.grid import Grid, matrix, moments_of
from lowbit.numerics.dtypes import Array, DTypeLike
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.ranges import held as held
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import quantize
from lowbit.runtime.solve import Emphasis, Scales, search_scales

# Of the scale that the range asks for, which comes first, so that no error is above that of `rtn`. Smaller ones clip
# the largest weights.
_FACTORS = {
    width: np.array([1, *np.linspace(1.04, low, 23)], np.float32) for width, low in ((2, 0.36), (3, 0.5), (4, 0.62))
}
_WIDE = np.array([1, *np.linspace(1.02, 0.8, 11)], np.float32)
_PLAIN = range(-30, 31)  # exponents of weights whose squares can be summed as they are


def rtn(
    weight: Any,
    dtype: DTypeLike = "int4",
    *,
    scheme: str = "symmetric",
    group_size: int | None = None,
    scale_dtype: str = "float32",
    bits: int | None = None,
) -> QuantizedTensor:
    """A matrix [outputs, inputs], rounded to nearest on scales that cover each group's range.

    Symmetric scales divide by -qmin, so that all codes are used. Cost: one pass. Memory: the codes.

    >>> rtn(np.float32([[-8, 3.4, 7]])).unpack()
    array([[-8,  3,  7]], dtype=int8)
    """
    grid, w = Grid.of(dtype, scheme, group_size, scale_dtype, bits), matrix(weight)
    return nearest(w, grid, range_scales(w, grid))


def mse(
    weight: Any,
    dtype: DTypeLike = "int4",
    *,
    scheme: str = "symmetric",
    group_size: int | None = None,
    scale_dtype: str = "float32",
    bits: int | None = None,
) -> QuantizedTensor:
    """A matrix [outputs, inputs], rounded to nearest on the scales of least squared error. Needs no data.

    24 scales are tried per group, and for each the one that fits its codes best in the sense of least squares.
    Symmetric scales are tried with either sign, as -8 is one step more than 7: a scale of -s is stored as a scale of s
    with zero point -1, since (q + 1) * s = -(-q - 1) * s. Asymmetric ones are tried with three zero points.

    Cost: about 100 passes over the weights (150 asymmetric). Memory: the codes, and 12 bytes per group.

    >>> mse(np.float32([[8, -3.4, -7]])).params.zero_point
    array([-1], dtype=int32)
    """
    grid, w = Grid.of(dtype, scheme, group_size, scale_dtype, bits), matrix(weight)
    return nearest(w, grid, best_scales(w, grid))


def weighted(
    weight: Any,
    diagonal: Any,
    dtype: DTypeLike = "int4",
    *,
    scheme: str = "symmetric",
    group_size: int | None = None,
    scale_dtype: str = "float32",
    bits: int | None = None,
) -> QuantizedTensor:
    """A matrix [outputs, inputs], rounded to nearest on scales of least importance-weighted error.

    diagonal: E[x^2] of each input, [inputs], such as `Moments.diagonal()`. Scales are searched as by `mse`; cost and
    memory are the same.

    >>> w = np.float32([[0.9, 4.1, 7.0]])
    >>> round(weighted(w, [0, 1, 0]).dequantize()[0, 1].item(), 6)
    4.1
    """
    grid, w = Grid.of(dtype, scheme, group_size, scale_dtype, bits), matrix(weight)
    return nearest(w, grid, best_scales(w, grid, moments_of(diagonal, w.shape[1:], "diagonal")))


def range_scales(w: Array, grid: Grid) -> Scales:
    """Scales and zero points that cover the range of each group."""
    at = np.arange(0, w.shape[1], grid.size(w.shape[1]))
    lo = np.minimum(np.minimum.reduceat(w, at, axis=1), np.float32(0))
    hi = np.maximum(np.maximum.reduceat(w, at, axis=1), np.float32(0))
    params = QuantizationParams.from_statistics(
        lo[:, 0] if grid.group_size is None else lo,
        hi[:, 0] if grid.group_size is None else hi,
        dtype=grid.dtype,
        scheme=grid.scheme,
        axis=0 if grid.group_size is None else 1,
        group_size=grid.group_size,
        qmin=grid.codes[0],
        qmax=grid.codes[1],
        full_range=grid.full_range,
    )
    scale = held(params.scale.reshape(lo.shape), grid.scale_dtype)
    return Scales(scale, np.ascontiguousarray(params.zero_point.reshape(lo.shape)), np.zeros(lo.shape, np.float32))


def best_scales(w: Array, grid: Grid, importance: Array | None = None) -> Scales:
    """Scales and zero points of least weighted error; importance: of each input, None for `mse`."""
    shift = int(np.frexp(np.abs(w).max())[1])
    if shift in _PLAIN or grid.scale_dtype == "float16":  # which has no scales for such weights
        shift = 0
    scaled = np.ldexp(w, -shift) if shift else w
    weights = emphasis = None
    if importance is not None:
        mean = importance.mean()
        if mean > 0:
            weights = np.maximum(importance / mean, 1e-12).astype(np.float32)
        with np.errstate(over="ignore"):
            floor = (np.square(scaled, dtype=np.float64).sum(1) / w.shape[1]).astype(np.float32)
        emphasis = Emphasis("root", floor)
    factors = _FACTORS.get(grid.width, _WIDE)
    found = search_scales(
        scaled,
        weights,
        emphasis,
        grid.size(w.shape[1]),
        factors,
        grid.codes,
        symmetric=grid.symmetric,
        offsets=grid.offsets,
        scale_dtype=grid.scale_dtype,
    )
    if not shift:
        return found
    # Scaled weights are below 1, and so are all scales but the 1 of a group of zeros, which stays.
    scale = np.where(found.scale == 1, found.scale, np.ldexp(found.scale, shift))
    return found._replace(scale=held(scale, grid.scale_dtype))


def nearest(w: Array, grid: Grid, scales: Scales) -> QuantizedTensor:
    """The matrix rounded to nearest on these scales."""
    return quantize(w, params=grid.params(scales.scale, scales.zero_point))
