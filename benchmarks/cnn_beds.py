"""Two CNNs trained on Fashion-MNIST: beds for accuracy at few bits, with the images to calibrate and to test on.

    python -m benchmarks.cnn_beds        # trains both, at most 3 minutes each on one core; later runs read them

The second has depthwise convolutions, batch norms and ReLU6: a filter of 9 weights has channels of very different size
behind it, which plain rounding to 4 bits does not survive.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from fashion_mnist_ptq import network
from fashion_mnist_qat import FOLDER as IMAGES
from fashion_mnist_qat import Batches, Images, accuracy, load_fashion_mnist, train

FOLDER = Path.home() / ".cache" / "lowbit" / "beds"
BATCH = 128
DEPTHWISE = ((32, 1), (64, 2), (64, 1), (128, 1), (128, 1))  # outputs and stride of each block


def fashion_cnn(folder: Path = FOLDER) -> nn.Sequential:
    """Seven convolutions with batch norms and ReLU, 120 thousand weights."""
    return _trained(folder / "fashion_cnn.pt", lambda: network(16), epochs=2)


def depthwise_cnn(folder: Path = FOLDER) -> nn.Sequential:
    """Five depthwise and pointwise convolutions after a first one, with batch norms and ReLU6; 40 thousand weights."""
    return _trained(folder / "depthwise_cnn.pt", depthwise_network, epochs=4)


def depthwise_network() -> nn.Sequential:
    """The untrained network of `depthwise_cnn`."""
    parts = _block(1, 32, 3, 2)  # 14 × 14 from here
    width = 32
    for outputs, stride in DEPTHWISE:
        parts += [*_block(width, width, 3, stride, width), *_block(width, outputs, 1)]
        width = outputs
    whole = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    return whole.to(memory_format=torch.channels_last)  # trains almost twice as fast


def calibration_batches(count: int = 8, size: int = 64) -> list[Tensor]:
    """Batches of training images, the same ones each time."""
    return [x for (x, _), _ in zip(Batches(_images()[0], size).shuffled(0), range(count), strict=False)]


def test_accuracy(model: nn.Module) -> float:
    """Percent of the 10,000 test images that the model names rightly."""
    return accuracy(model, _images()[1])


@cache
def _images() -> tuple[Images, Images]:
    return load_fashion_mnist(IMAGES)


def _block(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU6()]


def _trained(path: Path, build: Callable[[], nn.Sequential], epochs: int) -> nn.Sequential:
    """The network in eval() mode, from `path` where it was kept, else trained with a seed and kept there."""
    torch.manual_seed(0)
    model = build()
    if path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
        return model.eval()
    train(model, Batches(_images()[0], BATCH), epochs, 0.01, seed=0, warmup=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), path)
    return model.eval()


if __name__ == "__main__":
    torch.set_num_threads(1)
    for make in (fashion_cnn, depthwise_cnn):
        begun = time.process_time()
        made = make()
        print(f"{make.__name__}: {test_accuracy(made):.2f} % after {time.process_time() - begun:.0f} s")
