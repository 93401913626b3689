"""Results never go over what is still to be read: `out=` in memory of its own, or refused, and in memory kernels may
read and write: aligned and contiguous."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowbit as lb
from lowbit import InvalidProblem, QuantizationParams, QuantizedTensor, plans
from lowbit.plans import BackwardArgs, DequantizeBackwardArgs, DynamicArgs, ForwardArgs
from lowbit.runtime.cache import cache_of

SHAPE = (8, 96)
SIZE = 8 * 96
FLOATS = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
SHARES = r"out: shares memory with {}; expected memory of its own$"
SCALES = np.full(8, 0.01)
PARAMS = {
    "int8": QuantizationParams("int8", scale=0.01),
    "uint8": QuantizationParams("uint8", scale=0.01, zero_point=128),
    "int16": QuantizationParams("int16", scale=0.01),
    "int4": QuantizationParams("int4", scale=0.1),
    "uint2": QuantizationParams("uint2", scale=0.5, zero_point=1),
    "binary": QuantizationParams("binary", scale=0.5),
    "logarithmic": QuantizationParams.logarithmic(scale=1.0),
    "logarithmic4": QuantizationParams.logarithmic("int4", scale=1.0),
    "channels": QuantizationParams("int8", scale=SCALES, axis=0),
    "columns": QuantizationParams("int4", scale=np.full(96, 0.1), axis=1),
    "blocks": QuantizationParams("int8", scale=np.full((8, 3), 0.01), axis=1, group_size=32),
    "mixed": QuantizationParams.mixed([8, 4, 2, 1, 16, 8, 4, 1], SCALES),
    "mixed columns": QuantizationParams.mixed([8, 4] * 48, np.full(96, 0.01), axis=1),
}


def memory_of(dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """Some memory, and x in the midst of it."""
    memory = np.zeros(4096 + SIZE * 8, np.uint8)
    x = memory[2048 : 2048 + SIZE * np.dtype(dtype).itemsize].view(dtype).reshape(SHAPE)
    x[...] = np.random.default_rng(1).uniform(-1, 1, SHAPE).astype(dtype)
    return memory, x


def codes_at(memory: np.ndarray, first: int, params: QuantizationParams) -> np.ndarray:
    stored = (params.codes_nbytes(SHAPE),) if params.dtype.is_packed else SHAPE
    kind = params.dtype.storage_dtype
    return memory[first : first + int(np.prod(stored)) * kind.itemsize].view(kind).reshape(stored)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("kind", PARAMS)
def test_quantize_refuses_codes_over_its_input(kind: str, dtype: Any) -> None:
    params = PARAMS[kind]
    memory, x = memory_of(dtype)
    before, want = memory.copy(), lb.quantize(x.copy(), params=params)
    begin, end, codes = 2048, 2048 + x.nbytes, want.data.nbytes
    at_ends = (begin - codes + 2, begin, begin + 2, begin + 64, end - 2)
    for first in at_ends:
        for out in (codes_at(memory, first, params), QuantizedTensor(want.data.copy(), want.params, SHAPE)):
            if isinstance(out, QuantizedTensor):
                if want.dtype.is_packed and memory[first : first + codes].any():
                    continue  # its padding would not be 0
                out = QuantizedTensor._trusted(codes_at(memory, first, params), want.params, SHAPE)
            for _ in range(2):  # the second call takes the quick way, if there is one
                with pytest.raises(InvalidProblem, match=SHARES.format("x")):
                    lb.quantize(x, params=params, out=out)
                np.testing.assert_array_equal(memory, before)
    for first in (begin - codes - codes % 2, end):  # side by side is apart
        for _ in range(2):
            got = lb.quantize(x, params=params, out=codes_at(memory, first, params))
            assert got == want
        memory[:] = before


@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": 1}, {"group_size": 32}], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int4", "binary", "int16"])
def test_quantize_from_data_refuses_codes_over_its_input(dtype: str, options: dict[str, int]) -> None:
    memory, x = memory_of(np.float32)
    before = memory.copy()
    params = lb.quantize(x, dtype, scheme="linear", **options).params
    with pytest.raises(InvalidProblem, match=SHARES.format("x")):
        lb.quantize(x, dtype, scheme="linear", out=codes_at(memory, 2112, params), **options)
    np.testing.assert_array_equal(memory, before)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("kind", PARAMS)
def test_dequantize_refuses_numbers_over_its_codes(kind: str, dtype: Any) -> None:
    _, x = memory_of(np.float32)
    made = lb.quantize(x, params=PARAMS[kind])
    lb.quantize(x.copy(), params=made.params)  # from here on the quick way
    memory = np.zeros(3 * SIZE * 8, np.uint8)
    begin = SIZE * 8
    codes = codes_at(memory, begin, made.params)
    codes[...] = made.data
    q = QuantizedTensor(codes, made.params, SHAPE)
    before, size = memory.copy(), SIZE * np.dtype(dtype).itemsize
    for first in (begin - size + 8, begin - 8, begin, (begin + codes.nbytes - 8) // 8 * 8):
        out = memory[first : first + size].view(dtype).reshape(SHAPE)
        with pytest.raises(InvalidProblem, match=SHARES.format("q")):
            lb.dequantize(q, out=out)
        np.testing.assert_array_equal(memory, before)
    out = memory[:size].view(dtype).reshape(SHAPE)
    assert lb.dequantize(q, out=out) is out
    np.testing.assert_array_equal(out, lb.dequantize(made, dtype=dtype))


GRADIENTS: dict[str, Callable[..., Any]] = {
    "fake_quantize": lambda x, dy, s, **o: lb.fake_quantize(x, s, **o),
    "fake_quantize_backward": lambda x, dy, s, **o: lb.fake_quantize_backward(dy, x, s, **o),
    "quantize_backward": lambda x, dy, s, **o: lb.quantize_backward(dy, x, s, **o),
    "dequantize_backward": lambda x, dy, s, **o: lb.dequantize_backward(dy, s, **o),
    "learned": lambda x, dy, s, **o: lb.fake_quantize_learned_backward(dy, x, s, **o)[0],
}


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: np.dtype(d).name)
def test_gradients_are_written_over_all_of_an_operand_or_over_none(name: str, dtype: Any) -> None:
    function = GRADIENTS[name]
    numbers = np.random.default_rng(2).uniform(-2, 2, 200).astype(dtype)
    dy = np.random.default_rng(3).uniform(-2, 2, 100).astype(dtype)
    want = function(numbers[:100].copy(), dy, 0.1)
    if name == "dequantize_backward":  # reads dy alone
        whole = dy.copy()
        function(whole, whole, 0.1, out=whole)
    else:
        whole = numbers[:100].copy()
        function(whole, dy, 0.1, out=whole)
    np.testing.assert_array_equal(whole, want)
    for first in (1, 50, 99):
        memory = numbers.copy()
        operands = (dy, memory[:100]) if name == "dequantize_backward" else (memory[:100], dy)
        with pytest.raises(InvalidProblem, match="out: shares memory with"):
            function(*operands, 0.1, out=memory[first : first + 100])
        np.testing.assert_array_equal(memory, numbers)


@pytest.mark.parametrize("name", GRADIENTS)
@pytest.mark.parametrize("first", [0, 1])
def test_scales_that_lie_in_the_result_are_read_first(name: str, first: int) -> None:
    rng = np.random.default_rng(4)
    x, dy = rng.uniform(-2, 2, (2, 6, 4)).astype(np.float32)
    memory = np.full(30, 0.25, np.float32)
    # With zero points in an array it is the quick way, which takes scales where they lie.
    options = {} if name == "dequantize_backward" else {"zero_point": np.zeros(6, np.int32)}
    want = GRADIENTS[name](x, dy, np.full(6, 0.25, np.float32), axis=0, **options)
    got = GRADIENTS[name](x, dy, memory[first : first + 6], axis=0, out=memory[:24].reshape(6, 4), **options)
    np.testing.assert_array_equal(got, want)


# ---- plans ----------------------------------------------------------------------------------------------


def refused(plan: Any, args: Any, words: str) -> None:
    for call in (plan.can_implement, plan.run):
        with pytest.raises(InvalidProblem, match=words):
            call(args)


def test_plans_refuse_results_over_scales() -> None:
    d = plans.PerChannelDescriptor((6, 4), axis=0, input_element="f32", output_element="s8")
    memory = np.full(64, 0.25, np.float32)
    x, scale, zero = np.ones((6, 4), np.float32), memory[:6], memory.view(np.int32)[:6]
    codes, floats = memory.view(np.int8)[16:40].reshape(6, 4), memory[2:26].reshape(6, 4)
    plan = plans.QuantizePerChannelPlan.select(d)
    refused(plan, ForwardArgs(x, scale, None, codes), "output: shares memory with scale")
    refused(plan, ForwardArgs(x, np.ones(6, np.float32), zero, codes), "output: shares memory with zero_point")
    d = plans.PerChannelDescriptor((6, 4), axis=0)
    fake = plans.FakeQuantizePerChannelPlan.select(d)
    refused(fake, ForwardArgs(x, scale, None, floats), "output: shares memory with scale")
    backward = plans.FakeQuantizePerChannelBackwardPlan.select(d)
    refused(backward, BackwardArgs(x, scale, None, x.copy(), floats), "d_input: shares memory with scale")
    d = plans.PerChannelDescriptor((6, 4), axis=0, input_element="s8", output_element="f32")
    gradient = plans.DequantizePerChannelBackwardPlan.select(d)
    refused(gradient, DequantizeBackwardArgs(x, scale, floats), "d_input: shares memory with scale")


@pytest.mark.parametrize("pair", ["output input", "scale output", "zero_point scale", "workspace input"])
def test_dynamic_plans_refuse_results_over_each_other(pair: str) -> None:
    result, other = pair.split()
    d = plans.PerTokenDescriptor((6, 4), qmin=0, qmax=255, input_element="f32", output_element="u8")
    plan = plans.DynamicRangeQuantizeAsymmetricPerTokenPlan.select(d)
    arrays: dict[str, np.ndarray] = {
        "input": np.arange(24, dtype=np.float32).reshape(6, 4), "output": np.zeros((6, 4), np.uint8),
        "scale": np.zeros(6, np.float32), "zero_point": np.zeros(6, np.int32),
        "workspace": np.zeros(plan.workspace_size + 64, np.uint8),
    }  # fmt: skip
    plan.run(DynamicArgs(**arrays))
    memory = np.zeros(8192, np.uint8)
    for name in (other, result):
        a = arrays[name]
        arrays[name] = memory[: a.nbytes].view(a.dtype).reshape(a.shape)
        arrays[name][...] = a
    refused(plan, DynamicArgs(**arrays), f"{result}: shares memory with {other}")


@pytest.mark.parametrize("pair", ["d_scale d_zero_point", "d_scale input", "workspace d_input", "d_zero_point scale"])
def test_learned_plans_refuse_results_over_each_other(pair: str) -> None:
    d = plans.PerChannelDescriptor((6, 4), axis=0, learned=True)
    plan = plans.FakeQuantizePerChannelBackwardPlan.select(d)
    arrays: dict[str, np.ndarray] = {
        "input": np.ones((6, 4), np.float32), "scale": np.full(6, 0.5, np.float32),
        "d_output": np.ones((6, 4), np.float32), "d_input": np.ones((6, 4), np.float32),
        "d_scale": np.zeros(6, np.float32), "d_zero_point": np.zeros(6, np.float32),
        "workspace": np.zeros(plan.workspace_size, np.uint8),
    }  # fmt: skip
    plan.run(BackwardArgs(zero_point=None, **arrays))
    first, second = pair.split()
    memory = np.zeros(8192, np.uint8)
    for name in (first, second):
        a = arrays[name]
        arrays[name] = memory[: a.nbytes].view(a.dtype).reshape(a.shape)
        arrays[name][...] = a
    words = rf"({first}: shares memory with {second}|{second}: shares memory with {first})"
    refused(plan, BackwardArgs(zero_point=None, **arrays), words)


# ---- codes in and out -----------------------------------------------------------------------------------


def test_binary_products_refuse_results_over_their_codes() -> None:
    memory = np.zeros(4096, np.uint8)
    codes = memory[64:128]
    codes[:] = np.random.default_rng(5).integers(0, 256, 64)
    q = QuantizedTensor(codes, QuantizationParams("binary", scale=0.5), (16, 32))
    w = lb.quantize(np.random.default_rng(6).standard_normal((3, 32)).astype(np.float32), "binary")
    with pytest.raises(InvalidProblem, match="out: shares memory with a"):
        lb.binary_matmul(q, w, out=memory[64 : 64 + 192].view(np.float32).reshape(16, 3))
    image = QuantizedTensor(codes, QuantizationParams("binary", scale=0.5), (1, 4, 4, 32))
    kernel = lb.quantize(np.random.default_rng(7).standard_normal((3, 1, 1, 32)).astype(np.float32), "binary")
    with pytest.raises(InvalidProblem, match="out: shares memory with x"):
        lb.binary_conv2d(image, kernel, layout="NHWC", out=memory[100 : 100 + 192].view(np.float32).reshape(1, 4, 4, 3))


@pytest.mark.parametrize("first", [0, 1, 13, 400])
def test_operations_on_codes_take_results_over_any_part_of_an_operand(first: int) -> None:
    p = QuantizationParams("int8", scale=np.float32(0.1), zero_point=3)
    rng = np.random.default_rng(8)
    codes, b = rng.integers(-128, 128, (2, 1000)).astype(np.int8)
    operand = QuantizedTensor(b[:512].copy(), p)
    calls: list[Callable[[QuantizedTensor, Any], QuantizedTensor]] = [
        lambda a, out: lb.qadd(a, operand, out_params=p, out=out),
        lambda a, out: lb.qadd(operand, a, out_params=p, out=out),
        lambda a, out: lb.qmul(a, operand, out_params=p, out=out),
        lambda a, out: lb.qrelu(a, out=out),
        lambda a, out: lb.qclamp(a, -1.0, 1.0, out=out),
        lambda a, out: lb.qconcat([a[:256], a[:256]], out=out),
    ]
    for call in calls:
        memory = codes.copy()
        want = call(QuantizedTensor(codes[:512].copy(), p), None).data
        got = call(QuantizedTensor(memory[:512], p), memory[first : first + 512])
        np.testing.assert_array_equal(got.data, want)


# ---- alignment and contiguity -----------------------------------------------------------------------------


def misaligned(a: np.ndarray) -> np.ndarray:
    memory = np.zeros(a.nbytes + 1, np.uint8)
    found = memory[1:].view(a.dtype).reshape(a.shape)
    found[...] = a
    assert not found.flags.aligned
    return found


class Watched:
    """A native plan that runs only on memory its kernels may read and write."""

    def __init__(self, native: Any) -> None:
        self.native, self.calls = native, 0

    def run(self, *arguments: Any) -> Any:
        done = self.native.run(*arguments)
        if done:
            assert all(a.flags.c_contiguous and a.flags.aligned for a in arguments if isinstance(a, np.ndarray))
            self.calls += 1
        return done


def watched(params: QuantizationParams) -> Watched:
    """The plan of the one settled call with these params, watched from now on."""
    (key, call), *others = [(k, v) for k, v in cache_of(params)._found.items() if isinstance(v, tuple)]
    assert not others
    found = Watched(call[0])
    cache_of(params)._found[key] = call._replace(plan=found) if hasattr(call, "_replace") else (found, *call[1:])
    return found


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_the_repeated_quantize_reads_aligned_contiguous_memory(dtype: Any) -> None:
    x = np.random.default_rng(9).uniform(-1, 1, (32, 24)).astype(dtype)
    params = QuantizationParams("int8", scale=0.01)
    want = lb.quantize(x, params=params)
    spec = watched(params)
    assert lb.quantize(x, params=params) == want
    assert spec.calls == 1
    wide = np.zeros((32, 48), dtype)
    wide[:, ::2] = x
    for given in (misaligned(x), np.asfortranarray(x), wide[:, ::2], x[::-1][::-1].T.copy().T):
        for out in (None, np.empty((32, 24), np.int8), QuantizedTensor.empty((32, 24), want.params)):
            assert lb.quantize(given, params=params, out=out) == want


def test_the_repeated_quantize_writes_aligned_contiguous_writable_memory() -> None:
    x = np.random.default_rng(10).uniform(-1, 1, (32, 24)).astype(np.float32)
    params = QuantizationParams("int16", scale=np.float32(0.001))
    want = lb.quantize(x, params=params)
    spec = watched(params)
    assert lb.quantize(x, params=params, out=np.empty((32, 24), np.int16)) == want
    assert spec.calls == 1
    frozen = np.empty((32, 24), np.int16)
    frozen.flags.writeable = False
    bad = [misaligned(want.data), np.empty((24, 32), np.int16).T, np.empty((32, 48), np.int16)[:, ::2], frozen]
    for out in bad:
        for given in (out, QuantizedTensor._trusted(out, want.params, out.shape)):
            with pytest.raises(InvalidProblem, match="out: expected a writable, aligned, C-contiguous array"):
                lb.quantize(x, params=params, out=given)
    assert spec.calls == 1


def test_the_repeated_dequantize_reads_aligned_contiguous_memory() -> None:
    x = np.random.default_rng(11).uniform(-1, 1, (32, 24)).astype(np.float32)
    made = lb.quantize(x, params=QuantizationParams("int16", scale=np.float32(0.001)))
    q = QuantizedTensor(made.data, made.params.replace())
    want = q.dequantize()
    spec = watched(q.params)
    np.testing.assert_array_equal(q.dequantize(), want)
    assert spec.calls == 1
    for codes in (misaligned(q.data), np.asfortranarray(q.data)):
        for out in (None, np.empty((32, 24), np.float32)):
            given = QuantizedTensor(codes, q.params)
            np.testing.assert_array_equal(lb.dequantize(given, out=out), want)
    with pytest.raises(InvalidProblem, match="out: expected a writable, aligned, C-contiguous array"):
        lb.dequantize(q, out=misaligned(want))


def test_the_repeated_linear_layer_reads_aligned_contiguous_memory() -> None:
    rng = np.random.default_rng(12)
    layer = lb.QuantizedLinear(rng.standard_normal((16, 32)).astype(np.float32))
    x = rng.standard_normal((5, 32)).astype(np.float32)
    want = layer(x)
    plan = layer._calls.get(x.dtype)
    seen = []

    class Watching:
        def run(self, rows: np.ndarray, out: np.ndarray) -> Any:
            seen.append(rows.flags.aligned and rows.flags.c_contiguous)
            return plan.run(rows, out)

    for key, settled in layer._calls._found.items():
        layer._calls._found[key] = Watching() if settled is plan else settled._replace(plan=Watching())
    for given in (x, misaligned(x), np.asfortranarray(x)):
        np.testing.assert_array_equal(layer(given), want)
    assert seen == [True] * 3


def test_plans_take_aligned_parameters() -> None:
    d = plans.PerChannelDescriptor((6, 4), axis=0, input_element="f32", output_element="s8")
    plan = plans.QuantizePerChannelPlan.select(d)
    x, out = np.ones((6, 4), np.float32), np.zeros((6, 4), np.int8)
    scale, zero = np.ones(6, np.float32), np.zeros(6, np.int32)
    refused(plan, ForwardArgs(x, misaligned(scale), zero, out), "scale: expected an aligned, C-contiguous array")
    refused(plan, ForwardArgs(x, scale, misaligned(zero), out), "zero_point: expected an aligned, C-contiguous array")
