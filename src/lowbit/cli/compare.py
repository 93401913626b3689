"""`lowbit compare`: two models side by side."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowbit.cli.errors import printable, refuse_given, screen
from lowbit.cli.quantize import (
    AS_JSON,
    BATCH_SIZE,
    DATA,
    MAX_BATCHES,
    METRIC,
    SECONDS,
    THREADS,
    decibels,
    latency_line,
    megabytes,
    output_line,
)  # fmt: skip

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lowbit.formats.comparison import Comparison

__all__ = ["compare"]


def compare(
    ctx: typer.Context,
    first: Annotated[Path, typer.Argument(help="The model to hold the other against.")],
    second: Annotated[Path, typer.Argument(help="The other: two .onnx files, or two checkpoints.")],
    data: DATA = None,
    batch_size: BATCH_SIZE = None,
    max_batches: MAX_BATCHES = None,
    metric: METRIC = None,
    seconds: SECONDS = 2.0,
    threads: THREADS = [1],  # noqa: B006
    as_json: AS_JSON = False,
) -> None:
    """Measure two models side by side: size, outputs, latency; or two checkpoints, weight by weight."""
    from lowbit.formats.comparison import compare_files
    from lowbit.formats.files import kind_of

    if kind_of(first) == "checkpoint":
        why = "checkpoints are compared by their weights alone, and not run"
        timed = () if seconds == 0 else ("seconds",)  # 0 asks for nothing
        refuse_given(ctx, why, "data", "batch_size", "max_batches", "metric", "threads", *timed)
    elif data is None:
        refuse_given(ctx, "without --data there is one batch of random inputs", "max_batches")
    if seconds == 0:
        refuse_given(ctx, "with --seconds 0 no latency is measured", "threads")
    with screen(stderr=True, quiet=as_json).status("Comparing"):
        found = compare_files(
            first, second, data=data, batch_size=batch_size, max_batches=max_batches, metric=metric,
            seconds=seconds, threads=tuple(threads),
        )  # fmt: skip
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1))
        return
    shown = screen()
    if found.weights:
        shown.print(_weights(found))
    ratio = found.first_bytes / found.second_bytes if found.second_bytes else float("inf")
    lines = [f"{megabytes(found.first_bytes)} → {megabytes(found.second_bytes)} ({ratio:.2f}× smaller)"]
    lines += [output_line(a) for a in found.accuracy]
    lines += [f"{m.name}: {m.float_value:.6g} → {m.quantized_value:.6g}" for m in found.metrics]
    lines += [latency_line(t) for t in found.latency]
    for line in lines:
        shown.print(printable(line))
    for note in found.notes:
        shown.print(f"Note: {printable(note)}", style="yellow")


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
        name, first, second = map(printable, (w.name, w.first, w.second))
        table.add_row(name, shape, first, second, size, decibels(w.sqnr_db))
    return table
