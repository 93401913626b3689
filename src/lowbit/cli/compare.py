"""`lowbit compare`: two models side by side."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType

from lowbit.cli.errors import refuse_given
from lowbit.cli.options import AS_JSON, BATCH_SIZE, DATA, MAX_BATCHES, METRIC, SECONDS, THREADS
from lowbit.cli.screen import decibels, megabytes, print_measured, print_notes, printable, screen, table

if TYPE_CHECKING:
    from lowbit.formats.comparison import Comparison

EPILOG = "Example: lowbit compare model.onnx model.static-int8.onnx --data batches/"


def compare(
    ctx: typer.Context,
    first: Annotated[Path, typer.Argument(help="The baseline: an .onnx file or a checkpoint.")],
    second: Annotated[Path, typer.Argument(help="The model to compare with it, of the same kind.")],
    data: DATA = None,
    batch_size: BATCH_SIZE = None,
    max_batches: MAX_BATCHES = None,
    metric: METRIC = None,
    seconds: SECONDS = 2.0,
    threads: THREADS = [1],  # noqa: B006
    as_json: AS_JSON = False,
) -> None:
    """Compare two models: ONNX models by size, outputs and latency; checkpoints weight by weight.

    Without --data, ONNX models run on one batch of random inputs.
    """
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
    options: dict[str, Any] = {"data": data, "batch_size": batch_size, "max_batches": max_batches, "metric": metric}
    with screen(stderr=True, quiet=as_json).status("Comparing"):
        found = compare_files(first, second, seconds=seconds, threads=tuple(threads), **options)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1))
        return
    shown = screen()
    if found.weights:
        shown.print(_weights(found))
    ratio = found.first_bytes / found.second_bytes if found.second_bytes else float("inf")
    shown.print(f"{megabytes(found.first_bytes)} → {megabytes(found.second_bytes)} ({ratio:.2f}× smaller)")
    print_measured(found, shown)
    print_notes(found, shown)


def _weights(found: "Comparison") -> RenderableType:
    made = table()
    made.add_column("weight", overflow="fold")
    for heading in ("shape", "first", "second", "bytes", "SQNR dB"):
        made.add_column(heading, justify="right")
    for w in found.weights:
        shape = "×".join(map(str, w.shape))
        size = f"{w.first_bytes:,} → {w.second_bytes:,}"
        name, first, second = map(printable, (w.name, w.first, w.second))
        made.add_row(name, shape, first, second, size, decibels(w.sqnr_db))
    return made
