"""Which elements of an array share a scale: one rule for tensor, channel, token and group."""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

import numpy as np

from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem


class Kind(str, Enum):
    """What has a scale of its own."""

    TENSOR, CHANNEL, GROUP = "tensor", "channel", "group"


class Granularity(NamedTuple):
    """Which elements of an array, seen as [outer, axis, inner], share a scale."""

    kind: Kind
    outer: int
    axis: int
    inner: int
    block: int
    scale_shape: tuple[int, ...]

    @property
    def varies(self) -> bool:
        """Whether neighbours in memory have different scales."""
        if self.kind is Kind.CHANNEL:
            return self.inner == 1 and self.axis > 1
        return self.kind is Kind.GROUP and self.inner > 1


def granularity_of(shape: tuple[int, ...], axis: int | None, group_size: int | None) -> Granularity:
    """One scale for all; with `axis` one for each of its indices; with `group_size` one for each group along it, or
    along the last axis.

    >>> granularity_of((4, 6), 1, 4).scale_shape
    (4, 2)
    """
    if group_size is not None and axis is None:
        axis = -1
    if axis is None:
        return Granularity(Kind.TENSOR, 1, 1, math.prod(shape), 1, ())
    if not -len(shape) <= axis < len(shape):
        raise InvalidProblem(f"axis: {axis} is out of bounds for an array of {len(shape)} dimensions")
    axis %= len(shape)
    outer, size, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    if group_size is None:
        return Granularity(Kind.CHANNEL, outer, size, inner, 1, (size,))
    blocks = -(-size // group_size)
    return Granularity(Kind.GROUP, outer, size, inner, group_size, (*shape[:axis], blocks, *shape[axis + 1 :]))


def per_token(shape: tuple[int, ...]) -> Granularity:
    """One scale for each row of the last axis."""
    if not shape:
        raise InvalidProblem("shape: (); expected at least one dimension, the last being a token's features")
    return Granularity(Kind.CHANNEL, 1, math.prod(shape[:-1]), shape[-1], 1, shape[:-1])


def spread(values: Array, g: Granularity, shape: tuple[int, ...]) -> Array:
    """One value per scale, as an array of this shape."""
    if g.kind is Kind.TENSOR or values.ndim == 0:
        return np.broadcast_to(values.reshape(()), shape)
    if g.kind is Kind.CHANNEL:
        return np.broadcast_to(values.reshape(1, g.axis, 1), (g.outer, g.axis, g.inner)).reshape(shape)
    blocks = values.reshape(g.outer, -(-g.axis // g.block), g.inner)
    return np.repeat(blocks, g.block, axis=1)[:, : g.axis].reshape(shape)
