"""Plans of integer compute: the path each pair of dtypes takes, the bits of the functions they stand for, their checks,
and a workspace that bounds what a run allocates."""

from __future__ import annotations

import copy
import pickle
import threading
import tracemalloc
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowbit as lb
from lowbit import InvalidProblem, QuantizationParams, QuantizedTensor, Unsupported, _core
from lowbit.ops import gemm_paths
from lowbit.plans import (
    Conv2dArgs,
    Conv2dDescriptor,
    Conv2dPlan,
    KernelSku,
    LinearArgs,
    LinearDescriptor,
    LinearPlan,
    MatMulArgs,
    MatMulDescriptor,
    MatMulPlan,
)
from problems import F32, output_params, same, tensor

Array = Any
M, K, N = 5, 24, 19
FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
RELU = {"activation": "relu"}
OUTCOMES: dict[str, dict[str, Any]] = {
    "f32": {},
    "f16": {"out_dtype": "float16"},
    "bf16": {"out_dtype": "bfloat16", "clamp": (-3.0, 4.0)},
    "s8": {"out_params": output_params("int8", 0.5, -7)},
    "u8 relu": {"out_params": output_params("uint8", 0.25, 100), **RELU},
}


def normal(shape: Any, seed: int = 0, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def operand(shape: tuple[int, int], spec: str, seed: int) -> QuantizedTensor:
    """A matrix of normal numbers: "int8", "int8/1" (a scale for each index of axis 1), "int4/0:8" (blocks of 8 along
    axis 0), "log int8", "mixed/1"."""
    name, _, rest = spec.partition("/")
    axis, _, block = rest.partition(":")
    options: dict[str, Any] = {"axis": int(axis) if axis else None, "group_size": int(block) if block else None}
    kind: Any = name.removeprefix("log ")
    if kind == "mixed":
        kind = lb.QuantizedDType.mixed([(8, 4, 16, 2, 1)[i % 5] for i in range(shape[int(axis)])])
    scheme = "logarithmic" if name.startswith("log") else "asymmetric" if kind in ("uint8", "uint4") else "symmetric"
    return lb.quantize(normal(shape, seed), kind, scheme=scheme, **options)


PATHS = {  # a, b: path, kinds, accumulator, (deterministic, bit_stable)
    ("int8", "int8/1"): ("integer", "s8-s8", "s32", (True, True)),
    ("uint8/0", "int8"): ("integer", "u8-s8", "s32", (True, True)),
    ("uint8", "int4/1"): ("integer", "u8-s4", "s32", (True, True)),
    ("int4", "uint4"): ("integer", "s4-u4", "s32", (True, True)),
    ("int2/0", "int8"): ("integer", "s2-s8", "s32", (True, True)),
    ("int8/0", "int4/0:8"): ("groups", "s8-s4", "f32", (True, True)),
    ("int8", "int2/0:16"): ("groups", "s8-s2", "f32", (True, True)),
    ("uint8", "int8/0:8"): ("blocks", "u8-s8", "f32", (True, True)),
    ("uint8", "int4/0:10"): ("blocks", "u8-s4", "f32", (True, True)),
    ("int16", "int8/1"): ("integer16", "s16-s8", "s64", (True, True)),
    ("uint4", "int16"): ("integer16", "u4-s16", "s64", (True, True)),
    ("binary", "binary/1"): ("binary", "binary-binary", "s32", (True, True)),
    ("log int8", "int8"): ("general", "log8-s8", "f64", (False, False)),
    ("int8", "log int4"): ("general", "s8-log4", "f64", (False, False)),
    ("int8", "mixed/1"): ("general", "s8-mixed", "f64", (False, False)),
    ("mixed/0", "int8"): ("general", "mixed-s8", "f64", (False, False)),
    ("int8/1", "int8"): ("general", "s8-s8", "f64", (False, False)),
    ("binary", "int8"): ("general", "binary-s8", "f64", (False, False)),
}


def problem(pair: tuple[str, str], m: int = M, k: int = K, n: int = N) -> tuple[QuantizedTensor, QuantizedTensor]:
    return operand((m, k), pair[0], 1), operand((k, n), pair[1], 2)


def matmul_plan(a: QuantizedTensor, b: Any, preference: Any = "fastest", **options: Any) -> MatMulPlan:
    (m, k), n = a.shape, b.shape[1]
    return MatMulPlan.select(MatMulDescriptor(m, n, k, a.params, b.params, **options), preference=preference)


def data_of(y: Any) -> Array:
    return y.data if isinstance(y, QuantizedTensor) else y


def room(y: Any) -> Array:
    """An array for what is expected to be like y, full of something else."""
    return np.full(data_of(y).shape, 77, data_of(y).dtype)


def peak_of(run: Callable[[], None]) -> int:
    run()  # what is made once and kept
    tracemalloc.start()
    run()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


# ---- products -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pair", PATHS, ids=" x ".join)
def test_every_path_of_a_product_by_name(pair: tuple[str, str]) -> None:
    path, kinds, accumulator, promises = PATHS[pair]
    plan = matmul_plan(*problem(pair))
    arch = "numpy" if path == "general" else _core.active_isa()
    assert plan.path == path
    assert str(plan.sku) == f"compute/matmul_{path}/{kinds}/{arch}/cpu"
    found = plan.precision_guarantee
    assert (found.accumulator, (found.deterministic, found.bit_stable)) == (accumulator, promises)
    plain = matmul_plan(*problem(pair), "reference")
    assert str(plain.sku) == f"compute/matmul_{path}/{kinds}/numpy/reference"


@pytest.mark.parametrize("pair", PATHS, ids=" x ".join)
@pytest.mark.parametrize("options", OUTCOMES.values(), ids=OUTCOMES)
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
def test_a_product_has_the_bits_of_qmatmul(pair: tuple[str, str], options: dict[str, Any], with_bias: bool) -> None:
    a, b = problem(pair)
    bias = normal(N, 3) if with_bias else None
    expected = lb.qmatmul(a, b, bias=bias, **options)
    for preference in ("fastest", "reference"):
        y = room(expected)
        matmul_plan(a, b, preference, **options).run(MatMulArgs(a, b, y, bias))
        assert same(y, data_of(expected)), preference
    if pair[1] in ("int8", "int8/1", "int4/1", "uint4"):
        y = room(expected)
        matmul_plan(a, b, prepacked=True, **options).run(MatMulArgs(a, lb.prepack(b), y, bias))
        assert same(y, data_of(expected))


def test_every_pair_of_dtypes_has_a_plan(isa: str) -> None:
    kinds = ["int16", "uint16", "int8", "uint8", "int4", "uint4", "int2", "uint2", "binary", "log int8", "mixed/0"]
    right = [*kinds[:-1], "mixed/1", "int8/1", "int8/0", "uint4/0:7", "int16/0:8", "int8/1:4", "binary/0:8"]
    seen = set()
    with pytest.warns(UserWarning, match="symmetric unsigned"):
        problems = [problem((a, b)) for a in [*kinds, "int8/0", "int8/1", "uint8/0", "int4/1:8"] for b in right]
    for a, b in problems:
        plan = matmul_plan(a, b)
        expected = lb.qmatmul(a, b)
        y = room(expected)
        plan.run(MatMulArgs(a, b, y))
        assert same(y, expected)
        assert plan.sku.op == f"matmul_{plan.path}"
        seen.add(plan.path)
    assert seen == {path for path, *_ in PATHS.values()}


@pytest.mark.parametrize("size", [1e6, 2.0**31 - 1], ids=["fits", "too large for int32 sums"])
@pytest.mark.parametrize("pair", [("uint8/0", "int8/1"), ("int16", "int8"), ("binary", "binary")], ids=" x ".join)
def test_an_integer_bias(pair: tuple[str, str], size: float) -> None:
    a, b = problem(pair)
    bias = np.linspace(-size, size, N).astype(np.int32)
    expected = lb.qmatmul(a, b, bias=bias)
    for preference in ("fastest", "reference"):
        y = room(expected)
        matmul_plan(a, b, preference).run(MatMulArgs(a, b, y, bias))
        assert same(y, expected)


def test_depth_past_int32_accumulates_in_int64() -> None:
    a, b = tensor(np.random.default_rng(0), (2, 40000), "uint8"), tensor(np.random.default_rng(1), (40000, 3), "uint8")
    plan, y = matmul_plan(a, b), np.zeros((2, 3), F32)
    assert plan.precision_guarantee.accumulator == "s64"
    plan.run(MatMulArgs(a, lb.prepack(b), y))
    assert same(y, lb.qmatmul(a, b))


def test_the_integer_path_is_one_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = problem(("uint8", "int8/1"))
    plan, packed, y = matmul_plan(a, b, prepacked=True), lb.prepack(b), np.zeros((M, N), F32)
    calls = []
    native = gemm_paths.gemm_plan

    class Counted:
        def __init__(self, *args: Any) -> None:
            self.plan = native(*args)

        def run(self, codes: Array, out: Array) -> None:
            calls.append(out.ctypes.data)
            self.plan.run(codes, out)

    monkeypatch.setattr(gemm_paths, "gemm_plan", lambda *args: Counted(*args))
    plan.run(MatMulArgs(a, packed, y))
    assert calls == [y.ctypes.data]
    assert same(y, lb.qmatmul(a, b))


def test_codes_go_to_tensors_and_torch_lends_its_memory() -> None:
    torch = pytest.importorskip("torch")
    a, b = problem(("int8", "int8"))
    params = output_params("uint8", 0.25, 100)
    plan = matmul_plan(a, b, out_params=params)
    out = QuantizedTensor(np.zeros((M, N), np.uint8), params)
    plan.run(MatMulArgs(a, b, out))
    assert out == lb.qmatmul(a, b, out_params=params)
    y = torch.zeros((M, N), dtype=torch.bfloat16)
    matmul_plan(a, b, out_dtype=torch.bfloat16).run(MatMulArgs(a, b, y))
    assert same(y.view(torch.int16).numpy(), lb.qmatmul(a, b, out_dtype="bfloat16").view(np.int16))


# ---- convolutions ---------------------------------------------------------------------------------------------------

CONVOLUTIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "plain": ((2, 3, 9, 8), (5, 3, 3, 3), {"padding": 1}),
    "strided": ((1, 4, 9, 9), (6, 4, 3, 2), {"stride": (2, 1), "padding": (0, 1, 1, 0), "dilation": (1, 2)}),
    "grouped": ((2, 4, 6, 6), (6, 2, 3, 3), {"groups": 2}),
    "pointwise": ((3, 8, 5, 5), (7, 8, 1, 1), {}),
    "depthwise": ((2, 6, 8, 9), (6, 1, 3, 3), {"groups": 6, "padding": 1, "stride": 2}),
}


def convolution(name: str, layout: str, w_type: str = "int8") -> tuple[QuantizedTensor, QuantizedTensor, Any]:
    x_shape, w_shape, options = CONVOLUTIONS[name]
    x = normal(x_shape, 4) if layout == "NCHW" else np.ascontiguousarray(np.moveaxis(normal(x_shape, 4), 1, -1))
    q = lb.quantize(x, "uint8", scheme="asymmetric")
    return q, lb.quantize(normal(w_shape, 5), w_type, axis=0), {**options, "layout": layout}


def conv_plan(x: Any, w: Any, preference: Any = "fastest", **options: Any) -> Conv2dPlan:
    return Conv2dPlan.select(Conv2dDescriptor(x.shape, w.shape, x.params, w.params, **options), preference=preference)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("options", OUTCOMES.values(), ids=OUTCOMES)
def test_a_convolution_has_the_bits_of_qconv2d(name: str, layout: str, options: dict[str, Any]) -> None:
    x, w, geometry = convolution(name, layout)
    packed = lb.prepack_conv2d(w, geometry.get("groups", 1))
    for bias in (None, normal(w.shape[0], 6), np.full(w.shape[0], 2**31 - 1, np.int64)):
        expected = lb.qconv2d(x, w, bias, **geometry, **options)
        y = room(expected)
        for preference, given in (("fastest", w), ("fastest", packed), ("reference", w), ("reference", packed)):
            plan = conv_plan(x, w, preference, **geometry, **options)
            assert plan.descriptor.output_shape == expected.shape
            y[...] = 77
            plan.run(Conv2dArgs(x, given, y, bias))
            assert same(y, data_of(expected)), preference


def test_paths_of_convolutions_by_name() -> None:
    for name, path in (("plain", "integer"), ("grouped", "integer"), ("depthwise", "depthwise")):
        x, w, geometry = convolution(name, "NHWC", "int4")
        plan = conv_plan(x, w, **geometry)
        assert str(plan.sku) == f"compute/conv2d_{path}/u8-s4/{_core.active_isa()}/cpu"
        found = plan.precision_guarantee
        assert (found.math_precision, found.accumulator, found.bit_stable) == ("f32", "s32", True)


# ---- layers ---------------------------------------------------------------------------------------------------------

LAYERS: dict[str, tuple[dict[str, Any], str, str]] = {  # options of a layer, its path, the name of its weights
    "int8": ({}, "integer", "s8"),
    "int4 uint8": ({"dtype": "int4", "activation_dtype": "uint8"}, "integer", "s4"),
    "given": ({"input_params": QuantizationParams("uint8", scale=0.05, zero_point=128)}, "integer", "s8"),
    "int4": ({"dtype": "int4", "group_size": 8}, "groups", "s4"),
    "int2": ({"dtype": "int2", "group_size": 16}, "groups", "s2"),
    "blocks": ({"dtype": "int8", "group_size": 8}, "blocks", "s8"),
    "float": ({"dtype": "int4", "group_size": 8, "activation_dtype": "float"}, "float", "s4"),
    "binary": ({"dtype": "binary"}, "float", "binary"),
    "log": ({"scheme": "logarithmic"}, "float", "log8"),
    "int16": ({"dtype": "int16"}, "float", "s16"),
    "mixed": ({"dtype": lb.QuantizedDType.mixed([8, 4, 2] * 6 + [16])}, "general", "mixed"),
}
BIASES: dict[str, Any] = {
    "": None,
    "bias": normal(N, 7),
    "integers": np.arange(N) * 1000,
    "large integers": np.full(N, 2**31 - 1),
}


def linear_plan(layer: lb.QuantizedLinear, rows: int, element: str = "f32", preference: Any = "fastest") -> LinearPlan:
    descriptor = LinearDescriptor(
        rows, layer.in_features, layer.out_features, layer.params, layer.activation_dtype, layer.input_params,
        layer.out_params, element,
    )  # fmt: skip
    return LinearPlan.select(descriptor, preference=preference)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("out", [None, output_params("int8", 0.1, 3)], ids=["", "codes"])
def test_a_layer_s_plan_has_its_bits(name: str, element: str, bias: Any, out: Any) -> None:
    options, path, kind = LAYERS[name]
    layer = lb.QuantizedLinear(normal((N, K), 8), bias, out_params=out, **options)
    x = normal((M, K), 9, FLOATS[element])
    expected = layer(x)
    y = room(expected)
    plan = linear_plan(layer, M, element)
    plan.run(LinearArgs(x, layer, y))
    assert same(y, data_of(expected))
    assert (plan.path, layer.path) == (path, path)
    arch = "numpy" if path == "general" else _core.active_isa()
    assert str(plan.sku) == f"compute/linear_{path}/{element}-{kind}/{arch}/cpu"
    plain = linear_plan(layer, M, element, "reference")
    plain.run(LinearArgs(x, layer, y))
    if path == "float":  # another order of the sum: a rounding apart, or a code
        found, wanted = (v.astype(np.float64) for v in (y, data_of(expected)))
        close = {"atol": 1} if out is not None else {"rtol": 0.01, "atol": 0.01}
        np.testing.assert_allclose(found, wanted, **{"rtol": 0, **close})
        assert not plain.precision_guarantee.deterministic
    else:
        assert same(y, data_of(expected))


def test_a_layer_of_floats_is_not_stable_across_instruction_sets() -> None:
    layer = lb.QuantizedLinear(normal((N, K)), activation_dtype="float")
    found = linear_plan(layer, M).precision_guarantee
    assert (found.accumulator, found.deterministic, found.bit_stable) == ("f64", True, False)


def test_many_rows_come_in_pieces_and_each_has_its_bits() -> None:
    """Paths that NumPy finishes take some rows at a time."""
    for options in ({}, {"group_size": 8}, {"dtype": "int4", "group_size": 8}):
        layer = lb.QuantizedLinear(normal((64, 32)), np.full(64, 2**31 - 1), out_params=output_params("int8", 1e4, 0),
                                   **options)  # fmt: skip
        x = normal((1500, 32), 1)
        whole = layer(x).data
        assert same(whole, np.concatenate([layer(x[i : i + 100]).data for i in range(0, 1500, 100)]))


# ---- workspace ------------------------------------------------------------------------------------------------------


def bounded(run: Callable[[], None], size: int, native: int = 0) -> None:
    """Of what a run allocates, tracemalloc sees NumPy's arrays and Python's objects; native blocks come on top."""
    assert peak_of(run) + native <= size


def native_bytes(path: str, m: int, n: int, k: int, b: QuantizationParams) -> int:
    depth, bits = min(k, b.group_size or k), b.dtype.bits
    if path == "general":
        return 0
    if path == "binary":
        return _core.BinaryGemmPlan.workspace_for(m, n, k)
    if path == "groups":
        return sum(_core.GroupGemmPlan.workspace_for(m, n, k, bits, depth))
    return _core.GemmPlan.workspace_for(m, n, depth) + _core.PackedMatrix.bytes_for(depth, n)


@pytest.mark.parametrize("pair", PATHS, ids=" x ".join)
@pytest.mark.parametrize("sizes", [(3, 40, 5), (300, 40, 200), (7, 600, 500), (900, 500, 3)], ids=str)
@pytest.mark.parametrize("options", [OUTCOMES["f32"], OUTCOMES["u8 relu"]], ids=["f32", "u8"])
def test_the_workspace_of_a_product_bounds_what_it_allocates(pair: Any, sizes: Any, options: Any) -> None:
    m, k, n = sizes
    a, b = problem(pair, m, k, n)
    bias = normal(n)
    integers = np.full(n, 2**31 - 1) if PATHS[pair][0] in ("integer", "integer16", "binary") else bias
    for preference in ("fastest", "reference"):
        plan = matmul_plan(a, b, preference, **options)
        y = np.zeros((m, n), plan._epilogue.dtype)
        native = native_bytes(plan.path, m, n, k, b.params) if preference == "fastest" else 0
        for given in (None, bias, integers, np.full(n, np.inf, F32)):
            args = MatMulArgs(a, b, y, given)
            bounded(lambda p=plan, v=args: p.run(v), plan.workspace_size, native)


def test_a_packed_matrix_needs_little() -> None:
    a, b = problem(("uint8", "int8/1"), 64, 2048, 2048)
    packed, y = lb.prepack(b), np.zeros((64, 2048), F32)
    plan = matmul_plan(a, b, prepacked=True)
    assert plan.workspace_size < (4 + lb.get_num_threads()) << 20 < matmul_plan(a, b).workspace_size
    assert peak_of(lambda: plan.run(MatMulArgs(a, packed, y))) < 4096
    lb.set_num_threads(1)
    least = plan.workspace_size
    lb.set_num_threads(8)
    assert plan.workspace_size > least


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("w_type", ["int8", "int4"])
def test_the_workspace_of_a_convolution_bounds_what_it_allocates(name: str, layout: str, w_type: str) -> None:
    x, w, geometry = convolution(name, layout, w_type)
    x = lb.quantize(np.resize(normal(1000), [s * (4 if s > 4 else 1) for s in x.shape]).astype(F32), "int8")
    channels = x.shape[1 if layout == "NCHW" else 3]
    groups = geometry.get("groups", 1) if name != "depthwise" else channels
    outputs = w.shape[0] * 8 if name != "depthwise" else channels
    w = lb.quantize(normal((outputs, channels // groups, *w.shape[2:])), w_type, axis=0)
    geometry["groups"] = groups
    for options in (OUTCOMES["f32"], OUTCOMES["s8"]):
        for prepacked in (False, True):
            given = lb.prepack_conv2d(w, groups) if prepacked else w
            plan = conv_plan(x, w, prepacked=prepacked, **geometry, **options)
            y = np.zeros(plan.descriptor.output_shape, plan._epilogue.dtype)
            for bias in (None, np.full(outputs, 2**31 - 1)):
                args = Conv2dArgs(x, given, y, bias)
                bounded(lambda p=plan, v=args: p.run(v), plan.workspace_size)
    plan = conv_plan(x, w, "reference", **geometry)
    y = np.zeros(plan.descriptor.output_shape, F32)
    bounded(lambda: plan.run(Conv2dArgs(x, w, y)), plan.workspace_size)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("out", [None, output_params("int8", 0.1, 3)], ids=["", "codes"])
def test_the_workspace_of_a_layer_bounds_what_it_allocates(name: str, element: str, out: Any) -> None:
    options, *_ = LAYERS[name]
    for rows, inputs, outputs in ((2, 48, 19), (400, 640, 19), (33, 24, 19), (3000, 16, 19), (4, 512, 700)):
        if name == "mixed" and outputs != 19:
            continue
        for bias in (None, np.full(outputs, 2**31 - 1)):
            layer = lb.QuantizedLinear(normal((outputs, inputs)), bias, out_params=out, **options)
            x = normal((rows, inputs), 1, FLOATS[element])
            plan = linear_plan(layer, rows, element)
            y = np.zeros((rows, outputs), plan._epilogue.dtype)
            args = LinearArgs(x, layer, y)
            bounded(lambda p=plan, v=args: p.run(v), plan.workspace_size)
            assert layer.workspace_size(rows) == plan.workspace_size
            plain = linear_plan(layer, rows, element, "reference")
            bounded(lambda p=plain, v=args: p.run(v), plain.workspace_size)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_the_workspace_of_a_layer_on_images(layout: str) -> None:
    layer = lb.QuantizedConv2d(normal((16, 8, 3, 3)), padding=1, layout=layout)
    x = normal((2, 8, 40, 40) if layout == "NCHW" else (2, 40, 40, 8))
    result = layer(x).nbytes
    assert peak_of(lambda: layer(x)) - result <= layer.workspace_size(x.shape)


CODES: dict[str, QuantizationParams | None] = {
    "floats": None,
    "int8": output_params("int8", 0.05, 3),
    "int16": output_params("int16", 0.001, 5),
    "int4": output_params("int4", 0.5, 1),
    "by channel": QuantizationParams("int8", scale=np.full(16, 0.1, F32), axis=-1),
    "logarithmic": QuantizationParams.logarithmic("int8", F32(9)),
    "binary": QuantizationParams("binary"),
    "mixed": QuantizationParams.mixed([1, 2, 4, 8, 16, 8, 8, 8] * 2, axis=-1),
}


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ({"dtype": "int8", "axis": 0}, 1),
        ({"dtype": "int8", "axis": 0}, 16),
        ({"dtype": "int16", "axis": 0}, 1),
        ({"dtype": "uint16", "scheme": "asymmetric"}, 16),
        ({"dtype": "binary"}, 2),
        ({"dtype": lb.QuantizedDType.mixed([1, 2, 4, 8] * 4), "axis": 0}, 1),
        ({"dtype": "int4", "axis": 2, "group_size": 2}, 4),
    ],
    ids=["integer", "depthwise", "integer16", "16 bits by channel", "binary", "mixed", "blocks"],
)
def test_the_workspace_of_a_layer_over_any_weights(kind: dict[str, Any], groups: int, layout: str, codes: str) -> None:
    w = lb.quantize(normal((16, 16 // groups, 3, 3)), **kind)
    out, shape = CODES[codes], (2, 16, 33, 16) if layout == "NCHW" else (2, 33, 16, 16)
    x = normal(shape)
    for bias in (None, normal(16), np.full(16, np.inf, F32)):
        layer = lb.QuantizedConv2d(w, bias, padding=1, groups=groups, layout=layout, out_params=out)
        y = layer(x)
        bounded(lambda f=layer: f(x), layer.workspace_size(shape) + y.nbytes)


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("name", LAYERS)
def test_the_workspace_of_a_layer_to_any_codes(name: str, codes: str) -> None:
    options, *_ = LAYERS[name]
    out = CODES[codes]
    if codes == "by channel":
        out = QuantizationParams("int8", scale=np.full(19, 0.1, F32), axis=-1)
    elif codes == "mixed":
        out = QuantizationParams.mixed([1, 2, 4, 8, 16] * 3 + [8] * 4, axis=-1)
    for rows, inputs in ((2, 48), (400, 640), (3000, 16)):
        x = normal((rows, inputs), 1)
        for bias in (None, np.full(19, np.inf, F32)):
            layer = lb.QuantizedLinear(normal((19, inputs)), bias, out_params=out, **options)
            y = layer(x)
            bounded(lambda f=layer, x=x: f(x), layer.workspace_size(rows) + y.nbytes)


def test_native_blocks_are_counted() -> None:
    """What tracemalloc does not see is as large as the drivers say."""
    a, b = problem(("uint8", "int8/1"), 64, 256, 256)
    threads = lb.get_num_threads()
    native = _core.GemmPlan.workspace_for(64, 256, 256)
    assert matmul_plan(a, b, prepacked=True).workspace_size >= native > threads * 100_000
    layer = lb.QuantizedLinear(normal((64, 256)), dtype="int4", group_size=32)
    native = _core.GroupGemmPlan.workspace_for(16, 64, 256, 4, 32)[0] + _core.LinearPlan.workspace_for(16, 256)
    assert layer.workspace_size(16) >= native > 0
    assert _core.GroupGemmPlan.workspace_for(16, 64, 256, 4, 32)[1] >= layer._packed.nbytes
    assert _core.PackedMatrix.bytes_for(256, 256) == lb.prepack(b).native.nbytes


# ---- what is refused ------------------------------------------------------------------------------------------------

S8, BY_COLUMN = QuantizationParams("int8"), QuantizationParams("int8", scale=np.ones(N, F32), axis=1)
PRODUCT = {"m": M, "n": N, "k": K, "a": S8, "b": BY_COLUMN}
IMAGE = {"x_shape": (1, 4, 8, 8), "w_shape": (6, 4, 3, 3), "x": S8, "w": S8}
LAYER = {"rows": M, "in_features": K, "out_features": N, "weight": QuantizationParams("int8")}
IN_BLOCKS = QuantizationParams("int4", scale=np.ones((N, K // 8), F32), axis=1, group_size=8)


@pytest.mark.parametrize(
    ("cls", "fields", "error", "words"),
    [
        (MatMulPlan, {"m": -1}, InvalidProblem, "m: -1; expected at least 0"),
        (MatMulPlan, {"k": 2.5}, InvalidProblem, "k: 2.5; expected an integer"),
        (MatMulPlan, {"n": N + 1}, InvalidProblem, rf"b: scale: shape \({N},\).*expected \({N + 1},\)"),
        (MatMulPlan, {"a": "int8"}, InvalidProblem, "a: str; expected QuantizationParams"),
        (MatMulPlan, {"activation": "gelu"}, InvalidProblem, "activation: 'gelu'"),
        (MatMulPlan, {"clamp": (3, 1)}, InvalidProblem, "clamp: .*expected least <= greatest"),
        (MatMulPlan, {"clamp": 3}, InvalidProblem, "clamp: 3"),
        (MatMulPlan, {"out_dtype": "float64"}, Unsupported, "out_dtype: 'float64'"),
        (MatMulPlan, {"out_params": QuantizationParams("int4")}, Unsupported, "out_params: int4"),
        (MatMulPlan, {"out_params": QuantizationParams("int16")}, Unsupported, "out_params: int16"),
        (MatMulPlan, {"out_params": BY_COLUMN}, Unsupported, "out_params: scales along axis 1"),
        (MatMulPlan, {"b": QuantizationParams("int16"), "prepacked": True}, Unsupported, "b: .*int16"),
        (Conv2dPlan, {"x_shape": (4, 8, 8)}, InvalidProblem, r"x: shape \(4, 8, 8\); expected four"),
        (Conv2dPlan, {"x_shape": 8}, InvalidProblem, "x_shape: 8"),
        (Conv2dPlan, {"w_shape": (6, 4, 3)}, InvalidProblem, r"w: shape \(6, 4, 3\)"),
        (Conv2dPlan, {"x_shape": (1, 5, 8, 8)}, InvalidProblem, "x: 5 channels; w has 4 in each of 1 groups"),
        (Conv2dPlan, {"groups": 4}, InvalidProblem, "groups: 4; expected a divisor of w's 6 outputs"),
        (Conv2dPlan, {"w_shape": (6, 4, 9, 3)}, InvalidProblem, "x: 8 by 8 .* smaller than the kernel, 9 by 3"),
        (Conv2dPlan, {"stride": 0}, InvalidProblem, "stride: 0; expected at least 1"),
        (Conv2dPlan, {"layout": "HWC"}, InvalidProblem, "layout: 'HWC'"),
        (Conv2dPlan, {"x": QuantizationParams("int16")}, Unsupported, "x: int16"),
        (Conv2dPlan, {"w": QuantizationParams("binary")}, Unsupported, "w: binary"),
        (Conv2dPlan, {"x": QuantizationParams.logarithmic("int8")}, Unsupported, "x: int8, logarithmic"),
        (Conv2dPlan, {"x": QuantizationParams("int8", scale=np.ones(4, F32), axis=1)}, Unsupported, "x: scales along"),
        (Conv2dPlan, {"w": QuantizationParams("int8", scale=np.ones(4, F32), axis=1)}, Unsupported, "w: scales along"),
        (Conv2dPlan, {"w": QuantizationParams("int8", scale=np.ones(4, F32), axis=0)}, InvalidProblem, "w: scale"),
        (LinearPlan, {"rows": -2}, InvalidProblem, "rows: -2"),
        (LinearPlan, {"activation_dtype": "int4"}, InvalidProblem, "activation_dtype: 'int4'"),
        (LinearPlan, {"input_element": "f64"}, Unsupported, "input_element: f64; expected one of f32, f16, bf16"),
        (LinearPlan, {"input_element": "s8"}, Unsupported, "input_element: s8"),
        (LinearPlan, {"input_params": QuantizationParams("int4")}, Unsupported, "input_params: int4"),
        (LinearPlan, {"weight": IN_BLOCKS, "activation_dtype": "uint8"}, Unsupported, "activation_dtype: unsigned"),
        (LinearPlan, {"weight": IN_BLOCKS, "in_features": K + 8}, InvalidProblem, "weight: scale: shape"),
        (LinearPlan, {"out_params": QuantizationParams("uint16")}, Unsupported, "out_params: uint16"),
    ],
)
def test_select_refuses(cls: Any, fields: dict[str, Any], error: type[Exception], words: str) -> None:
    sound = {MatMulPlan: PRODUCT, Conv2dPlan: IMAGE, LinearPlan: LAYER}[cls]
    cls.select(cls.Descriptor(**sound))
    with pytest.raises(error, match=f"^{words}"):
        cls.select(cls.Descriptor(**{**sound, **fields}))


@pytest.mark.parametrize("cls", [MatMulPlan, Conv2dPlan, LinearPlan])
def test_select_refuses_what_every_plan_refuses(cls: Any) -> None:
    sound = cls.Descriptor(**{MatMulPlan: PRODUCT, Conv2dPlan: IMAGE, LinearPlan: LAYER}[cls])
    with pytest.raises(Unsupported, match="device: 'cuda'"):
        cls.select(sound, "cuda")
    with pytest.raises(InvalidProblem, match="preference: 'slow'"):
        cls.select(sound, preference="slow")
    with pytest.raises(InvalidProblem, match=f"descriptor: int; expected {cls.Descriptor.__name__}"):
        cls.select(3)


def read_only(shape: tuple[int, ...]) -> Array:
    y = np.zeros(shape, F32)
    y.flags.writeable = False
    return y


A, B = problem(("int8", "int8/1"))
OTHER = lb.quantize(normal((M, K)) * 2)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"a": A.data}, InvalidProblem, "a: ndarray; expected a QuantizedTensor$"),
        ({"b": B.data}, InvalidProblem, "b: ndarray; expected a QuantizedTensor or PackedMatrix$"),
        ({"a": B}, InvalidProblem, rf"a: shape \({K}, {N}\); expected \({M}, {K}\)"),
        ({"b": lb.prepack(B[:, :4])}, InvalidProblem, rf"b: shape \({K}, 4\); expected \({K}, {N}\)"),
        ({"a": OTHER}, InvalidProblem, "a: QuantizationParams.*; expected QuantizationParams.*descriptor"),
        ({"b": lb.prepack(lb.quantize(normal((K, N))))}, InvalidProblem, "b: QuantizationParams"),
        ({"a": QuantizedTensor(np.asfortranarray(A.data), A.params)}, InvalidProblem, "a: expected aligned, C-cont"),
        ({"output": np.zeros((N, M), F32)}, InvalidProblem, rf"output: shape \({N}, {M}\); expected \({M}, {N}\)"),
        ({"output": np.zeros((M, N))}, Unsupported, "output: float64; expected float32"),
        ({"output": [[0.0]]}, InvalidProblem, "output: list"),
        ({"output": np.zeros((N, M), F32).T}, InvalidProblem, "output: expected a writable, aligned, C-contiguous"),
        ({"output": read_only((M, N))}, InvalidProblem, "output: expected a writable"),
        ({"output": OTHER}, InvalidProblem, "output: a QuantizedTensor; expected an array of float32"),
        ({"bias": np.zeros(N + 1)}, InvalidProblem, rf"bias: shape \({N + 1},\); expected \({N},\)"),
        ({"bias": np.zeros(N, complex)}, Unsupported, "bias: complex128"),
    ],
)
def test_a_run_refuses_before_any_work(change: dict[str, Any], error: type[Exception], words: str) -> None:
    plan = matmul_plan(A, B)
    y = np.full((M, N), 5, F32)
    args = MatMulArgs(**{"a": A, "b": B, "output": y, **change})
    for refused in (plan.can_implement, plan.run):
        with pytest.raises(error, match=f"^{words}"):
            refused(args)
    assert (y == 5).all()
    plan.can_implement(MatMulArgs(A, B, y))


def test_memory_must_not_overlap() -> None:
    block = np.zeros(4096, np.uint8)
    a = QuantizedTensor(block[8 : 8 + M * K].view(np.int8).reshape(M, K), A.params)
    y = block[64 : 64 + 4 * M * N].view(F32).reshape(M, N)
    plan = matmul_plan(A, B)
    with pytest.raises(InvalidProblem, match=r"^output: shares memory with a"):
        plan.run(MatMulArgs(a, B, y))
    with pytest.raises(InvalidProblem, match=r"^output: shares memory with bias"):
        plan.run(MatMulArgs(A, B, y, y[0]))
    layer = lb.QuantizedLinear(normal((K, K)))
    x = normal((K, K))
    with pytest.raises(InvalidProblem, match=r"^output: shares memory with x"):
        linear_plan(layer, K).run(LinearArgs(x, layer, x))
    q, w, geometry = convolution("plain", "NCHW")
    conv = conv_plan(q, w, **geometry, out_params=output_params("uint8", 1, 0))
    shared = QuantizedTensor(np.zeros(2000, np.uint8)[: q.size].reshape(q.shape), q.params)
    target = shared.data.base[100 : 100 + np.prod(conv.descriptor.output_shape)].reshape(conv.descriptor.output_shape)
    with pytest.raises(InvalidProblem, match=r"^output: shares memory with x"):
        conv.can_implement(Conv2dArgs(shared, w, target))


def test_integers_cannot_be_added_to_sums_of_floats() -> None:
    for pair, (path, *_) in PATHS.items():
        if path in ("groups", "blocks", "general"):
            a, b = problem(pair)
            args = MatMulArgs(a, b, np.zeros((M, N), F32), np.arange(N))
            for preference in ("fastest", "reference"):
                with pytest.raises(Unsupported, match=f"^bias: integers; on the {path} path"):
                    matmul_plan(a, b, preference).can_implement(args)


def test_prepacked_means_packed() -> None:
    with pytest.raises(InvalidProblem, match=r"^b: QuantizedTensor; expected a PackedMatrix$"):
        matmul_plan(A, B, prepacked=True).can_implement(MatMulArgs(A, B, np.zeros((M, N), F32)))
    x, w, geometry = convolution("grouped", "NCHW")
    plan = conv_plan(x, w, prepacked=True, **geometry)
    y = np.zeros(plan.descriptor.output_shape, F32)
    with pytest.raises(InvalidProblem, match=r"^w: QuantizedTensor; expected a PackedConv$"):
        plan.run(Conv2dArgs(x, w, y))
    with pytest.raises(InvalidProblem, match=r"^w: packed for 1 groups; expected 2"):
        plan.run(Conv2dArgs(x, lb.prepack_conv2d(w), y))


def test_a_layer_must_be_the_one_described() -> None:
    layer = lb.QuantizedLinear(normal((N, K)))
    plan = linear_plan(layer, M)
    x, y = normal((M, K)), np.zeros((M, N), F32)
    given = QuantizationParams("int8", scale=0.5)
    for other, words in (
        (lb.QuantizedLinear(normal((N, K + 1))), f"layer: in_features {K + 1}; expected {K}"),
        (lb.QuantizedLinear(normal((N + 1, K))), f"layer: out_features {N + 1}; expected {N}"),
        (
            lb.QuantizedLinear(layer.weight, activation_dtype="uint8"),
            "layer: activation_dtype 'uint8'; expected 'int8'",
        ),
        (lb.QuantizedLinear(normal((N, K), 1)), "layer: weight: QuantizationParams"),
        (lb.QuantizedLinear(layer.weight, input_params=given), "layer: input_params: Quant.*; expected None"),
        (lb.QuantizedLinear(layer.weight, out_params=given), "layer: out_params: Quant.*; expected None"),
        (layer.weight, "layer: QuantizedTensor; expected a QuantizedLinear"),
    ):
        with pytest.raises(InvalidProblem, match=f"^{words}"):
            plan.run(LinearArgs(x, other, y))
    with pytest.raises(InvalidProblem, match=rf"^x: shape \({M + 1}, {K}\); expected \({M}, {K}\)"):
        plan.run(LinearArgs(normal((M + 1, K)), layer, y))
    with pytest.raises(Unsupported, match=r"^x: float16; expected float32"):
        plan.run(LinearArgs(x.astype(np.float16), layer, y))
    assert not y.any()
    x[3, 2] = np.nan
    for preference in ("fastest", "reference"):
        with pytest.raises(InvalidProblem, match=r"^x: nan at index \(3, 2\)"):
            linear_plan(layer, M, preference=preference).run(LinearArgs(x, layer, y))


# ---- what plans are -------------------------------------------------------------------------------------------------


def plans_with_args() -> dict[str, tuple[Any, Callable[[Any], Any], Array]]:
    """A plan, its args for an output, and the result, of each class."""
    x, w, geometry = convolution("depthwise", "NCHW")
    layer, floats = lb.QuantizedLinear(normal((N, K)), normal(N), dtype="int4", group_size=8), normal((M, K), 1)
    packed, conv = lb.prepack(B), lb.prepack_conv2d(w, geometry["groups"])
    return {
        "matmul": (matmul_plan(A, B), lambda y: MatMulArgs(A, packed, y), lb.qmatmul(A, B)),
        "conv2d": (conv_plan(x, w, **geometry), lambda y: Conv2dArgs(x, conv, y), lb.qconv2d(x, w, **geometry)),
        "linear": (linear_plan(layer, M), lambda y: LinearArgs(floats, layer, y), layer(floats)),
    }


@pytest.mark.parametrize("name", ["matmul", "conv2d", "linear"])
def test_a_plan_is_a_value(name: str) -> None:
    plan, args, expected = plans_with_args()[name]
    for other in (pickle.loads(pickle.dumps(plan)), copy.deepcopy(plan)):
        assert other == plan
        assert hash(other) == hash(plan)
        assert other.descriptor == plan.descriptor
        assert other.sku == plan.sku
        assert other.workspace_size == plan.workspace_size
        y = room(expected)
        other.run(args(y))
        assert same(y, expected)
    assert isinstance(plan.sku, KernelSku)
    with pytest.raises(AttributeError, match="immutable"):
        plan.path = "faster"
    with pytest.raises(AttributeError):
        plan.descriptor.out_params = None
    assert lb.plans.PLANS[name] is type(plan)


def test_equal_problems_are_equal_however_they_are_said() -> None:
    weak, strong = QuantizationParams("int8", scale=0.5), QuantizationParams("int8", scale=np.float32(0.5))
    last = BY_COLUMN.replace(axis=-1)
    one = MatMulDescriptor(np.int64(M), N, K, weak, last, out_dtype=np.float16, clamp=[0, 1])  # type: ignore[arg-type]
    two = MatMulDescriptor(M, N, K, strong, BY_COLUMN, out_dtype="float16", clamp=(0.0, 1.0))
    assert one == two
    assert hash(one) == hash(two)
    assert one != MatMulDescriptor(M, N, K, strong, BY_COLUMN)
    shapes = ((1, 4, 8, 8), (6, 4, 3, 3), S8, S8)
    assert Conv2dDescriptor(*shapes, padding=1) == Conv2dDescriptor(*shapes, stride=(1, 1), padding=[1, 1, 1, 1])


@pytest.mark.parametrize("name", ["matmul", "conv2d", "linear"])
def test_eight_threads_run_one_plan(name: str) -> None:
    plan, args, expected = plans_with_args()[name]
    wrong: list[Any] = []

    def work() -> None:
        y = room(expected)
        for _ in range(50):
            y[...] = 77
            try:
                plan.run(args(y))
            except Exception as error:  # a thread's errors would be lost
                wrong.append(error)
            if not same(y, expected):
                wrong.append("bits")

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 0, 4), (3, 4, 0)], ids=str)
def test_nothing_times_something(sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    a = QuantizedTensor(np.zeros((m, k), np.int8), S8)
    b = QuantizedTensor(np.zeros((k, n), np.int8), S8)
    y = np.full((m, n), 5, F32)
    for preference in ("fastest", "reference"):
        matmul_plan(a, b, preference).run(MatMulArgs(a, b, y))
        assert not y.any()
