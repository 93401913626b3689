"""int8 weights of which no two neighbours can saturate, at the price of slightly larger steps.

CPUs without VNNI have one fast instruction for products of unsigned and signed bytes, `vpmaddubsw`, which adds two
neighbouring products in 16 bits: 255 * (127 + 127) does not fit, and the sum is cut off without a word. The largest
that fits is 255 * 128. So if no two codes that meet in one instruction add up to more than 128, every CPU gives the
exact sum, and lowbit's own kernels may use the instruction. Halving all codes (7 bits) would do as well and costs 6 dB;
here a channel's scale grows only as far as its own neighbours need: 1 to 3 dB for weights of a bell shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import _core
from lowbit.ops.quantize import quantize
from lowbit.tensor import QuantizedTensor

__all__ = ["LARGEST_PAIR", "fit_pairs", "gains_from_pairs", "in_conv_order", "unsaturated"]

LARGEST_PAIR = 128  # 255 * 128 < 2^15 <= 255 * 129
_STEP = np.float32(1.0005)
_ISAS = ("avx2",)  # where lowbit's kernels have a faster instruction for such weights

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]


def unsaturated(rows: Array, scale: Floats) -> Floats:
    """Scales, none smaller than those given, by which no pair of neighbours in a row exceeds 128 in codes.

    rows: [channels, inputs] in the order in which they are multiplied. scale: one for each row.

    >>> w = np.float32([[1.0, 1.0, 0.0], [1.0, -1.0, 1.0]])
    >>> unsaturated(w, np.float32([1 / 127, 1 / 127])).round(5)
    array([0.01562, 0.00787], dtype=float32)
    """
    rows = np.asarray(rows, np.float32)
    whole = rows.shape[1] // 2 * 2
    first, second = rows[:, 0:whole:2], rows[:, 1:whole:2]
    if not whole:
        return scale
    found: Floats = np.maximum(scale, np.abs(first + second).max(axis=1) / np.float32(LARGEST_PAIR)).astype(np.float32)
    over = np.arange(len(rows))
    while over.size:  # two codes may both have been rounded up
        s = found[over, None]
        pairs = np.abs(np.rint(first[over] / s) + np.rint(second[over] / s)).max(axis=1)
        over = over[pairs > LARGEST_PAIR]
        found[over] *= _STEP
    return found


def in_conv_order(weight: Array) -> Array:
    """A weight [channels, inputs, ...] as rows with the inputs innermost, as products read it."""
    rows: Array = np.ascontiguousarray(np.moveaxis(weight, 1, -1)).reshape(len(weight), -1)
    return rows


def fit_pairs(weight: Array, q: QuantizedTensor) -> QuantizedTensor:
    """The weight [channels, inputs, ...] of symmetric int8 codes `q` with a scale a channel, anew where pairs do not
    fit.

    >>> w = np.float32([[1.0, 0.9, 0.1, 0.1], [1.0, -1.0, 0.1, 0.1]])
    >>> fit_pairs(w, quantize(w, axis=0)).unpack()
    array([[  67,   61,    7,    7],
           [ 127, -127,   13,   13]], dtype=int8)
    """
    floats = np.asarray(weight, np.float32)
    scale = unsaturated(in_conv_order(floats), np.asarray(q.params.scale, np.float32))
    return q if np.array_equal(scale, q.params.scale) else quantize(floats, params=q.params.replace(scale=scale))


def gains_from_pairs() -> bool:
    """Whether lowbit's products on this CPU are faster with such weights."""
    return _core.active_isa() in _ISAS
