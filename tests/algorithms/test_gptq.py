"""Rounding with error feedback, and scales fitted afterwards, against the equations in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowbit.algorithms import gptq, weighted
from lowbit.algorithms.gptq import factored, rounded
from lowbit.algorithms.grid import Grid
from lowbit.algorithms.refit import refitted
from lowbit.algorithms.rounding import best_scales, nearest
from lowbit.numerics.errors import InvalidProblem
from weight_problems import gram, row_errors, weight

Array = np.ndarray[Any, Any]
INPUTS = 70
GRIDS = [
    Grid(dtype, scheme, group_size, scale_dtype, bits)
    for dtype, bits in (("int2", None), ("int4", 3), ("int4", None), ("int8", None))
    for scheme, scale_dtype in (("symmetric", "float32"), ("asymmetric", "float16"), ("asymmetric", "bfloat16"))
    for group_size in (None, 16, 7)
]
grids = pytest.mark.parametrize("grid", GRIDS, ids=lambda g: f"{g.width}-{g.scheme}-{g.scale_dtype}-{g.group_size}")


def frantar(w: Array, h: Array, order: Array, scale: Array, low: Array, high: Array) -> Array:
    """Steps of GPTQ as it was published: U^T U = H^-1, and the errors of an input spread over the later ones."""
    u = np.linalg.cholesky(np.linalg.inv(h[np.ix_(order, order)])).T
    left, p = w[:, order].astype(np.float64), np.empty(w.shape)
    for j, i in enumerate(order):
        step = np.clip(np.rint(left[:, j] / scale[:, i]), low[:, i], high[:, i])
        error = (left[:, j] - scale[:, i] * step) / u[j, j]
        left[:, j:] -= error[:, None] * u[j, j:]
        p[:, i] = step
    return p


@grids
def test_it_is_the_published_algorithm(grid: Grid) -> None:
    w, factor = weight(), factored(gram(), INPUTS)
    scales = best_scales(w, grid, factor.diagonal)
    p = rounded(w, grid, factor, scales)
    group = grid.group_of(INPUTS)
    steps = grid.steps(scales.scale, scales.zero_point, inputs=INPUTS)
    spread = [a.astype(np.float64)[:, group] for a in steps[:3]]
    want = frantar(w, factor.hessian, factor.order, *spread)
    error, expected = (_error(w - spread[0] * q, factor.hessian) for q in (p, want))
    # A tie that float32 decides otherwise changes the rest of its row; few rows have one.
    same = (p == want).all(1)
    assert same.mean() >= 0.75
    np.testing.assert_allclose(error[same], expected[same], rtol=1e-9)
    np.testing.assert_allclose(error, expected, rtol=0.2, atol=1e-9)


def _error(e: Array, h: Array) -> Array:
    return np.asarray(np.einsum("ri,ri->r", e @ h, e))


@grids
def test_the_error_is_the_sum_over_pivots(grid: Grid) -> None:
    """tr(E H E^T) = sum of R_jj^2 (v_j - s_j p_j)^2, v_j = w_j + sum over i < j of e_i T_ij."""
    w, factor = weight(), factored(gram(), INPUTS)
    scales = best_scales(w, grid, factor.diagonal)
    e = w - scales.scale[:, grid.group_of(INPUTS)].astype(np.float64) * rounded(w, grid, factor, scales)
    off = e[:, factor.order] @ np.triu(factor.t.astype(np.float64))  # v_j - s_j p_j
    np.testing.assert_allclose((np.square(off) * factor.pivots).sum(1), _error(e, factor.hessian), rtol=1e-4)


def test_a_factor_is_one_of_the_damped_moments() -> None:
    h = gram()
    factor = factored(h, INPUTS, 0.05)
    np.testing.assert_allclose(factor.hessian, h + 0.05 * np.diagonal(h).mean() * np.eye(INPUTS), rtol=1e-12)
    assert factor.added == pytest.approx(0.05 * np.diagonal(h).mean())
    r = factor.t.astype(np.float64) * np.sqrt(factor.pivots)
    assert (np.tril(factor.t, -1) == 0).all()
    np.testing.assert_allclose(r @ r.T, factor.hessian[np.ix_(factor.order, factor.order)], rtol=1e-4, atol=1e-4)
    assert (np.diff(factor.diagonal[factor.order]) <= 0).all()
    assert sorted(factor.order) == list(range(INPUTS))


def test_inputs_of_equal_size_keep_their_order() -> None:
    assert factored(np.eye(9), 9).order.tolist() == list(range(9))


@grids
def test_independent_inputs_are_rounded_to_nearest(grid: Grid) -> None:
    w, h = weight(), np.diag(np.diagonal(gram()))
    options = {"scheme": grid.scheme, "group_size": grid.group_size, "bits": grid.bits, "scale_dtype": grid.scale_dtype}
    q = gptq(w, h, grid.dtype, refit=False, **options)
    want = nearest(w, grid, best_scales(w, grid, factored(h, INPUTS).diagonal))
    np.testing.assert_array_equal(q.unpack(), want.unpack())
    np.testing.assert_array_equal(q.params.scale, want.params.scale)


@grids
def test_feedback_and_refit_lower_the_error(grid: Grid) -> None:
    w, h = weight(64), factored(gram(), INPUTS).hessian
    options = {"scheme": grid.scheme, "group_size": grid.group_size, "bits": grid.bits, "scale_dtype": grid.scale_dtype}
    plain = row_errors(w, weighted(w, np.diagonal(h), grid.dtype, **options), h)
    rounded_only = row_errors(w, gptq(w, gram(), grid.dtype, refit=False, **options), h)
    refit = row_errors(w, gptq(w, gram(), grid.dtype, **options), h)
    assert rounded_only.sum() < 0.8 * plain.sum()
    assert (refit <= rounded_only * (1 + 1e-4)).all()
    if grid.scale_dtype == "float32":
        assert refit.sum() < 0.999 * rounded_only.sum()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 999),
    rows=st.integers(1, 40),
    inputs=st.integers(1, 40),
    group_size=st.sampled_from([None, 1, 3, 16]),
    scale_dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    exponent=st.integers(-30, 30),
)
def test_a_refit_never_raises_the_error(
    seed: int, rows: int, inputs: int, group_size: int | None, scale_dtype: str, exponent: int
) -> None:
    rng = np.random.default_rng(seed)
    w = rng.standard_normal((rows, inputs)).astype(np.float32)
    h = np.ldexp(gram(inputs, seed, 2 * inputs) + 0.1 * np.eye(inputs), exponent)
    grid = Grid("int4", "asymmetric", group_size, scale_dtype)
    scales = best_scales(w, grid)
    p = nearest(w, grid, scales).unpack() - scales.zero_point[:, grid.group_of(inputs)]
    found = refitted(w, p.astype(np.float32), scales.scale, grid, h)
    before, after = (_error(w - s[:, grid.group_of(inputs)].astype(np.float64) * p, h) for s in (scales.scale, found))
    energy = _error(w.astype(np.float64), h)
    assert (after <= before + 1e-6 * energy).all()


def test_one_scale_per_row_is_refitted_by_least_squares() -> None:
    w, h, grid = weight(9), factored(gram(), INPUTS).hessian, Grid("int4")
    scales = best_scales(w, grid)
    p = nearest(w, grid, scales).unpack().astype(np.float64) - scales.zero_point
    found = refitted(w, p.astype(np.float32), scales.scale, grid, h)
    some = p.any(1)
    want = np.einsum("ri,ri->r", p @ h, w.astype(np.float64))[some] / _error(p[some], h)
    np.testing.assert_allclose(found[some, 0], want, rtol=1e-5)
    np.testing.assert_array_equal(found[~some], 1)


def test_refits_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    w, h, grid = weight(100), factored(gram(), INPUTS).hessian, Grid("int4", group_size=16)
    scales = best_scales(w, grid)
    p = (nearest(w, grid, scales).unpack() - scales.zero_point[:, grid.group_of(INPUTS)]).astype(np.float32)
    want = refitted(w, p, scales.scale, grid, h)
    monkeypatch.setattr("lowbit.algorithms.refit._NBYTES", 0)
    np.testing.assert_array_equal(refitted(w, p, scales.scale, grid, h), want)


@pytest.mark.parametrize("exponent", [-200, -70, 70, 200])
def test_moments_of_any_magnitude(exponent: int) -> None:
    w, h = weight(), gram()
    want, found = (gptq(w, g, group_size=16) for g in (h, np.ldexp(h, exponent)))
    np.testing.assert_array_equal(found.unpack(), want.unpack())
    np.testing.assert_array_equal(found.params.scale, want.params.scale)


def test_moments_of_nothing_are_rounded_to_nearest() -> None:
    w = weight()
    q = gptq(w, np.zeros((INPUTS, INPUTS)), group_size=16, refit=False)
    np.testing.assert_array_equal(q.unpack(), weighted(w, np.ones(INPUTS), group_size=16).unpack())


def test_one_input_seen_often_is_not_given_up_for_the_rest() -> None:
    """A singular matrix of rank 1 works with damping."""
    x = np.arange(1.0, 9.0)
    w = weight(3, 8)
    h = np.outer(x, x)
    assert (row_errors(w, gptq(w, h, damping=1e-3), h) <= row_errors(w, weighted(w, x**2), h) + 1e-6).all()


H = gram()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.full((INPUTS, INPUTS), np.nan), "^gram: has NaN, Inf or a negative mean of squares"),
        (np.where(np.eye(INPUTS) > 0, H, np.inf), "^gram: has NaN, Inf or a negative mean of squares"),
        (-H, "^gram: has NaN, Inf or a negative mean of squares"),
        (H[:69], r"^gram: shape \(69, 70\); expected \(70, 70\), as the weight has 70 inputs"),
        (np.diagonal(H), r"^gram: shape \(70,\); expected \(70, 70\)"),
        (H + np.tri(INPUTS, k=-1), "^gram: not symmetric"),
        ([["a"] * INPUTS] * INPUTS, "^gram: could not convert .*; expected numbers"),
        (np.where(np.eye(INPUTS) > 0, 1, 2), r"^gram: not positive definite with damping=0.01; expected E\[x x\^T\]"),
    ],
)
def test_moments_that_are_refused(bad: Any, message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        gptq(weight(), bad)


def test_a_singular_matrix_needs_damping() -> None:
    with pytest.raises(InvalidProblem, match=r"^gram: not positive definite with damping=1e-30; .*more damping"):
        gptq(weight(), np.ones((INPUTS, INPUTS)), damping=1e-30)
    for bad in (0, -0.01, np.nan, np.inf, "1", None):
        with pytest.raises(InvalidProblem, match=r"^damping: .*; expected a positive number"):
            gptq(weight(), H, damping=bad)
