"""Nodes that stand between layers without need: paddings before convolutions, and means over whole images."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.model_file import drop
from lowbit.formats.onnx.weight_uses import attribute


def merge_paddings(graph: Graph) -> int:
    """Let convolutions pad what a Pad with zeros pads for them alone; returns the number of such nodes. ONNX Runtime
    does so itself, but not where the padded tensor is quantized."""
    count = 0
    for node in graph.all_nodes:
        pads = _zero_padding(graph, node) if node.op_type == "Pad" and not node.domain else None
        readers = graph.consumers(node.output[0])
        if pads is None or not readers or graph.is_graph_output(node.output[0]):
            continue
        if not all(_can_pad(graph, reader, index, pads) for reader, index in readers):
            continue
        for reader, _ in readers:
            own = attribute(reader, "pads", [0] * len(pads))
            drop(reader.attribute, ["pads", "auto_pad"])
            total = [a + b for a, b in zip(own, pads, strict=True)]
            reader.attribute.append(helper.make_attribute("pads", total))
            graph.replace_input(reader, 0, node.input[0])
        graph.remove(node)
        count += 1
    return count


def _zero_padding(graph: Graph, node: NodeProto) -> list[int] | None:
    """How many zeros a Pad puts before and after the spatial axes; None where it does something else."""
    given = attribute(node, "pads", None)
    value = float(attribute(node, "value", 0.0))
    if any(node.input[3:]):  # some axes only
        return None
    if len(node.input) > 1:
        stored = graph.constant(node.input[1])
        fill = graph.constant(node.input[2]) if any(node.input[2:]) else np.zeros(1)
        if stored is None or fill is None:
            return None
        given, value = stored.tolist(), float(fill.reshape(-1)[0])
    if given is None or value != 0 or attribute(node, "mode", b"constant") != b"constant":
        return None
    before, after = given[: len(given) // 2], given[len(given) // 2 :]
    if min(given) < 0 or any(before[:2]) or any(after[:2]):
        return None
    return [*before[2:], *after[2:]]


def _can_pad(graph: Graph, reader: NodeProto, index: int, pads: list[int]) -> bool:
    """Whether a node that reads a padded tensor is a convolution whose own padding is explicit."""
    if reader.op_type != "Conv" or reader.domain or index != 0:
        return False
    padding = attribute(reader, "auto_pad", b"NOTSET")
    own = attribute(reader, "pads", pads)
    is_explicit = padding == b"NOTSET" or (padding == b"VALID" and not any(a.name == "pads" for a in reader.attribute))
    return is_explicit and len(own) == len(pads)


def pool_globally(graph: Graph) -> int:
    """Replace means over both axes of images by global average pooling, for which there are integer kernels; returns
    their number."""
    found = [node for node in graph.all_nodes if _is_over_images(graph, node)]
    for node in found:
        result, keeps = node.output[0], attribute(node, "keepdims", 1)
        pooled = result if keeps else graph.fresh(f"{result}_pooled")
        new = [helper.make_node("GlobalAveragePool", [node.input[0]], [pooled], name=node.name)]
        if not keeps:
            new.append(helper.make_node("Flatten", [pooled], [result], name=graph.fresh(f"{node.name}_flat")))
        graph.replace(node, new)
    return len(found)


def _is_over_images(graph: Graph, node: NodeProto) -> bool:
    """Whether a node is the mean over the last two of four axes."""
    shape = graph.shape(node.input[0]) if node.op_type == "ReduceMean" and not node.domain else None
    if shape is None or len(shape) != 4 or graph.element_type(node.input[0]) != TensorProto.FLOAT:
        return False
    axes = attribute(node, "axes", None)
    if len(node.input) > 1 and node.input[1]:
        stored = graph.constant(node.input[1])
        axes = None if stored is None else stored.tolist()
    return axes is not None and sorted(axis % 4 for axis in axes) == [2, 3]
