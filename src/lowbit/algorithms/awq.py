"""AWQ: inputs that count more get finer steps, by a scale per input that the layer before takes back.

    y = W x = (W diag(s)) (x / s),  and with Q for W diag(s) the error of the outputs is
    tr((W - Q diag(1/s)) H (W - Q diag(1/s))^T),  H = E[x x^T]

Quantizing W diag(s) gives input j steps that are finer by s_j, as long as the others of its group do not need coarser
ones. Of s_j = x_j^alpha and s_j = x_j^alpha / w_j^(1 - alpha), with x_j = sqrt(E[x_j^2]) and w_j the mean magnitude of
column j relative to its groups, the one of least error over a grid of alpha is taken; alpha = 0 is s = 1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from lowbit.algorithms.grid import Grid, matrix, moments_of
from lowbit.algorithms.rounding import best_scales, nearest
from lowbit.algorithms.smoothquant import bounded, power
from lowbit.numerics.dtypes import Array, DTypeLike
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime.solve import product_in_order

_STEPS = 8  # of alpha, from 0 to 1
_ROWS = 512  # of a weight that alpha is chosen by, spread over all of them
_FLOOR = 2.0**-10  # of the mean: what an input that is hardly ever used counts at least


class Folded(NamedTuple):
    """Weights W diag(s), quantized, and s, which what makes their inputs is divided by."""

    scale: Array  # float32 [inputs]
    weights: tuple[QuantizedTensor, ...]
    alpha: float  # 0: s is 1
    error: float  # of the outputs, relative to the mean square of the outputs


def awq(
    weights: Sequence[Any],
    moments: Any,
    dtype: DTypeLike = "int4",
    *,
    scheme: str = "symmetric",
    group_size: int | None = None,
    scale_dtype: str = "float32",
    bits: int | None = None,
    tied: Any = None,
) -> Folded:
    """Matrices [outputs, inputs] that read the same inputs, on scales of least error of their outputs together.

    moments: E[x x^T] [inputs, inputs], or E[x^2] [inputs], such as `Moments.gram()` and `.diagonal()`. Steps within
    groups are those of `weighted`, which also chooses what to clip. tied: an integer per input; inputs of the same one
    have the same scale, such as those of heads that share a value head.

    Cost: 17 times that of `weighted`, and with E[x x^T] 17 * outputs * inputs^2; alpha is chosen by at most 512 outputs
    per weight. Memory: three copies of the largest weight, and the codes.

    >>> rng = np.random.default_rng(0)
    >>> x, w = rng.standard_normal((512, 32)) * ([9] + 31 * [1]), rng.standard_normal((8, 32))
    >>> made = awq([w], x.T @ x / 512)
    >>> plain = awq([w], x.T @ x / 512, tied=np.zeros(32, int))
    >>> bool((made.scale[1:] < made.scale[0]).all()), made.error < 0.7 * plain.error, plain.alpha
    (True, True, 0.0)
    """
    grid = Grid.of(dtype, scheme, group_size, scale_dtype, bits)
    scale, alpha, error = input_scales(weights, moments, grid, tied=tied)
    made = []
    diagonal = _diagonal(np.asarray(moments, np.float64)) / np.square(scale, dtype=np.float64)
    for weight in weights:
        w = matrix(weight) * scale
        made.append(nearest(w, grid, best_scales(w, grid, diagonal)))
    return Folded(scale, tuple(made), alpha, error)


def input_scales(weights: Sequence[Any], moments: Any, grid: Grid, *, tied: Any = None) -> tuple[Array, float, float]:
    """The scale s of each input, its alpha, and the relative error of the outputs with it, rounded to nearest."""
    ws = [matrix(w) for w in weights]
    if len({w.shape[1] for w in ws}) != 1:
        raise InvalidProblem(f"weights: {[w.shape for w in ws]}; expected matrices that read the same inputs")
    inputs = ws[0].shape[1]
    h = moments_of(moments, (inputs,) if np.ndim(moments) == 1 else (inputs, inputs), "moments")
    mean_of_tied = _mean_of(tied, inputs)
    judged = [np.ascontiguousarray(w[:: -(-len(w) // _ROWS)]) for w in ws]
    hessian = np.ascontiguousarray(h, np.float32)
    best = np.ones(inputs, np.float32), 0.0, float("inf")
    for alpha, scale in _candidates(ws, _diagonal(h), grid, mean_of_tied):
        error = sum(_energy(_error(w, h, scale, grid), hessian) for w in judged)
        if error < best[2]:
            best = scale, alpha, error
    total = sum(_energy(w, hessian) for w in judged)
    return best[0], best[1], best[2] / total if total > 0 else 0.0


def _candidates(
    ws: Sequence[Array], diagonal: Array, grid: Grid, mean_of_tied: Callable[[Array], Array]
) -> Iterator[tuple[float, Array]]:
    """alpha and s, normalized so that the least and the greatest are each other's inverse."""
    x = np.sqrt(_floored(mean_of_tied(diagonal)))
    w = _floored(mean_of_tied(_column_means(ws, grid)))
    yield 0.0, np.ones(len(x), np.float32)
    for step in range(1, _STEPS + 1):
        alpha = step / _STEPS
        raised = power(x, alpha)
        for scale in (raised, raised / power(w, 1 - alpha)) if step < _STEPS else (raised,):
            yield alpha, bounded(scale / np.sqrt(scale.max() * scale.min()))


def _column_means(ws: Sequence[Array], grid: Grid) -> Array:
    """The mean magnitude of each column, each weight relative to the largest of its group."""
    total = np.zeros(ws[0].shape[1])
    for w in ws:
        size, magnitude = grid.size(w.shape[1]), np.abs(w)
        largest = np.maximum.reduceat(magnitude, np.arange(0, w.shape[1], size), axis=1)
        spread = np.repeat(np.where(largest > 0, largest, 1), size, axis=1)[:, : w.shape[1]]
        total += (magnitude / spread).sum(0, dtype=np.float64)
    return total / sum(len(w) for w in ws)


def _error(w: Array, h: Array, scale: Array, grid: Grid) -> Array:
    """W - Q diag(1/s), with Q for W diag(s) rounded to nearest."""
    scaled = w * scale
    found = nearest(scaled, grid, best_scales(scaled, grid, _diagonal(h) / np.square(scale, dtype=np.float64)))
    made: Array = (scaled - found.dequantize()) / scale
    return made


def _energy(rows: Array, hessian: Array) -> float:
    """tr(E H E^T)."""
    if hessian.ndim == 1:
        return float((np.square(rows, dtype=np.float64) * hessian).sum())
    return float((product_in_order(rows, hessian).astype(np.float64) * rows).sum())


def _diagonal(h: Array) -> Array:
    return h if h.ndim == 1 else np.diagonal(h)


def _floored(values: Array) -> Array:
    mean = values.mean()
    found: Array = np.maximum(values, _FLOOR * mean) if mean > 0 else np.ones_like(values)
    return found


def _mean_of(tied: Any, inputs: int) -> Callable[[Array], Array]:
    """What gives all inputs that are tied together the mean of their values."""
    if tied is None:
        return lambda values: values
    index = np.asarray(tied)
    if index.shape != (inputs,) or index.dtype.kind not in "iu" or (index < 0).any():
        raise InvalidProblem(f"tied: {index.dtype} of shape {index.shape}; expected {inputs} natural numbers")
    index = np.unique(index, return_inverse=True)[1]
    counts = np.bincount(index)
    return lambda values: (np.bincount(index, weights=values) / counts)[index]
