"""Three CNNs trained on Fashion-MNIST: beds for accuracy at few bits, with the images to calibrate and to test on.

    python -m benchmarks.cnn_beds        # trains them, at most 3 minutes each on one core; later runs read them

The second has depthwise convolutions, batch norms and ReLU6. The third is the second with channels of different size
between its depthwise and pointwise convolutions, as those of MobileNets trained on ImageNet are (Nagel et al. 2019,
figure 2): they are multiplied, and the columns that read them divided, by random powers of two around 1. ReLU takes the
place of ReLU6, as in that paper. This leaves the function as it is, to the bit, and plain rounding with far less of it.
The fourth is a MobileNet of 27 layers, as it was trained.

    python -m benchmarks.cnn_beds --quantize     # accuracy of all by method and bits, with activations of 8 bits
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

import lowbit.torch as lt
import torch
from lowbit.calibration import Moments
from lowbit.models import ActivationRecipe, Recipe, WeightRecipe
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
from fashion_mnist_ptq import network
from fashion_mnist_qat import FOLDER as IMAGES
from fashion_mnist_qat import Batches, Images, accuracy, load_fashion_mnist, train

FOLDER = Path.home() / ".cache" / "lowbit" / "beds"
BATCH = 128
DEPTHWISE = ((32, 1), (64, 2), (64, 1), (128, 1), (128, 1))  # outputs and stride of each block
MOBILENET = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), *[(128, 1)] * 6, (256, 1), (256, 1))


def fashion_cnn(folder: Path = FOLDER) -> nn.Sequential:
    """Seven convolutions with batch norms and ReLU, 120 thousand weights."""
    return _trained(folder / "fashion_cnn.pt", lambda: network(16), epochs=2)


def depthwise_cnn(folder: Path = FOLDER) -> nn.Sequential:
    """Five depthwise and pointwise convolutions after a first one, with batch norms and ReLU6; 40 thousand weights."""
    return _trained(folder / "depthwise_cnn.pt", depthwise_network, epochs=4)


def spread_depthwise_cnn(folder: Path = FOLDER, octaves: float = 1.0) -> nn.Sequential:
    """`depthwise_cnn` with channels spread by powers of two. octaves: the standard deviation of their exponents."""
    layers = [nn.ReLU() if isinstance(m, nn.ReLU6) else m for m in depthwise_cnn(folder)]
    generator = torch.Generator().manual_seed(5)
    for at, conv in enumerate(layers):
        if isinstance(conv, nn.Conv2d) and conv.groups > 1:  # then its batch norm, ReLU, and the pointwise convolution
            by = torch.exp2(torch.round(octaves * torch.randn(conv.out_channels, generator=generator)))
            norm, pointwise = layers[at + 1], layers[at + 3]
            for p in norm.parameters():
                p.data.mul_(by)
            next(pointwise.parameters()).data.div_(by[:, None, None])
    return nn.Sequential(*layers).eval()


def mobilenet(folder: Path = FOLDER) -> nn.Sequential:
    """MobileNet (Howard et al. 2017) of a quarter of its width, with ReLU6; 13 blocks, 210 thousand weights."""
    return _trained(folder / "mobilenet.pt", lambda: depthwise_network(8, MOBILENET), epochs=4)


def depthwise_network(width: int = 32, blocks: Sequence[tuple[int, int]] = DEPTHWISE) -> nn.Sequential:
    """The untrained network of `depthwise_cnn`, or another of this first width."""
    parts = _block(1, width, 3, 2)  # 14 × 14 from here
    for outputs, stride in blocks:
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


def quantized(model: nn.Module, dtype: str, method: str, stats: Mapping[str, Moments]) -> nn.Module:
    """All layers with weights of this type per channel, and static uint8 activations."""
    weights = WeightRecipe(dtype, granularity="channel", method=method)
    recipe = Recipe(f"{dtype} A8", weights, ActivationRecipe("uint8"), min_elements=0)
    options = {"stats": stats} if method in STATISTICAL else {}
    return lt.quantize(
        model, recipe, calibration=calibration_batches(), optimize="size", fit_products=1, progress=False, **options
    )


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.cnn_beds", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quantize", action="store_true", help="print accuracy by method and bits")
    parser.add_argument("--beds", nargs="+", choices=[make.__name__ for make in BEDS], help="default: all")
    parser.add_argument("--dtypes", nargs="+", default=["int4", "int2"], help="of weights (default: int4 int2)")
    parser.add_argument("--methods", nargs="+", default=METHODS, help=f"default: {' '.join(METHODS)}")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for make in BEDS:
        if options.beds and make.__name__ not in options.beds:
            continue
        begun = time.process_time()
        model = make()
        print(f"{make.__name__}: {test_accuracy(model):.2f} % after {time.process_time() - begun:.0f} s", flush=True)
        for name, of in {"": model, "equalized": lt.equalize(model)}.items() if options.quantize else ():
            stats = lt.observe_moments(of, calibration_batches(), progress=False)
            for dtype, method in itertools.product(options.dtypes, options.methods):
                begun = time.process_time()
                small = quantized(of, dtype, method, stats)
                seconds = time.process_time() - begun
                found = test_accuracy(small)
                error = (found * (100 - found) / TESTED) ** 0.5
                cells = f"{make.__name__:22}{name:11}{dtype:6}{method:10}"
                print(f"{cells}{found:6.2f} ± {error:.2f} %  {seconds:5.1f} s", flush=True)


BEDS = (fashion_cnn, depthwise_cnn, spread_depthwise_cnn, mobilenet)
METHODS = ("rtn", "mse", "weighted", "gptq", "adaround")
STATISTICAL = ("weighted", "gptq", "adaround")
TESTED = 10_000


if __name__ == "__main__":
    main()
