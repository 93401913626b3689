"""Scales of inputs that even out inputs and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lowbit.algorithms import rtn, smoothquant
from lowbit.algorithms.smoothquant import power
from lowbit.numerics.errors import InvalidProblem

Array = np.ndarray[Any, Any]


def weights() -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((n, 40)).astype(np.float32) for n in (12, 5)]


def test_at_one_half_inputs_and_weights_reach_as_far() -> None:
    ws, largest = weights(), np.random.default_rng(2).uniform(0.5, 80, 40)
    s = smoothquant(ws, largest)
    np.testing.assert_allclose(largest / s, np.abs(np.concatenate(ws)).max(0) * s, rtol=1e-6)


@pytest.mark.parametrize(("alpha", "flat"), [(0.0, "weights"), (1.0, "inputs")])
def test_the_ends_of_alpha_flatten_one_side(alpha: float, flat: str) -> None:
    ws, largest = weights(), np.random.default_rng(2).uniform(0.5, 80, 40)
    s = smoothquant(ws, largest, alpha=alpha)
    np.testing.assert_allclose(largest / s if flat == "inputs" else np.abs(np.concatenate(ws)).max(0) * s, 1, rtol=1e-6)


@given(st.floats(1e-30, 1e30), st.floats(0, 1))
def test_power(x: float, exponent: float) -> None:
    found = power(np.array([x]), exponent)[0]
    assert found == pytest.approx(x**exponent, rel=abs(np.log(x)) * 2.0**-20 + 1e-12)


def test_an_outlying_input_costs_less_at_eight_bits() -> None:
    rng = np.random.default_rng(3)
    x, w = rng.standard_normal((256, 40)), weights()[0]
    x[:, 7] *= 100
    s = smoothquant([w], np.abs(x).max(0)).astype(np.float64)
    want = x @ w.T.astype(np.float64)

    def error(x: Array, w: Array) -> float:
        rows, codes = rtn(x, "int8").dequantize(), rtn(w, "int8").dequantize()
        return float(np.square(want - rows @ codes.T).sum())

    assert error(x / s, w * s) < 0.35 * error(x, w)


def test_unused_inputs_and_empty_columns_stay() -> None:
    w, largest = weights()[0], np.ones(40)
    w[:, 3], largest[5] = 0, 0
    s = smoothquant([w], largest)
    assert s[3] == s[5] == 1
    assert np.isfinite(s).all()
    assert (smoothquant([w * 2.0**-80], largest * 2.0**60) <= 2.0**24).all()


def test_bad_arguments_are_named() -> None:
    ws = weights()
    with pytest.raises(InvalidProblem, match=r"^largest: shape \(3,\); expected \(40,\)"):
        smoothquant(ws, np.ones(3))
    with pytest.raises(InvalidProblem, match=r"^largest: has NaN, Inf or a negative number"):
        smoothquant(ws, -np.ones(40))
    with pytest.raises(InvalidProblem, match=r"^alpha: 1.5; expected a number from 0 to 1"):
        smoothquant(ws, np.ones(40), alpha=1.5)
    with pytest.raises(InvalidProblem, match=r"^weights: none"):
        smoothquant([], np.ones(40))
    with pytest.raises(InvalidProblem, match=r"^weights: \[40, 3\] inputs"):
        smoothquant([ws[0], ws[0][:, :3]], np.ones(40))
