"""Depthwise convolution against the reference: every ISA, exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowbit as lb
from lowbit import _core
from lowbit.reference import compute as reference

Array = np.ndarray[Any, Any]

# Around the blocks of every ISA: 1, 8, 16 and 32 channels at once.
CHANNELS = (1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 128)
KERNELS = {"1x1": (1, 1), "3x3": (3, 3), "5x5": (5, 5), "2x3": (2, 3), "7x7": (7, 7)}


def codes(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any) -> Array:
    """A third of them at the ends of the range, where sums are largest."""
    ends = np.iinfo(dtype)
    values = rng.integers(ends.min, ends.max, shape, endpoint=True)
    extreme = rng.choice([ends.min, ends.max], shape)
    return np.where(rng.random(shape) < 1 / 3, extreme, values).astype(dtype)


def depthwise_conv2d(x: Array, w: Array, zx: int = 0, zw: Any = 0, **options: Any) -> Array:
    return lb.conv2d_integer(x, w, zx, zw, groups=w.shape[0], layout="NHWC", **options)


def requantized(x: Array, w: Array, codes: Any, scale: Any, zx: int = 0, zw: Any = None, **options: Any) -> Array:
    """Codes of a native plan, whose window takes `options`; bias: what is added to sums."""
    add = options.pop("bias", None)
    window = _core.Window(x.shape, w.shape[2:], groups=len(w), **options)
    weights = _core.DepthwiseWeights(window, _core.Code.u8, w, _core.Code.s8, None if zw is None else np.int32(zw))
    out = np.empty((len(x), window.out_height, window.out_width, len(w)), CODES[codes.code])
    epilogue = _core.Epilogue.codes(codes, np.atleast_1d(np.float32(scale)), add=add)
    _core.DepthwiseConvPlan(weights, window, zx, epilogue).run(x, out)
    return out


CODES = {_core.Code.u8: np.uint8, _core.Code.s8: np.int8}


def expected(
    x: Array, w: Array, zx: int = 0, zw: Any = 0, stride: Any = (1, 1), padding: Any = (0,) * 4, dilation: Any = (1, 1)
) -> Array:
    channels = x.shape[3]
    y = reference.conv2d_integer(x.transpose(0, 3, 1, 2), w, zx, zw, stride, padding, dilation, groups=channels)
    return y.transpose(0, 2, 3, 1)


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("channels", CHANNELS)
def test_sums_are_exact(isa: str, channels: int, kernel: tuple[int, int]) -> None:
    rng = np.random.default_rng(channels)
    for x_dtype, w_dtype in ((np.uint8, np.int8), (np.int8, np.uint8)):
        x, w = codes(rng, (2, 9, 14, channels), x_dtype), codes(rng, (channels, 1, *kernel), w_dtype)
        zx, zw = int(codes(rng, (), x_dtype)), codes(rng, (channels,), w_dtype)
        sides = tuple(int(s) for s in rng.integers(0, 4, 4))
        y = depthwise_conv2d(x, w, zx, zw, padding=sides)
        assert y.dtype == np.int32
        np.testing.assert_array_equal(y, expected(x, w, zx, zw, padding=sides))


@pytest.mark.parametrize("width", range(3, 22))
def test_every_rest_of_a_tile(isa: str, width: int) -> None:
    rng = np.random.default_rng(width)
    x, w = codes(rng, (1, 4, width, 33), np.uint8), codes(rng, (33, 1, 3, 3), np.int8)
    np.testing.assert_array_equal(depthwise_conv2d(x, w, 3), expected(x, w, 3))


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("stride", [(1, 2), (2, 1), (2, 2), (3, 3), (5, 9)])
@pytest.mark.parametrize("dilation", [(1, 1), (2, 2), (1, 3), (4, 1)])
def test_strides_and_dilations(isa: str, kernel: Any, stride: Any, dilation: Any) -> None:
    rng = np.random.default_rng(5)
    x, w = codes(rng, (1, 30, 29, 20), np.uint8), codes(rng, (20, 1, *kernel), np.int8)
    sides = (2, 0, 1, 5)
    y = depthwise_conv2d(x, w, 255, -128, stride=stride, padding=sides, dilation=dilation)
    np.testing.assert_array_equal(y, expected(x, w, 255, -128, stride, sides, dilation))


@pytest.mark.parametrize("zx", [0, 255])
@pytest.mark.parametrize("zw", [-128, 127])
@pytest.mark.parametrize("x_code", [0, 255])
@pytest.mark.parametrize("w_code", [-128, 127])
def test_products_at_both_ends_do_not_saturate(isa: str, zx: int, zw: int, x_code: int, w_code: int) -> None:
    """255 x 255 for all taps: two of them are past 16 bits, however they are paired."""
    for kernel in (3, 5, 7):
        x, w = np.full((1, 9, 9, 40), x_code, np.uint8), np.full((40, 1, kernel, kernel), w_code, np.int8)
        y = depthwise_conv2d(x, w, zx, zw, padding=kernel // 2)
        np.testing.assert_array_equal(y, expected(x, w, zx, zw, padding=(kernel // 2,) * 4))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_any_number_of_threads_gives_the_same(isa: str, threads: int) -> None:
    rng = np.random.default_rng(9)
    x, w = codes(rng, (3, 61, 50, 40), np.uint8), codes(rng, (40, 1, 3, 3), np.int8)
    lb.set_num_threads(threads)
    np.testing.assert_array_equal(depthwise_conv2d(x, w, 9, padding=1), expected(x, w, 9, padding=(1,) * 4))
    narrow = depthwise_conv2d(x[..., :3], w[:3], 9, padding=1)
    np.testing.assert_array_equal(narrow, expected(x[..., :3], w[:3], 9, padding=(1,) * 4))


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("out_dtype", [np.uint8, np.int8])
def test_requantized_codes_are_those_of_the_contract(isa: str, channels: int, out_dtype: Any) -> None:
    rng = np.random.default_rng(channels)
    ends = np.iinfo(out_dtype)
    for kernel, stride in ((3, 1), (3, 2), (5, 1), (5, 2), (2, 1), (7, 3)):
        x, w = codes(rng, (1, 11, 16, channels), np.uint8), codes(rng, (channels, 1, kernel, kernel), np.int8)
        zx, zw = int(rng.integers(256)), codes(rng, (channels,), np.int8)
        scale = (10.0 ** rng.uniform(-6, 1, channels)).astype(np.float32)
        bias = rng.integers(-(10**6), 10**6, channels).astype(np.int32)
        zy = int(codes(rng, (), out_dtype))
        lo, hi = sorted(int(v) for v in codes(rng, (2,), out_dtype))
        sums = expected(x, w, zx, zw, (stride, stride), (1,) * 4) + bias
        for qmin, qmax in ((ends.min, ends.max), (lo, hi)):
            code = _core.Code.u8 if out_dtype == np.uint8 else _core.Code.s8
            grid = _core.CodeParams(code, 1.0, zy, qmin, qmax)
            y = requantized(x, w, grid, scale, zx, zw, bias=bias, stride=(stride, stride), padding=(1,) * 4)
            assert y.dtype == out_dtype
            np.testing.assert_array_equal(y, reference.requantize(sums, 1, scale, 1, zy, qmin, qmax))


def test_halves_round_to_even(isa: str) -> None:
    x = np.arange(32, dtype=np.uint8).reshape(1, 1, 1, 32)
    y = requantized(x, np.ones((32, 1, 1, 1), np.int8), _core.CodeParams(_core.Code.u8, 1.0, 0, 0, 255), 0.5)
    np.testing.assert_array_equal(y[0, 0, 0], np.rint(np.arange(32) / 2))


def test_steps_past_int32_end_at_the_bounds(isa: str) -> None:
    x, w = np.full((1, 3, 3, 40), 255, np.uint8), np.full((40, 1, 3, 3), 127, np.int8)
    w[::2] = -128
    y = requantized(x, w, _core.CodeParams(_core.Code.u8, 1.0, 7, 0, 255), 1e30)
    np.testing.assert_array_equal(y[0, 0, 0], np.where(np.arange(40) % 2, 255, 0))


def test_prepared_weights_serve_many_images(isa: str) -> None:
    rng = np.random.default_rng(2)
    w = codes(rng, (24, 1, 3, 3), np.int8)
    params = lb.QuantizationParams("int8", "asymmetric", scale=1.0, zero_point=5)
    packed = lb.prepack_conv2d(lb.QuantizedTensor.from_codes(w, params), groups=24)
    for size in ((5, 6), (12, 31), (3, 3)):
        x = codes(rng, (2, *size, 24), np.int8)
        params = lb.QuantizationParams("int8", "asymmetric", scale=1.0, zero_point=-7)
        given = lb.QuantizedTensor.from_codes(x, params)
        y = lb.qconv2d(given, packed, stride=(1, 2), padding=1, layout="NHWC")
        np.testing.assert_array_equal(y, expected(x, w, -7, 5, (1, 2), (1,) * 4))


def test_an_empty_batch_and_strided_arrays(isa: str) -> None:
    w = np.ones((20, 1, 3, 3), np.int8)
    assert depthwise_conv2d(np.zeros((0, 5, 5, 20), np.uint8), w).shape == (0, 3, 3, 20)
    x = codes(np.random.default_rng(1), (1, 20, 6, 7), np.uint8).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(depthwise_conv2d(x, w), expected(x, w))


def test_workspace_does_not_grow_with_the_image() -> None:
    w = np.ones((64, 1, 3, 3), np.int8)

    def work(height: int, width: int) -> int:
        window = _core.Window((1, height, width, 64), (3, 3), padding=(1, 1, 1, 1), groups=64)
        weights = _core.DepthwiseWeights(window, _core.Code.u8, w, _core.Code.s8, None)
        return _core.DepthwiseConvPlan(weights, window, 0, _core.Epilogue()).workspace_bytes

    assert 0 < work(100_000, 100_000) < 1 << 18


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": np.zeros((5, 5, 4), np.uint8)}, "x: shape"),
        ({"x": np.zeros((1, 5, 5, 3), np.uint8)}, "x: 3 channels"),
        ({"x": np.zeros((1, 2, 5, 4), np.uint8)}, "x: 2 by 5"),
        ({"x": np.zeros((1, 5, 5, 4), np.int16)}, "x: int16"),
        ({"w": np.zeros((4, 2, 3, 3), np.int8)}, "x: 4 channels"),
        ({"w": np.zeros((4, 1, 3, 3), np.float32)}, "w: float32"),
        ({"zx": 256}, "x_zero_point: "),
        ({"zw": 128}, "w_zero_point: "),
        ({"zw": [0, 1]}, "w_zero_point: shape"),
        ({"stride": 0}, "stride: 0"),
        ({"stride": (1, 2, 3)}, "stride: "),
        ({"dilation": 2**40}, "x: 5 by 5"),
        ({"padding": -1}, "padding: -1"),
        ({"padding": (1, 2, 3)}, "padding: "),
    ],
)
def test_errors_name_the_argument(change: dict[str, Any], said: str) -> None:
    call: dict[str, Any] = {"x": np.zeros((1, 5, 5, 4), np.uint8), "w": np.zeros((4, 1, 3, 3), np.int8)}
    with pytest.raises((lb.InvalidProblem, lb.UnsupportedDType), match=f"^{said}"):
        depthwise_conv2d(**{**call, **change})


@pytest.mark.parametrize(("code", "qmin", "qmax"), [("u8", 9, 8), ("u8", -1, 5), ("s8", 0, 128), ("s16", 0, 1)])
def test_ranges_that_codes_cannot_have(code: str, qmin: int, qmax: int) -> None:
    with pytest.raises(ValueError, match=r"^codes?: "):
        _core.CodeParams(getattr(_core.Code, code), 1.0, 0, qmin, qmax)


def test_plans_refuse_what_does_not_fit_their_window() -> None:
    window = _core.Window((1, 5, 5, 4), (3, 3), stride=(2, 2), groups=4)
    weights = _core.DepthwiseWeights(window, _core.Code.u8, np.zeros((4, 3, 3), np.int8), _core.Code.s8, None)
    for other in ({"stride": (1, 1)}, {"stride": (2, 2), "dilation": (1, 2)}):
        with pytest.raises(ValueError, match="window: not the one the weights were prepared for"):
            _core.DepthwiseConvPlan(weights, _core.Window((1, 5, 5, 4), (3, 3), groups=4, **other), 0, _core.Epilogue())
    with pytest.raises(ValueError, match="kernel: too many taps"):
        _core.DepthwiseWeights(_core.Window((1, 1, 33025, 1), (1, 33025)), _core.Code.u8, b"", _core.Code.s8, None)
    plan = _core.DepthwiseConvPlan(
        weights, window, 0, _core.Epilogue.floats(_core.Result.f32, (0, 1), np.ones(3, np.float32))
    )
    with pytest.raises(ValueError, match="scale: expected 16 bytes, got 12"):
        plan.run(np.zeros((1, 5, 5, 4), np.uint8), np.zeros((1, 2, 2, 4), np.float32))
    for x, out in ((np.zeros((1, 5, 5, 3)), np.zeros(16, np.int32)), (np.zeros((1, 5, 5, 4), np.uint8), np.zeros(15))):
        with pytest.raises(ValueError, match=r"^(x|out): expected"):
            _core.DepthwiseConvPlan(weights, window, 0, _core.Epilogue()).run(x, out)
