"""Benchmark results: one per operation, summaries, their file formats, and what changed between two runs."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lowbit.bench.timing import Timing, time_unit
from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.runtime.files.atomic import written_whole

_FORMAT, _VERSION = "lowbit benchmark", 1
_MARGIN = 1.05  # between the intervals of two medians that differ
_STATUSES = ("ok", "timeout", "failed")


@dataclass(frozen=True)
class MemoryUsage:
    """Bytes of a tensor or layer as floats and quantized, and the peak allocation of one call.

    The peak covers what Python and NumPy allocate (tracemalloc), results included. `workspace` is the scratch memory of
    kernels, where it is known.
    """

    before: int
    after: int
    peak: int
    workspace: int | None = None

    @property
    def ratio(self) -> float:
        return self.before / self.after if self.after else math.inf


@dataclass(frozen=True)
class BenchmarkResult:
    """One operation: its time, its float baseline's, the share of the machine's limit, and its error."""

    name: str
    family: str
    status: str = "ok"  # "timeout": fewer samples than requested, or none; "failed": no timing
    reason: str = ""
    timing: Timing | None = None
    baseline: Timing | None = None
    baseline_threads: int | None = None  # of BLAS; None: no BLAS, or its own choice
    operations: int = 0  # multiplications and additions per call; 0 for operations that only move bytes
    bytes_moved: int = 0  # bytes of arguments and results
    percent_of_limit: float | None = None  # by the median; None: no measured limit applies
    limit: str = ""  # the name of that limit
    sqnr_db: float | None = None
    weight_bytes: int | None = None
    memory: MemoryUsage | None = None

    @property
    def speedup(self) -> float | None:
        """The baseline's median divided by this one's."""
        return None if self.timing is None or self.baseline is None else self.baseline.median / self.timing.median

    @property
    def gops(self) -> float | None:
        return None if self.timing is None or not self.operations else self.operations / self.timing.median / 1e9

    @property
    def gb_per_s(self) -> float | None:
        """The rate of operations that only move bytes."""
        moves = self.timing is not None and self.bytes_moved and not self.operations
        return self.bytes_moved / self.timing.median / 1e9 if moves and self.timing is not None else None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "speedup": self.speedup, "gops": self.gops, "gb_per_s": self.gb_per_s}

    @staticmethod
    def from_dict(d: Mapping[str, Any]) -> BenchmarkResult:
        """The result of `to_dict`, read back. Raises for anything else."""
        if d["status"] not in _STATUSES:
            raise ValueError(f"status {d['status']!r}, expected one of {', '.join(_STATUSES)}")
        fields: dict[str, Any] = {k: _text(d[k]) for k in ("name", "family", "status", "reason", "limit")}
        fields |= {k: int(d[k]) for k in ("operations", "bytes_moved")}
        fields |= {k: _unless_none(int, d[k]) for k in ("baseline_threads", "weight_bytes")}
        fields |= {k: _unless_none(float, d[k]) for k in ("percent_of_limit", "sqnr_db")}
        fields |= {k: _unless_none(_timing, d[k]) for k in ("timing", "baseline")}
        return BenchmarkResult(memory=_unless_none(lambda m: MemoryUsage(**m), d["memory"]), **fields)

    def _row(self) -> dict[str, Any]:
        """The figures by their columns in a CSV file."""
        row = {name: getattr(self, name) for name in ("name", "family", "status", "reason")}
        row |= {f"{name}_s": getattr(self.timing, name, None) for name in ("median", "low", "high", "best")}
        row |= {"samples": getattr(self.timing, "samples", None)}
        row |= {"baseline_median_s": getattr(self.baseline, "median", None)}
        figures = "baseline_threads speedup gops gb_per_s percent_of_limit limit sqnr_db weight_bytes"
        row |= {name: getattr(self, name) for name in figures.split()}
        fields = {"float": "before", "quantized": "after", "peak": "peak", "workspace": "workspace"}
        return row | {f"{column}_bytes": getattr(self.memory, name, None) for column, name in fields.items()}


@dataclass(frozen=True)
class MemoryBenchmarkResults:
    """The memory of every tensor and layer measured."""

    usages: dict[str, MemoryUsage]

    @property
    def ratio(self) -> float:
        """All float bytes divided by all quantized bytes."""
        after = sum(u.after for u in self.usages.values())
        return sum(u.before for u in self.usages.values()) / after if after else math.inf


@dataclass(frozen=True)
class ComparativeBenchmarkResult:
    """One layer in several configurations."""

    problem: str
    configurations: dict[str, BenchmarkResult]

    @property
    def fastest(self) -> str | None:
        return self._first(lambda r: None if r.timing is None else r.timing.median)

    @property
    def most_accurate(self) -> str | None:
        return self._first(lambda r: None if r.sqnr_db is None else -r.sqnr_db)

    @property
    def smallest(self) -> str | None:
        return self._first(lambda r: r.weight_bytes)

    def _first(self, figure: Callable[[BenchmarkResult], float | None]) -> str | None:
        """The configuration with the smallest figure, of those that have one."""
        known = {n: v for n, r in self.configurations.items() if (v := figure(r)) is not None}
        return min(known, key=known.__getitem__, default=None)


@dataclass(frozen=True)
class BenchmarkSummary:
    """All results of a run, and the machine that produced them.

    >>> summary = BenchmarkSummary((BenchmarkResult("sort", "example", timing=Timing.of([0.5, 1.0, 2.0])),))
    >>> BenchmarkSummary.from_json(summary.to_json()) == summary
    True
    """

    results: tuple[BenchmarkResult, ...]
    hardware: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)  # of one thread
    version: str = ""
    threads: int = 1
    load_average: float | None = None  # of the minute before; None: not known
    complete: bool = True  # False: stopped by Ctrl-C

    def __getitem__(self, name: str) -> BenchmarkResult:
        return {r.name: r for r in reversed(self.results)}[name]  # the first of that name

    def of(self, family: str) -> tuple[BenchmarkResult, ...]:
        return tuple(r for r in self.results if r.family == family)

    @property
    def memory(self) -> MemoryBenchmarkResults:
        return MemoryBenchmarkResults({r.name: r.memory for r in self.results if r.memory is not None})

    @property
    def comparative(self) -> tuple[ComparativeBenchmarkResult, ...]:
        found: dict[str, dict[str, BenchmarkResult]] = {}
        for r in self.of("comparative"):
            problem, _, configuration = r.name.partition(": ")
            found.setdefault(problem, {})[configuration] = r
        return tuple(ComparativeBenchmarkResult(*item) for item in found.items())

    def to_json(self) -> str:
        """JSON text. Infinite numbers become the string "inf"."""
        head = {k: v for k, v in vars(self).items() if k != "results"}
        rows = [r.to_dict() for r in self.results]
        content = {"format": _FORMAT, "format_version": _VERSION, **head, "results": rows}
        return json.dumps(_plain(content), indent=2, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> BenchmarkSummary:
        """The result of `to_json`, read back. Raises FormatError for anything else."""
        try:
            d = json.loads(text)
            if d["format"] != _FORMAT or d["format_version"] != _VERSION:
                raise ValueError(f"{d['format']!r} version {d['format_version']!r}, expected {_FORMAT} {_VERSION}")
            results = tuple(BenchmarkResult.from_dict(r) for r in d["results"])
            if len({r.name for r in results}) < len(results):
                raise ValueError("two results of the same name")
            head = dict(d["hardware"]), dict(d["limits"]), _text(d["version"]), int(d["threads"])
            return BenchmarkSummary(results, *head, _unless_none(float, d["load_average"]), bool(d["complete"]))
        except KeyError as error:
            raise FormatError(f"no benchmark results: {error} is missing") from None
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise FormatError(f"no benchmark results: {error}") from None

    def to_csv(self) -> str:
        """CSV text: one line per result, missing figures empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, BenchmarkResult("", "")._row(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(r._row() for r in self.results)  # None is written as nothing
        return text.getvalue()

    def to_markdown(self) -> str:
        """Markdown text: one table per family."""
        lines = [f"# lowbit {self.version} on {self.hardware.get('cpu', 'an unknown CPU')}", "", f"{self.setting}.", ""]
        if not self.complete:
            lines += ["Stopped before the end.", ""]
        for family in dict.fromkeys(r.family for r in self.results):
            rows, heads = [table_cells(r) for r in self.of(family)], table_heads(family)
            lines += [f"## {family}", "", f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
            lines += [f"| {' | '.join(c.replace('|', chr(92) + '|') for c in row)} |" for row in rows]
            lines.append("")
        return "\n".join(lines)

    @property
    def setting(self) -> str:
        """Kernels, threads and load, in one line."""
        text = f"Kernels {self.limits.get('isa', 'unknown')}, threads {self.threads}"
        counts = sorted({r.baseline_threads for r in self.results if r.baseline_threads is not None})
        if counts:
            text += f"; NumPy's products with {' or '.join(map(str, counts))}, the faster of 1 and {self.threads}"
        if self.load_average is not None and self.load_average > 0.5 * (self.hardware.get("usable_cpus") or 1):
            text += f"; the machine was busy before (load {self.load_average:.1f}), figures may be low"
        return text

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a .json, .csv or .md file atomically."""
        target = Path(path)
        forms = {".json": self.to_json, ".csv": self.to_csv, ".md": self.to_markdown}
        if target.suffix.lower() not in forms:
            raise InvalidProblem(f"path: {target}; expected a name that ends in {', '.join(forms)}")
        text = forms[target.suffix.lower()]()
        with written_whole(target) as file:
            file.write(text if text.endswith("\n") else text + "\n")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> BenchmarkSummary:
        """Read a .json file."""
        try:
            return BenchmarkSummary.from_json(Path(path).read_text(encoding="utf-8"))
        except (FormatError, UnicodeDecodeError) as error:
            raise FormatError(f"{os.fspath(path)}: {error}") from None


@dataclass(frozen=True)
class Change:
    """An operation of either run."""

    name: str
    kind: str  # "regression", "improvement", "same", "missing" (from the new run), "added"
    old: float | None = None  # seconds, medians
    new: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """New time divided by old time: above 1 is slower."""
        return None if self.old is None or self.new is None else self.new / self.old


def compare(old: BenchmarkSummary, new: BenchmarkSummary) -> list[Change]:
    """One change per name, in the order of the old run. Slower or faster means that the confidence intervals of the
    medians are more than 5 % apart. An operation that was timed in the old run only is a regression.

    >>> from lowbit.bench import BenchmarkResult, BenchmarkSummary, Timing
    >>> old, new = (BenchmarkSummary((BenchmarkResult("sort", "example", timing=Timing.of([t] * 9)),)) for t in (1, 2))
    >>> compare(old, new)
    [Change(name='sort', kind='regression', old=1.0, new=2.0, note='')]
    """
    before, after = ({r.name: r for r in s.results} for s in (old, new))
    found = [_change(r, after[name]) if name in after else _alone(r, "missing") for name, r in before.items()]
    return found + [_alone(r, "added") for name, r in after.items() if name not in before]


def _change(old: BenchmarkResult, new: BenchmarkResult) -> Change:
    was, now = old.timing, new.timing
    if was is None or now is None:
        worse = new.status != "ok" and old.status == "ok"
        better = old.status != "ok" and new.status == "ok"
        note = f"{old.status} before, {new.status} now" if worse or better else ""
        if worse and new.reason:
            note += f": {new.reason}"
        kind = "regression" if worse else "improvement" if better else "same"
        return Change(old.name, kind, was.median if was else None, now.median if now else None, note)
    slower, faster = now.low > was.high * _MARGIN, was.low > now.high * _MARGIN
    kind = "regression" if slower else "improvement" if faster else "same"
    return Change(old.name, kind, was.median, now.median)


def _alone(r: BenchmarkResult, kind: str) -> Change:
    median = None if r.timing is None else r.timing.median
    return Change(r.name, kind, *((median, None) if kind == "missing" else (None, median)))


def table_heads(family: str) -> tuple[str, ...]:
    """The column headings of a family's table."""
    if family == "memory":
        return "operation", "float", "quantized", "ratio", "peak", "workspace"
    rate = "GB/s" if family in ("quantization", "elementwise") else "GOPS"
    weights = () if rate == "GB/s" else ("weights",)
    return "operation", "median", "×float", rate, "of limit", "SQNR dB", *weights


def table_cells(r: BenchmarkResult) -> list[str]:
    """The cells of a result in its family's table."""
    t, m = r.timing, r.memory
    name = r.name if r.status == "ok" else f"{r.name}: {r.status}, {r.reason}"
    if m is not None:
        space = "" if m.workspace is None else bytes_text(m.workspace)
        return [name, bytes_text(m.before), bytes_text(m.after), f"{m.ratio:.2f}", bytes_text(m.peak), space]
    if t is None:
        return [name, *[""] * (len(table_heads(r.family)) - 1)]
    rate = r.gops if r.gops is not None else r.gb_per_s
    limit = {"dot products": "dot"}.get(r.limit, r.limit.removeprefix("reading from "))
    weights = [] if len(table_heads(r.family)) < 7 else ["" if r.weight_bytes is None else bytes_text(r.weight_bytes)]
    share = "" if r.percent_of_limit is None else f"{r.percent_of_limit:.0f} % {limit}"
    figures = _figure(r.speedup, 2), _figure(rate, 1), share, _figure(r.sqnr_db, 1)
    return [name, seconds_text(t.median), *figures, *weights]


def _figure(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def seconds_text(t: float) -> str:
    """
    >>> seconds_text(0.00123)
    '1.23 ms'
    """
    scale, unit = time_unit(t)
    return f"{t * scale:.4g} {unit}"


def bytes_text(n: int) -> str:
    """
    >>> bytes_text(3 << 20)
    '3 MiB'
    """
    for unit, power in (("MiB", 20), ("KiB", 10)):
        if n >= 1 << power:
            return f"{n / (1 << power):.4g} {unit}"
    return f"{n} B"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r}, expected a string")
    return value


def _unless_none(read: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else read(value)


def _timing(d: Any) -> Timing:
    best, median, low, high = (float(d[k]) for k in ("best", "median", "low", "high"))
    t = Timing(best, median, low, high, int(d["samples"]), int(d["repeats"]))
    if not (0 < t.best <= t.low <= t.median <= t.high < math.inf):
        raise ValueError(f"a timing of {t.best}, {t.low}, {t.median}, {t.high} s")
    return t
