"""Images in torch.channels_last, taken as they lie: channels innermost. Element-wise work keeps them so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["as_it_lies", "as_it_was", "axis_as_it_lies", "empty_like", "in_memory_order", "is_channels_last"]

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_channels_last(x: Tensor) -> bool:
    """Whether x is so and no other way: with one channel, or images of one pixel, it would be contiguous too."""
    found = _FORMATS.get(x.ndim)
    return found is not None and not x.is_contiguous() and x.is_contiguous(memory_format=found)


def empty_like(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Room for x's results: as x lies where that is contiguous or channels_last, else contiguous."""
    kept = x.is_contiguous() or is_channels_last(x)
    kept_format = torch.preserve_format if kept else torch.contiguous_format
    return torch.empty_like(x, dtype=dtype, memory_format=kept_format)


def as_it_lies(x: Tensor) -> Tensor:
    """[N, C, ...] as [N, ..., C]."""
    return x.movedim(1, -1)


def axis_as_it_lies(axis: int | None, ndim: int) -> int | None:
    """The place of an axis of [N, C, ...] in [N, ..., C]. One that is none is left for others to complain of.

    >>> [axis_as_it_lies(axis, 4) for axis in (0, 1, 2, -1, None)]
    [0, 3, 1, 2, None]
    """
    if axis is None or not -ndim <= axis < ndim:
        return axis
    place = axis % ndim
    return place if place == 0 else ndim - 1 if place == 1 else place - 1


def as_it_was(y: Tensor) -> Tensor:
    """The reverse of `as_it_lies`, of a contiguous y. No view of y: autograd lets nobody write into a function's."""
    shaped = y.movedim(-1, 1)
    whole = torch.empty(0, dtype=y.dtype, device=y.device)
    return whole.set_(y.untyped_storage(), y.storage_offset(), shaped.shape, shaped.stride())


def in_memory_order(
    kernel: Callable[..., Any], arrays: int, axis_at: int, in_order: bool = False
) -> Callable[..., Any]:
    """A kernel whose first `arrays` arguments have one shape, the last of them saying in which order they lie, and
    whose first result has that shape too. Arguments `axis_at` and the next are its axis and block size. in_order: it
    also adds numbers up, for which their order is that of the shape."""

    def run(*arguments: Any) -> Any:
        alike, x = arguments[:arrays], arguments[arrays - 1]
        if x.is_contiguous() or not is_channels_last(x) or any(a.shape != x.shape for a in alike):
            return kernel(*arguments)
        if in_order or arguments[axis_at + 1] is not None:  # blocks run through the order of the shape, too
            first, rest = _first(kernel(*(a.contiguous() for a in alike), *arguments[arrays:]))
            first = first.contiguous(memory_format=_FORMATS[x.ndim])
        else:
            axis = axis_as_it_lies(arguments[axis_at], x.ndim)
            lying = (as_it_lies(a) for a in alike)
            first, rest = _first(kernel(*lying, *arguments[arrays:axis_at], axis, *arguments[axis_at + 1 :]))
            first = as_it_was(first)
        return first if rest is None else (first, *rest)

    return run


def _first(results: Any) -> tuple[Tensor, tuple[Any, ...] | None]:
    return (results, None) if isinstance(results, Tensor) else (results[0], results[1:])
