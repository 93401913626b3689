"""What to do with the weights of a model, and what was done: recipes and reports. Knows no file format."""

from __future__ import annotations

from lowbit.models.recipe import PRESETS, ActivationRecipe, Override, Recipe, Rule, WeightRecipe, load_recipe
from lowbit.models.report import (
    Accuracy,
    Histogram,
    Latency,
    MetricResult,
    ModelReport,
    WeightRow,
)

__all__ = [
    "PRESETS", "Accuracy", "ActivationRecipe", "Histogram", "Latency", "MetricResult", "ModelReport", "Override",
    "Recipe", "Rule", "WeightRecipe", "WeightRow", "load_recipe",
]  # fmt: skip
