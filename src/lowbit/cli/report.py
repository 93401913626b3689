"""The report of a quantized model on the screen: what to know first, then a row per weight, then the notes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, RenderableType
from rich.text import Text

from lowbit.cli.screen import add_numbers, decibels, megabytes, print_measured, print_notes, printable, table
from lowbit.report.wording import size

if TYPE_CHECKING:
    from lowbit.models import ModelReport, WeightRow

_ROWS = 40  # of weights on the screen; the report has all
_TALL = 12  # rows after which the first lines may be out of sight
_NAME, _HOW = 12, 31  # characters that their columns have at least
_BETWEEN = 9  # characters between four columns
_NUMBER = re.compile(r"\d[\d.,]*")


def show_report(made: ModelReport, shown: Console) -> None:
    """Print the report as text."""
    for text in made.warnings:
        shown.print(Text("Warning: ", "bold red").append(printable(text), "not bold red"))
    bits = made.bits_per_weight
    shown.print(
        f"{len(made.treated)} of {len(made.rows)} weights; {megabytes(made.bytes_before)} → "
        f"{megabytes(made.bytes_after)} ({made.ratio:.2f}× smaller) in {made.seconds:.1f} s"
        + ("" if bits is None else f"; {bits:.2f} bits per weight"),
        style="bold",
    )
    for line in made.methods:
        shown.print(printable(line))
    print_measured(made, shown)
    if made.skipped:
        names = ", ".join(printable(r.name) for r in made.skipped[:8]) + (" ..." if len(made.skipped) > 8 else "")
        shown.print(f"Asked for and not done: {len(made.skipped)} ({names})", style="bold red")
    shown.print()
    rows = _chosen(list(made.rows))
    remarks = _Remarks(made)
    shown.print(_weights(made, rows, remarks, shown.width))
    for line in remarks.lines(len(made.rows) - len(rows)):
        shown.print(printable(line), style="dim")
    print_notes(made, shown)
    if made.warnings and len(rows) > _TALL:
        count = len(made.warnings)
        shown.print(f"{count} warning{'s' * (count > 1)}: see the first lines", style="bold red")


class _Remarks:
    """What is said of rows, numbered, so that it stands once below the table. Texts that differ in numbers alone are
    one remark."""

    def __init__(self, made: ModelReport) -> None:
        self._made = made
        activations = {r.activations for r in made.treated}
        self._common = next(iter(activations)) if len(activations) == 1 else None
        self._found: dict[str, list[str]] = {}  # texts by what they have in common

    def numbers(self, row: WeightRow) -> str:
        """The numbers of the remarks on a row, as (1, 3)."""
        said = row.note.split("; ") if row.note else []
        if row.treated and row.activations and row.activations != self._common:
            said.append(f"activations {row.activations}")
        if not row.treated and row.why_not:
            said.insert(0, row.why_not)
        for text in said:
            self._found.setdefault(_NUMBER.sub("#", text), []).append(text)
        order = list(self._found)
        return f" ({', '.join(str(order.index(_NUMBER.sub('#', text)) + 1) for text in said)})" if said else ""

    def lines(self, left_out: int) -> list[str]:
        """The lines below the table. left_out: the number of rows that it lacks."""
        found = []
        for i, texts in enumerate(self._found.values(), 1):
            others = len(set(texts)) - 1
            found.append(f"({i}) {texts[0]}" + (f"; {others} other{'s' * (others > 1)} alike" if others else ""))
        if self._common:
            found.append(f"Activations: {self._common}")
        guards = sorted(r.guard_db for r in self._made.rows if r.guard_db >= 0.05)
        if guards:
            cost = "–".join(dict.fromkeys(decibels(g) for g in (guards[0], guards[-1])))
            found.append(
                f"{len(guards)} weights give up {cost} dB for CPUs without VNNI; not so with --target-cpu vnni"
            )
        if left_out:
            found.append(f"{left_out} more weights; --report shows all")
        return found


def _weights(made: ModelReport, rows: list[WeightRow], remarks: _Remarks, width: int) -> RenderableType:
    """The table, in columns that fit the screen: long names are folded first."""
    cells = []
    several = len({row.method for row in made.treated}) > 1  # one is named above the table
    for row in rows:
        style = "" if row.treated else "red" if row.skipped else "dim"
        how = Text(printable((row.described if several else row.how) or "as it was"), style=style).append(
            remarks.numbers(row), style="dim"
        )
        stored = f"{_short(row.bytes_before)} → {_short(row.bytes_after)}" if row.treated else _short(row.bytes_before)
        cells.append((Text(printable(row.name), style=style), how, stored, decibels(row.sqnr_db)))
    widths = [max((len(cell[i]) for cell in cells), default=0) for i in (1, 2, 3)]
    widths[0] = min(widths[0], max(_HOW, width // 3))
    found = table(printable(f"{Path(made.source).name} → {made.target}"))
    found.add_column("weight", overflow="fold", max_width=max(_NAME, width - sum(widths) - _BETWEEN))
    found.add_column("how", overflow="fold", max_width=widths[0])
    add_numbers(found, ["bytes", "dB"])
    for cell in cells:
        found.add_row(*cell)
    return found


def _short(count: int) -> str:
    return size(count).replace(" bytes", " B").replace(" byte", " B")


def _chosen(rows: list[WeightRow]) -> list[WeightRow]:
    """The rows that fit on the screen: up to half of them for weights that were not quantized."""
    if len(rows) <= _ROWS:
        return rows
    first = [r for r in rows if r.skipped] + [r for r in rows if not r.treated and not r.skipped]
    chosen = {id(r) for r in (*first[: _ROWS // 2], *(r for r in rows if r.treated))}
    return [r for r in rows if id(r) in chosen][:_ROWS]
