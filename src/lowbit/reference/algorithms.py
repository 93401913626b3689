"""The native kernels of algorithms for weights in plain NumPy, operation by operation: the same bits.

    search_scales      the s and z of the least  sum over j of w_j * (x_j - s * p_j)^2,
                       p_j = clamp(rne(x_j * (1 / s)), qmin - z, qmax - z)
    feed_back_errors   v_j = w_j + sum over i < j of e_i * t_ij,  p_j = clamp(rne(v_j / s_j), low_j, high_j),
                       e_j = w_j - s_j * p_j
    product_in_order   o_ij = sum over k of a_ik * b_kj
    factor_cholesky    l_ij = (a_ij - sum over k < j of l_ik * l_jk) / l_jj

Every operation is rounded on its own, to float32 (factors: float64), and sums run in the order of their index.
"""

from __future__ import annotations

import numpy as np

from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.ranges import held

_F32 = np.float32


def search_scales(
    weight: Array,
    importance: Array | None,
    emphasis: tuple[str, Array] | None,
    group_size: int,
    factors: Array,
    codes: tuple[int, int],
    *,
    symmetric: bool,
    offsets: int,
    scale_dtype: str = "float32",
) -> tuple[Array, Array, Array]:
    """(scale, zero point, error) of least weighted error of each group of a float32 matrix [rows, inputs].

        w_j = importance_j * (1, sqrt(floor + x_j^2) for "root", floor + x_j^2 for "square")

    For each factor f and each zero point, two scales are tried: s = held(f * base), base what the range asks for, and
    then that of the codes found with it, held(sum of w x p / sum of w p^2). The first of the least error is kept; the
    very first where no error is finite. A group of zeros has the scale 1.

    >>> scale, zero_point, error = search_scales(
    ...     np.float32([[-8, 3, 7]]), None, None, 3, np.ones(1, np.float32), (-8, 7), symmetric=True, offsets=1)
    >>> scale, zero_point, error
    (array([[1.]], dtype=float32), array([[0]], dtype=int32), array([[0.]], dtype=float32))
    """
    with np.errstate(all="ignore"):
        w = np.ones_like(weight)
        if emphasis is not None:
            kind, floor = emphasis
            square = floor[:, None] + weight * weight
            w = np.sqrt(square) if kind == "root" else square
        if importance is not None:
            w = importance * w
        search = _Search(factors, codes, symmetric, offsets, scale_dtype)
        starts = range(0, weight.shape[1], group_size)
        found = [search.group(weight[:, i : i + group_size], w[:, i : i + group_size]) for i in starts]
    scale, zero_point, error = (np.stack(column, axis=1) for column in zip(*found, strict=True))
    return scale, zero_point.astype(np.int32), error


class _Search:
    def __init__(self, factors: Array, codes: tuple[int, int], symmetric: bool, offsets: int, scale_dtype: str) -> None:
        self.factors, self.symmetric, self.offsets, self.scale_dtype = factors, symmetric, offsets, scale_dtype
        self.qmin, self.qmax = (_F32(code) for code in codes)

    def group(self, x: Array, w: Array) -> tuple[Array, Array, Array]:
        """The best of one group of each row; x, w: [rows, elements]."""
        least, most = np.fmin.reduce(x, 1, initial=_F32(0)), np.fmax.reduce(x, 1, initial=_F32(0))
        span, middle = most - least, (most + least) * _F32(0.5)
        base = np.fmax(0 - least, most) / -self.qmin if self.symmetric else span / (self.qmax - self.qmin)
        first = held(base * self.factors[0], self.scale_dtype)
        best = (first, self._zero_point(first, middle, 0), np.full(len(x), np.inf, _F32))
        for factor in self.factors:
            s = held(base * factor, self.scale_dtype)
            for i in range((1 if self.symmetric else 2) * self.offsets + 1):
                z = self._zero_point(s, middle, i)
                error, xp, pp = self._sums(x, w, s, z)
                best = _better(best, (s, z, error))
                fitted = held(np.where((xp > 0) & (pp > 0), xp / pp, _F32(0)), self.scale_dtype)
                best = _better(best, (fitted, z, self._sums(x, w, fitted, z)[0]))
        zero = min(max(_F32(0), self.qmin), self.qmax)
        scale, zero_point, error = (
            np.where(span == 0, a, b) for a, b in zip((_F32(1), zero, _F32(0)), best, strict=True)
        )
        return scale, zero_point, error

    def _zero_point(self, s: Array, middle: Array, i: int) -> Array:
        """Candidate i: 0, -1 and so on where symmetric, else from `offsets` below the middle of the range on."""
        if self.symmetric:
            return np.full_like(s, -i)
        z = np.rint((self.qmin + self.qmax) * _F32(0.5) - middle / s)
        return _clamp(z + _F32(i - self.offsets), self.qmin, self.qmax)

    def _sums(self, x: Array, w: Array, s: Array, z: Array) -> tuple[Array, Array, Array]:
        """The sums of w * (x - s * p)^2, w * x * p and w * p^2."""
        inverse, low, high = 1 / s, self.qmin - z, self.qmax - z
        error, xp, pp = (np.zeros_like(s) for _ in range(3))
        for xj, wj in zip(x.T, w.T, strict=True):
            p = _clamp(np.rint(xj * inverse), low, high)
            off = xj - s * p
            error = error + wj * off * off
            xp = xp + wj * p * xj
            pp = pp + wj * p * p
        return error, xp, pp


def _better(best: tuple[Array, Array, Array], found: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    better = found[2] < best[2]
    scale, zero_point, error = (np.where(better, new, old) for new, old in zip(found, best, strict=True))
    return scale, zero_point, error


def _clamp(x: Array, low: Array, high: Array) -> Array:
    """A NaN stays a NaN."""
    bounded: Array = np.maximum(np.minimum(x, high), low)
    return bounded


def feed_back_errors(weight: Array, t: Array, steps: tuple[Array, Array, Array, Array] | None) -> Array:
    """The steps p of a float32 matrix [rows, inputs]; t: float32, unit upper triangular.

    steps: (scale, low, high), float32 [rows, groups], and the group of each input. None: p_j = v_j and e_j = -v_j, the
    solution v of v t = weight.

    >>> feed_back_errors(np.float32([[3, 8]]), np.float32([[1, 2], [0, 1]]), None)
    array([[3., 2.]], dtype=float32)
    """
    out, sums = np.empty_like(weight), np.zeros_like(weight)
    with np.errstate(all="ignore"):
        for j in range(weight.shape[1]):
            w = weight[:, j]
            v = w + sums[:, j]
            if steps is None:
                p, e = v, 0 - v
            else:
                scale, low, high = (a[:, steps[3][j]] for a in steps[:3])
                p = _clamp(np.rint(v / scale), low, high)
                e = w - scale * p
            out[:, j] = p
            sums[:, j + 1 :] += e[:, None] * t[j, j + 1 :]
    return out


def product_in_order(a: Array, b: Array) -> Array:
    """The product of float32 matrices.

    >>> product_in_order(np.float32([[1, 2]]), np.float32([[3], [4]]))
    array([[11.]], dtype=float32)
    """
    out = np.zeros((a.shape[0], b.shape[1]), _F32)
    with np.errstate(all="ignore"):
        for column, row in zip(a.T, b, strict=True):
            out += column[:, None] * row
    return out


def factor_cholesky(a: Array) -> Array:
    """The lower Cholesky factor of a symmetric float64 matrix, of which the lower triangle is read.

    >>> factor_cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    factor = np.tril(np.array(a, np.float64))
    with np.errstate(all="ignore"):
        for j in range(len(factor)):
            if not factor[j, j] > 0:
                raise InvalidProblem(f"matrix: not positive definite at row {j}; expected more damping")
            factor[j, j] = np.sqrt(factor[j, j])
            below = factor[j + 1 :, j]
            below /= factor[j, j]
            factor[j + 1 :, j + 1 :] -= np.tril(np.outer(below, below))
    return factor
