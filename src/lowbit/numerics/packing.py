"""Storage layouts in plain NumPy: dense sub-byte codes, and channels of mixed widths."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import Array, QuantizedDType
from lowbit.numerics.errors import InvalidProblem


def pack_bits(codes: Array, bits: int) -> npt.NDArray[np.uint8]:
    """Codes, in C order, 8 / bits of them a byte, the first in the low bits; padding bits are 0.

    >>> pack_bits(np.array([1, -1, 7]), 4).tolist()
    [241, 7]
    """
    flat = codes.reshape(-1).astype(np.uint8) & np.uint8((1 << bits) - 1)
    per_byte = 8 // bits
    padded = np.zeros(-(-flat.size // per_byte) * per_byte, np.uint8)
    padded[: flat.size] = flat
    packed: npt.NDArray[np.uint8] = padded[::per_byte].copy()
    for i in range(1, per_byte):
        packed |= padded[i::per_byte] << np.uint8(i * bits)
    return packed


def pack_rows(codes: Array, bits: int, multiple: int) -> npt.NDArray[np.uint8]:
    """A matrix of codes as rows of bytes, each padded with codes of 0 to a multiple of `multiple`.

    >>> pack_rows(np.array([[1, 2, 3], [4, 5, 6]]), 4, 2).tolist()
    [[33, 3], [84, 6]]
    """
    rows, columns = codes.shape
    padded = np.zeros((rows, -(-columns // multiple) * multiple), np.uint8)
    padded[:, :columns] = codes
    return pack_bits(padded, bits).reshape(rows, padded.shape[1] * bits // 8)


def unpack_bits(data: Array, bits: int, count: int, signed: bool) -> Array:
    """The first `count` codes of packed bytes, one per element, sign-extended where signed.

    >>> unpack_bits(np.array([241, 7], np.uint8), 4, 3, signed=True).tolist()
    [1, -1, 7]
    """
    shifts = np.arange(8 // bits, dtype=np.uint8) * np.uint8(bits)
    codes: Array = (data.reshape(-1, 1) >> shifts).reshape(-1)[:count] & np.uint8((1 << bits) - 1)
    if not signed:
        return codes
    sign = np.uint8(1 << (bits - 1))
    extended: Array = ((codes ^ sign) - sign).view(np.int8)
    return extended


def pack(codes: Array, dtype: QuantizedDType, axis: int | None = None) -> Array:
    """Codes, one per element, as the dtype stores them."""
    if dtype.is_mixed:
        parts = []
        for channel, row in zip(_channels(dtype), mixed_channels(codes, dtype, axis), strict=True):
            parts.append(row.astype("<i2").view(np.uint8) if channel.bits == 16 else pack_bits(row, channel.bits))
        return np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    return pack_bits(codes, dtype.bits) if dtype.is_sub_byte else codes.astype(dtype.storage_dtype, copy=False)


def unpack(data: Array, dtype: QuantizedDType, shape: tuple[int, ...], axis: int | None = None) -> Array:
    """Stored codes, one per element, in their logical shape."""
    if dtype.is_mixed:
        axis = _axis(axis, len(shape))
        length = math.prod(shape) // len(dtype.widths)
        rows = np.empty((len(dtype.widths), length), dtype.code_dtype)
        at = 0
        for row, channel in zip(rows, _channels(dtype), strict=True):
            stored = data[at : at + channel.storage_bytes(length)]
            at += stored.size
            if channel.bits < 8:
                row[:] = unpack_bits(stored, channel.bits, length, channel.is_signed)
            else:  # mixed widths are signed
                row[:] = stored.view(f"<i{channel.bits // 8}")
        moved = (shape[axis], *shape[:axis], *shape[axis + 1 :])
        return np.moveaxis(rows.reshape(moved), 0, axis)
    if dtype.is_sub_byte:
        return unpack_bits(data, dtype.bits, math.prod(shape), dtype.is_signed).reshape(shape)
    return data.reshape(shape)


def padding_is_zero(data: Array, dtype: QuantizedDType, elements: int) -> bool:
    """Whether the bits after the last code, or after the last one of each mixed channel, are all 0.

    >>> padding_is_zero(np.array([241, 7], np.uint8), QuantizedDType.of("int4"), 3)
    True
    """
    if not data.size:
        return True
    widths = np.array(dtype.widths or (dtype.bits,))
    bits = elements // len(widths) * widths
    used = bits % 8
    last = data[np.cumsum((bits + 7) // 8) - 1]
    return not ((used > 0) & (last >> used.astype(np.uint8) > 0)).any()


def mixed_channels(array: Array, dtype: QuantizedDType, axis: int | None) -> Array:
    """An array as one contiguous row per channel, in the order mixed storage has them."""
    axis = _axis(axis, array.ndim)
    if array.shape[axis] != len(dtype.widths):
        raise InvalidProblem(f"axis: {array.shape[axis]} channels, but {len(dtype.widths)} bit widths")
    rows = np.moveaxis(array, axis, 0)
    return np.ascontiguousarray(rows).reshape(len(dtype.widths), -1)


def _channels(dtype: QuantizedDType) -> list[QuantizedDType]:
    return [dtype.channel(i) for i in range(len(dtype.widths))]


def _axis(axis: int | None, ndim: int) -> int:
    axis = 0 if axis is None else axis
    if not -ndim <= axis < ndim:
        raise InvalidProblem(f"axis: {axis} is out of bounds for {ndim} dimensions")
    return axis % ndim
