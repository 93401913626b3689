"""GPTQ: rounding one input after the other, each to what makes up best for the errors of those before it.

    error of the outputs = tr(E H E^T),  E = W - W_q,  H = E[x x^T] + damping * mean(diag H) * I
                         = sum over rows and inputs j of R_jj^2 * (v_j - s_j * p_j)^2,  H = R R^T, R upper triangular,
    v_j = w_j + sum over i < j of e_i * R_ij / R_jj,  p_j = clamp(rne(v_j / s_j), qmin - z_j, qmax - z_j)

The inputs are taken in descending order of diag H, so that the largest errors are made up for by all the others. Scales
and zero points are those of `weighted`, chosen for the groups as they are stored: the result needs no index of groups.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowbit.algorithms.grid import Grid, matrix, moments_of
from lowbit.algorithms.refit import refitted
from lowbit.algorithms.rounding import best_scales
from lowbit.numerics.dtypes import Array, DTypeLike
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime.solve import Scales, factor_cholesky, feed_back_errors

DAMPING = 0.01


class Factor(NamedTuple):
    """What the inputs of a layer contribute: computed once, used for all rows of all weights that read them."""

    hessian: Array  # float64 [inputs, inputs], damped
    order: Array  # in which the inputs are rounded
    t: Array  # float32 [inputs, inputs]: R_ij / R_jj in that order
    pivots: Array  # float64 [inputs]: R_jj^2 in that order
    added: float  # to the diagonal, as damping

    @property
    def diagonal(self) -> Array:
        return np.diagonal(self.hessian)


def gptq(
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
    """A matrix [outputs, inputs] with the least error of its outputs that one pass of rounding with feedback finds.

    gram: E[x x^T] of the inputs, [inputs, inputs], such as `Moments.gram()`. damping: what is added to its diagonal, as
    a fraction of the mean of the diagonal. refit: fit the scales to the codes by least squares, and keep those
    that lower the error.

    Cost: inputs^3 / 3 multiplications for the factor and outputs * inputs^2 for the rounding. Memory: 24 bytes per
    element of `gram`.

    >>> rng = np.random.default_rng(0)
    >>> x, w = rng.standard_normal((512, 16)) @ rng.standard_normal((16, 16)), rng.standard_normal((4, 16))
    >>> from lowbit.algorithms import rtn
    >>> error = [np.square(x @ (w - q(w).dequantize()).T).sum() for q in (rtn, lambda w: gptq(w, x.T @ x / 512))]
    >>> bool(error[1] < 0.7 * error[0])
    True
    """
    grid, w = Grid.of(dtype, scheme, group_size, scale_dtype, bits), matrix(weight)
    return solve(w, grid, factored(gram, w.shape[1], damping), refit=refit)


def factored(gram: Any, inputs: int, damping: float = DAMPING, *, overwrite: bool = False) -> Factor:
    """The factor of a Gram matrix. An input that is always 0 has an arbitrary error, and gets the mean's weight.

    overwrite: the memory of a float64 matrix becomes that of the damped one.
    """
    if not isinstance(damping, int | float) or not 0 < damping < float("inf"):
        raise InvalidProblem(f"damping: {damping!r}; expected a positive number")
    h = moments_of(gram, (inputs, inputs), "gram", copied=not overwrite)
    mean = float(np.diagonal(h).mean()) or 1.0
    added = damping * mean
    h[np.arange(inputs), np.arange(inputs)] += added
    order = np.argsort(-np.diagonal(h), kind="stable")
    # R R^T = H with R upper triangular is L L^T of the reversed matrix, reversed.
    backwards = order[::-1]
    try:
        r = factor_cholesky(h[np.ix_(backwards, backwards)], overwrite=True)[::-1, ::-1]
    except InvalidProblem:
        raise InvalidProblem(
            f"gram: not positive definite with damping={damping:g}; expected E[x x^T], or more damping"
        ) from None
    pivots = np.diagonal(r).copy()
    t = np.empty(r.shape, np.float32)
    np.divide(r, pivots, out=t, casting="same_kind")
    return Factor(h, order, t, np.square(pivots), added)


def solve(w: Array, grid: Grid, factor: Factor, *, refit: bool = True, scales: Scales | None = None) -> QuantizedTensor:
    """Rows of a weight, rounded with feedback; `scales` default to those of least weighted error."""
    scales = best_scales(w, grid, factor.diagonal) if scales is None else scales
    p = rounded(w, grid, factor, scales)
    scale = refitted(w, p, scales.scale, grid, factor.hessian) if refit else scales.scale
    return grid.tensor(p, scale, scales.zero_point)


def rounded(w: Array, grid: Grid, factor: Factor, scales: Scales) -> Array:
    """The steps p of each weight."""
    order = factor.order
    steps = grid.steps(scales.scale, scales.zero_point, order, inputs=w.shape[1])
    p = np.empty_like(w)
    p[:, order] = feed_back_errors(np.ascontiguousarray(w[:, order]), factor.t, steps)
    return p
