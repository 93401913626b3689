"""Arrays of int8 and uint8 codes in, native kernels, such arrays out: no decisions here."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.numerics.params import QuantizationParams
from lowbit.runtime.native import CODES, core

__all__ = ["ADD", "MUL", "ByteParams", "Window", "average_pool", "byte_params", "clamp", "combine", "lookup",
           "max_pool"]  # fmt: skip

Array = npt.NDArray[Any]
ADD, MUL = 0, 1


class ByteParams(NamedTuple):
    """What one scale for a whole array of codes of a byte comes down to."""

    code: core.Code
    scale: float
    zero: int
    qmin: int
    qmax: int


class Window(NamedTuple):
    """A window that slides over height and width. Images are [count, height, width, depth] in memory."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, left, bottom, right


def byte_params(params: QuantizationParams) -> ByteParams | None:
    """None unless these are linear int8 or uint8 params with one float32 scale."""
    if "bytes" not in params._cache:
        byte = params.dtype.name in ("int8", "uint8") and not params.is_logarithmic
        found = None
        if byte and params.scale.ndim == 0 and params.scale.dtype == np.float32:
            code = CODES[params.dtype.name]
            found = ByteParams(code, float(params.scale), int(params.zero_point), params.qmin, params.qmax)
        params._cache["bytes"] = found
    kept: ByteParams | None = params._cache["bytes"]
    return kept


def _contiguous(codes: Array) -> Array:
    return codes if codes.flags.c_contiguous else np.array(codes, order="C")


def combine(
    op: int, a: Array, pa: ByteParams, b: Array, pb: ByteParams, out: Array, py: ByteParams, shape: tuple[int, ...]
) -> None:
    """out = codes of a + b or a * b, both spread over `shape`. out may be a or b itself."""
    a_shape, b_shape = (1,) * (len(shape) - a.ndim) + a.shape, (1,) * (len(shape) - b.ndim) + b.shape
    if a_shape == b_shape:
        a_shape = b_shape = shape = (a.size,)
    a, b = _contiguous(a), _contiguous(b)
    core.combine(op, a, *pa[:3], a_shape, b, *pb[:3], b_shape, out, *py[:3], py.qmin, py.qmax, shape)


def clamp(p: ByteParams, x: Array, lo: int, hi: int, out: Array) -> None:
    """out = min(max(x, lo), hi). out may be x."""
    core.clamp_codes(p.code, _contiguous(x), lo, hi, out)


def lookup(table: Array | None, x: Array, out: Array, axis: int, start: int) -> None:
    """out[..., start : start + x.shape[axis], ...] = table[x], of bytes; without a table x itself."""
    if x.size == 0:
        return
    inner = math.prod(x.shape[axis + 1 :])
    core.lookup_codes(table, _contiguous(x), x.shape[axis] * inner, out, start * inner, out.shape[axis] * inner)


def max_pool(p: ByteParams, x: Array, window: Window, nhwc: bool, out: Array) -> None:
    core.max_pool(p.code, _contiguous(x), out, _pool_shape(x.shape, window, nhwc))


def average_pool(
    p: ByteParams, x: Array, window: Window, nhwc: bool, count_padding: bool, out: Array, py: ByteParams
) -> None:
    shape = _pool_shape(x.shape, window, nhwc)
    x = _contiguous(x)
    core.average_pool(p.code, x, p.scale, p.zero, py.code, out, *py[1:], count_padding, shape)


def _pool_shape(shape: tuple[int, ...], window: Window, nhwc: bool) -> list[int]:
    images = shape if nhwc else (shape[0] * shape[1], *shape[2:], 1)
    return [*images, *window.kernel, *window.stride, *window.padding]
