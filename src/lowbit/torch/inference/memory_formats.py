"""Choose torch.channels_last for the results of convolutions whose consumers take it."""

from __future__ import annotations

from collections import Counter

import torch
from lowbit.torch.inference.folding import FoldedNorm
from lowbit.torch.inference.layers import QuantizedConv2d
from torch import nn

# Modules that take images in either memory format and keep it.
_KEEPS_FORMAT = frozenset(
    {FoldedNorm, nn.Identity, nn.BatchNorm2d, nn.Dropout, nn.Dropout2d}
    | {nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Hardswish, nn.LeakyReLU, nn.ELU, nn.Sigmoid, nn.Tanh}
    | {nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d}
)


def set_memory_formats(model: nn.Module) -> None:
    """Set `memory_format` of each quantized convolution in a Sequential by what consumes its result.

    The format is channels_last where only modules that keep the format lie between the convolution and the next one,
    or nn.Flatten. The result of a Sequential stays contiguous.

    >>> from lowbit.torch import quantize
    >>> net = nn.Sequential(nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    >>> small = quantize(net)  # which calls this function
    >>> small[0].memory_format, small[2].memory_format
    (torch.channels_last, torch.contiguous_format)
    """
    uses = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    for sequence in model.modules():
        if type(sequence) is not nn.Sequential:
            continue
        takes_both = False  # whether the consumer takes either format
        convolutions: list[tuple[QuantizedConv2d, bool]] = []
        for module in reversed(list(sequence)):
            if type(module) is QuantizedConv2d:
                convolutions.append((module, takes_both and uses[id(module)] == 1))
                takes_both = True
            elif type(module) is nn.Flatten:
                takes_both = module.start_dim == 1 and module.end_dim == -1
            elif type(module) not in _KEEPS_FORMAT:
                takes_both = False
        previous = False  # whether the convolution before gives channels_last
        for module, is_last in reversed(convolutions):
            if is_last:
                module.memory_format = torch.channels_last
            elif previous and uses[id(module)] == 1:
                module.memory_format = torch.contiguous_format
            previous = is_last
