"""`lowbit quantize`: a model's file in, a smaller one out, and what it cost."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lowbit.cli.errors import printable, refuse_given, refuse_unwritable, screen

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lowbit.models import Accuracy, Latency, ModelReport, Recipe, WeightRow

__all__ = [
    "AS_JSON",
    "BATCH_SIZE",
    "DATA",
    "MAX_BATCHES",
    "METRIC",
    "SECONDS",
    "THREADS",
    "decibels",
    "latency_line",
    "megabytes",
    "output_line",
    "quantize",
    "show_report",
]


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise typer.BadParameter(f"{value} is no number of seconds.")
    return value


# Options that `compare` has too.
DATA = Annotated[
    Path | None, typer.Option(help="Batches: an .npz or .npy file, or a folder of them.", show_default=False)
]
BATCH_SIZE = Annotated[int | None, typer.Option(help="Rows of the data per batch.", min=1, show_default=False)]
MAX_BATCHES = Annotated[int | None, typer.Option(help="Maximum number of batches to read.", min=1, show_default=False)]
METRIC = Annotated[
    str | None,
    typer.Option(help="Your own figure of both models: metric(predict, batches).", metavar="MODULE:FUNCTION"),
]
SECONDS = Annotated[float, typer.Option(help="How long to measure latency; 0 for not at all.", callback=_finite, min=0)]
THREADS = Annotated[list[int], typer.Option(help="Thread counts to measure latency with.", min=1, max=4096)]
AS_JSON = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]

_ROWS = 40  # of weights on the screen; the report has all


def quantize(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(help="An .onnx file, a .safetensors file or index, or a folder.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where to write; by default beside the source.", show_default=False),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            "-r",
            show_default=False,
            help="W8A8, W8A16, W4A16, W4A16_ASYM, W4A8, dynamic-int8, static-int8, or a YAML or JSON file. "
            "By default dynamic-int8 for ONNX and W4A16 for checkpoints.",
        ),
    ] = None,
    data: DATA = None,
    batch_size: BATCH_SIZE = None,
    max_batches: MAX_BATCHES = None,
    metric: METRIC = None,
    group_size: Annotated[int | None, typer.Option(help="Weights that share a scale.", show_default=False)] = None,
    method: Annotated[str | None, typer.Option(help="How ranges of activations are found.", show_default=False)] = None,
    skip: Annotated[list[str], typer.Option(help="Weights to leave float: a pattern or /regex/.")] = [],  # noqa: B006
    operator: Annotated[str, typer.Option(help="ONNX weights: auto, dequantize or matmul_nbits.")] = "auto",
    strict: Annotated[bool, typer.Option("--strict", help="Fail if anything asked for cannot be done.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is there, even the source.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a checkpoint's interrupted run.")] = False,
    external_data: Annotated[
        bool, typer.Option("--external-data", help="Put an ONNX model's weights into a file beside it.")
    ] = False,
    allow_pickle: Annotated[
        bool, typer.Option("--allow-pickle", help="Read .bin and .pt files too, by torch's restricted reader.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Write a report: .html or .json.", show_default=False)] = None,
    seconds: SECONDS = 2.0,
    threads: THREADS = [1],  # noqa: B006
    as_json: AS_JSON = False,
) -> None:
    """Quantize a model and show what became of every weight, what it cost and what it won."""
    from lowbit.formats.files import default_target, kind_of, quantize_file, refuse_report, says_what_is_kept

    if report is not None:
        refuse_unwritable("--report", report, (".html", ".json"))
    timed = () if seconds == 0 else ("seconds",)  # 0 asks for nothing
    if kind_of(source) == "checkpoint":
        why = "checkpoints are quantized by their weights alone, and not run"
        refuse_given(ctx, why, "data", "batch_size", "max_batches", "metric", "threads", *timed)
        refuse_given(ctx, "only ONNX models have it", "operator", "external_data")
    else:
        refuse_given(ctx, "only checkpoints have it", "allow_pickle")
        if data is None:
            why = "without --data nothing is run"
            refuse_given(ctx, why, "batch_size", "max_batches", "threads", *timed)
    if seconds == 0:
        refuse_given(ctx, "with --seconds 0 no latency is measured", "threads")
    made_by = _recipe(source, recipe, group_size, method, skip)
    target = output if output is not None else default_target(source, made_by)
    if report is not None:
        refuse_report(report, source, target, overwrite)
    made = quantize_file(
        source, target, made_by, data=data, batch_size=batch_size, max_batches=max_batches, metric=metric,
        strict=strict, overwrite=overwrite, resume=resume, seconds=seconds, threads=tuple(threads), operator=operator,
        external_data=True if external_data else "auto", allow_pickle=allow_pickle, progress=not as_json,
    )  # fmt: skip
    with says_what_is_kept(target):
        if report is not None:
            _write_report(made, report)
        if as_json:
            typer.echo(json.dumps(made.to_dict(), indent=1))
            return
        shown = screen()
        show_report(made, shown)
        if report is not None:
            shown.print(f"Report: {printable(str(report))}", style="dim")


def _recipe(source: Path, name: str | None, group_size: int | None, method: str | None, skip: list[str]) -> "Recipe":
    """The recipe with what the command line changes in it."""
    from dataclasses import replace

    from lowbit.formats.files import default_recipe, kind_of
    from lowbit.models import Recipe
    from lowbit.numerics.errors import InvalidProblem

    made = Recipe.of(name) if name is not None else default_recipe(source)
    if group_size is not None:
        if kind_of(source) == "onnx" and made.activations is not None and made.weights.dtype in ("int8", "uint8"):
            raise InvalidProblem(
                f"group_size: {group_size}; {made.name} multiplies 8-bit integers, which have a scale per channel in "
                "ONNX Runtime; use W8A16 or W4A16 for groups"
            )
        made = made.but(weights=replace(made.weights, group_size=group_size))
    if method is not None:
        if made.activations is None or made.activations.dynamic:
            raise InvalidProblem(f"method: {method!r}; {made.name} has no static activations to find ranges for")
        made = made.but(activations=replace(made.activations, method=method))
    return made.but(skip=skip) if skip else made


def _write_report(made: "ModelReport", path: Path) -> None:
    if path.suffix == ".json":
        made.save(path)
        return
    from lowbit.report import write_html

    write_html(made, path)


# ---- the screen ---------------------------------------------------------------------------------------


def show_report(made: "ModelReport", shown: "Console") -> None:
    """The report as text: weights, then the whole."""
    shown.print(_weights(made))
    for line in _summary(made):
        shown.print(printable(line))
    for note in made.notes:
        shown.print(f"Note: {printable(note)}", style="yellow")
    if made.skipped:
        names = ", ".join(printable(r.name) for r in made.skipped[:8]) + (" ..." if len(made.skipped) > 8 else "")
        shown.print(f"Asked for and not done: {len(made.skipped)} ({names})", style="bold red")


def _weights(made: "ModelReport") -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=printable(f"{Path(made.source).name} → {made.target}") + "\n", title_style="bold", title_justify="left",
        box=box.SIMPLE_HEAD, header_style="bold cyan", show_edge=False, pad_edge=False, caption_justify="left",
    )  # fmt: skip
    table.add_column("weight", overflow="fold", ratio=3)
    table.add_column("used by", no_wrap=True)
    table.add_column("shape", no_wrap=True, justify="right")
    table.add_column("how, or why not", overflow="fold", ratio=4)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("SQNR dB", justify="right", no_wrap=True)
    shown = _shown(list(made.rows))
    same = {r.activations for r in made.treated} if made.treated else set()
    for row in shown:
        style = "" if row.treated else "red" if row.skipped else "dim"
        how = Text(printable(row.how or row.why_not), style=style)
        if row.treated and row.activations and len(same) > 1:
            how.append(f"; activations {printable(row.activations)}")
        if row.note:
            how.append(f" ({printable(row.note)})", style="dim")
        size = f"{row.bytes_before:,} → {row.bytes_after:,}" if row.treated else f"{row.bytes_before:,}"
        cells = (
            Text(printable(row.name), style=style),
            printable(row.kind),
            "×".join(map(str, row.shape)),
            how,
            size,
            decibels(row.sqnr_db),
        )
        table.add_row(*cells)
    below = [f"Activations: {next(iter(same))}"] if len(same) == 1 and next(iter(same)) else []
    if len(shown) < len(made.rows):
        below.append(f"{len(made.rows) - len(shown)} more weights; --report shows all")
    table.caption = "\n" + "\n".join(below) + "\n" if below else None
    return table


def _shown(rows: "list[WeightRow]") -> "list[WeightRow]":
    """Those that were not treated come before those that were, where not all fit."""
    if len(rows) <= _ROWS:
        return rows
    first = [r for r in rows if r.skipped] + [r for r in rows if not r.treated and not r.skipped]
    chosen = {id(r) for r in (*first[: _ROWS // 2], *(r for r in rows if r.treated))}
    return [r for r in rows if id(r) in chosen][:_ROWS]


def _summary(made: "ModelReport") -> list[str]:
    lines = [
        f"{len(made.treated)} of {len(made.rows)} weights; {megabytes(made.bytes_before)} → "
        f"{megabytes(made.bytes_after)} ({made.ratio:.2f}× smaller) in {made.seconds:.1f} s"
    ]
    lines += [output_line(a) for a in made.accuracy]
    lines += [f"{m.name}: {m.float_value:.6g} → {m.quantized_value:.6g}" for m in made.metrics]
    return lines + [latency_line(t) for t in made.latency]


def output_line(a: "Accuracy") -> str:
    """How far apart one output is."""
    return (
        f"{a.output}: SQNR {decibels(a.sqnr_db)} dB, cosine {a.cosine:.6f}, largest error {a.max_error:.4g}, "
        f"over {a.samples:,} sample{'s' * (a.samples != 1)}"
    )


def latency_line(t: "Latency") -> str:
    """How long both take, and which is faster."""
    verdict = f"{t.speedup:.2f}× as fast" if t.speedup >= 1 else f"SLOWER: {t.speedup:.2f}× as fast"
    return (
        f"{t.runtime}, {t.threads} thread{'s' * (t.threads > 1)}, {t.shape}: {t.float_ms:.3f} ms → "
        f"{t.quantized_ms:.3f} ms ({verdict})"
    )


def decibels(value: float | None) -> str:
    """To one decimal."""
    return "–" if value is None else "∞" if value == math.inf else f"{value:.1f}"


def megabytes(count: int) -> str:
    """With a unit."""
    return f"{count / 1e6:,.2f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} kB"
