"""NumPy arrays in, native kernels, NumPy arrays out: no decisions here."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem, Unsupported, UnsupportedDType
from lowbit.numerics.fields import refuse_masked
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.ranges import SCALES
from lowbit.runtime.native import CODES, ELEMENTS, core

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
            return FloatArray(contiguous(x).view(np.uint16), BFLOAT16, dtype)
        if not dtype.isnative:
            native = f"{name}.astype({name}.dtype.newbyteorder('='))"
            raise UnsupportedDType(f"{name}: {dtype} has a foreign byte order; convert it with {native}")
        raise UnsupportedDType(f"{name}: {dtype}; expected float32, float64, float16 or bfloat16")
    return FloatArray(contiguous(x), element)


def contiguous(x: Array) -> Array:
    """x as an aligned, C-contiguous array of NumPy's own type, without a copy where it is one."""
    # np.ascontiguousarray would turn a 0-d array into a 1-d one, and leave an unaligned one as it is.
    flags = x.flags  # an object made at each access: small calls feel it
    x = x if flags.c_contiguous and flags.aligned else np.array(x, order="C")
    return x if type(x) is np.ndarray else x.view(np.ndarray)


def is_torch_tensor(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def borrowed(name: str, tensor: Any) -> tuple[Array, str]:
    """The memory of a torch tensor, without a copy, and the name of its dtype; bfloat16 as the uint16 of its bits."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        raise Unsupported(f"{name}: on {tensor.device}; expected CPU memory")
    dtype = str(tensor.dtype).removeprefix("torch.")
    try:
        if dtype == "bfloat16":
            return tensor.view(sys.modules["torch"].int16).numpy().view(np.uint16), dtype
        return tensor.numpy(), dtype
    except (TypeError, RuntimeError) as error:
        raise UnsupportedDType(f"{name}: a {tensor.dtype} tensor does not lend its memory ({error})") from None


def _imported(x: Any, name: str) -> Array | FloatArray:
    if is_torch_tensor(x):
        lent, dtype = borrowed(name, x)
        return FloatArray(contiguous(lent), BFLOAT16) if dtype == "bfloat16" else lent
    if hasattr(x, "__dlpack__"):
        try:
            return np.from_dlpack(x)
        except (BufferError, TypeError, RuntimeError, ValueError):
            pass
        try:
            return FloatArray(contiguous(core.bfloat16_bits(x)), BFLOAT16)
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


def pack(codes: Array, bits: int) -> npt.NDArray[np.uint8]:
    out = np.empty(-(-codes.size * bits // 8), np.uint8)
    core.pack(bits, contiguous(codes).view(np.uint8), out)
    return out


def unpack(data: Array, bits: int, signed: bool, shape: tuple[int, ...]) -> Array:
    out = np.empty(shape, np.int8 if signed else np.uint8)
    core.unpack(bits, signed, contiguous(data).view(np.uint8), out.view(np.uint8))
    return out


def empty_float(shape: tuple[int, ...], dtype: Any) -> tuple[Array, FloatArray]:
    """A new float array, and the same memory as kernels take it."""
    array = np.empty(shape, float_dtype(dtype))
    return array, as_float_array(array)


def empty_like(x: FloatArray) -> tuple[Array, FloatArray]:
    """A new array of x's shape and type, as the caller will see it, and the same memory as kernels take it."""
    raw = np.empty(x.shape, x.array.dtype)
    seen = raw.view(float_dtype("bfloat16")) if x.element is BFLOAT16 else raw
    return seen, FloatArray(raw, x.element, x.dtype)


def writable_float(array: Any) -> FloatArray:
    """An array given as `out=`, as kernels take it."""
    made = as_float_array(array, "out")
    is_contiguous = True
    if is_torch_tensor(array):
        is_contiguous = array.is_contiguous()
        if array.requires_grad:
            raise InvalidProblem("out: requires grad; autograd would not see the write (use out.detach())")
    elif isinstance(array, np.ndarray):
        is_contiguous = array.flags.c_contiguous and array.flags.aligned
    if not is_contiguous or not made.array.flags.writeable:
        raise InvalidProblem("out: expected a writable, aligned, C-contiguous array")
    return made


def require_apart(name: str, out: Array, in_place: bool, **operands: Array | None) -> None:
    """Refuses a result that would be written over what is still to be read. in_place: it may be an operand itself."""
    for operand, x in operands.items():
        if x is not None and _overlaps(out, x, in_place):
            whole = f", or all of {operand}" if in_place else ""
            raise InvalidProblem(f"{name}: shares memory with {operand}; expected memory of its own{whole}")


def apart(out: Array, *operands: Array, in_place: bool = False) -> Array:
    """out, or new memory like it where writing it would change what is still to be read."""
    return np.empty_like(out) if any(_overlaps(out, x, in_place) for x in operands) else out


def _overlaps(out: Array, x: Array, in_place: bool) -> bool:
    """in_place: out may be all of x, as each element is read before its place is written."""
    if not np.may_share_memory(out, x):
        return False
    same = x is out or (x.ctypes.data == out.ctypes.data and x.nbytes == out.nbytes and x.flags.c_contiguous)
    return not (in_place and same)


def bad_parameter(status: int, scale: Array, zero: Array, qmin: int, qmax: int) -> InvalidProblem:
    """The error a kernel's status means: the index of a bad scale, or -2 minus that of a bad zero point."""
    if status == core.NOT_AS_DESCRIBED:  # callers have seen to it that they are
        return InvalidProblem("out: expected writable, aligned, C-contiguous arrays of the plan's type and shape")
    index = status if status >= 0 else -2 - status
    where = f" (at {tuple(int(i) for i in np.unravel_index(index, scale.shape))})" if scale.ndim else ""
    if status >= 0:
        bad = scale.reshape(-1)[index]
        return InvalidProblem(f"scale: {bad!r}{where}; expected {SCALES}")
    return InvalidProblem(f"zero_point: {int(zero.reshape(-1)[index])}{where}; expected in [{qmin}, {qmax}]")


def first_nonfinite(x: FloatArray) -> tuple[float, tuple[int, ...]] | None:
    """The first NaN or Inf and its index, or None."""
    at = core.first_nonfinite(x.array, x.element)
    if at < 0:
        return None
    value = FloatArray(x.array.reshape(-1)[at : at + 1], x.element).widened()[0]
    return value, tuple(int(i) for i in np.unravel_index(at, x.shape)) if x.shape else ()


def refuse_nonfinite(x: FloatArray, name: str, hint: str = "a range needs finite numbers") -> None:
    """Raises InvalidProblem for the first NaN or Inf."""
    found = first_nonfinite(x)
    if found is not None:
        raise InvalidProblem(f"{name}: {found[0]} at index {found[1]}; {hint}")
