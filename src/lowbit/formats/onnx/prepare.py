"""Preparing a graph for quantization: constants are carried to the nodes that multiply with them.

Every step gives the same outputs within float rounding, and no step makes the file larger.
"""

from __future__ import annotations

from onnx import NodeProto, helper

from lowbit.formats.onnx.constants import fold_constants, skip_identities
from lowbit.formats.onnx.folding import fold_affines, fold_batch_norms
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.model_file import subgraphs
from lowbit.formats.onnx.simplify import merge_paddings, pool_globally
from lowbit.formats.onnx.weight_uses import attribute


def prepare(graph: Graph) -> list[str]:
    """Prepare a graph; returns notes on what was done."""
    skip_identities(graph)
    computed = fold_constants(graph)
    carried = carry_constants(graph)
    if carried:
        skip_identities(graph)
        computed += fold_constants(graph)
    norms = affines = 0
    while any(folded := (fold_batch_norms(graph), fold_affines(graph))):
        norms, affines = norms + folded[0], affines + folded[1]
    merged, pooled = merge_paddings(graph), pool_globally(graph)
    graph.remove_unused()
    said = (
        (computed, "tensors computed from constants"),
        (carried, "constants read directly that a Loop or Scan carried"),
        (affines, "factors and summands per channel folded into the layer before them"),
        (norms, "batch normalisations folded into the layer before them"),
        (merged, "paddings merged into the convolutions after them"),
        (pooled, "means over images written as global average pooling"),
    )
    return [f"{count} {what}" for count, what in said if count]


def carry_constants(graph: Graph) -> int:
    """Let the bodies of Loop and Scan read constants directly that come in as carried values and go out unchanged;
    returns the number of such values. Their outputs are the constants."""
    count = 0
    while (found := _unchanged(graph)) is not None:
        _read_directly(graph, *found)
        count += 1
    return count


def _unchanged(graph: Graph) -> tuple[NodeProto, int] | None:
    """A Loop or Scan and the index of a value that it carries unchanged."""
    for node in graph.all_nodes:
        if node.op_type not in ("Loop", "Scan") or node.domain or (node.op_type == "Scan" and graph.opset < 9):
            continue
        (body,) = subgraphs(node)
        first, before, after = _offsets(node)
        carried = len(node.input) - first - (attribute(node, "num_scan_inputs", 0) if node.op_type == "Scan" else 0)
        leaving = [o.name for o in body.output]
        for k in range(carried if len(node.output) > 1 else 0):
            inner, end = body.input[before + k].name, leaving[after + k]
            while end != inner and (maker := graph.producer(end)) is not None and maker.op_type == "Identity":
                end = maker.input[0]
            leaves_otherwise = inner in leaving[: after + k] + leaving[after + k + 1 :]
            if end == inner and not leaves_otherwise and graph.constant(node.input[first + k]) is not None:
                return node, k
    return None


def _offsets(node: NodeProto) -> tuple[int, int, int]:
    """Where carried values begin: among the inputs of a node, the inputs of its body, and the outputs of its body."""
    return (2, 2, 1) if node.op_type == "Loop" else (0, 0, 0)


def _read_directly(graph: Graph, node: NodeProto, k: int) -> None:
    """Remove the k-th carried value, a constant, of a Loop or Scan."""
    (body,) = subgraphs(node)
    first, before, after = _offsets(node)
    constant, inner, made = node.input[first + k], body.input[before + k].name, node.output[k]
    for reader, index in graph.consumers(inner):
        graph.replace_input(reader, index, constant)
    for reader, index in graph.consumers(made):
        graph.replace_input(reader, index, constant)
    del body.input[before + k], body.output[after + k], node.input[first + k], node.output[k]
    if made and graph.is_graph_output(made):
        name = graph.fresh(f"{made}_constant")
        graph.insert_after(node, [helper.make_node("Identity", [constant], [made], name=name)])
    graph.refresh()
    graph.remove_unused()
