"""Rounding to nearest on scales of the range, of least error and of least weighted error; grids and their checks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowbit as lb
from conftest import ISAS
from lowbit import QuantizedTensor, _core
from lowbit.algorithms import gptq, mse, rtn, weighted
from lowbit.algorithms.grid import Grid
from lowbit.algorithms.rounding import best_scales, nearest, range_scales
from weight_problems import gram, group_errors, row_errors, weight

Array = np.ndarray[Any, Any]
INPUTS = 70
# dtype, scheme, bits
SYMMETRIC = [("int2", None), ("int4", 3), ("int4", None), ("int8", 5), ("int8", None)]
ASYMMETRIC = [("uint2", None), ("int4", 3), ("uint4", None), ("uint8", None)]
CODES = [(d, "symmetric", bits) for d, bits in SYMMETRIC] + [(d, "asymmetric", bits) for d, bits in ASYMMETRIC]
GROUPS = [None, 16, 7, 1000]  # per channel, ragged, odd, larger than the row
SCALE_DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
DIAGONAL = np.diagonal(gram())
ALGORITHMS: dict[str, Callable[..., QuantizedTensor]] = {
    "rtn": rtn,
    "mse": mse,
    "weighted": lambda w, *codes, **options: weighted(w, DIAGONAL, *codes, **options),
    "gptq": lambda w, *codes, **options: gptq(w, gram(), *codes, **options),
}
every = pytest.mark.parametrize("algorithm", ALGORITHMS)


def problems(test: Any) -> Any:
    each = pytest.mark.parametrize("group_size", GROUPS, ids=lambda g: f"g{g}")(test)
    return pytest.mark.parametrize(("dtype", "scheme", "bits"), CODES, ids=str)(each)


def not_above(error: Array, other: Array) -> None:
    """Up to rounding: searches sum in float32, and round ties of x * (1 / s) where codes round x / s."""
    assert (error <= other * (1 + 1e-4) + 1e-9).all(), (error - other).max()


# ---- errors ------------------------------------------------------------------------------------------------------


@problems
def test_searched_scales_are_no_worse_than_those_of_the_range(
    dtype: str, scheme: str, bits: int | None, group_size: int | None
) -> None:
    for scale_dtype in SCALE_DTYPES:
        grid, w = Grid.of(dtype, scheme, group_size, scale_dtype, bits), weight()
        size = grid.size(INPUTS)
        plain = nearest(w, grid, range_scales(w, grid))
        not_above(group_errors(w, nearest(w, grid, best_scales(w, grid)), size), group_errors(w, plain, size))
        emphasis = np.sqrt(np.square(w).mean(1, keepdims=True) + np.square(w)) * DIAGONAL / DIAGONAL.mean()
        found = nearest(w, grid, best_scales(w, grid, DIAGONAL))
        not_above(group_errors(w, found, size, emphasis), group_errors(w, plain, size, emphasis))


@problems
def test_the_reported_error_is_that_of_the_codes(
    dtype: str, scheme: str, bits: int | None, group_size: int | None
) -> None:
    grid, w = Grid.of(dtype, scheme, group_size, "float32", bits), weight()
    scales = best_scales(w, grid)
    size = grid.size(INPUTS)
    np.testing.assert_allclose(scales.error, group_errors(w, nearest(w, grid, scales), size), rtol=1e-3, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 999),
    code=st.sampled_from(CODES),
    group_size=st.sampled_from([None, 1, 5, 16]),
    exponent=st.integers(-40, 40),
)
def test_a_search_beats_the_range_for_any_weights(
    seed: int, code: tuple[str, str, int | None], group_size: int | None, exponent: int
) -> None:
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal((3, 37)) * rng.choice([0.01, 1, 100], 37)).astype(np.float32)
    grid = Grid.of(code[0], code[1], group_size, "float32", code[2])
    found, plain = (nearest(w, grid, s) for s in (best_scales(w, grid), range_scales(w, grid)))
    size = grid.size(37)
    not_above(group_errors(w, found, size), group_errors(w, plain, size))
    # A power of two changes the scales, and nothing else.
    larger = nearest(np.ldexp(w, exponent), grid, best_scales(np.ldexp(w, exponent), grid))
    np.testing.assert_array_equal(larger.unpack(), found.unpack())
    np.testing.assert_array_equal(larger.params.scale, np.ldexp(found.params.scale, exponent))


@problems
def test_weights_on_a_grid_come_back(dtype: str, scheme: str, bits: int | None, group_size: int | None) -> None:
    grid = Grid.of(dtype, scheme, group_size, "float32", bits)
    qmin, qmax = grid.codes
    rng, size = np.random.default_rng(0), grid.size(INPUTS)
    codes = rng.integers(qmin, qmax + 1, (9, INPUTS))
    codes[:, ::size], codes[:, 1::size] = qmin, qmax  # every group reaches as far as codes do
    codes[:, -1] = qmin
    zero = 0 if scheme == "symmetric" else (qmin + qmax + 1) // 2
    w = (codes - zero).astype(np.float32) * np.float32(0.0371)
    for find in (rtn, mse):
        q = find(w, dtype, scheme=scheme, group_size=group_size, bits=bits)
        np.testing.assert_allclose(q.dequantize(), w, rtol=1e-5, atol=1e-7, err_msg=find.__name__)


def test_more_bits_and_data_help() -> None:
    w, h = weight(64, INPUTS, 3), gram()
    for group_size in (None, 16):
        errors = []
        for bits in (2, 3, 4, 5, 6, 8):
            options = {"bits": bits, "group_size": group_size}
            found = [row_errors(w, a(w, "int8", **options), h).sum() for a in ALGORITHMS.values()]
            errors.append(found)
            assert found[3] < found[2] < found[0], (bits, found)
        assert (np.diff(errors, axis=0) < 0).all()


# ---- what is stored ----------------------------------------------------------------------------------------------


@every
@problems
def test_codes_and_scales_are_what_was_asked_for(
    algorithm: str, dtype: str, scheme: str, bits: int | None, group_size: int | None
) -> None:
    w = weight()
    for name, stored in SCALE_DTYPES.items():
        options = {"scheme": scheme, "group_size": group_size, "bits": bits, "scale_dtype": name}
        q = ALGORITHMS[algorithm](w, dtype, **options)
        qmin, qmax = Grid.of(dtype, scheme, group_size, name, bits).codes
        codes, p = q.unpack(), q.params
        assert q.shape == w.shape
        assert q.dtype.name == dtype
        assert (qmin, qmax) == (p.qmin, p.qmax)
        assert qmin <= codes.min() <= codes.max() <= qmax
        assert p.scale.shape == ((12,) if group_size is None else (12, -(-INPUTS // group_size)))
        np.testing.assert_array_equal(p.scale, p.scale.astype(stored).astype(np.float32))
        if scheme == "symmetric":
            assert set(np.unique(p.zero_point)) <= {0, -1}
        assert (q.dequantize()[6] == 0).all(), "a row of zeros"
        assert (p.scale[6] == 1).all(), "a row of zeros"


@every
@pytest.mark.parametrize("scale_dtype", SCALE_DTYPES)
@pytest.mark.parametrize("exponent", [-149, -126, -100, -33, 33, 60, 92])
def test_weights_of_any_magnitude(algorithm: str, scale_dtype: str, exponent: int) -> None:
    w = np.clip(weight() / 16, -1, 1)
    w[0, 16:32] = 0.5  # feedback makes use of the scale 1 of a group of zeros
    for scheme in ("symmetric", "asymmetric"):
        find = functools.partial(ALGORITHMS[algorithm], scheme=scheme, group_size=16, scale_dtype=scale_dtype)
        q = find(np.ldexp(w, exponent))
        assert np.isfinite(q.dequantize()).all()
        if scale_dtype != "float16" and exponent >= -100:
            np.testing.assert_array_equal(q.unpack(), find(w).unpack())
        assert (q.params.scale[6] == 1).all(), "a row of zeros"


def test_symmetric_scales_have_either_sign() -> None:
    """-8 is one step more than 7: where 8 is needed, codes are negated, which is a zero point of -1."""
    for sign in (1, -1):
        q = mse(np.float32([[8, -3, 1, -7]]) * sign)
        assert q.params.scale.tolist() == [1]
        assert q.params.zero_point.tolist() == [-1 if sign > 0 else 0]
        assert q.params.scheme.value == ("asymmetric" if sign > 0 else "symmetric")
        np.testing.assert_array_equal(q.unpack(), [[7, -4, 0, -8] if sign > 0 else [-8, 3, -1, 7]])
        np.testing.assert_array_equal(q.dequantize(), np.float32([[8, -3, 1, -7]]) * sign)


def test_narrow_and_positive_grids_need_no_zero_points() -> None:
    w = weight(40)
    for grid in (Grid("int8", full_range=False), Grid("int4", group_size=16, full_range=False)):
        assert grid.codes == ((-127, 127) if grid.dtype == "int8" else (-7, 7))
        for scales in (range_scales(w, grid), best_scales(w, grid), best_scales(w, grid, DIAGONAL)):
            q = nearest(w, grid, scales)
            assert not q.params.zero_point.any()
            assert q.unpack().min() >= grid.codes[0]
    least = np.abs(w).max(1) / np.float32(127)
    np.testing.assert_array_equal(range_scales(w, Grid("int8", full_range=False)).scale[w.any(1), 0], least[w.any(1)])


@every
def test_bytes_do_not_depend_on_threads_or_isa(algorithm: str) -> None:
    w, made = weight(40), []
    for isa in ISAS:
        for threads in (1, 2, 7):
            _core.set_max_isa(isa)
            lb.set_num_threads(threads)
            q = ALGORITHMS[algorithm](w, "int4", group_size=16, scheme="asymmetric")
            made.append((q.data.tobytes(), q.params.scale.tobytes(), q.params.zero_point.tobytes()))
    assert len(set(made)) == 1


@every
def test_weights_of_every_type_and_layout(algorithm: str) -> None:
    torch = pytest.importorskip("torch")
    w = np.rint(weight() * 16).astype(np.float16)  # exact in all of them
    want = ALGORITHMS[algorithm](w.astype(np.float32)).data.tobytes()
    for given_weight in (w, w.astype(np.float64), np.asfortranarray(w), torch.tensor(w), w.astype(ml_dtypes.bfloat16)):
        assert ALGORITHMS[algorithm](given_weight).data.tobytes() == want


# ---- refusals ----------------------------------------------------------------------------------------------------


@every
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.full((2, INPUTS), np.nan), r"^weight: nan at index \(0, 0\)"),
        (np.full((2, INPUTS), np.inf), r"^weight: inf at index \(0, 0\)"),
        (np.full((2, INPUTS), 1e39), r"^weight: magnitudes reach inf; expected less than 2\^96"),
        (np.full((2, INPUTS), 2.0**96), r"^weight: magnitudes reach 7.923e\+28; expected less than 2\^96"),
        (np.zeros(INPUTS), r"^weight: shape \(70,\); expected a matrix"),
        (np.zeros((2, 3, INPUTS)), r"^weight: shape \(2, 3, 70\); expected a matrix"),
        (np.zeros((0, INPUTS)), r"^weight: empty"),
        (np.zeros((2, INPUTS), int), "^weight: int64; expected float32"),
        ([["a"] * INPUTS], "^weight: <U1; expected float32"),
    ],
)
def test_weights_that_are_refused(algorithm: str, bad: Array, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ALGORITHMS[algorithm](bad)


@every
@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("dtype", {"dtype": "int16"}),
        ("dtype", {"dtype": "binary"}),
        ("scheme", {"scheme": "logarithmic"}),
        ("scheme", {"dtype": "uint4"}),
        ("scale_dtype", {"scale_dtype": "float64"}),
        ("group_size", {"group_size": 0}),
        ("group_size", {"group_size": 16.0}),
        ("bits", {"bits": 1}),
        ("bits", {"bits": 5}),
    ],
    ids=str,
)
def test_grids_that_are_refused(algorithm: str, field: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{field}: .*(expected|use) "):
        ALGORITHMS[algorithm](weight(), **options)


@pytest.mark.parametrize("diagonal", [[np.nan] * 70, [np.inf] * 70, [-1.0] * 70, ["a"] * 70, np.ones(69), np.eye(70)])
def test_diagonals_that_are_refused(diagonal: Any) -> None:
    with pytest.raises(ValueError, match=r"^diagonal: .*expected"):
        weighted(weight(), diagonal)
