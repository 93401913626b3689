"""Dynamic int8 in ONNX: the pattern that ONNX Runtime fuses, with sums that no CPU cuts off."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onnx_models as made
from lowbit.formats.onnx.graph import Graph
from lowbit.models import ActivationRecipe, Recipe, WeightRecipe
from onnx_checks import converted, ops, relative, same_bits
from onnx_emulation import emulate

DYNAMIC = Recipe.of("dynamic-int8").but(min_elements=1)
UNSIGNED = DYNAMIC.but(weights=WeightRecipe("uint8", "asymmetric"))


def optimised(path, tmp_path):
    """The operators that ONNX Runtime runs with default options."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return ops(tmp_path / "optimised.onnx")


@pytest.mark.parametrize("rows", [1, 4, 33])
@pytest.mark.parametrize("k", [1, 2, 7, 64, 384, 1001])
@pytest.mark.parametrize("r", [DYNAMIC, UNSIGNED], ids=["int8", "uint8"])
def test_products_are_exact(tmp_path, r, k, rows):
    proto = made.matmul(k=k)
    path, report = converted(proto, tmp_path, r)
    feeds = {"x": made.normal(rows, k)}
    (y,) = same_bits(path, feeds)
    assert report.rows[0].activations == "uint8 asymmetric, dynamic per tensor"
    if k >= 64:
        assert relative(y, made.run(proto, feeds)[0]) < 0.02


@pytest.mark.parametrize("r", [DYNAMIC, UNSIGNED], ids=["int8", "uint8"])
def test_the_largest_codes_do_not_saturate(tmp_path, r):
    """All activations 255 and all weights at the end of their range: the worst that can be."""
    proto = made.matmul(k=256)
    w = np.where(made.normal(256, 32) > -1, 1, -1).astype(np.float32)
    w[:, 5] = 1
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    path, _ = converted(proto, tmp_path, r)
    feeds = {"x": np.ones((4, 256), np.float32)}
    (y,) = same_bits(path, feeds)
    want = feeds["x"] @ w + made.normal(32)
    assert np.abs(y - want).max() < 0.01 * 256
    assert np.abs(made.run(path, feeds)[0] - y).max() < 1e-3


def test_signed_codes_are_bounded_by_pairs(tmp_path):
    path, _ = converted(made.matmul(k=384), tmp_path, DYNAMIC)
    codes = Graph.load(path).constant("w_codes").astype(int)
    assert np.abs(codes[0::2] + codes[1::2]).max() <= 128
    assert np.abs(codes).max() > 64  # more than halving all would leave


def test_what_two_products_read_is_rounded_once_and_fused(tmp_path):
    path, _ = converted(made.two_layers(), tmp_path, DYNAMIC)
    assert ops(path).count("DynamicQuantizeLinear") == 2
    assert ops(path).count("MatMulInteger") == 3
    same_bits(path, {"x": made.normal(5, 64)})
    run = optimised(path, tmp_path)
    assert run.count("MatMulIntegerToFloat") + run.count("DynamicQuantizeMatMul") == 3
    assert "MatMulInteger" not in run


def test_the_bias_is_fused_too(tmp_path):
    for proto in (made.matmul(), made.gemm()):
        path, _ = converted(proto, tmp_path, DYNAMIC)
        assert not {"Add", "Mul", "Cast"} & set(optimised(path, tmp_path))


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (2.0, 0.25)])
@pytest.mark.parametrize("bias", [True, False])
def test_gemm_with_all_its_factors(tmp_path, trans_b, alpha, beta, bias):
    proto = made.gemm(trans_b=trans_b, alpha=alpha, beta=beta, bias=bias)
    path, _ = converted(proto, tmp_path, DYNAMIC)
    feeds = {"x": made.normal(6, 64)}
    (y,) = same_bits(path, feeds)
    assert "Gemm" not in ops(path)
    assert relative(y, made.run(proto, feeds)[0]) < 0.02


def test_zeros_and_one_sided_activations(tmp_path):
    path, _ = converted(made.matmul(), tmp_path, DYNAMIC)
    for x in (np.zeros((3, 64)), np.full((3, 64), 2.5), -np.abs(made.normal(3, 64)), np.abs(made.normal(3, 64)) + 4):
        same_bits(path, {"x": x.astype(np.float32)})


def test_convolutions_embeddings_and_halves_are_weight_only_and_say_why(tmp_path):
    _, report = converted(made.conv(), tmp_path, DYNAMIC)
    assert report.rows[0].treated
    assert "slower than its float one" in report.rows[0].note
    _, report = converted(made.embedding(), tmp_path, DYNAMIC)
    assert report.rows[0].treated
    assert report.rows[0].note == ""
    path, report = converted(made.matmul(dtype=np.float16), tmp_path, DYNAMIC)
    assert "rounds float32 only" in report.rows[0].note
    assert "MatMulInteger" not in ops(path)


def test_a_tied_table_takes_the_products_codes(tmp_path):
    path, report = converted(made.tied(), tmp_path, DYNAMIC)
    same_bits(path, {"i": np.array([[0, 7, 199]])})
    assert report.rows[0].bytes_after == 200 * 64 + 2 * 200 * 4
    assert [t.data_type for t in onnx.load(path).graph.initializer].count(onnx.TensorProto.INT8) == 1


def test_per_token_activations_are_per_tensor_and_the_row_says_so(tmp_path):
    _, report = converted(made.matmul(), tmp_path, Recipe.of("W8A8").but(min_elements=1))
    assert "per tensor, the only kind ONNX Runtime supports" in report.rows[0].note


def test_narrow_weights_with_dynamic_activations_use_the_operators_own_rounding(tmp_path):
    r = Recipe("r", WeightRecipe("int4", group_size=32), ActivationRecipe(dynamic=True), min_elements=1, protect=False)
    path, report = converted(made.matmul(), tmp_path, r)
    node = next(n for n in onnx.load(path).graph.node if n.op_type == "MatMulNBits")
    assert {a.name: a.i for a in node.attribute}["accuracy_level"] == 4
    assert report.rows[0].activations == "int8 in blocks, by MatMulNBits"
    feeds = {"x": made.normal(4, 64)}
    assert relative(made.run(path, feeds)[0], emulate(path, feeds)[0]) < 0.02


def test_bodies_have_their_own_rounding(tmp_path):
    path, report = converted(made.branches(), tmp_path, DYNAMIC)
    assert len(report.treated) == 2
    for flag in (True, False):
        feeds = {"flag": np.array(flag), "x": made.normal(3, 64)}
        assert relative(made.run(path, feeds)[0], made.run(made.branches(), feeds)[0]) < 0.02


def test_not_larger_than_the_runtimes_own_tool(tmp_path):
    quantization = pytest.importorskip("onnxruntime.quantization")
    path, _ = converted(made.two_layers(256, 512, 256), tmp_path, DYNAMIC)
    quantization.quantize_dynamic(tmp_path / "model.onnx", tmp_path / "theirs.onnx", per_channel=True)
    assert path.stat().st_size <= (tmp_path / "theirs.onnx").stat().st_size
