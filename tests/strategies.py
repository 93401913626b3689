"""Hypothesis strategies biased to where quantization goes wrong: ties, tails, odd lengths, special values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from lowbit import QuantizationParams

FLOATS = (np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
LINEAR = ("int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2")
SPECIAL = (0.0, -0.0, np.nan, np.inf, -np.inf, 1e-42, -1e-42, 1.1754944e-38, 3e38, -3e38, 65504.0, 6e-8)


@dataclass(frozen=True)
class Case:
    x: np.ndarray[Any, Any]
    params: QuantizationParams
    threads: int


def hard_values(
    rng: np.random.Generator, shape: tuple[int, ...], scale: Any, dtype: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """A third ties and their neighbours, the rest uniform over and beyond the range, some special values."""
    wide = np.float64 if dtype == np.float64 else np.float32
    ties = (rng.integers(-300, 300, shape) + 0.5) * scale
    anywhere = rng.uniform(-400, 400, shape) * scale
    with np.errstate(over="ignore", invalid="ignore"):
        x = np.where(rng.random(shape) < 0.4, ties, anywhere).astype(wide)
        nudge = rng.integers(-2, 3, shape)
        for step in (1, 2):
            x = np.where(nudge >= step, np.nextafter(x, wide(np.inf)), x)
            x = np.where(nudge <= -step, np.nextafter(x, wide(-np.inf)), x)
        x = np.where(rng.random(shape) < 0.05, rng.choice(np.array(SPECIAL, wide), shape), x)
        return x.astype(dtype)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """An array, params that fit it at any granularity, and a number of threads."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=0, max_size=2)))
    shape = (*shape, draw(st.sampled_from([1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 127, 130, 1000])))
    if draw(st.booleans()):
        shape = tuple(rng.permutation(shape).tolist())
    dtype = draw(st.sampled_from([*LINEAR, "binary"]))
    signed_log = dtype in ("int8", "int16", "int4", "int2") and draw(st.integers(0, 5)) == 0
    axis = block = None
    kind = draw(st.sampled_from(["tensor", "channel", "group"]))
    scale_shape: tuple[int, ...] = ()
    if kind != "tensor":
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        at = axis % len(shape)
        scale_shape = (shape[at],)
        if kind == "group":
            block = draw(st.integers(1, shape[at] + 3))
            scale_shape = (*shape[:at], -(-shape[at] // block), *shape[at + 1 :])
    base = draw(st.sampled_from([0.03, 1.0, 2.0**-3, 1e-5, 0.1, 2.0**-125, 3e-30, 1e30, 7.77]))
    scale = (base * rng.uniform(1, 2, scale_shape)).astype(draw(st.sampled_from([np.float32, np.float64])))
    if signed_log:
        params = QuantizationParams(dtype, "logarithmic", scale, axis=axis, group_size=block)
    elif dtype == "binary":
        params = QuantizationParams(dtype, "symmetric", scale, axis=axis, group_size=block)
    else:
        probe = QuantizationParams(dtype)
        lo, hi = sorted(rng.integers(probe.qmin, probe.qmax + 1, 2).tolist())
        if draw(st.booleans()):
            lo, hi = probe.qmin, probe.qmax
        zero = rng.integers(lo, hi + 1, scale_shape) if draw(st.booleans()) else np.clip(0, lo, hi)
        params = QuantizationParams(dtype, "asymmetric", scale, zero, axis, block, lo, hi)
    x = hard_values(rng, shape, base, draw(st.sampled_from(FLOATS)))
    return Case(x, params, draw(st.sampled_from([1, 2, 3, 7])))
