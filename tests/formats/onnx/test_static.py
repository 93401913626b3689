"""Static int8 in ONNX: what is fused, what is exact, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

ort = pytest.importorskip("onnxruntime")

from lowbit.formats.files import quantize_file  # noqa: E402
from lowbit.formats.onnx.code_store import CodeStore  # noqa: E402
from lowbit.formats.onnx.convert import quantize_onnx  # noqa: E402
from lowbit.formats.onnx.folding import fold_batch_norms  # noqa: E402
from lowbit.formats.onnx.graph import Graph  # noqa: E402
from lowbit.formats.onnx.static import quantize_static, why_not_static  # noqa: E402
from lowbit.formats.onnx.weight_uses import weights  # noqa: E402
from lowbit.models import Recipe  # noqa: E402
from lowbit.numerics.errors import InvalidProblem  # noqa: E402
from lowbit.ops.fitting import LARGEST_SUM, Products, in_conv_order, unsaturated  # noqa: E402
from onnx_builder import Builder, residual_cnn  # noqa: E402

RECIPE = Recipe.of("static-int8").but(min_elements=0)


def run(model: ModelProto | str | Path, x: dict[str, Any], optimise: bool = True) -> list[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, ModelProto) else str(model)
    return list(ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, x))


def fused(model: ModelProto, tmp_path: Path) -> list[str]:
    """The operators ONNX Runtime really runs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [n.op_type for n in onnx.load(tmp_path / "optimised.onnx").graph.node]


def quantized(model: ModelProto, data: list[dict[str, Any]], recipe: Recipe = RECIPE) -> tuple[Graph, list[Any]]:
    graph = Graph.load(model)
    fold_batch_norms(graph)
    uses = [(u, recipe.rule(u.name, u.kind, u.elements)) for u in weights(graph)]
    able = [(u, r) for u, r in uses if not u.why_not and not why_not_static(graph, u, r)]
    rows, _ = quantize_static(CodeStore(graph), able, data, progress=False)
    graph.remove_unused()
    onnx.checker.check_model(graph.proto, full_check=True)
    return graph, rows


def sqnr(a: Any, b: Any) -> float:
    with np.errstate(divide="ignore"):
        return float(10 * np.log10(np.square(a, dtype=np.float64).sum() / np.square(a - b, dtype=np.float64).sum()))


def batches(n: int = 6, shape: tuple[int, ...] = (8, 3, 16, 16), seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(n)]


def test_a_residual_network_stays_in_integers_from_end_to_end(tmp_path: Path) -> None:
    model = residual_cnn()
    graph, rows = quantized(model, batches())
    assert len(rows) == 7
    assert all(r.sqnr_db > 38 for r in rows)
    ops = fused(graph.proto, tmp_path)
    assert not {"Conv", "FusedConv", "Gemm", "MatMul", "Add", "BatchNormalization", "Relu", "MaxPool"} & set(ops)
    assert ops.count("QLinearConv") == 5
    assert ops.count("QGemm") == 2
    assert ops.count("QLinearAdd") == 1
    x = batches(1, seed=9)[0]
    expected, got = run(model, x)[0], run(graph.proto, x)[0]
    assert sqnr(expected, got) > 35


def test_fused_and_plain_agree_with_the_graph_as_it_is_written() -> None:
    graph, _ = quantized(residual_cnn(opset=21), batches())
    x = batches(1, (2, 3, 16, 16), seed=9)[0]
    plain = run(graph.proto, x, optimise=False)[0]
    emulated = ReferenceEvaluator(graph.proto).run(None, x)[0]
    assert sqnr(emulated, plain) > 45  # sums in another order may round to another code
    assert sqnr(plain, run(graph.proto, x)[0]) > 45


def test_folding_changes_nothing_but_rounding() -> None:
    model = residual_cnn()
    graph = Graph.load(model)
    assert fold_batch_norms(graph) == 3
    assert not any(n.op_type == "BatchNormalization" for n in graph.nodes)
    x = batches(1, seed=9)[0]
    np.testing.assert_allclose(run(model, x)[0], run(graph.proto, x)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("group", [1, 2])
def test_folding_into_a_transposed_convolution(group: int) -> None:
    b = Builder({"x": ["n", 8, 5, 5]})
    w = b.normal(8, 6 // group, 3, 3)
    y = b.batch_norm(b.add("ConvTranspose", "x", w, group=group, strides=[2, 2]), 6)
    model = b.model(y)
    graph = Graph.load(model)
    assert fold_batch_norms(graph) == 1
    x = {"x": np.random.default_rng(0).standard_normal((2, 8, 5, 5)).astype(np.float32)}
    np.testing.assert_allclose(run(model, x)[0], run(graph.proto, x)[0], rtol=1e-3, atol=1e-4)


def test_a_norm_that_others_depend_on_stays() -> None:
    b = Builder({"x": ["n", 3, 8, 8]})
    c = b.conv("x", 3, 4)
    y = b.batch_norm(c, 4)
    graph = Graph.load(b.model(y, c))  # the convolution's own result is an output too
    assert fold_batch_norms(graph) == 0


# ---- exactness ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("products", [2, 4])
@pytest.mark.parametrize("inputs", [1, 2, 3, 64, 65, 257])
def test_no_sums_of_codes_can_saturate(inputs: int, products: Products) -> None:
    rng = np.random.default_rng(inputs)
    w = (rng.standard_t(3, (50, inputs)) * rng.uniform(1e-3, 1e3, (50, 1))).astype(np.float32)
    start = (np.abs(w).max(axis=1) / 127).astype(np.float32)
    scale = unsaturated(w, start, products)
    codes = np.pad(np.rint(w / scale[:, None]), ((0, 0), (0, 8)))
    places = range(0, inputs, 2) if products == 2 else [i + j for i in range(0, inputs, 8) for j in (0, 2)]
    added = [[i, i + 1] if products == 2 else [i, i + 1, i + 4, i + 5] for i in places if i + 6 < inputs + 8]
    sums = np.stack([np.maximum(side[:, at], 0).sum(axis=1) for at in added for side in (codes, -codes)], axis=1)
    assert np.all(scale >= start)
    assert np.all(sums <= LARGEST_SUM)
    # No further than needed: of those that grew, one sum is at the limit, or within rounding of it.
    grown = scale > start * 1.01
    assert np.all(sums[grown].max(axis=1) >= LARGEST_SUM - products) if grown.any() else inputs < 3


@pytest.mark.parametrize("k", [16, 63, 384])
def test_products_are_exact_for_the_worst_activations(k: int) -> None:
    """All activations at 255 where a weight is positive: what saturates without care on CPUs without VNNI."""
    rng = np.random.default_rng(k)
    b = Builder({"x": ["n", k]})
    weight = rng.standard_normal((k, 24)).astype(np.float32)
    model = b.model(b.add("MatMul", "x", b.constant(weight, "w")))
    extremes = np.concatenate([(weight.T > 0), (weight.T < 0), np.ones((1, k), bool)]).astype(np.float32)
    graph, _ = quantized(model, [{"x": extremes}], RECIPE.but(activations=_min_max()))
    codes = graph.constant("w_codes")
    scale = graph.constant("w_scale")
    assert codes is not None
    assert scale is not None
    step = np.float32(1 / 255)
    exact = np.rint(extremes / step).astype(np.int64) @ codes.astype(np.int64)
    expected = exact * (step.astype(np.float64) * scale)
    np.testing.assert_allclose(run(graph.proto, {"x": extremes})[0], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(16, 3, 3, 3), (24, 7, 5, 5), (32, 16, 1, 1)])
def test_convolutions_are_exact_for_the_worst_activations(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    i, k = shape[1:3]
    weight = rng.standard_normal(shape).astype(np.float32)
    b = Builder({"x": ["n", i, k, k]})
    model = b.model(b.add("Conv", "x", b.constant(weight, "w")))
    worst = np.concatenate([weight > 0, weight < 0, np.ones((1, i, k, k), bool)]).astype(np.float32)
    graph, _ = quantized(model, [{"x": worst}], RECIPE.but(activations=_min_max()))
    plain, quick = (run(graph.proto, {"x": worst}, optimise=o)[0] for o in (False, True))
    # Float sums of exact products against integer sums: both exact to float32's last places.
    np.testing.assert_allclose(quick, plain, rtol=1e-4, atol=1e-4)
    codes = graph.constant("w_codes")
    assert codes is not None
    rows = in_conv_order(codes.astype(np.int64))
    assert np.abs(rows[:, : rows.shape[1] // 2 * 2 : 2] + rows[:, 1::2]).max() <= LARGEST_SUM


def _min_max() -> Any:
    from lowbit.models import ActivationRecipe

    return ActivationRecipe(method="min_max")


# ---- placement ----------------------------------------------------------------------------------------


def test_joins_of_branches_are_fused(tmp_path: Path) -> None:
    b = Builder({"x": ["n", 4, 8, 8]})
    left, right = (b.add("Relu", b.conv("x", 4, 8)) for _ in range(2))
    joined = b.add("Concat", left, right, axis=1)
    pooled = b.add("AveragePool", joined, kernel_shape=[2, 2], strides=[2, 2])
    model = b.model(b.conv(b.add("Transpose", pooled, perm=[0, 1, 3, 2]), 16, 8))
    graph, rows = quantized(model, batches(4, (4, 4, 8, 8)))
    ops = fused(graph.proto, tmp_path)
    assert len(rows) == 3
    assert {"QLinearConcat", "QLinearAveragePool"} <= set(ops)
    assert not {"Concat", "AveragePool", "Conv", "FusedConv"} & set(ops)
    x = batches(1, (4, 4, 8, 8), seed=5)[0]
    assert sqnr(run(model, x)[0], run(graph.proto, x)[0]) > 30


def test_a_float_reader_gets_floats_where_nothing_is_lost_by_it() -> None:
    """A layer norm's result goes to three products and a sum: one rounding for the products, none for the sum."""
    b = Builder({"x": ["n", 5, 16]})
    normed = b.add("LayerNormalization", "x", b.constant(np.ones(16, np.float32)), b.constant(np.zeros(16, np.float32)))
    made = [b.add("MatMul", normed, b.normal(16, 16, scale=0.25)) for _ in range(3)]
    model = b.model(b.add("Add", b.add("Add", b.add("Add", made[0], made[1]), made[2]), normed))
    graph, _ = quantized(model, batches(4, (4, 5, 16)))
    readers = [n.op_type for n, _ in graph.consumers(normed)]
    assert sorted(readers) == ["Add", "QuantizeLinear"]
    x = batches(1, (4, 5, 16), seed=5)[0]
    assert sqnr(run(model, x)[0], run(graph.proto, x)[0]) > 30


def test_a_convolutions_result_that_leaves_the_graph_is_rounded_too(tmp_path: Path) -> None:
    b = Builder({"x": ["n", 4, 8, 8]})
    first = b.conv("x", 4, 8)
    model = b.model(b.conv(first, 8, 8), first)
    graph, _ = quantized(model, batches(4, (4, 4, 8, 8)))
    assert [o.name for o in graph.proto.graph.output] == [o.name for o in model.graph.output]
    assert fused(graph.proto, tmp_path).count("QLinearConv") == 2
    x = batches(1, (4, 4, 8, 8), seed=5)[0]
    for expected, got in zip(run(model, x), run(graph.proto, x), strict=True):
        assert sqnr(expected, got) > 30


def test_a_products_result_that_leaves_the_graph_is_not_rounded() -> None:
    b = Builder({"x": ["n", 16]})
    first = b.add("MatMul", "x", b.normal(16, 16))
    model = b.model(b.add("MatMul", first, b.normal(16, 16)), first)
    graph, _ = quantized(model, batches(4, (32, 16)))
    assert graph.producer(first).op_type == "MatMul"  # type: ignore[union-attr]
    x = batches(1, (32, 16), seed=5)[0]
    for expected, got in zip(run(model, x), run(graph.proto, x), strict=True):
        assert sqnr(expected, got) > 30


@pytest.mark.parametrize("rows", [[2, 5], ["n", 5]])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_stacks_are_integers_whether_sizes_are_fixed_or_not(
    rows: list[Any], turned: bool, tmp_path: Path
) -> None:
    # Of fixed sizes, the runtime makes a Gemm of MatMul and Add, which is fused only with a bias of int32.
    b = Builder({"x": [*rows, 24]})
    x = "x"
    for i, (k, n) in enumerate(((24, 32), (32, 8))):
        y, bias = b.add("MatMul", x, b.normal(k, n, scale=0.2, name=f"w{i}")), b.normal(n)
        x = b.add("Relu", b.add("Add", *((bias, y) if turned else (y, bias))))
    graph, result = quantized(b.model(x), batches(shape=(2, 5, 24)))
    assert len(result) == 2
    ops = fused(graph.proto, tmp_path)
    assert not {"MatMul", "Gemm", "FusedGemm"} & set(ops)
    assert ops.count("QGemm" if rows == [2, 5] else "MatMulIntegerToFloat") == 2
    feed = batches(1, shape=(2, 5, 24), seed=9)[0]
    expected, got, plain = run(b.model(x), feed)[0], run(graph.proto, feed)[0], run(graph.proto, feed, False)[0]
    assert sqnr(expected, got) > 28
    assert sqnr(plain, got) > 40


@pytest.mark.parametrize("trans_b", [0, 1])
def test_factors_of_a_gemm_are_moved_into_its_constants(trans_b: int, tmp_path: Path) -> None:
    b = Builder({"x": ["n", 16]})
    weight = b.normal(*((8, 16) if trans_b else (16, 8)))
    y = b.add("Gemm", "x", weight, b.normal(1, 8), alpha=0.5, beta=3.0, transB=trans_b)
    model = b.model(y)
    graph, _ = quantized(model, batches(4, (32, 16)))
    assert "QGemm" in fused(graph.proto, tmp_path)
    x = batches(1, (32, 16), seed=5)[0]
    assert sqnr(run(model, x)[0], run(graph.proto, x)[0]) > 30


def test_a_bias_beyond_32_bits_widens_its_channel() -> None:
    b = Builder({"x": ["n", 16]})
    weight = np.random.default_rng(0).standard_normal((16, 4)).astype(np.float32) * 1e-6
    bias = np.float32([1e4, -1e4, 0, 1])
    model = b.model(b.add("Gemm", "x", b.constant(weight, "w"), b.constant(bias, "b")))
    graph, _ = quantized(model, batches(2, (8, 16)))
    codes = graph.constant("b_codes")
    assert codes is not None
    x = batches(1, (8, 16), seed=2)[0]
    np.testing.assert_allclose(run(graph.proto, x)[0], run(model, x)[0], rtol=1e-5, atol=1e-4)


def test_scales_of_a_moved_tensor_are_shared() -> None:
    b = Builder({"x": ["n", 4, 8, 8]})
    y = b.add("Flatten", b.add("MaxPool", b.add("Relu", b.conv("x", 4, 8)), kernel_shape=[2, 2], strides=[2, 2]))
    model = b.model(b.add("MatMul", y, b.normal(128, 10, scale=0.1)))
    graph, _ = quantized(model, batches(3, (4, 4, 8, 8)))
    scales = {n.input[1] for n in graph.nodes if n.op_type == "QuantizeLinear"}
    assert len([n for n in graph.nodes if n.op_type == "QuantizeLinear"]) == 4
    assert len(scales) == 2  # the input's, and one from the first convolution to the product


# ---- refusals -----------------------------------------------------------------------------------------


def test_what_static_cannot_serve_is_said() -> None:
    b = Builder({"x": ["n", 4, 8, 8], "i": ["m"]})
    t = b.add("ConvTranspose", "x", b.normal(4, 4, 3, 3))
    graph = Graph.load(b.model(t))
    use = weights(graph)[0]
    assert why_not_static(graph, use, RECIPE.rule(use.name, use.kind)) == "ONNX Runtime has no integer ConvTranspose"
    b = Builder({"x": ["n", 16]})
    graph = Graph.load(b.model(b.add("MatMul", "x", b.normal(16, 16))))
    use = weights(graph)[0]
    four = Recipe.of({"preset": "static-int8", "weights": {"dtype": "int4", "group_size": 8}})
    assert "static activations go with 8 bits" in why_not_static(graph, use, four.rule(use.name, use.kind))
    wide = Recipe.of({"preset": "static-int8", "activations": {"dtype": "uint16"}})
    assert "8-bit activations" in why_not_static(graph, use, wide.rule(use.name, use.kind))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "data: none"),
        ([], "no batches"),
        ([{"y": np.zeros((1, 16), np.float32)}], "has no 'x'"),
        ([{"x": np.full((1, 16), np.nan, np.float32)}], "x: nan at index"),
    ],
    ids=["none", "empty", "wrong name", "NaN"],
)
def test_bad_data_is_refused(data: Any, message: str) -> None:
    b = Builder({"x": ["n", 16]})
    model = b.model(b.add("MatMul", "x", b.normal(16, 16)))
    with pytest.raises(InvalidProblem, match=message):
        quantized(model, data)


def test_data_of_a_wrong_shape_are_refused() -> None:
    b = Builder({"x": ["n", 16]})
    model = b.model(b.add("MatMul", "x", b.normal(16, 16)))
    with pytest.raises(InvalidProblem, match=r"batch 0: .*x.*\(1, 15\)"):
        quantized(model, [{"x": np.zeros((1, 15), np.float32)}])


@pytest.mark.parametrize("method", ["min_max", "percentile:99.9", "entropy", "mse", "adaptive", "moving_average"])
def test_every_method_serves(method: str) -> None:
    from lowbit.models import ActivationRecipe

    model = residual_cnn()
    graph, _ = quantized(model, batches(3), RECIPE.but(activations=ActivationRecipe(method=method)))
    x = batches(1, seed=9)[0]
    assert sqnr(run(model, x)[0], run(graph.proto, x)[0]) > 20


def test_signed_activations_serve_too() -> None:
    from lowbit.models import ActivationRecipe

    model = residual_cnn()
    graph, _ = quantized(model, batches(3), RECIPE.but(activations=ActivationRecipe("int8", "symmetric")))
    x = batches(1, seed=9)[0]
    assert sqnr(run(model, x)[0], run(graph.proto, x)[0]) > 30


def test_ir_and_opset_are_those_that_came() -> None:
    graph, _ = quantized(residual_cnn(), batches(1))
    assert (graph.proto.ir_version, graph.opset) == (8, 13)
    assert helper.find_min_ir_version_for(graph.proto.opset_import) <= 8


@pytest.mark.parametrize("recipe", ["static-int8", "dynamic-int8"])
def test_rows_say_what_exact_sums_cost(tmp_path: Path, recipe: str) -> None:
    b = Builder({"x": [4, 64]})
    y = b.add("Relu", b.add("Gemm", "x", b.normal(64, 32, name="normal"), b.normal(32, name="c")))
    fits = np.tile(np.float32([1, 0]), 16)[:, None] * np.ones(8, np.float32)  # no two neighbours: nothing to guard
    made = b.model(b.add("MatMul", y, b.constant(fits, name="fits")))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    feed = {"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}
    options: dict[str, Any] = {"data": [feed], "seconds": 0, "progress": False, "optimize": "size"}
    found = {}
    for cpu in ("any", "vnni"):
        report = quantize_file(tmp_path / "m.onnx", tmp_path / f"{cpu}.onnx", recipe, target_cpu=cpu, **options)
        found[cpu] = {r.name: r for r in report.rows}
    plain, guarded = found["vnni"]["normal"], found["any"]["normal"]
    assert guarded.guard_db > 0.5
    assert guarded.guard_db == pytest.approx(plain.sqnr_db - guarded.sqnr_db, abs=1e-9)
    assert f"−{guarded.guard_db:.1f} dB for CPUs without VNNI; --target-cpu vnni" in guarded.remark
    assert (plain.guard_db, plain.remark) == (0.0, "")
    assert found["any"]["fits"].guard_db == 0.0
    codes = {cpu: largest_pair(onnx.load(tmp_path / f"{cpu}.onnx"), "normal_codes") for cpu in found}
    assert codes["any"] <= LARGEST_SUM < codes["vnni"]


def test_depthwise_convolutions_need_no_guard(tmp_path: Path) -> None:
    """Nor those whose sums the runtime widens; one input with two outputs does need it."""
    feed = {"x": np.random.default_rng(0).standard_normal((2, 8, 12, 12)).astype(np.float32)}
    for outputs, is_guarded in ((8, False), (16, True)):
        b = Builder({"x": ["n", 8, 12, 12]})
        y = b.add("Conv", "x", b.normal(outputs, 1, 5, 5, name="w"), kernel_shape=[5, 5], group=8)
        (tmp_path / "m.onnx").write_bytes(b.model(y).SerializeToString())
        options: dict[str, Any] = {"optimize": "size", "overwrite": True, "force": True}
        report = quantize_onnx(tmp_path / "m.onnx", tmp_path / "o.onnx", RECIPE, data=[feed], progress=False, **options)
        assert (report.rows[0].guard_db > 0) == is_guarded


def largest_pair(model: onnx.ModelProto, name: str) -> int:
    """The largest sum of two neighbouring codes along the inputs of a matrix stored by rows."""
    codes = next(numpy_helper.to_array(t) for t in model.graph.initializer if t.name == name).astype(int)
    codes = codes if codes.shape[0] == 32 else codes.T
    return int(np.abs(codes[:, 0::2] + codes[:, 1::2]).max())


def test_a_bias_that_differs_from_row_to_row_stays_float(tmp_path: Path) -> None:
    b = Builder({"x": [4, 64]})
    model = tmp_path / "m.onnx"
    made = b.model(b.add("Gemm", "x", b.normal(64, 32, name="w"), b.normal(4, 32, name="c")))
    model.write_bytes(made.SerializeToString())
    feed = {"x": np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)}
    report = quantize_file(
        model, tmp_path / "o.onnx", "static-int8", data=[feed], seconds=0, progress=False, optimize="size"
    )
    assert report.rows[0].note == "its bias of shape (4, 32) stays float"
    assert report.accuracy[0].sqnr_db > 30
