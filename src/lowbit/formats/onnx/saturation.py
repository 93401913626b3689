"""Weights that no x86 CPU can saturate.

Without VNNI, ONNX Runtime multiplies unsigned activations by signed weights with `vpmaddubsw`, which adds two
neighbouring products in 16 bits: 255 * (127 + 127) does not fit, and the sum is cut off without a word. The largest
that fits is 255 * 128. So if no two codes that meet in one instruction add up to more than 128, every CPU gives the
exact sum. Halving all codes (7 bits) would do as well and costs 6 dB; here a channel's scale grows only as far as its
own neighbours need, about a third for weights of a bell shape.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LARGEST_PAIR", "in_conv_order", "unsaturated"]

LARGEST_PAIR = 128  # 255 * 128 < 2^15 <= 255 * 129
_STEP = np.float32(1.0005)

Floats = npt.NDArray[np.float32]


def unsaturated(rows: npt.NDArray[Any], scale: Floats) -> Floats:
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


def in_conv_order(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A convolution's weight [channels, inputs, ...] as rows with the inputs innermost, as the runtime reads it."""
    rows: npt.NDArray[Any] = np.moveaxis(weight, 1, -1).reshape(len(weight), -1)
    return rows
