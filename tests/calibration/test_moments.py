"""Second moments: exact, and without a trace of order, splits, merges, saves or threads."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import lowbit as lb
from lowbit.calibration import Moments
from lowbit.calibration.fixed_point import BITS, EXPONENTS
from lowbit.numerics.errors import InvalidProblem, UnsupportedDType
from weight_problems import moment_state

Array = np.ndarray[Any, Any]
F32 = np.float32
NUMBERS = st.one_of(
    st.sampled_from([0.0, 1.0, -1.0, 15.99, 16.0, 2.0**-39, 2.0**-40, 1e-45, 1e10, -1e10]),
    st.floats(-100, 100, width=32),
    st.floats(-(2.0**-20), 2.0**-20, width=32),
)
WEIGHTS = st.sampled_from([0.0, 1.0, 1.0, 1.0, 0.25, 2.0, 3.0, 1000.5])


def rounded(row: Iterable[float]) -> list[Fraction]:
    """What a row becomes, as fractions."""
    values = [Fraction(float(x)) for x in row]
    most = max(map(abs, values))
    step = Fraction(2) ** (next(e for e in EXPONENTS if most < Fraction(2) ** e) - BITS)
    return [round(x / step) * step for x in values]


def expected(x: Array, weights: Array) -> tuple[Array, Array]:
    """E[x x^T] and E[x] of rows [rows, width], by fractions, rounded once at the end."""
    width, total = x.shape[1], sum(Fraction(float(w)) for w in weights)
    gram, mean = np.zeros((width, width), object), np.zeros(width, object)
    for row, weight in zip(x, weights, strict=True):
        if weight > 0:
            root = np.sqrt(F32(weight))
            n, m = rounded(row * root), rounded(row)
            gram += np.array([[a * b for b in n] for a in n])
            mean += np.array([a * Fraction(float(weight)) for a in m])
    return (gram / total).astype(float), (mean / total).astype(float)


def moments_of(*parts: tuple[Array, Any], width: int, **options: Any) -> Moments:
    m = Moments(width, **options)
    for x, weights in parts:
        m.add(x, weights)
    return m


rows_and_weights = st.integers(1, 12).flatmap(
    lambda n: st.tuples(
        st.integers(1, 5).flatmap(lambda k: arrays(F32, (n, k), elements=NUMBERS)),
        arrays(np.float64, n, elements=WEIGHTS),
    )
)


# ---- what they say ---------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(given_rows=rows_and_weights)
def test_moments_are_those_of_fractions(given_rows: tuple[Array, Array]) -> None:
    x, weights = given_rows
    weights[0] = weights[0] or 1
    m = moments_of((x, weights), width=x.shape[1])
    gram, mean = expected(x, weights)
    np.testing.assert_allclose(m.gram(), gram, rtol=1e-15, atol=0)
    np.testing.assert_allclose(m.mean(), mean, rtol=1e-13, atol=1e-15 * np.abs(x).max())
    np.testing.assert_array_equal(m.diagonal(), np.diagonal(m.gram()))
    np.testing.assert_array_equal(m.gram(), m.gram().T)
    assert (m.count, m.weight) == (np.count_nonzero(weights), weights.sum())


def test_integers_have_no_error() -> None:
    x = np.random.default_rng(0).integers(-(2**15), 2**15, (1000, 40))
    m = moments_of((x.astype(F32), None), width=40)
    np.testing.assert_array_equal(m.gram(), (x.T @ x) / 1000)
    np.testing.assert_array_equal(m.mean(), x.sum(0) / 1000)


def test_the_error_is_that_of_19_bits() -> None:
    x = np.random.default_rng(0).standard_normal((500, 30)).astype(F32)
    m = moments_of((x, None), width=30)
    exact = x.T.astype(np.float64) @ x / 500
    assert np.abs(m.gram() - exact).max() < 2.0**-15 * exact.max()


@pytest.mark.parametrize("groups", [1, 3])
def test_diagonals_alone_are_those_of_the_whole(groups: int) -> None:
    rng = np.random.default_rng(groups)
    x = (rng.standard_normal((50, 7, groups, 9)) * 10.0 ** rng.integers(-6, 6, (50, 7, 1, 1))).astype(F32)
    x = x if groups > 1 else x[:, :, 0]
    whole, diagonal = (moments_of((x, None), width=9, groups=groups, gram=gram) for gram in (True, False))
    np.testing.assert_array_equal(whole.diagonal(), diagonal.diagonal())
    np.testing.assert_array_equal(whole.mean(), diagonal.mean())
    with pytest.raises(InvalidProblem, match=r"^x: only E\[x\^2\] was collected; expected Moments\(..., gram=True\)"):
        diagonal.gram()
    for g in range(groups if groups > 1 else 0):
        alone = moments_of((x[:, :, g], None), width=9)
        np.testing.assert_array_equal(whole.gram()[g], alone.gram())
        np.testing.assert_array_equal(whole.mean()[g], alone.mean())


def test_cross_moments_are_those_of_rows_beside_each_other() -> None:
    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((300, 11)).astype(F32) for _ in range(2))
    m = Moments(11, cross=True)
    m.add(x[:100], reference=y[:100])
    m.add(x[100:], reference=y[100:])
    both = moments_of((np.concatenate([x, y], 1), None), width=22)
    np.testing.assert_array_equal(m.cross(), both.gram()[11:, :11])
    np.testing.assert_array_equal(m.gram(), both.gram()[:11, :11])
    assert moment_state(Moments.from_arrays(*m.to_arrays())) == moment_state(m)
    with pytest.raises(InvalidProblem, match=r"^reference: missing; expected rows of the same shape as x"):
        m.add(x)
    with pytest.raises(InvalidProblem, match=r"^reference: given; expected Moments\(..., cross=True\)"):
        both.add(np.zeros((1, 22)), reference=np.zeros((1, 22)))
    with pytest.raises(InvalidProblem, match=r"^x \(reference\): shape \(3, 11\); expected that of x, \(2, 11\)"):
        m.add(x[:2], reference=y[:3])
    with pytest.raises(InvalidProblem, match=r"^x: there was no reference; expected"):
        both.cross()
    with pytest.raises(InvalidProblem, match=r"^cross: it needs gram=True"):
        Moments(3, cross=True, gram=False)


# ---- no trace --------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(given_rows=rows_and_weights, data=st.data(), gram=st.booleans())
def test_order_splits_merges_and_saves_leave_no_trace(
    given_rows: tuple[Array, Array], data: st.DataObject, gram: bool
) -> None:
    x, weights = given_rows
    options = {"width": x.shape[1], "gram": gram}
    want = moment_state(moments_of((x, weights), **options))
    order = data.draw(st.permutations(range(len(x))))
    parts: list[Moments] = [Moments(**options) for _ in range(3)]
    for row in order:
        at = data.draw(st.integers(0, 2))
        parts[at].add(x[row], weights[row])
        if data.draw(st.booleans()):
            parts[at] = Moments.from_arrays(*parts[at].to_arrays())
    first, second, third = (parts[i] for i in data.draw(st.permutations(range(3))))
    second.merge(third)
    before = moment_state(second)
    first.merge(second)
    assert moment_state(first) == want
    assert moment_state(second) == before


def test_threads_and_large_batches_leave_no_trace() -> None:
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((3000, 300)) * np.exp(3 * rng.standard_normal((3000, 1)))).astype(F32)
    made = []
    for threads, batch in ((1, 3000), (2, 1), (7, 701)):
        lb.set_num_threads(threads)
        m = Moments(300)
        for at in range(0, 3000, batch):
            m.add(x[at : at + batch])
        made.append(moment_state(m))
    assert made[0] == made[1] == made[2]


def test_moments_go_on_after_a_save() -> None:
    x = np.random.default_rng(0).standard_normal((90, 5)).astype(F32)
    m = moments_of((x[:30], None), width=5, name="layer")
    saved = Moments.from_arrays(*m.to_arrays())
    for each in (m, saved):
        each.add(x[30:], np.full(60, 0.5))
    assert moment_state(saved) == moment_state(m)
    assert (saved.name, saved.count, saved.weight) == ("layer", 90, 60)
    assert repr(saved) == "Moments('layer': E[x x^T] of 5 inputs, 90 rows)"


# ---- weights ---------------------------------------------------------------------------------------------------------


def test_a_weight_of_256_counts_as_256_rows() -> None:
    """Its root is 16, with which the integers of a row stay the same."""
    x = np.random.default_rng(0).standard_normal((10, 6)).astype(F32)
    once, often = moments_of((x, np.full(10, 256)), width=6), moments_of((np.repeat(x, 256, axis=0), None), width=6)
    np.testing.assert_array_equal(once.gram(), often.gram())
    np.testing.assert_array_equal(once.mean(), often.mean())
    assert once.weight == often.weight == 2560


def test_rows_of_weight_0_count_for_nothing() -> None:
    x = np.random.default_rng(0).standard_normal((4, 5, 6)).astype(F32)
    mask = np.random.default_rng(1).random((4, 5)) < 0.5
    want = moment_state(moments_of((x[mask], None), width=6))
    x[~mask] = np.nan
    torch = pytest.importorskip("torch")
    for weights in (
        mask,
        mask.astype(int),
        mask.astype(F32),
        mask.tolist(),
        torch.tensor(mask),
        torch.tensor(mask).long(),
    ):
        assert moment_state(moments_of((x, weights), width=6)) == want


def test_weights_have_16_bits_below_the_point() -> None:
    m = Moments(1)
    m.add(F32([[1], [1]]), [2.0**-16, 2.0**-18])
    assert (m.count, m.weight) == (1, 2.0**-16)


# ---- types -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16], ids=str)
def test_rows_of_every_float_type(dtype: Any) -> None:
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((3, 5, 8)).astype(dtype)
    want = moment_state(moments_of((x.astype(F32), None), width=8))
    tensor = torch.tensor(x.astype(np.float64)).to(getattr(torch, np.dtype(dtype).name))
    wide = np.zeros((3, 5, 16), dtype)
    wide[..., ::2] = x
    for rows in (x, np.asfortranarray(x), wide[..., ::2], tensor, tensor.requires_grad_(True)):
        before = np.array(x)
        assert moment_state(moments_of((rows, None), width=8)) == want
        np.testing.assert_array_equal(x, before)


def test_rows_that_are_no_floats_are_refused() -> None:
    for bad in (np.ones((2, 3), int), np.ones((2, 3), complex), np.array([["a"] * 3])):
        with pytest.raises(UnsupportedDType, match=r"^x: .*; expected float32"):
            Moments(3).add(bad)


def test_no_rows_change_nothing() -> None:
    m = Moments(3)
    m.add(np.zeros((0, 3), F32))
    m.add(np.zeros((0, 3), F32), [])
    m.add(np.zeros((2, 0, 3), F32))
    m.add(np.ones((2, 3), F32), [0, 0])
    assert (m.count, m.weight, m.nbytes) == (0, 0, 0)
    for ask in (m.mean, m.diagonal, m.gram):
        with pytest.raises(InvalidProblem, match=r"^x: no rows yet"):
            ask()


def test_rows_of_zeros_count() -> None:
    m = moments_of((np.zeros((4, 3), F32), None), width=3)
    assert (m.count, m.weight) == (4, 4)
    assert not m.gram().any()
    m.add(np.ones((4, 3), F32))
    assert (m.diagonal() == 0.5).all()
