"""quantize: floats to codes, with given parameters or with parameters found in the data."""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import DTypeLike, QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.granularity import Granularity, granularity_of
from lowbit.numerics.params import QuantizationParams, QuantizationScheme
from lowbit.numerics.ranges import MAX_SCALE
from lowbit.numerics.schemes import group_size_of
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.operands import codes_for, finished
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise
from lowbit.runtime.arrays import Array, refuse_nonfinite
from lowbit.runtime.cache import Cache, cache_of
from lowbit.runtime.native import core

_DEFAULT_BLOCK = 32
_NDARRAY = np.ndarray
_FINITE = "a range needs finite numbers (on_nonfinite='ignore' leaves such values out of it)"


class _WithParams(NamedTuple):
    """A settled call: the plan for arrays of one type and shape, and its parameters."""

    plan: core.QuantizePlan
    mapping: core.Mapping
    params: QuantizationParams
    shape: tuple[int, ...]
    stored: tuple[int, ...]
    storage: np.dtype[Any]

    def run(self, x: Array, out: QuantizedTensor | Array | None) -> QuantizedTensor | None:
        """The codes of x; None, and nothing was done, where x or `out` does not match the plan."""
        if type(out) is QuantizedTensor:
            fits = out.params is self.params and out.shape == self.shape
            return out if fits and self.plan.run(x, out.data, self.mapping) else None
        data: Any = np.empty(self.stored, self.storage) if out is None else out
        if not self.plan.run(x, data, self.mapping):
            return None
        return QuantizedTensor._trusted(data, self.params, self.shape)


class _FromData(NamedTuple):
    """A settled call that finds its parameters in the data."""

    plan: core.DynamicQuantizePlan
    template: QuantizationParams  # without scales yet
    qmin: int
    divisor: int
    shape: tuple[int, ...]
    stored: tuple[int, ...]
    scale_shape: tuple[int, ...]
    compute: np.dtype[Any]
    workspace: int

    def run(self, x: Array, out: QuantizedTensor | Array | None) -> QuantizedTensor | None:
        """As _WithParams.run; None too where the data has no good scale, and `out` is undefined."""
        data: Any = out
        if out is None:
            data = np.empty(self.stored, self.template.dtype.storage_dtype)
        elif type(out) is QuantizedTensor:
            if out.dtype != self.template.dtype or out.shape != self.shape:
                return None
            data = out.data
        scale, zero = np.empty(self.scale_shape, self.compute), np.zeros(self.scale_shape, np.int32)
        workspace = np.empty(self.workspace, np.uint8) if self.workspace else None
        if self.plan.run(x, data, scale, None if self.divisor else zero, workspace) != (0, 0):
            return None
        return finished(data, self.template._with_arrays(scale, zero, self.qmin), self.shape, out)


_FROM_DATA: Cache[_FromData] = Cache()


# Above 60 lines: most are its signature and docstring, and a call more would slow the settled call down.
def quantize(
    x: Any,
    dtype: DTypeLike = "int8",
    *,
    scheme: str | QuantizationScheme = "symmetric",
    axis: int | None = None,
    group_size: int | None = None,
    params: QuantizationParams | None = None,
    out: QuantizedTensor | Array | None = None,
    qmin: int | None = None,
    qmax: int | None = None,
    full_range: bool = False,
    steps_per_octave: float | None = None,
    on_nonfinite: Literal["raise", "ignore"] = "raise",
    name: str = "x",
    block_size: int | None = None,
) -> QuantizedTensor:
    """The quantized form of a float array.

    With `params`, exactly those are used, and NaN gives the least code while ±Inf saturate. Without, they are
    found in the data: per tensor, per channel (`axis`), or per block of `group_size` elements along `axis`
    (default the last; `block_size` is an alias). NaN or Inf in the data is then an error that names `name` and the
    index, unless `on_nonfinite="ignore"` leaves them out of the range.

    x: NumPy, torch (CPU), or any DLPack array of float32, float64, float16 or bfloat16. Contiguous input is
    not copied. out: a QuantizedTensor or an array of stored codes to write into, in memory of its own; undefined after
    an error.

    >>> import lowbit as lb
    >>> q = lb.quantize(np.array([-1.0, 0.0, 0.5, 1.0], np.float32))
    >>> q.unpack()
    array([-127,    0,   64,  127], dtype=int8)
    >>> lb.quantize(np.float32([0.5, 1.5]), params=lb.QuantizationParams("uint8", scale=1.0)).unpack()
    array([0, 2], dtype=uint8)
    """
    if block_size is not None:
        group_size = group_size_of(group_size, block_size)
    key: Any = None
    if type(x) is _NDARRAY:
        key = (x.shape, x.dtype, dtype, scheme, full_range, on_nonfinite)
        if not (axis is group_size is qmin is qmax is steps_per_octave is None):
            options = (axis, group_size, qmin, qmax, steps_per_octave)
            key += (options, *map(type, options))  # 1 == 1.0 == True
        try:
            calls = _FROM_DATA if params is None else params._calls
            settled = None if calls is None else calls.get(key)
        except TypeError:  # an option that has no hash
            settled = key = None
        if settled is not None:
            done: QuantizedTensor | None = settled.run(x, out)
            if done is not None:
                return done
    if on_nonfinite not in ("raise", "ignore"):
        raise InvalidProblem(f"on_nonfinite: {on_nonfinite!r}; expected 'raise' or 'ignore'")
    if params is not None:
        _only_params(dtype, scheme, (axis, group_size, qmin, qmax, steps_per_octave), full_range, params)
        return _with_params(cpu.as_float_array(x, name), params, out, key)
    kind = QuantizationScheme.of(scheme)
    if kind is QuantizationScheme.BLOCK_WISE and group_size is None:
        group_size = _DEFAULT_BLOCK
    template = QuantizationParams(
        dtype, kind, axis=axis, group_size=group_size, qmin=qmin, qmax=qmax, steps_per_octave=steps_per_octave
    )
    array = cpu.as_float_array(x, name)
    if array.array.size == 0:
        raise InvalidProblem(f"{name}: empty (shape {array.shape}); there is nothing to find a range in")
    has_range = qmin is not None or qmax is not None
    return _from_data(array, template, has_range, full_range, on_nonfinite, name, out, key)


def quantize_to_int8(x: Any, scale: float, zero_point: int = 0) -> npt.NDArray[np.int8]:
    """int8 codes of x under one scale: the short form.

    >>> quantize_to_int8(np.float32([-1.0, 0.26]), 0.5)
    array([-2,  1], dtype=int8)
    """
    return quantize(x, params=QuantizationParams("int8", scale=scale, zero_point=zero_point)).data


def _with_params(
    x: cpu.FloatArray, params: QuantizationParams, out: QuantizedTensor | Array | None, key: Any
) -> QuantizedTensor:
    """The codes under given parameters; the call is settled under `key`, if it has one."""
    resolved = params.for_compute(x.compute)
    data = codes_for(resolved, x.shape, out)
    elementwise.quantize(x, resolved, data)
    if key is not None and not resolved.dtype.is_mixed:
        g = resolved.granularity(x.shape)
        plan = elementwise.codes_plan(core.QuantizePlan, x.element, cpu.code_of(resolved), x.shape, g)
        made = _WithParams(plan, elementwise.mapping_of(resolved, g), resolved, x.shape, data.shape, data.dtype)
        cache_of(params).put(key, made)
    return finished(data, resolved, x.shape, out)


def _from_data(
    x: cpu.FloatArray,
    template: QuantizationParams,
    has_range: bool,
    full_range: bool,
    on_nonfinite: str,
    name: str,
    out: QuantizedTensor | Array | None,
    key: Any,
) -> QuantizedTensor:
    """The codes under parameters found in x: by one native call where it serves them, else from statistics of x."""
    dtype, g = template.dtype, template.granularity(x.shape)
    affine = not (dtype.is_mixed or dtype.is_binary or template.is_logarithmic)
    narrow = affine and template.is_symmetric and dtype.is_signed and not has_range and not full_range
    qmin, qmax = -template.qmax if narrow else template.qmin, template.qmax
    if affine and on_nonfinite == "raise" and qmin <= 0 <= qmax and qmin < qmax:
        divisor = max(1, -qmin if full_range and qmin < 0 else qmax) if template.is_symmetric else 0
        data = codes_for(template, x.shape, out)
        if out is not None:
            cpu.require_apart("out", data, False, x=x.array)
        plan = elementwise.dynamic_plan(x.element, cpu.code_of(template), x.shape, g, (qmin, qmax), divisor)
        workspace = 0 if plan.fused else plan.workspace_bytes
        call = _FromData(plan, template, qmin, divisor, x.shape, data.shape, g.scale_shape, x.compute, workspace)
        done = call.run(x.array, data.view(np.ndarray))
        if done is None:
            refuse_nonfinite(x, name, _FINITE)
            raise InvalidProblem(f"{name}: values too large: a scale would exceed {MAX_SCALE:.6g}")
        if template.is_symmetric and not dtype.is_signed:  # by the data of each call: not to be settled
            _warn_unsigned(x, name)
        elif key is not None:
            _FROM_DATA.put(key, call)
        return finished(data, done.params, x.shape, out)
    lo, hi = _finite_range(x, g, on_nonfinite, name)
    mean = elementwise.mean_abs(_finite_only(x, on_nonfinite), g) if dtype.is_binary or 1 in dtype.widths else None
    least, most = (template.qmin, template.qmax) if has_range else (None, None)
    try:
        params = template.from_statistics(lo, hi, full_range=full_range, mean_abs=mean, qmin=least, qmax=most)
    except InvalidProblem as error:
        raise InvalidProblem(f"{name}: {error}") from None
    if affine and params.is_symmetric and not dtype.is_signed and (lo < 0).any():
        _warn_unsigned(x, name)
    return _with_params(x, params, out, None)


def _finite_range(x: cpu.FloatArray, g: Granularity, on_nonfinite: str, name: str) -> tuple[Array, Array]:
    lo, hi, nan = elementwise.value_range(x, g)
    if nan or not (np.isfinite(lo).all() and np.isfinite(hi).all()):
        if on_nonfinite == "raise":
            refuse_nonfinite(x, name, _FINITE)
        lo, hi, left_out = elementwise.value_range(_finite_only(x, on_nonfinite, as_nan=True), g)
        warnings.warn(f"{name}: {left_out} values that are NaN or Inf were left out of the range", stacklevel=4)
        none = ~np.isfinite(lo)  # a scope without one finite number counts as all zero
        lo, hi = np.where(none, x.compute.type(0), lo), np.where(none, x.compute.type(0), hi)
    return lo, hi


def _finite_only(x: cpu.FloatArray, on_nonfinite: str, as_nan: bool = False) -> cpu.FloatArray:
    if on_nonfinite == "raise":
        return x
    wide = x.widened()
    clean = np.where(np.isfinite(wide), wide, wide.dtype.type(np.nan if as_nan else 0))
    return cpu.as_float_array(clean)


def _warn_unsigned(x: cpu.FloatArray, name: str) -> None:
    lo, _, _ = elementwise.value_range(x, granularity_of(x.shape, None, None))
    if lo < 0:
        warnings.warn(
            f"{name}: has negative values, which a symmetric unsigned dtype clips to 0; scheme='asymmetric' keeps them",
            stacklevel=4,
        )


def _only_params(
    dtype: DTypeLike,
    scheme: str | QuantizationScheme,
    options: tuple[Any, ...],
    full_range: bool,
    params: QuantizationParams,
) -> None:
    """Refuse options that contradict given params; options equal to theirs are accepted."""
    for key, value in zip(("axis", "group_size", "qmin", "qmax", "steps_per_octave"), options, strict=True):
        if value is not None and value != getattr(params, key):
            raise InvalidProblem(f"{key}: {value} contradicts params, which have {getattr(params, key)}")
    if full_range:
        raise InvalidProblem("full_range: params are given; it applies to params found in the data")
    if dtype != "int8" and QuantizedDType.of(dtype) != params.dtype:
        raise InvalidProblem(f"dtype: {dtype} contradicts params, which have {params.dtype}")
    if scheme != "symmetric" and QuantizationScheme.of(scheme) is not params.scheme:
        raise InvalidProblem(f"scheme: {scheme} contradicts params, which have {params.scheme}")
