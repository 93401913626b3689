"""How far one array is from another, in the units quantization is judged by."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem

_CHUNK = 1 << 20  # elements held in float64 at once


@dataclass(frozen=True)
class ErrorReport:
    """Signal to quantization noise, cosine similarity, and absolute errors."""

    sqnr_db: float  # 10 log10(sum x² / sum (x - y)²); infinite where nothing was lost
    cosine: float
    max_error: float
    mean_error: float  # mean |x - y|

    @property
    def sqnr(self) -> float:
        """An alias of sqnr_db."""
        return self.sqnr_db

    @property
    def retention(self) -> float:
        """The share of the signal's energy that is not noise: 1 - noise / signal, at least 0."""
        return max(0.0, 1.0 - math.pow(10.0, -self.sqnr_db / 10.0))

    def __str__(self) -> str:
        return (
            f"SQNR {self.sqnr_db:.2f} dB, cosine {self.cosine:.6f}, "
            f"max error {self.max_error:.4g}, mean error {self.mean_error:.4g}"
        )


def error_report(x: npt.NDArray[Any], y: npt.NDArray[Any], shape: tuple[int, ...] | None = None) -> ErrorReport:
    """Compare y with the original x; sums run in float64, a block at a time.

    >>> error_report(np.array([1.0, 2.0]), np.array([1.0, 1.0])).max_error
    1.0
    """
    if x.shape != (y.shape if shape is None else shape):
        raise InvalidProblem(f"x: shape {x.shape}; expected {y.shape if shape is None else shape}")
    a, b = x.reshape(-1), y.reshape(-1)
    signal = noise = other = dot = absolute = worst = 0.0
    for start in range(0, a.size, _CHUNK):
        u, v = (w[start : start + _CHUNK].astype(np.float64) for w in (a, b))
        d = np.abs(u - v)
        signal += float(u @ u)
        other += float(v @ v)
        noise += float(d @ d)
        dot += float(u @ v)
        absolute += float(d.sum())
        worst = max(worst, float(d.max()))
    return ErrorReport(sqnr_db(signal, noise), cosine(signal, other, dot), worst, absolute / max(1, a.size))


def sqnr_db(signal: float, noise: float) -> float:
    """10 log10(signal / noise) of two sums of squares."""
    if noise == 0:
        return math.inf
    return -math.inf if signal == 0 else 10 * math.log10(signal / noise)


def cosine(xx: float, yy: float, xy: float) -> float:
    """The cosine similarity of x and y, from the sums of their products."""
    norm = math.sqrt(xx * yy)
    return xy / norm if norm else float(xx == yy)
