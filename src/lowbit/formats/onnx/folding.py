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
    return sum(_folded(graph, norm) for norm in graph.nodes if norm.op_type == "BatchNormalization")


def _folded(graph: Graph, norm: Any) -> bool:
    source = norm.input[0]
    before = graph.producer(source)
    if before is None or before.op_type not in ("Conv", "ConvTranspose", "Gemm"):
        return False
    if len(graph.consumers(source)) != 1 or graph.is_graph_output(source) or any(norm.output[1:]):
        return False
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in (*norm.attribute, *before.attribute)}
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    scaled = before.op_type == "Gemm" and any(attributes.get(name, value) != value for name, value in plain.items())
    if attributes.get("training_mode", 0) or scaled:
        return False
    weight = graph.constant(before.input[1])
    others = [graph.constant(n) for n in (*norm.input[1:5], *before.input[2:]) if n]
    if weight is None or any(n is None for n in others):
        return False
    gamma, beta, mean, var, *bias = (np.asarray(n, np.float64) for n in others)
    wide, shape = weight.astype(np.float64), weight.shape
    g = gamma / np.sqrt(var + attributes.get("epsilon", 1e-5))
    if before.op_type == "ConvTranspose":  # [inputs, outputs / group, ...]
        group = attributes.get("group", 1)
        spread = g.reshape(group, 1, shape[1], *(1,) * (len(shape) - 2))
        wide = (wide.reshape(group, shape[0] // group, *shape[1:]) * spread).reshape(shape)
    elif before.op_type == "Gemm" and not attributes.get("transB", 0):
        wide = wide * g
    else:
        wide = wide * g.reshape(-1, *(1,) * (len(shape) - 1))
    moved = ((bias[0] if bias else 0.0) - mean) * g + beta
    new_weight = _stored(graph, before.input[1], wide.astype(weight.dtype))
    new_bias = graph.add_constant(f"{before.output[0]}_bias", moved.astype(weight.dtype))
    made = norm.output[0]
    graph.remove(norm)
    graph.rename_output(before, 0, made)
    graph.replace_input(before, 1, new_weight)
    del before.input[2:]
    before.input.append(new_bias)
    graph.refresh()
    return True


def _stored(graph: Graph, name: str, array: Any) -> str:
    """Store the folded weight under its old name, which recipes use, unless another node reads that."""
    held = next((t for t in graph.proto.graph.initializer if t.name == name), None)
    if held is None or len(graph.consumers(name)) > 1 or graph.may_be_given(name):
        return graph.add_constant(f"{name}_folded", array)
    held.CopyFrom(onnx.numpy_helper.from_array(array, name))
    return name
