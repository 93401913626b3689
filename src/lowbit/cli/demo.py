"""`lowbit demo`: quantize and measure the model that comes with the library."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import RenderableType
from rich.text import Text

from lowbit.cli.errors import end_interrupted
from lowbit.cli.options import AS_JSON, SECONDS
from lowbit.cli.screen import add_numbers, printable, screen, table

if TYPE_CHECKING:
    from lowbit.models import ModelReport

# Calibration uses the first images, accuracy is measured on the others.
_CALIBRATION = 60
_BATCH = 32
_RECIPES: dict[str, Any] = {
    "int8 static": "static-int8",
    "int4 weights": {"name": "W4A16-g32", "weights": {"dtype": "int4", "group_size": 32}},
}


def demo(
    folder: Annotated[Path, typer.Option(help="Folder to write models and reports to.")] = Path("lowbit-demo"),
    seconds: SECONDS = 2.0,
    as_json: AS_JSON = False,
) -> None:
    """Quantize the bundled digits CNN to static int8 and to int4 weights, and measure size, accuracy and latency."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with screen(stderr=True, quiet=as_json).status("Quantizing"):
            found = {name: _quantized(folder, recipe, seconds) for name, recipe in _RECIPES.items()}
    except KeyboardInterrupt:
        end_interrupted(f"{folder} has what was finished")
    if as_json:
        typer.echo(json.dumps({name: r.to_dict() for name, r in found.items()}, indent=1))
        return
    screen().print(_table(found, folder))


def digits_accuracy(predict: Any, batches: Iterable[Mapping[str, Any]]) -> float:
    """The percentage of images classified correctly: a metric for `lowbit quantize --metric`."""
    right = total = 0
    for batch in batches:
        right += int((predict(batch)["logits"].argmax(axis=1) == batch["labels"]).sum())
        total += len(batch["labels"])
    return 100 * right / total


def _quantized(folder: Path, recipe: Any, seconds: float) -> "ModelReport":
    from lowbit.data import digits_onnx, load_digits_cnn
    from lowbit.formats.files import quantize_file
    from lowbit.formats.onnx.measure import measure_models
    from lowbit.models import Recipe
    from lowbit.report import write_html

    arrays = load_digits_cnn()
    images = arrays["test_images"][:, None].astype(np.float32) / 16
    labels = arrays["test_labels"]
    source = folder / "digits.onnx"
    source.write_bytes(digits_onnx())
    made = Recipe.of(recipe)
    place = folder / made.name
    place.mkdir(exist_ok=True)
    target = place / "digits.onnx"
    calibration = [{"images": images[:_CALIBRATION]}]
    report = quantize_file(source, target, made, data=calibration, overwrite=True, seconds=0, progress=False)
    batches = [
        {"images": images[at : at + _BATCH], "labels": labels[at : at + _BATCH]}
        for at in range(_CALIBRATION, len(labels), _BATCH)
    ]
    feeds = [{"images": batch["images"]} for batch in batches]
    metric = "accuracy, %", digits_accuracy
    measured = measure_models(source, target, lambda: feeds, lambda: batches, metric, seconds, (1,))
    note = f"Ranges are from {_CALIBRATION} images, accuracy is from {len(labels) - _CALIBRATION} others."
    report = report.but(**measured, notes=[*report.notes, note])
    write_html(report, place / "report.html")
    report.save(place / "report.json")
    return report


def _table(found: "Mapping[str, ModelReport]", folder: Path) -> RenderableType:
    made = table("A digits CNN, from file to file", _caption(found, folder))
    made.add_column("model", style="bold", no_wrap=True)
    add_numbers(made, ("bytes", "smaller", "accuracy", "outputs", "latency", "speed-up"))
    first = next(iter(found.values()))
    base = first.metrics[0].float_value
    timed = f"{first.latency[0].float_ms:.3f} ms" if first.latency else "–"
    made.add_row("float32", f"{first.bytes_before:,}", "", f"{base:.2f} %", "", timed, "")
    for name, r in found.items():
        cells = [f"{r.bytes_after:,}", f"{r.ratio:.2f}×", f"{r.metrics[0].quantized_value:.2f} %"]
        cells.append(f"{r.accuracy[0].sqnr_db:.1f} dB")
        quick = r.latency[0] if r.latency else None
        speed = Text(f"{quick.speedup:.2f}×", style="" if quick.speedup >= 1 else "red") if quick else "–"
        made.add_row(name, *cells, f"{quick.quantized_ms:.3f} ms" if quick else "–", speed)
    return made


def _caption(found: "Mapping[str, ModelReport]", folder: Path) -> str:
    r = next(iter(found.values()))
    samples = r.accuracy[0].samples
    where = f"{r.latency[0].runtime}, one thread, {_BATCH} images, each model in turn. " if r.latency else ""
    slower = [name for name, f in found.items() if f.latency and f.latency[0].speedup < 1]
    warning = f"Slower than float: {', '.join(slower)}, which is for size. " if slower else ""
    reports = ", ".join(printable(str(folder / f.recipe["name"] / "report.html")) for f in found.values())
    return (
        f"\nAccuracy on {samples} test images that no range was found in (one is {100 / samples:.2f} %). "
        f"{where}{warning}Reports: {reports}"
    )
