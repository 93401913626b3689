"""Kernels of convolutions, packed once for many images."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit.numerics.errors import Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.conv_geometry import ConvGeometry, check_kernel_shape, is_depthwise
from lowbit.ops.operands import BYTES, F32, Array, Frozen, multiplies_as_bytes, require_tensor
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
