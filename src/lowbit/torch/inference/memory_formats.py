"""Choose the memory format in which quantized convolutions pass images on, by what consumes them."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F

import torch
from lowbit.torch.inference.layers import QuantizedConv2d
from lowbit.torch.inference.state_dict import SavedModule
from torch import fx, nn

# What takes images in either memory format, and gives them in that format.
_MODULES = frozenset(
    {nn.Identity, nn.BatchNorm2d, nn.Dropout, nn.Dropout2d, nn.Upsample}
    | {nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Hardswish, nn.LeakyReLU, nn.ELU, nn.Sigmoid, nn.Hardsigmoid, nn.Tanh}
    | {nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d}
)
_FUNCTIONS = frozenset(
    {operator.add, operator.iadd, operator.mul, operator.imul, torch.add, torch.mul, torch.cat}
    | {torch.relu, torch.sigmoid, torch.tanh, F.relu, F.relu6, F.gelu, F.silu, F.hardswish, F.leaky_relu, F.elu}
    | {F.sigmoid, F.hardsigmoid, F.tanh, F.dropout, F.dropout2d, F.interpolate}
    | {F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d}
)
_METHODS = frozenset({"add", "add_", "mul", "mul_", "relu", "relu_", "sigmoid", "tanh"})


def set_memory_formats(model: nn.Module) -> None:
    """Set `memory_format` of each quantized convolution by what consumes its result, where torch.fx can trace that.

    The format is channels_last where only what keeps the format lies between the convolution and other quantized ones,
    or what gives the same for both formats, such as nn.Flatten. What a traced module returns stays contiguous.

    >>> from lowbit.torch import quantize
    >>> net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    >>> small = quantize(net)  # which calls this function
    >>> small[0].memory_format, small[2].memory_format
    (torch.channels_last, torch.contiguous_format)
    """
    if not any(isinstance(m, QuantizedConv2d) for m in model.modules()):
        return
    uses = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    for module, graph in _graphs(model, set()):
        _set_in(module, graph, uses)


def trace(model: nn.Module, opaque: set[int]) -> fx.Graph | None:
    """The graph of a model's calls, or None. opaque: ids of modules that are called as they are."""
    try:
        with _unchanged(model):
            return _Tracer(opaque).trace(model)
    except Exception:  # the model's own code may raise anything when traced
        return None


class _Tracer(fx.Tracer):
    def __init__(self, opaque: set[int]) -> None:
        super().__init__()
        self._opaque = opaque

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        is_ours = isinstance(m, SavedModule) or id(m) in self._opaque
        return is_ours or super().is_leaf_module(m, module_qualified_name)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restore attributes of modules afterwards: code that is traced may keep what it is given."""
    kept = [(m, dict(m.__dict__)) for m in model.modules()]
    try:
        yield
    finally:
        for module, attributes in kept:
            for name in module.__dict__.keys() - attributes.keys():
                del module.__dict__[name]
            module.__dict__.update(attributes)


def _graphs(module: nn.Module, opaque: set[int]) -> list[tuple[nn.Module, fx.Graph]]:
    """Modules with their graphs, the outermost last; those that cannot be traced are opaque to the others."""
    graph = trace(module, opaque)
    if graph is not None:
        return [(module, graph)]
    found = []
    for child in module.children():
        if not isinstance(child, SavedModule) and (
            not type(child).__module__.startswith("torch.nn.") or next(child.children(), None) is not None
        ):
            found += _graphs(child, opaque)
    graph = trace(module, opaque)
    if graph is None:
        opaque.add(id(module))
        return found
    return [*found, (module, graph)]


def _set_in(root: nn.Module, graph: fx.Graph, uses: Counter[int]) -> None:
    modules = {n: root.get_submodule(str(n.target)) for n in graph.nodes if n.op == "call_module"}
    calls = Counter(id(m) for m in modules.values())
    free: dict[fx.Node, bool] = {}  # whether all that consumes the result of a node takes either format
    for node in reversed(graph.nodes):
        free[node] = all(_takes_both(user, modules.get(user), free) for user in node.users)
    last: dict[fx.Node, bool] = {}  # whether a node gives channels_last
    for node in graph.nodes:
        module = modules.get(node)
        before = any(last[given] for given in node.all_input_nodes)
        last[node] = before and _keeps(node, module)
        if type(module) is QuantizedConv2d and calls[id(module)] == uses[id(module)] == 1:
            last[node] = free[node] and bool(node.users)
            kept = torch.contiguous_format if before else None  # None: that of its input
            module.memory_format = torch.channels_last if last[node] else kept


def _takes_both(node: fx.Node, module: nn.Module | None, free: dict[fx.Node, bool]) -> bool:
    """Whether a node, and what consumes its result, take either format and give the same."""
    if isinstance(module, QuantizedConv2d):
        return True
    if isinstance(module, nn.Flatten):
        return (module.start_dim, module.end_dim) == (1, -1)
    if node.target in ("size", "dim") or (node.target is getattr and node.args[1] == "shape"):
        return True
    if node.target in ("flatten", torch.flatten):
        return node.args[1:] == (1,) and not node.kwargs
    if node.target in ("mean", torch.mean):
        return _over_pixels(node.args[1:]) and not node.kwargs.keys() - {"keepdim"}
    return _keeps(node, module) and free[node]


def _over_pixels(dims: tuple[Any, ...]) -> bool:
    return len(dims) == 1 and isinstance(dims[0], list | tuple) and set(dims[0]) in ({2, 3}, {-1, -2})


def _keeps(node: fx.Node, module: nn.Module | None) -> bool:
    if node.op == "call_module":
        return type(module) in _MODULES or (isinstance(module, nn.Identity) and isinstance(module, SavedModule))
    return node.target in (_FUNCTIONS if node.op == "call_function" else _METHODS if node.op == "call_method" else ())
