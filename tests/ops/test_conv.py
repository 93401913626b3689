"""conv2d_integer, qconv2d and qconv1d: the sums and codes of the reference, to the bit. `subject` is the reference's
own adapter, then lowbit on each ISA."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import lowbit as lb
from conftest import ISAS, THREADS
from lowbit import QuantizationParams, QuantizedTensor, _core
from lowbit.ops.conv_paths import line_of
from lowbit.reference.compute import conv2d_integer, requantize, scaled
from problems import BYTES, F32, codes, constant, output_params, same, same_codes, spread_over, tensor
from problems import zero_points as zeros_of

Sides = tuple[int, int, int, int]


class Problem(NamedTuple):
    """A convolution: x [n, c, h, w] by w [out, c / groups, kh, kw]; padding top, left, bottom, right."""

    x: tuple[int, int, int, int]
    w: tuple[int, int, int, int]
    stride: tuple[int, int] = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1

    @property
    def options(self) -> dict[str, Any]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}


PROBLEMS = {
    "one by one": Problem((1, 16, 7, 7), (24, 16, 1, 1)),
    "one by one of one": Problem((1, 1, 1, 1), (1, 1, 1, 1)),
    "one by one with a stride": Problem((2, 5, 9, 8), (7, 5, 1, 1), (2, 3)),
    "one by one in a frame": Problem((1, 3, 4, 5), (5, 3, 1, 1), padding=(1, 1, 1, 1)),
    "three by three": Problem((1, 8, 10, 10), (16, 8, 3, 3), padding=(1, 1, 1, 1)),
    "three channels, seven by seven": Problem((1, 3, 23, 23), (8, 3, 7, 7), (2, 2), (3, 3, 3, 3)),
    "primes": Problem((3, 7, 11, 13), (5, 7, 3, 5), padding=(1, 2, 1, 2)),
    "a batch": Problem((4, 6, 6, 6), (9, 6, 3, 3), padding=(1, 1, 1, 1)),
    "an empty batch": Problem((0, 6, 6, 6), (9, 6, 3, 3), padding=(1, 1, 1, 1)),
    "no channels out": Problem((2, 3, 5, 5), (0, 3, 2, 2)),
    "four different sides": Problem((1, 4, 6, 5), (6, 4, 3, 4), padding=(0, 1, 2, 3)),
    "a frame wider than the kernel": Problem((1, 2, 3, 3), (3, 2, 2, 2), padding=(5, 4, 3, 6)),
    "a stride above the kernel": Problem((1, 4, 13, 14), (5, 4, 2, 2), (5, 4)),
    "a stride that leaves columns over": Problem((1, 4, 10, 10), (5, 4, 3, 3), (2, 3)),
    "dilation": Problem((1, 5, 14, 15), (6, 5, 3, 3), dilation=(2, 3)),
    "dilation, stride and sides": Problem((2, 4, 12, 11), (6, 4, 3, 2), (2, 3), (2, 0, 1, 4), (3, 2)),
    "a kernel longer than a row": Problem((1, 3, 4, 3), (4, 3, 3, 7), padding=(0, 2, 0, 2)),
    "a kernel as large as the image": Problem((2, 3, 5, 6), (4, 3, 5, 6)),
    "a kernel that sees only its frame": Problem((1, 2, 8, 1), (3, 2, 2, 2), (3, 3), (1, 3, 3, 1), (2, 2)),
    "one row": Problem((1, 4, 1, 30), (5, 4, 1, 3), padding=(0, 1, 0, 1)),
    "one column": Problem((1, 4, 30, 1), (5, 4, 3, 1), padding=(1, 0, 1, 0)),
    "groups": Problem((1, 12, 8, 8), (6, 4, 3, 3), padding=(1, 1, 1, 1), groups=3),
    "groups of uneven sides": Problem((2, 10, 7, 9), (15, 2, 2, 3), (2, 1), (1, 0, 0, 2), (1, 2), 5),
    "depthwise": Problem((1, 17, 9, 9), (17, 1, 3, 3), padding=(1, 1, 1, 1), groups=17),
    "depthwise in vectors": Problem((2, 64, 8, 8), (64, 1, 3, 3), padding=(1, 1, 1, 1), groups=64),
    "depthwise with a stride": Problem((1, 33, 12, 13), (33, 1, 3, 3), (2, 2), (0, 1, 1, 0), groups=33),
    "depthwise five by five, dilated": Problem((1, 9, 15, 14), (9, 1, 5, 5), (1, 2), (4, 4, 4, 4), (2, 2), 9),
    "depthwise, two out of each": Problem((1, 8, 7, 7), (16, 1, 3, 3), padding=(1, 1, 1, 1), groups=8),
    "one channel": Problem((1, 1, 12, 12), (1, 1, 3, 3)),
    "deep": Problem((1, 300, 3, 3), (2, 300, 3, 3), padding=(1, 1, 1, 1)),
    "tiles both ways and a rest": Problem((1, 20, 17, 19), (67, 20, 3, 3), padding=(1, 1, 1, 1)),
}
problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)
layouts = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
PAIRS = [(x, w) for x in BYTES for w in BYTES]


def last(array: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1))


def in_layout(array: Any, layout: str) -> Any:
    return array if layout == "NCHW" else last(array)


def tensor_in(x: QuantizedTensor, layout: str) -> QuantizedTensor:
    return QuantizedTensor(in_layout(x.data, layout), x.params)


def summed(x: QuantizedTensor, w: QuantizedTensor, p: Problem) -> Any:
    zx, zw = int(x.params.zero_point), w.params.zero_point
    return conv2d_integer(x.data, w.data, zx, zw, p.stride, p.padding, p.dilation, p.groups)


def floats(x: QuantizedTensor, w: QuantizedTensor, p: Problem, bias: Any = 0) -> Any:
    """With the channels last, which is where scales and biases broadcast."""
    return scaled(last(summed(x, w, p)), x.params.scale, w.params.scale, bias)


def recoded(x: QuantizedTensor, w: QuantizedTensor, p: Problem, out: QuantizationParams, bias: Any = 0) -> Any:
    """With the channels last. bias: in steps of the sums."""
    acc, zero = last(summed(x, w, p)) + bias, int(out.zero_point)
    return requantize(acc, x.params.scale, w.params.scale, out.scale, zero, out.qmin, out.qmax)


def first(array: Any, layout: str) -> Any:
    """From channels last to where `layout` has them."""
    return np.ascontiguousarray(np.moveaxis(array, -1, 1)) if layout == "NCHW" else array


# ---- sums -------------------------------------------------------------------------------------------------


@problem
@layouts
def test_sums_are_exact(subject: ModuleType, p: Problem, layout: str) -> None:
    rng = np.random.default_rng(sum(p.x) + sum(p.w))
    for x_type, w_type in PAIRS:
        x, w = codes(rng, p.x, x_type), codes(rng, p.w, w_type)
        zx = int(zeros_of(rng, (), x_type))
        for zw in (0, int(zeros_of(rng, (), w_type)), zeros_of(rng, p.w[0], w_type)):
            expected = conv2d_integer(x, w, zx, zw, p.stride, p.padding, p.dilation, p.groups).astype(np.int32)
            found = subject.conv2d_integer(in_layout(x, layout), w, zx, zw, **p.options, layout=layout)
            assert same(found, in_layout(expected, layout)), (x_type, w_type)


@layouts
@pytest.mark.parametrize(
    ("x_type", "x_value", "w_type", "w_value"),
    [
        ("uint8", 255, "int8", -128),
        ("uint8", 255, "int8", 127),
        ("uint8", 255, "uint8", 255),
        ("int8", -128, "int8", -128),
        ("int8", -128, "uint8", 255),
    ],
)
@pytest.mark.parametrize("groups", [1, 2, 8], ids=["dense", "groups", "depthwise"])
def test_neighbouring_products_do_not_saturate(
    subject: ModuleType, x_type: str, x_value: int, w_type: str, w_value: int, groups: int, layout: str
) -> None:
    x, w = np.full((1, 8, 7, 9), x_value, x_type), np.full((16, 8 // groups, 3, 3), w_value, w_type)
    found = subject.conv2d_integer(in_layout(x, layout), w, groups=groups, layout=layout)
    assert found.dtype == np.int32
    assert (found == 9 * (8 // groups) * x_value * w_value).all()


@layouts
@pytest.mark.parametrize("groups", [1, 6], ids=["dense", "depthwise"])
def test_padding_counts_as_zero_whatever_the_zero_point(subject: ModuleType, groups: int, layout: str) -> None:
    """An image of its own zero point is all zero, and so is its frame."""
    rng = np.random.default_rng(1)
    w = codes(rng, (12, 6 // groups, 3, 3), "int8")
    for dtype, zero in (("uint8", 0), ("uint8", 255), ("uint8", 77), ("int8", -128), ("int8", 127), ("int8", 5)):
        x = in_layout(np.full((1, 6, 5, 5), zero, dtype), layout)
        found = subject.conv2d_integer(x, w, zero, -7, padding=2, groups=groups, layout=layout)
        assert not found.any()
    x = np.full((1, 6, 5, 5), 9, np.uint8)
    inside = subject.conv2d_integer(in_layout(x, layout), w, 200, 3, padding=1, groups=groups, layout=layout)
    around = conv2d_integer(x, w, 200, 3, padding=(1, 1, 1, 1), groups=groups)
    assert same(inside, in_layout(around.astype(np.int32), layout))


def test_sums_past_int32(subject: ModuleType) -> None:
    """More than 33025 products a sum, all as large as they come: the numbers are right in whatever type holds them."""
    x, w = np.full((1, 4000, 3, 3), 255, np.uint8), np.full((2, 4000, 3, 3), 0, np.uint8)
    found = subject.conv2d_integer(x, w, 0, 255)
    assert found.shape == (1, 2, 1, 1)
    assert (found.astype(np.int64) == -255 * 255 * 36000).all()
    q = subject.qconv2d(constant(255, x.shape, "uint8"), constant(0, w.shape, "uint8", zero=255))
    assert same(q, np.full((1, 2, 1, 1), F32(-255 * 255 * 36000)))


def test_short_ways_to_say_stride_padding_and_dilation(subject: ModuleType) -> None:
    rng = np.random.default_rng(2)
    x, w = codes(rng, (1, 3, 12, 13), "uint8"), codes(rng, (4, 3, 3, 2), "int8")

    def found(**options: Any) -> Any:
        return subject.conv2d_integer(x, w, 3, 4, **options)

    assert same(found(stride=2), found(stride=(2, 2)))
    assert same(found(dilation=3), found(dilation=(3, 3)))
    assert same(found(padding=2), found(padding=(2, 2, 2, 2)))
    assert same(found(padding=(1, 2)), found(padding=(1, 2, 1, 2)))
    assert not same(found(padding=(1, 2)), found(padding=(2, 1)))


@layouts
@pytest.mark.parametrize(
    "view", [lambda x: x[..., ::2, ::-1], lambda x: x.swapaxes(1, 2), lambda x: np.moveaxis(x, 0, -1)],
    ids=["steps", "swapped", "moved"],
)  # fmt: skip
def test_strided_images_and_weights(subject: ModuleType, view: Any, layout: str) -> None:
    rng = np.random.default_rng(3)
    x = view(codes(rng, (6, 6, 6, 6), "uint8"))
    w = view(codes(rng, (8, 6, 8, 6), "int8"))[:, :1, :2, :2].repeat(x.shape[1], 1)[:, :, ::-1]
    expected = conv2d_integer(x, w, 1, 2).astype(np.int32)
    lent = x if layout == "NCHW" else np.moveaxis(x, 1, -1)  # not copied into order
    assert same(subject.conv2d_integer(lent, w, 1, 2, layout=layout), in_layout(expected, layout))


# ---- floats and codes -------------------------------------------------------------------------------------


@problem
@layouts
@pytest.mark.parametrize("axis", [None, 0], ids=["tensor", "channels"])
def test_float_output(subject: ModuleType, p: Problem, layout: str, axis: int | None) -> None:
    rng = np.random.default_rng(sum(p.x) * sum(p.w))
    for x_type, w_type in PAIRS:
        x, w = tensor(rng, p.x, x_type), tensor(rng, p.w, w_type, axis)
        given_x, bias = tensor_in(x, layout), rng.standard_normal(p.w[0]).astype(F32)
        assert same(subject.qconv2d(given_x, w, **p.options, layout=layout), first(floats(x, w, p), layout))
        found = subject.qconv2d(given_x, w, bias, **p.options, layout=layout)
        assert same(found, first(floats(x, w, p, bias), layout))


@problem
@layouts
@pytest.mark.parametrize("axis", [None, 0], ids=["tensor", "channels"])
def test_requantized_output(subject: ModuleType, p: Problem, layout: str, axis: int | None) -> None:
    rng = np.random.default_rng(sum(p.x) * sum(p.w) + 1)
    for (x_type, w_type), y_type in zip(PAIRS, ("int8", "uint8", "uint8", "int8"), strict=True):
        x, w = tensor(rng, p.x, x_type), tensor(rng, p.w, w_type, axis)
        sx, sw, given_x = x.params.scale, w.params.scale, tensor_in(x, layout)
        out = output_params(y_type, spread_over(summed(x, w, p), sx, sw), int(zeros_of(rng, (), y_type)))
        found = subject.qconv2d(given_x, w, **p.options, layout=layout, out_params=out)
        assert same_codes(found, first(recoded(x, w, p, out), layout), out)
        sums = rng.integers(-20_000, 20_000, p.w[0], dtype=np.int32)
        found = subject.qconv2d(given_x, w, sums, **p.options, layout=layout, out_params=out)
        assert same_codes(found, first(recoded(x, w, p, out, sums), layout), out)
        numbers = (rng.standard_normal(p.w[0]) * float(out.scale) * 30).astype(F32)
        steps = np.rint(numbers / (sx * sw)).astype(np.int64)
        found = subject.qconv2d(given_x, w, numbers, **p.options, layout=layout, out_params=out)
        assert same_codes(found, first(recoded(x, w, p, out, steps), layout), out)


@layouts
@pytest.mark.parametrize("name", ["three by three", "one by one", "groups", "depthwise"])
def test_relu_clamp_and_float_types(subject: ModuleType, name: str, layout: str) -> None:
    rng, p = np.random.default_rng(4), PROBLEMS[name]
    x, w = tensor(rng, p.x, "uint8"), tensor(rng, p.w, "int8", 0)
    bias = rng.standard_normal(p.w[0]).astype(F32)

    def found(**options: Any) -> Any:
        return subject.qconv2d(tensor_in(x, layout), w, bias, **p.options, layout=layout, **options)

    y = first(floats(x, w, p, bias), layout)
    assert same(found(activation="relu"), np.maximum(y, 0))
    assert same(found(clamp=(-0.5, 6.0)), np.clip(y, F32(-0.5), F32(6)))
    assert same(found(out_dtype="float16"), y.astype(np.float16))
    assert same(found(out_dtype="bfloat16"), y.astype(ml_dtypes.bfloat16))
    out = output_params("int8", spread_over(summed(x, w, p), x.params.scale, w.params.scale), -20)
    steps = np.rint(bias / (x.params.scale * w.params.scale)).astype(np.int64)
    plain = first(recoded(x, w, p, out, steps), layout)
    assert (plain < -20).any()
    assert same_codes(found(out_params=out, activation="relu"), np.maximum(plain, -20), out)
    bounds = (0.0, 30.2 * float(out.scale))
    assert same_codes(found(out_params=out, clamp=bounds), np.clip(plain, -20, 10), out)


@problem
def test_packed_weights_give_the_same_bits(subject: ModuleType, p: Problem) -> None:
    rng = np.random.default_rng(5)
    x, w = tensor(rng, p.x, "uint8"), tensor(rng, p.w, "int8", 0)
    y, packed = floats(x, w, p), subject.prepack_conv2d(w, groups=p.groups)
    w.data[...] = 0  # it keeps numbers of its own
    for layout in ("NCHW", "NHWC"):
        found = subject.qconv2d(tensor_in(x, layout), packed, **p.options, layout=layout)
        assert same(found, first(y, layout)), layout


@pytest.mark.parametrize("packer", ISAS)
@pytest.mark.parametrize("user", ISAS)
@pytest.mark.parametrize("name", ["three by three", "groups", "depthwise"])
def test_weights_packed_under_one_isa_serve_another(native: ModuleType, name: str, packer: str, user: str) -> None:
    rng, p = np.random.default_rng(6), PROBLEMS[name]
    x, w = tensor(rng, p.x, "uint8"), tensor(rng, p.w, "int8", 0)
    _core.set_max_isa(packer)
    packed = native.prepack_conv2d(w, groups=p.groups)
    _core.set_max_isa(user)
    assert same(native.qconv2d(x, packed, **p.options), first(floats(x, w, p), "NCHW"))


@pytest.mark.parametrize(
    "p",
    [
        Problem((1, 32, 40, 41), (48, 32, 3, 3), padding=(1, 1, 1, 1)),
        Problem((9, 16, 12, 12), (20, 16, 1, 1)),
        Problem((2, 70, 31, 33), (70, 1, 3, 3), (2, 1), (1, 1, 1, 1), groups=70),
        Problem((1, 12, 30, 30), (12, 3, 5, 5), padding=(2, 2, 2, 2), groups=4),
    ],
    ids=["three by three", "a batch of one by one", "depthwise", "groups"],
)
@layouts
def test_threads_do_not_change_a_bit(native: ModuleType, isa: str, p: Problem, layout: str) -> None:
    rng = np.random.default_rng(7)
    x, w = tensor(rng, p.x, "uint8"), tensor(rng, p.w, "int8", 0)
    y, given_x = first(floats(x, w, p), layout), tensor_in(x, layout)
    for threads in THREADS:
        lb.set_num_threads(threads)
        assert same(native.qconv2d(given_x, w, **p.options, layout=layout), y), threads


# ---- one dimension ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "w", "stride", "padding", "dilation", "groups"),
    [
        ((1, 4, 20), (6, 4, 3), 1, 0, 1, 1),
        ((2, 3, 31), (5, 3, 5), 2, 2, 1, 1),
        ((1, 8, 17), (8, 1, 3), 1, (2, 0), 2, 8),
        ((3, 6, 9), (4, 3, 4), 3, (0, 3), 1, 2),
        ((0, 6, 9), (4, 6, 1), 1, 0, 1, 1),
        ((1, 2, 3), (3, 2, 7), 1, (3, 4), 1, 1),
    ],
    ids=["plain", "stride and padding", "causal depthwise", "groups", "an empty batch", "a kernel longer than x"],
)
def test_one_dimension(
    subject: ModuleType, x: Any, w: Any, stride: int, padding: Any, dilation: int, groups: int
) -> None:
    rng = np.random.default_rng(8)
    tx, tw = tensor(rng, x, "uint8"), tensor(rng, w, "int8", 0)
    left, right = (padding, padding) if isinstance(padding, int) else padding
    p = Problem((*x[:2], 1, x[2]), (*w[:2], 1, w[2]), (1, stride), (0, left, 0, right), (1, dilation), groups)
    rows = [QuantizedTensor(t.data[:, :, None], t.params) for t in (tx, tw)]
    bias = rng.standard_normal(w[0]).astype(F32)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    assert same(subject.qconv1d(tx, tw, bias, **options), first(floats(*rows, p, bias), "NCHW")[:, :, 0])
    out = output_params("uint8", spread_over(summed(*rows, p), tx.params.scale, tw.params.scale), 100)
    found = subject.qconv1d(tx, tw, **options, out_params=out, activation="relu")
    expected = np.maximum(first(recoded(*rows, p, out), "NCHW")[:, :, 0], 100)
    assert same_codes(found, expected, out)


# ---- any ---------------------------------------------------------------------------------------------------

two = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1),
    batch=st.integers(0, 2),
    groups=st.integers(1, 4),
    per_group=st.integers(1, 5),
    outs=st.integers(1, 5),
    image=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=two,
    dilation=two,
    padding=st.tuples(*[st.integers(0, 4)] * 4),
    kinds=st.tuples(*[st.sampled_from(BYTES)] * 3),
    axis=st.sampled_from([None, 0]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
)
def test_any_small_convolution(
    subject: ModuleType, seed: int, batch: int, groups: int, per_group: int, outs: int, image: tuple[int, int],
    kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], padding: Sides,
    kinds: tuple[str, ...], axis: int | None, layout: str,
) -> None:  # fmt: skip
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    assume(reach[0] <= image[0] + padding[0] + padding[2] and reach[1] <= image[1] + padding[1] + padding[3])
    p = Problem(
        (batch, groups * per_group, *image), (groups * outs, per_group, *kernel), stride, padding, dilation, groups
    )
    rng = np.random.default_rng(seed)
    x, w = tensor(rng, p.x, kinds[0]), tensor(rng, p.w, kinds[1], axis)
    given_x, bias = tensor_in(x, layout), rng.standard_normal(p.w[0]).astype(F32)
    found = subject.qconv2d(given_x, w, bias, **p.options, layout=layout)
    assert same(found, first(floats(x, w, p, bias), layout))
    out = output_params(kinds[2], spread_over(summed(x, w, p), x.params.scale, w.params.scale), 7)
    found = subject.qconv2d(given_x, w, **p.options, layout=layout, out_params=out)
    assert same_codes(found, first(recoded(x, w, p, out), layout), out)


# ---- calls that repeat --------------------------------------------------------------------------------------

AGAIN = np.random.default_rng(9)
IMAGE = tensor(AGAIN, (2, 4, 4, 4), "uint8")  # as good an image in one layout as in the other
OUT = output_params("int8", 3.0, 5)
# What a packed kernel keeps calls by; every entry differs from the first in one thing alone.
CALLS: dict[str, tuple[QuantizedTensor, dict[str, Any]]] = {
    "first": (IMAGE, {"padding": 1}),
    "shape": (QuantizedTensor(IMAGE.data[:, :, :3].copy(), IMAGE.params), {"padding": 1}),
    "batch": (QuantizedTensor(IMAGE.data[:1], IMAGE.params), {"padding": 1}),
    "scale of x": (QuantizedTensor(IMAGE.data, IMAGE.params.replace(scale=F32(0.7))), {"padding": 1}),
    "zero point of x": (QuantizedTensor(IMAGE.data, IMAGE.params.replace(zero_point=9)), {"padding": 1}),
    "type of x": (
        QuantizedTensor(IMAGE.data.view(np.int8), output_params("int8", IMAGE.params.scale, 0)),
        {"padding": 1},
    ),
    "out_params": (IMAGE, {"padding": 1, "out_params": OUT}),
    "other out_params": (IMAGE, {"padding": 1, "out_params": output_params("int8", 2.0, 5)}),
    "out_dtype": (IMAGE, {"padding": 1, "out_dtype": "float16"}),
    "activation": (IMAGE, {"padding": 1, "activation": "relu"}),
    "clamp": (IMAGE, {"padding": 1, "clamp": (-2.0, 3.0)}),
    "other clamp": (IMAGE, {"padding": 1, "clamp": (-2.0, 4.0)}),
    "stride": (IMAGE, {"padding": 1, "stride": 2}),
    "no padding": (IMAGE, {}),
    "padding of a side": (IMAGE, {"padding": (1, 1, 0, 2)}),
    "dilation": (IMAGE, {"padding": 1, "dilation": 2}),
    "layout": (IMAGE, {"padding": 1, "layout": "NHWC"}),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("groups", [1, 2, 4], ids=["dense", "groups", "depthwise"])
def test_a_call_that_was_settled_serves_no_other(native: ModuleType, name: str, groups: int) -> None:
    w = tensor(AGAIN, (4, 4 // groups, 2, 3), "int8", 0)
    for order in (("first", name), (name, "first")):
        packed = native.prepack_conv2d(w, groups)
        for again in (*order, *order):
            x, options = CALLS[again]
            found, expected = native.qconv2d(x, packed, **options), native.qconv2d(x, w, groups=groups, **options)
            if isinstance(expected, QuantizedTensor):
                assert found == expected
            else:
                assert same(found, expected)


def test_settled_calls_keep_the_params_they_were_settled_for(native: ModuleType) -> None:
    """Params that are no more leave their address to others, which must not be taken for them."""
    w = tensor(AGAIN, (4, 4, 2, 2), "int8", 0)
    packed = native.prepack_conv2d(w)
    for i in range(50):
        x = QuantizedTensor(IMAGE.data, QuantizationParams("uint8", scale=F32(0.01 * (i + 1))))
        assert same(native.qconv2d(x, packed), native.qconv2d(x, w))
        out = output_params("int8", 1.0 + i, i)
        assert native.qconv2d(IMAGE, packed, out_params=out) == native.qconv2d(IMAGE, w, out_params=out)
        del x, out


@pytest.mark.parametrize("name", ["three by three", "groups", "depthwise"])
def test_one_packed_kernel_serves_each_isa_in_turn(native: ModuleType, name: str) -> None:
    p = PROBLEMS[name]
    x, w = tensor(AGAIN, p.x, "uint8"), tensor(AGAIN, p.w, "int8", 0)
    packed, y = native.prepack_conv2d(w, groups=p.groups), first(floats(x, w, p), "NCHW")
    for isa in (*ISAS, *ISAS):
        _core.set_max_isa(isa)
        assert not len(packed._calls)  # what was settled for one ISA is not run under another
        assert not packed.is_depthwise or not len(packed._prepared)
        assert same(native.qconv2d(x, packed, **p.options), y), isa
        assert len(packed._calls) == 1


# ---- depths -------------------------------------------------------------------------------------------------


def test_rows_of_a_kernel_are_filled_up_to_a_depth(native: ModuleType) -> None:
    """Zeros that are read beside a kernel's row count towards the depth that int32 sums are exact for."""
    none, some = np.int32([0]), np.int32([3])
    assert line_of(1, 4095, none) == line_of(1, 4096, none) == 4096
    assert line_of(1, 4097, none) == 4097
    assert line_of(2, 2047, none) == 2048
    assert line_of(2, 2049, none) == 2049
    assert line_of(1, 4095, some) == 4095


@pytest.mark.parametrize("channels", [4097, 33017, 33023, 33024, 33025, 33026])
@pytest.mark.parametrize("height", [1, 2])
def test_sums_at_the_exact_depth(native: ModuleType, channels: int, height: int) -> None:
    """33025 products of 255 by 255 are the most that int32 holds, and none of them may be a zero that was filled in."""
    x, w = np.full((1, channels, height, 3), 255, np.uint8), np.full((2, channels, height, 1), 255, np.uint8)
    depth = channels * height
    found = native.conv2d_integer(x, w)
    assert found.dtype == (np.int32 if depth <= 33025 else np.int64)
    assert (found == 65025 * depth).all()
    out = output_params("uint8", F32(65025 * depth / 200), 3)
    ones = QuantizationParams("uint8", scale=F32(1))
    assert (native.qconv2d(QuantizedTensor(x, ones), QuantizedTensor(w, ones), out_params=out).data == 203).all()
