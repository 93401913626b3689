"""A small real network to try quantization on: a CNN trained on handwritten digits, and its test images.

The images are the last 360 of the 1,797 digits of the UCI "Optical Recognition of Handwritten Digits"
test set (E. Alpaydin and C. Kaynak, CC BY 4.0), as scikit-learn distributes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["digits_accuracy", "digits_logits", "digits_onnx", "load_digits_cnn"]


def load_digits_cnn() -> dict[str, NDArray[Any]]:
    """The float32 weights and biases of the digits network, with `test_images` and `test_labels` (uint8).

    >>> arrays = load_digits_cnn()
    >>> arrays["conv2.weight"].shape, arrays["test_images"].shape
    ((64, 32, 3, 3), (360, 8, 8))
    """
    return {name: array.copy() for name, array in _stored().items()}


def digits_onnx() -> bytes:
    """The network as an ONNX file: input `images`, float32 [batch, 1, 8, 8] with pixels 0 to 1; output `logits`.

    >>> len(digits_onnx()) > 300_000
    True
    """
    return (resources.files(__name__) / "digits_cnn.onnx").read_bytes()


def digits_logits(weights: Mapping[str, NDArray[Any]], images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """The network's ten scores for each 8×8 image with pixels 0 to 16.

    >>> arrays = load_digits_cnn()
    >>> digits_logits(arrays, arrays["test_images"][:5]).shape
    (5, 10)
    """
    # Channels last throughout, so that a convolution is one matrix product and nothing is moved between.
    x = images.astype(np.float32)[..., None] / np.float32(16)
    x = _relu(_conv3x3(x, weights["conv1.weight"], weights["conv1.bias"]))
    x = _relu(_conv3x3(x, weights["conv2.weight"], weights["conv2.bias"]))
    x = _max_pool2x2(x)
    # fc1 was trained on channels first.
    x = x.transpose(0, 3, 1, 2).reshape(len(x), -1)
    x = _relu(x @ weights["fc1.weight"].T + weights["fc1.bias"])
    scores: NDArray[np.float32] = x @ weights["fc2.weight"].T + weights["fc2.bias"]
    return scores


def digits_accuracy(weights: Mapping[str, NDArray[Any]]) -> float:
    """The share of the shipped test images that the network with these weights reads correctly.

    >>> digits_accuracy(load_digits_cnn()) > 0.97
    True
    """
    stored = _stored()
    scores = digits_logits(weights, stored["test_images"])
    return float(np.mean(scores.argmax(axis=1) == stored["test_labels"]))


@cache
def _stored() -> dict[str, NDArray[Any]]:
    with (resources.files(__name__) / "digits_cnn.npz").open("rb") as file, np.load(file) as archive:
        return dict(archive)


def _conv3x3(x: NDArray[Any], weight: NDArray[Any], bias: NDArray[Any]) -> NDArray[Any]:
    """A 3×3 convolution with padding 1: [N, H, W, C] and [K, C, 3, 3] to [N, H, W, K]."""
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))  # [N, H, W, C, 3, 3]
    columns = windows.reshape(-1, weight[0].size)
    products: NDArray[Any] = columns @ weight.reshape(len(weight), -1).T + bias
    return products.reshape(*x.shape[:3], len(weight))


def _max_pool2x2(x: NDArray[Any]) -> NDArray[Any]:
    n, height, width, channels = x.shape
    pooled: NDArray[Any] = x.reshape(n, height // 2, 2, width // 2, 2, channels).max(axis=(2, 4))
    return pooled


def _relu(x: NDArray[Any]) -> NDArray[Any]:
    positive: NDArray[Any] = np.maximum(x, 0)
    return positive
