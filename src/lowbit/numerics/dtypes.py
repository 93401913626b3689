"""Quantized element types as data: how many bits, which values, how they are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem, UnsupportedDType

Array: TypeAlias = npt.NDArray[Any]
# Anything QuantizedDType.of accepts: a name, a NumPy, ml_dtypes or torch dtype, or a QuantizedDType.
DTypeLike: TypeAlias = Any

MIXED_WIDTHS = (1, 2, 4, 8, 16)

_ALIASES = {
    "i8": "int8", "s8": "int8", "u8": "uint8", "i16": "int16", "s16": "int16", "u16": "uint16",
    "i4": "int4", "s4": "int4", "u4": "uint4", "i2": "int2", "s2": "int2", "u2": "uint2",
    "bool": "binary", "bool_": "binary", "bit": "binary", "b1": "binary",
}  # fmt: skip


@dataclass(frozen=True)
class QuantizedDType:
    """An element type of quantized codes.

    >>> QuantizedDType.of("int4").qmin, QuantizedDType.of("int4").qmax
    (-8, 7)
    >>> QuantizedDType.of(np.uint8) == QuantizedDType.of("uint8")
    True
    """

    name: str
    bits: int
    is_signed: bool
    # One bit width per channel; empty unless this is a mixed dtype.
    widths: tuple[int, ...] = ()

    @staticmethod
    def of(value: DTypeLike) -> QuantizedDType:
        """The dtype meant by a name ("int8", "u4"), a NumPy, ml_dtypes or torch dtype, or a QuantizedDType."""
        if isinstance(value, QuantizedDType):
            return value
        name = value if isinstance(value, str) else _name_of(value)
        key = name.strip().lower()
        key = _ALIASES.get(key, key)
        if key == "mixed":
            raise InvalidProblem("dtype: 'mixed' needs a bit width per channel; use QuantizedDType.mixed(widths)")
        try:
            return _BY_NAME[key]
        except KeyError:
            raise UnsupportedDType(
                f"dtype: {value!r} is not a quantized type; expected one of {', '.join(_BY_NAME)}"
            ) from None

    @staticmethod
    def mixed(widths: Iterable[int]) -> QuantizedDType:
        """A dtype with a bit width (1, 2, 4, 8 or 16) for each channel.

        >>> QuantizedDType.mixed([8, 4, 4, 1]).bits
        8
        """
        given = tuple(widths)
        if not given:
            raise InvalidProblem("widths: expected one bit width per channel, got none")
        for i, w in enumerate(given):
            if not isinstance(w, int | np.integer) or w not in MIXED_WIDTHS:
                raise InvalidProblem(f"widths[{i}]: {w!r} bits; expected one of {MIXED_WIDTHS}")
        chosen = tuple(int(w) for w in given)
        return QuantizedDType("mixed", max(chosen), True, chosen)

    @property
    def is_mixed(self) -> bool:
        return bool(self.widths)

    @property
    def is_binary(self) -> bool:
        return self.name == "binary"

    @property
    def qmin(self) -> int:
        """The least code."""
        return -(1 << (self.bits - 1)) if self.is_signed else 0

    @property
    def qmax(self) -> int:
        """The greatest code."""
        return (1 << (self.bits - 1)) - 1 if self.is_signed else (1 << self.bits) - 1

    @property
    def value_range(self) -> tuple[int, int]:
        """(qmin, qmax)."""
        return self.qmin, self.qmax

    @property
    def num_values(self) -> int:
        """The number of codes."""
        return 1 << self.bits

    @property
    def is_sub_byte(self) -> bool:
        """Codes are narrower than a byte and stored packed."""
        return self.bits < 8

    @cached_property
    def is_packed(self) -> bool:
        """Stored as bytes that do not hold one code per element each."""
        return self.is_sub_byte or self.is_mixed

    @property
    def values_per_byte(self) -> int:
        """Codes in a byte of storage; 1 for codes of a byte and wider."""
        return max(1, 8 // self.bits)

    @cached_property
    def storage_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of stored codes: uint8 where they are packed."""
        return np.dtype(np.uint8) if self.is_packed else np.dtype(self.name)

    @cached_property
    def code_dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of unpacked codes, one per element."""
        if self.is_mixed:
            return np.dtype(np.int16)
        if self.is_sub_byte:
            return np.dtype(np.int8 if self.is_signed else np.uint8)
        return np.dtype(self.name)

    def channel(self, index: int) -> QuantizedDType:
        """The dtype of one channel of a mixed dtype; this dtype itself otherwise."""
        if not self.is_mixed:
            return self
        width = self.widths[index]
        return _BY_NAME["binary"] if width == 1 else _BY_NAME[f"int{width}"]

    def storage_bytes(self, elements: int) -> int:
        """Bytes that `elements` codes take; for a mixed dtype `elements` is the length of one channel.

        >>> QuantizedDType.of("int4").storage_bytes(7)
        4
        """
        if self.is_mixed:
            return sum((elements * w + 7) // 8 for w in self.widths)
        return (elements * self.bits + 7) // 8

    def is_compatible(self, other: DTypeLike) -> bool:
        """Whether one integer operation can take both: any two linear integers can meet,
        binary meets binary only, and mixed meets the same widths only.

        >>> QuantizedDType.of("int8").is_compatible("uint4")
        True
        >>> QuantizedDType.of("int8").is_compatible("binary")
        False
        """
        theirs = QuantizedDType.of(other)
        if self.is_mixed or theirs.is_mixed:
            return self.widths == theirs.widths
        return self.is_binary == theirs.is_binary

    def can_hold(self, other: DTypeLike) -> bool:
        """Whether every code of the other dtype is a code of this one."""
        theirs = QuantizedDType.of(other)
        return self.qmin <= theirs.qmin and theirs.qmax <= self.qmax

    def __str__(self) -> str:
        return self.name if not self.is_mixed else f"mixed({_runs(self.widths)})"

    def __repr__(self) -> str:
        return f"QuantizedDType({str(self)!r})"

    def to_json(self) -> Any:
        return {"mixed": list(self.widths)} if self.is_mixed else self.name

    @staticmethod
    def from_json(value: Any) -> QuantizedDType:
        if isinstance(value, dict):
            return QuantizedDType.mixed(value["mixed"])
        return QuantizedDType.of(value)


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Whether a NumPy dtype holds integers, the 4- and 2-bit ones of ml_dtypes included."""
    return dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2", "uint2")


def _name_of(value: Any) -> str:
    if type(value).__module__ == "torch":  # torch.int8
        return str(value).removeprefix("torch.")
    try:
        return str(np.dtype(value).name)
    except TypeError:
        raise UnsupportedDType(f"dtype: {value!r} is neither a name nor a NumPy or torch dtype") from None


def _runs(widths: tuple[int, ...]) -> str:
    return ", ".join(f"{n}×{w}-bit" for w, n in sorted(Counter(widths).items(), reverse=True))


_BY_NAME = {
    name: QuantizedDType(name, bits, is_signed)
    for bits in (8, 16, 4, 2)
    for name, is_signed in ((f"int{bits}", True), (f"uint{bits}", False))
} | {"binary": QuantizedDType("binary", 1, False)}
