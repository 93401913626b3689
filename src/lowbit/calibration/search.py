"""The least of a score over ranges: a grid over both ends in the logarithm, then finer and finer around the best."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from lowbit.ops.distribution import Distribution

__all__ = ["best_range"]

Floats = npt.NDArray[np.float64]
_GRID = 48  # both ends: candidates for each
_ZOOM = 9  # candidates an end in each finer round
_ROUNDS = 5
_STARTS = 3  # how many of the grid's best are followed


def best_range(
    d: Distribution, symmetric: bool, score: Callable[[Floats, Floats], Floats], steps: int = 16
) -> tuple[float, float]:
    """The range of least score. Symmetric, or where all numbers have one sign: one end moves; else both do.

    steps: candidates an octave where one end moves; more for a score that is not smooth.
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
    """How far below the greatest number an end may lie: where all but a hundredth of the others do."""
    m = d.magnitudes
    some = m.count[m.lower > 0]
    if not some.size:
        return 1.0
    past_zero = (m.count.sum() - some.sum()) / m.count.sum()
    least = float(m.quantile(past_zero + 0.01 * (1 - past_zero)))
    return float(np.clip(np.log2(top / max(least, 1e-300)), 1.0, 32.0))


def _line(top: float, d: Distribution, score: Callable[[Floats], Floats], steps: int) -> float:
    reach = _octaves(top, d)
    down = np.linspace(0.0, reach, int(reach * steps) + 2)
    scores = score(top * np.exp2(-down))
    best, best_score = 0.0, float(scores[0])
    step = float(down[1])
    for start in _valleys(scores):
        at, width = float(down[start]), step
        for _ in range(_ROUNDS):
            near = np.clip(at + width * np.linspace(-1, 1, 2 * _ZOOM + 1), 0.0, None)
            found = score(top * np.exp2(-near))
            at, width = float(near[found.argmin()]), width / _ZOOM
        if found.min() < best_score:
            best, best_score = at, float(found.min())
    return top * float(np.exp2(-best))


def _valleys(scores: Floats) -> npt.NDArray[np.intp]:
    """Where neighbours are no lower; the lowest first."""
    padded = np.concatenate([[np.inf], scores, [np.inf]])
    low = np.flatnonzero((scores <= padded[:-2]) & (scores <= padded[2:]))
    return low[np.argsort(scores[low], kind="stable")][:_STARTS]


def _plane(d: Distribution, score: Callable[[Floats, Floats], Floats]) -> tuple[float, float]:
    """Both ends: how many octaves each lies within the numbers, an end of 0 being the last candidate."""
    reach = [_octaves(end, d) for end in (-d.lo, d.hi)]
    axes = [np.append(np.linspace(0.0, r, _GRID), np.inf) for r in reach]
    best_score, best = np.inf, (0.0, 0.0)

    def look(low: Floats, high: Floats) -> tuple[Floats, npt.NDArray[np.intp]]:
        a, b = (v.reshape(-1) for v in np.meshgrid(low, high, indexing="ij"))
        found = np.full(a.shape, np.inf)
        some = np.isfinite(a) | np.isfinite(b)
        found[some] = score(d.lo * np.exp2(-a[some]), d.hi * np.exp2(-b[some]))
        return np.stack([a, b, found], 1), np.argsort(found, kind="stable")

    rows, order = look(*axes)
    for start in order[:_STARTS]:
        at, widths = rows[start, :2], [r / (_GRID - 1) for r in reach]
        for _ in range(_ROUNDS):
            near = [
                np.array([np.inf]) if np.isinf(c) else np.unique(np.clip(c + w * np.linspace(-1, 1, _ZOOM), 0, None))
                for c, w in zip(at, widths, strict=True)
            ]
            found, by_score = look(*near)
            at, widths = found[by_score[0], :2], [w * 2 / (_ZOOM - 1) for w in widths]
        if found[by_score[0], 2] < best_score:
            best_score, best = float(found[by_score[0], 2]), (float(at[0]), float(at[1]))
    return d.lo * float(np.exp2(-best[0])), d.hi * float(np.exp2(-best[1]))
