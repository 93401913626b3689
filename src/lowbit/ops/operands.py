"""What operations ask of their operands, and of the arrays that results go to."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from lowbit.numerics.errors import InvalidProblem, UnsupportedDType
from lowbit.numerics.fields import as_integers, refuse_masked
from lowbit.numerics.indexing import transposed_granularity
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime import arrays as cpu
from lowbit.runtime.arrays import Array
from lowbit.runtime.native import core

F32 = np.float32
BYTES = {np.dtype(np.int8): core.Code.s8, np.dtype(np.uint8): core.Code.u8}
SUMS, WIDE_SUMS = core.Epilogue(), core.Epilogue(wide=True)  # integer sums as they are; always in int64
PLAIN_FLOATS = core.Epilogue.floats(core.Result.f32, (-np.inf, np.inf))
_RANGES = {np.dtype(np.int8): range(-128, 128), np.dtype(np.uint8): range(256)}


class Frozen:
    """Public fields are set once: cached plans of the object are made from them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name in vars(self):
            raise AttributeError(f"{name}: a {type(self).__name__} does not change; make another one")
        object.__setattr__(self, name, value)


def require_tensor(name: str, value: Any, otherwise: str = "") -> None:
    """otherwise: what else there is, or what to do."""
    if not isinstance(value, QuantizedTensor):
        expected = f"a QuantizedTensor {otherwise}".rstrip()
        raise InvalidProblem(f"{name}: {type(value).__name__}; expected {expected}")


def byte_codes(name: str, value: Any) -> Array:
    refuse_masked(name, value)
    array = np.asarray(value)
    if array.dtype not in BYTES:
        raise UnsupportedDType(f"{name}: {array.dtype}; expected int8 or uint8")
    return array


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


def transposed(t: QuantizedTensor) -> QuantizedTensor:
    """The tensor with its last two dimensions swapped, and its scales with them."""
    axes = (*range(t.ndim - 2), t.ndim - 1, t.ndim - 2)
    codes = np.ascontiguousarray(t.unpack().transpose(axes))
    return QuantizedTensor.from_codes(codes, transposed_granularity(t.params, axes))


# ---- results ----


def codes_for(params: QuantizationParams, shape: tuple[int, ...], out: QuantizedTensor | Array | None) -> Array:
    """The array codes go into: the caller's, checked, or a new one."""
    dtype = params.dtype
    expected = (params.codes_nbytes(shape),) if dtype.is_packed else shape
    if out is None:
        return np.empty(expected, dtype.storage_dtype)
    refuse_masked("out", out)
    data = out.data if isinstance(out, QuantizedTensor) else out
    if isinstance(out, QuantizedTensor) and (out.shape != shape or out.dtype != dtype):
        raise InvalidProblem(f"out: {out.dtype} of shape {out.shape}; expected {dtype} of shape {shape}")
    require_output(data, dtype.storage_dtype, expected)
    return data


def require_output(out: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Raises unless kernels can write a result of this type and shape to `out`."""
    if not isinstance(out, np.ndarray) or out.dtype != dtype or out.shape != shape:
        found = f"{out.dtype} of shape {out.shape}" if isinstance(out, np.ndarray) else type(out).__name__
        raise InvalidProblem(f"out: {found}; expected {dtype} of shape {shape}")
    if not out.flags.carray:
        raise InvalidProblem("out: expected a writable, aligned, C-contiguous array")


def finished(
    data: Array,
    params: QuantizationParams,
    shape: tuple[int, ...],
    out: QuantizedTensor | Array | None,
    made: Array | None = None,
) -> QuantizedTensor:
    """The tensor of codes written: the caller's own, now with these params, or a new one. made: the codes, where they
    were written elsewhere first."""
    if made is not None and made is not data:
        data[...] = made
    if isinstance(out, QuantizedTensor):
        out._set(params=params)
        return out
    return QuantizedTensor._trusted(data, params, shape)


def result_params(
    given: QuantizationParams | None, first: QuantizedTensor, name: str, compute: np.dtype[Any], shape: tuple[int, ...]
) -> QuantizationParams:
    """The params of a result, `first`'s where none are given, in the type of the arithmetic; raises unless they fit."""
    if given is not None and not isinstance(given, QuantizationParams):
        raise InvalidProblem(f"out_params: {type(given).__name__}; expected QuantizationParams")
    params = (first.params if given is None else given).for_compute(compute)
    require_fit(
        f"out_params: none, and {name}'s do not fit the result" if given is None else "out_params", params, shape
    )
    return params


def require_fit(name: str, params: QuantizationParams, shape: tuple[int, ...]) -> None:
    """Raises unless a tensor of this shape can have these params."""
    try:
        params.granularity(shape)
    except InvalidProblem as error:
        raise InvalidProblem(f"{name}: {error}") from None
