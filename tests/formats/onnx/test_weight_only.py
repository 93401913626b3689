"""Weight-only ONNX files: what is stored is what was quantized, and the runtime computes with exactly that."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnx_models as made
from lowbit.formats.onnx.graph import Graph
from lowbit.models import WeightRecipe
from lowbit.models.weights import quantize_weight
from lowbit.numerics.errors import InvalidProblem
from onnx_checks import converted, ops, recipe, relative, same_bits
from onnx_emulation import emulate, exact_session

SETTINGS = {
    "int8": (recipe("int8"), 0.01), "int8 per tensor": (recipe("int8", granularity="tensor"), 0.02),
    "uint8": (recipe("uint8"), 0.01), "int8 groups": (recipe("int8", 32), 0.01), "int4": (recipe("int4"), 0.2),
    "uint4": (recipe("uint4"), 0.2), "int4 groups": (recipe("int4", 16), 0.15),
    "uint4 groups": (recipe("uint4", 16), 0.15), "int4 odd groups": (recipe("int4", 24), 0.16),
    "int8 asymmetric": (recipe("int8", scheme="asymmetric"), 0.01),
    "int4 mse": (recipe("int4", 32, method="mse"), 0.15),
}  # fmt: skip


@pytest.mark.parametrize("operator", ["auto", "dequantize"])
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize(
    "build", [made.matmul, made.gemm, lambda: made.gemm(trans_b=0)], ids=["MatMul", "Gemm", "plain"]
)
def test_products_give_the_emulated_bits(tmp_path, build, rows, setting, operator):
    r, bound = SETTINGS[setting]
    path, report = converted(build(), tmp_path, r, operator=operator)
    feeds = {"x": made.normal(rows, 64)}
    (y,) = same_bits(path, feeds)
    (row,) = report.rows
    assert row.treated
    assert relative(y, made.run(build(), feeds)[0]) < 1.5 * bound
    assert report.bytes_after < report.bytes_before
    # By default ONNX Runtime rounds activations where it fuses DequantizeLinear itself, and not where it was told.
    told = "MatMulNBits" in ops(path)
    assert relative(made.run(path, feeds)[0], y) < (1e-5 if told else 0.02)
    assert told == (operator == "auto" and (r.weights.group_size or 1) in (16, 32))


@pytest.mark.parametrize("operator", ["auto", "dequantize"])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8", "uint8"])
@pytest.mark.parametrize("k", [16, 100, 40])
def test_the_last_group_may_be_short(tmp_path, k, dtype, operator):
    r = recipe(dtype, 32)
    path, _ = converted(made.matmul(k=k), tmp_path, r, operator=operator)
    feeds = {"x": made.normal(3, k)}
    (y,) = same_bits(path, feeds)
    q = quantize_weight(np.ascontiguousarray(made.normal(k, 32).T), r.weights)
    assert relative(y, feeds["x"] @ q.dequantize().T + made.normal(32)) < 1e-6


@pytest.mark.parametrize("dtype", ["int2", "uint2"])
def test_two_bits_go_into_matmul_nbits_only(tmp_path, dtype):
    path, report = converted(made.matmul(), tmp_path, recipe(dtype, 16))
    same_bits(path, {"x": made.normal(3, 64)})
    assert report.rows[0].treated
    path, report = converted(made.conv(), tmp_path, recipe(dtype, 16))
    assert "2 bits are for MatMulNBits only" in report.rows[0].why_not
    assert report.skipped


def test_the_stored_codes_are_those_of_quantize_weight(tmp_path):
    path, _ = converted(made.matmul(), tmp_path, recipe("int4", 16), operator="dequantize")
    g = Graph.load(path)
    q = quantize_weight(np.ascontiguousarray(made.normal(64, 32).T), WeightRecipe("int4", group_size=16))
    assert g.constant("w_codes").dtype == ml_dtypes.int4
    is_negative = q.params.zero_point == -1  # a scale of -s, and no zero point
    assert is_negative.any()
    codes = np.where(np.repeat(is_negative, 16, axis=1), -1 - q.unpack(), q.unpack())
    assert np.array_equal(g.constant("w_codes").astype(np.int8), codes.T)
    assert np.array_equal(g.constant("w_scale"), np.where(is_negative, -q.params.scale, q.params.scale).T)
    assert g.constant("w_zero_point") is None
    assert g.opset == 21
    assert g.proto.ir_version == 10


def test_the_weights_of_the_packed_operator_are_those_of_quantize_weight(tmp_path):
    path, report = converted(made.matmul(), tmp_path, recipe("uint4", 16), operator="matmul_nbits")
    q = quantize_weight(np.ascontiguousarray(made.normal(64, 32).T), WeightRecipe("uint4", "asymmetric", 16))
    eye = {"x": np.eye(64, dtype=np.float32)}
    (y,) = same_bits(path, eye)
    assert np.array_equal(y, q.dequantize().T + made.normal(32))
    assert report.rows[0].sqnr_db == pytest.approx(q.error(made.normal(64, 32).T).sqnr_db)


@pytest.mark.parametrize("setting", ["int8", "uint8", "int4", "int4 groups", "int8 per tensor"])
@pytest.mark.parametrize("transpose", [False, True], ids=["Conv", "ConvTranspose"])
def test_convolutions(tmp_path, transpose, setting):
    r, bound = SETTINGS[setting]
    proto = made.conv(transpose=transpose)
    path, report = converted(proto, tmp_path, r)
    feeds = {"x": made.normal(2, 8, 8, 8)}
    (y,) = same_bits(path, feeds)
    assert relative(y, made.run(proto, feeds)[0]) < 2 * bound
    assert ("groups" in report.rows[0].how) == (setting == "int4 groups")
    assert report.rows[0].bytes_after < report.rows[0].bytes_before * (0.3 if r.weights.dtype == "int4" else 0.4)


def test_dequantize_linear_has_no_groups_for_convolutions(tmp_path):
    r, _ = SETTINGS["int4 groups"]
    path, report = converted(made.conv(), tmp_path, r, operator="dequantize")
    assert report.rows[0].note == "groups are for matrices; one scale per channel"
    same_bits(path, {"x": made.normal(2, 8, 8, 8)})


@pytest.mark.parametrize(
    "setting", ["int8", "uint8", "int8 per tensor", "int8 groups", "int4 groups", "uint4 groups", "int4", "uint4"]
)
@pytest.mark.parametrize("rows", [300, 5000])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_embeddings_are_gathered_as_codes(tmp_path, dtype, rows, setting):
    r, bound = SETTINGS[setting]
    proto = made.embedding(rows=rows, dtype=dtype)
    path, report = converted(proto, tmp_path, r)
    feeds = {"i": np.array([[0, 7, 299], [3, 3, rows - 1]])}
    (y,) = same_bits(path, feeds)
    assert relative(y, made.run(proto, feeds)[0]) < 2 * bound
    # The table itself is never made float.
    assert all(
        n.op_type != "DequantizeLinear" or n.input[0] not in Graph.load(path)._initializers
        for n in onnx.load(path).graph.node
    )
    assert report.rows[0].bytes_after <= report.rows[0].bytes_before * (1 if dtype == np.float32 else 2) / 2.9


def test_a_long_table_has_a_byte_a_scale_and_loses_next_to_nothing(tmp_path):
    table = made.normal(5000, 64) * np.geomspace(1e-3, 1, 5000, dtype=np.float32)[:, None]
    table[17] = 0
    proto = made.embedding(rows=5000)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(table, "table"))
    path, report = converted(proto, tmp_path, recipe("int8"))
    exact = quantize_weight(table, WeightRecipe("int8")).error(table).sqnr_db
    assert exact - 0.3 < report.rows[0].sqnr_db <= exact + 0.1
    assert report.rows[0].bytes_after == 5000 * 65 + 1024
    feeds = {"i": np.array([[17, 0, 4999]])}
    (y,) = same_bits(path, feeds)
    assert not y[0, 0].any()


def test_an_embedding_with_odd_columns_in_four_bits_is_reported(tmp_path):
    _, report = converted(made.embedding(width=20), tmp_path, recipe("int4"))
    assert "multiple of 16 columns" in report.skipped[0].why_not


@pytest.mark.parametrize("operator", ["auto", "dequantize"])
@pytest.mark.parametrize("setting", ["int8", "int4 groups", "uint4 groups", "int8 groups"])
def test_float16_models_stay_float16(tmp_path, setting, operator):
    r, bound = SETTINGS[setting]
    proto = made.product(dtype=np.float16)
    path, _ = converted(proto, tmp_path, r, operator=operator)
    feeds = {"x": made.normal(4, 64, dtype=np.float16)}
    if "Cast" in ops(path):  # the runtime multiplies in float32 as it loads the model, and need not round in between
        (y,) = made.run(path, feeds)
        assert relative(y, emulate(path, feeds)[0]) < 1e-3
    else:
        (y,) = same_bits(path, feeds)
    assert y.dtype == np.float16
    assert relative(y, made.run(proto, feeds)[0]) < 1.5 * bound
    scales = [t for t in onnx.load(path).graph.initializer if "scale" in t.name]
    assert scales
    assert all(t.data_type == TensorProto.FLOAT16 for t in scales)


def test_tiny_float16_weights_do_not_lose_their_scale(tmp_path):
    proto = made.matmul(dtype=np.float16)
    w = (made.normal(64, 32) * 1e-6).astype(np.float16)
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    path, _ = converted(proto, tmp_path, recipe("int8"))
    assert (Graph.load(path).constant("w_scale") > 0).all()


def test_tied_codes_are_stored_once(tmp_path):
    proto = made.tied()
    path, report = converted(proto, tmp_path, recipe("int8"))
    feeds = {"i": np.array([[0, 7, 199]])}
    (y,) = same_bits(path, feeds)
    assert relative(y, made.run(proto, feeds)[0]) < 0.02
    (row,) = report.rows
    assert row.kind == "Gather+MatMul"
    assert row.bytes_after == 200 * 64 + 2 * 200 * 4  # scales in two shapes
    assert path.stat().st_size < 200 * 64 + 6000


def test_tied_tables_in_four_bits(tmp_path):
    proto = made.tied()
    path, report = converted(proto, tmp_path, recipe("int4", 32))
    same_bits(path, {"i": np.array([[0, 7, 199]])})
    assert report.rows[0].note == "read by 2 nodes"


def test_a_weight_read_twice_is_stored_once(tmp_path):
    nodes = [made.node("MatMul", ["x", "w"], "h"), made.node("MatMul", ["h", "w"], "y")]
    proto = made.model(nodes, [made.info("x", ["m", 64])], [made.info("y", ["m", 64])], {"w": made.normal(64, 64)})
    for r in (recipe("int8"), recipe("int4", 32)):
        path, report = converted(proto, tmp_path, r)
        same_bits(path, {"x": made.normal(3, 64)})
        assert sum("codes" in t.name or "nbits" in t.name for t in onnx.load(path).graph.initializer) == 1
        assert report.rows[0].note == "read by 2 nodes"


def test_weights_behind_steps_and_in_constant_nodes(tmp_path):
    w = made.normal(32, 64)
    nodes = [
        helper.make_node("Constant", [], ["stored"], value=numpy_helper.from_array(w)),
        made.node("Identity", ["stored"], "same"), made.node("Transpose", ["same"], "turned", perm=[1, 0]),
        made.node("MatMul", ["x", "turned"], "y"),
    ]  # fmt: skip
    proto = made.model(nodes, [made.info("x", ["m", 64])], [made.info("y", ["m", 32])])
    path, report = converted(proto, tmp_path, recipe("int8"))
    assert [r.name for r in report.treated] == ["stored"]
    assert ops(path) == ["Cast", "Mul", "Transpose", "MatMul"]
    (y,) = same_bits(path, {"x": made.normal(3, 64)})
    assert relative(y, made.normal(3, 64) @ w.T) < 0.02


@pytest.mark.parametrize("r", [recipe("int8"), recipe("int4", 32)], ids=str)
@pytest.mark.parametrize("flag", [True, False])
def test_bodies_of_if(tmp_path, flag, r):
    path, report = converted(made.branches(), tmp_path, r)
    assert len(report.treated) == 2
    feeds = {"flag": np.array(flag), "x": made.normal(3, 64)}
    assert relative(made.run(path, feeds)[0], made.run(made.branches(), feeds)[0]) < 0.2
    w = made.normal(64, 32) if flag else made.normal(64, 32, seed=1)
    q = quantize_weight(np.ascontiguousarray(w.T), r.weights)
    y = exact_session(path).run(None, feeds)[0]
    assert relative(y, feeds["x"] @ q.dequantize().T) < 1e-6
    assert any("body" in n for n in report.notes)


def test_stacks_of_matrices(tmp_path):
    w = made.normal(3, 64, 32)
    proto = made.model(
        [made.node("MatMul", ["x", "w"], "y")], [made.info("x", [3, "m", 64])], [made.info("y", [3, "m", 32])], {"w": w}
    )
    path, report = converted(proto, tmp_path, recipe("int4", 32))
    x = made.normal(3, 5, 64)
    (y,) = same_bits(path, {"x": x})
    assert report.rows[0].how == "int4 symmetric, groups of 32"
    assert relative(y, x @ w) < 0.12


def test_nan_in_a_weight_is_named_and_nothing_written(tmp_path):
    proto = made.matmul()
    w = made.normal(64, 32).copy()
    w[3, 4] = np.nan
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    with pytest.raises(InvalidProblem, match=r"^w: "):
        converted(proto, tmp_path, recipe("int8"))
    assert [f.name for f in tmp_path.iterdir()] == ["model.onnx"]
