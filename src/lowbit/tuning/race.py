"""Timing many settings in turns, and fewer as it becomes clear which are slow."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

from lowbit.bench.timing import Timing, repeats_for, sample

__all__ = ["race"]

_FEW = 5  # samples before anything is judged
_SLOWER = 1.08  # a setting is dropped once its interval lies so far above the best one's
_NARROW = 0.01


def race(
    calls: Mapping[str, Callable[[], Any]], end: float, rounds: int, keep: str, say: Callable[[str], None]
) -> tuple[dict[str, Timing], bool]:
    """Timings, and whether all were measured. Calls whose names start with `keep` stay in until the end.

    Each call runs once to warm up, then all take turns until `end` (on time.perf_counter), `rounds`, or until the
    remaining intervals are narrow. A Ctrl-C ends it with what there is.
    """
    samples: dict[str, list[float]] = {}
    repeats: dict[str, int] = {}
    running = list(calls)
    complete = True
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for name in calls:
            if time.perf_counter() >= end and samples:
                complete = False
                break
            calls[name]()
            one = min(sample(calls[name], 1), sample(calls[name], 1))
            repeats[name] = repeats_for(one)
            samples[name] = [one]
        running = [n for n in running if n in samples]
        for r in range(rounds):
            if time.perf_counter() >= end:
                break
            say(f"timing {len(running)} settings, round {r + 1}")
            for name in running:
                samples[name].append(sample(calls[name], repeats[name]))
                if time.perf_counter() >= end:
                    break
            if r + 1 >= _FEW:
                found = {n: Timing.of(samples[n]) for n in running}
                best = min(found.values(), key=lambda t: t.median)
                running = [n for n in running if n.startswith(keep) or found[n].low <= best.high * _SLOWER]
                if r + 1 >= 4 * _FEW and max(found[n].width for n in running) <= _NARROW:
                    break
    except KeyboardInterrupt:
        complete = False
    finally:
        if was_enabled:
            gc.enable()
    return {n: Timing.of(s[1:] or s, repeats[n]) for n, s in samples.items()}, complete
