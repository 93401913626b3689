"""Products and convolutions of every dtype, scheme and granularity: the path they take, and the numbers of plain NumPy.
Integer paths are compared to the bit, the general one within the rounding of its float32 result."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import lowbit as lb
from lowbit import InvalidProblem, QuantizationParams, QuantizedTensor, Unsupported
from lowbit.ops.conv import conv_path_of
from lowbit.ops.matmul import path_of
from lowbit.reference import compute as reference_compute
from problems import F32, same, scales, tensor

LINEAR = ("int8", "uint8", "int4", "uint4", "int2", "uint2", "int16", "uint16")


class Kind(NamedTuple):
    """How a tensor of any shape is quantized."""

    dtype: str  # "mixed" has a width for each index of the axis
    scheme: str = "symmetric"
    axis: int | None = None
    block: int | None = None

    def tensor(self, rng: np.random.Generator, shape: tuple[int, ...]) -> QuantizedTensor:
        """Random numbers of very different size along the axis, quantized so."""
        values = rng.standard_normal(shape).astype(F32)
        if self.axis is not None:
            at = [1] * len(shape)
            at[self.axis] = shape[self.axis]
            values *= (10.0 ** rng.uniform(-1, 1, shape[self.axis])).astype(F32).reshape(at)
        unsigned = self.dtype.startswith("u") and self.scheme == "symmetric"
        dtype: Any = self.dtype
        if dtype == "mixed":
            assert self.axis is not None
            dtype = lb.QuantizedDType.mixed(rng.choice([1, 2, 4, 8, 16], shape[self.axis]))
        options: dict[str, Any] = {"scheme": self.scheme, "axis": self.axis, "group_size": self.block}
        return lb.quantize(np.abs(values) if unsigned else values, dtype, **options)

    def __str__(self) -> str:
        return "-".join(str(part) for part in self if part is not None)


def kinds(ndim: int) -> list[Kind]:
    """Every dtype and scheme with one scale; with a scale along each axis, and in blocks along each."""
    found = [Kind(dtype, scheme) for dtype in LINEAR for scheme in ("symmetric", "asymmetric")]
    found += [Kind(dtype, "logarithmic") for dtype in ("int8", "int4", "int16")]
    found.append(Kind("binary"))
    for axis in range(ndim):
        for dtype, scheme in (("int8", "symmetric"), ("uint8", "asymmetric"), ("int4", "asymmetric"),
                              ("int16", "asymmetric"), ("int8", "logarithmic"), ("binary", "symmetric")):  # fmt: skip
            found += [Kind(dtype, scheme, axis), Kind(dtype, scheme, axis, 2)]
        found.append(Kind("mixed", "symmetric", axis))
    return found


def numbers(t: QuantizedTensor) -> Any:
    return t.dequantize(dtype=np.float64)


def near(found: Any, exact: Any, terms: Any) -> bool:
    """float32 of sums in float64, in whatever order."""
    assert found.dtype == F32
    return bool((np.abs(found - exact) <= 2.0**-23 * np.abs(exact) + 2.0**-48 * terms + 1e-37).all())


def linear_steps(t: QuantizedTensor) -> Any:
    """q - z of linear codes with one zero point, or the ±1 of bits, in int64."""
    codes = t.unpack().astype(np.int64)
    return 2 * codes - 1 if t.dtype.is_binary else codes - t.params.zero_point


# ---- convolutions -----------------------------------------------------------------------------------------------

PLAIN: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0, 2, 3), "dilation": (1, 2), "groups": 2}
X_SHAPE, W_SHAPE = (3, 6, 5, 7), (4, 3, 3, 2)


def in_layout(array: Any, layout: str) -> Any:
    return np.ascontiguousarray(np.moveaxis(array, 1, -1)) if layout == "NHWC" else array


def expected_path(x: QuantizedTensor, w: QuantizedTensor, groups: int) -> str:
    """The table of docs/guide/compute.md, said again."""
    one_scale = x.params.axis is None and w.params.group_size is None and w.params.axis in (None, 0)
    names = {x.dtype.name, w.dtype.name}
    if not one_scale or "mixed" in names or x.params.is_logarithmic or w.params.is_logarithmic:
        return "general"
    if "binary" in names:
        return "binary" if names == {"binary"} else "general"
    if names & {"int16", "uint16"}:
        return "integer16"
    return "depthwise" if w.shape[1] == 1 and w.shape[0] == groups else "integer"


def check_convolution(x: QuantizedTensor, w: QuantizedTensor, layout: str, **options: Any) -> None:
    """x in `layout`, w [out, in, kh, kw]: against the equations in NCHW."""
    path = conv_path_of(x.params, w.params, w.shape, options["groups"])
    assert path == expected_path(x, w, options["groups"])
    found = lb.qconv2d(x, w, layout=layout, **options)
    values = np.moveaxis(numbers(x), -1, 1) if layout == "NHWC" else numbers(x)
    if path == "general":
        exact, terms = (
            reference_compute.conv2d_general(a, b, **options)
            for a, b in ((values, numbers(w)), (np.abs(values), np.abs(numbers(w))))
        )
        assert near(found, in_layout(exact, layout), in_layout(terms, layout))
        return
    steps = np.moveaxis(linear_steps(x), -1, 1) if layout == "NHWC" else linear_steps(x)
    zero = w.params.zero_point if not w.dtype.is_binary else 0
    codes = linear_steps(w) if w.dtype.is_binary else w.unpack()
    acc = np.moveaxis(reference_compute.conv2d_integer(steps, codes, 0, zero, **options), 1, -1)
    y = reference_compute.scaled(acc, x.params.scale, w.params.scale)
    assert same(found, y if layout == "NHWC" else np.ascontiguousarray(np.moveaxis(y, -1, 1)))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", kinds(4), ids=str)
def test_an_image_of_any_kind(kind: Kind, layout: str) -> None:
    rng = np.random.default_rng(1)
    shape = X_SHAPE if layout == "NCHW" else (*X_SHAPE[:1], *X_SHAPE[2:], X_SHAPE[1])
    x = kind.tensor(rng, shape)
    for other in (Kind("int8", "symmetric", 0), Kind("uint16", "asymmetric"), Kind("binary", "symmetric", 0)):
        check_convolution(x, other.tensor(rng, W_SHAPE), layout, **PLAIN)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("kind", kinds(4), ids=str)
def test_a_kernel_of_any_kind(kind: Kind, layout: str) -> None:
    rng = np.random.default_rng(2)
    shape = X_SHAPE if layout == "NCHW" else (*X_SHAPE[:1], *X_SHAPE[2:], X_SHAPE[1])
    w = kind.tensor(rng, W_SHAPE)
    for other in (
        Kind("uint8", "asymmetric"),
        Kind("int16", "asymmetric"),
        Kind("binary"),
        Kind("int8", "logarithmic"),
    ):
        check_convolution(other.tensor(rng, shape), w, layout, **PLAIN)


@pytest.mark.parametrize("kind", [Kind("int16", "asymmetric", 0), Kind("int8", "logarithmic"), Kind("binary"),
                                  Kind("mixed", "symmetric", 0), Kind("int4", "symmetric", 2, 2)], ids=str)  # fmt: skip
def test_depthwise_kernels_of_any_kind(kind: Kind) -> None:
    rng = np.random.default_rng(3)
    w = kind.tensor(rng, (6, 1, 3, 2))
    for other in (Kind("uint8", "asymmetric"), Kind("uint16", "asymmetric"), Kind("binary")):
        for layout, shape in (("NCHW", X_SHAPE), ("NHWC", (3, 5, 7, 6))):
            check_convolution(other.tensor(rng, shape), w, layout, **{**PLAIN, "groups": 6})


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32 - 1),
    pair=st.tuples(st.sampled_from(kinds(4)), st.sampled_from(kinds(4))),
    batch=st.integers(1, 2),
    groups=st.integers(1, 3),
    per_group=st.integers(1, 4),
    outs=st.integers(1, 4),
    image=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(*[st.integers(0, 4)] * 4),
    layout=st.sampled_from(["NCHW", "NHWC"]),
)
def test_any_two_kinds(
    seed: int, pair: tuple[Kind, Kind], batch: int, groups: int, per_group: int, outs: int, image: tuple[int, int],
    kernel: tuple[int, int], stride: tuple[int, int], dilation: tuple[int, int], padding: tuple[int, int, int, int],
    layout: str,
) -> None:  # fmt: skip
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    assume(reach[0] <= image[0] + padding[0] + padding[2] and reach[1] <= image[1] + padding[1] + padding[3])
    rng, channels = np.random.default_rng(seed), groups * per_group
    x = pair[0].tensor(rng, (batch, channels, *image) if layout == "NCHW" else (batch, *image, channels))
    w = pair[1].tensor(rng, (groups * outs, per_group, *kernel))
    check_convolution(x, w, layout, stride=stride, padding=padding, dilation=dilation, groups=groups)


@pytest.mark.parametrize("pair", [("int16", "int8"), ("uint8", "uint16"), ("binary", "binary"), ("mixed", "int8")])
@pytest.mark.parametrize(
    "shapes", [((0, 4, 5, 5), (3, 4, 2, 2)), ((2, 4, 5, 5), (0, 4, 2, 2)), ((2, 0, 5, 5), (3, 0, 2, 2))],
    ids=["no images", "no outputs", "no channels"],
)  # fmt: skip
def test_empty_images_and_kernels(pair: tuple[str, str], shapes: Any) -> None:
    """An empty sum is 0, then comes the bias."""
    mixed = QuantizationParams.mixed([8, 4, 2, 1, 16], axis=2)
    left = mixed if pair[0] == "mixed" else QuantizationParams(pair[0])
    x, w = (
        QuantizedTensor.from_codes(np.zeros(shape, np.int8), p)
        for shape, p in zip(shapes, (left, QuantizationParams(pair[1])), strict=True)
    )
    bias = np.arange(shapes[1][0], dtype=F32)
    found = lb.qconv2d(x, w, bias)
    assert found.shape == (shapes[0][0], shapes[1][0], 4, 4)
    assert found.size == 0 or same(found, np.broadcast_to(bias[:, None, None], found.shape).copy())


def test_sums_of_16_bits_do_not_round() -> None:
    """65535 * 65535 * 18 needs 37 bits; float32 sums would lose the last ones."""
    p = QuantizationParams("uint16", "asymmetric", F32(1), 0)
    x = QuantizedTensor.from_codes(np.full((1, 2, 3, 3), 65535), p)
    w = QuantizedTensor.from_codes(np.full((1, 2, 3, 3), 65535), p)
    bias = np.int32([-(2**31) + 1])
    acc = 65535 * 65535 * 18 - 2**31 + 1
    out = QuantizationParams("int16", scale=F32(2**22))
    assert lb.qconv2d(x, w, bias)[0, 0, 0, 0] == F32(acc)
    assert lb.qconv2d(x, w, bias, out_params=out).data.item() == round(acc / 2**22)


def test_packed_weights_meet_images_of_any_kind() -> None:
    rng = np.random.default_rng(4)
    for groups in (1, 2, 6):
        w = tensor(rng, (6, 6 // groups, 2, 3), "int8", 0)
        packed = lb.prepack_conv2d(w, groups)
        for kind in (Kind("int16"), Kind("binary"), Kind("uint8", "asymmetric", 1), Kind("int8", "logarithmic")):
            x = kind.tensor(rng, (2, 6, 5, 4))
            for _ in range(2):
                assert same(lb.qconv2d(x, packed, padding=1), lb.qconv2d(x, w, padding=1, groups=groups))


def test_a_packed_kernel_has_its_own_groups() -> None:
    rng = np.random.default_rng(5)
    x, w = tensor(rng, (1, 6, 4, 4), "uint8"), tensor(rng, (6, 3, 2, 2), "int8")
    packed = lb.prepack_conv2d(w, 2)
    assert same(lb.qconv2d(x, packed), lb.qconv2d(x, packed, groups=2))
    for _ in range(2):
        with pytest.raises(InvalidProblem, match=r"^groups: 3; w is packed for 2"):
            lb.qconv2d(x, packed, groups=3)


@pytest.mark.parametrize("kind", [Kind("int16"), Kind("int8", "logarithmic"), Kind("int8", "symmetric", 1),
                                  Kind("uint8", "asymmetric", 2, 3), Kind("binary")], ids=str)  # fmt: skip
@pytest.mark.parametrize("layout", ["NCW", "NWC"])
def test_rows_of_any_kind(kind: Kind, layout: str) -> None:
    rng = np.random.default_rng(6)
    x, w = kind.tensor(rng, (2, 4, 9) if layout == "NCW" else (2, 9, 4)), kind.tensor(rng, (6, 2, 3))
    found = lb.qconv1d(x, w, stride=2, padding=(2, 1), dilation=2, groups=2, layout=layout)
    values = np.moveaxis(numbers(x), -1, 1) if layout == "NWC" else numbers(x)
    exact, terms = (
        reference_compute.conv2d_general(a[:, :, None], b[:, :, None], (1, 2), (0, 2, 0, 1), (1, 2), 2)[:, :, 0]
        for a, b in ((values, numbers(w)), (np.abs(values), np.abs(numbers(w))))
    )
    found = np.moveaxis(found, -1, 1) if layout == "NWC" else found
    assert (np.abs(found - exact) <= 2.0**-21 * terms).all()


def test_general_convolutions_have_no_integer_sum_to_add_to() -> None:
    x = Kind("int8", "logarithmic").tensor(np.random.default_rng(7), X_SHAPE)
    with pytest.raises(Unsupported, match=r"^bias: integers; on the general path"):
        lb.qconv2d(x, tensor(np.random.default_rng(8), (4, 6, 1, 1), "int8"), np.zeros(4, np.int32))


# ---- layers on images --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "groups", "path"),
    [
        (Kind("int8", "symmetric", 0), 1, "integer"),
        (Kind("int4", "symmetric", 0), 2, "integer"),
        (Kind("uint8", "asymmetric"), 4, "depthwise"),
        (Kind("int16", "symmetric", 0), 2, "integer16"),
        (Kind("uint16", "asymmetric"), 4, "integer16"),
        (Kind("binary", "symmetric", 0), 1, "general"),
        (Kind("int8", "logarithmic", 0), 2, "general"),
        (Kind("mixed", "symmetric", 0), 4, "general"),
        (Kind("int4", "symmetric", 1, 2), 1, "general"),
        (Kind("int8", "symmetric", 3), 1, "general"),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_layer_over_weights_of_any_kind(kind: Kind, groups: int, path: str, layout: str) -> None:
    """It is qconv2d of the codes that x becomes."""
    rng = np.random.default_rng(9)
    w = kind.tensor(rng, (4, 4 // groups, 3, 2))
    bias = rng.standard_normal(4).astype(F32)
    options: dict[str, Any] = {"padding": 1, "stride": (1, 2), "groups": groups, "layout": layout}
    layer = lb.QuantizedConv2d(w, bias, **options)
    assert layer.path == path
    assert layer.weight == w
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        x = rng.standard_normal((2, 4, 6, 5) if layout == "NCHW" else (2, 6, 5, 4)).astype(dtype)
        expected = lb.qconv2d(lb.quantize(x), w, bias, out_dtype=dtype, **options)
        assert same(layer(x), expected)
        assert same(pickle.loads(pickle.dumps(layer))(x), expected)


# ---- floats as operands ------------------------------------------------------------------------------------------


def test_float_rows_are_quantized_each_by_itself() -> None:
    rng = np.random.default_rng(10)
    b = tensor(rng, (12, 7), "int8", 1)
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16):
        a = (rng.standard_normal((9, 12)) * 10.0 ** rng.integers(-2, 3, (9, 1))).astype(dtype)
        expected = lb.qmatmul(lb.quantize(a, axis=0), b)
        assert same(lb.qmatmul(a, b), expected)
        assert same(lb.qmatmul(a, lb.prepack(b)), expected)
        assert same(lb.qmatmul(np.asfortranarray(a), b), expected)
        assert same(lb.qmatmul(np.ascontiguousarray(a.T), b, transpose_a=True), expected)
        assert same(lb.qmatmul(a.reshape(3, 3, 12), b), expected.reshape(3, 3, 7))
    assert same(lb.qmatmul(a.astype(F32).tolist(), b), lb.qmatmul(a.astype(np.float64), b))


def test_float_rows_meet_every_kind() -> None:
    rng = np.random.default_rng(11)
    a = rng.standard_normal((5, 8)).astype(F32)
    for kind in kinds(2):
        b = kind.tensor(rng, (8, 6))
        assert same(lb.qmatmul(a, b), lb.qmatmul(lb.quantize(a, axis=0), b)), kind


def test_a_product_of_a_product() -> None:
    rng = np.random.default_rng(12)
    a, b, c = (
        lb.quantize(rng.standard_normal(s).astype(F32), axis=x) for s, x in (((5, 9), 0), ((9, 6), 1), ((6, 4), 1))
    )
    found = lb.qmatmul(lb.qmatmul(a, b), c)
    exact = numbers(a) @ numbers(b) @ numbers(c)
    assert np.linalg.norm(found - exact) < 0.01 * np.linalg.norm(exact)


def test_float_batches_by_batches() -> None:
    rng = np.random.default_rng(13)
    a = (rng.standard_normal((2, 1, 5, 8)) * 10.0 ** rng.integers(-2, 3, (2, 1, 5, 1))).astype(F32)
    b = tensor(rng, (3, 8, 6), "int8", 2)
    found = lb.qmatmul(a, b)
    assert found.shape == (2, 3, 5, 6)
    for i, j in np.ndindex(2, 3):
        assert same(found[i, j], lb.qmatmul(lb.quantize(a[i, 0], axis=0), b[j]))


def test_no_float_rows() -> None:
    b = tensor(np.random.default_rng(14), (4, 3), "int8", 1)
    assert lb.qmatmul(np.empty((0, 4), F32), b).shape == (0, 3)
    assert same(lb.qmatmul(np.empty((2, 0), F32), QuantizedTensor(b.data[:0], b.params), bias=[1.0, 2.0, 3.0]),
                F32([[1, 2, 3]] * 2))  # fmt: skip


def test_float_images_are_quantized_with_one_scale() -> None:
    rng = np.random.default_rng(15)
    w = tensor(rng, (4, 3, 2, 2), "int8", 0)
    x = rng.standard_normal((2, 3, 5, 6)).astype(F32)
    expected = lb.qconv2d(lb.quantize(x), w, padding=1)
    assert same(lb.qconv2d(x, w, padding=1), expected)
    assert same(lb.qconv2d(x, lb.prepack_conv2d(w), padding=1), expected)
    assert same(lb.qconv2d(in_layout(x, "NHWC"), w, padding=1, layout="NHWC"), in_layout(expected, "NHWC"))
    assert lb.qconv2d(x[:0], w).shape == (0, 4, 4, 5)
    row = QuantizedTensor(w.data[:, :, 0], w.params)
    assert same(lb.qconv1d(x[:, :, 0], row), lb.qconv1d(lb.quantize(x[:, :, 0]), row))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_floats_without_a_range_are_named(bad: float) -> None:
    a, x = np.ones((2, 3, 4), F32), np.ones((1, 2, 3, 4), F32)
    a[1, 2, 3] = x[0, 1, 2, 3] = bad
    with pytest.raises(InvalidProblem, match=r"^a: (nan|inf) at index \(1, 2, 3\)"):
        lb.qmatmul(a, lb.quantize(np.ones((4, 2), F32)))
    with pytest.raises(InvalidProblem, match=r"^x: (nan|inf) at index \(0, 1, 2, 3\)"):
        lb.qconv2d(x, lb.quantize(np.ones((1, 2, 1, 1), F32)))


def test_floats_where_weights_belong_say_the_way_out() -> None:
    a, x = lb.quantize(np.ones((2, 4), F32)), lb.quantize(np.ones((1, 2, 3, 4), F32))
    with pytest.raises(InvalidProblem, match=r"^b: ndarray; expected a QuantizedTensor .*lb\.quantize\(b, axis=1\)"):
        lb.qmatmul(a, np.ones((4, 2), F32))
    with pytest.raises(InvalidProblem, match=r"^w: ndarray; expected a QuantizedTensor .*lb\.quantize\(w, axis=0\)"):
        lb.qconv2d(x, np.ones((1, 2, 1, 1), F32))
    for wrong in (np.ones((2, 4), np.int8), None, "floats"):
        with pytest.raises(InvalidProblem, match=r"^a: .*; expected a QuantizedTensor, or floats, which"):
            lb.qmatmul(wrong, a)
        with pytest.raises(InvalidProblem, match=r"^x: .*; expected a QuantizedTensor, or floats, which"):
            lb.qconv2d(wrong, x)


# ---- products: scales anywhere -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", kinds(3), ids=str)
@pytest.mark.parametrize("b_shape", [(8, 6), (1, 8, 6), (2, 8, 6)], ids=str)
def test_batches_of_any_kind(kind: Kind, b_shape: tuple[int, ...]) -> None:
    """Scales of a along any of its axes, by one matrix and by a batch of them."""
    rng = np.random.default_rng(16)
    a, b = kind.tensor(rng, (2, 5, 8)), tensor(rng, b_shape, "uint8", len(b_shape) - 1)
    exact, terms = numbers(a) @ numbers(b), np.abs(numbers(a)) @ np.abs(numbers(b))
    assert (np.abs(lb.qmatmul(a, b) - exact) <= 4 * 2.0**-23 * terms).all()


@pytest.mark.parametrize("kind", kinds(3), ids=str)
def test_batches_of_weights_of_any_kind(kind: Kind) -> None:
    rng = np.random.default_rng(17)
    a = tensor(rng, (2, 5, 8), "uint8")
    b = kind.tensor(rng, (2, 8, 6))
    exact, terms = numbers(a) @ numbers(b), np.abs(numbers(a)) @ np.abs(numbers(b))
    assert (np.abs(lb.qmatmul(a, b) - exact) <= 8 * 2.0**-23 * terms).all()


# ---- zero points against blocks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("b_type", ["int4", "uint4", "int2", "uint2", "int8", "uint8"])
@pytest.mark.parametrize("a_type", ["int8", "uint8", "int4"])
@pytest.mark.parametrize("by_row", [False, True], ids=["one", "rows"])
def test_operands_with_zero_points_meet_blocks(a_type: str, b_type: str, by_row: bool) -> None:
    """The kernels for groups know no zero points of a: those take the path of blocks, and lose nothing."""
    rng = np.random.default_rng(18)
    lo, hi = lb.QuantizedDType.of(a_type).value_range
    count = (7,) if by_row else ()
    zero = np.asarray(rng.integers(max(lo, -8) + 1, 7, count))
    zero.reshape(-1)[:1] = 3
    pa = QuantizationParams(a_type, "asymmetric", scales(rng, count), zero, axis=0 if by_row else None)
    a = QuantizedTensor.from_codes(rng.integers(lo, hi + 1, (7, 21)), pa)
    low, high = lb.QuantizedDType.of(b_type).value_range
    pb = QuantizationParams(
        b_type, "asymmetric", scales(rng, (3, 5)), rng.integers(low, high + 1, (3, 5)), axis=0, group_size=8
    )
    b = QuantizedTensor.from_codes(rng.integers(low, high + 1, (21, 5)), pb)
    assert path_of(a.params, b.params) == "blocks"
    steps = a.unpack().astype(np.int64) - (zero[:, None] if by_row else zero)
    rows = np.broadcast_to(pa.scale, 7)
    expected = reference_compute.matmul_groups(steps, b.unpack(), rows, pb.scale, pb.zero_point, 8)
    assert same(lb.qmatmul(a, b), expected)
    plain = QuantizedTensor(a.data, pa.replace(zero_point=np.zeros(count, np.int32)), a.shape)
    low_bits = b.dtype.bits < 8 and a.dtype.is_signed
    assert path_of(plain.params, b.params) == ("groups" if low_bits else "blocks")
    expected = reference_compute.matmul_groups(a.unpack(), b.unpack(), rows, pb.scale, pb.zero_point, 8)
    assert same(lb.qmatmul(plain, b), expected)
