"""Products of bits that stand for +1 and -1: NumPy arrays in, native plans, NumPy arrays out.

Rows of bits are whole bytes, the first bit in bit 0; padding bits of a row are ignored. The sums are
k - 2 * popcount(a xor b), exact. Scaled: f32(sum) * (sa * sb) + bias, every step rounded to float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.runtime.native import core

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
    return core.BinaryMatrix(np.ascontiguousarray(bits, np.uint8), k)


def matmul(a_bits: Bits, packed: core.BinaryMatrix, k: int, *, out: Int32 | None = None) -> Int32:
    """int32 [m, n]: the sums of rows of k bits, a_bits [m, ceil(k / 8)], by packed rows."""
    if k != packed.k:
        raise ValueError(f"k: {k}; the packed rows have {packed.k} bits")
    target = np.empty((len(a_bits), packed.n), np.int32) if out is None else out
    core.BinaryGemmPlan(packed).run(np.ascontiguousarray(a_bits, np.uint8), target)
    return target


def matmul_scaled(
    a_bits: Bits,
    packed: core.BinaryMatrix,
    a_scale: npt.ArrayLike,
    b_scale: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    *,
    out: Float32 | None = None,
) -> Float32:
    """float32 [m, n]: the sums times a_scale (one, or [m]) times b_scale (one, or [n]), plus bias [n].

    >>> packed = prepack(np.array([[0b101], [0b010]], np.uint8), 3)
    >>> matmul_scaled(np.array([[0b111]], np.uint8), packed, 0.5, [1.0, 4.0], [0.0, 10.0])
    array([[0.5, 8. ]], dtype=float32)
    """
    target = np.empty((len(a_bits), packed.n), np.float32) if out is None else out
    plan = core.BinaryGemmPlan(packed, _floats(b_scale), _floats(bias))
    plan.run(np.ascontiguousarray(a_bits, np.uint8), target, _floats(a_scale))
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
    out = np.empty((n, h * w, groups, -(-c // groups // 8)), np.uint8)
    core.binary_channels_last(np.ascontiguousarray(stream, np.uint8), c, out)
    return out.reshape(n, h, w, groups, -1)


def prepack_conv2d(bits: Bits, channels: int, groups: int = 1) -> core.BinaryConv:
    """Weights [out, kh, kw, ceil(channels / 8)] of bits, for any number of convolutions.

    channels: those of a group, as many as each output sees. Padding bits are 0.
    """
    outputs, *rest = bits.shape
    return core.BinaryConv(np.ascontiguousarray(bits, np.uint8).reshape(groups, outputs // groups, *rest), channels)


def conv2d(
    x_bits: Bits,
    packed: core.BinaryConv,
    scales: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike | None] | None = None,
    *,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int, int, int] = (0, 0, 0, 0),
    dilation: tuple[int, int] = (1, 1),
    channels_first: bool = False,
    out: Array | None = None,
) -> Array:
    """int32 [n, oh, ow, out], or [n, out, oh, ow]: sums over x_bits [n, h, w, groups, bytes], which is 0 outside.

    scales: of x (one, or one per image), of w (one, or one per output), and a bias per output; then float32.
    padding: top, left, bottom, right.
    """
    image = (*x_bits.shape[:3], packed.channels)
    window = core.Window(image, packed.kernel, stride, padding, dilation, packed.groups)
    size, n = (window.out_height, window.out_width), len(x_bits)
    shape = (n, packed.outputs, *size) if channels_first else (n, *size, packed.outputs)
    x_scale, w_scale, bias = (None, None, None) if scales is None else map(_floats, scales)
    target = np.empty(shape, np.int32 if scales is None else np.float32) if out is None else out
    plan = core.BinaryConvPlan(packed, window, channels_first, w_scale, bias)
    plan.run(np.ascontiguousarray(x_bits, np.uint8), target, x_scale)
    return target


def _floats(values: npt.ArrayLike | None) -> Float32 | None:
    return None if values is None else np.ascontiguousarray(values, np.float32)
