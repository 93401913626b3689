"""quantize_onnx: whole files, the report, and what happens when something is wrong."""

from __future__ import annotations

import json
import os
from importlib import resources

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx_models as made
from lowbit.data import load_digits_cnn
from lowbit.formats.onnx.convert import quantize_onnx
from lowbit.formats.onnx.graph import Graph
from lowbit.models import Override, Recipe, WeightRecipe
from lowbit.numerics.errors import FormatError, InvalidProblem
from onnx_checks import recipe, relative, same_bits

DIGITS = resources.files("lowbit.data") / "digits_cnn.onnx"


def digits(count=360):
    a = load_digits_cnn()
    return (a["test_images"][:count, None].astype(np.float32) / 16), a["test_labels"][:count]


def accuracy(path):
    images, labels = digits()
    return float(np.mean(made.run(path, {"images": images})[0].argmax(1) == labels))


def convert(source, target, r, **options):
    return quantize_onnx(source, target, r, progress=False, **{"optimize": "size"} | options)


# ---- the shipped network ------------------------------------------------------------------------------


def test_the_shipped_file_is_the_network():
    from lowbit.data import digits_logits

    images, _ = digits()
    a = load_digits_cnn()
    with resources.as_file(DIGITS) as path:
        got = made.run(path, {"images": images})[0]
        assert onnx.load(path).opset_import[0].version == 17
    assert relative(got, digits_logits(a, a["test_images"])) < 1e-6


@pytest.mark.parametrize(
    ("name", "least", "ratio"),
    [("W8A16", 0.98, 3.5), ("dynamic-int8", 0.98, 3.5), ("W8A8", 0.98, 3.5), ("W4A16", 0.95, 5.5), ("W4A8", 0.95, 5.5)],
)
def test_the_digits_network_by_every_preset(tmp_path, name, least, ratio):
    with resources.as_file(DIGITS) as source:
        report = convert(source, tmp_path / "q.onnx", name)
    assert accuracy(tmp_path / "q.onnx") > least
    assert report.ratio > ratio
    assert report.bytes_after == (tmp_path / "q.onnx").stat().st_size
    assert [r.name for r in report.treated] == ["conv2.weight", "fc1.weight"]
    assert all("the recipe leaves weights below 1024" in r.why_not for r in report.rows if not r.treated)
    images, _ = digits(3)
    if name != "W4A8":  # whose sums are the operator's own
        same_bits(tmp_path / "q.onnx", {"images": images})


def test_static_digits_if_there(tmp_path):
    images, _ = digits()
    with resources.as_file(DIGITS) as source:
        report = convert(source, tmp_path / "q.onnx", "static-int8", data=[{"images": images[:100]}])
    assert accuracy(tmp_path / "q.onnx") > 0.97
    assert {r.name for r in report.treated} >= {"conv2.weight", "fc1.weight"}
    assert any(h.kind == "activation" for h in report.histograms)


# ---- the report ---------------------------------------------------------------------------------------


def test_rows_histograms_and_json(tmp_path):
    source = made.saved(made.two_layers(), tmp_path)
    report = convert(source, tmp_path / "q.onnx", recipe("int8").but(skip=["v"]))
    rows = {r.name: r for r in report.rows}
    assert list(rows) == ["u", "v", "w"]
    assert rows["u"].how == "int8 symmetric, per channel"
    assert rows["u"].bytes_before == 64 * 96 * 4
    assert rows["u"].bytes_after == 64 * 96 + 96 * 4
    assert 35 < rows["u"].sqnr_db < 60
    assert rows["v"].why_not == "the recipe skips 'v'"
    assert not rows["v"].skipped
    assert rows["v"].bytes_after == rows["v"].bytes_before
    assert report.bytes_before == source.stat().st_size
    assert [h.name for h in report.histograms] == ["u", "w"]
    h = report.histograms[0]
    assert len(h.edges) == 65
    assert sum(h.counts) == 64 * 96
    assert h.clip[0] == pytest.approx(-np.abs(made.normal(64, 96)).max(), rel=1e-5)
    assert json.dumps(report.to_dict())
    assert report.source == str(source)
    assert report.lowbit_version


def test_overrides_choose_another_way_for_one_weight(tmp_path):
    source = made.saved(made.two_layers(), tmp_path)
    r = recipe("int8").but(
        overrides=[Override("w", WeightRecipe("int4", group_size=32)), Override("u", skip=True, reason="first")]
    )
    report = convert(source, tmp_path / "q.onnx", r)
    assert {r.name: r.how or r.why_not for r in report.rows} == {
        "u": "first", "v": "int8 symmetric, per channel", "w": "int4 symmetric, groups of 32",
    }  # fmt: skip
    same_bits(tmp_path / "q.onnx", {"x": made.normal(3, 64)})


def test_untouched_constants_are_listed(tmp_path):
    nodes = [made.node("MatMul", ["x", "w"], "h"), made.node("Add", ["h", "m"], "y")]
    proto = made.model(
        nodes, [made.info("x", [8, 64])], [made.info("y", [8, 32])], {"w": made.normal(64, 32), "m": made.normal(8, 32)}
    )
    report = convert(made.saved(proto, tmp_path), tmp_path / "q.onnx", "W8A16", strict=True)
    assert [(r.name, r.why_not, r.asked) for r in report.rows] == [("w", "", True), ("m", "used by Add", False)]


# ---- models that came quantized -----------------------------------------------------------------------


@pytest.mark.parametrize("first", ["W8A16", "W4A16", "dynamic-int8"])
@pytest.mark.parametrize("second", ["W8A16", "dynamic-int8"])
def test_a_quantized_model_is_left_alone(tmp_path, first, second):
    source = made.saved(made.two_layers(k=128, inner=128, n=128), tmp_path)
    convert(source, tmp_path / "a.onnx", first)
    with pytest.raises(InvalidProblem, match=r"no weight is quantized; the model is quantized already.*--force"):
        convert(tmp_path / "a.onnx", tmp_path / "b.onnx", second, strict=True)
    assert not (tmp_path / "b.onnx").exists()
    report = convert(tmp_path / "a.onnx", tmp_path / "b.onnx", second, strict=True, force=True)
    assert not report.treated
    assert "the model is quantized already" in report.notes[0]
    assert all("came quantized" in r.why_not for r in report.rows)
    x = made.normal(3, 128)
    assert np.array_equal(made.run(tmp_path / "a.onnx", {"x": x})[0], made.run(tmp_path / "b.onnx", {"x": x})[0])


def test_a_half_quantized_model_gets_the_rest(tmp_path):
    source = made.saved(made.two_layers(), tmp_path)
    convert(source, tmp_path / "a.onnx", recipe("int8").but(skip=["v"]))
    report = convert(tmp_path / "a.onnx", tmp_path / "b.onnx", recipe("int8"))
    assert [r.name for r in report.treated] == ["v"]
    assert "2 weights came quantized" in report.notes[0]
    same_bits(tmp_path / "b.onnx", {"x": made.normal(3, 64)})


# ---- files --------------------------------------------------------------------------------------------


def test_external_data_in_and_out(tmp_path):
    (tmp_path / "in").mkdir()
    Graph.load(made.two_layers()).save(tmp_path / "in" / "m.onnx", external_data=True)
    report = convert(tmp_path / "in" / "m.onnx", tmp_path / "q.onnx", recipe("int8"), external_data=True)
    assert report.bytes_before == sum(f.stat().st_size for f in (tmp_path / "in").iterdir())
    assert report.bytes_after == sum(f.stat().st_size for f in tmp_path.glob("q*"))
    same_bits(tmp_path / "q.onnx", {"x": made.normal(3, 64)})
    inside = convert(tmp_path / "in" / "m.onnx", tmp_path / "r.onnx", recipe("int8"))
    assert [n for n in sorted(os.listdir(tmp_path)) if not n.startswith("q-")] == ["in", "q.onnx", "r.onnx"]
    assert inside.bytes_after < report.bytes_before / 3
    x = {"x": made.normal(3, 64)}
    assert np.array_equal(made.run(tmp_path / "q.onnx", x)[0], made.run(tmp_path / "r.onnx", x)[0])


def test_int4_codes_in_external_data(tmp_path):
    source = made.saved(made.two_layers(), tmp_path)
    convert(source, tmp_path / "q.onnx", recipe("int4", 32), operator="dequantize", external_data=True)
    same_bits(tmp_path / "q.onnx", {"x": made.normal(3, 64)})


def test_the_input_is_replaced_only_with_overwrite(tmp_path):
    source = made.saved(made.two_layers(), tmp_path)
    before = source.read_bytes()
    with pytest.raises(InvalidProblem, match="overwrite=True"):
        convert(source, source, "W8A16")
    assert source.read_bytes() == before
    convert(source, source, "W8A16", overwrite=True)
    assert len(source.read_bytes()) < len(before) / 3


def test_strict_names_what_was_skipped_and_writes_nothing(tmp_path):
    proto = made.model(
        [made.node("MatMul", ["w", "x"], "y")], [made.info("x", [64, "m"])], [made.info("y", [32, "m"])],
        {"w": made.normal(32, 64)},
    )  # fmt: skip
    source = made.saved(proto, tmp_path)
    with pytest.raises(InvalidProblem, match=r"strict: 1 weights .* w \(MatMul\): the left operand"):
        convert(source, tmp_path / "q.onnx", "W8A16", strict=True)
    assert os.listdir(tmp_path) == ["model.onnx"]
    report = convert(source, tmp_path / "q.onnx", "W8A16", force=True)
    assert [r.name for r in report.skipped] == ["w"]
    assert "nothing was changed" in report.notes


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"recipe": "W99"}, InvalidProblem, "W99"),
        ({"operator": "x"}, InvalidProblem, "operator: 'x'"),
        ({"recipe": "static-int8"}, InvalidProblem, "data: none"),
        ({"target": "nowhere/q.onnx"}, InvalidProblem, "folder is not there"),
        ({"target": "."}, InvalidProblem, "a folder"),
        ({"source": "nothing.onnx"}, FileNotFoundError, "nothing"),
        ({"external_data": "maybe"}, InvalidProblem, "external_data: 'maybe'"),
    ],
)
def test_bad_requests(tmp_path, change, error, message):
    source = made.saved(made.matmul(), tmp_path)
    asked = {"source": source, "target": tmp_path / "q.onnx", "recipe": "W8A16"}
    asked |= {k: tmp_path / v if k in ("source", "target") else v for k, v in change.items()}
    with pytest.raises(error, match=message):
        quantize_onnx(asked.pop("source"), asked.pop("target"), asked.pop("recipe"), progress=False, **asked)
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_a_result_that_does_not_open_is_never_put_in_place(tmp_path):
    proto = made.matmul()
    proto.graph.node.append(helper.make_node("NoSuchOp", ["y"], ["z"], domain="nobody"))
    proto.graph.output.append(made.info("z", ["m", 32]))
    proto.opset_import.append(helper.make_opsetid("nobody", 1))
    source = made.saved(proto, tmp_path)
    (tmp_path / "q.onnx").write_bytes(b"old")
    with pytest.raises(FormatError, match="ONNX Runtime does not take the model itself"):
        convert(source, tmp_path / "q.onnx", recipe("int8"))
    assert (tmp_path / "q.onnx").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["model.onnx", "q.onnx"]


def test_a_result_that_is_not_smaller_is_refused(tmp_path):
    source = made.saved(made.matmul(k=2), tmp_path)
    with pytest.raises(
        InvalidProblem, match=r"bytes, and the source .* 1 quantized weights save .*force=True"
    ) as error:
        convert(source, tmp_path / "q.onnx", recipe("int8"))
    assert os.listdir(tmp_path) == ["model.onnx"]
    report = convert(source, tmp_path / "q.onnx", recipe("int8"), force=True)
    assert report.bytes_after >= report.bytes_before
    assert f"{report.bytes_after:,} bytes, and the source {report.bytes_before:,}" in str(error.value)


def test_a_result_in_two_files_that_is_not_smaller_is_refused(tmp_path):
    source = made.saved(made.matmul(k=2), tmp_path)
    with pytest.raises(InvalidProblem, match="save"):
        convert(source, tmp_path / "q.onnx", recipe("int8"), external_data=True)
    assert os.listdir(tmp_path) == ["model.onnx"]


def test_a_model_without_weights(tmp_path):
    proto = made.model([made.node("Relu", ["x"], "y")], [made.info("x", [2])], [made.info("y", [2])])
    report = convert(made.saved(proto, tmp_path), tmp_path / "q.onnx", "W8A16", strict=True, force=True)
    assert not report.rows
    assert report.notes == ["no float weight of two or more dimensions in the model"]


def test_an_empty_weight(tmp_path):
    proto = made.model(
        [made.node("MatMul", ["x", "w"], "y")], [made.info("x", ["m", 8])], [made.info("y", ["m", 0])],
        {"w": np.zeros((8, 0), np.float32)},
    )  # fmt: skip
    report = convert(made.saved(proto, tmp_path), tmp_path / "q.onnx", recipe("int8"), force=True)
    assert not report.treated


def test_batch_normalisation_is_folded(tmp_path):
    proto = made.conv()
    n = 16
    proto.graph.node[0].output[0] = "c"
    names = ["gamma", "beta", "mean", "var"]
    proto.graph.node.append(made.node("BatchNormalization", ["c", *names], "y"))
    for i, name in enumerate(names):
        proto.graph.initializer.append(numpy_helper.from_array(np.abs(made.normal(n, seed=i)) + 0.1, name))
    source = made.saved(proto, tmp_path)
    report = convert(source, tmp_path / "q.onnx", recipe("int8"))
    assert any("folded" in n for n in report.notes)
    feeds = {"x": made.normal(2, 8, 8, 8)}
    assert relative(made.run(tmp_path / "q.onnx", feeds)[0], made.run(source, feeds)[0]) < 0.02
    assert TensorProto.INT8 in [t.data_type for t in onnx.load(tmp_path / "q.onnx").graph.initializer]


def test_a_model_of_today_that_runtimes_do_not_know_yet(tmp_path):
    proto = made.matmul(ir=14)
    report = convert(made.saved(proto, tmp_path), tmp_path / "q.onnx", recipe("int8"))
    assert onnx.load(tmp_path / "q.onnx").ir_version == 10
    assert any("ir_version lowered from 14 to 10" in n for n in report.notes)


def test_a_model_of_long_ago(tmp_path):
    """Initializers that had to be inputs, and an opset without scales along an axis."""
    nodes = [made.node("MatMul", ["x", "w"], "y")]
    given = [made.info("x", ["m", 64]), made.info("w", [64, 32])]
    proto = made.model(nodes, given, [made.info("y", ["m", 32])], {"w": made.normal(64, 32)}, opset=9, ir=3)
    for r in (recipe("int8"), recipe("int4", 32), recipe("int4", 32)):
        report = convert(made.saved(proto, tmp_path), tmp_path / "q.onnx", r)
        assert len(report.treated) == 1
        assert [i.name for i in onnx.load(tmp_path / "q.onnx").graph.input] == ["x"]
        same_bits(tmp_path / "q.onnx", {"x": made.normal(3, 64)})


def test_a_weight_that_a_loop_takes_from_outside(tmp_path):
    state = [made.info("s", ["m", 64])]
    counter = [made.info("i", [], TensorProto.INT64), made.info("c", [], TensorProto.BOOL)]
    inner = [made.node("MatMul", ["s", "w"], "p"), made.node("Relu", ["p"], "r"), made.node("Identity", ["c"], "d")]
    done = [made.info("d", [], TensorProto.BOOL), made.info("r", ["m", 64])]
    body = helper.make_graph(inner, "body", [*counter, *state], done)
    constants = {"w": made.normal(64, 64) / 8, "n": np.int64(3).reshape(()), "t": np.array(True)}
    nodes = [made.node("Loop", ["n", "t", "x"], "l", body=body), made.node("MatMul", ["l", "w"], "y")]
    proto = made.model(nodes, [made.info("x", ["m", 64])], [made.info("y", ["m", 64])], constants)
    source = made.saved(proto, tmp_path)
    feeds = {"x": made.normal(3, 64)}
    for r in (recipe("int8"), Recipe.of("dynamic-int8").but(min_elements=1), recipe("int4", 16)):
        report = convert(source, tmp_path / "q.onnx", r)
        assert report.rows[0].note == "read by 2 nodes"
        assert relative(made.run(tmp_path / "q.onnx", feeds)[0], made.run(source, feeds)[0]) < 0.25


def rounded_product(first):
    """x, through codes and back, by a float weight; `first` makes the codes."""
    nodes = [*first, made.node("DequantizeLinear", ["c", "s", "z"], "d"), made.node("MatMul", ["d", "w"], "y")]
    constants = {"s": np.float32(0.1), "z": np.uint8(7), "w": made.normal(64, 32), "t": np.ones((9, 64), np.uint8)}
    return nodes, {k: np.asarray(v) for k, v in constants.items()}


def test_a_layer_with_rounded_activations_is_left_alone_and_one_behind_an_embedding_is_not(tmp_path):
    nodes, constants = rounded_product([made.node("QuantizeLinear", ["x", "s", "z"], "c")])
    del constants["t"]
    proto = made.model(nodes, [made.info("x", ["m", 64])], [made.info("y", ["m", 32])], constants)
    report = convert(made.saved(proto, tmp_path), tmp_path / "q.onnx", recipe("int8"), strict=True, force=True)
    assert [r.why_not for r in report.rows] == ["its layer came quantized (QuantizeLinear)"]
    nodes, constants = rounded_product([made.node("Gather", ["t", "i"], "c")])
    proto = made.model(nodes, [made.info("i", ["m"], TensorProto.INT64)], [made.info("y", ["m", 32])], constants)
    report = convert(made.saved(proto, tmp_path), tmp_path / "q.onnx", recipe("int8"))
    assert {r.name: r.how or r.why_not for r in report.rows} == {
        "w": "int8 symmetric, per channel", "t": "came quantized (Gather)",
    }  # fmt: skip
