"""Products of codes for the PTX tests, and the contract's answers to them."""

from __future__ import annotations

from typing import Any

import numpy as np

import torch
from gpu.ptx_launch import on_target
from gpu.ptx_tensors import gpu_of
from lowbit.gpu import launch_compute
from lowbit.gpu.launch_compute import GpuEpilogue, Weight

__all__ = ["S8", "U8", "codes_of", "floats_of", "multiply", "product_case", "sums_of"]

S8, U8 = torch.int8, torch.uint8


def product_case(m: int, n: int, k: int, a_type: torch.dtype, b_type: torch.dtype, seed: int = 0) -> dict[str, Any]:
    make = torch.Generator().manual_seed(seed + m * n * k)

    def codes(shape: tuple[int, int], kind: torch.dtype) -> torch.Tensor:
        low = 0 if kind == torch.uint8 else -128
        found = torch.randint(low, low + 256, shape, generator=make).to(kind)
        found.view(-1)[:5] = low  # the product that grows the most
        return found

    return {
        "a": codes((m, k), a_type), "b": codes((n, k), b_type),
        "sa": torch.rand(m, generator=make) + 0.01, "sb": torch.rand(n, generator=make) * 0.1 + 0.001,
        "za": torch.randint(-5, 100, (m,), generator=make, dtype=torch.int32).clamp(min=0),
        "zb": torch.randint(-5, 9, (n,), generator=make, dtype=torch.int32).clamp(min=0),
        "bias": torch.randn(n, generator=make) * 3,
    }  # fmt: skip


def sums_of(c: dict[str, Any]) -> Any:
    a = c["a"].numpy().astype(np.int64) - c["za"].numpy()[:, None]
    return a @ (c["b"].numpy().astype(np.int64) - c["zb"].numpy()[:, None]).T


def multiply(c: dict[str, Any], finish: GpuEpilogue, target: str, path: str, **more: Any) -> torch.Tensor:
    with on_target(target, **more):
        weight = Weight.of(c["b"], c["sb"], c["zb"])
        return launch_compute.gemm(c["a"], weight, c["sa"], c["za"], finish, gpu=gpu_of(target), path=path)


def floats_of(c: dict[str, Any]) -> Any:
    """y = f32(sum) * (sa * sb) + bias, each step rounded."""
    by = c["sa"].numpy()[:, None] * c["sb"].numpy()
    return sums_of(c).astype(np.float32) * by + c["bias"].numpy()


def codes_of(c: dict[str, Any], scale: float, zero: int) -> Any:
    """q = clamp(rne(f32(sum) * ((sa * sb) / sy)) + zy)."""
    by = (c["sa"].numpy()[:, None] * c["sb"].numpy()) / np.float32(scale)
    return np.clip(np.rint(sums_of(c).astype(np.float32) * by) + zero, -128, 127).astype(np.int8)
