"""Bias correction (Nagel et al. 2019): the mean of what a quantized weight changes is taken from the bias.

    b_q = b - (W_q - W) E[x]          so that E[W_q x + b_q] = E[W x + b]
    E |(W_q - W) x|^2 = tr(E H E^T),  E = W - W_q,  H = E[x x^T], becomes tr(E C E^T),  C = H - E[x] E[x]^T

Inputs after a ReLU are nowhere negative: most of H is their mean. So where the bias will be corrected, weights are
rounded for the least error under C, the covariance, in the place of H.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.tensor import QuantizedTensor


def bias_correction(weight: Any, q: QuantizedTensor, mean: Any, *, name: str = "weight") -> Array:
    """What to add to a bias, float32 [outputs], so that quantizing the weight leaves the means of the outputs alone.

    weight: [outputs, ...], as q is. mean: E[x] of the inputs [width], such as `Moments.mean()`; of a grouped
    convolution [groups, width]. Cost: one product of the weight with a vector.

    >>> from lowbit.algorithms import rtn
    >>> w = np.float32([[-8, 3.25, 7]])
    >>> bias_correction(w, rtn(w), [1, 2, 3])
    array([0.5], dtype=float32)
    """
    floats = np.asarray(weight, np.float32)
    means = np.atleast_2d(np.asarray(mean, np.float64))
    inputs = floats[:1].size
    if means.shape[1] != inputs or len(floats) % len(means) or floats.shape != tuple(q.shape):
        raise InvalidProblem(
            f"mean: shape {np.shape(mean)}; expected [{inputs}], or [groups, {inputs}], for {name} {floats.shape}"
        )
    if not np.isfinite(means).all():
        raise InvalidProblem("mean: NaN or Inf; expected that of finite rows")
    error = floats.astype(np.float64) - np.asarray(q.dequantize(), np.float64)
    by_group = error.reshape(len(means), -1, inputs)
    shift: Array = (by_group * means[:, None]).sum(-1).reshape(-1).astype(np.float32)
    return shift


def covariance(gram: Any, mean: Any) -> Array:
    """E[x x^T] - E[x] E[x]^T, or of each group where there are several, float64.

    2^-30 of E[x^2] is added to the diagonal, so that rounding errors leave it positive definite for inputs that hardly
    vary.

    >>> covariance([[5, 1], [1, 2]], [2, 1]).round(6)
    array([[ 1., -1.],
           [-1.,  1.]])
    """
    m = np.asarray(mean, np.float64)
    h = np.asarray(gram, np.float64)
    found: Array = h - m[..., :, None] * m[..., None, :]
    np.einsum("...ii->...i", found)[...] += np.einsum("...ii->...i", h) * 2.0**-30
    return found
