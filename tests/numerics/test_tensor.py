"""QuantizedTensor: its invariants, its views, its numbers, and how it travels."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from typing import Any

import numpy as np
import pytest

import lowbit as lb
from lowbit.numerics.granularity import granularity_of
from lowbit.numerics.packing import pack, pack_bits, unpack, unpack_bits

P = lb.QuantizationParams
T = lb.QuantizedTensor

DTYPES = ["int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2", "binary"]
PACKED = ["int4", "uint4", "int2", "uint2", "binary"]
GRANULARITIES: dict[str, dict[str, Any]] = {
    "tensor": {},
    "axis-0": {"axis": 0},
    "axis-1": {"axis": 1},
    "axis-2": {"axis": -1},
    "blocks-of-axis-0": {"axis": 0, "group_size": 2},
    "blocks-of-axis-2": {"axis": 2, "group_size": 4},
}
SHAPE = (4, 3, 10)


def numbers(shape: tuple[int, ...] = SHAPE, kind: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.5, 1.0, shape).astype(kind)


def quantized(dtype: str, granularity: str = "tensor", kind: Any = np.float32) -> lb.QuantizedTensor:
    scheme = "asymmetric" if dtype != "binary" else "linear"
    return lb.quantize(numbers(kind=kind), dtype, scheme=scheme, **GRANULARITIES[granularity])


def mixed(axis: int = 0, kind: Any = np.float32) -> lb.QuantizedTensor:
    """Channels of every width along `axis`, each an odd number of elements long."""
    x = np.moveaxis(numbers((5, 3, 7), kind), 0, axis)
    return lb.quantize(x, lb.QuantizedDType.mixed([16, 8, 4, 2, 1]), axis=axis)


def exactly(a: np.ndarray, b: np.ndarray) -> None:
    np.testing.assert_array_equal(a, b, strict=True)


# ---- the constructor's invariants ----------------------------------------------------------------------

INT8, INT4 = P("int8"), P("int4")
CHANNELS = P("int8", scale=np.ones(3, np.float32), axis=0)
BLOCKS = P("int8", scale=np.ones((2, 2), np.float32), axis=1, group_size=4)
MIXED = P.mixed([8, 4, 1])


def bytes_of(n: int, dtype: Any = np.uint8) -> np.ndarray:
    return np.zeros(n, dtype)


VIOLATIONS: dict[str, tuple[str, tuple[Any, ...]]] = {  # the field it must name, and the arguments
    "wrong-storage-type": ("data", (bytes_of(4), INT8)),
    "foreign-byte-order": ("data", (bytes_of(4, ">i2"), P("int16"))),
    "floats": ("data", (bytes_of(4, np.float32), INT8)),
    "packed-codes-as-int8": ("data", (bytes_of(2, np.int8), INT4, (4,))),
    "data-of-another-shape": ("data", (bytes_of(6, np.int8), INT8, (2, 3))),
    "data-of-another-length": ("data", (bytes_of(6, np.int8), INT8, (7,))),
    "packed-too-short": ("data", (bytes_of(1), INT4, (3,))),
    "packed-too-long": ("data", (bytes_of(3), INT4, (3,))),
    "mixed-too-short": ("data", (bytes_of(2), MIXED, (3, 1))),
    "padding-int4": ("data", (np.uint8([0x11, 0x11]), INT4, (3,))),
    "padding-int2": ("data", (np.uint8([0b01000000]), P("int2"), (3,))),
    "padding-binary": ("data", (np.uint8([0xFF, 0b10]), P.binary(), (9,))),
    "padding-of-a-middle-channel": ("data", (np.uint8([0xFF, 0x1F, 0x01]), MIXED, (3, 1))),
    "padding-of-the-last-channel": ("data", (np.uint8([0xFF, 0x0F, 0x03]), MIXED, (3, 1))),
    "a-list": ("data", ([1, 2], INT8)),
    "a-number": ("data", (3, INT8, ())),
    "none": ("data", (None, INT8, ())),
    "packed-without-shape": ("shape", (bytes_of(2), INT4)),
    "mixed-without-shape": ("shape", (bytes_of(3), MIXED)),
    "negative-size": ("shape", (bytes_of(0), INT4, (-1, 0))),
    "shape-a-number": ("shape", (bytes_of(2), INT4, 4)),
    "shape-of-floats": ("shape", (bytes_of(2), INT4, (2.5, 1))),
    "empty-but-beyond-64-bits": ("shape", (bytes_of(0), INT4, (0, 2**40, 2**40))),
    "65-dimensions": ("shape", (bytes_of(1), INT4, (1,) * 65)),
    "channels-that-do-not-fit": ("scale", (bytes_of(4, np.int8), CHANNELS)),
    "blocks-that-do-not-fit": ("scale", (bytes_of(18, np.int8).reshape(2, 9), BLOCKS)),
    "axis-beyond-the-shape": ("axis", (np.array(0, np.int8), CHANNELS)),
    "other-number-of-widths": ("axis", (bytes_of(3), MIXED, (2, 1))),
}  # fmt: skip


@pytest.mark.parametrize("name", VIOLATIONS)
def test_constructor_refuses_what_breaks_an_invariant_and_names_the_field(name):
    field, arguments = VIOLATIONS[name]
    with pytest.raises(lb.InvalidProblem, match=f"^{field}: "):
        T(*arguments)


def test_constructor_refuses_other_devices():
    with pytest.raises(lb.Unsupported, match=r"^device: "):
        T(bytes_of(3, np.int8), INT8, device="cuda:0")


def test_constructor_shares_the_codes_and_takes_their_shape():
    codes = np.int8([[1, -2, 3], [4, 5, -6]])
    q = T(codes, P("int8", scale=0.5, zero_point=1))
    assert (q.shape, q.ndim, q.size, q.device, str(q.dtype)) == ((2, 3), 2, 6, "cpu", "int8")
    assert q.data is codes
    exactly(q.dequantize(), np.float32([[0, -1.5, 1], [1.5, 2, -3.5]]))


def test_packed_codes_of_any_shape_are_kept_flat():
    q = T(np.uint8([[0x21], [0x43]]), INT4, (2, 2))
    assert q.data.shape == (2,)
    assert q.unpack().tolist() == [[1, 2], [3, 4]]


def test_python_number_scales_become_float32_and_float64_arrays_stay():
    assert T(bytes_of(3, np.int8), P(scale=0.1)).params.scale.dtype == np.float32
    assert T(bytes_of(3, np.int8), P(scale=np.array(0.1))).params.scale.dtype == np.float64


# ---- from_codes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_from_codes_stores_every_code_and_gives_it_back(dtype):
    kind = lb.QuantizedDType.of(dtype)
    codes = np.arange(kind.qmin, kind.qmax + 1)
    odd = codes[: codes.size - 1 + codes.size % 2] if codes.size > 2 else np.array([0, 1, 1])
    for given in (codes, odd, odd[::-1], odd.tolist()):
        q = T.from_codes(given, P(dtype))
        exactly(q.unpack(), np.asarray(given).astype(kind.code_dtype))
        assert q.data.nbytes == math.ceil(len(given) * kind.bits / 8)


def test_from_codes_packs_the_first_code_into_the_low_bits():
    assert T.from_codes([1, -2, 7], INT4).data.tolist() == [0xE1, 0x07]
    assert T.from_codes([1, -2, 0, -1, 1], P("int2")).data.tolist() == [0b11001001, 0b01]
    assert T.from_codes([1, 0, 0, 0, 0, 0, 0, 1, 1], P.binary()).data.tolist() == [0x81, 0x01]


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_from_codes_packs_mixed_channels_along_any_axis(axis):
    codes = np.moveaxis(np.arange(24).reshape(3, 2, 4) % 2, 0, axis)
    q = T.from_codes(codes, P.mixed([4, 1, 16], axis=axis))
    exactly(q.unpack(), codes.astype(np.int16))
    assert q.data.nbytes == 4 + 1 + 16


@pytest.mark.parametrize(
    ("codes", "params"),
    [
        ([8], INT4),
        ([-9], INT4),
        ([-1], P("uint8")),
        ([2], P.binary()),
        ([5], P("int8", qmax=4)),
        ([1.0], INT8),
    ],
    ids=str,
)
def test_from_codes_refuses_codes_out_of_range_and_floats(codes, params):
    with pytest.raises(lb.InvalidProblem, match=r"^codes: "):
        T.from_codes(codes, params)


def test_from_codes_refuses_params_that_do_not_fit():
    with pytest.raises(lb.InvalidProblem, match=r"^scale: "):
        T.from_codes([1, 2], CHANNELS)


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 31, 64])
def test_the_numpy_packing_agrees_with_the_kernels_and_leaves_padding_0(bits, count):
    dtype = {1: "binary", 2: "int2", 4: "int4"}[bits]
    kind = lb.QuantizedDType.of(dtype)
    codes = np.random.default_rng(count).integers(kind.qmin, kind.qmax + 1, count).astype(kind.code_dtype)
    packed = pack_bits(codes, bits)
    exactly(unpack_bits(packed, bits, count, kind.is_signed), codes)
    exactly(T(packed, P(dtype), (count,)).unpack(), codes)
    exactly(unpack(pack(codes, kind), kind, (count,)), codes)


# ---- reshape -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(120,), (12, 10), (10, 12), (2, 2, 3, 5, 2), (-1,), (5, -1), (120, 1, 1)])
def test_per_tensor_reshapes_to_any_shape_without_a_copy(shape, dtype):
    q = quantized(dtype)
    r = q.reshape(shape)
    assert r.shape == q.dequantize().reshape(shape).shape
    assert np.shares_memory(r.data, q.data)
    exactly(r.dequantize(), q.dequantize().reshape(shape))
    assert q.reshape(*shape) == r


@pytest.mark.parametrize("shape", [(np.int64(120),), np.array([12, 10]), [12, 10]], ids=str)
def test_reshape_takes_numpy_integers_and_lists(shape):
    q = quantized("int4")
    exactly(q.reshape(*shape if isinstance(shape, tuple) else (shape,)).dequantize(),
            q.dequantize().reshape(shape))  # fmt: skip


KEEPING_SCALES = {
    "axis-0": [(4, 30), (4, 30, 1), (1, 4, 3, 10), (4, 3, 2, 5), (4, 5, 6)],
    "axis-1": [(4, 3, 10), (2, 2, 3, 10), (4, 1, 3, 5, 2), (4, 3, 10, 1)],
    "axis-2": [(12, 10), (2, 6, 10), (12, 10, 1), (-1, 10)],
    "blocks-of-axis-0": [(4, 30), (1, 4, 3, 10), (4, 3, 2, 5)],
    "blocks-of-axis-2": [(12, 10), (2, 6, 10), (4, 3, 10, 1), (3, 4, 10)],
}


@pytest.mark.parametrize("dtype", ["int8", "uint4", "binary"])
@pytest.mark.parametrize(("granularity", "shape"), [(g, s) for g in KEEPING_SCALES for s in KEEPING_SCALES[g]])
def test_reshape_that_keeps_every_scale_with_its_elements(granularity, shape, dtype):
    q = quantized(dtype, granularity)
    r = q.reshape(shape)
    assert np.shares_memory(r.data, q.data)
    exactly(r.dequantize(), q.dequantize().reshape(shape))
    r.params.validate(r.shape)


MIXING_SCALES = {
    "axis-0": [(120,), (2, 2, 3, 10), (12, 10), (3, 4, 10)],
    "axis-1": [(12, 10), (4, 30), (3, 4, 10), (4, 10, 3)],
    "axis-2": [(120,), (4, 3, 5, 2), (10, 12)],
    "blocks-of-axis-0": [(2, 2, 3, 10), (120,), (12, 10)],
    "blocks-of-axis-2": [(4, 3, 5, 2), (4, 30), (120,)],
}


@pytest.mark.parametrize(("granularity", "shape"), [(g, s) for g in MIXING_SCALES for s in MIXING_SCALES[g]])
def test_reshape_that_would_mix_scales_says_which_axis_must_stay_whole(granularity, shape):
    kind = "block" if "block" in granularity else "channel"
    with pytest.raises(lb.InvalidProblem, match=rf"^shape: .* one per {kind} and must stay whole"):
        quantized("int8", granularity).reshape(shape)


@pytest.mark.parametrize("shape", [(7,), (-1, -1), (-1, 0), (-2, 60), (), (121, -1)])
def test_reshape_to_another_size_is_refused(shape):
    with pytest.raises(lb.InvalidProblem, match=r"^shape: cannot reshape"):
        quantized("int8").reshape(shape)


def test_mixed_reshape_keeps_the_channels():
    q = mixed(axis=1)
    for shape in [(3, 5, 7, 1), (1, 3, 5, 7), (3, 1, 5, 7)]:
        exactly(q.reshape(shape).dequantize(), q.dequantize().reshape(shape))
    with pytest.raises(lb.InvalidProblem, match=r"^shape: "):
        q.reshape(15, 7)


def test_reshape_of_strided_codes_equals_that_of_the_numbers():
    view = quantized("int8")[::2, :, 1::3]
    exactly(view.reshape(-1).dequantize(), view.dequantize().reshape(-1))


def test_reshape_to_and_from_0_d_and_of_empty_tensors():
    q = lb.quantize(np.float32([2.5]), "int4")
    assert q.reshape(()).shape == q.reshape().shape == ()
    assert q.reshape(()).reshape(1, 1).dequantize().tolist() == [[2.5]]
    empty = lb.quantize(np.zeros((0, 3), np.float32), params=INT4)
    assert empty.reshape(5, 0, 2).dequantize().shape == (5, 0, 2)


# ---- slices --------------------------------------------------------------------------------------------

INDICES: list[Any] = [
    0, -1, np.int64(2), slice(None), slice(1, 3), slice(2, 4), slice(0, 4, 2), slice(3, 1), slice(-2, None),
    slice(0, 100), ..., (), (0, 0), (1, slice(None)), (slice(None), 1), (slice(None), slice(1, 3)), (..., 3),
    (..., slice(4, 8)), (..., slice(0, 8)), (..., slice(8, None)), (..., slice(None, None, 3)),
    (slice(None), slice(None, None, 2)), (1, ..., slice(4, 8)), (slice(1, 3), 2, slice(2, 9)), (0, 1, 2),
    (-1, -1, -1), (slice(0, 2), ..., slice(0, 4)), (slice(2, 4), slice(0, 0)), (0, ...), (..., 0, 0),
    (slice(0, 4, 2), 1, slice(0, 4)), (slice(None), 0, slice(None)), (3, slice(2, None)), (..., slice(5, 5)),
]  # fmt: skip


def index_of_axis(index: Any, axis: int) -> Any:
    given = index if isinstance(index, tuple) else (index,)
    if ... not in given:
        given = (*given, ...)
    at = given.index(...)
    return (*given[:at], *(slice(None),) * (4 - len(given)), *given[at + 1 :])[axis]


def block_scales_can_follow(index: Any, granularity: str) -> bool:
    """Whether an index takes consecutive elements from the start of a block, or there are no blocks."""
    options = GRANULARITIES[granularity]
    if "group_size" not in options:
        return True
    size, block, at = SHAPE[options["axis"]], options["group_size"], index_of_axis(index, options["axis"])
    if not isinstance(at, slice):
        return False
    taken = range(size)[at]
    return not taken or (taken.step == 1 and taken[0] % block == 0)


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dequantized_slice_is_the_slice_of_the_dequantized(dtype, granularity):
    q = quantized(dtype, granularity)
    whole, codes = q.dequantize(), q.unpack()
    taken = 0
    for index in INDICES:
        if not block_scales_can_follow(index, granularity):
            with pytest.raises(lb.InvalidProblem, match=r"^index: .*begin at a multiple"):
                q[index]
            continue
        part = q[index]
        exactly(part.dequantize(), np.asarray(whole[index]))
        exactly(part.unpack(), np.asarray(codes[index]))
        assert T(part.data, part.params, part.shape) == part
        taken += 1
    assert taken > 8


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("dtype", ["int8", "uint4"])
def test_float64_tensors_stay_float64_when_sliced(dtype, granularity):
    q = quantized(dtype, granularity, np.float64)
    whole = q.dequantize()
    assert whole.dtype == np.float64
    for index in INDICES:
        if block_scales_can_follow(index, granularity):
            exactly(q[index].dequantize(), np.asarray(whole[index]))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_mixed_slices_follow_their_channels(axis):
    q = mixed(axis)
    whole = q.dequantize()
    for cut in [slice(None), slice(0, 1), slice(1, 4), slice(None, None, 2), slice(3, 5)]:
        at: list[Any] = [slice(1, None, 2)] * 3
        at[axis] = cut
        part = q[tuple(at)]
        exactly(part.dequantize(), whole[tuple(at)])
        assert part.dtype.widths == q.dtype.widths[cut]
        only = tuple(cut if i == axis else 0 for i in range(3))
        exactly(q[only].dequantize(), whole[only])
    with pytest.raises(lb.InvalidProblem, match=r"^index: .*mixed"):
        q[tuple(0 if i == axis else slice(None) for i in range(3))]
    with pytest.raises(lb.InvalidProblem, match=r"^widths: "):
        q[tuple(slice(0, 0) if i == axis else slice(None) for i in range(3))]


@pytest.mark.parametrize("granularity", ["tensor", "axis-0", "axis-2"])
@pytest.mark.parametrize("dtype", ["int8", "uint16"])
def test_slices_of_byte_codes_are_views(dtype, granularity):
    q = quantized(dtype, granularity)
    for index in INDICES:
        part = q[index]
        if part.size:
            assert np.shares_memory(part.data, q.data), index
            part.data[...] = 1
            assert (np.asarray(q.unpack()[index]) == 1).all()


BITS = {"int4": 4, "int2": 2, "binary": 1}


@pytest.mark.parametrize("shape", [(16,), (8, 3), (8, 8), (3, 8), (1, 24), (1, 4, 6), (5, 5), (7,)], ids=str)
@pytest.mark.parametrize("dtype", BITS)
def test_packed_slices_are_views_exactly_where_they_lie_on_whole_bytes(dtype, shape):
    q = lb.quantize(numbers(shape), dtype)
    whole, bits = q.dequantize(), BITS[dtype]
    lead = next(i for i, n in enumerate(shape) if n > 1)
    row = math.prod(shape[lead + 1 :]) * bits
    views = 0
    for begin, end in itertools.combinations(range(shape[lead] + 1), 2):
        index = (slice(None),) * lead + (slice(begin, end),)
        part = q[index]
        exactly(part.dequantize(), whole[index])
        on_bytes = begin * row % 8 == 0 and (end * row % 8 == 0 or end == shape[lead])
        assert np.shares_memory(part.data, q.data) == on_bytes
        views += on_bytes
    assert views


@pytest.mark.parametrize("index", [(slice(0, 4), slice(0, 4)), (slice(None), slice(0, 4)), slice(0, 8, 2), (0, 1)])
def test_packed_slices_that_are_not_consecutive_are_copies(index):
    q = lb.quantize(numbers((8, 8)), "int4")
    part = q[index]
    assert not np.shares_memory(part.data, q.data)
    exactly(part.dequantize(), np.asarray(q.dequantize()[index]))


def test_an_unaligned_copy_leaves_its_padding_0():
    q = T.from_codes([-1] * 9, INT4)
    assert q[1:4].data.tolist() == [0xFF, 0x0F]
    assert q[3].data.tolist() == [0x0F]


def test_slices_of_slices_and_iteration():
    q = quantized("uint4", "axis-1")
    whole = q.dequantize()
    exactly(q[1:][:, 1:][..., ::2][1].dequantize(), whole[1:][:, 1:][..., ::2][1])
    rows = list(q)
    assert len(rows) == 4
    for part, row in zip(rows, whole, strict=True):
        exactly(part.dequantize(), row)


def test_indexing_a_0_d_tensor():
    for dtype in ("int8", "int4"):
        q = lb.quantize(np.array(2.5, np.float32), dtype)
        assert q[()] == q[...] == q


def test_a_channel_taken_alone_is_per_tensor():
    q = lb.quantize(numbers(), "int8", scheme="channel_wise", axis=1)
    one = q[:, 2]
    assert (one.params.axis, one.params.scale.shape, str(one.params.scheme)) == (None, (), "linear")
    assert q[0].params.axis == 0
    assert q[:, :, 0].params.axis == 1


@pytest.mark.parametrize(
    "index",
    [None, True, np.True_, 1.0, "0", [0, 1], np.array([0, 1]), np.array([[0]]), np.ones(4, bool), (0, None),
     (..., ...), (0, 0, 0, 0), (0, 0, 0, 0, ...), slice(None, None, -1), (0, [1])],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_indices_other_than_integers_and_slices_are_refused(dtype, index):
    with pytest.raises(lb.InvalidProblem, match=r"^index: "):
        quantized(dtype)[index]


@pytest.mark.parametrize("index", [4, -5, (0, 3), (0, 0, 10), (..., -11)])
def test_indices_out_of_bounds_are_index_errors(index):
    with pytest.raises(IndexError, match="out of bounds"):
        quantized("int4")[index]


# ---- sizes by hand -------------------------------------------------------------------------------------

SIZES: dict[str, tuple[lb.QuantizedTensor, int, float, float]] = {
    # tensor, nbytes, code bits / stored bits, float32 bytes / nbytes
    "int8: 6 + a scale of 4": (T(bytes_of(6, np.int8).reshape(2, 3), INT8), 10, 48 / 80, 24 / 10),
    "int16: 12 + 4": (T(bytes_of(6, np.int16), P("int16")), 16, 96 / 128, 24 / 16),
    "int4, odd: 4 + 4": (T(bytes_of(4), INT4, (7,)), 8, 28 / 64, 28 / 8),
    "binary: 2 + 4": (T(bytes_of(2), P.binary(), (9,)), 6, 9 / 48, 36 / 6),
    "float64 scale: 6 + 8": (T(bytes_of(6, np.int8), P(scale=np.array(1.0))), 14, 48 / 112, 24 / 14),
    "asymmetric: 6 + 4 + a zero point of 1": (
        T(bytes_of(6, np.uint8), P("uint8", "asymmetric")), 11, 48 / 88, 24 / 11),
    "zero point under a symmetric name: 6 + 4 + 1": (
        T(bytes_of(6, np.int8), P("int8", "symmetric", zero_point=3)), 11, 48 / 88, 24 / 11),
    "3 channels of int4, asymmetric: 3 + 12 + 2 bytes of nibbles": (
        T(bytes_of(3), P("uint4", "asymmetric", np.ones(3, np.float32), axis=0), (3, 2)),
        17, 24 / 136, 24 / 17),
    "4 blocks of int8: 10 + 16": (
        T(bytes_of(10, np.int8).reshape(2, 5), P(scale=np.ones((2, 2), np.float32), axis=1, group_size=4)),
        26, 80 / 208, 40 / 26),
    "mixed 16, 8, 1 of 3 each: 6 + 3 + 1, 12 of scales, 3 of widths": (
        T(bytes_of(10), P.mixed([16, 8, 1], np.ones(3, np.float32)), (3, 3)), 25, 75 / 200, 36 / 25),
    "empty: a scale of 4": (T(bytes_of(0, np.int8), INT8), 4, 0.0, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_sizes_by_hand(name):
    q, nbytes, efficiency, ratio = SIZES[name]
    assert q.nbytes == nbytes
    assert q.storage_efficiency == pytest.approx(efficiency, rel=1e-15)
    assert q.compression_ratio == pytest.approx(ratio, rel=1e-15)
    assert q.bits_per_element == pytest.approx(8 * nbytes / q.size if q.size else 0, rel=1e-15)


def test_a_large_int4_tensor_in_blocks_of_32_takes_5_bits_an_element():
    q = lb.quantize(numbers((64, 1024)), "int4", group_size=32)
    assert (q.nbytes, q.bits_per_element, q.compression_ratio) == (64 * 1024 * 5 // 8, 5.0, 6.4)
    assert q.storage_efficiency == 0.8


def test_nbytes_of_a_view_counts_what_it_shows():
    q = lb.quantize(numbers((4, 6)), "int8", axis=0)
    assert q.nbytes == 24 + 16
    assert q[::2, :3].nbytes == 6 + 8


def test_len_is_the_first_size_and_0_d_has_none():
    assert len(lb.quantize(numbers((5, 2)))) == 5
    assert len(lb.quantize(numbers((7,)), "int4")) == 7
    with pytest.raises(TypeError, match="0-d"):
        len(lb.quantize(np.array(1, np.float32)))


# ---- as an array ---------------------------------------------------------------------------------------


def test_numpy_sees_the_numbers():
    q = quantized("int4", "blocks-of-axis-2")
    exactly(np.asarray(q), q.dequantize())
    exactly(np.asarray(q, np.float64), q.dequantize().astype(np.float64))
    exactly(np.array(q, np.float16), q.dequantize().astype(np.float16))
    exactly(np.add(q, 1), q.dequantize() + 1)
    assert np.asarray(quantized("int8", kind=np.float64)).dtype == np.float64


def test_numpy_cannot_have_the_numbers_without_computing_them():
    q = quantized("int8")
    with pytest.raises(ValueError, match="without computing"):
        q.__array__(copy=False)
    a = np.asarray(q)
    a[...] = 0
    assert np.asarray(q).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_lends_the_stored_codes_and_takes_them_back_without_a_copy(dtype):
    q = quantized(dtype, "axis-1")
    lent = np.from_dlpack(q)
    exactly(lent, q.data)
    assert np.shares_memory(lent, q.data)
    assert q.__dlpack_device__()[0] == 1
    back = T.from_dlpack(q, q.params, q.shape)
    assert back == q
    assert np.shares_memory(back.data, q.data)
    assert T(q, q.params, q.shape) == q


def test_from_dlpack_checks_what_it_is_lent():
    with pytest.raises(lb.InvalidProblem, match=r"^data: "):
        T.from_dlpack(np.zeros(3, np.float32), INT8)


# ---- copies, pickles, equality -------------------------------------------------------------------------


def travellers() -> dict[str, lb.QuantizedTensor]:
    made = {f"{d} {g}": quantized(d, g) for d in DTYPES for g in ("tensor", "axis-1", "blocks-of-axis-2")}
    made["mixed"] = mixed()
    made["float64"] = quantized("int8", "axis-0", np.float64)
    made["logarithmic"] = lb.quantize(numbers(), "int4", scheme="logarithmic", steps_per_octave=1.5)
    made["0-d"] = lb.quantize(np.array(2.5, np.float32))
    made["0-d packed"] = lb.quantize(np.array(2.5, np.float32), "int2")
    made["empty"] = lb.quantize(np.zeros((0, 3), np.float32), params=INT4)
    made["strided"] = quantized("int16")[::2, :, ::3]
    return made


TRAVELLERS = travellers()


@pytest.mark.parametrize("name", TRAVELLERS)
def test_pickles_and_copies_are_equal_and_own_their_codes(name):
    q = TRAVELLERS[name]
    pickles = [pickle.loads(pickle.dumps(q, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for other in (*pickles, q.copy(), copy.deepcopy(q)):
        assert other == q
        assert other.params.scale.dtype == q.params.scale.dtype
        assert not np.shares_memory(other.data, q.data)
        exactly(other.dequantize(), q.dequantize())
    assert copy.copy(q) == q


def test_a_changed_copy_leaves_the_original_alone():
    q = T.from_codes([1, 2, 3], INT8)
    for other in (q.copy(), copy.deepcopy(q)):
        other.data[0] = 9
        assert other != q
    assert q.data.tolist() == [1, 2, 3]


def test_tensors_differ_by_codes_shape_and_every_parameter():
    base = T.from_codes([[0, 1], [2, 3]], P("int8", scale=0.5))
    others = {
        "codes": T.from_codes([[0, 1], [2, 4]], P("int8", scale=0.5)),
        "shape": T.from_codes([0, 1, 2, 3], P("int8", scale=0.5)),
        "scale": T.from_codes([[0, 1], [2, 3]], P("int8", scale=0.25)),
        "scale type": T.from_codes([[0, 1], [2, 3]], P("int8", scale=np.array(0.5))),
        "zero point": T.from_codes([[0, 1], [2, 3]], P("int8", scale=0.5, zero_point=1)),
        "scheme": T.from_codes([[0, 1], [2, 3]], P("int8", "symmetric", scale=0.5)),
        "dtype": T.from_codes([[0, 1], [2, 3]], P("uint8", scale=0.5)),
        "code range": T.from_codes([[0, 1], [2, 3]], P("int8", scale=0.5, qmax=9)),
        "granularity": T.from_codes([[0, 1], [2, 3]], P("int8", scale=0.5, axis=0)),
    }
    assert base == T.from_codes([[0, 1], [2, 3]], P("int8", scale=0.5))
    for what, other in others.items():
        assert base != other, what
    assert base != "int8"
    assert base != base.data.tolist()


def test_tensors_have_no_hash_as_their_codes_can_change():
    with pytest.raises(TypeError, match="unhashable"):
        hash(quantized("int8"))


# ---- repr ----------------------------------------------------------------------------------------------


def test_repr_of_a_small_tensor_shows_every_code():
    q = T.from_codes([[-7, 0, 3], [1, 2, 7]], P("int4", scale=0.25, zero_point=1))
    assert repr(q) == (
        "QuantizedTensor(shape=(2, 3), QuantizationParams(int4, linear, scale=0.25, zero_point=1),\n"
        "  [[-7  0  3]\n"
        "   [ 1  2  7]],\n"
        "  8 bytes, 10.67 bits per element)"
    )


def test_repr_of_a_large_tensor_is_short():
    codes = np.arange(64 * 1024).reshape(64, 1024) % 100
    q = T.from_codes(codes, P("int8", "symmetric", np.full((64, 32), 0.5, np.float32), axis=-1, group_size=32))
    assert repr(q) == (
        "QuantizedTensor(shape=(64, 1024), "
        "QuantizationParams(int8, symmetric, scale=[0.5 … 0.5] (64, 32), axis=-1, group_size=32),\n"
        "  [[ 0  1 ... 22 23]\n"
        "   [24 25 ... 46 47]\n"
        "   ...\n"
        "   [88 89 ... 10 11]\n"
        "   [12 13 ... 34 35]],\n"
        "  73728 bytes, 9 bits per element)"
    )


@pytest.mark.parametrize("name", TRAVELLERS)
def test_repr_never_fails(name):
    text = repr(TRAVELLERS[name])
    assert text.startswith(f"QuantizedTensor(shape={TRAVELLERS[name].shape}, ")
    assert text.endswith("bits per element)")


# ---- error ---------------------------------------------------------------------------------------------


def test_error_by_hand():
    q = T.from_codes([3, 0, -4], P("int8", scale=1.0))  # 3, 0, -4 for 3, 1, -4.5
    report = q.error(np.array([3.0, 1.0, -4.5]))
    assert report.max_error == 1.0
    assert report.mean_error == 0.5
    assert report.sqnr_db == report.sqnr == pytest.approx(10 * math.log10(30.25 / 1.25), rel=1e-15)
    assert report.cosine == pytest.approx(27 / math.sqrt(30.25 * 25), rel=1e-15)
    assert report.retention == pytest.approx(1 - 1.25 / 30.25, rel=1e-14)
    assert str(report) == "SQNR 13.84 dB, cosine 0.981818, max error 1, mean error 0.5"


def test_error_of_an_exact_tensor_is_none():
    report = T.from_codes([1, -2], INT8).error([1.0, -2.0])
    assert (report.sqnr_db, report.cosine, report.max_error, report.mean_error) == (math.inf, 1.0, 0.0, 0.0)
    assert report.retention == 1.0


def test_error_against_zeros_and_of_nothing():
    lost = T.from_codes([1, -2], INT8).error([0.0, 0.0])
    assert (lost.sqnr_db, lost.cosine, lost.max_error, lost.retention) == (-math.inf, 0.0, 2.0, 0.0)
    zeros = T.from_codes([0, 0], INT8).error([0.0, 0.0])
    assert (zeros.sqnr_db, zeros.cosine) == (math.inf, 1.0)
    nothing = lb.quantize(np.zeros(0, np.float32), params=INT8).error(np.zeros(0))
    assert (nothing.sqnr_db, nothing.mean_error, nothing.max_error) == (math.inf, 0.0, 0.0)


def test_error_is_the_same_over_the_pieces_it_is_summed_in():
    n = (1 << 20) + 1
    for worst in (0, n - 1):
        x = np.full(n, 1.5, np.float32)
        x[worst] = 3.0
        report = T(np.ones(n, np.int8), INT8).error(x)
        assert (report.max_error, report.mean_error) == (2.0, 0.5 + 1.5 / n)
        signal, noise = 2.25 * (n - 1) + 9, 0.25 * (n - 1) + 4
        assert report.sqnr_db == pytest.approx(10 * math.log10(signal / noise), rel=1e-12)
        assert report.cosine == pytest.approx((1.5 * (n - 1) + 3) / math.sqrt(signal * n), rel=1e-12)


def test_error_refuses_another_shape():
    with pytest.raises(lb.InvalidProblem, match=r"^x: shape \(3,\); expected \(2,\)"):
        T.from_codes([1, 2], INT8).error([1.0, 2.0, 3.0])


# ---- fields belong together -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["data", "params", "shape", "codes"])
def test_no_field_can_be_assigned_or_deleted(name):
    x = np.float32([1, 2, 3])
    p = lb.QuantizationParams("int8", scale=np.float32(0.5))
    for q in (lb.quantize(x), lb.quantize(x, params=p), lb.QuantizedTensor(np.int8([1, 2, 3]), p), lb.quantize(x)[1:]):
        before = q.copy()
        with pytest.raises(AttributeError, match=f"{name}: a tensor's fields belong together"):
            setattr(q, name, None)
        with pytest.raises(AttributeError, match=f"{name}: a tensor's fields belong together"):
            delattr(q, name)
        assert q == before
        q.data[0] = 7  # codes may be written
        assert q.unpack()[0] == 7


def test_out_takes_the_params_of_every_call_it_is_used_in():
    x = np.float32([1, 2, 3])
    first, second = (lb.QuantizationParams("int8", scale=np.float32(s)) for s in (0.5, 0.25))
    out = lb.QuantizedTensor.empty((3,), first)
    for _ in range(3):  # from the second round on by the quick way
        for p, codes in ((first, [2, 4, 6]), (second, [4, 8, 12])):
            assert lb.quantize(x, params=p, out=out) is out
            assert out.params is p
            assert out.unpack().tolist() == codes
            np.testing.assert_array_equal(out.dequantize(), x)
    assert lb.quantize(x, params=second, out=out[:]).params is second
    with pytest.raises(lb.InvalidProblem, match=r"out: int8 of shape \(3,\); expected uint8 of shape \(3,\)"):
        lb.quantize(x, params=lb.QuantizationParams("uint8"), out=out)
    with pytest.raises(lb.InvalidProblem, match=r"out: int8 of shape \(3,\); expected int8 of shape \(1, 3\)"):
        lb.quantize(x[None], params=out.params, out=out)


def test_scales_and_zero_points_are_those_of_the_params():
    q = lb.quantize(np.float32([[1, -2], [3, 5]]), "uint8", scheme="asymmetric", axis=0)
    assert q.scale is q.params.scale
    assert q.zero_point is q.params.zero_point


# ---- new tensors --------------------------------------------------------------------------------------

NEW = {
    "int8": lb.QuantizationParams("int8", scale=0.5),
    "uint8": lb.QuantizationParams("uint8", scale=0.5, zero_point=7),
    "int4": lb.QuantizationParams("int4", scale=0.5),
    "uint4": lb.QuantizationParams("uint4", scale=0.5, zero_point=7),
    "uint16": lb.QuantizationParams("uint16", scale=np.float64(0.5), zero_point=40000),
    "positive": lb.QuantizationParams("uint8", scale=0.5, qmin=3, qmax=9),
    "channels": lb.QuantizationParams("int8", scale=np.ones(5), zero_point=[1, 2, 3, 4, 5], axis=1),
    "one scale for channels": lb.QuantizationParams("int8", scale=1.0, zero_point=3, axis=1),
    "blocks": lb.QuantizationParams("int2", scale=np.ones((3, 3)), zero_point=[[0, 1, -1]] * 3, group_size=2),
    "logarithmic": lb.QuantizationParams.logarithmic(),
    "mixed": lb.QuantizationParams.mixed([16, 8, 4], [1.0] * 3),
}


@pytest.mark.parametrize("name", NEW)
@pytest.mark.parametrize("shape", [(3, 5), (3, 0)])
def test_zeros_stand_for_0_and_empty_ones_are_to_be_written_into(name, shape):
    p = NEW[name]
    if 0 in shape and p.scale.ndim and name != "mixed":
        p = p.replace(scale=np.ones(granularity_of(shape, p.axis, p.group_size).scale_shape), zero_point=1)
    q = lb.QuantizedTensor.zeros(shape, p)
    assert q.shape == shape
    assert q.params == (p.for_compute(np.float32) if p.weak else p)
    if name != "positive":  # 0 has no code there; the zero point is the nearest
        np.testing.assert_array_equal(q.dequantize(), np.zeros(shape))
    np.testing.assert_array_equal(q.data, lb.QuantizedTensor.from_codes(q.unpack(), p).data)
    x = np.random.default_rng(0).uniform(-3, 3, shape).astype(q.params.scale.dtype)
    out = lb.QuantizedTensor.empty(shape, p)
    assert (out.shape, out.params) == (q.shape, q.params)
    assert lb.quantize(x, params=p, out=out) is out
    assert out == lb.quantize(x, params=p)


def test_zeros_of_binary_codes_are_refused():
    for p in (lb.QuantizationParams.binary(), lb.QuantizationParams.mixed([8, 1])):
        with pytest.raises(lb.InvalidProblem, match="a binary code is -s or \\+s, and neither is 0"):
            lb.QuantizedTensor.zeros((2, 3), p)
        assert lb.QuantizedTensor.empty((2, 3), p).shape == (2, 3)
    for make in (lb.QuantizedTensor.zeros, lb.QuantizedTensor.empty):
        with pytest.raises(lb.InvalidProblem, match="shape"):
            make((2, -3), NEW["int8"])
        with pytest.raises(lb.InvalidProblem, match="scale: shape"):
            make((2, 3), NEW["channels"])


def test_from_data_shares_stored_codes():
    data = np.uint8([0x21, 0x03])
    q = lb.QuantizedTensor.from_data(data, NEW["int4"], (3,))
    assert q.unpack().tolist() == [1, 2, 3]
    assert np.shares_memory(q.data, data)
    assert lb.QuantizedTensor.from_data(np.int8([1, 2]), NEW["int8"]).shape == (2,)
    with pytest.raises(lb.InvalidProblem, match="say the logical shape"):
        lb.QuantizedTensor.from_data(data, NEW["int4"])


# ---- transposition --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int4", "uint2", "binary"])
@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((3, 5), {}), ((3, 5), {"axis": 0}), ((3, 5), {"axis": -1}), ((3, 5), {"group_size": 2}),
        ((4, 3, 5), {"axis": 1}), ((4, 3, 5), {"axis": 0, "group_size": 3}), ((7,), {"axis": 0}),
        ((7,), {"group_size": 4}), ((), {}),
    ],
)  # fmt: skip
def test_the_transposed_tensor_stands_for_the_transposed_numbers(dtype, shape, options):
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    q = lb.quantize(x, dtype, scheme="linear", **options)
    t = q.T
    assert t.shape == shape[::-1]
    np.testing.assert_array_equal(t.dequantize(), q.dequantize().T)
    np.testing.assert_array_equal(t.unpack(), q.unpack().T)
    assert np.shares_memory(t.data, q.data) == (dtype in ("int8", "uint8", "int16"))
    np.testing.assert_array_equal(t.T.dequantize(), q.dequantize())


def test_the_transposed_mixed_tensor_keeps_its_channels():
    x = np.random.default_rng(2).standard_normal((2, 3, 4)).astype(np.float32)
    for axis, widths in ((0, [8, 4]), (1, [8, 4, 1]), (2, [16, 1, 2, 8])):
        q = lb.quantize(x, lb.QuantizedDType.mixed(widths), axis=axis)
        assert q.T.params.axis == 2 - axis
        np.testing.assert_array_equal(q.T.dequantize(), q.dequantize().T)


def test_products_take_transposed_tensors():
    rng = np.random.default_rng(3)
    a = lb.quantize(rng.standard_normal((4, 6)).astype(np.float32))
    w = lb.quantize(rng.standard_normal((5, 6)).astype(np.float32), axis=0)
    np.testing.assert_array_equal(lb.qmatmul(a, w.T), lb.qmatmul(a, w, transpose_b=True))
    np.testing.assert_array_equal(lb.qmatmul(a.T, w.T, transpose_a=True), lb.qmatmul(a, w.T))
