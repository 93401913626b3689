"""Static int8 inside the branches of an If: observed where they run, fused there, and left where they never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

pytest.importorskip("onnxruntime")

from lowbit.formats.onnx.convert import quantize_onnx
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.observe import observe
from lowbit.formats.onnx.static import why_not_static
from lowbit.formats.onnx.weight_uses import weights
from lowbit.models import Recipe
from onnx_builder import Builder
from onnx_running import operators, run, sqnr

RECIPE = Recipe.of("static-int8").but(min_elements=0)
SHAPE = [1, 8, 10, 10]
SHARED = "shared.weight"


def branch(label: str, activation: str = "Relu", inner: NodeProto | None = None, scale: float = 1.0) -> GraphProto:
    """Two convolutions of what the branch takes from outside, the second with a weight from outside. inner: a node to
    end with, that reads and gives what the branch does."""
    rng = np.random.default_rng(len(label))
    w = (scale * rng.standard_normal((8, 8, 3, 3)) / 8).astype(np.float32)
    b = rng.standard_normal(8).astype(np.float32)
    stored = [numpy_helper.from_array(a, f"{label}.{name}") for name, a in (("w", w), ("b", b))]
    at = lambda name: f"{label}.{name}"  # noqa: E731
    made = [helper.make_node("Conv", ["x", at("w"), at("b")], [at("c")], name=at("conv1"), pads=[1] * 4)]
    if activation == "SiLU":
        made.append(helper.make_node("Sigmoid", [at("c")], [at("s")], name=at("sigmoid")))
        made.append(helper.make_node("Mul", [at("c"), at("s")], [at("a")], name=at("mul")))
    else:
        made.append(helper.make_node(activation, [at("c")], [at("a")], name=at("act")))
    made.append(helper.make_node("Conv", [at("a"), SHARED], [at("y")], name=at("conv2"), pads=[1] * 4))
    result = at("y")
    if inner is not None:
        made.append(inner)
        result = inner.output[0]
    return helper.make_graph(made, label, [], [helper.make_tensor_value_info(result, 1, SHAPE)], stored)


def with_branches(then: GraphProto, other: GraphProto) -> ModelProto:
    """An If on the mean of the input, whose branches share a weight with each other and with the main graph."""
    b = Builder({"x": list(SHAPE)})
    b.normal(8, 8, 3, 3, scale=0.1, name=SHARED)
    flag = b.add("Greater", b.add("ReduceMean", "x", keepdims=0), b.constant(np.float32(0)))
    b.nodes.append(helper.make_node("If", [flag], ["chosen"], name="if", then_branch=then, else_branch=other))
    y = b.add("Add", "chosen", b.add("Conv", "x", SHARED, pads=[1] * 4))
    model = b.model(y)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info(y, TensorProto.FLOAT, SHAPE))
    return model


def feed(positive: bool, seed: int) -> dict[str, Any]:
    x = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)
    return {"x": x - x.mean() + np.float32(0.3 if positive else -0.3)}


def quantized(model: ModelProto, tmp_path: Path, data: list[dict[str, Any]]) -> tuple[Path, dict[str, Any]]:
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, source)
    report = quantize_onnx(source, target, RECIPE, data=data, optimize="size", progress=False, force=True)
    return target, {row.name: row for row in report.rows}


@pytest.mark.parametrize("activation", ["Relu", "SiLU", "HardSwish", "Sigmoid"])
def test_both_branches_compute_in_integers(activation: str, tmp_path: Path) -> None:
    model = with_branches(branch("then", activation), branch("otherwise", activation, scale=3.0))
    target, rows = quantized(model, tmp_path, [feed(i % 2 == 0, i) for i in range(8)])
    assert all(row.activations and not row.note.startswith("its branch") for row in rows.values())
    for positive in (False, True):
        given = feed(positive, 99)
        expected = run(model, given)[0]
        got, plain = run(target, given, written=tmp_path / "o.onnx")[0], run(target, given, optimise=False)[0]
        assert sqnr(expected, got) > 28
        assert sqnr(plain, got) > 40
    ops = operators(tmp_path / "o.onnx")
    assert ops["QLinearConv"] == 5
    assert ops["QLinearMul"] == 2 * (activation == "HardSwish")
    assert ops["QLinearSigmoid"] == 2 * (activation == "Sigmoid")
    assert ops["QuickGelu"] == 2 * (activation == "SiLU")
    assert not {"Conv", "Sigmoid", "Mul"} & ops.keys()


def test_a_branch_that_never_runs_keeps_float_activations(tmp_path: Path) -> None:
    model = with_branches(branch("then"), branch("otherwise"))
    target, rows = quantized(model, tmp_path, [feed(True, i) for i in range(4)])
    assert rows["then.w"].activations
    assert not rows["otherwise.w"].activations
    assert rows["otherwise.w"].treated
    assert rows["otherwise.w"].note == "its branch never ran on the data"
    for positive in (False, True):
        given = feed(positive, 99)
        assert sqnr(run(model, given)[0], run(target, given)[0]) > 28


def test_branches_in_branches(tmp_path: Path) -> None:
    flag = helper.make_node("Less", ["limit", "reducemean2"], ["large"], name="less")
    inner = helper.make_node(
        "If", ["large"], ["inner.result"], name="inner", then_branch=branch("deep"), else_branch=branch("deepest")
    )
    outer = branch("then", inner=inner)
    outer.node.insert(0, flag)
    model = with_branches(outer, branch("otherwise"))
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "limit"))
    data = [feed(i % 2 == 0, i) for i in range(4)] + [{"x": feed(True, 7)["x"] + np.float32(0.4)}]
    target, rows = quantized(model, tmp_path, data)
    assert all(row.activations for row in rows.values())
    for given in data:
        assert sqnr(run(model, given)[0], run(target, given, written=tmp_path / "o.onnx")[0]) > 26
    assert operators(tmp_path / "o.onnx")["QLinearConv"] == 9


def test_tensors_of_branches_are_observed_when_they_run() -> None:
    model = with_branches(branch("then"), branch("otherwise"))
    data = [feed(i < 3, i) for i in range(4)]
    seen = observe(model, data, tensors=["then.c", "otherwise.a", "x", "otherwise.y"], progress=False)
    for name, count, batches in (("then.c", 3, data[:3]), ("otherwise.a", 1, data[3:]), ("x", 4, data)):
        assert seen[name].num_samples == count
        if name == "x":
            continue
        label, last = name.split(".")
        body = next(g for n in model.graph.node for a in n.attribute for g in [a.g] if g.name == label)
        alone = helper.make_model(
            helper.make_graph(
                list(body.node)[: {"c": 1, "a": 2}[last]], "alone", [helper.make_tensor_value_info("x", 1, SHAPE)],
                [helper.make_tensor_value_info(name, 1, None)], list(body.initializer),
            ),
            opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
        )  # fmt: skip
        values = np.stack([run(alone, given)[0] for given in batches])
        d = seen[name].sketch.distribution()
        assert (d.lo, d.hi) == pytest.approx((values.min(), values.max()), rel=1e-5)
    assert "then.y" not in observe(model, data[3:], tensors=["then.y", "otherwise.y"], progress=False)


def test_bodies_of_loops_say_why_they_stay_float() -> None:
    info = helper.make_tensor_value_info
    body = helper.make_graph(
        [
            helper.make_node("Conv", ["h", "w"], ["next"], name="conv", pads=[1] * 4),
            helper.make_node("Identity", ["go"], ["on"], name="go"),
        ],
        "body", [info("i", TensorProto.INT64, []), info("go", TensorProto.BOOL, []), info("h", 1, SHAPE)],
        [info("on", TensorProto.BOOL, []), info("next", 1, SHAPE)],
    )  # fmt: skip
    b = Builder({"x": list(SHAPE)})
    b.normal(8, 8, 3, 3, name="w")
    times, go = b.constant(np.array(2, np.int64)), b.constant(np.array(True))
    b.nodes.append(helper.make_node("Loop", [times, go, "x"], ["y"], name="loop", body=body))
    graph = Graph.load(b.model("y"))
    (use,) = [u for u in weights(graph) if not u.why_not]
    assert why_not_static(graph, use, RECIPE.rule(use.name, use.kind, use.elements)).startswith("inside the body of")
