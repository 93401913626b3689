"""Scales fitted to codes by least squares, with the error of the outputs as what counts.

    tr(E H E^T) per row, E = w - sum over groups g of s_g * p_g,  is least in s_g, the others fixed, where
    s_g = s_g + (p_g^T H E) / (p_g^T H p_g)

Groups take turns. Each takes the nearest scale that its type holds: the error is a parabola, and the scale before was
one of these, so it never rises.
"""

from __future__ import annotations

import numpy as np

from lowbit.algorithms.grid import Grid
from lowbit.numerics.dtypes import Array
from lowbit.numerics.ranges import held
from lowbit.runtime.solve import product_in_order

_SWEEPS = 4
_NBYTES = 64 << 20  # of the products of groups that are held at once
_LEAST_ROWS = 32  # as many as a tile of the product has


def refitted(w: Array, p: Array, scale: Array, grid: Grid, hessian: Array) -> Array:
    """The scales [rows, groups], float32, of steps p with which the outputs' error is least.

    Cost: rows * inputs^2 * 3 / 2 multiplications. Memory: 4 bytes per element of `hessian`, and 64 MiB.
    """
    h = np.empty(hessian.shape, np.float32)
    # A power of two is taken out of the moments, so that float32 holds their products.
    np.ldexp(hessian, -int(np.frexp(np.diagonal(hessian).max())[1]), out=h, casting="same_kind")
    found = np.empty(scale.shape, np.float32)
    step = max(_LEAST_ROWS, _NBYTES // (8 * max(scale.shape[1] ** 2, w.shape[1])))
    for at in range(0, len(w), step):
        rows = slice(at, at + step)
        found[rows] = _refitted(w[rows], p[rows], scale[rows], grid, h)
    return found


def _refitted(w: Array, p: Array, scale: Array, grid: Grid, h: Array) -> Array:
    inputs = w.shape[1]
    size, groups = grid.size(inputs), scale.shape[1]
    starts = np.arange(0, inputs, size)
    spread = np.repeat(scale, size, axis=1)[:, :inputs]
    gradient = product_in_order(w - spread * p, h) * p  # summed over a group: p_g^T H E
    slope = np.add.reduceat(gradient, starts, axis=1).astype(np.float64)
    curvature = np.empty((groups, len(w), groups))  # p_g^T H p_h
    for g, start in enumerate(starts):
        own = slice(start, start + size)
        product = product_in_order(np.ascontiguousarray(p[:, own]), np.ascontiguousarray(h[own, start:]))
        product *= p[:, start:]
        curvature[g, :, g:] = np.add.reduceat(product, starts[g:] - start, axis=1)
        curvature[g, :, :g] = curvature[:g, :, g].T
    found = scale.astype(np.float64)
    for _ in range(_SWEEPS):
        for g in range(groups):
            steepness = curvature[g, :, g]
            step = np.divide(slope[:, g], steepness, out=np.zeros(len(w)), where=steepness > 0)
            stored = held(found[:, g] + step, grid.scale_dtype).astype(np.float64)
            change = stored - found[:, g]
            found[:, g] = stored
            slope -= change[:, None] * curvature[g]
    return found.astype(np.float32)
