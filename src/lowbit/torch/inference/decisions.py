"""What is to become of each module with weights: what the recipe says, and what the clock says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.calibration import Calibrator
from lowbit.models.recipe import Recipe, Rule
from lowbit.numerics.errors import Unsupported
from lowbit.ops.fitting import Products
from lowbit.torch.inference import never_slower
from lowbit.torch.inference.inventory import Holder, check_memory
from lowbit.torch.inference.never_slower import Pace, Sighting
from lowbit.torch.inference.quantized import Made, made_module, obstacle_in
from torch import nn

__all__ = ["Decision", "Stopwatch", "Wanted", "decided"]

_LAYER_SECONDS = 0.05  # to time a layer and its replacement


@dataclass(frozen=True)
class Wanted:
    """A module with weights, and what the recipe says of it."""

    holder: Holder
    rule: Rule
    asked: bool
    why_not: str
    declined: bool = False  # the recipe names it, or its kind, as one to leave alone

    @property
    def key(self) -> int:
        return id(self.holder.module)

    @property
    def is_static(self) -> bool:
        """Whether a range of its input must be found beforehand."""
        a = self.rule.activations
        return not self.why_not and self.holder.kind != "embedding" and a is not None and not a.dynamic

    @staticmethod
    def of(holder: Holder, recipe: Recipe) -> Wanted:
        if not holder.kind:
            return Wanted(holder, Rule(recipe.weights, None), False, holder.why_not)
        elements = int(np.prod(holder.shape))
        weights = [f"{name}.weight".lstrip(".") for name in holder.names]
        rule = recipe.rule(holder.name, holder.kind, elements, (*holder.names[1:], *weights))
        if rule.skip:
            by_name = recipe.rule(holder.name, holder.kind, None, (*holder.names[1:], *weights))
            return Wanted(holder, rule, False, rule.skip, bool(by_name.skip))
        if not holder.why_not:
            check_memory(holder)
        return Wanted(holder, rule, True, holder.why_not or obstacle_in(rule, holder.kind))


@dataclass(frozen=True)
class Decision:
    """What became of a module."""

    wanted: Wanted
    made: Made | None = None
    why_not: str = ""
    note: str = ""
    asked: bool = True


class Stopwatch:
    """Times a layer's replacement against it; layers alike are timed once."""

    def __init__(self, seen: Mapping[int, Sighting]) -> None:
        self.seen, self.known = seen, dict[Any, Pace]()

    def pace(self, wanted: Wanted, made: Made, norm: nn.Module | None) -> Pace | None:
        module, seen = wanted.holder.module, self.seen.get(wanted.key)
        if seen is None:
            return None
        key = (type(module), module.extra_repr(), wanted.holder.dtype, wanted.rule, seen.key, norm is None)
        if key not in self.known:
            before = module if norm is None else nn.Sequential(module, norm)
            self.known[key] = self._raced(lambda: before(seen.x), lambda: made.module(seen.x))
        return self.known[key]

    def _raced(self, before: Callable[[], Any], after: Callable[[], Any]) -> Pace:
        """Once; again where the new one seems slower, as the machine may have been busy with something else."""
        pace = never_slower.paced(before, after, _LAYER_SECONDS)
        if pace.is_slower:
            again = never_slower.paced(before, after, _LAYER_SECONDS)
            pace = Pace(min(pace.float_s, again.float_s), min(pace.quantized_s, again.quantized_s))
        return pace


def decided(
    wanted: Wanted,
    ranges: Mapping[str, Calibrator],
    norm: nn.Module | None,
    products: Products,
    stopwatch: Stopwatch | None,
) -> Decision:
    """What becomes of it. norm: a batch norm to fold into it; products: how many must fit 16 bits; without a stopwatch
    nothing is timed."""
    if wanted.why_not:
        return Decision(wanted, None, wanted.why_not, asked=wanted.asked)
    holder, a, given = wanted.holder, wanted.rule.activations, None
    if wanted.is_static and a is not None:
        if holder.name not in ranges:
            return Decision(wanted, None, "no calibration batch reached it")
        given = ranges[holder.name].calibrate(a.dtype, a.scheme, method=a.calibration_method())
    try:
        made = made_module(holder.module, wanted.rule, holder.name, given=given, norm=norm, products=products)
    except Unsupported as error:
        return Decision(wanted, None, str(error))
    pace = None if stopwatch is None else stopwatch.pace(wanted, made, norm)
    note = "" if pace is None else f"{pace} on {list(stopwatch.seen[wanted.key].x.shape)}"  # type: ignore[union-attr]
    if pace is not None and pace.is_slower:
        return Decision(wanted, None, "float is faster", note, asked=False)
    return Decision(wanted, made, "", note)
