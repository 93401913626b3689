"""What of a model holds weights: which of it lowbit has a module for, and why not where it has none."""

from __future__ import annotations

from dataclasses import dataclass

from torch.nn.parameter import is_lazy

import torch
from lowbit.numerics.errors import Unsupported, UnsupportedDType
from lowbit.torch.inference.embedding import QuantizedEmbedding
from lowbit.torch.inference.fast_paths import readers
from lowbit.torch.inference.layers import QuantizedModule
from torch import nn

__all__ = ["Holder", "check_memory", "inventory"]

_SWAPPED: dict[type[nn.Module], str] = {
    nn.Linear: "linear", nn.Conv1d: "conv", nn.Conv2d: "conv", nn.Embedding: "embedding",
}  # fmt: skip
# Products all the same, but there is no module of lowbit for them.
_OTHERS: dict[type[nn.Module], str] = {
    nn.Bilinear: "linear", nn.RNNBase: "linear", nn.RNNCellBase: "linear", nn.MultiheadAttention: "linear",
    nn.Conv3d: "conv", nn.ConvTranspose1d: "conv", nn.ConvTranspose2d: "conv", nn.ConvTranspose3d: "conv",
    nn.EmbeddingBag: "embedding",
}  # fmt: skip
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class Holder:
    """A module with weights, under all of its names."""

    names: tuple[str, ...]
    module: nn.Module
    kind: str  # "linear", "conv", "embedding", or empty: no product
    why_not: str = ""  # empty: lowbit has a module that does the same

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of its largest parameter."""
        own = [p for p in self.module.parameters(recurse=False) if not is_lazy(p)]
        if isinstance(self.module, QuantizedModule | QuantizedEmbedding):
            return tuple(self.module.weight.shape)
        return tuple(max(own, key=lambda p: p.numel()).shape) if own else ()

    @property
    def dtype(self) -> str:
        own = next(self.module.parameters(recurse=False), None)
        return "" if own is None else str(own.dtype).removeprefix("torch.")


def inventory(model: nn.Module) -> list[Holder]:
    """Every module with parameters of its own, once, in the model's order.

    >>> [(h.name, h.kind, h.why_not) for h in inventory(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))]
    [('0', 'linear', ''), ('1', '', 'nothing in LayerNorm is multiplied with a weight')]
    """
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Module] = {}
    inside: dict[int, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
        modules[id(module)] = module
        if read := readers(module):
            for child in module.modules():
                if child is not module:
                    inside[id(child)] = read  # the innermost counts
    found = []
    for key, module in modules.items():
        is_done = isinstance(module, QuantizedModule | QuantizedEmbedding)
        if not is_done and next(module.parameters(recurse=False), None) is None:
            continue
        kind, why_not = ("", "it is quantized already") if is_done else _judged(module, inside.get(key))
        found.append(Holder(tuple(names[key]), module, kind, why_not))
    return found


def _judged(module: nn.Module, reader: str | None) -> tuple[str, str]:
    """(kind, why not)"""
    called = type(module).__name__
    for base, kind in _SWAPPED.items():
        if isinstance(module, base):
            return kind, _obstacle(module, base, reader)
    for base, kind in _OTHERS.items():
        if isinstance(module, base):
            return kind, f"no quantized form of {called} here"
    if called == "Conv1D" and hasattr(module, "nf"):  # of transformers
        return "linear", "Conv1D keeps its weight the other way round; no quantized form of it here"
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return "", "a batch norm that is not certain to follow one quantized convolution, and nothing else"
    if type(module).__module__.startswith("torch.nn."):
        return "", f"nothing in {called} is multiplied with a weight"
    return "", f"parameters of {called} itself"


def _obstacle(module: nn.Module, base: type[nn.Module], reader: str | None) -> str:
    if reader is not None:
        return reader
    if hasattr(module, "parametrizations"):
        return "its weight is parametrized"
    if type(module) is not base:
        return f"{type(module).__name__} is a subclass of {base.__name__}, which may compute something else"
    if "weight" not in module._parameters:
        return "its weight is computed from other parameters"
    if "forward" in module.__dict__:
        return "its forward was replaced"
    if any(getattr(module, hooks) for hooks in _HOOKS):
        return "has hooks, which may change what it computes"
    weight = module._parameters["weight"]
    assert weight is not None
    if weight.numel() == 0:
        return "its weight is empty"
    if weight.dtype is torch.float64:
        return "float64, which lowbit's layers do not take"
    if isinstance(module, nn.Conv1d | nn.Conv2d) and module.padding_mode != "zeros":
        return f"it pads by {module.padding_mode!r}; lowbit's convolutions pad with zeros"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "max_norm changes its rows as they are looked up"
    return ""


def check_memory(holder: Holder) -> None:
    """Raises for weights that are not numbers in CPU memory, with the module's name."""
    for name, p in holder.module.named_parameters(recurse=False):
        full = f"{holder.name}.{name}".lstrip(".")
        if p.is_meta:
            raise Unsupported(f"{full}: on the meta device, where it has no values; load the model first")
        if p.device.type != "cpu":
            raise Unsupported(f"{full}: on {p.device}; expected CPU memory: model.cpu()")
        if p.is_nested or p.layout is not torch.strided:
            raise UnsupportedDType(f"{full}: a nested or sparse tensor; expected a dense one")
        if p.dtype not in _FLOATS:
            raise UnsupportedDType(f"{full}: {p.dtype}; expected float32, float16 or bfloat16")
