"""Types and shapes of a model's tensors, as far as they can be known without running it."""

from __future__ import annotations

import onnx
from onnx import GraphProto, ModelProto, TensorProto, TypeProto

from lowbit.formats.onnx.model_file import byte_count, subgraphs

__all__ = ["inferred_types"]

_SMALL = 8192  # bytes; shape inference looks into constants of at most so many


def inferred_types(proto: ModelProto) -> dict[str, TypeProto]:
    """The type of each tensor that onnx's shape inference knows, in bodies too. Weights are not copied for it."""
    bare = _without_large_constants(proto)
    try:
        known = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    except Exception:  # what onnx cannot infer is not known; the checker judges the result
        known = bare
    found: dict[str, TypeProto] = {}
    _collect(known.graph, found)
    return found


def _collect(graph: GraphProto, found: dict[str, TypeProto]) -> None:
    for v in (*graph.input, *graph.output, *graph.value_info):
        if v.type.HasField("tensor_type"):
            found[v.name] = v.type
    for node in graph.node:
        for inner in subgraphs(node):
            _collect(inner, found)


def _without_large_constants(proto: ModelProto) -> ModelProto:
    """The model with large weights turned into inputs: all that shape inference needs."""
    bare, graph = ModelProto(), proto.graph
    bare.ir_version = max(proto.ir_version, 4)
    bare.opset_import.extend(proto.opset_import)
    bare.graph.name = graph.name
    for field in ("input", "output", "value_info"):
        getattr(bare.graph, field).extend(getattr(graph, field))
    named = {i.name for i in graph.input}

    def given(name: str, t: TensorProto) -> None:
        if name not in named:
            bare.graph.input.append(onnx.helper.make_tensor_value_info(name, t.data_type, list(t.dims)))

    for t in graph.initializer:
        if byte_count(t) > _SMALL or t.data_location == TensorProto.EXTERNAL:
            given(t.name, t)
        else:
            bare.graph.initializer.append(t)
    for node in graph.node:
        value = next((a.t for a in node.attribute if node.op_type == "Constant" and a.name == "value"), None)
        if value is not None and byte_count(value) > _SMALL:
            given(node.output[0], value)
        else:
            bare.graph.node.append(node)
    return bare
