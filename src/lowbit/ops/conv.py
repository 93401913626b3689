"""Convolutions of quantized images: integer sums, exact, then floats or codes of another scale.

Patches are gathered a few rows at a time as the product's kernels read them; there is no image of patches in memory.
Images [n, c, h, w] are turned to [n, h, w, c] first, and results back.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit import _core
from lowbit.dtypes import is_integer
from lowbit.errors import InvalidProblem, Unsupported, UnsupportedDType
from lowbit.fields import refuse_masked
from lowbit.kernels.dwconv import MAX_TAPS, PackedDepthwise, prepack_depthwise
from lowbit.ops.operands import SUMS, multiplies_as_bytes, remember, require_tensor, sum_dtype, zero_points
from lowbit.ops.outcome import Outcome
from lowbit.params import QuantizationParams
from lowbit.tensor import QuantizedTensor

__all__ = [
    "ConvGeometry", "PackedConv", "check_image", "check_kernel", "conv2d_integer", "convolution", "is_depthwise",
    "line_of", "prepack_conv2d", "qconv1d", "qconv2d", "to_nhwc",
]  # fmt: skip

Array = npt.NDArray[Any]
F32 = np.float32


class ConvGeometry(NamedTuple):
    """How a kernel passes over an image."""

    stride: tuple[int, int]
    padding: tuple[int, int, int, int]  # top, left, bottom, right
    dilation: tuple[int, int]
    groups: int
    layout: str

    @classmethod
    def of(cls, stride: Any, padding: Any, dilation: Any, groups: Any, layout: str) -> ConvGeometry:
        """Raises for whatever cannot be, naming the argument."""
        if layout not in ("NCHW", "NHWC"):
            raise InvalidProblem(f"layout: {layout!r}; expected 'NCHW' or 'NHWC'")
        sides = _numbers("padding", padding, 0, (2, 4))
        if not _is_count(groups) or groups < 1:
            raise InvalidProblem(f"groups: {groups!r}; expected at least 1")
        return cls(
            _numbers("stride", stride, 1, (2,)), sides if len(sides) == 4 else sides * 2,
            _numbers("dilation", dilation, 1, (2,)), int(groups), layout,
        )  # fmt: skip

    def output(self, image: tuple[int, ...], kernel: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the result, for an image of this height and width."""
        top, left, bottom, right = self.padding
        found = []
        for size, pads, k, s, d in zip(
            image, (top + bottom, left + right), kernel, self.stride, self.dilation, strict=True
        ):
            reach = d * (k - 1) + 1
            if k < 1 or size + pads < reach:
                raise InvalidProblem(
                    f"x: {image[0]} by {image[1]} with padding {self.padding} is smaller than the kernel, "
                    f"{kernel[0]} by {kernel[1]} with dilation {self.dilation}"
                )
            found.append((size + pads - reach) // s + 1)
        return found[0], found[1]

    def output_shape(self, x: tuple[int, ...], w: tuple[int, ...]) -> tuple[int, int, int, int]:
        """The shape of the result, for x and w of these shapes."""
        height, width = self.output(_height_width(x, self), (w[2], w[3]))
        return (x[0], w[0], height, width) if self.layout == "NCHW" else (x[0], height, width, w[0])


def is_depthwise(w: tuple[int, ...], groups: int) -> bool:
    """Whether each channel has one filter of its own, and few enough taps for the kernels that serve just that."""
    out, per_group, kh, kw = w
    return per_group == 1 and out == groups and out > 0 and 0 < kh * kw <= MAX_TAPS


class PackedConv:
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
            self.parts = [_pack_rows(r, z) for r, z in zip(rows, zeros, strict=True)]

    def depthwise(self, dtype: np.dtype[Any], g: ConvGeometry) -> PackedDepthwise:
        key = dtype, g.stride, g.dilation, _core.active_isa()
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


def check_kernel(shape: tuple[int, ...], p: QuantizationParams, groups: Any) -> None:
    """Raises for a w that no convolution takes."""
    if len(shape) != 4:
        raise InvalidProblem(f"w: shape {shape}; expected (out, in / groups, height, width)")
    if not multiplies_as_bytes(p):
        raise Unsupported(f"w: {p.dtype}, {p.scheme}; expected linear codes of at most 8 bits")
    if p.block_size is not None or p.axis not in (None, 0, -4):
        raise Unsupported(f"w: scales along axis {p.axis}; expected one scale, or one an output (axis 0)")
    if not _is_count(groups) or groups < 1 or shape[0] % groups:
        raise InvalidProblem(f"groups: {groups!r}; expected a divisor of w's {shape[0]} outputs")


def check_image(shape: tuple[int, ...], p: QuantizationParams, w: tuple[int, ...], g: ConvGeometry) -> None:
    """Raises for an x that no convolution, or not this w, takes."""
    if len(shape) != 4:
        raise InvalidProblem(f"x: shape {shape}; expected four dimensions, {g.layout}")
    if not multiplies_as_bytes(p):
        raise Unsupported(f"x: {p.dtype}, {p.scheme}; expected linear codes of at most 8 bits")
    if p.axis is not None:
        raise Unsupported(f"x: scales along axis {p.axis}; expected one scale")
    if len(w) == 4:
        _fit(shape, w, g)


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
    _fit(image.shape, kernel.shape, g)
    params = QuantizationParams(
        kernel.dtype.name, "asymmetric", np.ones(zw.shape if zw.size != 1 else (), F32),
        zw if zw.size != 1 else int(zw[0]), axis=0 if zw.size != 1 else None,
    )  # fmt: skip
    packed = PackedConv(QuantizedTensor(kernel, params), g.groups)
    out_h, out_w = g.output(_height_width(image.shape, g), (kernel.shape[2], kernel.shape[3]))
    dtype = sum_dtype(math.prod(kernel.shape[1:]))
    y = np.empty((image.shape[0], out_h, out_w, kernel.shape[0]), dtype)
    _convolve(image, int(zx[0]), packed, g, [SUMS] * g.groups, y)
    return _from_nhwc(y, g)


def qconv2d(
    x: QuantizedTensor,
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

    x [n, c, h, w], or [n, h, w, c] with layout="NHWC", with one scale; w [out, c / groups, kh, kw] with one scale or
    one an output, or a PackedConv (whose groups then hold). Padding is x's zero point: one number,
    (vertical, horizontal), or (top, left, bottom, right). bias, out_params, out_dtype, activation and clamp as in
    `qmatmul`.

    >>> import lowbit as lb
    >>> x, w = (lb.quantize(np.ones(s, np.float32)) for s in ((1, 1, 3, 3), (1, 1, 2, 2)))
    >>> lb.qconv2d(x, w, stride=2, padding=(0, 0, 1, 1)).round(2)[0, 0]
    array([[4., 2.],
           [2., 1.]], dtype=float32)
    """
    key: Any = None
    if type(w) is PackedConv and bias is None and type(x) is QuantizedTensor:
        # The call that repeats: everything but the kernel was settled the first time.
        key = x.shape, id(x.params), id(out_params), out_dtype, activation, clamp, stride, padding, dilation, layout
        try:
            ready = w._settled.get(key)
        except TypeError:
            key = ready = None
        if ready is not None:
            return ready.outcome.wrap(_convolved(x, w, ready))
    require_tensor("x", x)
    if isinstance(w, PackedConv):
        groups = w.groups
    else:
        require_tensor("w", w)
    g = ConvGeometry.of(stride, padding, dilation, groups, layout)
    check_image(x.shape, x.params, w.shape, g)
    packed = w if isinstance(w, PackedConv) else prepack_conv2d(w, g.groups)
    outcome = Outcome.of(packed.shape[0], bias, out_params, out_dtype, activation, clamp)
    made = _Settled.of(x, packed, g, outcome, out_params)
    if key is not None:
        remember(packed._settled, key, made)
    return outcome.wrap(_convolved(x, packed, made))


def convolution(
    x: QuantizedTensor, w: PackedConv, g: ConvGeometry, outcome: Outcome, out: Array | None = None
) -> Array:
    """What qconv2d computes, into `out` where it is given. For callers who have made its checks."""
    return _convolved(x, w, _Settled.of(x, w, g, outcome), out)


class _Settled(NamedTuple):
    """All that is known before the codes: for x of one shape and params. It holds on to params, so that ids stay
    theirs."""

    geometry: ConvGeometry
    outcome: Outcome
    shape: tuple[int, int, int, int]  # of the result, channels last
    scales: tuple[Array, Array]
    zero: int
    parts: list[_core.Finish] | None  # what becomes of each group's sums; None: NumPy's business
    kept: tuple[Any, ...]

    @classmethod
    def of(cls, x: QuantizedTensor, w: PackedConv, g: ConvGeometry, outcome: Outcome, *kept: Any) -> _Settled:
        out_h, out_w = g.output(_height_width(x.shape, g), (w.shape[2], w.shape[3]))
        sa, sb = x.params.scale.astype(F32), w.params.scale.astype(F32)
        whole = outcome.finish(sa, sb, math.prod(w.shape[1:]))
        parts = None if whole is None else [whole]
        if whole is not None and g.groups > 1 and not w.is_depthwise:
            parts = [_part(outcome, sa, sb, math.prod(w.shape[1:]), i, g.groups) for i in range(g.groups)]
        zero = int(x.params.zero_point)
        return cls(g, outcome, (x.shape[0], out_h, out_w, w.shape[0]), (sa, sb), zero, parts, (x.params, *kept))


def _convolved(x: QuantizedTensor, w: PackedConv, s: _Settled, out: Array | None = None) -> Array:
    image, g = x.unpack(), s.geometry
    y, memory = s.outcome.empty(s.shape, out if g.layout == "NHWC" else None)
    if s.parts is None:
        kernels = s.shape[3]
        sums = np.empty((1, *s.shape[1:]), sum_dtype(math.prod(w.shape[1:])))
        for i in range(image.shape[0]):
            _convolve(image[i : i + 1], s.zero, w, g, [SUMS] * g.groups, sums)
            s.outcome.general(sums.reshape(-1, kernels), *s.scales, y[i].reshape(-1, kernels))
    else:
        _convolve(image, s.zero, w, g, s.parts, memory)
    return _from_nhwc(y, g, out)


def qconv1d(
    x: QuantizedTensor,
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
    require_tensor("x", x)
    require_tensor("w", w)
    for name, t in (("x", x), ("w", w)):
        if t.ndim != 3:
            raise InvalidProblem(f"{name}: shape {t.shape}; expected three dimensions")
    if layout not in ("NCW", "NWC"):
        raise InvalidProblem(f"layout: {layout!r}; expected 'NCW' or 'NWC'")
    left, right = _numbers("padding", padding, 0, (2,))
    (step, _), (apart, _) = _numbers("stride", stride, 1, (2,)), _numbers("dilation", dilation, 1, (2,))
    axis = 1 if layout == "NWC" else 2
    y = qconv2d(
        _raised(x, axis), _raised(w, 2), bias, stride=(1, step), padding=(0, left, 0, right), dilation=(1, apart),
        groups=groups, layout="NHWC" if layout == "NWC" else "NCHW", **options,
    )  # fmt: skip
    if isinstance(y, QuantizedTensor):
        data = np.squeeze(y.data, axis)
        return QuantizedTensor._trusted(data, y.params, data.shape)
    return np.squeeze(y, axis)


def _convolve(image: Array, zero: int, w: PackedConv, g: ConvGeometry, parts: list[Any], y: Array) -> None:
    """Writes to y [n, h, w, out]; parts: what becomes of each group's sums."""
    x = to_nhwc(image, g)
    batch, height, width, channels = x.shape
    out, per_group, kh, kw = w.shape
    if w.is_depthwise:
        shape = _core.DwconvShape(batch, height, width, channels, kh, kw, *g.stride, *g.padding, *g.dilation)
        w.depthwise(x.dtype, g).native.run(shape, x, zero, parts[0], y)
        return
    (top, left, _, _), (out_h, out_w) = g.padding, y.shape[1:3]
    for i, (part, finish) in enumerate(zip(w.parts, parts, strict=True)):
        geometry = [
            batch, height, width, channels, kh, kw, *g.stride, top, left, *g.dilation, out_h, out_w,
            i * per_group, per_group,
        ]  # fmt: skip
        _core.convolve(x, x.dtype == np.int8, zero, geometry, part, finish, y, i * (out // g.groups), out)


def _part(outcome: Outcome, sa: Array, sb: Array, depth: int, i: int, groups: int) -> Any:
    """The outcome of one group's columns."""
    n = outcome.n // groups
    columns = slice(i * n, (i + 1) * n)
    own = Outcome(
        n, outcome.dtype, outcome.params, None if outcome.bias is None else outcome.bias[columns],
        outcome.floor, outcome.ceiling, outcome.lo, outcome.hi,
    )  # fmt: skip
    return own.finish(sa, sb if sb.ndim == 0 else sb[columns], depth)


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


def _pack_rows(rows: Array, zero: Array) -> _core.PackedMatrix:
    n, k = rows.shape
    packed = _core.pack_matrix(
        rows, rows.dtype == np.int8, k, n, True, np.ascontiguousarray(zero) if zero.any() else None
    )
    return packed


def _fit(x: tuple[int, ...], w: tuple[int, ...], g: ConvGeometry) -> None:
    channels = x[1] if g.layout == "NCHW" else x[3]
    if w[0] % g.groups:
        raise InvalidProblem(f"groups: {g.groups}; expected a divisor of w's {w[0]} outputs")
    if channels != w[1] * g.groups:
        raise InvalidProblem(f"x: {channels} channels; w has {w[1]} in each of {g.groups} groups")


def _height_width(shape: tuple[int, ...], g: ConvGeometry) -> tuple[int, int]:
    return (shape[2], shape[3]) if g.layout == "NCHW" else (shape[1], shape[2])


def to_nhwc(x: Array, g: ConvGeometry) -> Array:
    """Images as the kernels read them, contiguous."""
    if g.layout == "NHWC":
        return np.ascontiguousarray(x)
    n, c, h, w = x.shape
    turned = np.empty((n, h, w, c), x.dtype)
    _core.transpose(np.ascontiguousarray(x), turned, n, c, h * w, x.itemsize)
    return turned


def _from_nhwc(y: Array, g: ConvGeometry, out: Array | None = None) -> Array:
    if g.layout == "NHWC":
        return y
    n, h, w, c = y.shape
    turned = np.empty((n, c, h, w), y.dtype) if out is None else out
    bits = np.dtype(f"u{y.itemsize}")  # bfloat16 lends no buffer
    _core.transpose(y.view(bits), turned.view(bits), n, h * w, c, y.itemsize)
    return turned


def _raised(t: QuantizedTensor, axis: int) -> QuantizedTensor:
    p = t.params
    if p.axis is not None and p.axis % 3 >= axis:
        p = p.replace(axis=p.axis % 3 + 1)
    return QuantizedTensor.from_codes(np.expand_dims(t.unpack(), axis), p)


def _codes(name: str, value: Any, ndim: int) -> Array:
    refuse_masked(name, value)
    array = np.asarray(value)
    if array.dtype not in (np.int8, np.uint8):
        raise UnsupportedDType(f"{name}: {array.dtype}; expected int8 or uint8")
    if array.ndim != ndim:
        raise InvalidProblem(f"{name}: shape {array.shape}; expected {ndim} dimensions")
    return array


def _is_count(value: Any) -> bool:
    return isinstance(value, int) or (isinstance(value, np.generic) and is_integer(value.dtype))


def _numbers(name: str, value: Any, least: int, lengths: tuple[int, ...]) -> tuple[Any, ...]:
    """One number twice, or a tuple of one of these lengths; none below `least`."""
    given = (value, value) if _is_count(value) else value
    if not isinstance(given, tuple | list) or len(given) not in lengths or not all(map(_is_count, given)):
        expected = " or ".join(map(str, lengths))
        raise InvalidProblem(f"{name}: {value!r}; expected an integer, or {expected} of them")
    if min(given) < least:
        raise InvalidProblem(f"{name}: {value!r}; expected at least {least}")
    return tuple(int(v) for v in given)
