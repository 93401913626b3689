"""Equalized layers compute what they did, to the bit, and meet in the ranges of their channels."""

import numpy as np
import pytest

import lowbit as lb
from lowbit.algorithms import equalize
from lowbit.algorithms.equalize import equalizing_scale, input_ranges, row_ranges


def layers(seed: int = 0, inputs: int = 5, channels: int = 12, outputs: int = 7, groups: int = 1):
    rng = np.random.default_rng(seed)
    sizes = np.exp2(rng.uniform(-6, 6, channels))
    first = rng.standard_normal((channels, inputs)) * sizes[:, None]
    second = rng.standard_normal((outputs * groups, channels // groups))
    return [np.float32(a) for a in (first, rng.standard_normal(channels) * sizes, second)]


def relu_network(x, w1, b1, w2, groups=1, leak=0.0):
    """In float32, terms added one after the other: powers of two leave every bit."""
    y = np.cumsum(x[:, None] * w1, -1, dtype=np.float32)[..., -1] + b1
    y = np.where(y > 0, y, np.float32(leak) * y).reshape(len(x), groups, 1, -1)
    terms = y * w2.reshape(groups, -1, w2.shape[1])
    return np.cumsum(terms, -1, dtype=np.float32)[..., -1].reshape(len(x), -1)


@pytest.mark.parametrize("groups", [1, 3, 12], ids=["dense", "grouped", "depthwise"])
@pytest.mark.parametrize("leak", [0.0, 0.25], ids=["relu", "leaky"])
def test_powers_of_two_leave_every_bit_of_the_outputs(groups, leak):
    first, bias, second = layers(groups=groups)
    made = equalize(first, bias, second, groups=groups)
    x = np.random.default_rng(1).standard_normal((50, 5)).astype(np.float32)
    before = relu_network(x, first, bias, second, groups, leak)
    after = relu_network(x, made.weight_1, made.bias_1, made.weight_2, groups, leak)
    assert not np.array_equal(made.scale, np.ones(12))
    np.testing.assert_array_equal(before, after)


def test_ranges_are_equal_and_the_geometric_mean_of_what_they_were():
    first, bias, second = layers()
    made = equalize(first, bias, second, powers_of_two=False)
    expected = np.sqrt(row_ranges(first) * input_ranges(second))
    np.testing.assert_allclose(row_ranges(made.weight_1), expected, rtol=1e-6)
    np.testing.assert_allclose(input_ranges(made.weight_2), expected, rtol=1e-6)


def test_powers_of_two_leave_ranges_within_a_factor_of_two():
    first, bias, second = layers()
    made = equalize(first, bias, second)
    ratio = row_ranges(made.weight_1) / input_ranges(made.weight_2)
    assert ratio.max() <= 2.0001
    assert ratio.min() >= 0.4999
    assert equalizing_scale(np.float32([4, 2.01, 1.99, 0.49]), np.ones(4)).tolist() == [2, 2, 1, 0.5]


def test_a_flattened_image_has_positions_behind_its_channels():
    first, bias, second = layers(outputs=6)
    positions = np.repeat(second[:, :, None], 4, axis=2) * np.float32([1, 0.5, 0.25, -1])
    np.testing.assert_array_equal(equalize(first, bias, positions).scale, equalize(first, bias, second).scale)


def test_channels_that_are_dead_on_either_side_stay():
    first, _bias, second = layers()
    first[3] = 0
    second[:, 5] = 0
    made = equalize(first, None, second)
    assert made.scale[3] == made.scale[5] == 1
    assert made.bias_1 is None
    assert np.isfinite(made.weight_1).all()
    assert np.isfinite(made.weight_2).all()


def test_refuses_layers_that_do_not_meet_and_weights_that_are_not_finite():
    first, bias, second = layers()
    with pytest.raises(lb.InvalidProblem, match=r"shapes \(12, 5\) and \(7, 11\) in 1 groups"):
        equalize(first, bias, second[:, :11])
    first[0, 0] = np.nan
    with pytest.raises(lb.InvalidProblem, match="NaN"):
        equalize(first, bias, second)
