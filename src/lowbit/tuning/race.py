"""Timing many settings in turns, and fewer as it becomes clear which are slow."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from lowbit.bench.timing import Samples, Timing, repeats_for, sample

__all__ = ["Outcome", "race"]

_FEW = 8  # samples before anything is judged
_SLOWER = 1.08  # a setting is dropped once its very best lies so far above the interval of the best one,
_FAR = 1.6  # and with few samples, once it lies so far above it
_NARROW = 0.01


class Outcome(NamedTuple):
    """Timings; who was dropped on the way; and whether all were measured. Whoever was dropped was slower when it still
    ran. Its figure is from then: the others' may be of slower times, and both say nothing of each other."""

    timings: dict[str, Timing]
    dropped: frozenset[str] = frozenset()
    complete: bool = True


def race(
    calls: Mapping[str, Callable[[], Any]],
    end: float,
    rounds: int,
    keep: str,
    say: Callable[[str], None],
    lame: Collection[str] = (),
) -> Outcome:
    """Calls whose names start with `keep` stay in until the end; if they are far slower, in one round of four. Those in
    `lame` cannot win, whatever they take, and so drop nobody.

    Each call runs once to warm up, then all take turns until `end` (on time.perf_counter), `rounds`, or until the
    remaining intervals are narrow. A Ctrl-C ends it with what there is.
    """
    samples: dict[str, Samples] = {}
    running, resting = list(calls), set[str]()
    order = random.Random(0)
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
            samples[name] = Samples(calls[name], repeats_for(one))
            samples[name].take()
        running = [n for n in running if n in samples]
        for r in range(rounds):
            if time.perf_counter() >= end:
                break
            say(f"timing {len(running)} settings, round {r + 1}")
            order.shuffle(running)  # or a setting might always run just when other processes have their turn
            for name in running:
                if r % 4 and name in resting:
                    continue
                samples[name].take()
                if time.perf_counter() >= end:
                    break
            if r >= 4 and r % 4 == 0:
                found = {n: samples[n].timing(_FEW) for n in running}
                leading = [t for n, t in found.items() if n not in lame] or [*found.values()]
                best = min(leading, key=lambda t: t.median)
                slower = _SLOWER if r + 1 >= 2 * _FEW else _FAR
                running = [n for n in running if n.startswith(keep) or found[n].best <= best.high * slower]
                resting = {n for n in running if found[n].best > best.high * _FAR}
                if r + 1 >= 3 * _FEW and max(found[n].width for n in running) <= _NARROW:
                    break
    except KeyboardInterrupt:
        complete = False
    finally:
        if was_enabled:
            gc.enable()
    timings = {n: s.timing(_FEW) for n, s in samples.items()}
    return Outcome(timings, frozenset(n for n in timings if n not in running), complete)
