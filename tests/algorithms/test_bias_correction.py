"""A corrected bias leaves the means of the outputs alone, and rounding under the covariance is what it calls for."""

import numpy as np
import pytest

import lowbit as lb
from lowbit.algorithms import bias_correction, gptq, rtn
from lowbit.algorithms.bias_correction import covariance


def inputs(seed: int = 0, rows: int = 400, width: int = 24):
    rng = np.random.default_rng(seed)
    return np.maximum(rng.standard_normal((rows, width)) @ rng.standard_normal((width, width)) / 4 + 1, 0)


def test_means_of_outputs_are_those_of_the_float_layer():
    x = inputs()
    w = np.random.default_rng(1).standard_normal((6, 24)).astype(np.float32)
    q = rtn(w, bits=3)
    shift = bias_correction(w, q, x.mean(0))
    off = (x @ (q.dequantize() - w).T).mean(0)
    assert np.abs(off).max() > 0.05
    np.testing.assert_allclose(off + shift, 0, atol=1e-6)


def test_each_group_of_a_convolution_has_means_of_its_own():
    w = np.random.default_rng(2).standard_normal((4, 1, 3, 3)).astype(np.float32)
    q = lb.quantize(w, "int4", axis=0)
    mean = np.arange(18.0).reshape(2, 9)
    error = (w - q.dequantize()).reshape(4, 9).astype(np.float64)
    expected = [error[o] @ mean[o // 2] for o in range(4)]
    np.testing.assert_allclose(bias_correction(w, q, mean), expected, rtol=1e-6)


def test_rounding_under_the_covariance_leaves_less_error_once_the_bias_is_corrected():
    x = inputs()
    w = np.random.default_rng(3).standard_normal((16, 24)).astype(np.float32)
    gram, mean = x.T @ x / len(x), x.mean(0)

    def error(q):
        return np.square(x @ (q.dequantize() - w).T + bias_correction(w, q, mean)).sum()

    assert error(gptq(w, covariance(gram, mean), bits=3)) < 0.9 * error(gptq(w, gram, bits=3))


def test_covariance_is_that_of_the_rows_and_positive_definite():
    x = inputs()
    np.testing.assert_allclose(covariance(x.T @ x / len(x), x.mean(0)), np.cov(x.T, bias=True), atol=1e-7)
    constant = np.full((1, 300), 0.1)
    found = covariance(constant.T @ constant * (1 - 1e-15), constant[0])
    assert np.linalg.eigvalsh(found).min() > 0


def test_refuses_means_that_do_not_fit():
    w = np.ones((4, 6), np.float32)
    with pytest.raises(lb.InvalidProblem, match=r"mean: shape \(5,\); expected \[6\]"):
        bias_correction(w, rtn(w), np.zeros(5))
    with pytest.raises(lb.InvalidProblem, match="NaN"):
        bias_correction(w, rtn(w), np.full(6, np.nan))
