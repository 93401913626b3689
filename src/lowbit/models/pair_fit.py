"""int8 weights whose products fit 16 bits two by two, at the price of slightly larger steps.

CPUs without VNNI have an instruction, vpmaddubsw, that multiplies 32 codes at once and adds neighbours in 16 bits.
It is exact where 255 * (|w0| + |w1|) <= 32767 for every two neighbours of one sign: a sum of at most 128. Weights of
±127 rarely keep to it, and would need 7 bits to be sure. But what must fit is the largest sum of two neighbours, not
twice the largest weight: with steps of (that sum) / 127 it does. For normal weights these are 1.1 to 1.4 times as large
as steps of max|w| / 127: 1 to 3 dB, where 7 bits would cost 6.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import _core
from lowbit.ops import quantize
from lowbit.tensor import QuantizedTensor

__all__ = ["fit_pairs", "gains_from_pairs"]

Array = npt.NDArray[Any]
MOST = 128  # 255 * 128 < 2^15
_ISAS = ("avx2",)  # where the kernels have a faster instruction for such weights


def gains_from_pairs() -> bool:
    """Whether products of this CPU are faster with such weights."""
    return _core.active_isa() in _ISAS


def fit_pairs(weight: Array, q: QuantizedTensor) -> QuantizedTensor:
    """The weight [out, ...] of symmetric int8 codes `q` with a scale an output, anew where pairs do not fit.

    Neighbours are those of the product: inputs of a matrix; channels of a tap of a convolution [out, in, kh, kw].

    >>> w = np.float32([[1.0, 0.9, 0.1, 0.1], [1.0, -1.0, 0.1, 0.1]])
    >>> fit_pairs(w, quantize(w, axis=0)).unpack()
    array([[  67,   60,    7,    7],
           [ 127, -127,   13,   13]], dtype=int8)
    """
    too_much = _largest_pair(_rows(q.unpack().astype(np.int32))) > MOST
    if not too_much.any():
        return q
    p = q.params
    floats = np.asarray(weight, np.float32)
    steps = _largest_pair(_rows(floats)) / np.float32(MOST - 1)  # rounding adds at most a half to each of two
    scale = np.where(too_much, np.maximum(steps, p.scale), p.scale).astype(np.float32)
    return quantize(floats, params=p.replace(scale=scale))


def _rows(weight: Array) -> Array:
    """[out, depth] in the order of the product."""
    return np.ascontiguousarray(np.moveaxis(weight, 1, -1)).reshape(weight.shape[0], -1)


def _largest_pair(rows: Array) -> Array:
    """Of each row, the largest sum of two neighbours' positive parts, or of their negative parts."""
    even = np.pad(rows, ((0, 0), (0, rows.shape[1] % 2)))
    sums = [np.maximum(sign * even, 0).reshape(len(rows), -1, 2).sum(-1).max(1, initial=0) for sign in (1, -1)]
    return np.asarray(np.maximum(*sums))
