"""Time a quantized module against the float module it replaces, on the input the model gives it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from lowbit.bench.timing import measure
from lowbit.numerics.errors import InvalidProblem
from lowbit.torch.inference.batches import call_on
from torch import Tensor, nn

_NOISE = 1.02  # times closer than this are equal
_LAYER_SECONDS = 0.05  # to time a layer and its replacement


@dataclass(frozen=True)
class LayerInput:
    """The first input of a module in a run of its model."""

    x: Tensor

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(self.x.shape), self.x.dtype, self.x.stride()


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


def record_inputs(model: nn.Module, batch: Any, modules: Iterable[nn.Module]) -> tuple[dict[int, LayerInput], Any]:
    """Run the model once; give the first input of each module called, by the module's id, and the model's output."""
    found: dict[int, LayerInput] = {}
    kept: dict[Any, LayerInput] = {}  # equal modules share an input: all inputs of a run together may be large

    def record(module: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        x = next(iter((*given, *keywords.values())), None)
        if isinstance(x, Tensor) and id(module) not in found:
            seen = LayerInput(x.detach())
            found[id(module)] = kept.setdefault((type(module), module.extra_repr(), seen.key), seen)

    handles = [m.register_forward_pre_hook(record, with_kwargs=True) for m in modules]
    try:
        with torch.no_grad():
            output = call_on(model, batch)
    except TypeError as error:
        raise InvalidProblem(f"example: the model cannot be called on it ({error}); expected its inputs") from error
    finally:
        for handle in handles:
            handle.remove()
    return found, output


def time_pair(before: Callable[[], Any], after: Callable[[], Any], seconds: float) -> LayerTiming:
    """Interleave both calls for about `seconds`."""
    with torch.inference_mode():
        found = measure({"float": before, "quantized": after}, seconds=seconds, warmup=1)
    return LayerTiming(found["float"].best, found["quantized"].best)


class LayerTimer:
    """Times replacements on recorded inputs; modules with equal keys are timed once."""

    def __init__(self, inputs: Mapping[int, LayerInput]) -> None:
        self.inputs, self._timings = inputs, dict[Hashable, LayerTiming]()

    def time(self, module: nn.Module, before: nn.Module, after: nn.Module, key: Hashable) -> LayerTiming | None:
        """Time `after` against `before` on the input recorded for `module`; None if none was recorded."""
        seen = self.inputs.get(id(module))
        if seen is None:
            return None
        key = (type(module), module.extra_repr(), seen.key, key)
        if key not in self._timings:
            self._timings[key] = self._timed(lambda: before(seen.x), lambda: after(seen.x))
        return self._timings[key]

    def _timed(self, before: Callable[[], Any], after: Callable[[], Any]) -> LayerTiming:
        """Time once, and again where the replacement seems slower: the machine may have been busy."""
        timing = time_pair(before, after, _LAYER_SECONDS)
        if timing.is_slower:
            again = time_pair(before, after, _LAYER_SECONDS)
            timing = LayerTiming(min(timing.float_s, again.float_s), min(timing.quantized_s, again.quantized_s))
        return timing
