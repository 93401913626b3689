"""Products of bits that stand for +1 and -1: NumPy arrays in, native kernels, NumPy arrays out.

Rows of bits are whole bytes, the first bit in bit 0; padding bits of a row are not looked at. The sums are
k - 2 * popcount(a xor b), exact. Scaled: f32(sum) * (sa * sb) + bias, every step rounded to float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.runtime.native import core

__all__ = [
    "align_rows", "channels_last", "conv2d", "conv2d_scaled", "conv2d_shape", "matmul", "matmul_scaled", "prepack",
    "prepack_conv2d",
]  # fmt: skip

Array = npt.NDArray[Any]
Bits = npt.NDArray[np.uint8]
Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


def prepack(bits: Bits, k: int) -> core.BinaryMatrix:
    """n rows of k bits, [n, ceil(k / 8)], as the second operand of any number of products.

    >>> packed = prepack(np.array([[0b101], [0b010]], np.uint8), 3)
    >>> matmul(np.array([[0b111]], np.uint8), packed, 3)
    array([[ 1, -1]], dtype=int32)
    """
    return core.BinaryMatrix(np.ascontiguousarray(bits, np.uint8), _rows(bits, "bits"), k)


def matmul(a_bits: Bits, packed: core.BinaryMatrix, k: int, *, out: Int32 | None = None) -> Int32:
    """int32 [m, n]: the sums of rows of k bits, a_bits [m, ceil(k / 8)], by packed rows."""
    m = _checked(a_bits, packed, k)
    target = np.empty((m, packed.n), np.int32) if out is None else _output(out, (m, packed.n), np.int32)
    core.binary_matmul(np.ascontiguousarray(a_bits, np.uint8), m, packed, target)
    return target


def matmul_scaled(
    a_bits: Bits,
    packed: core.BinaryMatrix,
    k: int,
    a_scale: npt.ArrayLike,
    b_scale: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    out: Float32 | None = None,
) -> Float32:
    """float32 [m, n]: the sums times a_scale (one, or [m]) times b_scale (one, or [n]), plus bias [n].

    >>> packed = prepack(np.array([[0b101], [0b010]], np.uint8), 3)
    >>> matmul_scaled(np.array([[0b111]], np.uint8), packed, 3, 0.5, [1.0, 4.0], [0.0, 10.0])
    array([[0.5, 8. ]], dtype=float32)
    """
    m = _checked(a_bits, packed, k)
    target = np.empty((m, packed.n), np.float32) if out is None else _output(out, (m, packed.n), np.float32)
    codes = np.ascontiguousarray(a_bits, np.uint8)
    core.binary_matmul(codes, m, packed, target, _floats(a_scale), _floats(b_scale), _floats(bias))
    return target


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


def channels_last(stream: Bits, shape: tuple[int, int, int, int], groups: int = 1) -> Bits:
    """A stream of bits [n, c, h, w] as [n, h, w, groups, ceil(c / groups / 8)], padding 0."""
    n, c, h, w = shape
    out = np.empty((n, h, w, groups, -(-c // groups // 8)), np.uint8)
    core.binary_channels_last(np.ascontiguousarray(stream, np.uint8), n, c, h * w, groups, out)
    return out


def prepack_conv2d(bits: Bits, channels: int, groups: int = 1) -> core.BinaryConv:
    """Weights [out, kh, kw, ceil(channels / 8)] of bits, for any number of convolutions. channels: of a group, so
    many as each output sees. Padding bits are 0."""
    outputs, kh, kw, _ = bits.shape
    return core.BinaryConv(np.ascontiguousarray(bits, np.uint8), groups, channels, outputs // groups, (kh, kw))


def conv2d_shape(
    image: tuple[int, int],
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
) -> tuple[int, int]:
    """Height and width of the result; not positive where the image is smaller than the kernel.

    >>> conv2d_shape((5, 6), (3, 3), (1, 2), (1, 0, 1, 0), (1, 1))
    (5, 2)
    """
    h, w = (
        (image[i] + padding[i] + padding[i + 2] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    )
    return h, w


def conv2d(
    x_bits: Bits,
    packed: core.BinaryConv,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    channels_first: bool = False,
    out: Int32 | None = None,
) -> Int32:
    """int32 [n, oh, ow, out], or [n, out, oh, ow]: sums over x_bits [n, h, w, groups, bytes], which is 0 outside.
    padding: top, left, bottom, right."""
    shape = _result_shape(x_bits, packed, stride, padding, dilation, channels_first)
    target = np.empty(shape, np.int32) if out is None else _output(out, shape, np.int32)
    codes = np.ascontiguousarray(x_bits, np.uint8)
    core.binary_conv2d(codes, packed, target, x_bits.shape[:3], stride, padding, dilation, channels_first)
    return target


def conv2d_scaled(
    x_bits: Bits,
    packed: core.BinaryConv,
    x_scale: npt.ArrayLike,
    w_scale: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    channels_first: bool = False,
    out: Float32 | None = None,
) -> Float32:
    """float32: the sums of conv2d times x_scale (one, or one an image) times w_scale (one, or one an output), plus
    bias [out]."""
    shape = _result_shape(x_bits, packed, stride, padding, dilation, channels_first)
    target = np.empty(shape, np.float32) if out is None else _output(out, shape, np.float32)
    codes, scales = np.ascontiguousarray(x_bits, np.uint8), (_floats(x_scale), _floats(w_scale), _floats(bias))
    core.binary_conv2d(codes, packed, target, x_bits.shape[:3], stride, padding, dilation, channels_first, *scales)
    return target


def _rows(bits: Bits, name: str) -> int:
    if bits.ndim != 2:
        raise ValueError(f"{name}: {bits.ndim} dimensions; expected rows of bytes")
    return len(bits)


def _checked(a_bits: Bits, packed: core.BinaryMatrix, k: int) -> int:
    if k != packed.k:
        raise ValueError(f"k: {k}; the packed rows have {packed.k} bits")
    return _rows(a_bits, "a_bits")


def _result_shape(
    x_bits: Bits,
    packed: core.BinaryConv,
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    channels_first: bool,
) -> tuple[int, ...]:
    n, h, w = x_bits.shape[:3]
    kh, kw = packed.kernel
    size = conv2d_shape((h, w), (kh, kw), stride, padding, dilation)
    return (n, packed.outputs, *size) if channels_first else (n, *size, packed.outputs)


def _output(out: Array, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    if out.dtype != dtype or out.shape != shape or not out.flags.carray:
        found = f"{out.dtype} of shape {out.shape}"
        raise ValueError(f"out: {found}; expected a contiguous {np.dtype(dtype)} array of shape {shape}")
    return out


def _floats(values: npt.ArrayLike | None) -> Float32 | None:
    return None if values is None else np.ascontiguousarray(values, np.float32)
