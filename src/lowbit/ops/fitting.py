"""int8 weights whose products fit 16 bits two by two, or four by four, at the price of slightly larger steps.

CPUs without VNNI have one fast instruction for products of unsigned and signed bytes, `vpmaddubsw`, which adds two
neighbouring products in 16 bits: 255 * (127 + 127) does not fit, and the sum is cut off without a word. The largest
that fits is 255 * 128. So if no two codes that meet in one instruction add up to more than 128, every CPU gives the
exact sum, and lowbit's own kernels may use the instruction. If no four do, they add two such sums before they widen
them, and save a multiplication in four. Halving all codes (7 bits) would do for two and costs 6 dB; here a channel's
scale grows only as far as its own neighbours need: for weights of a bell shape 2 to 3 dB for two and 5 for four, with
heavy tails 1 and 3, for evenly spread ones up to 6 and 10.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.conv_paths import line_of
from lowbit.ops.quantize import quantize
from lowbit.runtime.arrays import Array
from lowbit.runtime.native import core

LARGEST_SUM = 128  # 255 * 128 < 2^15 <= 255 * 129
_STEP = np.float32(1.0005)
_AT_ONCE = 1 << 22  # codes that are looked at together
_ISAS = ("avx2",)  # where lowbit's kernels have faster instructions for such weights

Floats = npt.NDArray[np.float32]
Products = Literal[1, 2, 4]


def unsaturated(rows: Array, scale: Floats, products: Products = 2) -> Floats:
    """Scales, none smaller than those given, by which no codes of a row that are added in 16 bits exceed 128.

    rows: [channels, inputs] in the order in which they are multiplied. scale: one for each row. products: how many are
    added there.

    >>> w = np.float32([[1.0, 1.0, 0.0], [1.0, -1.0, 1.0]])
    >>> unsaturated(w, np.float32([1 / 127, 1 / 127])).round(5)
    array([0.01562, 0.00787], dtype=float32)
    """
    fitted = [scale[:0]]
    at_once = max(1, _AT_ONCE // max(1, rows.shape[1]))
    for first in range(0, len(rows), at_once):
        part = np.asarray(rows[first : first + at_once], np.float32)
        found = np.maximum(scale[first : first + at_once], sums_of_codes(part, products) / np.float32(LARGEST_SUM))
        found = found.astype(np.float32)
        over = np.arange(len(part)) if products > 1 else np.arange(0)
        while over.size:  # several codes may all have been rounded up
            over = over[sums_of_codes(np.rint(part[over] / found[over, None]), products) > LARGEST_SUM]
            found[over] *= _STEP
        fitted.append(found)
    return np.concatenate(fitted)


def sums_of_codes(rows: Array, products: Products) -> Array:
    """Of each row, the greatest sum of those that are added in 16 bits, positive or negative ones alone.

    Two are neighbours. Four are two neighbours, and the two that come four places after.

    >>> codes = np.int64([[1, 2, -3, -4, 5, 6, -7, 8]])
    >>> sums_of_codes(codes, 2), sums_of_codes(codes, 4)
    (array([11]), array([14]))
    """
    count = len(rows)
    if products == 1 or not rows.size:
        return np.zeros(count, rows.dtype)
    whole = np.pad(rows, ((0, 0), (0, -rows.shape[1] % (2 * products))))
    groups = whole.reshape(count, -1, 2) if products == 2 else np.moveaxis(whole.reshape(count, -1, 2, 2, 2), 3, 2)
    groups = groups.reshape(count, -1, products)
    up, down = (np.maximum(side, 0).sum(axis=-1).max(axis=-1) for side in (groups, -groups))
    greatest: Array = np.maximum(up, down)
    return greatest


def in_conv_order(weight: Array) -> Array:
    """A weight [channels, inputs, ...] as rows with the inputs innermost, as products read it."""
    rows: Array = np.ascontiguousarray(np.moveaxis(weight, 1, -1)).reshape(len(weight), -1)
    return rows


def _as_multiplied(weight: Array) -> Array:
    """The same as lowbit's own products read it: kernel rows of a convolution may be filled up."""
    rows = in_conv_order(weight)
    if weight.ndim != 4:
        return rows
    lines = rows.reshape(len(weight), weight.shape[2], weight.shape[3] * weight.shape[1])
    fill = line_of(lines.shape[1], lines.shape[2], np.zeros(1)) - lines.shape[2]
    return np.pad(lines, ((0, 0), (0, 0), (0, fill))).reshape(len(weight), lines.shape[1] * (lines.shape[2] + fill))


def fit_products(weight: Array, q: QuantizedTensor, products: Products = 2) -> QuantizedTensor:
    """The weight [channels, inputs, ...] of symmetric int8 codes `q` with one scale per channel, anew where products do
    not fit.

    >>> w = np.float32([[1.0, 0.9, 0.1, 0.1], [1.0, -1.0, 0.1, 0.1]])
    >>> fit_products(w, quantize(w, axis=0)).unpack()
    array([[  67,   61,    7,    7],
           [ 127, -127,   13,   13]], dtype=int8)
    """
    if products not in (1, 2, 4):
        raise InvalidProblem(f"fit_products: {products!r}; expected 1, 2 or 4")
    floats = np.asarray(weight, np.float32)
    scale = unsaturated(_as_multiplied(floats), np.asarray(q.params.scale, np.float32), products)
    return q if np.array_equal(scale, q.params.scale) else quantize(floats, params=q.params.replace(scale=scale))


def fastest_fit() -> Products:
    """How many products should fit 16 bits for lowbit's to be fastest on this CPU."""
    return 4 if core.active_isa() in _ISAS else 1
