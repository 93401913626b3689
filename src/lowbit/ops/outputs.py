"""Where codes go: an array of the caller's, checked, or a new one."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.fields import refuse_masked
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime.arrays import Array


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
