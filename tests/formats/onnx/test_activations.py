"""Activation functions between quantized layers: what is recognised, and what the runtime makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto

pytest.importorskip("onnxruntime")

from lowbit.formats.onnx.activations import find_activations
from lowbit.formats.onnx.code_store import CodeStore
from lowbit.formats.onnx.convert import quantize_onnx
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.static import quantize_static
from lowbit.formats.onnx.weight_uses import weights
from lowbit.models import Recipe
from onnx_builder import Builder
from onnx_running import operators, run, sqnr

RECIPE = Recipe.of("static-int8").but(min_elements=0)
SHAPE = (2, 8, 12, 12)
Form = Callable[[Builder, str], str]


def number(b: Builder, value: float) -> str:
    return b.constant(np.float32(value))


def gelu_erf(b: Builder, x: str) -> str:
    e = b.add("Add", b.add("Erf", b.add("Div", x, number(b, 1.41421))), number(b, 1))
    return b.add("Mul", b.add("Mul", x, e), number(b, 0.5))


def gelu_erf_halved_first(b: Builder, x: str) -> str:
    e = b.add("Add", number(b, 1), b.add("Erf", b.add("Mul", number(b, 0.70710677), x)))
    return b.add("Mul", e, b.add("Mul", number(b, 0.5), x))


def gelu_tanh(b: Builder, x: str) -> str:
    cube = b.add("Mul", b.add("Pow", x, number(b, 3)), number(b, 0.044715))
    t = b.add("Tanh", b.add("Mul", b.add("Add", x, cube), number(b, 0.7978846)))
    return b.add("Mul", b.add("Mul", x, number(b, 0.5)), b.add("Add", t, number(b, 1)))


def gelu_tanh_factored(b: Builder, x: str) -> str:
    square = b.add("Mul", b.add("Mul", x, x), number(b, 0.044715))
    inner = b.add("Mul", b.add("Mul", x, b.add("Add", square, number(b, 1))), number(b, 0.7978846))
    return b.add("Mul", b.add("Mul", b.add("Add", b.add("Tanh", inner), number(b, 1)), x), number(b, 0.5))


def relu6_form(b: Builder, x: str) -> str:
    clipped = b.add("Clip", b.add("Add", x, number(b, 3)), number(b, 0), number(b, 6))
    return b.add("Div", b.add("Mul", x, clipped), number(b, 6))


FORMS: dict[str, tuple[str, Form]] = {
    "silu": ("silu", lambda b, x: b.add("Mul", x, b.add("Sigmoid", x))),
    "silu turned": ("silu", lambda b, x: b.add("Mul", b.add("Sigmoid", x), x)),
    "quick gelu": ("quick_gelu", lambda b, x: b.add("Mul", x, b.add("Sigmoid", b.add("Mul", x, number(b, 1.702))))),
    "gelu": ("gelu", gelu_erf),
    "gelu, halved first": ("gelu", gelu_erf_halved_first),
    "gelu by tanh": ("gelu_tanh", gelu_tanh),
    "gelu by tanh, factored": ("gelu_tanh", gelu_tanh_factored),
    "hard swish": ("hard_swish", lambda b, x: b.add("Mul", x, b.add("HardSigmoid", x, alpha=1 / 6, beta=0.5))),
    "hard swish by clip": ("hard_swish", relu6_form),
    "hard swish operator": ("hard_swish", lambda b, x: b.add("HardSwish", x)),
    "hard sigmoid": ("hard_sigmoid", lambda b, x: b.add("HardSigmoid", x, alpha=0.3)),
}
KERNELS = {"silu": "QuickGelu", "quick_gelu": "QuickGelu", "gelu": "Gelu", "gelu_tanh": "FastGelu"}


def between(form: Form) -> ModelProto:
    """A function between two convolutions."""
    b = Builder({"x": list(SHAPE)})
    y = b.conv(form(b, b.conv("x", 8, 16)), 16, 8)
    return b.model(b.add("Relu", y))


def batches(count: int = 6, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"x": (3 * rng.standard_normal(SHAPE)).astype(np.float32)} for _ in range(count)]


def quantized(model: ModelProto) -> Graph:
    graph = Graph.load(model)
    uses = [(u, RECIPE.rule(u.name, u.kind, u.elements)) for u in weights(graph) if not u.why_not and u.kind == "conv"]
    quantize_static(CodeStore(graph), uses, batches(), progress=False)
    graph.remove_unused()
    onnx.checker.check_model(graph.proto, full_check=True)
    return graph


@pytest.mark.parametrize("name", FORMS)
def test_forms_that_exporters_write_are_recognised(name: str) -> None:
    kind, form = FORMS[name]
    found = find_activations(Graph.load(between(form)))
    assert [a.kind for a in found.values()][-1] == kind
    assert {a.source for a in found.values()} == {"conv3"}


def mish(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Tanh", b.add("Softplus", x)))


def scaled_per_channel(b: Builder, x: str) -> str:
    return b.add("Mul", x, b.add("Sigmoid", b.add("Mul", x, b.normal(16, 1, 1))))


OTHERS: dict[str, Form] = {
    "another function": mish,
    "another scale": lambda b, x: b.add("Mul", x, b.add("Sigmoid", b.add("Mul", x, number(b, 1.1)))),
    "a factor per channel": scaled_per_channel,
    "of another tensor": lambda b, x: b.add("Mul", x, b.add("Sigmoid", b.add("MaxPool", x, kernel_shape=[1, 1]))),
    "a gate that is read": lambda b, x: b.add("Add", g := b.add("Sigmoid", x), b.add("Mul", x, g)),
    "a negative slope": lambda b, x: b.add("HardSigmoid", x, alpha=-0.2),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_only_similar_is_not(name: str) -> None:
    graph = Graph.load(between(OTHERS[name]))
    assert not find_activations(graph)
    feed = batches(1, seed=3)[0]
    expected, got = (run(m, feed)[0] for m in (graph.proto, quantized(graph.proto).proto))
    assert sqnr(expected, got) > 25


@pytest.mark.parametrize("name", FORMS)
def test_one_kernel_or_integers_compute_it(name: str, tmp_path: Path) -> None:
    kind, form = FORMS[name]
    model = between(form)
    graph = quantized(model)
    feed = batches(1, seed=3)[0]
    path = tmp_path / "optimised.onnx"
    expected, got, plain = (
        run(model, feed)[0],
        run(graph.proto, feed, written=path)[0],
        run(graph.proto, feed, optimise=False)[0],
    )
    assert sqnr(expected, got) > 28
    assert sqnr(plain, got) > 40  # as fused as it is written
    ops = operators(path)
    assert ops["QLinearConv"] == 2
    if kind in KERNELS:
        assert ops[KERNELS[kind]] == 1
        assert (ops["DequantizeLinear"], ops["QuantizeLinear"]) == (2, 2)  # around the kernel, and at both ends
    else:
        assert ops["QLinearAdd"] == 1
        assert ops["QLinearMul"] == (kind == "hard_swish")
        assert (ops["DequantizeLinear"], ops["QuantizeLinear"]) == (1, 1)
    assert not {"Mul", "Add", "Sigmoid", "HardSigmoid", "Clip", "Erf", "Tanh", "Conv"} & ops.keys()


def test_a_gate_is_that_of_the_function_for_every_code() -> None:
    graph = quantized(between(FORMS["hard swish"][1]))
    gate = next(n for n in graph.nodes if n.op_type == "Add")
    codes = next(n for n in graph.nodes if n.op_type == "QuantizeLinear" and n.input[0] == gate.output[0])
    source = next(n for n in graph.nodes if n.op_type == "QuantizeLinear" and n.input[0].startswith("conv"))
    scale, zero = (graph.constant(n) for n in source.input[1:])
    assert scale is not None
    assert zero is not None
    every = (np.arange(256) - float(zero)) * float(scale)
    got_scale = graph.constant(codes.input[1])
    expected = np.clip(every / 6 + 0.5, 0, 1)
    got = np.clip(np.rint((every / 6 + 0.5) * 255), 0, 255) * np.float32(1 / 255)
    assert got_scale == np.float32(1 / 255)
    assert np.abs(expected - got).max() <= 0.5 / 255 + 1e-6


@pytest.mark.parametrize("op", ["LeakyRelu", "Sigmoid"])
def test_tables_compute_functions_of_codes(op: str, tmp_path: Path) -> None:
    model = between(lambda b, x: b.add("MaxPool", b.add(op, x), kernel_shape=[2, 2]))
    path = tmp_path / "optimised.onnx"
    feed = batches(1, seed=3)[0]
    assert sqnr(run(model, feed)[0], run(quantized(model).proto, feed, written=path)[0]) > 28
    ops = operators(path)
    assert ops[f"QLinear{op}"] == 1
    assert (ops["DequantizeLinear"], ops["QuantizeLinear"]) == (1, 1)


def test_parts_of_a_split_stay_in_integers(tmp_path: Path) -> None:
    b = Builder({"x": list(SHAPE)}, opset=13)
    y = b.add("Relu", b.conv("x", 8, 16))
    b.nodes.append(onnx.helper.make_node("Split", [y], ["left", "right"], name="split", axis=1))
    z = b.add("Concat", b.add("Relu", b.conv("left", 8, 8)), "right", axis=1)
    model = b.model(b.add("Relu", b.conv(z, 16, 8)))
    path = tmp_path / "optimised.onnx"
    feed = batches(1, seed=3)[0]
    assert sqnr(run(model, feed)[0], run(quantized(model).proto, feed, written=path)[0]) > 28
    ops = operators(path)
    assert (ops["QLinearConv"], ops["QLinearConcat"], ops["Split"]) == (3, 1, 1)
    assert (ops["DequantizeLinear"], ops["QuantizeLinear"]) == (1, 1)


def test_a_result_that_leaves_the_graph_is_the_function() -> None:
    b = Builder({"x": list(SHAPE)})
    y = b.conv("x", 8, 16)
    s = b.add("Mul", y, b.add("Sigmoid", y))
    h = b.add("HardSwish", y)
    model = b.model(s, h, b.conv(s, 16, 8))
    graph = quantized(model)
    feed = batches(1, seed=3)[0]
    assert [o.name for o in graph.proto.graph.output] == [o.name for o in model.graph.output]
    for expected, got in zip(run(model, feed), run(graph.proto, feed), strict=True):
        assert sqnr(expected, got) > 28


@pytest.mark.parametrize("opset", [7, 9, 11, 14, 18, 21])
@pytest.mark.parametrize("name", ["silu", "gelu", "hard swish", "hard sigmoid"])
def test_models_of_every_age(opset: int, name: str, tmp_path: Path) -> None:
    b = Builder({"x": list(SHAPE)}, opset=opset)
    form = FORMS[name][1] if opset >= 9 or name != "gelu" else FORMS["silu"][1]  # Erf came with opset 9
    model = b.model(b.add("Relu", b.conv(form(b, b.conv("x", 8, 16)), 16, 8)))
    if opset == 7:
        model.ir_version = 3
        for t in model.graph.initializer:
            model.graph.input.append(onnx.helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(model, source)
    quantize_onnx(source, target, RECIPE, data=batches(), optimize="size", progress=False, force=True)
    feed = batches(1, seed=3)[0]
    assert sqnr(run(model, feed)[0], run(onnx.load(target), feed, written=tmp_path / "o.onnx")[0]) > 28
    ops = operators(tmp_path / "o.onnx")
    assert ops["QLinearConv"] == 2
    assert not {"Mul", "Add", "Sigmoid", "HardSigmoid", "Clip", "Erf", "Tanh", "Conv"} & ops.keys()
