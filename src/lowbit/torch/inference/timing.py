"""Compare quantized modules and models with the float ones they replace: time, error and size."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch.nn.parameter import is_lazy
from torch.utils import _pytree

import torch
from lowbit.bench.timing import Timing, measure
from lowbit.models.report import Accuracy, Latency
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.metrics import error_report
from lowbit.runtime.threads import get_num_threads
from lowbit.torch.inference.batches import call_on, first_tensors
from lowbit.torch.inference.layers import QuantizedModule
from torch import Tensor, nn

_NOISE = 1.02  # times closer than this are equal
_LAYER_SECONDS = 0.05  # to time a layer and its replacement
_MODEL_SECONDS = 0.3  # to time both models


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
            found[id(module)] = kept.setdefault(_call_key(module, x), x.detach())

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
        self.inputs = inputs
        self._timings: dict[Hashable, LayerTiming] = {}

    def time(self, module: nn.Module, before: nn.Module, after: nn.Module, key: Hashable) -> LayerTiming | None:
        """Time `after` against `before` on the input recorded for `module`; None if none was recorded."""
        x = self.inputs.get(id(module))
        if x is None:
            return None
        key = (*_call_key(module, x), key)
        if key not in self._timings:
            given = _arguments(module, x)
            timing = time_pair(lambda: before(*given), lambda: after(*given), _LAYER_SECONDS)
            if timing.is_slower:  # or the machine was busy
                again = time_pair(lambda: before(*given), lambda: after(*given), _LAYER_SECONDS)
                timing = LayerTiming(min(timing.float_s, again.float_s), min(timing.quantized_s, again.quantized_s))
            self._timings[key] = timing
        return self._timings[key]


def _arguments(module: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    """What a module is timed on, of which the first is known: attention takes queries, keys and values."""
    if not isinstance(module, nn.MultiheadAttention):
        return (x,)
    widths = module.kdim, module.vdim
    return x, *(x if width == x.shape[-1] else x.new_zeros((*x.shape[:-1], width)) for width in widths)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set eval() mode, and restore every module's mode afterwards."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def model_bytes(model: nn.Module) -> int:
    """Bytes of parameters, buffers and packed weights; each counted once."""
    tensors = {id(t): t.numel() * t.itemsize for t in (*model.parameters(), *model.buffers()) if not is_lazy(t)}
    return sum(tensors.values()) + sum(m.nbytes for m in model.modules() if isinstance(m, QuantizedModule))


def accuracy_on(expected: Any, model: nn.Module, example: Any) -> list[Accuracy]:
    """How far each float tensor of the model's output on one batch is from the float model's output."""
    with torch.no_grad():
        output = call_on(model, example)
    rows = []
    pairs = zip(_pytree.tree_leaves(expected), _pytree.tree_leaves(output), strict=False)
    for i, (before, after) in enumerate(pairs):
        if isinstance(before, Tensor) and before.is_floating_point() and before.numel():
            x, y = (t.detach().float().contiguous().numpy() for t in (before, after))
            e = error_report(x, y)
            rows.append(Accuracy(f"output {i}", e.sqnr_db, e.cosine, e.max_error, len(before) if before.ndim else 1))
    return rows


def latency_on(before: nn.Module, after: nn.Module, example: Any) -> Latency:
    """Time both models on one batch, interleaved."""
    calls = {"float": lambda: call_on(before, example), "quantized": lambda: call_on(after, example)}
    with eval_mode(before), torch.inference_mode():
        found = measure(calls, seconds=_MODEL_SECONDS, warmup=1)
    return latency_of(example, found["float"], found["quantized"])


def latency_of(example: Any, before: Timing, after: Timing) -> Latency:
    """The row of a report for both models on one batch."""
    shapes = ", ".join(str(list(t.shape)) for t in _pytree.tree_leaves(example) if isinstance(t, Tensor))
    return Latency.of("torch", shapes, get_num_threads(), before, after)
