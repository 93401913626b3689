"""The search: build candidates, time them interleaved with float32, score them on the data, and judge."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from lowbit._version import __version__
from lowbit.bench.timing import OtherWork, Timing, time_unit
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.metrics import error_report
from lowbit.runtime.cache_file import CacheFile
from lowbit.runtime.hardware import hardware
from lowbit.tuning.candidates import Candidate, Work, build, candidates_for, float_work
from lowbit.tuning.race import race
from lowbit.tuning.result import FLOAT, CandidateResult, OptimalQuantizationConfig
from lowbit.tuning.workload import AutoTuningConfig, PerformanceRequirements, QuantizationWorkload

_ALIKE = 1.02  # of candidates this close in speed, the most accurate one wins
_BUILDING = 0.5  # maximum share of the time for building candidates
_LOOKING = 0.05  # minimum share of the time before the load of other processes is judged
Progress = Callable[[str], None]


def auto_tune(
    workload: QuantizationWorkload | Iterable[QuantizationWorkload],
    requirements: PerformanceRequirements | None = None,
    config: AutoTuningConfig | None = None,
    *,
    cache: bool = True,
    progress: Progress | None = None,
) -> Any:
    """The best setting for a workload, measured on this machine; a list for several workloads.

    Every candidate is timed interleaved with float32, scored on the data and compared with the requirements. Results
    are cached by CPU, version, kernels, threads and workload; `cache=False` measures again. Results found while other
    processes needed the CPUs are provisional and not cached. Ctrl-C ends a search and keeps the results so far.

    >>> import lowbit as lb
    >>> w = QuantizationWorkload.matmul(1, 64, 64)
    >>> found = auto_tune(w, config=AutoTuningConfig(max_search_time=0.2), cache=False)
    >>> found.keep_float or found.speedup > 1
    True
    """
    wanted, how = requirements or PerformanceRequirements(), config or AutoTuningConfig()
    work = [workload] if isinstance(workload, QuantizationWorkload) else list(workload)
    for w in work:
        if not isinstance(w, QuantizationWorkload):
            raise InvalidProblem(f"workload: {type(w).__name__}; expected a QuantizationWorkload")
    found = [_one(w, wanted, how, cache, progress or (lambda _: None)) for w in work]
    return found[0] if isinstance(workload, QuantizationWorkload) else found


def _one(
    workload: QuantizationWorkload, wanted: PerformanceRequirements, how: AutoTuningConfig, cache: bool, say: Progress
) -> OptimalQuantizationConfig:
    if not how.enabled:
        why = "auto-tuning is disabled; nothing was measured"
        return OptimalQuantizationConfig(workload, None, why, (), _data_name(workload), 0.0, complete=False)
    file, key = CacheFile("tuning"), _key(workload, wanted, how)
    if cache and (kept := file.get(key)) is not None:
        # An unreadable cache entry is measured again.
        with contextlib.suppress(InvalidProblem, KeyError, TypeError, ValueError, AttributeError):
            return OptimalQuantizationConfig.from_dict(kept, workload)
    found = _search(workload, wanted, how, say)
    if cache and found.complete and not found.provisional:
        file.put(key, found.to_dict())
    return found


def _key(workload: QuantizationWorkload, wanted: PerformanceRequirements, how: AutoTuningConfig) -> str:
    machine = hardware()
    place = machine.cpu, machine.isa, machine.threads, __version__
    asked = [*place, workload.key, asdict(wanted), asdict(how)]
    return hashlib.sha256(json.dumps(asked).encode()).hexdigest()


def _data_name(workload: QuantizationWorkload) -> str:
    return "the data given" if workload.is_sampled else "normal numbers"


def _search(
    workload: QuantizationWorkload, wanted: PerformanceRequirements, how: AutoTuningConfig, say: Progress
) -> OptimalQuantizationConfig:
    start, others = time.perf_counter(), OtherWork()
    end = start + how.max_search_time
    works, settings, errors, complete = _built(workload, start + _BUILDING * how.max_search_time, say)
    skipped = _without_a_cpu(settings, others, start + _LOOKING * how.max_search_time)
    racing = {n: w.run for n, w in works.items() if n not in skipped}
    least = how.accuracy_threshold
    disqualified = {n for n in settings if _violations(wanted, least, errors[n], works[n].nbytes)}
    timings, dropped, raced = race(racing, end, how.iterations, keep=FLOAT, say=say, disqualified=disqualified)
    complete = complete and raced
    baseline = min((n for n in timings if n.startswith(FLOAT)), key=lambda n: timings[n].median, default=None)
    rows = []
    for name, candidate in settings.items():
        if name in timings:
            nbytes = works[name].nbytes
            broken = _violations(wanted, least, errors[name], nbytes, timings[name], workload.operations)
            verdict = tuple(v.text for v in broken), sum(v.excess for v in broken)
            figures = timings[name], *errors[name], nbytes, *verdict
            rows.append(CandidateResult(name, candidate, *figures, dropped=name in dropped))
    rows.sort(key=lambda r: r.timing.median)
    of_float: list[_Violation] = []
    if baseline is not None:
        exactly, nbytes = (math.inf, 1.0), works[baseline].nbytes
        of_float = _violations(wanted, -1.0, exactly, nbytes, timings[baseline], workload.operations)
        rows.insert(0, CandidateResult(baseline, None, timings[baseline], *exactly, nbytes))
    results = _with_front(rows)
    winner, why, meets = _judge(results, how, tuple(v.text for v in of_float))
    if skipped:
        why += f"; other processes kept CPUs busy; {len(skipped)} candidates with more threads were skipped"
    busy = others.cpus()
    provisional = bool(skipped) or _free_cpus(busy) < hardware().usable_cpus
    if provisional:
        why += f"; provisional and not cached: other processes kept {busy:.1f} CPUs busy meanwhile"
    return OptimalQuantizationConfig(
        workload,
        winner,
        why,
        tuple(results),
        _data_name(workload),
        seconds=time.perf_counter() - start,
        complete=complete,
        meets_requirements=meets,
        load=None if math.isnan(busy) else busy,
        provisional=provisional,
    )


class _Built(NamedTuple):
    """The work of float32 and of every setting built, by name; and the SQNR and the cosine of each setting."""

    works: dict[str, Work]
    settings: dict[str, Candidate]
    errors: dict[str, tuple[float, float]]
    complete: bool  # False: time was over, or Ctrl-C came, before every setting was built


def _built(workload: QuantizationWorkload, end: float, say: Progress) -> _Built:
    """Build float32, and settings until `end`."""
    data = workload.data()
    floats = float_work(workload, data)
    exact = next(iter(floats.values())).result()
    found = _Built({f"{FLOAT}, {name}": work for name, work in floats.items()}, {}, {}, True)
    works, settings, errors, _ = found
    try:
        for candidate in candidates_for(workload, hardware().threads):
            name = candidate.name
            same = next((n for n, c in settings.items() if replace(c, threads=candidate.threads) == candidate), None)
            if same is not None:  # threads change neither the layer nor its bits
                works[name], errors[name] = works[same].with_threads(candidate.threads), errors[same]
            elif settings and time.perf_counter() > end:
                return found._replace(complete=False)
            else:
                say(f"building {name}")
                work = build(workload, candidate, data)
                report = error_report(exact, work.result().reshape(exact.shape))
                works[name], errors[name] = work, (report.sqnr_db, report.cosine)
            settings[name] = candidate
    except KeyboardInterrupt:
        return found._replace(complete=False)
    return found


def _without_a_cpu(settings: dict[str, Candidate], others: OtherWork, end: float) -> set[str]:
    """Candidates whose threads would share a CPU with other processes: their timings would not be reproducible."""
    most = max((c.threads for c in settings.values()), default=1)
    if most == 1:
        return set()
    time.sleep(max(0.0, end - time.perf_counter()))  # clocks of CPUs are coarse
    free = _free_cpus(others.cpus())
    return {n for n, c in settings.items() if c.threads > max(1, free)}


def _free_cpus(busy: float) -> int:
    """CPUs that this process may use, less those that others keep busy (NaN: none). Others may run on CPUs that this
    process may not use."""
    machine = hardware()
    return machine.usable_cpus if math.isnan(busy) else min(machine.usable_cpus, round(machine.cores - busy))


class _Violation(NamedTuple):
    text: str
    excess: float  # share of the bound by which it is exceeded


def _excess(found: float, bound: float) -> float:
    return found / bound - 1 if bound > 0 else math.inf


def _violations(
    wanted: PerformanceRequirements,
    least_cosine: float,
    errors: tuple[float, float],
    nbytes: int,
    timing: Timing | None = None,
    operations: int = 0,
) -> list[_Violation]:
    """The bounds that a setting exceeds; without a timing those of accuracy and memory, which no speed can mend.

    SQNR is compared as noise energy, a cosine as its distance from 1.
    """
    sqnr, cosine = errors
    found = []
    if timing is not None and wanted.max_latency is not None and timing.median > wanted.max_latency:
        text = f"latency {timing.median:.3g} s, above {wanted.max_latency:.3g} s"
        found.append(_Violation(text, _excess(timing.median, wanted.max_latency)))
    rate = math.inf if timing is None else operations / timing.median
    if wanted.min_throughput is not None and rate < wanted.min_throughput:
        text = f"throughput {rate:.3g} per second, below {wanted.min_throughput:.3g}"
        found.append(_Violation(text, _excess(wanted.min_throughput, rate)))
    if wanted.memory_budget is not None and nbytes > wanted.memory_budget:
        text = f"memory {nbytes:,} bytes, above {wanted.memory_budget:,}"
        found.append(_Violation(text, _excess(nbytes, wanted.memory_budget)))
    if wanted.min_sqnr_db is not None and sqnr < wanted.min_sqnr_db:
        text = f"SQNR {sqnr:.2f} dB, below {wanted.min_sqnr_db:.2f}"
        found.append(_Violation(text, _excess(10.0 ** min(300.0, (wanted.min_sqnr_db - sqnr) / 10), 1.0)))
    least = max(least_cosine, -1.0 if wanted.min_cosine is None else wanted.min_cosine)
    if cosine < least:
        found.append(_Violation(f"cosine {cosine:.5f}, below {least:.5f}", _excess(1 - cosine, 1 - least)))
    return found


def _with_front(results: list[CandidateResult]) -> list[CandidateResult]:
    def beats(a: CandidateResult, b: CandidateResult) -> bool:
        no_worse = a.timing.median <= b.timing.median and a.sqnr_db >= b.sqnr_db and a.nbytes <= b.nbytes
        return no_worse and (a.timing.median, a.sqnr_db, a.nbytes) != (b.timing.median, b.sqnr_db, b.nbytes)

    return [replace(r, on_front=not any(beats(o, r) for o in results)) for r in results]


def _judge(
    results: list[CandidateResult], how: AutoTuningConfig, float_violations: tuple[str, ...]
) -> tuple[Candidate | None, str, bool]:
    """The winner, the reason, and whether the requirements are met."""
    base = next((r for r in results if r.candidate is None), None)
    rows = [r for r in results if r.candidate is not None]
    if base is None or not rows:
        return None, "time was over before anything could be measured", not float_violations
    allowed = [r for r in rows if not r.violations]
    times = f"float32 takes {_time(base.timing)}"
    if not allowed:
        nearest = min(rows, key=lambda r: (r.distance, r.timing.median))
        if not float_violations:
            why = f"no setting meets the requirements, float32 does; nearest {nearest.name}: {nearest.violations[0]}"
            return None, why, True
        why = f"nothing meets the requirements; nearest is {nearest.name}: {'; '.join(nearest.violations)}"
        return nearest.candidate, why, False
    finalists = [r for r in allowed if not r.dropped] or allowed
    fastest = _surely_fastest(finalists)
    close = [r for r in finalists if r.timing.median <= fastest.timing.median * _ALIKE]
    best = max((r for r in close if _threads(r) <= _threads(fastest)), key=lambda r: r.sqnr_db)
    gain = base.timing.median / best.timing.median
    if gain < how.min_improvement:
        why = f"the fastest setting, {best.name}, takes {_time(best.timing)} and {times}: {gain:.2f} times as fast"
        if float_violations:
            return best.candidate, f"float32 does not meet the requirements ({float_violations[0]}); {why}", True
        return None, f"{why}, less than {how.min_improvement:g}", True
    why = f"{_time(best.timing)}, {times}: {gain:.2f} times as fast, SQNR {best.sqnr_db:.1f} dB"
    if best is not fastest:
        why += f"; as fast as {fastest.name} to {100 * (_ALIKE - 1):.0f} %, and more accurate"
    barred = [r for r in rows if r.violations and r.timing.median < best.timing.median]
    if barred:
        why += f"; {barred[0].name} is faster but: {barred[0].violations[0]}"
    return best.candidate, why, True


def _surely_fastest(finalists: list[CandidateResult]) -> CandidateResult:
    """The fastest candidate. More threads win only where the intervals do not overlap, so that the choice is stable."""
    best = finalists[0]
    for r in finalists[1:]:
        if _threads(r) < _threads(best) and r.timing.median <= best.timing.high:
            best = r
    return best


def _threads(r: CandidateResult) -> int:
    return 1 if r.candidate is None else r.candidate.threads


def _time(t: Timing) -> str:
    scale, unit = time_unit(t.median)
    return f"{t.median * scale:.3g} {unit} ({t.low * scale:.3g} to {t.high * scale:.3g})"
