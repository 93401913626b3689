"""QuantizationParams: the contract's formulas by hand, every field checked, nothing lost in JSON."""

from __future__ import annotations

import math
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

import lowbit as lb
from lowbit import InvalidProblem, QuantizationParams, QuantizationScheme, QuantizedTensor, plans
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE
from lowbit.reference import spread
from strategies import Case, cases

F32 = np.float32


def test_symmetric_from_a_range() -> None:
    p = QuantizationParams.from_statistics(F32(-3.0), F32(2.0), dtype="int8", scheme="symmetric")
    assert p.scale == F32(3.0) / F32(127)
    assert p.zero_point == 0
    assert (p.qmin, p.qmax) == (-127, 127)


def test_full_range_keeps_the_least_code_and_divides_by_it() -> None:
    p = QuantizationParams.from_statistics(F32(-3.0), F32(2.0), dtype="int4", scheme="symmetric", full_range=True)
    assert p.scale == F32(3.0) / F32(8)
    assert (p.qmin, p.qmax) == (-8, 7)


def test_asymmetric_from_a_range() -> None:
    p = QuantizationParams.from_statistics(F32(-1.0), F32(3.0), dtype="uint8", scheme="asymmetric")
    assert p.scale == F32(4.0) / F32(255)
    assert p.zero_point == 64
    assert (p.qmin, p.qmax) == (0, 255)


def test_a_range_beside_zero_is_widened_to_contain_it() -> None:
    p = QuantizationParams.from_statistics(F32(2.0), F32(6.0), dtype="uint8", scheme="asymmetric")
    assert p.scale == F32(6.0) / F32(255)
    assert p.zero_point == 0
    p = QuantizationParams.from_statistics(F32(-6.0), F32(-2.0), dtype="uint8", scheme="asymmetric")
    assert p.zero_point == 255


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric", "linear", "logarithmic"])
def test_all_zero_data_gets_scale_one(scheme: str) -> None:
    p = QuantizationParams.from_statistics(0.0, 0.0, dtype="int8", scheme=scheme)
    assert p.scale == 1
    assert p.zero_point == 0


def test_linear_follows_the_sign_of_the_dtype() -> None:
    assert QuantizationParams("int8", "linear").is_symmetric
    assert not QuantizationParams("uint8", "linear").is_symmetric
    assert not QuantizationParams("uint4", "block_wise", group_size=8).is_symmetric
    assert QuantizationParams("int4", "channel_wise").is_symmetric


def test_channels_and_blocks_alike() -> None:
    lo, hi = np.float32([-1, -2, 0]), np.float32([1, 1, 0])
    p = QuantizationParams.from_statistics(lo, hi, dtype="int8", scheme="channel_wise", axis=1)
    assert p.scale.tolist() == (np.float32([1, 2, 127]) / F32(127)).tolist()
    assert p.num_parameter_sets == 3
    blocks = QuantizationParams.from_statistics(
        lo.reshape(3, 1), hi.reshape(3, 1), dtype="int4", scheme="symmetric", axis=-1, group_size=16
    )
    assert blocks.scale.shape == (3, 1)
    blocks.validate((3, 16))
    with pytest.raises(InvalidProblem, match="scale"):
        blocks.validate((3, 17))


def test_on_a_template_its_settings_are_kept() -> None:
    template = QuantizationParams("uint4", "asymmetric", axis=0, qmin=1, qmax=14)
    p = template.from_statistics(np.float32([-1.0]), np.float32([1.0]))
    assert (p.dtype, p.axis, p.qmin, p.qmax) == (template.dtype, 0, 1, 14)
    assert p.scale == F32(2.0) / F32(13)


def test_tiny_data_gets_the_least_scale_and_huge_data_is_refused() -> None:
    assert QuantizationParams.from_statistics(F32(0), F32(1e-40), dtype="int8").scale == F32(MIN_SCALE)
    with pytest.raises(InvalidProblem, match="scale"):
        QuantizationParams.from_statistics(F32(-3e38), F32(3e38), dtype="uint8", scheme="asymmetric")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"scale": 0.0}, "scale"),
    ({"scale": -1.0}, "scale"),
    ({"scale": math.nan}, "scale"),
    ({"scale": math.inf}, "scale"),
    ({"scale": 2.0**-126}, "scale"),
    ({"scale": MAX_SCALE * 1.01}, "scale"),
    ({"scale": "wide"}, "scale"),
    ({"scale": [1.0, 2.0]}, "scale"),
    ({"scale": [[1.0]], "axis": 0}, "scale"),
    ({"zero_point": 128}, "zero_point"),
    ({"zero_point": 0.5}, "zero_point"),
    ({"zero_point": [1, 2]}, "zero_point"),
    ({"zero_point": 8, "qmax": 7}, "zero_point"),
    ({"qmin": 5, "qmax": 4, "zero_point": 5}, "qmin"),
    ({"qmin": -129}, "qmin"),
    ({"qmax": 300}, "qmax"),
    ({"qmax": 3.5}, "qmax"),
    ({"group_size": 0}, "group_size"),
    ({"scheme": "block_wise"}, "group_size"),
    ({"scheme": "channel_wise", "group_size": 4}, "group_size"),
    ({"scheme": "cubic"}, "scheme"),
    ({"dtype": "int3"}, "dtype"),
    ({"dtype": "uint8", "scheme": "logarithmic"}, "scheme"),
    ({"scheme": "logarithmic", "zero_point": 1}, "zero_point"),
    ({"scheme": "logarithmic", "steps_per_octave": 0}, "steps_per_octave"),
    ({"steps_per_octave": 2}, "steps_per_octave"),
    ({"dtype": "binary", "zero_point": 1}, "zero_point"),
]


@pytest.mark.parametrize(("fields", "named"), BAD, ids=str)
def test_a_bad_field_is_named(fields: dict[str, Any], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        QuantizationParams(**fields)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_statistics_must_be_finite(bad: float) -> None:
    with pytest.raises(InvalidProblem, match="hi"):
        QuantizationParams.from_statistics(0.0, bad)
    with pytest.raises(InvalidProblem, match="lo"):
        QuantizationParams.from_statistics(2.0, 1.0)


@settings(max_examples=200, deadline=None)
@given(case=cases())
def test_json_and_pickle_round_trip_to_the_bit(case: Case) -> None:
    p = case.params
    assert QuantizationParams.from_json(p.to_json()) == p
    assert pickle.loads(pickle.dumps(p)) == p
    assert hash(pickle.loads(pickle.dumps(p))) == hash(p)


def test_python_numbers_take_the_type_of_the_data() -> None:
    p = QuantizationParams("int8", scale=0.1)
    assert lb.quantize(np.ones(3, np.float32), params=p).params.scale.dtype == np.float32
    wide = lb.quantize(np.ones(3, np.float64), params=p).params.scale
    assert wide.dtype == np.float64
    assert wide == 0.1


def test_equality_sees_every_field() -> None:
    base = QuantizationParams("int8", scale=np.float32([1, 2]), zero_point=[0, 1], axis=0)
    assert base == base.replace()
    for change in ({"axis": 1}, {"scale": np.float32([1, 3])}, {"zero_point": [0, 2]}, {"qmin": -100},
                   {"scale": np.float64([1, 2])}):  # fmt: skip
        assert base != base.replace(**change), change
    assert base != "int8"


def test_true_compression_counts_scales_and_zero_points() -> None:
    shape = (64, 128)
    plain = QuantizationParams("int8", scale=np.float32(1.0))
    assert plain.compression_ratio(shape) == 64 * 128 * 4 / (64 * 128 + 4)
    groups = QuantizationParams("uint4", "asymmetric", np.ones((64, 4), F32), axis=-1, group_size=32)
    assert groups.nbytes == 64 * 4 * 4 + 64 * 4 // 2
    assert groups.compression_ratio(shape) == 64 * 128 * 4 / (64 * 128 // 2 + 64 * 4 * 4 + 64 * 2)


@pytest.mark.parametrize(
    ("dtype", "scheme"),
    [(d, s) for d in ("int8", "int4", "int16") for s in ("symmetric", "asymmetric", "logarithmic")]
    + [(d, "asymmetric") for d in ("uint8", "uint2", "uint16")],
)
def test_the_error_bound_holds_and_is_tight(dtype: str, scheme: str) -> None:
    x = np.random.default_rng(0).uniform(-2, 3, 200_000).astype(F32)
    q = lb.quantize(x, dtype, scheme=scheme)
    bound, worst = q.params.error_bound(), q.error(x).max_error
    assert worst <= bound
    assert worst > bound * 0.9


def test_scheme_names() -> None:
    for text in ("channel_wise", "Channel-Wise", "CHANNELWISE", QuantizationScheme.CHANNEL_WISE):
        assert QuantizationScheme.of(text) is QuantizationScheme.CHANNEL_WISE


def test_arrays_are_read_only() -> None:
    scale = np.ones(3, F32)
    p = QuantizationParams("int8", scale=scale, axis=0)
    scale[0] = 7
    assert p.scale[0] == 1
    with pytest.raises(ValueError, match="read-only"):
        p.scale[0] = 2


def test_repr_tells_what_matters() -> None:
    assert repr(QuantizationParams("uint8", "asymmetric", 0.5, 3)) == (
        "QuantizationParams(uint8, asymmetric, scale=0.5, zero_point=3)"
    )
    p = QuantizationParams("int4", "symmetric", np.float32([[0.1], [0.2]]), axis=-1, group_size=32, qmin=-7)
    assert repr(p) == (
        "QuantizationParams(int4, symmetric, scale=[0.1 … 0.2] (2, 1), codes=[-7, 7], axis=-1, group_size=32)"
    )


def test_constructors() -> None:
    assert QuantizationParams.int8_symmetric(0.5).dtype.name == "int8"
    assert QuantizationParams.uint8_asymmetric(0.5, 7).zero_point == 7
    assert QuantizationParams.int4_symmetric().dtype.bits == 4
    assert QuantizationParams.binary(2.0).dtype.is_binary
    assert QuantizationParams.channel_wise([0.1, 0.2], axis=1).axis == 1
    assert QuantizationParams.block_wise(16).group_size == 16
    assert QuantizationParams.logarithmic("int4").steps_per_octave == 1
    assert QuantizationParams.mixed([8, 4]).dtype.widths == (8, 4)


# ---- they do not change ---------------------------------------------------------------------------------

FIELDS = {
    "dtype": "int4", "scheme": "asymmetric", "scale": 2.0, "zero_point": 1, "axis": 0, "group_size": 4, "qmin": -3,
    "qmax": 3, "steps_per_octave": 2.0, "weak": False,
}  # fmt: skip


@pytest.mark.parametrize("name", [*FIELDS, "_computed", "scales"])
def test_no_field_can_be_assigned_or_deleted(name: str) -> None:
    made = [
        QuantizationParams("int8", scale=0.5),
        QuantizationParams("int8", scale=0.5).replace(qmin=-127),
        QuantizationParams.from_statistics(-1.0, 1.0),
        QuantizationParams("int8", scale=0.5).for_compute(np.float64),
        lb.quantize(np.float32([1, 2])).params,
        pickle.loads(pickle.dumps(QuantizationParams("int8", scale=0.5))),
    ]
    for p in made:
        before = p.to_dict()
        with pytest.raises(AttributeError, match=rf"{name}: params do not change.*use replace\({name}=\.\.\.\)"):
            setattr(p, name, FIELDS.get(name))
        with pytest.raises(AttributeError, match=f"{name}: params do not change"):
            delattr(p, name)
        assert p.to_dict() == before
        for array in (p.scale, p.zero_point):
            assert not array.flags.writeable


def test_a_call_that_was_settled_is_not_changed_by_an_assignment() -> None:
    x, p = np.float32([1, 2, 3]), QuantizationParams("int8", scale=1.0)
    want = lb.quantize(x, params=p)
    with pytest.raises(AttributeError):
        p.scale = np.float32(2.0)  # type: ignore[misc]
    assert lb.quantize(x, params=p) == want
    assert lb.quantize(x, params=p.replace(scale=2.0)).unpack().tolist() == [0, 1, 2]


# ---- Python numbers as scales ---------------------------------------------------------------------------


def test_a_scale_of_python_numbers_stays_one_through_replace() -> None:
    weak, firm = QuantizationParams("uint8", scale=0.1), QuantizationParams("uint8", scale=np.float64(0.1))
    assert (weak.weak, firm.weak) == (True, False)
    assert weak.replace(zero_point=3).weak
    assert not firm.replace(zero_point=3).weak
    assert not weak.replace(scale=np.asarray(0.2)).weak
    assert firm.replace(scale=0.2).weak
    x = np.float32([0.35])  # 0.35 / 0.1 rounds differently in float64
    for p in (weak, weak.replace(zero_point=3), firm.replace(scale=0.1)):
        assert lb.quantize(x, params=p).params.scale.dtype == np.float32
        assert lb.quantize(x.astype(np.float64), params=p).params.scale == 0.1


def test_for_compute_settles_the_type_of_python_numbers() -> None:
    weak = QuantizationParams("uint8", scale=0.1)
    for kind in (np.float32, np.float64):
        found = weak.for_compute(kind)
        assert found is not weak
        assert found.scale.dtype == kind
        assert found.scale == kind(0.1)
        assert not found.weak
        assert found.for_compute(kind) is found
        assert weak.for_compute(kind) is found
    assert weak.for_compute(np.float32) is not weak.for_compute(np.float64)
    assert QuantizedTensor(np.uint8([1]), weak).params.scale.dtype == np.float32


def test_bytes_of_python_numbers_are_those_of_float32() -> None:
    assert QuantizationParams("int8", scale=0.1).nbytes == 4
    assert QuantizationParams("int8", scale=[0.1, 0.2], axis=0).nbytes == 8
    assert QuantizationParams("int8", scale=np.float64(0.1)).nbytes == 8
    assert QuantizationParams("int8", scale=np.float32(0.1)).nbytes == 4
    assert QuantizationParams("int8", scale=0.1).for_compute(np.float64).nbytes == 8


# ---- the ends of ranges -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_least_scale_of_asymmetric_ranges(kind: Any) -> None:
    for lo, hi in ((-1e-40, 1e-40), (0.0, 1e-40), (-1e-40, 0.0)):
        p = QuantizationParams.from_statistics(kind(lo), kind(hi), dtype="uint8", scheme="asymmetric")
        assert p.scale == kind(MIN_SCALE)
        assert p.scale.dtype == kind
        assert p.zero_point == 0  # lo / s is far less than half a code
    p = QuantizationParams.from_statistics(kind(-200 * MIN_SCALE), kind(0), dtype="uint8", scheme="asymmetric")
    assert (p.scale, p.zero_point) == (kind(MIN_SCALE), 200)


def test_the_full_range_divides_by_the_least_code() -> None:
    for dtype, least in (("int8", -128), ("int4", -8), ("int2", -2), ("int16", -32768)):
        p = QuantizationParams.from_statistics(-1.0, 0.5, dtype=dtype, scheme="symmetric", full_range=True)
        assert (p.qmin, p.scale) == (least, 1.0 / -least)
        assert p.min_val == -1.0
        p = QuantizationParams.from_statistics(-1.0, 0.5, dtype=dtype, scheme="symmetric")
        assert (p.qmin, p.scale) == (least + 1, 1.0 / -(least + 1))


@pytest.mark.parametrize("full_range", [False, True])
def test_mixed_channels_have_the_ends_of_their_own_width(full_range: bool) -> None:
    widths = [2, 4, 8, 16, 1]
    dtype = lb.QuantizedDType.mixed(widths)
    ends = np.full(5, 1.0, F32)
    p = QuantizationParams.from_statistics(-ends, ends, dtype=dtype, axis=0, full_range=full_range, mean_abs=ends)
    for i, width in enumerate(widths[:4]):
        top = 2 ** (width - 1) - 1
        least = -top - 1 if full_range else -top
        assert p.channel_range(i) == (least, top)
        assert p.scale[i] == F32(1.0) / F32(-least)
        assert p.min_val[i] == -1.0
    assert p.channel_range(4) == (0, 1)
    assert (p.qmin, p.qmax) == (-32768 if full_range else -32767, 32767)
    q = lb.quantize(np.full((5, 3), -9.0, F32), params=p)
    assert q.unpack()[:, 0].tolist() == [*(p.channel_range(i)[0] for i in range(4)), 0]
    for qmin in (-32766, -1, 0):
        with pytest.raises(InvalidProblem, match=r"\[-32768, 32767\] or \[-32767, 32767\]"):
            QuantizationParams(dtype, scale=ends, axis=0, qmin=qmin)
    with pytest.raises(InvalidProblem, match="qmin, qmax"):
        QuantizationParams(dtype, scale=ends, axis=0, qmax=127)


def test_mixed_channels_given_without_a_range_take_every_code() -> None:
    p = QuantizationParams.mixed([2, 4, 8, 1], [1.0] * 4)
    assert [p.channel_range(i) for i in range(4)] == [(-2, 1), (-8, 7), (-128, 127), (0, 1)]


def test_logarithmic_and_binary_codes_have_one_range() -> None:
    assert QuantizationParams.logarithmic("int8").qmin == -127
    for options in ({"qmin": -128}, {"qmin": -126}, {"qmax": 126}):
        with pytest.raises(InvalidProblem, match="logarithmic codes allow only the default"):
            QuantizationParams.logarithmic("int8", **options)
    with pytest.raises(InvalidProblem, match="binary codes allow only the default"):
        QuantizationParams.binary(qmax=0)


CASES = {
    "int8": QuantizationParams("int8", scale=F32(0.5)),
    "narrow": QuantizationParams("int8", scale=F32(0.5), qmin=-5, qmax=9),
    "zero point": QuantizationParams("uint8", scale=F32(0.3), zero_point=77),
    "int4 channels": QuantizationParams("int4", scale=np.float32([0.1, 0.2, 0.4]), zero_point=[1, -2, 3], axis=1),
    "uint2 blocks": QuantizationParams("uint2", scale=np.ones((2, 2), F32), zero_point=[[0, 1], [2, 3]], group_size=2),
    "float64": QuantizationParams("uint16", scale=np.float64(0.1), zero_point=40000),
    "logarithmic": QuantizationParams.logarithmic("int8", np.float32([3.0, 0.7, 1.0]), axis=1),
    "binary": QuantizationParams.binary(np.float32([0.7, 1.5]), axis=0),
    "mixed": QuantizationParams.mixed([4, 1, 16], np.float32([0.7, 1.5, 0.01]), axis=1),
    "mixed, one scale": QuantizationParams.mixed([4, 1, 16], F32(0.7), axis=1),
}


@pytest.mark.parametrize("name", CASES)
def test_the_least_and_greatest_number_are_what_quantize_saturates_to(name: str) -> None:
    p, shape = CASES[name], (2, 3)
    kind = p.scale.dtype.type
    g = p.granularity(shape)
    for value, end in ((-np.inf, p.min_val), (np.inf, p.max_val)):
        assert isinstance(end, np.ndarray)
        assert end.dtype == p.scale.dtype
        assert end.shape == (p.scale.shape if not p.dtype.is_mixed else (3,))
        want = lb.quantize(np.full(shape, value, kind), params=p).dequantize()
        np.testing.assert_array_equal(np.broadcast_to(spread(end, g, shape), shape), want)


# ---- integers and arrays that are none of the kind ----------------------------------------------------------

BEYOND = [2**31, -(2**31) - 1, 2**32 + 3, -(2**32) + 3, np.uint64(2**64 - 5), np.int64(2**62), 2.0**32 + 4, 1e300]


@pytest.mark.parametrize("zero", BEYOND, ids=str)
def test_zero_points_beyond_32_bits_are_refused_and_never_wrapped(zero: Any) -> None:
    x = np.float32([1, 2, 3])
    words = r"zero_point: \[.*\]; expected integers in \[-2147483648, 2147483647\]"
    with pytest.raises(InvalidProblem, match=words):
        QuantizationParams("int8", zero_point=zero)
    with pytest.raises(InvalidProblem, match=words):
        QuantizationParams("int8", scale=np.ones(3), zero_point=np.asarray([zero] * 3), axis=0)
    calls = [
        lambda z: lb.fake_quantize(x, 0.5, z),
        lambda z: lb.fake_quantize(x, np.full(3, 0.5), np.asarray([z] * 3), axis=0),
        lambda z: lb.fake_quantize_backward(x, x, 0.5, z),
        lambda z: lb.quantize_to_int8(x, 0.5, z),
        lambda z: lb.dequantize_from_int8(np.int8([1]), 0.5, z),
        lambda z: plans.FakeQuantizePerTensorPlan.select(plans.PerTensorDescriptor((3,))).run(
            plans.ForwardArgs(x, 0.5, z, np.empty(3, F32))
        ),
    ]
    for call in calls:
        with pytest.raises(InvalidProblem, match=words):
            call(zero)


@pytest.mark.parametrize("zero", [2**32 + 3, np.uint64(2**64 - 5), np.uint64([2**64 - 5]), 300], ids=str)
def test_zero_points_of_integer_products_are_codes(zero: Any) -> None:
    a = np.ones((2, 2), np.int8)
    for options in ({"a_zero_point": zero}, {"b_zero_point": zero}):
        with pytest.raises(InvalidProblem, match=r"_zero_point: \[.*\]; expected integers in \[-128, 127\]"):
            lb.matmul_integer(a, a, **options)


def test_zero_points_of_every_integer_type_and_whole_floats_are_taken() -> None:
    for zero in (3, np.int8(3), np.uint64(3), 3.0, np.float32(3), np.array([3]), ml_dtypes.int4(3)):
        assert QuantizationParams("uint8", zero_point=zero).zero_point == 3
    for zero in (2.7, math.nan, math.inf, np.float32([0.5])):
        with pytest.raises(InvalidProblem, match=r"zero_point: .*; expected an integer"):
            QuantizationParams("uint8", zero_point=zero)


@pytest.mark.parametrize("scale", [-1.0, 0.0, -0.0, math.nan, math.inf, 2.0**-126, MAX_SCALE * 1.01])
def test_a_bad_scale_is_told_that_it_must_be_positive(scale: float) -> None:
    for call in (
        lambda: QuantizationParams("int8", scale=scale),
        lambda: lb.fake_quantize(np.ones(3, F32), scale),
        lambda: lb.fake_quantize(np.ones(3), np.full(3, scale), axis=0),
    ):
        with pytest.raises(InvalidProblem, match=r"scale: .*; expected finite, positive and in \[2\^-125"):
            call()


def test_masked_arrays_are_refused_by_name() -> None:
    m = np.ma.masked_array(np.ones(4, F32), [0, 1, 0, 1])
    codes = np.ma.masked_array(np.ones(4, np.int8), [0, 1, 0, 1])
    x, p = np.ones(4, F32), QuantizationParams("int8")
    q = lb.quantize(x)
    d = plans.PerTensorDescriptor((4,))
    calls: dict[str, list[Any]] = {
        "x": [
            lambda: lb.quantize(m), lambda: lb.quantize(m, params=p), lambda: lb.fake_quantize(m, 0.5),
            lambda: q.error(m), lambda: lb.auto_quantize_tensor(m), lambda: lb.measure_accuracy_impact(m, p),
            lambda: lb.QuantizedLinear(np.ones((2, 4), F32))(m),
        ],
        "dy": [lambda: lb.fake_quantize_backward(m, x, 0.5), lambda: lb.dequantize_backward(m, 0.5)],
        "scale": [lambda: QuantizationParams("int8", scale=m, axis=0), lambda: lb.fake_quantize(x, m, axis=0)],
        "zero_point": [lambda: QuantizationParams("int8", scale=x, zero_point=codes, axis=0)],
        "lo": [lambda: QuantizationParams.from_statistics(m, m, axis=0)],
        "data": [lambda: QuantizedTensor(codes, p), lambda: QuantizedTensor.from_data(codes, p)],
        "codes": [lambda: QuantizedTensor.from_codes(codes, p)],
        "q": [lambda: lb.dequantize_from_int8(codes, 0.5)],
        "out": [
            lambda: lb.quantize(x, out=codes), lambda: lb.quantize(x, params=p, out=codes),
            lambda: lb.dequantize(q, out=m), lambda: lb.fake_quantize(x, 0.5, out=m), lambda: lb.qrelu(q, out=codes),
        ],
        "input": [
            lambda: plans.FakeQuantizePerTensorPlan.select(d).run(plans.ForwardArgs(m, 0.5, 0, np.empty(4, F32)))
        ],
        "weight": [lambda: lb.QuantizedLinear(np.ma.masked_array(np.ones((2, 4), F32)))],
        "a_zero_point": [lambda: lb.matmul_integer(np.ones((4, 4), np.int8), np.ones((4, 4), np.int8), codes)],
        "a": [lambda: lb.matmul_integer(codes.reshape(2, 2), np.ones((2, 2), np.int8))],
        "b": [lambda: lb.matmul_integer(np.ones((2, 2), np.int8), codes.reshape(2, 2))],
        "bias": [lambda: lb.QuantizedLinear(np.ones((4, 4), F32), m)],
        "samples": [lambda: lb.calibrate(m, "int8")],
    }  # fmt: skip
    for name, some in calls.items():
        for call in some * 2:
            with pytest.raises(InvalidProblem, match=rf"{name}.*: a masked array; expected a plain one"):
                call()
