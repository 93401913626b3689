"""Rows as integers and exact sums over them, against Python's integers."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lowbit.calibration import fixed_point as fp

Array = np.ndarray[Any, Any]
FINITE = st.one_of(
    st.sampled_from(
        [0.0, -0.0, 1.0, -1.0, 0.5, 2.0**-39, 2.0**-40, -(2.0**-40), 2.0**-41, 2.0**-20, 1e-45, 15.9, 16.0]
    ),
    st.floats(-(2.0**39), 2.0**39, width=32),
    st.floats(-2, 2, width=32),
)


def integers(row: list[float]) -> tuple[int, list[int]]:
    """The exponent and the integers of one row, by the definition."""
    most = max(abs(Fraction(x)) for x in row)
    e = next(e for e in fp.EXPONENTS if most < Fraction(2) ** e)
    return e, [round(Fraction(x) * Fraction(2) ** (fp.BITS - e)) for x in row]  # ties to even


@settings(max_examples=200, deadline=None)
@given(x=arrays(np.float32, st.tuples(st.integers(1, 6), st.integers(1, 3), st.integers(1, 5)), elements=FINITE))
def test_rows_are_what_the_definition_says(x: Array) -> None:
    found: dict[tuple[int, int], tuple[int, list[int]]] = {}
    for block in fp.fixed_point(x, fp.largest(x)):
        assert block.values.dtype == np.float32
        for row, values in zip(block.rows, block.values, strict=True):
            for group, n in enumerate(values.astype(np.int64).tolist()):
                if any(n):
                    assert (row, group) not in found
                    found[row, group] = (block.exponent, n)
    for row, groups in enumerate(x.tolist()):
        for group, numbers in enumerate(groups):
            want = integers(numbers)
            assert found.get((row, group), (want[0], [0] * len(numbers))) == want


def test_integers_are_bounded() -> None:
    x = np.float32([[[np.nextafter(np.float32(2.0**e), np.float32(0))]] for e in range(-30, 41)])
    for block in fp.fixed_point(x, fp.largest(x)):
        assert np.abs(block.values).max() <= 1 << fp.BITS
        assert block.exponent in fp.EXPONENTS


def test_a_magnitude_of_nan_is_nan() -> None:
    assert np.isnan(fp.largest(np.float32([1, np.nan, 3])))
    assert fp.largest(np.float32([1, -4, 3])) == 4


@settings(max_examples=100, deadline=None)
@given(data=st.data(), rows=st.integers(0, 9), same=st.booleans())
def test_weighted_sums_are_exact(data: st.DataObject, rows: int, same: bool) -> None:
    most = 1 << fp.BITS
    values = data.draw(arrays(np.float32, (rows, 2, 3), elements=st.integers(-most, most).map(float)))
    weights = data.draw(arrays(np.int64, rows, elements=st.sampled_from([1, 3, 1 << 16, (1 << 32) - 1, 1 << 32])))
    if same and rows:
        weights[:] = weights[0]
    found = fp.weighted_sum(values, weights)
    assert found.dtype == np.int64
    want = (values.astype(np.int64).astype(object) * weights.astype(object)[:, None, None]).sum(0)
    assert found.tolist() == (want.tolist() if rows else [[0] * 3] * 2)


@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("width", [1, 3, 255, 256, 257, 520])
@pytest.mark.parametrize("calls", [1, 5])
def test_sums_of_products_are_exact(width: int, cross: bool, calls: int) -> None:
    most, groups, rows = 1 << fp.BITS, 2, 100
    rng = np.random.default_rng(width)
    values = rng.integers(-most, most + 1, (rows, groups, width * (1 + cross))).astype(np.float32)
    values[:3] = most
    sums = fp.ExactSums(groups, width, cross=cross)
    for part in np.array_split(values, calls):
        sums.add(part)
    n = values.astype(np.int64)
    want = np.einsum("rgi,rgj->gij", n, n[..., :width])
    total = np.zeros((groups, width, width))
    sums.add_to(total, 1.0)
    fp.mirror(total)
    np.testing.assert_array_equal(total, want[:, :width])
    np.testing.assert_array_equal(sums.diagonal(), np.diagonal(want[:, :width], axis1=1, axis2=2))
    if cross:
        crossed = np.zeros((groups, width, width))
        sums.add_to(crossed, 1.0, crossed=True)
        np.testing.assert_array_equal(crossed, want[:, width:])
    other = fp.ExactSums(groups, width, cross=cross)
    other.unpack(sums.packed())
    np.testing.assert_array_equal(other.packed(), sums.packed())
    assert other.packed_size == sums.packed().shape[1] == width * (width + 1) // 2 + cross * width**2
    squares = fp.ExactSums(groups, width, gram=False)
    squares.add(values[..., :width])
    np.testing.assert_array_equal(squares.diagonal(), sums.diagonal())


def test_the_largest_products_of_many_rows_are_exact() -> None:
    """2^17 rows of the largest integers: sums pass 2^53, where float64 alone would lose bits."""
    most, rows = 1 << fp.BITS, 1 << 17
    for gram in (True, False):
        sums = fp.ExactSums(1, 1, gram=gram)
        values = np.full((rows, 1, 1), most, np.float32)
        values[0] = 1
        sums.add(values)
        assert sums.diagonal().tolist() == [[(rows - 1) * most**2 + 1]]


def test_room_is_judged_by_the_rows_seen() -> None:
    sums = fp.ExactSums(1, 2)
    assert sums.has_room((1 << 25) - 1)
    assert not sums.has_room(1 << 25)
    sums.add(np.full((100, 1, 2), 1 << fp.BITS, np.float32))
    assert not sums.has_room((1 << 25) - 100)
    small = fp.ExactSums(1, 2)
    small.add(np.ones((100, 1, 2), np.float32))
    assert small.has_room((1 << 25) - 2)
    assert not sums.has_room((1 << 25) - 100, small)
    assert sums.has_room((1 << 25) - 101, small)
    sums.unpack(np.array([[1 << 62, 0, 1 << 62]]))
    assert not sums.has_room(0, sums)
    assert sums.has_room(1 << 20)


def test_room_counts_cross_products() -> None:
    sums = fp.ExactSums(1, 1, cross=True)
    sums.unpack(np.array([[1, -(1 << 62)]]))
    assert not sums.has_room(1 << 24)
    assert sums.has_room(1 << 23)


def test_few_rows_wait_for_more() -> None:
    least = fp._LEAST_ROWS
    sums, waiting = fp.ExactSums(1, 8), fp.ExactSums(1, 8)
    sums.add(np.ones((least - 1, 1, 8), np.float32))
    assert not sums.sums
    sums.add(np.ones((1, 1, 8), np.float32))
    assert sums.sums
    assert not sums._waiting
    waiting.add(np.ones((50, 1, 8), np.float32))
    sums.absorb(waiting)
    assert (sums.diagonal() == least + 50).all()
    assert (waiting.diagonal() == 50).all()
