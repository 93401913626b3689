"""Static int8: activations are quantized with calibrated ranges, in QuantizeLinear/DequantizeLinear pairs.

ONNX Runtime fuses DQ -> Conv -> Q into QLinearConv, DQ -> Gemm -> Q into QGemm, DQ -> MatMul into MatMulIntegerToFloat
or QLinearMatMul, and likewise sums, concatenations and poolings; `placement` puts the pairs where it can.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, helper

from lowbit.calibration import Calibrator
from lowbit.formats.onnx.activations import GATE_SCALE, Activation, find_activations, merge_activations
from lowbit.formats.onnx.arrangement import arrangement
from lowbit.formats.onnx.code_store import CodeStore, is_int8, lost_db, rescaled
from lowbit.formats.onnx.graph import Graph, Use
from lowbit.formats.onnx.model_file import drop
from lowbit.formats.onnx.observe import observe
from lowbit.formats.onnx.placement import Placement, place
from lowbit.formats.onnx.solved import Solved
from lowbit.formats.onnx.weight_uses import WeightUse, attribute
from lowbit.models import Histogram, Rule, WeightRow
from lowbit.models.recipe import WeightRecipe
from lowbit.models.weights import method_for, quantize_weight, spread
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.fitting import in_conv_order, unsaturated

Array = npt.NDArray[Any]
Ranges = dict[str, tuple[QuantizationParams, Histogram]]  # of tensors by name
OPSET = 13  # scales per channel
_LARGEST_BIAS = float((1 << 31) - 128)  # a float32 below 2^31


def why_not_static(graph: Graph, use: WeightUse, rule: Rule) -> str:
    """Why this weight cannot be multiplied in static int8, or an empty string."""
    w, a = rule.weights, rule.activations
    reasons = (
        (use.op not in ("Conv", "Gemm", "MatMul"), f"ONNX Runtime has no integer {use.op}"),
        (graph.in_loop(use.node), "inside the body of a Loop or Scan"),
        (use.input_index != 1, "the weight is the left operand"),
        (use.dtype != "float32", "static int8 needs float32 weights and activations"),
        (not is_int8(w), f"static activations go with 8 bits per tensor or channel, not with {w}"),
        (a is None or a.dtype not in ("int8", "uint8"), "ONNX Runtime's integer kernels take 8-bit activations"),
        (use.op == "MatMul" and len(use.shape) != 2, "the weight is a stack of matrices"),
        (use.op == "Gemm" and attribute(use.node, "transA", 0), "its input is transposed"),
    )
    return next((why for applies, why in reasons if applies), "")


def quantize_static(
    store: CodeStore,
    uses: Sequence[tuple[WeightUse, Rule]],
    data: Iterable[Any] | None,
    progress: bool = True,
    ranges: Ranges | None = None,
) -> tuple[list[WeightRow | None], list[Histogram]]:
    """Rewrite the graph for these weights, all of which `why_not_static` allows; returns a row for each weight and a
    histogram for each weight and quantized activation. A weight in a branch of an If that never ran on the data is left
    as it is, and has no row.

    data: batches, each a mapping from input names to arrays; one is held at a time. ranges: filled by the first call
    for all tensors that it quantizes; a later one, for some of the same weights, takes them from there.
    """
    if data is None:
        raise InvalidProblem("data: none; static activations need ranges, so give batches, or use dynamic ones")
    graph = store.graph
    graph.raise_opset(OPSET)
    uses = [(_with_bias(graph, use), rule) for use, rule in uses]
    biases = [_bias(graph, use) for use, _ in uses]
    activations = find_activations(graph)
    found = place(graph, [use.node for use, _ in uses], activations)
    ranges = {} if ranges is None else ranges
    if not ranges:
        ranges |= _observed(graph, uses, found, activations, data, progress)
    ran = [not _is_idle(graph, use, found, ranges) for use, _ in uses]
    if not all(ran):
        found = place(graph, [use.node for (use, _), did in zip(uses, ran, strict=True) if did], activations)
    params = {name: _params(ranges, found.root(name)) for name in found.readers}
    done: list[tuple[WeightRow, Histogram] | None] = []
    for (use, rule), bias, did in zip(uses, biases, ran, strict=True):
        if did and use.op == "Gemm":
            _plain_gemm(graph, use)
        done.append(_weight(store, use, rule, params[use.node.input[0]], bias) if did else None)
    homes = {id(graph.home(use.node)) for (use, _), did in zip(uses, ran, strict=True) if did}
    pairs = _Pairs(graph, found, params, homes)
    for name in found.readers:
        pairs.insert(name)
    merge_activations(graph, activations, found.readers)
    weights = {pair[1].name: pair[1] for pair in done if pair is not None}
    roots = dict.fromkeys(found.root(name) for name in found.readers)
    rows = [None if pair is None else pair[0] for pair in done]
    return rows, [*weights.values(), *(ranges[name][1] for name in roots)]


def _observed(
    graph: Graph,
    uses: Sequence[tuple[WeightUse, Rule]],
    found: Placement,
    activations: Mapping[str, Activation],
    data: Iterable[Any],
    progress: bool,
) -> Ranges:
    """Params and histograms of the tensors to quantize. Those of branches that never ran are missing."""
    roots = list(dict.fromkeys(found.root(name) for name in found.readers))
    # A tensor follows the recipe of the first weight that it is multiplied with, else the first of all.
    recipes = {found.root(use.node.input[0]): rule.activations for use, rule in reversed(uses)}
    ranges: Ranges = {}
    for name, seen in observe(graph, data, tensors=roots, progress=progress).items():
        recipe = recipes.get(name, uses[0][1].activations)
        assert recipe is not None
        p = seen.calibrate(recipe.dtype, recipe.scheme, method=recipe.calibration_method())
        if name in activations and activations[name].kind == "hard_sigmoid":  # quantization cuts it off
            p = QuantizationParams(p.dtype, scale=GATE_SCALE, zero_point=p.dtype.qmin)
        ranges[name] = p, _spread(seen, p)
    # With fewer weights a tensor may be quantized for itself: nodes that move its elements keep the range.
    return ranges | {name: ranges[found.root(name)] for name in found.readers if found.root(name) in ranges}


def _is_idle(graph: Graph, use: WeightUse, found: Placement, ranges: Ranges) -> bool:
    """Whether a weight is in a branch that never ran on the data."""
    home = graph.home(use.node)
    makers = (graph.producer(name) for name in found.readers if found.root(name) not in ranges)
    return graph.in_body(use.node) and any(node is not None and graph.home(node) is home for node in makers)


def _params(ranges: Ranges, name: str) -> QuantizationParams:
    if name not in ranges:
        raise InvalidProblem(f"{name!r}: no float values were observed; static activations need ranges")
    return ranges[name][0]


class _Pairs:
    """Inserts QuantizeLinear and DequantizeLinear. homes: the graph and bodies with quantized weights. A body reads
    nothing quantized from outside: the runtime would not load it."""

    def __init__(
        self, graph: Graph, found: Placement, params: Mapping[str, QuantizationParams], homes: Container[int]
    ) -> None:
        self.graph, self.found, self.params, self.homes = graph, found, params, homes
        self._stored: dict[tuple[str, int], tuple[str, str]] = {}

    def insert(self, name: str) -> None:
        """Quantize and dequantize a tensor for its readers, those in other bodies there."""
        graph, node = self.graph, self.graph.producer(name)
        home = graph.proto.graph if node is None else graph.home(node)
        here: list[Use] = []
        elsewhere: dict[int, list[Use]] = {}
        for use in self.found.readers[name]:
            inner = id(graph.home(use[0]))
            is_here = inner == id(home) or inner not in self.homes
            here.append(use) if is_here else elsewhere.setdefault(inner, []).append(use)
        exact = name
        if here or name in self.found.inside:
            rounded = graph.fresh(f"{name}_rounded")
            if name in self.found.inside and graph.is_graph_output(name):  # graph outputs keep their name
                assert node is not None
                exact, rounded = rounded, name
                graph.rename_output(node, list(node.output).index(name), exact)
            pair = self._pair(name, exact, rounded, home)
            graph.insert_first(pair) if node is None else graph.insert_after(node, pair)
            _read_instead(graph, here, rounded)
            exact = rounded if name in self.found.inside else exact
        for uses in elsewhere.values():
            rounded, inner_home = graph.fresh(f"{name}_rounded"), graph.home(uses[0][0])
            graph.insert_first(self._pair(name, exact, rounded, inner_home), inner_home)
            _read_instead(graph, uses, rounded)

    def _pair(self, name: str, exact: str, rounded: str, home: GraphProto) -> list[NodeProto]:
        graph, stored = self.graph, self._constants(name, home)
        codes = graph.fresh(f"{name}_codes")
        return [
            helper.make_node("QuantizeLinear", [exact, *stored], [codes], name=graph.fresh(f"{name}_quantize")),
            helper.make_node("DequantizeLinear", [codes, *stored], [rounded], name=graph.fresh(f"{name}_dequantize")),
        ]

    def _constants(self, name: str, home: GraphProto) -> tuple[str, str]:
        """The names of the scale and zero point of a tensor in a graph or body."""
        root = self.found.root(name)
        if (root, id(home)) not in self._stored:
            p = self.params[name]
            scale, zero = np.asarray(p.scale, np.float32), np.asarray(p.zero_point).astype(p.dtype.code_dtype)
            self._stored[root, id(home)] = (
                self.graph.add_constant(f"{root}_scale", scale.reshape(()), home),
                self.graph.add_constant(f"{root}_zero_point", zero.reshape(()), home),
            )
        return self._stored[root, id(home)]


def _read_instead(graph: Graph, uses: Iterable[Use], name: str) -> None:
    for reader, index in uses:
        graph.replace_input(reader, index, name)


def _weight(
    store: CodeStore, use: WeightUse, rule: Rule, x: QuantizationParams, bias_at: Use | None
) -> tuple[WeightRow, Histogram]:
    """Quantize a weight and, to int32, a bias of one value per channel; x: the params of the activation."""
    graph, note = store.graph, ""
    weight = _value(graph, use)
    bias_name = bias_at[0].input[bias_at[1]] if bias_at is not None else ""
    bias = graph.constant(bias_name) if bias_name else None
    if bias_name and bias is None:
        note = "its bias is computed and stays float"
    elif bias is not None and bias.shape != (weight.shape[use.channel_axis],):  # a Gemm's bias may differ between rows
        note, bias = f"its bias of shape {bias.shape} stays float", None
    is_own = use.node.input[use.input_index] not in (use.name, *(s.output[0] for s in use.steps))  # scaled by alpha
    solved = _solved(store, use, rule.weights, weight, is_own)
    q, lost = _codes(use, solved.q, weight, bias, float(x.scale), store.guarded)
    w = store.put_exact(use, rule.weights, q, is_own)
    w.solved = replace(solved, q=w.q if q is solved.q else solved.q)
    scale = np.asarray(w.q.params.scale, np.float32)
    inputs = [w.codes(w.is_matrix and use.channel_axis == 1), w.scale()]
    # ONNX Runtime fuses a Gemm only with explicit zero points.
    is_gemm = use.op != "Conv" and (use.op == "Gemm" or bias is not None)
    inputs += [w.zero_point()] if is_gemm or w.has_zero_point else []
    _dequantize(graph, (use.node, use.input_index), use.name, inputs, use.channel_axis if scale.ndim else None)
    if bias is not None and bias_at is not None:  # int32, with the scale of the accumulator
        unit = scale * np.float32(x.scale)
        codes = np.rint(bias.astype(np.float64) / unit.astype(np.float64)).astype(np.int32)
        made = {"codes": codes, "scale": unit}
        if is_gemm:
            made["zero_point"] = np.zeros(unit.shape, np.int32)
        inputs = [graph.add_constant(f"{bias_name}_{label}", a, graph.home(use.node)) for label, a in made.items()]
        _dequantize(graph, bias_at, bias_name, inputs, 0 if scale.ndim else None)
    seen = weight.T if w.is_matrix and use.channel_axis == 1 else weight
    row = WeightRow(
        use.name,
        use.op,
        tuple(weight.shape),
        str(weight.dtype),
        str(rule.weights),
        bytes_before=weight.nbytes,
        bytes_after=w.bytes,
        sqnr_db=w.q.error(seen).sqnr_db,
        activations=str(rule.activations),
        note=note,
        guard_db=lost,
        **w.method_fields,
    )
    return row, spread(use.name, seen, w.q.params)


def _value(graph: Graph, use: WeightUse) -> Array:
    """The weight that the node reads now: that of a Gemm may have been scaled."""
    now = graph.constant(use.node.input[use.input_index])
    return np.asarray(use.value(graph) if now is None else now)


def _solved(store: CodeStore, use: WeightUse, recipe: WeightRecipe, weight: Array, is_own: bool) -> Solved:
    """The weight quantized in the shape that its node reads. is_own: the value is not that of the stored weight."""
    axis = use.channel_axis
    if is_own:
        recipe = replace(recipe, method="auto")
        return Solved(quantize_weight(weight, recipe, axis=axis, name=use.name), method_for(recipe))
    how = arrangement(use, recipe, folded=False)
    found = store.solved.of(store.graph, use, how)
    if not how.is_turned:
        return found
    p = found.q.params
    turned = p if p.axis is None else p.replace(axis=axis)
    return replace(found, q=QuantizedTensor.from_codes(np.ascontiguousarray(found.q.unpack().T), turned))


def _codes(
    use: WeightUse, q: QuantizedTensor, weight: Array, bias: Array | None, x_scale: float, guarded: bool
) -> tuple[QuantizedTensor, float]:
    """The weight quantized with scales that let every bias fit into 32 bits and, if guarded, saturate no accumulator;
    and the decibels that the guard costs."""
    axis, p = use.channel_axis, q.params
    if not p.dtype.is_signed:
        return q, 0.0  # unsigned by unsigned is exact everywhere
    rows = np.moveaxis(weight, axis, 0)
    rows = in_conv_order(rows) if use.op == "Conv" else rows.reshape(len(rows), -1)
    scale = np.broadcast_to(np.asarray(p.scale, np.float32), len(rows)).copy()
    if bias is not None:
        scale = np.maximum(scale, (np.abs(bias) / (x_scale * _LARGEST_BIAS)).astype(np.float32))
    plain = rescaled(weight, q, scale.max() if p.axis is None else scale)
    if not guarded or _is_depthwise(use, weight):
        return plain, 0.0
    fitting = unsaturated(rows, scale)
    q = rescaled(weight, plain, fitting.max() if p.axis is None else fitting)
    return q, lost_db(weight, plain, q)


def _is_depthwise(use: WeightUse, weight: Array) -> bool:
    """Whether a convolution has one input and one output per group. ONNX Runtime widens the codes of these before it
    multiplies, on every CPU, so that nothing saturates."""
    return use.op == "Conv" and weight.shape[1] == 1 and len(weight) == attribute(use.node, "group", 1)


def _dequantize(graph: Graph, at: Use, name: str, inputs: Sequence[str], axis: int | None) -> None:
    """Let the node read codes with scales along an axis, or one scale."""
    options = {} if axis is None else {"axis": axis}
    graph.dequantize_input(at[0], at[1], f"{name}_dequantized", inputs, **options)


def _with_bias(graph: Graph, use: WeightUse) -> WeightUse:
    """Merge a MatMul and the Add of a bias into a Gemm, which the runtime would do only after quantization."""
    made = use.node.output[0]
    readers = graph.consumers(made)
    if use.op != "MatMul" or len(readers) != 1 or graph.is_graph_output(made) or readers[0][0].op_type != "Add":
        return use
    add, index = readers[0]
    bias = graph.constant(add.input[1 - index])
    rank = graph.shape(use.node.input[0])
    if bias is None or bias.shape != use.shape[1:] or rank is None or len(rank) != 2 or graph.in_body(add):
        return use
    bias_name, result = add.input[1 - index], add.output[0]
    graph.remove(add)
    graph.rename_output(use.node, 0, result)
    use.node.op_type = "Gemm"
    use.node.input.append(bias_name)
    graph.refresh()
    return replace(use, op="Gemm")


def _bias(graph: Graph, use: WeightUse) -> Use | None:
    """Where the bias of a weight is read: by its node, or by the Add behind a MatMul. Where all sizes are fixed, ONNX
    Runtime merges these two into a Gemm, which is computed in integers only with a bias of int32."""
    if use.op in ("Conv", "Gemm"):
        return (use.node, 2) if any(use.node.input[2:]) else None
    made = use.node.output[0]
    readers, shape = graph.consumers(made), graph.shape(made)
    if shape is None or None in shape or len(readers) != 1 or graph.is_graph_output(made):
        return None
    add, index = readers[0]
    if add.op_type != "Add" or graph.home(add) is not graph.home(use.node):
        return None
    bias = graph.constant(add.input[1 - index])
    return (add, 1 - index) if bias is not None and bias.shape == use.shape[1:] else None


def _plain_gemm(graph: Graph, use: WeightUse) -> None:
    """Move alpha and beta of alpha * x * w + beta * c into the constants, and expand c to one value per column."""
    node = use.node
    alpha, beta = attribute(node, "alpha", 1.0), attribute(node, "beta", 1.0)
    weight = _value(graph, use)
    columns = weight.shape[use.channel_axis]
    bias = graph.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if bias is not None and (beta != 1.0 or bias.shape != (columns,)) and bias.size in (1, columns):
        flat = np.broadcast_to(np.asarray(bias, np.float32).reshape(-1) * np.float32(beta), columns)
        graph.replace_input(node, 2, graph.add_constant(f"{node.input[2]}_scaled", flat.copy()))
        drop(node.attribute, ["beta"])
    if alpha != 1.0:
        graph.replace_input(node, 1, graph.add_constant(f"{node.input[1]}_scaled", weight * np.float32(alpha)))
        drop(node.attribute, ["alpha"])


def _spread(c: Calibrator, p: QuantizationParams) -> Histogram:
    """A histogram of the observed values in 64 bins, with the ends of the code range."""
    d = c.sketch.distribution()
    scale, zero = float(p.scale), int(p.zero_point)
    clip = ((p.dtype.qmin - zero) * scale, (p.dtype.qmax - zero) * scale)
    lo, hi = min(d.lo, clip[0]), max(d.hi, clip[1])
    edges = np.linspace(lo, hi, 65)
    counts = np.rint(np.diff(d.histogram.below(edges)))
    return Histogram(c.name, tuple(map(float, edges)), tuple(map(int, counts)), clip, "activation")
