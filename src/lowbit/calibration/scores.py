"""The error of ranges for a distribution at a target dtype, and the search for the range of least error.

Errors come from the histogram. The search is a logarithmic grid over both ends, refined around the best points.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import reference
from lowbit.calibration.distribution import Distribution, Floats, Histogram
from lowbit.numerics.dtypes import Array
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.ranges import affine_from_range
from lowbit.runtime.native import core

FLOOR = 2.0**-40  # of the codes' distribution in a divergence
# Gauss-Legendre points and weights: logarithmic codes are evaluated at points of each bin.
_POINTS, _WEIGHTS = (v / 2 + c for v, c in zip(np.polynomial.legendre.leggauss(3), (0.5, 0.0), strict=True))

_GRID = 48  # candidates per end
_ZOOM = 9  # candidates per end in each refinement
_ROUNDS = 5
_STARTS = 3  # how many of the best grid points are refined


@dataclass(frozen=True)
class Target:
    """The dtype and mapping that ranges are for; `template` holds them without granularity."""

    template: QuantizationParams
    full_range: bool = False
    wide: bool = False  # scales in float64
    codes: tuple[int, int] | None = None  # given by the caller

    @property
    def is_symmetric(self) -> bool:
        return self.template.is_symmetric

    def params(self, lo: Array, hi: Array, mean_abs: Array | None = None, **scope: Any) -> QuantizationParams:
        """Params for ranges; scope: axis and group_size."""
        real = np.float64 if self.wide else np.float32
        least, most = self.codes or (None, None)
        return QuantizationParams.from_statistics(
            np.asarray(lo, real), np.asarray(hi, real), dtype=self.template.dtype, scheme=self.template.scheme,
            qmin=least, qmax=most, full_range=self.full_range, steps_per_octave=self.template.steps_per_octave,
            mean_abs=None if mean_abs is None else np.asarray(mean_abs, real), **scope,
        )  # fmt: skip

    @functools.cached_property
    def code_range(self) -> tuple[int, int]:
        """The least and greatest code that params for a range have."""
        p = self.params(np.float64(-1.0), np.float64(1.0))
        return p.qmin, p.qmax

    def mapping(self, lo: Floats, hi: Floats) -> tuple[Array, Array, Array]:
        """Scales, and the least and greatest multiple of each, that params for ranges have. Linear codes only."""
        real = np.float64 if self.wide else np.float32
        least, most = self.code_range
        scale, zero = affine_from_range(
            lo.astype(real), hi.astype(real), least, most, symmetric=self.is_symmetric, full_range=self.full_range
        )
        codes = zero.astype(np.int64)
        return scale.astype(np.float64), least - codes, most - codes

    def candidates(self, d: Distribution, lo: Floats, hi: Floats) -> QuantizationParams:
        """Params for each of several ranges of one distribution."""
        mean = np.full(lo.shape, d.mean_abs) if self.template.dtype.is_binary else None
        return self.params(lo, hi, mean, axis=0)


def mean_squared_error(d: Distribution, target: Target, lo: npt.ArrayLike, hi: npt.ArrayLike) -> Floats:
    """The mean of (x - dequantize(quantize(x)))^2 over all numbers seen, for each range [lo, hi].

    Numbers are assumed uniform within the bins of the histogram; linear codes represent zeros exactly.
    """
    low, high = np.atleast_1d(np.asarray(lo, np.float64)), np.atleast_1d(np.asarray(hi, np.float64))
    if target.template.dtype.is_binary:  # mean (|x| - s)^2, without any histogram
        s = target.candidates(d, low, high).scale.astype(np.float64)
        return np.maximum(d.mean_square - 2 * s * d.mean_abs + s * s, 0.0)
    if target.template.is_logarithmic:
        return _at_points(d.histogram, target.candidates(d, low, high)) / max(1, d.count)
    out = np.empty(low.shape)
    core.squared_error(core.Histogram(*d.histogram), *target.mapping(low, high), out)
    return out / max(1, d.count)


def divergence(d: Distribution, target: Target, lo: npt.ArrayLike, hi: npt.ArrayLike) -> Floats:
    """The Kullback-Leibler divergence of `lowbit.reference.calibration` for each range [lo, hi], without zeros."""
    low, high = np.atleast_1d(np.asarray(lo, np.float64)), np.atleast_1d(np.asarray(hi, np.float64))
    out = np.empty(low.shape)
    core.divergence(core.Histogram(*d.smooth), *target.mapping(low, high), FLOOR, out)
    return out


def _at_points(h: Histogram, p: QuantizationParams) -> Floats:
    """Squared errors by quantizing points of every bin."""
    x = (h.lower[:, None] + (h.upper - h.lower)[:, None] * _POINTS).reshape(-1)
    weight = (h.counts[:, None] * _WEIGHTS).reshape(-1)
    found = []
    for scale in p.scale:
        one = p.replace(scale=scale.astype(np.float64), zero_point=0, axis=None)
        back = reference.dequantize(reference.quantize(x, one), one, np.float64)
        found.append(float((weight * (x - back) ** 2).sum()))
    return np.asarray(found)


def best_range(
    d: Distribution, symmetric: bool, score: Callable[[Floats, Floats], Floats], steps: int = 16
) -> tuple[float, float]:
    """The range of least score. Only one end moves if symmetric, or if all numbers have one sign.

    steps: candidates per octave where one end moves; a score that is not smooth needs more.
    """
    if d.absmax == 0:
        return d.lo, d.hi
    if symmetric:
        most = _line(d.absmax, d, lambda t: score(-t, t), steps)
        return -most, most
    if d.lo >= 0:
        return 0.0, _line(d.hi, d, lambda t: score(np.zeros_like(t), t), steps)
    if d.hi <= 0:
        return -_line(-d.lo, d, lambda t: score(-t, np.zeros_like(t)), steps), 0.0
    return _plane(d, score)


def _octaves(top: float, d: Distribution) -> float:
    """How many octaves below the greatest number an end may lie: to the first percentile of the non-zero numbers."""
    m = d.magnitudes
    some = m.counts[m.lower > 0]
    if not some.size:
        return 1.0
    past_zero = (m.counts.sum() - some.sum()) / m.counts.sum()
    least = float(m.quantile(past_zero + 0.01 * (1 - past_zero)))
    return float(np.clip(np.log2(top / max(least, 1e-300)), 1.0, 32.0))


def _line(top: float, d: Distribution, score: Callable[[Floats], Floats], steps: int) -> float:
    reach = _octaves(top, d)
    down = np.linspace(0.0, reach, int(reach * steps) + 2)
    scores = score(top * np.exp2(-down))
    at = down[_valleys(scores)]
    around = np.linspace(-1, 1, 2 * _ZOOM + 1) * down[1]
    lowest = scores[_valleys(scores)]
    for _ in range(_ROUNDS):  # every start at once
        near = np.clip(at[:, None] + around, 0.0, None)
        found = score(top * np.exp2(-near.reshape(-1))).reshape(near.shape)
        best = found.argmin(1)[:, None]
        at, lowest = np.take_along_axis(near, best, 1)[:, 0], np.take_along_axis(found, best, 1)[:, 0]
        around = around / _ZOOM
    # Clip only where it is better than no clipping.
    return top * float(np.exp2(-at[lowest.argmin()])) if lowest.min() < scores[0] else top


def _valleys(scores: Floats) -> npt.NDArray[np.intp]:
    """The positions of local minima, the lowest first."""
    padded = np.concatenate([[np.inf], scores, [np.inf]])
    low = np.flatnonzero((scores <= padded[:-2]) & (scores <= padded[2:]))
    return low[np.argsort(scores[low], kind="stable")][:_STARTS]


def _plane(d: Distribution, score: Callable[[Floats, Floats], Floats]) -> tuple[float, float]:
    """Search both ends by how many octaves each lies within the numbers; the last candidate is an end of 0."""
    reach = np.array([_octaves(end, d) for end in (-d.lo, d.hi)])
    axes = [np.append(np.linspace(0.0, r, _GRID), np.inf) for r in reach]

    def look(rows: Floats) -> Floats:
        found = np.full(len(rows), np.inf)
        some = np.isfinite(rows).any(1)
        found[some] = score(d.lo * np.exp2(-rows[some, 0]), d.hi * np.exp2(-rows[some, 1]))
        return found

    rows = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    scores = look(rows)
    first = np.argsort(scores, kind="stable")[:_STARTS]
    at, lowest = rows[first], scores[first]
    square = np.stack(np.meshgrid(*[np.linspace(-1, 1, _ZOOM)] * 2, indexing="ij"), -1).reshape(-1, 2)
    around = square * reach / (_GRID - 1)
    for _ in range(_ROUNDS):
        near = np.clip(at[:, None, :] + around, 0.0, None)  # an end of 0, infinitely far in, stays there
        found = look(near.reshape(-1, 2)).reshape(len(at), -1)
        best = found.argmin(1)
        at, lowest = near[np.arange(len(at)), best], found[np.arange(len(at)), best]
        around = around * 2 / (_ZOOM - 1)
    lo, hi = at[lowest.argmin()]
    return d.lo * float(np.exp2(-lo)), d.hi * float(np.exp2(-hi))
