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
_EMPHASES = ("none", "root", "square")


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

    importance: of each input, float32; None: 1. factors: of the scale that the range asks for, which are tried.
    offsets: zero points that are tried, to either side, or below 0 where symmetric. scale_dtype: what holds the scales.

    >>> found = search_scales(np.float32([[-8, 3, 7]]), None, None, 3, np.ones(1, np.float32), (-8, 7), symmetric=True,
    ...                       offsets=1)
    >>> found.scale, found.zero_point
    (array([[1.]], dtype=float32), array([[0]], dtype=int32))
    """
    _check("weight", weight, np.float32, 2)
    _check("factors", factors, np.float32, 1)
    if importance is not None:
        _check("importance", importance, np.float32, 1)
    kind, floor = ("none", None) if emphasis is None else emphasis
    if floor is not None:
        _check("floor", floor, np.float32, 1)
    for field, value, among in (("emphasis", kind, _EMPHASES), ("scale_dtype", scale_dtype, tuple(SCALE_DTYPES))):
        if value not in among:
            raise InvalidProblem(f"{field}: {value!r}; expected {', '.join(among)}")
    if group_size < 1:
        raise InvalidProblem(f"group_size: {group_size!r}; expected a positive integer")
    rows, inputs = weight.shape
    shape = (rows, -(-inputs // group_size))
    made = Scales(np.empty(shape, np.float32), np.empty(shape, np.int32), np.empty(shape, np.float32))
    weights = core.SearchWeights(weight, importance, floor, (rows, inputs, group_size), core.Emphasis[kind])
    least, most = codes
    wanted = core.SearchCodes(least, most, symmetric, offsets, SCALE_DTYPES[scale_dtype])
    core.search_scales(weights, factors, wanted, *made)
    return made


def feed_back_errors(weight: Array, t: Array, steps: Steps | None) -> Array:
    """The steps p of a float32 matrix [rows, inputs], rounded one input after the other with the errors fed back.

    t: float32 [inputs, inputs], unit upper triangular. Without steps, the solution v of v t = weight.
    """
    _check("weight", weight, np.float32, 2)
    _check("t", t, np.float32, 2)
    if steps is not None:
        for field, array in zip(("scale", "low", "high"), steps, strict=False):
            _check(field, array, np.float32, 2)
        _check("group", steps.group, np.int32, 1)
    if not weight.shape[1]:
        raise InvalidProblem(f"weight: shape {weight.shape}; expected at least one input")
    out = np.empty_like(weight)
    given = None if steps is None else core.FeedbackSteps(steps.scale, steps.low, steps.high, steps.group)
    core.feed_back_errors(weight, t, weight.shape[1], given, out)
    return out


def product_in_order(a: Array, b: Array) -> Array:
    """The product of float32 matrices, each sum in the order of its terms.

    >>> product_in_order(np.float32([[1, 2]]), np.float32([[3], [4]]))
    array([[11.]], dtype=float32)
    """
    _check("a", a, np.float32, 2)
    _check("b", b, np.float32, 2)
    inputs = a.shape[1]
    if len(b) != inputs or not inputs:
        raise InvalidProblem(f"b: shape {b.shape}; expected [{inputs}, columns], at least one row")
    out = np.empty((len(a), b.shape[1]), np.float32)
    core.product_in_order(a, b.reshape(-1, inputs), inputs, out)  # in memory b is still [inputs, columns]
    return out


def factor_cholesky(a: Array, *, overwrite: bool = False) -> Array:
    """The lower Cholesky factor of a symmetric float64 matrix.

    Raises InvalidProblem where the matrix is not positive definite. overwrite: the factor takes the memory of `a`.

    >>> factor_cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    factor = (np.asarray if overwrite else np.array)(a, np.float64, order="C")
    if factor.ndim != 2 or factor.shape[0] != factor.shape[1]:
        raise InvalidProblem(f"matrix: shape {factor.shape}; expected a square")
    bad = core.factor_cholesky(factor, len(factor))
    if bad >= 0:
        raise InvalidProblem(f"matrix: not positive definite at row {bad}; expected more damping")
    return factor


def _check(name: str, array: Array, dtype: type[np.generic], ndim: int) -> None:
    """Raise for arrays that are not C-contiguous, of this type and number of axes."""
    if array.dtype != dtype or array.ndim != ndim or not array.flags.c_contiguous:
        order = "" if array.flags.c_contiguous else ", strided"
        raise InvalidProblem(
            f"{name}: {array.dtype} of shape {array.shape}{order}; expected C-contiguous {np.dtype(dtype)}, {ndim} axes"
        )
