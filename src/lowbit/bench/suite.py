"""The benchmark suite: each operation is timed with its float baseline, within its timeout; failures stay apart."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lowbit._version import __version__
from lowbit.bench.operations import Operation, Work, operations
from lowbit.bench.results import BenchmarkResult, BenchmarkSummary
from lowbit.bench.timing import Timing, measure
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.hardware import HardwareFeatures, hardware
from lowbit.runtime.limits import Limits, limits
from lowbit.runtime.threads import get_num_threads, threads_set_to

FAMILIES = ("quantization", "matrix", "elementwise", "memory", "comparative")

_LEVELS = ("L1", "L2", "L3", "DRAM")
_MOST = 105.0  # percent; a larger share means that another limit applies
_SLOW = 1e-3  # seconds; faster calls cannot exceed the timeout by much, and checking it would show in their figures


@dataclass(frozen=True)
class BenchmarkConfig:
    """What a suite measures, and for how long. `seconds` and `timeout` are per operation; the timeout includes
    preparation and is checked between calls. `threads`: None keeps the current setting.

    >>> BenchmarkConfig(seconds=0.1, sizes="quick").iterations
    50
    """

    warmup: int = 2
    iterations: int = 50
    seconds: float = 0.5
    measure_memory: bool = True
    measure_accuracy: bool = True
    timeout: float = 10.0
    threads: int | None = None
    sizes: str = "full"

    def __post_init__(self) -> None:
        for name, value, least in (("warmup", self.warmup, 0), ("iterations", self.iterations, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidProblem(f"{name}: {value!r}; expected an integer of at least {least}")
        for name, limit in (("seconds", self.seconds), ("timeout", self.timeout)):
            number = isinstance(limit, int | float) and not isinstance(limit, bool)
            if not (number and math.isfinite(limit) and limit > 0):
                raise InvalidProblem(f"{name}: {limit!r}; expected a number above 0")
        for name, flag in (("measure_memory", self.measure_memory), ("measure_accuracy", self.measure_accuracy)):
            if not isinstance(flag, bool):
                raise InvalidProblem(f"{name}: {flag!r}; expected True or False")
        n = self.threads
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 4096):
            raise InvalidProblem(f"threads: {n!r}; expected an integer from 1 to 4096")
        if self.sizes not in ("quick", "full"):
            raise InvalidProblem(f"sizes: {self.sizes!r}; expected 'quick' or 'full'")


class QuantizationBenchmarkSuite:
    """Benchmarks of all families on this machine.

    >>> suite = QuantizationBenchmarkSuite(BenchmarkConfig(seconds=0.01, iterations=3, sizes="quick"))
    >>> [r.status for r in suite.run(only=["memory"]).results]
    ['ok', 'ok', 'ok', 'ok']
    """

    def __init__(self, config: BenchmarkConfig | None = None) -> None:
        self.config = BenchmarkConfig() if config is None else config

    def run(self, only: Iterable[str] | None = None, progress: Callable[[str], None] | None = None) -> BenchmarkSummary:
        """The results of all families, or of those in `only`. `progress` gets the name of each operation before it
        runs. Ctrl-C ends the run and keeps the results so far."""
        wanted = FAMILIES if only is None else (only,) if isinstance(only, str) else tuple(only)
        for family in wanted:
            if family not in FAMILIES:
                raise InvalidProblem(f"only: {family!r}; expected some of {', '.join(FAMILIES)}")
        chosen = [o for o in operations(self.config.sizes, self.config.measure_memory) if o.family in wanted]
        load, machine, bounds = _load(), hardware(), limits(refresh=True)
        results = list[BenchmarkResult]()
        threads = get_num_threads() if self.config.threads is None else self.config.threads
        with contextlib.suppress(KeyboardInterrupt), threads_set_to(threads):
            for i, operation in enumerate(chosen):
                if progress is not None:
                    progress(f"{i + 1} of {len(chosen)}: {operation.name}")
                results.append(self._result(operation, _Ceiling(bounds, machine, threads)))
        complete = len(results) == len(chosen)
        facts = machine.to_dict(), bounds.to_dict(), __version__, threads, load, complete
        return BenchmarkSummary(tuple(results), *facts)

    def _result(self, operation: Operation, ceiling: _Ceiling) -> BenchmarkResult:
        start, empty = time.perf_counter(), BenchmarkResult(operation.name, operation.family)
        try:
            work = operation.prepare()
            facts = {name: getattr(work, name) for name in ("operations", "bytes_moved", "weight_bytes")}
            result = replace(empty, **facts)
            if work.memory is not None:
                result = replace(result, memory=work.memory())
                took = time.perf_counter() - start
                return result if took <= self.config.timeout else _timed_out(result, f"took {took:.3g} s", self.config)
            result = self._beside_blas(result, work, start, ceiling.threads)
            if result.timing is not None:
                result = ceiling.applied(result)
                if work.error is not None and self.config.measure_accuracy:
                    result = replace(result, sqnr_db=work.error())
            return result
        except Exception as error:  # the result of this operation; the others still run
            text = " ".join(str(error).split()) or "no message"
            return replace(empty, status="failed", reason=f"{type(error).__name__}: {text}")

    def _beside_blas(self, result: BenchmarkResult, work: Work, start: float, threads: int) -> BenchmarkResult:
        """Time with the number of BLAS threads that makes the baseline fastest, 1 or all. BLAS threads spin: on a busy
        machine all of them can be a hundred times slower than one, which would inflate the speed-up."""
        if not work.uses_blas or work.baseline is None:
            return self._timed(result, work, start)
        c, seen = self.config, dict[int, float]()
        end = start + c.timeout
        for count in sorted({1, threads}):
            with _blas_threads(count) as kept:
                if kept is None:
                    return self._timed(result, work, start)
                call = _Watched(work.baseline, end)
                with contextlib.suppress(_TimeIsUpError):
                    while len(call.seconds) < 3 or (len(call.seconds) < 6 and sum(call.seconds) < c.seconds / 4):
                        call()
                seen[count] = float(np.median(call.seconds)) if call.seconds else math.inf
        with _blas_threads(min(seen, key=seen.__getitem__)) as kept:
            return self._timed(replace(result, baseline_threads=kept), work, start)

    def _timed(self, result: BenchmarkResult, work: Work, start: float) -> BenchmarkResult:
        c = self.config
        end = start + c.timeout
        calls = {"run": _Watched(work.run, end)}
        if work.baseline is not None:
            calls["baseline"] = _Watched(work.baseline, end)
        try:
            for name, call in calls.items():
                call()
                if time.perf_counter() > end:
                    return _timed_out(result, f"one call of the {name} took {call.seconds[0]:.3g} s", c)
            slow = {name for name, call in calls.items() if call.seconds[0] > _SLOW}
            timed = {name: call if name in slow else call.call for name, call in calls.items()}
            seconds, rounds = min(c.seconds, end - time.perf_counter()), c.iterations
            found = measure(timed, seconds=seconds, warmup=c.warmup, min_rounds=min(5, rounds), max_rounds=rounds)
            return replace(result, timing=found["run"], baseline=found.get("baseline"))
        except _TimeIsUpError:
            # The first call is a warm-up; later ones are samples, if few.
            kept = {n: Timing.of(call.seconds[1:]) for n, call in calls.items() if len(call.seconds) > 1}
            partial_result = replace(result, timing=kept.get("run"), baseline=kept.get("baseline"))
            return _timed_out(partial_result, f"stopped after {len(calls['run'].seconds)} calls", c)


class _TimeIsUpError(Exception):
    pass


class _Watched:
    """A call that records its times and raises once time is up."""

    def __init__(self, call: Callable[[], Any], end: float) -> None:
        self.call, self.end, self.seconds = call, end, list[float]()

    def __call__(self) -> None:
        start = time.perf_counter()
        if start > self.end:
            raise _TimeIsUpError
        self.call()
        self.seconds.append(time.perf_counter() - start)


def _timed_out(result: BenchmarkResult, what: str, config: BenchmarkConfig) -> BenchmarkResult:
    return replace(result, status="timeout", reason=f"{what}; {config.timeout:g} s are allowed")


@dataclass(frozen=True)
class _Ceiling:
    """The limits of `threads` threads: those of one, times their number. Shared caches and DRAM give less."""

    bounds: Limits
    machine: HardwareFeatures
    threads: int

    def applied(self, result: BenchmarkResult) -> BenchmarkResult:
        """The result with its share of the first rate that it does not exceed; an exceeded rate was not the limit."""
        assert result.timing is not None
        amount, rates = result.operations, {"dot products": self.bounds.dot_ops}
        if not amount:
            amount, levels = result.bytes_moved, _LEVELS[self._level(result.bytes_moved) :: -1]
            rates = {f"reading from {name}": self.bounds.read_bytes.get(name, 0.0) for name in levels}
        for name, rate in rates.items():
            share = 100 * amount / result.timing.median / (rate * self.threads) if rate > 0 else math.inf
            if share <= _MOST:
                return replace(result, percent_of_limit=share, limit=name)
        return result

    def _level(self, nbytes: int) -> int:
        """The smallest level that holds `nbytes` with room to spare; each thread adds the caches it does not share."""
        sizes = {
            f"L{c.level}": c.size_bytes * (1 if c.shared_by >= self.threads else self.threads // max(1, c.shared_by))
            for c in self.machine.caches
            if c.kind != "instruction"
        }
        return next((i for i, name in enumerate(_LEVELS) if nbytes <= 0.75 * sizes.get(name, 0)), len(_LEVELS) - 1)


@contextlib.contextmanager
def _blas_threads(count: int) -> Iterator[int | None]:
    """Run BLAS with `count` threads; yields None where threadpoolctl is not installed."""
    try:
        pools = importlib.import_module("threadpoolctl")
    except ModuleNotFoundError:
        yield None
        return
    with pools.threadpool_limits(limits=count, user_api="blas"):
        yield count


def _load() -> float | None:
    """The load average of the last minute."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None
