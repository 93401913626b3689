"""Preparation of ONNX graphs: the same outputs, constants where layers read them, no larger file."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

pytest.importorskip("onnxruntime")

import onnx_zoo
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.prepare import prepare
from lowbit.formats.onnx.weight_uses import weights
from onnx_builder import Builder
from onnx_running import run


def typed(model: ModelProto, **shapes: list[int]) -> ModelProto:
    """The model with the shapes of its outputs, which shape inference does not find behind bodies."""
    for o in model.graph.output:
        if o.name in shapes:
            o.CopyFrom(helper.make_tensor_value_info(o.name, TensorProto.FLOAT, shapes[o.name]))
    return model


def prepared(model: ModelProto, feed: dict[str, Any], tolerance: float = 1e-5, slack: int = 0) -> Graph:
    """The prepared model, checked against the source; slack: bytes by which it may be larger."""
    graph = Graph.load(model)
    prepare(graph)
    onnx.checker.check_model(graph.proto, full_check=True)
    for expected, got in zip(run(model, feed), run(graph.proto, feed), strict=True):
        assert expected.shape == got.shape
        assert np.abs(expected - got).max(initial=0) <= tolerance * max(1.0, np.abs(expected).max(initial=0))
    assert len(graph.proto.SerializeToString()) <= len(model.SerializeToString()) + slack
    again = Graph.load(graph.proto)
    assert prepare(again) == []
    return graph


def ops(graph: Graph) -> list[str]:
    return [n.op_type for n in graph.all_nodes]


def found(graph: Graph) -> list[tuple[str, str]]:
    return [(u.name, u.op) for u in weights(graph)]


def x(*shape: int, seed: int = 0) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).standard_normal(shape).astype(np.float32)}


@pytest.mark.parametrize("name", onnx_zoo.MODELS)
def test_the_zoo_gives_the_same_outputs(name: str) -> None:
    entry = onnx_zoo.MODELS[name]()
    prepared(entry.model, next(iter(entry.feeds(1))), 2e-5)


# ---- constants ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [7, 10, 13, 17, 21])
def test_weights_behind_slices_are_found_by_their_name(opset: int) -> None:
    b = Builder({"x": ["n", 8]}, opset=opset)
    w = b.normal(12, 8, name="weight")
    if opset < 10:
        cut = [b.add("Slice", w, axes=[0], starts=[s], ends=[s + 6]) for s in (6, 0)]
    else:
        cut = [b.add("Slice", w, *(b.constant(np.array([v], np.int64)) for v in (s, s + 6, 0))) for s in (6, 0)]
    joined = b.add("Concat", *cut, axis=0)
    y = b.add("MatMul", "x", b.add("Transpose", joined, perm=[1, 0]))
    graph = prepared(b.model(y), x(3, 8))
    assert found(graph) == [("weight", "MatMul")]
    assert ops(graph) == ["Transpose", "MatMul"]  # `weights` looks through it


def test_parts_of_a_split_weight_are_weights() -> None:
    b = Builder({"x": ["n", 16]}, opset=13)
    w = b.normal(16, 48, name="qkv")
    b.nodes.append(helper.make_node("Split", [w], ["q", "k", "v"], name="split", axis=1))
    y = b.add("Add", b.add("MatMul", "x", "q"), b.add("Mul", b.add("MatMul", "x", "k"), b.add("MatMul", "x", "v")))
    graph = prepared(b.model(y), x(2, 16))
    assert found(graph) == [("qkv_1", "MatMul"), ("qkv_2", "MatMul"), ("qkv_3", "MatMul")]
    assert "Split" not in ops(graph)


def test_what_would_grow_the_file_is_left() -> None:
    b = Builder({"x": ["n", 64]}, opset=13)
    table = b.normal(64, 64, name="table")
    half = b.add("Slice", table, *(b.constant(np.array([v], np.int64)) for v in (0, 40, 1)))
    wide = b.add("Expand", b.normal(1, 64), b.constant(np.array([64, 64], np.int64)))
    y = b.add("Concat", b.add("MatMul", "x", half), b.add("MatMul", "x", table), b.add("MatMul", "x", wide), axis=1)
    graph = prepared(b.model(y), x(2, 64))
    assert {"Slice", "Expand"} <= set(ops(graph))


def test_arithmetic_on_weights_is_done() -> None:
    b = Builder({"x": ["n", 16]}, opset=13)
    v, g = b.normal(32, 16, name="v"), b.normal(32, 1)
    norm = b.add("ReduceL2", v, axes=[1], keepdims=1)
    y = b.add("Gemm", "x", b.add("Mul", b.add("Div", v, norm), g), transB=1)
    graph = prepared(b.model(y), x(2, 16))
    assert ops(graph) == ["Gemm"]
    assert found(graph)[0][1] == "Gemm"


def test_codes_are_not_decoded() -> None:
    b = Builder({"x": ["n", 16]}, opset=13)
    codes = b.constant(b.rng.integers(-127, 128, (16, 8)).astype(np.int8))
    folded = b.add("Mul", b.add("Cast", codes, to=TensorProto.FLOAT), b.constant(np.full((1, 8), 0.01, np.float32)))
    other = b.add("DequantizeLinear", codes, b.constant(np.float32(0.02)))
    y = b.add("Add", b.add("MatMul", "x", folded), b.add("MatMul", "x", other))
    assert ops(prepared(b.model(y), x(2, 16))) == ["Cast", "Mul", "DequantizeLinear", "MatMul", "MatMul", "Add"]


def test_identities_of_shared_constants_are_skipped() -> None:
    b = Builder({"x": [1, 8, 6, 6]})
    bias = b.normal(8, name="bias")
    y = b.add("Conv", "x", b.normal(8, 8, 3, 3), b.add("Identity", bias))
    y = b.add("Conv", y, b.normal(8, 8, 3, 3), bias)
    graph = prepared(b.model(y), x(1, 8, 6, 6))
    assert [n.input[2] for n in graph.nodes] == ["bias", "bias"]


def test_defaults_of_inputs_are_no_constants() -> None:
    b = Builder({"x": ["n", 4], "w": [8, 4]})
    b.normal(8, 4, name="w")
    y = b.add("MatMul", "x", b.add("Slice", "w", *(b.constant(np.array([v], np.int64)) for v in (0, 4, 0))))
    model = b.model(y)
    assert "Slice" in ops(prepared(model, x(2, 4)))
    model.ir_version = 3  # where every constant is an input
    for t in model.graph.initializer:
        if t.name != "w":
            model.graph.input.append(helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)))
    graph = Graph.load(model)
    prepare(graph)
    assert ops(graph) == ["MatMul"]


def test_a_constant_that_leaves_the_graph_keeps_its_name() -> None:
    b = Builder({"x": ["n", 4]})
    w = b.normal(4, 4, name="w")
    t = b.add("Neg", w)
    model = b.model(b.add("MatMul", "x", b.add("Abs", t)), t)
    graph = prepared(model, x(2, 4))
    assert [o.name for o in graph.proto.graph.output] == [o.name for o in model.graph.output]


@pytest.mark.parametrize("seed", range(40))
def test_random_graphs_of_constants_give_the_same_outputs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = Builder({"x": ["n", 8]}, seed=seed, opset=13)
    pool = [b.normal(8, 8, name=f"weight{i}") for i in range(3)]
    some = lambda: pool[rng.integers(len(pool))]  # noqa: E731
    index = lambda *values: b.constant(np.array(values, np.int64))  # noqa: E731

    def swapped_rows(t: str) -> str:
        cut = [b.add("Slice", t, index(at), index(at + 4), index(0)) for at in (4, 0)]
        return b.add("Concat", *cut, axis=0)

    steps = (
        lambda: b.add("Transpose", some(), perm=[1, 0]),
        lambda: b.add("Identity", some()),
        lambda: b.add("Mul", some(), some()),
        lambda: b.add("Sub", some(), b.constant(np.float32(0.5))),
        lambda: swapped_rows(some()),
        lambda: b.add("Squeeze", b.add("Unsqueeze", some(), index(1)), index(1)),
        lambda: b.add("Cast", b.add("Cast", some(), to=TensorProto.FLOAT16), to=TensorProto.FLOAT),
        lambda: b.add("Clip", some(), b.constant(np.float32(-1)), b.constant(np.float32(1))),
    )
    for _ in range(10):
        pool.append(steps[rng.integers(len(steps))]())
    y = "x"
    for _ in range(3):
        y = b.add("Tanh", b.add("MatMul", y, some()))
    computed = [t for t in pool if not t.startswith("weight")]
    prepared(b.model(y, *rng.choice(computed, size=seed % 3, replace=False)), x(2, 8), 1e-4)


# ---- loops --------------------------------------------------------------------------------------------


def looped(passed: bool = True, read: bool = False, leaves: bool = False, times: int = 3) -> ModelProto:
    """A Loop that carries a weight; passed: unchanged. read: the value after the loop is read. leaves: it is an output
    of the model."""
    info, f = helper.make_tensor_value_info, TensorProto.FLOAT
    nodes = [
        helper.make_node("MatMul", ["h_in", "w_in"], ["m"], name="m"),
        helper.make_node("Tanh", ["m"], ["h_out"], name="t"),
        helper.make_node("Identity", ["go_in"], ["go_out"], name="go"),
        helper.make_node("Identity", ["w_in"], ["w_mid"], name="i1")
        if passed
        else helper.make_node("Neg", ["w_in"], ["w_mid"], name="neg"),
        helper.make_node("Identity", ["w_mid"], ["w_out"], name="i2"),
    ]
    flag = TensorProto.BOOL
    given = [
        info("i", TensorProto.INT64, []),
        info("go_in", flag, []),
        info("h_in", f, [1, 8]),
        info("w_in", f, [8, 8]),
    ]
    made = [info("go_out", flag, []), info("h_out", f, [1, 8]), info("w_out", f, [8, 8])]
    b = Builder({"x": [1, 8]})
    w = b.normal(8, 8, name="w")
    counts = b.constant(np.array(times, np.int64)), b.constant(np.array(True))
    body = helper.make_graph(nodes, "body", given, made)
    b.nodes.append(helper.make_node("Loop", [*counts, "x", w], ["h", "w_end"], name="loop", body=body))
    y = b.add("MatMul", "h", "w_end") if read else b.add("Neg", "h")
    model = b.model(y, "w_end") if leaves else b.model(y)
    return typed(model, **{y: [1, 8], "w_end": [8, 8]})


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("leaves", [False, True])
@pytest.mark.parametrize("times", [0, 3])
def test_a_constant_that_a_loop_carries_is_read_directly(read: bool, leaves: bool, times: int) -> None:
    graph = prepared(looped(True, read, leaves, times), x(1, 8))
    assert found(graph).count(("w", "MatMul")) == 1 + read
    loop = next(n for n in graph.nodes if n.op_type == "Loop")
    assert len(loop.input) == 3
    assert len(loop.output) == 1


def test_a_carried_value_that_changes_stays() -> None:
    graph = prepared(looped(False, True), x(1, 8))
    assert len(next(n for n in graph.nodes if n.op_type == "Loop").input) == 4


def test_a_scan_that_carries_a_constant() -> None:
    info, f = helper.make_tensor_value_info, TensorProto.FLOAT
    nodes = [
        helper.make_node("MatMul", ["row", "w_in"], ["m"], name="m"),
        helper.make_node("Add", ["m", "s_in"], ["s_out"], name="a"),
        helper.make_node("Identity", ["s_out"], ["each"], name="e"),
        helper.make_node("Identity", ["w_in"], ["w_out"], name="i"),
    ]
    body = helper.make_graph(
        nodes, "body", [info("s_in", f, [1, 8]), info("w_in", f, [8, 8]), info("row", f, [1, 8])],
        [info("s_out", f, [1, 8]), info("w_out", f, [8, 8]), info("each", f, [1, 8])],
    )  # fmt: skip
    b = Builder({"x": [5, 1, 8]})
    start, w = b.constant(np.zeros((1, 8), np.float32)), b.normal(8, 8, name="w")
    b.nodes.append(helper.make_node("Scan", [start, w, "x"], ["s", "w_end", "all"], name="scan", body=body,
                                    num_scan_inputs=1))  # fmt: skip
    graph = prepared(typed(b.model("s", "all"), s=[1, 8], all=[5, 1, 8]), x(5, 1, 8))
    assert ("w", "MatMul") in found(graph)
    assert [len(n.input) for n in graph.nodes] == [2]


# ---- factors and summands -----------------------------------------------------------------------------


def layer(b: Builder, op: str) -> tuple[str, int, tuple[int, ...]]:
    """A layer of 12 channels; returns its result, the rank of that, and the shape of the input."""
    if op == "Conv":
        return b.conv("x", 8, 12), 4, (2, 8, 6, 6)
    if op == "ConvTranspose":
        return b.add("ConvTranspose", "x", b.normal(8, 6, 3, 3), group=2), 4, (2, 8, 6, 6)
    if op == "Gemm":
        return b.add("Gemm", "x", b.normal(8, 12), b.normal(12)), 2, (2, 8)
    if op == "Gemm transB":
        return b.add("Gemm", "x", b.normal(12, 8), b.normal(1, 12), transB=1), 2, (2, 8)
    return b.add("MatMul", "x", b.normal(8, 12)), 3, (2, 5, 8)


LAYERS = ("Conv", "ConvTranspose", "Gemm", "Gemm transB", "MatMul")


@pytest.mark.parametrize("op", LAYERS)
@pytest.mark.parametrize("does", ["Mul", "Div", "Add", "Sub"])
@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("opset", [7, 14])
def test_what_follows_a_layer_per_channel_is_folded(op: str, does: str, one: bool, opset: int) -> None:
    shapes = {"Conv": [0, 8, 6, 6], "ConvTranspose": [0, 8, 6, 6], "MatMul": [0, 5, 8]}
    b = Builder({"x": [2, *shapes.get(op, [0, 8])[1:]]}, opset=opset)
    y, rank, shape = layer(b, op)
    channels = (12, *(1,) * (rank - 2)) if op.startswith("Conv") else (1,) * (rank - 1) + (12,)
    given = b.constant(b.rng.uniform(0.5, 2, () if one else channels).astype(np.float32))
    operands = (given, y) if does in ("Mul", "Add") else (y, given)
    graph = prepared(b.model(b.add(does, *operands)), x(*shape))
    kept = op == "MatMul" and does in ("Add", "Sub")  # it has no bias
    assert len(ops(graph)) == 1 + kept


@pytest.mark.parametrize("op", LAYERS)
def test_other_broadcasts_are_not_folded(op: str) -> None:
    shapes = {"Conv": [2, 8, 6, 6], "ConvTranspose": [2, 8, 6, 6], "MatMul": [2, 5, 8]}
    b = Builder({"x": shapes.get(op, [2, 8])})
    y, rank, shape = layer(b, op)
    wrong = {4: [(2, 1, 1, 1), (1, 1, 1, 1, 1)], 3: [(5, 1), (1, 1, 1, 12)], 2: [(2, 1), (1, 1, 12)]}[rank]
    results = [b.add("Mul", y, b.normal(*wrong[0])), b.add("Mul", b.add("Neg", y), b.normal(*wrong[1]))]
    graph = prepared(b.model(results[0]), x(*shape))
    assert ops(graph)[-1] == "Mul"
    b = Builder({"x": shapes.get(op, [2, 8])})
    y, rank, shape = layer(b, op)
    graph = prepared(b.model(b.add("Mul", y, b.normal(*wrong[1]))), x(*shape))
    assert ops(graph)[-1] == "Mul"


@pytest.mark.parametrize("does", ["Mul", "Div"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_factor_is_folded_past_the_bias_of_a_product(does: str, turned: bool) -> None:
    b = Builder({"x": [2, 5, 8]})
    y, bias = b.add("MatMul", "x", b.normal(8, 12, name="w")), b.normal(12)
    y = b.add("Add", *((bias, y) if turned else (y, bias)))
    factor = b.constant(b.rng.uniform(0.5, 2, 12).astype(np.float32))
    z = b.add(does, *((factor, y) if turned and does == "Mul" else (y, factor)))
    graph = prepared(b.model(z), x(2, 5, 8))
    assert ops(graph) == ["MatMul", "Add"]
    assert found(graph)[0] == ("w", "MatMul")


def test_a_factor_is_not_folded_past_what_others_read() -> None:
    b = Builder({"x": [2, 5, 8]})
    y = b.add("Add", b.add("MatMul", "x", b.normal(8, 12)), b.normal(12))
    z = b.add("Mul", y, b.normal(12))
    assert ops(prepared(b.model(z, y), x(2, 5, 8))) == ["MatMul", "Add", "Mul"]
    b = Builder({"x": [2, 5, 8]})
    w = b.normal(8, 8)
    y = b.add("Mul", b.add("Add", b.add("MatMul", "x", w), b.normal(8)), b.normal(8))
    assert "Mul" in ops(prepared(b.model(b.add("MatMul", y, w)), x(2, 5, 8)))


def test_chains_are_folded_into_one_layer() -> None:
    b = Builder({"x": [1, 8, 6, 6]})
    y = b.add("Mul", b.conv("x", 8, 12, bias=False), b.normal(1, 12, 1, 1))
    y = b.batch_norm(b.add("Add", b.normal(12, 1, 1), y), 12)
    y = b.add("Sub", b.add("Div", y, b.constant(np.float32(3))), b.normal(1, 12, 1, 1))
    assert ops(prepared(b.model(y), x(1, 8, 6, 6))) == ["Conv"]


@pytest.mark.parametrize("trap", ["weight read twice", "result read twice", "result leaves", "subtracted from", "huge"])
def test_what_others_depend_on_stays(trap: str) -> None:
    b = Builder({"x": [1, 8, 6, 6]})
    w = b.normal(8, 8, 3, 3, name="w")
    y = b.add("Conv", "x", w, pads=[1] * 4)
    factor = b.constant(np.full((8, 1, 1), 1e38 if trap == "huge" else 2.0, np.float32))
    z = b.add("Sub", factor, y) if trap == "subtracted from" else b.add("Mul", y, factor)
    results = [z]
    if trap == "weight read twice":
        z = b.add("Conv", z, w)
        results = [z]
    elif trap == "result read twice":
        results = [b.add("Add", z, y)]
    elif trap == "result leaves":
        results = [z, y]
    graph = Graph.load(b.model(*results))
    before = ops(graph)
    if trap == "huge":
        graph.initializer("w").CopyFrom(numpy_helper.from_array(np.full((8, 8, 3, 3), 1e5, np.float32), "w"))  # type: ignore[union-attr]
    prepare(graph)
    assert ops(graph) == before


def test_layers_in_bodies_are_prepared_too() -> None:
    info, f = helper.make_tensor_value_info, TensorProto.FLOAT

    def branch(seed: int) -> onnx.GraphProto:
        rng = np.random.default_rng(seed)
        arrays = {
            "w": rng.standard_normal((4, 8, 3)),
            "f": rng.standard_normal((4, 1)),
            "s": rng.standard_normal((4, 1)),
        }
        stored = [numpy_helper.from_array(a.astype(np.float32), f"{k}{seed}") for k, a in arrays.items()]
        nodes = [
            helper.make_node("Conv", ["x", f"w{seed}"], [f"y{seed}"], name=f"c{seed}"),
            helper.make_node("Mul", [f"y{seed}", f"f{seed}"], [f"m{seed}"], name=f"m{seed}"),
            helper.make_node("Add", [f"s{seed}", f"m{seed}"], [f"a{seed}"], name=f"a{seed}"),
        ]
        return helper.make_graph(nodes, f"b{seed}", [], [info(f"a{seed}", f, [1, 4, 6])], stored)

    b = Builder({"x": [1, 8, 8]})
    flag = b.add("Greater", b.add("ReduceSum", "x", keepdims=0), b.constant(np.float32(0)))
    b.nodes.append(helper.make_node("If", [flag], ["y"], name="if", then_branch=branch(1), else_branch=branch(2)))
    for seed in (0, 1):
        graph = prepared(typed(b.model("y"), y=[1, 4, 6]), x(1, 8, 8, seed=seed))
    assert ops(graph).count("Conv") == 2
    assert not {"Mul", "Add"} & set(ops(graph))


# ---- paddings and means -------------------------------------------------------------------------------


@pytest.mark.parametrize("opset", [7, 11, 13, 18])
@pytest.mark.parametrize("own", [{}, {"auto_pad": "VALID"}, {"pads": [1, 0, 2, 1]}])
def test_paddings_are_merged_into_convolutions(opset: int, own: dict[str, Any]) -> None:
    b = Builder({"x": [1, 4, 6, 6]}, opset=opset)
    pads = [0, 0, 1, 2, 0, 0, 0, 3]
    if opset < 11:
        y = b.add("Pad", "x", pads=pads)
    else:
        y = b.add("Pad", "x", b.constant(np.array(pads, np.int64)), b.constant(np.float32(0)))
    y = b.add("Conv", y, b.normal(4, 4, 3, 3), **own)
    assert ops(prepared(b.model(y), x(1, 4, 6, 6))) == ["Conv"]


@pytest.mark.parametrize("trap", ["value", "mode", "channels", "cut off", "another reader", "leaves", "same"])
def test_other_paddings_stay(trap: str) -> None:
    b = Builder({"x": [1, 4, 6, 6]}, opset=13)
    pads = [0, trap == "channels", 1, 1, 0, 0, -1 if trap == "cut off" else 1, 1]
    value = b.constant(np.float32(trap == "value"))
    options = {"mode": "edge"} if trap == "mode" else {}
    y = b.add("Pad", "x", b.constant(np.array(pads, np.int64)), value, **options)
    own = {"auto_pad": "SAME_UPPER"} if trap == "same" else {}
    z = b.add("Conv", y, b.normal(4, 4 + (trap == "channels"), 3, 3), **own)
    results = (
        [b.add("Concat", z, b.add("MaxPool", y, kernel_shape=[3, 3]), axis=1)] if trap == "another reader" else [z]
    )
    if trap == "leaves":
        results.append(y)
    assert "Pad" in ops(prepared(b.model(*results), x(1, 4, 6, 6)))


@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", [[2, 3], [-1, -2]])
def test_means_over_images_are_poolings(opset: int, keepdims: int, axes: list[int]) -> None:
    b = Builder({"x": ["n", 4, 6, 6]}, opset=opset)
    if opset < 18:
        y = b.add("ReduceMean", "x", axes=axes, keepdims=keepdims)
    else:
        y = b.add("ReduceMean", "x", b.constant(np.array(axes, np.int64)), keepdims=keepdims)
    assert ops(prepared(b.model(y), x(3, 4, 6, 6), slack=40))[0] == "GlobalAveragePool"


@pytest.mark.parametrize(("shape", "axes"), [([2, 4, 6, 6], [1, 2]), ([2, 4, 6, 6], [3]), ([2, 4, 6], [1, 2])])
def test_other_means_stay(shape: list[int], axes: list[int]) -> None:
    b = Builder({"x": list(shape)})
    assert ops(prepared(b.model(b.add("ReduceMean", "x", axes=axes)), x(*shape))) == ["ReduceMean"]
