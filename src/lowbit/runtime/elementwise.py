"""Native plans of element-wise operations: described by arrays' types and shapes, planned once, run on their memory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.granularity import Granularity, Kind
from lowbit.numerics.logarithm import log_tables
from lowbit.numerics.params import QuantizationParams
from lowbit.runtime.arrays import Array, Element, FloatArray, bad_parameter, code_of, contiguous, require_apart
from lowbit.runtime.cache import Cache, cache_of
from lowbit.runtime.native import CODES, KINDS, core

P = TypeVar("P", core.QuantizePlan, core.DequantizePlan)
_PLANS: Cache[Any] = Cache(4096)


def granularity(g: Granularity) -> core.Granularity:
    return core.Granularity(KINDS[g.kind], g.outer, g.axis, g.inner, min(g.block, 1 << 62))  # any integer is a block


def _shapes(shape: tuple[int, ...], g: Granularity) -> core.ScaledShape:
    return core.ScaledShape(shape, g.scale_shape, granularity(g))


# ---- quantize and dequantize ------------------------------------------------------------------------------------


def codes_plan(kind: type[P], element: Element, code: core.Code, shape: tuple[int, ...], g: Granularity) -> P:
    """The plan that makes codes of numbers, or numbers of codes."""
    plan: P = _PLANS.find((kind, id(element), id(code), shape, g), lambda: kind(element, code, _shapes(shape, g)))
    return plan


def mapping_of(params: QuantizationParams, g: Granularity) -> core.Mapping:
    """The params as plans take them, one scale per parameter set."""
    spread = params.scale.ndim == 0 and g.kind is not Kind.TENSOR
    key = ("mapping", g.scale_shape if spread else None)
    mapping: core.Mapping = cache_of(params).find(key, lambda: _mapping(params, g, spread))
    return mapping


def byte_params(params: QuantizationParams) -> core.CodeParams | None:
    """The native form of linear int8 or uint8 params with one float32 scale; None for all others."""
    calls = params._calls
    found: tuple[core.CodeParams | None] | None = None if calls is None else calls.get("bytes")
    if found is None:
        made, is_byte = None, params.dtype.name in ("int8", "uint8") and not params.is_logarithmic
        if is_byte and params.scale.ndim == 0 and params.scale.dtype == np.float32:
            scale, zero = float(params.scale), int(params.zero_point)
            made = core.CodeParams(code_of(params), scale, zero, params.qmin, params.qmax)
        found = cache_of(params).put("bytes", (made,))
    return found[0]


def _mapping(params: QuantizationParams, g: Granularity, spread: bool) -> core.Mapping:
    scale, zero = params.scale, params.zero_point
    if spread:
        scale, zero = np.full(g.scale_shape, scale), np.full(g.scale_shape, zero)
    code = code_of(params)
    if params.is_logarithmic:
        tables = log_tables(params.magnitude_levels, params.steps_per_octave or 1.0, params.scale.dtype)
        return core.Logarithmic(code, scale, *tables)
    return core.Affine(code, scale, zero if zero.any() else None, params.qmin, params.qmax)


def _mixed(params: QuantizationParams, g: Granularity) -> core.Mixed:
    length = g.outer * g.inner

    def make() -> core.Mixed:
        codes = [CODES[params.dtype.channel(i).name] for i in range(g.axis)]
        bounds = np.array([params.channel_range(i) for i in range(g.axis)], np.int32).reshape(-1, 2)
        scale = np.ascontiguousarray(np.broadcast_to(params.scale.reshape(-1), g.axis))
        return core.Mixed(codes, length, scale, *(np.ascontiguousarray(bounds[:, i]) for i in (0, 1)))

    mixed: core.Mixed = cache_of(params).find(("mixed", length), make)
    return mixed


def quantize(x: FloatArray, params: QuantizationParams, out: Array) -> None:
    """Writes the codes of x into `out`, stored as the dtype stores them. Params are of x's compute type."""
    g = params.granularity(x.shape)
    if params.dtype.is_mixed:
        rows = x.array
        if g.outer != 1:
            require_apart("out", out, False, x=x.array)
            rows = np.ascontiguousarray(np.moveaxis(x.array, _axis(params, x.shape), 0))
        _mixed(params, g).quantize(rows, x.element, out)
    else:
        plan = codes_plan(core.QuantizePlan, x.element, code_of(params), x.shape, g)
        require_run(plan.run(x.array, out.view(np.ndarray), mapping_of(params, g)))


def dequantize(data: Array, params: QuantizationParams, out: FloatArray) -> None:
    """Writes the numbers of stored codes into `out`, whose compute type the params have."""
    g = params.granularity(out.shape)
    data = contiguous(data)
    if not params.dtype.is_mixed:
        plan = codes_plan(core.DequantizePlan, out.element, code_of(params), out.shape, g)
        require_run(plan.run(data, out.array, mapping_of(params, g)))
    elif g.outer == 1:
        _mixed(params, g).dequantize(data, out.array, out.element)
    else:
        require_apart("out", out.array, False, q=data)
        axis = _axis(params, out.shape)
        rows = np.empty((out.shape[axis], *out.shape[:axis], *out.shape[axis + 1 :]), out.array.dtype)
        _mixed(params, g).dequantize(data, rows, out.element)
        out.array[...] = np.moveaxis(rows, 0, axis)


def _axis(params: QuantizationParams, shape: tuple[int, ...]) -> int:
    return (params.axis or 0) % len(shape)


def require_run(done: bool) -> None:
    """Raises unless a plan took the arrays it was given; callers have seen to it that it does."""
    if not done:
        raise InvalidProblem("out: expected a writable, aligned, C-contiguous array of the plan's type and shape")


def dynamic_plan(
    element: Element, code: core.Code, shape: tuple[int, ...], g: Granularity, bounds: tuple[int, int], divisor: int
) -> core.DynamicQuantizePlan:
    """The plan that finds parameters in the data, for codes within bounds; divisor > 0: symmetric."""
    return core.DynamicQuantizePlan(element, code, _shapes(shape, g), *bounds, divisor)


# ---- statistics -------------------------------------------------------------------------------------------------


def value_range(x: FloatArray, g: Granularity) -> tuple[Array, Array, int]:
    """(min, max, NaN seen) per scale; min and max leave NaN out."""
    plan = _PLANS.find((id(x.element), g), lambda: core.RangePlan(x.element, granularity(g)))
    lo, hi = np.empty(g.scale_shape, x.compute), np.empty(g.scale_shape, x.compute)
    return lo, hi, plan.run(x.array, lo, hi)


def mean_abs(x: FloatArray, g: Granularity) -> npt.NDArray[np.float64]:
    """mean|x| per scale, in float64."""
    if g.kind is Kind.TENSOR or math.prod(x.shape) == 0:
        rows, length = x.array, math.prod(x.shape)
    elif g.kind is Kind.CHANNEL:
        rows = x.array.reshape(g.outer, g.axis, g.inner)
        rows, length = np.ascontiguousarray(rows.transpose(1, 0, 2)), g.outer * g.inner
    else:
        return _mean_abs_of_blocks(x, g)
    out = np.empty(g.scale_shape, np.float64)
    if length:
        core.mean_abs(rows, x.element, length, out)
    return out


def _mean_abs_of_blocks(x: FloatArray, g: Granularity) -> npt.NDArray[np.float64]:
    a = x.array.reshape(g.outer, g.axis, g.inner)
    out = np.empty((g.outer, -(-g.axis // g.block), g.inner))
    full = g.axis // g.block
    for part, first, length in ((slice(0, full), 0, g.block), (slice(full, None), full * g.block, g.axis % g.block)):
        sums = np.empty((g.outer, out[:, part].shape[1], g.inner))
        if sums.size and length:
            piece = a[:, first : first + sums.shape[1] * length].reshape(g.outer, -1, length, g.inner)
            core.mean_abs(np.ascontiguousarray(piece.transpose(0, 1, 3, 2)), x.element, length, sums)
            out[:, part] = sums
    return out.reshape(g.scale_shape)


# ---- fake quantization ------------------------------------------------------------------------------------------


class Affine(NamedTuple):
    """Scales (of the compute type) and zero points, one per parameter set, and the range of codes."""

    scale: Array
    zero: Array
    qmin: int
    qmax: int


def fake_quantize_plan(
    element: Element, shape: tuple[int, ...], g: Granularity, qmin: int, qmax: int
) -> core.FakeQuantizePlan:
    make = core.FakeQuantizePlan
    key = (id(element), shape, g, qmin, qmax)  # ids of enums are theirs for good, and hash at once
    plan: core.FakeQuantizePlan | None = _PLANS.get(key)
    return _PLANS.find(key, lambda: make(element, _shapes(shape, g), qmin, qmax)) if plan is None else plan


def run(method: str, f: Affine, g: Granularity, out: FloatArray, **operands: FloatArray) -> None:
    """Runs a method of the native plan on operands in its order; `out` may be the first of them."""
    plan = fake_quantize_plan(out.element, out.shape, g, f.qmin, f.qmax)
    given = [a.array for a in operands.values()]
    status = getattr(plan, method)(*given, out.array, f.scale, f.zero)
    if status == core.NOT_AS_DESCRIBED:
        _require_apart(out, f, operands)
    if status != -1:
        raise bad_parameter(status, *f)


def _require_apart(out: FloatArray, f: Affine, operands: dict[str, FloatArray]) -> None:
    require_apart("out", out.array, True, **{name: a.array for name, a in operands.items()})
    require_apart("out", out.array, False, scale=f.scale, zero_point=f.zero)


def fake_quantize_learned_backward(
    dy: FloatArray, x: FloatArray, f: Affine, g: Granularity, out: FloatArray
) -> tuple[Array, Array]:
    """Writes dx into `out`; the gradients of scales and zero points."""
    _require_apart(out, f, {"x": x, "dy": dy})
    plan = fake_quantize_plan(out.element, out.shape, g, f.qmin, f.qmax)
    ds, dz = np.empty_like(f.scale), np.empty_like(f.scale)
    made = core.LearnedGradients(ds, dz, np.empty(plan.workspace_bytes // 8))
    status = plan.learned_backward(dy.array, x.array, out.array, f.scale, f.zero, made)
    if status != -1:
        raise bad_parameter(status, *f)
    return ds, dz
