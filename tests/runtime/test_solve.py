"""Kernels of algorithms for weights: the twin's bits on every ISA and for any number of threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowbit as lb
from conftest import ISAS
from lowbit import _core
from lowbit.numerics.errors import InvalidProblem
from lowbit.reference import algorithms as twin
from lowbit.runtime import solve

Array = np.ndarray[Any, Any]
F32 = np.float32
THREADS = (1, 2, 7)
# One row, one input; below, at and above the 16 and 32 rows of a tile and the 32 inputs of a block.
SHAPES = [(1, 1), (1, 40), (40, 1), (16, 32), (17, 33), (33, 31), (70, 67), (5, 130)]


def same_everywhere(call: Callable[[], Sequence[Array]], want: Sequence[Array]) -> None:
    """call() gives these numbers to the bit, but for the sign of 0, on every ISA and for any number of threads."""
    for isa in ISAS:
        for threads in THREADS:
            _core.set_max_isa(isa)
            lb.set_num_threads(threads)
            for i, (made, expected) in enumerate(zip(call(), want, strict=True)):
                np.testing.assert_array_equal(made, expected, f"result {i} on {isa}, {threads} threads", strict=True)


def weights(shape: tuple[int, int], seed: int = 0) -> Array:
    """A third are ties of a scale of 1/8, some are 0."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(shape)
    w = np.where(rng.random(shape) < 0.3, (rng.integers(-8, 8, shape) + 0.5) / 8, w)
    return np.where(rng.random(shape) < 0.1, 0, w).astype(F32)


# ---- scales ------------------------------------------------------------------------------------------------------

FACTORS = np.linspace(1.04, 0.6, 7, dtype=F32)
SYMMETRIC = [(-8, 7), (-2, 1), (-127, 127)]
ASYMMETRIC = [(-8, 7), (0, 15), (0, 3), (-128, 127)]


def check_search(
    w: Array,
    group_size: int,
    codes: tuple[int, int],
    importance: Array | None = None,
    kind: str = "none",
    **options: Any,
) -> None:
    with np.errstate(over="ignore"):
        floor = np.square(w).mean(1)
    emphasis = None if kind == "none" else solve.Emphasis(kind, floor)
    options = {"symmetric": codes[0] < 0, "offsets": 1} | options
    given = (w, importance, emphasis, group_size, FACTORS, codes)
    same_everywhere(lambda: solve.search_scales(*given, **options), twin.search_scales(*given, **options))


@pytest.mark.parametrize(
    ("codes", "symmetric"), [*((c, True) for c in SYMMETRIC), *((c, False) for c in ASYMMETRIC)], ids=str
)
def test_scales_of_every_shape_and_code(codes: tuple[int, int], symmetric: bool) -> None:
    for seed, shape in enumerate(SHAPES):
        for group_size in (1, 7, shape[1] + 1):
            check_search(weights(shape, seed), group_size, codes, symmetric=symmetric)


@pytest.mark.parametrize("kind", ["none", "root", "square"])
@pytest.mark.parametrize("scale_dtype", solve.SCALE_DTYPES)
def test_scales_of_every_weighting_and_type(kind: str, scale_dtype: str) -> None:
    w = weights((19, 75))
    importance = np.random.default_rng(1).exponential(size=75).astype(F32)
    importance[::5] = 0
    for symmetric in (True, False):
        check_search(w, 16, (-8, 7), importance, kind, symmetric=symmetric, scale_dtype=scale_dtype)
        check_search(w, 16, (-8, 7), np.zeros(75, F32), kind, symmetric=symmetric, scale_dtype=scale_dtype)


@pytest.mark.parametrize("offsets", [0, 1, 3])
def test_scales_of_several_zero_points(offsets: int) -> None:
    for symmetric in (True, False):
        check_search(weights((17, 40)), 8, (-4, 3), symmetric=symmetric, offsets=offsets)


@pytest.mark.parametrize("scale_dtype", solve.SCALE_DTYPES)
@pytest.mark.parametrize("size", [0.0, 1e-45, 1e-38, 1e-30, 1e-8, 1e8, 1e19, 1e30, 3e38, np.inf])
def test_scales_of_any_magnitude(size: float, scale_dtype: str) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        w = weights((17, 24)) * F32(size)
    w[np.isnan(w) | (w == -np.inf)] = 0  # of one sign: a range from -inf to inf has no middle
    w[3] = 0
    w[4, 8:16] = 0
    for symmetric in (True, False):
        check_search(w, 8, (-8, 7), symmetric=symmetric, scale_dtype=scale_dtype)
        check_search(w, 8, (-8, 7), np.full(24, 1e30, F32), "root", symmetric=symmetric, scale_dtype=scale_dtype)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 40),
    inputs=st.integers(1, 70),
    group_size=st.integers(1, 80),
    codes=st.tuples(st.integers(-20, -1), st.integers(0, 20)),
    symmetric=st.booleans(),
    seed=st.integers(0, 99),
)
def test_scales_of_any_problem(
    rows: int, inputs: int, group_size: int, codes: tuple[int, int], symmetric: bool, seed: int
) -> None:
    check_search(weights((rows, inputs), seed), group_size, codes, symmetric=symmetric)


def test_the_scale_of_a_group_of_zeros_is_1() -> None:
    for codes, zero in (((0, 15), 0), ((-8, 7), 0), ((3, 9), 3)):
        found = solve.search_scales(np.zeros((2, 4), F32), None, None, 4, FACTORS, codes, symmetric=False, offsets=1)
        assert [a.tolist() for a in found] == [[[1.0]] * 2, [[zero]] * 2, [[0.0]] * 2]


def test_scales_of_nothing() -> None:
    for shape, groups in (((0, 8), 2), ((3, 0), 0)):
        found = solve.search_scales(np.zeros(shape, F32), None, None, 4, FACTORS, (-8, 7), symmetric=True, offsets=1)
        assert found.scale.shape == (shape[0], groups)


# ---- feedback ----------------------------------------------------------------------------------------------------


def triangular(inputs: int, seed: int = 0) -> Array:
    """Unit upper triangular; what is below the diagonal is not read."""
    t = np.random.default_rng(seed).uniform(-0.5, 0.5, (inputs, inputs)).astype(F32)
    t[np.tril_indices(inputs)] = np.nan
    t[np.diag_indices(inputs)] = 1
    return t


def steps_of(w: Array, group: Array, seed: int = 0) -> solve.Steps:
    rng, shape = np.random.default_rng(seed), (len(w), int(group.max()) + 1)
    zero = rng.integers(-3, 4, shape).astype(F32)
    return solve.Steps(rng.uniform(0.05, 0.3, shape).astype(F32), -8 - zero, 7 - zero, group)


@pytest.mark.parametrize("shape", SHAPES)
def test_feedback_of_every_shape(shape: tuple[int, int]) -> None:
    w, t, inputs = weights(shape), triangular(shape[1]), shape[1]
    order = np.random.default_rng(2).permutation(inputs)
    for group in (np.zeros(inputs), np.arange(inputs), np.arange(inputs) // 7, order // 5):
        steps = steps_of(w, group.astype(np.int32))
        same_everywhere(lambda s=steps: [solve.feed_back_errors(w, t, s)], [twin.feed_back_errors(w, t, steps)])
    small = (t * F32(0.1)).astype(F32)
    same_everywhere(lambda: [solve.feed_back_errors(w, small, None)], [twin.feed_back_errors(w, small, None)])


@pytest.mark.parametrize("size", [1e-38, 1e-20, 1e20, 1e38])
def test_feedback_of_any_magnitude(size: float) -> None:
    with np.errstate(over="ignore"):
        w, t = weights((37, 45)) * F32(size), triangular(45)
    steps = steps_of(w, (np.arange(45) // 10).astype(np.int32))
    steps = steps._replace(scale=np.maximum(steps.scale * F32(size), F32(2.0**-125)).astype(F32))
    same_everywhere(lambda: [solve.feed_back_errors(w, t, steps)], [twin.feed_back_errors(w, t, steps)])
    same_everywhere(lambda: [solve.feed_back_errors(w, t, None)], [twin.feed_back_errors(w, t, None)])


def test_without_errors_feedback_is_rounding() -> None:
    """With t = 1 nothing is fed back: ties go to even, steps are clamped."""
    w = F32([[0.5, 1.5, -2.5, 9.0, -9.0]])
    steps = solve.Steps(F32([[1]]), F32([[-4]]), F32([[3]]), np.zeros(5, np.int32))
    assert solve.feed_back_errors(w, np.eye(5, dtype=F32), steps).tolist() == [[0, 2, -2, 3, -4]]


def test_feedback_without_steps_solves() -> None:
    w, t = weights((9, 50)), np.triu(triangular(50)) * F32(0.2)
    t[np.diag_indices(50)] = 1
    v = solve.feed_back_errors(w, t, None).astype(np.float64)
    np.testing.assert_allclose(v @ t, w, atol=1e-5)


@pytest.mark.parametrize(("rows", "inputs", "columns"), [(1, 1, 1), (3, 70, 9), (32, 8, 8), (33, 5, 31), (70, 33, 1)])
def test_products_are_summed_in_order(rows: int, inputs: int, columns: int) -> None:
    a, b = weights((rows, inputs)), weights((inputs, columns), 1)
    same_everywhere(lambda: [solve.product_in_order(a, b)], [twin.product_in_order(a, b)])
    np.testing.assert_allclose(solve.product_in_order(a, b), a.astype(float) @ b, atol=1e-4)


def test_the_order_of_a_sum_shows() -> None:
    assert solve.product_in_order(F32([[2**24, 1, 1]]), np.ones((3, 1), F32)) == 2**24
    assert solve.product_in_order(F32([[1, 1, 2**24]]), np.ones((3, 1), F32)) == 2**24 + 2


# ---- factors -----------------------------------------------------------------------------------------------------


def definite(n: int, seed: int = 0) -> Array:
    x = np.random.default_rng(seed).standard_normal((2 * n + 1, n))
    return x.T @ x + 0.1 * np.eye(n)


@pytest.mark.parametrize("n", [0, 1, 2, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 131])
def test_factors_are_those_of_the_twin(n: int) -> None:
    a = definite(n, n)
    same_everywhere(lambda: [solve.factor_cholesky(a)], [twin.factor_cholesky(a)])
    np.testing.assert_allclose(solve.factor_cholesky(a), np.linalg.cholesky(a), atol=1e-10 * (n + 1))


def test_factors_of_any_magnitude() -> None:
    for size in (1e-300, 1e-10, 1e10, 1e300):
        a = definite(40) * size
        same_everywhere(lambda a=a: [solve.factor_cholesky(a)], [twin.factor_cholesky(a)])


def test_factors_take_memory_that_may_be_overwritten() -> None:
    a, given_matrix = definite(50), definite(50)
    assert not np.shares_memory(solve.factor_cholesky(a), a)
    np.testing.assert_array_equal(a, given_matrix)
    factor = solve.factor_cholesky(a, overwrite=True)
    assert np.shares_memory(factor, a)
    np.testing.assert_array_equal(factor, solve.factor_cholesky(given_matrix))


def test_the_upper_triangle_is_not_read() -> None:
    a = definite(50)
    lower = np.where(np.tri(50, dtype=bool), a, np.nan)
    np.testing.assert_array_equal(solve.factor_cholesky(lower), solve.factor_cholesky(a))


@pytest.mark.parametrize("row", [0, 1, 31, 32, 33, 49])
@pytest.mark.parametrize("pivot", [0.0, -1.0, np.nan])
def test_matrices_that_are_not_definite(row: int, pivot: float) -> None:
    a = np.eye(50)
    a[row, row] = pivot
    before = a.copy()
    for factor in (solve.factor_cholesky, twin.factor_cholesky):
        with pytest.raises(InvalidProblem, match=f"^matrix: not positive definite at row {row}; expected more damping"):
            factor(a)
    np.testing.assert_array_equal(a, before)


# ---- refusals ----------------------------------------------------------------------------------------------------


def searched(w: Any = None, importance: Any = None, emphasis: Any = None, group_size: Any = 4, **changed: Any) -> Any:
    options = {"factors": FACTORS, "codes": (-8, 7), "symmetric": True, "offsets": 1} | changed
    w = np.ones((3, 8), F32) if w is None else w
    return solve.search_scales(w, importance, emphasis, group_size, **options)


@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("weight", {"w": np.ones(8, F32)}),
        ("weight", {"w": np.ones((3, 8))}),
        ("weight", {"w": np.ones((3, 16), F32)[:, ::2]}),
        ("importance", {"importance": np.ones(7, F32)}),
        ("importance", {"importance": np.ones(8)}),
        ("floor", {"emphasis": solve.Emphasis("root", np.ones(4, F32))}),
        ("emphasis", {"emphasis": solve.Emphasis("cube", np.ones(3, F32))}),
        ("group_size", {"group_size": 0}),
        ("group_size", {"group_size": -1}),
        ("factors", {"factors": np.ones(0, F32)}),
        ("factors", {"factors": np.ones(2)}),
        ("qmin, qmax", {"codes": (7, 7)}),
        ("qmin, qmax", {"codes": (-40000, 7)}),
        ("qmin", {"codes": (0, 7)}),
        ("offsets", {"offsets": -1}),
        ("offsets", {"offsets": 9}),
        ("offsets", {"offsets": 16, "symmetric": False}),
        ("scale_dtype", {"scale_dtype": "float64"}),
    ],
    ids=lambda v: v if isinstance(v, str) else "-".join(v),
)
def test_a_search_names_what_is_wrong(field: str, given: dict[str, Any]) -> None:
    searched()
    with pytest.raises(ValueError, match=f"^{field}: "):
        searched(**given)


def test_feedback_names_what_is_wrong() -> None:
    w, t, group = np.ones((3, 5), F32), np.eye(5, dtype=F32), np.zeros(5, np.int32)
    steps = solve.Steps(np.ones((3, 1), F32), np.full((3, 1), -8, F32), np.full((3, 1), 7, F32), group)
    solve.feed_back_errors(w, t, steps)
    outside, below = group.copy(), group.copy()
    outside[4], below[0] = 1, -1
    for field, arguments in [
        ("weight", (w[0], t, steps)),
        ("weight", (w.astype(float), t, steps)),
        ("weight", (w[:, :0], t[:0, :0], None)),
        ("t", (w, np.eye(4, dtype=F32), steps)),
        ("t", (w, np.asfortranarray(np.triu(np.ones((5, 5), F32))), steps)),
        ("scale", (w, t, steps._replace(scale=np.ones((2, 1), F32)))),
        ("low", (w, t, steps._replace(low=np.ones((3, 2), F32)))),
        ("high", (w, t, steps._replace(high=np.ones((3, 1))))),
        ("group", (w, t, steps._replace(group=group[:4]))),
        ("group", (w, t, steps._replace(group=outside))),
        ("group", (w, t, steps._replace(group=below))),
    ]:
        with pytest.raises(ValueError, match=f"^{field}: "):
            solve.feed_back_errors(*arguments)


def test_products_and_factors_name_what_is_wrong() -> None:
    a = np.ones((3, 5), F32)
    for field, call in [
        ("a", lambda: solve.product_in_order(a[0], a.T.copy())),
        ("a", lambda: solve.product_in_order(a.astype(float), a.T.copy())),
        ("b", lambda: solve.product_in_order(a, np.ones((4, 5), F32))),
        ("b", lambda: solve.product_in_order(a, a.T)),
        ("matrix", lambda: solve.factor_cholesky(np.ones((3, 4)))),
        ("matrix", lambda: solve.factor_cholesky(np.ones(4))),
    ]:
        with pytest.raises(ValueError, match=f"^{field}: "):
            call()


def test_native_functions_check_sizes_and_memory_themselves() -> None:
    """Nothing stands between these and memory that is not theirs."""
    wanted = _core.SearchCodes(-8, 7, True, 1, _core.Element.f32)

    def native_search(w: Any, sizes: Any, scale: Any, zero: Any, error: Any, **other: Any) -> None:
        optional = {"importance": None, "floor": None, "kind": _core.Emphasis.none, "factors": FACTORS} | other
        of = _core.SearchWeights(w, optional["importance"], optional["floor"], sizes, optional["kind"])
        _core.search_scales(of, optional["factors"], wanted, scale, zero, error)

    w, scale, zero, error = np.ones((3, 8), F32), np.ones(6, F32), np.ones(6, np.int32), np.ones(6, F32)
    native_search(w, (3, 8, 4), scale, zero, error)
    v, t, group = np.ones((3, 8), F32), np.eye(8, dtype=F32), np.zeros(8, np.int32)
    for field, call in [
        ("x", lambda: native_search(w, (3, 7, 4), scale, zero, error)),
        ("rows, inputs", lambda: native_search(w, (-3, 8, 4), scale, zero, error)),
        ("rows, inputs", lambda: native_search(w, (2**60, 2**60, 4), scale, zero, error)),
        ("block", lambda: native_search(w, (3, 8, 0), scale, zero, error)),
        ("scale", lambda: native_search(w, (3, 8, 4), scale[:5], zero, error)),
        ("zero_point", lambda: native_search(w, (3, 8, 4), scale, zero[:5], error)),
        ("error", lambda: native_search(w, (3, 8, 4), scale, zero, error[:5])),
        ("floor", lambda: native_search(w, (3, 8, 4), scale, zero, error, kind=_core.Emphasis.root)),
        ("scale", lambda: native_search(w, (3, 8, 4), w.reshape(-1)[:6], zero, error)),
        ("error", lambda: native_search(w, (3, 8, 4), scale, zero, scale)),
        ("zero_point", lambda: native_search(w, (3, 8, 4), scale, scale.view(np.int32), error)),
        ("scale", lambda: native_search(w, (3, 8, 4), scale, zero, error, factors=scale)),
        ("error", lambda: native_search(w, (3, 8, 8), scale[:3], zero[:3], error[:3], floor=error[:3])),
        ("inputs", lambda: _core.feed_back_errors(w, t, 0, None, v)),
        ("w", lambda: _core.feed_back_errors(w, np.eye(7, dtype=F32), 7, None, v)),
        ("t", lambda: _core.feed_back_errors(w, t[:7], 8, None, v)),
        ("v", lambda: _core.feed_back_errors(w, t, 8, None, v[:2])),
        ("v", lambda: _core.feed_back_errors(w, t, 8, None, w)),
        ("v", lambda: _core.feed_back_errors(w, t, 8, None, t[:3])),
        ("v", lambda: _core.feed_back_errors(w, t, 8, _core.FeedbackSteps(v, w, w, group), v)),
        ("v", lambda: _core.feed_back_errors(w, t, 8, _core.FeedbackSteps(w, w, w, v[0].view(np.int32)), v)),
        ("inputs", lambda: _core.product_in_order(w, w, 0, v)),
        ("a", lambda: _core.product_in_order(w, w, 7, v)),
        ("b", lambda: _core.product_in_order(w, np.ones(9, F32), 8, v)),
        ("out", lambda: _core.product_in_order(w, w, 8, v)),
        ("out", lambda: _core.product_in_order(w, w, 8, w.reshape(-1)[:9])),
        ("a", lambda: _core.factor_cholesky(np.ones(8), 3)),
        ("n", lambda: _core.factor_cholesky(np.ones(9), -3)),
    ]:  # fmt: skip
        with pytest.raises(ValueError, match=f"^{field}: "):
            call()
