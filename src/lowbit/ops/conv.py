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
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem, Unsupported, UnsupportedDType
from lowbit.numerics.fields import refuse_masked
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.binary import conv2d_sums
from lowbit.ops.conv_geometry import (
    ConvGeometry,
    check_fit,
    check_kernel_shape,
    check_shapes,
    counts,
    from_nhwc,
    height_width,
    is_depthwise,
    to_nhwc,
)
from lowbit.ops.depthwise import PackedDepthwise, prepack_depthwise
from lowbit.ops.epilogue import Epilogue, row_pieces
from lowbit.ops.matmul import float_bias
from lowbit.ops.operands import (
    SUMS,
    Settled,
    float_operand,
    in_bytes,
    multiplies_as_bytes,
    remember,
    require_tensor,
    sum_dtype,
    zero_points,
)
from lowbit.ops.quantize import quantize
from lowbit.runtime.native import core

__all__ = [
    "ConvGeometry", "PackedConv", "check_image", "check_kernel", "check_kernel_shape", "check_shapes",
    "conv2d_integer", "conv_path_of", "convolution", "from_nhwc", "general_convolution", "is_depthwise", "line_of",
    "prepack_conv2d", "qconv1d", "qconv2d", "to_nhwc",
]  # fmt: skip

Array = npt.NDArray[Any]
F32 = np.float32


class PackedConv(Settled):
    """A kernel [out, in / groups, kh, kw], arranged once as the product's kernels read it. Made by `prepack_conv2d`."""

    def __init__(self, tensor: QuantizedTensor, groups: int = 1) -> None:
        out, per_group, kh, kw = tensor.shape
        self.params, self.groups, self.shape = tensor.params, groups, tensor.shape
        self._settled: dict[Any, _Settled] = {}
        codes = np.ascontiguousarray(np.moveaxis(tensor.unpack(), 1, -1))
        zero = np.broadcast_to(tensor.params.zero_point.astype(np.int32).reshape(-1), out)
        # A filter a channel has kernels of its own, prepared for a stride and dilation when they are first met.
        self.is_depthwise = is_depthwise(tensor.shape, groups)
        self.parts: list[Any] = []
        if self.is_depthwise:
            self._filters, self._zero = codes.reshape(out, kh, kw).copy(), zero.copy()
            self._prepared: dict[Any, PackedDepthwise] = {}
        else:
            run = kw * per_group
            line = line_of(kh, run, zero)
            filled = np.pad(codes.reshape(out, kh, run), ((0, 0), (0, 0), (0, line - run)))
            rows, zeros = filled.reshape(groups, out // groups, kh * line), zero.reshape(groups, out // groups)
            self.parts.extend(_pack_rows(r, z) for r, z in zip(rows, zeros, strict=True))

    def depthwise(self, dtype: np.dtype[Any], g: ConvGeometry) -> PackedDepthwise:
        key = dtype, g.stride, g.dilation, core.active_isa()
        if key not in self._prepared:
            self._prepared[key] = prepack_depthwise(
                self._filters, self._zero, x_dtype=dtype, stride=g.stride, dilation=g.dilation
            )
        return self._prepared[key]

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
            part.unpack(rows.view(np.uint8))
        runs = codes.reshape(out, kh, line)[:, :, : kw * c]
        turned = np.moveaxis(runs.reshape(out, kh, kw, c), -1, 1)
        return QuantizedTensor.from_codes(np.ascontiguousarray(turned), self.params)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedConv, (self.to_tensor(), self.groups)

    def __repr__(self) -> str:
        return f"PackedConv({self.shape}, {self.dtype}, groups={self.groups})"


def prepack_conv2d(w: QuantizedTensor, groups: int = 1) -> PackedConv:
    """w [out, in / groups, kh, kw] arranged once for many convolutions; one scale, or one an output (axis 0).

    >>> import lowbit as lb
    >>> lb.prepack_conv2d(lb.quantize(np.ones((4, 3, 2, 2), np.float32), axis=0))
    PackedConv((4, 3, 2, 2), int8, groups=1)
    """
    require_tensor("w", w)
    check_kernel(w.shape, w.params, groups)
    return PackedConv(w, int(groups))


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


def check_kernel(shape: tuple[int, ...], p: QuantizationParams, groups: Any) -> None:
    """Raises for a w that no convolution of bytes takes."""
    check_kernel_shape(shape, groups)
    if not multiplies_as_bytes(p):
        raise Unsupported(f"w: {p.dtype}, {p.scheme}; expected linear codes of at most 8 bits")
    if p.group_size is not None or p.axis not in (None, 0, -4):
        raise Unsupported(f"w: scales along axis {p.axis}; expected one scale, or one an output (axis 0)")


def check_image(shape: tuple[int, ...], p: QuantizationParams, w: tuple[int, ...], g: ConvGeometry) -> None:
    """Raises for an x that no convolution of bytes, or not this w, takes."""
    if len(shape) != 4:
        raise InvalidProblem(f"x: shape {shape}; expected four dimensions, {g.layout}")
    if not multiplies_as_bytes(p):
        raise Unsupported(f"x: {p.dtype}, {p.scheme}; expected linear codes of at most 8 bits")
    if p.axis is not None:
        raise Unsupported(f"x: scales along axis {p.axis}; expected one scale")
    if len(w) == 4:
        check_fit(shape, w, g)


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
    image, kernel = _codes("x", x, 4), _codes("w", w, 4)
    zx = zero_points("x_zero_point", x_zero_point, image, 1)
    zw = zero_points("w_zero_point", w_zero_point, kernel, kernel.shape[0])
    check_fit(image.shape, kernel.shape, g)
    packed = _packed_codes(kernel, zw, g.groups)
    out_h, out_w = g.output(height_width(image.shape, g), (kernel.shape[2], kernel.shape[3]))
    dtype = sum_dtype(math.prod(kernel.shape[1:]))
    y = np.empty((image.shape[0], out_h, out_w, kernel.shape[0]), dtype)
    _convolve(image, int(zx[0]), packed, g, [SUMS] * g.groups, y)
    return from_nhwc(y, g)


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
        # The call that repeats: everything but the kernel was settled the first time.
        key = (
            x.shape, id(x.params), id(out_params), out_dtype, activation, clamp, stride, padding, dilation, layout,
            groups,
        )  # fmt: skip
        try:
            ready = w._settled.get(key)
        except TypeError:
            key = ready = None
        if ready is not None:
            return ready.epilogue.wrap(_convolved(x, w, ready))
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
    made = _Settled.of(q, packed, g, epilogue, out_params)
    if key is not None:
        remember(packed._settled, key, made)
    return epilogue.wrap(_convolved(q, packed, made))


def _quantized(x: Any, shape: tuple[int, ...]) -> QuantizedTensor:
    """An image of floats as int8 codes with one scale."""
    return quantize(x, name="x", params=None if math.prod(shape) else QuantizationParams("int8"))


def convolution(
    x: QuantizedTensor, w: PackedConv, g: ConvGeometry, epilogue: Epilogue, out: Array | None = None
) -> Array:
    """What qconv2d computes, into `out` where it is given. For callers who have made its checks."""
    return _convolved(x, w, _Settled.of(x, w, g, epilogue), out)


class _Settled(NamedTuple):
    """All that is known before the codes: for x of one shape and params. It holds on to params, so that ids stay
    theirs."""

    geometry: ConvGeometry
    epilogue: Epilogue
    shape: tuple[int, int, int, int]  # of the result, channels last
    scales: tuple[Array, Array]
    zero: int
    parts: list[core.Epilogue] | None  # what becomes of each group's sums; None: NumPy's business
    kept: tuple[Any, ...]

    @classmethod
    def of(cls, x: QuantizedTensor, w: PackedConv, g: ConvGeometry, epilogue: Epilogue, *kept: Any) -> _Settled:
        out_h, out_w = g.output(height_width(x.shape, g), (w.shape[2], w.shape[3]))
        sa, sb = x.params.scale.astype(F32), w.params.scale.astype(F32)
        whole = epilogue.native(sa, sb, math.prod(w.shape[1:]))
        parts = None if whole is None else [whole]
        if whole is not None and g.groups > 1 and not w.is_depthwise:
            parts = [_part(epilogue, sa, sb, math.prod(w.shape[1:]), i, g.groups) for i in range(g.groups)]
        zero = int(x.params.zero_point)
        return cls(g, epilogue, (x.shape[0], out_h, out_w, w.shape[0]), (sa, sb), zero, parts, (x.params, *kept))


def _convolved(x: QuantizedTensor, w: PackedConv, s: _Settled, out: Array | None = None) -> Array:
    image, g = x.unpack(), s.geometry
    y, memory = s.epilogue.empty(s.shape, out if g.layout == "NHWC" else None)
    if s.parts is None:
        sums = np.empty((1, *s.shape[1:]), sum_dtype(math.prod(w.shape[1:])))
        for i in range(image.shape[0]):
            _convolve(image[i : i + 1], s.zero, w, g, [SUMS] * g.groups, sums)
            s.epilogue.scale_sums(_by_output(sums), *s.scales, _by_output(y[i]))
    else:
        _convolve(image, s.zero, w, g, s.parts, memory)
    return from_nhwc(y, g, out)


def general_convolution(
    path: str, x: QuantizedTensor, w: QuantizedTensor | PackedConv, g: ConvGeometry, epilogue: Epilogue
) -> Array:
    """What qconv2d computes on the paths "binary", "integer16" and "general", in g's layout, before `Epilogue.wrap`. For
    callers who have made its checks."""
    kernel = w.to_tensor() if isinstance(w, PackedConv) else w
    out_h, out_w = g.output(height_width(x.shape, g), (w.shape[2], w.shape[3]))
    y, _ = epilogue.empty((x.shape[0], out_h, out_w, w.shape[0]))
    _GENERAL[path](x, kernel, g, epilogue, y)
    return from_nhwc(y, g)


def _binary(x: QuantizedTensor, w: QuantizedTensor, g: ConvGeometry, epilogue: Epilogue, y: Array) -> None:
    sums = np.zeros(y.shape, np.int32)
    if x.size and w.size:
        conv2d_sums(x, w, g.groups, g.stride, g.padding, g.dilation, g.layout == "NCHW", sums)
    sx, sw = (t.params.scale.astype(F32) for t in (x, w))
    epilogue.scale_sums(_by_output(sums), sx, sw, _by_output(y))


def _integer16(x: QuantizedTensor, w: QuantizedTensor, g: ConvGeometry, epilogue: Epilogue, y: Array) -> None:
    images = in_bytes(x.unpack(), x.params.zero_point)
    kernels = [(_packed_codes(*part[:2], g.groups), part[2]) for part in in_bytes(w.unpack(), w.params.zero_point)]
    sums = np.zeros((1, *y.shape[1:]), sum_dtype(math.prod(w.shape[1:])))
    sx, sw = (t.params.scale.astype(F32) for t in (x, w))
    for i in range(x.shape[0]):
        acc = np.zeros(sums.shape, np.int64)
        for codes, zero, by_x in images:
            for packed, by_w in kernels:
                _convolve(codes[i : i + 1], int(zero), packed, g, [SUMS] * g.groups, sums)
                acc += sums.astype(np.int64) * (by_x * by_w)
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
        for part in row_pieces((out_h, out_w * max(out, g.groups * per_group))):
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
    y = qconv2d(
        _raised("x", q, axis), _raised("w", w, 2), bias, stride=(1, step), padding=(0, left, 0, right),
        dilation=(1, apart), groups=groups, layout="NHWC" if layout == "NWC" else "NCHW", **options,
    )  # fmt: skip
    if isinstance(y, QuantizedTensor):
        assert out is not None
        shape = (*y.shape[:axis], *y.shape[axis + 1 :])
        data = y.data if y.dtype.is_packed else y.data.reshape(shape)
        return QuantizedTensor._trusted(data, out.for_compute(F32), shape)
    return np.squeeze(y, axis)


def _convolve(image: Array, zero: int, w: PackedConv, g: ConvGeometry, parts: list[Any], y: Array) -> None:
    """Writes to y [n, h, w, out]; parts: what becomes of each group's sums."""
    x = to_nhwc(image, g)
    batch, height, width, channels = x.shape
    out, per_group, kh, kw = w.shape
    if w.is_depthwise:
        shape = core.DwconvShape(batch, height, width, channels, kh, kw, *g.stride, *g.padding, *g.dilation)
        w.depthwise(x.dtype, g).native.run(shape, x, zero, parts[0], y)
        return
    (top, left, _, _), (out_h, out_w) = g.padding, y.shape[1:3]
    for i, (part, finish) in enumerate(zip(w.parts, parts, strict=True)):
        geometry = [
            batch, height, width, channels, kh, kw, *g.stride, top, left, *g.dilation, out_h, out_w,
            i * per_group, per_group,
        ]  # fmt: skip
        core.convolve(x, x.dtype == np.int8, zero, geometry, part, finish, y, i * (out // g.groups), out)


def _part(epilogue: Epilogue, sa: Array, sb: Array, depth: int, i: int, groups: int) -> Any:
    """The epilogue of one group's columns."""
    n = epilogue.n // groups
    columns = slice(i * n, (i + 1) * n)
    own = Epilogue(
        n, epilogue.dtype, epilogue.params, None if epilogue.bias is None else epilogue.bias[columns],
        epilogue.floor, epilogue.ceiling, epilogue.lo, epilogue.hi,
    )  # fmt: skip
    return own.native(sa, sb if sb.ndim == 0 else sb[columns], depth)


_WHOLE = 8  # codes that products take at once
_DEEPEST = 4096  # of what is filled: far from where sums outgrow 32 bits


def line_of(kh: int, run: int, zero: Array) -> int:
    """Codes of a kernel row, filled up with zeros if it may be read from the image where it lies, and they are few.

    >>> [line_of(kh, run, np.int32([0])) for kh, run in ((7, 21), (3, 24), (3, 1))], line_of(7, 21, np.int32([1]))
    ([24, 24, 1], 21)
    """
    whole = -(-run // _WHOLE) * _WHOLE
    few = kh * whole <= min(2 * (-(-kh * run // _WHOLE) * _WHOLE), _DEEPEST)
    return whole if few and not zero.any() else run


def _packed_codes(codes: Array, zero: Array, groups: int) -> PackedConv:
    """Bytes with one zero point, or one per output, whose scales do not matter."""
    one = zero.size == 1
    params = QuantizationParams(
        codes.dtype.name, "asymmetric", np.ones(() if one else zero.shape, F32), int(zero.item()) if one else zero,
        axis=None if one else 0,
    )  # fmt: skip
    return PackedConv(QuantizedTensor(codes, params), groups)


def _pack_rows(rows: Array, zero: Array) -> core.PackedMatrix:
    n, k = rows.shape
    packed = core.pack_matrix(
        rows, rows.dtype == np.int8, k, n, True, np.ascontiguousarray(zero) if zero.any() else None
    )
    return packed


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


def _codes(name: str, value: Any, ndim: int) -> Array:
    refuse_masked(name, value)
    array = np.asarray(value)
    if array.dtype not in (np.int8, np.uint8):
        raise UnsupportedDType(f"{name}: {array.dtype}; expected int8 or uint8")
    if array.ndim != ndim:
        raise InvalidProblem(f"{name}: shape {array.shape}; expected {ndim} dimensions")
    return array
