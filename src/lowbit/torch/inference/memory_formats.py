"""Which convolutions give torch.channels_last: those from which other modules certainly take it."""

from __future__ import annotations

from collections import Counter

import torch
from lowbit.torch.inference.folding import FoldedNorm
from lowbit.torch.inference.layers import QuantizedConv2d
from torch import nn

__all__ = ["settle_memory_formats"]

# They take images in either format and keep it.
_INDIFFERENT = (
    FoldedNorm, nn.Identity, nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Hardswish, nn.LeakyReLU, nn.ELU, nn.Sigmoid,
    nn.Tanh, nn.BatchNorm2d, nn.Dropout, nn.Dropout2d, nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d,
    nn.AdaptiveMaxPool2d,
)  # fmt: skip


def settle_memory_formats(model: nn.Module) -> None:
    """Sets `memory_format` of convolutions of lowbit whose results, within a Sequential, go to another one or to
    nn.Flatten, with nothing between that would mind. What leaves the Sequential is contiguous, as it would be without.

    >>> from lowbit.torch import quantize
    >>> net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    >>> small = quantize(net)  # which settles them
    >>> small[0].memory_format, small[2].memory_format
    (torch.channels_last, torch.contiguous_format)
    """
    places = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    for sequence in model.modules():
        if type(sequence) is not nn.Sequential:
            continue
        taken, fed = False, False  # whether what comes next takes either format; whether what came before gave another
        after: list[tuple[QuantizedConv2d, bool]] = []
        for module in reversed(list(sequence)):
            if type(module) is QuantizedConv2d:
                after.append((module, taken and places[id(module)] == 1))
                taken = True
            elif type(module) is nn.Flatten:
                taken = module.start_dim == 1 and module.end_dim == -1
            elif type(module) not in _INDIFFERENT:
                taken = False
        for module, is_taken in reversed(after):
            if is_taken:
                module.memory_format = torch.channels_last
            elif fed and places[id(module)] == 1:
                module.memory_format = torch.contiguous_format
            fed = is_taken
