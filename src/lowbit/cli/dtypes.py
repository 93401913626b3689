"""`lowbit dtypes`: a small trained network in every dtype and scheme."""

# No `from __future__ import annotations`: typer reads the annotations.
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import RenderableType
from rich.text import Text

import lowbit
from lowbit.cli.errors import refuse_unwritable
from lowbit.cli.screen import add_numbers, printable, screen, table

if TYPE_CHECKING:
    from lowbit.bench.survey import SurveyRow
    from lowbit.runtime.hardware import HardwareFeatures


def dtypes(
    json_path: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Also write the rows as JSON; - prints JSON and nothing else."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", hidden=True)] = False,
) -> None:
    """Quantize a small trained network in every dtype and scheme, and compare size, error, accuracy and speed."""
    from lowbit.bench.survey import TIMED_ELEMENTS, run_survey
    from lowbit.runtime.hardware import hardware as detect

    if json_path is not None and json_path != Path("-"):
        refuse_unwritable("--json", json_path)
    elements = TIMED_ELEMENTS // 64 if quick else TIMED_ELEMENTS
    with screen(stderr=True).status("Starting") as status:
        rows = run_survey(elements=elements, progress=lambda name: status.update(f"Quantizing {name}"))
    facts = {"lowbit": lowbit.__version__, "hardware": detect().to_dict(), "timed_elements": elements}
    report = json.dumps(facts | {"rows": [dataclasses.asdict(row) for row in rows]}, indent=2)
    if json_path == Path("-"):
        typer.echo(report)
        return
    shown = screen()
    shown.print(_table(rows, elements, detect()))
    if json_path is not None:
        json_path.write_text(report + "\n")
        shown.print(printable(f"Wrote {json_path}"), style="dim")


def _table(rows: "list[SurveyRow]", elements: int, found: "HardwareFeatures") -> RenderableType:
    # No edges and narrow gaps: the table is 80 columns wide, as pipes and old terminals are.
    made = table("A digits CNN, quantized", _caption(rows, elements, found), padding=(0, 1, 0, 0))
    made.add_column("dtype", no_wrap=True, style="bold")
    made.add_column("scheme", no_wrap=True)
    add_numbers(made, ("bytes", "bits/w", "SQNR dB", "accuracy", "GB/s", "×NumPy"))
    above = ""
    for row, below in zip(rows, [*rows[1:], rows[-1]], strict=True):
        accuracy = Text(f"{row.accuracy:.1%}", style=_accuracy_style(row.accuracy, rows[0].accuracy))
        cells = row.dtype if row.dtype != above else "", row.scheme, f"{row.nbytes:,}", f"{row.bits_per_weight:.2f}"
        speed = _number(row.gb_per_s, ".1f"), _number(row.times_numpy, ".1f")
        last = row.dtype.lstrip("u") != below.dtype.lstrip("u")
        made.add_row(*cells, _number(row.sqnr_db, ".1f"), accuracy, *speed, end_section=last)
        above = row.dtype
    return made


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _accuracy_style(accuracy: float, baseline: float) -> str:
    lost = baseline - accuracy
    return "green" if lost <= 0.005 else "yellow" if lost <= 0.05 else "red"


def _caption(rows: "list[SurveyRow]", elements: int, found: "HardwareFeatures") -> str:
    checked = [row for row in rows if row.exact is not None]
    exact = sum(bool(row.exact) for row in checked)
    return (
        "\nBytes count codes, scales and zero points of all weights; biases stay float32. Accuracy: 360 test "
        "images (one is 0.3 %), NumPy forward pass with the dequantized weights.\n"
        f"Speed: float32 read per second while quantizing the same weights tiled to {elements:,} elements, "
        f"parameters given, best of several runs; lowbit with {found.isa} on {found.threads} "
        f"thread{'s' * (found.threads > 1)}, the NumPy reference on one. "
        f"Codes equal to the reference's in {exact} of {len(checked)} settings."
    )
