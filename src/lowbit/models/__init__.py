"""Recipes, which say how to quantize the weights of a model, and reports of what was done. Knows no file format."""

from __future__ import annotations

from lowbit.models.recipe import PRESETS, ActivationRecipe, Override, Recipe, Rule, WeightRecipe, load_recipe
from lowbit.models.report import Accuracy, Histogram, Latency, MetricResult, ModelReport, WeightRow

__all__ = [
    "PRESETS", "Accuracy", "ActivationRecipe", "Histogram", "Latency", "MetricResult", "ModelReport", "Override",
    "Recipe", "Rule", "WeightRecipe", "WeightRow", "load_recipe",
]  # fmt: skip
