"""Launch arguments from a granularity: scale layouts, the parts of a reduction, block sizes."""

from __future__ import annotations

from typing import NamedTuple

from lowbit.numerics.granularity import Granularity, Kind

TENSOR, ROWS, COLUMNS, FLAT, GROUPS, GROUP_ROWS = range(6)  # as in scale_access.py
PIECE, BAND = 4096, 64  # of learned sums: the contract's order, as in reductions.py
RANGE_PIECE = 16384  # of ranges: the result does not depend on it


class ScaleLayout(NamedTuple):
    """Arguments of element-wise kernels that select the scale of each element."""

    kind: int
    columns: int
    axis: int
    groups: int
    group: int


def scale_layout(g: Granularity, scales: int) -> ScaleLayout:
    """The layout for a number of `scales`; a single scale serves every granularity.

    >>> scale_layout(Granularity(Kind.GROUP, 4, 70, 1, 32, (4, 3)), 12)
    ScaleLayout(kind=4, columns=70, axis=70, groups=3, group=32)
    """
    group = max(1, min(g.block, g.axis))
    groups = -(-g.axis // group)
    if scales == 1:
        return ScaleLayout(TENSOR, 1, 1, 1, 1)
    if g.kind is Kind.CHANNEL:
        return ScaleLayout(*((COLUMNS, g.axis) if g.inner == 1 else (ROWS, g.inner)), g.axis, 1, 1)
    if g.inner > 1:
        return ScaleLayout(GROUP_ROWS, g.inner, g.axis, groups, group)
    return ScaleLayout(GROUPS if g.axis % group else FLAT, g.axis, g.axis, groups, group)


class Parts(NamedTuple):
    """How a reduction by scale is split, see reductions.py. length: elements of a row, or the rows of columns."""

    by_columns: int  # 1 or 0: Triton passes bools as bytes
    length: int
    group: int
    groups: int
    pieces: int  # or bands, of a group
    longest: int  # of the pieces
    columns: int
    scales: int
    outer: int  # rows that share a scale

    @property
    def total(self) -> int:
        return self.outer * self.scales * self.pieces

    @property
    def is_uniform(self) -> bool:
        """Whether every run is a whole group, in one piece."""
        return self.pieces == 1 and self.length % self.group == 0

    @property
    def is_final(self) -> bool:
        """Whether each scale has exactly one part."""
        return self.outer * self.pieces == 1


def parts_of(g: Granularity, piece: int) -> Parts:
    """Split runs into pieces of `piece` elements, columns into bands of 64 rows.

    >>> parts_of(Granularity(Kind.CHANNEL, 2, 3, 5000, 1, (3,)), 4096).pieces
    2
    """
    if g.varies:
        # Channels of the last axis are the columns of one group: all rows.
        rows, columns = (g.outer, g.axis) if g.kind is Kind.CHANNEL else (g.axis, g.inner)
        group = max(1, min(g.block, rows)) if g.kind is Kind.GROUP else rows
        groups = -(-rows // group)
        owners = groups * (1 if g.kind is Kind.CHANNEL else g.outer)
        return Parts(1, rows, group, groups, -(-group // BAND), min(group, BAND), columns, owners * columns, 1)
    if g.kind is Kind.GROUP:
        group = max(1, min(g.block, g.axis))
        length, groups, scales, outer = g.axis, -(-g.axis // group), g.outer * -(-g.axis // group), 1
    else:
        length = g.outer * g.axis * g.inner if g.kind is Kind.TENSOR else g.inner
        group, groups, (scales, outer) = length, 1, ((1, 1) if g.kind is Kind.TENSOR else (g.axis, g.outer))
    return Parts(0, length, group, groups, -(-group // piece), min(group, piece), 1, scales, outer)


def power_of_two(least: int, most: int = 1 << 30) -> int:
    """The least power of two that is not below `least`, at most `most`.

    >>> power_of_two(9), power_of_two(9, 8), power_of_two(0)
    (16, 8, 1)
    """
    return min(most, 1 << max(0, least - 1).bit_length())


def indices_are_wide(elements: int) -> bool:
    """Whether offsets need 64 bits, with a margin for what kernels add to them."""
    return elements >= 1 << 30
