"""`equalize`: a model whose channels have equal ranges on both sides of an activation, and that computes the same.

What is scaled: a convolution's or linear layer's outputs, in its weight and bias, or in the batch norm behind it; and
the columns of the layer that reads them. See `lowbit.algorithms.equalize` for the equation.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch.nn.functional as F

import torch
from lowbit.algorithms.equalize import equalizing_scale, input_ranges, row_ranges, times_inputs
from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem
from lowbit.torch.inference.folding import replace_modules
from lowbit.torch.inference.memory_formats import trace
from torch import Tensor, fx, nn

M = TypeVar("M", bound=nn.Module)
_SWEEPS = 20  # over all pairs: what is scaled for one moves the ranges of the next
_CONVS = (nn.Conv1d, nn.Conv2d)
_NORMS: dict[Any, tuple[type[nn.Module], ...]] = {nn.Conv1d: (nn.BatchNorm1d,), nn.Conv2d: (nn.BatchNorm2d,)}
# f(s x) = s f(x) for s > 0, channel by channel.
_ELEMENTWISE = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.ReLU, nn.LeakyReLU, nn.PReLU)
_POOLS = (
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
)  # fmt: skip
_FUNCTIONS = (F.relu, torch.relu, F.leaky_relu, F.dropout)
_POOL_FUNCTIONS = (F.max_pool1d, F.max_pool2d, F.avg_pool1d, F.avg_pool2d, F.adaptive_avg_pool1d, F.adaptive_avg_pool2d)
_METHODS = ("relu", "contiguous")


class ChannelReLU6(nn.Module):
    """min(max(x, 0), bound) with a bound of each channel: what ReLU6 is of channels that were divided by scales.

    bound: [channels, 1, 1] for images.

    >>> ChannelReLU6(torch.tensor([[6.0], [3.0]]))(torch.full((1, 2, 1), 5.0)).flatten()
    tensor([5., 3.])
    """

    bound: Tensor

    def __init__(self, bound: Tensor) -> None:
        super().__init__()
        self.register_buffer("bound", bound)

    def forward(self, x: Tensor) -> Tensor:
        return torch.minimum(x.relu(), self.bound)


@dataclass
class Pair:
    """Two layers, and what is between them."""

    first: str
    norm: str  # the batch norm after the first, or ""
    clamps: tuple[str, ...]  # ReLU6 modules between
    flattened: bool  # images, to rows of a linear layer
    second: str


def equalize(model: M, *, inplace: bool = False) -> M:
    """The model in eval() mode with equalized channels; a copy unless `inplace`. Outputs are the same to the bit.

    Pairs of layers are found where the model can be traced: Conv1d, Conv2d or Linear, a batch norm or none, then only
    functions that scale with their input (ReLU, leaky ReLU, poolings, dropout, flatten), or ReLU6, which becomes a
    `ChannelReLU6`, to a layer that alone reads them. Additions, concatenations and other functions end a pair. Scales
    are powers of two, so that products and sums are the same numbers times powers of two: torch gives the same bits
    where it takes the same kernels, and no number falls out of float32's normal range.

    Channels of different size cost accuracy where they share a scale: activations, and the columns of a weight with a
    scale per output. A `ChannelReLU6` is not part of the convolution before it, as ReLU6 is, and takes time of its own.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).eval()
    >>> _ = net[0].weight.data.copy_(torch.tensor([[16.0, 2], [1, 1]])), net[2].weight.data.fill_(1)
    >>> made = equalize(net)
    >>> made[0].weight.detach(), made[2].weight.detach()
    (tensor([[4.0000, 0.5000],
            [1.0000, 1.0000]]), tensor([[4., 1.]]))
    """
    if not isinstance(model, nn.Module):
        raise InvalidProblem(f"model: {type(model).__name__}; expected a torch.nn.Module")
    if not inplace:
        model = copy.deepcopy(model)
    model.eval()
    pairs = find_pairs(model)
    with torch.no_grad():
        for _ in range(_SWEEPS):
            changed = [_equalize_pair(model, pair) for pair in pairs]
            if not any(changed):
                break
    return model


def find_pairs(model: nn.Module) -> list[Pair]:
    """The pairs of layers that can be equalized; none where the model cannot be traced."""
    graph = trace(model, set())
    if graph is None:
        return []
    times = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    shared = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    weights = Counter(id(p) for m in model.modules() for p in m.parameters(recurse=False))

    def own(node: fx.Node, kinds: tuple[type[nn.Module], ...]) -> Any:
        """The module that is called here and nowhere else, with parameters that no other one has."""
        if node.op != "call_module" or times[str(node.target)] != 1:
            return None
        m: Any = model.get_submodule(str(node.target))
        if type(m) not in kinds or shared[id(m)] != 1:
            return None
        if any(weights[id(p)] > 1 or p.dtype != torch.float32 for p in m.parameters()):
            return None
        if m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) or hasattr(m, "parametrizations"):
            return None
        return m

    found = [_pair_from(node, model, own) for node in graph.nodes]
    return [pair for pair in found if pair is not None]


def _pair_from(node: fx.Node, model: nn.Module, own: Any) -> Pair | None:
    first = own(node, (*_CONVS, nn.Linear))
    if first is None or not isinstance(getattr(first, "weight", None), nn.Parameter):
        return None
    pair = Pair(str(node.target), "", (), False, "")
    while len(node.users) == 1:
        is_first = str(node.target) == pair.first
        node = next(iter(node.users))
        if node.op == "output":
            return None
        if (second := own(node, (*_CONVS, nn.Linear))) is not None:
            pair.second = str(node.target)
            return pair if _fit(first, second, pair) else None
        if is_first and (norm := own(node, _NORMS.get(type(first), ()))) is not None:
            if norm.running_var is None:
                return None
            pair.norm = str(node.target)
        elif own(node, (nn.ReLU6, ChannelReLU6)) is not None and not pair.flattened:
            pair.clamps += (str(node.target),)
        elif _flattens(node, model):
            pair.flattened = True
        elif not _scales_with_its_input(node, model, images=type(first) in _CONVS):
            return None
    return None


def _fit(first: Any, second: Any, pair: Pair) -> bool:
    """Whether channels of the first are those that the second reads."""
    channels = len(first.weight)
    if isinstance(first, nn.Linear) != isinstance(second, nn.Linear):
        return isinstance(second, nn.Linear) and pair.flattened and second.in_features % channels == 0
    inputs = second.in_features if isinstance(second, nn.Linear) else second.in_channels
    return bool(inputs == channels and (isinstance(second, nn.Linear) or not pair.flattened))


def _flattens(node: fx.Node, model: nn.Module) -> bool:
    """Whether this makes rows of all but the first axis."""
    if node.op == "call_module":
        m = model.get_submodule(str(node.target))
        return type(m) is nn.Flatten and (m.start_dim, m.end_dim) == (1, -1)
    is_flatten = (node.op, node.target) in (("call_function", torch.flatten), ("call_method", "flatten"))
    start = node.args[1] if len(node.args) > 1 else node.kwargs.get("start_dim")
    end = node.args[2] if len(node.args) > 2 else node.kwargs.get("end_dim", -1)
    return is_flatten and (start, end) == (1, -1)


def _scales_with_its_input(node: fx.Node, model: nn.Module, images: bool) -> bool:
    """Whether it is a function of each channel, f(s x) = s f(x). images: the channels are the axis before positions."""
    if node.op == "call_module":
        m = model.get_submodule(str(node.target))
        fits = type(m) in _ELEMENTWISE or (images and type(m) in _POOLS)
        return fits and not m._forward_hooks and not m._forward_pre_hooks
    if node.op == "call_function":
        return node.target in _FUNCTIONS or (images and node.target in _POOL_FUNCTIONS)
    return node.op == "call_method" and node.target in _METHODS


def _equalize_pair(model: nn.Module, pair: Pair) -> bool:
    """Scale the channels of a pair; whether any changed."""
    first: Any = model.get_submodule(pair.first)
    second: Any = model.get_submodule(pair.second)
    norm: Any = model.get_submodule(pair.norm) if pair.norm else None
    scale = _scale_of(first, norm, second)
    if (scale == 1).all():
        return False
    divided = norm if norm is not None else first
    by = torch.from_numpy(scale)
    if norm is not None and norm.weight is None:
        norm.weight, norm.bias = nn.Parameter(torch.ones(len(by))), nn.Parameter(torch.zeros(len(by)))
        norm.affine = True
    for p in divided.parameters(recurse=False):
        p.div_(by.to(p.dtype).reshape(-1, *(1 for _ in p.shape[1:])))
    columns = times_inputs(_columns(second, len(scale)), scale, _groups(second))
    second.weight.copy_(torch.from_numpy(columns).reshape(second.weight.shape))
    for name in pair.clamps:
        clamp: Any = model.get_submodule(name)
        bound = clamp.bound if isinstance(clamp, ChannelReLU6) else torch.tensor(6.0)
        by_channel = by.reshape(-1, *(1 for _ in first.weight.shape[2:]))
        replace_modules(model, {name: ChannelReLU6(bound / by_channel).eval()})
    return True


def _scale_of(first: Any, norm: Any, second: Any) -> Array:
    """s of each channel, of the ranges with the norm folded in."""
    rows = row_ranges(first.weight.detach().float().numpy()).astype(np.float64)
    if norm is not None:
        gamma = 1.0 if norm.weight is None else norm.weight.detach().double().numpy()
        rows = rows * np.abs(gamma) / np.sqrt(norm.running_var.double().numpy() + norm.eps)
    return equalizing_scale(rows, input_ranges(_columns(second, len(rows)), _groups(second)))


def _groups(layer: Any) -> int:
    return int(getattr(layer, "groups", 1))


def _columns(layer: Any, channels: int) -> Array:
    """The weight of a layer as [outputs, channels / groups, positions]."""
    weight: Array = layer.weight.detach().float().numpy()
    return weight.reshape(len(weight), channels // _groups(layer), -1)
