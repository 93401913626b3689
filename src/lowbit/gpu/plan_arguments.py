"""What plans on a GPU are run on: torch tensors in its memory, checked as arrays are for the CPU.

Values are not looked at, since that would wait for the GPU: a scale that is out of range, or not finite, gives
undefined codes. Numbers that come from the host are checked.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import torch
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.fields import check_scale
from lowbit.plans.kinds import CODES, ElementKind
from lowbit.runtime.devices import GpuDevice
from torch import Tensor

TORCH = {
    ElementKind.F32: torch.float32,
    ElementKind.F64: torch.float64,
    ElementKind.F16: torch.float16,
    ElementKind.BF16: torch.bfloat16,
    ElementKind.S8: torch.int8,
    ElementKind.U8: torch.uint8,
    ElementKind.S16: torch.int16,
    ElementKind.U16: torch.uint16,
    ElementKind.S4: torch.uint8,
    ElementKind.U4: torch.uint8,
}


def tensor(name: str, value: Any, kind: ElementKind, shape: tuple[int, ...], gpu: GpuDevice) -> Tensor:
    """The memory of an argument, as kernels take it; no copy is made."""
    bits = CODES[kind][1] if kind in CODES else 8
    expected = shape if bits >= 8 else (-(-math.prod(shape) * bits // 8),)
    found = _held(name, value, TORCH[kind], gpu, f", which the descriptor calls {kind}")
    return _shaped(name, found, expected)


def parameter_tensor(
    name: str, value: Any, dtype: torch.dtype, shape: tuple[int, ...], gpu: GpuDevice, bounds: tuple[int, int]
) -> Tensor:
    """Scales or zero points. A number of the host becomes a tensor, without waiting."""
    if isinstance(value, (int, float, np.generic)) and not isinstance(value, bool) and not shape:
        number = float(value)
        if dtype is not torch.int32:
            check_scale(np.asarray(number, np.float64 if dtype is torch.float64 else np.float32))
        elif not number.is_integer() or not bounds[0] <= number <= bounds[1]:
            raise InvalidProblem(f"{name}: {value!r}; expected an integer in [{bounds[0]}, {bounds[1]}]")
        return torch.full((), number, dtype=dtype, device=gpu.memory)
    return output_tensor(name, value, dtype, shape, gpu)


def output_tensor(name: str, value: Any, dtype: torch.dtype, shape: tuple[int, ...], gpu: GpuDevice) -> Tensor:
    """Parameters in the GPU's memory, as they must be to be written."""
    found = _held(name, value, dtype, gpu, "")
    return _shaped(name, found.reshape(()) if not shape and tuple(found.shape) == (1,) else found, shape)


def workspace_tensor(value: Any, size: int, gpu: GpuDevice) -> Tensor | None:
    if not size:
        return None
    found = _held("workspace", value, torch.uint8, gpu, "")
    if not found.is_contiguous() or found.numel() < size or found.data_ptr() % 8:
        raise InvalidProblem(f"workspace: {found.numel()} bytes; expected {size}, contiguous and aligned to 8")
    return found


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
