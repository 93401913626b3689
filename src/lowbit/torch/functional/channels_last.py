"""Images in torch.channels_last: views of them as contiguous [N, ..., C], and back."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(x: Tensor) -> bool:
    """Whether x is channels_last and not contiguous; with one channel or one pixel it would be both."""
    found = _FORMATS.get(x.ndim)
    return found is not None and not x.is_contiguous() and x.is_contiguous(memory_format=found)


def empty_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for a result like x, in x's memory format if that is channels_last, else contiguous."""
    kept = x.is_contiguous() or is_channels_last(x)
    kept_format = torch.preserve_format if kept else torch.contiguous_format
    return torch.empty_like(x, dtype=dtype, memory_format=kept_format)


def channels_innermost(x: Tensor) -> Tensor:
    """A view of [N, C, ...] as [N, ..., C]."""
    return x.movedim(1, -1)


def axis_innermost(axis: int | None, ndim: int) -> int | None:
    """The position of an axis of [N, C, ...] in [N, ..., C]; one out of bounds is returned as it is.

    >>> [axis_innermost(axis, 4) for axis in (0, 1, 2, -1, None)]
    [0, 3, 1, 2, None]
    """
    if axis is None or not -ndim <= axis < ndim:
        return axis
    place = axis % ndim
    return place if place == 0 else ndim - 1 if place == 1 else place - 1


def channels_first(y: Tensor) -> Tensor:
    """The reverse of `channels_innermost`, for a contiguous y. Not a view, so that callers may write to it."""
    shaped = y.movedim(-1, 1)
    whole = torch.empty(0, dtype=y.dtype, device=y.device)
    return whole.set_(y.untyped_storage(), y.storage_offset(), shaped.shape, shaped.stride())


def in_memory_order(
    kernel: Callable[..., Any], arrays: int, axis_at: int, in_order: bool = False
) -> Callable[..., Any]:
    """A kernel that also takes channels_last images, in memory order.

    Its first `arrays` arguments and its first result have one shape; the last of those arguments gives the memory
    format. Arguments `axis_at` and the next are its axis and group size. in_order: the kernel also reduces, which
    must follow the order of the shape.
    """

    def run(*arguments: Any) -> Any:
        restored: Callable[[Tensor], Tensor]
        alike, x = arguments[:arrays], arguments[arrays - 1]
        if x.is_contiguous() or not is_channels_last(x) or any(a.shape != x.shape for a in alike):
            return kernel(*arguments)
        if in_order or arguments[axis_at + 1] is not None:  # groups follow the order of the shape, too
            found = kernel(*(a.contiguous() for a in alike), *arguments[arrays:])
            restored = functools.partial(Tensor.contiguous, memory_format=_FORMATS[x.ndim])
        else:
            axis = axis_innermost(arguments[axis_at], x.ndim)
            ordered = (channels_innermost(a) for a in alike)
            found = kernel(*ordered, *arguments[arrays:axis_at], axis, *arguments[axis_at + 1 :])
            restored = channels_first
        return restored(found) if isinstance(found, Tensor) else (restored(found[0]), *found[1:])

    return run
