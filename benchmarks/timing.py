"""Interleaved timing: contenders take turns, so that a noisy moment of the machine hits them all.

Only ratios of figures from one such run mean something; the best of many rounds is the figure of a contender.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from benchmarks.shapes import aligned

Call = Callable[[], Any]

_SHORTEST_TIMING = 3e-4  # seconds; faster calls are repeated inside one timing until it lasts this long
_REWARM_BELOW = 2e-3  # where a call is this short, all feel which caches the contender before them left behind
_MOST_ROUNDS = 2000
_UNDISTURBED = 0.93  # CPUs a busy thread has, at the least, when nothing else takes its turn


@dataclass(frozen=True)
class Contender:
    """Something that does the work of a case. `build` is called once, just before the case is measured."""

    name: str
    build: Callable[[], Call]
    # A limit is the most that the machine can do: a baseline, not a competitor.
    kind: Literal["lowbit", "peer", "copy", "limit"] = "peer"
    # The numbers or codes of a call, from what it returned; compared with what the case expects.
    answer: Callable[[Any], npt.ArrayLike] | None = None
    # Settings the contender runs under; entered and left outside the timing.
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    # Bytes read and written, where they are not the case's.
    nbytes: int | None = None
    # Seconds the case's work takes at what a call returned, where a call measures a rate and does no such work.
    seconds: Callable[[Any], float] | None = None


def of_lowbit(
    call: Call, name: str = "lowbit", answer: Callable[[Any], npt.ArrayLike] | None = None, **fields: Any
) -> Contender:
    """A contender of lowbit that has nothing to build."""
    return Contender(name, lambda: call, kind="lowbit", answer=answer, **fields)


@dataclass(frozen=True)
class Target:
    """`contender` is at least `at_least` times as fast as `against`, or as the fastest of several; "copy" is the
    equal-bytes copy."""

    contender: str
    against: str | tuple[str, ...]
    at_least: float
    # What `against` is called in words.
    label: str
    # Whether it holds for any --threads, as where the case itself says how many.
    any_threads: bool = False


@dataclass(frozen=True)
class GroupTarget:
    """Over the cases that have it, the geometric mean of how many times as fast `contender` is as the fastest of
    `against` is at least `at_least`. A case that does not run one of these does without it."""

    name: str
    contender: str
    against: tuple[str, ...]
    at_least: float
    label: str
    # Whether the cases in which `contender` is the slower are listed.
    lists_slower: bool = False


@dataclass(frozen=True)
class Case:
    """One piece of work, those who do it, and how fast lowbit should be. The first contender is lowbit's."""

    name: str
    nbytes: int  # read + written
    contenders: Sequence[Contender] = ()
    targets: Sequence[Target] = ()
    expected: npt.NDArray[Any] | None = None
    tolerance: float = 0.0
    settle: float = 0.0  # seconds before each timing, for idle threads of the contender before to stop spinning
    not_measurable: str = ""  # why this machine cannot run it
    doubt: str = ""  # why a missed target may be the machine's doing; it is then not judged
    operations: int = 0  # multiplications and additions, where these and not bytes are what the work is
    group_targets: Sequence[GroupTarget] = ()
    share: float = 1.0  # of the time a case has; families of many cases give each less


@dataclass(frozen=True)
class Budget:
    """How long to measure one case, and how many rounds at the least."""

    seconds: float
    rounds: int


@dataclass(frozen=True)
class Timing:
    """Seconds per call, over all rounds, and the CPU seconds that the process used meanwhile."""

    repeats: int
    samples: list[float] = field(default_factory=list, repr=False)
    cpu_samples: list[float] = field(default_factory=list, repr=False)

    @property
    def best(self) -> float:
        return min(self.samples)

    @property
    def cpus_at_best(self) -> float:
        """CPUs in use during the best sample. Below one, other work had the CPU for part of it: on a busy
        machine a long call never runs undisturbed where a short one does, and the ratio of both is off."""
        return self.cpu_samples[self.samples.index(self.best)] / self.best

    @property
    def was_preempted(self) -> bool:
        return self.cpus_at_best < _UNDISTURBED

    @property
    def spread(self) -> float:
        """The middle half of the samples is this wide, as a fraction of the median."""
        if len(self.samples) < 2:
            return 0.0
        low, median, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / median


@dataclass(frozen=True)
class Absent:
    """Why a contender has no timing."""

    reason: str


def measure(case: Case, budget: Budget, settle: float = 0.0) -> dict[Contender, Timing | Absent]:
    """Timings of all contenders of a case, and of a copy of as many bytes as each of them moves. A copy says nothing
    about work that is counted in operations."""
    contenders = [*case.contenders, *(() if case.operations else _copies(case))]
    found: dict[Contender, Timing | Absent] = {}
    ready: list[_Ready] = []
    for contender in contenders:
        try:
            with contender.around():
                call = contender.build()
                _check(contender, case, call())
                once = _warm_up(call)
        except Exception as error:  # whatever is wrong with a contender, the others still run
            found[contender] = Absent(_reason(error))
            continue
        repeats = max(1, math.ceil(_SHORTEST_TIMING / max(once, 1e-8))) if contender.seconds is None else 1
        timing = found[contender] = Timing(repeats)
        ready.append(_Ready(contender, call, timing, once))
    _run_rounds(ready, replace(budget, seconds=budget.seconds * case.share), max(settle, case.settle))
    return found


@dataclass(frozen=True)
class _Ready:
    contender: Contender
    call: Call
    timing: Timing
    once: float  # seconds of a warm call


def _run_rounds(ready: Sequence[_Ready], budget: Budget, settle: float) -> None:
    # All of a case or none: a contender with its data in the caches would be compared with one without.
    rewarm = min((it.once for it in ready if it.contender.seconds is None), default=math.inf) < _REWARM_BELOW
    gc.collect()
    gc.disable()
    try:
        start, done = time.perf_counter(), 0
        while done < budget.rounds or (time.perf_counter() - start < budget.seconds and done < _MOST_ROUNDS):
            # There and back, so that none always follows the same one.
            for it in ready if done % 2 == 0 else reversed(ready):
                with it.contender.around():
                    _wait(settle)
                    if rewarm and it.contender.seconds is None:
                        _time(it.call, it.timing.repeats)
                    _sample(it)
            done += 1
    finally:
        gc.enable()


def _sample(it: _Ready) -> None:
    used = time.process_time()
    if it.contender.seconds is None:
        seconds = elapsed = _time(it.call, it.timing.repeats)
    else:
        start = time.perf_counter()
        rate = it.call()
        elapsed = time.perf_counter() - start
        seconds = it.contender.seconds(rate)
    cpus = (time.process_time() - used) / elapsed
    it.timing.samples.append(seconds / it.timing.repeats)
    it.timing.cpu_samples.append(cpus * seconds / it.timing.repeats)


def _warm_up(call: Call) -> float:
    """Seconds per warm call; long calls are warm after the first."""
    once = _time(call, 1)
    for _ in range(3 if once < 10 * _REWARM_BELOW else 0):
        once = min(once, _time(call, 1))
    return once


def _wait(seconds: float) -> None:
    """Waits awake: after a sleep, clocks and caches would have to be won back first."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _time(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in repeat(None, repeats):
        call()
    return time.perf_counter() - start


def _check(contender: Contender, case: Case, returned: Any) -> None:
    """Raises where a contender did not do the work: a fast wrong answer is no contender."""
    if case.expected is None or contender.answer is None:
        return
    answer = np.asarray(contender.answer(returned)).reshape(case.expected.shape)
    wide = np.float32 if answer.dtype.kind == "f" else np.int32
    worst = float(np.abs(answer.astype(wide) - case.expected.astype(wide)).max(initial=0))
    if not worst <= case.tolerance:
        raise ArithmeticError(f"its answer is {worst:g} off, more than {case.tolerance:g}")


def _copies(case: Case) -> Iterable[Contender]:
    """np.copyto of half the bytes a contender moves, as a copy reads and writes each."""
    for nbytes in dict.fromkeys(c.nbytes or case.nbytes for c in case.contenders):
        yield Contender("copy", partial(_copy, nbytes // 2), kind="copy", nbytes=nbytes)


def _copy(nbytes: int) -> Call:
    source, target = aligned(nbytes, np.uint8), aligned(nbytes, np.uint8)
    source.fill(1)  # else every page of it is the one zero page
    return lambda: np.copyto(target, source)


def _reason(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}"[:160] if text else type(error).__name__
