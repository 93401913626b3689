"""The suite: every kind of operation beside its float baseline, each within its time, one failure never another's."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit._version import __version__
from lowbit.bench.results import BenchmarkResult, BenchmarkSummary, MemoryUsage
from lowbit.bench.timing import Timing, measure
from lowbit.layers import QuantizedLinear
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.metrics import error_report
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.dequantize import dequantize
from lowbit.ops.elementwise import qadd, qrelu
from lowbit.ops.quantize import quantize
from lowbit.runtime.hardware import HardwareFeatures, hardware
from lowbit.runtime.limits import Limits, limits
from lowbit.runtime.threads import get_num_threads, set_num_threads

__all__ = ["FAMILIES", "BenchmarkConfig", "QuantizationBenchmarkSuite"]

FAMILIES = ("quantization", "matrix", "elementwise", "memory", "comparative")

Array = npt.NDArray[Any]
_LEVELS = ("L1", "L2", "L3", "DRAM")
_MOST = 105.0  # percent; more means that the limit was not this operation's
_SLOW = 1e-3  # seconds; faster calls cannot overrun their time by much, and watching them would show in their figures

# Names stand for the same work in every run, so "quick" is a part of "full".
_COUNTS = {"quick": (1 << 18,), "full": (1 << 14, 1 << 18, 1 << 20, 1 << 24)}
_QUICK_SHAPES = ((1, 1024, 1024), (64, 1024, 1024))  # rows, outputs, inputs
_SHAPES = {"quick": _QUICK_SHAPES, "full": (*_QUICK_SHAPES, (1, 4096, 4096), (16, 4096, 4096), (256, 4096, 4096))}
_KINDS: dict[str, dict[str, Any]] = {
    "int8": {"dtype": "int8"},
    "int4 g32": {"dtype": "int4", "group_size": 32},
    "int4 g128": {"dtype": "int4", "group_size": 128},
    "int2": {"dtype": "int2", "group_size": 32},
}


@dataclass(frozen=True)
class BenchmarkConfig:
    """How long and how much. `seconds` and `timeout` are for each operation; the timeout counts its preparation too. A
    call under way is not torn off: the timeout is looked at between calls. `threads`: as they are set, if None.

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
        if self.sizes not in _SHAPES:
            raise InvalidProblem(f"sizes: {self.sizes!r}; expected 'quick' or 'full'")


@dataclass(frozen=True)
class _Work:
    """A prepared operation: the call, the float call, and what it is to be judged by."""

    run: Callable[[], Any]
    baseline: Callable[[], Any] | None = None
    error: Callable[[], float] | None = None  # SQNR in dB
    operations: int = 0
    bytes_moved: int = 0
    weight_bytes: int | None = None
    memory: Callable[[], MemoryUsage] | None = None  # looked at instead of timing
    uses_blas: bool = False  # the baseline does


@dataclass(frozen=True)
class _Operation:
    name: str
    family: str
    prepare: Callable[[], _Work]


class QuantizationBenchmarkSuite:
    """Operations of all families, timed on this machine.

    >>> suite = QuantizationBenchmarkSuite(BenchmarkConfig(seconds=0.01, iterations=3, sizes="quick"))
    >>> [r.status for r in suite.run(only=["memory"]).results]
    ['ok', 'ok', 'ok', 'ok']
    """

    def __init__(self, config: BenchmarkConfig | None = None) -> None:
        self.config = BenchmarkConfig() if config is None else config

    def run(self, only: Iterable[str] | None = None, progress: Callable[[str], None] | None = None) -> BenchmarkSummary:
        """Results of all families, or of those in `only`. `progress` is told what comes next. Ctrl-C ends it with what
        there is."""
        wanted = FAMILIES if only is None else (only,) if isinstance(only, str) else tuple(only)
        for family in wanted:
            if family not in FAMILIES:
                raise InvalidProblem(f"only: {family!r}; expected some of {', '.join(FAMILIES)}")
        operations = [o for o in _operations(self.config) if o.family in wanted]
        load, machine, bounds = _load(), hardware(), limits(refresh=True)
        before, results, complete = get_num_threads(), list[BenchmarkResult](), True
        threads = before if self.config.threads is None else self.config.threads
        set_num_threads(threads)
        try:
            for i, operation in enumerate(operations):
                if progress is not None:
                    progress(f"{i + 1} of {len(operations)}: {operation.name}")
                results.append(self._result(operation, _Ceiling(bounds, machine, threads)))
        except KeyboardInterrupt:
            complete = False
        finally:
            set_num_threads(before)
        return BenchmarkSummary(
            tuple(results), machine.to_dict(), bounds.to_dict(), __version__, threads, load, complete
        )

    def _result(self, operation: _Operation, ceiling: _Ceiling) -> BenchmarkResult:
        start, empty = time.perf_counter(), BenchmarkResult(operation.name, operation.family)
        try:
            work = operation.prepare()
            result = replace(
                empty, operations=work.operations, bytes_moved=work.bytes_moved, weight_bytes=work.weight_bytes
            )
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
        except Exception as error:  # whatever it is, it is this operation's result and the others go on
            text = " ".join(str(error).split()) or "no message"
            return replace(empty, status="failed", reason=f"{type(error).__name__}: {text}")

    def _beside_blas(self, result: BenchmarkResult, work: _Work, start: float, threads: int) -> BenchmarkResult:
        """Timed with as many threads for NumPy's product as make it fastest, 1 or all. Its threads wait in loops: on a
        busy machine all of them can be a hundred times as slow as one, and a speed-up over that would be a fiction."""
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

    def _timed(self, result: BenchmarkResult, work: _Work, start: float) -> BenchmarkResult:
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
            left = end - time.perf_counter()
            found = measure(
                {name: call if name in slow else call.call for name, call in calls.items()},
                seconds=min(c.seconds, left), warmup=c.warmup, min_rounds=min(5, c.iterations), max_rounds=c.iterations,
            )  # fmt: skip
            return replace(result, timing=found["run"], baseline=found.get("baseline"))
        except _TimeIsUpError:
            # The first call of each is a warm-up; what came after it is a figure, if of few samples.
            kept = {n: Timing.of(call.seconds[1:]) for n, call in calls.items() if len(call.seconds) > 1}
            partial_result = replace(result, timing=kept.get("run"), baseline=kept.get("baseline"))
            return _timed_out(partial_result, f"stopped after {len(calls['run'].seconds)} calls", c)


class _TimeIsUpError(Exception):
    pass


class _Watched:
    """A call that keeps its times, and does not begin once time is up."""

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
    """What so many threads could reach: as many times what one does. Less where they share what they read from."""

    bounds: Limits
    machine: HardwareFeatures
    threads: int

    def applied(self, result: BenchmarkResult) -> BenchmarkResult:
        assert result.timing is not None
        if result.operations:
            return self._within(result, result.operations, {"dot products": self.bounds.dot_ops})
        levels = _LEVELS[self._level(result.bytes_moved) :: -1]
        rates = {f"reading from {name}": self.bounds.read_bytes.get(name, 0.0) for name in levels}
        return self._within(result, result.bytes_moved, rates)

    def _within(self, result: BenchmarkResult, amount: int, rates: dict[str, float]) -> BenchmarkResult:
        """Of the first rate that the figure does not exceed: one that does was not its limit."""
        assert result.timing is not None
        for name, rate in rates.items():
            share = 100 * amount / result.timing.median / (rate * self.threads) if rate > 0 else math.inf
            if share <= _MOST:
                return replace(result, percent_of_limit=share, limit=name)
        return result

    def _level(self, nbytes: int) -> int:
        """Of the least memory that holds as much with room to spare; a thread brings the caches it does not share."""
        sizes = {
            f"L{c.level}": c.size_bytes * (1 if c.shared_by >= self.threads else self.threads // max(1, c.shared_by))
            for c in self.machine.caches
            if c.kind != "instruction"
        }
        return next((i for i, name in enumerate(_LEVELS) if nbytes <= 0.75 * sizes.get(name, 0)), len(_LEVELS) - 1)


@contextlib.contextmanager
def _blas_threads(count: int) -> Iterator[int | None]:
    """NumPy's products with so many threads, where threadpoolctl is installed; gives None where it is not."""
    try:
        pools = importlib.import_module("threadpoolctl")
    except ModuleNotFoundError:
        yield None
        return
    with pools.threadpool_limits(limits=count, user_api="blas"):
        yield count


def _load() -> float | None:
    """How many processes wanted to run in the last minute."""
    try:
        return os.getloadavg()[0]
    except (OSError, AttributeError):
        return None


# ---- what is measured ----


def _operations(config: BenchmarkConfig) -> Iterator[_Operation]:
    counts, shapes = _COUNTS[config.sizes], _SHAPES[config.sizes]
    for n in counts:
        size = _count_text(n)
        yield _Operation(f"quantize int8 {size}", "quantization", partial(_quantize, n, "int8"))
        yield _Operation(f"quantize int8 known range {size}", "quantization", partial(_quantize, n, "int8", True))
        yield _Operation(f"quantize int4 g32 {size}", "quantization", partial(_quantize, n, "int4 g32"))
        yield _Operation(f"dequantize int8 {size}", "quantization", partial(_dequantize, n, "int8"))
        yield _Operation(f"dequantize int4 g32 {size}", "quantization", partial(_dequantize, n, "int4 g32"))
    for shape in shapes:
        for kind in ("int8", "int4 g128"):
            yield _Operation(f"linear {kind} {_shape_text(shape)}", "matrix", partial(_linear, shape, kind))
    for n in counts:
        yield _Operation(f"qadd int8 {_count_text(n)}", "elementwise", partial(_add, n))
        yield _Operation(f"qrelu int8 {_count_text(n)}", "elementwise", partial(_relu, n))
    if config.measure_memory:
        for kind in ("int8", "int4 g32"):
            yield _Operation(f"tensor {kind} {_count_text(1 << 20)}", "memory", partial(_tensor_memory, 1 << 20, kind))
        for kind in ("int8", "int4 g128"):
            yield _Operation(f"layer {kind} 64x1024x1024", "memory", partial(_layer_memory, (64, 1024, 1024), kind))
    shape = (16, 1024, 1024) if config.sizes == "quick" else (16, 4096, 4096)
    for kind in _KINDS:
        yield _Operation(f"layer {_shape_text(shape)}: {kind}", "comparative", partial(_linear, shape, kind))


def _normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def _sqnr(exact: Array, found: Any) -> float:
    return error_report(exact, np.asarray(found, np.float32)).sqnr_db


def _quantize(n: int, kind: str, known: bool = False) -> _Work:
    x = _normal(n)
    q = quantize(x, **_KINDS[kind])
    target, out = np.empty_like(x), np.empty_like(q.data)
    options: dict[str, Any] = {"params": q.params} if known else _KINDS[kind]
    return _Work(
        lambda: quantize(x, out=out, **options), lambda: np.copyto(target, x), lambda: _sqnr(x, q.dequantize()),
        bytes_moved=x.nbytes + q.nbytes,
    )  # fmt: skip


def _dequantize(n: int, kind: str) -> _Work:
    x = _normal(n)
    q = quantize(x, **_KINDS[kind])
    target, out = np.empty_like(x), np.empty_like(x)
    return _Work(
        lambda: dequantize(q, out=out), lambda: np.copyto(target, x), lambda: _sqnr(x, dequantize(q)),
        bytes_moved=x.nbytes + q.nbytes,
    )  # fmt: skip


def _linear(shape: tuple[int, int, int], kind: str) -> _Work:
    m, n, k = shape
    x, w = _normal(m, k), _normal(n, k, seed=1)
    layer, turned, out = QuantizedLinear(w, **_KINDS[kind]), w.T, np.empty((m, n), np.float32)
    return _Work(
        lambda: layer(x), lambda: np.matmul(x, turned, out=out), lambda: _sqnr(x @ turned, layer(x)),
        2 * m * n * k, x.nbytes + layer.nbytes + out.nbytes, layer.nbytes, uses_blas=True,
    )  # fmt: skip


def _codes(n: int, seed: int = 0) -> tuple[Array, QuantizedTensor]:
    x = _normal(n, seed=seed)
    return x, quantize(x)


def _add(n: int) -> _Work:
    (x, a), (y, b) = _codes(n), _codes(n, 1)
    exact = x + y
    params = QuantizationParams.from_statistics(exact.min(), exact.max(), dtype="int8", scheme="symmetric")
    out, target = np.empty_like(a.data), np.empty_like(x)
    return _Work(
        lambda: qadd(a, b, out_params=params, out=out), lambda: np.add(x, y, out=target),
        lambda: _sqnr(exact, qadd(a, b, out_params=params).dequantize()), bytes_moved=3 * a.data.nbytes,
    )  # fmt: skip


def _relu(n: int) -> _Work:
    x, a = _codes(n)
    out, target = np.empty_like(a.data), np.empty_like(x)
    return _Work(
        lambda: qrelu(a, out=out), lambda: np.maximum(x, 0, out=target),
        lambda: _sqnr(np.maximum(x, 0), qrelu(a).dequantize()), bytes_moved=2 * a.data.nbytes,
    )  # fmt: skip


def _tensor_memory(n: int, kind: str) -> _Work:
    x = _normal(n)

    def look() -> MemoryUsage:
        peak, q = _peak(lambda: quantize(x, **_KINDS[kind]))
        return MemoryUsage(x.nbytes, q.nbytes, peak)

    return _Work(look, memory=look)


def _layer_memory(shape: tuple[int, int, int], kind: str) -> _Work:
    m, n, k = shape
    x, w = _normal(m, k), _normal(n, k, seed=1)
    layer = QuantizedLinear(w, **_KINDS[kind])

    def look() -> MemoryUsage:
        peak, _ = _peak(lambda: layer(x))
        return MemoryUsage(w.nbytes, layer.nbytes, peak, layer.workspace_size(m))

    return _Work(look, memory=look)


def _peak(call: Callable[[], Any]) -> tuple[int, Any]:
    """The most a call had allocated at a time, and its result. Someone else's tracing goes on."""
    call()  # what is made once and kept is not the call's
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        result = call()
        return max(0, tracemalloc.get_traced_memory()[1] - before), result
    finally:
        if not tracing:
            tracemalloc.stop()


def _count_text(n: int) -> str:
    return f"{n >> 20}M" if n >= 1 << 20 else f"{n >> 10}K"


def _shape_text(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
