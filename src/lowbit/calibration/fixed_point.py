"""Rows as integers, and exact sums over them: what second moments are made of.

    n = rne(x * 2^(19 - e)),  |n| <= 2^19,  e the least multiple of 4 with max |x| < 2^e, at least -20

Integers add without error, so a sum per exponent e depends on the set of rows alone: not on their order, on how they
were split into calls, on threads or on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from lowbit.numerics.dtypes import Array
from lowbit.runtime.blas import one_blas_thread
from lowbit.runtime.threads import get_num_threads

BITS = 19
EXPONENTS = range(-20, 41, 4)
LIMIT = 2.0 ** EXPONENTS[-1]  # magnitudes lie below
CAPACITY = 1 << 63
_TINY = 2.0 ** (EXPONENTS[0] - BITS - 1)  # magnitudes up to this are 0 in the finest fixed point
_PRODUCT = 1 << 2 * BITS  # the largest product of two integers
_PANEL = 256  # rows of a Gram matrix that are stored up to the same column
_ROWS, _NBYTES = 2048, 32 << 20  # of a block that is multiplied at once, in float64
_LEAST_ROWS = 512


class Block(NamedTuple):
    """Rows of one exponent: which they are, and their integers, held as float32 [rows, groups, width]."""

    exponent: int
    rows: Array
    values: Array


def largest(x: Array) -> Array:
    """The largest magnitude along the last axis; NaN where there is one."""
    found: Array = np.maximum(x.max(-1), -x.min(-1))
    return found


def fixed_point(x: Array, magnitude: Array) -> list[Block]:
    """Float32 rows [rows, groups, width] as integers; each group of a row has an exponent of its own.

    magnitude: `largest(x)`, below LIMIT. A row is in the block of each of its exponents, with zeros for other groups.

    >>> [block] = fixed_point(np.float32([[[0.75, -0.25]]]), np.float32([[0.75]]))
    >>> block.exponent, block.values
    (0, array([[[ 393216., -131072.]]], dtype=float32))
    """
    exponent = np.maximum(-(-np.frexp(magnitude)[1] // 4) * 4, EXPONENTS[0])
    # Exact in float32: a power of two, and integers below 2^24. What underflows is far below a half.
    values = x * np.ldexp(np.float32(1), BITS - exponent)[..., None]
    np.rint(values, out=values)
    live = magnitude > _TINY
    blocks = []
    for e in np.unique(exponent[live]):
        here = live & (exponent == e)
        rows = np.flatnonzero(here.any(1))
        block = values if len(rows) == len(values) else values[rows]
        if not here[rows].all():
            block = np.where(here[rows][..., None], block, np.float32(0))
        blocks.append(Block(int(e), rows, block))
    return blocks


def weighted_sum(values: Array, weights: Array) -> Array:
    """The sum of the integer rows, each times its integer weight of at most 2^32, as int64 [groups, width]."""
    total = np.zeros(values.shape[1:], np.int64)
    if len(weights) and (weights == weights[0]).all():
        # A sum of up to 2^34 integers of at most 2^19 is exact in float64.
        total += values.sum(0, dtype=np.float64).astype(np.int64)
        total *= weights[0]
        return total
    # Weights in two limbs of at most 2^16: the partial sums of _ROWS rows stay below 2^46, exact in float64.
    limbs = np.stack([weights >> 16, weights & 0xFFFF]).astype(np.float64)
    for part in _parts(values):
        flat = values[part].reshape(-1, total.size).astype(np.float64)
        high, low = (limbs[:, part] @ flat).astype(np.int64).reshape(2, *total.shape)
        total += (high << 16) + low
    return total


def mirror(total: Array) -> None:
    """Copy the lower triangles of [groups, width, width] to the upper ones."""
    for first, last, _ in _panels(total.shape[-1]):
        square = total[:, first:last, first:last]
        upper = ~np.tri(last - first, dtype=bool)
        square[:, upper] = square.swapaxes(1, 2)[:, upper]
        total[:, :first, first:last] = total[:, first:last, :first].swapaxes(1, 2)


class _Panel(NamedTuple):
    """Products of the inputs first <= i < last with the inputs j < columns."""

    first: int
    last: int
    columns: int


def _panels(width: int, cross: bool = False) -> list[_Panel]:
    """The panels of the lower triangle, and then those of the square of the `width` inputs after them with the
    first."""
    panels = []
    for begin, end in ((0, width), (width, 2 * width if cross else width)):
        for first in range(begin, end, _PANEL):
            last = min(first + _PANEL, end)
            panels.append(_Panel(first, last, min(last, width)))
    return panels


def _parts(values: Array) -> Iterator[slice]:
    """Rows that are converted to float64 at once."""
    rows, *row = values.shape
    step = min(max(1, _NBYTES // (8 * math.prod(row))), _ROWS)
    return (slice(at, at + step) for at in range(0, rows, step))


class ExactSums:
    """The sums of n^T n, or of n^2, over the rows of one exponent, in int64.

    Of n^T n, panels of the lower triangle are kept; what they have above the diagonal is not used. Rows wait until
    there are enough of them to be multiplied at once: 512, or what takes a quarter of the memory of the sums.
    cross: rows are twice as wide, and the products of their second half with the first are summed as well.
    """

    def __init__(self, groups: int, width: int, gram: bool = True, cross: bool = False) -> None:
        self.groups, self.width, self.gram, self.cross = groups, width, gram, cross
        self.panels = _panels(width, cross) if gram else []
        self.sums: list[Array] = []
        self._waiting: list[Array] = []
        self._num_waiting = 0
        self._peak = 0  # the largest magnitude among the sums

    def add(self, values: Array) -> None:
        """Add integer rows, float32 [rows, groups, width]. The caller saw to `has_room`."""
        self._waiting.append(values)
        self._num_waiting += len(values)
        if not self.gram or self._num_waiting >= min(max(_LEAST_ROWS, self.width // 4), _ROWS):
            self.settle()

    def has_room(self, rows: int, other: ExactSums | None = None) -> bool:
        """Whether int64 holds the sums with this number of further rows, whatever is in them, and with those of
        `other`.

        It does up to 2^24 rows. Beyond that it depends on the rows seen, which are rarely as large as they might be.
        """
        if self._bound(rows, other) < CAPACITY:
            return True
        for sums in (self, other):
            if sums is not None:
                sums.settle()
        return self._bound(rows, other) < CAPACITY

    def _bound(self, rows: int, other: ExactSums | None) -> int:
        both = [self] if other is None else [self, other]
        return rows * _PRODUCT + sum(s._peak + s._num_waiting * _PRODUCT for s in both)

    def absorb(self, other: ExactSums) -> None:
        """Add the sums of `other`, which stays as it is. The caller saw to `has_room`."""
        if other.sums:
            self._allocate()
            for mine, theirs in zip(self.sums, other.sums, strict=True):
                mine += theirs
            self._update_peak()
        for values in other._waiting:
            self.add(values)

    def settle(self) -> None:
        """Multiply the rows that wait."""
        if not self._waiting:
            return
        self._allocate()
        values = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)
        self._waiting, self._num_waiting = [], 0
        for part in _parts(values):
            # Every product and every partial sum is an integer of at most 2^11 * 2^38 < 2^53: float64 BLAS is exact,
            # in any order and with any number of threads.
            n = values[part].transpose(1, 0, 2).astype(np.float64, order="C")
            if not self.gram:
                self.sums[0] += np.square(n, out=n).sum(1).astype(np.int64)
            self._multiply(n)
        self._update_peak()

    def _multiply(self, n: Array) -> None:
        def add(panel: _Panel, sums: Array) -> None:
            sums += (n[:, :, panel.first : panel.last].swapaxes(1, 2) @ n[:, :, : panel.columns]).astype(np.int64)

        threads = min(get_num_threads(), len(self.panels))
        with one_blas_thread():
            if threads <= 1:
                for panel, sums in zip(self.panels, self.sums, strict=self.gram):
                    add(panel, sums)
                return
            with ThreadPoolExecutor(threads) as pool:  # the longest panels first, as the last ones end together
                list(pool.map(add, reversed(self.panels), reversed(self.sums)))

    def _allocate(self) -> None:
        if not self.sums:
            shapes = [(p.last - p.first, p.columns) for p in self.panels] if self.gram else [(self.width,)]
            self.sums = [np.zeros((self.groups, *shape), np.int64) for shape in shapes]

    def _update_peak(self) -> None:
        # By Cauchy and Schwarz, no product of two inputs outgrows the larger of their squares.
        panels = zip(self.panels, self.sums, strict=self.gram)
        crossed = [panel for (first, _, _), panel in panels if first >= self.width]
        self._peak = max(int(np.abs(a).max()) for a in (self.diagonal(), *crossed))

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in (*self.sums, *self._waiting))

    def diagonal(self) -> Array:
        """The sums of n^2, int64 [groups, width]."""
        self.settle()
        if not self.gram:
            return self.sums[0]
        # Row i of a panel that ends in column `last` meets the diagonal in column first + i.
        panels = zip(self.panels, self.sums, strict=True)
        found = [np.diagonal(panel, first, 1, 2) for (first, _, _), panel in panels if first < self.width]
        return np.concatenate(found, axis=1)

    def add_to(self, total: Array, factor: float, crossed: bool = False) -> None:
        """Add the sums of products, times a power of two, to float64 [groups, width, width].

        Those of the lower triangle, or those of the second half of the inputs (rows) with the first (columns).
        """
        self.settle()
        begin = self.width if crossed else 0
        for (first, last, columns), panel in zip(self.panels, self.sums, strict=True):
            if (first >= self.width) == crossed:
                total[:, first - begin : last - begin, :columns] += panel.astype(np.float64) * factor

    def packed(self) -> Array:
        """The sums as one int64 array: [groups, width], or the lower triangle row by row, [groups, K (K + 1) / 2].

        Cross products follow, with K^2 more columns.
        """
        self.settle()
        if not self.gram:
            return self.sums[0]
        packed = np.empty((self.groups, self.packed_size), np.int64)
        for place, lower, panel in self._triangles():
            packed[:, place] = panel[:, lower]
        return packed

    @property
    def packed_size(self) -> int:
        """The length of `packed`, for one group."""
        if not self.gram:
            return self.width
        return self.width * (self.width + 1) // 2 + self.cross * self.width**2

    def unpack(self, packed: Array) -> None:
        """Take over the sums of `packed`."""
        self._allocate()
        if not self.gram:
            self.sums[0][:] = packed
        for place, lower, panel in self._triangles():
            panel[:, lower] = packed[:, place]
        self._update_peak()

    def _triangles(self) -> Iterator[tuple[slice, Array, Array]]:
        """Of each panel: where it is in `packed`, the mask of what is used of it, and the panel."""
        at = 0
        for (first, last, columns), panel in zip(self.panels, self.sums, strict=self.gram):
            lower = np.tri(last - first, columns, first, dtype=bool)
            size = int(np.count_nonzero(lower))
            yield slice(at, at + size), lower, panel
            at += size
