"""SmoothQuant: inputs divided and weights multiplied by a scale per input, so that both take 8 bits well.

    y = W x = (W diag(s)) (x / s),  s_j = max|x_j|^alpha / (max over outputs i of |W_ij|)^(1 - alpha)

alpha says how much of the inputs' range moves into the weights: after it, input j reaches max|x_j|^(1 - alpha) *
max|W_j|^(1 - alpha), and column j of the weights max|x_j|^alpha * max|W_j|^alpha. At 0.5 both reach as far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowbit.algorithms.grid import matrix
from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem

_DIGITS = 20  # binary digits of an exponent
LEAST, MOST = 2.0**-24, 2.0**24  # of a scale: what is divided by it keeps its bits in float32 and bfloat16


def smoothquant(weights: Sequence[Any], largest: Any, *, alpha: float = 0.5) -> Array:
    """The scale s of each input of matrices [outputs, inputs] that read the same inputs, float32 [inputs].

    Multiply the columns of the weights by s, and divide what makes the inputs by it. largest: max|x_j| of each, or
    another measure of its reach, such as sqrt(E[x_j^2]). Inputs that are always 0, and columns of zeros, have s = 1.

    Cost: one pass over the weights. Memory: a float32 copy of the largest.

    >>> smoothquant([np.float32([[4, 1], [-1, 1]]), np.float32([[1, 0.5]])], [64, 1])
    array([4., 1.], dtype=float32)
    """
    if not isinstance(alpha, int | float) or not 0 <= alpha <= 1:
        raise InvalidProblem(f"alpha: {alpha!r}; expected a number from 0 to 1")
    reach = column_reach(weights)
    x = magnitudes(largest, len(reach), "largest")
    used = (x > 0) & (reach > 0)
    x, reach = np.where(used, x, 1.0), np.where(used, reach, 1.0)
    return bounded(power(x, alpha) / power(reach, 1 - alpha))


def column_reach(weights: Sequence[Any]) -> Array:
    """The largest magnitude of each column of matrices that read the same inputs, float64."""
    if not weights:
        raise InvalidProblem("weights: none; expected matrices that read the same inputs")
    reach = [np.abs(matrix(w)).max(0).astype(np.float64) for w in weights]
    if len({len(r) for r in reach}) > 1:
        raise InvalidProblem(f"weights: {[len(r) for r in reach]} inputs; expected matrices that read the same inputs")
    found: Array = np.maximum.reduce(reach)
    return found


def magnitudes(values: Any, inputs: int, name: str) -> Array:
    """A float64 copy of numbers that are not negative, one per input; raises for others."""
    found = np.array(values, np.float64, order="C")
    if found.shape != (inputs,):
        raise InvalidProblem(f"{name}: shape {found.shape}; expected {(inputs,)}, as the weights have {inputs} inputs")
    if not np.isfinite(found).all() or (found < 0).any():
        raise InvalidProblem(f"{name}: has NaN, Inf or a negative number; expected magnitudes of finite inputs")
    return found


def power(x: Array, exponent: float) -> Array:
    """x^exponent for 0 <= exponent <= 1, by square roots: these are rounded alike on every CPU, and `np.power` is not.

    The exponent is rounded to 20 binary digits.

    >>> power(np.array([16.0]), 0.75)
    array([8.])
    """
    digits = round(exponent * 2**_DIGITS)
    found, root = x if digits >> _DIGITS else np.ones_like(x), x
    for place in range(_DIGITS - 1, -1, -1):
        root = np.sqrt(root)
        if digits >> place & 1:
            found = found * root
    return found


def bounded(scale: Array) -> Array:
    """Scales within what may divide weights and norms, float32."""
    return np.clip(scale, LEAST, MOST).astype(np.float32)
