"""The contract's integer arithmetic in plain NumPy: matrix products, convolutions, epilogues and pooling.

Accumulators are exact in int64. a: [..., m, k] codes with zero points za, one or [m]; b: [..., k, n] with zb, one
or [n]. s scales, f32.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from lowbit.numerics.dtypes import Array
from lowbit.reference import quantize_affine

F32 = np.float32
Pair: TypeAlias = tuple[int, int]
Padding: TypeAlias = tuple[int, int, int, int]  # top, left, bottom, right


def matmul_integer(a: Array, b: Array, za: Any = 0, zb: Any = 0) -> Array:
    """sum over k of (a - za) * (b - zb), in int64.

    >>> matmul_integer(np.uint8([[255, 1]]), np.int8([[-128], [2]]), 1, 0)
    array([[-32512]])
    """
    za, zb = np.asarray(za, np.int64), np.asarray(zb, np.int64)
    return np.asarray(np.matmul(a.astype(np.int64) - (za[:, None] if za.ndim else za), b.astype(np.int64) - zb))


def scaled(acc: Array, sa: Any, sb: Any, bias: Any = 0) -> Array:
    """y = f32(acc) * (sa * sb) + bias. sa: one or [m]; sb: one or [n]; bias: one or [n]."""
    sa = np.asarray(sa, F32)
    with np.errstate(over="ignore", invalid="ignore"):
        y = acc.astype(F32) * ((sa[:, None] if sa.ndim else sa) * np.asarray(sb, F32)) + np.asarray(bias, F32)
    return np.asarray(y)


def requantize(acc: Array, sa: Any, sb: Any, sy: Any, zy: Any, qmin: int, qmax: int) -> Array:
    """q = clamp(rne(f32(acc) * ((sa * sb) / sy)) + zy, qmin, qmax). A bias is in acc, in steps of sa * sb."""
    sa, zy = np.asarray(sa, F32), np.asarray(zy, np.int64)
    low, high = (qmin - zy).astype(F32), (qmax - zy).astype(F32)
    with np.errstate(over="ignore", invalid="ignore"):
        by = ((sa[:, None] if sa.ndim else sa) * np.asarray(sb, F32)) / np.asarray(sy, F32)
        steps = np.rint(acc.astype(F32) * by)
    codes: Array = np.minimum(np.fmax(steps, low), high).astype(np.int64) + zy  # NaN gives qmin, as in quantize
    return codes


_MOST_STEPS = 2.0**62  # of a bias that is added to integer sums


def bias_steps(bias: Array, sa: Any, sb: Any) -> tuple[Array, Array]:
    """A float bias [n] in steps of the sums, rne(bias / (sa * sb)) in int64, and where that is what it counts for.

    It is not where steps reach 2^62, for a bias that is infinite, or a product of scales that f32 takes for 0.
    """
    sa = np.asarray(sa, F32)
    with np.errstate(all="ignore"):
        steps = np.rint(bias.astype(F32) / ((sa[:, None] if sa.ndim else sa) * np.asarray(sb, F32)))
        counted = np.abs(steps) < _MOST_STEPS
    return np.where(counted, steps, 0).astype(np.int64), counted


def requantize_biased(
    acc: Array, sa: Any, sb: Any, bias: Array | None, sy: Any, zy: int, qmin: int, qmax: int
) -> Array:  # fmt: skip
    """requantize(acc + rne(bias / (sa * sb))); where the bias has no such steps, it is far above the sums, and
    quantize(f32(acc) * (sa * sb) + bias)."""
    if bias is None:
        return requantize(acc, sa, sb, sy, zy, qmin, qmax)
    steps, counted = bias_steps(bias, sa, sb)
    codes = requantize(acc.astype(np.int64) + steps, sa, sb, sy, zy, qmin, qmax)
    if counted.all():
        return codes
    return np.where(counted, codes, _codes(scaled(acc, sa, sb, bias), sy, zy, qmin, qmax))


def matmul_groups(a: Array, b: Array, sa: Array, sb: Array, zb: Array, block: int, bias: Any = 0) -> Array:
    """Weights b [k, n] with a scale and zero point for each `block` along k, shaped [groups, n]; codes a [m, k] with
    zero point 0 and scales sa [m], or [m, groups]. Exact within a group; groups are added in order, in f32:

    y = sum over g of f32(dot_g) * sb[g], times sa, plus bias; with sa for groups f32(dot_g) * (sa[g] * sb[g]).
    """
    y = np.zeros((a.shape[0], b.shape[1]), F32)
    for g in range(sb.shape[0]):
        part = slice(g * block, (g + 1) * block)
        dot = matmul_integer(a[:, part], b[part], 0, zb[g]).astype(F32)
        y = y + dot * (sb[g] if sa.ndim == 1 else sa[:, g, None] * sb[g])
    return (y * sa[:, None] if sa.ndim == 1 else y) + np.asarray(bias, F32)


def binary_matmul(a: Array, b: Array) -> Array:
    """Bits a [m, k] and b [k, n], each standing for +1 or -1: (places that agree) - (places that differ)."""
    return matmul_integer(2 * a.astype(np.int64) - 1, 2 * b.astype(np.int64) - 1)


def conv2d_integer(
    x: Array,
    w: Array,
    zx: int = 0,
    zw: Any = 0,
    stride: Pair = (1, 1),
    padding: Padding = (0, 0, 0, 0),
    dilation: Pair = (1, 1),
    groups: int = 1,
) -> Array:
    """x [n, c, h, w] by w [out, c / groups, kh, kw] in int64. padding: of x's zero point; zw: one, or one per output
    channel."""
    steps, weights = x.astype(np.int64) - zx, w.astype(np.int64) - np.asarray(zw, np.int64).reshape(-1, 1, 1, 1)
    return _conv2d(steps, weights, stride, padding, dilation, groups)


def conv2d_general(
    x: Array, w: Array, stride: Pair = (1, 1), padding: Padding = (0, 0, 0, 0), dilation: Pair = (1, 1), groups: int = 1
) -> Array:
    """The numbers x [n, c, h, w] by w [out, c / groups, kh, kw] in float64; padding is 0.

    >>> conv2d_general(np.full((1, 1, 2, 2), 0.5), np.ones((1, 1, 2, 2)), padding=(0, 0, 0, 1))[0, 0]
    array([[2., 1.]])
    """
    return _conv2d(x.astype(np.float64), w.astype(np.float64), stride, padding, dilation, groups)


def _conv2d(steps: Array, weights: Array, stride: Pair, padding: Padding, dilation: Pair, groups: int) -> Array:
    top, left, bottom, right = padding
    steps = np.pad(steps, ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, _, height, width = steps.shape
    out, per_group, kh, kw = weights.shape
    oh = (height - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    ow = (width - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((n, groups, out // groups, oh, ow), steps.dtype)
    split = steps.reshape(n, groups, per_group, height, width)
    for i in range(kh):
        for j in range(kw):
            top, left = i * dilation[0], j * dilation[1]
            tap = split[..., top : top + (oh - 1) * stride[0] + 1 : stride[0], :]
            tap = tap[..., left : left + (ow - 1) * stride[1] + 1 : stride[1]]
            y += np.einsum("ngchw,goc->ngohw", tap, weights[:, :, i, j].reshape(groups, out // groups, per_group))
    return y.reshape(n, out, oh, ow)


def _value(q: Array, s: Any, z: Any) -> Array:
    return (q.astype(np.int32) - np.asarray(z, np.int32)).astype(F32) * np.asarray(s, F32)


def _codes(y: Array, sy: Any, zy: Any, qmin: int, qmax: int) -> Array:
    return quantize_affine(y, np.asarray(sy, F32), np.asarray(zy, np.int32), qmin, qmax)


def qadd(a: Array, sa: Any, za: Any, b: Array, sb: Any, zb: Any, sy: Any, zy: Any, qmin: int, qmax: int) -> Array:
    """quantize((a - za) * sa + (b - zb) * sb), every step rounded to f32."""
    return _codes(_value(a, sa, za) + _value(b, sb, zb), sy, zy, qmin, qmax)


def qmul(a: Array, sa: Any, za: Any, b: Array, sb: Any, zb: Any, sy: Any, zy: Any, qmin: int, qmax: int) -> Array:
    """quantize(((a - za) * sa) * ((b - zb) * sb)), every step rounded to f32."""
    return _codes(_value(a, sa, za) * _value(b, sb, zb), sy, zy, qmin, qmax)


def _windows(x: Array, kernel: Pair, stride: Pair, padding: Padding, fill: int) -> Array:
    """[n, c, oh, ow, kh * kw] of x [n, c, h, w], padded (top, left, bottom, right) with `fill`."""
    top, left, bottom, right = padding
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(padded, kernel, (2, 3))[:, :, :: stride[0], :: stride[1]]
    return view.reshape(*view.shape[:4], -1)


def max_pool(x: Array, kernel: Pair, stride: Pair, padding: Padding) -> Array:
    """The greatest code of each window of x [n, c, h, w]; padding never wins."""
    return np.asarray(_windows(x, kernel, stride, padding, np.iinfo(x.dtype).min).max(-1))


def average_pool(
    x: Array, kernel: Pair, stride: Pair, padding: Padding,
    s: Any, z: int, sy: Any, zy: int, qmin: int, qmax: int, count_include_pad: bool = False,
) -> Array:  # fmt: skip
    """q = clamp(rne(f32(sum(x - z)) * ((s / count) / sy)) + zy), count the places of x in the window."""
    sums = _windows(x.astype(np.int64) - z, kernel, stride, padding, 0).sum(-1)
    inside = _windows(np.ones_like(x, np.int64), kernel, stride, padding, int(count_include_pad)).sum(-1)
    by = (F32(s) / inside.astype(F32)) / F32(sy)
    steps = np.rint(sums.astype(F32) * by)
    return np.asarray(np.clip(steps, F32(qmin - zy), F32(qmax - zy)).astype(np.int64) + zy)
