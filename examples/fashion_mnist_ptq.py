"""Post-training quantization of a CNN on Fashion-MNIST: static int8 with lowbit's modules, against float.

    python examples/fashion_mnist_ptq.py                  # trains once: 2 to 4 minutes; then seconds
    python examples/fashion_mnist_ptq.py --slice 1000     # seconds

A float network is trained and kept in a file. `lowbit.torch.quantize` finds ranges in a few batches of training images,
folds the batch norms, and swaps what gets faster. Accuracy is of all test images; images a second are of one thread,
both networks taking turns on every batch. The same network as an ONNX file is quantized too, and both files are run in
ONNX Runtime; `--onnx FOLDER` keeps them.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import lowbit as lb
import lowbit.torch as lt
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parent))
from fashion_mnist_qat import Batches, Images, accuracy, load_fashion_mnist, some, train

CHECKPOINT = Path.home() / ".cache" / "lowbit" / "fashion_mnist_cnn.pt"
SPEED_BATCH = 64
CALIBRATION_BATCHES = 8


def network(width: int = 32) -> nn.Sequential:
    """Seven convolutions, 28 × 28 down to 7 × 7; 0.46 million weights, 36 million multiply-adds an image."""
    w = width
    return nn.Sequential(
        *block(1, w), *block(w, 2 * w, stride=2),  # 14 × 14 from here
        *block(2 * w, 2 * w), *block(2 * w, 2 * w), *block(2 * w, 4 * w, stride=2),  # 7 × 7
        *block(4 * w, 4 * w), *block(4 * w, 4 * w),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * w, 10),
    )  # fmt: skip


def block(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(outputs), nn.ReLU()]


def trained(images: Images, epochs: int, path: Path | None, width: int = 32) -> nn.Sequential:
    """The network, from `path` where it was kept there, else trained and kept."""
    torch.manual_seed(0)
    model = network(width)
    if path is not None and path.exists():
        model.load_state_dict(torch.load(path, weights_only=True))
        return model.eval()
    train(model, Batches(images, 128), epochs, 0.01, seed=0, warmup=0.3)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)
    return model


def quantized(model: nn.Module, images: Images, size: int = SPEED_BATCH) -> nn.Module:
    """The same network with static int8 layers wherever they are faster."""
    batches = [x for x, _ in some(Batches(images, size), CALIBRATION_BATCHES, seed=0)]
    return lt.quantize(model, "static-int8", calibration=batches, progress=False)


@torch.inference_mode()
def rounds(models: dict[str, nn.Module], x: Tensor, count: int) -> dict[str, list[float]]:
    """Images a second of each model, a number a round; models take turns on every batch."""
    found: dict[str, list[float]] = {name: [] for name in models}
    batches = x.split(SPEED_BATCH)
    for r in range(count + 1):  # the first warms up
        sums = dict.fromkeys(models, 0.0)
        for batch in batches:
            for name, model in models.items():
                start = time.perf_counter()
                model(batch)
                sums[name] += time.perf_counter() - start
        if r:
            for name, total in sums.items():
                found[name].append(len(x) / total)
    return found


def export_onnx(path: str | Path, model: nn.Module | None = None) -> None:
    """Writes the float network (by default the one kept in CHECKPOINT) as ONNX: "image" [n, 1, 28, 28] to "scores"."""
    if model is None:
        model = network()
        model.load_state_dict(torch.load(CHECKPOINT, weights_only=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            model.eval(), (torch.zeros(1, 1, 28, 28),), str(path), input_names=["image"], output_names=["scores"],
            dynamic_axes={"image": {0: "n"}, "scores": {0: "n"}}, opset_version=17, dynamo=False,
        )  # fmt: skip


def in_onnx_runtime(folder: Path, base: nn.Module, train_on: Images, test_on: Images) -> dict[str, Any]:
    """The network from file to file: accuracy, bytes and latency of both in ONNX Runtime, one thread."""
    from lowbit.formats.files import quantize_file

    def share(predict: Any, batches: Any) -> float:
        right = [int((predict(b)["scores"].argmax(1) == b["labels"]).sum()) for b in batches]
        return 100 * sum(right) / len(test_on.y)

    export_onnx(folder / "fashion.onnx", base)
    ranges = [{"image": x.numpy()} for x, _ in some(Batches(train_on, SPEED_BATCH), CALIBRATION_BATCHES, seed=0)]
    tested = [
        {"image": x.numpy(), "labels": y.numpy()}
        for x, y in zip(test_on.x.split(500), test_on.y.split(500), strict=True)
    ]
    source, target = folder / "fashion.onnx", folder / "fashion.int8.onnx"
    report = quantize_file(source, target, "static-int8", data=ranges, overwrite=True, seconds=3.0, progress=False)
    from lowbit.formats.onnx import measure

    metric = measure.compare_metric("accuracy", share, *map(measure.open_session, (source, target)), lambda: tested)
    return {
        "accuracy": {"float": round(metric.float_value, 2), "int8": round(metric.quantized_value, 2)},
        "bytes": {"float": report.bytes_before, "int8": report.bytes_after},
        "times_float": round(report.latency[0].speedup, 3), "treated": f"{len(report.treated)} of {len(report.rows)}",
    }  # fmt: skip


def results(base: nn.Module, train_on: Images, test_on: Images, epochs: int, count: int) -> dict[str, Any]:
    small = quantized(base, train_on)
    speeds = rounds({"float": base, "int8": small}, test_on.x[: 16 * SPEED_BATCH], count)
    exact = {"float": accuracy(base, test_on), "int8": accuracy(small, test_on)}
    made = lt.report(small)
    times = [q / f for f, q in zip(speeds["float"], speeds["int8"], strict=True)]
    return {
        "images": {"train": len(train_on.y), "test": len(test_on.y)}, "threads": torch.get_num_threads(),
        "batch": SPEED_BATCH, "epochs": epochs, "rounds": count,
        "accuracy": {name: round(value, 2) for name, value in exact.items()},
        "images_per_second": {name: round(statistics.median(s), 1) for name, s in speeds.items()},
        "times_float": round(statistics.median(times), 3),
        "bytes": {"float": made.bytes_before, "int8": made.bytes_after},
        "layers": [{"name": r.name, "kind": r.kind, "how": r.how, "why_not": r.why_not, "note": r.note}
                   for r in made.rows],
        "cpu": lb.hardware().cpu, "isa": lb.hardware().isa,
        "versions": {"lowbit": lb.__version__, "torch": torch.__version__, "numpy": np.__version__,
                     "python": platform.python_version()},
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--slice", type=int, metavar="N", help="train on the first N images, test on the first N // 5")
    parser.add_argument("--epochs", type=int, default=2, metavar="N", help="of training (default: 2)")
    parser.add_argument("--width", type=int, default=32, metavar="N", help="of the first convolution (default: 32)")
    parser.add_argument("--rounds", type=int, default=7, metavar="N", help="of timing (default: 7)")
    parser.add_argument("--checkpoint", type=Path, default=CHECKPOINT, metavar="PATH", help="where the network is kept")
    parser.add_argument("--onnx", type=Path, metavar="PATH", help="a folder for the ONNX files")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write the results")
    options = parser.parse_args(arguments)
    path = options.checkpoint
    train_on, test_on = load_fashion_mnist()
    if options.slice is not None:
        train_on, test_on = (
            Images(data.x[:n], data.y[:n]) for data, n in ((train_on, options.slice), (test_on, options.slice // 5))
        )
        path = None
    base = trained(train_on, options.epochs, path, options.width)  # with all threads; what follows has one
    torch.set_num_threads(1)
    lb.set_num_threads(1)
    found = results(base, train_on, test_on, options.epochs, options.rounds)
    for row in found["layers"]:
        print(f"{row['name']:>4} {row['kind']:12} {row['how'] or row['why_not']}  {row['note']}")
    for name in ("float", "int8"):
        speed = found["images_per_second"][name]
        print(f"{name:6} {found['accuracy'][name]:6.2f} %  {speed:7.1f} images/s  {found['bytes'][name]:,} bytes")
    print(f"int8: {found['times_float']} times float")
    with tempfile.TemporaryDirectory() as temporary:
        found["onnx"] = in_onnx_runtime(options.onnx or Path(temporary), base, train_on, test_on)
    inside = found["onnx"]
    for name in ("float", "int8"):
        print(f"ONNX Runtime, {name:6} {inside['accuracy'][name]:6.2f} %  {inside['bytes'][name]:,} bytes")
    print(f"ONNX Runtime, int8: {inside['times_float']} times float, {inside['treated']} weights")
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
