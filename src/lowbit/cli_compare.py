"""`lowbit compare`: two models side by side."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from lowbit.cli_quantize import decibels, latency_line, megabytes, output_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lowbit.formats.comparison import Comparison

__all__ = ["compare"]


def compare(
    first: Annotated[Path, typer.Argument(help="The model to hold the other against.")],
    second: Annotated[Path, typer.Argument(help="The other: two .onnx files, or two checkpoints.")],
    data: Annotated[
        Path | None, typer.Option(help="Batches: an .npz or .npy file, or a folder of them.", show_default=False)
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Rows of the data a batch.", show_default=False)] = None,
    max_batches: Annotated[int | None, typer.Option(help="Use no more than these.", show_default=False)] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Your own figure of both models: metric(predict, batches).", metavar="MODULE:FUNCTION"),
    ] = None,
    seconds: Annotated[float, typer.Option(help="How long to measure latency; 0 for not at all.")] = 2.0,
    threads: Annotated[list[int], typer.Option(help="Measure latency with so many threads.")] = [1],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Measure two models side by side: size, outputs, latency; or two checkpoints, weight by weight."""
    from lowbit.errors import FormatError, InvalidProblem, Unsupported, UnsupportedDType
    from lowbit.formats.comparison import compare_files

    try:
        with Console(stderr=True, quiet=as_json).status("Comparing"):
            found = compare_files(
                first, second, data=data, batch_size=batch_size, max_batches=max_batches, metric=metric,
                seconds=seconds, threads=tuple(threads),
            )  # fmt: skip
    except (InvalidProblem, Unsupported, UnsupportedDType, FormatError, OSError, ModuleNotFoundError) as error:
        typer.echo(f"lowbit: {' '.join(str(error).split())}", err=True)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1))
        return
    screen = Console()
    if found.weights:
        screen.print(_weights(found))
    ratio = found.first_bytes / found.second_bytes if found.second_bytes else float("inf")
    lines = [f"{megabytes(found.first_bytes)} → {megabytes(found.second_bytes)} ({ratio:.2f}× smaller)"]
    lines += [output_line(a) for a in found.accuracy]
    lines += [f"{m.name}: {m.float_value:.6g} → {m.quantized_value:.6g}" for m in found.metrics]
    lines += [latency_line(t) for t in found.latency]
    for line in lines:
        screen.print(line, markup=False, highlight=False)
    for note in found.notes:
        screen.print(f"Note: {note}", style="yellow", markup=False, highlight=False)


def _weights(found: "Comparison") -> "RenderableType":
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, header_style="bold cyan", show_edge=False, pad_edge=False)
    table.add_column("weight", overflow="fold")
    for heading in ("shape", "first", "second", "bytes", "SQNR dB"):
        table.add_column(heading, justify="right")
    for w in found.weights:
        shape = "×".join(map(str, w.shape))
        size = f"{w.first_bytes:,} → {w.second_bytes:,}"
        table.add_row(w.name, shape, w.first, w.second, size, decibels(w.sqnr_db))
    return table
