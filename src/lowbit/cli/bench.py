"""`lowbit bench`: operations measured against float baselines, and results compared with earlier ones."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.text import Text

from lowbit.cli.errors import end_interrupted, refuse_given, refuse_unwritable
from lowbit.cli.options import AS_JSON
from lowbit.cli.screen import printable, screen, table
from lowbit.numerics.errors import InvalidProblem

if TYPE_CHECKING:
    from lowbit.bench import BenchmarkSummary, Change

_WIDEST = 100


EPILOG = """Examples:

  lowbit bench --quick --only quantization,matrix --out results.json

  lowbit bench --compare old.json new.json
"""


def bench(
    ctx: typer.Context,
    only: Annotated[
        str | None,
        typer.Option(
            help="Run only these of quantization, matrix, elementwise, memory and comparative.", metavar="FAMILY,..."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run fewer sizes.")] = False,
    seconds: Annotated[float, typer.Option(help="Seconds of measuring per operation.")] = 0.5,
    timeout: Annotated[float, typer.Option(help="Seconds after which an operation is abandoned.")] = 10.0,
    threads: Annotated[int | None, typer.Option(help="Number of threads. The default is the number in use.")] = None,
    out: Annotated[
        list[Path], typer.Option(help="Write the results to this .json, .csv or .md file. Repeatable.")
    ] = [],  # noqa: B006
    roofline: Annotated[
        Path | None, typer.Option(help="Plot matrix products under this machine's roofline: PNG, SVG or PDF.")
    ] = None,
    compare: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Measure nothing; print what changed between two .json files.", metavar="OLD NEW"),
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """Measure quantized operations against float32 baselines and the limits of this machine.

    With --compare, exit with code 1 if an operation became slower.
    """
    if compare is not None:
        why = "--compare measures nothing"
        refuse_given(ctx, why, "only", "quick", "seconds", "timeout", "threads", "out", "roofline")
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
        end_interrupted(f"{', '.join(map(str, out)) or 'shown'} is what was measured until then")


def _check_targets(out: list[Path], roofline: Path | None, only: str | None) -> None:
    """Raise for targets that cannot be written, before minutes are spent on measuring."""
    for path in out:
        refuse_unwritable("--out", path, (".json", ".csv", ".md"))
    if roofline is not None:
        refuse_unwritable("--roofline", roofline, (".png", ".svg", ".pdf"))
        if only is not None and "matrix" not in _families(only):
            raise InvalidProblem("--roofline: it draws the matrix family, which --only leaves out")


def _families(only: str) -> list[str]:
    return [family.strip() for family in only.split(",")]


def _run(
    only: str | None, quick: bool, seconds: float, timeout: float, threads: int | None, quiet: bool
) -> "BenchmarkSummary":
    from lowbit.bench import BenchmarkConfig, QuantizationBenchmarkSuite

    config = BenchmarkConfig(seconds=seconds, timeout=timeout, threads=threads, sizes="quick" if quick else "full")
    shown = screen(stderr=True, quiet=quiet)
    with shown.status("Starting") as status:

        def say(text: str) -> None:
            status.update(text)
            if not shown.is_terminal:  # there a status shows nothing
                shown.print(text)

        return QuantizationBenchmarkSuite(config).run(None if only is None else _families(only), say)


def _console() -> Console:
    shown = screen()
    shown.width = min(shown.width, _WIDEST)
    return shown


def _show(summary: "BenchmarkSummary", written: list[Path]) -> None:
    shown = _console()
    for family in dict.fromkeys(r.family for r in summary.results):
        shown.print(_table(summary, family))
    shown.print(f"{summary.setting}.", style="dim")
    if written:
        shown.print(printable("Wrote " + ", ".join(map(str, written))), style="dim")


def _table(summary: "BenchmarkSummary", family: str) -> RenderableType:
    from lowbit.bench.results import table_cells, table_heads

    made = table(family, " ")
    for i, heading in enumerate(table_heads(family)):
        made.add_column(heading, justify="right" if i else "left", no_wrap=bool(i))
    for r in summary.of(family):
        first, *rest = table_cells(r)
        made.add_row(Text(first, style={"ok": "", "timeout": "yellow", "failed": "red"}[r.status]), *rest)
    return made


def _compared(old_path: Path, new_path: Path, as_json: bool) -> None:
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
                typer.echo(printable(f"lowbit: the {what} differ: {one} and {other}"), err=True)
        _show_changes(changes)
    if any(c.kind == "regression" for c in changes):
        raise typer.Exit(1)


def _show_changes(changes: "list[Change]") -> None:
    from lowbit.bench.results import seconds_text

    shown = _console()
    styles = {"regression": "red", "improvement": "green", "missing": "yellow", "added": "cyan"}
    flagged = sorted((c for c in changes if c.kind in styles), key=lambda c: list(styles).index(c.kind))
    if flagged:
        made = table()
        for i, heading in enumerate(("operation", "change", "old", "new", "new / old")):
            made.add_column(heading, justify="right" if i > 1 else "left", no_wrap=i > 0)
        for c in flagged:
            name = printable(c.name) + (f"\n  {printable(c.note)}" if c.note else "")
            times = ["" if t is None else seconds_text(t) for t in (c.old, c.new)]
            made.add_row(name, Text(c.kind, style=styles[c.kind]), *times, "" if c.ratio is None else f"{c.ratio:.2f}")
        shown.print(made)
    kinds = [f"{sum(c.kind == kind for c in changes)} {kind}" for kind in ("same", *styles)]
    shown.print(", ".join(kinds), style="dim")
