"""`lowbit observe`: statistics of what the layers of a model multiply, for recipes that need them."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from lowbit.cli.errors import refuse_given
from lowbit.cli.options import AS_JSON, DATA, MAX_BATCHES, SEQUENCE_LENGTH, bytes_of
from lowbit.cli.screen import add_numbers, noting, printable, screen, table
from lowbit.numerics.errors import InvalidProblem

if TYPE_CHECKING:
    from lowbit.formats.statistics import Group, Statistics

EPILOG = """Examples:

  lowbit observe model.onnx --data batches/ -o stats

  lowbit observe llm/ --data text.txt -o stats --max-memory 4GB

  lowbit observe model.onnx --data batches/ -o part1 --shard 1/3

  lowbit observe --merge part1 part2 part3 -o stats
"""


def observe(
    ctx: typer.Context,
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="An .onnx file, or the folder of a causal language model; with --merge, folders of statistics.",
            metavar="MODEL...",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.", metavar="PATH")],
    data: DATA = None,
    merge: Annotated[
        bool, typer.Option("--merge", help="Add up statistics of one model, of several shards or sets of data.")
    ] = False,
    gram: Annotated[
        bool,
        typer.Option(
            "--gram/--diagonal",
            help="Collect E[x xᵀ] of each layer's inputs, which gptq needs, or E[x²] alone, which is small and fast.",
        ),
    ] = True,
    shard: Annotated[
        str | None,
        typer.Option(help="Take every n-th record, from the i-th: n processes, then --merge.", metavar="I/N"),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Records that the model runs on at once. The default is 1, or the model's own: no record changes what "
            "is computed for another.",
            min=1,
            metavar="N",
        ),
    ] = None,
    max_batches: MAX_BATCHES = None,
    sequence_length: SEQUENCE_LENGTH = None,
    max_memory: Annotated[
        str,
        typer.Option(
            help="Memory for sums, beside the model's; with a language model, for a layer, its sums and hidden states. "
            "What needs more takes several passes over the data.",
            metavar="SIZE",
        ),
    ] = "2GB",
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace statistics that are there.")] = False,
    as_json: AS_JSON = False,
) -> None:
    """Collect statistics of what each layer multiplies: once per model and data, for any number of recipes.

    The folder is written whole or not at all, and has the same bytes for any order of records, threads and shards.
    """
    from lowbit.formats.observing import observe_file
    from lowbit.formats.statistics import merge_statistics

    limit = bytes_of(max_memory, "--max-memory")
    remarks: list[str] = []
    kept: dict[str, Any] = {"resume": resume, "overwrite": overwrite}
    if merge:
        why = "--merge adds up statistics, and runs no model"
        refuse_given(ctx, why, "data", "gram", "shard", "batch_size", "max_batches", "sequence_length", "max_memory")
        with _bar(not as_json) as told:
            found = merge_statistics(sources, output, **kept, progress=told)
    else:
        if len(sources) > 1:
            raise InvalidProblem(f"sources: {len(sources)}; expected one model, or --merge and folders of statistics")
        if data is None:
            raise InvalidProblem("--data: missing; expected what to run the model on: arrays, or text for a checkpoint")
        options: dict[str, Any] = {"gram": gram, "shard": shard, "batch_size": batch_size, "max_batches": max_batches}
        options["sequence_length"] = sequence_length
        options |= {"max_bytes": limit, "progress": not as_json, "warn": noting(remarks, as_json)}
        found = observe_file(sources[0], data, output, **options, **kept)
    show_statistics(found, as_json=as_json, remarks=remarks)


@contextmanager
def _bar(wanted: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, where that is a terminal."""
    console = screen(stderr=True)
    if not wanted or not console.is_terminal:
        yield None
        return
    from rich.progress import Progress

    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("Merging", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _together(names: tuple[str, ...]) -> str:
    """Names in a row, those that differ in one part as one.

    >>> _together(("h.0.k.weight", "h.0.q.weight")), _together(("one", "two"))
    ('h.0.{k,q}.weight', 'one, two')
    """
    columns = list(zip(*(name.split(".") for name in names), strict=False))
    parts = [",".join(dict.fromkeys(column)) for column in columns]
    odd = [i for i, column in enumerate(columns) if len(set(column)) > 1]
    if len(odd) != 1 or len(columns) < 2 or len({name.count(".") for name in names}) > 1:
        return ", ".join(names)
    parts[odd[0]] = f"{{{parts[odd[0]]}}}"
    return ".".join(parts)


def show_statistics(
    found: "Statistics", *, groups: "list[Group] | None" = None, as_json: bool = False, remarks: Sequence[str] = ()
) -> None:
    """Print statistics, or some groups of them: of each layer its inputs, rows, kind and bytes. remarks: notes that
    were printed already, which are in the JSON too."""
    from lowbit.report.wording import size

    shown, notes = found.shared() if groups is None else groups, found.notes()
    if as_json:
        said: dict[str, Any] = {"path": str(found.folder), "model": found.model, "options": dict(found.options)}
        said |= {"data": [part.to_dict() for part in found.data], "bytes": found.nbytes, "notes": [*remarks, *notes]}
        typer.echo(json.dumps(said | {"layers": [group.to_dict() for group in shown]}, indent=2))
        return
    out = screen()
    caption = f"{len(found):,} layers, {found.records:,} records, {size(found.nbytes)} in {found.folder}"
    made = table(caption=f"\n{printable(caption)}", padding=(0, 1, 0, 0))
    made.add_column("layer", overflow="fold", ratio=1)
    add_numbers(made, ("inputs", "rows", "kind", "size"))
    for group in shown:
        inputs = f"{group.groups}×{group.width}" if group.groups > 1 else str(group.width)
        made.add_row(Text(printable(_together(group.names))), inputs, f"{group.rows:,}", group.kind, size(group.nbytes))
    out.print(made)
    for note in notes:
        out.print(f"Note: {printable(note)}", style="yellow")
