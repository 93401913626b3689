"""NumPy arrays in, native kernels, NumPy arrays out: no decisions here."""

from __future__ import annotations

import functools
import math
import os
import sys
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem, Unsupported, UnsupportedDType
from lowbit.numerics.fields import refuse_masked
from lowbit.numerics.granularity import Granularity, granularity_of
from lowbit.numerics.logarithm import log_tables
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.ranges import SCALES
from lowbit.runtime.native import CODES, ELEMENTS, KINDS, core

__all__ = [
    "BFLOAT16", "HIGHEST_CODE", "LOWEST_CODE", "Affine", "FloatArray", "as_float_array", "code_of", "dequantize",
    "empty_float", "float_dtype", "mean_abs", "native_spec", "pack", "problem", "quantize", "quantize_dynamic",
    "unpack", "value_range", "writable_float",
]  # fmt: skip

Array = npt.NDArray[Any]

Element = core.Element
BFLOAT16 = Element.bf16
_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)

# A misspelt cap must not quietly run, or test, other kernels than were meant.
if _cap := os.environ.get("LOWBIT_MAX_ISA"):
    try:
        core.set_max_isa(_cap)
    except ValueError as _error:
        raise InvalidProblem(f"LOWBIT_MAX_ISA: {_error}") from None


class FloatArray:
    """A contiguous float array and its element kind; bfloat16 is held as the uint16 of its bits."""

    __slots__ = ("array", "dtype", "element")

    def __init__(self, array: Array, element: core.Element, dtype: np.dtype[Any] | None = None) -> None:
        self.array = array
        self.element = element
        self.dtype = array.dtype if dtype is None else dtype  # as the caller knows it

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def compute(self) -> np.dtype[Any]:
        return _FLOAT64 if self.element is Element.f64 else _FLOAT32

    def widened(self) -> Array:
        """The same numbers in their compute type."""
        if self.element is BFLOAT16:
            return (self.array.astype(np.uint32) << 16).view(np.float32)
        return self.array.astype(self.compute, copy=False)


LOWEST_CODE, HIGHEST_CODE = -(2**15), 2**16 - 1  # of any dtype


class Affine(NamedTuple):
    """Scales (of the compute type) and zero points, one each a parameter set, and the codes there are."""

    scale: Array
    zero: Array
    qmin: int
    qmax: int


def as_float_array(x: Any, name: str = "x") -> FloatArray:
    """x without a copy where it is contiguous: NumPy, torch, or anything that speaks DLPack or the buffer
    protocol. Raises UnsupportedDType, naming the type, for whatever is not a native float array."""
    refuse_masked(name, x)
    if not isinstance(x, np.ndarray):
        x = _imported(x, name)
        if isinstance(x, FloatArray):
            return x
    dtype = x.dtype
    element = ELEMENTS.get(dtype)
    if element is None:
        if dtype.name == "bfloat16":
            return FloatArray(_contiguous(x).view(np.uint16), BFLOAT16, dtype)
        if not dtype.isnative:
            native = f"{name}.astype({name}.dtype.newbyteorder('='))"
            raise UnsupportedDType(f"{name}: {dtype} has a foreign byte order; convert it with {native}")
        raise UnsupportedDType(f"{name}: {dtype}; expected float32, float64, float16 or bfloat16")
    return FloatArray(_contiguous(x), element)


def _contiguous(x: Array) -> Array:
    # np.ascontiguousarray would turn a 0-d array into a 1-d one, and leave an unaligned one as it is.
    return x if x.flags.c_contiguous and x.flags.aligned else np.array(x, order="C")


def _imported(x: Any, name: str) -> Array | FloatArray:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        x = x.detach()
        if x.device.type != "cpu":
            raise Unsupported(f"{name}: on {x.device}; expected CPU memory")
        try:
            if x.dtype == torch.bfloat16:
                return FloatArray(_contiguous(x.view(torch.int16).numpy()).view(np.uint16), BFLOAT16)
            lent: Array = x.numpy()
        except (TypeError, RuntimeError) as error:
            raise UnsupportedDType(f"{name}: a {x.dtype} tensor does not lend its memory ({error})") from None
        return lent
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, TypeError, RuntimeError, ValueError):
            pass
        try:
            return FloatArray(_contiguous(core.bfloat16_bits(x)), BFLOAT16)
        except (TypeError, ValueError, RuntimeError, BufferError) as error:
            raise UnsupportedDType(f"{name}: {type(x).__name__} does not lend a float array ({error})") from None
    return np.asarray(x)


def float_dtype(dtype: Any) -> np.dtype[Any]:
    """The NumPy dtype meant by a name, a NumPy, ml_dtypes or torch dtype; floats only."""
    name = str(dtype).removeprefix("torch.") if type(dtype).__module__ == "torch" else dtype
    if isinstance(name, str) and name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            raise Unsupported("dtype: NumPy knows bfloat16 through ml_dtypes; pip install ml_dtypes") from None
        name = ml_dtypes.bfloat16
    try:
        found = np.dtype(name)
    except TypeError:
        found = np.dtype(object)
    if found not in ELEMENTS and found.name != "bfloat16":
        raise UnsupportedDType(f"dtype: {dtype!r}; expected float32, float64, float16 or bfloat16")
    return found


def code_of(params: QuantizationParams) -> core.Code:
    return CODES[params.dtype.name]


def layout_of(g: Granularity) -> core.Granularity:
    return core.Granularity(
        KINDS[g.kind], g.outer, g.axis, g.inner, min(g.block, 1 << 62)
    )  # any integer is a block size


def _scales(params: QuantizationParams, g: Granularity) -> tuple[Array, Array | None]:
    """Scales and zero points as the kernels want them: one a parameter set, zeros left out."""
    scale, zero = params.scale, params.zero_point
    if scale.ndim == 0 and g.kind:
        scale, zero = np.full(g.scale_shape, scale), np.full(g.scale_shape, zero)
    return scale, (zero if zero.any() else None)


def native_spec(params: QuantizationParams, g: Granularity) -> Any:
    """The native counterpart of params, made once and kept with them."""
    key: tuple[Any, ...] = ("spec", g.scale_shape if params.scale.ndim == 0 else None)
    if params.dtype.is_mixed:
        key = ("mixed", g.outer * g.inner)
    found = params._cache.get(key)
    if found is None:
        found = params._cache[key] = _new_spec(params, g)
    return found


def _new_spec(params: QuantizationParams, g: Granularity) -> Any:
    scale, zero = _scales(params, g)
    wide = params.scale.dtype == np.float64
    if params.dtype.is_mixed:
        channels = [params.dtype.channel(i) for i in range(g.axis)]
        bounds = np.array([params.channel_range(i) for i in range(g.axis)], np.int32).reshape(-1, 2)
        lo, hi = (np.ascontiguousarray(bounds[:, i]) for i in (0, 1))
        zeros = np.zeros(g.axis, np.int32)
        return core.Mixed([CODES[c.name] for c in channels], g.outer * g.inner, scale, wide, zeros, lo, hi)
    if params.is_logarithmic:
        tables = log_tables(params.magnitude_levels, params.steps_per_octave or 1.0, params.scale.dtype)
        return core.Logarithmic(code_of(params), scale, wide, *tables)
    return core.Affine(code_of(params), scale, wide, zero, params.qmin, params.qmax)


def quantize(x: FloatArray, params: QuantizationParams, out: Array) -> None:
    """Writes the codes of x into `out`, stored as the dtype stores them. Params are of x's compute type."""
    g = params.granularity(x.shape)
    spec = native_spec(params, g)
    if params.dtype.is_mixed:
        rows = x.array
        if g.outer != 1:
            require_apart("out", out, False, x=x.array)
            rows = np.ascontiguousarray(np.moveaxis(x.array, _axis(params, x.shape), 0))
        spec.quantize(rows, x.element, out)
    else:
        spec.quantize(x.array, x.element, out, layout_of(g))


def dequantize(data: Array, params: QuantizationParams, out: FloatArray) -> None:
    """Writes the numbers of stored codes into `out`, whose compute type the params have."""
    g = params.granularity(out.shape)
    spec = native_spec(params, g)
    data = _contiguous(data)
    if not params.dtype.is_mixed:
        spec.dequantize(data, out.array, out.element, layout_of(g))
    elif g.outer == 1:
        spec.dequantize(data, out.array, out.element)
    else:
        require_apart("out", out.array, False, q=data)
        axis = _axis(params, out.shape)
        rows = np.empty((out.shape[axis], *out.shape[:axis], *out.shape[axis + 1 :]), out.array.dtype)
        spec.dequantize(data, rows, out.element)
        out.array[...] = np.moveaxis(rows, 0, axis)


def value_range(x: FloatArray, g: Granularity) -> tuple[Array, Array, int]:
    """(min, max, NaN seen) per scale; min and max leave NaN out."""
    lo, hi = np.empty(g.scale_shape, x.compute), np.empty(g.scale_shape, x.compute)
    nan = core.range(x.array, x.element, layout_of(g), lo, hi)
    return lo, hi, nan


def mean_abs(x: FloatArray, g: Granularity) -> npt.NDArray[np.float64]:
    """mean|x| per scale, in float64."""
    if g.kind == 0 or math.prod(x.shape) == 0:
        rows, length = x.array, math.prod(x.shape)
    elif g.kind == 1:
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


def quantize_dynamic(
    x: FloatArray, shape_of: QuantizationParams, g: Granularity, qmin: int, qmax: int, divisor: int, out: Array
) -> tuple[Array, Array | None, int, int] | None:
    """Range, params, codes and packing in one call: (scale, zero_point or None, NaN seen, bad scales).
    None where neither a fused kernel nor one scale for all serves. divisor > 0 is symmetric."""
    layout, code = layout_of(g), code_of(shape_of)
    fused = core.fused_groups_fit(layout, code)
    if not fused and g.kind != 0:
        return None
    scale = np.empty(g.scale_shape, x.compute)
    zero = None if divisor else np.empty(g.scale_shape, np.int32)
    if fused:
        nan, bad = core.quantize_dynamic(x.array, x.element, out, code, layout, qmin, qmax, divisor, scale, zero)
    else:
        room = np.empty(core.dynamic_workspace(layout, x.element), np.uint8)
        nan, bad = core.quantize_from_data(
            x.array, x.element, out, code, layout, qmin, qmax, divisor, scale, zero, room
        )
    return scale, zero, nan, bad


def pack(codes: Array, bits: int) -> npt.NDArray[np.uint8]:
    out = np.empty(-(-codes.size * bits // 8), np.uint8)
    core.pack(bits, _contiguous(codes).view(np.uint8), out)
    return out


def unpack(data: Array, bits: int, signed: bool, shape: tuple[int, ...]) -> Array:
    out = np.empty(shape, np.int8 if signed else np.uint8)
    core.unpack(bits, signed, _contiguous(data).view(np.uint8), out.view(np.uint8))
    return out


def empty_float(shape: tuple[int, ...], dtype: Any) -> tuple[Array, FloatArray]:
    """A new float array, and the same memory as kernels take it."""
    array = np.empty(shape, float_dtype(dtype))
    return array, as_float_array(array)


def empty_like(x: FloatArray, given: Any) -> tuple[Array, FloatArray]:
    """A new array of x's shape and type, as the caller will see it, and the same memory as kernels take it."""
    raw = np.empty(x.shape, x.array.dtype)
    seen = raw.view(float_dtype("bfloat16")) if x.element is BFLOAT16 else raw
    return seen, FloatArray(raw, x.element, x.dtype)


def writable_float(array: Any) -> FloatArray:
    """An array given as `out=`, as kernels take it."""
    made = as_float_array(array, "out")
    contiguous = array.flags.c_contiguous if isinstance(array, np.ndarray) else True
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        contiguous = array.is_contiguous()
        if array.requires_grad:
            raise InvalidProblem("out: requires grad; autograd would not see the write (use out.detach())")
    if isinstance(array, np.ndarray) and not array.flags.aligned:
        contiguous = False
    if not contiguous or not made.array.flags.writeable:
        raise InvalidProblem("out: expected a writable, aligned, C-contiguous array")
    return made


def _axis(params: QuantizationParams, shape: tuple[int, ...]) -> int:
    return (params.axis or 0) % len(shape)


@functools.lru_cache(1024)
def problem(
    shape: tuple[int, ...], dtype: np.dtype[Any], axis: int | None, group_size: int | None, qmin: int, qmax: int
) -> core.Problem | None:
    """What is known of a fake-quantize call before its data; None where the options are not plain enough."""
    element = BFLOAT16 if dtype.name == "bfloat16" else ELEMENTS.get(dtype)
    plain = element is not None and LOWEST_CODE <= qmin <= qmax <= HIGHEST_CODE
    if element is None or not plain or (group_size or 1) < 1:
        return None
    g = granularity_of(shape, -1 if axis is None and group_size is not None else axis, group_size)
    return core.Problem(layout_of(g), element, list(shape), list(g.scale_shape), qmin, qmax)


def require_apart(name: str, out: Array, in_place: bool, **operands: Array | None) -> None:
    """Refuses a result that would be written over what is still to be read. in_place: it may be an operand itself."""
    for operand, x in operands.items():
        if x is None or not np.may_share_memory(out, x):
            continue
        if not in_place or out.ctypes.data != x.ctypes.data:
            whole = f", or all of {operand}" if in_place else ""
            raise InvalidProblem(f"{name}: shares memory with {operand}; expected memory of its own{whole}")


def _fake_quant(
    op: int, x: FloatArray | None, dy: FloatArray | None, f: Affine, g: Granularity, out: FloatArray
) -> None:
    of_x, of_dy = (None if a is None else a.array for a in (x, dy))
    require_apart("out", out.array, True, x=of_x, dy=of_dy)
    _check(core.fake_quant(op, of_x, of_dy, out.array, out.element, *f, layout_of(g)), f)


def fake_quantize(x: FloatArray, f: Affine, g: Granularity, out: FloatArray) -> None:
    _fake_quant(0, x, None, f, g, out)


def fake_quantize_backward(dy: FloatArray, x: FloatArray, f: Affine, g: Granularity, out: FloatArray) -> None:
    _fake_quant(1, x, dy, f, g, out)


def mask_fits(g: Granularity) -> bool:
    """Whether fake_quantize_masked_at serves this granularity: where a scale holds for whole bytes of the mask."""
    return core.mask_fits(layout_of(g))


# fake_quantize that also sets a bit for each element that was not clipped, from the lowest up; and dy where such a bit
# is set, else 0. They take addresses, and it is the caller who knows what lies there.
fake_quantize_masked_at = core.fake_quant_masked_at
keep_where_at = core.keep_where_at


def quantize_backward(dy: FloatArray, x: FloatArray, f: Affine, g: Granularity, out: FloatArray) -> None:
    _fake_quant(2, x, dy, f, g, out)


def dequantize_backward(dy: FloatArray, f: Affine, g: Granularity, out: FloatArray) -> None:
    _fake_quant(3, None, dy, f, g, out)


def fake_quantize_learned_backward(
    dy: FloatArray, x: FloatArray, f: Affine, g: Granularity, out: FloatArray
) -> tuple[Array, Array]:
    require_apart("out", out.array, True, x=x.array, dy=dy.array)
    layout = layout_of(g)
    ds, dz = np.empty_like(f.scale), np.empty_like(f.scale)
    room = np.empty(core.learned_workspace(layout) // 8)
    status = core.fake_quant_learned(x.array, dy.array, out.array, x.element, *f, layout, room, ds, dz)
    _check(status, f)
    return ds, dz


def _check(status: int, f: Affine) -> None:
    if status != -1:
        raise bad_parameter(status, f.scale, f.zero, f.qmin, f.qmax)


def bad_parameter(status: int, scale: Array, zero: Array, qmin: int, qmax: int) -> InvalidProblem:
    """The error a kernel's status means: the index of a bad scale, or -2 minus that of a bad zero point."""
    index = status if status >= 0 else -2 - status
    where = f" (at {tuple(int(i) for i in np.unravel_index(index, scale.shape))})" if scale.ndim else ""
    if status >= 0:
        bad = scale.reshape(-1)[index]
        return InvalidProblem(f"scale: {bad!r}{where}; expected {SCALES}")
    return InvalidProblem(f"zero_point: {int(zero.reshape(-1)[index])}{where}; expected in [{qmin}, {qmax}]")
