"""Folding batch normalisations, and factors and summands per channel, into the layer before them.

(w * x + b) * g + s   becomes   (g * w) * x + (b * g + s)        computed in float64, rounded once
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, numpy_helper

from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.weight_uses import attribute

Array = npt.NDArray[Any]


class _Affine(NamedTuple):
    """What a node does to each channel of a layer's result; None: nothing."""

    factor: Array | None
    summand: Array | None


def fold_batch_norms(graph: Graph) -> int:
    """Fold each BatchNormalization into the Conv, ConvTranspose or Gemm that alone produces its input, where the
    weights are constant and nothing else reads it; returns their number."""
    return _fold(graph, ("BatchNormalization",))


def fold_affines(graph: Graph) -> int:
    """Fold each Mul, Div, Add and Sub with a constant that differs between channels only, likewise; returns their
    number. A factor is folded into a MatMul, too, past the Add of a bias, but into no weight that several nodes read.
    """
    return _fold(graph, ("Mul", "Div", "Add", "Sub"))


def _fold(graph: Graph, ops: tuple[str, ...]) -> int:
    return sum(_folded(graph, node) for node in graph.all_nodes if node.op_type in ops and not node.domain)


def _folded(graph: Graph, node: NodeProto) -> bool:
    at = 1 if node.op_type in ("Mul", "Add") and graph.constant(node.input[0]) is not None else 0
    before = graph.producer(node.input[at])
    if before is not None and before.op_type == "Add" and node.op_type in ("Mul", "Div"):
        return _moved_before(graph, node, at, before) and _folded(graph, before)
    if before is None or not _feeds_only(graph, before, node) or not _is_plain(before):
        return False
    weight, has_bias = graph.constant(before.input[1]), any(before.input[2:])
    bias = graph.constant(before.input[2]) if has_bias else None
    if weight is None or weight.dtype.kind != "f" or (has_bias and bias is None):
        return False
    is_norm = node.op_type == "BatchNormalization"
    if before.op_type == "MatMul" and node.op_type not in ("Mul", "Div"):
        return False  # it has no bias
    affine = _norm(graph, node) if is_norm else _arithmetic(graph, node, 1 - at, before, weight)
    owned = len(graph.consumers(before.input[1])) == 1
    if affine is None or (affine.factor is not None and not owned and not is_norm):
        return False
    with np.errstate(over="ignore"):
        new_weight = None if affine.factor is None else _scaled(before, weight, affine.factor).astype(weight.dtype)
        new_bias = _moved(bias, affine, weight.dtype)
    if not all(np.isfinite(new).all() for new in (new_weight, new_bias) if new is not None):
        return False
    made = node.output[0]
    graph.remove(node)
    graph.rename_output(before, 0, made)
    if new_weight is not None:
        graph.replace_input(before, 1, _stored(graph, before.input[1], new_weight, before))
    if new_bias is not None:
        del before.input[2:]
        before.input.append(graph.add_constant(f"{made}_bias", new_bias, graph.home(before)))
    graph.refresh()
    return True


def _moved_before(graph: Graph, node: NodeProto, at: int, add: NodeProto) -> bool:
    """Write (x * w + b) * g as (x * w) * g + b * g, where x * w is a MatMul; returns whether that could be done."""
    of_bias = 0 if graph.constant(add.input[0]) is not None else 1
    bias, product = graph.constant(add.input[of_bias]), graph.producer(add.input[1 - of_bias])
    if bias is None or product is None or product.op_type != "MatMul" or bias.ndim > 1:
        return False
    weight = graph.constant(product.input[1])
    if weight is None or weight.dtype.kind != "f" or len(graph.consumers(product.input[1])) != 1:
        return False
    made = add.output[0]
    is_read_once = len(graph.consumers(made)) == 1 and not graph.is_graph_output(made)
    affine = _arithmetic(graph, node, 1 - at, product, weight)
    if affine is None or affine.factor is None or not (is_read_once and graph.home(add) is graph.home(node)):
        return False
    with np.errstate(over="ignore"):
        new_bias = (bias.astype(np.float64) * affine.factor).astype(bias.dtype)
    if not _feeds_only(graph, product, add) or not np.isfinite(new_bias).all():
        return False
    factor = node.input[1 - at]
    add.op_type, node.op_type = node.op_type, "Add"
    add.input[:] = [add.input[1 - of_bias], factor]
    node.input[:] = [made, graph.add_constant(f"{made}_bias", new_bias, graph.home(node))]
    graph.refresh()
    return True


def _feeds_only(graph: Graph, before: NodeProto, node: NodeProto) -> bool:
    """Whether a layer's result is read by one node of the same body and by nothing else."""
    made = before.output[0]
    if before.op_type not in ("Conv", "ConvTranspose", "Gemm", "MatMul") or before.domain or any(node.output[1:]):
        return False
    is_read_once = len(graph.consumers(made)) == 1 and not graph.is_graph_output(made)
    return is_read_once and graph.home(before) is graph.home(node)


def _is_plain(before: NodeProto) -> bool:
    """Whether a Gemm adds its bias to the product without further factors."""
    plain = (("alpha", 1.0), ("beta", 1.0), ("transA", 0))
    return before.op_type != "Gemm" or all(attribute(before, name, value) == value for name, value in plain)


def _norm(graph: Graph, norm: NodeProto) -> _Affine | None:
    """(x - mean) * g + beta,  g = gamma / sqrt(var + epsilon)"""
    constants = [graph.constant(name) for name in norm.input[1:5]]
    if attribute(norm, "training_mode", 0) or any(c is None for c in constants):
        return None
    gamma, beta, mean, var = (np.asarray(c, np.float64) for c in constants)
    g = gamma / np.sqrt(var + attribute(norm, "epsilon", 1e-5))
    return _Affine(g, beta - mean * g)


def _arithmetic(graph: Graph, node: NodeProto, at: int, before: NodeProto, weight: Array) -> _Affine | None:
    """What a Mul, Div, Add or Sub with a constant does; None where that differs within a channel."""
    given = graph.constant(node.input[at])
    if given is None or given.dtype.kind != "f" or node.attribute:  # attributes say how to broadcast before opset 7
        return None
    axis, rank = (-1, _rank(graph, before.input[0])) if before.op_type == "MatMul" else (1, weight.ndim)
    if (before.op_type == "MatMul" and weight.ndim != 2) or given.ndim > (1 if rank is None else rank):
        return None
    outputs = _outputs(before, weight)
    aligned = (1,) * ((given.ndim if rank is None else rank) - given.ndim) + given.shape
    if given.size != 1 and not aligned[axis] == given.size == outputs:
        return None
    channels = np.broadcast_to(given.astype(np.float64).reshape(-1), outputs)
    if node.op_type == "Div" and not channels.all():
        return None
    if node.op_type in ("Mul", "Div"):
        return _Affine(channels if node.op_type == "Mul" else 1 / channels, None)
    return _Affine(None, channels if node.op_type == "Add" else -channels)


def _rank(graph: Graph, name: str) -> int | None:
    shape = graph.shape(name)
    return None if shape is None else len(shape)


def _outputs(before: NodeProto, weight: Array) -> int:
    """The number of channels that a layer gives."""
    if before.op_type == "ConvTranspose":
        return int(weight.shape[1] * attribute(before, "group", 1))
    by_rows = before.op_type == "Conv" or (before.op_type == "Gemm" and attribute(before, "transB", 0))
    return int(weight.shape[0 if by_rows else 1])


def _scaled(before: NodeProto, weight: Array, factor: Array) -> Array:
    """A layer's weight with the weights of each channel multiplied by a factor, in float64."""
    wide, shape = weight.astype(np.float64), weight.shape
    if before.op_type == "ConvTranspose":  # [inputs, outputs / group, ...]
        group = attribute(before, "group", 1)
        spread = factor.reshape(group, 1, shape[1], *(1,) * (len(shape) - 2))
        return (wide.reshape(group, shape[0] // group, *shape[1:]) * spread).reshape(shape)
    if before.op_type == "Conv" or attribute(before, "transB", 0):
        return wide * factor.reshape(-1, *(1,) * (len(shape) - 1))
    return wide * factor


def _moved(bias: Array | None, affine: _Affine, dtype: Any) -> Array | None:
    """The layer's new bias; None where it has none and needs none."""
    if bias is None and affine.summand is None:
        return None
    wide = np.zeros(()) if bias is None else bias.astype(np.float64)
    wide = wide if affine.factor is None else wide * affine.factor
    return np.asarray(wide if affine.summand is None else wide + affine.summand).astype(dtype)


def _stored(graph: Graph, name: str, array: Array, reader: NodeProto) -> str:
    """Store the folded weight under its old name, which recipes use, unless another node reads that."""
    held = graph.initializer(name)
    if held is None or len(graph.consumers(name)) > 1 or graph.may_be_given(name) or graph.is_graph_output(name):
        return graph.add_constant(f"{name}_folded", array, graph.home(reader))
    held.CopyFrom(numpy_helper.from_array(array, name))
    return name
