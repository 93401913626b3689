"""AdaRound's objective (Nagel et al. 2020): rounding up or down so that the outputs change least, by local search.

    min over p of tr(E H E^T),  E = W - s * p,  H = E[x x^T],  qmin - z <= p <= qmax - z
    a step of d = +1 or -1 at input j of a row changes it by  s_j^2 * H_jj - 2 * d * s_j * (E H)_j

The objective is quadratic, so H says what a step is worth: neither samples nor a relaxation of the rounding to
sigmoids is needed. From GPTQ's rounding, each row takes the step that lowers its error most until none does, then the
best pair of steps; the scales are fitted to the codes by least squares, and so on while that helps. The error is at
most that of GPTQ, and typically 10 to 20 % less.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit.algorithms.gptq import DAMPING, Factor, factored, rounded
from lowbit.algorithms.grid import Grid, matrix
from lowbit.algorithms.refit import refitted
from lowbit.algorithms.rounding import best_scales
from lowbit.numerics.dtypes import Array, DTypeLike
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime.solve import Scales, product_in_order

_ROWS = 64  # at once: their gradients stay in the cache
_LEAST = 1e-6  # of the mean cost of one step, which a gain must exceed: rounding errors do not
_PARTNERS = 4  # 16 lower the error by another 0.5 %
_ROUNDS = 4  # of steps and fits


def adaround(
    weight: Any,
    gram: Any,
    dtype: DTypeLike = "int4",
    *,
    scheme: str = "symmetric",
    group_size: int | None = None,
    scale_dtype: str = "float32",
    bits: int | None = None,
    damping: float = DAMPING,
    refit: bool = True,
) -> QuantizedTensor:
    """A matrix [outputs, inputs] with an error of its outputs that no single step of a weight lowers.

    gram, damping, refit: as of `gptq`.

    Cost: that of `gptq`, and about 50 * outputs * inputs operations per move, of which a row makes inputs / 30. Memory:
    28 bytes per element of `gram`, and 4 kB per input.

    >>> rng = np.random.default_rng(0)
    >>> x, w = rng.standard_normal((512, 16)) @ rng.standard_normal((16, 16)), rng.standard_normal((4, 16))
    >>> from lowbit.algorithms import gptq
    >>> error = [np.square(x @ (w - q(w, x.T @ x / 512).dequantize()).T).sum() for q in (gptq, adaround)]
    >>> bool(error[1] < error[0])
    True
    """
    grid, w = Grid.of(dtype, scheme, group_size, scale_dtype, bits), matrix(weight)
    return solve(w, grid, factored(gram, w.shape[1], damping), refit=refit)


def solve(w: Array, grid: Grid, factor: Factor, *, refit: bool = True) -> QuantizedTensor:
    """Rows of a weight, rounded by local search from GPTQ's rounding on the scales of least weighted error."""
    scales = best_scales(w, grid, factor.diagonal)
    p, scale = rounded(w, grid, factor, scales), scales.scale
    for _ in range(_ROUNDS if refit else 1):
        before = p
        if refit:
            scale = refitted(w, p, scale, grid, factor.hessian)
        p = stepped(w, p, grid, Scales(scale, scales.zero_point, scales.error), factor.hessian)
        if np.array_equal(p, before):
            break
    if refit:
        scale = refitted(w, p, scale, grid, factor.hessian)
    return grid.tensor(p, scale, scales.zero_point)


def stepped(w: Array, p: Array, grid: Grid, scales: Scales, hessian: Array) -> Array:
    """The steps p [rows, inputs] after each row took its best moves until none lowered its error."""
    inputs = w.shape[1]
    size = grid.size(inputs)
    h = np.ascontiguousarray(hessian, np.float32)
    qmin, qmax = grid.codes
    found = np.empty_like(p)
    for first in range(0, len(w), _ROWS):
        rows = slice(first, first + _ROWS)
        s, z = (np.repeat(a[rows], size, axis=1)[:, :inputs] for a in (scales.scale, scales.zero_point))
        gradient = product_in_order(w[rows] - s * p[rows], h)
        block = _Block(p[rows].copy(), gradient.astype(np.float64), s.astype(np.float64), (qmin - z, qmax - z), hessian)
        block.descend(partners=0)
        block.descend(partners=_PARTNERS)
        found[rows] = block.p
    return found


class _Block:
    """Rows of steps, and the gradients E H of their errors."""

    def __init__(self, p: Array, gradient: Array, scale: Array, bounds: tuple[Array, Array], hessian: Array) -> None:
        self.p, self._gradient, self._scale, self._bounds, self._hessian = p, gradient, scale, bounds, hessian
        self._curvature = np.square(scale) * np.diagonal(hessian)

    def descend(self, partners: int) -> None:
        """Make the best move of each row until none lowers its error. partners: of how many inputs that lower it most
        together with another, or raise it least, the best other is looked for; 0: one at a time."""
        least = _LEAST * self._curvature.mean(1)
        active = np.arange(len(self.p))
        while len(active):
            gain, move = self._pairs(active, partners) if partners else self._singles(active)
            lowers = gain > least[active]
            active = active[lowers]
            for inputs, step in move:
                self._take(active, inputs[lowers], step[lowers])

    def _singles(self, rows: Array) -> tuple[Array, list[tuple[Array, Array]]]:
        gain, step = self._gains(rows, self.p[rows], self._gradient[rows])
        best = gain.argmax(1)
        each = np.arange(len(rows))
        return gain[each, best], [(best, step[each, best])]

    def _pairs(self, rows: Array, partners: int) -> tuple[Array, list[tuple[Array, Array]]]:
        """What the best pair of steps of each row lowers its error by, and the inputs and steps of both; 0 for none."""
        p, gradient, scale = self.p[rows], self._gradient[rows], self._scale[rows]
        gain, step = self._gains(rows, p, gradient)
        each = np.arange(len(rows))
        most = np.full(len(rows), -np.inf)
        chosen = np.zeros((2, len(rows)), np.intp)
        steps = np.zeros((2, len(rows)))
        for _ in range(min(partners, p.shape[1])):
            first = gain.argmax(1)
            d = step[each, first]
            after = gradient - (d * scale[each, first])[:, None] * self._hessian[first]
            then, direction = self._gains(rows, p, after)
            then[each, first] = 0.0  # alone
            second = then.argmax(1)
            total = gain[each, first] + then[each, second]
            better = total > most
            most[better] = total[better]
            chosen[:, better] = first[better], second[better]
            steps[:, better] = d[better], np.where(second == first, 0.0, direction[each, second])[better]
            gain[each, first] = -np.inf
        return most, list(zip(chosen, steps, strict=True))

    def _gains(self, rows: Array, p: Array, gradient: Array) -> tuple[Array, Array]:
        """What one step of each input lowers the error of its row by, at most, and which step that is."""
        low, high = (bound[rows] for bound in self._bounds)
        slope = 2 * self._scale[rows] * gradient
        up = np.where(p < high, slope, -np.inf)
        down = np.where(p > low, -slope, -np.inf)
        return np.maximum(up, down) - self._curvature[rows], np.where(up >= down, 1.0, -1.0)

    def _take(self, rows: Array, inputs: Array, step: Array) -> None:
        self.p[rows, inputs] += step.astype(self.p.dtype)
        self._gradient[rows] -= (step * self._scale[rows, inputs])[:, None] * self._hessian[inputs]
