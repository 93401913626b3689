"""Benchmark results: one per operation, summaries, and their file formats."""

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
_STATUSES = ("ok", "timeout", "failed")
_COLUMNS = [
    "name",
    "family",
    "status",
    "reason",
    "median_s",
    "low_s",
    "high_s",
    "best_s",
    "samples",
    "baseline_median_s",
    "baseline_threads",
    "speedup",
    "gops",
    "gb_per_s",
    "percent_of_limit",
    "limit",
    "sqnr_db",
    "weight_bytes",
    "float_bytes",
    "quantized_bytes",
    "peak_bytes",
    "workspace_bytes",
]


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
        texts, counts = ("name", "family", "reason", "limit"), ("baseline_threads", "weight_bytes")
        fields: dict[str, Any] = {k: _text(d[k]) for k in texts} | {k: _count(d[k]) for k in counts}
        fields |= {k: _timing(d[k]) for k in ("timing", "baseline")}
        fields |= {k: int(d[k]) for k in ("operations", "bytes_moved")}
        fields |= {k: _number(d[k]) for k in ("percent_of_limit", "sqnr_db")}
        memory = None if d["memory"] is None else MemoryUsage(**d["memory"])
        return BenchmarkResult(status=d["status"], memory=memory, **fields)

    def _row(self) -> tuple[Any, ...]:
        t, b, m = self.timing, self.baseline, self.memory
        times = (None,) * 5 if t is None else (t.median, t.low, t.high, t.best, t.samples)
        memory = (None,) * 4 if m is None else (m.before, m.after, m.peak, m.workspace)
        baseline = None if b is None else b.median, self.baseline_threads, self.speedup
        rates = self.gops, self.gb_per_s, self.percent_of_limit, self.limit, self.sqnr_db, self.weight_bytes
        return self.name, self.family, self.status, self.reason, *times, *baseline, *rates, *memory


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
        for r in self.results:
            if r.name == name:
                return r
        raise KeyError(name)

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
            return BenchmarkSummary(results, *head, _number(d["load_average"]), bool(d["complete"]))
        except KeyError as error:
            raise FormatError(f"no benchmark results: {error} is missing") from None
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise FormatError(f"no benchmark results: {error}") from None

    def to_csv(self) -> str:
        """CSV text: one line per result, missing figures empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows(["" if v is None else v for v in r._row()] for r in self.results)
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
        cpus = self.hardware.get("usable_cpus") or 1
        busy = self.load_average is not None and self.load_average > 0.5 * cpus
        return text + (
            f"; the machine was busy before (load {self.load_average:.1f}), figures may be low" if busy else ""
        )

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


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _count(value: Any) -> int | None:
    return None if value is None else int(value)


def _timing(d: Any) -> Timing | None:
    if d is None:
        return None
    best, median, low, high = (float(d[k]) for k in ("best", "median", "low", "high"))
    t = Timing(best, median, low, high, int(d["samples"]), int(d["repeats"]))
    if not (0 < t.best <= t.low <= t.median <= t.high < math.inf):
        raise ValueError(f"a timing of {t.best}, {t.low}, {t.median}, {t.high} s")
    return t
