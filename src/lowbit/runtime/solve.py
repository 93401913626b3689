"""Scales of least error, rounding with error feedback, and Cholesky factors, by native kernels.

`lowbit.reference.algorithms` says in NumPy what each computes; bits are the same on every ISA and for any number of
threads.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.native import Element, core

SCALE_DTYPES = {"float32": Element.f32, "float16": Element.f16, "bfloat16": Element.bf16}


class Scales(NamedTuple):
    """A scale and a zero point for each group, float32 and int32 [rows, groups], and the error that is left."""

    scale: Array
    zero_point: Array
    error: Array


class Emphasis(NamedTuple):
    """How much the error of a weight x counts: sqrt(floor + x^2) for "root", floor + x^2 for "square"."""

    kind: str
    floor: Array  # float32 [rows]


class Steps(NamedTuple):
    """The grid that weights are rounded to: w is about scale * p with low <= p <= high.

    scale, low, high: float32 [rows, groups]. group: int32 [inputs], the group of each input.
    """

    scale: Array
    low: Array
    high: Array
    group: Array


def search_scales(
    weight: Array,
    importance: Array | None,
    emphasis: Emphasis | None,
    group_size: int,
    factors: Array,
    codes: tuple[int, int],
    *,
    symmetric: bool,
    offsets: int,
    scale_dtype: str = "float32",
) -> Scales:
    """The scale and zero point of least weighted squared error of each group of a float32 matrix [rows, inputs].

    importance: of each input, float32; None: 1. factors: of the scale that the range asks for, which are tried. offsets:
    zero points that are tried, to either side, or below 0 where symmetric. scale_dtype: the type that holds the scales.

    >>> found = search_scales(np.float32([[-8, 3, 7]]), None, None, 3, np.ones(1, np.float32), (-8, 7), symmetric=True,
    ...                       offsets=1)
    >>> found.scale, found.zero_point
    (array([[1.]], dtype=float32), array([[0]], dtype=int32))
    """
    rows, inputs = weight.shape
    shape = (rows, -(-inputs // group_size))
    made = Scales(np.empty(shape, np.float32), np.empty(shape, np.int32), np.empty(shape, np.float32))
    kind, floor = ("none", None) if emphasis is None else emphasis
    weights = core.SearchWeights(weight, importance, floor, (rows, inputs, group_size), core.Emphasis[kind])
    least, most = codes
    wanted = core.SearchCodes(least, most, symmetric, offsets, SCALE_DTYPES[scale_dtype])
    core.search_scales(weights, factors, wanted, *made)
    return made


def feed_back_errors(weight: Array, t: Array, steps: Steps | None) -> Array:
    """The steps p of a float32 matrix [rows, inputs], rounded one input after the other with the errors fed back.

    t: float32 [inputs, inputs], unit upper triangular. Without steps, the solution v of v t = weight.
    """
    out = np.empty_like(weight)
    given = None if steps is None else core.FeedbackSteps(steps.scale, steps.low, steps.high, steps.group)
    core.feed_back_errors(weight, t, weight.shape[1], given, out)
    return out


def product_in_order(a: Array, b: Array) -> Array:
    """The product of float32 matrices, each sum in the order of its terms.

    >>> product_in_order(np.float32([[1, 2]]), np.float32([[3], [4]]))
    array([[11.]], dtype=float32)
    """
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    inputs = a.shape[1]
    core.product_in_order(a, b.reshape(-1, inputs), inputs, out)  # in memory b is still [inputs, columns]
    return out


def factor_cholesky(a: Array) -> Array:
    """The lower Cholesky factor of a symmetric float64 matrix.

    Raises InvalidProblem where the matrix is not positive definite.

    >>> factor_cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    factor = np.array(a, np.float64, order="C")
    bad = core.factor_cholesky(factor, len(factor))
    if bad >= 0:
        raise InvalidProblem(f"matrix: not positive definite at row {bad}; expected more damping")
    return factor
