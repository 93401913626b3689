"""Cross-layer range equalization (Nagel et al. 2019): a channel between two layers is divided by s, then multiplied.

    W_2 f(W_1 x + b_1) = (W_2 S) f(S^-1 (W_1 x + b_1)),  S = diag(s), s > 0,  where f(s y) = s f(y)
    s_i = sqrt(r1_i * r2_i) / r2_i,  r1_i = max |W_1[i, :]|,  r2_i = max |W_2[:, i]|

after which both ranges are sqrt(r1_i * r2_i). f is positively homogeneous: the identity, ReLU, leaky ReLU, and poolings
of them. ReLU6 is not: min(max(y, 0), 6) becomes min(max(y, 0), 6 / s_i) in channel i.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem

_MOST = 60  # the exponent of a scale: float32 has room for weights times it


class Equalized(NamedTuple):
    """Two layers that compute what they did before, and s of the channels between them: f's bounds are divided by s."""

    weight_1: Array
    bias_1: Array | None
    weight_2: Array
    scale: Array  # float32 [channels]


def equalize(
    weight_1: Any, bias_1: Any, weight_2: Any, *, groups: int = 1, powers_of_two: bool = True, name: str = "weight"
) -> Equalized:
    """Two layers whose ranges per channel between them are equal, and that compute the same.

    weight_1: [channels, ...], of a linear layer or a convolution, grouped or not; bias_1: [channels] or None. weight_2:
    [outputs, channels / groups, ...], which reads those channels in `groups`: as many as channels if it is depthwise. A
    linear layer after a flattened image has weight_2 [outputs, channels * positions]: give it as [outputs, channels,
    positions]. powers_of_two: round each s to one. Every product and sum is then the same number times a power of two,
    so that outputs are equal to the bit; ranges differ by a factor of at most 2. False: s as it is, and outputs that
    differ by rounding errors.

    A channel that either layer multiplies with nothing but 0 keeps s = 1. Cost: two passes over the weights.

    >>> made = equalize(np.float32([[8, -2], [1, 1]]), None, np.float32([[0.5, 4]]))
    >>> made.scale, made.weight_1, made.weight_2
    (array([4. , 0.5], dtype=float32), array([[ 2. , -0.5],
           [ 2. ,  2. ]], dtype=float32), array([[2., 2.]], dtype=float32))
    """
    first, second = (np.asarray(w, np.float32) for w in (weight_1, weight_2))
    channels = len(first)
    if second.ndim < 2 or groups < 1 or second.shape[1] * groups != channels or len(second) % groups:
        raise InvalidProblem(
            f"{name}: shapes {first.shape} and {second.shape} in {groups} groups; expected [channels, ...] and "
            f"[outputs, channels / groups, ...]"
        )
    scale = equalizing_scale(row_ranges(first), input_ranges(second, groups), powers_of_two=powers_of_two)
    bias = None if bias_1 is None else np.asarray(bias_1, np.float32) / scale
    return Equalized(first / along(scale, 0, first.ndim), bias, times_inputs(second, scale, groups), scale)


def equalizing_scale(range_1: Array, range_2: Array, *, powers_of_two: bool = True) -> Array:
    """s = sqrt(r1 / r2) of each channel, float32; 1 where a range is 0.

    >>> equalizing_scale(np.float32([16, 3, 0]), np.float32([1, 1, 1]))
    array([4., 2., 1.], dtype=float32)
    """
    ranges = np.asarray([range_1, range_2], np.float64)
    if not np.isfinite(ranges).all():
        raise InvalidProblem("weight: NaN or Inf; weights must be finite")
    used = (ranges > 0).all(0)
    scale = np.sqrt(np.where(used, ranges[0], 1.0) / np.where(used, ranges[1], 1.0))
    if powers_of_two:
        fraction, exponent = np.frexp(scale)  # of which the fraction is at least 1/2 and below 1
        scale = np.ldexp(1.0, exponent - (fraction < np.sqrt(0.5)))
    return np.clip(scale, 2.0**-_MOST, 2.0**_MOST).astype(np.float32)


def row_ranges(weight: Array) -> Array:
    """max |W[i, ...]| of each output channel."""
    found: Array = np.abs(weight).reshape(len(weight), -1).max(1)
    return found


def input_ranges(weight: Array, groups: int = 1) -> Array:
    """max |W[:, i, ...]| of each input channel, of all groups one after the other.

    >>> input_ranges(np.float32([[1, -2], [3, 0]])), input_ranges(np.float32([[1, -2], [3, 0]]), groups=2)
    (array([3., 2.], dtype=float32), array([1., 2., 3., 0.], dtype=float32))
    """
    parts = np.abs(weight).reshape(groups, -1, *weight.shape[1:])
    found: Array = parts.reshape(*parts.shape[:3], -1).max((1, 3)).reshape(-1)
    return found


def times_inputs(weight: Array, scale: Array, groups: int = 1) -> Array:
    """A weight [outputs, channels / groups, ...] for inputs that were divided by `scale` per channel."""
    parts = weight.reshape(groups, -1, *weight.shape[1:])
    own = scale.reshape(groups, 1, -1, *(1 for _ in weight.shape[2:]))
    made: Array = (parts * own).reshape(weight.shape)
    return made


def along(scale: Array, axis: int, ndim: int) -> Array:
    """Scales as an array that broadcasts along an axis."""
    return scale.reshape(*(-1 if a == axis else 1 for a in range(ndim)))
