"""Plans of integer compute: products, convolutions and linear layers. They check, settle and call; the arithmetic is
that of `lowbit.ops` and `lowbit.layers`, or for "reference" that of `lowbit.reference.compute`."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeVar

import numpy as np

from lowbit import reference
from lowbit.layers import QuantizedLinear, check_input, linear_path
from lowbit.layers.weights import SCHEMES
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import reference_ops
from lowbit.ops.conv import check_image
from lowbit.ops.conv_geometry import is_depthwise
from lowbit.ops.conv_paths import ConvCall, PackedConv, check_kernel, prepack_conv2d
from lowbit.ops.epilogue import Epilogue
from lowbit.ops.gemm_paths import PackedMatrix, multiply
from lowbit.ops.matmul import path_of
from lowbit.ops.operands import multiplies_as_bytes, require_fit, transposed
from lowbit.ops.workspace import (
    conv_workspace,
    linear_workspace,
    matmul_workspace,
    reference_conv_workspace,
    reference_workspace,
)
from lowbit.plans.arguments import array, load, operand, same_params
from lowbit.plans.base import Plan, Preference
from lowbit.plans.descriptors import (
    Conv2dArgs,
    Conv2dDescriptor,
    LinearArgs,
    LinearDescriptor,
    MatMulArgs,
    MatMulDescriptor,
    epilogue_options,
    same_layer,
)
from lowbit.plans.kinds import FLOATS, ElementKind, KernelSku, PrecisionGuarantee, code_name
from lowbit.runtime import arrays as cpu
from lowbit.runtime.arrays import Array
from lowbit.runtime.native import core

A = TypeVar("A")
F32 = np.float32
KINDS = {"float32": ElementKind.F32, "float16": ElementKind.F16, "bfloat16": ElementKind.BF16}
KINDS |= {"int8": ElementKind.S8, "uint8": ElementKind.U8}


class ComputePlan(Plan[A]):
    """A plan of integer compute. `path` is one of those in docs/guide/compute.md, and part of the SKU's op."""

    __slots__ = ("_epilogue", "path")

    path: str
    _epilogue: Epilogue  # without a bias
    _operand = staticmethod(operand)

    def _settle(self, path: str, depth: int, epilogue: Epilogue, element: str, aux: str) -> None:
        plain = self.preference == "reference"
        arch = "numpy" if plain or path == "general" else core.active_isa()
        backend, guarantee = "reference" if plain else self.device, _guarantee(path, depth, plain)
        sku = KernelSku("compute", f"{self.op}_{path}", element, aux, arch, backend, guarantee)
        self._set(path=path, sku=sku, _epilogue=epilogue)

    @property
    def workspace_size(self) -> int:
        """Bytes a run works in at most, beside its arguments and its output, with as many threads as there are now.
        They are allocated as they are needed; args hold no workspace."""
        raise NotImplementedError

    def _output(self, value: Any, shape: tuple[int, ...], **others: Array | None) -> Array:
        """The array results go to, apart from all others."""
        kind = KINDS[self._epilogue.dtype.name]
        if isinstance(value, QuantizedTensor):
            if self._epilogue.params is None:
                raise InvalidProblem(f"output: a QuantizedTensor; expected an array of {self._epilogue.dtype}")
            same_params("output", value.params, self._epilogue.params, len(value.shape))
            value = value.data
        found = array("output", value, kind, shape, writable=True)
        cpu.require_apart("output", found, False, **others)
        return load(found, kind, shape)

    def _epilogue_with(self, bias: Any, n: int) -> Epilogue:
        return self._epilogue if bias is None else Epilogue.of(n, bias, **epilogue_options(self.descriptor))

    def _checked(self, args: A) -> tuple[Any, Array]:
        """What `run` needs besides args, and the array that results go to; raises for args that do not fit."""
        raise NotImplementedError

    def can_implement(self, args: A) -> None:
        self._checked(args)

    def run(self, args: A) -> None:
        needed, out = self._checked(args)
        if self.preference == "reference":
            y = self._reference(args, needed)
            out[...] = y.data if isinstance(y, QuantizedTensor) else y
        else:
            self._fastest(args, needed, out)

    def _reference(self, args: A, needed: Any) -> Array | QuantizedTensor:
        raise NotImplementedError

    def _fastest(self, args: A, needed: Any, out: Array) -> None:
        raise NotImplementedError


class MatMulPlan(ComputePlan[MatMulArgs]):
    """a @ b of codes, as `qmatmul`.

    >>> import lowbit as lb
    >>> a = lb.quantize(np.float32([[1, 2], [3, 4]]))
    >>> plan = MatMulPlan.select(MatMulDescriptor(2, 2, 2, a.params, a.params))
    >>> y = np.empty((2, 2), np.float32)
    >>> plan.run(MatMulArgs(a, lb.prepack(a), y))
    >>> y.round()
    array([[ 7., 10.],
           [15., 22.]], dtype=float32)
    >>> plan.path
    'integer'
    """

    op = "matmul"
    Descriptor = MatMulDescriptor
    Args = MatMulArgs
    __slots__ = ()

    descriptor: MatMulDescriptor

    def __init__(self, d: MatMulDescriptor, device: str, preference: Preference) -> None:
        super().__init__(d, device, preference)
        epilogue = Epilogue.of(d.n, None, **epilogue_options(d))
        self._settle(path_of(d.a, d.b), d.k, epilogue, code_name(d.a), code_name(d.b))

    @classmethod
    def _check(cls, d: MatMulDescriptor) -> None:
        require_fit("a", d.a, (d.m, d.k))
        require_fit("b", d.b, (d.k, d.n))
        if d.prepacked and (not multiplies_as_bytes(d.b) or d.b.group_size is not None or d.b.axis == 0):
            raise Unsupported(
                f"b: {d.b!r}; a PackedMatrix has linear codes of at most 8 bits, one scale or one a column"
            )

    @property
    def workspace_size(self) -> int:
        d = self.descriptor
        if self.preference == "reference":
            return reference_workspace(d.m, d.n, d.k)
        return matmul_workspace(self.path, d.m, d.n, d.k, d.a, d.b, d.prepacked)

    def _reference(self, args: MatMulArgs, _: Epilogue) -> Array | QuantizedTensor:
        b = args.b.to_tensor() if isinstance(args.b, PackedMatrix) else args.b
        return reference_ops.qmatmul(args.a, b, bias=args.bias, **epilogue_options(self.descriptor))

    def _fastest(self, args: MatMulArgs, epilogue: Epilogue, out: Array) -> None:
        multiply(self.path, args.a, args.b, epilogue, out)

    def _checked(self, args: MatMulArgs) -> tuple[Epilogue, Array]:
        d = self.descriptor
        self._operand("a", args.a, (d.m, d.k), d.a)
        self._operand("b", args.b, (d.k, d.n), d.b, PackedMatrix, d.prepacked)
        epilogue = self._epilogue_with(args.bias, d.n)
        if self.path in ("groups", "blocks", "general"):
            epilogue.refuse_integer_bias(self.path)
        b = getattr(args.b, "data", None)
        return epilogue, self._output(args.output, (d.m, d.n), a=args.a.data, b=b, bias=epilogue.bias)


class Conv2dPlan(ComputePlan[Conv2dArgs]):
    """A convolution of codes, as `qconv2d`; path "integer", or "depthwise" where each channel has a filter of its own.

    >>> import lowbit as lb
    >>> x, w = (lb.quantize(np.ones(s, np.float32)) for s in ((1, 1, 3, 3), (1, 1, 2, 2)))
    >>> plan = Conv2dPlan.select(Conv2dDescriptor(x.shape, w.shape, x.params, w.params))
    >>> y = np.empty(plan.descriptor.output_shape, np.float32)
    >>> plan.run(Conv2dArgs(x, lb.prepack_conv2d(w), y))
    >>> y.round(2)[0, 0]
    array([[4., 4.],
           [4., 4.]], dtype=float32)
    """

    op = "conv2d"
    Descriptor = Conv2dDescriptor
    Args = Conv2dArgs
    __slots__ = ()

    descriptor: Conv2dDescriptor

    def __init__(self, d: Conv2dDescriptor, device: str, preference: Preference) -> None:
        super().__init__(d, device, preference)
        epilogue = Epilogue.of(d.w_shape[0], None, **epilogue_options(d))
        path = "depthwise" if is_depthwise(d.w_shape, d.groups) else "integer"
        self._settle(path, math.prod(d.w_shape[1:]), epilogue, code_name(d.x), code_name(d.w))

    @classmethod
    def _check(cls, d: Conv2dDescriptor) -> None:
        check_image(d.x_shape, d.x, d.w_shape, d.geometry)
        check_kernel(d.w_shape, d.w, d.groups)
        require_fit("w", d.w, d.w_shape)
        d.geometry.output_shape(d.x_shape, d.w_shape)

    @property
    def workspace_size(self) -> int:
        d = self.descriptor
        if self.preference == "reference":
            return reference_conv_workspace(d.x_shape, d.w_shape, d.geometry)
        item = self._epilogue.dtype.itemsize
        return conv_workspace(d.x_shape, d.w_shape, d.x, d.w, d.geometry, item, d.prepacked)

    def _reference(self, args: Conv2dArgs, _: Epilogue) -> Array | QuantizedTensor:
        d, w = self.descriptor, args.w.to_tensor() if isinstance(args.w, PackedConv) else args.w
        return reference_ops.qconv2d(args.x, w, args.bias, **d.geometry._asdict(), **epilogue_options(d))

    def _fastest(self, args: Conv2dArgs, epilogue: Epilogue, out: Array) -> None:
        d = self.descriptor
        packed = args.w if isinstance(args.w, PackedConv) else prepack_conv2d(args.w, d.groups)
        ConvCall.of(args.x, packed, d.geometry, epilogue).run(args.x, packed, out)

    def _checked(self, args: Conv2dArgs) -> tuple[Epilogue, Array]:
        d = self.descriptor
        self._operand("x", args.x, d.x_shape, d.x)
        self._operand("w", args.w, d.w_shape, d.w, PackedConv, d.prepacked)
        if isinstance(args.w, PackedConv) and args.w.groups != d.groups:
            raise InvalidProblem(f"w: packed for {args.w.groups} groups; expected {d.groups}")
        epilogue = self._epilogue_with(args.bias, d.w_shape[0])
        w = getattr(args.w, "data", None)
        return epilogue, self._output(args.output, d.output_shape, x=args.x.data, w=w, bias=epilogue.bias)


class LinearPlan(ComputePlan[LinearArgs]):
    """A `QuantizedLinear` on a given number of rows. NaN or Inf in x is an error where its range is looked for; the
    output is then undefined.

    >>> import lowbit as lb
    >>> layer = lb.QuantizedLinear(np.float32([[1, 2], [3, -4]]), bias=[0.5, 0.0])
    >>> plan = LinearPlan.select(LinearDescriptor(1, 2, 2, layer.params))
    >>> y = np.empty((1, 2), np.float32)
    >>> plan.run(LinearArgs(np.float32([[1, 1]]), layer, y))
    >>> y.round(1)
    array([[ 3.5, -1. ]], dtype=float32)
    """

    op = "linear"
    Descriptor = LinearDescriptor
    Args = LinearArgs
    __slots__ = ()

    descriptor: LinearDescriptor

    def __init__(self, d: LinearDescriptor, device: str, preference: Preference) -> None:
        super().__init__(d, device, preference)
        name = next(name for name, kind in KINDS.items() if kind is d.input_element)
        epilogue = Epilogue.of(d.out_features, None, d.out_params, name)
        path = linear_path(d.weight, d.activation_dtype, d.input_params)
        self._settle(path, d.in_features, epilogue, d.input_element, code_name(d.weight))

    @classmethod
    def _check(cls, d: LinearDescriptor) -> None:
        if d.input_element not in (ElementKind.F32, ElementKind.F16, ElementKind.BF16):
            raise Unsupported(f"input_element: {d.input_element}; expected one of f32, f16, bf16")
        if d.input_params is not None:
            check_input(d.input_params)
        require_fit("weight", d.weight, (d.out_features, d.in_features))

    @property
    def workspace_size(self) -> int:
        d = self.descriptor
        if self.preference == "reference":
            return reference_workspace(d.rows, d.out_features, d.in_features)
        return linear_workspace(self.path, d.rows, d.out_features, d.in_features, d.weight)

    def can_implement(self, args: LinearArgs) -> None:
        """Raises if `run` would; it looks at x where its range is looked for."""
        x, _ = self._checked(args)
        if self.path not in ("float", "general"):
            _activation_params(x, args.layer)

    def _reference(self, args: LinearArgs, x: cpu.FloatArray) -> Array | QuantizedTensor:
        rows, layer, epilogue = x.widened(), args.layer, self._epilogue
        w, bias = layer.weight, layer.bias
        if layer.path in ("float", "general"):
            expanded = reference.dequantize(w.unpack(), w.params, F32 if layer.path == "float" else np.float64)
            y = rows.astype(np.float64) @ expanded.astype(np.float64).T
            own = dataclasses.replace(epilogue, bias=bias)
            return own.wrap(own.narrow(y.astype(F32)))
        given = _activation_params(x, layer)
        q = QuantizedTensor.from_codes(reference.quantize(rows, given), given)
        if layer.path != "integer" and bias is not None:
            bias = bias.astype(F32)
        return reference_ops.qmatmul(q, transposed(w), bias=bias, out_params=layer.out_params, out_dtype=epilogue.dtype)

    def _fastest(self, args: LinearArgs, x: cpu.FloatArray, out: Array) -> None:
        args.layer.write(x, out)

    def _checked(self, args: LinearArgs) -> tuple[cpu.FloatArray, Array]:
        d, layer = self.descriptor, args.layer
        same_layer(layer, QuantizedLinear, d)
        x = array("x", args.x, d.input_element, (d.rows, d.in_features))
        out = self._output(args.output, (d.rows, d.out_features), x=x)
        return cpu.FloatArray(x, FLOATS[d.input_element]), out


def _activation_params(x: cpu.FloatArray, layer: QuantizedLinear) -> QuantizationParams:
    """What rows of x are quantized by: the layer's own params, or their ranges, which must be finite."""
    if layer.input_params is not None:
        return layer.input_params
    cpu.refuse_nonfinite(x, "x")
    rows = x.widened()
    lo, hi, dtype = rows.min(1, initial=0), rows.max(1, initial=0), layer.activation_dtype
    return QuantizationParams.from_statistics(lo, hi, dtype=dtype, scheme=SCHEMES[dtype], axis=0)


def _guarantee(path: str, depth: int, plain: bool) -> PrecisionGuarantee:
    """What each path promises; the arithmetic on elements is that of scales."""
    if path == "general" or (path == "float" and plain):  # BLAS: any order, perhaps another one for more threads
        return PrecisionGuarantee(ElementKind.F64, ElementKind.F64, deterministic=False, bit_stable=False)
    if path == "float":  # lanes of the instruction set, in an order that depends on it and the depth alone
        return PrecisionGuarantee(ElementKind.F32, ElementKind.F64, bit_stable=False)
    if path in ("groups", "blocks"):  # exact in a block; blocks are added in order
        return PrecisionGuarantee(ElementKind.F32, ElementKind.F32)
    wide = plain or path == "integer16" or depth > core.exact_depth
    return PrecisionGuarantee(ElementKind.F32, "s64" if wide else "s32")
