"""Interleaved timing: calls take turns until intervals are narrow or time is up. Disturbed samples are dropped."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_SHORTEST = 2e-4  # seconds per sample; faster calls are repeated within one
_ENOUGH = 400  # samples
_UNDISTURBED, _ONE = 0.95, 1.1  # share of a CPU: of a thread that was not interrupted; above it, of several threads
_ALONE = 1.2  # times the fastest tenth: slower samples were disturbed


@dataclass(frozen=True)
class Timing:
    """Seconds per call: the minimum, the median, and a confidence interval of the median."""

    best: float
    median: float
    low: float
    high: float
    samples: int
    repeats: int

    @property
    def width(self) -> float:
        """The width of the interval as a share of the median."""
        return (self.high - self.low) / self.median if self.median else 0.0

    @staticmethod
    def of(seconds: list[float], repeats: int = 1) -> Timing:
        """A timing from samples. The interval contains the median with 95 % confidence for any distribution (order
        statistics).

        >>> Timing.of([1.0, 2.0, 9.0]).median
        2.0
        """
        s = np.sort(np.asarray(seconds))
        half = 0.98 * math.sqrt(s.size)
        low, high = max(0, int(s.size / 2 - half)), min(s.size - 1, math.ceil(s.size / 2 + half))
        return Timing(float(s[0]), float(np.median(s)), float(s[low]), float(s[high]), s.size, repeats)


@dataclass(frozen=True)
class Within:
    """A call with an untimed context around each sample, such as a number of threads."""

    call: Callable[[], Any]
    around: Callable[[], contextlib.AbstractContextManager[Any]]

    def __call__(self) -> Any:
        with self.around():
            return self.call()


@contextlib.contextmanager
def _inside(call: Callable[[], Any]) -> Iterator[Callable[[], Any]]:
    if isinstance(call, Within):
        with call.around():
            yield call.call
    else:
        yield call


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Keep the garbage collector from running in the middle of a sample."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Samples:
    """Samples of a call's seconds and of its share of a CPU.

    Samples disturbed by other processes say nothing about the call. Only undisturbed samples count, or the fastest ones
    where too few are undisturbed.
    """

    def __init__(self, call: Callable[[], Any], repeats: int) -> None:
        self.call, self.repeats = call, repeats
        self.seconds: list[float] = []
        self.shares: list[float] = []

    def take(self) -> None:
        with _inside(self.call) as call:
            before = time.process_time()
            seconds = _timed(call, self.repeats)
            spent = time.process_time() - before
        self.seconds.append(seconds)
        self.shares.append(spent / max(seconds * self.repeats, 1e-9))

    def timing(self, enough: int) -> Timing:
        if len(self.seconds) <= enough:
            return Timing.of(self.seconds, self.repeats)
        most = _ALONE * float(np.quantile(self.seconds, 0.1))
        least = _UNDISTURBED if max(self.shares) < _ONE else 0.0
        pairs = zip(self.seconds, self.shares, strict=True)
        undisturbed = [s for s, share in pairs if share >= least and s <= most]
        return Timing.of(undisturbed if len(undisturbed) >= enough else sorted(self.seconds)[:enough], self.repeats)


class OtherWork:
    """CPUs that other processes and the hypervisor have kept busy since this object was made."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Seconds of wall time, of work on all CPUs, and of this process's work."""
        try:
            with open("/proc/stat", encoding="ascii") as file:
                user, nice, system, _, _, *rest = (int(v) for v in file.readline().split()[1:])
        except (OSError, ValueError):
            return time.perf_counter(), math.nan, 0.0
        ticks = user + nice + system + sum(rest[:3])  # interrupts and steal time
        return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time()

    def cpus(self) -> float:
        """Busy CPUs; NaN where the system does not report them."""
        wall, everyone, own = (b - a for a, b in zip(self._start, self._now(), strict=True))
        return max(0.0, everyone - own) / max(wall, 1e-9) if not math.isnan(everyone) else math.nan


def measure(
    calls: Mapping[str, Callable[[], Any]],
    *,
    seconds: float = 1.0,
    warmup: int = 2,
    min_rounds: int = 5,
    max_rounds: int = _ENOUGH,
    width: float = 0.02,
) -> dict[str, Timing]:
    """Time the calls interleaved: a warm-up, then rounds until every interval is narrower than `width`, or until
    `seconds` or `max_rounds` are reached. Each round is shuffled, as a call finds the caches as the one before left
    them. Disturbed samples do not count: see `Samples`.

    >>> sorted(measure({"a": lambda: 1, "b": lambda: sum(range(100))}, seconds=0.05))
    ['a', 'b']
    """
    found: dict[str, Samples] = {}
    end = time.perf_counter() + seconds
    with without_gc():
        for name, call in calls.items():
            one = min(sample(call, 1) for _ in range(max(1, warmup)))
            found[name] = Samples(call, repeats_for(one))
        names, order = list(calls), random.Random(0)
        for r in range(max_rounds):
            order.shuffle(names)
            for name in names:
                found[name].take()
            if time.perf_counter() >= end and r + 1 >= min(min_rounds, 3):
                break
            if r + 1 >= min_rounds and r % 4 == 0:
                widths = [s.timing(min_rounds).width for s in found.values()]
                if max(widths) <= width and r + 1 >= 3 * min_rounds:
                    break
    return {name: samples.timing(min_rounds) for name, samples in found.items()}


def time_unit(seconds: float) -> tuple[float, str]:
    """The factor and the unit to print seconds in."""
    return (1e6, "µs") if seconds < 1e-3 else (1e3, "ms") if seconds < 1 else (1.0, "s")


def repeats_for(seconds: float) -> int:
    """Calls per sample, for a call that takes this long."""
    return max(1, min(10_000, math.ceil(_SHORTEST / max(seconds, 1e-9))))


def sample(call: Callable[[], Any], repeats: int) -> float:
    """Seconds per call, over `repeats` calls in a row."""
    with _inside(call) as plain:
        return _timed(plain, repeats)


def _timed(call: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats
