"""Products of bits on every ISA, for any number of threads, exactly as the reference computes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import lowbit as lb
from conftest import ISAS, THREADS
from lowbit import _core
from lowbit.ops import binary
from lowbit.ops.conv_geometry import ConvGeometry
from lowbit.reference import compute as reference

Array = npt.NDArray[Any]

# Alone, a pair, odd, and around a tile of 64 by 64.
ROWS = [0, 1, 2, 3, 63, 64, 65, 131]
COLUMNS = [0, 1, 2, 63, 64, 65, 130]
# Nothing, below a byte, around bytes, words, a block of 240 bits, and a prime.
DEPTHS = [0, 1, 5, 8, 9, 64, 127, 239, 241, 521]


def bits_of(shape: tuple[int, ...], seed: int = 0) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 2, shape, np.uint8)


def packed_rows(codes: Array) -> npt.NDArray[np.uint8]:
    return np.packbits(codes, axis=-1, bitorder="little")


def tensor(codes: Array, scale: Any = 1.0, axis: int | None = None) -> lb.QuantizedTensor:
    return lb.QuantizedTensor.from_codes(codes, lb.QuantizationParams("binary", scale=scale, axis=axis))


def sums_of(bits: Array, packed: _core.BinaryMatrix) -> npt.NDArray[np.int32]:
    found = np.empty((len(bits), packed.n), np.int32)
    binary.multiply(bits, packed, found)
    return found


def scales(n: int, seed: int = 1) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).uniform(0.01, 3, n).astype(np.float32)


# ---- products ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", DEPTHS)
def test_sums_of_every_size(isa: str, k: int) -> None:
    for m in ROWS:
        for n in COLUMNS:
            a, b = bits_of((m, k)), bits_of((n, k), 1)
            found = sums_of(packed_rows(a), _core.BinaryMatrix(packed_rows(b), k))
            assert found.dtype == np.int32
            np.testing.assert_array_equal(found, reference.binary_matmul(a, b.T))


@pytest.mark.parametrize("k", [65520, 65521, 131073])
def test_sums_beyond_16_bits(isa: str, k: int) -> None:
    """Counts are kept in 16 bits, and every one of these bits may differ."""
    a, b = bits_of((3, k)), bits_of((2, k), 1)
    a[0], b[0] = 0, 1
    found = sums_of(packed_rows(a), _core.BinaryMatrix(packed_rows(b), k))
    assert found[0, 0] == -k
    np.testing.assert_array_equal(found, reference.binary_matmul(a, b.T))


@pytest.mark.parametrize("threads", THREADS)
def test_sums_do_not_depend_on_threads(isa: str, threads: int) -> None:
    m, n, k = 257, 193, 1000
    a, b = bits_of((m, k)), bits_of((n, k), 1)
    lb.set_num_threads(threads)
    found = sums_of(packed_rows(a), _core.BinaryMatrix(packed_rows(b), k))
    np.testing.assert_array_equal(found, reference.binary_matmul(a, b.T))


def test_padding_bits_are_not_looked_at(isa: str) -> None:
    a, b = bits_of((5, 13)), bits_of((7, 13), 1)
    dirty_a, dirty_b = packed_rows(a), packed_rows(b)
    dirty_a[:, -1] |= 0b11100000
    dirty_b[:, -1] |= 0b01100000
    found = sums_of(dirty_a, _core.BinaryMatrix(dirty_b, 13))
    np.testing.assert_array_equal(found, reference.binary_matmul(a, b.T))


def test_packed_under_one_isa_serves_another() -> None:
    a, b = bits_of((5, 300)), bits_of((70, 300), 1)
    for first in ISAS:
        _core.set_max_isa(first)
        packed = _core.BinaryMatrix(packed_rows(b), 300)
        for second in ISAS:
            _core.set_max_isa(second)
            np.testing.assert_array_equal(sums_of(packed_rows(a), packed), reference.binary_matmul(a, b.T))


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("k", [0, 7, 64, 300])
def test_scaled_products_have_the_reference_bits(isa: str, k: int, each: bool) -> None:
    m, n = 67, 65
    a, b = bits_of((m, k)), bits_of((n, k), 1)
    sa, sb, bias = (scales(m), scales(n, 2), scales(n, 3)) if each else (scales(1), scales(1, 2), np.zeros(n))
    found = np.empty((m, n), np.float32)
    packed = _core.BinaryMatrix(packed_rows(b), k)
    binary.multiply(packed_rows(a), packed, found, (sa, sb, bias if each else None))
    want = reference.scaled(reference.binary_matmul(a, b.T), sa if each else sa[0], sb, bias)
    assert found.tobytes() == want.tobytes()


@pytest.mark.parametrize("k", [1, 3, 8, 13, 64, 77])
@pytest.mark.parametrize("axis", [None, 0])
def test_tensors_of_any_row_length(isa: str, k: int, axis: int | None) -> None:
    """Rows of a tensor are not on whole bytes where k % 8 is not 0."""
    m, n = 9, 11
    a, b = bits_of((m, k)), bits_of((n, k), 1)
    sa, sb = (scales(m), scales(n, 2)) if axis == 0 else (scales(1)[0], scales(1, 2)[0])
    found = lb.binary_matmul(tensor(a, sa, axis), tensor(b, sb, axis))
    want = reference.scaled(reference.binary_matmul(a, b.T), sa, sb)
    assert found.tobytes() == want.tobytes()
    packed = lb.prepack_binary(tensor(b, sb, axis))
    assert packed.shape == (n, k)
    assert lb.binary_matmul(tensor(a, sa, axis), packed).tobytes() == want.tobytes()


def test_transposed_operands() -> None:
    a, b = bits_of((13, 9)), bits_of((13, 11), 1)  # [k, m], [k, n]
    sa, sb, bias = scales(9), scales(11, 2), scales(11, 3)
    want = reference.scaled(reference.binary_matmul(a.T, b), sa, sb, bias)
    found = lb.binary_matmul(tensor(a, sa, 1), tensor(b, sb, 1), bias, transpose_a=True, transpose_b=False)
    assert found.tobytes() == want.tobytes()
    packed = lb.prepack_binary(tensor(b, sb, 1), transpose=False)
    assert lb.binary_matmul(tensor(a, sa, 1), packed, bias, transpose_a=True).tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, "bfloat16"])
@pytest.mark.parametrize("shape", [(21,), (1, 21), (5, 21), (2, 3, 64)])
def test_float_rows_are_quantized_each_by_itself(dtype: Any, shape: tuple[int, ...]) -> None:
    pytest.importorskip("ml_dtypes")
    x = np.random.default_rng(5).standard_normal(shape).astype(np.dtype(dtype))
    w = tensor(bits_of((6, shape[-1])), scales(6), 0)
    rows = x.reshape(-1, shape[-1])
    q = lb.quantize(rows, "binary", axis=0)
    found = lb.binary_matmul(x, w)
    assert found.shape == (*shape[:-1], 6)
    want = reference.scaled(
        reference.binary_matmul(q.unpack(), w.unpack().T), q.params.scale.astype(np.float32), w.params.scale
    )
    assert found.tobytes() == want.tobytes()
    if len(shape) == 2:
        assert lb.binary_matmul(np.ascontiguousarray(x.T), w, transpose_a=True).tobytes() == want.tobytes()


def test_products_approximate_those_of_the_numbers() -> None:
    """Sums of what the codes stand for, in float64, are the same up to float32's rounding."""
    rng = np.random.default_rng(8)
    a = lb.quantize(rng.standard_normal((33, 100)).astype(np.float32), "binary", axis=0)
    b = lb.quantize(rng.standard_normal((17, 100)).astype(np.float32), "binary", axis=0)
    exact = a.dequantize(dtype=np.float64) @ b.dequantize(dtype=np.float64).T
    np.testing.assert_allclose(lb.binary_matmul(a, b), exact, rtol=3 * 2**-24, atol=1e-12)


def test_empty_products() -> None:
    w = tensor(bits_of((4, 0)), scales(4), 0)
    np.testing.assert_array_equal(lb.binary_matmul(np.zeros((3, 0), np.float32), w), np.zeros((3, 4)))
    np.testing.assert_array_equal(lb.binary_matmul(tensor(bits_of((3, 0))), w, scales(4)), [scales(4)] * 3)
    assert lb.binary_matmul(np.zeros((0, 5), np.float32), tensor(bits_of((4, 5)))).shape == (0, 4)
    assert lb.binary_matmul(tensor(bits_of((3, 5))), tensor(bits_of((0, 5)))).shape == (3, 0)
    assert lb.binary_matmul(tensor(bits_of((0, 5)), scales(0), 0), tensor(bits_of((2, 5)))).shape == (0, 2)


def test_out_is_written() -> None:
    a, b = tensor(bits_of((5, 9))), tensor(bits_of((6, 9), 1))
    out = np.empty((5, 6), np.float32)
    assert lb.binary_matmul(a, b, out=out) is out
    np.testing.assert_array_equal(out, lb.binary_matmul(a, b))
    sums = sums_of(packed_rows(a.unpack()), _core.BinaryMatrix(packed_rows(b.unpack()), 9))
    np.testing.assert_array_equal(sums, out)


# ---- convolutions -----------------------------------------------------------------------------------

# (images, channels, height, width), (outputs, kh, kw), stride, padding, dilation, groups
CONVOLUTIONS = {
    "one pixel": ((1, 1, 1, 1), (1, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "1x1": ((2, 64, 5, 7), (65, 1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    "3x3 padded": ((2, 64, 9, 11), (64, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "channels below a byte": ((1, 3, 8, 8), (5, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    "odd everything": ((3, 13, 7, 5), (7, 2, 3), (2, 3), (1, 0, 2, 1), (1, 1), 1),
    "dilated": ((1, 9, 12, 10), (4, 3, 3), (1, 2), (2, 3, 2, 1), (2, 3), 1),
    "padding beyond the kernel": ((1, 8, 2, 2), (3, 2, 2), (1, 1), (3, 3, 3, 3), (1, 1), 1),
    "groups": ((2, 24, 6, 6), (6, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 3),
    "groups below a byte": ((2, 12, 6, 5), (8, 3, 3), (2, 1), (1, 1, 0, 0), (1, 1), 4),
    "depthwise": ((1, 5, 6, 6), (5, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 5),
    "more pixels than a tile": ((1, 16, 15, 17), (70, 3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
}


def convolution(name: str) -> tuple[Array, Array, dict[str, Any]]:
    (n, c, h, w), (out, kh, kw), stride, padding, dilation, groups = CONVOLUTIONS[name]
    options = {"stride": stride, "padding": padding, "dilation": dilation}
    return bits_of((n, c, h, w)), bits_of((out, c // groups, kh, kw), 1), {**options, "groups": groups}


def expected(x: Array, w: Array, options: dict[str, Any]) -> Array:
    """+1 and -1, and zeros around them."""
    return reference.conv2d_integer(2 * x.astype(np.int64) - 1, 2 * w.astype(np.int64) - 1, **options)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(isa: str, name: str) -> None:
    x, w, options = convolution(name)
    want = expected(x, w, options)
    groups = options["groups"]
    bits = binary.channels_last(packed_rows(x.reshape(1, -1))[0], x.shape, groups)
    last = packed_rows(np.moveaxis(x, 1, -1).reshape(x.shape[0], *x.shape[2:], groups, -1))
    np.testing.assert_array_equal(bits, last)
    rows = packed_rows(np.moveaxis(w, 1, -1))
    packed = _core.BinaryConv(rows.reshape(groups, len(rows) // groups, *rows.shape[1:]), w.shape[1])
    for threads in THREADS:
        lb.set_num_threads(threads)
        for layout, sums in (("NCHW", want), ("NHWC", np.moveaxis(want, 1, -1))):
            found = np.empty(sums.shape, np.int32)
            binary.convolve(bits, packed, ConvGeometry(**options, layout=layout), found)
            np.testing.assert_array_equal(found, sums)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_tensors(isa: str, name: str, layout: str) -> None:
    x, w, options = convolution(name)
    sx, sw, bias = scales(x.shape[0]), scales(w.shape[0], 2), scales(w.shape[0], 3)
    rows = np.moveaxis(expected(x, w, options), 1, -1)  # channels last, as scales are then the columns'
    by_row = np.repeat(sx, rows[0, ..., 0].size)
    want = reference.scaled(rows.reshape(-1, w.shape[0]), by_row, sw, bias).reshape(rows.shape)
    if layout == "NCHW":
        want = np.ascontiguousarray(np.moveaxis(want, -1, 1))
    else:
        x, w = (np.ascontiguousarray(np.moveaxis(v, 1, -1)) for v in (x, w))
    images, weights = tensor(x, sx, 0), tensor(w, sw, 0)
    found = lb.binary_conv2d(images, weights, bias, layout=layout, **options)
    assert found.shape == want.shape
    assert found.tobytes() == want.tobytes()
    packed = lb.prepack_binary_conv2d(weights, groups=options["groups"], layout=layout)
    assert lb.binary_conv2d(images, packed, bias, layout=layout, **options).tobytes() == want.tobytes()


def test_convolutions_of_numbers_quantize_each_image() -> None:
    x = np.random.default_rng(3).standard_normal((3, 5, 6, 7)).astype(np.float32)
    w = tensor(bits_of((4, 5, 3, 3)), 0.5)
    found = lb.binary_conv2d(x, w, padding=1)
    assert found.tobytes() == lb.binary_conv2d(lb.quantize(x, "binary", axis=0), w, padding=(1, 1)).tobytes()
    for i in range(3):
        np.testing.assert_array_equal(
            found[i : i + 1], lb.binary_conv2d(lb.quantize(x[i : i + 1], "binary"), w, padding=1)
        )


def test_convolutions_of_nothing_but_padding() -> None:
    w, bias = tensor(bits_of((4, 5, 3, 3)), 0.5), scales(4)
    assert lb.binary_conv2d(np.zeros((0, 5, 6, 7), np.float32), w).shape == (0, 4, 4, 5)
    found = lb.binary_conv2d(np.zeros((2, 5, 0, 3), np.float32), w, bias, padding=2)
    np.testing.assert_array_equal(found, np.broadcast_to(bias.reshape(4, 1, 1), (2, 4, 2, 5)))


# ---- what is refused --------------------------------------------------------------------------------

A, W = tensor(bits_of((4, 9))), tensor(bits_of((5, 9)))
PACKED = _core.BinaryMatrix(packed_rows(bits_of((5, 9))), 9)
X4, W4 = tensor(bits_of((1, 6, 5, 5))), tensor(bits_of((4, 6, 3, 3)))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: lb.binary_matmul(A, tensor(bits_of((5, 8)))), lb.InvalidProblem, "a: .* k is 9; b has rows of 8"),
        (lambda: lb.binary_matmul(np.zeros((2, 8), np.float32), W), lb.InvalidProblem, "a: "),
        (lambda: lb.binary_matmul(np.zeros((2, 9), np.int64), W), lb.UnsupportedDType, "a: int64"),
        (lambda: lb.binary_matmul(np.full((2, 9), np.nan), W), lb.InvalidProblem, "a: nan at index"),
        (lambda: lb.binary_matmul(A, np.zeros((5, 9))), lb.InvalidProblem, "b: ndarray"),
        (lambda: lb.binary_matmul(lb.quantize(np.ones((4, 9))), W), lb.Unsupported, "a: int8"),
        (lambda: lb.binary_matmul(A, lb.quantize(np.ones((5, 9)))), lb.Unsupported, "b: int8"),
        (lambda: lb.binary_matmul(A, tensor(bits_of((5, 9)), scales(9), 1)), lb.Unsupported, "b: scales within"),
        (lambda: lb.binary_matmul(A, tensor(bits_of((1, 5, 9)))), lb.InvalidProblem, "b: shape"),
        (lambda: lb.binary_matmul(A, W, np.zeros(4)), lb.InvalidProblem, "bias: .*4"),
        (lambda: lb.binary_matmul(A, W, np.zeros(5, int)), lb.InvalidProblem, "bias: int64"),
        (lambda: lb.binary_matmul(A, W, out=np.empty((4, 4), np.float32)), lb.InvalidProblem, "out: "),
        (lambda: lb.binary_matmul(A, W, out=np.empty((5, 4), np.float32).T), lb.InvalidProblem, "out: .*contiguous"),
        (lambda: lb.binary_matmul(A, lb.prepack_binary(W), transpose_b=False), lb.InvalidProblem, "transpose_b"),
        (lambda: lb.binary_conv2d(A, W4), lb.InvalidProblem, "x: shape"),
        (lambda: lb.binary_conv2d(X4, W), lb.InvalidProblem, "w: shape"),
        (lambda: lb.binary_conv2d(X4, W4, groups=2), lb.InvalidProblem, "x: 6 channels; w and groups expect 12"),
        (lambda: lb.binary_conv2d(X4, W4, groups=3), lb.InvalidProblem, "groups: 3"),
        (lambda: lb.binary_conv2d(X4, W4, stride=0), lb.InvalidProblem, "stride: 0"),
        (lambda: lb.binary_conv2d(X4, W4, stride=1.5), lb.InvalidProblem, "stride: 1.5"),
        (lambda: lb.binary_conv2d(X4, W4, padding=(1, 2, 3)), lb.InvalidProblem, "padding: "),
        (lambda: lb.binary_conv2d(X4, W4, padding=-1), lb.InvalidProblem, "padding: -1"),
        (lambda: lb.binary_conv2d(X4, W4, dilation=3), lb.InvalidProblem, "x: 5 by 5"),
        (lambda: lb.binary_conv2d(X4, W4, layout="HWC"), lb.InvalidProblem, "layout: 'HWC'"),
        (lambda: lb.binary_conv2d(X4, lb.prepack_binary_conv2d(W4, groups=2)), lb.InvalidProblem, "groups: 1"),
        (lambda: sums_of(packed_rows(bits_of((4, 17))), PACKED), ValueError, "a: expected"),
    ],
)  # fmt: skip
def test_refusals_name_the_argument(call: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()
