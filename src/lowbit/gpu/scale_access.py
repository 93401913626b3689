# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The scale of each element, by its position in memory: one rule for tensor, channel, token and group.

Arrays are flat, so that loads and stores are whole vectors for every shape; a program has BLOCK consecutive elements.
To find the scales, the array is read as rows of `columns` elements:

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

TENSOR, ROWS, COLUMNS, FLAT, GROUPS, GROUP_ROWS = (tl.constexpr(i) for i in range(6))


@jit
def program_index(INDEX64: tl.constexpr):
    """The index of this program, in a type wide enough for any offset into the arrays."""
    if INDEX64:
        return tl.program_id(0).to(tl.int64)
    else:
        return tl.program_id(0)


@jit
def _row_start(row, at, RULES: tl.constexpr):
    """What a row adds to the index of a scale."""
    if RULES.KIND == ROWS:
        return row % at.axis
    elif RULES.KIND == GROUPS:
        return row * at.groups
    else:
        return ((row // at.axis) * at.groups + (row % at.axis) // RULES.GROUP) * at.columns


@jit
def scale_index(first, at, RULES: tl.constexpr):
    """The indices of the scales of BLOCK elements from `first` on. LONG: a program spans at most two rows, so no
    division per element is needed."""
    columns = at.columns
    inside = tl.arange(0, RULES.BLOCK)
    if RULES.KIND == FLAT:
        return (first + inside) // RULES.GROUP
    row = first // columns
    column = first - row * columns + inside
    if RULES.LONG:
        over = column >= columns
        column = tl.where(over, column - columns, column)
        if RULES.KIND == COLUMNS:
            return column
        start = tl.where(over, _row_start(row + 1, at, RULES), _row_start(row, at, RULES))
    else:
        over = column // columns
        column -= over * columns
        if RULES.KIND == COLUMNS:
            return column
        start = _row_start(row + over, at, RULES)
    if RULES.KIND == ROWS:
        return start
    elif RULES.KIND == GROUPS:
        return start + column // RULES.GROUP
    else:
        return start + column


@jit
def load_parameter(values, index, mask, other, KIND: tl.constexpr):
    """One value per element, or one for all elements."""
    if KIND == TENSOR:
        return tl.load(values)
    else:
        return tl.load(values + index, mask=mask, other=other)


@jit
def affine_elements(scale, zero, at, RULES: tl.constexpr):
    """A program's BLOCK elements: (the first, the offset of each, which of them exist, s, z). zero may be None: all are
    0."""
    first = program_index(RULES.INDEX64) * RULES.BLOCK
    offsets = first + tl.arange(0, RULES.BLOCK)
    here = offsets < at.n
    index = 0
    if RULES.KIND != TENSOR:
        index = scale_index(first, at, RULES)
    s = load_parameter(scale, index, here, 1.0, RULES.KIND)
    z = tl.zeros((1,), tl.int32)
    if zero is not None:
        z = load_parameter(zero, index, here, 0, RULES.KIND)
    return first, offsets, here, s, z


@jit
def load_one(scale, zero):
    """(s, z) of a tensor. zero may be None: 0."""
    z = tl.zeros((1,), tl.int32)
    if zero is not None:
        z = tl.load(zero)
    return tl.load(scale), z
