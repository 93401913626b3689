"""Models, recipes and a clock that tests of lowbit.torch.quantize share."""

from __future__ import annotations

from typing import Any

import pytest

import lowbit.torch as lt
import torch
from lowbit.bench.timing import Timing
from lowbit.models import Recipe
from lowbit.torch.inference import timing
from lowbit.torch.inference.trials import ModelClock
from torch import nn

ALL = {"min_elements": 0}


def fake_clock(monkeypatch: pytest.MonkeyPatch, pace: Any) -> list[Any]:
    """Times of layers are pace(float result, quantized result); those of a model are the sums of its layers' times."""
    timed: list[Any] = []
    paces: dict[int, Any] = {}  # by the quantized module
    time_layer = timing.LayerTimer.time

    def time(self: Any, module: Any, before: Any, after: Any, key: Any) -> Any:
        found = paces[id(after)] = time_layer(self, module, before, after, key)
        return found

    def by_layer(self: Any, choices: Any) -> list[dict[str, float]]:
        alone = {name: paces[id(module)] for name, module in self.modules.items()}
        return [{name: t.quantized_s if name in c else t.float_s for name, t in alone.items()} for c in choices]

    def compare(self: Any, choices: Any) -> list[Timing]:
        return [Timing.of([sum(seconds.values())]) for seconds in by_layer(self, choices)]

    def time_pair(before: Any, after: Any, seconds: float) -> Any:
        timed.append((before(), after()))
        return pace(*timed[-1])

    monkeypatch.setattr(timing, "time_pair", time_pair)
    monkeypatch.setattr(timing.LayerTimer, "time", time)
    monkeypatch.setattr(ModelClock, "by_layer", by_layer)
    monkeypatch.setattr(ModelClock, "compare", compare)
    return timed


def recipe(name: str, **changes: Any) -> Recipe:
    return Recipe.of(name).but(**(ALL | changes))


def row_of(model: nn.Module, name: str) -> Any:
    return next(row for row in lt.report(model).rows if row.name == name)


def cnn() -> nn.Sequential:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3, stride=2),
        nn.Flatten(), nn.Linear(54, 5),
    )  # fmt: skip
    with torch.no_grad():
        model[1].running_mean.normal_()
        model[1].running_var.uniform_(0.5, 2)
        model[1].weight.uniform_(0.5, 2)
        model[1].bias.normal_()
    return model.eval()


def convolution(i: int, o: int, size: int, **options: Any) -> list[nn.Module]:
    """A convolution, a batch norm and a ReLU6."""
    conv = nn.Conv2d(i, o, size, padding=size // 2, bias=False, **options)
    nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
    return [conv, nn.BatchNorm2d(o), nn.ReLU6()]


def mobilenet(width: int = 8) -> nn.Sequential:
    """Depthwise and pointwise convolutions by turns, as in MobileNet; the quantized ones are numbered 0, 3, 6, ..., 18
    and 23."""
    layers, channels = convolution(3, width, 3, stride=2), width
    for stride in (1, 2, 1):
        layers += convolution(channels, channels, 3, stride=stride, groups=channels)
        layers += convolution(channels, channels * stride, 1)
        channels *= stride
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)).eval()


def plain_cnn() -> nn.Sequential:
    """Convolutions of 3x3, and a linear layer."""
    layers = [*convolution(3, 16, 3), *convolution(16, 32, 3, stride=2), *convolution(32, 32, 3)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).eval()
