# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Ranges of data by scale, and scales from them; also both and the codes in one pass, where a run is short.

What shares a scale is either a run, elements side by side, or a column, elements one below the other:
  runs      rows of `length` elements in groups of `group` (the last may be short), a group in pieces of PIECE
  columns   rows in groups of `group` (the last may be short), a group in bands of BAND rows; each column by itself
Pieces and bands are found by programs of their own, and put together by a second kernel. A least and a greatest do not
depend on the order, so results are the same bits on every run and every device.
"""

from __future__ import annotations

from lowbit.gpu.arithmetic import affine_from_range, divide, join_nibbles, low_and_high, nan_of, steps_clamped, widen
from lowbit.gpu.language import jit, tl
from lowbit.gpu.scale_access import program_index

INFINITY = tl.constexpr(float("inf"))
RANGE_PIECE, BAND = tl.constexpr(16384), tl.constexpr(64)  # as in grids.py


@jit
def run_bounds(run, runs, parts, PIECE: tl.constexpr):
    """(group it is of, first element, one past the last) of pieces of runs; empty past the last run."""
    length, group = parts.length, parts.group
    known = tl.minimum(run, runs - 1)
    owner = known // parts.pieces
    row = owner // parts.groups
    in_row = (owner % parts.groups) * group
    begin = row * length + in_row + (known % parts.pieces) * PIECE
    end = tl.minimum(begin + PIECE, row * length + tl.minimum(in_row + group, length))
    return owner, begin, tl.where(run < runs, end, begin)


@jit
def in_run(column, begin, end, group, UNIFORM: tl.constexpr):
    """Which columns of a run exist. UNIFORM: every run is `group` long and in one piece, which the compiler can
    see through to whole vectors."""
    if UNIFORM:
        return (column < group)[None, :] & (begin < end)[:, None]
    else:
        return begin[:, None] + column[None, :] < end[:, None]


@jit
def band_bounds(program, parts, COLUMNS: tl.constexpr):
    """(band, group it is of, first row, one past the last, columns) of a program."""
    rows, group = parts.length, parts.group
    blocks = (parts.columns + COLUMNS - 1) // COLUMNS
    band = program // blocks
    owner = band // parts.pieces
    start = (owner // parts.groups) * rows
    in_rows = (owner % parts.groups) * group
    first = start + in_rows + (band % parts.pieces) * BAND
    last = tl.minimum(first + BAND, start + tl.minimum(in_rows + group, rows))
    column = (program % blocks) * COLUMNS + tl.arange(0, COLUMNS)
    return band, owner, first, last, column


@jit
def _wider(least, most, nans, v, here, ABSOLUTE: tl.constexpr):
    """A range, and how many NaN were left out of it, with more elements in it. ABSOLUTE: of |v|."""
    if ABSOLUTE:
        v = tl.abs(v)
    real = here & (v == v)
    least = tl.minimum(least, tl.where(real, v, INFINITY))
    most = tl.maximum(most, tl.where(real, v, -INFINITY))
    return least, most, nans + (here & (v != v)).to(tl.int32)


@jit
def range_of_runs(x, lo, hi, nans, runs, parts, ABSOLUTE: tl.constexpr, BLOCK: tl.constexpr):
    """Least, greatest and number of NaN of each piece. BLOCK: a RunBlock."""
    run = program_index(BLOCK.INDEX64) * BLOCK.RUNS + tl.arange(0, BLOCK.RUNS)
    _, begin, end = run_bounds(run, runs, parts, RANGE_PIECE)
    least = tl.full((BLOCK.RUNS, BLOCK.WIDTH), INFINITY, lo.dtype.element_ty)
    most = tl.full((BLOCK.RUNS, BLOCK.WIDTH), -INFINITY, lo.dtype.element_ty)
    count = tl.zeros((BLOCK.RUNS, BLOCK.WIDTH), tl.int32)
    for start in range(0, parts.longest, BLOCK.WIDTH):
        column = start + tl.arange(0, BLOCK.WIDTH)
        offsets = begin[:, None] + column[None, :]
        here = in_run(column, begin, end, parts.group, BLOCK.UNIFORM)
        v = widen(tl.load(x + offsets, mask=here, other=0.0))
        least, most, count = _wider(least, most, count, v, here, ABSOLUTE)
    tl.store(lo + run, tl.min(least, 1), mask=run < runs)
    tl.store(hi + run, tl.max(most, 1), mask=run < runs)
    tl.store(nans + run, tl.sum(count, 1), mask=run < runs)


@jit
def range_of_columns(x, lo, hi, nans, parts, ABSOLUTE: tl.constexpr, BLOCK: tl.constexpr):
    """Least, greatest and number of NaN of each column of a band. BLOCK: a ColumnBlock."""
    band, _, first, last, column = band_bounds(program_index(BLOCK.INDEX64), parts, BLOCK.COLUMNS)
    columns = parts.columns
    least = tl.full((BLOCK.HEIGHT, BLOCK.COLUMNS), INFINITY, lo.dtype.element_ty)
    most = tl.full((BLOCK.HEIGHT, BLOCK.COLUMNS), -INFINITY, lo.dtype.element_ty)
    count = tl.zeros((BLOCK.HEIGHT, BLOCK.COLUMNS), tl.int32)
    for start in range(0, parts.longest, BLOCK.HEIGHT):
        row = first + start + tl.arange(0, BLOCK.HEIGHT)
        here = (row < last)[:, None] & (column < columns)[None, :]
        v = widen(tl.load(x + row[:, None] * columns + column[None, :], mask=here, other=0.0))
        least, most, count = _wider(least, most, count, v, here, ABSOLUTE)
    offsets = band * columns + column
    tl.store(lo + offsets, tl.min(least, 0), mask=column < columns)
    tl.store(hi + offsets, tl.max(most, 0), mask=column < columns)
    tl.store(nans + offsets, tl.sum(count, 0), mask=column < columns)


@jit
def partial_index(scale, j, parts):
    """The index of the j-th part of a scale: parts are [outer, scales / columns, pieces, columns], j counts outer and
    pieces."""
    pieces, columns = parts.pieces, parts.columns
    row = (j // pieces) * (parts.scales // columns) + scale // columns
    return (row * pieces + j % pieces) * columns + scale % columns


@jit
def _folded(lo, hi, nans, scale, parts, BLOCK: tl.constexpr):
    least = tl.full((BLOCK.SCALES, BLOCK.WIDTH), INFINITY, lo.dtype.element_ty)
    most = tl.full((BLOCK.SCALES, BLOCK.WIDTH), -INFINITY, lo.dtype.element_ty)
    count = tl.zeros((BLOCK.SCALES, BLOCK.WIDTH), tl.int64)
    for start in range(0, parts.outer * parts.pieces, BLOCK.WIDTH):
        j = start + tl.arange(0, BLOCK.WIDTH)[None, :]
        here = (scale < parts.scales)[:, None] & (j < parts.outer * parts.pieces)
        offsets = partial_index(scale[:, None], j, parts)
        least = tl.minimum(least, tl.load(lo + offsets, mask=here, other=INFINITY))
        most = tl.maximum(most, tl.load(hi + offsets, mask=here, other=-INFINITY))
        count += tl.load(nans + offsets, mask=here, other=0)
    return tl.min(least, 1) + 0.0, tl.max(most, 1) + 0.0, tl.sum(count, 1)  # + 0: -0 becomes +0


@jit
def whole_range(lo, hi, nans, out_lo, out_hi, out_nans, parts, BLOCK: tl.constexpr):
    """(least, greatest, number of NaN) by scale, from those of the parts; NaN where all is NaN. BLOCK: a FoldBlock."""
    scale = program_index(BLOCK.INDEX64) * BLOCK.SCALES + tl.arange(0, BLOCK.SCALES)
    least, most, count = _folded(lo, hi, nans, scale, parts, BLOCK)
    some = least <= most
    tl.store(out_lo + scale, tl.where(some, least, nan_of(least)), mask=scale < parts.scales)
    tl.store(out_hi + scale, tl.where(some, most, nan_of(most)), mask=scale < parts.scales)
    tl.store(out_nans + scale, count, mask=scale < parts.scales)


@jit
def parameters_from_ranges(
    lo, hi, nans, out_scale, out_zero, parts, codes, SYMMETRIC: tl.constexpr, BLOCK: tl.constexpr
):
    """(s, z) by scale, from the ranges of the parts. s = NaN where the data has NaN, or a range no scale can cover.
    out_zero may be None. codes: a CodeRange."""
    scale = program_index(BLOCK.INDEX64) * BLOCK.SCALES + tl.arange(0, BLOCK.SCALES)
    least, most, count = _folded(lo, hi, nans, scale, parts, BLOCK)
    s, z = affine_from_range(least, most, codes.qmin, codes.qmax, codes.divisor, SYMMETRIC)
    tl.store(out_scale + scale, tl.where(count == 0, s, nan_of(s)), mask=scale < parts.scales)
    if out_zero is not None:
        tl.store(out_zero + scale, z, mask=scale < parts.scales)


@jit
def quantize_runs(
    x, out, out_scale, out_zero, runs, bytes_of_group, parts, codes, RULES: tl.constexpr, BLOCK: tl.constexpr
):
    """(s, z) of whole runs of at most WIDTH elements, and their codes: the data is read once.

    s = NaN where the data has NaN, or a range no scale can cover. PACKED: two codes per byte; runs start on a byte.
    """
    run = program_index(BLOCK.INDEX64) * BLOCK.RUNS + tl.arange(0, BLOCK.RUNS)
    _, begin, end = run_bounds(run, runs, parts, BLOCK.WIDTH)
    column = tl.arange(0, BLOCK.WIDTH)
    offsets = begin[:, None] + column[None, :]
    here = in_run(column, begin, end, parts.group, BLOCK.UNIFORM)
    v = widen(tl.load(x + offsets, mask=here, other=0.0))
    least = tl.full((BLOCK.RUNS, BLOCK.WIDTH), INFINITY, v.dtype)
    nans = tl.zeros((BLOCK.RUNS, BLOCK.WIDTH), tl.int32)
    least, most, nans = _wider(least, -least, nans, v, here, False)
    lo, hi = tl.min(least, 1) + 0.0, tl.max(most, 1) + 0.0
    s, z = affine_from_range(lo, hi, codes.qmin, codes.qmax, codes.divisor, RULES.SYMMETRIC)
    s = tl.where(tl.sum(nans, 1) == 0, s, nan_of(s))
    tl.store(out_scale + run, s, mask=run < runs)
    if out_zero is not None:
        tl.store(out_zero + run, z, mask=run < runs)
    z = z[:, None]
    low, high = low_and_high(z, codes.qmin, codes.qmax, v)
    q = steps_clamped(divide(v, s[:, None]), low, high).to(tl.int32) + z
    if RULES.PACKED:
        packed = join_nibbles(tl.reshape(tl.where(here, q, 0), (BLOCK.RUNS, BLOCK.WIDTH // 2, 2)))
        column = tl.arange(0, BLOCK.WIDTH // 2)
        byte = (begin // 2)[:, None] + column[None, :]
        tl.store(out + byte, packed, mask=in_run(column, begin // 2, (end + 1) // 2, bytes_of_group, BLOCK.UNIFORM))
    else:
        tl.store(out + offsets, q.to(out.dtype.element_ty), mask=here)
