"""QuantizedTensor: codes, their logical shape, and their params."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable
from typing import Any, Protocol, overload

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import Array, QuantizedDType, is_integer
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.fields import Immutable, refuse_masked
from lowbit.numerics.granularity import spread
from lowbit.numerics.indexing import reshaped_granularity, sliced, transposed_granularity
from lowbit.numerics.metrics import ErrorReport, error_report
from lowbit.numerics.packing import pack, padding_is_zero, unpack
from lowbit.numerics.params import QuantizationParams


class Backend(Protocol):
    """What a tensor asks of the packages above this one, which register it: imports only point down."""

    def unpack(self, q: QuantizedTensor) -> Array: ...
    def dequantize(self, q: QuantizedTensor, out: Array | None, dtype: npt.DTypeLike | None) -> Array: ...
    def to(self, q: QuantizedTensor, device: str) -> Any: ...
    def save(self, q: QuantizedTensor, path: str | os.PathLike[str]) -> None: ...
    def load(self, path: str | os.PathLike[str]) -> QuantizedTensor: ...


_backend: Backend | None = None


def set_backend(backend: Backend) -> None:
    """Register what unpacks, dequantizes, moves, saves and loads tensors."""
    global _backend
    _backend = backend


def _kernels() -> Backend:
    if _backend is None:
        raise Unsupported("QuantizedTensor: no kernels are loaded; import lowbit first")
    return _backend


class _Fields(Immutable):
    """The fields of a tensor, which may be set only in this class."""

    __slots__ = ("__weakref__", "data", "params", "shape")

    data: Array
    params: QuantizationParams
    shape: tuple[int, ...]


class QuantizedTensor(_Fields):
    """Quantized codes with their logical shape and parameters.

    Invariants, enforced by the constructor:

    - `data` has the dtype's storage type. Where codes take a byte or more, its shape is the logical
      `shape` (it may be a strided view). Sub-byte codes are one flat uint8 array in C order, 8 / bits
      per byte, the first in the low bits, padding bits 0, so that any length round-trips. Mixed codes are
      one flat uint8 array, channel after channel, each packed by its own width from a byte boundary.
    - `params` fit `shape`; their scales are float32, or float64 where the tensor was made from float64.
    - It lives in CPU memory (`device` is "cpu").

    Fields cannot be assigned, so that the invariants hold; the codes in `data` may be written.

    >>> import lowbit as lb
    >>> q = lb.quantize(np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3), "int4")
    >>> q.unpack()
    array([[-7, -4, -1],
           [ 1,  4,  7]], dtype=int8)
    >>> q.data.nbytes, q.nbytes
    (3, 7)
    """

    __slots__ = ()

    def __init__(
        self, data: Any, params: QuantizationParams, shape: tuple[int, ...] | None = None, device: str = "cpu"
    ) -> None:
        if str(device) != "cpu":
            raise Unsupported(f"device: {device!r}; a QuantizedTensor is in CPU memory: make it there, then call to()")
        refuse_masked("data", data)
        if not isinstance(data, np.ndarray) and not hasattr(data, "__dlpack__"):
            raise InvalidProblem(f"data: {type(data).__name__}; expected an array of stored codes")
        codes = data if isinstance(data, np.ndarray) else np.from_dlpack(data)
        dtype = params.dtype
        if shape is None:
            if dtype.is_packed:
                raise InvalidProblem(f"shape: {dtype} codes are packed; say the logical shape")
            shape = codes.shape
        shape = _checked_shape(shape)
        if codes.dtype != dtype.storage_dtype:
            raise InvalidProblem(f"data: {codes.dtype}; {dtype} is stored as {dtype.storage_dtype}")
        params.validate(shape)
        if dtype.is_packed:
            codes = np.ascontiguousarray(codes if codes.ndim == 1 else codes.reshape(-1))
        expected = (params.codes_nbytes(shape),) if dtype.is_packed else shape
        if codes.shape != expected:
            raise InvalidProblem(f"data: shape {codes.shape}; {dtype} of shape {shape} is stored as {expected}")
        if dtype.is_packed and not padding_is_zero(codes, dtype, math.prod(shape)):
            raise InvalidProblem("data: padding bits after the last code are not 0")
        self._set(data=codes, params=params.for_compute(np.float32) if params.weak else params, shape=shape)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"{name}: a tensor's fields belong together; make another, QuantizedTensor(data, params, shape), or write "
            "into data"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: a tensor's fields belong together and are not deleted")

    @classmethod
    def _trusted(cls, data: Array, params: QuantizationParams, shape: tuple[int, ...]) -> QuantizedTensor:
        """A tensor from parts known to satisfy the invariants."""
        self: Any = _Fields()
        self.data, self.params, self.shape = data, params, shape
        self.__class__ = QuantizedTensor  # immutable from here; `_set` takes longer than a small `quantize`
        return self  # type: ignore[no-any-return]

    @classmethod
    def from_codes(cls, codes: npt.ArrayLike, params: QuantizationParams, device: str = "cpu") -> QuantizedTensor:
        """A tensor from codes, one per element; they are packed where the dtype packs."""
        refuse_masked("codes", codes)
        array = np.asarray(codes)
        if not is_integer(array.dtype) and array.dtype != bool:
            raise InvalidProblem(f"codes: expected integers, got {array.dtype}")
        lo, hi = params.qmin, params.qmax
        if array.size and (array.min() < lo or array.max() > hi):
            raise InvalidProblem(f"codes: [{array.min()}, {array.max()}] reaches beyond [{lo}, {hi}]")
        params.validate(array.shape)
        return cls(pack(array, params.dtype, params.axis), params, array.shape, device)

    @classmethod
    def from_data(
        cls, data: Any, params: QuantizationParams, shape: tuple[int, ...] | None = None, device: str = "cpu"
    ) -> QuantizedTensor:
        """A tensor over stored codes, without a copy; packed codes need their logical shape.

        >>> p = QuantizationParams("int4", scale=0.5)
        >>> QuantizedTensor.from_data(np.uint8([0x21, 0x03]), p, (3,)).unpack()
        array([1, 2, 3], dtype=int8)
        """
        return cls(data, params, shape, device)

    @classmethod
    def zeros(cls, shape: tuple[int, ...], params: QuantizationParams) -> QuantizedTensor:
        """A tensor of zeros: its codes are the zero points.

        >>> QuantizedTensor.zeros((2, 2), QuantizationParams("uint8", scale=0.5, zero_point=3)).unpack()
        array([[3, 3],
               [3, 3]], dtype=uint8)
        """
        shape = _checked_shape(shape)
        if params.dtype.is_binary or 1 in params.dtype.widths:
            raise InvalidProblem(f"params: {params.dtype}; a binary code is -s or +s, and neither is 0")
        if not params.zero_point.any():
            return cls(*_new_codes(np.zeros, shape, params))
        zero = spread(params.zero_point, params.granularity(shape), shape)
        return cls.from_codes(zero.astype(params.dtype.code_dtype), params)

    @classmethod
    def empty(cls, shape: tuple[int, ...], params: QuantizationParams) -> QuantizedTensor:
        """An uninitialized tensor to pass as `out=`.

        >>> import lowbit as lb
        >>> q = QuantizedTensor.empty((3,), QuantizationParams("int8", scale=0.5))
        >>> lb.quantize(np.float32([1, 2, 3]), params=q.params, out=q).unpack()
        array([2, 4, 6], dtype=int8)
        """
        shape = _checked_shape(shape)
        # Padding bits are 0, whatever the codes are.
        return cls(*_new_codes(np.zeros if params.dtype.is_packed else np.empty, shape, params))

    @property
    def dtype(self) -> QuantizedDType:
        return self.params.dtype

    @property
    def device(self) -> str:
        return "cpu"

    @property
    def scale(self) -> Array:
        """The scales: those of `params`."""
        return self.params.scale

    @property
    def zero_point(self) -> Array:
        """The zero points: those of `params`."""
        return self.params.zero_point

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points."""
        return self.params.codes_nbytes(self.shape) + self.params.nbytes

    @property
    def bits_per_element(self) -> float:
        """Bits per element, including scales and zero points."""
        return 8 * self.nbytes / self.size if self.size else 0.0

    @property
    def storage_efficiency(self) -> float:
        """The share of the stored bits that are codes, not scales, zero points or padding."""
        widths = self.dtype.widths
        bits = self.size * self.dtype.bits if not widths else self.size // len(widths) * sum(widths)
        return bits / (8 * self.nbytes) if self.nbytes else 1.0

    @property
    def compression_ratio(self) -> float:
        """Bytes as float32 over bytes now."""
        return self.params.compression_ratio(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d tensor")
        return self.shape[0]

    def unpack(self) -> Array:
        """The codes, one per element, in the logical shape; without a copy where codes are not packed."""
        if not self.dtype.is_packed:
            return self.data
        if _backend is not None and not self.dtype.is_mixed:
            return _backend.unpack(self)
        return unpack(self.data, self.dtype, self.shape, self.params.axis)

    def dequantize(self, out: Array | None = None, dtype: npt.DTypeLike | None = None) -> Array:
        """The values of the codes, by default in float32, or float64 where the tensor was made from it."""
        return _kernels().dequantize(self, out, dtype)

    def error(self, x: npt.ArrayLike) -> ErrorReport:
        """The error of this tensor against the array it was made from."""
        refuse_masked("x", x)
        return error_report(np.asarray(x), self.dequantize(), self.shape)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("a quantized tensor cannot become an array without computing a new one")
        y = self.dequantize()
        return y if dtype is None else y.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        """The stored codes, without a copy."""
        return self.data.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[Any, Any]:
        return self.data.__dlpack_device__()

    @classmethod
    def from_dlpack(
        cls, codes: Any, params: QuantizationParams, shape: tuple[int, ...] | None = None
    ) -> QuantizedTensor:
        """A tensor over another library's codes, without a copy."""
        return cls(np.from_dlpack(codes), params, shape)

    @overload
    def reshape(self, shape: tuple[int, ...], /) -> QuantizedTensor: ...
    @overload
    def reshape(self, *shape: int) -> QuantizedTensor: ...
    def reshape(self, *shape: Any) -> QuantizedTensor:
        """The same codes in another shape, without a copy, if every scale keeps its elements."""
        one_tuple = len(shape) == 1 and not isinstance(shape[0], (int, np.integer))
        new = tuple(shape[0]) if one_tuple else tuple(shape)
        new, params = reshaped_granularity(self.params, self.shape, new)
        data = self.data if self.dtype.is_packed else self.data.reshape(new)
        return QuantizedTensor._trusted(data, params, new)

    def __getitem__(self, index: Any) -> QuantizedTensor:
        """Part of the tensor, by integers and slices. A view, except of packed codes that do not start on a byte."""
        cut = sliced(self.params, self.shape, index)
        if not self.dtype.is_packed:
            view = (*cut.index, ...)  # "..." keeps a single code an array
            return QuantizedTensor(self.data[view], cut.params, cut.shape)
        span = cut.byte_span(self.shape)
        if span is not None:
            return QuantizedTensor._trusted(self.data[span], cut.params, cut.shape)
        codes = np.ascontiguousarray(self.unpack()[cut.index])
        return QuantizedTensor(pack(codes, cut.params.dtype, cut.params.axis), cut.params, cut.shape)

    @property
    def T(self) -> QuantizedTensor:
        """The tensor with its axes reversed, each scale with its elements. A view where codes take a byte or more;
        packed codes are copied.

        >>> import lowbit as lb
        >>> q = lb.quantize(np.float32([[1, 2, 4], [1, 0, 1]]), axis=0)
        >>> q.T.shape, q.T.params.axis
        ((3, 2), 1)
        """
        params = transposed_granularity(self.params, tuple(reversed(range(self.ndim))))
        if not self.dtype.is_packed:
            return QuantizedTensor._trusted(self.data.T, params, self.shape[::-1])
        return QuantizedTensor.from_codes(np.array(self.unpack().T, order="C"), params)

    def copy(self) -> QuantizedTensor:
        """A tensor with a copy of the codes."""
        return QuantizedTensor._trusted(np.array(self.data, order="C"), self.params, self.shape)

    def to(self, device: str) -> Any:
        """The tensor itself for "cpu"; for "cuda" or "cuda:1" a copy in that GPU's memory, a `GpuQuantizedTensor`,
        which dequantizes there and comes back by `to("cpu")`. Unsupported, with the reason, where there is no such GPU.
        """
        return self if device == "cpu" else _kernels().to(self, device)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file with the stored codes and their params, whole or not at all."""
        _kernels().save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> QuantizedTensor:
        """The tensor a file holds, equal to the one saved to the bit; FormatError if it holds none."""
        return _kernels().load(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return QuantizedTensor, (np.asarray(self.data, order="C"), self.params, self.shape)

    def __eq__(self, other: object) -> bool:
        """Whether shape, params and all codes are the same."""
        if not isinstance(other, QuantizedTensor):
            return NotImplemented
        return self.shape == other.shape and self.params == other.params and bool(np.array_equal(self.data, other.data))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        head = f"QuantizedTensor(shape={self.shape}, {self.params!r},"
        body = np.array2string(self.unpack(), prefix="  ", threshold=24, edgeitems=2)
        return f"{head}\n  {body},\n  {self.nbytes} bytes, {self.bits_per_element:.4g} bits per element)"


def _new_codes(
    make: Callable[..., Array], shape: tuple[int, ...], params: QuantizationParams
) -> tuple[Array, QuantizationParams, tuple[int, ...]]:
    params.validate(shape)
    stored = (params.codes_nbytes(shape),) if params.dtype.is_packed else shape
    return make(stored, params.dtype.storage_dtype), params, shape


def _checked_shape(shape: Any) -> tuple[int, ...]:
    try:
        checked = tuple(operator.index(n) for n in shape)
    except TypeError:
        raise InvalidProblem(f"shape: {shape!r}; expected integers") from None
    if any(n < 0 for n in checked):
        raise InvalidProblem(f"shape: {checked} has a negative size")
    # Packed codes become an array of this shape only in `unpack`: reject a shape no array can have.
    if len(checked) > 64 or math.prod(n or 1 for n in checked) >= 1 << 60:
        raise InvalidProblem(f"shape: {len(checked)} dimensions, or more elements than an array can have")
    return checked
