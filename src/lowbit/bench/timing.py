"""Timing that knows of noise: contenders take turns, each until its figure is known well enough or time is up."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["Timing", "measure", "repeats_for", "sample"]

_SHORTEST = 2e-4  # seconds; faster calls are repeated within one sample
_ENOUGH = 400  # samples


@dataclass(frozen=True)
class Timing:
    """Seconds of a call. The best is what the machine can do; the median what it did, with an interval for it."""

    best: float
    median: float
    low: float
    high: float
    samples: int
    repeats: int

    @property
    def width(self) -> float:
        """Of the interval, as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    @staticmethod
    def of(seconds: list[float], repeats: int = 1) -> Timing:
        """From samples. The interval holds the median with 95 % confidence, whatever the distribution: order
        statistics about the middle.

        >>> Timing.of([1.0, 2.0, 9.0]).median
        2.0
        """
        s = np.sort(np.asarray(seconds))
        half = 0.98 * math.sqrt(s.size)
        low, high = max(0, int(s.size / 2 - half)), min(s.size - 1, math.ceil(s.size / 2 + half))
        return Timing(float(s[0]), float(np.median(s)), float(s[low]), float(s[high]), s.size, repeats)


def measure(
    calls: Mapping[str, Callable[[], Any]],
    *,
    seconds: float = 1.0,
    warmup: int = 2,
    min_rounds: int = 5,
    max_rounds: int = _ENOUGH,
    width: float = 0.02,
) -> dict[str, Timing]:
    """A timing for each call: warm-up, then rounds in which each takes its turn, until every interval is narrower than
    `width`, or `seconds` or `max_rounds` are over. Stops early on Ctrl-C only through the exception.

    >>> sorted(measure({"a": lambda: 1, "b": lambda: sum(range(100))}, seconds=0.05))
    ['a', 'b']
    """
    repeats, found = {}, {name: list[float]() for name in calls}
    end = time.perf_counter() + seconds
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name, call in calls.items():
            one = min(sample(call, 1) for _ in range(max(1, warmup)))
            repeats[name] = repeats_for(one)
        for r in range(max_rounds):
            for name, call in calls.items():
                found[name].append(sample(call, repeats[name]))
            if time.perf_counter() >= end and r + 1 >= min(min_rounds, 3):
                break
            if r + 1 >= min_rounds and r % 4 == 0:
                widths = [Timing.of(s).width for s in found.values()]
                if max(widths) <= width and r + 1 >= 3 * min_rounds:
                    break
    finally:
        if was_enabled:
            gc.enable()
    return {name: Timing.of(samples, repeats[name]) for name, samples in found.items()}


def repeats_for(seconds: float) -> int:
    """How often a call that takes so long is made within one sample."""
    return max(1, min(10_000, math.ceil(_SHORTEST / max(seconds, 1e-9))))


def sample(call: Callable[[], Any], repeats: int) -> float:
    """Seconds a call, over so many in a row."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
