"""Tensors inside the branches of an If, as outputs of the model that can be observed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper

from lowbit.formats.onnx.model_file import graphs, subgraphs, unused


def branch_tensors(graph: GraphProto) -> list[str]:
    """The tensors that nodes in branches of an If compute, at any depth, but in no Loop or Scan."""
    found: list[str] = []
    for node in graph.node:
        for branch in subgraphs(node) if node.op_type == "If" else ():
            found += [o for inner in branch.node for o in inner.output if o]
            found += branch_tensors(branch)
    return found


def lift(graph: GraphProto, names: Collection[str], types: Mapping[str, TypeProto]) -> dict[str, str]:
    """Make tensors of branches outputs of the If that they are in; returns the names that they have in the graph. Where
    the other branch runs, the value is empty."""
    taken = {o: 0 for body in graphs(graph) for node in body.node for o in (*node.input, *node.output)}
    return _lifted(graph, frozenset(names), types, taken)


def _lifted(
    graph: GraphProto, names: frozenset[str], types: Mapping[str, TypeProto], taken: dict[str, int]
) -> dict[str, str]:
    found = {}
    for node in graph.node:
        branches = list(subgraphs(node)) if node.op_type == "If" else []
        for branch in branches:
            computed = [o for inner in branch.node for o in inner.output]
            here = {name: name for name in computed if name in names} | _lifted(branch, names, types, taken)
            for name, inner in here.items():
                element = types[name].tensor_type.elem_type if name in types else TensorProto.FLOAT
                found[name] = _output(node, branch, branches, inner, element, taken)
    return found


def _output(
    node: NodeProto, branch: GraphProto, branches: list[GraphProto], name: str, element: int, taken: dict[str, int]
) -> str:
    """Make a tensor of a branch an output of an If; returns the name of that."""
    empty = np.zeros(0, helper.tensor_dtype_to_np_dtype(element))
    for each in branches:
        made = unused(f"{name}_leaves", taken)
        new = helper.make_node("Identity", [name], [made])
        if each is not branch:
            new = helper.make_node("Constant", [], [made], value=numpy_helper.from_array(empty))
        each.node.append(new)
        each.output.append(helper.make_tensor_value_info(made, element, None))
    node.output.append(unused(f"{name}_observed", taken))
    return str(node.output[-1])
