# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Gradients of a learned scale and zero point, and of x with them, to the bit as on the CPU.

t = rne(x/s) - x/s inside, qmin - z below, qmax - z above, 0 for NaN, in the compute type
ds = sum(dy * t), dz = sum(dy * -s) over what is below or above; products and sums in f64

Sums have the contract's one order, whatever the device, so there are no atomics:
  runs      pieces of 4096 elements, eight lanes a piece (element i to lane i mod 8), lanes folded pairwise, pieces
            added in order, then rows of the same scale in order
  columns   bands of 64 rows, row after row in a band, bands added in order
A masked element adds +0, which changes no sum that started at +0.
"""

from __future__ import annotations

from lowbit.gpu.arithmetic import divide, low_and_high, steps_seen, widen
from lowbit.gpu.language import jit, tl
from lowbit.gpu.reductions import band_bounds, partial_index, run_bounds
from lowbit.gpu.scale_access import program_index

PIECE, LANES = tl.constexpr(4096), tl.constexpr(8)


@jit
def _learned(x, dy, dx, offsets, here, s, low, high):
    """Writes dx; (dy * t, dy * -s where clipped) of each element."""
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
    """dx, and the sums of each piece of a run. A program has SIZE pieces, a thread a lane."""
    run = program_index(BLOCK.INDEX64) * BLOCK.SIZE + tl.arange(0, BLOCK.SIZE)
    owner, begin, end = run_bounds(run, runs, parts, PIECE)
    s, low, high = _bounds_of_codes(scale, zero, owner % parts.scales, run < runs, qmin, qmax)
    s, low, high = s[:, None], low[:, None], high[:, None]
    offsets = begin[:, None] + tl.arange(0, LANES)[None, :]
    by_scale = tl.zeros((BLOCK.SIZE, LANES), tl.float64)
    by_zero = tl.zeros((BLOCK.SIZE, LANES), tl.float64)
    for start in range(0, parts.longest, LANES * BLOCK.UNROLL):
        for i in tl.static_range(BLOCK.UNROLL):
            at = offsets + (start + i * LANES)
            more_scale, more_zero = _learned(x, dy, dx, at, at < end[:, None], s, low, high)
            by_scale += more_scale
            by_zero += more_zero
    tl.store(ds + run, _fold_lanes(by_scale, BLOCK.SIZE).to(ds.dtype.element_ty), mask=run < runs)
    tl.store(dz + run, _fold_lanes(by_zero, BLOCK.SIZE).to(dz.dtype.element_ty), mask=run < runs)


@jit
def learned_of_columns(dy, x, scale, zero, dx, ds, dz, parts, qmin, qmax, BLOCK: tl.constexpr):
    """dx, and the sums of each column of a band. A program has SIZE columns."""
    band, owner, first, last, column = band_bounds(program_index(BLOCK.INDEX64), parts, BLOCK.SIZE)
    columns = parts.columns
    real = column < columns
    s, low, high = _bounds_of_codes(scale, zero, owner * columns + column, real, qmin, qmax)
    by_scale = tl.zeros((BLOCK.SIZE,), tl.float64)
    by_zero = tl.zeros((BLOCK.SIZE,), tl.float64)
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
    scale = program_index(BLOCK.INDEX64) * BLOCK.SIZE + tl.arange(0, BLOCK.SIZE)
    pieces, inside = parts.pieces, scale < parts.scales
    nowhere = tl.zeros_like(scale)
    total_s = tl.zeros((BLOCK.SIZE,), tl.float64)
    total_z = tl.zeros((BLOCK.SIZE,), tl.float64)
    for first_row in range(0, parts.outer, BLOCK.UNROLL):
        for i in tl.static_range(BLOCK.UNROLL):
            row_s = tl.zeros((BLOCK.SIZE,), tl.float64)
            row_z = tl.zeros((BLOCK.SIZE,), tl.float64)
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
