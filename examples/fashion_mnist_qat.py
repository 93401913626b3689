"""Quantization-aware training of a small CNN on Fashion-MNIST: int8, int4 and int2 weights, each against float.

    python examples/fashion_mnist_qat.py                  # all images, 3 seeds: about 20 minutes on one core
    python examples/fashion_mnist_qat.py --slice 1500     # seconds

A float network is trained. Each setting below starts from a copy of it: PTQ only looks at a few batches, QAT trains on.
docs/guide/qat.md explains what is done here, and what came out.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import itertools
import json
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray

import lowbit as lb
import lowbit.torch as lt
import torch
from torch import Tensor, nn

PACKAGE = "dataset-fashion-mnist"
FOLDER = Path("/usr/share/datasets/fashion-mnist")  # where the Debian package puts it
TEST_BATCH = 250
CALIBRATION_BATCHES = 8
RENEWAL_BATCHES = 50


# ---- data ---------------------------------------------------------------------------------------------
class Images(NamedTuple):
    """Images as float32 [n, 1, 28, 28] in [0, 1], and their classes."""

    x: Tensor
    y: Tensor


def load_fashion_mnist(folder: Path = FOLDER) -> tuple[Images, Images]:
    """60,000 images to train on, and 10,000 to test with."""
    train, test = (
        (read_idx(folder / f"{part}-images-idx3-ubyte.gz"), read_idx(folder / f"{part}-labels-idx1-ubyte.gz"))
        for part in ("train", "t10k")
    )
    return _images(*train), _images(*test)


def _images(pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Images:
    return Images(torch.from_numpy(np.float32(pixels)[:, None] / 255), torch.from_numpy(labels.astype(np.int64)))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The array of bytes in a gzipped IDX file: 0, 0, type, dimensions; each size as 4 bytes, big-endian; the bytes."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: not there; expected the files of the Debian package {PACKAGE} "
                                f"(apt-get install {PACKAGE})")  # fmt: skip
    with gzip.open(path) as file:
        raw = file.read()
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path}: begins with {raw[:3]!r}; expected an IDX file of bytes")
    sizes = np.frombuffer(raw, ">u4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(tuple(map(int, sizes)))


# ---- network and training -----------------------------------------------------------------------------
def network() -> nn.Sequential:
    """54,800 weights, 2.2 million multiply-adds an image. Channels innermost: torch's convolutions, and poolings above
    all, are a third faster so."""
    layers = nn.Sequential(
        *block(1, 16, 5),
        nn.MaxPool2d(2),  # 14 × 14 from here
        *block(16, 32, 3),
        nn.MaxPool2d(2),  # 7 × 7
        *block(32, 64, 3),
        nn.Flatten(),
        nn.Linear(64 * 7 * 7, 10),
    )
    return layers.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def block(inputs: int, outputs: int, size: int) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


@dataclass(frozen=True)
class Batches:
    """Images in batches of a size, every image once, in an order that a seed says."""

    data: Images
    size: int

    def __len__(self) -> int:
        return -(-len(self.data.y) // self.size)

    def shuffled(self, seed: int) -> Iterator[Images]:
        order = torch.randperm(len(self.data.y), generator=torch.Generator().manual_seed(seed))
        for some in order.split(self.size):
            yield Images(self.data.x[some], self.data.y[some])


def train(model: nn.Module, batches: Batches, epochs: int, lr: float, seed: int, warmup: float = 0.0) -> None:
    """Adam; the learning rate rises over a share `warmup` of the steps, then falls to nearly 0 along a cosine."""
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, lr, total_steps=epochs * len(batches) + 1, pct_start=warmup, cycle_momentum=False
    )
    for epoch in range(epochs):
        for x, y in batches.shuffled(1000 * seed + epoch):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
    model.eval()


@torch.no_grad()
def outputs(model: nn.Module, data: Images) -> Tensor:
    return torch.cat([model(x) for x in data.x.split(TEST_BATCH)])


def accuracy(model: nn.Module, data: Images) -> float:
    """Percent of the images that the model names rightly."""
    model.eval()
    return 100 * float((outputs(model, data).argmax(1) == data.y).float().mean())


# ---- quantized: with lowbit ---------------------------------------------------------------------------
def some(batches: Batches, count: int, seed: int) -> Iterator[Images]:
    return itertools.islice(batches.shuffled(seed), count)


@torch.no_grad()
def renew_batch_norms(model: nn.Module, batches: Batches, seed: int) -> None:
    """PTQ too: the batch norms measure again what the quantized weights make of the data."""
    model.train()
    for x, _ in some(batches, RENEWAL_BATCHES, seed):
        model(x)
    model.eval()


def weight_bytes(model: nn.Module) -> int:
    """Bytes of the weights of a converted model: codes, and one scale per output channel."""
    return sum(m.quantized_weight.nbytes for m in model.modules() if hasattr(m, "quantized_weight"))


def float_weight_bytes(model: nn.Module) -> int:
    return sum(4 * m.weight.numel() for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear)))


# ---- quantized: with torch.ao -------------------------------------------------------------------------
def ao_prepared(model: nn.Sequential) -> nn.Module:
    """The model as torch.ao's tutorial on eager quantization-aware training prepares it: int8 weights per channel."""
    from torch.ao import quantization as ao

    net = copy.deepcopy(model).train()
    blocks = [[str(i), str(i + 1), str(i + 2)] for i, m in enumerate(net) if isinstance(m, nn.Conv2d)]
    net = ao.fuse_modules_qat(net, blocks)
    whole = nn.Sequential(ao.QuantStub(), net, ao.DeQuantStub()).train()
    whole.qconfig = ao.get_default_qat_qconfig("x86")
    return ao.prepare_qat(whole)


def ao_frozen(model: nn.Module) -> nn.Module:
    """Ready to be tested: observers of torch.ao go on watching in eval() mode unless told not to."""
    from torch.ao import quantization as ao

    return model.eval().apply(ao.disable_observer)


# ---- the settings -------------------------------------------------------------------------------------
class Result(NamedTuple):
    accuracy: float
    bytes: int | None = None
    converted: bool | None = None  # whether convert()'s outputs were the model's, to the bit


def run(train_on: Batches, test_on: Images, seed: int, epochs: int, say: Callable[[str], None]) -> dict[str, Result]:
    """Every setting's result for one seed."""
    torch.manual_seed(seed)
    found: dict[str, Result] = {}

    def keep(name: str, result: Result) -> None:
        found[name] = result
        say(f"seed {seed}  {name:34} {result.accuracy:6.2f} %")

    def keep_lowbit(name: str, model: nn.Module) -> None:
        final = lt.convert(model)
        same = torch.equal(outputs(final, test_on), outputs(model.eval(), test_on))
        keep(name, Result(accuracy(final, test_on), weight_bytes(final), same))

    base = network()
    train(base, train_on, epochs, FLOAT_LR, seed, warmup=0.3)
    keep("float", Result(accuracy(base, test_on), float_weight_bytes(base)))

    def prepared(weight: str, learned: bool = False) -> nn.Module:
        recipe = lt.QATRecipe(weight=weight, activation="uint8", learned=learned)
        return lt.prepare_qat(base, recipe)[0]

    for name, weight, learned in PTQ:
        model = prepared(weight, learned)
        lt.calibrate(model, some(train_on, CALIBRATION_BATCHES, seed))
        keep_lowbit(name, model)
        if learned:
            renew_batch_norms(model, train_on, seed)
            keep_lowbit(f"{name}, norms renewed", model)

    for name, weight, learned, more, lr in QAT:
        model = prepared(weight, learned)
        train(model, train_on, more, lr, seed + 1)
        keep_lowbit(name, model)

    name, more, lr = AO
    model = ao_prepared(base)
    train(model, train_on, more, lr, seed + 1)
    keep(name, Result(accuracy(ao_frozen(model), test_on)))
    return found


FLOAT_LR = 0.01
# name, weights, learned scales. Without training, "learned" is where the learning would start: 2 mean|w| / sqrt(qmax).
PTQ = (
    ("int8 PTQ", "int8", False),
    ("int4 PTQ", "int4", False),
    ("int2 PTQ", "int2", False),
    ("int2 PTQ, LSQ start", "int2", True),
)
# name, weights, learned scales, epochs, learning rate
QAT = (
    ("int8 QAT", "int8", False, 1, 5e-4),
    ("int4 QAT", "int4", False, 1, 1e-3),
    ("int2 QAT, learned scales", "int2", True, 2, 3e-3),
)
AO = ("int8 QAT, torch.ao", 1, 5e-4)


# ---- the program --------------------------------------------------------------------------------------
def table(results: dict[str, dict[str, Result]]) -> str:
    """One line a setting: accuracies for each seed, their mean, the mean's distance from float, and bytes."""
    first = next(iter(results.values()))
    means = {name: float(np.mean([r[name].accuracy for r in results.values()])) for name in first}
    head = [f"{'setting':34}", *(f"{'seed ' + seed:>7}" for seed in results), "   mean  - float  weight bytes"]
    rows = ["  ".join(head)]
    for name, result in first.items():
        cells = [f"{name:34}", *(f"{r[name].accuracy:7.2f}" for r in results.values())]
        size = "" if result.bytes is None else f"{result.bytes:,}"
        rows.append("  ".join([*cells, f"{means[name]:7.2f}", f"{means[name] - means['float']:+7.2f}", f"{size:>12}"]))
    checks = [r.converted for of_seed in results.values() for r in of_seed.values() if r.converted is not None]
    return "\n".join([*rows, f"convert() gave the same outputs to the bit in {sum(checks)} of {len(checks)} cases"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slice", type=int, metavar="N", help="train on the first N images, test on the first N // 5")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="how many, from 0 (default: 3)")
    parser.add_argument("--epochs", type=int, default=3, metavar="N", help="of float training (default: 3)")
    parser.add_argument("--batch", type=int, metavar="N", help="images a step (default: 256, or 32 with --slice)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write the results")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of torch and of lowbit (default: 1)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    lb.set_num_threads(options.threads)
    warnings.filterwarnings("ignore", message="torch.ao.quantization is deprecated|Please use quant_min", module=".*")

    train_on, test_on = load_fashion_mnist()
    if options.slice is not None:
        train_on, test_on = (
            Images(data.x[:n], data.y[:n]) for data, n in ((train_on, options.slice), (test_on, options.slice // 5))
        )
    batches = Batches(train_on, options.batch or (256 if options.slice is None else 32))
    results = {}
    for seed in range(options.seeds):
        results[str(seed)] = run(batches, test_on, seed, options.epochs, lambda line: print(line, flush=True))
    print("\n" + table(results))
    if options.json is not None:
        write_json(options.json, results, options.epochs, batches, len(test_on.y))


def write_json(path: Path, results: dict[str, dict[str, Result]], epochs: int, batches: Batches, tested: int) -> None:
    """Everything a reader needs to compare another run with this one."""
    more = {name: {"epochs": e, "lr": lr} for name, _, _, e, lr in QAT} | {AO[0]: {"epochs": AO[1], "lr": AO[2]}}
    first = next(iter(results.values()))
    settings = {
        name: {
            "accuracy": {seed: round(r[name].accuracy, 2) for seed, r in results.items()},
            "mean": round(float(np.mean([r[name].accuracy for r in results.values()])), 3),
            "weight_bytes": result.bytes,
            "convert_equal_to_the_bit": None if result.converted is None else all(
                r[name].converted for r in results.values()
            ),
            **({"epochs": epochs, "lr": FLOAT_LR} if name == "float" else more.get(name, {"epochs": 0})),
        }
        for name, result in first.items()
    }  # fmt: skip
    facts = {
        "images": {"train": len(batches.data.y), "test": tested},
        "batch": batches.size,
        "versions": {"lowbit": lb.__version__, "torch": torch.__version__, "numpy": np.__version__,
                     "python": platform.python_version()},
        "settings": settings,
    }  # fmt: skip
    path.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
