"""GPTQ for a layer whose inputs are no longer those of the float model: it makes up for the layers before it as well.

The quantized model gives the layer x where the float model gives y, and the outputs should stay W y:

    E |W y - Q x|^2 + lambda * |W - Q|^2 = tr((V - Q) H (V - Q)^T) + what does not depend on Q,
    H = E[x x^T] + lambda * I,  V = W (E[y x^T] + lambda * I) H^-1 = W + W (E[y x^T] - E[x x^T]) H^-1

So Q is V rounded by GPTQ with the same H. Rounding V one input after the other, each time with the best values for the
inputs that are left, is what Qronos does: its first step and its diffusion follow from completing the square above.
lambda is GPTQ's damping, which also keeps V near W in directions that few rows of x have. A `strength` below 1 takes
that part of the correction alone: moments of few rows overstate how x determines y.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit.algorithms.gptq import DAMPING, Factor, factored, solve
from lowbit.algorithms.grid import Grid, matrix
from lowbit.numerics.dtypes import Array, DTypeLike
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime.solve import feed_back_errors, product_in_order


def gptq_sequential(
    weight: Any,
    gram: Any,
    cross: Any,
    dtype: DTypeLike = "int4",
    *,
    scheme: str = "symmetric",
    group_size: int | None = None,
    scale_dtype: str = "float32",
    bits: int | None = None,
    damping: float = DAMPING,
    refit: bool = True,
    strength: float = 0.5,
) -> QuantizedTensor:
    """A matrix [outputs, inputs] whose outputs for the quantized model's inputs are near the float model's.

    gram: E[x x^T] of the quantized model's inputs x. cross: E[y x^T] with y the float model's: `Moments.gram()` and
    `Moments.cross()` of moments with cross=True. strength: how much of the correction is taken, 0 (`gptq`) to 1. Half
    of it is safe with few rows and with tokens, of which neighbours are alike; with many independent rows all of it is
    best.

    Cost: as `gptq`, and 3 * outputs * inputs^2. Memory: as `gptq`, and 12 bytes per element of `gram`.

    >>> rng = np.random.default_rng(0)
    >>> y, w = rng.standard_normal((512, 16)) @ rng.standard_normal((16, 16)), rng.standard_normal((4, 16))
    >>> x = 0.8 * y + 0.1 * rng.standard_normal((512, 16))
    >>> from lowbit.algorithms import gptq
    >>> made = gptq(w, x.T @ x / 512), gptq_sequential(w, x.T @ x / 512, y.T @ x / 512)
    >>> error = [np.square(y @ w.T - x @ q.dequantize().T).sum() for q in made]
    >>> bool(error[1] < 0.5 * error[0])
    True
    """
    grid, w = Grid.of(dtype, scheme, group_size, scale_dtype, bits), matrix(weight)
    factor = factored(gram, w.shape[1], damping)
    return solve(corrected(w, factor, cross, strength), grid, factor, refit=refit)


def corrected(w: Array, factor: Factor, cross: Any, strength: float) -> Array:
    """The weights V that give the outputs of W for the float model's inputs best, float32 [outputs, inputs].

    factor: of E[x x^T]. Weights are returned to the bit where `cross` is E[x x^T] itself.
    """
    if not isinstance(strength, int | float) or not 0 <= strength <= 1:
        raise InvalidProblem(f"strength: {strength!r}; expected a number from 0 to 1")
    inputs = w.shape[1]
    drift = np.array(cross, np.float64, order="C")
    if drift.shape != (inputs, inputs) or not np.isfinite(drift).all():
        bad = f"shape {drift.shape}" if drift.shape != (inputs, inputs) else "NaN or Inf"
        raise InvalidProblem(f"cross: {bad}; expected finite moments of shape {(inputs, inputs)}")
    drift[np.arange(inputs), np.arange(inputs)] += factor.added  # as in H: equal moments then have no drift at all
    drift -= factor.hessian
    moved = product_in_order(w, np.ascontiguousarray(drift, np.float32))
    found: Array = w + np.float32(strength) * divided(moved, factor)
    return found


def divided(rows: Array, factor: Factor) -> Array:
    """rows H^-1, float32: with H = T D T^T in the order of the factor, T unit upper triangular, two substitutions."""
    order = factor.order
    # v T^T = rows, with all inputs reversed: T^T reversed is unit upper triangular, as the kernel needs.
    backwards, turned = order[::-1], np.ascontiguousarray(factor.t.T[::-1, ::-1])
    v = feed_back_errors(np.ascontiguousarray(rows[:, backwards]), turned, None)[:, ::-1]
    found = np.empty_like(rows)
    found[:, order] = feed_back_errors(np.ascontiguousarray(v / factor.pivots.astype(np.float32)), factor.t, None)
    return found
