"""Which layers keep 8 bits in a recipe of 4."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

import onnx_zoo
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.sensitive import spared
from lowbit.formats.onnx.weight_uses import weights
from onnx_builder import Builder


def reasons(graph: Graph) -> dict[str, str]:
    return spared(graph, weights(graph))


def test_first_output_and_depthwise_layers_of_a_network() -> None:
    graph = Graph.load(onnx_zoo.mobilenet().model)
    found = reasons(graph)
    uses = weights(graph)
    assert [n for n, why in found.items() if why == "a first layer"] == [uses[0].name]
    assert [n for n, why in found.items() if why == "an output layer"] == ["classifier"]
    few = {u.name for u in uses if u.kind == "conv" and np.prod(u.shape[1:]) < 32} - {uses[0].name}
    assert {n for n, why in found.items() if why == "few inputs per filter"} == few


def test_inputs_and_outputs_that_are_left_out_connect_nothing() -> None:
    b = Builder({"x": [5, 1, 16], "y": [5, 1, 16]})
    last = []
    for name in ("x", "y"):
        w, r = (b.normal(1, 64, 16, name=f"{name}.{part}") for part in "WR")
        b.nodes.append(
            helper.make_node("LSTM", [name, w, r, ""], ["", f"{name}_h"], name=f"lstm_{name}", hidden_size=16)
        )
        last.append(b.add("MatMul", f"{name}_h", b.normal(16, 64, name=f"{name}.head")))
    found = reasons(Graph.load(b.model(*last)))
    assert found == {f"{n}.{p}": "a first layer" for n in "xy" for p in "WR"} | {
        f"{n}.head": "an output layer" for n in "xy"
    }


def test_what_a_branch_reads_is_followed() -> None:
    b = Builder({"x": [1, 64]})
    h = b.add("MatMul", "x", b.normal(64, 64, name="first"))
    inner = b.add("MatMul", h, b.normal(64, 64, name="inner"))
    made = helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 64])
    bodies = {
        f"{side}_branch": helper.make_graph(
            [helper.make_node(op, [inner], ["out"], name=f"{side}_node")], side, [], [made]
        )
        for side, op in (("then", "Relu"), ("else", "Tanh"))
    }
    flag = b.add("Greater", b.add("ReduceMax", "x", keepdims=0), b.constant(np.float32(0)))
    b.nodes.append(helper.make_node("If", [flag], ["chosen"], name="if", **bodies))
    y = b.add("MatMul", b.add("Reshape", "chosen", b.constant(np.array([1, 64]))), b.normal(64, 8, name="last"))
    assert reasons(Graph.load(b.model(y))) == {"first": "a first layer", "last": "an output layer"}
