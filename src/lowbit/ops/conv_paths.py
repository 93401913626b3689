"""Kernels of convolutions packed once for many images, and the paths of `qconv2d`: sums, then the epilogue.
`lowbit.ops.conv` describes them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from lowbit.numerics.errors import Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.binary import conv2d_sums
from lowbit.ops.conv_geometry import ConvGeometry, check_kernel_shape, from_nhwc, is_depthwise, to_nhwc
from lowbit.ops.epilogue import Epilogue, row_parts
from lowbit.ops.operands import BYTES, F32, SUMS, Frozen, in_bytes, multiplies_as_bytes, require_tensor, sum_dtype
from lowbit.runtime.arrays import Array
from lowbit.runtime.cache import Cache
from lowbit.runtime.native import core


class PackedConv(Frozen):
    """A kernel [out, in / groups, kh, kw], packed once in the order of the kernels. Made by `prepack_conv2d`."""

    def __init__(self, tensor: QuantizedTensor, groups: int = 1) -> None:
        out, per_group, kh, kw = tensor.shape
        self.params, self.groups, self.shape = tensor.params, groups, tensor.shape
        self._calls: Cache[Any] = Cache(16)
        codes = np.ascontiguousarray(np.moveaxis(tensor.unpack(), 1, -1))
        zero = np.broadcast_to(tensor.params.zero_point.astype(np.int32).reshape(-1), out)
        # Depthwise kernels are prepared for a stride and dilation when one is first met.
        self.is_depthwise = is_depthwise(tensor.shape, groups)
        self.parts: list[core.PackedMatrix] = []
        if self.is_depthwise:
            self._filters, self._zero = codes.reshape(out, kh, kw).copy(), zero.copy()
            self._prepared: Cache[core.DepthwiseWeights] = Cache(16)
        else:
            run = kw * per_group
            line = line_of(kh, run, zero)
            filled = np.pad(codes.reshape(out, kh, run), ((0, 0), (0, 0), (0, line - run)))
            rows, zeros = filled.reshape(groups, out // groups, kh * line), zero.reshape(groups, out // groups)
            for r, z in zip(rows, zeros, strict=True):
                self.parts.append(core.PackedMatrix(r, True, np.ascontiguousarray(z) if z.any() else None))

    def plan(
        self, image: tuple[int, ...], code: core.Code, zero: int, g: ConvGeometry, epilogues: list[core.Epilogue]
    ) -> core.ConvPlan | core.DepthwiseConvPlan:
        """The native plan for images [n, h, w, c] of this type and zero point, with an epilogue for each group."""
        kernel = self.shape[2:]
        window = core.Window(image, kernel, g.stride, g.padding, g.dilation, self.groups)
        if not self.is_depthwise:
            return core.ConvPlan(self.parts, window, code, zero, epilogues)
        w_code = BYTES[self._filters.dtype]
        weights = self._prepared.find(
            (id(code), g.stride, g.dilation),  # enums keep their ids
            lambda: core.DepthwiseWeights(window, code, self._filters, w_code, self._zero),
        )
        return core.DepthwiseConvPlan(weights, window, zero, epilogues[0])

    @property
    def dtype(self) -> Any:
        return self.params.dtype

    @property
    def nbytes(self) -> int:
        """Of codes, scales, zero points and sums."""
        kept = self._filters.nbytes if self.is_depthwise else sum(int(p.nbytes) for p in self.parts)
        return kept + self.params.scale.nbytes

    def to_tensor(self) -> QuantizedTensor:
        """The kernel it was made of."""
        out, c, kh, kw = self.shape
        if self.is_depthwise:
            return QuantizedTensor.from_codes(self._filters[:, None], self.params)
        line = int(self.parts[0].k) // max(1, kh)
        codes = np.empty((self.groups, out // self.groups, kh * line), self.params.dtype.code_dtype)
        for part, rows in zip(self.parts, codes, strict=True):
            part.unpack(rows)
        runs = codes.reshape(out, kh, line)[:, :, : kw * c]
        turned = np.moveaxis(runs.reshape(out, kh, kw, c), -1, 1)
        return QuantizedTensor.from_codes(np.ascontiguousarray(turned), self.params)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedConv, (self.to_tensor(), self.groups)

    def __repr__(self) -> str:
        return f"PackedConv({self.shape}, {self.dtype}, groups={self.groups})"


def prepack_conv2d(w: QuantizedTensor, groups: int = 1) -> PackedConv:
    """w [out, in / groups, kh, kw] packed once for many convolutions; one scale, or one an output (axis 0).

    >>> import lowbit as lb
    >>> lb.prepack_conv2d(lb.quantize(np.ones((4, 3, 2, 2), np.float32), axis=0))
    PackedConv((4, 3, 2, 2), int8, groups=1)
    """
    require_tensor("w", w)
    check_kernel(w.shape, w.params, groups)
    return PackedConv(w, int(groups))


def check_kernel(shape: tuple[int, ...], p: QuantizationParams, groups: Any) -> None:
    """Raises for a w that no convolution of bytes takes."""
    check_kernel_shape(shape, groups)
    if not multiplies_as_bytes(p):
        raise Unsupported(f"w: {p.dtype}, {p.scheme}; expected linear codes of at most 8 bits")
    if p.group_size is not None or p.axis not in (None, 0, -4):
        raise Unsupported(f"w: scales along axis {p.axis}; expected one scale, or one an output (axis 0)")


_WHOLE = 8  # codes of one step of the kernels
_DEEPEST = 4096  # of padded kernel rows: far from where sums outgrow 32 bits


def line_of(kh: int, run: int, zero: Array) -> int:
    """The length of a kernel row, padded with zeros if that lets kernels read the image in place and costs little.

    >>> [line_of(kh, run, np.int32([0])) for kh, run in ((7, 21), (3, 24), (3, 1))], line_of(7, 21, np.int32([1]))
    ([24, 24, 1], 21)
    """
    whole = -(-run // _WHOLE) * _WHOLE
    few = kh * whole <= min(2 * (-(-kh * run // _WHOLE) * _WHOLE), _DEEPEST)
    return whole if few and not zero.any() else run


def packed_codes(codes: Array, zero: Array, groups: int) -> PackedConv:
    """Bytes with one zero point, or one per output, whose scales do not matter."""
    axis = None if zero.size == 1 else 0
    given: Any = int(zero.item()) if axis is None else zero
    scale = np.ones(() if axis is None else zero.shape, F32)
    params = QuantizationParams(codes.dtype.name, "asymmetric", scale, given, axis=axis)
    return PackedConv(QuantizedTensor(codes, params), groups)


class ConvCall(NamedTuple):
    """A convolution on the path "integer" or "depthwise", planned for images of one shape and params. For callers that
    have made qconv2d's checks."""

    geometry: ConvGeometry
    epilogue: Epilogue
    shape: tuple[int, int, int, int]  # of the result, channels last
    plan: core.ConvPlan | core.DepthwiseConvPlan | None  # None: NumPy applies the epilogue
    params: QuantizationParams  # of the images

    @classmethod
    def of(cls, x: QuantizedTensor, w: PackedConv, g: ConvGeometry, epilogue: Epilogue) -> ConvCall:
        p, depth = x.params, math.prod(w.shape[1:])
        sa, sb = p.scale.astype(F32), w.params.scale.astype(F32)
        groups = 1 if w.is_depthwise else g.groups
        whole, plan = epilogue.native(sa, sb, depth), None
        if whole is not None:
            parts = [whole] if groups == 1 else [_part(epilogue, sa, sb, depth, i, groups) for i in range(groups)]
            plan = w.plan(g.nhwc(x.shape), BYTES[p.dtype.code_dtype], int(p.zero_point), g, parts)
        return cls(g, epilogue, g.output_nhwc(x.shape, w.shape), plan, p)

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


def convolution_sums(image: Array, zero: int, w: PackedConv, g: ConvGeometry) -> Array:
    """The integer sums of images in g's layout, channels last."""
    x = to_nhwc(image, g)
    sums = np.empty(g.output_nhwc(image.shape, w.shape), sum_dtype(math.prod(w.shape[1:])))
    w.plan(x.shape, BYTES[x.dtype], zero, g, [SUMS] * w.groups).run(x, sums)
    return sums


def general_convolution(
    path: str, x: QuantizedTensor, w: QuantizedTensor | PackedConv, g: ConvGeometry, epilogue: Epilogue
) -> Array:
    """The result of qconv2d on the paths "binary", "integer16" and "general", in g's layout, before `Epilogue.wrap`.

    For callers that have made its checks.
    """
    kernel = w.to_tensor() if isinstance(w, PackedConv) else w
    y, _ = epilogue.empty(g.output_nhwc(x.shape, w.shape))
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
    epilogue.refuse_integer_bias("general")
    out, per_group, kh, kw = w.shape
    (_, out_h, out_w, _), (top, left, _, _) = y.shape, g.padding
    numbers = x.dequantize(dtype=np.float64)
    kernel = w.dequantize(dtype=np.float64).reshape(g.groups, out // g.groups, per_group, kh, kw)
    taps = np.ascontiguousarray(kernel.transpose(3, 4, 0, 2, 1))  # [kh, kw, groups, in, out]
    _, height, width, _ = g.nhwc(x.shape)
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
            epilogue.narrow(floats, _by_output(result[part]))


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
