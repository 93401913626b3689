"""dequantize: codes back to floats."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.fields import refuse_masked
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor, set_backend
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise
from lowbit.runtime.arrays import Array
from lowbit.runtime.cache import cache_of
from lowbit.runtime.devices import device_module
from lowbit.runtime.native import core


def dequantize(q: QuantizedTensor, out: Array | None = None, dtype: npt.DTypeLike | str | None = None) -> Array:
    """The numbers a quantized tensor stands for.

    dtype: float32, float64, float16 or "bfloat16"; by default float32, or float64 for a tensor made from
    float64 data. out: an array of the tensor's shape to write into, in memory of its own; its dtype is the result's.

    >>> import lowbit as lb
    >>> lb.dequantize(lb.quantize(np.float32([1.0, -2.0, 4.0]), "int4")).round(2)
    array([ 1.14, -1.71,  4.  ], dtype=float32)
    """
    if not isinstance(q, QuantizedTensor):
        raise InvalidProblem(f"q: {type(q).__name__}; expected a QuantizedTensor")
    params, shape = q.params, q.shape
    key = (shape, None if out is None else getattr(out, "dtype", None))
    settled = cache_of(params).get(key) if dtype is None else None
    if settled is not None and (out is None or type(out) is np.ndarray):
        plan, mapping, storage = settled
        result = np.empty(shape, storage) if out is None else out
        if plan.run(q.data, result, mapping):
            return result
    if out is not None:
        target = cpu.writable_float(out)
        if target.shape != shape:
            raise InvalidProblem(f"out: shape {target.shape}; expected {shape}")
        if dtype is not None and cpu.float_dtype(dtype) != cpu.float_dtype(getattr(out, "dtype", None)):
            raise InvalidProblem(f"dtype: {dtype} contradicts out, which has {getattr(out, 'dtype', None)}")
        result = out
    else:
        result, target = cpu.empty_float(shape, params.scale.dtype if dtype is None else dtype)
    resolved = params.for_compute(target.compute)
    elementwise.dequantize(q.data, resolved, target)
    if dtype is None and type(result) is np.ndarray and not resolved.dtype.is_mixed:
        g = resolved.granularity(shape)
        plan = elementwise.codes_plan(core.DequantizePlan, target.element, cpu.code_of(resolved), shape, g)
        cache_of(params).put(key, (plan, elementwise.mapping_of(resolved, g), result.dtype))
    return result


def dequantize_from_int8(q: Any, scale: float, zero_point: int = 0) -> npt.NDArray[np.float32]:
    """float32 values of int8 codes under one scale: the short form.

    >>> dequantize_from_int8(np.int8([-2, 1]), 0.5)
    array([-1. ,  0.5], dtype=float32)
    """
    refuse_masked("q", q)
    codes = np.asarray(q)
    return dequantize(QuantizedTensor(codes, QuantizationParams("int8", scale=scale, zero_point=zero_point)))


class _CpuBackend:
    dequantize = staticmethod(dequantize)

    def unpack(self, q: QuantizedTensor) -> Array:
        return cpu.unpack(q.data, q.dtype.bits, q.dtype.is_signed, q.shape)

    def to(self, q: QuantizedTensor, device: str) -> Any:
        return device_module(device, "tensors").GpuQuantizedTensor.of(q, device)

    def save(self, q: QuantizedTensor, path: str | os.PathLike[str]) -> None:
        from lowbit.runtime.files.tensor import save_tensor  # most programs that import lowbit save no tensor

        save_tensor(q, path)

    def load(self, path: str | os.PathLike[str]) -> QuantizedTensor:
        from lowbit.runtime.files.tensor import load_tensor

        return load_tensor(path)


set_backend(_CpuBackend())
