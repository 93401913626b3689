"""LSTM, GRU and RNN in ONNX: codes of both weights, folded or for ONNX Runtime's integer LSTM."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx_models as made
from lowbit.formats.inspection import inspect_file
from lowbit.formats.onnx import choose
from lowbit.formats.onnx.arrangement import Unrolled
from lowbit.formats.onnx.convert import quantize_onnx
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.runtime import new_session
from lowbit.models import ActivationRecipe, Recipe, WeightRecipe
from lowbit.numerics.errors import InvalidProblem
from onnx_checks import converted, ops, recipe, relative, same_bits

DYNAMIC = Recipe.of("dynamic-int8").but(min_elements=1)
STATIC = Recipe.of("static-int8")


def rows_of(report):
    return {r.name: r for r in report.rows}


def decoded(w, levels, group):
    """A weight of [directions, gate rows, inputs] in symmetric codes and back, group by group."""
    out = np.empty_like(w)
    many = bool(group) and w.shape[0] * w.shape[1] * -(-w.shape[2] // group) >= 256  # float16 scales
    for at in np.ndindex(w.shape[:2]):
        for i in range(0, w.shape[2], group or w.shape[2]):
            part = w[at][i : i + (group or w.shape[2])]
            most = levels + 1 if levels == 7 else levels  # of 4 bits, all codes are used
            scale = np.float32(np.abs(part).max() / np.float32(most))
            scale = np.float32(np.float16(scale)) if many else scale
            out[(*at, slice(i, i + len(part)))] = np.clip(np.rint(part / scale), -levels - 1, levels) * scale
    return out


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("dtype", "group"), [("int8", None), ("int4", 16), ("int4", 9), ("int4", 128)])
def test_folded_weights_are_codes_times_scales_of_their_row(tmp_path, op, directions, dtype, group):
    proto = made.recurrent(op, directions=directions)
    path, report = converted(proto, tmp_path, recipe(dtype, group, method="rtn"))
    feeds = {"x": made.normal(5, 3, 24)}
    (y,) = same_bits(path, feeds)
    for name in ("W", "R"):
        row = rows_of(report)[name]
        assert row.treated
        assert row.kind == op
        stored = next(t for t in proto.graph.initializer if t.name == name)
        levels = 127 if dtype == "int8" else 7
        stored.CopyFrom(numpy_helper.from_array(decoded(numpy_helper.to_array(stored), levels, group), name))
    assert relative(y, made.run(proto, feeds)[0]) < 1e-6
    assert rows_of(report)["B"].why_not == f"used by {op}"


@pytest.mark.parametrize("r", [recipe("uint8"), recipe("uint4", 8), recipe(granularity="tensor")], ids=str)
def test_zero_points_and_one_scale(tmp_path, r):
    proto = made.recurrent("GRU", directions=2)
    path, report = converted(proto, tmp_path, r)
    feeds = {"x": made.normal(5, 3, 24)}
    (y,) = same_bits(path, feeds)
    assert relative(y, made.run(proto, feeds)[0]) < (0.2 if r.weights.dtype == "uint4" else 0.05)
    assert {r.name for r in report.treated} == {"W", "R"}


@pytest.mark.parametrize("r", [recipe(), recipe("int8", 8), recipe("uint8", 16), recipe("int4", 16)], ids=str)
def test_weights_are_dequantized_where_that_is_asked_for(tmp_path, r):
    """The same numbers as those of codes times scales."""
    proto, feeds = made.recurrent("GRU", directions=2), {"x": made.normal(5, 3, 24)}
    path, report = converted(proto, tmp_path, r, operator="dequantize")
    assert ops(path).count("DequantizeLinear") == 2
    (y,) = same_bits(path, feeds)
    folded, _ = converted(proto, tmp_path, r, operator="fold")
    assert np.array_equal(y, made.run(folded, feeds)[0])
    assert {row.name for row in report.treated} == {"W", "R"}


def integer_lstm(x, w, r, b, scales, hidden):
    """DynamicQuantizeLSTM forward in float64: the input is rounded at once, the state at each step."""

    def product(a, codes, scale):
        low, high = min(a.min(), 0), max(a.max(), 0)
        unit = np.float32(high - low) / np.float32(255)
        zero = np.clip(np.rint(-low / unit), 0, 255)
        a_codes = np.clip(np.rint(np.float32(a) / unit) + zero, 0, 255)
        return (a_codes - zero) @ codes.astype(np.float64) * (np.float64(unit) * scale)

    steps, batch, inputs = x.shape
    from_x = product(x.reshape(-1, inputs), w[0], scales[0][0]).reshape(steps, batch, -1)
    h, c = np.zeros((batch, hidden)), np.zeros((batch, hidden))
    given = []
    for t in range(steps):
        gates = from_x[t] + b[0, : 4 * hidden] + b[0, 4 * hidden :]
        gates = gates + (product(h, r[0], scales[1][0]) if h.any() else 0)
        i, o, f, g = np.split(gates, 4, axis=1)
        i, o, f = (1 / (1 + np.exp(-v)) for v in (i, o, f))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        given.append(h)
    return np.stack(given)[:, None]


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_an_lstm_is_multiplied_in_integers(tmp_path, granularity):
    proto = made.recurrent()
    r = DYNAMIC.but(weights=WeightRecipe("int8", granularity=granularity))
    path, report = converted(proto, tmp_path, r)
    assert ops(path) == ["DynamicQuantizeLSTM"]
    assert {row.activations for row in report.treated} == {"uint8 asymmetric, dynamic per tensor"}
    graph = Graph.load(path)
    (node,) = graph.nodes
    constants = [graph.constant(name) for name in node.input]
    assert constants[1].shape == (1, 24, 64)
    scales = [np.broadcast_to(constants[i].reshape(1, -1), (1, 64)) for i in (8, 10)]
    feeds = {"x": made.normal(7, 3, 24)}
    want = integer_lstm(feeds["x"], *constants[1:4], scales, 16)
    (y,) = made.run(path, feeds)
    assert relative(y, want) < 2e-3
    assert relative(y, made.run(proto, feeds)[0]) < 0.05


def test_pairs_of_codes_of_an_lstm_do_not_saturate(tmp_path):
    path, _ = converted(made.recurrent(inputs=65, directions=2), tmp_path, DYNAMIC)
    graph = Graph.load(path)
    for index in (1, 2):
        codes = graph.constant(graph.nodes[0].input[index]).astype(int)
        assert np.abs(codes).max() > 100
        for side in (np.maximum(codes, 0), np.maximum(-codes, 0)):
            assert (side[:, 0:-1:2] + side[:, 1::2]).max() <= 128


def test_states_lengths_and_peepholes_stay(tmp_path):
    proto = made.recurrent(directions=2, activations=["Sigmoid", "Tanh", "Tanh"] * 2, clip=3.0)
    node = proto.graph.node[0]
    node.input.extend(["lengths", "h", "c", "P"])
    node.output.extend(["hn", "cn"])
    for name, array in {"lengths": np.int32([4, 6, 2]), "P": made.normal(2, 48) * np.float32(0.1)}.items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    proto.graph.input.extend(made.info(name, [2, 3, 16]) for name in "hc")
    proto.graph.output.extend(made.info(name, [2, 3, 16]) for name in ("hn", "cn"))
    path, _ = converted(proto, tmp_path, DYNAMIC)
    feeds = {"x": made.normal(6, 3, 24), "h": np.tanh(made.normal(2, 3, 16)), "c": made.normal(2, 3, 16, seed=1)}
    for got, want in zip(made.run(path, feeds), made.run(proto, feeds), strict=True):
        assert relative(got, want) < 0.05
    kept = {a.name: helper.get_attribute_value(a) for a in onnx.load(path).graph.node[0].attribute}
    assert kept["clip"] == 3.0
    assert kept["direction"] == b"bidirectional"


@pytest.mark.parametrize(
    ("proto", "r", "why"),
    [
        (made.recurrent("GRU"), DYNAMIC, "ONNX Runtime has no integer GRU"),
        (made.recurrent("RNN"), DYNAMIC, "ONNX Runtime has no integer RNN"),
        (made.recurrent("LSTM"), STATIC, "ONNX Runtime has no integer LSTM"),
        (made.recurrent(), DYNAMIC.but(weights=WeightRecipe("uint8", "asymmetric")), "takes symmetric int8"),
        (made.recurrent(), DYNAMIC.but(weights=WeightRecipe("int8", group_size=8)), "8 bits per tensor or channel"),
    ],
)
def test_why_activations_stay_float(tmp_path, proto, r, why):
    path, report = converted(proto, tmp_path, r, data=[{"x": made.normal(4, 3, 24)}], strict=True)
    assert "DynamicQuantizeLSTM" not in ops(path)
    assert all(why in row.note and "activations stay float" in row.note for row in report.treated)
    assert len(report.treated) == 2


def test_a_layer_with_one_weight_for_integers_is_folded(tmp_path):
    floats = DYNAMIC.but(skip=["R"])
    path, report = converted(made.recurrent(), tmp_path, floats)
    assert "DynamicQuantizeLSTM" not in ops(path)
    assert "the other weight of its layer" in rows_of(report)["W"].note
    assert rows_of(report)["R"].why_not == "the recipe skips 'R'"
    same_bits(path, {"x": made.normal(4, 3, 24)})


def test_kinds_can_leave_recurrent_layers_out(tmp_path):
    proto = made.recurrent()
    _, report = converted(proto, tmp_path, DYNAMIC.but(kinds=("linear",)), strict=True)
    assert not report.treated
    assert "this is recurrent" in rows_of(report)["W"].why_not


def test_strict_counts_recurrent_weights(tmp_path):
    proto = made.recurrent()
    proto.graph.input.append(made.info("R", [1, 64, 16]))
    with pytest.raises(InvalidProblem, match=r"strict: 1 weights .* R \(LSTM\)"):
        converted(proto, tmp_path, DYNAMIC, strict=True)


def test_other_readers_take_the_codes_of_an_integer_lstm(tmp_path):
    """W is multiplied elsewhere too, and by a second LSTM that cannot be an integer one."""
    proto = made.recurrent(directions=2)
    graph = proto.graph
    graph.node.append(made.node("MatMul", ["W", "v"], "p"))
    graph.initializer.append(numpy_helper.from_array(made.normal(2, 24, 5), "v"))
    graph.output.append(made.info("p", [2, 64, 5]))
    options = {"hidden_size": 16, "direction": "bidirectional"}
    graph.node.append(made.node("LSTM", ["x", "W", "S"], "z", **options))
    graph.initializer.append(numpy_helper.from_array(made.normal(2, 64, 16, seed=5), "S"))
    graph.output.append(made.info("z", ["t", 2, 3, 16]))
    path, report = converted(proto, tmp_path, DYNAMIC.but(skip=["S", "v"]))
    stored = [t for t in onnx.load(path).graph.initializer if t.name.startswith("W")]
    assert sum(t.data_type == TensorProto.INT8 and len(t.dims) == 3 for t in stored) == 1
    assert not any(t.name == "W" for t in stored)
    feeds = {"x": made.normal(5, 3, 24)}
    for got, want in zip(made.run(path, feeds), made.run(proto, feeds), strict=True):
        assert relative(got, want) < 0.05
    assert "its codes as floats" in rows_of(report)["W"].note


def test_an_lstm_inside_a_branch(tmp_path):
    inner = made.recurrent()
    body = helper.make_graph(
        list(inner.graph.node), "then", [], list(inner.graph.output), list(inner.graph.initializer)
    )
    other = helper.make_graph(
        [made.node("Slice", ["x", "from", "to", "axis"], "cut"), made.node("Unsqueeze", ["cut", "at"], "e")],
        "else", [], [made.info("e", ["t", 1, 3, 16])],
    )  # fmt: skip
    cut = {"from": 0, "to": 16, "axis": 2, "at": 1}
    proto = made.model(
        [helper.make_node("If", ["given"], ["out"], then_branch=body, else_branch=other)],
        [made.info("x", ["t", 3, 24]), made.info("given", [], TensorProto.BOOL)],
        [made.info("out", ["t", 1, 3, 16])], {name: np.int64([v]) for name, v in cut.items()},
    )  # fmt: skip
    for r in (DYNAMIC, recipe("int4", 8)):
        path, report = converted(proto, tmp_path, r)
        assert {row.name for row in report.treated} == {"W", "R"}
        feeds = {"x": made.normal(5, 3, 24), "given": np.array(True)}
        assert relative(made.run(path, feeds)[0], made.run(proto, feeds)[0]) < 0.3


def test_both_weights_of_a_slow_layer_are_folded(tmp_path, monkeypatch):
    def seconds(model, feed, **options):
        nodes = onnx.load_from_string(model).graph.node
        return {n.name: 2.0 if n.op_type == "DynamicQuantizeLSTM" else 1.0 for n in nodes}

    monkeypatch.setattr(choose, "node_seconds", seconds)
    monkeypatch.setattr(choose, "_speeds", lambda plain, others: {n: float(n == "attempt") for n in others})
    path, report = converted(made.recurrent(), tmp_path, DYNAMIC, optimize="balanced")
    assert "LSTM" in ops(path)
    assert [("dynamic took" in row.note, row.activations) for row in report.treated] == [(True, "")] * 2


@pytest.mark.parametrize(
    ("r", "scheme", "what"),
    [
        (DYNAMIC, "DynamicQuantizeLSTM", "weights int8, per channel"),
        (recipe(), "codes times scales", "weights int8, per channel"),
        (recipe("uint4", 8), "codes times scales", "weights uint4, groups of 8"),
        (recipe("uint8", granularity="tensor"), "codes times scales", "weights uint8, per tensor"),
    ],
)
def test_what_came_quantized_is_recognised_whole(tmp_path, r, scheme, what):
    path, _ = converted(made.recurrent(), tmp_path, r)
    found = {(q.scheme, q.what): q.count for q in inspect_file(path).quantization}
    assert found == {(scheme, what): 2}
    again, report = converted(onnx.load(path), tmp_path, r)
    codes = {t.name: tuple(t.dims) for t in onnx.load(again).graph.initializer if t.name.split("_")[1:] == ["codes"]}
    assert {row.name: row.shape for row in report.rows if row.why_not.startswith("came quantized")} == codes
    assert len(codes) == 2


def test_convolutions_of_one_pixel_that_came_quantized_have_rows(tmp_path):
    ends = [made.info("x", [1, 8, 4, 4])], [made.info("y", [1, 8, 4, 4])]
    proto = made.model([made.node("Conv", ["x", "w"], "y")], *ends, {"w": made.normal(8, 8, 1, 1)})
    path, _ = converted(proto, tmp_path, recipe())
    _, report = converted(onnx.load(path), tmp_path, recipe())
    assert [(row.shape, row.why_not) for row in report.rows] == [((8, 8, 1, 1), "came quantized (codes times scales)")]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_an_unrolled_array_is_a_matrix_that_goes_back(rank):
    array = made.normal(*range(2, rank + 2))
    for count in (1, 2):
        for channels in itertools.permutations(range(rank), count):
            u = Unrolled(array.shape, channels)
            rows = u.rows(array)
            back = rows.reshape(u.moved).transpose(u.back)
            assert np.array_equal(back, array)
            first = tuple(0 if i in channels else slice(None) for i in range(rank))
            assert np.array_equal(rows[0], array[first].ravel())


def test_static_activations_beside_a_folded_layer(tmp_path):
    r = Recipe("r", WeightRecipe("int8"), ActivationRecipe("int8", "symmetric"), min_elements=1)
    _, report = converted(made.recurrent("GRU"), tmp_path, r, data=[{"x": made.normal(4, 3, 24)}])
    assert [row.activations for row in report.treated] == ["", ""]


def lstm_in_both_branches() -> onnx.ModelProto:
    """Both branches put the gates of the same weights in another order, and then run an LSTM."""
    rng = np.random.default_rng(0)
    stored = {n: rng.standard_normal((256, 64)).astype(np.float32) * np.float32(0.1) for n in ("ih", "hh")}

    def branch(label: str) -> onnx.GraphProto:
        nodes, constants = [], []
        for name in stored:
            cuts = []
            for i, first in enumerate((0, 192, 64, 128)):
                ends = [f"{label}_{name}_{i}_{end}" for end in ("start", "stop")]
                constants += [
                    numpy_helper.from_array(np.array([v]), e) for v, e in zip((first, first + 64), ends, strict=True)
                ]
                cuts.append(f"{label}_{name}_{i}")
                nodes.append(helper.make_node("Slice", [name, *ends], [cuts[-1]]))
            nodes.append(helper.make_node("Concat", cuts, [f"{label}_{name}"], axis=0))
            constants.append(numpy_helper.from_array(np.array([0]), f"{label}_{name}_axis"))
            unsqueezed = [f"{label}_{name}", f"{label}_{name}_axis"]
            nodes.append(helper.make_node("Unsqueeze", unsqueezed, [f"{label}_{name}_3d"]))
        read = ["x", f"{label}_ih_3d", f"{label}_hh_3d"]
        nodes.append(helper.make_node("LSTM", read, [f"{label}_y", f"{label}_h"], hidden_size=64))
        constants.append(numpy_helper.from_array(np.array([1]), f"{label}_axis"))
        nodes.append(helper.make_node("Squeeze", [f"{label}_y", f"{label}_axis"], [f"{label}_out"]))
        made = helper.make_tensor_value_info(f"{label}_out", 1, None)
        return helper.make_graph(nodes, label, [], [made], constants)

    chosen = helper.make_node("If", ["flag"], ["y"], name="if", then_branch=branch("a"), else_branch=branch("b"))
    given = [
        helper.make_tensor_value_info("flag", onnx.TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", 1, [5, 1, 64]),
    ]
    graph = helper.make_graph(
        [chosen], "g", given, [helper.make_tensor_value_info("y", 1, [5, 1, 64])],
        [numpy_helper.from_array(a, n) for n, a in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("recipe", ["W8A16", "dynamic-int8"])
def test_weights_that_both_branches_compute_are_found_and_stored_once(recipe: str, tmp_path: Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "q.onnx"
    onnx.save(lstm_in_both_branches(), source)
    report = quantize_onnx(source, target, recipe, progress=False, optimize="size")
    treated = [r for r in report.rows if r.treated]
    assert sum(r.shape[-2] * r.shape[-1] for r in treated) == 2 * 256 * 64
    if recipe == "W8A16":
        assert target.stat().st_size < 0.4 * source.stat().st_size
    x = np.random.default_rng(1).standard_normal((5, 1, 64)).astype(np.float32)
    for flag in (True, False):
        feed = {"flag": np.array(flag), "x": x}
        want, got = (new_session(path, 1).run(None, feed)[0] for path in (source, target))
        assert np.abs(want - got).max() < 0.05 * np.abs(want).max()
