"""From ranges to scales, and the tables of logarithmic codes: limits, ties and refusals, field by field."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.granularity import granularity_of
from lowbit.numerics.logarithm import log_tables
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE, affine_from_range, held, log_scale_from_range
from lowbit.numerics.schemes import QuantizationScheme, checked_steps, default_codes

FLOATS = (np.float32, np.float64)
TINY = 2.0**-140  # a subnormal float32: divided by a code range it is far below the least scale


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_tiny_range_gets_the_least_scale(kind, symmetric):
    scale, _ = affine_from_range(kind(0), kind(TINY), -127, 127, symmetric=symmetric)
    assert scale == MIN_SCALE
    assert log_scale_from_range(kind(-TINY), kind(0)) == MIN_SCALE


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_range_whose_scale_would_overflow_is_refused(symmetric):
    most = np.float32(3e38)  # finite, and so would be its scale
    with pytest.raises(InvalidProblem, match=r"scale: the range is too wide: it needs a scale of .*e\+3"):
        affine_from_range(-most, np.float32(0), -1, 1, symmetric=symmetric)
    with pytest.raises(InvalidProblem, match="the range is too wide"):
        log_scale_from_range(-most, most)


def test_the_greatest_scale_is_allowed():
    scale, _ = affine_from_range(np.float64(0), np.float64(MAX_SCALE), -1, 1, symmetric=True)
    assert scale == MAX_SCALE


def test_the_full_range_divides_by_the_least_code():
    assert affine_from_range(np.float32(-1), np.float32(1), -8, 7, symmetric=True, full_range=True)[0] == 1 / 8
    assert affine_from_range(np.float32(-1), np.float32(1), -8, 7, symmetric=True)[0] == np.float32(1) / 7


@pytest.mark.parametrize(("qmin", "qmax", "zero"), [(3, 10, 3), (-10, -3, -3), (-8, 7, 0)])
def test_a_symmetric_zero_point_is_the_code_nearest_to_zero(qmin, qmax, zero):
    assert affine_from_range(np.float32(-1), np.float32(1), qmin, qmax, symmetric=True)[1] == zero


@pytest.mark.parametrize(("qmin", "qmax", "zero"), [(3, 10, 3), (-10, -3, -3), (-8, 7, 0)])
def test_all_zero_data_has_scale_one_and_the_code_nearest_to_zero(qmin, qmax, zero):
    for symmetric in (True, False):
        scale, found = affine_from_range(np.float32(0), np.float32(0), qmin, qmax, symmetric=symmetric)
        assert (scale, found) == (1, zero)


def test_neighbours_share_a_scale_where_the_axis_has_one_index():
    assert not granularity_of((5, 1), 1, None).varies
    assert granularity_of((5, 2), 1, None).varies
    assert not granularity_of((5, 2), 0, None).varies
    assert granularity_of((5, 2), 0, 2).varies
    assert not granularity_of((5, 2), 1, 2).varies


@pytest.mark.parametrize("name", ["int8", "int4", "int2", "int16"])
def test_logarithmic_codes_are_symmetric(name):
    dtype = QuantizedDType.of(name)
    assert default_codes(dtype, QuantizationScheme.LOGARITHMIC) == (-dtype.qmax, dtype.qmax)
    assert default_codes(dtype, QuantizationScheme.LINEAR) == (dtype.qmin, dtype.qmax)


def test_logarithmic_magnitudes_stay_within_the_exponents_of_float32():
    int8 = QuantizedDType.of("int8")
    assert checked_steps(QuantizationScheme.LOGARITHMIC, int8, 1.0) == 1
    with pytest.raises(InvalidProblem, match=r"steps_per_octave: 0\.99 spreads 127 magnitudes over more octaves"):
        checked_steps(QuantizationScheme.LOGARITHMIC, int8, 0.99)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("steps", [0.5, 0.25, 1.0, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("levels", [1, 3, 7])
def test_a_logarithmic_threshold_is_the_least_float_that_rounds_up(levels, steps, kind):
    """Between magnitudes m - 1 and m, the log-domain midpoint is 2^-b with b = (levels - m + 1/2) / steps. A value on
    it goes to the even magnitude. Both sides are raised to the denominator of b, so that integers decide exactly."""
    thresholds, _ = log_tables(levels, steps, np.dtype(kind))

    def reaches(value, m):
        b = (Fraction(2 * (levels - m) + 1, 2)) / Fraction(steps)
        left, right = Fraction(float(value)) ** b.denominator, Fraction(1, 2**b.numerator)
        return left > right or (left == right and m % 2 == 0)

    for m, threshold in enumerate(thresholds, 1):
        assert reaches(threshold, m)
        assert not reaches(np.nextafter(threshold, kind(0)), m)


@pytest.mark.parametrize(("name", "dtype"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_held_scales_are_the_nearest_of_their_type(name: str, dtype: Any) -> None:
    every = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float32)
    low, high = (2.0**-24, 65504.0) if name == "float16" else (MIN_SCALE, MAX_SCALE)
    every = np.sort(every[(every >= low) & (every <= high)])
    np.testing.assert_array_equal(held(every, name), every)
    between = (every[1:] + every[:-1]) / np.float32(2)
    for x in (between, np.nextafter(between, np.float32(0)), np.nextafter(between, np.float32(np.inf))):
        np.testing.assert_array_equal(held(x, name), x.astype(dtype).astype(np.float32))
    assert held(np.array([0, -1, np.inf, 1e300]), name).tolist() == [every[0]] * 2 + [every[-1]] * 2


def test_held_scales_of_float32_stay_within_the_contract() -> None:
    assert held(np.array([0.1, 0, 1e300]), "float32").tolist() == [np.float32(0.1), MIN_SCALE, MAX_SCALE]
