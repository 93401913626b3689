"""`lowbit bench`: operations beside float ones on this machine, kept in files and held against earlier ones."""

# No `from __future__ import annotations`: typer reads the annotations.
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from lowbit.cli_errors import told_in_one_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lowbit.bench import BenchmarkSummary, Change

__all__ = ["bench"]

_WIDEST = 100


def bench(
    only: Annotated[
        str | None,
        typer.Option(
            help="Some of quantization, matrix, elementwise, memory, comparative.",
            metavar="FAMILY,...",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer sizes.")] = False,
    seconds: Annotated[float, typer.Option(help="For each operation.")] = 0.5,
    timeout: Annotated[float, typer.Option(help="Seconds after which an operation is given up.")] = 10.0,
    threads: Annotated[int | None, typer.Option(help="Instead of those in use.", show_default=False)] = None,
    out: Annotated[list[Path], typer.Option(help="Keep the results: .json, .csv or .md.", show_default=False)] = [],  # noqa: B006
    roofline: Annotated[
        Path | None, typer.Option(help="Draw products below the machine's limits: PNG, SVG or PDF.", show_default=False)
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Only say what changed between two .json files.", metavar="OLD NEW", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Time operations beside float32 ones, and against what the machine can do."""
    with told_in_one_line():
        if compare is not None:
            _compared(*compare, as_json=as_json)
            return
        _check_targets(out, roofline, only)
        summary = _run(only, quick, seconds, timeout, threads, quiet=as_json)
        for path in out:
            summary.save(path)
        if not summary.complete and not any(r.timing for r in summary.of("matrix")):
            roofline = None  # Ctrl-C came before there was anything to draw
        if roofline is not None:
            from lowbit.bench import plot_roofline

            plot_roofline(summary, roofline)
    if as_json:
        typer.echo(summary.to_json())
    else:
        _show(summary, [*out, *([] if roofline is None else [roofline])])
    if not summary.complete:
        raise typer.Exit(130)


def _check_targets(out: list[Path], roofline: Path | None, only: str | None) -> None:
    """Before minutes are spent on measuring."""
    from lowbit.errors import InvalidProblem

    for path in out:
        if path.suffix.lower() not in (".json", ".csv", ".md"):
            raise InvalidProblem(f"out: {path}; expected a name that ends in .json, .csv or .md")
    if roofline is not None and roofline.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise InvalidProblem(f"roofline: {roofline}; expected a name that ends in .png, .svg or .pdf")
    if roofline is not None and only is not None and "matrix" not in _families(only):
        raise InvalidProblem("roofline: it draws the matrix family, which --only leaves out")
    for path in [*out, *([] if roofline is None else [roofline])]:
        if not path.absolute().parent.is_dir():
            raise InvalidProblem(f"{path}: its folder does not exist")


def _families(only: str) -> list[str]:
    return [family.strip() for family in only.split(",")]


def _run(
    only: str | None, quick: bool, seconds: float, timeout: float, threads: int | None, quiet: bool
) -> "BenchmarkSummary":
    from lowbit.bench import BenchmarkConfig, QuantizationBenchmarkSuite

    config = BenchmarkConfig(seconds=seconds, timeout=timeout, threads=threads, sizes="quick" if quick else "full")
    screen = Console(stderr=True, quiet=quiet)
    with screen.status("Starting") as status:

        def say(text: str) -> None:
            status.update(text)
            if not screen.is_terminal:  # there a status shows nothing
                screen.print(text, markup=False, highlight=False)

        return QuantizationBenchmarkSuite(config).run(None if only is None else _families(only), say)


def _console() -> Console:
    screen = Console()
    if screen.width > _WIDEST:
        screen.width = _WIDEST
    return screen


def _show(summary: "BenchmarkSummary", written: list[Path]) -> None:
    screen = _console()
    for family in dict.fromkeys(r.family for r in summary.results):
        screen.print(_table(summary, family))
    screen.print(f"{summary.setting}.", style="dim", markup=False, highlight=False)
    if not summary.complete:
        screen.print("Stopped before the end.", style="yellow")
    if written:
        screen.print("Wrote " + ", ".join(map(str, written)), style="dim", markup=False, highlight=False)


def _table(summary: "BenchmarkSummary", family: str) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from lowbit.bench.results import table_cells, table_heads

    table = Table(
        title=f"{family}\n", title_style="bold", title_justify="left", box=box.SIMPLE_HEAD, caption=" ",
        header_style="bold cyan", show_edge=False, pad_edge=False,
    )  # fmt: skip
    for i, heading in enumerate(table_heads(family)):
        table.add_column(heading, justify="right" if i else "left", no_wrap=bool(i))
    for r in summary.of(family):
        first, *rest = table_cells(r)
        table.add_row(Text(first, style={"ok": "", "timeout": "yellow", "failed": "red"}[r.status]), *rest)
    return table


def _compared(old_path: Path, new_path: Path, as_json: bool) -> None:
    import json
    from dataclasses import asdict

    from lowbit.bench import BenchmarkSummary
    from lowbit.bench import compare as changes_between

    old, new = BenchmarkSummary.load(old_path), BenchmarkSummary.load(new_path)
    changes = changes_between(old, new)
    if as_json:
        typer.echo(json.dumps([asdict(c) | {"ratio": c.ratio} for c in changes], indent=2))
    else:
        for what, one, other in (
            ("CPUs", old.hardware.get("cpu"), new.hardware.get("cpu")),
            ("kernels", old.limits.get("isa"), new.limits.get("isa")),
            ("threads", old.threads, new.threads),
        ):
            if one != other:
                typer.echo(f"lowbit: the {what} differ: {one} and {other}", err=True)
        _show_changes(changes)
    if any(c.kind == "regression" for c in changes):
        raise typer.Exit(1)


def _show_changes(changes: "list[Change]") -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from lowbit.bench.results import seconds_text

    screen = _console()
    styles = {"regression": "red", "improvement": "green", "missing": "yellow", "added": "cyan"}
    flagged = sorted((c for c in changes if c.kind in styles), key=lambda c: list(styles).index(c.kind))
    if flagged:
        table = Table(box=box.SIMPLE_HEAD, header_style="bold cyan", show_edge=False, pad_edge=False)
        for i, heading in enumerate(("operation", "change", "old", "new", "new / old")):
            table.add_column(heading, justify="right" if i > 1 else "left", no_wrap=i > 0)
        for c in flagged:
            name = c.name + (f"\n  {c.note}" if c.note else "")
            times = ["" if t is None else seconds_text(t) for t in (c.old, c.new)]
            table.add_row(name, Text(c.kind, style=styles[c.kind]), *times, "" if c.ratio is None else f"{c.ratio:.2f}")
        screen.print(table)
    kinds = [f"{sum(c.kind == kind for c in changes)} {kind}" for kind in ("same", *styles)]
    screen.print(", ".join(kinds), style="dim", highlight=False)
