"""Weights that make up for the errors of the layers before them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lowbit as lb
from lowbit.algorithms import gptq, gptq_sequential
from lowbit.algorithms.gptq import factored
from lowbit.algorithms.sequential import corrected, divided
from lowbit.calibration import Moments
from lowbit.numerics.errors import InvalidProblem

Array = np.ndarray[Any, Any]
INPUTS, OUTPUTS, ROWS = 40, 12, 600


def inputs(seed: int = 0) -> tuple[Array, Array]:
    """Rows of the quantized model, and of the float model."""
    rng = np.random.default_rng(seed)
    y = rng.standard_normal((ROWS, INPUTS)) @ (np.eye(INPUTS) + 0.3 * rng.standard_normal((INPUTS, INPUTS)))
    x = y @ (np.eye(INPUTS) + 0.05 * rng.standard_normal((INPUTS, INPUTS))) + 0.1 * rng.standard_normal(y.shape)
    return x.astype(np.float32), y.astype(np.float32)


def weight() -> Array:
    return np.random.default_rng(1).standard_normal((OUTPUTS, INPUTS)).astype(np.float32)


def moments(x: Array, y: Array) -> tuple[Array, Array]:
    m = Moments(INPUTS, cross=True)
    m.add(x, reference=y)
    return m.gram(), m.cross()


def error(x: Array, y: Array, w: Array, q: Array) -> float:
    return float(np.square(y @ w.T.astype(np.float64) - x @ q.T.astype(np.float64)).sum() / len(x))


def test_the_target_is_the_minimum_of_the_equation() -> None:
    (x, y), w = inputs(), weight()
    gram, cross = moments(x, y)
    factor = factored(gram, INPUTS)
    damped = np.eye(INPUTS) * factor.added
    want = w @ (cross + damped) @ np.linalg.inv(gram + damped)
    np.testing.assert_allclose(corrected(w, factor, cross, 1.0), want, rtol=0, atol=2e-5)
    half = corrected(w, factor, cross, 0.5)
    np.testing.assert_allclose(half, (w + want) / 2, rtol=0, atol=2e-5)


def test_products_with_the_inverse() -> None:
    gram = moments(*inputs())[0]
    gram[:, 3] = gram[3] = 0  # an input that is always 0
    factor, rows = factored(gram, INPUTS), weight()
    np.testing.assert_allclose(divided(rows, factor), rows @ np.linalg.inv(factor.hessian), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("strength", [0.0, 0.4, 1.0])
def test_without_an_error_before_it_is_gptq(strength: float) -> None:
    (x, _), w = inputs(), weight()
    gram, cross = moments(x, x)
    np.testing.assert_array_equal(corrected(w, factored(gram, INPUTS), cross, strength), w)
    options: dict[str, Any] = {"group_size": 20, "bits": 3}
    plain, made = gptq(w, gram, **options), gptq_sequential(w, gram, cross, strength=strength, **options)
    np.testing.assert_array_equal(made.unpack(), plain.unpack())
    np.testing.assert_array_equal(made.params.scale, plain.params.scale)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_it_lowers_the_error_on_rows_it_has_not_seen(bits: int) -> None:
    (x, y), w = inputs(), weight()
    gram, cross = moments(x[: ROWS // 2], y[: ROWS // 2])
    seen, rest = (slice(ROWS // 2), slice(ROWS // 2, ROWS))
    plain, made = gptq(w, gram, bits=bits), gptq_sequential(w, gram, cross, bits=bits, strength=1.0)
    for rows in (seen, rest):
        assert error(x[rows], y[rows], w, made.dequantize()) < error(x[rows], y[rows], w, plain.dequantize())


def test_a_chain_of_layers_stays_nearer_to_the_float_model() -> None:
    rng = np.random.default_rng(4)
    layers = [(rng.standard_normal((INPUTS, INPUTS)) / INPUTS**0.5).astype(np.float32) for _ in range(4)]
    data = rng.standard_normal((2 * ROWS, INPUTS)).astype(np.float32)

    def step(x: Array, w: Array) -> Array:
        product = x @ w.T
        return (x + np.maximum(product, 0.1 * product)).astype(np.float32)

    def end(strength: float) -> float:
        y, x, fresh, want = data[:ROWS], data[:ROWS], data[ROWS:], data[ROWS:]
        for w in layers:
            q = gptq_sequential(w, *moments(x, y), bits=2, strength=strength).dequantize()
            y, x, fresh, want = step(y, w), step(x, q), step(fresh, q), step(want, w)
        return float(np.square(want - fresh).sum())

    assert end(1.0) < 0.9 * end(0.0)


def test_of_few_rows_half_of_the_correction_holds_better_for_others() -> None:
    (_, y), w = inputs(), weight()
    x = (y + np.random.default_rng(6).standard_normal(y.shape)).astype(np.float32)
    few, rest = slice(3 * INPUTS // 2), slice(3 * INPUTS // 2, ROWS)
    gram, cross = moments(x[few], y[few])
    made = [gptq_sequential(w, gram, cross, bits=4, strength=s, damping=1e-6).dequantize() for s in (0.5, 1.0)]
    half, whole = (error(x[rest], y[rest], w, q) for q in made)
    assert half < 0.9 * whole


def test_same_bytes_for_any_number_of_threads() -> None:
    (x, y), w, threads, found = inputs(), weight(), lb.get_num_threads(), []
    gram, cross = moments(x, y)
    try:
        for n in (1, 2, 7):
            lb.set_num_threads(n)
            q = gptq_sequential(w, gram, cross, group_size=8)
            found.append((q.unpack().tobytes(), q.params.scale.tobytes()))
    finally:
        lb.set_num_threads(threads)
    assert found[0] == found[1] == found[2]


def test_bad_arguments_are_named() -> None:
    gram, cross = moments(*inputs())
    with pytest.raises(InvalidProblem, match=r"^cross: shape \(3, 3\); expected finite moments of shape \(40, 40\)"):
        gptq_sequential(weight(), gram, cross[:3, :3])
    with pytest.raises(InvalidProblem, match=r"^cross: NaN or Inf; expected finite moments"):
        gptq_sequential(weight(), gram, cross * np.nan)
    with pytest.raises(InvalidProblem, match=r"^strength: 2; expected a number from 0 to 1"):
        gptq_sequential(weight(), gram, cross, strength=2)
