"""Time a model with different layers of it quantized: whole, and layer by layer within it."""

from __future__ import annotations

import copy
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from lowbit.bench.timing import Timing, measure, without_gc
from lowbit.numerics.errors import Unsupported
from lowbit.torch.inference.batches import call_on
from lowbit.torch.inference.folding import Folded, for_inference
from lowbit.torch.inference.layers import QuantizedModule
from lowbit.torch.inference.runs import Choice
from torch import nn

M = TypeVar("M", bound=nn.Module)
_SECONDS = 0.25  # for each model, to compare whole models
_PROFILE_SECONDS = 0.15  # for each model, to time its layers
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 30


def replaced_copy(model: M, new: Mapping[str, nn.Module], *, sharing: bool = False) -> M:
    """A copy for inference with some modules replaced. sharing: it shares all other modules and tensors."""
    # The memo makes deepcopy take these objects instead of copying the old ones.
    memo: dict[int, Any] = {id(model.get_submodule(name)): module for name, module in new.items()}
    if sharing:
        memo = _unaffected(model, set(memo)) | memo
    try:
        made = copy.deepcopy(model, memo)
    except Exception as error:  # the model's own code may raise anything when copied
        raise Unsupported(f"model: it cannot be copied ({error}); use inplace=True") from error
    return for_inference(made)  # type: ignore[no-any-return]


def _unaffected(model: nn.Module, replaced: set[int]) -> dict[int, Any]:
    """By id: tensors, and modules inside which nothing is replaced or quantized, whose formats depend on neighbours."""
    found: dict[int, Any] = {id(t): t for t in (*model.parameters(), *model.buffers())}
    for module in model.modules():
        if not any(id(inner) in replaced or isinstance(inner, QuantizedModule) for inner in module.modules()):
            found[id(module)] = module
    return found


class ModelClock:
    """Times a model on one batch with any choice of its layers quantized."""

    def __init__(self, model: nn.Module, example: Any, folds: Mapping[str, Sequence[str]]) -> None:
        """folds: names of the modules that a quantized convolution has folded, by its name."""
        self.modules: Mapping[str, nn.Module] = {}  # quantized ones, by the names of those that they replace
        self._model, self._example, self._folds = model, example, folds
        self._trials: dict[Choice, nn.Module] = {frozenset(): model}

    def compare(self, choices: Sequence[Choice]) -> list[Timing]:
        calls = {str(i): partial(call_on, self._trial(c), self._example) for i, c in enumerate(choices)}
        with torch.inference_mode():
            found = measure(calls, seconds=_SECONDS * len(calls), warmup=1)
        return [found[name] for name in calls]

    def by_layer(self, choices: Sequence[Choice]) -> list[dict[str, float]]:
        """The best of interleaved calls: other work on the machine can only add to a call."""
        trials = [self._trial(c) for c in choices]
        best: list[dict[str, float]] = [{} for _ in choices]
        end = time.perf_counter() + _PROFILE_SECONDS * len(choices)
        with torch.inference_mode(), without_gc():
            for trial in trials:
                call_on(trial, self._example)
            for i in range(_MOST_ROUNDS):
                for trial, seconds in zip(trials, best, strict=True):
                    for name, spent in self._one_call(trial).items():
                        seconds[name] = min(spent, seconds.get(name, spent))
                if i + 1 >= _LEAST_ROUNDS and time.perf_counter() > end:
                    break
        return best

    def _one_call(self, trial: nn.Module) -> dict[str, float]:
        with _starts(trial, self.modules) as starts:
            call_on(trial, self._example)
            starts.append(("", time.perf_counter()))
        seconds = dict.fromkeys(self.modules, 0.0)
        for (name, begun), (_, ended) in itertools.pairwise(starts):
            seconds[name] += ended - begun
        return seconds

    def _trial(self, choice: Choice) -> nn.Module:
        if choice not in self._trials:
            # A quantized convolution's memory format depends on its neighbours: each trial has copies of its own.
            new = {name: copy.deepcopy(self.modules[name]) for name in choice}
            new |= {folded: Folded() for name in choice for folded in self._folds.get(name, ())}
            self._trials[choice] = replaced_copy(self._model, new, sharing=True)
        return self._trials[choice]


@contextmanager
def _starts(model: nn.Module, names: Mapping[str, Any]) -> Iterator[list[tuple[str, float]]]:
    """The name and time of each call of these modules."""
    found: list[tuple[str, float]] = []

    def hook(name: str, *_: Any) -> None:
        found.append((name, time.perf_counter()))

    handles = [model.get_submodule(name).register_forward_pre_hook(partial(hook, name)) for name in names]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
