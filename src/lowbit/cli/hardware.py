"""`lowbit hardware`: the CPU, its instruction sets and what lowbit uses of them."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lowbit.cli.options import AS_JSON
from lowbit.cli.screen import screen

if TYPE_CHECKING:
    from lowbit.runtime.hardware import HardwareFeatures


def hardware(
    as_json: AS_JSON = False,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also measure peak throughput and bandwidth (takes some seconds).")
    ] = False,
) -> None:
    """Show this machine's CPU, caches and GPUs, and the instruction set that lowbit uses."""
    from lowbit.runtime.hardware import hardware as detect

    found = detect()
    facts: dict[str, Any] = {}
    if probe:
        from lowbit.runtime.hints import performance_hints
        from lowbit.runtime.limits import limits

        facts = {"limits": limits(), "hints": performance_hints()}
    if as_json:  # not by rich: it must reach pipes unwrapped and uncoloured
        typer.echo(json.dumps({**found.to_dict(), **{k: v.to_dict() for k, v in facts.items()}}, indent=2))
        return
    shown = screen()
    shown.print(_panel(found))
    for text in facts.values():
        shown.print(str(text))


def _panel(found: "HardwareFeatures") -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold cyan", no_wrap=True)
    grid.add_column()
    absent = " ".join(name for name, has in found.features.items() if not has)
    for label, text in found.summary():
        grid.add_row(label, Text(text, style="green" if label == "Features" else ""))
        if label == "Features" and absent:
            grid.add_row("", Text(f"without {absent}", style="dim"))
    title = Text.assemble(("lowbit", "bold"), " on this machine")
    return Panel(grid, title=title, title_align="left", expand=False, padding=(1, 2))
