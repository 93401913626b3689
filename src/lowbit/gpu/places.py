# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Which scale an element has, from its place in memory: one rule for tensor, channel, token and group.

Arrays are taken flat, so that loads and stores are whole vectors whatever the shape; a program has BLOCK elements that
lie side by side. For the scales the array is seen as rows of `columns` elements:

| kind       | rows of          | scale of (row, column)                                               |
|------------|------------------|----------------------------------------------------------------------|
| TENSOR     | anything         | 0                                                                    |
| ROWS       | [outer * axis, inner] | row % axis                          channels, tokens            |
| COLUMNS    | [outer, axis]    | column                                   channels of the last axis   |
| FLAT       | anything         | element // GROUP                         groups that fill the last axis |
| GROUPS     | [outer, axis]    | row * groups + column // GROUP           groups of the last axis     |
| GROUP_ROWS | [outer * axis, inner] | ((row // axis) * groups + (row % axis) // GROUP) * inner + column |
"""

from __future__ import annotations

from lowbit.gpu.language import jit, tl

__all__ = [
    "COLUMNS", "FLAT", "GROUPS", "GROUP_ROWS", "ROWS", "TENSOR", "load_affine", "load_parameter", "program_index",
    "scale_index",
]  # fmt: skip

TENSOR, ROWS, COLUMNS, FLAT, GROUPS, GROUP_ROWS = (tl.constexpr(i) for i in range(6))


@jit
def program_index(INDEX64: tl.constexpr):
    """This program's number, in a type that any index into the arrays fits."""
    if INDEX64:
        return tl.program_id(0).to(tl.int64)
    else:
        return tl.program_id(0)


@jit
def _row_start(row, columns, axis, groups, KIND: tl.constexpr, GROUP: tl.constexpr):
    """What a row adds to the index of a scale."""
    if KIND == ROWS:
        return row % axis
    elif KIND == GROUPS:
        return row * groups
    else:
        return ((row // axis) * groups + (row % axis) // GROUP) * columns


@jit
def scale_index(
    first, columns, axis, groups, KIND: tl.constexpr, GROUP: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr
):
    """The indices of the scales of BLOCK elements from `first` on. LONG: a row is not shorter than BLOCK, so that a
    program sees two rows at most and nothing is divided element by element."""
    inside = tl.arange(0, BLOCK)
    if KIND == FLAT:
        return (first + inside) // GROUP
    row = first // columns
    column = first - row * columns + inside
    if LONG:
        over = column >= columns
        column = tl.where(over, column - columns, column)
        if KIND == COLUMNS:
            return column
        start = tl.where(
            over,
            _row_start(row + 1, columns, axis, groups, KIND, GROUP),
            _row_start(row, columns, axis, groups, KIND, GROUP),
        )
    else:
        over = column // columns
        column -= over * columns
        if KIND == COLUMNS:
            return column
        start = _row_start(row + over, columns, axis, groups, KIND, GROUP)
    if KIND == ROWS:
        return start
    elif KIND == GROUPS:
        return start + column // GROUP
    else:
        return start + column


@jit
def load_parameter(values, index, mask, other, KIND: tl.constexpr):
    """One value for each element, or one for all."""
    if KIND == TENSOR:
        return tl.load(values)
    else:
        return tl.load(values + index, mask=mask, other=other)


@jit
def load_affine(
    scale, zero, first, n, columns, axis, groups,
    KIND: tl.constexpr, GROUP: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(s, z) of BLOCK elements from `first` on. zero may be None: all are 0."""
    mask = first + tl.arange(0, BLOCK) < n
    index = 0
    if KIND != TENSOR:
        index = scale_index(first, columns, axis, groups, KIND, GROUP, LONG, BLOCK)
    s = load_parameter(scale, index, mask, 1.0, KIND)
    z = tl.zeros((1,), tl.int32)
    if zero is not None:
        z = load_parameter(zero, index, mask, 0, KIND)
    return s, z
