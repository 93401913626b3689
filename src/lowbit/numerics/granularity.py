"""Which elements of an array share a scale: one rule for tensor, channel, token and group."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem


class Granularity(NamedTuple):
    """Which elements of an array, seen as [outer, axis, inner], share a scale."""

    kind: int  # 0 tensor, 1 channel, 2 group
    outer: int
    axis: int
    inner: int
    block: int
    scale_shape: tuple[int, ...]

    @property
    def varies(self) -> bool:
        """Whether neighbours in memory have different scales."""
        return self.inner == 1 and self.axis > 1 if self.kind == 1 else self.kind == 2 and self.inner > 1


def granularity_of(shape: tuple[int, ...], axis: int | None, group_size: int | None) -> Granularity:
    """One scale for all; with `axis` one for each of its indices; with `group_size` one for so many along it.

    >>> granularity_of((4, 6), 1, 4).scale_shape
    (4, 2)
    """
    if axis is None:
        return Granularity(0, 1, 1, math.prod(shape), 1, ())
    if not -len(shape) <= axis < len(shape):
        raise InvalidProblem(f"axis: {axis} is out of bounds for an array of {len(shape)} dimensions")
    axis %= len(shape)
    outer, size, inner = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    if group_size is None:
        return Granularity(1, outer, size, inner, 1, (size,))
    blocks = -(-size // group_size)
    return Granularity(2, outer, size, inner, group_size, (*shape[:axis], blocks, *shape[axis + 1 :]))


def per_token(shape: tuple[int, ...]) -> Granularity:
    """One scale for each row of the last axis."""
    if not shape:
        raise InvalidProblem("shape: (); expected at least one dimension, the last being a token's features")
    return Granularity(1, 1, math.prod(shape[:-1]), shape[-1], 1, shape[:-1])


def spread(values: Array, g: Granularity, shape: tuple[int, ...]) -> Array:
    """One value per scale, as an array of this shape."""
    if g.kind == 0 or values.ndim == 0:
        return np.broadcast_to(values.reshape(()), shape)
    if g.kind == 1:
        return np.broadcast_to(values.reshape(1, g.axis, 1), (g.outer, g.axis, g.inner)).reshape(shape)
    blocks = values.reshape(g.outer, -(-g.axis // g.block), g.inner)
    return np.repeat(blocks, g.block, axis=1)[:, : g.axis].reshape(shape)
