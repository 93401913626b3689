"""The error of a mapping for a distribution, in plain NumPy: the reference of the native scores.

A histogram is bins [lower, upper) with counts, with numbers uniform within each. A mapping has codes at the whole
multiples least, least + 1, ..., most of its scale; whatever lies beyond goes to the nearest end.
"""

from __future__ import annotations

import math

import numpy as np

from lowbit.numerics.dtypes import Array


def squared_error(lower: Array, upper: Array, count: Array, scale: float, least: int, most: int) -> float:
    """Sum over all numbers of (x - scale * clamp(rne(x / scale), least, most))^2.

    In steps of the scale, u = x / scale is cut at every k + 1/2 between its codes; over a piece [a, b) whose code is n
    the mean of (u - n)^2 is ((a + b) / 2 - n)^2 + (b - a)^2 / 12.

    >>> squared_error(np.array([-0.5]), np.array([0.5]), np.array([12.0]), 1.0, -1, 1)
    1.0
    """
    total = 0.0
    for a, b, n in zip(lower / scale, upper / scale, count, strict=True):
        first, last = (min(max(math.floor(e + 0.5), least), most) for e in (a, b))
        cuts = np.concatenate([[a], np.clip(np.arange(first, last) + 0.5, a, b), [b]])
        codes = np.arange(first, last + 1)
        width = np.diff(cuts)
        share = width / (b - a) if b > a else np.ones(1)
        total += n * float((share * (((cuts[:-1] + cuts[1:]) / 2 - codes) ** 2 + width**2 / 12)).sum())
    return float(total * scale**2)


def divergence(lower: Array, upper: Array, count: Array, scale: float, least: int, most: int, floor: float) -> float:
    """Kullback-Leibler divergence, in nats, from the clipped numbers to what their codes describe.

    The cell of code n is scale * [n - 1/2, n + 1/2). Bins are cut where cells meet. P is the share of all numbers in
    each piece, those beyond the ends being in the outermost two. Q is what the codes describe: each cell's own numbers,
    without those from beyond, spread evenly over its pieces, as shares again. Then: sum P log(P / max(Q, floor)).

    That Q leaves out the clipped ones makes clipping cost; that it is even within a cell makes steps cost.
    Pieces are as fine as the histogram, whatever the scale, so that a wide cell is not mistaken for a good one.
    """
    a, b = lower / scale, upper / scale
    density = count / (b - a)
    below = (density * np.clip(np.minimum(b, least - 0.5) - a, 0, None)).sum()
    above = (density * np.clip(b - np.maximum(a, most + 0.5), 0, None)).sum()
    pieces = []  # (code, number, width)
    for i in range(count.size):
        first, last = max(a[i], least - 0.5), min(b[i], most + 0.5)
        if first >= last:
            continue
        codes = np.clip(np.floor([first + 0.5, np.nextafter(last, -np.inf) + 0.5]), least, most)
        cuts = [first, *(np.arange(codes[0], codes[1]) + 0.5), last]
        for code, left, right in zip(np.arange(codes[0], codes[1] + 1), cuts[:-1], cuts[1:], strict=True):
            pieces.append((code, density[i] * (right - left), right - left))
    if not pieces:
        return float(sum(n / count.sum() * np.log(n / count.sum() / floor) for n in (below, above) if n > 0))
    code, number, width = np.asarray(pieces).T
    cell = np.cumsum(np.diff(code, prepend=code[0]) != 0)
    spread = np.bincount(cell, number)[cell] / np.bincount(cell, width)[cell]
    q = spread * width / number.sum()
    p = number.copy()
    p[0] += below
    p[-1] += above
    p /= count.sum()
    return float((p * np.log(p / np.maximum(q, floor))).sum())
