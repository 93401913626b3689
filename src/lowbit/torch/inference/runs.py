"""Which layers to quantize, by what is measured: neighbours are judged together, as they may pay only together.

Quantized neighbours pass images to each other in the format that their kernels take. A layer that is slower than float
between two float layers may therefore be faster between two quantized ones.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lowbit.bench.timing import Timing
from lowbit.torch.inference.timing import LayerTiming

OPTIMIZE = ("balanced", "speed", "size")
LEAST = {"balanced": 0.97, "speed": 1.03}  # times the speed of float below which layers stay float
_ATTEMPTS = 4
_MOST_SECONDS = 10.0  # no attempt begins later

Choice = frozenset[str]  # names of the layers that are quantized
_FLOAT = Choice()


@dataclass(frozen=True)
class Layer:
    """A layer that may be quantized."""

    name: str
    saved: int  # bytes that quantizing it saves
    alone: LayerTiming  # between float layers
    for_memory: bool = False  # only its weights are quantized, to be smaller: it is quantized at any speed

    def pays_alone(self, least: float) -> bool:
        return not self.alone.is_slower and (least <= 1 or self.alone.float_s >= least * self.alone.quantized_s)


class Clock(Protocol):
    """What times a model with different layers quantized."""

    def compare(self, choices: Sequence[Choice]) -> list[Timing]:
        """Time whole models, interleaved."""

    def by_layer(self, choices: Sequence[Choice]) -> list[dict[str, float]]:
        """Seconds of each layer in whole models; a layer owns what is computed after it, up to the next one."""


@dataclass(frozen=True)
class Run:
    """Neighbours that are quantized, timed together within the model."""

    names: tuple[str, ...]
    timing: LayerTiming

    def __str__(self) -> str:
        return f"with its run of {len(self.names)} layers, {self.names[0]} to {self.names[-1]}: {self.timing}"


@dataclass
class Decision:
    """The choice, and the measurements it is made by."""

    quantized: Choice
    before: Timing  # the whole model in float
    after: Timing  # as chosen
    speeds: dict[Choice, float]  # of every choice that was timed whole, as a multiple of float's
    inside: dict[str, LayerTiming] = field(default_factory=dict)  # layers within the model; empty where all pay alone
    runs: list[Run] = field(default_factory=list)

    @property
    def slower(self) -> str:
        """By how much the chosen model is slower than float, and what to do; empty where it is not."""
        if LEAST["balanced"] * self.after.median <= self.before.median:
            return ""
        times = f"{1e3 * self.after.median:.4g} ms, float {1e3 * self.before.median:.4g} ms"
        return (
            f"layers of which only the weights are quantized, to save memory, make the model slower ({times}); "
            'optimize="speed" quantizes only what is faster'
        )

    @property
    def notes(self) -> list[str]:
        """The choices that were timed whole, if there were several, and what the chosen one costs."""
        tried = sorted((c for c in self.speeds if c), key=lambda c: -self.speeds[c])
        texts = (f"{len(c)} quantized {self.speeds[c]:.2f}{' (chosen)' * (c == self.quantized)}" for c in tried)
        whole = f"layers timed whole, as multiples of float's speed: {', '.join(texts)}"
        return [whole] * (len(tried) > 1 or not self.quantized) + [self.slower] * bool(self.slower)


def decide(layers: Sequence[Layer], clock: Clock, optimize: str) -> Decision:
    """Choose among all layers, those that pay one by one, and runs of neighbours, by the time of the whole model.

    layers: in the order in which the model calls them. optimize: "balanced" takes the smallest of the choices within
    3 % of the fastest, and layers that are quantized for memory in any case; "speed" the fastest, if it is at least
    3 % faster than float.
    """
    begun, least = time.perf_counter(), LEAST[optimize]
    base = _for_memory(layers, optimize)
    every, alone = frozenset(layer.name for layer in layers), pay_alone(layers, optimize)
    choices = [_FLOAT, base, every, alone]
    if alone != every:
        plain, quantized = clock.by_layer([base, every])
        conversions = _conversions(layers, plain, quantized)
        choices.append(_cheapest(layers, plain, quantized, conversions, base, least))
    found = _compared(layers, clock, choices, base, least)
    if found.quantized == base != every:  # or the machine was busy
        found = _compared(layers, clock, choices, base, least)
    if alone == every:
        return found
    for attempts in itertools.count():
        plain, now = clock.by_layer([base, found.quantized])
        quantized |= _between_quantized(layers, now, conversions, found.quantized)
        attempt = _cheapest(layers, plain, quantized, conversions, base, least)
        if attempt in found.speeds or attempts == _ATTEMPTS or time.perf_counter() - begun > _MOST_SECONDS:
            break
        again = _compared(layers, clock, [_FLOAT, base, found.quantized, attempt], base, least)
        again.speeds = found.speeds | again.speeds
        found = again
    measured = quantized | {name: now[name] for name in found.quantized}
    found.inside = {name: LayerTiming(plain[name], measured[name]) for name in every}
    found.runs = _runs(layers, found)
    return found


def pay_alone(layers: Sequence[Layer], optimize: str) -> Choice:
    """The layers that pay one by one, and those that are quantized in any case."""
    pay = (layer.name for layer in layers if layer.pays_alone(LEAST[optimize]))
    return _for_memory(layers, optimize) | frozenset(pay)


def _for_memory(layers: Sequence[Layer], optimize: str) -> Choice:
    return frozenset(layer.name for layer in layers if layer.for_memory and optimize == "balanced")


def _compared(layers: Sequence[Layer], clock: Clock, choices: Sequence[Choice], base: Choice, least: float) -> Decision:
    """Time choices together, and take the smallest of those that are nearly as fast as the fastest."""
    distinct = list(dict.fromkeys(choices))
    timings = dict(zip(distinct, clock.compare(distinct), strict=True))
    seconds = {c: timing.median for c, timing in timings.items()}
    allowed = [c for c in distinct if c == base or (c > base and least * seconds[c] <= seconds[base])]
    fastest = min(seconds[c] for c in allowed)
    near = [c for c in allowed if min(least, 1.0) * seconds[c] <= fastest]
    chosen = max(near, key=lambda c: (sum(layer.saved for layer in layers if layer.name in c), -seconds[c]))
    return Decision(chosen, timings[_FLOAT], timings[chosen], {c: seconds[_FLOAT] / seconds[c] for c in distinct})


def _conversions(
    layers: Sequence[Layer], plain: Mapping[str, float], quantized: Mapping[str, float]
) -> dict[str, float]:
    """Seconds that a float neighbour costs each layer: what it loses alone and not where all layers are quantized."""
    sides = dict.fromkeys((layer.name for layer in layers), 0)
    for one, other in itertools.pairwise(layers):
        sides[one.name] += 1
        sides[other.name] += 1
    found = {}
    for layer in layers:
        lost_inside = quantized[layer.name] - plain[layer.name]
        lost_alone = layer.alone.quantized_s - layer.alone.float_s
        found[layer.name] = max(0.0, lost_alone - lost_inside) / max(1, sides[layer.name])
    return found


def _between_quantized(
    layers: Sequence[Layer], seconds: Mapping[str, float], conversions: Mapping[str, float], choice: Choice
) -> dict[str, float]:
    """Seconds of the layers of a choice without the conversions that their float neighbours cost."""
    found = {layer.name: seconds[layer.name] for layer in layers if layer.name in choice}
    for one, other in itertools.pairwise(layers):
        pair = {one.name, other.name} & choice
        if len(pair) == 1:
            found[next(iter(pair))] -= conversions[next(iter(pair))]
    return found


def _cheapest(
    layers: Sequence[Layer],
    plain: Mapping[str, float],
    quantized: Mapping[str, float],
    conversions: Mapping[str, float],
    base: Choice,
    least: float,
) -> Choice:
    """The choice that should be fastest, by the seconds of layers in float, between quantized layers, and by the
    conversions next to float ones: the shortest path through the layers, each of them float or quantized."""
    on_float: tuple[float, tuple[str, ...]] = (0.0, ())  # seconds and names, where the last layer is float
    on_quantized: tuple[float, tuple[str, ...]] = (0.0, ())  # where it is quantized
    last_conversion = 0.0
    for layer in layers:
        name = layer.name
        into_float = min(on_float, (on_quantized[0] + last_conversion, on_quantized[1]))
        into_quantized = min(on_quantized, (on_float[0] + conversions[name], on_float[1]))
        stays = math.inf if name in base else plain[name]
        on_float = (into_float[0] + stays, into_float[1])
        on_quantized = (into_quantized[0] + least * quantized[name], (*into_quantized[1], name))
        last_conversion = conversions[name]
    return frozenset(min(on_float, on_quantized)[1])


def _runs(layers: Sequence[Layer], found: Decision) -> list[Run]:
    """The runs of at least two quantized neighbours."""
    runs = []
    for is_quantized, group in itertools.groupby(layers, lambda layer: layer.name in found.quantized):
        names = tuple(layer.name for layer in group)
        if is_quantized and len(names) > 1:
            before = sum(found.inside[name].float_s for name in names)
            runs.append(Run(names, LayerTiming(before, sum(found.inside[name].quantized_s for name in names))))
    return runs
