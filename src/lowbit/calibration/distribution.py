"""One distribution of a sketch: moments, histogram, quantiles, and a sample."""

from __future__ import annotations

import copy
import functools
import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import Array

Floats = npt.NDArray[np.float64]


class Histogram(NamedTuple):
    """Counts of numbers in bins [lower, upper), ascending; numbers are assumed uniform within a bin."""

    lower: Floats
    upper: Floats
    counts: Floats

    def quantile(self, share: npt.ArrayLike) -> Floats:
        """The number that this share of all numbers lies below.

        >>> Histogram(np.array([0.0, 2.0]), np.array([1.0, 4.0]), np.array([1.0, 3.0])).quantile([0.25, 1.0])
        array([1., 4.])
        """
        ends = np.concatenate([[0.0], np.cumsum(self.counts)])
        rank = np.clip(np.asarray(share, np.float64), 0, 1) * ends[-1]
        bin_ = np.clip(np.searchsorted(ends, rank, side="left") - 1, 0, self.counts.size - 1)
        within = np.clip((rank - ends[bin_]) / np.maximum(self.counts[bin_], 1e-300), 0, 1)
        lo, hi = self.lower[0], self.upper[-1]
        # Near an end the density may grow like 1 / sqrt(distance), as that of GELU does at -0.17. Interpolating by the
        # angle is exact there, and makes no difference in other bins.
        start, stop = (_angle(v, lo, hi) for v in (self.lower[bin_], self.upper[bin_]))
        angle = start + within * (stop - start)
        found: Floats = lo + (hi - lo) * np.square(np.sin(angle / 2))
        return np.clip(found, self.lower[bin_], self.upper[bin_])

    def below(self, value: npt.ArrayLike) -> Floats:
        """How many numbers lie below each value."""
        ends = np.concatenate([[0.0], np.cumsum(self.counts)])
        v = np.asarray(value, np.float64)
        if not self.counts.size:
            return np.zeros(v.shape)
        at = np.searchsorted(self.lower, v, side="left")  # bins that start below it
        last = np.maximum(at - 1, 0)
        width = np.maximum(self.upper[last] - self.lower[last], 1e-300)
        part = np.clip((v - self.lower[last]) / width, 0, 1) * self.counts[last]
        return np.where(at > 0, ends[last] + part, 0.0)


class Distribution:
    """The statistics of one distribution.

    count, zeros, lo, hi and absmax are exact. mean, std and mean_abs come from sums that round only within blocks of
    4,096 numbers, in float64. `histogram` counts every number.
    """

    def __init__(
        self,
        counters: Array,
        extremes: Array,
        limbs: Array,
        counts: Array,
        values: Array,
        tails: Array,
        layout: tuple[int, int, int],
        grain: int = 0,
    ) -> None:
        self.count, self.zeros, self.num_samples = (int(v) for v in counters[:3])
        self.nan, self.above, self.below = (int(v) for v in counters[3:6])
        self._top, self._least = int(counters[8]), int(counters[9])
        self._positive, self._negative = bool(counters[10]), bool(counters[11])
        self._finite = int(counters[12])
        self.lo, self.hi = float(extremes[0]), float(extremes[1])
        self.values = values[: int(counters[13])]  # a uniform sample, float32, unordered
        held = min(self.count, tails.shape[1])
        self._high = tails[0, :held].astype(np.float64)  # the greatest, descending
        self._low = tails[1, : min(held, self.count - held)].astype(np.float64)  # the least of the others, ascending
        self._limbs, self._counts, self._layout, self._grain = limbs, counts, layout, grain

    @property
    def absmax(self) -> float:
        return max(abs(self.lo), abs(self.hi))

    def _sum(self, which: int) -> Fraction | None:
        """The exact sum of x, x^2 or |x|; None where a block overflowed float64."""
        if not self._finite >> which & 1:
            return None
        return exact_sum(self._limbs[which])

    def _average(self, which: int) -> float:
        total = self._sum(which)
        return math.nan if total is None or not self.count else float(total / self.count)

    @functools.cached_property
    def mean(self) -> float:
        return self._average(0)

    @property
    def mean_lo(self) -> float:
        """The mean of the arrays' least numbers."""
        return float(exact_sum(self._limbs[3]) / max(1, self.num_samples))

    @property
    def mean_hi(self) -> float:
        """The mean of the arrays' greatest numbers."""
        return float(exact_sum(self._limbs[4]) / max(1, self.num_samples))

    @functools.cached_property
    def mean_abs(self) -> float:
        return self._average(2)

    @functools.cached_property
    def mean_square(self) -> float:
        total = self._sum(1)
        return math.inf if total is None else float(total / max(1, self.count))

    @functools.cached_property
    def _variance(self) -> Fraction | None:
        first, second = self._sum(0), self._sum(1)
        if first is None or second is None or not self.count:
            return None
        return max(Fraction(0), second / self.count - (first / self.count) ** 2)

    @property
    def std(self) -> float:
        """The standard deviation of the population."""
        return math.inf if self._variance is None else math.sqrt(self._variance)

    @functools.cached_property
    def excess_kurtosis(self) -> float:
        """0 for a normal distribution, larger with outliers; from the histogram. NaN for a constant."""
        if not self.std > 1e-7 * self.absmax:
            return math.nan
        h = self.histogram
        # The mean of (x - m)^4 over [a, b): with c its middle from m and w its width, c^4 + c^2 w^2 / 2 + w^4 / 80.
        middle, width = (h.lower + h.upper) / 2 - self.mean, h.upper - h.lower
        fourth = (h.counts * (middle**4 + middle**2 * width**2 / 2 + width**4 / 80)).sum() / self.count
        return float(fourth / self.std**4) - 3.0

    def _bins(self) -> Histogram:
        """The non-empty bins, ascending."""
        shift, first, negative = self._layout
        half = negative or self._counts.size
        c = self._counts.astype(np.float64)
        none = np.zeros(half - 1)
        if negative:
            pos, neg = c[1:half], c[half + 1 : 2 * half]
        else:
            pos, neg = (none, c[1:half]) if self._negative else (c[1:half], none)
        keys = np.arange(1, half, dtype=np.int64) + first
        # 16-bit floats lie at the lower edges of finer bins; shifted by half a step, bins have them in the middle.
        half_step = (1 << min(self._grain, shift)) >> 1
        lower, upper = (_from_bits((k << shift) - half_step) for k in (keys, keys + 1))
        tiny = c[0] - self.zeros
        # The upper edge of the numbers below the first bin.
        edge = _from_bits(np.array([(1 + first) << shift if tiny else self._least]))[0]
        sides = 1.0 + (self._positive and self._negative)
        below, above = (has * tiny / sides for has in (self._negative, self._positive))
        middle = np.array([[-edge, -edge / 2, below], [0.0, 0.0, self.zeros], [edge / 2, edge, above]])
        rows = np.concatenate([np.stack([-upper, -lower, neg], 1)[::-1], middle, np.stack([lower, upper, pos], 1)])
        rows = rows[rows[:, 2] > 0]
        return Histogram(rows[:, 0], rows[:, 1], rows[:, 2])

    @functools.cached_property
    def histogram(self) -> Histogram:
        """Every number: the outermost exactly, the others in bins between them."""
        if not self._top:
            return Histogram(np.zeros(1), np.zeros(1), np.array([float(self.count)]))
        lower, upper, count = (v.copy() for v in self._bins())
        low, high = self._low, self._high[::-1]
        count = _without(count, high.size)
        count = _without(count[::-1], low.size)[::-1]
        some = count > 0
        lower, upper, count = lower[some], upper[some], count[some]
        if count.size:  # the other numbers lie between the tails
            upper = np.minimum(upper, high[0]) if high.size else upper
            lower = np.maximum(lower, low[-1]) if low.size else lower
            upper = np.maximum(upper, lower)
        counts = np.concatenate([np.ones(low.size), count, np.ones(high.size)])
        return Histogram(np.concatenate([low, lower, high]), np.concatenate([low, upper, high]), counts)

    @functools.cached_property
    def smooth(self) -> Histogram:
        """Every number except zeros, in bins that end at lo and hi; every bin has a width."""
        h = self._bins()
        away = (h.lower != 0) | (h.upper != 0)
        lower, upper = np.maximum(h.lower[away], self.lo), np.minimum(h.upper[away], self.hi)
        return Histogram(lower, np.maximum(upper, lower + np.abs(lower) * 2.0**-30), h.counts[away])

    @functools.cached_property
    def magnitudes(self) -> Histogram:
        """The histogram of |x|."""
        h = self.histogram
        spread = h.upper > h.lower
        points = np.stack([np.abs(h.lower), np.abs(h.lower), h.counts], 1)[~spread]
        edges = np.unique(np.abs(np.concatenate([h.lower, h.upper, [0.0]])))
        below = Histogram(h.lower[spread], h.upper[spread], h.counts[spread])
        folded = np.diff(below.below(edges) - below.below(-edges))
        rows = np.concatenate([np.stack([edges[:-1], edges[1:], folded], 1), points])
        rows = rows[rows[:, 2] > 0]
        rows = rows[np.lexsort((rows[:, 1], rows[:, 0]))]
        return Histogram(rows[:, 0], rows[:, 1], rows[:, 2])

    def within(self, lo: float, hi: float) -> Distribution:
        """This distribution with a histogram of only the numbers in [lo, hi]."""
        h, part = self.histogram, copy.copy(self)
        low, high = np.clip(h.lower, lo, hi), np.clip(h.upper, lo, hi)
        inside = (h.lower >= lo) & (h.lower <= hi)
        share = np.where(h.upper > h.lower, (high - low) / np.maximum(h.upper - h.lower, 1e-300), inside)
        part.__dict__["histogram"] = Histogram(low, high, h.counts * share)
        return part

    def share_outside(self, lo: float, hi: float) -> float:
        """The share of numbers below lo or above hi."""
        h, total = self.histogram, max(1, self.count)
        below, most = float(h.below(lo)), float(h.below(np.nextafter(hi, np.inf)))
        return min(1.0, max(0.0, (below + total - most) / total))


def _angle(x: Floats, lo: float, hi: float) -> Floats:
    """The angle in [0, pi] whose cosine falls linearly from 1 to -1 as x goes from lo to hi."""
    return 2 * np.arcsin(np.sqrt(np.clip((x - lo) / max(hi - lo, 1e-300), 0, 1)))


def exact_sum(limbs: Array) -> Fraction:
    """The value of an exact sum held in 32-bit limbs."""
    return Fraction(sum(int(v) << (32 * i) for i, v in enumerate(limbs) if v), 1 << 1074)


def _from_bits(bits: npt.NDArray[np.int64]) -> Floats:
    return np.clip(bits, 0, 0x7F800000 - 1).astype(np.uint32).view(np.float32).astype(np.float64)


def _without(count: Floats, taken: int) -> Floats:
    """Counts after removing `taken` from the last bins."""
    left = np.maximum(np.cumsum(count[::-1])[::-1] - taken, 0.0)  # of each and those after it
    found: Floats = left - np.append(left[1:], 0.0)
    return found
