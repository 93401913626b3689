"""Types and shapes of a model's tensors, as far as they can be known without running it."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import GraphProto, ModelProto, TensorProto, TypeProto

from lowbit.formats.onnx.model_file import byte_count, copy_graph, graphs
from lowbit.formats.onnx.runtime import brief
from lowbit.numerics.errors import FormatError

_SMALL = 8192  # bytes; the largest constant that shape inference looks into


def check_model(proto: ModelProto, name: str) -> None:
    """Raise FormatError where onnx's full check refuses the model: unknown operators, missing inputs, attributes of
    another type, shapes that do not fit. Weights are neither copied nor read."""
    try:
        onnx.checker.check_model(_without_large_constants(proto), full_check=True)
    except Exception as error:  # onnx's errors have no common base
        raise FormatError(f"{name}: onnx's check refuses it ({brief(error)})") from None


def inferred_types(proto: ModelProto) -> dict[str, TypeProto]:
    """The type of each tensor that onnx's shape inference knows, in bodies too. Weights are not copied for it."""
    bare = _without_large_constants(proto)
    try:
        known = onnx.shape_inference.infer_shapes(bare, data_prop=True)
    except Exception:  # what onnx cannot infer is not known; the checker judges the result
        known = bare
    values = (v for g in graphs(known.graph) for v in (*g.input, *g.output, *g.value_info))
    return {v.name: v.type for v in values if v.type.HasField("tensor_type")}


def _without_large_constants(proto: ModelProto) -> ModelProto:
    """The model with large weights turned into inputs: all that checks and shape inference need."""
    # The version of the file's own format says nothing of what is in it, and is lowered when a model is written.
    bare = ModelProto(ir_version=min(max(proto.ir_version, 4), onnx.IR_VERSION))
    bare.opset_import.extend(proto.opset_import)
    named = {i.name for i in proto.graph.input}

    def given(_: GraphProto, part: Any) -> bool:
        """Whether a large initializer or Constant is now an input."""
        t: TensorProto | None
        if isinstance(part, TensorProto):
            name, t, outside = part.name, part, part.data_location == TensorProto.EXTERNAL
        elif part.op_type == "Constant" and part.output:
            name, outside = part.output[0], False
            t = next((a.t for a in part.attribute if a.name == "value"), None)
        else:
            return False
        if t is None or not (outside or byte_count(t) > _SMALL):
            return False
        if name not in named:
            named.add(name)
            bare.graph.input.append(onnx.helper.make_tensor_value_info(name, t.data_type, list(t.dims)))
        return True

    copy_graph(bare.graph, proto.graph, given)
    return bare
