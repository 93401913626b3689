"""Products of binary tensors, whose codes stand for +s and -s: one bit a number, counted instead of multiplied.

Rows of bits are whole bytes, the first bit in bit 0; padding bits of a row are ignored. The sums are
k - 2 * popcount(a xor b), exact. Scaled: f32(sum) * (sa * sb) + bias, every step rounded to float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.fields import refuse_masked, whole
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.conv_geometry import ConvGeometry, require_layout
from lowbit.ops.epilogue import refuse_nan
from lowbit.ops.operands import require_output, require_tensor
from lowbit.ops.quantize import quantize
from lowbit.runtime import arrays as cpu
from lowbit.runtime.arrays import Array
from lowbit.runtime.native import core

Bits = npt.NDArray[np.uint8]
Float32 = npt.NDArray[np.float32]
Layout = Literal["NCHW", "NHWC"]
P = TypeVar("P", core.BinaryMatrix, core.BinaryConv)
_SUMS = (None, None, None)  # no scales and no bias: integer sums


@dataclass(frozen=True, eq=False)
class _Packed(Generic[P]):
    native: P
    scale: Float32  # one, or one per output

    @property
    def nbytes(self) -> int:
        return self.native.nbytes + self.scale.nbytes


class PackedBinary(_Packed[core.BinaryMatrix]):
    """A binary matrix of n rows of k bits, packed for products. It does not depend on the CPU's kernels."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.native.n, self.native.k


class PackedBinaryConv2d(_Packed[core.BinaryConv]):
    """Binary weights of a convolution, packed in the order of the kernels."""


def prepack_binary(b: QuantizedTensor, *, transpose: bool = True) -> PackedBinary:
    """Weights for any number of binary_matmul calls: b [n, k], a row an output, or with transpose=False [k, n].

    >>> import lowbit as lb
    >>> prepack_binary(lb.quantize(np.ones((3, 5), np.float32), "binary")).shape
    (3, 5)
    """
    if _binary(b, "b").ndim != 2:
        raise InvalidProblem(f"b: shape {b.shape}; expected two dimensions")
    bits, scale = _rows(b, "b", not transpose)
    k = b.shape[1] if transpose else b.shape[0]
    return PackedBinary(core.BinaryMatrix(bits, _checked_k(k, "b")), scale)


def binary_matmul(
    a: Any,
    b: QuantizedTensor | PackedBinary,
    bias: npt.ArrayLike | None = None,
    *,
    transpose_a: bool = False,
    transpose_b: bool = True,
    out: Float32 | None = None,
) -> Float32:
    """float32 [..., n]: the product of what the codes of a [..., k] and b [n, k] stand for, plus bias [n].

    The sums of +1 and -1 are exact; y = f32(sum) * (sa * sb) + bias. Scales are one a tensor or one a row. a may be a
    float array, whose rows are then quantized as `lb.quantize` does, each with its own mean |x| as scale. Both
    have rows of k by default; with transpose_a a is [k, m], and with transpose_b=False b is [k, n].

    >>> import lowbit as lb
    >>> w = lb.quantize(np.float32([[1, -1, 1], [-2, -2, 2]]), "binary", axis=0)
    >>> binary_matmul(np.float32([[3, -3, -3]]), w)
    array([[ 3., -6.]], dtype=float32)
    """
    packed = b if isinstance(b, PackedBinary) else prepack_binary(b, transpose=transpose_b)
    if isinstance(b, PackedBinary) and not transpose_b:
        raise InvalidProblem("transpose_b: False, but b is packed; say so to prepack_binary")
    n, k = packed.shape
    shape = _shape(a, "a")
    if not shape or (transpose_a and len(shape) != 2):
        raise InvalidProblem(f"a: shape {shape}; expected {'[k, m]' if transpose_a else '[..., k]'}")
    rows, depth = ((shape[1],), shape[0]) if transpose_a else (shape[:-1], shape[-1])
    if depth != k:
        raise InvalidProblem(f"a: shape {shape}, k is {depth}; b has rows of {k}")
    bias = _bias(bias, n)
    target = _output(out, (*rows, n))
    bits, scale = _operand(a, "a", transpose_a)
    cpu.require_apart("out", target, False, a=bits)
    multiply(bits, packed.native, target.reshape(math.prod(rows), n), (scale, packed.scale, bias))
    return target


def multiply(
    a_bits: Bits,
    packed: core.BinaryMatrix,
    out: Array,
    scales: tuple[Float32 | None, Float32 | None, Float32 | None] = _SUMS,
) -> None:
    """Writes the sums of rows of bits a_bits [m, ceil(k / 8)] by packed rows to `out` [m, n], int32; with scales of a
    (one, or [m]) and of b (one, or [n]), and a bias [n], float32."""
    a_scale, b_scale, bias = scales
    core.BinaryGemmPlan(packed, b_scale, bias).run(a_bits, out, a_scale)


def prepack_binary_conv2d(w: QuantizedTensor, *, groups: int = 1, layout: Layout = "NCHW") -> PackedBinaryConv2d:
    """Weights for any number of binary_conv2d calls: w [out, in / groups, kh, kw], or [out, kh, kw, in / groups]
    where layout is "NHWC".

    >>> import lowbit as lb
    >>> prepack_binary_conv2d(lb.quantize(np.ones((8, 4, 3, 3), np.float32), "binary")).native.kernel
    [3, 3]
    """
    _binary(w, "w")
    if w.ndim != 4 or 0 in w.shape[1:]:
        raise InvalidProblem(f"w: shape {w.shape}; expected four dimensions, none empty but the outputs")
    if whole("groups", groups) < 1 or w.shape[0] % groups:
        raise InvalidProblem(f"groups: {groups}; expected a divisor of w's {w.shape[0]} outputs")
    require_layout("layout", layout)
    codes = np.moveaxis(w.unpack(), 1, 3) if layout == "NCHW" else w.unpack()
    bits = np.packbits(codes, axis=-1, bitorder="little")
    _checked_k(8 * math.prod(bits.shape[1:]), "w")
    scale = _scales(w, (1, 2, 3), "w", "an output channel")
    by_group = np.ascontiguousarray(bits).reshape(groups, len(bits) // groups, *bits.shape[1:])
    return PackedBinaryConv2d(core.BinaryConv(by_group, codes.shape[3]), scale)


def binary_conv2d(
    x: Any,
    w: QuantizedTensor | PackedBinaryConv2d,
    bias: npt.ArrayLike | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: Layout = "NCHW",
    out: Float32 | None = None,
) -> Float32:
    """float32 [n, out, oh, ow]: the convolution of what the codes of x [n, c, h, w] stand for with those of w
    [out, c / groups, kh, kw], plus bias [out]; with layout "NHWC" x, w and the result have channels last.

    Sums are exact and y = f32(sum) * (sx * sw) + bias. x has one scale, or one an image (axis=0); w one, or one an
    output. x may be a float array: each image is then quantized with its own mean |x| as scale. Padding adds zeros,
    which no code stands for: places outside of x add nothing. padding: one number, (h, w), or (top, left, bottom,
    right).

    >>> import lowbit as lb
    >>> w = lb.quantize(np.ones((1, 1, 3, 3), np.float32), "binary")
    >>> binary_conv2d(np.float32([[[[2, -2], [2, 2]]]]), w, padding=1)
    array([[[[4., 4.],
             [4., 4.]]]], dtype=float32)
    """
    require_layout("layout", layout)
    packed = w if isinstance(w, PackedBinaryConv2d) else prepack_binary_conv2d(w, groups=groups, layout=layout)
    native = packed.native
    if native.groups != groups:
        raise InvalidProblem(f"groups: {groups}; w is packed for {native.groups}")
    shape = _shape(x, "x")
    if len(shape) != 4:
        raise InvalidProblem(f"x: shape {shape}; expected four dimensions, {layout}")
    g = ConvGeometry.of(stride, padding, dilation, groups, layout)
    channels = g.nhwc(shape)[3]
    if channels != native.channels:
        raise InvalidProblem(f"x: {channels} channels; w and groups expect {native.channels}")
    target = _output(out, g.output_shape(shape, (native.outputs, 0, *native.kernel)))
    bias = _bias(bias, native.outputs)
    if not math.prod(shape):  # nothing but padding
        target[...] = 0 if bias is None else bias.reshape(-1, 1, 1) if layout == "NCHW" else bias
        return target
    q = x if isinstance(x, QuantizedTensor) else quantize(x, "binary", axis=0, name="x")
    bits, scale = _pixels(q, g), _scales(q, (1, 2, 3), "x", "an image")
    cpu.require_apart("out", target, False, x=bits)
    convolve(bits, native, g, target, (scale, packed.scale, bias))
    return target


def convolve(
    bits: Bits,
    packed: core.BinaryConv,
    g: ConvGeometry,
    out: Array,
    scales: tuple[Float32 | None, Float32 | None, Float32 | None] = _SUMS,
) -> None:
    """Writes the sums over images [n, h, w, groups, bytes], which are 0 outside, to `out` in g's layout, int32; with
    scales of x (one, or one per image) and of w (one, or one per output), and a bias per output, float32."""
    x_scale, w_scale, bias = scales
    window = core.Window((*bits.shape[:3], packed.channels), packed.kernel, g.stride, g.padding, g.dilation, g.groups)
    core.BinaryConvPlan(packed, window, g.layout == "NCHW", w_scale, bias).run(bits, out, x_scale)


def conv2d_sums(x: QuantizedTensor, w: QuantizedTensor, g: ConvGeometry, out: Array) -> None:
    """Writes the sums of +1 and -1 of images x in g's layout by w [out, c / groups, kh, kw] to `out`, int32
    [n, oh, ow, out]. Nothing is empty, and shapes fit."""
    packed = prepack_binary_conv2d(w, groups=g.groups)
    convolve(_pixels(x, g), packed.native, g._replace(layout="NHWC"), out)


# ---- operands ----


def _binary(q: Any, name: str) -> QuantizedTensor:
    require_tensor(name, q)
    if not q.dtype.is_binary:
        raise Unsupported(f"{name}: {q.dtype}; expected binary codes")
    return cast(QuantizedTensor, q)


def _shape(x: Any, name: str) -> tuple[int, ...]:
    return _binary(x, name).shape if isinstance(x, QuantizedTensor) else cpu.as_float_array(x, name).shape


def _operand(a: Any, name: str, transposed: bool) -> tuple[Bits, Float32]:
    """Rows of bits and their scales, of a binary tensor or of numbers."""
    if isinstance(a, QuantizedTensor):
        return _rows(a, name, transposed)
    x = cpu.as_float_array(a, name)
    if not math.prod(x.shape):
        rows, k = x.shape[::-1] if transposed else (math.prod(x.shape[:-1]), x.shape[-1])
        return np.zeros((rows, -(-k // 8)), np.uint8), np.ones(1, np.float32)
    axis = 0 if transposed else -1
    return _rows(quantize(a, "binary", axis=axis, group_size=x.shape[axis], name=name), name, transposed)


def _rows(q: QuantizedTensor, name: str, transposed: bool) -> tuple[Bits, Float32]:
    """Rows of whole bytes, and one scale or one a row."""
    scale = _scales(q, (0 if transposed else q.ndim - 1,), name, "a row")
    if transposed:
        return np.ascontiguousarray(np.packbits(q.unpack().T, axis=-1, bitorder="little")), scale
    return align_rows(q.data, math.prod(q.shape[:-1]), _checked_k(q.shape[-1], name)), scale


def _pixels(q: QuantizedTensor, g: ConvGeometry) -> Bits:
    """[n, h, w, groups, bytes]"""
    n, h, w, c = g.nhwc(q.shape)
    if g.layout == "NCHW":
        return channels_last(q.data, q.shape, g.groups)
    return align_rows(q.data, n * h * w * g.groups, c // g.groups).reshape(n, h, w, g.groups, -1)


def align_rows(stream: Bits, rows: int, k: int) -> Bits:
    """Rows of k bits that follow each other without a gap, as [rows, ceil(k / 8)], padding 0.

    >>> align_rows(np.array([0b11_010_101, 0b1], np.uint8), 3, 3).tolist()
    [[5], [2], [7]]
    """
    stream = np.ascontiguousarray(stream, np.uint8)
    if k % 8 == 0:
        return stream.reshape(rows, k // 8)
    out = np.empty((rows, -(-k // 8)), np.uint8)
    core.binary_align_rows(stream, rows, k, out)
    return out


def channels_last(stream: Bits, shape: tuple[int, ...], groups: int) -> Bits:
    """A stream of bits [n, c, h, w] as [n, h, w, groups, ceil(c / groups / 8)], padding 0."""
    n, c, h, w = shape
    out = np.empty((n, h * w, groups, -(-c // groups // 8)), np.uint8)
    core.binary_channels_last(np.ascontiguousarray(stream, np.uint8), c, out)
    return out.reshape(n, h, w, groups, -1)


def _scales(q: QuantizedTensor, summed: tuple[int, ...], name: str, each: str) -> Float32:
    """One scale, or one for each index of the axes that are not summed over."""
    scale = q.params.scale.astype(np.float32)
    if scale.size == 1:
        return scale.reshape(1)
    # As an array over q, in which whatever is summed has one scale.
    axis = (q.params.axis or 0) % q.ndim
    if q.params.group_size is None:
        scale = scale.reshape([-1 if i == axis else 1 for i in range(q.ndim)])
    if any(scale.shape[i] > 1 for i in summed):
        raise Unsupported(f"{name}: scales within what is summed; expected one in all, or one for {each}")
    kept = tuple(1 if i in summed else size for i, size in enumerate(q.shape))
    return np.ascontiguousarray(np.broadcast_to(scale, kept)).reshape(-1)


# ---- arguments ----


def _checked_k(k: int, name: str) -> int:
    if k >= 2**31:
        raise Unsupported(f"{name}: sums over {k} bits; expected fewer than 2^31")
    return k


def _bias(bias: npt.ArrayLike | None, n: int) -> Float32 | None:
    if bias is None:
        return None
    refuse_masked("bias", bias)
    values = np.asarray(bias)
    if values.dtype.kind != "f" or values.shape != (n,):
        raise InvalidProblem(f"bias: {values.dtype} of shape {values.shape}; expected floats of shape ({n},)")
    refuse_nan("bias", values)
    return values.astype(np.float32)


def _output(out: Float32 | None, shape: tuple[int, ...]) -> Float32:
    if out is None:
        return np.empty(shape, np.float32)
    require_output(out, np.dtype(np.float32), shape)
    return out
