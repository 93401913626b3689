"""Pooling of quantized images, without leaving codes where there is a way.

int8 and uint8 tensors with one scale run natively. The greatest code of a window is right for every dtype whose windows
share their params, and so is the integer average for every linear one; those run in NumPy. Any other average takes the
general path: dequantize, add in float64, divide, quantize.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowbit import reference
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.packing import pack
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.conv_geometry import counts, require_layout
from lowbit.ops.operands import codes_for, finished, require_tensor, result_params
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise
from lowbit.runtime.arrays import Array
from lowbit.runtime.elementwise import byte_params
from lowbit.runtime.native import core

_LARGEST = 1 << 23  # places in a window whose codes a 32-bit sum holds


class _Window(NamedTuple):
    """A window that slides over height and width."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]  # top, left, bottom, right
    nhwc: bool

    def native(self, shape: tuple[int, ...]) -> core.Window:
        """The window over images of this shape; channels first, every channel is an image of depth 1."""
        images = shape if self.nhwc else (shape[0] * shape[1], *shape[2:], 1)
        return core.Window(images, self.kernel, self.stride, self.padding)

    def over(self, x: Array, fill: Any) -> Array:
        """x with its windows as two more axes at the end."""
        (top, left, bottom, right), none = self.padding, [(0, 0)]
        before = 1 if self.nhwc else 2  # axes before height and width
        pads = [*none * before, (top, bottom), (left, right), *none * (2 - before)]
        padded = np.pad(x, pads, constant_values=fill)
        view = np.lib.stride_tricks.sliding_window_view(padded, self.kernel, (before, before + 1))
        return view[(slice(None),) * before + tuple(slice(None, None, step) for step in self.stride)]

    def places(self, x: QuantizedTensor, with_padding: bool) -> Array:
        """Places of each window that count, as an array that spreads over the result."""
        one = np.ones((1, *x.shape[1:3], 1) if self.nhwc else (1, 1, *x.shape[2:]), np.int64)
        return np.asarray(self.over(one, int(with_padding)).sum(axis=(-2, -1)))


def qmax_pool2d(
    x: QuantizedTensor,
    kernel: int | tuple[int, int],
    *,
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, ...] = 0,
    layout: str = "NCHW",
    out: QuantizedTensor | Array | None = None,
) -> QuantizedTensor:
    """The greatest element of each window of images x, as codes under x's params. Padding never wins.

    kernel, stride: one size, or (height, width); a stride of None is the kernel's. padding: one size, (height, width),
    or (top, left, bottom, right), each less than the kernel. layout: "NCHW" or "NHWC". out: a tensor, or an array of
    stored codes, to write into.

    >>> import lowbit as lb
    >>> x = lb.quantize(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), params=lb.QuantizationParams("uint8"))
    >>> lb.qmax_pool2d(x, 2).unpack()[0, 0]
    array([[ 5,  7],
           [13, 15]], dtype=uint8)
    """
    window, shape = _window(x, kernel, stride, padding, layout)
    if not _windows_share_params(x, window.nhwc):
        axes = "axis 1 or 2" if window.nhwc else "axis 2 or 3"
        raise Unsupported(
            f"x: scales along {axes} (height, width) or in blocks; the greatest code may not be the greatest number"
        )
    data, p = codes_for(x.params, shape, out), byte_params(x.params)
    if p is not None:
        made = cpu.apart(data, x.data)
        core.MaxPoolPlan(window.native(x.shape), p.code).run(cpu.contiguous(x.data), made)
    else:
        unpacked = x.unpack()
        fill = np.iinfo(unpacked.dtype).min
        found = window.over(unpacked, fill).max(axis=(-2, -1), initial=fill)
        made = pack(np.ascontiguousarray(found), x.dtype, x.params.axis)
    return finished(data, x.params, shape, out, made)


def qavg_pool2d(
    x: QuantizedTensor,
    kernel: int | tuple[int, int],
    *,
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, ...] = 0,
    layout: str = "NCHW",
    count_include_pad: bool = False,
    out_params: QuantizationParams | None = None,
    out: QuantizedTensor | Array | None = None,
) -> QuantizedTensor:
    """The mean of each window of images x: clamp(rne(f32(sum(q - z)) * ((s / count) / sy)) + zy), the sum in integers.

    count: the places of the window inside the image, or with count_include_pad all of them; padding adds 0.
    out_params: the params of the result; None means those of x. The other arguments are those of `qmax_pool2d`.

    >>> import lowbit as lb
    >>> x = lb.quantize(np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4), params=lb.QuantizationParams("uint8"))
    >>> lb.qavg_pool2d(x, 2, out_params=lb.QuantizationParams("uint8", scale=0.5)).dequantize()[0, 0]
    array([[ 2.5,  4.5],
           [10.5, 12.5]], dtype=float32)
    """
    window, shape = _window(x, kernel, stride, padding, layout)
    if window.kernel[0] * window.kernel[1] > _LARGEST:
        raise Unsupported(f"kernel: {window.kernel}; windows have up to {_LARGEST} places")
    params = result_params(out_params, x, "x", x.params.scale.dtype, shape)
    made = data = codes_for(params, shape, out)
    p, py = byte_params(x.params), byte_params(params)
    if p is not None and py is not None:
        made = cpu.apart(data, x.data)
        plan = core.AveragePoolPlan(window.native(x.shape), p, py, count_include_pad)
        plan.run(cpu.contiguous(x.data), made)
    elif _is_integer(x.params) and _is_integer(params) and _windows_share_params(x, window.nhwc):
        made = pack(_integer_average(x, window, count_include_pad, params, shape), params.dtype, params.axis)
    else:
        numbers = x.dequantize(dtype=x.params.scale.dtype)
        sums = window.over(numbers.astype(np.float64), 0.0).sum(axis=(-2, -1))
        mean = np.asarray(sums / window.places(x, count_include_pad)).astype(numbers.dtype)
        elementwise.quantize(cpu.as_float_array(np.ascontiguousarray(mean)), params, data)
    return finished(data, params, shape, out, made)


def _window(x: QuantizedTensor, kernel: Any, stride: Any, padding: Any, layout: str) -> tuple[_Window, tuple[int, ...]]:
    """The window and the result's shape; raises where there is none."""
    require_tensor("x", x)
    require_layout("layout", layout)
    if x.ndim != 4:
        raise InvalidProblem(f"x: shape {x.shape}; expected four dimensions, {layout}")
    nhwc = layout == "NHWC"
    size = x.shape[1:3] if nhwc else x.shape[2:]
    k = counts("kernel", kernel, 1, (2,))
    step = k if stride is None else counts("stride", stride, 1, (2,))
    pad = counts("padding", padding, 0, (2, 4))
    top, left, bottom, right = pad if len(pad) == 4 else (*pad, *pad)
    if max(top, bottom) >= k[0] or max(left, right) >= k[1]:
        raise InvalidProblem(
            f"padding: {padding}; expected less than the kernel, {k}: no window may lie in it altogether"
        )
    if 0 in size:
        raise InvalidProblem(f"x: shape {x.shape}; images have no places")
    if size[0] + top + bottom < k[0] or size[1] + left + right < k[1]:
        raise InvalidProblem(f"kernel: {k}; larger than the images with their padding, {x.shape} in {layout}")
    places = (size[0] + top + bottom - k[0]) // step[0] + 1, (size[1] + left + right - k[1]) // step[1] + 1
    shape = (x.shape[0], *places, x.shape[3]) if nhwc else (*x.shape[:2], *places)
    return _Window(k, step, (top, left, bottom, right), nhwc), shape


def _windows_share_params(x: QuantizedTensor, nhwc: bool) -> bool:
    """Whether all of a window has one scale: there is only one, or one an image or channel."""
    p = x.params
    if p.dtype.is_mixed or p.scale.ndim:
        return p.group_size is None and (p.axis or 0) % 4 in ((0, 3) if nhwc else (0, 1))
    return True


def _is_integer(params: QuantizationParams) -> bool:
    """Whether params are linear, so that integers sum to what they stand for, in float32."""
    special = params.is_logarithmic or params.dtype.is_binary or params.dtype.is_mixed
    return not special and params.scale.dtype == np.float32


def _integer_average(
    x: QuantizedTensor, window: _Window, with_padding: bool, params: QuantizationParams, shape: tuple[int, ...]
) -> Array:
    spread_of_x = x.params.granularity(x.shape)
    steps_of_x = x.unpack().astype(np.int64) - reference.spread(x.params.zero_point, spread_of_x, x.shape)
    sums = window.over(steps_of_x, 0).sum(axis=(-2, -1))
    # Scales do not vary along height and width, so the first place of each image has them all.
    s = reference.spread(x.params.scale, spread_of_x, x.shape)
    s = s[:, :1, :1, :] if window.nhwc else s[:, :, :1, :1]
    g = params.granularity(shape)
    sy, zy = (reference.spread(v, g, shape) for v in (params.scale, params.zero_point))
    with np.errstate(all="ignore"):
        steps = sums.astype(np.float32) * ((s / window.places(x, with_padding).astype(np.float32)) / sy)
    return reference.quantize_affine(steps, np.ones((), np.float32), zy, params.qmin, params.qmax)
