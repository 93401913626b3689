"""`lowbit inspect`: the tensors of a model's file."""

# No `from __future__ import annotations`: typer reads the annotations.
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from lowbit.cli.options import AS_JSON
from lowbit.cli.screen import add_numbers, printable, screen, table
from lowbit.numerics.errors import InvalidProblem

if TYPE_CHECKING:
    from lowbit.formats.inspection import Inspection, StoredTensor
    from lowbit.models import Override


EPILOG = "Example: lowbit inspect model.safetensors --filter '*.q_proj.*' --sort size --top 20"


def inspect(
    file: Annotated[
        Path, typer.Argument(help="An .onnx, .safetensors, .gguf, .npz or .npy file, an index, or a folder.")
    ],
    match: Annotated[
        str | None,
        typer.Option("--filter", metavar="PATTERN", help="Show tensors whose name matches a pattern or /regex/."),
    ] = None,
    sort: Annotated[
        str | None, typer.Option(help="Sort by size, name or dtype. The default is the order in the file.")
    ] = None,
    top: Annotated[
        int | None, typer.Option(help="Maximum number of tensors to show. The default is all.", min=1)
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """Show the tensors, dtypes and sizes of a model's file, and how it is quantized. Only headers are read."""
    from lowbit.formats.inspection import inspect_file
    from lowbit.formats.statistics import is_statistics
    from lowbit.models import Override

    if sort not in (None, *_ORDERS):
        raise InvalidProblem(f"sort: {sort!r}; expected {', '.join(_ORDERS)}")
    pattern = Override(match) if match is not None else None
    if is_statistics(file):
        _show_statistics(file, pattern, sort, top, as_json)
        return
    found = inspect_file(file)
    shown = [t for t in found.tensors if pattern is None or pattern.matches(t.name)]
    if sort is not None:
        shown.sort(key=_ORDERS[sort])
    matched, shown = len(shown), shown[:top]
    if as_json:
        tensors = [dataclasses.asdict(t) for t in shown]
        typer.echo(json.dumps(found.to_dict() | {"tensors": tensors}, indent=2))
        return
    out = screen()
    out.print(_summary(found))
    out.print(_tensors(found, shown, matched))
    out.print(_totals(found))


_ORDERS = {
    "size": lambda t: (-t.nbytes, t.name),
    "name": lambda t: t.name,
    "dtype": lambda t: (t.dtype, -t.nbytes, t.name),
}


def _show_statistics(
    folder: Path, pattern: "Override | None", sort: str | None, top: int | None, as_json: bool
) -> None:
    from lowbit.cli.observe import show_statistics
    from lowbit.formats.statistics import open_statistics

    if sort not in (None, "size", "name"):
        raise InvalidProblem(f"sort: {sort!r}; expected size or name for statistics")
    found = open_statistics(folder)
    groups = [g for g in found.shared() if pattern is None or any(map(pattern.matches, g.names))]
    if sort == "size":
        groups.sort(key=lambda g: (-g.nbytes, g.names))
    show_statistics(found, groups=groups[:top], as_json=as_json)


def _size(count: float) -> str:
    from lowbit.report.wording import size

    return size(count)


def _summary(found: "Inspection") -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    elements = sum(t.elements for t in found.tensors)
    lines = [
        ("File", found.path),
        ("Format", found.format),
        ("Size", f"{_size(found.file_bytes)}, {len(found.tensors):,} tensors of {elements:,} elements"),
        *((k[:1].upper() + k[1:], v) for k, v in found.facts.items()),
    ]
    for label, text in lines:
        grid.add_row(printable(label), Text(printable(text)))
    for i, q in enumerate(found.quantization):
        text = printable(f"{q.count:,} × {q.scheme}: {q.what}")
        grid.add_row("Quantized" if i == 0 else "", Text(text, style="green"))
    if not found.quantization:
        grid.add_row("Quantized", Text("no, or in a layout that lowbit does not know", style="dim"))
    return grid


def _tensors(found: "Inspection", shown: "list[StoredTensor]", matched: int) -> RenderableType:
    left = matched - len(shown)
    caption = "" if matched == len(found.tensors) else f"{matched:,} of {len(found.tensors):,} tensors match"
    caption += f"{'; ' * bool(caption)}{left:,} more are not shown" if left else ""
    made = table(caption=caption, padding=(0, 1, 0, 0))
    made.add_column("\ntensor", overflow="fold", ratio=3)
    made.add_column("\ndtype", no_wrap=True)
    made.add_column("\nshape")
    add_numbers(made, ("\nsize", "\nshare"))
    quantized = any(t.quantized for t in shown)
    if quantized:
        made.add_column("\nquantized", overflow="fold")
    whole = found.nbytes or 1
    for t in shown:
        cells = [printable(t.name), printable(t.dtype), "×".join(map(str, t.shape)) or "scalar", _size(t.nbytes)]
        cells += [f"{t.nbytes / whole:.1%}"] + ([printable(t.quantized)] if quantized else [])
        made.add_row(*map(Text, cells))
    return made


def _totals(found: "Inspection") -> RenderableType:
    made = table(padding=(0, 1, 0, 0))
    made.add_column("\ndtype", no_wrap=True)
    add_numbers(made, ("\ntensors", "\nsize", "\nshare"))
    whole = found.nbytes or 1
    for dtype, (count, nbytes) in found.by_dtype().items():
        made.add_row(Text(printable(dtype)), f"{count:,}", _size(nbytes), f"{nbytes / whole:.1%}")
    return made
