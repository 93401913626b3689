"""The shipped network: what is in the file, and that its NumPy forward pass is the network."""

from __future__ import annotations

import time

import numpy as np
import pytest

from lowbit.data import digits_accuracy, digits_logits, load_digits_cnn

SHAPES = {
    "conv1.weight": (32, 1, 3, 3),
    "conv1.bias": (32,),
    "conv2.weight": (64, 32, 3, 3),
    "conv2.bias": (64,),
    "fc1.weight": (64, 1024),
    "fc1.bias": (64,),
    "fc2.weight": (10, 64),
    "fc2.bias": (10,),
    "test_images": (360, 8, 8),
    "test_labels": (360,),
}


@pytest.fixture(scope="module")
def network():
    return load_digits_cnn()


def test_contents(network):
    assert {name: array.shape for name, array in network.items()} == SHAPES
    for name, array in network.items():
        assert array.dtype == (np.uint8 if name.startswith("test_") else np.float32), name
        assert array.flags.c_contiguous, name
        assert np.isfinite(array).all(), name
    assert network["test_images"].max() == 16
    assert set(network["test_labels"]) == set(range(10))


def test_accuracy_is_the_trained_one(network):
    assert digits_accuracy(network) == pytest.approx(355 / 360, abs=1e-9)


def test_accuracy_follows_the_weights(network):
    blind = network | {"fc2.weight": np.zeros_like(network["fc2.weight"])}
    assert digits_accuracy(blind) < 0.2


def test_the_forward_pass_is_fast(network):
    digits_accuracy(network)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        digits_accuracy(network)
        times.append(time.perf_counter() - start)
    # About 0.1 s on one core; the bound leaves room for a busy machine.
    assert min(times) < 1.0


def test_each_caller_has_its_own_arrays(network):
    load_digits_cnn()["fc1.weight"][:] = 0
    assert load_digits_cnn()["fc1.weight"].any()


def test_forward_pass_of_one_image_written_out(network):
    """The same network as nested sums over one image, in float64."""
    w = {name: array.astype(np.float64) for name, array in network.items()}

    def conv(x, weight, bias):
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1)))
        out = np.empty((len(weight), *x.shape[1:]))
        for k, row, column in np.ndindex(*out.shape):
            out[k, row, column] = np.sum(padded[:, row : row + 3, column : column + 3] * weight[k]) + bias[k]
        return np.maximum(out, 0)

    x = conv(w["test_images"][:1] / 16, w["conv1.weight"], w["conv1.bias"])
    x = conv(x, w["conv2.weight"], w["conv2.bias"])
    x = np.array([[[c[i : i + 2, j : j + 2].max() for j in (0, 2, 4, 6)] for i in (0, 2, 4, 6)] for c in x])
    x = np.maximum(w["fc1.weight"] @ x.ravel() + w["fc1.bias"], 0)
    expected = w["fc2.weight"] @ x + w["fc2.bias"]
    np.testing.assert_allclose(digits_logits(network, network["test_images"][:1])[0], expected, atol=1e-4)


def test_forward_pass_equals_torch(network):
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional
    w = {name: torch.from_numpy(array) for name, array in network.items()}
    x = w["test_images"].float()[:, None] / 16
    x = functional.relu(functional.conv2d(x, w["conv1.weight"], w["conv1.bias"], padding=1))
    x = functional.relu(functional.conv2d(x, w["conv2.weight"], w["conv2.bias"], padding=1))
    x = functional.max_pool2d(x, 2).flatten(1)
    x = functional.relu(functional.linear(x, w["fc1.weight"], w["fc1.bias"]))
    expected = functional.linear(x, w["fc2.weight"], w["fc2.bias"]).numpy()
    np.testing.assert_allclose(digits_logits(network, network["test_images"]), expected, atol=1e-4)
    assert np.mean(expected.argmax(1) == network["test_labels"]) == digits_accuracy(network)
