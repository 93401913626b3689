"""What tests of integer compute draw their problems from: codes at the ends of their range, scales, zero points."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit import QuantizationParams, QuantizedTensor

Array = np.ndarray[Any, Any]
F32 = np.float32
BYTES = ("int8", "uint8")


def codes(rng: np.random.Generator, shape: Any, dtype: str) -> Array:
    """A third of them at the ends of their range: there sums grow fastest, and int16 pairs saturate."""
    info = np.iinfo(dtype)
    ends = rng.choice([info.min, info.max], shape)
    return np.where(rng.random(shape) < 1 / 3, ends, rng.integers(info.min, info.max + 1, shape)).astype(dtype)


def zero_points(rng: np.random.Generator, shape: Any, dtype: str) -> Array:
    """0 and the ends of the range as often as anything else."""
    info = np.iinfo(dtype)
    drawn = rng.integers(info.min, info.max + 1, shape)
    return np.asarray(np.where(rng.random(shape) < 0.5, drawn, rng.choice([0, info.min, info.max], shape)), np.int32)


def scales(rng: np.random.Generator, shape: Any = ()) -> Array:
    return np.asarray(rng.uniform(0.002, 0.2, shape), F32)


def tensor(rng: np.random.Generator, shape: Any, dtype: str, axis: int | None = None) -> QuantizedTensor:
    """Random codes; one scale and zero point, or one along `axis`."""
    count = () if axis is None else (shape[axis],)
    params = QuantizationParams(dtype, "asymmetric", scales(rng, count), zero_points(rng, count, dtype), axis)
    return QuantizedTensor(codes(rng, shape, dtype), params)


def constant(value: int, shape: Any, dtype: str, zero: int = 0) -> QuantizedTensor:
    return QuantizedTensor(np.full(shape, value, dtype), QuantizationParams(dtype, "asymmetric", F32(1), zero))


def output_params(dtype: str, scale: Any, zero: int, **codes_range: int) -> QuantizationParams:
    return QuantizationParams(dtype, "asymmetric", np.asarray(scale, F32), zero, **codes_range)


def spread_over(acc: Array, sa: Any, sb: Any) -> float:
    """An output scale under which sums reach over most of 256 codes, and some beyond."""
    return float(np.mean(sa) * np.mean(sb) * (np.abs(acc).mean() + 1)) / 60 if acc.size else 1.0


def same(found: Any, expected: Array) -> bool:
    """Type, shape and every bit."""
    found = np.asarray(found)
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return False
    as_bits = f"u{expected.dtype.itemsize}"
    return bool(np.array_equal(np.ascontiguousarray(found).view(as_bits), np.ascontiguousarray(expected).view(as_bits)))


def same_codes(found: Any, expected: Array, params: QuantizationParams) -> bool:
    return (
        isinstance(found, QuantizedTensor)
        and found.params == params.for_compute(F32)
        and found.shape == expected.shape
        and bool(np.array_equal(found.unpack().astype(np.int64), expected))
    )
