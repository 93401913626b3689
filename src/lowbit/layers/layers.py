"""Layers over quantized weights, called on floats: weights are arranged once, activations become codes on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import DTypeLike, QuantizedDType
from lowbit.numerics.errors import InvalidProblem, Unsupported, UnsupportedDType
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.ranges import MAX_SCALE
from lowbit.numerics.schemes import QuantizationScheme
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import weight_only
from lowbit.ops.conv import (
    ConvGeometry,
    PackedConv,
    check_kernel_shape,
    check_shapes,
    conv_path_of,
    convolution,
    from_nhwc,
    general_convolution,
    to_nhwc,
)
from lowbit.ops.epilogue import Epilogue, row_pieces
from lowbit.ops.fitting import Products
from lowbit.ops.fitting import fit_products as fitted
from lowbit.ops.matmul import PackedMatrix, float_bias, multiply_groups, multiply_into, pack_groups
from lowbit.ops.operands import Settled, multiplies_as_bytes
from lowbit.ops.quantize import quantize, refuse_nonfinite
from lowbit.ops.workspace import codes_workspace, conv_workspace, linear_workspace
from lowbit.runtime import arrays as cpu
from lowbit.runtime.native import core

__all__ = ["QuantizedConv2d", "QuantizedLinear", "check_input", "linear_path"]

Array = npt.NDArray[Any]
F32 = np.float32
_FLOAT32 = np.dtype(np.float32)
_ACTIVATIONS = {"int8": 0, "uint8": 1, "float": None}
_DYNAMIC = {"int8": "symmetric", "uint8": "asymmetric"}  # what an image may become, and how its range is mapped
_FIXED = 2
_DTYPES = {cpu.Element.f32: "float32", cpu.Element.f16: "float16", cpu.Element.bf16: "bfloat16"}


class QuantizedLinear(Settled):
    """x @ weight.T + bias over quantized weights [out, in], for x [..., in] of float32, float16 or bfloat16.

    The result has x's type, or codes of `out_params`, of any dtype, scheme and granularity: as in `qmatmul`, integer
    sums are requantized to linear codes with one scale, and the float32 result is quantized to others.
    activation_dtype says what x becomes:

    - "int8": codes of ±127 with a scale for each row, found in it. Exact integer sums.
    - "uint8": codes of 0 to 255 with a scale and zero point for each row. Weights must not be in blocks.
    - "float": x stays as it is. Weights in blocks of 4 or 2 bits are unpacked in registers, others expanded a piece at
      a time.

    input_params (int8 or uint8, one scale) are used instead where given. fit_products: 2 or 4 give int8 weights,
    which must be floats then, steps for which products fit 16 bits two by two, or four by four. On CPUs without VNNI,
    where peers give up a whole bit on one side, that is a third faster, or two thirds, and costs 1 to 3 dB of the
    weights, or 3 to 5. Weights in blocks along their last axis of 4 or 2 bits are unpacked in registers; binary and
    logarithmic weights take float activations.

    `path` says which kernels run: "integer", "groups", "blocks" (an integer product a block: any other linear dtype),
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
        weight = _quantized(weight, 2, dtype, scheme, group_size, fit_products)
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
        self._settled: dict[np.dtype[Any], tuple[Any, ...]] = {}  # by the type of x's memory
        self._typed: dict[np.dtype[Any], Epilogue] = {}
        self.path = linear_path(p, activation_dtype, input_params)
        self._packed: Any
        if self.path == "integer":
            self._packed = PackedMatrix(weight, transpose=True)
        elif self.path == "groups" or (self.path == "float" and takes_groups(p)):
            self._packed = pack_groups(weight)
        elif self.path == "float":
            self._packed = weight_only.pack(weight)
        else:
            self._packed = weight
        # Where they are arranged anew, that is all that is kept of them.
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
            self._packed.native.unpack(codes.view(np.uint8))
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
        """Bytes a call on so many rows works in at most, beside its argument and its result."""
        work = linear_workspace(self.path, rows, self.out_features, self.in_features, self.params)
        return work + codes_workspace(rows * self.out_features, self.out_params)

    def __call__(self, x: Any) -> Any:
        """x [..., in] to [..., out], in x's type, or QuantizedTensor of out_params."""
        plain = type(x) is np.ndarray and x.dtype is _FLOAT32 and x.flags.c_contiguous and x.flags.aligned
        if plain and _FLOAT32 in self._settled:
            # The call that repeats: what could be settled was, the first time.
            shape, (call, how, packed, finish) = x.shape, self._settled[_FLOAT32]
            if shape and shape[-1] == self.in_features and finish is not None and self.out_params is None:
                y = np.empty((*shape[:-1], self.out_features), F32)
                if call(x, cpu.Element.f32, math.prod(shape[:-1]), *how, packed, finish, y) == (0, 0):
                    return y
        rows = cpu.as_float_array(x, "x")
        if not rows.shape or rows.shape[-1] != self.in_features:
            raise InvalidProblem(f"x: shape {rows.shape}; expected (..., {self.in_features})")
        if rows.element not in _DTYPES:
            raise UnsupportedDType(f"x: {rows.compute}; expected float32, float16 or bfloat16")
        epilogue, shape = self._epilogue_for(rows), (*rows.shape[:-1], self.out_features)
        epilogue.require_shape(shape)
        y, _ = epilogue.empty(shape)
        self.write(rows, y)
        return epilogue.wrap(y)

    def write(self, x: cpu.FloatArray, y: Array) -> None:
        """The same into y, contiguous and of the result's shape and type. For callers who have made all checks."""
        m, epilogue = math.prod(x.shape[:-1]), self._epilogue_for(x)
        if self.path in ("integer", "groups"):
            self._native(x, m, epilogue, y)
        elif self.path == "float":
            self._weight_only(x, m, epilogue, y)
        else:
            self._by_parts(x, m, epilogue, y)

    def _epilogue_for(self, x: cpu.FloatArray) -> Epilogue:
        epilogue = self._typed.get(x.array.dtype)
        if epilogue is None:
            epilogue = self._epilogue if self.out_params is not None else _typed(self._epilogue, x)
            self._typed[x.array.dtype] = epilogue
        return epilogue

    def _native(self, x: cpu.FloatArray, m: int, epilogue: Epilogue, y: Array) -> None:
        if x.array.dtype not in self._settled:
            self._settled[x.array.dtype] = self._call_for(epilogue)
        call, how, packed, finish = self._settled[x.array.dtype]
        if finish is None:
            self._by_parts(x, m, epilogue, y)
            return
        nan, bad = call(x.array, x.element, m, *how, packed, finish, epilogue.empty(y.shape, y)[1])
        if nan or bad:
            _refuse(x)

    def _call_for(self, epilogue: Epilogue) -> tuple[Any, ...]:
        """The native function, how activations become codes, the weights, and what becomes of the sums."""
        given = self.input_params
        how: tuple[Any, ...] = (_ACTIVATIONS[self.activation_dtype], core.Code.s8, 1.0, 0, -127, 127)
        if given is not None:
            how = (_FIXED, cpu.code_of(given), float(given.scale), int(given.zero_point), given.qmin, given.qmax)
        if self.path == "groups":
            return core.linear_groups, how, self._packed, epilogue.native_float()
        sa = None if given is None else given.scale
        finish = epilogue.native(sa, self.params.scale.astype(F32), self.in_features)
        return core.linear, how, self._packed.native, finish

    def _by_parts(self, x: cpu.FloatArray, m: int, epilogue: Epilogue, y: Array) -> None:
        """Activations first, then the product, some rows at a time: for what has no kernel that does both."""
        n, k = self.out_features, self.in_features
        if self.path != "general" and self.input_params is None:
            refuse_nonfinite(x, "x")
        multiply, rows, target = self._multiplier(epilogue), x.array.reshape(m, k), y.reshape(m, n)
        for part in row_pieces((m, max(n, k))):
            multiply(cpu.FloatArray(rows[part], x.element).widened(), target[part])

    def _multiplier(self, epilogue: Epilogue) -> Callable[[Array, Array], Any]:
        """What makes results of rows of x."""
        packed, plain = self._packed, Epilogue.of(self.out_features)
        if self.path == "integer":
            return lambda rows, y: multiply_into("integer", self._codes(rows), packed, epilogue, y)
        if self.path == "groups":
            return lambda rows, y: multiply_groups(self._codes(rows), packed, epilogue, epilogue.bias, y)
        if self.path == "general":
            wide = self.weight.dequantize(dtype=np.float64).T
            return lambda rows, y: epilogue.narrow(
                (rows.astype(np.float64) @ wide).astype(F32), epilogue.bias, y
            )  # fmt: skip
        p = self.params
        turned = p.replace(axis=0, scale=p.scale.T, zero_point=p.zero_point.T)
        weight = QuantizedTensor.from_codes(np.ascontiguousarray(self.weight.unpack().T), turned)

        def by_blocks(rows: Array, y: Array) -> None:
            sums = np.empty(y.shape, F32)
            multiply_into("blocks", self._codes(rows), weight, plain, sums)
            epilogue.narrow(sums, epilogue.bias, y)

        return by_blocks

    def _codes(self, rows: Array) -> QuantizedTensor:
        if self.input_params is not None:
            return quantize(rows, params=self.input_params)
        return quantize(
            rows, self.activation_dtype, scheme="symmetric" if self.activation_dtype == "int8" else "asymmetric", axis=0
        )

    def _weight_only(self, x: cpu.FloatArray, m: int, epilogue: Epilogue, y: Array) -> None:
        rows, target = x.array.reshape(m, self.in_features), y.reshape(m, self.out_features)
        if self.out_params is None and (epilogue.bias is None or epilogue.bias.dtype.kind == "f"):
            out = cpu.FloatArray(epilogue.empty(target.shape, target)[1], x.element)
            weight_only.linear(
                cpu.FloatArray(rows, x.element), self._packed, epilogue.bias, out, epilogue.floor, epilogue.ceiling
            )
            return
        for part in row_pieces(target.shape):
            sums = np.empty(target[part].shape, F32)
            weight_only.linear(
                cpu.FloatArray(rows[part], x.element), self._packed, None, cpu.FloatArray(sums, cpu.Element.f32)
            )
            epilogue.narrow(sums, epilogue.bias, target[part])

    def __reduce__(self) -> tuple[Any, ...]:
        options = {
            "activation_dtype": self.activation_dtype,
            "input_params": self.input_params,
            "out_params": self.out_params,
        }
        return _linear_again, (self.weight, self.bias, options)

    def __repr__(self) -> str:
        parts = [f"in={self.in_features}", f"out={self.out_features}", str(self.params.dtype)]
        if self.params.group_size is not None:
            parts.append(f"group_size={self.params.group_size}")
        parts.append(f"activation_dtype={self.activation_dtype!r}")
        return f"QuantizedLinear({', '.join(parts)})"


class QuantizedConv2d(Settled):
    """A convolution over quantized weights [out, in / groups, kh, kw], called on float images.

    The result has x's type, or codes of `out_params`. x becomes codes with one scale, found in it: int8 (±127), or with
    activation_dtype="uint8" codes of 0 to 255 with a zero point; or codes of `input_params`. Options as in `qconv2d`;
    fit_products as in `QuantizedLinear`. Weights have any dtype, scheme and granularity; `path` says how they are
    convolved: "integer", "depthwise", "integer16" or "general", as `qconv2d` has them.

    >>> import lowbit as lb
    >>> layer = lb.QuantizedConv2d(np.ones((1, 1, 2, 2), np.float32), padding=(0, 0, 1, 1))
    >>> layer(np.ones((1, 1, 2, 2), np.float32)).round(2)[0, 0]
    array([[4., 2.],
           [2., 1.]], dtype=float32)
    """

    def __init__(
        self,
        weight: Any,
        bias: Any = None,
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        layout: str = "NCHW",
        dtype: DTypeLike = "int8",
        scheme: str | QuantizationScheme = "symmetric",
        activation_dtype: str = "int8",
        input_params: QuantizationParams | None = None,
        out_params: QuantizationParams | None = None,
        fit_products: Products = 1,
    ) -> None:
        if activation_dtype not in _DYNAMIC:
            raise InvalidProblem(f"activation_dtype: {activation_dtype!r}; expected one of {', '.join(_DYNAMIC)}")
        self.activation_dtype = activation_dtype
        self._geometry = ConvGeometry.of(stride, padding, dilation, groups, layout)
        weight = _quantized(weight, 4, dtype, scheme, None, fit_products)
        check_kernel_shape(weight.shape, groups)
        if input_params is not None:
            check_input(input_params)
        given = QuantizationParams(activation_dtype) if input_params is None else input_params
        self.path = conv_path_of(given, weight.params, weight.shape, self._geometry.groups)
        native = self.path in ("integer", "depthwise")
        self._packed = PackedConv(weight, self._geometry.groups) if native else weight
        self._epilogues: dict[str, Epilogue] = {}  # by the type of x
        self._epilogues["float32"] = Epilogue.of(weight.shape[0], bias, out_params, any_codes=True)
        if self.path == "general":
            float_bias(self._epilogues["float32"], self.path)
        self.bias = None if bias is None else np.asarray(bias)
        self.input_params, self.out_params = input_params, out_params

    @property
    def weight(self) -> QuantizedTensor:
        """The quantized weights, [out, in / groups, kh, kw]."""
        return self._packed.to_tensor() if isinstance(self._packed, PackedConv) else self._packed

    @property
    def nbytes(self) -> int:
        """Of the weights as they are kept, their scales, and the bias."""
        return self._packed.nbytes + (0 if self.bias is None else self.bias.nbytes)

    @property
    def geometry(self) -> ConvGeometry:
        """How the kernel passes over images."""
        return self._geometry

    def __call__(self, x: Any, layout: str | None = None, out_layout: str | None = None) -> Any:
        """The convolution of x, in x's type, or a QuantizedTensor of out_params. layout: of x where it is not the
        layer's; out_layout: of the result where it is not x's. A result in NHWC spares a transposition."""
        floats = cpu.as_float_array(x, "x")
        if floats.element not in _DTYPES:
            raise UnsupportedDType(f"x: {floats.compute}; expected float32, float16 or bfloat16")
        g = self._geometry if layout is None else _in_layout("layout", self._geometry, layout)
        wanted = g if out_layout is None else _in_layout("out_layout", g, out_layout)
        check_shapes(floats.shape, self._packed.shape, g)
        epilogue, shape = self._epilogue_for(floats), g.output_shape(floats.shape, self._packed.shape)
        epilogue.require_shape(shape if wanted.layout == g.layout else _turned(shape, g.layout))
        p = self.input_params
        if p is None and math.prod(floats.shape) == 0:
            p = QuantizationParams("int8")
        if p is None:
            q = quantize(x, self.activation_dtype, scheme=_DYNAMIC[self.activation_dtype], name="x")
        else:
            q = quantize(x, params=p)
        if wanted.layout == "NHWC" and g.layout == "NCHW":
            codes, g = to_nhwc(q.unpack(), g), wanted
            q = QuantizedTensor._trusted(codes, q.params, codes.shape)
        if isinstance(self._packed, PackedConv):
            y = convolution(q, self._packed, g, epilogue)
        else:
            y = general_convolution(self.path, q, self._packed, g, epilogue)
        return epilogue.wrap(y if g.layout == wanted.layout else from_nhwc(y, wanted))

    def _epilogue_for(self, x: cpu.FloatArray) -> Epilogue:
        dtype = _DTYPES[x.element]
        if dtype not in self._epilogues:
            n = self._packed.shape[0]
            self._epilogues[dtype] = Epilogue.of(n, self.bias, self.out_params, dtype, any_codes=True)
        return self._epilogues[dtype]

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the result for x of this shape.

        >>> QuantizedConv2d(np.ones((4, 3, 3, 3), np.float32), padding=1).output_shape((2, 3, 8, 8))
        (2, 4, 8, 8)
        """
        return self._geometry.output_shape(shape, self._packed.shape)

    def workspace_size(self, shape: tuple[int, ...]) -> int:
        """Bytes a call on x of this shape works in at most, beside its argument and its result.

        >>> layer = QuantizedConv2d(np.ones((4, 3, 3, 3), np.float32), padding=1, layout="NHWC")
        >>> layer.workspace_size((2, 8, 8, 3)) < 4 << 20
        True
        """
        p = QuantizationParams("int8") if self.input_params is None else self.input_params
        item = self._epilogues["float32"].dtype.itemsize
        found = conv_workspace(shape, self._packed.shape, p, self._packed.params, self._geometry, item, prepacked=True)
        # And the codes of x.
        return found + codes_workspace(math.prod(self.output_shape(shape)), self.out_params) + math.prod(shape)

    def __reduce__(self) -> tuple[Any, ...]:
        options = {**self._geometry._asdict(), "activation_dtype": self.activation_dtype}
        options |= {"input_params": self.input_params, "out_params": self.out_params}
        return _conv_again, (self.weight, self.bias, options)

    def __repr__(self) -> str:
        out, per_group, kh, kw = self._packed.shape
        g = self._geometry
        return (
            f"QuantizedConv2d({per_group * g.groups}, {out}, kernel=({kh}, {kw}), {self._packed.dtype}, "
            f"stride={g.stride}, padding={g.padding}, groups={g.groups}, {g.layout})"
        )


def _linear_again(weight: QuantizedTensor, bias: Any, options: dict[str, Any]) -> QuantizedLinear:
    return QuantizedLinear(weight, bias, **options)


def _conv_again(weight: QuantizedTensor, bias: Any, options: dict[str, Any]) -> QuantizedConv2d:
    return QuantizedConv2d(weight, bias, **options)


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


def _quantized(
    weight: Any,
    ndim: int,
    dtype: DTypeLike,
    scheme: str | QuantizationScheme,
    group_size: int | None,
    products: Products,
) -> QuantizedTensor:
    """The weight, which may be so already."""
    if isinstance(weight, QuantizedTensor):
        if products != 1:
            raise InvalidProblem("fit_products: the weight is quantized already; give it as floats")
        return weight
    floats = cpu.as_float_array(weight, "weight")
    if len(floats.shape) != ndim:
        raise InvalidProblem(f"weight: shape {floats.shape}; expected {ndim} dimensions, outputs first")
    kind = QuantizedDType.of(dtype)
    axis = -1 if group_size is not None else 0
    q = quantize(weight, kind, scheme=scheme, axis=axis, group_size=group_size, name="weight")
    if products == 1:
        return q
    if kind.name != "int8" or q.params.zero_point.any() or group_size is not None or q.params.is_logarithmic:
        raise Unsupported(f"fit_products: {kind}, {q.params.scheme}; expected symmetric int8 with a scale an output")
    return fitted(floats.widened(), q, products)


def _check_activation(activation_dtype: Any) -> None:
    if activation_dtype not in _ACTIVATIONS:
        raise InvalidProblem(f"activation_dtype: {activation_dtype!r}; expected one of {', '.join(_ACTIVATIONS)}")


def check_input(p: QuantizationParams) -> None:
    if not isinstance(p, QuantizationParams):
        raise InvalidProblem(f"input_params: {type(p).__name__}; expected QuantizationParams")
    if not multiplies_as_bytes(p) or p.dtype.is_packed or p.axis is not None:
        raise Unsupported(f"input_params: {p.dtype}, {p.scheme}, axis {p.axis}; expected int8 or uint8 with one scale")


def _typed(epilogue: Epilogue, x: cpu.FloatArray) -> Epilogue:
    """The same epilogue in x's float type."""
    dtype = cpu.float_dtype(_DTYPES[x.element])
    return epilogue if dtype == epilogue.dtype else Epilogue(
        epilogue.n, np.dtype(dtype), None, epilogue.bias, epilogue.floor, epilogue.ceiling, 0, 0
    )  # fmt: skip


def _in_layout(name: str, g: ConvGeometry, layout: str) -> ConvGeometry:
    if layout not in ("NCHW", "NHWC"):
        raise InvalidProblem(f"{name}: {layout!r}; expected 'NCHW' or 'NHWC'")
    return g._replace(layout=layout)


def _turned(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """A shape of this layout in the other one."""
    n, *rest = shape
    return (n, *rest[1:], rest[0]) if layout == "NCHW" else (n, rest[-1], *rest[:-1])


def _refuse(x: cpu.FloatArray) -> None:
    refuse_nonfinite(x, "x")
    raise InvalidProblem(f"x: values too large: a scale would exceed {MAX_SCALE:.6g}")
