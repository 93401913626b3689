"""Plans on a GPU: `select(descriptor, device="cuda")` gives the same plan class with another `run`.

Arguments are torch tensors in that GPU's memory. Kernels go to torch's current stream, and `run` returns before they
are done. Results are those of the CPU, to the bit. What the CPU finds out while it computes, a bad scale or NaN in data
whose range is looked for, is not found out here, since that would wait: a scale found in such data is NaN, and codes
are undefined.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import torch
from lowbit.gpu import launch, launch_reductions
from lowbit.gpu.plan_arguments import TORCH, output_tensor, parameter_tensor, tensor, workspace_tensor
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.granularity import Granularity
from lowbit.plans.arguments import BackwardArgs, DynamicArgs
from lowbit.plans.base import Plan, Preference
from lowbit.plans.descriptors import PerTensorDescriptor
from lowbit.plans.kinds import ElementKind, KernelSku
from lowbit.plans.operations import Operation
from lowbit.plans.quantization import AffinePlan, DynamicPlan, LearnedPlan
from lowbit.runtime.devices import GpuDevice, find_device
from torch import Tensor


class OnGpu:
    """What makes a plan class one for GPUs, put before it in the order of bases."""

    _plan: ClassVar[type[Plan[Any]]]
    _gpu: GpuDevice
    descriptor: Any
    device: str
    preference: Preference
    sku: KernelSku
    _set: Any

    def __init__(self, descriptor: Any, device: str, preference: Preference) -> None:
        if preference != "fastest":
            raise Unsupported(f"preference: {preference!r} with device {device!r}; the reference runs on the CPU")
        super().__init__(descriptor, device, preference)  # type: ignore[call-arg]
        gpu = find_device(device)
        self._set(_gpu=gpu, sku=replace(self.sku, arch=gpu.architecture, backend=gpu.backend))

    def __reduce__(self) -> tuple[Any, ...]:
        return self._plan.select, (self.descriptor, self.device, self.preference)

    def __repr__(self) -> str:
        return f"{self._plan.__name__}({self.descriptor!r}, device={self.device!r})"


class _Quantization(OnGpu):
    descriptor: PerTensorDescriptor
    operation: ClassVar[Operation]
    _g: Granularity
    _scales: tuple[int, ...]
    _number: ElementKind
    _code: ElementKind

    @property
    def _wide(self) -> torch.dtype:
        """Of scales."""
        return TORCH[ElementKind(self.sku.precision_guarantee.math_precision)]

    @property
    def _dtype(self) -> QuantizedDType:
        return QuantizedDType.of(self._code.value)

    def _memory(self, name: str, value: Any, kind: ElementKind) -> Tensor:
        return tensor(name, value, kind, self.descriptor.shape, self._gpu)

    def can_implement(self, args: Any) -> None:
        self._buffers(args)

    def _buffers(self, args: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def _scale(self, value: Any) -> Tensor:
        if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            value = value.to(self._wide)  # exact
        return parameter_tensor("scale", value, self._wide, self._scales, self._gpu, (0, 0))

    def _zero(self, value: Any) -> Tensor | None:
        if value is None or (type(value) is int and value == 0):
            return None
        bounds = self.descriptor.qmin, self.descriptor.qmax
        return parameter_tensor("zero_point", value, torch.int32, self._scales, self._gpu, bounds)


class _Affine(_Quantization):
    _kinds: Any

    def _buffers(self, args: Any) -> tuple[list[Tensor], Tensor, Tensor, Tensor | None]:
        row, (kind, out_kind) = self.operation, self._kinds()
        reads = [self._memory(name, getattr(args, name), kind) for name in row.reads]
        out = self._memory(row.writes, getattr(args, row.writes), out_kind)
        return reads, out, self._scale(args.scale), self._zero(args.zero_point) if row.has_zero_point else None

    def run(self, args: Any) -> None:
        reads, out, scale, zero = self._buffers(args)
        d = self.descriptor
        match self.operation.op:
            case "quantize":
                launch.quantize(reads[0], scale, zero, d.qmin, d.qmax, self._g, self._dtype, out=out)
            case "dequantize":
                launch.dequantize(reads[0], scale, zero, self._g, self._dtype, out=out)
            case "dequantize_backward":
                launch.dequantize_backward(reads[0], scale, self._g, out=out)
            case op:  # fake_quantize, fake_quantize_backward, quantize_backward
                getattr(launch, op)(*reads, scale, zero, d.qmin, d.qmax, self._g, out=out)


class _Learned(_Affine):
    @property
    def workspace_size(self) -> int:
        return launch_reductions.learned_workspace(self._g) if self.descriptor.learned else 0

    def _learned_buffers(self, args: BackwardArgs) -> tuple[Tensor, Tensor, Tensor | None]:
        gpu = self._gpu
        return (
            output_tensor("d_scale", args.d_scale, self._wide, self._scales, gpu),
            output_tensor("d_zero_point", args.d_zero_point, self._wide, self._scales, gpu),
            workspace_tensor(args.workspace, self.workspace_size, gpu),
        )

    def can_implement(self, args: BackwardArgs) -> None:
        self._buffers(args)
        if self.descriptor.learned:
            self._learned_buffers(args)

    def run(self, args: BackwardArgs) -> None:
        d = self.descriptor
        if not d.learned:
            return super().run(args)
        (dy, x), dx, scale, zero = self._buffers(args)
        ds, dz, room = self._learned_buffers(args)
        launch_reductions.fake_quantize_learned_backward(
            dy, x, scale, zero, d.qmin, d.qmax, self._g, out=(dx, ds, dz), workspace=room
        )


class _Dynamic(_Quantization):
    @property
    def workspace_size(self) -> int:
        return launch_reductions.dynamic_workspace(self._g, TORCH[self._number], self._dtype)

    def _buffers(self, args: DynamicArgs) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        d, gpu, zero = self.descriptor, self._gpu, None
        if 0 in d.shape:
            raise InvalidProblem(f"input: empty (shape {d.shape}); there is nothing to find a range in")
        if args.zero_point is not None or not (self.operation.is_symmetric and d.qmin <= 0 <= d.qmax):
            zero = output_tensor("zero_point", args.zero_point, torch.int32, self._scales, gpu)
        return (
            self._memory("input", args.input, self._number),
            self._memory("output", args.output, self._code),
            output_tensor("scale", args.scale, self._wide, self._scales, gpu),
            zero,
            workspace_tensor(args.workspace, self.workspace_size, gpu),
        )

    def run(self, args: DynamicArgs) -> None:
        x, out, scale, zero, room = self._buffers(args)
        d, symmetric = self.descriptor, bool(self.operation.is_symmetric)
        given = (x, self._g, d.qmin, d.qmax, self._dtype)
        launch_reductions.quantize_dynamic(*given, symmetric=symmetric, out=(out, scale, zero), workspace=room)


_ON_GPU: tuple[tuple[type[Plan[Any]], type[OnGpu]], ...] = (
    (LearnedPlan, _Learned),
    (AffinePlan, _Affine),
    (DynamicPlan, _Dynamic),
)


@cache
def gpu_plan(plan: Any) -> Any:
    """The class of plan's plans on GPUs; the same one each time, so that plans can be compared."""
    from lowbit.gpu.plan_compute import COMPUTE_ON_GPU

    families: Any = (*_ON_GPU, *COMPUTE_ON_GPU)
    for family, on_gpu in families:
        if issubclass(plan, family):
            return type(f"_{plan.__name__}OnGpu", (on_gpu, plan), {"_plan": plan})
    raise Unsupported(f"{plan.__name__}: it has no GPU kernels")
