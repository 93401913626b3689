"""The types of torch tensors that kernels take, on the CPU and on GPUs. Imported by what imports torch."""

from __future__ import annotations

import numpy as np

import torch
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.granularity import Granularity, granularity_of
from torch import Tensor

__all__ = ["CODES", "FLOATS", "STORED", "WIDEST", "codes_dtype", "compute_dtype", "granularity", "require_bits"]

WIDEST = float(np.finfo(np.float32).max) / 2  # a range from minus to plus this is finite

FLOATS = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
# The integer types that codes may have, narrowest first.
CODES = {torch.int8: "int8", torch.uint8: "uint8", torch.int16: "int16", torch.uint16: "uint16"}
# What codes are stored as; those of 4 bits are two per byte.
STORED = {name: dtype for dtype, name in CODES.items()} | {"int4": torch.uint8, "uint4": torch.uint8}


def codes_dtype(qmin: int, qmax: int) -> torch.dtype:
    """The narrowest type that holds the codes qmin to qmax.

    >>> codes_dtype(-8, 7), codes_dtype(0, 255)
    (torch.int8, torch.uint8)
    """
    for dtype in CODES:
        info = torch.iinfo(dtype)
        if info.min <= qmin and qmax <= info.max:
            return dtype
    raise InvalidProblem(f"qmin, qmax: [{qmin}, {qmax}]; expected a range that {', '.join(CODES.values())} holds")


def compute_dtype(of: Tensor | torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for everything narrower."""
    dtype = of if isinstance(of, torch.dtype) else of.dtype
    return torch.float64 if dtype is torch.float64 else torch.float32


def granularity(shape: torch.Size, axis: int | None, group_size: int | None) -> Granularity:
    """`granularity_of` of a tensor's shape."""
    return granularity_of(tuple(shape), axis, group_size)


def require_bits(dy: Tensor, bits: Tensor) -> None:
    """Raises unless `bits` holds one bit per element of dy."""
    size = (dy.numel() + 7) // 8
    if bits.dtype is not torch.uint8 or bits.shape != (size,):
        raise InvalidProblem(
            f"bits: {bits.dtype} {tuple(bits.shape)}; expected torch.uint8 {(size,)}, a bit per element"
        )
