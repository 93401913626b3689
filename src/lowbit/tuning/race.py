"""Time many candidates interleaved, and drop those that are clearly slow."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from lowbit.bench.timing import Samples, Timing, repeats_for, sample, without_gc

_FEW = 8  # samples before any verdict
# A candidate is dropped once its minimum exceeds the upper end of the leader's interval by this factor; the larger one
# applies while samples are few.
_SLOWER, _FAR = 1.08, 1.6
_NARROW = 0.01  # width of the intervals at which a race ends


class Outcome(NamedTuple):
    """Timings, the candidates dropped, and whether all were measured. A dropped candidate's timing is from the first
    rounds and not comparable with the others', as the machine may have become slower since."""

    timings: dict[str, Timing]
    dropped: frozenset[str] = frozenset()
    complete: bool = True


def race(
    calls: Mapping[str, Callable[[], Any]],
    end: float,
    rounds: int,
    keep: str,
    say: Callable[[str], None],
    disqualified: Collection[str] = (),
) -> Outcome:
    """Time the calls. Calls whose names start with `keep` are never dropped; far slower ones run in one round of four.
    Calls in `disqualified` cannot win, so they drop no other.

    Each call runs once to warm up. Then all take turns until `end` (on time.perf_counter), for `rounds`, or until the
    remaining intervals are narrow. Ctrl-C ends the race and keeps the timings so far.
    """
    samples: dict[str, Samples] = {}
    running, resting = list(calls), set[str]()
    order = random.Random(0)
    complete = False
    with contextlib.suppress(KeyboardInterrupt), without_gc():
        for name in calls:
            if time.perf_counter() >= end and samples:
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
            order.shuffle(running)  # else a call might always coincide with another process's turn
            for name in running:
                if r % 4 and name in resting:
                    continue
                samples[name].take()
                if time.perf_counter() >= end:
                    break
            if r >= 4 and r % 4 == 0:
                found = {n: samples[n].timing(_FEW) for n in running}
                leading = [t for n, t in found.items() if n not in disqualified] or [*found.values()]
                best = min(leading, key=lambda t: t.median)
                slower = _SLOWER if r + 1 >= 2 * _FEW else _FAR
                running = [n for n in running if n.startswith(keep) or found[n].best <= best.high * slower]
                resting = {n for n in running if found[n].best > best.high * _FAR}
                if r + 1 >= 3 * _FEW and max(found[n].width for n in running) <= _NARROW:
                    break
        complete = len(samples) == len(calls)
    timings = {n: s.timing(_FEW) for n, s in samples.items()}
    return Outcome(timings, frozenset(n for n in timings if n not in running), complete)
