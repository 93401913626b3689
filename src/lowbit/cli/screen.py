"""What commands print: a console, tables, and the lines that reports and comparisons share."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from lowbit.formats.comparison import Comparison
    from lowbit.models import ModelReport


def screen(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console that takes text literally: names from files may look like markup."""
    return Console(stderr=stderr, quiet=quiet, markup=False, highlight=False, emoji=False)


def printable(text: str) -> str:
    """The text with escapes for what would move the cursor or turn the text around: names come from untrusted files.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def table(title: str = "", caption: str = "", **options: Any) -> Table:
    """An empty table in the style of all commands."""
    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "header_style": "bold cyan", "show_edge": False}
    style |= {"title_style": "bold", "title_justify": "left", "caption_justify": "left", "pad_edge": False}
    return Table(title=f"{title}\n" if title else None, caption=caption or None, **style | options)


def add_numbers(to: Table, headings: Iterable[str]) -> None:
    """Add right-aligned columns."""
    for heading in headings:
        to.add_column(heading, justify="right", no_wrap=True)


def print_measured(found: ModelReport | Comparison, shown: Console) -> None:
    """Print what was measured on two models: outputs, metrics and latency, one line each."""
    lines = [
        f"{a.output}: SQNR {decibels(a.sqnr_db)} dB, cosine {a.cosine:.6f}, largest error {a.max_error:.4g}, "
        f"over {a.samples:,} sample{'s' * (a.samples != 1)}"
        for a in found.accuracy
    ]
    lines += [f"{m.name}: {m.float_value:.6g} → {m.quantized_value:.6g}" for m in found.metrics]
    lines += [
        f"{t.runtime}, {t.threads} thread{'s' * (t.threads > 1)}, {t.shape}: {t.float_ms:.3f} ms → "
        f"{t.quantized_ms:.3f} ms ({'SLOWER: ' * (t.speedup < 0.995)}{t.speedup:.2f}× as fast)"
        for t in found.latency
    ]
    for line in lines:
        shown.print(printable(line))


def print_notes(found: ModelReport | Comparison, shown: Console) -> None:
    """Print the notes, one line each."""
    for note in found.notes:
        shown.print(f"Note: {printable(note)}", style="yellow")


def decibels(value: float | None) -> str:
    """A value in decibels with one decimal; a dash for None."""
    return "–" if value is None else "∞" if value == math.inf else f"{value:.1f}"


def megabytes(count: int) -> str:
    """A number of bytes with its unit."""
    return f"{count / 1e6:,.2f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} kB"


def noting(notes: list[str], quiet: bool = False) -> Callable[[str], None]:
    """A function that keeps a note in the list, and shows it on stderr at once unless `quiet`."""
    shown = screen(stderr=True, quiet=quiet)

    def note(text: str) -> None:
        notes.append(text)
        shown.print(f"Note: {printable(text)}", style="yellow")

    return note
