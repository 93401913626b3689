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
from lowbit.plans import affine, dynamic
from lowbit.plans.arguments import BackwardArgs, DequantizeBackwardArgs, DynamicArgs, ForwardArgs
from lowbit.plans.base import Plan, Preference, select_again
from lowbit.plans.descriptors import PerTensorDescriptor
from lowbit.plans.kinds import ElementKind, KernelSku, kind_of
from lowbit.runtime.devices import GpuDevice, find_device
from torch import Tensor

__all__ = ["OnGpu", "gpu_plan"]


class OnGpu:
    """What makes a plan class one for GPUs, put before it in the order of bases."""

    _plan: ClassVar[type[Plan[Any]]]
    _place: GpuDevice
    descriptor: Any
    device: str
    preference: Preference
    sku: KernelSku
    _set: Any

    def __init__(self, descriptor: Any, device: str, preference: Preference) -> None:
        if preference != "fastest":
            raise Unsupported(f"preference: {preference!r} with device {device!r}; the reference runs on the CPU")
        super().__init__(descriptor, device, preference)  # type: ignore[call-arg]
        place = find_device(device)
        self._set(_place=place, sku=replace(self.sku, arch=place.architecture, backend=place.backend))

    def __reduce__(self) -> tuple[Any, ...]:
        return select_again, (self._plan, self.descriptor, self.device, self.preference)

    def __repr__(self) -> str:
        return f"{self._plan.__name__}({self.descriptor!r}, device={self.device!r})"


class _Affine(OnGpu):
    descriptor: PerTensorDescriptor
    _g: Granularity
    _scales: tuple[int, ...]

    @property
    def _wide(self) -> torch.dtype:
        """Of scales."""
        return TORCH[ElementKind(self.sku.precision_guarantee.math_precision)]

    def _memory(self, name: str, value: Any, kind: ElementKind | None) -> Tensor:
        return tensor(name, value, kind_of("", kind), self.descriptor.shape, self._place)

    def can_implement(self, args: Any) -> None:
        self._buffers(args)

    def _buffers(self, args: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def _scale(self, value: Any) -> Tensor:
        if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16):
            value = value.to(self._wide)  # exact
        return parameter_tensor("scale", value, self._wide, self._scales, self._place, (0, 0))

    def _zero(self, value: Any) -> Tensor | None:
        if value is None or (type(value) is int and value == 0):
            return None
        bounds = self.descriptor.qmin, self.descriptor.qmax
        return parameter_tensor("zero_point", value, torch.int32, self._scales, self._place, bounds)

    @property
    def _range(self) -> tuple[int, int, Granularity]:
        return self.descriptor.qmin, self.descriptor.qmax, self._g


class _Forward(_Affine):
    def _buffers(self, args: ForwardArgs) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        d = self.descriptor
        return (
            self._memory("input", args.input, d.input_element),
            self._memory("output", args.output, d.output_element or d.input_element),
            self._scale(args.scale),
            self._zero(args.zero_point),
        )


class _Quantize(_Forward):
    def run(self, args: ForwardArgs) -> None:
        x, out, scale, zero = self._buffers(args)
        launch.quantize(x, scale, zero, *self._range, _codes(self.descriptor.output_element), out=out)


class _Dequantize(_Forward):
    def run(self, args: ForwardArgs) -> None:
        q, out, scale, zero = self._buffers(args)
        launch.dequantize(q, scale, zero, self._g, _codes(self.descriptor.input_element), out=out)


class _FakeQuantize(_Forward):
    def run(self, args: ForwardArgs) -> None:
        x, out, scale, zero = self._buffers(args)
        launch.fake_quantize(x, scale, zero, *self._range, out=out)


class _Backward(_Affine):
    def _buffers(self, args: BackwardArgs) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        kind = self.descriptor.input_element
        return (
            self._memory("input", args.input, kind),
            self._memory("d_output", args.d_output, kind),
            self._memory("d_input", args.d_input, kind),
            self._scale(args.scale),
            self._zero(args.zero_point),
        )


class _QuantizeBackward(_Backward):
    def run(self, args: BackwardArgs) -> None:
        x, dy, dx, scale, zero = self._buffers(args)
        launch.quantize_backward(dy, x, scale, zero, *self._range, out=dx)


class _FakeQuantizeBackward(_Backward):
    @property
    def workspace_size(self) -> int:
        return launch_reductions.learned_workspace(self._g) if self.descriptor.learned else 0

    def _learned_buffers(self, args: BackwardArgs) -> tuple[Tensor, Tensor, Tensor | None]:
        place = self._place
        return (
            output_tensor("d_scale", args.d_scale, self._wide, self._scales, place),
            output_tensor("d_zero_point", args.d_zero_point, self._wide, self._scales, place),
            workspace_tensor(args.workspace, self.workspace_size, place),
        )

    def can_implement(self, args: BackwardArgs) -> None:
        self._buffers(args)
        if self.descriptor.learned:
            self._learned_buffers(args)

    def run(self, args: BackwardArgs) -> None:
        x, dy, dx, scale, zero = self._buffers(args)
        if not self.descriptor.learned:
            launch.fake_quantize_backward(dy, x, scale, zero, *self._range, out=dx)
            return
        ds, dz, room = self._learned_buffers(args)
        launch_reductions.fake_quantize_learned_backward(
            dy, x, scale, zero, *self._range, out=(dx, ds, dz), workspace=room
        )


class _DequantizeBackward(_Affine):
    def _buffers(self, args: DequantizeBackwardArgs) -> tuple[Tensor, Tensor, Tensor]:
        kind = self.descriptor.output_element
        dy, dq = self._memory("d_output", args.d_output, kind), self._memory("d_input", args.d_input, kind)
        return dy, dq, self._scale(args.scale)

    def run(self, args: DequantizeBackwardArgs) -> None:
        dy, dq, scale = self._buffers(args)
        launch.dequantize_backward(dy, scale, self._g, out=dq)


class _Dynamic(_Affine):
    _symmetric: ClassVar[bool]

    @property
    def workspace_size(self) -> int:
        d = self.descriptor
        return launch_reductions.dynamic_workspace(self._g, TORCH[d.input_element], _codes(d.output_element))

    def _buffers(self, args: DynamicArgs) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
        d, place, zero = self.descriptor, self._place, None
        if 0 in d.shape:
            raise InvalidProblem(f"input: empty (shape {d.shape}); there is nothing to find a range in")
        if args.zero_point is not None or not (self._symmetric and d.qmin <= 0 <= d.qmax):
            zero = output_tensor("zero_point", args.zero_point, torch.int32, self._scales, place)
        return (
            self._memory("input", args.input, d.input_element),
            self._memory("output", args.output, d.output_element),
            output_tensor("scale", args.scale, self._wide, self._scales, place),
            zero,
            workspace_tensor(args.workspace, self.workspace_size, place),
        )

    def run(self, args: DynamicArgs) -> None:
        x, out, scale, zero, room = self._buffers(args)
        d = self.descriptor
        launch_reductions.quantize_dynamic(
            x, self._g, d.qmin, d.qmax, _codes(d.output_element), symmetric=self._symmetric, out=(out, scale, zero),
            workspace=room,
        )  # fmt: skip


def _codes(kind: ElementKind | None) -> QuantizedDType:
    return QuantizedDType.of(kind_of("", kind).value)


_ON_GPU: tuple[tuple[type[Plan[Any]], type[OnGpu]], ...] = (
    (affine._Quantize, _Quantize),
    (affine._Dequantize, _Dequantize),
    (affine._FakeQuantize, _FakeQuantize),
    (affine._QuantizeBackward, _QuantizeBackward),
    (affine._FakeQuantizeBackward, _FakeQuantizeBackward),
    (affine._DequantizeBackward, _DequantizeBackward),
    (dynamic._Dynamic, _Dynamic),
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
