"""Depthwise convolution of int8 and uint8 codes, NHWC: each channel with a filter of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem, UnsupportedDType
from lowbit.runtime.native import core

__all__ = ["MAX_TAPS", "PackedDepthwise", "depthwise_conv2d", "prepack_depthwise", "requantized_depthwise_conv2d"]

Array = npt.NDArray[Any]
MAX_TAPS = 33024  # of a kernel whose sums always fit an int32
_INT32 = 2**31 - 1
_SUMS = core.Epilogue(0, None, None, None, None, 0.0, 0.0, 1.0, 0, 0, 0)  # as they are


class PackedDepthwise(NamedTuple):
    """Weights prepared once for one dtype of x, stride and dilation; takes the place of w."""

    native: core.DwconvWeights
    shape: tuple[int, int, int]  # channels, kernel height, kernel width
    x_dtype: np.dtype[Any]
    stride: tuple[int, int]
    dilation: tuple[int, int]


def prepack_depthwise(
    w: Array, w_zero_point: Any = 0, *, x_dtype: npt.DTypeLike = np.uint8, stride: Any = 1, dilation: Any = 1
) -> PackedDepthwise:
    """Weights as the kernels want them. w: int8 or uint8 [channels, 1, kh, kw] (or [channels, kh, kw]), its zero point
    one or one a channel.

    >>> prepack_depthwise(np.zeros((8, 1, 3, 3), np.int8)).shape
    (8, 3, 3)
    """
    w = _codes(w, "w")
    if w.ndim == 4 and w.shape[1] == 1:
        w = w.reshape(w.shape[0], *w.shape[2:])
    if w.ndim != 3 or 0 in w.shape:
        raise InvalidProblem(f"w: shape {w.shape}; expected [channels, 1, kh, kw]")
    channels, kh, kw = w.shape
    if kh * kw > MAX_TAPS:
        raise InvalidProblem(f"w: {kh} x {kw} taps; expected at most {MAX_TAPS}, or sums might not fit int32")
    zero = np.asarray(w_zero_point)
    bounds = np.iinfo(w.dtype)
    if zero.dtype.kind not in "iu" or zero.shape not in ((), (1,), (channels,)):
        raise InvalidProblem(f"w_zero_point: {zero.dtype} {zero.shape}; expected one integer, or {channels}")
    if zero.size and (zero.min() < bounds.min or zero.max() > bounds.max):
        raise InvalidProblem(f"w_zero_point: outside of {w.dtype}")
    zeros = np.ascontiguousarray(np.broadcast_to(zero, channels), np.int32)
    x_type = np.dtype(x_dtype)
    if x_type not in (np.uint8, np.int8):
        raise UnsupportedDType(f"x_dtype: {x_type}; expected int8 or uint8")
    strides, dilations = _pair(stride, "stride", 1), _pair(dilation, "dilation", 1)
    just_one = (dilations[0] * (kh - 1) + 1, dilations[1] * (kw - 1) + 1)
    shape = core.DwconvShape(1, *just_one, channels, kh, kw, *strides, 0, 0, 0, 0, *dilations)
    native = core.DwconvWeights(shape, x_type == np.int8, w, w.dtype == np.int8, zeros)
    return PackedDepthwise(native, (channels, kh, kw), x_type, strides, dilations)


def depthwise_conv2d(
    x: Array, w: Array | PackedDepthwise, x_zero_point: int = 0, w_zero_point: Any = 0, *,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1,
) -> npt.NDArray[np.int32]:  # fmt: skip
    """int32 sums [n, oh, ow, channels] of (x - x_zero_point) * (w - w_zero_point).

    x: int8 or uint8 [n, h, w, channels]; padding of x's zero point: one, (h, w) or (top, left, bottom, right).

    >>> depthwise_conv2d(np.full((1, 2, 2, 1), 5, np.uint8), np.ones((1, 1, 2, 2), np.int8), 3)
    array([[[[8]]]], dtype=int32)
    """
    x, packed, shape = _problem(x, w, x_zero_point, w_zero_point, stride, padding, dilation)
    out = np.empty((x.shape[0], shape.out_height, shape.out_width, x.shape[3]), np.int32)
    packed.native.run(shape, x, int(x_zero_point), _SUMS, out)
    return out


def requantized_depthwise_conv2d(
    x: Array, w: Array | PackedDepthwise, multiplier: Any, x_zero_point: int = 0, w_zero_point: Any = 0, *,
    bias: Array | None = None, out_zero_point: int = 0, out_dtype: npt.DTypeLike = np.uint8,
    qmin: int | None = None, qmax: int | None = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
) -> Array:  # fmt: skip
    """Codes clamp(rne(float32(sum + bias) * multiplier) + out_zero_point, qmin, qmax) of depthwise_conv2d's sums.
    multiplier: float32, one or one a channel; bias: int32 [channels].

    >>> x, w = np.full((1, 2, 2, 1), 5, np.uint8), np.ones((1, 1, 2, 2), np.int8)
    >>> requantized_depthwise_conv2d(x, w, 0.5, 3, out_zero_point=100)
    array([[[[104]]]], dtype=uint8)
    """
    x, packed, shape = _problem(x, w, x_zero_point, w_zero_point, stride, padding, dilation)
    channels, kh, kw = packed.shape
    scale = np.asarray(multiplier, np.float32)
    if scale.shape not in ((), (1,), (channels,)) or not np.isfinite(scale).all():
        raise InvalidProblem(f"multiplier: shape {scale.shape}; expected finite, one or {channels}")
    if bias is not None:
        bias = np.ascontiguousarray(bias)
        if bias.dtype != np.int32 or bias.shape != (channels,):
            raise InvalidProblem(f"bias: {bias.dtype} {bias.shape}; expected int32 [{channels}]")
        most = _INT32 - kh * kw * 255 * 255
        if np.abs(bias.astype(np.int64)).max() > most:
            raise InvalidProblem(f"bias: beyond {most}; the sum might not fit int32")
    dtype = np.dtype(out_dtype)
    if dtype not in (np.uint8, np.int8):
        raise UnsupportedDType(f"out_dtype: {dtype}; expected int8 or uint8")
    bounds = np.iinfo(dtype)
    lo, hi = bounds.min if qmin is None else int(qmin), bounds.max if qmax is None else int(qmax)
    if not bounds.min <= lo <= hi <= bounds.max:
        raise InvalidProblem(f"qmin, qmax: {lo}, {hi}; expected in order and within {dtype}")
    if not bounds.min <= int(out_zero_point) <= bounds.max:
        raise InvalidProblem(f"out_zero_point: {out_zero_point}; expected a {dtype}")
    out = np.empty((x.shape[0], shape.out_height, shape.out_width, channels), dtype)
    result = 4 if dtype == np.int8 else 5
    finish = core.Epilogue(result, scale.reshape(-1), None, None, bias, 0.0, 0.0, 1.0, int(out_zero_point), lo, hi)
    packed.native.run(shape, x, int(x_zero_point), finish, out)
    return out


def _problem(
    x: Array, w: Array | PackedDepthwise, x_zero_point: int, w_zero_point: Any, stride: Any, padding: Any, dilation: Any
) -> tuple[Array, PackedDepthwise, core.DwconvShape]:
    x = _codes(x, "x")
    if x.ndim != 4:
        raise InvalidProblem(f"x: shape {x.shape}; expected [n, h, w, channels]")
    bounds = np.iinfo(x.dtype)
    if not bounds.min <= int(x_zero_point) <= bounds.max:
        raise InvalidProblem(f"x_zero_point: {x_zero_point}; expected a {x.dtype}")
    if not isinstance(w, PackedDepthwise):
        w = prepack_depthwise(w, w_zero_point, x_dtype=x.dtype, stride=stride, dilation=dilation)
    elif (w.x_dtype, w.stride, w.dilation) != (x.dtype, _pair(stride, "stride", 1), _pair(dilation, "dilation", 1)):
        raise InvalidProblem(
            f"w: prepared for {w.x_dtype}, stride {w.stride}, dilation {w.dilation}; not for this call"
        )
    channels, kh, kw = w.shape
    if x.shape[3] != channels:
        raise InvalidProblem(f"x: {x.shape[3]} channels; expected {channels}, as w has")
    top, left, bottom, right = around = _sides(padding)
    extent = (w.dilation[0] * (kh - 1) + 1, w.dilation[1] * (kw - 1) + 1)
    if x.shape[1] + top + bottom < extent[0] or x.shape[2] + left + right < extent[1]:
        raise InvalidProblem(f"x: {x.shape[1]} x {x.shape[2]} and padding {around}; expected at least {extent}")
    batch, height, width, _ = x.shape
    shape = core.DwconvShape(batch, height, width, channels, kh, kw, *w.stride, *around, *w.dilation)
    return x, w, shape


def _codes(a: Array, name: str) -> Array:
    a = np.asarray(a)
    if a.dtype not in (np.uint8, np.int8):
        raise UnsupportedDType(f"{name}: {a.dtype}; expected int8 or uint8")
    return np.ascontiguousarray(a)


def _integers(value: Any, name: str, least: int) -> tuple[int, ...]:
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    if not all(isinstance(v, (int, np.integer)) and least <= v <= _INT32 for v in values):
        raise InvalidProblem(f"{name}: {value!r}; expected integers from {least} to {_INT32}")
    return tuple(int(v) for v in values)


def _pair(value: Any, name: str, least: int) -> tuple[int, int]:
    v = _integers(value, name, least)
    if len(v) not in (1, 2):
        raise InvalidProblem(f"{name}: {value!r}; expected one integer or two")
    return v[0], v[-1]


def _sides(padding: Any) -> tuple[int, int, int, int]:
    v = _integers(padding, "padding", 0)
    if len(v) not in (1, 2, 4):
        raise InvalidProblem(f"padding: {padding!r}; expected one integer, (h, w) or (top, left, bottom, right)")
    return v[0], v[1 % len(v)], v[2 % len(v)], v[3 % len(v)]
