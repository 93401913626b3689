"""Results as rows, as a table for people and as JSON for everything else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from benchmarks.timing import Absent, Case, Contender, Target, Timing

__all__ = ["Row", "Verdict", "failed_row", "print_family", "print_summary", "rows_of", "write_json"]


_NAME_WIDTH, _TARGET_WIDTH = 32, 33


@dataclass(frozen=True)
class Verdict:
    """A target, what was measured, and whether that is enough; None where it was not judged."""

    text: str
    at_least: float
    measured: float | None
    met: bool | None
    note: str = ""


@dataclass(frozen=True)
class Row:
    """One contender of one case. All ratios are of speeds: above 1 the first named is the faster."""

    family: str
    case: str
    contender: str
    kind: str  # lowbit, peer or copy
    status: str  # measured, missing (a peer), failed (lowbit) or not measurable
    reason: str = ""
    seconds: float | None = None  # best
    median_seconds: float | None = None
    spread: float | None = None  # interquartile range over median
    cpus_used: float | None = None  # in the best sample
    preempted: bool = False  # other work had the CPU even in the best sample
    rounds: int = 0
    repeats: int = 0
    elements: int = 0
    nbytes: int = 0  # read + written
    gigabytes_per_second: float | None = None
    elements_per_second: float | None = None
    ratio_to_copy: float | None = None  # this contender over the equal-bytes copy
    roofline_percent: float | None = None
    lowbit_ratio: dict[str, float] = field(default_factory=dict)  # each lowbit contender over this one
    targets: list[Verdict] = field(default_factory=list)

    @property
    def absence(self) -> str:
        """Why there are no figures."""
        return self.reason if self.status == "not measurable" else f"{self.status}: {self.reason}"


def rows_of(family: str, case: Case, found: Mapping[Contender, Timing | Absent], threads: int) -> list[Row]:
    if case.not_measurable:
        return [Row(family, case.name, "lowbit", "lowbit", "not measurable", case.not_measurable)]
    timings = {c: t for c, t in found.items() if isinstance(t, Timing)}
    copies = {c.nbytes: t for c, t in timings.items() if c.kind == "copy"}
    others = {c.name: t for c, t in timings.items() if c.kind != "copy"}
    rows = []
    for contender, result in found.items():
        nbytes = contender.nbytes or case.nbytes
        common = (family, case.name, contender.name, contender.kind)
        verdicts = [
            _verdict(
                t,
                others.get(t.contender),
                copies.get(nbytes) if t.against == "copy" else others.get(t.against),
                case.doubt,
            )
            for t in case.targets
            if t.contender == contender.name and (threads == 1 or t.any_threads)
        ]
        if isinstance(result, Absent):
            status = "missing" if contender.kind == "peer" else "failed"
            rows.append(Row(*common, status, result.reason, nbytes=nbytes, targets=verdicts))
            continue
        seconds, copy = result.best, copies[nbytes].best if nbytes in copies else None
        ours = {c.name: t.best for c, t in timings.items() if c.kind == "lowbit" and c is not contender}
        rows.append(
            Row(
                *common,
                "measured",
                seconds=seconds,
                median_seconds=result.median,
                spread=result.spread,
                cpus_used=result.cpus_at_best,
                preempted=result.was_preempted,
                rounds=len(result.samples),
                repeats=result.repeats,
                elements=case.elements,
                nbytes=nbytes,
                gigabytes_per_second=nbytes / seconds / 1e9,
                elements_per_second=case.elements / seconds,
                ratio_to_copy=copy / seconds if copy else None,
                roofline_percent=100 * copy / seconds if copy else None,
                lowbit_ratio={name: seconds / best for name, best in ours.items()},
                targets=verdicts,
            )
        )
    return rows


def failed_row(family: str, error: BaseException) -> Row:
    """For a family whose next case could not even be set up."""
    return Row(family, "setting up", "lowbit", "lowbit", "failed", f"{type(error).__name__}: {error}")


def _verdict(target: Target, ours: Timing | None, theirs: Timing | None, doubt: str) -> Verdict:
    """A disturbance makes slower: it casts doubt on a target met against a disturbed peer, and on one missed
    by a disturbed lowbit, and on nothing else."""
    text = f"≥ {target.at_least:g}× {target.label}"
    if ours is None or theirs is None:
        return Verdict(text, target.at_least, None, None, "not measured")
    ratio = theirs.best / ours.best
    met = ratio >= target.at_least
    if met and theirs.was_preempted:
        doubt = f"busy machine, {target.label} was preempted"
    elif met:
        doubt = ""
    elif ours.was_preempted:
        doubt = "busy machine, lowbit was preempted"
    if doubt:
        return Verdict(text, target.at_least, ratio, None, f"{_ratio(ratio)}, not judged: {doubt}")
    return Verdict(text, target.at_least, ratio, met)


# ---- for people -------------------------------------------------------------------------------------


def print_family(console: Console, family: str, about: str, rows: Sequence[Row]) -> None:
    table = Table(box=box.HORIZONTALS, header_style="dim", pad_edge=False, title_justify="left")
    table.title = Text.assemble((family, "bold"), "  ", (about, "dim"))
    table.add_column("", width=_NAME_WIDTH, no_wrap=True)
    for header, width in (("best", 8), ("spread", 6), ("GB/s", 6), ("of copy", 7), ("lowbit is", 9)):
        table.add_column(header, justify="right", width=width, no_wrap=True)
    table.add_column("target", width=_TARGET_WIDTH)
    for case, group in groupby(rows, key=lambda r: r.case):
        table.add_section()
        table.add_row(Text(case, style="bold cyan"))
        members = list(group)
        main = next((r for r in members if r.kind == "lowbit"), None)
        for row in members:
            _add_row(table, row, main)
    console.print(table)
    console.print()


def _add_row(table: Table, row: Row, main: Row | None) -> None:
    style = {"lowbit": "bold", "peer": "", "copy": "dim"}[row.kind]
    name = f"  {row.contender}" + (f", {_bytes(row.nbytes // 2)}" if row.kind == "copy" else "")
    if row.seconds is None:
        color = "red" if row.status == "failed" else "yellow"
        table.add_row(Text(name, style), *[""] * 5, Text(row.absence, color))
        return
    ratio = row.lowbit_ratio.get(main.contender) if main else None
    percent = f"{row.roofline_percent:.0f} %" if row.roofline_percent is not None else ""
    table.add_row(
        Text(name, style),
        Text(("~" if row.preempted else "") + _time(row.seconds), style),
        Text(f"{100 * (row.spread or 0):.0f} %", "dim"),
        Text(_rate(row.gigabytes_per_second or 0), style),
        Text("" if row.kind == "copy" else percent, style),
        Text(f"{_ratio(ratio)}×" if ratio is not None and row.kind != "copy" else "", style),
        Text("\n").join(_verdict_text(v) for v in row.targets),
    )


def _verdict_text(verdict: Verdict) -> Text:
    if verdict.met is None or verdict.measured is None:
        return Text(f"{verdict.text}: {verdict.note}", "yellow")
    if verdict.met:
        return Text(f"{verdict.text}: {_ratio(verdict.measured)} ✓", "green")
    return Text(f"{verdict.text}: {_ratio(verdict.measured)} MISSED", "bold red")


def print_summary(console: Console, rows: Sequence[Row], threads: int) -> None:
    """The verdict on every target, the absentees, and how to read the tables."""
    judged = [(row, v) for row in rows for v in row.targets]
    met = sum(v.met is True for _, v in judged)
    missed = [(row, v) for row, v in judged if v.met is False]
    open_ = sum(v.met is None for _, v in judged) + sum(r.status == "not measurable" for r in rows)
    console.print(f"[bold]Targets:[/] {met} met, {len(missed)} missed, {open_} not judged.")
    for row, verdict in missed:
        console.print(
            f"  [bold red]MISSED[/] {escape(row.family)}: {escape(row.case)}: {escape(row.contender)}: "
            f"{_ratio(verdict.measured or 0)}, target {verdict.text}"
        )
    for (contender, absence), cases in _absences(rows).items():
        color = "bold red" if absence.startswith("failed") else "yellow"
        where = f"in {len(cases)} cases" if len(cases) > 1 else f"in {cases[0]}"
        console.print(f"  [{color}]{escape(contender)}[/] {escape(where)}: {escape(absence)}", highlight=False)
    if threads != 1:
        console.print("  Targets are for one thread: most were not judged. The copy has one thread throughout.")
    console.print(
        "[dim]best: of interleaved rounds. spread: interquartile range over median. "
        "GB/s: bytes read and written.\nof copy: speed beside np.copyto of as many bytes, the roofline.\n"
        "lowbit is: how many times as fast as this row the first row of the case is.\n"
        "~: other work had the CPU even in the best round, so the figure is too slow.[/]"
    )


def _absences(rows: Sequence[Row]) -> dict[tuple[str, str], list[str]]:
    """The cases of every (contender, why it has no figures)."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.seconds is None:
            found.setdefault((row.contender, row.absence), []).append(f"{row.family}: {row.case}")
    return found


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def _rate(gigabytes: float) -> str:
    return f"{gigabytes:.3g}" if gigabytes >= 0.01 else "< 0.01"


def _bytes(count: int) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


# ---- for everything else ----------------------------------------------------------------------------


def write_json(path: Path, facts: Mapping[str, Any], rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {**facts, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
