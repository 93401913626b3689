"""Quantizing an ONNX file by a recipe; the result is checked by onnx and ONNX Runtime before it is written."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx

from lowbit._version import __version__
from lowbit.calibration.calibrator import tracked
from lowbit.formats.onnx.code_store import CodeStore, StoredWeight
from lowbit.formats.onnx.dynamic import OPSET as DYNAMIC_OPSET
from lowbit.formats.onnx.dynamic import Dynamic, dynamic_note, why_not_dynamic
from lowbit.formats.onnx.folding import fold_batch_norms
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.inference import check_model
from lowbit.formats.onnx.model_file import byte_count
from lowbit.formats.onnx.runtime import brief, new_session
from lowbit.formats.onnx.saving import refuse_target
from lowbit.formats.onnx.static import quantize_static, why_not_static
from lowbit.formats.onnx.weight_only import OPERATORS, apply_weight_only, opset_needed, takes_nbits
from lowbit.formats.onnx.weight_uses import WeightUse, quantized_uses, weights
from lowbit.models import Histogram, ModelReport, Recipe, Rule, WeightRow
from lowbit.models.recipe import KINDS
from lowbit.models.weights import spread
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported

_MOST_HISTOGRAMS = 200
_NEWEST_IR, _COMMON_IR = 13, 10  # that ONNX Runtime 1.31 takes, and that of opset 21


def quantize_onnx(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    recipe: Any,
    *,
    data: Iterable[Any] | None = None,
    operator: str = "auto",
    strict: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    external_data: bool | str = "auto",
) -> ModelReport:
    """Write the model quantized by a recipe, and return a report with a row for each weight.

    recipe: what Recipe.of takes. data: batches for static activations, each a mapping from input names to arrays.
    operator: for weights in groups, "dequantize", "matmul_nbits" or "auto". strict: raises InvalidProblem where
    something the recipe asks for cannot be done. The target is written only if onnx's full check passes and ONNX
    Runtime loads the result with its default options.

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
    _check_options(source, target, recipe, data, operator, overwrite)
    graph = Graph.load(source)
    check_model(graph.proto, os.fspath(source))
    before = os.path.getsize(source) + graph.bytes_beside
    names = graph.names
    folded = fold_batch_norms(graph)
    notes = [f"{folded} batch normalisations folded into the layer before them"] if folded else []
    _raise_opset(graph, recipe, operator, notes)
    plans, came_quantized = _plans(graph, recipe), quantized_uses(graph)
    recipe.refuse_unmatched(([p.use.name, p.use.node.name] for p in plans), names)
    if operator != "auto":
        _refuse_idle_operator(recipe, operator, plans)
    work = _Work(graph, operator, plans)
    rows = work.done(data, progress)
    came = {u.name: _left_row(u, False, _stored_bytes(graph, u.name)) for u in came_quantized}
    rows += came.values()
    notes += _notes_on([p.use for p in plans], len(came), rows)
    if strict:
        _refuse_skipped(rows)
    graph.remove_unused()
    notes += _lower_ir(graph)
    after = graph.save(
        target, external_data=external_data, overwrite=overwrite, check=lambda path: _refuse_unusable(path, source)
    )
    report = ModelReport(os.fspath(source), os.fspath(target), "onnx", recipe.to_dict(), rows, before, after)
    spent = time.perf_counter() - begun
    return report.but(histograms=work.histograms(), notes=notes, seconds=spent, lowbit_version=__version__)


def _check_options(
    source: Any, target: Any, recipe: Recipe, data: Iterable[Any] | None, operator: str, overwrite: bool
) -> None:
    if operator not in OPERATORS:
        raise InvalidProblem(f"operator: {operator!r}; expected {', '.join(OPERATORS)}")
    if recipe.needs_data and data is None:
        raise InvalidProblem("data: none; the recipe has static activations, whose ranges are found in data")
    refuse_target(Path(target))
    if not overwrite and Path(source).resolve() == Path(target).resolve():
        raise InvalidProblem(f"{os.fspath(target)}: the model is read from it; give another name, or overwrite=True")


class _Plan(NamedTuple):
    """What to do with one use of a weight."""

    use: WeightUse
    rule: Rule
    way: str  # "static", "dynamic" or "weight"; empty: it stays as it is


def _plans(graph: Graph, recipe: Recipe) -> list[_Plan]:
    """A plan for each use, in the order of the nodes."""
    found = []
    for use in weights(graph):
        if use.kind in KINDS:
            # Exporters often name the layer well and the weight not at all.
            aliases = (use.node.name,) if use.node.name else ()
            rule = recipe.rule(use.name, use.kind, use.elements, aliases=aliases)
        else:
            rule = Rule(recipe.weights, None, use.why_not)
        a, way = rule.activations, "weight"
        if use.why_not or rule.skip:
            way = ""
        elif a is not None and not _why_float(graph, use, rule):
            way = "dynamic" if a.dynamic else "static"
        found.append(_Plan(use, rule, way))
    return found


def _why_float(graph: Graph, use: WeightUse, rule: Rule) -> str:
    """Why the activations that this weight is multiplied with stay float, or an empty string."""
    assert rule.activations is not None
    return why_not_dynamic(use, rule) if rule.activations.dynamic else why_not_static(graph, use, rule)


class _Work:
    """Rewrite the graph for each weight, and keep the rows and histograms of the report."""

    def __init__(self, graph: Graph, operator: str, plans: Sequence[_Plan]) -> None:
        self.graph, self.operator, self.plans = graph, operator, plans
        self.sizes = {p.use.name: _stored_bytes(graph, p.use.name) for p in plans}
        self.store = CodeStore(graph)
        self.dynamic = Dynamic(self.store)
        self._spreads: dict[str, tuple[int, Histogram]] = {}
        self._static: Sequence[Histogram] = ()

    def done(self, data: Iterable[Any] | None, progress: bool) -> list[WeightRow]:
        """A row for each weight, however many nodes read it."""
        rows: dict[int, WeightRow] = {}
        by_way: dict[str, list[int]] = {"": [], "static": [], "dynamic": [], "weight": []}
        for i, plan in enumerate(self.plans):
            by_way[plan.way].append(i)
        for i in by_way[""]:
            use, rule, _ = self.plans[i]
            asked = use.kind in KINDS and not rule.skip and not use.why_not.startswith("its layer came")
            rows[i] = _left_row(use, asked, self.sizes[use.name], rule.skip)
        if by_way["static"]:
            given = [(self.plans[i].use, self.plans[i].rule) for i in by_way["static"]]
            found, self._static = quantize_static(self.graph, given, data, progress)
            rows |= dict(zip(by_way["static"], found, strict=True))
        # Integer matrix products first: an embedding tied to one takes its codes.
        for i in tracked(by_way["dynamic"] + by_way["weight"], "Quantizing", progress):
            use, rule, way = self.plans[i]
            try:
                if way == "dynamic":
                    w = self.dynamic.apply(use, rule)
                    rows[i] = self._row(use, w, "uint8 asymmetric, dynamic per tensor", dynamic_note(rule))
                else:
                    rows[i] = self._weight_only_row(use, rule)
            except Unsupported as error:
                rows[i] = _left_row(use, True, self.sizes[use.name], str(error))
        by_name: dict[str, list[WeightRow]] = {}
        for i, plan in enumerate(self.plans):
            by_name.setdefault(plan.use.name, []).append(rows[i])
        return [_one_row(same, self.store.bytes_of(name)) for name, same in by_name.items()]

    def _weight_only_row(self, use: WeightUse, rule: Rule) -> WeightRow:
        a = rule.activations
        # MatMulNBits rounds activations itself: dynamic ones, with weights in groups.
        in_blocks = a is not None and a.dynamic and rule.weights.granularity == "group"
        w = apply_weight_only(self.store, use, rule if in_blocks else Rule(rule.weights, None), self.operator)
        notes, activations = [w.note], ""
        if self.operator == "matmul_nbits" and use.kind == "linear" and not takes_nbits(use, rule.weights):
            notes.append("DequantizeLinear: MatMulNBits takes groups of 16, 32, 64, ...")
        if in_blocks and use.kind == "linear":
            activations = "int8 in blocks, by MatMulNBits"
        elif a is not None and use.kind != "embedding":
            notes.append(f"activations stay float: {_why_float(self.graph, use, rule)}")
        return self._row(use, w, activations, "; ".join(filter(None, notes)))

    def _row(self, use: WeightUse, w: StoredWeight, activations: str, note: str) -> WeightRow:
        value = np.asarray(use.value(self.graph))
        seen = value if not w.is_matrix or use.channel_axis == 0 else value.T
        if use.name not in self._spreads:
            self._spreads[use.name] = use.elements, spread(use.name, seen, w.q.params)
        return WeightRow(
            use.name,
            use.op,
            use.shape,
            use.dtype,
            str(w.recipe),
            bytes_before=self.sizes[use.name],
            sqnr_db=w.q.error(seen.astype(np.float32)).sqnr_db,
            activations=activations,
            note=note,
        )

    def histograms(self) -> list[Histogram]:
        largest = sorted(self._spreads.values(), key=lambda s: -s[0])[:_MOST_HISTOGRAMS]
        return [h for _, h in largest] + list(self._static)


def _stored_bytes(graph: Graph, name: str) -> int:
    stored = graph.initializer(name)
    return 0 if stored is None else byte_count(stored)


def _left_row(use: WeightUse, asked: bool, size: int, why: str = "") -> WeightRow:
    """The row of a weight that is not quantized; size: its bytes."""
    why = why or use.why_not
    return WeightRow(use.name, use.op, use.shape, use.dtype, "", why, asked, bytes_before=size, bytes_after=size)


def _one_row(same: Sequence[WeightRow], stored: int) -> WeightRow:
    """One row for a weight that several nodes read, from theirs; stored: the bytes of all its codes."""
    treated = [r for r in same if r.treated]
    if not treated:
        return next((r for r in same if r.skipped), same[0])
    first = treated[0]
    size = stored or sum({r.how: r.bytes_after for r in treated}.values())
    notes = [n for n in dict.fromkeys(r.note for r in treated) if n]
    left = next((r for r in same if not r.treated), None)
    if left is not None:
        size += first.bytes_before
        notes.append(f"{left.kind} reads it as float: {left.why_not}")
    if len(same) > 1:
        notes.append(f"read by {len(same)} nodes")
    kinds = "+".join(dict.fromkeys(r.kind for r in same))
    return replace(first, kind=kinds, bytes_after=size, note="; ".join(notes))


def _notes_on(uses: Sequence[WeightUse], came_quantized: int, rows: Sequence[WeightRow]) -> list[str]:
    """The notes on the whole model."""
    notes = []
    layers = [u for u in uses if u.kind in KINDS and not u.why_not]
    if came_quantized:
        left = f"{came_quantized} weights came quantized and are left as they are"
        notes.append(left if layers else f"the model is quantized already: {left}")
    if any(u.in_body for u in uses if not u.why_not):
        notes.append("some weights are inside the body of an If, Loop or Scan; they are treated there")
    if not uses and not came_quantized:
        notes.append("no float weight of two or more dimensions in the model")
    elif not any(r.treated for r in rows):
        notes.append("nothing was changed")
    return notes


def _refuse_skipped(rows: Sequence[WeightRow]) -> None:
    """Raise where a weight was asked for and not quantized."""
    skipped = [r for r in rows if r.skipped]
    if skipped:
        some = "; ".join(f"{r.name} ({r.kind}): {r.why_not}" for r in skipped[:5])
        more = f"; and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        raise InvalidProblem(f"strict: {len(skipped)} weights were asked for and not treated: {some}{more}")


def _refuse_idle_operator(recipe: Recipe, operator: str, plans: Sequence[_Plan]) -> None:
    """Raise where no weight of the model will be read by the operator that was asked for."""
    floats = [p for p in plans if p.way == "weight"]
    if not any(operator == "dequantize" or takes_nbits(p.use, p.rule.weights) for p in floats):
        held = "MatMul and Gemm with weights in groups of 16, 32, 64, ..."
        if operator == "dequantize":
            held = "weights multiplied as floats"
        raise InvalidProblem(f"operator: {operator}; it is for {held}, and {recipe.name} makes none in this model")


def _raise_opset(graph: Graph, recipe: Recipe, operator: str, notes: list[str]) -> None:
    """Raise the model to the opset that its weights need, before any node of it is held."""
    needed = 1
    for use, rule, way in _plans(graph, recipe):
        if way:
            needed = max(needed, DYNAMIC_OPSET if way == "dynamic" else opset_needed(use, rule, operator))
    came = graph.opset
    for opset in sorted({needed, min(needed, 13)}, reverse=True):
        try:
            graph.raise_opset(opset)
            break
        except Unsupported as error:
            notes.append(f"the model stays below opset {opset}: {error}")
    if graph.opset != came:
        notes.append(f"opset raised from {came} to {graph.opset}")


def _lower_ir(graph: Graph) -> list[str]:
    """Lower the IR version: onnx stamps new models with one that runtimes do not know yet, whatever their content."""
    came = graph.proto.ir_version
    if came <= _NEWEST_IR:
        return []
    needed = onnx.helper.find_min_ir_version_for(list(graph.proto.opset_import), ignore_unknown=True)
    graph.proto.ir_version = max(_COMMON_IR, needed)
    return [f"ir_version lowered from {came} to {graph.proto.ir_version}, which runtimes take"]


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
