"""Matrices in the compressed-tensors layouts `pack-quantized` and `int-quantized`, and their entries in config.json.

pack-quantized: code + 2^(b-1), b bits each, low bits first, rows padded with zero bits to whole int32 words.
int-quantized: the codes as int8. Scales are 16-bit floats, and codes are computed with the scales as stored, so that a
loader gets the same bits as `dequantize`. A symmetric group with zero point -1 is stored as its negative scale with
inverted codes: (q + 1) * s = (-q - 1) * -s, so no zero points are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.formats.safetensors.writer import Stored
from lowbit.models.recipe import ActivationRecipe, WeightRecipe
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.packing import pack_rows, unpack_bits
from lowbit.numerics.tensor import QuantizedTensor

Array = npt.NDArray[Any]
PACK, INT = "pack-quantized", "int-quantized"
# The dtype of scales by that of the weight. bfloat16 has the range of float32, and most of its numbers are float16
# numbers too: they keep their value whatever dtype a model is loaded in.
SCALES = {"F32": "BF16", "F16": "F16", "BF16": "BF16"}
FLOATS = tuple(SCALES)
SCALE_DTYPES = {"F16": "float16", "BF16": "bfloat16"}


class Rows(NamedTuple):
    """Some rows of a matrix as they are stored."""

    codes: Array
    scale: Array
    zero_point: Array | None  # one per scale, as unsigned codes; packed once the matrix is complete


@dataclass(frozen=True)
class Scheme:
    """How the weights of some modules are stored, and how their inputs are quantized.

    >>> Scheme(WeightRecipe("int4", group_size=32)).stored("up", (8, 64), "BF16")[0]
    Stored(name='up.weight_packed', dtype='I32', shape=(8, 8))
    """

    weights: WeightRecipe
    activations: ActivationRecipe | None = None

    def __post_init__(self) -> None:
        a = self.activations
        if a is not None and not a.dynamic:
            raise Unsupported("activations: static; checkpoints are quantized without data, use dynamic activations")
        if a is not None and QuantizedDType.of(a.dtype).bits != 8:
            raise Unsupported(f"activations: {a.dtype}; expected int8 or uint8 in a compressed-tensors checkpoint")

    @property
    def bits(self) -> int:
        return QuantizedDType.of(self.weights.dtype).bits

    @property
    def format(self) -> str:
        # Integer kernels read int8 codes; everything else is packed, as weight-only loaders expect.
        return INT if self.bits == 8 and self.activations is not None else PACK

    def stored(self, module: str, shape: tuple[int, ...], dtype: str) -> list[Stored]:
        """The tensors that replace `<module>.weight`."""
        n, k = shape
        size = self.weights.group_size
        scales: tuple[int, ...] = (1,) if self.weights.granularity == "tensor" else (n, k // size if size else 1)
        scale = Stored(f"{module}.weight_scale", SCALES[dtype], scales)
        if self.format == INT:
            found = [Stored(f"{module}.weight", "I8", shape), scale]
        else:
            codes = Stored(f"{module}.weight_packed", "I32", (n, -(-k * self.bits // 32)))
            found = [codes, scale, Stored(f"{module}.weight_shape", "I64", (2,))]
        if self.weights.scheme == "asymmetric":
            packed = self.format == PACK and len(scales) == 2
            rows = (-(-n * self.bits // 32), scales[1]) if packed else scales
            found.append(Stored(f"{module}.weight_zero_point", "I32" if packed else "I8", rows))
        return found

    def config(self, targets: list[str]) -> dict[str, Any]:
        """The entry of config_groups for these targets."""
        w, a = self.weights, self.activations
        return {
            "targets": targets,
            "weights": _entry(self.bits, w.scheme, w.granularity, w.group_size),
            "input_activations": None if a is None else _entry(8, a.scheme, a.granularity, dynamic=True),
            "output_activations": None,
            "format": self.format,
        }

    @staticmethod
    def scale_dtype(dtype: str) -> str:
        """The type of the scales of a weight of this dtype."""
        return SCALE_DTYPES[SCALES[dtype]]

    def rows(self, q: QuantizedTensor, dtype: str) -> Rows:
        """Rows of a weight of this dtype, whose scales are numbers of the dtype that stores them."""
        p = q.params
        scale = np.asarray(p.scale, np.float32)
        shape = scale.shape if scale.ndim == 2 else (-1, 1) if scale.ndim else (1,)
        zero, inverted = None, None
        if self.weights.scheme == "asymmetric":
            zero = (p.zero_point + _offset(q.dtype)).astype(np.uint8).reshape(shape)
        elif p.zero_point.any():
            negative = np.broadcast_to(p.zero_point != 0, scale.shape)
            scale, inverted = np.where(negative, -scale, scale), negative.reshape(shape)
        codes = _signed(q, inverted) if self.format == INT else packed_rows(q, inverted)
        return Rows(codes, rounded(scale, SCALES[dtype])[0].reshape(shape), zero)

    def zero_points(self, zero: Array) -> Array:
        """Zero points of a whole matrix, given as unsigned codes, in the stored form."""
        if self.format == PACK and zero.ndim == 2:
            return np.ascontiguousarray(_words(np.ascontiguousarray(zero.T), self.bits).T)
        return (zero.astype(np.int16) - (1 << (self.bits - 1))).astype(np.int8)


def _entry(
    bits: int, scheme: str, strategy: str, group_size: int | None = None, dynamic: bool = False
) -> dict[str, Any]:
    made = {"num_bits": bits, "type": "int", "symmetric": scheme == "symmetric", "strategy": strategy}
    return made | {"group_size": group_size, "dynamic": dynamic}


def packed_rows(q: QuantizedTensor, inverted: Array | None = None) -> npt.NDArray[np.int32]:
    """The codes of a matrix, offset to be unsigned, in int32 words; each row begins a new word.

    inverted: the groups [rows, groups] whose codes q are stored as -q - 1.

    >>> import lowbit as lb
    >>> q = lb.quantize(np.float32([[-7, 0, 7, 1, 0, 0, 0, 0]]), "int4", qmin=-7, qmax=7)
    >>> hex(int(packed_rows(q)[0, 0]) & 0xFFFFFFFF)
    '0x88889f81'
    """
    n, k = q.shape
    bits, offset = q.dtype.bits, _offset(q.dtype)
    group = k if inverted is None else k // inverted.shape[-1]
    if k * bits % 32 == 0 and group * bits % 8 == 0:
        # The layout is lowbit's own except for the offset, and adding half the range flips the top bit of a code.
        every = offset * (255 // ((1 << bits) - 1))
        flat = q.data.reshape(n, -1).view(np.uint8) ^ np.uint8(every)
        if inverted is not None:
            flat ^= np.repeat(np.where(inverted, np.uint8(255), np.uint8(0)), group * bits // 8, axis=-1)
        words: npt.NDArray[np.int32] = flat.view("<i4").reshape(n, k * bits // 32)
        return words
    codes = q.unpack() if inverted is None else _inverted(q.unpack(), inverted)
    return _words((codes.astype(np.int16) + offset).astype(np.uint8), bits)


def unpacked_rows(words: Array, bits: int, columns: int) -> Array:
    """Unsigned codes of rows of words.

    >>> unpacked_rows(np.array([[0x321]], np.int32), 4, 3)
    array([[1, 2, 3]], dtype=uint8)
    """
    flat = np.ascontiguousarray(words, "<i4").view(np.uint8)
    per_row = words.shape[1] * 32 // bits
    return unpack_bits(flat, bits, len(words) * per_row, signed=False).reshape(len(words), per_row)[:, :columns]


def decompressed(
    tensors: Mapping[str, Array], scheme: Scheme, shape: tuple[int, int], dtype: str, scale_dtype: str | None = None
) -> Array:
    """The float32 matrix of stored tensors, by their local names: (code - zero point) * scale, rounded to the model's
    dtype as a loader does. scale_dtype: as stored; None: as lowbit stores them."""
    bits = scheme.bits
    half = 1 << (bits - 1)
    if scheme.format == INT:
        codes = tensors["weight"].astype(np.int32) + half
    else:
        codes = unpacked_rows(tensors["weight_packed"], bits, shape[1]).astype(np.int32)
    scale = rounded(widened(tensors["weight_scale"], scale_dtype or SCALES[dtype]), dtype)[1]
    zero: Any = half
    if "weight_zero_point" in tensors:
        stored = tensors["weight_zero_point"]
        zero = stored.astype(np.int32) + half
        if stored.dtype == np.int32:
            zero = unpacked_rows(stored.T, bits, shape[0]).T.astype(np.int32)
        zero = zero if zero.ndim < 2 else np.repeat(zero, shape[1] // zero.shape[1], axis=1)
    wide = scale if scale.ndim < 2 else np.repeat(scale, shape[1] // scale.shape[1], axis=1)
    return rounded((codes - zero).astype(np.float32) * wide, dtype)[1]


def widened(array: Array, dtype: str) -> npt.NDArray[np.float32]:
    """The same numbers in float32; bfloat16 may come as its bits."""
    if dtype == "BF16":
        return (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.asarray(array, np.float32)


def rounded(x: npt.NDArray[np.float32], dtype: str) -> tuple[Array, npt.NDArray[np.float32]]:
    """(as stored, as float32) of numbers rounded to a dtype, ties to even; bfloat16 is stored as its bits."""
    if dtype == "F32":
        return x, x
    if dtype == "F16":
        half = x.astype(np.float16)
        return half, half.astype(np.float32)
    if dtype != "BF16":
        raise InvalidProblem(f"dtype: {dtype}; expected {', '.join(FLOATS)}")
    bits = np.atleast_1d(x).view(np.uint32).reshape(x.shape)
    bits = bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1)) >> np.uint32(16)
    stored = bits.astype(np.uint16)
    return stored, widened(stored, "BF16")


def _offset(dtype: QuantizedDType) -> int:
    """The offset that makes codes of this dtype unsigned."""
    return 1 << (dtype.bits - 1) if dtype.is_signed else 0


def _signed(q: QuantizedTensor, inverted: Array | None) -> Array:
    codes = q.data if q.dtype.is_signed else (q.data ^ np.uint8(0x80)).view(np.int8)
    return codes if inverted is None else _inverted(codes, inverted)


def _inverted(codes: Array, inverted: Array) -> Array:
    """Signed codes q, -q - 1 in the groups that are inverted."""
    made: Array = codes ^ -np.repeat(inverted, codes.shape[1] // inverted.shape[-1], axis=-1).astype(np.int8)
    return made


def _words(codes: Array, bits: int) -> npt.NDArray[np.int32]:
    """Rows of unsigned codes in rows of whole words."""
    return pack_rows(codes, bits, 32 // bits).view("<i4")
