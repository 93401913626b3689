"""Arrays of int8 and uint8 codes in, native plans, such arrays out: no decisions here."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.numerics.params import QuantizationParams
from lowbit.runtime.cache import cache_of
from lowbit.runtime.native import CODES, core

Array = npt.NDArray[Any]
ADD, MUL = core.CombineOp.add, core.CombineOp.mul


class Window(NamedTuple):
    """A window that slides over height and width. Images are [count, height, width, depth] in memory."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, left, bottom, right


def byte_params(params: QuantizationParams) -> core.CodeParams | None:
    """The native form of linear int8 or uint8 params with one float32 scale; None for all others."""
    calls = params._calls
    found: tuple[core.CodeParams | None] | None = None if calls is None else calls.get("bytes")
    if found is None:
        made, is_byte = None, params.dtype.name in ("int8", "uint8") and not params.is_logarithmic
        if is_byte and params.scale.ndim == 0 and params.scale.dtype == np.float32:
            scale, zero = float(params.scale), int(params.zero_point)
            made = core.CodeParams(CODES[params.dtype.name], scale, zero, params.qmin, params.qmax)
        found = cache_of(params).put("bytes", (made,))
    return found[0]


def _contiguous(codes: Array) -> Array:
    return codes if codes.flags.c_contiguous else np.array(codes, order="C")


def combine(plan: core.CombinePlan, a: Array, b: Array, out: Array) -> None:
    """out = codes of a + b or a * b, both broadcast to the shape of out, which may be a or b itself."""
    plan.run(_contiguous(a), _contiguous(b), out)


def clamp(p: core.CodeParams, x: Array, lo: int, hi: int, out: Array) -> None:
    """out = min(max(x, lo), hi). out may be x."""
    core.clamp_codes(p.code, _contiguous(x), lo, hi, out)


def lookup(table: Array | None, x: Array, out: Array, axis: int, start: int) -> None:
    """out[..., start : start + x.shape[axis], ...] = table[x], of bytes; without a table x itself."""
    if x.size == 0:
        return
    inner = math.prod(x.shape[axis + 1 :])
    core.lookup_codes(table, _contiguous(x), x.shape[axis] * inner, out, start * inner, out.shape[axis] * inner)


def max_pool(p: core.CodeParams, x: Array, window: Window, nhwc: bool, out: Array) -> None:
    core.MaxPoolPlan(native_window(x.shape, window, nhwc), p.code).run(_contiguous(x), out)


def average_pool(
    x: Array, p: core.CodeParams, window: core.Window, count_padding: bool, out: Array, py: core.CodeParams
) -> None:
    core.AveragePoolPlan(window, p, py, count_padding).run(_contiguous(x), out)


def native_window(shape: tuple[int, ...], window: Window, nhwc: bool) -> core.Window:
    """The window over images of this shape; channels first, every channel is an image of depth 1."""
    images = shape if nhwc else (shape[0] * shape[1], *shape[2:], 1)
    return core.Window(images, window.kernel, window.stride, window.padding)
