"""Timing a quantized module against the float one it replaces, on what the user's model feeds it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from lowbit.bench.timing import measure
from lowbit.numerics.errors import InvalidProblem
from lowbit.torch.inference.batches import call_on
from torch import Tensor, nn

__all__ = ["Pace", "Sighting", "paced", "sightings"]

_NOISE = 1.02  # times closer than this are the same


@dataclass(frozen=True)
class Sighting:
    """What a module was first given in a run of its model."""

    x: Tensor

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(self.x.shape), self.x.dtype, self.x.stride()


@dataclass(frozen=True)
class Pace:
    """The best of calls that took turns, in seconds: what else runs on the machine only ever adds to a call."""

    float_s: float
    quantized_s: float

    @property
    def is_slower(self) -> bool:
        """Whether the quantized call is slower, beyond noise."""
        return self.quantized_s > _NOISE * self.float_s

    def __str__(self) -> str:
        return f"float {1e3 * self.float_s:.4g} ms, quantized {1e3 * self.quantized_s:.4g} ms"


def sightings(model: nn.Module, batch: Any, modules: Iterable[nn.Module]) -> tuple[dict[int, Sighting], Any]:
    """What each module got in one run on this batch, by id, and the run's result. Modules not called are left out."""
    found: dict[int, Sighting] = {}
    kept: dict[Any, Sighting] = {}  # one for modules alike on inputs alike: a run's inputs together may be large

    def note(module: nn.Module, given: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        x = next(iter((*given, *keywords.values())), None)
        if isinstance(x, Tensor) and id(module) not in found:
            seen = Sighting(x.detach())
            found[id(module)] = kept.setdefault((type(module), module.extra_repr(), seen.key), seen)

    handles = [m.register_forward_pre_hook(note, with_kwargs=True) for m in modules]
    try:
        with torch.no_grad():
            result = call_on(model, batch)
    except TypeError as error:
        raise InvalidProblem(f"example: the model cannot be called on it ({error}); expected its inputs") from error
    finally:
        for handle in handles:
            handle.remove()
    return found, result


def paced(before: Callable[[], Any], after: Callable[[], Any], seconds: float) -> Pace:
    """Both calls in turns, for about so many seconds."""
    with torch.inference_mode():
        found = measure({"float": before, "quantized": after}, seconds=seconds, warmup=1)
    return Pace(found["float"].best, found["quantized"].best)
