"""Data of the PTX tests: targets, numbers near ties and past the ends, granularities, codes by the reference."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import torch
from gpu.ptx_launch import numpy_of
from lowbit import reference
from lowbit.gpu.tiles import Gpu
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.granularity import Granularity, granularity_of, per_token
from lowbit.numerics.packing import pack

__all__ = [
    "CODES", "FLOATS", "GRANULARITIES", "TARGETS", "Affine", "affine_of", "as_numpy", "gpu_of", "same_bits",
    "tensor_of",
]  # fmt: skip

TARGETS = ("sm_75", "sm_80", "sm_120")
FLOATS = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
CODES = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}
# Sizes: odd lengths, tails of a block, groups whose last one is short, rows shorter and longer than a program.
GRANULARITIES: dict[str, tuple[tuple[int, ...], Granularity]] = {
    "tensor": ((4099,), granularity_of((4099,), None, None)),
    "channel": ((3, 7, 301), granularity_of((3, 7, 301), 1, None)),
    "last": ((67, 33), granularity_of((67, 33), -1, None)),
    "token": ((19, 131), per_token((19, 131))),
    "group": ((9, 224), granularity_of((9, 224), 1, 32)),
    "ragged": ((11, 203), granularity_of((11, 203), -1, 32)),
    "rows": ((2, 21, 55), granularity_of((2, 21, 55), 1, 4)),
}


def gpu_of(target: str) -> Gpu:
    return Gpu("cuda", int(target[3:]))


class Affine(NamedTuple):
    """Numbers with their scales, and what they are as codes."""

    x: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    qmin: int
    qmax: int
    g: Granularity
    dtype: QuantizedDType

    @property
    def spread(self) -> tuple[Any, Any, Any]:
        """x, s, z in the compute type, as arrays of one shape."""
        wide = reference.widen(as_numpy(self.x))
        return wide, *(reference.spread(v.numpy(), self.g, wide.shape) for v in (self.scale, self.zero))

    def codes(self) -> torch.Tensor:
        """As they are stored."""
        codes = reference.quantize_affine(*self.spread, self.qmin, self.qmax).astype(self.dtype.code_dtype)
        return torch.from_numpy(pack(codes, self.dtype))


def as_numpy(x: torch.Tensor) -> Any:
    return numpy_of(x).view(ml_dtypes.bfloat16) if x.dtype == torch.bfloat16 else x.numpy()


def tensor_of(x: Any) -> torch.Tensor:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(x).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(x, order="C"))


def affine_of(floats: str, codes: str, granularity: str, seed: int = 0) -> Affine:
    """Numbers that lie on a tie, a float next to one, or past the codes' ends; some NaN, Inf, zeros and subnormals."""
    rng = np.random.default_rng([seed, *f"{floats} {codes} {granularity}".encode()])
    shape, g = GRANULARITIES[granularity]
    (qmin, qmax), dtype = CODES[codes], FLOATS[floats]
    wide = np.float64 if floats == "f64" else np.float32
    scale = np.exp(rng.uniform(-6, 1, g.scale_shape)).astype(wide)
    zero = rng.integers(qmin, qmax + 1, g.scale_shape, dtype=np.int32)
    steps = (
        rng.integers(qmin - 3, qmax + 4, shape) - reference.spread(zero, g, shape) + rng.choice([0.5, 0.5, 0.25], shape)
    )
    x = (steps * reference.spread(scale, g, shape).astype(np.float64)).astype(wide)
    x = np.nextafter(x, (rng.choice([-np.inf, 0, np.inf], shape)).astype(wide)) if floats[0] == "f" else x
    if floats in ("f16", "bf16"):
        # Few f16 lie next to a tie, so each scale moves a little for its first element to do.
        x = as_numpy(torch.from_numpy(x).to(dtype)).astype(wide)
        index = reference.spread(np.arange(scale.size).reshape(scale.shape), g, shape).reshape(-1)
        _, first = np.unique(index, return_index=True)
        near = np.abs(x.reshape(-1)[first] / steps.reshape(-1)[first]).astype(wide)
        scale = np.where(near > 0, near, scale.reshape(-1)).reshape(scale.shape).astype(wide)
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, -1e-40, 65504.0, -65504.0, 3e38, -3e38], wide)
    x = np.array(x)
    x.reshape(-1)[rng.choice(x.size, 33, replace=False)] = np.resize(special, 33)
    parameters = (torch.from_numpy(np.asarray(v)) for v in (scale, zero))
    return Affine(torch.from_numpy(x).to(dtype), *parameters, qmin, qmax, g, QuantizedDType.of(codes))


def same_bits(found: torch.Tensor, expected: torch.Tensor) -> int:
    """How many elements differ in their bits; any NaN is as good as another. -0 is not +0."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    if not found.dtype.is_floating_point:
        return int((found != expected).sum())
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[found.element_size()]
    differ = found.reshape(-1).view(bits) != expected.reshape(-1).view(bits)
    return int((differ & ~(found.reshape(-1).isnan() & expected.reshape(-1).isnan())).sum())
