"""Convolutions at 4 bits, on a network that is trained here: one scale per filter ruins it, the W4 recipes do not."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from lowbit.formats.onnx.convert import quantize_onnx
from lowbit.models import Recipe, WeightRecipe
from onnx_builder import Builder

torch = pytest.importorskip("torch")
IMAGES = Path("/usr/share/datasets/fashion-mnist")
PLAIN = [(1, 24, 2, 1), (24, 48, 1, 1), (48, 48, 2, 1), (48, 64, 1, 1)]
DEPTHWISE = [(1, 24, 2, 1), (24, 24, 1, 24), (24, 64, 1, 1), (64, 64, 2, 64), (64, 96, 1, 1)]


def images(kind: str, count: int) -> tuple[Any, Any]:
    if not IMAGES.exists():
        pytest.skip("the Debian package dataset-fashion-mnist is not installed")
    with gzip.open(IMAGES / f"{kind}-images-idx3-ubyte.gz") as file:
        x = np.frombuffer(file.read(16 + count * 784), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    with gzip.open(IMAGES / f"{kind}-labels-idx1-ubyte.gz") as file:
        y = np.frombuffer(file.read(8 + count), np.uint8, offset=8)
    return x.astype(np.float32) / 255, y.astype(np.int64)


def trained(layers: list[tuple[int, int, int, int]]) -> list[tuple[Any, Any]]:
    """Weights and biases of convolutions (inputs, outputs, stride, groups) and of the classifier."""
    nn = torch.nn
    torch.manual_seed(0)
    parts: list[Any] = []
    for i, o, stride, groups in layers:
        parts += [nn.Conv2d(i, o, 3, stride, 1, groups=groups, bias=False), nn.BatchNorm2d(o), nn.ReLU()]
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(layers[-1][1], 10))
    x, y = map(torch.from_numpy, images("train", 6000))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=120)
    for batch in torch.randperm(2 * 6000).remainder(6000).split(100):
        loss = nn.functional.cross_entropy(net(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    found = []
    for conv, norm in zip(parts[::3], parts[1::3], strict=True):
        gain = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        weight, bias = conv.weight * gain.view(-1, 1, 1, 1), norm.bias - norm.running_mean * gain
        found.append((weight.detach().numpy(), bias.detach().numpy()))
    return [*found, (net[-1].weight.detach().numpy(), net[-1].bias.detach().numpy())]


def uneven(layers: list[tuple[int, int, int, int]], weights: list[tuple[Any, Any]], spread: float) -> None:
    """Scale channels between layers, which ReLU lets pass: the same function, with inputs of different size as networks
    have them that were trained for long."""
    rng = np.random.default_rng(0)
    factor = np.ones(1)
    for at, (w, b) in enumerate(weights):
        is_depthwise = at < len(layers) and layers[at][3] > 1
        shape = (-1, *(1,) * (w.ndim - 1)) if is_depthwise else (1, -1, *(1,) * (w.ndim - 2))
        w = w / factor.reshape(shape)
        factor = np.exp2(rng.normal(0, spread, len(w))) if at < len(layers) else np.ones(len(w))
        rows = factor.reshape(-1, *(1,) * (w.ndim - 1))
        weights[at] = (w * rows).astype(np.float32), (b * factor).astype(np.float32)


def network(layers: list[tuple[int, int, int, int]], weights: list[tuple[Any, Any]]) -> onnx.ModelProto:
    b = Builder({"x": ["n", 1, 28, 28]})
    x = "x"
    for at, ((_, _, stride, groups), (w, bias)) in enumerate(zip(layers, weights, strict=False)):
        x = b.add(
            "Conv", x, b.constant(w, f"filters{at}"), b.constant(bias), pads=[1] * 4, strides=[stride] * 2, group=groups
        )
        x = b.add("Relu", x)
    w, bias = weights[-1]
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    return b.model(b.add("Gemm", x, b.constant(w, "classifier"), b.constant(bias), transB=1))


def accuracy(path: Path) -> float:
    x, y = images("t10k", 2000)
    (scores,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    return float(np.mean(scores.argmax(1) == y)) * 100


@pytest.mark.parametrize("layers", [PLAIN, DEPTHWISE], ids=["plain", "depthwise"])
def test_four_bits_cost_two_points_where_one_scale_per_filter_costs_ten(layers: Any, tmp_path: Path) -> None:
    weights = trained(layers)
    uneven(layers, weights, 1.25)
    source = tmp_path / "float.onnx"
    onnx.save(network(layers, weights), source)
    per_filter = Recipe("per filter", WeightRecipe("int4"), min_elements=1, protect=False)
    found = {"float": accuracy(source)}
    for recipe in (per_filter, Recipe.of("W4A16"), Recipe.of("W4A16_ASYM")):
        report = quantize_onnx(source, tmp_path / "q.onnx", recipe, progress=False, overwrite=True)
        found[recipe.name] = accuracy(tmp_path / "q.onnx")
        assert not report.skipped
    assert found["float"] > 75
    assert found["per filter"] < found["float"] - 10
    assert found["W4A16"] > found["float"] - 2
    assert found["W4A16_ASYM"] > found["float"] - 2
