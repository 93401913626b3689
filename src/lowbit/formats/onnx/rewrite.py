"""A graph rewritten by a recipe: what is done to each weight, and the rows that say so.

A weight can take several forms. What the recipe asks for comes first; "fold" stores codes and scales that the runtime
multiplies once as it loads the model, so that the layer runs at the speed of float. `fastest` chooses by measurement.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from lowbit.calibration.calibrator import tracked
from lowbit.formats.onnx.arrangement import Arrangement, arrangement
from lowbit.formats.onnx.code_store import CodeStore
from lowbit.formats.onnx.dynamic import OPSET as DYNAMIC_OPSET
from lowbit.formats.onnx.dynamic import Dynamic, dynamic_note, why_not_dynamic
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.inference import check_model
from lowbit.formats.onnx.model_file import byte_count
from lowbit.formats.onnx.prepare import prepare
from lowbit.formats.onnx.sensitive import adapted, spared
from lowbit.formats.onnx.solved import SolvedWeights
from lowbit.formats.onnx.static import Ranges, quantize_static, why_not_static
from lowbit.formats.onnx.stored_weight import StoredWeight
from lowbit.formats.onnx.weight_only import apply_weight_only, opset_needed, takes_nbits
from lowbit.formats.onnx.weight_uses import WeightUse, quantized_uses, weights
from lowbit.models import Histogram, Recipe, Rule, WeightRow
from lowbit.models.recipe import KINDS
from lowbit.models.weights import spread
from lowbit.numerics.errors import Unsupported

_MOST_HISTOGRAMS = 200


class Plan(NamedTuple):
    """What to do with one use of a weight."""

    use: WeightUse
    rule: Rule
    way: str  # "static", "dynamic", "nbits", "weight" or "fold"; empty: it stays as it is
    note: str = ""  # where this is not what the recipe asks for


@dataclass
class Rewritten:
    """A graph after the work, and what is to be said of it. `plans` are in the order of the nodes of the source."""

    graph: Graph
    plans: Sequence[Plan]
    rows: list[WeightRow]
    notes: list[str]
    histograms: list[Histogram] = field(default_factory=list)


class Rewrite:
    """Rewrites a model any number of times, each time with other forms for some of its weights.

    guarded: choose weights whose products fit 16 bits two by two, for CPUs without VNNI. solved: quantizes the weights,
    with the statistics of their inputs.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        recipe: Recipe,
        operator: str,
        data: Iterable[Any] | None,
        progress: bool,
        guarded: bool = True,
        solved: SolvedWeights | None = None,
    ) -> None:
        self.source, self.recipe, self.operator, self.guarded = source, recipe, operator, guarded
        self.data, self.progress = data, progress
        self.solved = SolvedWeights() if solved is None else solved
        self.one_scale = ""  # why LSTMs get one scale per weight
        self._ranges: Ranges = {}
        self._made_names: set[str] = set()

    def prepared(self) -> tuple[Graph, list[str]]:
        """The model ready for quantization, with a name for every node, and notes."""
        graph = Graph.load(self.source)
        check_model(graph.proto, os.fspath(self.source))
        self._made_names = _name_nodes(graph)
        return graph, prepare(graph)

    def plans(self, graph: Graph, folded: Mapping[int, str] | None = None) -> list[Plan]:
        """A plan for each use of a weight, in the order of the nodes. folded: why some, by number, are folded."""
        uses = weights(graph)
        why_spared = spared(graph, uses) if self.recipe.protect else {}
        found = []
        for i, use in enumerate(uses):
            rule, note = Rule(self.recipe.weights, None, use.why_not), (folded or {}).get(i, "")
            way = "fold" if note else ""
            if use.kind in KINDS:
                name, *aliases = self.names_of(use)
                rule = self.recipe.rule(name, use.kind, use.elements, aliases=aliases)
                if self.recipe.protect and not rule.is_named:
                    rule, why = adapted(rule, use, why_spared.get(use.name, ""))
                    note = _joined(note, why)
            way = way or self._way(graph, use, rule)
            if self.one_scale and way == "dynamic" and use.kind == "recurrent" and not rule.is_named:
                rule = replace(rule, weights=replace(rule.weights, granularity="tensor", method="auto"))
                note = _joined(note, self.one_scale)
            found.append(Plan(use, rule, way, note))
        # DynamicQuantizeLSTM takes both weights of a layer as codes.
        parts = Counter(id(p.use.node) for p in found if _is_part(p))
        why = "activations stay float: the other weight of its layer is not int8"
        alone = {i for i, p in enumerate(found) if _is_part(p) and parts[id(p.use.node)] < 2}
        return [p._replace(way="fold", note=_joined(p.note, why)) if i in alone else p for i, p in enumerate(found)]

    def names_of(self, use: WeightUse) -> list[str]:
        """What recipes may call it: exporters often name the layer well and the weight not at all."""
        layer = str(use.node.name)
        return [use.name] if layer in self._made_names else [use.name, layer]

    def _way(self, graph: Graph, use: WeightUse, rule: Rule) -> str:
        a = rule.activations
        if use.why_not or rule.skip:
            return ""
        if a is not None and not why_float(graph, use, rule):
            return "dynamic" if a.dynamic else "static"
        if use.kind == "embedding" or self.operator == "dequantize":
            return "weight"
        return "nbits" if takes_nbits(use, rule.weights, self.operator) else "fold"

    def observe(self, graph: Graph, plans: Sequence[Plan]) -> list[str]:
        """Observe what the weights are multiplied with, where a method uses that, and quantize those; returns notes."""
        wanted = [(p.use, _arranged(p)) for p in plans if p.way]
        passes = sum(p.way == "static" for p in plans)
        return self.solved.prepare(graph, wanted, self.data, self.progress, passes)

    def done(self, folded: Mapping[int, str] | None = None) -> Rewritten:
        """The rewritten model. folded: why some weights, by number of their plan, are folded."""
        graph, notes = self.prepared()
        _raise_opset(graph, self.plans(graph, folded), notes)
        plans, came_quantized = self.plans(graph, folded), quantized_uses(graph)
        work = _Work(graph, self.operator, plans, self._ranges, CodeStore(graph, self.guarded, self.solved))
        rows = work.done(self.data, self.progress and folded is None)
        came = {u.name: _left_row(u, False, _stored_bytes(graph, u.name)) for u in came_quantized}
        rows += came.values()
        notes += _notes_on([p.use for p in plans], len(came), rows)
        graph.remove_unused()
        return Rewritten(graph, plans, rows, notes, work.histograms())


def _arranged(plan: Plan) -> Arrangement:
    return arrangement(plan.use, plan.rule.weights, plan.way == "fold")


def _is_part(plan: Plan) -> bool:
    """Whether it is one of two weights for an integer LSTM."""
    return plan.way == "dynamic" and plan.use.kind == "recurrent"


def why_float(graph: Graph, use: WeightUse, rule: Rule) -> str:
    """Why the activations that this weight is multiplied with stay float, or an empty string."""
    assert rule.activations is not None
    return why_not_dynamic(use, rule) if rule.activations.dynamic else why_not_static(graph, use, rule)


class _Work:
    """Rewrite the graph for each weight, and keep the rows and histograms of the report."""

    def __init__(self, graph: Graph, operator: str, plans: list[Plan], ranges: Ranges, store: CodeStore) -> None:
        self.graph, self.operator, self.plans, self.ranges = graph, operator, plans, ranges
        self.sizes = {p.use.name: _stored_bytes(graph, p.use.name) for p in plans}
        self.store = store
        self.dynamic = Dynamic(self.store)
        self._spreads: dict[str, tuple[int, Histogram]] = {}
        self._static: Sequence[Histogram] = ()

    def done(self, data: Iterable[Any] | None, progress: bool) -> list[WeightRow]:
        """A row for each weight, however many nodes read it."""
        rows: dict[int, WeightRow] = {}
        at: dict[str, list[int]] = {}
        for i, plan in enumerate(self.plans):
            at.setdefault(plan.way, []).append(i)
        for i in at.pop("", ()):
            use, rule = self.plans[i][:2]
            asked = use.kind in KINDS and not rule.skip and not use.why_not.startswith("its layer came")
            rows[i] = _left_row(use, asked, self.sizes[use.name], rule.skip)
        if static := at.pop("static", ()):
            given = [self.plans[i][:2] for i in static]
            found, self._static = quantize_static(self.store, given, data, progress, self.ranges)
            rows |= {i: row for i, row in zip(static, found, strict=True) if row is not None}
            idle = [i for i, row in zip(static, found, strict=True) if row is None]
            way = "weight" if self.operator == "dequantize" else "fold"
            for i in idle:
                self.plans[i] = self.plans[i]._replace(way=way, note="its branch never ran on the data")
            at.setdefault(way, []).extend(idle)
        # Integer matrix products first: an embedding tied to one takes its codes.
        others = at.pop("dynamic", []) + sorted(i for way in at.values() for i in way)
        for i in tracked(others, "Quantizing", progress):
            plan = self.plans[i]
            try:
                rows[i] = self._dynamic_row(plan) if plan.way == "dynamic" else self._weight_only_row(plan)
            except Unsupported as error:
                rows[i] = _left_row(plan.use, True, self.sizes[plan.use.name], str(error))
        self.graph.remove_unused()  # what only reshaped a weight for a layer is no reader
        shared = self.store.share_with_floats()
        by_name: dict[str, list[WeightRow]] = {}
        for i, plan in enumerate(self.plans):
            by_name.setdefault(plan.use.name, []).append(rows[i])
        return [_one_row(same, self.store.bytes_of(name), name in shared) for name, same in by_name.items()]

    def _dynamic_row(self, plan: Plan) -> WeightRow:
        w = self.dynamic.apply(plan.use, plan.rule)
        return self._row(
            plan.use, w, "uint8 asymmetric, dynamic per tensor", _joined(dynamic_note(plan.rule), plan.note)
        )

    def _weight_only_row(self, plan: Plan) -> WeightRow:
        use, rule, way, why = plan
        a = rule.activations
        # MatMulNBits rounds activations itself: dynamic ones, with weights in groups.
        in_blocks = way != "fold" and a is not None and a.dynamic and rule.weights.granularity == "group"
        w = apply_weight_only(self.store, use, rule if in_blocks else Rule(rule.weights, None), way)
        notes, activations = [w.note, why], ""
        if self.operator == "matmul_nbits" and use.kind == "linear" and not takes_nbits(use, rule.weights):
            notes.append("MatMulNBits takes groups of 16, 32, 64, ...")
        if in_blocks and use.kind == "linear":
            activations = "int8 in blocks, by MatMulNBits"
        elif a is not None and use.kind != "embedding" and not why:
            notes.append(f"activations stay float: {why_float(self.graph, use, rule)}")
        return self._row(use, w, activations, _joined(*notes))

    def _row(self, use: WeightUse, w: StoredWeight, activations: str, note: str) -> WeightRow:
        value = np.asarray(use.value(self.graph))
        seen = w.arranged(use, value)
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
            guard_db=w.guard_db,
            **w.method_fields,
        )

    def histograms(self) -> list[Histogram]:
        largest = sorted(self._spreads.values(), key=lambda s: -s[0])[:_MOST_HISTOGRAMS]
        return [h for _, h in largest] + list(self._static)


def _joined(*notes: str) -> str:
    return "; ".join(filter(None, notes))


def _stored_bytes(graph: Graph, name: str) -> int:
    stored = graph.initializer(name)
    return 0 if stored is None else byte_count(stored)


def _left_row(use: WeightUse, asked: bool, size: int, why: str = "") -> WeightRow:
    """The row of a weight that is not quantized; size: its bytes."""
    why = why or use.why_not
    return WeightRow(use.name, use.op, use.shape, use.dtype, "", why, asked, bytes_before=size, bytes_after=size)


def _one_row(same: Sequence[WeightRow], stored: int, is_shared: bool) -> WeightRow:
    """One row for a weight that several nodes read, from theirs; stored: the bytes of all its codes. is_shared: nodes
    that take floats read the codes, too."""
    treated = [r for r in same if r.treated]
    if not treated:
        return next((r for r in same if r.skipped), same[0])
    first = treated[0]
    notes = [n for n in dict.fromkeys(r.note for r in treated) if n]
    bits = 8 * stored / math.prod(first.shape)
    left = next((r for r in same if not r.treated), None)
    if left is not None:
        stored += 0 if is_shared else first.bytes_before
        notes.append(f"{left.kind} reads {'its codes as floats' if is_shared else 'it as float'}: {left.why_not}")
    if len(same) > 1:
        notes.append(f"read by {len(same)} nodes")
    kinds = "+".join(dict.fromkeys(r.kind for r in same))
    return replace(first, kind=kinds, bytes_after=stored, bits=bits, note="; ".join(notes))


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


def _raise_opset(graph: Graph, plans: Sequence[Plan], notes: list[str]) -> None:
    """Raise the model to the opset that its weights need, before any node of it is held."""
    needed = 1
    for plan in plans:
        if plan.way:
            needed = max(
                needed, DYNAMIC_OPSET if plan.way == "dynamic" else opset_needed(plan.use, plan.rule, plan.way)
            )
    came = graph.opset
    for opset in sorted({needed, min(needed, 13)}, reverse=True):
        try:
            graph.raise_opset(opset)
            break
        except Unsupported as error:
            notes.append(f"the model stays below opset {opset}: {error}")
    if graph.opset != came:
        notes.append(f"opset raised from {came} to {graph.opset}")


def _name_nodes(graph: Graph) -> set[str]:
    """Give every node a name of its own, which the runtime's profile tells it by; returns the new ones."""
    taken: set[str] = set()
    made = set()
    for node in graph.all_nodes:
        if not node.name or node.name in taken:
            node.name = graph.fresh(f"{node.name or node.op_type}_{node.output[0] if node.output else ''}")
            made.add(node.name)
        taken.add(node.name)
    return made
