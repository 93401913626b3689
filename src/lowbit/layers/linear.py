"""Linear layers over quantized weights, called on floats."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from lowbit.layers.weights import DTYPES, SCHEMES, check_input, quantized_weight
from lowbit.numerics.dtypes import DTypeLike
from lowbit.numerics.errors import InvalidProblem, Unsupported, UnsupportedDType
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.ranges import MAX_SCALE
from lowbit.numerics.schemes import QuantizationScheme
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.epilogue import Epilogue, row_parts
from lowbit.ops.fitting import Products
from lowbit.ops.gemm_paths import PackedMatrix, multiply, pack_groups, pack_weight_only
from lowbit.ops.operands import F32, PLAIN_FLOATS, Frozen, multiplies_as_bytes, transposed
from lowbit.ops.quantize import quantize
from lowbit.ops.workspace import codes_workspace, linear_workspace
from lowbit.runtime import arrays as cpu
from lowbit.runtime.arrays import Array
from lowbit.runtime.cache import Cache
from lowbit.runtime.elementwise import byte_params
from lowbit.runtime.native import core

_ACTIVATIONS = ("int8", "uint8", "float")


class _Call(NamedTuple):
    epilogue: Epilogue
    plan: core.LinearPlan | core.FloatLinearPlan | None  # None: NumPy applies the epilogue


class QuantizedLinear(Frozen):
    """x @ weight.T + bias over quantized weights [out, in], for x [..., in] of float32, float16 or bfloat16.

    The result has x's type, or codes of `out_params`, of any dtype, scheme and granularity: as in `qmatmul`, integer
    sums are requantized to linear codes with one scale, and the float32 result is quantized to others.
    activation_dtype says what x becomes:

    - "int8": codes of ±127 with a scale for each row, found in it. Exact integer sums.
    - "uint8": codes of 0 to 255 with a scale and zero point for each row. Weights must not be in blocks.
    - "float": x stays as it is. Weights in blocks of 4 or 2 bits are unpacked in registers, others expanded a block at
      a time.

    input_params (int8 or uint8, one scale) are used instead where given. fit_products: 2 or 4 give int8 weights,
    which must be floats then, steps for which products fit 16 bits two by two, or four by four. On CPUs without VNNI,
    where peers give up a whole bit on one side, that is a third faster, or two thirds, and costs 1 to 5 dB of the
    weights, or 3 to 9. Weights in blocks along their last axis of 4 or 2 bits are unpacked in registers; binary and
    logarithmic weights take float activations.

    `path` says which kernels run: "integer", "groups", "blocks" (an integer product per block: any other linear dtype),
    "float", "general". NaN or Inf in x is an error where its range is looked for.

    >>> import lowbit as lb
    >>> layer = lb.QuantizedLinear(np.float32([[1, 2], [3, -4]]), bias=[0.5, 0.0])
    >>> layer(np.float32([1, 1])).round(1)
    array([ 3.5, -1. ], dtype=float32)
    >>> layer
    QuantizedLinear(in=2, out=2, int8, activation_dtype='int8')
    """

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        dtype: DTypeLike = "int8",
        scheme: str | QuantizationScheme = "symmetric",
        group_size: int | None = None,
        activation_dtype: str = "int8",
        input_params: QuantizationParams | None = None,
        out_params: QuantizationParams | None = None,
        fit_products: Products = 1,
    ) -> None:
        _check_activation(activation_dtype)
        weight = quantized_weight(weight, 2, dtype, scheme, group_size, fit_products)
        if weight.ndim != 2:
            raise InvalidProblem(f"weight: shape {weight.shape}; expected (out, in)")
        p = weight.params
        self.out_features, self.in_features = weight.shape
        if input_params is not None:
            check_input(input_params)
            input_params = input_params.for_compute(F32)
        self.activation_dtype, self.input_params, self.out_params = activation_dtype, input_params, out_params
        self.params = p
        self._epilogue = Epilogue.of(self.out_features, bias, out_params, any_codes=True)
        self._calls: Cache[Any] = Cache(8)  # _Call by element, and native plans by the dtype of arrays they take as is
        self.path = linear_path(p, activation_dtype, input_params)
        self._packed: Any
        if self.path == "integer":
            self._packed = PackedMatrix(weight, transpose=True)
        elif self.path == "groups" or (self.path == "float" and takes_groups(p)):
            self._packed = pack_groups(weight)
        elif self.path == "float":
            self._packed = pack_weight_only(weight)
        else:
            self._packed = weight
        # Weights that are packed are kept in that form only.
        self._weight: QuantizedTensor | None = (
            None if isinstance(self._packed, (PackedMatrix, core.PackedGroups)) else weight
        )

    @property
    def bias(self) -> Array | None:
        return self._epilogue.bias

    @property
    def weight(self) -> QuantizedTensor:
        """The quantized weights, [out, in]."""
        if self.path == "integer":
            codes = np.empty((self.out_features, self.in_features), self.params.dtype.code_dtype)
            self._packed.native.unpack(codes)
            return QuantizedTensor.from_codes(codes, self.params)
        if isinstance(self._packed, core.PackedGroups):
            up = np.empty((self.out_features, self.in_features), np.uint8)
            self._packed.unpack(up)
            return QuantizedTensor.from_codes(up.astype(np.int16) + self.params.dtype.qmin, self.params)
        assert self._weight is not None
        return self._weight

    @property
    def nbytes(self) -> int:
        """Of the weights as they are kept, their scales, and the bias."""
        return int(self._packed.nbytes) + (0 if self.bias is None else self.bias.nbytes)

    def workspace_size(self, rows: int) -> int:
        """The most bytes that a call on this many rows works in, beside its argument and its result."""
        work = linear_workspace(self.path, rows, self.out_features, self.in_features, self.params)
        return work + codes_workspace(rows * self.out_features, self.out_params)

    def __call__(self, x: Any) -> Any:
        """x [..., in] to [..., out], in x's type, or QuantizedTensor of out_params."""
        plan = self._calls.get(x.dtype) if type(x) is np.ndarray else None
        if plan is not None and x.shape[-1:] == (self.in_features,):
            flags, y = x.flags, np.empty((*x.shape[:-1], self.out_features), x.dtype)
            if flags.c_contiguous and flags.aligned and plan.run(x, y) is not False:
                return y
        rows = cpu.as_float_array(x, "x")
        if not rows.shape or rows.shape[-1] != self.in_features:
            raise InvalidProblem(f"x: shape {rows.shape}; expected (..., {self.in_features})")
        if rows.element not in DTYPES:
            raise UnsupportedDType(f"x: {rows.compute}; expected float32, float16 or bfloat16")
        epilogue, shape = self._call_for(rows).epilogue, (*rows.shape[:-1], self.out_features)
        epilogue.require_shape(shape)
        y, _ = epilogue.empty(shape)
        self.write(rows, y)
        return epilogue.wrap(y)

    def write(self, x: cpu.FloatArray, y: Array) -> None:
        """The same into y, contiguous and of the result's shape and type. For callers that have made all checks."""
        epilogue, plan = self._call_for(x)
        if plan is None:
            self._by_parts(x, math.prod(x.shape[:-1]), epilogue, y)
        elif plan.run(x.array, epilogue.empty(y.shape, y)[1]) is False:
            cpu.refuse_nonfinite(x, "x")
            raise InvalidProblem(f"x: values too large: a scale would exceed {MAX_SCALE:.6g}")

    def bound(self, x: Array, y: Array) -> Callable[[], None]:
        """A call that reads x again and writes y again, contiguous float32 matrices, with as little else as there is.

        >>> x, y = np.ones((1, 2), np.float32), np.empty((1, 1), np.float32)
        >>> multiply = QuantizedLinear(np.float32([[1, 1]])).bound(x, y)
        >>> multiply()
        >>> y
        array([[2.]], dtype=float32)
        """
        rows = cpu.as_float_array(x, "x")
        plan = self._call_for(rows).plan

        def call() -> None:
            if plan is None or plan.run(x, y) is False:
                self.write(rows, y)  # which raises where the plan refuses x

        return call

    def _call_for(self, x: cpu.FloatArray) -> _Call:
        """How inputs of x's type are multiplied."""

        def make() -> _Call:
            epilogue = self._epilogue.giving(DTYPES[x.element])
            return _Call(epilogue, self._plan(x.element, epilogue))

        found: _Call = self._calls.find(id(x.element), make)
        if found.plan is not None and self.out_params is None and x.dtype in (np.float32, np.float16):
            self._calls.put(x.dtype, found.plan)
        return found

    def _plan(self, element: cpu.Element, epilogue: Epilogue) -> core.LinearPlan | core.FloatLinearPlan | None:
        native, given = epilogue.native_float(), self.input_params
        if self.path == "integer":
            native = epilogue.native(
                None if given is None else given.scale, self.params.scale.astype(F32), self.in_features
            )
        if native is None or self.path not in ("integer", "groups", "float"):
            return None
        if self.path == "float":
            return core.FloatLinearPlan(self._packed, element, native)
        packed = self._packed.native if self.path == "integer" else self._packed
        code = core.Code.u8 if self.activation_dtype == "uint8" else core.Code.s8
        fixed = None if given is None else byte_params(given)
        return core.LinearPlan(packed, element, code, fixed, native)

    def _by_parts(self, x: cpu.FloatArray, m: int, epilogue: Epilogue, y: Array) -> None:
        """Quantize activations, then multiply, some rows at a time: for epilogues that no plan has."""
        n, k = self.out_features, self.in_features
        if self.path not in ("float", "general") and self.input_params is None:
            cpu.refuse_nonfinite(x, "x")
        if epilogue.bias is not None and self.path != "integer":
            epilogue = dataclasses.replace(epilogue, bias=epilogue.bias.astype(F32))
        right: Any = self._packed
        if self.path == "float":
            right = core.FloatLinearPlan(self._packed, x.element, PLAIN_FLOATS)
        elif self.path == "general":
            right = self.weight.dequantize(dtype=np.float64).T
        elif self.path == "blocks":
            right = transposed(self.weight)
        rows, target = x.array.reshape(m, k), y.reshape(m, n)
        for part in row_parts((m, n if self.path == "float" else max(n, k))):
            self._write_rows(cpu.FloatArray(rows[part], x.element), right, epilogue, target[part])

    def _write_rows(self, rows: cpu.FloatArray, right: Any, epilogue: Epilogue, y: Array) -> None:
        """right: the weights as the path takes them."""
        if self.path == "float":
            sums = np.empty(y.shape, F32)
            right.run(rows.array, sums)
            epilogue.narrow(sums, y)
        elif self.path == "general":
            epilogue.narrow((rows.widened().astype(np.float64) @ right).astype(F32), y)
        else:
            multiply(self.path, self._codes(rows.widened()), right, epilogue, y)

    def _codes(self, rows: Array) -> QuantizedTensor:
        if self.input_params is not None:
            return quantize(rows, params=self.input_params)
        return quantize(rows, self.activation_dtype, scheme=SCHEMES[self.activation_dtype], axis=0)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {name: getattr(self, name) for name in ("activation_dtype", "input_params", "out_params")}
        return functools.partial(QuantizedLinear, **options), (self.weight, self.bias)

    def __repr__(self) -> str:
        parts = [f"in={self.in_features}", f"out={self.out_features}", str(self.params.dtype)]
        if self.params.group_size is not None:
            parts.append(f"group_size={self.params.group_size}")
        parts.append(f"activation_dtype={self.activation_dtype!r}")
        return f"QuantizedLinear({', '.join(parts)})"


def linear_path(p: QuantizationParams, activation_dtype: str, given: QuantizationParams | None = None) -> str:
    """The path a QuantizedLinear takes for weights of these params.

    >>> linear_path(QuantizationParams("int8"), "float")
    'float'
    """
    _check_activation(activation_dtype)
    if p.dtype.is_mixed:
        return "general"
    if activation_dtype == "float" and given is None:
        return "float"
    if p.dtype.is_binary or p.is_logarithmic:
        return "float"
    signed = activation_dtype == "int8" if given is None else given.dtype.is_signed and int(given.zero_point) == 0
    if p.group_size is not None and p.axis in (1, -1):
        if not signed:
            raise Unsupported(
                "activation_dtype: unsigned or with a zero point; weights in blocks take 'int8' or 'float'"
            )
        return "groups" if takes_groups(p) else "blocks" if p.dtype.bits <= 8 else "float"
    if not multiplies_as_bytes(p) or p.axis not in (None, 0, -2):
        return "float" if p.axis in (None, 0, -2) and p.group_size is None else "general"
    return "integer"


def takes_groups(p: QuantizationParams) -> bool:
    """Whether weights [n, k] are unpacked in registers: linear codes of 4 or 2 bits in blocks along k."""
    along_k = p.group_size is not None and p.axis in (1, -1)
    return along_k and not p.dtype.is_mixed and p.dtype.bits in (2, 4) and not p.is_logarithmic


def _check_activation(activation_dtype: Any) -> None:
    if activation_dtype not in _ACTIVATIONS:
        raise InvalidProblem(f"activation_dtype: {activation_dtype!r}; expected one of {', '.join(_ACTIVATIONS)}")
