"""Integer compute against what others wrote: ONNX's node tests and ONNX Runtime's kernels. Every comparison is exact;
where an oracle errs, a golden case says how.

Without VNNI, ONNX Runtime multiplies u8 by s8 with vpmaddubsw, which adds neighbouring products in int16 and saturates.
Where this CPU shows that, signed codes are drawn from ±64 (2 * 255 * 64 < 2^15), and elsewhere from their whole range.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections import Counter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from lowbit import QuantizationParams, QuantizedTensor

Array = np.ndarray[Any, Any]
F32 = np.float32
U8, S8 = np.dtype(np.uint8), np.dtype(np.int8)
PROTO = {
    U8: TensorProto.UINT8,
    S8: TensorProto.INT8,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(F32): TensorProto.FLOAT,
}
# (input, weight) types of each operator that ONNX Runtime has kernels for; the output has the input's.
QLINEAR = [(U8, U8), (U8, S8), (S8, S8)]
ANY_TWO = list(itertools.product((U8, S8), repeat=2))


def model_of(op: str, inputs: list[Any], output: np.dtype[Any], **attributes: Any) -> tuple[Any, dict[str, Array]]:
    """One node over these arrays, and the arrays by their names; None is an input left out."""
    fed = {f"i{at}": np.asarray(array) for at, array in enumerate(inputs) if array is not None}
    names = ["" if array is None else f"i{at}" for at, array in enumerate(inputs)]
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **attributes)],
        "oracle",
        [helper.make_tensor_value_info(name, PROTO[array.dtype], array.shape) for name, array in fed.items()],
        [helper.make_tensor_value_info("y", PROTO[output], None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), fed


def session(model: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def ort(op: str, inputs: list[Any], output: np.dtype[Any], **attributes: Any) -> Array:
    model, fed = model_of(op, inputs, output, **attributes)
    return np.asarray(session(model).run(None, fed)[0])


@functools.cache
def saturates(a: np.dtype[Any], b: np.dtype[Any]) -> bool:
    """Whether ONNX Runtime's products of these types are wrong on this CPU; its ConvInteger swaps the sides."""
    for left, right in {(a, b), (b, a)}:
        for value in (np.iinfo(right).min, np.iinfo(right).max):
            x, y = np.full((4, 32), np.iinfo(left).max, left), np.full((32, 16), value, right)
            if (ort("MatMulInteger", [x, y], np.dtype(np.int32)) != 32 * int(x[0, 0]) * int(value)).any():
                return True
    return False


def bounds(dtype: np.dtype[Any], other: np.dtype[Any]) -> tuple[int, int]:
    """The codes of `dtype` whose products with `other` ONNX Runtime gets right."""
    limited = dtype == S8 and saturates(dtype, other)
    return (-64, 64) if limited else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


def codes(rng: np.random.Generator, shape: Any, dtype: np.dtype[Any], other: np.dtype[Any]) -> Array:
    """Codes that meet codes of the type `other`, half of them at the ends of their range."""
    lo, hi = bounds(dtype, other)
    return np.where(rng.random(shape) < 0.5, rng.choice([lo, hi], shape), rng.integers(lo, hi + 1, shape)).astype(dtype)


def zero_point(rng: np.random.Generator, dtype: np.dtype[Any], other: np.dtype[Any], shape: Any = ()) -> Array:
    """0, the ends of the range, or anything. It is what images are padded with, so a code like any other."""
    lo, hi = bounds(dtype, other)
    drawn = rng.integers(lo, hi + 1, shape)
    return np.asarray(np.where(rng.random(shape) < 0.5, drawn, rng.choice([0, lo, hi], shape)), dtype)


def tensor(array: Array, scale: Any, zero: Any, axis: int | None = None) -> QuantizedTensor:
    scale = np.asarray(scale, F32)
    zero = np.broadcast_to(np.asarray(zero, np.int32), scale.shape)
    return QuantizedTensor(array, QuantizationParams(array.dtype.name, "asymmetric", scale, zero, axis))


def params(dtype: np.dtype[Any], scale: Any, zero: Any) -> QuantizationParams:
    return QuantizationParams(dtype.name, "asymmetric", np.asarray(scale, F32), int(zero))


def same(found: Any, expected: Array) -> bool:
    found = np.asarray(found)
    return found.dtype == expected.dtype and found.shape == expected.shape and bool((found == expected).all())


# ---- ONNX's own node tests --------------------------------------------------------------------------------

NODE_TESTS = {
    "MatMulInteger": 1, "ConvInteger": 2, "QLinearMatMul": 8, "QLinearConv": 1, "DynamicQuantizeLinear": 3
}  # fmt: skip


class NodeTest(NamedTuple):
    name: str
    op: str
    attributes: dict[str, Any]
    inputs: list[Array]
    outputs: list[Array]


@pytest.fixture(scope="module")
def node_tests() -> list[NodeTest]:
    from onnx.backend.test.case.node import collect_testcases

    def as_array(value: Any) -> Array:
        return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)

    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases of other ops divide by zero on purpose
        cases = collect_testcases()
    for case in cases:
        node = case.model.graph.node[0]
        if len(case.model.graph.node) == 1 and node.op_type in NODE_TESTS:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            for given, expected in case.data_sets:
                arrays = ([as_array(v) for v in given], [as_array(v) for v in expected])
                found.append(NodeTest(case.name, node.op_type, attributes, *arrays))
    return found


def scalar(array: Array) -> Any:
    """ONNX writes one scale as [1]."""
    return array.reshape(()) if array.size == 1 else array


def computed(subject: ModuleType, case: NodeTest) -> Any:
    if case.op == "MatMulInteger":
        a, b, za, zb = case.inputs
        return subject.matmul_integer(a, b, scalar(za), scalar(zb))
    if case.op == "ConvInteger":
        x, w, zx, *zw = case.inputs
        padding = tuple(case.attributes.get("pads", (0, 0, 0, 0)))
        return subject.conv2d_integer(x, w, scalar(zx), *map(scalar, zw), padding=padding)
    if case.op == "QLinearMatMul":
        a, sa, za, b, sb, zb, sy, zy = (scalar(v) for v in case.inputs)  # float16 scales are widened
        return subject.qmatmul(tensor(a, sa, za), tensor(b, sb, zb), out_params=params(a.dtype, sy, zy)).data
    x, sx, zx, w, sw, zw, sy, zy = (scalar(v) for v in case.inputs)
    w = w.reshape(case.inputs[3].shape)
    return subject.qconv2d(tensor(x, sx, zx), tensor(w, sw, zw), out_params=params(x.dtype, sy, zy)).data


def test_onnx_node_tests_of_compute_are_there(node_tests: list[NodeTest]) -> None:
    found = Counter(case.op for case in node_tests)
    assert all(found[op] >= least for op, least in NODE_TESTS.items()), found


def test_onnx_node_tests_of_products(subject: ModuleType, node_tests: list[NodeTest]) -> None:
    """Also those of QLinearMatMul, whose numbers ONNX's evaluator made: none of them falls on a tie."""
    for case in node_tests:
        if case.op != "DynamicQuantizeLinear":
            assert same(computed(subject, case), case.outputs[0]), case.name


def test_onnx_dynamic_quantize_node_tests_through_a_layer(subject: ModuleType, node_tests: list[NodeTest]) -> None:
    """Weights of one step each pass the codes of a token through: (code - zero point) * scale."""
    for case in node_tests:
        if case.op == "DynamicQuantizeLinear":
            x, (y, scale, zero) = case.inputs[0].reshape(1, -1), case.outputs
            weight = tensor(np.eye(x.size, dtype=np.int8), np.ones(x.size), 0, axis=0)
            expected = (y.astype(np.int32) - zero).astype(F32) * scale
            assert same(subject.QuantizedLinear(weight, activation_dtype="uint8")(x), expected.reshape(1, -1)), (
                case.name
            )


def test_ties_are_rounded_before_the_zero_point_is_added_as_ort_does(subject: ModuleType) -> None:
    a, b = np.uint8([[1], [3], [5], [7]]), np.uint8([[1]])
    scales = (F32(0.5), F32(1.0), F32(1.0))
    expected = np.uint8([[1], [3], [3], [5]])  # rne(0.5, 1.5, 2.5, 3.5) + 1
    y = subject.qmatmul(tensor(a, scales[0], 0), tensor(b, scales[1], 0), out_params=params(U8, scales[2], 1))
    assert same(y.data, expected)
    inputs = [a, scales[0], np.uint8(0), b, scales[1], np.uint8(0), scales[2], np.uint8(1)]
    assert same(ort("QLinearMatMul", inputs, U8), expected)
    model, fed = model_of("QLinearMatMul", inputs, U8)
    evaluated = ReferenceEvaluator(model).run(None, fed)[0]
    if not same(evaluated, expected):  # ONNX's evaluator: rne(0.5 + 1, 1.5 + 1, 2.5 + 1, 3.5 + 1)
        assert evaluated.tolist() == [[2], [2], [4], [4]]


# ---- ONNX Runtime: random problems ------------------------------------------------------------------------


class Drawn(NamedTuple):
    """The numbers of a problem but the output's."""

    x: Array
    w: Array
    zx: Array
    zw: Array
    sx: Array
    sw: Array


class Product(NamedTuple):
    """A product of matrices, or a convolution, that ONNX Runtime has solved."""

    given: Drawn
    sy: Any
    zy: Any
    bias: Array | None
    options: dict[str, Any]  # of a convolution
    expected: Array


def drawn(
    rng: np.random.Generator, a: np.dtype[Any], b: np.dtype[Any], x: Any, w: Any, channels: Any = (), axis: int = -1
) -> Drawn:
    """Codes and zero points over their whole ranges, with any scales; in every other problem small steps of w and
    scales that are powers of two, so that many sums fall on ties."""
    zx, zw = zero_point(rng, a, b), zero_point(rng, b, a, channels)
    if rng.random() < 0.5:
        scales = [np.asarray(rng.uniform(0.002, 0.2, shape), F32) for shape in ((), channels)]
        return Drawn(codes(rng, x, a, b), codes(rng, w, b, a), zx, zw, *scales)
    around = np.moveaxis(np.moveaxis(np.zeros(w, np.int64), axis, -1) + zw, -1, axis)
    near = np.clip(around + rng.integers(-2, 3, w), *bounds(b, a)).astype(b)
    scales = [np.asarray(2.0 ** rng.integers(-9, -6, shape), F32) for shape in ((), channels)]
    return Drawn(codes(rng, x, a, b), near, zx, zw, *scales)


def output_scale(rng: np.random.Generator, acc: Array, sx: Array, sw: Array) -> Any:
    """One under which the sums reach over most of the codes and some beyond; a power of two for powers of two."""
    scale = float(sx) * float(np.mean(sw)) * (float(np.abs(acc).mean()) + 1) / rng.uniform(20, 120)
    power = bool((np.frexp(sx)[0] == 0.5) and (np.frexp(sw)[0] == 0.5).all())
    return F32(2.0 ** np.round(np.log2(scale))) if power else F32(scale)


def matmul_shape(rng: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Rows, depth and columns around tiles of 1 to 64, sometimes with batches that broadcast."""
    m, n = rng.choice([1, 2, 3, 5, 7, 8, 9, 16, 17, 31, 33, 100], 2).tolist()
    k = int(rng.choice([1, 2, 3, 4, 5, 15, 16, 17, 31, 64, 65, 127, 200, 900]))
    batches: Any = ((), ()), ((3,), ()), ((2, 3), (3,)), ((2, 1), (3,))
    left, right = batches[int(rng.choice(4, p=[0.7, 0.1, 0.1, 0.1]))]
    return (*left, m, k), (*right, k, n)


@pytest.fixture(scope="module")
def matmul_integer_problems() -> list[Product]:
    rng, found = np.random.default_rng(100), []
    for a, b in ANY_TWO * 45:
        left, right = matmul_shape(rng)
        columns = right[-1:] if rng.random() < 0.4 and len(right) == 2 else ()
        d = drawn(rng, a, b, left, right, columns)
        y = ort("MatMulInteger", [d.x, d.w, d.zx, d.zw], np.dtype(np.int32))
        found.append(Product(d, 1, 0, None, {}, y))
    return found


@pytest.fixture(scope="module")
def qlinear_matmul_problems() -> list[Product]:
    rng, found = np.random.default_rng(101), []
    for a, b in QLINEAR * 60:
        left, right = matmul_shape(rng)
        columns = right[-1:] if rng.random() < 0.4 and len(right) == 2 else ()
        d = drawn(rng, a, b, left, right, columns)
        acc = np.matmul(d.x.astype(np.int64) - d.zx, d.w.astype(np.int64) - d.zw)
        sy, zy = output_scale(rng, acc, d.sx, d.sw), zero_point(rng, a, U8)
        y = ort("QLinearMatMul", [d.x, d.sx, d.zx, d.w, d.sw, d.zw, sy, zy], a)
        found.append(Product(d, sy, zy, None, {}, y))
    return found


def convolution(rng: np.random.Generator, axes: int) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]:
    """Shapes of x and w, and ONNX's attributes: any stride, dilation and padding a side, any groups."""
    groups = int(rng.choice([1, 1, 1, 2, 3, 8]))
    per_group, outs = (1, int(rng.choice([1, 2]))) if groups == 8 else rng.choice([1, 2, 3, 5, 8, 16], 2).tolist()
    kernel, stride, dilation = rng.integers(1, 5, axes), rng.integers(1, 4, axes), rng.integers(1, 4, axes)
    pads = rng.integers(0, 4, 2 * axes)
    reach = dilation * (kernel - 1) + 1
    size = np.maximum(1, reach - pads[:axes] - pads[axes:]) + rng.integers(0, 9, axes)
    attributes = {
        "strides": stride.tolist(), "dilations": dilation.tolist(), "pads": pads.tolist(), "group": groups,
        "kernel_shape": kernel.tolist(),
    }  # fmt: skip
    batch = int(rng.choice([1, 1, 2, 3]))
    return (batch, groups * per_group, *size.tolist()), (groups * outs, per_group, *kernel.tolist()), attributes


def options_of(attributes: dict[str, Any]) -> dict[str, Any]:
    """lowbit's names of ONNX's attributes. Both write pads as the begins, then the ends."""
    one = len(attributes["strides"]) == 1
    return {
        "stride": attributes["strides"][0] if one else tuple(attributes["strides"]),
        "padding": tuple(attributes["pads"]),
        "dilation": attributes["dilations"][0] if one else tuple(attributes["dilations"]),
        "groups": attributes["group"],
    }


@pytest.fixture(scope="module")
def conv_integer_problems() -> list[Product]:
    rng, found = np.random.default_rng(102), []
    for a, b in ANY_TWO * 30:
        shape, kernel, attributes = convolution(rng, 2)
        d = drawn(rng, a, b, shape, kernel)
        y = ort("ConvInteger", [d.x, d.w, d.zx, d.zw], np.dtype(np.int32), **attributes)
        found.append(Product(d, 1, 0, None, options_of(attributes), y))
    return found


@pytest.fixture(scope="module", params=[1, 2], ids=["1d", "2d"])
def qlinear_conv_problems(request: pytest.FixtureRequest) -> list[Product]:
    rng, found = np.random.default_rng(103 + request.param), []
    for a, b in QLINEAR * (25 if request.param == 1 else 60):
        shape, kernel, attributes = convolution(rng, request.param)
        d = drawn(rng, a, b, shape, kernel, kernel[:1] if rng.random() < 0.6 else (), axis=0)
        bias = rng.integers(-4000, 4000, kernel[0], dtype=np.int32) if rng.random() < 0.5 else None
        w = np.moveaxis(d.w.astype(np.int64), 0, -1) - d.zw
        depth = np.sqrt(np.square(w.reshape(-1, kernel[0])).sum(0))  # of sums of steps of x of random signs
        acc = 100 * depth + (0 if bias is None else 2000)
        sy, zy = output_scale(rng, acc, d.sx, d.sw), zero_point(rng, a, U8)
        y = ort("QLinearConv", [d.x, d.sx, d.zx, d.w, d.sw, d.zw, sy, zy, bias], a, **attributes)
        found.append(Product(d, sy, zy, bias, options_of(attributes), y))
    return found


def named(p: Product) -> tuple[Any, ...]:
    return p.given.x.dtype, p.given.x.shape, p.given.w.dtype, p.given.w.shape, p.options


def test_ort_matmul_integer(subject: ModuleType, matmul_integer_problems: list[Product]) -> None:
    for p in matmul_integer_problems:
        d = p.given
        assert same(subject.matmul_integer(d.x, d.w, d.zx, d.zw), p.expected), named(p)


def test_ort_qlinear_matmul(subject: ModuleType, qlinear_matmul_problems: list[Product]) -> None:
    for p in qlinear_matmul_problems:
        d = p.given
        b = tensor(d.w, d.sw, d.zw, axis=-1 if d.sw.ndim else None)
        y = subject.qmatmul(tensor(d.x, d.sx, d.zx), b, out_params=params(d.x.dtype, p.sy, p.zy))
        assert same(y.data, p.expected), named(p)


def test_ort_conv_integer(subject: ModuleType, conv_integer_problems: list[Product]) -> None:
    for p in conv_integer_problems:
        d = p.given
        assert same(subject.conv2d_integer(d.x, d.w, d.zx, d.zw, **p.options), p.expected), named(p)


def test_ort_conv_integer_with_channels_last(subject: ModuleType, conv_integer_problems: list[Product]) -> None:
    for p in conv_integer_problems:
        d = p.given
        x = np.ascontiguousarray(np.moveaxis(d.x, 1, -1))
        found = subject.conv2d_integer(x, d.w, d.zx, d.zw, **p.options, layout="NHWC")
        assert same(found, np.moveaxis(p.expected, 1, -1)), named(p)


def test_ort_qlinear_conv(subject: ModuleType, qlinear_conv_problems: list[Product]) -> None:
    for p in qlinear_conv_problems:
        d = p.given
        x, w = tensor(d.x, d.sx, d.zx), tensor(d.w, d.sw, d.zw, axis=0 if d.sw.ndim else None)
        run = subject.qconv1d if d.x.ndim == 3 else subject.qconv2d
        y = run(x, w, p.bias, out_params=params(d.x.dtype, p.sy, p.zy), **p.options)
        assert same(y.data, p.expected), named(p)


def test_the_problems_are_many(
    matmul_integer_problems: list[Product],
    conv_integer_problems: list[Product],
    qlinear_matmul_problems: list[Product],
    qlinear_conv_problems: list[Product],
) -> None:
    """Over 500, and their codes are spread out, not clamped away."""
    assert len(matmul_integer_problems) + len(conv_integer_problems) + len(qlinear_matmul_problems) >= 450
    assert len(qlinear_conv_problems) >= 75
    for problems in (qlinear_matmul_problems, qlinear_conv_problems):
        all_codes = [(p.expected, np.iinfo(p.expected.dtype)) for p in problems]
        inside = np.concatenate([((y > i.min) & (y < i.max)).reshape(-1) for y, i in all_codes])
        assert inside.mean() > 0.4


def test_the_problems_can_tell_the_usual_shortcuts(qlinear_matmul_problems: list[Product]) -> None:
    """Adding the zero point before rounding, and rounding ties away from 0, fail on them."""
    late = away = 0
    for p in qlinear_matmul_problems:
        d, info = p.given, np.iinfo(p.expected.dtype)
        acc = np.matmul(d.x.astype(np.int64) - d.zx, d.w.astype(np.int64) - d.zw)
        steps, zero = acc.astype(F32) * ((d.sx * d.sw) / p.sy), int(p.zy)
        late += np.count_nonzero(np.clip(np.rint(steps + F32(zero)), info.min, info.max) != p.expected)
        rounded = np.copysign(np.floor(np.abs(steps) + F32(0.5)), steps)
        away += np.count_nonzero(np.clip(rounded + zero, info.min, info.max) != p.expected)
    assert late > 100
    assert away > 100


def test_ort_dynamic_quantization_as_a_linear_layer(subject: ModuleType) -> None:
    """DynamicQuantizeLinear, MatMulInteger, then * (sx * sw) and + bias: a token with activation_dtype="uint8"."""
    rng = np.random.default_rng(110)
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "sx", "zx"]),
        helper.make_node("MatMulInteger", ["q", "w", "zx"], ["acc"]),
        helper.make_node("Cast", ["acc"], ["sums"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["sx", "sw"], ["by"]),
        helper.make_node("Mul", ["sums", "by"], ["scaled"]),
        helper.make_node("Add", ["scaled", "bias"], ["y"]),
    ]
    names = {"x": TensorProto.FLOAT, "w": TensorProto.INT8, "sw": TensorProto.FLOAT, "bias": TensorProto.FLOAT}
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info(name, proto, None) for name, proto in names.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    run = session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    for _ in range(100):
        inputs, outputs = (int(n) for n in rng.choice([1, 2, 3, 7, 16, 33, 64, 130], 2))
        x = (rng.standard_normal((1, inputs)) * 10.0 ** rng.integers(-3, 4)).astype(F32)
        w, sw = codes(rng, (outputs, inputs), S8, U8), rng.uniform(0.002, 0.2, outputs).astype(F32)
        bias = rng.standard_normal(outputs).astype(F32)
        fed = {"x": x, "w": np.ascontiguousarray(w.T), "sw": sw, "bias": bias}
        layer = subject.QuantizedLinear(tensor(w, sw, 0, axis=0), bias, activation_dtype="uint8")
        assert same(layer(x), run.run(None, fed)[0])


# ---- where ONNX Runtime errs ------------------------------------------------------------------------------

DEPTH = 36  # even, and what 4 channels of 3 by 3 have


def pairs_saturated(value: int) -> int:
    """What vpmaddubsw makes of DEPTH products 255 * value: neighbours added in int16."""
    return DEPTH // 2 * int(np.clip(2 * 255 * value, -(2**15), 2**15 - 1))


@pytest.mark.parametrize("value", [-128, 127])
def test_products_of_extremes_are_exact_where_ort_saturates(subject: ModuleType, value: int) -> None:
    exact = DEPTH * 255 * value
    a, b = np.full((5, DEPTH), 255, U8), np.full((DEPTH, 7), value, S8)
    assert (subject.matmul_integer(a, b) == exact).all()
    theirs = ort("MatMulInteger", [a, b], np.dtype(np.int32))
    if (theirs != exact).any():
        assert (theirs == pairs_saturated(value)).all()
    # ConvInteger's weights are its left side: unsigned weights meet signed images.
    x, w = np.full((1, 4, 6, 6), value, S8), np.full((3, 4, 3, 3), 255, U8)
    assert (subject.conv2d_integer(x, w) == exact).all()
    theirs = ort("ConvInteger", [x, w], np.dtype(np.int32))
    if (theirs != exact).any():
        assert (theirs == pairs_saturated(value)).all()


@pytest.mark.parametrize("value", [-128, 127])
def test_codes_of_extremes_are_exact_where_ort_saturates(subject: ModuleType, value: int) -> None:
    zero, scale = (255, 8192.0) if value < 0 else (0, 8192.0)

    def code(acc: int) -> int:
        return round(acc / 8192) + zero  # nothing here is a tie

    exact, saturated = code(DEPTH * 255 * value), code(pairs_saturated(value))
    assert exact != saturated
    one, none = F32(1), {U8: np.uint8(0), S8: np.int8(0)}
    out = params(U8, scale, zero)
    a, b = np.full((5, DEPTH), 255, U8), np.full((DEPTH, 7), value, S8)
    assert (subject.qmatmul(tensor(a, 1, 0), tensor(b, 1, 0), out_params=out).data == exact).all()
    theirs = ort("QLinearMatMul", [a, one, none[U8], b, one, none[S8], F32(scale), np.uint8(zero)], U8)
    assert (theirs == exact).all() or (theirs == saturated).all()
    x, w = np.full((1, 4, 6, 6), 255, U8), np.full((3, 4, 3, 3), value, S8)
    assert (subject.qconv2d(tensor(x, 1, 0), tensor(w, 1, 0), out_params=out).data == exact).all()
    theirs = ort("QLinearConv", [x, one, none[U8], w, one, none[S8], F32(scale), np.uint8(zero)], U8)
    assert (theirs == exact).all() or (theirs == saturated).all()
