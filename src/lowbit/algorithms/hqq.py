"""HQQ: scales and zero points of least |error|^p, p = 3/4, to which few large errors cost less than to the mean square.

    sum over the weights of a group of |w_j - s * (q_j - z)|^p,   q_j = clamp(rne(w_j / s) + z, qmin, qmax)

is lowered by half-quadratic splitting: errors e are taken apart into large ones, which are let go of, and the rest,

    e_j = shrink(w_j - s * (q_j - z)),  shrink(e) = sign(e) * max(|e| - s * |e / s|^(p - 1) / beta, 0),
    s, z = those of least squares for w_j - e_j on the codes q_j

in turns. Scales are rounded to what their type holds and zero points to integers in every turn, and the pair of the
least |error|^p of all turns is kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowbit.algorithms.grid import Grid, matrix
from lowbit.algorithms.rounding import best_scales, held, nearest
from lowbit.numerics.dtypes import Array, DTypeLike
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE
from lowbit.numerics.tensor import QuantizedTensor

_TURNS = 10
_BETA = 10.0
_BLOCK = 1 << 18  # weights at a time: what a turn reads and writes stays in L2 and L3


def hqq(
    weight: Any,
    dtype: DTypeLike = "uint4",
    *,
    scheme: str = "asymmetric",
    group_size: int | None = None,
    scale_dtype: str = "float32",
    bits: int | None = None,
) -> QuantizedTensor:
    """A matrix [outputs, inputs], rounded to nearest on scales and zero points of least |error|^(3/4). Needs no data.

    It starts from what `mse` finds. Symmetric, the scales alone are fitted.

    Cost: about 300 passes over the weights, in cache. Memory: the codes, and 12 bytes per group.

    >>> w = np.float32([[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16]])
    >>> abs(w - hqq(w).dequantize()).round(1)
    array([[0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 1.]],
          dtype=float32)
    """
    return solve(matrix(weight), Grid.of(dtype, scheme, group_size, scale_dtype, bits))


def solve(w: Array, grid: Grid) -> QuantizedTensor:
    """Rows of a weight on the scales and zero points of least |error|^(3/4)."""
    start = best_scales(w, grid)
    scale, zero_point = start.scale.copy(), start.zero_point.copy()
    step = max(1, _BLOCK // w.shape[1])
    for at in range(0, len(w), step):
        rows = slice(at, at + step)
        scale[rows], zero_point[rows] = _fitted(w[rows], scale[rows], zero_point[rows], grid)
    return nearest(w, grid, start._replace(scale=scale, zero_point=zero_point))


def _fitted(w: Array, scale: Array, zero_point: Array, grid: Grid) -> tuple[Array, Array]:
    """Scales and zero points of rows, found from others."""
    inputs, size = w.shape[1], grid.size(w.shape[1])
    filled = np.zeros((len(w), scale.shape[1] * size), np.float32)
    filled[:, :inputs] = w
    sizes = np.bincount(grid.group_of(inputs)).astype(np.float32)
    groups = _Groups(filled.reshape(len(w), -1, size), sizes, grid)
    z = zero_point.astype(np.float32)
    p = groups.steps(scale, z)
    best_scale, best_zero, least = scale.copy(), z.copy(), groups.cost(scale, p)
    for _ in range(_TURNS):
        scale, z = groups.fitted(groups.small(scale, p), scale, z, p)
        p = groups.steps(scale, z)
        cost = groups.cost(scale, p)
        better = cost < least
        if not better.any():
            break
        best_scale[better], best_zero[better], least[better] = scale[better], z[better], cost[better]
    return best_scale, best_zero.astype(np.int32)


class _Groups(NamedTuple):
    """Weights as [rows, groups, inputs of a group], the last group filled up with zeros, which have no error."""

    w: Array
    sizes: Array  # float32 [groups]: without those zeros
    grid: Grid

    def steps(self, scale: Array, zero_point: Array) -> Array:
        low, high = (np.float32(q) - zero_point for q in self.grid.codes)
        p: Array = np.clip(np.rint(self.w / scale[..., None]), low[..., None], high[..., None])
        return p

    def cost(self, scale: Array, p: Array) -> Array:
        """The sum of |error|^(3/4); square roots are rounded alike on every CPU, and other powers are not."""
        root = np.sqrt(np.abs(self.w - scale[..., None] * p))
        total: Array = (root * np.sqrt(root)).sum(-1)
        return total

    def small(self, scale: Array, p: Array) -> Array:
        """The weights without their large errors."""
        error = (self.w - scale[..., None] * p) / scale[..., None]
        magnitude = np.abs(error)
        with np.errstate(divide="ignore"):
            kept = np.minimum(magnitude, 1 / (np.float32(_BETA) * np.sqrt(np.sqrt(magnitude))))
        made: Array = scale[..., None] * (p + np.copysign(kept, error))
        return made

    def fitted(self, t: Array, scale: Array, zero_point: Array, p: Array) -> tuple[Array, Array]:
        """The scale and the zero point of least squares for t on the codes p + z."""
        sum_p, sum_t = p.sum(-1), t.sum(-1)
        pp, pt, shift = (p * p).sum(-1), (p * t).sum(-1), np.float32(0)
        if not self.grid.symmetric:
            off = p - (sum_p / self.sizes)[..., None]
            slope = _ratio((off * t).sum(-1), (off * p).sum(-1), scale)
            wanted = np.rint(zero_point + (sum_p - sum_t / slope) / self.sizes)
            shift = zero_point - np.clip(wanted, *map(np.float32, self.grid.codes))
        # Of p + shift, in sums that the zeros at the end of the last group do not enter.
        found = _ratio(pt + shift * sum_t, pp + shift * (2 * sum_p + shift * self.sizes), scale)
        return held(np.clip(found, MIN_SCALE, MAX_SCALE), self.grid.scale_dtype), zero_point - shift


def _ratio(a: Array, b: Array, otherwise: Array) -> Array:
    """a / b where both are positive."""
    good = (a > 0) & (b > 0)
    made: Array = np.divide(a, b, out=otherwise.copy(), where=good)
    return made
