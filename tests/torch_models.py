"""Models, recipes and a clock that tests of lowbit.torch.quantize share."""

from __future__ import annotations

from typing import Any

import pytest

import lowbit.torch as lt
import torch
from lowbit.models import Recipe
from lowbit.torch.inference import timing
from torch import nn

ALL = {"min_elements": 0}


def fake_clock(monkeypatch: pytest.MonkeyPatch, pace: Any) -> list[Any]:
    timed: list[Any] = []

    def time_pair(before: Any, after: Any, seconds: float) -> Any:
        timed.append((before(), after()))
        return pace(*timed[-1])

    monkeypatch.setattr(timing, "time_pair", time_pair)
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
