"""Scales of least |error|^(3/4)."""

from __future__ import annotations

import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import lowbit as lb
from lowbit.algorithms import hqq, mse
from lowbit.numerics.errors import InvalidProblem

Array = np.ndarray[Any, Any]
SHAPE = (24, 150)


def weight(seed: int = 0) -> Array:
    """Heavy tails: some weights of a group are far from the others."""
    return np.random.default_rng(seed).standard_t(4, SHAPE).astype(np.float32)


def cost(w: Array, q: lb.QuantizedTensor) -> Array:
    """The sum of |error|^(3/4) of each row, in float64."""
    return (np.abs(w.astype(np.float64) - q.dequantize()) ** 0.75).sum(1)


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize(("dtype", "bits"), [("int2", None), ("int4", 3), ("int4", None), ("int8", None)])
@pytest.mark.parametrize("group_size", [None, 32, 7])
def test_no_row_costs_more_than_with_scales_of_least_squares(
    dtype: str, bits: int | None, scheme: str, group_size: int | None
) -> None:
    options: dict[str, Any] = {"scheme": scheme, "group_size": group_size, "bits": bits}
    w = weight()
    found, plain = cost(w, hqq(w, dtype, **options)), cost(w, mse(w, dtype, **options))
    assert (found <= plain * (1 + 1e-5)).all()
    assert found.sum() < plain.sum()


def test_it_lets_go_of_outliers_that_least_squares_follows() -> None:
    w = np.float32([[*range(15), 16]])
    q = hqq(w)
    assert (np.abs(w - q.dequantize()) < 0.05).sum() == 15
    assert (np.abs(w - mse(w, "uint4", scheme="asymmetric").dequantize()) < 0.05).sum() < 15


@pytest.mark.parametrize("scale_dtype", ["float16", "bfloat16"])
def test_scales_are_numbers_of_their_type(scale_dtype: str) -> None:
    scale = hqq(weight(), group_size=32, scale_dtype=scale_dtype).params.scale
    np.testing.assert_array_equal(scale.astype(ml_dtypes.bfloat16 if scale_dtype == "bfloat16" else "f2"), scale)


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_a_short_last_group_is_fitted_by_its_own_weights(scheme: str) -> None:
    w = weight() + np.float32(3)  # far from 0: what fills the group up would count
    whole, last = hqq(w, "int4", scheme=scheme, group_size=64), hqq(w[:, 128:], "int4", scheme=scheme, group_size=64)
    np.testing.assert_allclose(whole.params.scale[:, 2:], last.params.scale, rtol=1e-5)
    assert (whole.unpack()[:, 128:] == last.unpack()).mean() > 0.99


def test_rows_do_not_depend_on_each_other_nor_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    w = weight()
    whole = hqq(w, group_size=32)
    monkeypatch.setattr(sys.modules[hqq.__module__], "_BLOCK", 5 * SHAPE[1])
    threads = lb.get_num_threads()
    lb.set_num_threads(1)
    try:
        parts = hqq(w, group_size=32)
    finally:
        lb.set_num_threads(threads)
    np.testing.assert_array_equal(parts.unpack(), whole.unpack())
    np.testing.assert_array_equal(parts.params.scale, whole.params.scale)


@pytest.mark.parametrize("factor", [2.0**-120, 2.0**-30, 2.0**90])
def test_powers_of_two_scale_the_scales(factor: float) -> None:
    w = weight()
    np.testing.assert_array_equal(hqq(w * np.float32(factor), group_size=50).unpack(), hqq(w, group_size=50).unpack())


def test_zeros_and_single_weights() -> None:
    assert not hqq(np.zeros((2, 5), np.float32)).dequantize().any()
    np.testing.assert_allclose(hqq(np.float32([[0.3], [-2]])).dequantize(), [[0.3], [-2]], rtol=1e-6)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(InvalidProblem, match=r"^weight: shape \(3,\); expected a matrix"):
        hqq(np.zeros(3, np.float32))
    with pytest.raises(InvalidProblem, match=r"^scheme: symmetric; uint4 has no negative codes"):
        hqq(weight(), scheme="symmetric")
