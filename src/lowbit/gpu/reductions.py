# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Ranges of data by scale, and scales from them; also both and the codes in one pass, where a run is short.

What shares a scale is either a run, elements side by side, or a column, elements one below the other:
  runs      rows of `length` elements in groups of `group` (the last may be short), a group in pieces of PIECE
  columns   rows in groups of `group` (the last may be short), a group in bands of BAND rows; each column by itself
Pieces and bands are found by programs of their own, and put together by a second kernel. A least and a greatest do not
depend on the order, so results are the same bits on every run and every device.
"""

from __future__ import annotations

from lowbit.gpu.arithmetic import (
    affine_from_range,
    divide,
    join_nibbles,
    low_and_high,
    nan_of,
    steps_clamped,
    widen,
)
from lowbit.gpu.language import jit, tl
from lowbit.gpu.places import program_index

__all__ = [
    "band_bounds", "in_run", "parameters_from_ranges", "partial_index", "quantize_runs", "range_of_columns",
    "range_of_runs", "run_bounds", "whole_range",
]  # fmt: skip

INFINITY = tl.constexpr(float("inf"))


@jit
def run_bounds(run, runs, length, group, groups, pieces, PIECE: tl.constexpr):
    """(group it is of, first element, one past the last) of pieces of runs; empty past the last run."""
    known = tl.minimum(run, runs - 1)
    owner = known // pieces
    row = owner // groups
    in_row = (owner % groups) * group
    begin = row * length + in_row + (known % pieces) * PIECE
    end = tl.minimum(begin + PIECE, row * length + tl.minimum(in_row + group, length))
    return owner, begin, tl.where(run < runs, end, begin)


@jit
def in_run(column, begin, end, group, UNIFORM: tl.constexpr):
    """Which columns of a run there are. UNIFORM: every run is `group` long and in one piece, which the compiler can
    see through to whole vectors."""
    if UNIFORM:
        return (column < group)[None, :] & (begin < end)[:, None]
    else:
        return begin[:, None] + column[None, :] < end[:, None]


@jit
def band_bounds(program, rows, group, groups, bands, columns, BAND: tl.constexpr, BLOCK: tl.constexpr):
    """(band, group it is of, first row, one past the last, columns) of a program."""
    blocks = (columns + BLOCK - 1) // BLOCK
    band = program // blocks
    owner = band // bands
    start = (owner // groups) * rows
    in_rows = (owner % groups) * group
    first = start + in_rows + (band % bands) * BAND
    last = tl.minimum(first + BAND, start + tl.minimum(in_rows + group, rows))
    column = (program % blocks) * BLOCK + tl.arange(0, BLOCK)
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
def range_of_runs(
    x, lo, hi, nans, runs, length, group, groups, pieces, longest,
    ABSOLUTE: tl.constexpr, INDEX64: tl.constexpr, UNIFORM: tl.constexpr, PIECE: tl.constexpr, RUNS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """Least, greatest and number of NaN of each piece. longest: of the pieces. A program has RUNS of them."""
    run = program_index(INDEX64) * RUNS + tl.arange(0, RUNS)
    _, begin, end = run_bounds(run, runs, length, group, groups, pieces, PIECE)
    least = tl.full((RUNS, WIDTH), INFINITY, lo.dtype.element_ty)
    most = tl.full((RUNS, WIDTH), -INFINITY, lo.dtype.element_ty)
    count = tl.zeros((RUNS, WIDTH), tl.int32)
    for start in range(0, longest, WIDTH):
        column = start + tl.arange(0, WIDTH)
        place = begin[:, None] + column[None, :]
        here = in_run(column, begin, end, group, UNIFORM)
        v = widen(tl.load(x + place, mask=here, other=0.0))
        least, most, count = _wider(least, most, count, v, here, ABSOLUTE)
    tl.store(lo + run, tl.min(least, 1), mask=run < runs)
    tl.store(hi + run, tl.max(most, 1), mask=run < runs)
    tl.store(nans + run, tl.sum(count, 1), mask=run < runs)


@jit
def range_of_columns(
    x, lo, hi, nans, rows, group, groups, bands, columns, tallest,
    ABSOLUTE: tl.constexpr, INDEX64: tl.constexpr, BAND: tl.constexpr, HEIGHT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Least, greatest and number of NaN of each column of a band, HEIGHT rows at a time. tallest: of the bands."""
    band, _, first, last, column = band_bounds(
        program_index(INDEX64), rows, group, groups, bands, columns, BAND, BLOCK
    )  # fmt: skip
    least = tl.full((HEIGHT, BLOCK), INFINITY, lo.dtype.element_ty)
    most = tl.full((HEIGHT, BLOCK), -INFINITY, lo.dtype.element_ty)
    count = tl.zeros((HEIGHT, BLOCK), tl.int32)
    for start in range(0, tallest, HEIGHT):
        row = first + start + tl.arange(0, HEIGHT)
        here = (row < last)[:, None] & (column < columns)[None, :]
        v = widen(tl.load(x + row[:, None] * columns + column[None, :], mask=here, other=0.0))
        least, most, count = _wider(least, most, count, v, here, ABSOLUTE)
    place = band * columns + column
    tl.store(lo + place, tl.min(least, 0), mask=column < columns)
    tl.store(hi + place, tl.max(most, 0), mask=column < columns)
    tl.store(nans + place, tl.sum(count, 0), mask=column < columns)


@jit
def partial_index(scale, j, scales, pieces, columns):
    """Where the j-th part of a scale is: parts are [outer, scales / columns, pieces, columns], j counts outer and
    pieces."""
    return (((j // pieces) * (scales // columns) + scale // columns) * pieces + j % pieces) * columns + scale % columns


@jit
def _folded(lo, hi, nans, scale, scales, outer, pieces, columns, SCALES: tl.constexpr, WIDTH: tl.constexpr):
    least = tl.full((SCALES, WIDTH), INFINITY, lo.dtype.element_ty)
    most = tl.full((SCALES, WIDTH), -INFINITY, lo.dtype.element_ty)
    count = tl.zeros((SCALES, WIDTH), tl.int64)
    for start in range(0, outer * pieces, WIDTH):
        j = start + tl.arange(0, WIDTH)[None, :]
        here = (scale < scales)[:, None] & (j < outer * pieces)
        place = partial_index(scale[:, None], j, scales, pieces, columns)
        least = tl.minimum(least, tl.load(lo + place, mask=here, other=INFINITY))
        most = tl.maximum(most, tl.load(hi + place, mask=here, other=-INFINITY))
        count += tl.load(nans + place, mask=here, other=0)
    return tl.min(least, 1) + 0.0, tl.max(most, 1) + 0.0, tl.sum(count, 1)  # + 0: -0 becomes +0


@jit
def whole_range(
    lo, hi, nans, out_lo, out_hi, out_nans, scales, outer, pieces, columns,
    INDEX64: tl.constexpr, SCALES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """(least, greatest, number of NaN) by scale, from those of the parts. NaN where there is nothing but NaN."""
    scale = program_index(INDEX64) * SCALES + tl.arange(0, SCALES)
    least, most, count = _folded(lo, hi, nans, scale, scales, outer, pieces, columns, SCALES, WIDTH)
    some = least <= most
    tl.store(out_lo + scale, tl.where(some, least, nan_of(least)), mask=scale < scales)
    tl.store(out_hi + scale, tl.where(some, most, nan_of(most)), mask=scale < scales)
    tl.store(out_nans + scale, count, mask=scale < scales)


@jit
def parameters_from_ranges(
    lo, hi, nans, out_scale, out_zero, scales, outer, pieces, columns, qmin, qmax, divisor,
    SYMMETRIC: tl.constexpr, INDEX64: tl.constexpr, SCALES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """(s, z) by scale, from the ranges of the parts. s = NaN where the data has NaN, or a range no scale can cover.
    out_zero may be None."""
    scale = program_index(INDEX64) * SCALES + tl.arange(0, SCALES)
    least, most, count = _folded(lo, hi, nans, scale, scales, outer, pieces, columns, SCALES, WIDTH)
    s, z = affine_from_range(least, most, qmin, qmax, divisor, SYMMETRIC)
    tl.store(out_scale + scale, tl.where(count == 0, s, nan_of(s)), mask=scale < scales)
    if out_zero is not None:
        tl.store(out_zero + scale, z, mask=scale < scales)


@jit
def quantize_runs(
    x, out, out_scale, out_zero, runs, length, group, bytes_of_group, groups, qmin, qmax, divisor,
    SYMMETRIC: tl.constexpr, INDEX64: tl.constexpr, PACKED: tl.constexpr, UNIFORM: tl.constexpr, RUNS: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """(s, z) of whole runs of at most WIDTH elements, and their codes: the data is read once.

    s = NaN where the data has NaN, or a range no scale can cover. PACKED: two codes a byte; runs start on a
    byte.
    """
    run = program_index(INDEX64) * RUNS + tl.arange(0, RUNS)
    _, begin, end = run_bounds(run, runs, length, group, groups, 1, WIDTH)
    column = tl.arange(0, WIDTH)
    place = begin[:, None] + column[None, :]
    here = in_run(column, begin, end, group, UNIFORM)
    v = widen(tl.load(x + place, mask=here, other=0.0))
    least, most, nans = _wider(
        tl.full((RUNS, WIDTH), INFINITY, v.dtype), tl.full((RUNS, WIDTH), -INFINITY, v.dtype),
        tl.zeros((RUNS, WIDTH), tl.int32), v, here, False,
    )  # fmt: skip
    s, z = affine_from_range(tl.min(least, 1) + 0.0, tl.max(most, 1) + 0.0, qmin, qmax, divisor, SYMMETRIC)
    s = tl.where(tl.sum(nans, 1) == 0, s, nan_of(s))
    tl.store(out_scale + run, s, mask=run < runs)
    if out_zero is not None:
        tl.store(out_zero + run, z, mask=run < runs)
    z = z[:, None]
    low, high = low_and_high(z, qmin, qmax, v)
    codes = steps_clamped(divide(v, s[:, None]), low, high).to(tl.int32) + z
    if PACKED:
        packed = join_nibbles(tl.reshape(tl.where(here, codes, 0), (RUNS, WIDTH // 2, 2)))
        column = tl.arange(0, WIDTH // 2)
        byte = (begin // 2)[:, None] + column[None, :]
        tl.store(out + byte, packed, mask=in_run(column, begin // 2, (end + 1) // 2, bytes_of_group, UNIFORM))
    else:
        tl.store(out + place, codes.to(out.dtype.element_ty), mask=here)
