"""What was settled for one call is used for no other: a call gives what it would give if nothing had gone before.

Each cache meets calls that differ in one component of its key at a time, in several orders, and every answer, errors
included, is compared with the one of objects that have met nothing else.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowbit as lb
from lowbit import QuantizationParams, QuantizedTensor
from lowbit.calibration import MSE, CalibrationCache, Calibrator, Percentile
from lowbit.numerics.logarithm import log_tables
from lowbit.tuning import AutoTuningConfig, PerformanceRequirements, QuantizationWorkload, tuner

RNG = np.random.default_rng(0)
X = RNG.uniform(-2, 2, (6, 8))
BF16 = ml_dtypes.bfloat16
F32 = np.float32


def told(value: Any) -> Any:
    """All that can be said of a result, to compare."""
    if isinstance(value, QuantizedTensor):
        return "tensor", value.shape, value.data.dtype.name, value.data.tobytes(), value.params.to_json()
    if isinstance(value, np.ndarray):
        return value.dtype.name, value.shape, value.tobytes()
    if isinstance(value, tuple | list):
        return tuple(told(v) for v in value)
    return repr(value)


def answer(call: Callable[[], Any]) -> Any:
    try:
        return told(call())
    except Exception as error:
        return type(error), str(error)


def orders(count: int, several: int = 6) -> Iterator[list[int]]:
    """Every call after every other, by and by."""
    yield [*range(count), *range(count)]
    yield list(reversed(range(count)))
    for seed in range(several):
        some = [i for i in range(count) for _ in range(2)]
        random.Random(seed).shuffle(some)
        yield some


def assert_independent(calls: list[Callable[[Any], Any]], make: Callable[[], Any]) -> None:
    """calls take what has a cache; `make` gives one that has met nothing."""
    alone = [answer(lambda c=call: c(make())) for call in calls]
    assert len(set(map(repr, alone))) > 1
    for order in orders(len(calls)):
        shared = make()
        for i in order:
            assert answer(lambda i=i, s=shared: calls[i](s)) == alone[i], (i, order)


# ---- params ---------------------------------------------------------------------------------------------


def quantize_calls() -> list[Callable[[QuantizationParams], Any]]:
    torch = pytest.importorskip("torch")
    given: list[Any] = [X.astype(kind) for kind in (np.float32, np.float64, np.float16, BF16)]
    given += [X.astype(BF16).view(np.uint16), X.astype(np.float16).view(np.uint16), X.astype(np.int8), X.astype(">f4")]
    given += [torch.from_numpy(X).to(kind) for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16)]
    given += [X.astype(F32)[:3], X.astype(F32).T, X.astype(F32).reshape(2, 3, 8), X.astype(F32).tolist()]
    given += [np.zeros((0, 8), F32), np.ma.masked_array(X.astype(F32))]
    calls: list[Callable[[QuantizationParams], Any]] = [lambda p, x=x: lb.quantize(x, params=p) for x in given]
    x32, x64 = X.astype(F32), X
    options: list[dict[str, Any]] = [
        {"dtype": "uint8"}, {"scheme": "asymmetric"}, {"axis": 0}, {"axis": 1}, {"group_size": 4}, {"qmin": -5},
        {"qmax": 5}, {"full_range": True}, {"steps_per_octave": 2.0}, {"on_nonfinite": "ignore"},
        {"on_nonfinite": "nonsense"}, {"out": 3}, {"out": np.empty(X.shape, np.uint16)}, {"dtype": "int8"},
    ]  # fmt: skip
    calls += [lambda p, o=o: lb.quantize(x32, params=p, **o) for o in options]

    def into(p: QuantizationParams, kind: Any, shape: tuple[int, ...], x: Any = x32) -> Any:
        return lb.quantize(x, params=p, out=np.zeros(shape, kind))

    for kind, shape in itertools.product((np.int8, np.uint8, np.int16), (X.shape, (8, 6), (24,), (2, 3, 8))):
        calls.append(lambda p, k=kind, s=shape: into(p, k, s))
    for x in (x32, x64):
        calls += [
            lambda p, x=x: lb.quantize(x, params=p, out=QuantizedTensor.empty(x.shape, p.for_compute(x.dtype))),
            lambda p, x=x: lb.quantize(x, params=p).dequantize(),
            lambda p, x=x: lb.dequantize(lb.quantize(x, params=p), out=np.empty(x.shape, F32)),
            lambda p, x=x: lb.dequantize(lb.quantize(x, params=p), out=np.empty(x.shape, np.float64)),
            lambda p, x=x: lb.dequantize(lb.quantize(x, params=p), dtype=np.float16),
            lambda p, x=x: lb.dequantize(lb.quantize(x, params=p), dtype="bfloat16"),
            lambda p, x=x: lb.dequantize(QuantizedTensor.zeros(x.shape, p)),
            lambda p, x=x: lb.qrelu(lb.quantize(x, params=p)),
            lambda p, x=x: lb.qadd(*[lb.quantize(x, params=p)] * 2, out_params=p),
        ]
        bounds = ((-1.0, 1.0), (-1.0, 0.5), (0.0, 1.0), (-0.5, None), (None, 0.5))
        calls += [lambda p, x=x, b=b: lb.qclamp(lb.quantize(x, params=p), *b) for b in bounds]
    return calls


SCALE = F32(0.02)
PARAMS: dict[str, Callable[[], QuantizationParams]] = {
    "Python number": lambda: QuantizationParams("int8", scale=0.02),
    "float32": lambda: QuantizationParams("int8", scale=SCALE),
    "float64": lambda: QuantizationParams("int8", scale=np.float64(0.02)),
    "made from float64": lambda: lb.quantize(X).params,
    "uint8": lambda: QuantizationParams("uint8", "asymmetric", 0.02, 100),
    "int16": lambda: QuantizationParams("int16", scale=0.001),
    "int4": lambda: QuantizationParams("int4", scale=0.3),
    "logarithmic": lambda: QuantizationParams.logarithmic(scale=2.0),
    "channels": lambda: QuantizationParams("int8", scale=0.02, axis=0),
    "blocks": lambda: QuantizationParams("int8", scale=0.02, group_size=4),
    "mixed": lambda: QuantizationParams.mixed([8, 4, 1, 2, 16, 8], SCALE),
    "binary": lambda: QuantizationParams.binary(0.5),
}


@pytest.mark.parametrize("name", PARAMS)
def test_params_answer_as_if_they_had_met_nothing_else(name: str) -> None:
    assert_independent(quantize_calls(), PARAMS[name])


def test_dequantize_stays_float64_after_float32_data() -> None:
    q = lb.quantize(X)
    before = lb.dequantize(q)
    lb.quantize(X.astype(F32), params=q.params)
    after = lb.dequantize(q)
    assert after.dtype == before.dtype == np.float64
    np.testing.assert_array_equal(after, before)


def test_uint16_does_not_pass_for_bfloat16_after_a_tensor_of_it() -> None:
    torch = pytest.importorskip("torch")
    p = QuantizationParams("int8", scale=0.02)
    lb.quantize(torch.from_numpy(X).bfloat16(), params=p)
    with pytest.raises(lb.UnsupportedDType, match="x: uint16"):
        lb.quantize(X.astype(BF16).view(np.uint16), params=p)


def test_for_compute_is_kept_by_type() -> None:
    p = QuantizationParams("int8", scale=0.1)
    for _ in range(2):
        for kind in (np.float32, np.float64):
            assert p.for_compute(kind).scale.dtype == kind
            assert p.for_compute(np.dtype(kind)) is p.for_compute(kind)


# ---- options by value: True == 1 == 1.0 -------------------------------------------------------------------


def test_templates_of_quantize_are_kept_by_value_and_type() -> None:
    x = X.astype(F32)
    values: list[Any] = [None, 0, 1, -1, 1.0, True, False, np.int64(1), 2.0, "1"]
    calls: list[Callable[[Any], Any]] = []
    for name in ("axis", "group_size", "qmin", "qmax", "steps_per_octave"):
        calls += [lambda _, n=name, v=v: lb.quantize(x, "int8", scheme="linear", **{n: v}) for v in values]
    for dtype in ("int8", "uint8", "int4", np.int8, np.dtype("uint8"), lb.QuantizedDType.of("int8"), 8, None):
        calls += [lambda _, d=dtype, s=s: lb.quantize(x, d, scheme=s) for s in ("symmetric", "linear", "asymmetric")]
    calls += [lambda _, s=s: lb.quantize(x, scheme="logarithmic", steps_per_octave=s) for s in (1, 1.0, True, 8, 4.0)]
    # As an attribute of the package, `quantize` is the function.
    assert_independent(calls, importlib.import_module("lowbit.ops.quantize")._FROM_DATA.clear)


def test_problems_of_fake_quantize_are_kept_by_value_and_type() -> None:
    calls: list[Callable[[Any], Any]] = []
    for kind in (np.float32, np.float64, np.float16, BF16, np.int8, ">f4"):
        calls += [lambda _, k=kind, s=s: lb.fake_quantize(X.astype(k), s) for s in (0.1, 1)]
    for shape in ((48,), (8, 6), (2, 3, 8), (0, 8), ()):
        size = math.prod(shape)
        calls.append(lambda _, s=shape, n=size: lb.fake_quantize(X.reshape(-1)[:n].astype(F32).reshape(s), 0.1))
    x = X.astype(F32)
    for axis in (None, 0, 1, -1, -2, 1.0, 0.0, True, False, np.int64(1), 2, "1"):
        for count in ((), (6,), (8,)):
            scale, zero = np.full(count, 0.1, F32), np.zeros(count, np.int32)
            calls.append(lambda _, a=axis, s=scale, z=zero: lb.fake_quantize(x, s, z, axis=a))
            calls.append(lambda _, a=axis, s=scale, z=zero: lb.fake_quantize_backward(x, x, s, z, axis=a))
    for block in (1, 4, 8, 100, 0, -1, 4.0, True, np.int64(4), None):
        for count in ((6, 2), (6, 1), (6, 8), ()):
            scale, zero = np.full(count, 0.1, F32), np.zeros(count, np.int32)
            calls.append(lambda _, b=block, s=scale, z=zero: lb.fake_quantize(x, s, z, group_size=b))
    ends = [(-128, 127), (-8, 7), (0, 255), (0, 1), (False, True), (0.0, 1.0), (3, 2), (-(2**15) - 1, 0), (0, 2**16)]
    for bounds in ends:
        calls.append(lambda _, b=bounds: lb.fake_quantize(x, 0.1, qmin=b[0], qmax=b[1]))
        calls.append(lambda _, b=bounds: lb.quantize_backward(x, x, 0.1, qmin=b[0], qmax=b[1]))
    assert_independent(calls, importlib.import_module("lowbit.ops.fake_quantize")._SETTLED.clear)


def test_integer_zero_points_are_kept_by_value_and_type() -> None:
    a, b = np.int8([[1, 2], [3, 4]]), np.int8([[1, -1], [2, 5]])
    zeros = [0, 1, True, 1.0, -1, 127, 128, np.int8(1), np.uint64(2**64 - 1), [1, 1], [1, 2], None, 2**40]
    calls = [lambda _, z=z: lb.matmul_integer(a, b, z) for z in zeros]
    calls += [lambda _, z=z: lb.matmul_integer(a, b, 0, z) for z in zeros]
    calls += [lambda _, z=z: lb.matmul_integer(a.view(np.uint8), b, z) for z in zeros]
    assert_independent(calls, lambda: None)


def test_logarithmic_tables_are_kept_by_every_argument() -> None:
    found = {}
    for levels, steps, kind in itertools.product((7, 127), (1.0, 2.0, 8.0), (np.float32, np.float64)):
        for table, values in zip("tm", log_tables(levels, steps, np.dtype(kind)), strict=True):
            assert values.dtype == kind
            assert len(values) == levels
            found[levels, steps, kind, table] = values.tobytes()
    assert len(set(found.values())) == len(found)


# ---- packed weights -------------------------------------------------------------------------------------------

A = RNG.uniform(-1, 1, (5, 8)).astype(F32)
W = RNG.uniform(-1, 1, (8, 4)).astype(F32)


def test_a_packed_matrix_answers_as_if_it_had_met_nothing_else() -> None:
    left = [
        lb.quantize(A), lb.quantize(A * 3), lb.quantize(A, "uint8", scheme="asymmetric"), lb.quantize(A, "int4"),
        lb.quantize(A, axis=0), lb.quantize(A[:2]), lb.quantize(A.reshape(1, 5, 8)), lb.quantize(A, "int16"),
        lb.quantize(A[:, :4]), lb.quantize(W), lb.quantize(A.astype(np.float64)),
    ]  # fmt: skip
    # The same params over other codes: of another order, another type of memory, one dimension more.
    base = left[0]
    left += [
        QuantizedTensor(np.asfortranarray(base.data), base.params), QuantizedTensor(base.data[::-1], base.params),
        QuantizedTensor(base.data[None], base.params), QuantizedTensor(base.data[:0], base.params),
    ]  # fmt: skip
    out = [None, QuantizationParams("int8", scale=0.05), QuantizationParams("uint8", scale=0.05, zero_point=100)]
    calls: list[Callable[[Any], Any]] = [lambda b, a=a, p=p: lb.qmatmul(a, b, out_params=p) for a in left for p in out]
    options: list[dict[str, Any]] = [
        {"out_dtype": "float16"}, {"out_dtype": "bfloat16"}, {"out_dtype": np.float16}, {"out_dtype": "float64"},
        {"out_dtype": np.float32}, {"activation": "relu"}, {"activation": "gelu"}, {"clamp": (-0.5, 0.5)},
        {"clamp": (0.0, 0.5)}, {"clamp": (-0.5, 1)}, {"clamp": (0, 1)}, {"clamp": (False, True)}, {"clamp": (1, 0)},
        {"bias": np.ones(4, F32)}, {"bias": np.ones(4, np.int32)}, {"transpose_a": True}, {"transpose_b": True},
        {"activation": "relu", "out_params": out[1]}, {"clamp": (-0.5, 0.5), "out_params": out[2]},
    ]  # fmt: skip
    calls += [lambda b, o=o: lb.qmatmul(base, b, **o) for o in options]
    calls += [lambda b: lb.qmatmul(lb.quantize(A.T.copy()), b, transpose_a=True)]
    calls += [lambda b, z=z: lb.matmul_integer(base.data, b, z) for z in (0, 1, -3)]
    weight = lb.quantize(W, axis=1)
    assert_independent(calls, lambda: lb.prepack(weight))


def test_params_that_come_and_go_are_not_mistaken_for_each_other() -> None:
    # A new object may have the id of one that is gone; more than a cache holds pass through.
    packed, kernel = lb.prepack(lb.quantize(W, axis=1)), lb.prepack_conv2d(lb.quantize(W.reshape(4, 2, 2, 2)))
    image = RNG.uniform(-1, 1, (1, 2, 4, 4)).astype(F32)
    for i in range(60):
        scale = F32(0.01 * (i % 7 + 1))
        a = lb.quantize(A, params=QuantizationParams("int8", scale=scale))
        x = lb.quantize(image, params=QuantizationParams("int8", scale=scale))
        out = None if i % 3 else QuantizationParams("int8", scale=F32(0.1 * (i % 5 + 1)))
        for _ in range(2):
            want = lb.qmatmul(a, packed.to_tensor(), out_params=out)
            assert told(lb.qmatmul(a, packed, out_params=out)) == told(want)
            want = lb.qconv2d(x, kernel.to_tensor(), out_params=out)
            assert told(lb.qconv2d(x, kernel, out_params=out)) == told(want)
        del a, x, out, want  # so that the next may be made where they were


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_packed_convolution_answers_as_if_it_had_met_nothing_else(groups: int) -> None:
    images = RNG.uniform(-1, 1, (2, 4, 6, 6)).astype(F32)
    base = lb.quantize(images)
    x = [
        base, lb.quantize(images * 3), lb.quantize(images, "uint8", scheme="asymmetric"), lb.quantize(images[:1]),
        lb.quantize(images[..., :5]), lb.quantize(images, "int4"), lb.quantize(images.transpose(0, 2, 3, 1)),
        QuantizedTensor(base.data[::-1], base.params), QuantizedTensor(base.data.transpose(0, 1, 3, 2), base.params),
        lb.quantize(images.astype(np.float64)), QuantizedTensor(base.data[:1], base.params),
        QuantizedTensor(base.data[..., :5], base.params),
    ]  # fmt: skip
    out = [None, QuantizationParams("int8", scale=0.05), QuantizationParams("uint8", scale=0.05, zero_point=100)]
    calls: list[Callable[[Any], Any]] = [lambda w, a=a, p=p: lb.qconv2d(a, w, out_params=p) for a in x for p in out]
    options: list[dict[str, Any]] = [
        {"stride": 2}, {"stride": (1, 2)}, {"stride": (2, 1)}, {"padding": 1}, {"padding": (1, 0)}, {"padding": (0, 1)},
        {"padding": (1, 0, 0, 1)}, {"dilation": 2}, {"dilation": (1, 2)}, {"layout": "NHWC"}, {"out_dtype": "float16"},
        {"out_dtype": "bfloat16"}, {"activation": "relu"}, {"clamp": (-0.5, 0.5)}, {"clamp": (0, 0.5)},
        {"bias": np.ones(8, F32)}, {"bias": np.ones(8, np.int32)}, {"activation": "relu", "out_params": out[1]},
        {"stride": [2, 2]}, {"layout": "NCWH"}, {"stride": 0}, {"stride": 1}, {"padding": (0, 0)}, {"dilation": (1, 1)},
    ]  # fmt: skip
    calls += [lambda w, o=o: lb.qconv2d(base, w, **o) for o in options]
    calls += [lambda w, o=o: lb.qconv2d(x[6], w, layout="NHWC", **o) for o in options[:9]]
    weight = lb.quantize(RNG.uniform(-1, 1, (8 if groups < 4 else 4, 4 // groups, 3, 3)).astype(F32), axis=0)
    assert_independent(calls, lambda: lb.prepack_conv2d(weight, groups))


# ---- layers -----------------------------------------------------------------------------------------------------


def layer_inputs(images: np.ndarray) -> list[Any]:
    torch = pytest.importorskip("torch")
    given: list[Any] = [images.astype(k) for k in (np.float32, np.float16, BF16, np.float64, np.uint16)]
    given += [torch.from_numpy(images.copy()).to(k) for k in (torch.float32, torch.float16, torch.bfloat16)]
    given += [images[:1], images * 100, images[::-1], np.asfortranarray(images), images[:0], images * np.nan]
    return [*given, images[..., :3], images.tolist(), np.ma.masked_array(images), images.astype(BF16).view(np.uint16)]


LINEAR: dict[str, dict[str, Any]] = {
    "int8": {}, "uint8": {"activation_dtype": "uint8"}, "float": {"activation_dtype": "float"},
    "groups": {"dtype": "int4", "group_size": 4}, "blocks": {"group_size": 4},
    "float groups": {"dtype": "int4", "group_size": 4, "activation_dtype": "float"},
    "input_params": {"input_params": QuantizationParams("uint8", scale=0.01, zero_point=90)},
    "out_params": {"out_params": QuantizationParams("int8", scale=0.1)}, "bias": {"bias": np.ones(4, F32)},
    "int16": {"dtype": "int16"}, "logarithmic": {"scheme": "logarithmic"},
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_layer_answers_as_if_it_had_met_nothing_else(name: str) -> None:
    options = dict(LINEAR[name])
    calls: list[Callable[[Any], Any]] = [lambda layer, x=x: layer(x) for x in layer_inputs(A)]
    assert_independent(calls, lambda: lb.QuantizedLinear(W.T.copy(), **options))


@pytest.mark.parametrize("name", ["int8", "uint8", "input_params", "out_params"])
def test_a_convolution_layer_answers_as_if_it_had_met_nothing_else(name: str) -> None:
    images = RNG.uniform(-1, 1, (2, 4, 6, 6)).astype(F32)
    weight = RNG.uniform(-1, 1, (4, 4, 3, 3)).astype(F32)
    calls: list[Callable[[Any], Any]] = [lambda layer, x=x: layer(x) for x in layer_inputs(images)]
    calls += [lambda layer, o=o: layer(images, **o) for o in ({"layout": "NHWC"}, {"out_layout": "NHWC"})]
    assert_independent(calls, lambda: lb.QuantizedConv2d(weight, **LINEAR[name]))


# ---- calibration ------------------------------------------------------------------------------------------------


def test_calibrations_are_kept_by_every_part_of_the_question() -> None:
    x = RNG.standard_normal((12, 16)).astype(F32)
    questions: list[dict[str, Any]] = [
        {}, {"dtype": "uint8"}, {"dtype": "int4"}, {"dtype": lb.QuantizedDType.mixed([8, 4] * 8), "axis": 1},
        {"dtype": lb.QuantizedDType.mixed([4, 8] * 8), "axis": 1}, {"scheme": "asymmetric"}, {"scheme": "logarithmic"},
        {"scheme": "logarithmic", "steps_per_octave": 4.0}, {"axis": 0}, {"axis": 1},
        {"axis": 1, "group_size": 4}, {"axis": 1, "group_size": 8}, {"axis": 0, "group_size": 8},
        {"qmin": -5, "qmax": 5}, {"qmin": -5, "qmax": 6},
        {"qmin": -128, "qmax": 127}, {"full_range": True}, {"method": "percentile"}, {"method": Percentile(99.0)},
        {"method": Percentile(98.0)}, {"method": "min_max"}, {"method": "adaptive"}, {"samples": x * 2},
        {"samples": x.astype(np.float64)}, {"samples": x[:11]},
    ]  # fmt: skip

    def ask(cache: Any, samples: Any = x, dtype: Any = "int8", method: Any = "mse", **options: Any) -> Any:
        return lb.calibrate(samples, dtype, method, cache=cache, **options).to_json()

    alone = [ask(None, **q) for q in questions]
    for order in orders(len(questions), several=0):
        cache = CalibrationCache()
        for i in order:
            assert ask(cache, **questions[i]) == alone[i]
        assert cache.hits == len(order) - len(questions)


def test_given_fingerprints_do_not_hide_data_that_is_refused() -> None:
    cache = CalibrationCache()
    x = np.float32([1, np.nan, 2])
    lb.calibrate(x, "int8", "mse", cache=cache, fingerprint="v1", on_nonfinite="ignore")
    with pytest.raises(lb.InvalidProblem, match="nan"):
        lb.calibrate(x, "int8", "mse", cache=cache, fingerprint="v1")
    first = lb.calibrate(x[:1], "int8", "mse", cache=cache, fingerprint="v2")
    for options in ({"dtype": "int4"}, {"full_range": True}, {"axis": 0}, {"fingerprint": "v3"}, {"method": "min_max"}):
        asked = {"dtype": "int8", "method": "mse", "fingerprint": "v2", **options}
        hits = cache.hits
        lb.calibrate(np.float32([3.0, 5.0]), **asked, cache=cache)
        assert cache.hits == hits
    assert lb.calibrate([], "int8", "mse", cache=cache, fingerprint="v2") == first


NESTED = "[" * 100_000 + "]" * 100_000
EDITS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dtype": lambda p: {**p, "dtype": "int16"}, "scheme": lambda p: {**p, "scheme": "asymmetric"},
    "scale": lambda p: {**p, "scale": p["scale"] * 2}, "type of the scale": lambda p: {**p, "scale_dtype": None},
    "axis": lambda p: {**p, "axis": 0, "scale": [p["scale"]], "zero_point": [0]},
    "zero_point": lambda p: {**p, "zero_point": 5}, "qmin": lambda p: {**p, "qmin": -5},
    "qmax": lambda p: {**p, "qmax": 5},
    "group_size": lambda p: {**p, "axis": 0, "group_size": 4, "scale": [p["scale"]], "zero_point": [0]},
}  # fmt: skip


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_calibration_is_found_anew(name: str, tmp_path: Any) -> None:
    path, x = tmp_path / "c.json", RNG.standard_normal(500).astype(F32)
    want = lb.calibrate(x, "int8", "mse", cache=path)
    kept = json.loads(path.read_text())
    for entry in kept["entries"].values():
        entry["params"] = json.dumps(EDITS[name](json.loads(entry["params"])))
        assert QuantizationParams.from_json(entry["params"]) != want
    path.write_text(json.dumps(kept))
    with pytest.warns(UserWarning, match=r"c\.json: an entry was edited or damaged; it is computed again"):
        assert lb.calibrate(x, "int8", "mse", cache=path) == want
    calibrator = Calibrator("mse")
    calibrator.add(x)
    assert calibrator.calibrate("int8", cache=path) == want
    assert calibrator.from_cache  # it was written again


@pytest.mark.parametrize(
    "entry",
    [NESTED, {"params": NESTED, "digest": ""}, 3, None, [], {}, {"params": 3, "digest": 3}, "{}", {"params": "{}"}],
    ids=lambda e: repr(e)[:30],
)
def test_what_is_no_calibration_is_found_anew(entry: Any, tmp_path: Any) -> None:
    path, x = tmp_path / "c.json", RNG.standard_normal(500).astype(F32)
    want = lb.calibrate(x, "int8", "mse", cache=path)
    kept = json.loads(path.read_text())
    kept["entries"] = dict.fromkeys(kept["entries"], entry)
    path.write_text(json.dumps(kept))
    if entry is None:  # as if it were not there
        assert lb.calibrate(x, "int8", "mse", cache=path) == want
    else:
        with pytest.warns(UserWarning, match="an entry was edited or damaged"):
            assert lb.calibrate(x, "int8", "mse", cache=path) == want


def test_an_entry_of_another_question_is_no_answer(tmp_path: Any) -> None:
    path, x = tmp_path / "c.json", RNG.standard_normal(500).astype(F32)
    want = {dtype: lb.calibrate(x, dtype, MSE(), cache=path) for dtype in ("int8", "int4")}
    kept = json.loads(path.read_text())
    kept["entries"] = dict(zip(kept["entries"], reversed(kept["entries"].values()), strict=True))
    path.write_text(json.dumps(kept))
    for dtype, params in want.items():
        with pytest.warns(UserWarning, match="edited or damaged"):
            assert lb.calibrate(x, dtype, MSE(), cache=path) == params


# ---- tuning -------------------------------------------------------------------------------------------------------


def test_tuning_is_kept_by_every_part_of_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    work, wanted, how = QuantizationWorkload.matmul(1, 64, 64), PerformanceRequirements(), AutoTuningConfig()
    image, kernel = (1, 8, 6, 6), (8, 8, 3, 3)
    others = [
        *(QuantizationWorkload.matmul(*sizes) for sizes in ((2, 64, 64), (1, 65, 64), (1, 64, 65))),
        QuantizationWorkload.matmul(1, 64, 64, x=np.ones((1, 64), F32)),
        QuantizationWorkload.matmul(1, 64, 64, x=np.zeros((1, 64), F32)),
        QuantizationWorkload.matmul(1, 64, 64, weight=np.ones((64, 64), F32)),
        QuantizationWorkload.conv2d(image, kernel), QuantizationWorkload.conv2d(image, kernel, stride=2),
        QuantizationWorkload.conv2d(image, kernel, padding=1), QuantizationWorkload.conv2d(image, (8, 8, 1, 1)),
        QuantizationWorkload.elementwise("add", (64, 64)), QuantizationWorkload.elementwise("add", (64, 65)),
    ]  # fmt: skip
    keys = [tuner._key(w, wanted, how) for w in (work, *others)]
    for given, at in ((wanted, 1), (how, 2)):
        for field in dataclasses.fields(given):
            value = getattr(given, field.name)
            changed = (not value) if isinstance(value, bool) else 0.5 if value is None else value / 2
            try:
                other = dataclasses.replace(given, **{field.name: changed})
            except lb.InvalidProblem:
                other = dataclasses.replace(given, **{field.name: 7})
            asked = [work, wanted, how]
            asked[at] = other
            keys.append(tuner._key(*asked))
    machine = lb.hardware()
    for change in ({"cpu": "another"}, {"isa": "another"}, {"threads": machine.threads + 1}):
        monkeypatch.setattr(tuner, "hardware", lambda c=change: _Machine(machine, c))
        keys.append(tuner._key(work, wanted, how))
    monkeypatch.setattr(tuner, "hardware", lambda: machine)
    monkeypatch.setattr(tuner, "__version__", "another")
    keys.append(tuner._key(work, wanted, how))
    assert len(set(keys)) == len(keys)


class _Machine:
    def __init__(self, machine: Any, change: dict[str, Any]) -> None:
        self.machine, self.change = machine, change

    def __getattr__(self, name: str) -> Any:
        return self.change[name] if name in self.change else getattr(self.machine, name)


# ---- torch --------------------------------------------------------------------------------------------------------


def test_layouts_of_torch_are_kept_by_shape_axis_and_block() -> None:
    torch = pytest.importorskip("torch")
    from lowbit.torch.functional import kernels

    shapes = [torch.Size(s) for s in ((6, 8), (8, 6), (48,), (2, 3, 8))]
    asked = list(itertools.product(shapes, (None, 0, -1), (None, 1, 4)))
    alone = [repr(kernels.granularity(*a)) for a in asked]
    assert len(set(alone)) > 3
    for order in orders(len(asked), several=2):
        kernels._GRANULARITIES.clear()
        assert all(repr(kernels.cached_granularity(*asked[i])) == alone[i] for i in order)

    def masked(shape: Any, axis: Any, block: Any) -> Any:
        found = kernels._masked(torch.zeros(shape), False, -8, 7, axis, block)
        return found and (found[0], found[2], found[1].workspace_bytes)

    alone = []
    for a in asked:
        kernels._MASKED.clear()
        alone.append(repr(masked(*a)))
    assert len(set(alone)) > 3
    for order in orders(len(asked), several=2):
        kernels._MASKED.clear()
        assert all(repr(masked(*asked[i])) == alone[i] for i in order)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: lb.prepack(lb.quantize(np.eye(4, dtype=np.float32))), ["params", "shape"]),
        (lambda: lb.prepack_conv2d(lb.quantize(np.ones((2, 2, 1, 1), np.float32))), ["params", "groups", "shape"]),
        (
            lambda: lb.QuantizedLinear(np.eye(4, dtype=np.float32)),
            ["activation_dtype", "input_params", "out_params", "path"],
        ),
        (
            lambda: lb.QuantizedConv2d(np.ones((2, 2, 1, 1), np.float32)),
            ["activation_dtype", "bias", "out_params", "path"],
        ),
    ],
    ids=["matrix", "convolution", "linear", "conv2d"],
)
def test_fields_that_settled_calls_would_ignore_cannot_be_assigned(make, names):
    made = make()
    for name in names:
        with pytest.raises(AttributeError, match=f"{name}: a .* does not change"):
            setattr(made, name, None)
