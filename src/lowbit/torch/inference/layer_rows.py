"""The rows that a layer multiplies by its weight matrix: a linear layer's inputs, the patches of a convolution."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

import torch.nn.functional as F

import torch
from torch import Tensor, nn

_NBYTES = 32 << 20  # of the rows that are made at once


class RowShape(NamedTuple):
    """What a layer makes of its input; layers that are equal here make the same rows of the same input."""

    width: int  # of a row: inputs of an output, of a convolution times positions of its kernel
    groups: int
    window: Hashable  # how a convolution cuts patches

    @classmethod
    def of(cls, module: nn.Module) -> RowShape | None:
        """That of a Linear, Conv1d, Conv2d, or transformers' Conv1D; None for other modules.

        >>> RowShape.of(nn.Conv2d(8, 12, 3, groups=4))[:2], RowShape.of(nn.Linear(5, 2))
        ((18, 4), RowShape(width=5, groups=1, window=None))
        """
        if isinstance(module, nn.Linear):
            return cls(module.in_features, 1, None)
        if is_transposed_linear(module):
            return cls(int(module.weight.shape[0]), 1, None)  # type: ignore[union-attr]
        if not isinstance(module, nn.Conv1d | nn.Conv2d):
            return None
        window = module.kernel_size, module.stride, module.padding, module.dilation, module.padding_mode
        return cls(module.weight[0].numel(), module.groups, (type(module).__name__, *window))


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether it is transformers' Conv1D: a linear layer whose weight is [inputs, outputs]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def rows_of(module: nn.Module, x: Tensor, weights: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor | None]]:
    """Rows [..., width], or [..., groups, width] of a grouped convolution, in blocks of about 32 MB, with their weights.

    weights: of the rows of a linear layer [...], or of each image of a convolution [n].

    >>> [(rows, _)] = rows_of(nn.Conv1d(2, 4, 3, padding=1), torch.ones(1, 2, 5))
    >>> rows.shape, rows[0, 0]
    (torch.Size([1, 5, 6]), tensor([0., 1., 1., 0., 1., 1.]))
    """
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        yield from _patches(module, x, weights)
    else:
        yield x, weights


def _patches(module: nn.Conv1d | nn.Conv2d, x: Tensor, weights: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
    flat = isinstance(module, nn.Conv1d)
    images = x.detach().float()
    images = images if images.ndim == (3 if flat else 4) else images.unsqueeze(0)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    images = F.pad(images, module._reversed_padding_repeated_twice, mode)
    images = images.unsqueeze(2) if flat else images
    kernel, stride, dilation = (((1,) if flat else ()) + of for of in (module.kernel_size, module.stride, module.dilation))
    (_, channels, height, across), span = images.shape, [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    lines, columns = ((size - s) // step + 1 for size, s, step in zip((height, across), span, stride, strict=True))
    positions = kernel[0] * kernel[1]
    line_bytes = max(1, columns) * channels * positions * 4
    at_once = max(1, _NBYTES // line_bytes)  # lines of results
    count = max(1, at_once // max(1, lines))  # images
    for first in range(0, len(images), count):
        some = images[first : first + count]
        weight = None if weights is None else weights[first : first + count, None]
        for top in range(0, lines, at_once):
            bottom = min(top + at_once, lines)
            band = some[:, :, top * stride[0] : (bottom - 1) * stride[0] + span[0]]
            columns_of = F.unfold(band, kernel, dilation=dilation, stride=stride)  # [n, channels * positions, results]
            rows = columns_of.transpose(1, 2).reshape(len(some), -1, module.groups, channels // module.groups * positions)
            rows = rows if module.groups > 1 else rows.squeeze(2)
            yield rows, None if weight is None else weight.expand(-1, rows.shape[1])
