"""Sums, products, bounds and joins of quantized tensors, quantized again.

int8 and uint8 tensors with one scale stay codes all the way. Every other kind (16-bit, packed, logarithmic, binary,
mixed, a scale per channel or block, float64 scales) takes the general path: dequantize, compute, quantize. Both give
the codes of the same equation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lowbit import reference
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.packing import pack
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.operands import codes_for, finished, require_tensor, result_params
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise as native_elementwise
from lowbit.runtime.arrays import Array
from lowbit.runtime.cache import cache_of
from lowbit.runtime.elementwise import byte_params
from lowbit.runtime.native import core


def qadd(
    a: QuantizedTensor,
    b: QuantizedTensor,
    *,
    out_params: QuantizationParams | None = None,
    out: QuantizedTensor | Array | None = None,
) -> QuantizedTensor:
    """The quantized sum of two tensors: quantize((qa - za) * sa + (qb - zb) * sb), every step rounded to float32.

    Shapes broadcast as in NumPy. out_params: the params of the result, of any dtype; None means those of `a`.
    out: a tensor, or an array of stored codes, to write into; it may be `a` or `b`.

    >>> import lowbit as lb
    >>> a = lb.quantize(np.float32([1.0, -2.0]))
    >>> lb.qadd(a, a, out_params=lb.QuantizationParams("int8", scale=0.05)).dequantize().round(2)
    array([ 2., -4.], dtype=float32)
    """
    return _combined(core.CombineOp.add, np.add, a, b, out_params, out)


def qmul(
    a: QuantizedTensor,
    b: QuantizedTensor,
    *,
    out_params: QuantizationParams | None = None,
    out: QuantizedTensor | Array | None = None,
) -> QuantizedTensor:
    """The quantized product of two tensors, element by element: quantize(((qa - za) * sa) * ((qb - zb) * sb)), every
    step rounded to float32. Arguments are those of `qadd`.

    >>> import lowbit as lb
    >>> a = lb.quantize(np.float32([[1.0, -2.0], [0.5, 0.25]]))
    >>> half = lb.quantize(np.float32(0.5))
    >>> lb.qmul(a, half, out_params=lb.QuantizationParams("int8", scale=0.125)).dequantize()
    array([[ 0.5  , -1.   ],
           [ 0.25 ,  0.125]], dtype=float32)
    """
    return _combined(core.CombineOp.mul, np.multiply, a, b, out_params, out)


def qrelu(a: QuantizedTensor, *, out: QuantizedTensor | Array | None = None) -> QuantizedTensor:
    """max(a, 0): codes below the zero point become the zero point. The params stay.

    out: a tensor, or an array of stored codes, to write into; it may be `a`.

    >>> import lowbit as lb
    >>> lb.qrelu(lb.quantize(np.float32([-1.0, 0.5, 1.0]))).unpack()
    array([  0,  64, 127], dtype=int8)
    """
    return _bounded(a, 0.0, math.inf, out)


def qclamp(
    a: QuantizedTensor,
    lo: float | None = None,
    hi: float | None = None,
    *,
    out: QuantizedTensor | Array | None = None,
) -> QuantizedTensor:
    """`a` bounded by two numbers: its codes are bounded by theirs, each rounded as `a`'s params round it.
    None: no bound on that side. The params stay.

    out: a tensor, or an array of stored codes, to write into; it may be `a`.

    >>> import lowbit as lb
    >>> lb.qclamp(lb.quantize(np.float32([-8.0, 4.0, 8.0])), 0.0, 6.0).dequantize().round(2)
    array([0.  , 4.03, 5.98], dtype=float32)
    """
    low, high = _number("lo", lo, -math.inf), _number("hi", hi, math.inf)
    if low > high:
        raise InvalidProblem(f"lo: {low} is above hi {high}")
    return _bounded(a, low, high, out)


def qconcat(
    tensors: Sequence[QuantizedTensor],
    axis: int = 0,
    *,
    out_params: QuantizationParams | None = None,
    out: QuantizedTensor | Array | None = None,
) -> QuantizedTensor:
    """Tensors one after the other along an axis, under one set of params.

    Codes are copied where their params are the result's, and otherwise quantize(dequantize(code)). out_params: None
    means those of the first tensor; if every tensor has a scale for each index of `axis`, their scales are joined as
    the codes are, and nothing is rounded. out: a tensor, or an array of stored codes, to write into.

    >>> import lowbit as lb
    >>> one, two = lb.quantize(np.float32([1.0])), lb.quantize(np.float32([2.0]))
    >>> lb.qconcat([two, one]).unpack()
    array([127,  64], dtype=int8)
    """
    parts = list(tensors)
    if not parts:
        raise InvalidProblem("tensors: none; expected at least one")
    for i, t in enumerate(parts):
        require_tensor(f"tensors[{i}]", t)
    first = parts[0]
    if not -first.ndim <= axis < first.ndim:
        raise InvalidProblem(f"axis: {axis} is out of bounds for tensors of {first.ndim} dimensions")
    axis %= first.ndim
    around = (*first.shape[:axis], *first.shape[axis + 1 :])
    for i, t in enumerate(parts):
        if t.ndim != first.ndim or (*t.shape[:axis], *t.shape[axis + 1 :]) != around:
            raise InvalidProblem(f"tensors[{i}]: shape {t.shape}; expected {first.shape} but for axis {axis}")
    shape = (*first.shape[:axis], sum(t.shape[axis] for t in parts), *first.shape[axis + 1 :])
    joined = _joined_params(parts, axis) if out_params is None else None
    params = joined or result_params(out_params, first, "tensors[0]", _compute_type(parts), shape)
    data = codes_for(params, shape, out)
    target = cpu.apart(data, *(t.data for t in parts))
    wanted, bytes_of = byte_params(params), [p for p in (byte_params(t.params) for t in parts) if p is not None]
    if wanted is not None and len(bytes_of) == len(parts):
        start, inner = 0, math.prod(shape[axis + 1 :])
        for t, p in zip(parts, bytes_of, strict=True):
            if t.data.size:
                table = None if _keeps_codes(p, wanted) else _table(t.params, params)
                run, row = t.shape[axis] * inner, shape[axis] * inner
                core.lookup_codes(table, cpu.contiguous(t.data), run, target, start * inner, row)
            start += t.shape[axis]
    elif joined is not None or all(t.params == params for t in parts):
        target = pack(np.concatenate([t.unpack() for t in parts], axis), params.dtype, params.axis)
    else:
        compute = params.scale.dtype
        _quantize_into(np.concatenate([t.dequantize(dtype=compute) for t in parts], axis), params, target)
    return finished(data, params, shape, out, target)


def _combined(
    op: core.CombineOp,
    function: Callable[[Array, Array], Array],
    a: QuantizedTensor,
    b: QuantizedTensor,
    out_params: QuantizationParams | None,
    out: QuantizedTensor | Array | None,
) -> QuantizedTensor:
    require_tensor("a", a)
    require_tensor("b", b)
    shape = a.shape
    if b.shape != shape:
        try:
            shape = np.broadcast_shapes(a.shape, b.shape)
        except ValueError:
            raise InvalidProblem(f"a, b: shapes {a.shape} and {b.shape} do not broadcast") from None
    calls, key = cache_of(a.params), (id(op), id(b.params), id(out_params))
    settled: tuple[QuantizationParams, core.CombinePlan, Any] | None = calls.get(key)
    if settled is None:
        params, plan = result_params(out_params, a, "a", _compute_type([a, b]), shape), None
        pa, pb, py = (byte_params(p) for p in (a.params, b.params, params))
        if pa is not None and pb is not None and py is not None:
            plan = core.CombinePlan(op, pa, pb, py)
            calls.put(key, (params, plan, (b.params, out_params)))  # it holds the params whose ids are in the key
    else:
        params, plan, _ = settled  # params of bytes fit any shape
    data = codes_for(params, shape, out)
    if plan is None:
        compute = params.scale.dtype
        with np.errstate(over="ignore"):
            y = function(a.dequantize(dtype=compute), b.dequantize(dtype=compute))
        _quantize_into(np.asarray(y, order="C"), params, data)
        return finished(data, params, shape, out)
    target = data if out is None else cpu.apart(data, a.data, b.data, in_place=True)
    plan.run(cpu.contiguous(a.data), cpu.contiguous(b.data), target)
    return finished(data, params, shape, out, target)


def _bounded(a: QuantizedTensor, lo: float, hi: float, out: QuantizedTensor | Array | None) -> QuantizedTensor:
    require_tensor("a", a)
    if a.dtype.is_binary or 1 in a.dtype.widths:
        raise Unsupported(f"a: {a.dtype}; a binary code is one of two numbers, and neither is a bound")
    params = a.params
    data, p = codes_for(params, a.shape, out), byte_params(params)
    if p is None:
        x = a.dequantize(dtype=params.scale.dtype)
        _quantize_into(np.asarray(np.minimum(np.maximum(x, x.dtype.type(lo)), x.dtype.type(hi))), params, data)
        return finished(data, params, a.shape, out)
    target = data if out is None else cpu.apart(data, a.data, in_place=True)
    core.clamp_codes(p.code, cpu.contiguous(a.data), *_bounds(params, lo, hi), target)
    return finished(data, params, a.shape, out, target)


def _bounds(params: QuantizationParams, lo: float, hi: float) -> tuple[int, int]:
    """Codes of two numbers."""

    def make() -> tuple[int, int]:
        low, high = (int(code) for code in reference.quantize(np.array([lo, hi], np.float32), _flat(params)))
        return params.dtype.qmin if lo == -math.inf else low, params.dtype.qmax if hi == math.inf else high

    found: tuple[int, int] = cache_of(params).find(("bounds", lo, hi), make)
    return found


def _number(name: str, value: Any, default: float) -> float:
    try:
        number = default if value is None else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        raise InvalidProblem(f"{name}: {value!r}; expected a number")
    return number


def _compute_type(tensors: Sequence[QuantizedTensor]) -> np.dtype[Any]:
    """float64 where a tensor was made from float64, else float32."""
    wide = any(t.params.scale.dtype == np.float64 for t in tensors)
    return np.dtype(np.float64 if wide else np.float32)


def _quantize_into(x: Array, params: QuantizationParams, data: Array) -> None:
    native_elementwise.quantize(cpu.as_float_array(x), params, data)


def _flat(params: QuantizationParams) -> QuantizationParams:
    """Linear params that have one scale, for arrays of any shape."""
    return params.replace(scheme="linear", axis=None, group_size=None)


def _keeps_codes(p: core.CodeParams, wanted: core.CodeParams) -> bool:
    same = (p.code, p.scale, p.zero_point) == (wanted.code, wanted.scale, wanted.zero_point)
    return same and wanted.qmin <= p.qmin and p.qmax <= wanted.qmax


def _table(source: QuantizationParams, target: QuantizationParams) -> Array:
    """quantize(dequantize(code)) for every byte."""
    every = np.arange(256, dtype=np.uint8).view(source.dtype.code_dtype)
    return reference.quantize(reference.dequantize(every, _flat(source)), _flat(target)).view(np.uint8)


def _joined_params(parts: Sequence[QuantizedTensor], axis: int) -> QuantizationParams | None:
    """The params of all, one after the other, where each has a scale for every index of the axis; else None."""
    first = parts[0].params
    for t in parts:
        p = t.params
        per_index = p.axis is not None and p.axis % t.ndim == axis and p.group_size is None and p.scale.ndim == 1
        alike = all(getattr(p, n) == getattr(first, n) for n in ("dtype", "scheme", "qmin", "qmax", "steps_per_octave"))
        if not per_index or not alike or p.dtype.is_mixed or p.scale.dtype != first.scale.dtype:
            return None
    scale, zero = (np.concatenate([getattr(t.params, name) for t in parts]) for name in ("scale", "zero_point"))
    return first.replace(scale=scale, zero_point=zero, axis=axis)
