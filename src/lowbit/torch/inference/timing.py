"""Time a quantized module against the float module it replaces, on the input the model gives it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lowbit.bench.timing import measure
from lowbit.numerics.errors import InvalidProblem
from lowbit.torch.inference.batches import call_on, first_tensors
from torch import Tensor, nn

_NOISE = 1.02  # times closer than this are equal
_LAYER_SECONDS = 0.05  # to time a layer and its replacement


@dataclass(frozen=True)
class LayerTiming:
    """The best of interleaved calls, in seconds: other work on the machine can only add to a call."""

    float_s: float
    quantized_s: float

    @property
    def is_slower(self) -> bool:
        """Whether the quantized call is slower, beyond noise."""
        return self.quantized_s > _NOISE * self.float_s

    def __str__(self) -> str:
        return f"float {1e3 * self.float_s:.4g} ms, quantized {1e3 * self.quantized_s:.4g} ms"


def record_inputs(model: nn.Module, batch: Any, modules: Iterable[nn.Module]) -> tuple[dict[int, Tensor], Any]:
    """Run the model once; give the first input of each module called, by the module's id, and the model's output."""
    found: dict[int, Tensor] = {}
    kept: dict[Any, Tensor] = {}  # equal modules share an input: all inputs of a run together may be large

    def record(module: nn.Module, x: Tensor) -> None:
        if id(module) not in found:
            found[id(module)] = kept.setdefault(_call_key(module, x), x)

    try:
        with first_tensors(modules, record), torch.no_grad():
            return found, call_on(model, batch)
    except TypeError as error:
        raise InvalidProblem(f"example: the model cannot be called on it ({error}); expected its inputs") from error


def _call_key(module: nn.Module, x: Tensor) -> tuple[Any, ...]:
    return type(module), module.extra_repr(), tuple(x.shape), x.dtype, x.stride()


def time_pair(before: Callable[[], Any], after: Callable[[], Any], seconds: float) -> LayerTiming:
    """Interleave both calls for about `seconds`."""
    with torch.inference_mode():
        found = measure({"float": before, "quantized": after}, seconds=seconds, warmup=1)
    return LayerTiming(found["float"].best, found["quantized"].best)


class LayerTimer:
    """Times replacements on recorded inputs; modules with equal keys are timed once."""

    def __init__(self, inputs: Mapping[int, Tensor]) -> None:
        self.inputs, self._timings = inputs, dict[Hashable, LayerTiming]()

    def time(self, module: nn.Module, before: nn.Module, after: nn.Module, key: Hashable) -> LayerTiming | None:
        """Time `after` against `before` on the input recorded for `module`; None if none was recorded."""
        x = self.inputs.get(id(module))
        if x is None:
            return None
        key = (*_call_key(module, x), key)
        if key not in self._timings:
            timing = time_pair(lambda: before(x), lambda: after(x), _LAYER_SECONDS)
            if timing.is_slower:  # or the machine was busy
                again = time_pair(lambda: before(x), lambda: after(x), _LAYER_SECONDS)
                timing = LayerTiming(min(timing.float_s, again.float_s), min(timing.quantized_s, again.quantized_s))
            self._timings[key] = timing
        return self._timings[key]
