"""GPTQ in sequence: each layer is solved for what the layers before it, quantized already, give it.

The model runs block by block, once with its float weights and once with the quantized ones, and what each block returns
is kept: a pass per group of layers that share their inputs, over one block at a time.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import torch
from benchmarks.accuracy_beds import Bed
from benchmarks.accuracy_methods import Setting
from lowbit.algorithms.gptq import factored
from lowbit.algorithms.gptq import solve as solve_gptq
from lowbit.algorithms.grid import matrix
from lowbit.algorithms.sequential import corrected
from lowbit.calibration import Moments
from torch import Tensor, nn

_Call = tuple[tuple[Any, ...], dict[str, Any]]


@torch.no_grad()
def put_sequentially(bed: Bed, setting: Setting, strength: float = 1.0) -> None:
    """Quantizes the linear layers of a bed's blocks one after the other, in place."""
    names = {layer: name for name, layer in bed.layers.items()}
    calls = _first_calls(bed)
    floats = [args[0] for args, _ in calls]  # what the block is given by the float blocks, and by the quantized ones
    quantized = list(floats)
    for block in bed.blocks:
        exact = copy.deepcopy(block)
        twins = dict(zip(block.modules(), exact.modules(), strict=True))
        for group in _sharing(block, calls[0], floats[0]):
            moments = Moments(group[0].in_features, cross=True)
            for batch, call, given, seen in zip(bed.batches, calls, floats, quantized, strict=True):
                y, x = _input(exact, twins[group[0]], call, given), _input(block, group[0], call, seen)
                moments.add(x, None if bed.weights is None else bed.weights(batch), reference=y)
            factor, cross = factored(moments.gram(), moments.width), moments.cross()
            for layer in group:
                w = matrix(bed.floats[names[layer]])
                q = solve_gptq(corrected(w, factor, cross, strength), setting.grid(w.shape[1]), factor)
                bed.put(names[layer], np.asarray(q.dequantize()))
        floats = [_run(exact, call, x) for call, x in zip(calls, floats, strict=True)]
        quantized = [_run(block, call, x) for call, x in zip(calls, quantized, strict=True)]


def _first_calls(bed: Bed) -> list[_Call]:
    """What the first block is called with, for each batch; the other blocks get the same but for the first argument."""
    seen: list[_Call] = []
    handle = bed.blocks[0].register_forward_pre_hook(lambda _, *call: seen.append(call), with_kwargs=True)
    try:
        for batch in bed.batches:
            bed.body(*batch) if isinstance(batch, tuple) else bed.body(batch)
    finally:
        handle.remove()
    return seen


def _sharing(block: nn.Module, call: _Call, x: Tensor) -> list[list[nn.Linear]]:
    """The linear layers of a block in the order in which they run, those with the same input together."""
    with _inputs([m for m in block.modules() if isinstance(m, nn.Linear)]) as seen:
        _run(block, call, x)
    groups: dict[int, list[Any]] = {}
    for layer, given in seen:
        groups.setdefault(id(given), []).append(layer)
    return list(groups.values())


def _input(block: nn.Module, layer: nn.Module, call: _Call, x: Tensor) -> Tensor:
    with _inputs([layer]) as seen:
        _run(block, call, x)
    return seen[0][1]


def _run(block: nn.Module, call: _Call, x: Tensor) -> Tensor:
    args, options = call
    found = block(x, *args[1:], **options)
    return found[0] if isinstance(found, tuple) else found


@contextmanager
def _inputs(layers: list[nn.Module]) -> Iterator[list[tuple[nn.Module, Tensor]]]:
    seen: list[tuple[nn.Module, Tensor]] = []
    handles = [m.register_forward_pre_hook(lambda module, given: seen.append((module, given[0]))) for m in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
