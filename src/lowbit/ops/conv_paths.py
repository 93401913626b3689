"""The paths of `qconv2d`: sums, then the epilogue. `lowbit.ops.conv` describes them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.binary import conv2d_sums
from lowbit.ops.conv_geometry import ConvGeometry, from_nhwc, height_width, to_nhwc
from lowbit.ops.epilogue import Epilogue, row_parts
from lowbit.ops.gemm_paths import float_bias
from lowbit.ops.operands import BYTES, F32, SUMS, Array, in_bytes, sum_dtype
from lowbit.ops.packed_conv import PackedConv, packed_codes
from lowbit.runtime.native import core


class ConvCall(NamedTuple):
    """A convolution on the path "integer" or "depthwise", planned for images of one shape and params."""

    geometry: ConvGeometry
    epilogue: Epilogue
    shape: tuple[int, int, int, int]  # of the result, channels last
    plan: core.ConvPlan | core.DepthwiseConvPlan | None  # None: NumPy applies the epilogue
    params: QuantizationParams  # of the images

    @classmethod
    def of(cls, x: QuantizedTensor, w: PackedConv, g: ConvGeometry, epilogue: Epilogue) -> ConvCall:
        size = height_width(x.shape, g)
        out_h, out_w = g.output(size, (w.shape[2], w.shape[3]))
        p, depth = x.params, math.prod(w.shape[1:])
        sa, sb = p.scale.astype(F32), w.params.scale.astype(F32)
        groups = 1 if w.is_depthwise else g.groups
        whole, plan = epilogue.native(sa, sb, depth), None
        if whole is not None:
            parts = [whole] if groups == 1 else [_part(epilogue, sa, sb, depth, i, groups) for i in range(groups)]
            image = (x.shape[0], *size, w.shape[1] * w.groups)
            plan = w.plan(image, BYTES[p.dtype.code_dtype], int(p.zero_point), g, parts)
        return cls(g, epilogue, (x.shape[0], out_h, out_w, w.shape[0]), plan, p)

    def run(self, x: QuantizedTensor, w: PackedConv, out: Array | None = None) -> Array:
        """The result in the images' layout, before `Epilogue.wrap`; in `out` where it is given."""
        image, g = x.unpack(), self.geometry
        y, memory = self.epilogue.empty(self.shape, out if g.layout == "NHWC" else None)
        if self.plan is not None:
            self.plan.run(to_nhwc(image, g), memory)
        else:
            scales = self.params.scale.astype(F32), w.params.scale.astype(F32)
            for i in range(image.shape[0]):
                sums = convolution_sums(image[i : i + 1], int(self.params.zero_point), w, g)
                self.epilogue.scale_sums(_by_output(sums), *scales, _by_output(y[i]))
        return from_nhwc(y, g, out)


def convolution(
    x: QuantizedTensor, w: PackedConv, g: ConvGeometry, epilogue: Epilogue, out: Array | None = None
) -> Array:
    """The result of qconv2d before `Epilogue.wrap`, into `out` where it is given. For callers that have made its
    checks."""
    return ConvCall.of(x, w, g, epilogue).run(x, w, out)


def convolution_sums(image: Array, zero: int, w: PackedConv, g: ConvGeometry) -> Array:
    """The integer sums of images in g's layout, channels last."""
    x = to_nhwc(image, g)
    size = g.output((x.shape[1], x.shape[2]), (w.shape[2], w.shape[3]))
    sums = np.empty((x.shape[0], *size, w.shape[0]), sum_dtype(math.prod(w.shape[1:])))
    w.plan(x.shape, BYTES[x.dtype], zero, g, [SUMS] * w.groups).run(x, sums)
    return sums


def general_convolution(
    path: str, x: QuantizedTensor, w: QuantizedTensor | PackedConv, g: ConvGeometry, epilogue: Epilogue
) -> Array:
    """The result of qconv2d on the paths "binary", "integer16" and "general", in g's layout, before `Epilogue.wrap`.

    For callers that have made its checks.
    """
    kernel = w.to_tensor() if isinstance(w, PackedConv) else w
    out_h, out_w = g.output(height_width(x.shape, g), (w.shape[2], w.shape[3]))
    y, _ = epilogue.empty((x.shape[0], out_h, out_w, w.shape[0]))
    _GENERAL[path](x, kernel, g, epilogue, y)
    return from_nhwc(y, g)


def _binary(x: QuantizedTensor, w: QuantizedTensor, g: ConvGeometry, epilogue: Epilogue, y: Array) -> None:
    sums = np.zeros(y.shape, np.int32)
    if x.size and w.size:
        conv2d_sums(x, w, g, sums)
    sx, sw = (t.params.scale.astype(F32) for t in (x, w))
    epilogue.scale_sums(_by_output(sums), sx, sw, _by_output(y))


def _integer16(x: QuantizedTensor, w: QuantizedTensor, g: ConvGeometry, epilogue: Epilogue, y: Array) -> None:
    images = in_bytes(x.unpack(), x.params.zero_point)
    kernels = [(packed_codes(*part[:2], g.groups), part[2]) for part in in_bytes(w.unpack(), w.params.zero_point)]
    sx, sw = (t.params.scale.astype(F32) for t in (x, w))
    for i in range(x.shape[0]):
        acc = np.zeros((1, *y.shape[1:]), np.int64)
        for codes, zero, by_x in images:
            for packed, by_w in kernels:
                acc += convolution_sums(codes[i : i + 1], int(zero), packed, g).astype(np.int64) * (by_x * by_w)
        epilogue.scale_sums(_by_output(acc), sx, sw, _by_output(y[i]))


def _general(x: QuantizedTensor, w: QuantizedTensor, g: ConvGeometry, epilogue: Epilogue, y: Array) -> None:
    bias = float_bias(epilogue, "general")
    out, per_group, kh, kw = w.shape
    (_, out_h, out_w, _), (top, left, _, _) = y.shape, g.padding
    numbers = x.dequantize(dtype=np.float64)
    kernel = w.dequantize(dtype=np.float64).reshape(g.groups, out // g.groups, per_group, kh, kw)
    taps = np.ascontiguousarray(kernel.transpose(3, 4, 0, 2, 1))  # [kh, kw, groups, in, out]
    height, width = height_width(x.shape, g)
    padded = np.zeros((height + top + g.padding[2], width + left + g.padding[3], g.groups, per_group))
    for image, result in zip(numbers, y, strict=True):
        last = image if g.layout == "NHWC" else np.moveaxis(image, 0, -1)
        padded[top : top + height, left : left + width] = last.reshape(height, width, g.groups, per_group)
        for part in row_parts((out_h, out_w * max(out, g.groups * per_group))):
            count = part.stop - part.start
            sums = np.zeros((g.groups, count * out_w, out // g.groups))
            for i, j in np.ndindex(kh, kw):
                first = part.start * g.stride[0] + i * g.dilation[0]
                rows = padded[first :: g.stride[0], j * g.dilation[1] :: g.stride[1]][:count, :out_w]
                sums += np.moveaxis(rows, 2, 0).reshape(g.groups, count * out_w, per_group) @ taps[i, j]
            with np.errstate(over="ignore"):
                floats = np.moveaxis(sums, 0, 1).reshape(count * out_w, out).astype(F32)
            epilogue.narrow(floats, bias, _by_output(result[part]))


def _by_output(array: Array) -> Array:
    """[..., out] as [pixels, out], of the same memory."""
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


_GENERAL = {"binary": _binary, "integer16": _integer16, "general": _general}


def _part(epilogue: Epilogue, sa: Array, sb: Array, depth: int, i: int, groups: int) -> Any:
    """The native epilogue of one group's columns."""
    n = epilogue.n // groups
    columns = slice(i * n, (i + 1) * n)
    own = dataclasses.replace(epilogue, n=n, bias=None if epilogue.bias is None else epilogue.bias[columns])
    return own.native(sa, sb if sb.ndim == 0 else sb[columns], depth)
