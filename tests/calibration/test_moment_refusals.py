"""What second moments refuse: rows and weights that do not fit, sums beyond 64 bits, damaged states."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowbit.calibration import Moments
from lowbit.numerics.errors import FormatError, InvalidProblem
from weight_problems import moment_state

Array = np.ndarray[Any, Any]
F32 = np.float32


def moments_of(*parts: tuple[Array, Any], width: int, **options: Any) -> Moments:
    m = Moments(width, **options)
    for x, weights in parts:
        m.add(x, weights)
    return m


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1, -1], "^weights: -1.0; expected numbers from 0 to 65536"),
        ([1, np.nan], "^weights: nan; expected numbers from 0 to 65536"),
        ([1, np.inf], "^weights: inf; expected numbers from 0 to 65536"),
        ([1, 65537], "^weights: 65537.0; expected numbers from 0 to 65536"),
        ([1], r"^weights: shape \(1,\); expected one for each row, \(2,\)"),
        (1, r"^weights: shape \(\); expected one for each row, \(2,\)"),
        ([[1], [1]], r"^weights: shape \(2, 1\); expected one for each row, \(2,\)"),
        ([1, [2]], "^weights: "),
    ],
)
def test_weights_that_are_refused(weights: Any, message: str) -> None:
    m = Moments(3)
    with pytest.raises(InvalidProblem, match=message):
        m.add(np.ones((2, 3), F32), weights)
    assert moment_state(m) == moment_state(Moments(3))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16], ids=str)
def test_rows_that_are_not_finite_are_refused_whole(bad: float, dtype: Any) -> None:
    m = moments_of((np.ones((2, 3), F32), None), width=3)
    before = moment_state(m)
    x = np.ones((4, 5, 3), dtype)
    x[2, 1, 2] = x[3, 0, 0] = bad
    with pytest.raises(InvalidProblem, match=rf"^x: {bad} at index \(2, 1, 2\); moments need finite numbers"):
        m.add(x)
    assert moment_state(m) == before


def test_rows_that_are_too_large_are_refused() -> None:
    m = Moments(2, name="fc1")
    m.add(F32([[np.nextafter(F32(2.0**40), F32(0)), 0]]))
    for bad in (2.0**40, -(2.0**40), 1e39):
        with pytest.raises(
            InvalidProblem, match=r"^fc1: .* at index \(0, 1\); expected less than 2\^40; the activations"
        ):
            m.add(np.array([[0, bad]]))
    with pytest.raises(InvalidProblem, match=r"^fc1: row 0 times the root of its weight reaches 2\^40"):
        m.add(F32([[2.0**39, 0]]), [4])
    assert m.count == 1


def test_shapes_that_are_refused() -> None:
    for m, x, expected_shape in (
        (Moments(3), np.ones((2, 4), F32), r"\[..., 3\]"),
        (Moments(3), np.ones((), F32), r"\[..., 3\]"),
        (Moments(3, groups=2), np.ones((2, 3), F32)[:1], r"\[..., 2, 3\]"),
        (Moments(3, groups=2), np.ones((2, 6), F32), r"\[..., 2, 3\]"),
    ):
        with pytest.raises(InvalidProblem, match=rf"^x: shape \(.*\); expected {expected_shape}"):
            m.add(x)
    for field, bad in (("width", 0), ("width", 2.0), ("width", True), ("groups", 0), ("groups", -1)):
        with pytest.raises(InvalidProblem, match=f"^{field}: .*; expected a positive integer"):
            Moments(**{"width": 1} | {field: bad})


def test_weights_beyond_the_sums_are_refused() -> None:
    m = moments_of(*[(np.ones((1024, 1), F32), np.full(1024, 65536.0))] * 2, width=1)
    assert m.weight == 2.0**27
    before = moment_state(m)
    with pytest.raises(InvalidProblem, match=r"^x: weights of more than 134217728 in all"):
        m.add(np.ones((1, 1), F32))
    with pytest.raises(InvalidProblem, match=r"^x: weights of more than 134217728 in all"):
        m.merge(moments_of((np.ones((1, 1), F32), None), width=1))
    assert moment_state(m) == before


def test_sums_beyond_64_bits_are_refused() -> None:
    full = moments_of((np.full((1, 1), 0.999, F32), None), width=1)
    arrays_, about = full.to_arrays()
    nearly = Moments.from_arrays(arrays_ | {"products.0": np.array([[(1 << 63) - 1]])}, about)
    before = moment_state(nearly)
    with pytest.raises(InvalidProblem, match=r"^x: too many rows of magnitudes near 1 for 64-bit sums"):
        nearly.add(np.full((1, 1), 0.999, F32))
    with pytest.raises(InvalidProblem, match=r"^x: too many rows of magnitudes near 1 for 64-bit sums"):
        nearly.merge(full)
    assert moment_state(nearly) == before
    nearly.add(np.full((9, 1), 100, F32))  # of another exponent


def test_merges_that_are_refused() -> None:
    m = Moments(3)
    for other in (Moments(4), Moments(3, groups=2), Moments(3, gram=False), Moments(3, cross=True), m, "m"):
        with pytest.raises(InvalidProblem, match=r"^other: "):
            m.merge(other)  # type: ignore[arg-type]


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda a, f: f.update(version=2),
        lambda a, f: f.update(width=0),
        lambda a, f: f.update(width="3"),
        lambda a, f: f.update(count=-1),
        lambda a, f: f.update(weight=1.5),
        lambda a, f: f.pop("gram"),
        lambda a, f: f.update(gram=False),
        lambda a, f: f.update(groups=2),
        lambda a, f: a.update({"products.0": a["products.0"].astype(np.int32)}),
        lambda a, f: a.update({"products.0": a["products.0"][:, :-1]}),
        lambda a, f: a.update({"products.0": -a["products.0"]}),
        lambda a, f: a.update({"products.1": a["products.0"]}),
        lambda a, f: a.update({"products.00": a["products.0"]}),
        lambda a, f: a.update({"products.x": a["products.0"]}),
        lambda a, f: a.update({"squares.0": a["products.0"]}),
        lambda a, f: a.update({"rows.0": a["rows.0"].astype(float)}),
        lambda a, f: a.update({"rows.0": a["rows.0"][:, :-1]}),
        lambda a, f: a.update(other=a["rows.0"]),
    ],
)
def test_damaged_states_are_refused(change: Any) -> None:
    found, about = moments_of((np.full((2, 3), 0.5, F32), None), width=3).to_arrays()
    fields = json.loads(about)
    change(found, fields)
    with pytest.raises(FormatError):
        Moments.from_arrays(found, json.dumps(fields))


@pytest.mark.parametrize("about", ["", "[]", "{}", "null", "[" * 100_000, '{"version": 1}'])
def test_descriptions_that_are_none(about: str) -> None:
    with pytest.raises(FormatError):
        Moments.from_arrays({}, about)
