"""Depthwise convolution against the reference: every ISA, exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowbit as lb
from lowbit import _core
from lowbit.ops.depthwise import (
    MAX_TAPS,
    depthwise_conv2d,
    prepack_depthwise,
    requantized_depthwise_conv2d,
)
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
            y = requantized_depthwise_conv2d(
                x, w, scale, zx, zw, bias=bias, out_zero_point=zy, out_dtype=out_dtype, qmin=qmin, qmax=qmax,
                stride=stride, padding=1,
            )  # fmt: skip
            assert y.dtype == out_dtype
            np.testing.assert_array_equal(y, reference.requantize(sums, 1, scale, 1, zy, qmin, qmax))


def test_halves_round_to_even(isa: str) -> None:
    x = np.arange(32, dtype=np.uint8).reshape(1, 1, 1, 32)
    y = requantized_depthwise_conv2d(x, np.ones((32, 1, 1, 1), np.int8), 0.5)
    np.testing.assert_array_equal(y[0, 0, 0], np.rint(np.arange(32) / 2))


def test_steps_past_int32_end_at_the_bounds(isa: str) -> None:
    x, w = np.full((1, 3, 3, 40), 255, np.uint8), np.full((40, 1, 3, 3), 127, np.int8)
    w[::2] = -128
    y = requantized_depthwise_conv2d(x, w, 1e30, out_zero_point=7)
    np.testing.assert_array_equal(y[0, 0, 0], np.where(np.arange(40) % 2, 255, 0))


def test_prepared_weights_serve_many_images(isa: str) -> None:
    rng = np.random.default_rng(2)
    w = codes(rng, (24, 1, 3, 3), np.int8)
    packed = prepack_depthwise(w, 5, x_dtype=np.int8, stride=(1, 2))
    for size in ((5, 6), (12, 31), (3, 3)):
        x = codes(rng, (2, *size, 24), np.int8)
        y = depthwise_conv2d(x, packed, -7, stride=(1, 2), padding=1)
        np.testing.assert_array_equal(y, expected(x, w, -7, 5, (1, 2), (1,) * 4))


def test_an_empty_batch_and_strided_arrays(isa: str) -> None:
    w = np.ones((20, 1, 3, 3), np.int8)
    assert depthwise_conv2d(np.zeros((0, 5, 5, 20), np.uint8), w).shape == (0, 3, 3, 20)
    x = codes(np.random.default_rng(1), (1, 20, 6, 7), np.uint8).transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(depthwise_conv2d(x, w), expected(x, w))


def test_workspace_does_not_grow_with_the_image() -> None:
    w = np.ones((64, 1, 3, 3), np.int8)
    packed = prepack_depthwise(w)

    def work(height: int, width: int) -> int:
        shape = _core.DwconvShape(1, height, width, 64, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1)
        thread = int(_core.dwconv_thread_bytes(shape, packed.native))
        return thread + int(_core.dwconv_call_bytes(shape, packed.native))

    assert 0 < work(100_000, 100_000) < 1 << 18


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": np.zeros((5, 5, 4), np.uint8)}, "x: shape"),
        ({"x": np.zeros((1, 5, 5, 3), np.uint8)}, "x: 3 channels"),
        ({"x": np.zeros((1, 2, 5, 4), np.uint8)}, "x: 2 x 5"),
        ({"x": np.zeros((1, 5, 5, 4), np.int16)}, "x: int16"),
        ({"w": np.zeros((4, 2, 3, 3), np.int8)}, "w: shape"),
        ({"w": np.zeros((4, 1, 3, 3), np.float32)}, "w: float32"),
        ({"w": np.zeros((4, 1, 1, MAX_TAPS + 1), np.int8)}, "w: 1 x 33025 taps"),
        ({"x_zero_point": 256}, "x_zero_point: 256"),
        ({"w_zero_point": 128}, "w_zero_point: outside"),
        ({"w_zero_point": [0, 1]}, "w_zero_point: int64"),
        ({"stride": 0}, "stride: 0"),
        ({"stride": (1, 2, 3)}, "stride: "),
        ({"dilation": 2**40}, "dilation: "),
        ({"padding": -1}, "padding: -1"),
        ({"padding": (1, 2, 3)}, "padding: "),
    ],
)
def test_errors_name_the_argument(change: dict[str, Any], said: str) -> None:
    call: dict[str, Any] = {"x": np.zeros((1, 5, 5, 4), np.uint8), "w": np.zeros((4, 1, 3, 3), np.int8)}
    with pytest.raises((lb.InvalidProblem, lb.UnsupportedDType), match=f"^{said}"):
        depthwise_conv2d(**{**call, **change})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"multiplier": [1.0, 2.0]}, "multiplier: "),
        ({"multiplier": np.nan}, "multiplier: "),
        ({"bias": np.zeros(4)}, "bias: float64"),
        ({"bias": np.full(4, 2**31 - 1, np.int32)}, "bias: beyond"),
        ({"out_zero_point": -1}, "out_zero_point: -1"),
        ({"qmin": 9, "qmax": 8}, "qmin, qmax: 9, 8"),
        ({"out_dtype": np.int16}, "out_dtype: int16"),
    ],
)
def test_errors_of_requantizing(change: dict[str, Any], said: str) -> None:
    call: dict[str, Any] = {"x": np.zeros((1, 5, 5, 4), np.uint8), "w": np.zeros((4, 1, 3, 3), np.int8)}
    with pytest.raises((lb.InvalidProblem, lb.UnsupportedDType), match=f"^{said}"):
        requantized_depthwise_conv2d(**{**call, "multiplier": 1.0, **change})


def test_weights_prepared_for_another_call_are_refused() -> None:
    packed = prepack_depthwise(np.zeros((4, 1, 3, 3), np.int8), stride=2)
    with pytest.raises(lb.InvalidProblem, match=r"^w: prepared for uint8, stride"):
        depthwise_conv2d(np.zeros((1, 5, 5, 4), np.uint8), packed)
