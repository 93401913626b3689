"""Select the replacement of each module with weights: by the recipe, then by time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lowbit.calibration import Calibrator
from lowbit.models.recipe import Recipe, Rule
from lowbit.numerics.errors import Unsupported
from lowbit.ops.fitting import Products
from lowbit.torch.inference.replacement import Replacement, make_replacement, unsupported_reason
from lowbit.torch.inference.timing import LayerTimer
from lowbit.torch.inference.weight_modules import WeightModule, require_cpu_floats
from torch import nn


@dataclass(frozen=True)
class Candidate:
    """A module with weights and the recipe's rule for it. `why_not` is empty where it can be quantized."""

    source: WeightModule
    rule: Rule
    asked: bool
    why_not: str
    declined: bool = False  # the recipe skips it by its name or its kind

    @property
    def key(self) -> int:
        return id(self.source.module)

    @property
    def is_static(self) -> bool:
        """Whether calibration must find a range for its input."""
        a = self.rule.activations
        return not self.why_not and self.source.kind != "embedding" and a is not None and not a.dynamic

    @staticmethod
    def of(source: WeightModule, recipe: Recipe) -> Candidate:
        if not source.kind:
            return Candidate(source, Rule(recipe.weights, None), False, source.why_not)
        elements = int(np.prod(source.shape))
        weights = [f"{name}.weight".lstrip(".") for name in source.names]
        rule = recipe.rule(source.name, source.kind, elements, (*source.names[1:], *weights))
        if rule.skip:
            by_name = recipe.rule(source.name, source.kind, None, (*source.names[1:], *weights))
            return Candidate(source, rule, False, rule.skip, bool(by_name.skip))
        if not source.why_not:
            require_cpu_floats(source)
        return Candidate(source, rule, True, source.why_not or unsupported_reason(rule, source.kind))


@dataclass(frozen=True)
class Selection:
    """A candidate with its replacement, or the reason it stays float."""

    candidate: Candidate
    replacement: Replacement | None = None
    why_not: str = ""
    note: str = ""
    asked: bool = True


def select(
    candidate: Candidate,
    ranges: Mapping[str, Calibrator],
    norm: nn.Module | None,
    products: Products,
    timer: LayerTimer | None,
) -> Selection:
    """Quantize one candidate, and keep it float where it would be slower.

    norm: a batch norm to fold into it. products: how many products must fit 16 bits. timer: None skips timing.
    """
    if candidate.why_not:
        return Selection(candidate, None, candidate.why_not, asked=candidate.asked)
    source, rule, params = candidate.source, candidate.rule, None
    if candidate.is_static and rule.activations is not None:
        if source.name not in ranges:
            return Selection(candidate, None, "no calibration batch reached it")
        a = rule.activations
        params = ranges[source.name].calibrate(a.dtype, a.scheme, method=a.calibration_method())
    module = source.module
    try:
        made = make_replacement(module, rule, source.name, input_params=params, norm=norm, products=products)
    except Unsupported as error:
        return Selection(candidate, None, str(error))
    note = ""
    if timer is not None:
        before = module if norm is None else nn.Sequential(module, norm)
        timing = timer.time(module, before, made.module, (source.dtype, rule, norm is None))
        if timing is not None:
            note = f"{timing} on {list(timer.inputs[candidate.key].x.shape)}"
            if timing.is_slower:
                return Selection(candidate, None, "float is faster", note, asked=False)
    return Selection(candidate, made, "", note)
