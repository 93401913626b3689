"""Sizes and data the benchmarks share. Every array starts on a cache line, for every contender alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CALL = 64  # elements: few enough that only the call costs
CACHED = 1 << 18  # 1 MiB of float32: an activation that stays in the caches
SPLIT = 1 << 20  # worth a second thread
MEDIUM = 1 << 22
STREAMED = 1 << 25  # 128 MiB of float32: beyond any cache
MATRIX = (4096, 4096)  # a weight matrix

SCALE, ZERO_POINT = 0.03, 3  # numbers of a normal distribution under these use most int8 codes

_CACHE_LINE = 64


def aligned(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Uninitialised memory that starts on a cache line, where np.empty starts wherever malloc does."""
    shape = (shape,) if isinstance(shape, int) else shape
    kind = np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    memory = np.empty(nbytes + _CACHE_LINE, np.uint8)
    start = -memory.ctypes.data % _CACHE_LINE
    return memory[start : start + nbytes].view(kind).reshape(shape)


def normal(shape: int | tuple[int, ...], dtype: npt.DTypeLike = np.float32, spread: float = 1.0) -> Array:
    """The same normally distributed numbers in every run."""
    out = aligned(shape, dtype)
    out[...] = spread * np.random.default_rng(0).standard_normal(out.shape, np.float32)
    return out
