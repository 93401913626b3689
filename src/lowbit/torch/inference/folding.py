"""Batch norms that follow one convolution and nothing else, and replacing modules of a model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lowbit.torch.inference.state import MARK, marked
from torch import Tensor, fx, nn

__all__ = ["FoldedNorm", "folded", "folds", "swapped"]

_NORMS: dict[type[nn.Module], Any] = {nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d}


class FoldedNorm(nn.Identity):
    """Where a batch norm was whose work the layer before it now does. A state_dict says so."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[prefix + MARK] = marked({"kind": "folded"})

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        found = [key for key in state_dict if key.startswith(prefix)]
        unexpected += [key for key in found if key != prefix + MARK]
        if prefix + MARK not in found:
            missing.append(prefix + MARK)


def folded(conv: nn.Conv1d | nn.Conv2d, bn: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias, in float32, that give what a convolution and its batch norm give together in inference.

    >>> conv, bn = nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3).eval()
    >>> weight, bias = folded(conv, bn)
    >>> bool(torch.allclose(weight, conv.weight, rtol=1e-4))
    True
    """
    with torch.no_grad():
        wide = [None if t is None else t.double() for t in (bn.weight, bn.bias, conv.bias)]
        scale, shift, bias = wide
        factor = torch.rsqrt(bn.running_var.double() + bn.eps) * (1 if scale is None else scale)
        moved = ((0 if bias is None else bias) - bn.running_mean.double()) * factor + (0 if shift is None else shift)
        weight = conv.weight.double() * factor.reshape(-1, *(1 for _ in conv.weight.shape[1:]))
    return weight.float(), moved.float()


def swapped(model: nn.Module, swaps: Mapping[str, nn.Module]) -> nn.Module:
    """The model with modules replaced, wherever they appear in it."""
    by_id = {id(model.get_submodule(name)): new for name, new in swaps.items()}
    if id(model) in by_id:
        return by_id[id(model)]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if id(child) in by_id:
                parent._modules[name] = by_id[id(child)]
    return model


def folds(model: nn.Module) -> dict[str, str]:
    """{convolution: batch norm} where the one's output goes to the other and nowhere else."""
    counts: dict[int, int] = {}
    for _, module in model.named_modules(remove_duplicate=False):
        counts[id(module)] = counts.get(id(module), 0) + 1
    found = {}
    for conv_name, bn_name in (*_neighbours(model), *_traced(model)):
        conv, bn = model.get_submodule(conv_name), model.get_submodule(bn_name)
        fits = type(conv) in _NORMS and type(bn) is _NORMS[type(conv)] and counts[id(conv)] == counts[id(bn)] == 1
        if fits and _same_channels(conv, bn):
            found[conv_name] = bn_name
    return found


def _same_channels(conv: nn.Module, bn: Any) -> bool:
    return bool(conv.out_channels == bn.num_features and bn.running_var is not None)


def _neighbours(model: nn.Module) -> Iterator[tuple[str, str]]:
    for name, module in model.named_modules():
        if type(module) is nn.Sequential:
            children = [f"{name}.{child}".lstrip(".") for child in module._modules]
            yield from itertools.pairwise(children)


def _traced(model: nn.Module) -> list[tuple[str, str]]:
    """(producer, only user) pairs of module calls; none where the model cannot be traced."""
    try:
        graph = fx.Tracer().trace(model)
    except Exception:  # whatever a model's own code raises on being traced
        return []
    calls = [node for node in graph.nodes if node.op == "call_module"]
    once = {target for target in (n.target for n in calls) if sum(n.target == target for n in calls) == 1}
    pairs = []
    for node in calls:
        users = list(node.users)
        if len(users) == 1 and users[0].op == "call_module" and {node.target, users[0].target} <= once:
            pairs.append((str(node.target), str(users[0].target)))
    return pairs
