"""Raising a model's opset: in place where no operator changes its meaning, else by onnx's converter."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, defs, numpy_helper

from lowbit.formats.onnx.model_file import drop, nodes
from lowbit.numerics.errors import Unsupported

# The version in which an operator changed its meaning but not its signature.
_CHANGED = {"GroupNormalization": 21, "RoiAlign": 16, "BatchNormalization": 14, "Resize": 11, "Upsample": 9}
# The version in which the attribute "axes" became an input.
_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "SumSquare")
_MOVED_AXES = {f"Reduce{name}": 18 for name in _REDUCTIONS} | {"ReduceSum": 13, "Squeeze": 13, "Unsqueeze": 13}


def raised(proto: ModelProto, minimum: int) -> ModelProto:
    """The model at this opset: the same object where every operator keeps its meaning, else the result of onnx's
    converter. Raises Unsupported where neither works."""
    old = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
    other = next((n for n in nodes(proto.graph) if not _says_the_same(n, old, minimum)), None)
    if other is None:
        taken = {n for node in nodes(proto.graph) for n in (*node.input, *node.output)}
        for node in nodes(proto.graph):
            _adapt(proto, node, old, minimum, taken)
        _set(proto, minimum)
        return proto
    try:
        made: ModelProto = onnx.version_converter.convert_version(proto, minimum)
        _set(made, minimum)
    except Exception as error:
        raise Unsupported(
            f"{other.op_type} {other.name!r}: has another meaning in opset {minimum} than in {old}, and onnx cannot "
            f"convert it ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        ) from None
    return made


def _set(proto: ModelProto, version: int) -> None:
    ours = [o for o in proto.opset_import if o.domain in ("", "ai.onnx")]
    if not ours:
        proto.opset_import.append(onnx.helper.make_opsetid("", version))
    for o in ours:
        o.version = version
    needed = onnx.helper.find_min_ir_version_for([onnx.helper.make_opsetid("", version)], ignore_unknown=True)
    proto.ir_version = max(proto.ir_version, needed)


def _says_the_same(node: NodeProto, old: int, new: int) -> bool:
    """Whether the newer definition only adds types, optional inputs and attributes."""
    if node.domain not in ("", "ai.onnx"):
        return True
    try:
        a, b = defs.get_schema(node.op_type, old), defs.get_schema(node.op_type, new)
    except defs.SchemaError:
        return False
    if a.since_version == b.since_version:
        return not b.deprecated
    if a.since_version < _MOVED_AXES.get(node.op_type, 0) <= b.since_version:
        return True
    if b.deprecated or a.since_version < _CHANGED.get(node.op_type, 0) <= b.since_version:
        return False
    same_inputs = [i.name for i in b.inputs[: len(a.inputs)]] == [i.name for i in a.inputs]
    more_are_optional = all(i.option == defs.OpSchema.FormalParameterOption.Optional for i in b.inputs[len(a.inputs) :])
    used = {x.name for x in node.attribute}
    same_defaults = all(
        n in b.attributes and x.default_value == b.attributes[n].default_value
        for n, x in a.attributes.items()
        if n not in used
    )
    return same_inputs and more_are_optional and used <= b.attributes.keys() and same_defaults


def _adapt(proto: ModelProto, node: NodeProto, old: int, new: int, taken: set[str]) -> None:
    """Rewrite a node for the new opset."""
    if node.domain not in ("", "ai.onnx"):
        return
    said = {a.name: a for a in node.attribute}
    if "axes" in said and old < _MOVED_AXES.get(node.op_type, 0) <= new:
        name = f"{node.output[0]}_axes"
        while name in taken:
            name += "_"
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(said["axes"].ints, np.int64), name))
        drop(node.attribute, ["axes"])
        node.input.append(name)
    # Since opset 18, a split into equal parts is explicit.
    equal = len([n for n in node.input if n]) == 1 and not {"split", "num_outputs"} & said.keys()
    if node.op_type == "Split" and old < 18 <= new and equal:
        node.attribute.append(onnx.helper.make_attribute("num_outputs", len(node.output)))
