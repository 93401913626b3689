"""Search for the range of least score: a logarithmic grid over both ends, refined around the best points."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lowbit.calibration.distribution import Distribution, Floats

_GRID = 48  # candidates per end
_ZOOM = 9  # candidates per end in each refinement
_ROUNDS = 5
_STARTS = 3  # how many of the best grid points are refined


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
