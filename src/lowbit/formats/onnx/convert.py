"""Quantizing an ONNX file by a recipe; the result is checked by onnx and ONNX Runtime before it is written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import onnx

from lowbit._version import __version__
from lowbit.calibration import Moments
from lowbit.formats.onnx.choose import OPTIMIZE, Peeked, fastest
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.rewrite import Plan, Rewrite, Rewritten
from lowbit.formats.onnx.runtime import brief, new_session
from lowbit.formats.onnx.saving import refuse_target
from lowbit.formats.onnx.solved import SolvedWeights
from lowbit.formats.onnx.weight_only import OPERATORS
from lowbit.formats.statistics import Statistics, model_fingerprint
from lowbit.formats.work_folder import MANIFEST
from lowbit.models import ModelReport, Recipe, WeightRow
from lowbit.models.weights import needs_of
from lowbit.numerics.errors import FormatError, InvalidProblem

TARGET_CPUS = ("any", "vnni")
METHODS = ("auto", "rtn", "mse", "hqq", "weighted", "gptq", "adaround")
_NEWEST_IR, _COMMON_IR = 13, 10  # that ONNX Runtime 1.31 takes, and that of opset 21


def quantize_onnx(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    recipe: Any,
    *,
    data: Iterable[Any] | None = None,
    stats: Mapping[str, Moments] | None = None,
    operator: str = "auto",
    optimize: str = "balanced",
    target_cpu: str = "any",
    strict: bool = False,
    overwrite: bool = False,
    force: bool = False,
    progress: bool = True,
    external_data: bool | str = "auto",
) -> ModelReport:
    """Write the model quantized by a recipe, and return a report with a row for each weight.

    recipe: what Recipe.of takes. data: batches, each a mapping from input names to arrays, for static activations and
    for what weights of few bits are multiplied with: their method is then "gptq" where the recipe says "auto". stats:
    Moments by the names of weights, of `observe_moments` or `open_statistics`, instead of observing these.
    optimize: "balanced" lets layers that are slower than in float compute in float, from the same codes; "speed" those
    that are not faster, too; "size" none. ONNX Runtime is asked on the first batch, or on random inputs without data.
    operator: how float layers read codes: "fold", codes times scales, which the runtime computes as it loads the model;
    "dequantize"; "matmul_nbits"; or "auto". target_cpu: "any" gives int8 weights scales with which integer matrix
    products are exact on every CPU, and rows say what that costs; "vnni" leaves scales as they are, for CPUs with VNNI
    and those of ARM. strict: raises InvalidProblem where something the recipe asks for cannot be
    done. The target is written only if it is smaller than the source (force: even so), onnx's full check passes and
    ONNX Runtime loads the result with its default options.

    >>> import tempfile
    >>> from importlib import resources
    >>> with resources.as_file(resources.files("lowbit.data") / "digits_cnn.onnx") as source:
    ...     with tempfile.TemporaryDirectory() as folder:
    ...         report = quantize_onnx(source, f"{folder}/int8.onnx", "W8A16", progress=False)
    >>> [row.name for row in report.treated], round(report.ratio, 1)
    (['conv2.weight', 'fc1.weight'], 3.8)
    """
    begun = time.perf_counter()
    recipe = Recipe.of(recipe)
    _check_options(source, target, recipe, data, operator, optimize, target_cpu, overwrite)
    _check_stats(source, recipe, data, stats)
    given = None if data is None else Peeked(data)
    rewrite = Rewrite(source, recipe, operator, given, progress, target_cpu == "any", SolvedWeights(stats))
    graph, _ = rewrite.prepared()
    before = os.path.getsize(source) + graph.bytes_beside
    plans = rewrite.plans(graph)
    recipe.refuse_unmatched((rewrite.names_of(p.use) for p in plans), graph.names)
    if operator != "auto":
        _refuse_idle_operator(recipe, operator, plans)
    if target_cpu != "any" and not any(p.way in ("static", "dynamic") for p in plans):
        raise InvalidProblem(
            f"target_cpu: {target_cpu}; it is for integer matrix products, and {recipe.name} makes none in this model"
        )
    on_data = rewrite.observe(graph, plans)
    made = rewrite.done()
    if strict:
        _refuse_skipped(made.rows)
    if optimize != "size" and operator == "auto":
        made = fastest(rewrite, made, None if given is None else given.peek(), optimize)
    notes = on_data + made.notes + _lower_ir(made.graph)

    def check(written: Path) -> None:
        if not force:
            _refuse_larger(written, target, before, made)
        _refuse_unusable(written, source)

    after = made.graph.save(target, external_data=external_data, overwrite=overwrite, check=check)
    report = ModelReport(os.fspath(source), os.fspath(target), "onnx", recipe.to_dict(), made.rows, before, after)
    spent = time.perf_counter() - begun
    return report.but(histograms=made.histograms, notes=notes, seconds=spent, lowbit_version=__version__)


def _check_options(
    source: Any,
    target: Any,
    recipe: Recipe,
    data: Iterable[Any] | None,
    operator: str,
    optimize: str,
    target_cpu: str,
    overwrite: bool,
) -> None:
    for name, value, among in (
        ("operator", operator, OPERATORS),
        ("optimize", optimize, OPTIMIZE),
        ("target_cpu", target_cpu, TARGET_CPUS),
    ):
        if value not in among:
            raise InvalidProblem(f"{name}: {value!r}; expected {', '.join(among)}")
    if recipe.needs_data and data is None:
        raise InvalidProblem("data: none; the recipe has static activations, whose ranges are found in data")
    refuse_target(Path(target))
    if not overwrite and Path(source).resolve() == Path(target).resolve():
        raise InvalidProblem(f"{os.fspath(target)}: the model is read from it; give another name, or overwrite=True")


def _check_stats(source: Any, recipe: Recipe, data: Iterable[Any] | None, stats: Mapping[str, Moments] | None) -> None:
    """Raise where a method needs what is not given, or the statistics are of another model."""
    for weights in (recipe.weights, *(o.weights for o in recipe.overrides if o.weights is not None)):
        if weights.method not in METHODS:
            raise InvalidProblem(f"method: {weights.method}; ONNX models take {', '.join(METHODS)}")
        if weights.method != "auto" and needs_of(weights) and data is None and stats is None:
            raise InvalidProblem(
                f"data: none; {weights.method} uses what weights are multiplied with; give batches (--data), or "
                "method: auto, which without data is mse"
            )
    if isinstance(stats, Statistics):
        stats.refuse_other(model_fingerprint(source))
    elif stats is not None and not (isinstance(stats, Mapping) and all(isinstance(m, Moments) for m in stats.values())):
        raise InvalidProblem(f"stats: {type(stats).__name__}; expected a mapping from names of weights to Moments")


def _refuse_skipped(rows: Sequence[WeightRow]) -> None:
    """Raise where a weight was asked for and not quantized."""
    skipped = [r for r in rows if r.skipped]
    if skipped:
        some = "; ".join(f"{r.name} ({r.kind}): {r.why_not}" for r in skipped[:5])
        more = f"; and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        raise InvalidProblem(f"strict: {len(skipped)} weights were asked for and not treated: {some}{more}")


def _refuse_idle_operator(recipe: Recipe, operator: str, plans: Sequence[Plan]) -> None:
    """Raise where no weight of the model will be read by the operator that was asked for."""
    way = {"dequantize": "weight", "fold": "fold", "matmul_nbits": "nbits"}[operator]
    if not any(p.way == way and (way != "weight" or p.use.kind != "embedding") for p in plans):
        held = "MatMul and Gemm with weights in groups of 16, 32, 64, ..."
        if operator != "matmul_nbits":
            held = "weights multiplied as floats"
        why = " (`protect: false` in a recipe file keeps 4 bits in all layers)" if recipe.protect else ""
        raise InvalidProblem(f"operator: {operator}; it is for {held}, and {recipe.name} makes none in this model{why}")


def _lower_ir(graph: Graph) -> list[str]:
    """Lower the IR version: onnx stamps new models with one that runtimes do not know yet, whatever their content."""
    came = graph.proto.ir_version
    if came <= _NEWEST_IR:
        return []
    needed = onnx.helper.find_min_ir_version_for(list(graph.proto.opset_import), ignore_unknown=True)
    graph.proto.ir_version = max(_COMMON_IR, needed)
    return [f"ir_version lowered from {came} to {graph.proto.ir_version}, which runtimes take"]


def _refuse_larger(written: Path, target: Any, before: int, made: Rewritten) -> None:
    """Raise where the files are not smaller than the source's."""
    after = sum(f.stat().st_size for f in written.parent.iterdir() if f.name != MANIFEST)
    if after < before:
        return
    treated = [r for r in made.rows if r.treated]
    if treated:
        saved = sum(r.bytes_before - r.bytes_after for r in treated)
        why = f"{len(treated)} quantized weights save {saved:,} bytes, less than the new nodes and names take"
        remedy = "leave it in float, or quantize"
    else:
        reasons = dict.fromkeys(r.why_not for r in made.rows if r.why_not and r.asked)
        said = [n for n in made.notes if n.startswith(("the model is quantized", "no float weight"))]
        why = "; ".join(["no weight is quantized", *said, *list(reasons)[:2]])
        remedy = "choose another recipe, or write it"
    raise InvalidProblem(
        f"{os.fspath(target)}: {after:,} bytes, and the source {before:,}: {why}; nothing written; "
        f"{remedy} all the same with force=True (--force)"
    )


def _refuse_unusable(path: Path, source: Any) -> None:
    """Raise where onnx's full check or ONNX Runtime refuses the result."""
    check = partial(onnx.checker.check_model, full_check=True)
    for takes, by in ((check, "onnx's check"), (new_session, "ONNX Runtime")):
        error = _why_refused(takes, os.fspath(path))
        if error:
            came = _why_refused(takes, os.fspath(source))
            whose = "the model itself" if came else "the result"
            raise FormatError(f"{by} does not take {whose} ({came or error}); nothing written")


def _why_refused(takes: Callable[[str], Any], path: str) -> str:
    try:
        takes(path)
    except Exception as error:  # onnx's errors have no common base
        return brief(error)
    return ""
