"""What products and convolutions ask of their operands."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem, UnsupportedDType
from lowbit.numerics.fields import as_integers, refuse_masked
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime import arrays as cpu
from lowbit.runtime.native import core

__all__ = [
    "BYTES", "SUMS", "Settled", "float_operand", "in_bytes", "multiplies_as_bytes", "remember", "require_tensor",
    "sum_dtype",
    "zero_points",
]  # fmt: skip

Array = npt.NDArray[Any]
BYTES = {np.dtype(np.int8): True, np.dtype(np.uint8): False}  # whether signed
SUMS = core.Epilogue(0, None, None, None, None, 0.0, 0.0, 1.0, 0, 0, 0)  # sums as they are
_REMEMBERED = 16
_RANGES = {np.dtype(np.int8): range(-128, 128), np.dtype(np.uint8): range(256)}


class Settled:
    """Something whose public fields are set once, since calls keep what was settled from them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name in vars(self):
            kind = type(self).__name__
            raise AttributeError(f"{name}: a {kind} does not change, as calls are settled for it; make another one")
        object.__setattr__(self, name, value)


def remember(known: dict[Any, Any], key: Any, made: Any) -> None:
    """For calls that repeat, what was settled the first time; a few of them."""
    if len(known) >= _REMEMBERED:
        known.clear()
    known[key] = made


def require_tensor(name: str, value: Any, otherwise: str = "") -> None:
    """otherwise: what else there is, or what to do."""
    if not isinstance(value, QuantizedTensor):
        expected = f"a QuantizedTensor {otherwise}".rstrip()
        raise InvalidProblem(f"{name}: {type(value).__name__}; expected {expected}")


def float_operand(name: str, value: Any, how: str) -> cpu.FloatArray:
    """The floats given where a QuantizedTensor might be; `how` names the way they are quantized."""
    try:
        return cpu.as_float_array(value, name)
    except UnsupportedDType:
        found = str(value.dtype) if isinstance(value, np.ndarray) else type(value).__name__
        raise InvalidProblem(f"{name}: {found}; expected a QuantizedTensor, or floats, {how}") from None


def multiplies_as_bytes(p: QuantizationParams) -> bool:
    return p.dtype.bits <= 8 and not (p.is_logarithmic or p.dtype.is_mixed or p.dtype.is_binary)


def in_bytes(codes: Array, zero: Array) -> list[tuple[Array, Array, int]]:
    """16-bit codes less their zero points as bytes, their own zero points, and what each counts; 8-bit ones as they
    are: codes - zero is the sum of count * (bytes - byte zero)."""
    if codes.dtype.itemsize == 1:
        return [(codes, zero, 1)]
    high = (codes >> 8).astype(np.int8 if codes.dtype == np.int16 else np.uint8)
    return [(high, zero >> 8, 256), ((codes & 255).astype(np.uint8), zero & 255, 1)]


def sum_dtype(k: int) -> type[np.signedinteger[Any]]:
    return np.int64 if k > core.exact_depth else np.int32


@cache
def _one_zero(value: int) -> Array:
    found = np.array([value], np.int32)
    found.flags.writeable = False
    return found


def zero_points(name: str, value: Any, codes: Array, count: int) -> Array:
    if type(value) is int and value in _RANGES.get(codes.dtype, ()):
        return _one_zero(value)
    refuse_masked(name, value)
    zero = np.asarray(value)
    if zero.shape not in ((), (1,), (count,)):
        raise InvalidProblem(f"{name}: shape {zero.shape}; expected one, or ({count},)")
    info = np.iinfo(codes.dtype)
    return np.ascontiguousarray(as_integers(name, zero, info.min, info.max).reshape(-1), np.int32)
