"""Fold batch norms and activations into the convolutions before them, and replace modules of a model."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from lowbit.torch.inference.layers import QuantizedModule
from lowbit.torch.inference.memory_formats import set_memory_formats, trace
from lowbit.torch.inference.state_dict import DESCRIPTION, SavedModule, description_tensor
from torch import Tensor, nn

_NORMS: dict[type[nn.Module], Any] = {nn.Conv1d: nn.BatchNorm1d, nn.Conv2d: nn.BatchNorm2d}
# Activations that are the bounds of what a convolution gives.
CLAMPS: dict[type[nn.Module], tuple[float, float]] = {nn.ReLU: (0.0, math.inf), nn.ReLU6: (0.0, 6.0)}


class Folded(SavedModule, nn.Identity):
    """Stands where a batch norm or an activation was folded into the convolution before it; a state_dict records it."""

    tensor_names = (DESCRIPTION,)

    def _saved(self) -> dict[str, Tensor]:
        return {DESCRIPTION: description_tensor({"kind": "folded"})}


def fold_batch_norm(conv: nn.Conv1d | nn.Conv2d, bn: Any) -> tuple[Tensor, Tensor]:
    """Weight and bias, in float32, of a convolution and the batch norm after it, as one convolution in inference.

    >>> conv, bn = nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3).eval()
    >>> weight, bias = fold_batch_norm(conv, bn)
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


def replace_modules(model: nn.Module, swaps: Mapping[str, nn.Module]) -> nn.Module:
    """Replace modules by name, wherever they appear in the model; give the model."""
    by_id = {id(model.get_submodule(name)): new for name, new in swaps.items()}
    if id(model) in by_id:
        return by_id[id(model)]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if id(child) in by_id:
                parent._modules[name] = by_id[id(child)]
    return model


def find_folds(model: nn.Module) -> dict[str, str]:
    """{convolution: batch norm} where the batch norm is certainly the only consumer of the convolution."""
    counts = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    found = {}
    for conv_name, bn_name in (dict(_neighbours(model)) | _traced(model)).items():
        if not bn_name:
            continue
        conv, bn = model.get_submodule(conv_name), model.get_submodule(bn_name)
        fits = type(conv) in _NORMS and type(bn) is _NORMS[type(conv)] and counts[id(conv)] == counts[id(bn)] == 1
        if fits and conv.out_channels == bn.num_features and bn.running_var is not None:
            found[conv_name] = bn_name
    return found


def find_activations(model: nn.Module, norms: Mapping[str, str]) -> dict[str, str]:
    """{convolution: activation} where the activation certainly is the only consumer of the convolution, or of its norm.

    norms: {convolution: batch norm} that are folded. Only what torch.fx traces is certain: a model may well take what
    neighbours in a Sequential pass on.
    """
    counts = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    after = _traced(model)
    found = {}
    for name, conv in model.named_modules():
        consumer = after.get(norms.get(name, name))
        if type(conv) in _NORMS and consumer:
            activation = model.get_submodule(consumer)
            if type(activation) in CLAMPS and counts[id(conv)] == counts[id(activation)] == 1:
                found[name] = consumer
    return found


def _neighbours(model: nn.Module) -> Iterator[tuple[str, str]]:
    for name, module in model.named_modules():
        if type(module) is nn.Sequential:
            children = [f"{name}.{child}".lstrip(".") for child in module._modules]
            yield from itertools.pairwise(children)


def _traced(model: nn.Module) -> dict[str, str]:
    """{module: the only consumer of what it gives, or "" where something else reads that, too}, by the names of all
    modules that are called; empty where the model cannot be traced."""
    graph = trace(model, set())
    if graph is None:
        return {}
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(str(node.target) for node in calls)
    consumers: dict[str, set[str]] = {name: set() for name in times}
    for node in calls:
        users = list(node.users)
        alone = len(users) == 1 and users[0].op == "call_module"
        consumers[str(node.target)].add(str(users[0].target) if alone else "")
    found = {name: next(iter(those)) if len(those) == 1 else "" for name, those in consumers.items()}
    return {name: other if times[other] == times[name] else "" for name, other in found.items()}


def _holds_quantized(module: nn.Module) -> bool:
    return any(isinstance(inner, QuantizedModule) for inner in module.modules())


def for_inference(model: Any) -> Any:
    """A model whose layers were replaced, in eval() mode: its layers are called, and pass images as they take them."""
    for module in model.modules():
        if type(module) is nn.TransformerEncoderLayer and _holds_quantized(module):
            module.activation_relu_or_gelu = 0  # the fused kernel runs only for ReLU and GELU
        if isinstance(module, nn.TransformerEncoder) and _holds_quantized(module):
            module.use_nested_tensor = False  # only the fused kernel takes nested tensors
    set_memory_formats(model)
    return model.eval()
