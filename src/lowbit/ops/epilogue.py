"""The epilogue of products and convolutions: sums become floats, or codes of other params. Checked first, applied last.

Which rule makes the codes of `out_params`:

- linear, one scale, from integer sums: requantize, clamp(rne(f32(t) * ((sa * sb) / sy)) + zy). Kernels write int8 and
  uint8, and codes below 8 bits as bytes that are packed afterwards; NumPy writes 16 bits.
- linear, one scale, from float sums: quantize(float32 result).
- every other dtype, scheme and granularity: exactly `quantize(y, params=out_params)` of the float32 result y, whose
  bias, activation and clamp are applied first.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np

from lowbit import reference
from lowbit.numerics.errors import InvalidProblem, Unsupported, UnsupportedDType
from lowbit.numerics.fields import refuse_masked
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.operands import require_fit
from lowbit.ops.quantize import quantize
from lowbit.reference import compute as reference_compute
from lowbit.runtime import arrays as cpu
from lowbit.runtime.arrays import Array
from lowbit.runtime.native import core

F32 = np.float32
_RESULTS = {
    "float32": core.Result.f32,
    "float16": core.Result.f16,
    "bfloat16": core.Result.bf16,
    "int8": core.Result.s8,
    "uint8": core.Result.u8,
}
PART = 1 << 15  # elements whose epilogue NumPy applies at a time, which bounds its temporaries


class EpilogueOptions(TypedDict, total=False):
    """What follows the accumulation: floats of `out_dtype`, or codes of `out_params`, after the activation."""

    out_params: QuantizationParams | None
    out_dtype: Any
    activation: str | None
    clamp: tuple[float, float] | None


class MatMulOptions(EpilogueOptions, total=False):
    bias: Any


class ConvOptions(EpilogueOptions, total=False):
    stride: Any
    padding: Any
    dilation: Any
    groups: int
    layout: str


def row_parts(shape: tuple[int, ...]) -> Iterator[slice]:
    """Rows of an array of this shape, about PART elements at a time."""
    step = max(1, PART // max(1, math.prod(shape[1:])))
    return (slice(first, min(first + step, shape[0])) for first in range(0, shape[0], step))


def bounds_of(name: str, value: Any) -> tuple[float, float]:
    try:
        least, most = (float(v) + 0.0 for v in value)  # -0.0 and 0.0 are the same bound
    except (TypeError, ValueError):
        raise InvalidProblem(f"{name}: {value!r}; expected two numbers, least and greatest") from None
    return least, most


def takes_sums(p: QuantizationParams) -> bool:
    """Whether integer sums are requantized to codes of these params: linear, with one scale. Codes of others are made
    of the float32 result."""
    return p.axis is None and not (p.is_logarithmic or p.dtype.is_binary or p.dtype.is_mixed)


@dataclass(frozen=True)
class Epilogue:
    """y = f32(t) * (sa * sb) + bias, clamped, as floats; or clamp(rne(f32(t) * ((sa * sb) / sy)) + zy) as codes.

    A bias of integers belongs to the sums t. One of floats is added to float results; before requantizing it takes the
    steps of the sums, rne(bias / (sa * sb)). relu and clamp speak of real numbers.
    """

    n: int
    dtype: np.dtype[Any]
    params: QuantizationParams | None
    bias: Array | None
    floor: float
    ceiling: float
    lo: int
    hi: int
    then: QuantizationParams | None = None  # what float results are quantized by, where sums are not requantized

    @cached_property
    def _result(self) -> core.Result | None:
        """The native result type; None where kernels do not write it."""
        return _RESULTS.get(self.dtype.name)

    @classmethod
    def of(
        cls,
        n: int,
        bias: Any = None,
        out_params: QuantizationParams | None = None,
        out_dtype: Any = "float32",
        activation: str | None = None,
        clamp: tuple[float, float] | None = None,
        *,
        any_codes: bool = False,
    ) -> Epilogue:
        """Raises for whatever cannot be, naming the argument. any_codes: out_params may have every dtype, scheme and
        granularity; otherwise only what kernels write, int8 or uint8 with one scale."""
        if activation not in (None, "relu"):
            raise InvalidProblem(f"activation: {activation!r}; expected None or 'relu'")
        floor, ceiling = (0.0, np.inf) if activation else (-np.inf, np.inf)
        if clamp is not None:
            least, most = bounds_of("clamp", clamp)
            if not least <= most:
                raise InvalidProblem(f"clamp: [{least}, {most}]; expected least <= greatest")
            floor, ceiling = min(max(floor, least), most), most
        if bias is not None:
            bias = _checked_bias(bias, n)
        if out_params is None:
            try:
                dtype = cpu.float_dtype(out_dtype)
            except UnsupportedDType:
                dtype = np.dtype(object)
            if dtype.name not in _RESULTS:
                raise UnsupportedDType(f"out_dtype: {out_dtype!r}; expected float32, float16 or bfloat16")
            return cls(n, dtype, None, bias, floor, ceiling, 0, 0)
        p = out_params
        if not isinstance(p, QuantizationParams):
            raise InvalidProblem(f"out_params: {type(p).__name__}; expected QuantizationParams")
        if not any_codes:
            if p.dtype.storage_dtype.name not in _RESULTS or p.dtype.is_packed or p.is_logarithmic:
                raise Unsupported(f"out_params: {p.dtype}, {p.scheme}; expected linear int8 or uint8")
            if p.axis is not None:
                raise Unsupported(f"out_params: scales along axis {p.axis}; expected one scale")
        p = p.for_compute(F32)
        if not takes_sums(p):
            return cls(n, np.dtype(F32), None, bias, floor, ceiling, 0, 0, p)
        zero, lo, hi = int(p.zero_point), p.qmin, p.qmax
        if activation:
            lo = max(lo, zero)
        if clamp is not None:
            with np.errstate(over="ignore"):
                least, most = reference.quantize(np.asarray(clamp, F32), p).astype(np.int64)
            lo, hi = min(max(lo, int(least)), int(most)), int(most)
        return cls(n, p.dtype.code_dtype, p, bias, floor, ceiling, lo, hi)

    def giving(self, floats: str) -> Epilogue:
        """The same epilogue, with floats of another type; codes stay what they are."""
        codes = self.params is not None or self.then is not None
        return self if codes else replace(self, dtype=cpu.float_dtype(floats))

    def require_shape(self, shape: tuple[int, ...]) -> None:
        """Raises unless out_params fit a result of this shape."""
        if self.then is not None:
            require_fit("out_params", self.then, shape)

    def empty(self, shape: tuple[int, ...], out: Array | None = None) -> tuple[Array, Array]:
        """An array for the result, `out` where it is given, and its memory as kernels write it."""
        y = np.empty(shape, self.dtype) if out is None else out
        return y, y.view(np.uint16) if self.dtype.kind == "V" else y  # bfloat16 is no kind of NumPy's

    def wrap(self, y: Array) -> Array | QuantizedTensor:
        """The result as callers get it, from an array that `empty` made."""
        p = self.params
        if p is None:
            return y if self.then is None else quantize(y, params=self.then)
        return QuantizedTensor._trusted(cpu.pack(y, p.dtype.bits) if p.dtype.is_packed else y, p, y.shape)

    def native(self, sa: Array | None, sb: Array, depth: int) -> core.Epilogue | None:
        """The native form for sums over `depth` products; None where kernels have none. sa: None where the kernel finds
        a scale for each row."""
        per_row = sa is None or sa.ndim > 0
        add = bias = None
        if self._result is None:
            return None
        if self.bias is not None:
            if self.bias.dtype.kind == "i":
                add = self.bias
            elif self.params is None:
                bias = self.bias
            elif per_row:
                return None
            else:
                assert sa is not None
                steps, counted = reference_compute.bias_steps(self.bias, sa, sb)
                if not counted.all() or np.abs(steps).max(initial=0) >= 2**31:
                    return None
                add = np.ascontiguousarray(steps, np.int32)
        # Within these bounds no sum leaves int32, the bias included.
        most = 0 if add is None else int(np.abs(add.astype(np.int64)).max(initial=0))
        if most and depth <= core.exact_depth and most + 65025 * depth >= 2**31:
            return None
        scale, row_scale = np.ascontiguousarray(sb.reshape(-1)), None if sa is None else sa.reshape(-1)
        p = self.params
        if p is None:
            return core.Epilogue.floats(self._result, (self.floor, self.ceiling), scale, row_scale, bias, add)
        code = core.Code.s8 if self._result is core.Result.s8 else core.Code.u8
        codes = core.CodeParams(code, float(p.scale), int(p.zero_point), self.lo, self.hi)
        return core.Epilogue.codes(codes, scale, row_scale, add)

    def native_float(self) -> core.Epilogue | None:
        """The native form for sums that are floats already; None where the result or the bias is of integers."""
        if self._result is None or self.params is not None or (self.bias is not None and self.bias.dtype.kind == "i"):
            return None
        return core.Epilogue.floats(self._result, (self.floor, self.ceiling), bias=self.bias)

    def refuse_integer_bias(self, path: str) -> None:
        """Raises for integers on paths whose sums are floats: groups, blocks, general."""
        if self.bias is not None and self.bias.dtype.kind == "i":
            raise Unsupported(f"bias: integers; on the {path} path there is no integer sum to add them to")

    def scale_sums(self, acc: Array, sa: Array, sb: Array, out: Array | None = None) -> Array:
        """The same in NumPy, for sums [m, n] of any depth."""
        y, _ = self.empty(acc.shape, out)
        for rows in row_parts(acc.shape):
            y[rows] = self._scaled(acc[rows], sa[rows] if sa.ndim else sa, sb)
        return y

    def narrow(self, sums: Array, out: Array | None = None) -> Array:
        """Float sums, scaled already: plus bias, clamped and narrowed, or quantized."""
        y, _ = self.empty(sums.shape, out)
        for rows in row_parts(sums.shape):
            y[rows] = self._narrowed(sums[rows], self.bias)
        return y

    def _scaled(self, acc: Array, sa: Array, sb: Array) -> Array:
        bias = self.bias
        if bias is not None and bias.dtype.kind == "i":
            acc, bias = acc.astype(np.int64) + bias, None
        if self.params is None:
            return self._narrowed(reference_compute.scaled(acc, sa, sb, 0 if bias is None else bias), None)
        p = self.params
        codes = reference_compute.requantize_biased(acc, sa, sb, bias, p.scale, int(p.zero_point), p.qmin, p.qmax)
        return np.asarray(np.clip(codes, self.lo, self.hi).astype(self.dtype))

    def _narrowed(self, y: Array, bias: Array | None) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            y = y if bias is None else y + bias.astype(F32)
            if self.params is not None:
                codes = reference.quantize(y, self.params)
                return np.asarray(np.clip(codes, self.lo, self.hi).astype(self.dtype))
            return np.asarray(np.clip(y, F32(self.floor), F32(self.ceiling)).astype(self.dtype))


def _checked_bias(bias: Any, n: int) -> Array:
    refuse_masked("bias", bias)
    array = np.asarray(bias)
    if array.shape != (n,):
        raise InvalidProblem(f"bias: shape {array.shape}; expected ({n},), one an output")
    if array.dtype.kind in "iu":
        if array.size and (array.min() < -(2**31) or array.max() >= 2**31):
            raise InvalidProblem("bias: integers beyond int32")
        return np.ascontiguousarray(array, np.int32)
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        refuse_nan("bias", array)
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(array, F32)
    raise UnsupportedDType(f"bias: {array.dtype}; expected floats or integers")


def refuse_nan(name: str, values: Array) -> None:
    """Raises for the first NaN of an array of one dimension; infinities are numbers like others."""
    nan = np.isnan(values)
    if nan.any():
        raise InvalidProblem(f"{name}: nan at index {int(nan.argmax())}; expected numbers")
