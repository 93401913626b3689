"""The rows that a layer multiplies by its weight matrix: a linear layer's inputs, the patches of a convolution."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch.nn.functional as F
from torch.nn.utils.rnn import PackedSequence

import torch
from torch import Tensor, nn

Block = tuple[Tensor, Tensor | None]  # rows and their weights
_NBYTES = 32 << 20  # of the rows that are made at once
_PROJECTIONS = {"q_proj": ("query", 0), "k_proj": ("key", 1), "v_proj": ("value", 2)}


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
            found = cls(module.in_features, 1, None)
        elif is_transposed_linear(module):
            found = cls(int(module.get_parameter("weight").shape[0]), 1, None)
        elif isinstance(module, nn.Conv1d | nn.Conv2d):
            window = module.kernel_size, module.stride, module.padding, module.dilation, module.padding_mode
            width = module.in_channels // module.groups * math.prod(module.kernel_size)
            found = cls(width, module.groups, (type(module).__name__, *window))
        else:
            return None
        return found if found.width else None  # a lazy module has no width before its first call


def is_transposed_linear(module: nn.Module) -> bool:
    """Whether it is transformers' Conv1D: a linear layer whose weight is [inputs, outputs]."""
    return type(module).__name__ == "Conv1D" and hasattr(module, "nf")


def products_of(module: nn.Module) -> dict[str, RowShape]:
    """The products of a module by weights whose rows it is given, by name: "" where it is one.

    A product inside a module, such as that of an LSTM by its state, is not among them.

    >>> list(products_of(nn.LSTM(4, 8, 2, bidirectional=True))), list(products_of(nn.MultiheadAttention(8, 2)))
    (['ih_l0', 'ih_l0_reverse'], ['q_proj', 'k_proj', 'v_proj'])
    """
    if isinstance(module, nn.LSTM | nn.GRU):
        names = ["ih_l0", "ih_l0_reverse"][: 1 + module.bidirectional]
        return dict.fromkeys(names, RowShape(module.input_size, 1, None))
    if isinstance(module, nn.MultiheadAttention):
        widths = module.embed_dim, module.kdim, module.vdim
        return {name: RowShape(width, 1, None) for name, width in zip(_PROJECTIONS, widths, strict=True)}
    shape = RowShape.of(module)
    return {} if shape is None else {"": shape}


def inputs_of_products(
    module: nn.Module, given: Sequence[Any], keywords: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """What a call of the module gives each of its products, by the names of `products_of`."""
    everything = (*given, *keywords.values())
    for name in products_of(module):
        key, at = _PROJECTIONS.get(name, ("", 0))
        x = keywords[key] if key in keywords else next(iter(everything[at:]), None)
        x = x.data if isinstance(x, PackedSequence) else x
        if isinstance(x, Tensor) and x.is_floating_point() and x.numel():
            yield name, x


def lead_of(module: nn.Module, x: Tensor) -> torch.Size:
    """The dimensions of x whose elements may count differently: images of a convolution, rows of other layers."""
    if not isinstance(module, nn.Conv1d | nn.Conv2d):
        return x.shape[:-1]
    return x.shape[:1] if x.ndim == module.weight.ndim else torch.Size((1,))


def rows_of(module: nn.Module, x: Tensor, weights: Tensor | None = None) -> Iterator[Block]:
    """Rows [..., width], or [..., groups, width] of a grouped convolution, and their weights, in blocks of about 32 MB.

    weights: of the leading dimensions (see `lead_of`).

    >>> [(rows, _)] = rows_of(nn.Conv1d(2, 4, 3, padding=1), torch.ones(1, 2, 5))
    >>> rows.shape, rows[0, 0]
    (torch.Size([1, 5, 6]), tensor([0., 1., 1., 0., 1., 1.]))
    """
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        yield from _patches(module, x, weights)
    else:
        yield x.contiguous(), weights


def _patches(module: nn.Conv1d | nn.Conv2d, x: Tensor, weights: Tensor | None) -> Iterator[Block]:
    flat = isinstance(module, nn.Conv1d)
    images = x.float()
    images = images if images.ndim == (3 if flat else 4) else images.unsqueeze(0)
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    images = F.pad(images, module._reversed_padding_repeated_twice, mode)
    images = images.unsqueeze(2) if flat else images
    pairs = (module.kernel_size, module.stride, module.dilation)
    kernel, stride, dilation = (((1,) if flat else ()) + pair for pair in pairs)
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
            patches = F.unfold(band, kernel, dilation=dilation, stride=stride)  # [n, channels * positions, results]
            width = channels // module.groups * positions
            rows = patches.transpose(1, 2).reshape(len(some), -1, module.groups, width)
            rows = (rows if module.groups > 1 else rows.squeeze(2)).contiguous()
            yield rows, None if weight is None else weight.expand(-1, rows.shape[1])
