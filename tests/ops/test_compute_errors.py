"""Errors of integer compute: raised before any work, with the name of the argument first."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

import lowbit as lb
from lowbit import InvalidProblem, QuantizationParams, QuantizedTensor, Unsupported, UnsupportedDType
from lowbit.ops.binary import _checked_k, _rows
from problems import F32, codes, output_params, tensor

RNG = np.random.default_rng(13)
REFUSED = (InvalidProblem, Unsupported)
NOT_A_TENSOR = (InvalidProblem, TypeError)
BY_CHANNEL = QuantizationParams("int8", scale=np.ones(5, F32), axis=1)


def starts_with(named: str) -> str:
    """An error's first word is the argument; where two contradict each other, either."""
    return rf"^(?:{named})\b"


# ---- products -----------------------------------------------------------------------------------------------

U, S = codes(RNG, (4, 6), "uint8"), codes(RNG, (6, 5), "int8")


@pytest.mark.parametrize(
    ("arguments", "options", "error", "named"),
    [
        ((U, S[:5]), {}, InvalidProblem, "a|b"),
        ((np.stack([U] * 2), np.stack([S] * 3)), {}, InvalidProblem, "a|b"),
        ((U.astype(np.float32), S), {}, UnsupportedDType, "a"),
        ((U, S.astype(np.int16)), {}, UnsupportedDType, "b"),
        ((U, S), {"a_zero_point": 256}, InvalidProblem, "a_zero_point"),
        ((U, S), {"a_zero_point": -1}, InvalidProblem, "a_zero_point"),
        ((U, S), {"b_zero_point": -129}, InvalidProblem, "b_zero_point"),
        ((U, S), {"a_zero_point": np.zeros(5, np.int32)}, InvalidProblem, "a_zero_point"),
        ((U, S), {"b_zero_point": np.zeros(4, np.int32)}, InvalidProblem, "b_zero_point"),
        ((U, S), {"b_zero_point": 0.5}, InvalidProblem, "b_zero_point"),
    ],
    ids=["depth", "batches", "floats", "int16", "above", "below", "below signed", "rows", "columns", "half"],
)
def test_errors_of_matmul_integer_name_the_argument(
    native: ModuleType, arguments: Any, options: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=starts_with(named)):
        native.matmul_integer(*arguments, **options)


A, B = tensor(RNG, (4, 6), "uint8"), tensor(RNG, (6, 5), "int8")
GOOD = output_params("int8", 0.5, 0)


@pytest.mark.parametrize(
    ("a", "b", "options", "error", "named"),
    [
        (A, tensor(RNG, (7, 5), "int8"), {}, InvalidProblem, "a|b"),
        (U, B, {}, NOT_A_TENSOR, "a"),
        (A, S, {}, NOT_A_TENSOR, "b"),
        (A, B, {"bias": np.zeros(4, F32)}, InvalidProblem, "bias"),
        (A, B, {"bias": np.zeros((5, 5), F32)}, InvalidProblem, "bias"),
        (A, B, {"bias": np.zeros(5, np.complex64)}, REFUSED, "bias"),
        (A, B, {"out_params": BY_CHANNEL.replace(axis=0)}, InvalidProblem, "out_params"),
        (A, B, {"out_params": "int4"}, InvalidProblem, "out_params"),
        (A, B, {"out_dtype": "int8"}, REFUSED, "out_dtype"),
        (A, B, {"activation": "gelu"}, REFUSED, "activation"),
        (A, B, {"clamp": (1.0, 0.0)}, InvalidProblem, "clamp"),
        (A, B, {"clamp": (np.nan, 1.0)}, InvalidProblem, "clamp"),
        (A, B, {"out_params": GOOD, "clamp": (2.0, 1.0)}, InvalidProblem, "clamp"),
    ],
    ids=[
        "depth", "a is no tensor", "b is no tensor", "short bias",
        "bias of two dimensions", "complex bias", "output by other rows", "output by name",
        "integers as floats", "unknown activation", "clamp upside down", "clamp nan", "clamp of codes upside down",
    ],
)  # fmt: skip
def test_errors_of_qmatmul_name_the_argument(
    native: ModuleType, a: Any, b: Any, options: dict[str, Any], error: Any, named: str
) -> None:
    with pytest.raises(error, match=starts_with(named)):
        native.qmatmul(a, b, **options)


@pytest.mark.parametrize(
    "b", [S, tensor(RNG, (6,), "int8"), lb.quantize(np.ones((6, 5), F32), "int16")], ids=["array", "a row", "int16"]
)
def test_errors_of_prepack_name_the_argument(native: ModuleType, b: Any) -> None:
    with pytest.raises((InvalidProblem, Unsupported, TypeError), match=starts_with("b")):
        native.prepack(b)


def bits(shape: tuple[int, ...]) -> Any:
    """Zeros that take no memory, however many they are."""
    count = -(-int(np.prod(shape)) // 8)
    return QuantizedTensor._trusted(np.broadcast_to(np.uint8(0), (count,)), QuantizationParams("binary"), shape)


def test_binary_sums_past_int32_are_refused(native: ModuleType) -> None:
    """2^31 places that agree are one more than int32 counts; nothing is read or allocated to find that out."""
    with pytest.raises(Unsupported, match=r"^b: sums over 2147483648 bits; expected fewer than 2\^31"):
        native.prepack_binary(bits((1, 2**31)))
    with pytest.raises(Unsupported, match=r"^a: sums over 2147483648 bits"):
        _rows(bits((1, 2**31)), "a", False)
    assert _checked_k(2**31 - 1, "b") == 2**31 - 1


# ---- convolutions -------------------------------------------------------------------------------------------

IMAGE, KERNEL = codes(RNG, (2, 6, 7, 8), "uint8"), codes(RNG, (4, 6, 3, 3), "int8")


@pytest.mark.parametrize(
    ("x", "w", "options", "error", "named"),
    [
        (IMAGE, KERNEL[:, :5], {}, InvalidProblem, "x|w"),
        (IMAGE, KERNEL, {"groups": 2}, InvalidProblem, "x|w|groups"),
        (IMAGE, KERNEL[:3, :3], {"groups": 2}, InvalidProblem, "w|groups"),
        (IMAGE, KERNEL, {"groups": 0}, InvalidProblem, "groups"),
        (IMAGE[0], KERNEL, {}, InvalidProblem, "x"),
        (IMAGE, KERNEL[0], {}, InvalidProblem, "w"),
        (IMAGE[:, :, :2], KERNEL, {}, InvalidProblem, "x|w"),
        (IMAGE, KERNEL, {"dilation": 4}, InvalidProblem, "x|w|dilation"),
        (IMAGE.astype(F32), KERNEL, {}, UnsupportedDType, "x"),
        (IMAGE, KERNEL.astype(np.int32), {}, UnsupportedDType, "w"),
        (IMAGE, KERNEL, {"x_zero_point": -1}, InvalidProblem, "x_zero_point"),
        (IMAGE, KERNEL, {"w_zero_point": 128}, InvalidProblem, "w_zero_point"),
        (IMAGE, KERNEL, {"w_zero_point": np.zeros(6, np.int32)}, InvalidProblem, "w_zero_point"),
        (IMAGE, KERNEL, {"stride": 0}, InvalidProblem, "stride"),
        (IMAGE, KERNEL, {"stride": (1, 2, 3)}, InvalidProblem, "stride"),
        (IMAGE, KERNEL, {"dilation": (1, 0)}, InvalidProblem, "dilation"),
        (IMAGE, KERNEL, {"padding": -1}, InvalidProblem, "padding"),
        (IMAGE, KERNEL, {"padding": (1, 2, 3)}, InvalidProblem, "padding"),
        (IMAGE, KERNEL, {"layout": "CHWN"}, InvalidProblem, "layout"),
    ],
    ids=[
        "channels", "channels of groups", "groups of outputs", "no groups", "one image", "one kernel",
        "a kernel above the image", "a dilated kernel above the image", "floats", "int32", "zero point of x",
        "zero point of w", "zero points of w", "no stride", "three strides", "no dilation", "less than no padding",
        "three sides", "layout",
    ],
)  # fmt: skip
def test_errors_of_conv2d_integer_name_the_argument(
    native: ModuleType, x: Any, w: Any, options: dict[str, Any], error: Any, named: str
) -> None:
    with pytest.raises(error, match=starts_with(named)):
        native.conv2d_integer(x, w, **options)


X, W = tensor(RNG, (2, 6, 7, 8), "uint8"), tensor(RNG, (4, 6, 3, 3), "int8", 0)


@pytest.mark.parametrize(
    ("x", "w", "options", "error", "named"),
    [
        (IMAGE, W, {}, NOT_A_TENSOR, "x"),
        (X, KERNEL, {}, NOT_A_TENSOR, "w"),
        (X, W, {"groups": 3}, InvalidProblem, "x|w|groups"),
        (X, W, {"bias": np.zeros(6, F32)}, InvalidProblem, "bias"),
        (X, W, {"out_params": BY_CHANNEL}, REFUSED, "out_params"),
        (X, W, {"out_dtype": "int32"}, REFUSED, "out_dtype"),
        (X, W, {"activation": "swish"}, REFUSED, "activation"),
        (X, W, {"clamp": (6.0, 0.0)}, InvalidProblem, "clamp"),
        (X, W, {"layout": "NCW"}, InvalidProblem, "layout"),
    ],
    ids=[
        "x is no tensor", "w is no tensor", "groups", "bias",
        "output by channels", "integers as floats", "unknown activation", "clamp upside down", "layout",
    ],
)  # fmt: skip
def test_errors_of_qconv2d_name_the_argument(
    native: ModuleType, x: Any, w: Any, options: dict[str, Any], error: Any, named: str
) -> None:
    with pytest.raises(error, match=starts_with(named)):
        native.qconv2d(x, w, **options)


def test_errors_of_qconv1d_name_the_argument(native: ModuleType) -> None:
    x, w = tensor(RNG, (2, 6, 20), "uint8"), tensor(RNG, (4, 6, 3), "int8")
    with pytest.raises(InvalidProblem, match=starts_with("x")):
        native.qconv1d(X, w)
    with pytest.raises(InvalidProblem, match=starts_with("w")):
        native.qconv1d(x, W)
    with pytest.raises(InvalidProblem, match=starts_with("padding")):
        native.qconv1d(x, w, padding=(1, 2, 3))


# ---- layers -------------------------------------------------------------------------------------------------

WEIGHT = RNG.standard_normal((5, 8)).astype(F32)
HOLED = WEIGHT.copy()
HOLED[1, 2] = np.nan


@pytest.mark.parametrize(
    ("weight", "options", "error", "named"),
    [
        (WEIGHT[0], {}, InvalidProblem, "weight"),
        (WEIGHT.astype(np.int32), {}, UnsupportedDType, "weight"),
        (HOLED, {}, InvalidProblem, "weight"),
        (WEIGHT, {"bias": np.zeros(8, F32)}, InvalidProblem, "bias"),
        (WEIGHT, {"activation_dtype": "int16"}, REFUSED, "activation_dtype"),
        (WEIGHT, {"group_size": 0}, InvalidProblem, "group_size"),
        (WEIGHT, {"input_params": BY_CHANNEL}, REFUSED, "input_params"),
        (WEIGHT, {"out_params": "int4"}, InvalidProblem, "out_params"),
    ],
    ids=["one row", "integers", "nan", "bias", "activation", "block of none", "input by channels", "output by name"],
)
def test_errors_of_making_a_linear_layer_name_the_argument(
    native: ModuleType, weight: Any, options: dict[str, Any], error: Any, named: str
) -> None:
    with pytest.raises(error, match=starts_with(named)):
        native.QuantizedLinear(weight, **options)


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (np.zeros((2, 7), F32), InvalidProblem),
        (np.zeros((), F32), InvalidProblem),
        (np.zeros((2, 8), np.int8), UnsupportedDType),
    ],
    ids=["too short", "a number", "integers"],
)
def test_errors_of_calling_a_linear_layer_name_x(native: ModuleType, x: Any, error: Any) -> None:
    with pytest.raises(error, match=starts_with("x")):
        native.QuantizedLinear(WEIGHT)(x)


def test_errors_of_a_convolution_layer_name_the_argument(native: ModuleType) -> None:
    weight = np.ones((4, 6, 3, 3), F32)
    for made, named in (({"bias": np.zeros(3, F32)}, "bias"), ({"stride": 0}, "stride"), ({"layout": "HWC"}, "layout")):
        with pytest.raises(InvalidProblem, match=starts_with(named)):
            native.QuantizedConv2d(weight, **made)
    for x in (np.ones((6, 7, 8), F32), np.ones((1, 5, 7, 8), F32), np.ones((1, 6, 2, 8), F32)):
        with pytest.raises(InvalidProblem, match=starts_with("x")):
            native.QuantizedConv2d(weight)(x)
