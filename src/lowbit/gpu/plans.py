"""Plans on a GPU: `select(descriptor, device="cuda")` gives the same plan class with another `run`.

Arguments are torch tensors in that GPU's memory. Kernels go to torch's current stream, and `run` returns before they
are done. Results are those of the CPU, to the bit. What the CPU finds out while it computes, a bad scale or NaN in data
whose range is looked for, is not found out here, since that would wait: a scale found in such data is NaN, and codes
are undefined. Numbers that come from the host are checked.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

import torch
from lowbit.gpu import launch
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.fields import check_scale
from lowbit.numerics.granularity import Granularity
from lowbit.plans.arguments import BackwardArgs, DynamicArgs
from lowbit.plans.base import Plan, Preference
from lowbit.plans.descriptors import PerTensorDescriptor
from lowbit.plans.kinds import CODES, ElementKind, KernelSku
from lowbit.plans.operations import Operation
from lowbit.plans.quantization import AffinePlan, DynamicPlan, LearnedPlan
from lowbit.runtime.devices import GpuDevice, find_device
from lowbit.runtime.torch_types import FLOATS, STORED
from torch import Tensor

_TORCH = {
    kind: FLOATS[kind.value] if kind.is_float else STORED[QuantizedDType.of(kind.value).name] for kind in ElementKind
}


def tensor(name: str, value: Any, kind: ElementKind, shape: tuple[int, ...], gpu: GpuDevice) -> Tensor:
    """The memory of an argument, as kernels take it; no copy is made."""
    bits = CODES[kind][1] if kind in CODES else 8
    expected = shape if bits >= 8 else (-(-math.prod(shape) * bits // 8),)
    found = _held(name, value, _TORCH[kind], gpu, f", which the descriptor calls {kind}")
    return _shaped(name, found, expected)


def _held(name: str, value: Any, dtype: torch.dtype, gpu: GpuDevice, why: str) -> Tensor:
    if not isinstance(value, Tensor):
        raise InvalidProblem(f"{name}: {type(value).__name__}; expected a torch tensor on {gpu.name}")
    if not gpu.holds(value):
        raise Unsupported(f"{name}: on {value.device}; expected {gpu.name}")
    if value.dtype is not dtype:
        raise Unsupported(f"{name}: {value.dtype}; expected {dtype}{why}")
    return value.detach()


def _shaped(name: str, found: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(found.shape) != shape:
        raise InvalidProblem(f"{name}: shape {tuple(found.shape)}; expected {shape}")
    if not found.is_contiguous():
        raise InvalidProblem(f"{name}: expected a contiguous tensor")
    return found


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
        return _TORCH[ElementKind(self.sku.precision_guarantee.math_precision)]

    @property
    def _dtype(self) -> QuantizedDType:
        return QuantizedDType.of(self._code.value)

    def can_implement(self, args: Any) -> None:
        self._buffers(args)

    def _buffers(self, args: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def _memory(self, name: str, value: Any, kind: ElementKind) -> Tensor:
        return tensor(name, value, kind, self.descriptor.shape, self._gpu)

    def _parameters(self, name: str, value: Any, dtype: torch.dtype) -> Tensor:
        """Scales or zero points in the GPU's memory, as they must be to be written."""
        found = _held(name, value, dtype, self._gpu, "")
        return _shaped(name, found.reshape(()) if self._scales == () and found.shape == (1,) else found, self._scales)

    def _number_or_parameters(self, name: str, value: Any, dtype: torch.dtype) -> Tensor:
        """Scales or zero points. A number of the host becomes a tensor, without waiting."""
        if self._scales or isinstance(value, bool) or not isinstance(value, (int, float, np.generic)):
            return self._parameters(name, value, dtype)
        number, d = float(value), self.descriptor
        if dtype is not torch.int32:
            check_scale(np.asarray(number, np.float64 if dtype is torch.float64 else np.float32))
        elif not number.is_integer() or not d.qmin <= number <= d.qmax:
            raise InvalidProblem(f"{name}: {value!r}; expected an integer in [{d.qmin}, {d.qmax}]")
        return torch.full((), number, dtype=dtype, device=self._gpu.memory)

    def _scale(self, value: Any) -> Tensor:
        if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            value = value.to(self._wide)  # exact
        return self._number_or_parameters("scale", value, self._wide)

    def _zero(self, value: Any) -> Tensor | None:
        if value is None or (type(value) is int and value == 0):
            return None
        return self._number_or_parameters("zero_point", value, torch.int32)

    def _workspace(self, value: Any, size: int) -> Tensor | None:
        if not size:
            return None
        found = _held("workspace", value, torch.uint8, self._gpu, "")
        if not found.is_contiguous() or found.numel() < size or found.data_ptr() % 8:
            raise InvalidProblem(f"workspace: {found.numel()} bytes; expected {size}, contiguous and aligned to 8")
        return found


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
        return launch.learned_workspace(self._g) if self.descriptor.learned else 0

    def _sums(self, args: BackwardArgs) -> tuple[Tensor, Tensor, Tensor | None]:
        """d_scale, d_zero_point and what their sums need."""
        d_scale = self._parameters("d_scale", args.d_scale, self._wide)
        d_zero_point = self._parameters("d_zero_point", args.d_zero_point, self._wide)
        return d_scale, d_zero_point, self._workspace(args.workspace, self.workspace_size)

    def can_implement(self, args: BackwardArgs) -> None:
        self._buffers(args)
        if self.descriptor.learned:
            self._sums(args)

    def run(self, args: BackwardArgs) -> None:
        d = self.descriptor
        if not d.learned:
            return super().run(args)
        (dy, x), dx, scale, zero = self._buffers(args)
        ds, dz, room = self._sums(args)
        affine = (scale, zero, d.qmin, d.qmax, self._g)
        launch.fake_quantize_learned_backward(dy, x, *affine, out=(dx, ds, dz), workspace=room)


class _Dynamic(_Quantization):
    @property
    def workspace_size(self) -> int:
        return launch.dynamic_workspace(self._g, _TORCH[self._number], self._dtype)

    def _buffers(self, args: DynamicArgs) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        d, zero = self.descriptor, None
        if 0 in d.shape:
            raise InvalidProblem(f"input: empty (shape {d.shape}); there is nothing to find a range in")
        if args.zero_point is not None or not (self.operation.is_symmetric and d.qmin <= 0 <= d.qmax):
            zero = self._parameters("zero_point", args.zero_point, torch.int32)
        x, out = self._memory("input", args.input, self._number), self._memory("output", args.output, self._code)
        room = self._workspace(args.workspace, self.workspace_size)
        return x, out, self._parameters("scale", args.scale, self._wide), zero, room

    def run(self, args: DynamicArgs) -> None:
        x, out, scale, zero, room = self._buffers(args)
        d, symmetric = self.descriptor, bool(self.operation.is_symmetric)
        given = (x, self._g, d.qmin, d.qmax, self._dtype)
        launch.quantize_dynamic(*given, symmetric=symmetric, out=(out, scale, zero), workspace=room)


@cache
def gpu_plan(plan: Any) -> Any:
    """The class of plan's plans on GPUs; the same one each time, so that plans can be compared."""
    from lowbit.gpu.plan_compute import COMPUTE_ON_GPU

    families: Any = ((LearnedPlan, _Learned), (AffinePlan, _Affine), (DynamicPlan, _Dynamic), *COMPUTE_ON_GPU)
    for family, on_gpu in families:
        if issubclass(plan, family):
            return type(f"_{plan.__name__}OnGpu", (on_gpu, plan), {"_plan": plan})
    raise Unsupported(f"{plan.__name__}: it has no GPU kernels")
