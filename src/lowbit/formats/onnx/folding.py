"""Folding batch normalisation into the convolution or matrix product before it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from lowbit.formats.onnx.graph import Graph


def fold_batch_norms(graph: Graph) -> int:
    """Fold each BatchNormalization into the Conv, ConvTranspose or Gemm that alone produces its input, where the
    weights are constant and nothing else reads it. Returns their number. Computed in float64, rounded once.

    y = (w * x + b - mean) * g + beta,  g = gamma / sqrt(var + epsilon)   becomes   (g * w) * x + (b - mean) * g + beta
    """
    folded = 0
    for norm in [n for n in graph.nodes if n.op_type == "BatchNormalization"]:
        folded += _folded(graph, norm)
    return folded


def _folded(graph: Graph, norm: Any) -> bool:
    source = norm.input[0]
    before = graph.producer(source)
    if before is None or before.op_type not in ("Conv", "ConvTranspose", "Gemm"):
        return False
    if len(graph.consumers(source)) != 1 or graph.is_graph_output(source) or any(norm.output[1:]):
        return False
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in (*norm.attribute, *before.attribute)}
    if attributes.get("training_mode", 0) or (before.op_type == "Gemm" and _scaled(attributes)):
        return False
    group = attributes.get("group", 1)
    weight = graph.constant(before.input[1])
    bias = graph.constant(before.input[2]) if len(before.input) > 2 and before.input[2] else None
    if weight is None or (len(before.input) > 2 and before.input[2] and bias is None):
        return False
    numbers = [graph.constant(n) for n in norm.input[1:5]]
    if any(n is None for n in numbers):
        return False
    gamma, beta, mean, var = (np.asarray(n, np.float64) for n in numbers)
    g = gamma / np.sqrt(var + attributes.get("epsilon", 1e-5))
    wide = weight.astype(np.float64)
    if before.op_type == "ConvTranspose":  # [inputs, outputs / group, ...]
        shape = (group, weight.shape[0] // group, *weight.shape[1:])
        spread = g.reshape(group, 1, weight.shape[1], *(1,) * (weight.ndim - 2))
        wide = (wide.reshape(shape) * spread).reshape(weight.shape)
    elif before.op_type == "Gemm" and not attributes.get("transB", 0):
        wide = wide * g
    else:
        wide = wide * g.reshape(-1, *(1,) * (weight.ndim - 1))
    moved = (0.0 if bias is None else bias.astype(np.float64)) - mean
    moved = moved * g + beta
    new_weight = _stored(graph, before.input[1], wide.astype(weight.dtype))
    new_bias = graph.add_constant(f"{before.output[0]}_bias", moved.astype(weight.dtype))
    made = norm.output[0]
    graph.remove(norm)
    graph.rename_output(before, 0, made)
    graph.replace_input(before, 1, new_weight)
    while len(before.input) < 3:
        before.input.append("")
    before.input[2] = new_bias
    graph.refresh()
    return True


def _stored(graph: Graph, name: str, array: Any) -> str:
    """Store the folded weight under its old name, which recipes use, unless another node reads that."""
    held = next((t for t in graph.proto.graph.initializer if t.name == name), None)
    if held is None or len(graph.consumers(name)) > 1 or graph.may_be_given(name):
        return graph.add_constant(f"{name}_folded", array)
    held.CopyFrom(onnx.numpy_helper.from_array(array, name))
    return name


def _scaled(attributes: dict[str, Any]) -> bool:
    return bool(attributes.get("alpha", 1.0) != 1.0 or attributes.get("beta", 1.0) != 1.0 or attributes.get("transA"))
