"""Scales of inputs that the layer before takes back, by the error of the outputs."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import lowbit as lb
from lowbit.algorithms import awq, weighted
from lowbit.numerics.errors import InvalidProblem

Array = np.ndarray[Any, Any]
INPUTS = 48


def rows(seed: int = 0) -> Array:
    """Correlated inputs, some of which count far more than the others."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((400, INPUTS)) @ (np.eye(INPUTS) + 0.1 * rng.standard_normal((INPUTS, INPUTS)))
    return x * np.where(np.arange(INPUTS) % 16 == 3, 20, 1)


def weights() -> list[Array]:
    rng = np.random.default_rng(1)
    return [rng.standard_normal((n, INPUTS)).astype(np.float32) for n in (20, 9)]


def gram(x: Array) -> Array:
    return x.T @ x / len(x)


def error(x: Array, w: Array, q: lb.QuantizedTensor, s: Array) -> float:
    """Of the outputs, relative: those of quantized weights for inputs that were divided by s."""
    want = x @ w.T.astype(np.float64)
    return float(np.square(want - (x / s) @ q.dequantize().T.astype(np.float64)).sum() / np.square(want).sum())


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("group_size", [None, 16, 20])
def test_the_error_is_that_of_the_outputs_and_less_than_without_scales(scheme: str, group_size: int | None) -> None:
    x, ws = rows(), weights()
    options: dict[str, Any] = {"scheme": scheme, "group_size": group_size, "bits": 3}
    made = awq(ws, gram(x), **options)
    pairs = list(zip(ws, made.weights, strict=True))
    norm = [np.square(x @ w.T.astype(np.float64)).sum() for w in ws]
    found = sum(error(x, w, q, made.scale) * n for (w, q), n in zip(pairs, norm, strict=True)) / sum(norm)
    assert made.error == pytest.approx(found, rel=1e-4)
    plain = [weighted(w, np.diagonal(gram(x)), **options) for w in ws]
    without = sum(error(x, w, q, np.ones(1)) * n for w, q, n in zip(ws, plain, norm, strict=True)) / sum(norm)
    assert made.error < 0.8 * without


def test_a_scale_of_one_gives_weights_as_without() -> None:
    x, w = rows(), weights()[0]
    made = awq([w], gram(x), group_size=16, tied=np.zeros(INPUTS, int))
    assert made.alpha == 0
    np.testing.assert_array_equal(made.scale, 1)
    plain = weighted(w, np.diagonal(gram(x)), group_size=16)
    np.testing.assert_array_equal(made.weights[0].unpack(), plain.unpack())
    np.testing.assert_array_equal(made.weights[0].params.scale, plain.params.scale)


def test_tied_inputs_have_one_scale() -> None:
    made = awq(weights(), gram(rows()), bits=3, tied=np.arange(INPUTS) // 2 * 10)
    assert made.alpha > 0
    np.testing.assert_array_equal(made.scale[::2], made.scale[1::2])


def test_mean_squares_alone_are_enough() -> None:
    x, ws = rows(), weights()
    x -= x.mean(0)
    independent = x * np.random.default_rng(5).choice([-1, 1], x.shape)
    made = awq(ws, np.diagonal(gram(independent)), bits=3)
    assert sum(
        error(independent, w, q, made.scale) for w, q in zip(ws, made.weights, strict=True)
    ) / 2 == pytest.approx(made.error, rel=0.3)
    assert made.alpha > 0


def test_same_bytes_for_any_number_of_threads() -> None:
    threads, found = lb.get_num_threads(), []
    try:
        for n in (1, 2, 7):
            lb.set_num_threads(n)
            made = awq(weights(), gram(rows()), bits=3, group_size=16)
            found.append((made.scale.tobytes(), made.error, *(q.unpack().tobytes() for q in made.weights)))
    finally:
        lb.set_num_threads(threads)
    assert found[0] == found[1] == found[2]


def test_alpha_is_chosen_by_some_outputs_of_large_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    ws, h = weights(), gram(rows())
    whole = awq(ws, h, bits=3).error
    monkeypatch.setattr(sys.modules[awq.__module__], "_ROWS", 4)
    made = awq(ws, h, bits=3)
    assert made.error == pytest.approx(whole, rel=0.3)
    assert made.scale.max() > 2 * made.scale.min()
    assert [q.shape for q in made.weights] == [w.shape for w in ws]


def test_unused_inputs_and_outputs() -> None:
    x, ws = rows(), weights()
    x[:, 5], ws[0][:, 7] = 0, 0
    made = awq(ws, gram(x))
    assert np.isfinite(made.scale).all()
    assert (made.scale > 0).all()
    zero = awq([np.zeros((2, 4), np.float32)], np.zeros((4, 4)))
    assert zero.error == 0
    np.testing.assert_array_equal(zero.scale, 1)


def test_bad_arguments_are_named() -> None:
    ws = weights()
    with pytest.raises(InvalidProblem, match=r"^weights: \[\]; expected matrices that read the same inputs"):
        awq([], np.ones(3))
    with pytest.raises(InvalidProblem, match=r"^moments: shape \(3,\); expected \(48,\)"):
        awq(ws, np.ones(3))
    with pytest.raises(InvalidProblem, match=r"^tied: float64 of shape"):
        awq(ws, np.ones(INPUTS), tied=np.ones(INPUTS))
