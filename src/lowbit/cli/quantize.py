"""`lowbit quantize`: quantize a model's file and report the result."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowbit.cli.errors import refuse_given, refuse_unwritable
from lowbit.cli.options import (
    AS_JSON,
    BATCH_SIZE,
    DATA,
    EVAL_DATA,
    MAX_BATCHES,
    METRIC,
    SECONDS,
    SEQUENCE_LENGTH,
    THREADS,
    bytes_of,
)
from lowbit.cli.report import show_report
from lowbit.cli.screen import noting, printable, screen
from lowbit.numerics.errors import InvalidProblem

if TYPE_CHECKING:
    from lowbit.models import Recipe

EPILOG = """Examples:

  lowbit quantize model.onnx

  lowbit quantize model.onnx -r static-int8 --data batches/ --report report.html

  lowbit quantize llm/ -r W4A16 --data text.txt -o llm-int4

  lowbit quantize llm/ -r W4A16_ASYM --group-size 64 --stats stats/ -o llm-int4
"""

_OUTPUT = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Where to write. The default is a name beside the source.", metavar="PATH"),
]
_RECIPE = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        "-r",
        help="W8A8, W8A16, W4A16, W4A16_ASYM, W4A8, dynamic-int8, static-int8, or a YAML or JSON file. The default is "
        "dynamic-int8 for ONNX models and W4A16 for checkpoints.",
        metavar="NAME",
    ),
]
_GROUP_SIZE = Annotated[
    int | None, typer.Option(help="Number of weights that share a scale. The default is the recipe's.", metavar="N")
]
_METHOD = Annotated[
    str | None,
    typer.Option(
        help="How weights are quantized: rtn, mse, hqq, weighted, gptq, awq or adaround. The default is gptq with "
        "--data or --stats, mse without, and rtn for 8 bits. Or the calibration of static activations, as "
        "--activation-method.",
        metavar="NAME",
    ),
]
_ACTIVATION_METHOD = Annotated[
    str | None,
    typer.Option(help="Calibration of static activations: adaptive, min_max, mse, percentile:99.9 ...", metavar="NAME"),
]
_STATS = Annotated[
    Path | None,
    typer.Option(help="Statistics of what weights are multiplied with, as lowbit observe writes them.", metavar="PATH"),
]
_MAX_MEMORY = Annotated[
    str | None,
    typer.Option(
        help="Memory of the whole process, such as 4GB; weights whose statistics do not fit get a simpler method, and "
        "their rows say so. Checkpoints only.",
        metavar="SIZE",
    ),
]
_SKIP = Annotated[
    list[str], typer.Option(help="Name of weights to leave float: a pattern or /regex/. Repeatable.", metavar="PATTERN")
]
_OPERATOR = Annotated[
    str,
    typer.Option(
        help="How float layers of ONNX models read codes: fold (codes times scales, computed at load), dequantize, "
        "matmul_nbits, or auto.",
        metavar="NAME",
    ),
]
_OPTIMIZE = Annotated[
    str,
    typer.Option(
        help="balanced: layers that are slower than in float run in float, from codes. speed: so do those that are not "
        "faster. size: layers are as the recipe asks. ONNX models only.",
        metavar="NAME",
    ),
]
_TARGET_CPU = Annotated[
    str,
    typer.Option(
        "--target-cpu",
        "--target",
        help="any: int8 weights get scales with which integer matrix products are exact on every CPU. vnni: scales "
        "stay, for CPUs with VNNI and those of ARM. ONNX models only.",
        metavar="NAME",
    ),
]
_STRICT = Annotated[bool, typer.Option("--strict", help="Fail if a weight that the recipe requests stays float.")]
_OVERWRITE = Annotated[bool, typer.Option("--overwrite", help="Replace an existing target, even if it is the source.")]
_FORCE = Annotated[
    bool, typer.Option("--force", help="Write the result even if it is not smaller than the source. ONNX models only.")
]
_RESUME = Annotated[bool, typer.Option("--resume", help="Continue an interrupted run. Checkpoints only.")]
_EXTERNAL = Annotated[
    bool, typer.Option("--external-data", help="Store the weights in a file beside the model. ONNX models only.")
]
_PICKLE = Annotated[
    bool, typer.Option("--allow-pickle", help="Also read .bin and .pt files, weights only. Checkpoints only.")
]
_REPORT = Annotated[Path | None, typer.Option(help="Write a report to this .html or .json file.", metavar="FILE")]


def quantize(
    ctx: typer.Context,
    source: Annotated[Path, typer.Argument(help="An .onnx file, a .safetensors file or index, or a folder.")],
    output: _OUTPUT = None,
    recipe: _RECIPE = None,
    data: DATA = None,
    eval_data: EVAL_DATA = None,
    batch_size: BATCH_SIZE = None,
    max_batches: MAX_BATCHES = None,
    metric: METRIC = None,
    group_size: _GROUP_SIZE = None,
    method: _METHOD = None,
    activation_method: _ACTIVATION_METHOD = None,
    stats: _STATS = None,
    sequence_length: SEQUENCE_LENGTH = None,
    max_memory: _MAX_MEMORY = None,
    skip: _SKIP = [],  # noqa: B006
    operator: _OPERATOR = "auto",
    optimize: _OPTIMIZE = "balanced",
    target_cpu: _TARGET_CPU = "any",
    strict: _STRICT = False,
    overwrite: _OVERWRITE = False,
    force: _FORCE = False,
    resume: _RESUME = False,
    external_data: _EXTERNAL = False,
    allow_pickle: _PICKLE = False,
    report: _REPORT = None,
    seconds: SECONDS = 2.0,
    threads: THREADS = [1],  # noqa: B006
    as_json: AS_JSON = False,
) -> None:
    """Quantize a model, and show what was done to every weight.

    With --data or --eval-data, outputs and latency of both models are compared as well.
    """
    from lowbit.formats.files import default_target, quantize_file, refuse_report, says_what_is_kept

    if report is not None:
        refuse_unwritable("--report", report, (".html", ".json"))
    _refuse_idle(ctx, source, data is not None, eval_data is not None, seconds)
    changed = _recipe(source, recipe, group_size, method, activation_method, skip)
    target = output if output is not None else default_target(source, changed)
    if report is not None:
        refuse_report(report, source, target, overwrite)
    options: dict[str, Any] = {"data": data, "eval_data": eval_data, "metric": metric}
    options |= {"batch_size": batch_size, "max_batches": max_batches}
    options |= {"strict": strict, "overwrite": overwrite, "resume": resume, "allow_pickle": allow_pickle}
    options |= {"external_data": external_data or "auto", "operator": operator, "optimize": optimize}
    options |= {"target_cpu": target_cpu, "force": force, "stats": stats, "sequence_length": sequence_length}
    options |= {"max_memory": None if max_memory is None else bytes_of(max_memory, "--max-memory")}
    options |= {"progress": not as_json, "warn": noting([], as_json)}
    made = quantize_file(source, target, changed, seconds=seconds, threads=tuple(threads), **options)
    with says_what_is_kept(target):
        if report is not None and report.suffix == ".json":
            made.save(report)
        elif report is not None:
            from lowbit.report import write_html

            write_html(made, report)
        if as_json:
            typer.echo(json.dumps(made.to_dict(), indent=1))
            return
        shown = screen()
        show_report(made, shown)
        if report is not None:
            shown.print(f"Report: {printable(str(report))}", style="dim")


def _refuse_idle(ctx: typer.Context, source: Path, has_data: bool, has_eval_data: bool, seconds: float) -> None:
    """Raise where an option was given that would be ignored."""
    from lowbit.formats.files import kind_of

    timed = () if seconds == 0 else ("seconds",)  # 0 asks for nothing
    if kind_of(source) == "checkpoint":
        why = "the result of a checkpoint is not run"
        refuse_given(ctx, why, "eval_data", "batch_size", "metric", "threads", *timed)
        refuse_given(ctx, "only ONNX models have it", "operator", "optimize", "target_cpu", "external_data", "force")
        if not has_data:
            refuse_given(ctx, "without --data nothing is run", "max_batches", "sequence_length", "max_memory")
    else:
        refuse_given(ctx, "only checkpoints have it", "allow_pickle", "sequence_length", "max_memory")
        if not has_data and not has_eval_data:
            why = "without --data nothing is run"
            refuse_given(ctx, why, "batch_size", "max_batches", "threads", *timed)
    if seconds == 0:
        refuse_given(ctx, "with --seconds 0 no latency is measured", "threads")


def _recipe(
    source: Path,
    name: str | None,
    group_size: int | None,
    method: str | None,
    activation_method: str | None,
    skip: list[str],
) -> "Recipe":
    """The recipe with the changes that the command line asks for."""
    from lowbit.formats.files import default_recipe, kind_of
    from lowbit.models import Recipe

    made = Recipe.of(name) if name is not None else default_recipe(source)
    if group_size is not None:
        if kind_of(source) == "onnx" and made.activations is not None and made.weights.dtype in ("int8", "uint8"):
            raise InvalidProblem(
                f"group_size: {group_size}; {made.name} multiplies 8-bit integers, which have a scale per channel in "
                "ONNX Runtime; use W8A16 or W4A16 for groups"
            )
        made = made.but(weights=replace(made.weights, group_size=group_size))
    if method is not None:
        made = _with_method(made, method)
    if activation_method is not None:
        made = _with_activation_method(made, activation_method, "activation_method")
    return made.but(skip=skip) if skip else made


def _with_method(recipe: "Recipe", method: str) -> "Recipe":
    """The recipe with a method of weights, or with one that only static activations have."""
    from lowbit.models.recipe import METHODS

    if method not in METHODS:
        return _with_activation_method(recipe, method, "method")
    if method == "mse" and recipe.activations is not None and not recipe.activations.dynamic:
        raise InvalidProblem(
            "method: mse; weights and static activations have it; use --activation-method mse for the latter, and a "
            "recipe "
            "file for the former"
        )
    return recipe.but(weights=replace(recipe.weights, method=method))


def _with_activation_method(recipe: "Recipe", method: str, option: str) -> "Recipe":
    if recipe.activations is None or recipe.activations.dynamic:
        from lowbit.models.recipe import METHODS

        known = f"expected {', '.join(METHODS)}" if option == "method" else "use --method for weights"
        raise InvalidProblem(
            f"{option}: {method!r}; {recipe.name} has no static activations to find ranges for; {known}"
        )
    return recipe.but(activations=replace(recipe.activations, method=method))
