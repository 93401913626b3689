"""Weights, moments of their inputs, and errors, for tests of algorithms."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit import QuantizedTensor
from lowbit.calibration import Moments

Array = np.ndarray[Any, Any]


def weight(rows: int = 12, inputs: int = 70, seed: int = 0) -> Array:
    """Heavy tails, some zeros, a row of zeros and a group of zeros."""
    rng = np.random.default_rng(seed)
    w = rng.standard_t(4, (rows, inputs)).astype(np.float32)
    w[rng.random(w.shape) < 0.05] = 0
    w[rows // 2] = 0
    w[0, 16:32] = 0
    return w


def gram(inputs: int = 70, seed: int = 1, rows: int = 300) -> Array:
    """E[x x^T] of correlated inputs of very different sizes, of which one is always 0."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.standard_normal(inputs))
    x = rng.standard_normal((rows, inputs)) @ rng.standard_normal((inputs, inputs)) * sizes
    x[:, inputs // 3] = 0
    return np.asarray(x.T @ x / rows)


def row_errors(w: Array, q: QuantizedTensor, h: Array) -> Array:
    """e H e^T of each row."""
    e = w.astype(np.float64) - q.dequantize()
    return np.asarray(np.einsum("ri,ri->r", e @ h, e))


def group_errors(w: Array, q: QuantizedTensor, size: int, importance: Any = 1.0) -> Array:
    """The weighted sum of squared errors of each group."""
    e = importance * np.square(w.astype(np.float64) - q.dequantize())
    return np.asarray(np.add.reduceat(e, np.arange(0, w.shape[1], size), axis=1))


def moment_state(m: Moments) -> tuple[Any, ...]:
    """All there is to moments, to the bit."""
    found, about = m.to_arrays()
    return about, [(name, a.dtype.str, a.shape, a.tobytes()) for name, a in sorted(found.items())]
