# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Ranges of data by scale, and scales from them; also both and the codes in one pass, where a run is short. Gradients
of a learned scale and zero point.

What shares a scale is either a run, elements side by side, or a column, elements one below the other:
  runs      rows of `length` elements in groups of `group` (the last may be short), a group in pieces of PIECE
  columns   rows in groups of `group` (the last may be short), a group in bands of BAND rows; each column by itself
Pieces and bands are found by programs of their own, and put together by a second kernel. A least and a greatest do not
depend on the order, so results are the same bits on every run and every device.

Sums of gradients have the contract's one order, whatever the device, so there are no atomics:
  runs      pieces of 4096 elements, eight lanes a piece (element i to lane i mod 8), lanes folded pairwise, pieces
            added in order, then rows of the same scale in order
  columns   bands of 64 rows, row after row in a band, bands added in order
A masked element adds +0, which changes no sum that started at +0.
"""

from __future__ import annotations

from lowbit.gpu import grids
from lowbit.gpu.arithmetic import (
    affine_from_range,
    divide,
    join_nibbles,
    low_and_high,
    nan_of,
    steps_clamped,
    steps_seen,
    widen,
)
from lowbit.gpu.language import jit, tl
from lowbit.gpu.scale_access import program_index

INFINITY = tl.constexpr(float("inf"))
RANGE_PIECE, PIECE, BAND = (tl.constexpr(size) for size in (grids.RANGE_PIECE, grids.PIECE, grids.BAND))
LANES = tl.constexpr(8)


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
def _wider(least, most, nans, v, here):
    """A range, and how many NaN were left out of it, with more elements in it."""
    real = here & (v == v)
    least = tl.minimum(least, tl.where(real, v, INFINITY))
    most = tl.maximum(most, tl.where(real, v, -INFINITY))
    return least, most, nans + (here & (v != v)).to(tl.int32)


@jit
def range_of_runs(x, lo, hi, nans, runs, parts, BLOCK: tl.constexpr):
    """Least, greatest and number of NaN of each piece. BLOCK: a Block."""
    run = program_index(BLOCK.INDEX64) * BLOCK.COUNT + tl.arange(0, BLOCK.COUNT)
    _, begin, end = run_bounds(run, runs, parts, RANGE_PIECE)
    least = tl.full((BLOCK.COUNT, BLOCK.LENGTH), INFINITY, lo.dtype.element_ty)
    most = tl.full((BLOCK.COUNT, BLOCK.LENGTH), -INFINITY, lo.dtype.element_ty)
    count = tl.zeros((BLOCK.COUNT, BLOCK.LENGTH), tl.int32)
    for start in range(0, parts.longest, BLOCK.LENGTH):
        column = start + tl.arange(0, BLOCK.LENGTH)
        offsets = begin[:, None] + column[None, :]
        here = in_run(column, begin, end, parts.group, BLOCK.UNIFORM)
        v = widen(tl.load(x + offsets, mask=here, other=0.0))
        least, most, count = _wider(least, most, count, v, here)
    tl.store(lo + run, tl.min(least, 1), mask=run < runs)
    tl.store(hi + run, tl.max(most, 1), mask=run < runs)
    tl.store(nans + run, tl.sum(count, 1), mask=run < runs)


@jit
def range_of_columns(x, lo, hi, nans, parts, BLOCK: tl.constexpr):
    """Least, greatest and number of NaN of each column of a band. BLOCK: a Block."""
    band, _, first, last, column = band_bounds(program_index(BLOCK.INDEX64), parts, BLOCK.COUNT)
    columns = parts.columns
    least = tl.full((BLOCK.LENGTH, BLOCK.COUNT), INFINITY, lo.dtype.element_ty)
    most = tl.full((BLOCK.LENGTH, BLOCK.COUNT), -INFINITY, lo.dtype.element_ty)
    count = tl.zeros((BLOCK.LENGTH, BLOCK.COUNT), tl.int32)
    for start in range(0, parts.longest, BLOCK.LENGTH):
        row = first + start + tl.arange(0, BLOCK.LENGTH)
        here = (row < last)[:, None] & (column < columns)[None, :]
        v = widen(tl.load(x + row[:, None] * columns + column[None, :], mask=here, other=0.0))
        least, most, count = _wider(least, most, count, v, here)
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
    least = tl.full((BLOCK.COUNT, BLOCK.LENGTH), INFINITY, lo.dtype.element_ty)
    most = tl.full((BLOCK.COUNT, BLOCK.LENGTH), -INFINITY, lo.dtype.element_ty)
    count = tl.zeros((BLOCK.COUNT, BLOCK.LENGTH), tl.int64)
    for start in range(0, parts.outer * parts.pieces, BLOCK.LENGTH):
        j = start + tl.arange(0, BLOCK.LENGTH)[None, :]
        here = (scale < parts.scales)[:, None] & (j < parts.outer * parts.pieces)
        offsets = partial_index(scale[:, None], j, parts)
        least = tl.minimum(least, tl.load(lo + offsets, mask=here, other=INFINITY))
        most = tl.maximum(most, tl.load(hi + offsets, mask=here, other=-INFINITY))
        count += tl.load(nans + offsets, mask=here, other=0)
    return tl.min(least, 1) + 0.0, tl.max(most, 1) + 0.0, tl.sum(count, 1)  # + 0: -0 becomes +0


@jit
def whole_range(lo, hi, nans, out_lo, out_hi, out_nans, parts, BLOCK: tl.constexpr):
    """(least, greatest, number of NaN) by scale, from those of the parts; NaN where all is NaN. BLOCK: a Block."""
    scale = program_index(BLOCK.INDEX64) * BLOCK.COUNT + tl.arange(0, BLOCK.COUNT)
    least, most, count = _folded(lo, hi, nans, scale, parts, BLOCK)
    some = least <= most
    tl.store(out_lo + scale, tl.where(some, least, nan_of(least)), mask=scale < parts.scales)
    tl.store(out_hi + scale, tl.where(some, most, nan_of(most)), mask=scale < parts.scales)
    tl.store(out_nans + scale, count, mask=scale < parts.scales)


@jit
def parameters_from_ranges(
    lo, hi, nans, out_scale, out_zero, parts, qmin, qmax, SYMMETRIC: tl.constexpr, BLOCK: tl.constexpr
):
    """(s, z) by scale, from the ranges of the parts. s = NaN where the data has NaN, or a range no scale can cover.
    out_zero may be None."""
    scale = program_index(BLOCK.INDEX64) * BLOCK.COUNT + tl.arange(0, BLOCK.COUNT)
    least, most, count = _folded(lo, hi, nans, scale, parts, BLOCK)
    s, z = affine_from_range(least, most, qmin, qmax, SYMMETRIC)
    tl.store(out_scale + scale, tl.where(count == 0, s, nan_of(s)), mask=scale < parts.scales)
    if out_zero is not None:
        tl.store(out_zero + scale, z, mask=scale < parts.scales)


@jit
def quantize_runs(
    x, out, out_scale, out_zero, runs, bytes_of_group, parts, qmin, qmax, RULES: tl.constexpr, BLOCK: tl.constexpr
):
    """(s, z) of whole runs of at most LENGTH elements, and their codes: the data is read once.

    s = NaN where the data has NaN, or a range no scale can cover. PACKED: two codes per byte; runs start on a byte.
    """
    run = program_index(BLOCK.INDEX64) * BLOCK.COUNT + tl.arange(0, BLOCK.COUNT)
    _, begin, end = run_bounds(run, runs, parts, BLOCK.LENGTH)
    column = tl.arange(0, BLOCK.LENGTH)
    offsets = begin[:, None] + column[None, :]
    here = in_run(column, begin, end, parts.group, BLOCK.UNIFORM)
    v = widen(tl.load(x + offsets, mask=here, other=0.0))
    least = tl.full((BLOCK.COUNT, BLOCK.LENGTH), INFINITY, v.dtype)
    nans = tl.zeros((BLOCK.COUNT, BLOCK.LENGTH), tl.int32)
    least, most, nans = _wider(least, -least, nans, v, here)
    lo, hi = tl.min(least, 1) + 0.0, tl.max(most, 1) + 0.0
    s, z = affine_from_range(lo, hi, qmin, qmax, RULES.SYMMETRIC)
    s = tl.where(tl.sum(nans, 1) == 0, s, nan_of(s))
    tl.store(out_scale + run, s, mask=run < runs)
    if out_zero is not None:
        tl.store(out_zero + run, z, mask=run < runs)
    z = z[:, None]
    q = steps_clamped(v, s[:, None], z, qmin, qmax).to(tl.int32) + z
    if RULES.PACKED:
        packed = join_nibbles(tl.reshape(tl.where(here, q, 0), (BLOCK.COUNT, BLOCK.LENGTH // 2, 2)))
        column = tl.arange(0, BLOCK.LENGTH // 2)
        byte = (begin // 2)[:, None] + column[None, :]
        tl.store(out + byte, packed, mask=in_run(column, begin // 2, (end + 1) // 2, bytes_of_group, BLOCK.UNIFORM))
    else:
        tl.store(out + offsets, q.to(out.dtype.element_ty), mask=here)


@jit
def _learned(x, dy, dx, offsets, here, s, low, high):
    """Writes dx; (dy * t, dy * -s where clipped) of each element.

    t = rne(x/s) - x/s inside, qmin - z below, qmax - z above, 0 for NaN, in the compute type
    ds = sum(dy * t), dz = sum(dy * -s) over what is below or above; products and sums in f64
    """
    v = widen(tl.load(x + offsets, mask=here, other=0.0))
    given = tl.load(dy + offsets, mask=here, other=0.0)
    y = divide(v, s)
    steps = steps_seen(y, low, high)
    inside = (steps >= low) & (steps <= high)
    tl.store(dx + offsets, tl.where(inside, given, tl.zeros_like(given)), mask=here)
    d = widen(given).to(tl.float64)
    t = tl.where(inside, steps - y, tl.where(steps < low, low, high)).to(tl.float64)
    real = here & (v == v)
    by_scale = tl.where(real, d * t, 0.0)
    by_zero = tl.where(real & (inside == 0), d * -s.to(tl.float64), 0.0)
    return by_scale, by_zero


@jit
def _fold_lanes(lanes, RUNS: tl.constexpr):
    """((l0 + l4) + (l2 + l6)) + ((l1 + l5) + (l3 + l7)) of [RUNS, 8]."""
    first, second = tl.split(tl.permute(tl.reshape(lanes, (RUNS, 2, 4)), (0, 2, 1)))
    fours = first + second
    first, second = tl.split(tl.permute(tl.reshape(fours, (RUNS, 2, 2)), (0, 2, 1)))
    first, second = tl.split(first + second)
    return first + second


@jit
def _bounds_of_codes(scale, zero, which, here, qmin, qmax):
    """s, and the codes' ends in steps from zero, of the scales `which`."""
    s = tl.load(scale + which, mask=here, other=1.0)
    z = tl.zeros_like(which).to(tl.int32)
    if zero is not None:
        z = tl.load(zero + which, mask=here, other=0)
    low, high = low_and_high(z, qmin, qmax, s)
    return s, low, high


@jit
def learned_of_runs(dy, x, scale, zero, dx, ds, dz, runs, parts, qmin, qmax, BLOCK: tl.constexpr):
    """dx, and the sums of each piece of a run. A program has COUNT pieces, a thread a lane."""
    run = program_index(BLOCK.INDEX64) * BLOCK.COUNT + tl.arange(0, BLOCK.COUNT)
    owner, begin, end = run_bounds(run, runs, parts, PIECE)
    s, low, high = _bounds_of_codes(scale, zero, owner % parts.scales, run < runs, qmin, qmax)
    s, low, high = s[:, None], low[:, None], high[:, None]
    offsets = begin[:, None] + tl.arange(0, LANES)[None, :]
    by_scale = tl.zeros((BLOCK.COUNT, LANES), tl.float64)
    by_zero = tl.zeros((BLOCK.COUNT, LANES), tl.float64)
    for start in range(0, parts.longest, LANES * BLOCK.UNROLL):
        for i in tl.static_range(BLOCK.UNROLL):
            at = offsets + (start + i * LANES)
            more_scale, more_zero = _learned(x, dy, dx, at, at < end[:, None], s, low, high)
            by_scale += more_scale
            by_zero += more_zero
    tl.store(ds + run, _fold_lanes(by_scale, BLOCK.COUNT).to(ds.dtype.element_ty), mask=run < runs)
    tl.store(dz + run, _fold_lanes(by_zero, BLOCK.COUNT).to(dz.dtype.element_ty), mask=run < runs)


@jit
def learned_of_columns(dy, x, scale, zero, dx, ds, dz, parts, qmin, qmax, BLOCK: tl.constexpr):
    """dx, and the sums of each column of a band. A program has COUNT columns."""
    band, owner, first, last, column = band_bounds(program_index(BLOCK.INDEX64), parts, BLOCK.COUNT)
    columns = parts.columns
    real = column < columns
    s, low, high = _bounds_of_codes(scale, zero, owner * columns + column, real, qmin, qmax)
    by_scale = tl.zeros((BLOCK.COUNT,), tl.float64)
    by_zero = tl.zeros((BLOCK.COUNT,), tl.float64)
    for start in range(0, parts.longest, BLOCK.UNROLL):
        for i in tl.static_range(BLOCK.UNROLL):
            # A vector of equal numbers: the interpreter cannot broadcast a scalar comparison over a mask.
            row = first + (start + i) + tl.zeros_like(column)
            here = real & (row < last)
            more_scale, more_zero = _learned(x, dy, dx, row * columns + column, here, s, low, high)
            by_scale += more_scale
            by_zero += more_zero
    offsets = band * columns + column
    tl.store(ds + offsets, by_scale.to(ds.dtype.element_ty), mask=real)
    tl.store(dz + offsets, by_zero.to(dz.dtype.element_ty), mask=real)


@jit
def add_in_order(parts_s, parts_z, ds, dz, parts, BLOCK: tl.constexpr):
    """ds and dz from the sums of parts: pieces in order, then rows in order; a thread per scale."""
    scale = program_index(BLOCK.INDEX64) * BLOCK.COUNT + tl.arange(0, BLOCK.COUNT)
    pieces, inside = parts.pieces, scale < parts.scales
    nowhere = tl.zeros_like(scale)
    total_s = tl.zeros((BLOCK.COUNT,), tl.float64)
    total_z = tl.zeros((BLOCK.COUNT,), tl.float64)
    for first_row in range(0, parts.outer, BLOCK.UNROLL):
        for i in tl.static_range(BLOCK.UNROLL):
            row_s = tl.zeros((BLOCK.COUNT,), tl.float64)
            row_z = tl.zeros((BLOCK.COUNT,), tl.float64)
            for first in range(0, pieces, BLOCK.UNROLL_PIECES):
                for k in tl.static_range(BLOCK.UNROLL_PIECES):
                    row, piece = nowhere + (first_row + i), nowhere + (first + k)
                    here = inside & (row < parts.outer) & (piece < pieces)
                    offsets = partial_index(scale, row * pieces + piece, parts)
                    row_s += tl.load(parts_s + offsets, mask=here, other=0.0)
                    row_z += tl.load(parts_z + offsets, mask=here, other=0.0)
            total_s += row_s
            total_z += row_z
    tl.store(ds + scale, total_s.to(ds.dtype.element_ty), mask=inside)
    tl.store(dz + scale, total_z.to(dz.dtype.element_ty), mask=inside)
