"""Scales fitted to codes by least squares, with the error of the outputs as what counts.

    tr(E H E^T) per row, E = w - sum over groups g of s_g * p_g,  is least in s_g, the others fixed, where
    s_g = s_g + (p_g^T H E) / (p_g^T H p_g)

Groups take turns. A step is taken only if the scale as stored lowers the error, so that it never rises.
"""

from __future__ import annotations

import numpy as np

from lowbit.algorithms.grid import Grid
from lowbit.algorithms.rounding import held
from lowbit.numerics.dtypes import Array
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE
from lowbit.runtime.solve import product_in_order

_SWEEPS = 4


def refitted(w: Array, p: Array, scale: Array, grid: Grid, hessian: Array) -> Array:
    """The scales [rows, groups], float32, of steps p with which the outputs' error is least.

    Cost: two products of rows * inputs^2. Memory: 8 bytes per weight, and 4 * groups^2 per row.
    """
    inputs = w.shape[1]
    size, groups = grid.size(inputs), scale.shape[1]
    h = np.ascontiguousarray(hessian, np.float32)
    starts = np.arange(0, inputs, size)
    spread = np.repeat(scale, size, axis=1)[:, :inputs]
    gradient = product_in_order(w - spread * p, h) * p  # summed over a group: p_g^T H E
    slope = np.add.reduceat(gradient, starts, axis=1, dtype=np.float64)
    curvature = np.empty((groups, len(w), groups))  # p_g^T H p_h
    for g, start in enumerate(starts):
        rows = slice(start, start + size)
        product = product_in_order(np.ascontiguousarray(p[:, rows]), np.ascontiguousarray(h[rows]))
        curvature[g] = np.add.reduceat(product * p, starts, axis=1, dtype=np.float64)
    found = scale.astype(np.float64)
    for _ in range(_SWEEPS):
        for g in range(groups):
            own = curvature[g, :, g]
            step = np.divide(slope[:, g], own, out=np.zeros(len(w)), where=own > 0)
            stored = held(np.clip(found[:, g] + step, MIN_SCALE, MAX_SCALE), grid.scale_dtype).astype(np.float64)
            change = stored - found[:, g]
            better = change * (own * change - 2 * slope[:, g]) < 0
            change = np.where(better, change, 0.0)
            found[:, g] += change
            slope -= change[:, None] * curvature[g]
    return np.ascontiguousarray(found, np.float32)
