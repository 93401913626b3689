"""Plans of integer compute on a GPU. Operands are GpuQuantizedTensor, matrices that stay GpuPacked, layers GpuLinear.

Sums of codes are exact and what follows is rounded as on the CPU, so results are the CPU's to the bit; int4 weights on
floats are added in the matrix unit's order, and are within the contract's bound.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from lowbit.gpu.launch_compute import MAX_DEPTH, GpuEpilogue, require_bias
from lowbit.gpu.linear import GpuLinear, gpu_linear_path
from lowbit.gpu.ops import GpuPacked, convolve, gpu_epilogue, multiply, pack, pack_conv, require_integer
from lowbit.gpu.plans import OnGpu, tensor
from lowbit.gpu.tensors import GpuQuantizedTensor
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.ops.epilogue import Epilogue
from lowbit.plans.arguments import same_params
from lowbit.plans.base import Preference
from lowbit.plans.compute import KINDS, Conv2dPlan, LinearPlan, MatMulPlan
from lowbit.plans.descriptors import (
    Conv2dArgs,
    Conv2dDescriptor,
    LinearArgs,
    LinearDescriptor,
    MatMulArgs,
    MatMulDescriptor,
    same_layer,
)
from lowbit.plans.kinds import ElementKind, PrecisionGuarantee
from torch import Tensor

_BIAS = 16  # bytes a number of the host takes on its way to int32 or float32 on the device
_UNPACKING = 6  # bytes a 4-bit code takes on its way to a byte of its own


class _Compute(OnGpu):
    path: str
    _epilogue: Epilogue
    _checked: Any

    def _promise(self, path: str, guarantee: PrecisionGuarantee) -> None:
        sku = replace(self.sku, op=f"{self.sku.op.partition('_')[0]}_{path}", precision_guarantee=guarantee)
        self._set(path=path, sku=sku)

    def _exact(self, depth: int, *operands: QuantizationParams) -> None:
        """What integer paths promise: exact sums of this depth, floats rounded once a step."""
        if depth > MAX_DEPTH:
            raise Unsupported(f"k: {depth}; expected at most {MAX_DEPTH}, so that no int32 sum saturates")
        reach = [255 if not p.dtype.is_signed or p.zero_point.any() else 128 for p in operands]
        wide = math.prod(reach) * depth >= 2**31
        self._promise("integer", PrecisionGuarantee(ElementKind.F32, "s64" if wide else "s32"))

    def can_implement(self, args: Any) -> None:
        self._checked(args)

    def _operand(
        self,
        name: str,
        value: Any,
        shape: tuple[int, ...],
        params: QuantizationParams,
        packed: type | None = None,
        only_packed: bool = False,
    ) -> None:
        """packed: the CPU's type of packed weights, where the operand may be packed."""
        kinds: list[type[Any]] = [] if only_packed else [GpuQuantizedTensor]
        if packed is not None:
            kinds.append(GpuPacked)
        if not any(isinstance(value, kind) for kind in kinds):
            raise InvalidProblem(
                f"{name}: {type(value).__name__}; expected a {' or '.join(kind.__name__ for kind in kinds)}"
            )
        if value.shape != shape:
            raise InvalidProblem(f"{name}: shape {value.shape}; expected {shape}")
        same_params(name, value.params, params, len(shape))
        held = value.weight.codes if isinstance(value, GpuPacked) else value.data
        if not self._gpu.holds(held):
            raise Unsupported(f"{name}: on {held.device}; expected {self._gpu.name}")

    def _epilogue_with(self, bias: Any, n: int) -> GpuEpilogue:
        """The epilogue, its bias checked."""
        epilogue = gpu_epilogue(self._epilogue, bias, self._gpu)
        require_bias(epilogue.bias, n)
        return epilogue

    def _output(self, value: Any, shape: tuple[int, ...], **_: Any) -> Tensor:
        if isinstance(value, GpuQuantizedTensor):
            if self._epilogue.params is None:
                raise InvalidProblem(f"output: a GpuQuantizedTensor; expected a tensor of {self._epilogue.dtype}")
            same_params("output", value.params, self._epilogue.params, len(shape))
            value = value.data
        return tensor("output", value, KINDS[self._epilogue.dtype.name], shape, self._gpu)


class _MatMul(_Compute):
    descriptor: MatMulDescriptor

    def __init__(self, d: MatMulDescriptor, device: str, preference: Preference) -> None:
        super().__init__(d, device, preference)
        require_integer("a, b", self.path, d.a, d.b)
        self._exact(d.k, d.a, d.b)

    @property
    def workspace_size(self) -> int:
        """Bytes a run works in at most: the result before it is copied to the output, and b unless it is packed."""
        d = self.descriptor
        packing = 0 if d.prepacked else (_UNPACKING + 1 if d.b.dtype.is_packed else 1) * d.k * d.n + 12 * d.n
        codes = _UNPACKING * d.m * d.k if d.a.dtype.is_packed else 0
        return d.m * d.n * self._epilogue.dtype.itemsize + packing + codes + _BIAS * d.n

    def _fastest(self, args: MatMulArgs, epilogue: GpuEpilogue, out: Tensor) -> None:
        b = args.b if isinstance(args.b, GpuPacked) else pack(args.b)
        out.copy_(multiply(args.a, b, epilogue))


class _Conv2d(_Compute):
    descriptor: Conv2dDescriptor

    def __init__(self, d: Conv2dDescriptor, device: str, preference: Preference) -> None:
        super().__init__(d, device, preference)
        path = self.path
        require_integer("x, w", path, d.x, d.w)
        self._exact(math.prod(d.w_shape[1:]), d.x, d.w)
        self._promise(path, self.sku.precision_guarantee)

    @property
    def workspace_size(self) -> int:
        """Bytes a run works in at most: the result before it is copied, x with channels last and in whole words, and w
        unless it is packed."""
        d = self.descriptor
        x = (5 + _UNPACKING) * math.prod(d.x_shape)
        w = (4 if d.prepacked else 5 + _UNPACKING) * math.prod(d.w_shape) + 12 * d.w_shape[0]
        return math.prod(d.output_shape) * self._epilogue.dtype.itemsize + x + w + _BIAS * d.w_shape[0]

    def _fastest(self, args: Conv2dArgs, epilogue: GpuEpilogue, out: Tensor) -> None:
        w = args.w if isinstance(args.w, GpuPacked) else pack_conv(args.w)
        out.copy_(convolve(args.x, w, self.descriptor.geometry, epilogue))


class _Linear(_Compute):
    descriptor: LinearDescriptor

    def __init__(self, d: LinearDescriptor, device: str, preference: Preference) -> None:
        super().__init__(d, device, preference)
        path = gpu_linear_path(d.weight, d.activation_dtype, d.input_params)
        if path == "integer":
            given = QuantizationParams(d.activation_dtype) if d.input_params is None else d.input_params
            self._exact(d.in_features, given, d.weight)
        elif d.out_params is not None:
            raise Unsupported("out_params: on GPUs int4 weights with float activations give floats")
        else:
            # Products are exact; sums are added in an order that is the matrix unit's own.
            self._promise(path, PrecisionGuarantee(d.input_element, ElementKind.F32, bit_stable=False))

    @property
    def workspace_size(self) -> int:
        """Bytes a run works in at most: the result before it is copied, codes of x, their scales and zero points."""
        d = self.descriptor
        return d.rows * (d.out_features * self._epilogue.dtype.itemsize + d.in_features + 8) + 12 * d.rows * (
            1 + d.in_features // 16384
        )

    def _checked(self, args: LinearArgs) -> tuple[Tensor, Tensor]:
        d, layer = self.descriptor, args.layer
        same_layer(layer, GpuLinear, d)
        if layer.device != self._gpu:
            raise Unsupported(f"layer: on {layer.device.name}; expected {self._gpu.name}")
        x = tensor("x", args.x, d.input_element, (d.rows, d.in_features), self._gpu)
        return x, self._output(args.output, (d.rows, d.out_features))

    def _fastest(self, args: LinearArgs, x: Tensor, out: Tensor) -> None:
        y = args.layer(x)
        out.copy_(y.data if isinstance(y, GpuQuantizedTensor) else y)


COMPUTE_ON_GPU = ((MatMulPlan, _MatMul), (Conv2dPlan, _Conv2d), (LinearPlan, _Linear))
