"""quantize: floats to codes, with given parameters or with parameters found in the data."""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import DTypeLike, QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.granularity import Granularity
from lowbit.numerics.params import QuantizationParams, QuantizationScheme
from lowbit.numerics.ranges import MAX_SCALE
from lowbit.numerics.schemes import group_size_of
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.outputs import codes_for, finished
from lowbit.runtime import arrays as cpu

__all__ = ["quantize", "quantize_to_int8", "refuse_nonfinite"]

Array = npt.NDArray[Any]
_DEFAULT_BLOCK = 32


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
    if params is not None:
        # The call that repeats: everything but the kernel was settled the first time.
        plain = axis is None and group_size is None and qmin is None and qmax is None and not full_range
        plain = plain and steps_per_octave is None and dtype == "int8" and scheme == "symmetric"
        plain = plain and on_nonfinite == "raise"
        ready = params._cache.get(x.dtype) if plain and type(x) is np.ndarray else None
        if ready is not None and x.flags.c_contiguous and x.flags.aligned:
            spec, resolved, storage, element = ready
            shape = x.shape
            source = x.view(np.uint16) if element is cpu.BFLOAT16 else x
            if out is None:
                data = np.empty(shape, storage)
                spec.quantize(source, element, data)
                return QuantizedTensor._trusted(data, resolved, shape)
            if type(out) is QuantizedTensor and out.params is resolved and out.shape == shape:
                if out.data.flags.carray:
                    spec.quantize(source, element, out.data)
                    return out
            elif type(out) is np.ndarray and out.dtype is storage and out.shape == shape and out.flags.carray:
                spec.quantize(source, element, out)
                return QuantizedTensor._trusted(out, resolved, shape)
        _only_params(dtype, scheme, axis, group_size, qmin, qmax, full_range, steps_per_octave, params)
        _check_on_nonfinite(on_nonfinite)
        return _with_params(cpu.as_float_array(x, name), params, out)
    _check_on_nonfinite(on_nonfinite)
    kind = QuantizationScheme.of(scheme)
    if kind is QuantizationScheme.BLOCK_WISE and group_size is None:
        group_size = _DEFAULT_BLOCK
    try:
        shape_of = _template(dtype, kind, axis, group_size, qmin, qmax, steps_per_octave)
    except TypeError:  # something that cannot be a key, and so is none of them
        shape_of = QuantizationParams(
            dtype, kind, axis=axis, group_size=group_size, qmin=qmin, qmax=qmax, steps_per_octave=steps_per_octave
        )
    array = cpu.as_float_array(x, name)
    if array.array.size == 0:
        raise InvalidProblem(f"{name}: empty (shape {array.shape}); there is nothing to find a range in")
    g = shape_of.granularity(array.shape)
    explicit = qmin is not None or qmax is not None
    return _from_data(array, shape_of, g, explicit, full_range, on_nonfinite, name, out)


@functools.lru_cache(maxsize=128, typed=True)
def _template(
    dtype: Any, scheme: Any, axis: Any, group_size: Any, qmin: Any, qmax: Any, steps_per_octave: Any
) -> QuantizationParams:
    """Params without scales yet. They are never changed, so that the same ones serve every call that asks for them."""
    return QuantizationParams(
        dtype, scheme, axis=axis, group_size=group_size, qmin=qmin, qmax=qmax, steps_per_octave=steps_per_octave
    )


def quantize_to_int8(x: Any, scale: float, zero_point: int = 0) -> npt.NDArray[np.int8]:
    """int8 codes of x under one scale: the short form.

    >>> quantize_to_int8(np.float32([-1.0, 0.26]), 0.5)
    array([-2,  1], dtype=int8)
    """
    return quantize(x, params=QuantizationParams("int8", scale=scale, zero_point=zero_point)).data


def _with_params(x: cpu.FloatArray, params: QuantizationParams, out: QuantizedTensor | Array | None) -> QuantizedTensor:
    resolved = params.for_compute(x.compute)
    data = codes_for(resolved, x.shape, out)
    cpu.quantize(x, resolved, data)
    # bfloat16 lent by torch comes as uint16, under which it must not be found again.
    by_dtype = x.element is not cpu.BFLOAT16 or x.dtype.name == "bfloat16"
    if by_dtype and resolved.axis is None and not resolved.dtype.is_packed and not resolved.is_logarithmic:
        spec = cpu.native_spec(resolved, resolved.granularity(x.shape))
        params._cache[x.dtype] = resolved._cache[x.dtype] = (spec, resolved, resolved.dtype.storage_dtype, x.element)
    return finished(data, resolved, x.shape, out)


def _from_data(
    x: cpu.FloatArray,
    shape_of: QuantizationParams,
    g: Granularity,
    explicit: bool,
    full_range: bool,
    on_nonfinite: str,
    name: str,
    out: QuantizedTensor | Array | None,
) -> QuantizedTensor:
    dtype = shape_of.dtype
    affine = not (dtype.is_mixed or dtype.is_binary or shape_of.is_logarithmic)
    narrow = affine and shape_of.is_symmetric and dtype.is_signed and not explicit and not full_range
    lo_code = -shape_of.qmax if narrow else shape_of.qmin
    if affine and on_nonfinite == "raise" and lo_code <= 0 <= shape_of.qmax and lo_code < shape_of.qmax:
        divisor = 0
        if shape_of.is_symmetric:
            divisor = max(1, -lo_code if full_range and lo_code < 0 else shape_of.qmax)
        data = codes_for(shape_of, x.shape, out)
        if out is not None:
            cpu.require_apart("out", data, False, x=x.array)
        fused = cpu.quantize_dynamic(x, shape_of, g, lo_code, shape_of.qmax, divisor, data)
        if fused is not None:
            scale, zero, nan, bad = fused
            if nan or bad:
                refuse_nonfinite(x, name)
                raise InvalidProblem(f"{name}: values too large: a scale would exceed {MAX_SCALE:.6g}")
            if divisor and not dtype.is_signed:
                _warn_unsigned(x, name)
            params = shape_of._with_arrays(scale, np.zeros(scale.shape, np.int32) if zero is None else zero, lo_code)
            return finished(data, params, x.shape, out)
    lo, hi = _finite_range(x, g, on_nonfinite, name)
    mean = cpu.mean_abs(_finite_only(x, on_nonfinite), g) if dtype.is_binary or 1 in dtype.widths else None
    try:
        params = shape_of.from_statistics(
            lo, hi, full_range=full_range, mean_abs=mean,
            qmin=shape_of.qmin if explicit else None, qmax=shape_of.qmax if explicit else None,
        )  # fmt: skip
    except InvalidProblem as error:
        raise InvalidProblem(f"{name}: {error}") from None
    if affine and params.is_symmetric and not dtype.is_signed and (lo < 0).any():
        _warn_unsigned(x, name)
    params = params.for_compute(x.compute)
    data = codes_for(params, x.shape, out)
    cpu.quantize(x, params, data)
    return finished(data, params, x.shape, out)


def _finite_range(x: cpu.FloatArray, g: Granularity, on_nonfinite: str, name: str) -> tuple[Array, Array]:
    lo, hi, nan = cpu.value_range(x, g)
    if nan or not (np.isfinite(lo).all() and np.isfinite(hi).all()):
        if on_nonfinite == "raise":
            refuse_nonfinite(x, name)
        lo, hi, left_out = cpu.value_range(_finite_only(x, on_nonfinite, as_nan=True), g)
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


def refuse_nonfinite(x: cpu.FloatArray, name: str) -> None:
    """Raises for the first NaN or Inf; looked for a piece at a time, as the data may be large."""
    flat = cpu.FloatArray(x.array.reshape(-1), x.element)
    for start in range(0, flat.array.size, 1 << 20):
        piece = cpu.FloatArray(flat.array[start : start + (1 << 20)], x.element).widened()
        bad = ~np.isfinite(piece)
        if bad.any():
            first = int(bad.argmax())
            index = tuple(int(i) for i in np.unravel_index(start + first, x.shape)) if x.shape else ()
            raise InvalidProblem(
                f"{name}: {piece[first]} at index {index}; a range needs finite numbers "
                "(on_nonfinite='ignore' leaves such values out of it)"
            )


def _warn_unsigned(x: cpu.FloatArray, name: str) -> None:
    lo, _, _ = cpu.value_range(x, Granularity(0, 1, 1, math.prod(x.shape), 1, ()))
    if lo < 0:
        warnings.warn(
            f"{name}: has negative values, which a symmetric unsigned dtype clips to 0; scheme='asymmetric' keeps them",
            stacklevel=4,
        )


def _check_on_nonfinite(value: str) -> None:
    if value not in ("raise", "ignore"):
        raise InvalidProblem(f"on_nonfinite: {value!r}; expected 'raise' or 'ignore'")


def _only_params(
    dtype: DTypeLike,
    scheme: str | QuantizationScheme,
    axis: int | None,
    group_size: int | None,
    qmin: int | None,
    qmax: int | None,
    full_range: bool,
    steps_per_octave: float | None,
    params: QuantizationParams,
) -> None:
    """With params given, every other choice is theirs: saying it again is fine, contradicting it is not."""
    said = {"axis": axis, "group_size": group_size, "qmin": qmin, "qmax": qmax, "steps_per_octave": steps_per_octave}
    for key, value in said.items():
        if value is not None and value != getattr(params, key):
            raise InvalidProblem(f"{key}: {value} contradicts params, which have {getattr(params, key)}")
    if full_range:
        raise InvalidProblem("full_range: params are given; it applies to params found in the data")
    if dtype != "int8" and QuantizedDType.of(dtype) != params.dtype:
        raise InvalidProblem(f"dtype: {dtype} contradicts params, which have {params.dtype}")
    if scheme != "symmetric" and QuantizationScheme.of(scheme) is not params.scheme:
        raise InvalidProblem(f"scheme: {scheme} contradicts params, which have {params.scheme}")
