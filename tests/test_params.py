"""QuantizationParams: the contract's formulas by hand, every field checked, nothing lost in JSON."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import lowbit as lb
from lowbit import InvalidProblem, QuantizationParams, QuantizationScheme
from lowbit.ranges import MAX_SCALE, MIN_SCALE
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
    assert not QuantizationParams("uint4", "block_wise", block_size=8).is_symmetric
    assert QuantizationParams("int4", "channel_wise").is_symmetric


def test_channels_and_blocks_alike() -> None:
    lo, hi = np.float32([-1, -2, 0]), np.float32([1, 1, 0])
    p = QuantizationParams.from_statistics(lo, hi, dtype="int8", scheme="channel_wise", axis=1)
    assert p.scale.tolist() == (np.float32([1, 2, 127]) / F32(127)).tolist()
    assert p.num_parameter_sets == 3
    blocks = QuantizationParams.from_statistics(
        lo.reshape(3, 1), hi.reshape(3, 1), dtype="int4", scheme="symmetric", axis=-1, block_size=16
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
    ({"block_size": 0}, "block_size"),
    ({"scheme": "block_wise"}, "block_size"),
    ({"scheme": "channel_wise", "block_size": 4}, "block_size"),
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
    groups = QuantizationParams("uint4", "asymmetric", np.ones((64, 4), F32), axis=-1, block_size=32)
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
    p = QuantizationParams("int4", "symmetric", np.float32([[0.1], [0.2]]), axis=-1, block_size=32, qmin=-7)
    assert repr(p) == (
        "QuantizationParams(int4, symmetric, scale=[0.1 … 0.2] (2, 1), codes=[-7, 7], axis=-1, block_size=32)"
    )


def test_constructors() -> None:
    assert QuantizationParams.int8_symmetric(0.5).dtype.name == "int8"
    assert QuantizationParams.uint8_asymmetric(0.5, 7).zero_point == 7
    assert QuantizationParams.int4_symmetric().dtype.bits == 4
    assert QuantizationParams.binary(2.0).dtype.is_binary
    assert QuantizationParams.channel_wise([0.1, 0.2], axis=1).axis == 1
    assert QuantizationParams.block_wise(16).block_size == 16
    assert QuantizationParams.logarithmic("int4").steps_per_octave == 1
    assert QuantizationParams.mixed([8, 4]).dtype.widths == (8, 4)
