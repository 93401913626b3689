"""Rows as tables in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from benchmarks.page import seconds_text
from benchmarks.rows import Row, Verdict, ratio_text

_NAME_WIDTH, _TARGET_WIDTH = 32, 33


def print_family(console: Console, family: str, about: str, rows: Sequence[Row]) -> None:
    table = Table(box=box.HORIZONTALS, header_style="dim", pad_edge=False, collapse_padding=True, title_justify="left")
    table.title = Text.assemble((family, "bold"), "  ", (about, "dim"))
    table.add_column("", width=_NAME_WIDTH, no_wrap=True)
    for header, width in (("best", 8), ("spread", 6), ("rate", 10), ("of limit", 8), ("lowbit is", 9)):
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
    style = {"lowbit": "bold", "mean": "bold", "peer": "", "copy": "dim", "limit": "dim"}[row.kind]
    name = f"  {row.contender}" + (f", {_bytes(row.nbytes // 2)}" if row.kind == "copy" else "")
    verdicts = Text("\n").join(_verdict_text(v) for v in row.targets)
    if row.status != "measured":
        color = "red" if row.status == "failed" else "yellow"
        table.add_row(Text(name, style), *[""] * 5, Text(row.absence, color))
        return
    if row.seconds is None:  # a mean over cases
        mean = ratio_text(row.mean or 0)
        table.add_row(Text(name, style), *[""] * 4, Text(f"{mean}×", style), verdicts)
        for case in row.slower:
            table.add_row(Text(f"    slower: {case}"))
        return
    ratio = row.seconds / main.seconds if main and main is not row and main.seconds else None
    percent = f"{row.roofline_percent:.0f} %" if row.roofline_percent is not None else ""
    is_work = row.kind in ("lowbit", "peer")
    table.add_row(
        Text(name, style),
        Text(("~" if row.preempted else "") + seconds_text(row.seconds), style),
        Text(f"{100 * (row.spread or 0):.0f} %", "dim"),
        Text(_rate(row, row.seconds), style),
        Text(percent if is_work else "", style),
        Text(f"{ratio_text(ratio)}×" if ratio is not None and is_work else "", style),
        verdicts,
    )


def _verdict_text(verdict: Verdict) -> Text:
    if verdict.met is None or verdict.measured is None:
        return Text(f"{verdict.text}: {verdict.note}", "yellow")
    if verdict.met:
        return Text(f"{verdict.text}: {ratio_text(verdict.measured)} ✓", "green")
    return Text(f"{verdict.text}: {ratio_text(verdict.measured)} MISSED", "bold red")


def print_summary(console: Console, rows: Sequence[Row], threads: int) -> None:
    """The verdict on every target, the absentees, and how to read the tables."""
    judged = [(row, v) for row in rows for v in row.targets]
    met = sum(v.met is True for _, v in judged)
    missed = [(row, v) for row, v in judged if v.met is False]
    open_ = sum(v.met is None for _, v in judged)
    open_ += sum(r.status == "not measurable" and r.kind == "lowbit" for r in rows)  # whole cases
    console.print(f"[bold]Targets:[/] {met} met, {len(missed)} missed, {open_} not judged.")
    for row, verdict in missed:
        console.print(
            f"  [bold red]MISSED[/] {escape(row.family)}: {escape(row.case)}: {escape(row.contender)}: "
            f"{ratio_text(verdict.measured or 0)}, target {verdict.text}"
        )
    for (contender, absence), cases in _absences(rows).items():
        color = "bold red" if absence.startswith("failed") else "yellow"
        where = f"in {len(cases)} cases" if len(cases) > 1 else f"in {cases[0]}"
        console.print(f"  [{color}]{escape(contender)}[/] {escape(where)}: {escape(absence)}", highlight=False)
    if threads != 1:
        console.print("  Targets are for one thread: most were not judged. The copy has one thread throughout.")
    console.print(
        "[dim]best: of interleaved rounds. spread: interquartile range over median. "
        "GB/s: bytes read and written.\nof limit: speed beside a limit of the machine that is in the case, else beside "
        "np.copyto of as many bytes.\n"
        "lowbit is: how many times as fast as this row the first row of the case is.\n"
        "~: other work had the CPU even in the best round, so the figure is too slow.[/]"
    )


def _absences(rows: Sequence[Row]) -> dict[tuple[str, str], list[str]]:
    """The cases of every (contender, why it has no figures)."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.status != "measured":
            found.setdefault((row.contender, row.absence), []).append(f"{row.family}: {row.case}")
    return found


def _rate(row: Row, seconds: float) -> str:
    counted, unit = (row.operations, "GOPS") if row.operations else (row.nbytes, "GB/s")
    rate = counted / seconds / 1e9
    if rate < 0.01:
        return f"< 0.01 {unit}"
    return f"{rate:.{3 if rate >= 0.1 else 2}g} {unit}"


def _bytes(count: int) -> str:
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
