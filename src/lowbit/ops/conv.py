"""Convolutions of quantized images: integer sums, exact, then floats or codes of another scale.

Which path an image and a kernel take, and `conv_path_of` says so:

- "integer": 8 bits and below on both sides, one scale for x, one or one per output for w. Below 8 bits codes are
  unpacked to bytes first. Patches are gathered a few rows at a time as the GEMM's kernels read them; there is no image
  of patches in memory.
- "depthwise": the same, where each channel has a filter of its own.
- "binary": bits on both sides, scales as above. XNOR and popcount; places outside of x add nothing.
- "integer16": 16 bits on a side, scales as above. Each is split in bytes, whose convolutions are added in int64.
- "general": every other dtype, scheme and granularity: the numbers that codes stand for, accumulated in float64, some
  rows of the result at a time.

Images [n, c, h, w] are turned to [n, h, w, c] first, and results back. On every path the accumulators pass through the
epilogue of `lowbit.ops.epilogue`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.conv_geometry import ConvGeometry, check_shapes, counts, from_nhwc, is_depthwise
from lowbit.ops.conv_paths import (
    ConvCall,
    PackedConv,
    convolution_sums,
    general_convolution,
    packed_codes,
    prepack_conv2d,
)
from lowbit.ops.epilogue import Epilogue
from lowbit.ops.operands import F32, byte_codes, float_operand, multiplies_as_bytes, require_tensor, zero_points
from lowbit.ops.quantize import quantize
from lowbit.runtime.arrays import Array

__all__ = ["ConvGeometry", "PackedConv", "conv2d_integer", "conv_path_of", "prepack_conv2d", "qconv1d", "qconv2d"]


def conv_path_of(x: QuantizationParams, w: QuantizationParams, w_shape: tuple[int, ...], groups: int = 1) -> str:
    """The path qconv2d takes for x and w of these params; the module's docstring describes them.

    >>> from lowbit import QuantizationParams
    >>> conv_path_of(QuantizationParams("uint8"), QuantizationParams("int4"), (8, 4, 3, 3))
    'integer'
    """
    by_output = w.group_size is None and w.axis in (None, 0, -4)
    if x.axis is not None or not by_output or any(p.is_logarithmic or p.dtype.is_mixed for p in (x, w)):
        return "general"
    bits = x.dtype.is_binary + w.dtype.is_binary
    if bits:
        return "binary" if bits == 2 else "general"
    if max(x.dtype.bits, w.dtype.bits) > 8:
        return "integer16"
    return "depthwise" if is_depthwise(w_shape, groups) else "integer"


def check_image(shape: tuple[int, ...], p: QuantizationParams, w: tuple[int, ...], g: ConvGeometry) -> None:
    """Raises for an x that no convolution of bytes, or not this w, takes."""
    if not multiplies_as_bytes(p):
        raise Unsupported(f"x: {p.dtype}, {p.scheme}; expected linear codes of at most 8 bits")
    if p.axis is not None:
        raise Unsupported(f"x: scales along axis {p.axis}; expected one scale")
    check_shapes(shape, w, g)


def conv2d_integer(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    x_zero_point: Any = 0,
    w_zero_point: Any = 0,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCHW",
) -> Array:
    """sum over a patch of (x - zx) * (w - zw), exactly: int32 (int64 for patches past 33,025 codes).

    x [n, c, h, w], or [n, h, w, c] with layout="NHWC"; w [out, c / groups, kh, kw]; int8 or uint8. Padding is x's zero
    point: one number, (vertical, horizontal), or (top, left, bottom, right). w's zero point may be one an output.

    >>> conv2d_integer(np.ones((1, 1, 3, 3), np.uint8), np.ones((1, 1, 2, 2), np.int8))[0, 0]
    array([[4, 4],
           [4, 4]], dtype=int32)
    """
    g = ConvGeometry.of(stride, padding, dilation, groups, layout)
    image, kernel = byte_codes("x", x), byte_codes("w", w)
    check_shapes(image.shape, kernel.shape, g)
    zx = zero_points("x_zero_point", x_zero_point, image, 1)
    zw = zero_points("w_zero_point", w_zero_point, kernel, kernel.shape[0])
    return from_nhwc(convolution_sums(image, int(zx[0]), packed_codes(kernel, zw, g.groups), g), g)


def qconv2d(
    x: QuantizedTensor | npt.ArrayLike,
    w: QuantizedTensor | PackedConv,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCHW",
    out_params: QuantizationParams | None = None,
    out_dtype: Any = "float32",
    activation: str | None = None,
    clamp: tuple[float, float] | None = None,
) -> Array | QuantizedTensor:
    """The convolution of x by w: floats, or codes of `out_params`, rounded once from exact sums.

    x [n, c, h, w], or [n, h, w, c] with layout="NHWC"; w [out, c / groups, kh, kw], or a PackedConv (whose groups then
    hold). Kernels take linear codes of at most 8 bits, one scale for x, and one or one per output for w; every other
    dtype, scheme and granularity works too: which path it takes, `conv_path_of` says. x may be floats, which are
    quantized to int8, symmetric, with one scale. Padding is 0, x's zero point: one number, (vertical, horizontal), or
    (top, left, bottom, right). bias, out_params, out_dtype, activation and clamp as in `qmatmul`.

    >>> import lowbit as lb
    >>> x, w = (lb.quantize(np.ones(s, np.float32)) for s in ((1, 1, 3, 3), (1, 1, 2, 2)))
    >>> lb.qconv2d(x, w, stride=2, padding=(0, 0, 1, 1)).round(2)[0, 0]
    array([[4., 2.],
           [2., 1.]], dtype=float32)
    """
    key: Any = None
    if type(w) is PackedConv and bias is None and type(x) is QuantizedTensor:
        options = out_dtype, activation, clamp, stride, padding, dilation, layout, groups
        key = x.shape, id(x.params), id(out_params), *options
        settled: tuple[ConvCall, Any] | None = w._calls.settled(key)
        if settled is not None:
            return settled[0].epilogue.wrap(settled[0].run(x, w))
    if isinstance(w, PackedConv):
        if groups not in (1, w.groups):
            raise InvalidProblem(f"groups: {groups!r}; w is packed for {w.groups}")
        groups = w.groups
    else:
        require_tensor("w", w, "or a PackedConv; quantize floats first, lb.quantize(w, axis=0)")
    g = ConvGeometry.of(stride, padding, dilation, groups, layout)
    image = x if isinstance(x, QuantizedTensor) else float_operand("x", x, "which are quantized with one scale")
    check_shapes(image.shape, w.shape, g)
    epilogue = Epilogue.of(w.shape[0], bias, out_params, out_dtype, activation, clamp, any_codes=True)
    epilogue.require_shape(g.output_shape(image.shape, w.shape))
    q = x if isinstance(x, QuantizedTensor) else _quantized(x, image.shape)
    path = conv_path_of(q.params, w.params, w.shape, g.groups)
    if path not in ("integer", "depthwise"):
        return epilogue.wrap(general_convolution(path, q, w, g, epilogue))
    packed = w if isinstance(w, PackedConv) else PackedConv(w, g.groups)
    call = ConvCall.of(q, packed, g, epilogue)
    if key is not None:
        packed._calls.put(key, (call, out_params))  # ids in the key stay those of the params it holds
    return epilogue.wrap(call.run(q, packed))


def _quantized(x: Any, shape: tuple[int, ...]) -> QuantizedTensor:
    """An image of floats as int8 codes with one scale."""
    return quantize(x, name="x", params=None if math.prod(shape) else QuantizationParams("int8"))


def qconv1d(
    x: QuantizedTensor | npt.ArrayLike,
    w: QuantizedTensor,
    bias: Any = None,
    *,
    stride: int = 1,
    padding: Any = 0,
    dilation: int = 1,
    groups: int = 1,
    layout: str = "NCW",
    **options: Any,
) -> Array | QuantizedTensor:
    """`qconv2d` of rows: x [n, c, w], or [n, w, c] with layout="NWC"; w [out, c / groups, kw]. padding: one number, or
    (left, right). Other options as there.

    >>> import lowbit as lb
    >>> x, w = lb.quantize(np.ones((1, 1, 4), np.float32)), lb.quantize(np.ones((1, 1, 3), np.float32))
    >>> lb.qconv1d(x, w).round(2)
    array([[[3., 3.]]], dtype=float32)
    """
    require_tensor("w", w, "; quantize floats first, lb.quantize(w, axis=0)")
    image = x if isinstance(x, QuantizedTensor) else float_operand("x", x, "which are quantized with one scale")
    for name, t in (("x", image), ("w", w)):
        if len(t.shape) != 3:
            raise InvalidProblem(f"{name}: shape {t.shape}; expected three dimensions")
    if layout not in ("NCW", "NWC"):
        raise InvalidProblem(f"layout: {layout!r}; expected 'NCW' or 'NWC'")
    left, right = counts("padding", padding, 0, (2,))
    (step, _), (apart, _) = counts("stride", stride, 1, (2,)), counts("dilation", dilation, 1, (2,))
    axis = 1 if layout == "NWC" else 2
    out = options.get("out_params")
    if isinstance(out, QuantizationParams):
        options["out_params"] = _raised_params("out_params", out, axis)
    q = x if isinstance(x, QuantizedTensor) else _quantized(x, image.shape)
    options |= {"stride": (1, step), "padding": (0, left, 0, right), "dilation": (1, apart), "groups": groups}
    images = "NHWC" if layout == "NWC" else "NCHW"
    y = qconv2d(_raised("x", q, axis), _raised("w", w, 2), bias, layout=images, **options)
    if isinstance(y, QuantizedTensor):
        assert out is not None
        shape = (*y.shape[:axis], *y.shape[axis + 1 :])
        data = y.data if y.dtype.is_packed else y.data.reshape(shape)
        return QuantizedTensor._trusted(data, out.for_compute(F32), shape)
    return np.squeeze(y, axis)


def _raised(name: str, t: QuantizedTensor, axis: int) -> QuantizedTensor:
    """Rows as images: one more dimension, of size 1."""
    return QuantizedTensor.from_codes(np.expand_dims(t.unpack(), axis), _raised_params(name, t.params, axis))


def _raised_params(name: str, p: QuantizationParams, axis: int) -> QuantizationParams:
    """The params of rows for images, which have one more dimension at `axis`."""
    if p.axis is None:
        return p
    if not -3 <= p.axis < 3:
        raise InvalidProblem(f"{name}: axis {p.axis}; expected one of three dimensions")
    at = p.axis % 3
    blocks = p.group_size is not None and p.scale.ndim == 3
    more = {f: np.expand_dims(getattr(p, f), axis) for f in ("scale", "zero_point")} if blocks else {}
    return p.replace(axis=at + (at >= axis), **more)
