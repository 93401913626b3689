"""The contract against what others wrote: ONNX's node tests, ONNX Runtime's kernels, ml_dtypes' casts and
packing, torch's tensors. Every comparison is exact; where an oracle means something else, its test says so.
"""

from __future__ import annotations

import platform
import warnings

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import lowbit as lb
from lowbit import reference
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE

INTEGERS = {
    "int8": (TensorProto.INT8, np.dtype(np.int8)),
    "uint8": (TensorProto.UINT8, np.dtype(np.uint8)),
    "int16": (TensorProto.INT16, np.dtype(np.int16)),
    "uint16": (TensorProto.UINT16, np.dtype(np.uint16)),
    "int4": (TensorProto.INT4, np.dtype(ml_dtypes.int4)),
    "uint4": (TensorProto.UINT4, np.dtype(ml_dtypes.uint4)),
    "int2": (TensorProto.INT2, np.dtype(ml_dtypes.int2)),
    "uint2": (TensorProto.UINT2, np.dtype(ml_dtypes.uint2)),
}
PACKED = ("int4", "uint4", "int2", "uint2")
FLOATS = {
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
# What this file was checked with. Older ones truncate float16 (microsoft/onnxruntime#22741), lack two bits.
RECENT_ORT = tuple(int(n) for n in onnxruntime.__version__.split(".")[:2]) >= (1, 31)
X86 = platform.machine().lower() in ("x86_64", "amd64")

# name: (shape, axis, group_size, shape of the scales). Odd sizes reach the ends of vectors and bytes.
GRANULARITIES = {
    "tensor": ((5, 41), None, None, ()),
    "rows": ((5, 41), 0, None, (5,)),
    "columns": ((5, 41), -1, None, (41,)),
    "middle": ((3, 7, 9), 1, None, (7,)),
    "blocks": ((3, 70), -1, 32, (3, 3)),
    "short blocks": ((3, 41), 1, 3, (3, 14)),
    "blocks of rows": ((35, 9), 0, 16, (3, 9)),
}


def codes_range(dtype):
    return lb.QuantizedDType.of(dtype).value_range


def bits(y):
    """Floats as integers, so that -0 is not 0 and a NaN is itself."""
    y = np.asarray(y)
    return y.view(f"u{y.dtype.itemsize}")


def assert_same_floats(found, expected):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.array_equal(bits(found), bits(expected))


def assert_same_codes(found, expected, x):
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.shape == expected.shape
    wrong = np.flatnonzero(found.reshape(-1) != expected.reshape(-1))
    if wrong.size:
        at = wrong[:5]
        first = list(zip(*(a.reshape(-1)[at].tolist() for a in (x, found, expected)), strict=True))
        raise AssertionError(f"{wrong.size} of {found.size} codes differ; (x, found, expected): {first}")


def varied_params(rng, dtype, name):
    """Params over GRANULARITIES[name] with a scale and zero point of its own everywhere; half of the scales
    are powers of two, under which short floats fall on ties too."""
    _, axis, group_size, scale_shape = GRANULARITIES[name]
    lo, hi = codes_range(dtype)
    power = 2.0 ** rng.integers(-6, 2, scale_shape)
    scale = np.where(rng.random(scale_shape) < 0.5, power, rng.uniform(0.01, 2.0, scale_shape))
    scale = np.asarray(scale, np.float32)
    zero = rng.integers(lo, hi + 1, scale_shape)
    return lb.QuantizationParams(dtype, scale=scale, zero_point=zero, axis=axis, group_size=group_size)


# ---- ONNX's own node tests ----------------------------------------------------------------------------

NOT_INTEGERS = {
    "test_quantizelinear_e4m3fn",
    "test_quantizelinear_e5m2",
    "test_quantizelinear_float4e2m1",
    "test_dequantizelinear_e4m3fn",
    "test_dequantizelinear_e4m3fn_float16",
    "test_dequantizelinear_e4m3fn_zero_point",
    "test_dequantizelinear_e5m2",
    "test_dequantizelinear_float4e2m1",
}


@pytest.fixture(scope="module")
def onnx_cases():
    """op: its node tests, each (name, attributes, inputs, outputs, dtype of the codes or None)."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases of other ops divide by zero on purpose
        found = collect_testcases()
    by_type = {proto: name for name, (proto, _) in INTEGERS.items()}
    by_op = {"QuantizeLinear": [], "DequantizeLinear": [], "DynamicQuantizeLinear": []}
    for case in found:
        graph = case.model.graph
        op = graph.node[0].op_type
        if len(graph.node) != 1 or op not in by_op:
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in graph.node[0].attribute}
        coded = (graph.input if op == "DequantizeLinear" else graph.output)[0]
        dtype = by_type.get(coded.type.tensor_type.elem_type)
        for inputs, outputs in case.data_sets:
            arrays = [[as_array(v) for v in values] for values in (inputs, outputs)]
            by_op[op].append((case.name, attributes, *arrays, dtype))
    return by_op


def as_array(value):
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)


def onnx_params(dtype, attributes, scale, zero=None):
    scale = scale.astype(np.float32)
    zero = np.zeros(scale.shape, np.int32) if zero is None else zero.astype(np.int32).reshape(scale.shape)
    axis = attributes.get("axis", 1) if scale.ndim else None
    return lb.QuantizationParams(
        dtype, scale=scale, zero_point=zero, axis=axis, group_size=attributes.get("block_size") or None
    )


def test_onnx_node_tests_are_there_and_only_floats_are_left_out(onnx_cases):
    both = onnx_cases["QuantizeLinear"] + onnx_cases["DequantizeLinear"]
    left_out = {name for name, *_, dtype in both if dtype is None}
    assert left_out >= NOT_INTEGERS
    assert all("float" in name or "e4m3" in name or "e5m2" in name for name in left_out), left_out
    integer = {op: [case for case in cases if case[-1]] for op, cases in onnx_cases.items()}
    assert len(integer["QuantizeLinear"]) >= 10
    assert len(integer["DequantizeLinear"]) >= 9
    assert len(integer["DynamicQuantizeLinear"]) >= 3
    types = set(INTEGERS) - {"int8"}  # of which ONNX has no case of either op
    assert {dtype for *_, dtype in integer["QuantizeLinear"]} >= types
    assert {dtype for *_, dtype in integer["DequantizeLinear"]} >= types


def test_onnx_quantize_node_tests(onnx_cases):
    for name, attributes, (x, *parameters), (y,), dtype in onnx_cases["QuantizeLinear"]:
        if dtype is None:
            continue
        q = lb.quantize(x, params=onnx_params(dtype, attributes, *parameters))
        assert q.shape == y.shape, name
        assert q.unpack().tolist() == y.astype(np.int32).tolist(), name
        if dtype in PACKED:
            assert q.data.tobytes() == numpy_helper.from_array(y).raw_data, name


def test_onnx_dequantize_node_tests(onnx_cases):
    for name, attributes, (x, *parameters), (y,), dtype in onnx_cases["DequantizeLinear"]:
        if dtype is None:
            continue
        params = onnx_params(dtype, attributes, *parameters)
        found = lb.QuantizedTensor.from_codes(x.astype(np.int32), params).dequantize(dtype=y.dtype)
        assert found.dtype == y.dtype, name
        assert found.shape == y.shape, name
        assert np.array_equal(bits(found), bits(y)), name


def test_onnx_dynamic_quantize_node_tests_choose_our_asymmetric_params(onnx_cases):
    for name, _, (x,), (y, scale, zero), _ in onnx_cases["DynamicQuantizeLinear"]:
        q = lb.quantize(x, "uint8", scheme="asymmetric")
        assert q.params.scale == scale, name
        assert q.params.scale.dtype == scale.dtype, name
        assert q.params.zero_point == zero, name
        assert np.array_equal(q.data, y), name


# ---- ONNX Runtime -------------------------------------------------------------------------------------


def ort_session(nodes, inputs, outputs, initializers=(), opset=21, ir_version=10):
    """A session on one core that runs these nodes as they are."""
    graph = helper.make_graph(
        nodes,
        "oracle",
        [helper.make_tensor_value_info(name, proto, None) for name, proto in inputs],
        [helper.make_tensor_value_info(name, proto, None) for name, proto in outputs],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in initializers],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def ort_quantize_of_a_tensor(dtype):
    """x, scale, zero_point -> codes, for the types NumPy can lend to ONNX Runtime."""
    proto, storage = INTEGERS[dtype]
    node = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"])
    floats = [("x", TensorProto.FLOAT), ("s", TensorProto.FLOAT)]
    session = ort_session([node], [*floats, ("z", proto)], [("y", proto)])
    return lambda x, s, z: session.run(None, {"x": x, "s": np.asarray(s), "z": np.asarray(z, storage)})[0]


SPECIAL = np.array(
    [
        np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, 3.4e38, -3.4e38, 0.5, -0.5,
        2.0**31, -(2.0**31), 2.0**32, -(2.0**32), 2.0**63, -(2.0**63),
    ],
    np.float32,
)  # fmt: skip


def near_ties(rng, count, scale, span):
    """Numbers within 3 units in the last place of (k + 1/2) * scale, |k| <= span."""
    k = rng.integers(-span, span + 1, count) + 0.5
    x = (k * np.asarray(scale, np.float64)).astype(np.float32)
    return (x.view(np.int32) + rng.integers(-3, 4, count, dtype=np.int32)).view(np.float32)


def hard_input(rng, count, scale, span):
    """`count` numbers: four fifths beside ties, the others normal, of any bits at all, or special."""
    special = np.concatenate([SPECIAL, SPECIAL * scale])
    fifth = count // 5
    parts = [
        near_ties(rng, count - fifth - special.size, scale, span),
        rng.standard_normal(fifth // 2, np.float32) * scale * np.float32(span / 4),
        rng.integers(0, 2**32, fifth - fifth // 2, dtype=np.uint32).view(np.float32),
        special,
    ]
    return np.concatenate(parts)


HARD_SCALES = [1.0, 0.1, 1 / 3, 2 / 255, 0.02, 1e-3, MIN_SCALE, 3e-38, 1e30, MAX_SCALE]


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_ort_quantizes_ten_million_values_beside_ties_alike(dtype):
    rng = np.random.default_rng(20)
    lo, hi = codes_range(dtype)
    run, compared, reciprocal_errs, late_rounding_errs = ort_quantize_of_a_tensor(dtype), 0, 0, 0
    zeros = [0, 1, lo, hi, (lo + hi) // 2, lo + 3, hi - 6, 2, (lo + hi) // 2 + 1, 5]
    with np.errstate(all="ignore"):
        for scale, zero in zip(np.float32(HARD_SCALES), zeros, strict=True):
            x = hard_input(rng, 1_000_003, scale, int(1.3 * (hi - lo)))
            if not X86:  # ONNX Runtime's code for a NaN is what x86's maximum makes of one
                x = x[~np.isnan(x)]
            q = lb.quantize(x, params=lb.QuantizationParams(dtype, scale=scale, zero_point=zero))
            assert_same_codes(q.data, run(x, scale, zero), x)
            compared += x.size
            part = x[:50_000][np.isfinite(x[:50_000])]
            steps = np.clip(np.rint(part / scale), lo - zero, hi - zero)
            multiplied = np.clip(np.rint(part * (np.float32(1) / scale)), lo - zero, hi - zero)
            shifted = np.clip(np.rint(part / scale + np.float32(zero)), lo, hi) - zero
            reciprocal_errs += np.count_nonzero(steps != multiplied)
            late_rounding_errs += np.count_nonzero(steps != shifted)
    assert compared >= 9_900_000
    # The data can tell: both usual shortcuts fail on it.
    assert reciprocal_errs > 1000
    assert late_rounding_errs > 1000


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
def test_ort_quantizes_every_short_length_alike(dtype):
    rng = np.random.default_rng(21)
    lo, hi = codes_range(dtype)
    run, scale = ort_quantize_of_a_tensor(dtype), np.float32(0.3)
    for size in range(131):
        zero = int(rng.integers(lo, hi + 1))
        x = rng.choice(hard_input(rng, 400, scale, hi - lo), size)
        x = x if X86 else np.nan_to_num(x, posinf=np.inf, neginf=-np.inf)
        q = lb.quantize(x, params=lb.QuantizationParams(dtype, scale=scale, zero_point=zero))
        assert_same_codes(q.data, run(x, scale, zero), x)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int4", "uint4"])
@pytest.mark.parametrize("name", GRANULARITIES)
@pytest.mark.parametrize("source", ["float32", "float16"])
def test_ort_quantizes_every_granularity_alike(source, name, dtype):
    if source == "float16" and not RECENT_ORT:
        pytest.skip("this ONNX Runtime truncates float16 instead of rounding it")
    rng = np.random.default_rng(22)
    shape, axis, group_size, _ = GRANULARITIES[name]
    (proto, storage), (lo, hi) = INTEGERS[dtype], codes_range(dtype)
    attributes = {k: v for k, v in {"axis": axis, "block_size": group_size}.items() if v is not None}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["y"], **attributes)]
    if dtype in PACKED:  # NumPy has no int4: it leaves as int8
        nodes[0].output[0] = "q"
        nodes.append(helper.make_node("Cast", ["q"], ["y"], to=TensorProto.INT8))
        proto = TensorProto.INT8
    # ONNX Runtime's vector code clamps, then converts, as the contract does. Its scalar code - float16, the
    # half bytes where an int4 scale begins or ends, blocks along any axis but the last - is
    # clamp(int32(rne(x / s)) + z): the same wherever that int32 exists, and undefined in C++ where it does
    # not (NaN, ±Inf, |x / s| near 2^31).
    vector_code = name == "blocks" if dtype in PACKED else name != "blocks of rows"
    clamps_first = source == "float32" and vector_code
    compared = 0
    for _ in range(6):
        params = varied_params(rng, dtype, name)
        scale = params.scale.astype(FLOATS[source])
        params = params.replace(scale=scale)
        spread = np.broadcast_to(reference.expand(params.scale, params, shape), shape)
        x = near_ties(rng, spread.size, spread.reshape(-1), int(1.3 * (hi - lo))).reshape(shape)
        with np.errstate(over="ignore", invalid="ignore"):
            x = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), x).astype(FLOATS[source])
            steps = np.abs(x.astype(np.float32) / spread)
        comparable = steps < 2.0**31 - 2.0**16
        if clamps_first:
            comparable = X86 | ~np.isnan(steps)
        given = [("s", scale), ("z", params.zero_point.astype(storage))]
        session = ort_session(nodes, [("x", helper.np_dtype_to_tensor_dtype(x.dtype))], [("y", proto)], given)
        expected = session.run(None, {"x": x})[0]
        q = lb.quantize(x, params=params)
        assert_same_codes(q.unpack()[comparable], expected[comparable], x[comparable])
        compared += np.count_nonzero(comparable)
    assert compared > 0.6 * 6 * x.size


@pytest.mark.parametrize("scale_dtype", ["float32", "float16"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_ort_dequantizes_every_code_alike(dtype, scale_dtype):
    if dtype in ("int2", "uint2") and not RECENT_ORT:
        pytest.skip("this ONNX Runtime has no two-bit integers")
    storage, (lo, hi) = INTEGERS[dtype][1], codes_range(dtype)
    target = FLOATS[scale_dtype]
    codes = np.arange(lo, hi + 1)
    scales = [1.0, 0.1, 1 / 3, 0.02, 3e-5, 600.0]
    scales += [MIN_SCALE, 3e-38, MAX_SCALE] if scale_dtype == "float32" else [6e-8, 1e-7, 65504.0]
    # Every code under every scale and zero point: a row for each pair.
    zeros = np.tile([0, 1, lo, hi], len(scales))
    scales = np.repeat(scales, 4).astype(target)
    table = np.broadcast_to(codes, (scales.size, codes.size))
    session = ort_session(
        [helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"], axis=0)],
        [],
        [("y", helper.np_dtype_to_tensor_dtype(target))],
        [("x", table.astype(storage)), ("s", scales), ("z", zeros.astype(storage))],
        *((25, 13) if dtype in ("int2", "uint2") else (21, 10)),
    )
    expected = session.run(None, {})[0]
    assert expected.shape == table.shape
    for row, scale, zero in zip(expected, scales, zeros, strict=True):
        params = lb.QuantizationParams(dtype, scale=scale, zero_point=zero)
        assert_same_floats(lb.QuantizedTensor.from_codes(codes, params).dequantize(dtype=target), row)
    params = lb.QuantizationParams(dtype, scale=scales, zero_point=zeros, axis=0)
    assert_same_floats(lb.QuantizedTensor.from_codes(table, params).dequantize(dtype=target), expected)


def test_ort_chooses_the_same_params_from_data():
    rng = np.random.default_rng(23)
    session = ort_session(
        [helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"])],
        [("x", TensorProto.FLOAT)],
        [("y", TensorProto.UINT8), ("s", TensorProto.FLOAT), ("z", TensorProto.UINT8)],
    )
    for _ in range(2000):
        x = (rng.standard_normal(int(rng.integers(1, 300))) * 10.0 ** rng.integers(-6, 7)).astype(np.float32)
        x += np.float32(rng.choice([0, 0, 3, -3])) * np.abs(x).max()
        codes, scale, zero = session.run(None, {"x": x})
        q = lb.quantize(x, "uint8", scheme="asymmetric")
        assert_same_floats(q.params.scale, scale)
        assert q.params.zero_point == zero
        assert_same_codes(q.data, codes, x)


# ---- packing, as ml_dtypes and ONNX have it -----------------------------------------------------------

PACKED_SHAPES = [(n,) for n in (*range(36), 131)]
PACKED_SHAPES += [(1, 1), (3, 5), (5, 3), (4, 6), (7, 9), (2, 3, 3), (0, 4)]


def onnx_bytes(codes, dtype):
    return numpy_helper.from_array(codes.astype(INTEGERS[dtype][1])).raw_data


@pytest.mark.parametrize("dtype", PACKED)
def test_packed_bytes_are_onnx_raw_data(dtype):
    rng = np.random.default_rng(30)
    lo, hi = codes_range(dtype)
    params = lb.QuantizationParams(dtype)
    for shape in PACKED_SHAPES:
        codes = rng.integers(lo, hi + 1, shape)
        expected = onnx_bytes(codes, dtype)
        assert len(expected) == -(-codes.size * lb.QuantizedDType.of(dtype).bits // 8)
        packed = lb.QuantizedTensor.from_codes(codes, params)
        quantized = lb.quantize(codes.astype(np.float32), params=params)
        for q in (packed, quantized):
            assert q.shape == shape
            assert q.data.tobytes() == expected, shape
            assert np.array_equal(q.unpack(), codes), shape


@pytest.mark.parametrize("dtype", PACKED)
def test_packed_bytes_are_onnx_raw_data_under_every_granularity(dtype):
    rng = np.random.default_rng(31)
    for name, (shape, *_) in GRANULARITIES.items():
        params = varied_params(rng, dtype, name)
        x = rng.standard_normal(shape, np.float32) * 4
        codes = reference.quantize(x, params)
        assert len(np.unique(codes)) > 2
        assert lb.quantize(x, params=params).data.tobytes() == onnx_bytes(codes, dtype), name


@pytest.mark.parametrize("dtype", PACKED)
def test_onnx_reads_our_packed_bytes(dtype):
    rng = np.random.default_rng(32)
    lo, hi = codes_range(dtype)
    for shape in PACKED_SHAPES:
        codes = rng.integers(lo, hi + 1, shape)
        data = lb.QuantizedTensor.from_codes(codes, lb.QuantizationParams(dtype)).data
        proto = helper.make_tensor("w", INTEGERS[dtype][0], shape, data.tobytes(), raw=True)
        assert np.array_equal(numpy_helper.to_array(proto).astype(np.int32), codes), shape


# ---- narrowing, as ml_dtypes and NumPy have it --------------------------------------------------------

# Halves below 6.1e-5 are subnormal and end at 65504; bfloat16 ends with float32, which only 16 bits reach.
NARROWED_SCALES = [1.0, 0.1, 1 / 3, 0.0173, 6e-8, 2.5e-7, 3e-5, 0.51, 600.0, 1e5, 1e-30, MIN_SCALE, MAX_SCALE]


@pytest.mark.parametrize("target", ["float16", "bfloat16"])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_dequantize_narrows_as_ml_dtypes_does(dtype, target):
    lo, hi = codes_range(dtype)
    codes = np.arange(lo, hi + 1)
    subnormal = infinite = rounded = 0
    for scale in np.float32(NARROWED_SCALES):
        for zero in {0, 1, lo, hi}:
            wide = (codes - zero).astype(np.float32) * scale
            with np.errstate(over="ignore"):
                expected = wide.astype(FLOATS[target])
            params = lb.QuantizationParams(dtype, scale=scale, zero_point=zero)
            q = lb.QuantizedTensor.from_codes(codes, params)
            assert_same_floats(q.dequantize(), wide)
            assert_same_floats(q.dequantize(dtype=FLOATS[target]), expected)
            assert_same_floats(lb.dequantize(q, dtype=target), expected)
            into = np.full(codes.shape, 7, FLOATS[target])
            assert lb.dequantize(q, out=into) is into
            assert_same_floats(into, expected)
            back = expected.astype(np.float64)
            subnormal += np.count_nonzero((np.abs(back) < 2.0**-14) & (back != 0))
            infinite += np.count_nonzero(np.isinf(back))
            rounded += np.count_nonzero(np.isfinite(back) & (back != wide))
    assert rounded > 0
    if target == "float16":
        assert subnormal > 0
        assert infinite > 0
    elif dtype == "uint16":
        assert infinite > 0


@pytest.mark.parametrize("target", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", GRANULARITIES)
def test_dequantize_narrows_every_granularity_as_ml_dtypes_does(name, target):
    rng = np.random.default_rng(40)
    shape = GRANULARITIES[name][0]
    for dtype in INTEGERS:
        lo, hi = codes_range(dtype)
        params = varied_params(rng, dtype, name)
        params = params.replace(scale=params.scale * np.float32(rng.choice([1, 1e-6, 300])))
        q = lb.QuantizedTensor.from_codes(rng.integers(lo, hi + 1, shape), params)
        with np.errstate(over="ignore"):
            expected = q.dequantize().astype(FLOATS[target])
        assert_same_floats(q.dequantize(dtype=target), expected)


@pytest.mark.parametrize("source", ["float16", "bfloat16"])
def test_every_half_quantizes_as_the_float32_it_is(source):
    every = np.arange(2**16, dtype=np.uint16).view(FLOATS[source])
    rng = np.random.default_rng(41)
    for dtype in INTEGERS:
        lo, hi = codes_range(dtype)
        for scale in np.float32([1.0, 0.1, 3e-6, 40.0]):
            zero = int(rng.integers(lo, hi + 1))
            params = lb.QuantizationParams(dtype, scale=scale, zero_point=zero)
            with np.errstate(invalid="ignore"):
                wide = every.astype(np.float32)
            expected = reference.quantize(wide, params)
            assert_same_codes(lb.quantize(every, params=params).unpack(), expected, wide)
            assert_same_codes(lb.quantize(wide, params=params).unpack(), expected, wide)


# ---- where the peers err ------------------------------------------------------------------------------

# torch.quantize_per_tensor gives 2 2 4 0 0 -2 here: it rounds after adding the zero point.
HALVES = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5])
HALVES_AT_ZERO_POINT_1 = np.array([1, 3, 3, 1, -1, -1])


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("name", GRANULARITIES)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_ties_round_to_even_before_the_zero_point_is_added(dtype, name, source):
    shape, axis, group_size, scale_shape = GRANULARITIES[name]
    lo, hi = codes_range(dtype)
    x = np.resize(HALVES, shape).astype(FLOATS[source])
    expected = np.resize(HALVES_AT_ZERO_POINT_1.clip(lo, hi), shape)
    for scale, zero in ((1.0, 1), (np.ones(scale_shape, np.float32), np.ones(scale_shape, np.int32))):
        params = lb.QuantizationParams(dtype, scale=scale, zero_point=zero, axis=axis, group_size=group_size)
        assert_same_codes(lb.quantize(x, params=params).unpack(), expected, x)
        assert_same_codes(reference.quantize(x, params), expected, x)


def test_the_short_form_rounds_ties_before_the_zero_point_is_added():
    assert lb.quantize_to_int8(HALVES.astype(np.float32), 1.0, 1).tolist() == [1, 3, 3, 1, -1, -1]


def with_nonfinite(shape, source):
    """Seven values in turn, so that each falls on every lane of a vector."""
    seven = np.array([np.nan, np.inf, 1.0, -np.inf, -np.nan, 0.0, -1.0])
    return np.resize(seven, shape).astype(FLOATS[source])


# torch gives 127 for NaN, the ONNX evaluator qmin for +Inf, ONNX Runtime's scalar code qmin for +Inf.
@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("name", GRANULARITIES)
@pytest.mark.parametrize("dtype", INTEGERS)
def test_nan_gives_the_least_code_and_infinity_saturates(dtype, name, source):
    shape, axis, group_size, scale_shape = GRANULARITIES[name]
    x = with_nonfinite(shape, source)
    least, most = codes_range(dtype)
    for lo, hi in ((least, most), (least + 1, most), (least + 1, most - 1)):
        for zero in {lo, hi, (lo + hi) // 2}:
            params = lb.QuantizationParams(
                dtype, scale=np.ones(scale_shape, np.float32), zero_point=zero,
                axis=axis, group_size=group_size, qmin=lo, qmax=hi,
            )  # fmt: skip
            one, minus_one = min(zero + 1, hi), max(zero - 1, lo)
            expected = np.resize([lo, hi, one, lo, lo, zero, minus_one], shape)
            assert_same_codes(lb.quantize(x, params=params).unpack(), expected, x)
            assert_same_codes(reference.quantize(x, params), expected, x)


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("name", GRANULARITIES)
@pytest.mark.parametrize(
    ("dtype", "scheme"), [("binary", "symmetric"), ("int8", "logarithmic"), ("int4", "logarithmic")]
)
def test_nan_gives_the_least_code_of_binary_and_logarithmic_codes(dtype, scheme, name, source):
    shape, axis, group_size, scale_shape = GRANULARITIES[name]
    x = with_nonfinite(shape, source)
    params = lb.QuantizationParams(dtype, scheme, np.ones(scale_shape, np.float32), axis=axis, group_size=group_size)
    lo, hi = params.qmin, params.qmax
    expected = np.resize([lo, hi, hi, lo, lo, 0, lo], shape)
    assert_same_codes(lb.quantize(x, params=params).unpack(), expected, x)
    assert_same_codes(reference.quantize(x, params), expected, x)


@pytest.mark.parametrize("source", FLOATS)
def test_nan_gives_the_least_code_of_every_mixed_width(source):
    widths = [16, 8, 4, 2, 1]
    x = with_nonfinite((5, 41), source)
    q = lb.quantize(x, params=lb.QuantizationParams.mixed(widths, np.ones(5, np.float32)))
    for row, (found, width) in enumerate(zip(q.unpack(), widths, strict=True)):
        lo, hi = (0, 1) if width == 1 else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
        expected = np.resize([lo, hi, 1, lo, lo, 0, max(-1, lo)], x.shape)
        assert found.tolist() == expected[row].tolist(), width


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_nonfinite_numbers_left_out_of_the_range_still_saturate(dtype, scheme):
    rng = np.random.default_rng(50)
    for name, (shape, axis, group_size, _) in GRANULARITIES.items():
        x = np.abs(rng.standard_normal(shape, np.float32))
        bad = rng.choice(np.float32([0, 0, 0, np.nan, np.inf, -np.inf]), shape)
        x = np.where(bad == 0, x, bad)
        with pytest.warns(UserWarning, match="left out"):
            q = lb.quantize(x, dtype, scheme=scheme, axis=axis, group_size=group_size, on_nonfinite="ignore")
        codes = q.unpack()
        assert (codes[np.isnan(x) | np.isneginf(x)] == q.params.qmin).all(), name
        assert (codes[np.isposinf(x)] == q.params.qmax).all(), name
        assert_same_codes(codes, reference.quantize(x, q.params), x)


@pytest.mark.parametrize("source", FLOATS)
def test_an_array_without_dimensions_keeps_its_shape(source):
    x = np.array(1.25, FLOATS[source])
    q = lb.quantize(x, params=lb.QuantizationParams("int8", scale=0.5, zero_point=1))
    assert q.shape == ()
    assert q.unpack() == 3
    into = np.zeros((), FLOATS[source])
    assert lb.dequantize(q, out=into) == 1.0


# ---- torch --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def torch_views(torch, dtype):
    """name: (a torch tensor, the same numbers in NumPy), every way a tensor may lie in memory."""
    rng = np.random.default_rng(60)
    base = (rng.standard_normal((6, 10, 9)) * 3).astype(FLOATS[dtype])
    base[rng.random(base.shape) < 0.1] = 0.375  # a tie under a scale of 1 / 4
    t = torch.from_numpy(base.astype(np.float64)).to(getattr(torch, dtype))
    return {
        "contiguous": (t, base),
        "transposed": (t.permute(2, 0, 1), base.transpose(2, 0, 1)),
        "strided": (t[:, ::3, 1::2], base[:, ::3, 1::2]),
        "offset": (t[2:, 3:], base[2:, 3:]),
        "expanded": (t[:1].expand(4, 10, 9), np.broadcast_to(base[:1], (4, 10, 9))),
        "one row": (t[0, 0], base[0, 0]),
        "empty": (t[:0], base[:0]),
        "requires_grad": (t.clone().requires_grad_(), base),
        "in a graph": (t.clone().requires_grad_() * 1, base),
        "parameter": (torch.nn.Parameter(t.clone()), base),
    }


@pytest.mark.parametrize("dtype", FLOATS)
def test_torch_tensors_quantize_as_the_numpy_arrays_they_equal(torch, dtype):
    for view, (t, a) in torch_views(torch, dtype).items():
        assert tuple(t.shape) == a.shape
        scales = np.linspace(0.1, 2, a.shape[-1], dtype=np.float32)
        for codes in INTEGERS:
            for params in (
                lb.QuantizationParams(codes, scale=0.37, zero_point=1),
                lb.QuantizationParams(codes, scale=scales, axis=-1),
                lb.QuantizationParams(codes, scale=0.25, zero_point=1, axis=0, group_size=4),
            ):
                expected = reference.quantize(a, params)
                q = lb.quantize(t, params=params)
                assert q.shape == a.shape, view
                assert_same_codes(q.unpack(), expected, a)
                assert lb.quantize(a, params=params) == q, view


@pytest.mark.parametrize("dtype", FLOATS)
def test_torch_tensors_give_the_params_of_the_numpy_arrays_they_equal(torch, dtype):
    for view, (t, a) in torch_views(torch, dtype).items():
        if a.size:
            for options in ({}, {"axis": 0}, {"group_size": 4}):
                assert lb.quantize(t, "uint8", scheme="asymmetric", **options) == lb.quantize(
                    a, "uint8", scheme="asymmetric", **options
                ), view


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_torch_tensor_without_dimensions_keeps_its_shape(torch, dtype):
    params = lb.QuantizationParams("int8", scale=0.5, zero_point=1)
    q = lb.quantize(torch.tensor(1.25, dtype=getattr(torch, dtype)), params=params)
    assert q.shape == ()
    assert lb.dequantize(q, out=torch.zeros((), dtype=getattr(torch, dtype))) == 1.0


@pytest.mark.parametrize("dtype", FLOATS)
def test_torch_input_is_only_read(torch, dtype):
    for view, (t, a) in torch_views(torch, dtype).items():
        required = t.requires_grad
        lb.quantize(t, params=lb.QuantizationParams("int8", scale=0.5))
        assert t.requires_grad == required, view
        assert np.array_equal(t.detach().double().numpy(), a.astype(np.float64)), view


@pytest.mark.parametrize("codes", INTEGERS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_dequantize_into_a_torch_tensor(torch, dtype, codes):
    rng = np.random.default_rng(61)
    lo, hi = codes_range(codes)
    for name, (shape, *_) in GRANULARITIES.items():
        q = lb.QuantizedTensor.from_codes(rng.integers(lo, hi + 1, shape), varied_params(rng, codes, name))
        around = torch.full((shape[0] + 2, *shape[1:]), 7.0, dtype=getattr(torch, dtype))
        out = around[1:-1]
        assert lb.dequantize(q, out=out) is out
        expected = q.dequantize(dtype=dtype)
        assert_same_floats(expected, reference.dequantize(q.unpack(), q.params, FLOATS[dtype]))
        assert np.array_equal(out.double().numpy(), expected.astype(np.float64)), name
        assert (around[0] == 7).all(), "wrote before out"
        assert (around[-1] == 7).all(), "wrote after out"


def test_dequantize_refuses_a_torch_tensor_it_cannot_write_into(torch):
    q = lb.quantize(np.ones((4, 6), np.float32))
    for out in (torch.zeros(6, 4).t(), torch.zeros(4, 12)[:, ::2], torch.zeros(6, 4), torch.zeros(24)):
        with pytest.raises(lb.InvalidProblem, match="out"):
            lb.dequantize(q, out=out)
        assert (out == 0).all()
    for dtype in (torch.int32, torch.int16, torch.complex64):
        with pytest.raises(lb.UnsupportedDType, match="out"):
            lb.dequantize(q, out=torch.zeros(4, 6, dtype=dtype))
