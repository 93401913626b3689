"""Scales and zero points from ranges: the contract's formulas, on arrays of any shape."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem

# Below MIN_SCALE, flush-to-zero in a host library could change codes; above MAX_SCALE, code * scale overflows.
MIN_SCALE = 2.0**-125
MAX_SCALE = float(np.finfo(np.float32).max) / 65536.0
# What types hold of that range.
_HELD = {
    "float32": (MIN_SCALE, MAX_SCALE),
    "float16": (2.0**-24, 65504.0),
    "bfloat16": (MIN_SCALE, float.fromhex("0x1.fep+111")),
}
SCALES = "finite, positive and in [2^-125, FLT_MAX / 65536]"  # as error messages put it


def affine_from_range(
    lo: Array, hi: Array, qmin: int, qmax: int, *, symmetric: bool, full_range: bool = False
) -> tuple[Array, npt.NDArray[np.int32]]:
    """Scales and zero points that cover [lo, hi], computed in lo's own type.

    symmetric   s = max(|lo|, |hi|) / qmax, z = 0          (full_range: divide by -qmin)
    asymmetric  widen to contain 0, s = (hi - lo) / (qmax - qmin), z = clamp(rne(qmin - lo / s), qmin, qmax)
    All-zero data gets s = 1 and z = 0, clamped into the codes' range.

    >>> affine_from_range(np.float32(-1), np.float32(3), 0, 255, symmetric=False)
    (array(0.01568628, dtype=float32), array(64, dtype=int32))
    """
    lo, hi = np.asarray(lo), np.asarray(hi)
    one = lo.dtype.type
    with np.errstate(over="ignore", invalid="ignore"):
        if symmetric:
            most = np.maximum(-lo, hi)
            divisor = -qmin if full_range and qmin < 0 else qmax
            scale = np.where(most > 0, np.maximum(most / one(max(divisor, 1)), one(MIN_SCALE)), one(1))
            zero = np.full(lo.shape, min(max(0, qmin), qmax), np.int32)
        else:
            lo, hi = np.minimum(lo, one(0)), np.maximum(hi, one(0))
            some = hi > lo
            scale = np.maximum((hi - lo) / one(max(qmax - qmin, 1)), one(MIN_SCALE))
            scale = np.where(some, scale, one(1))
            steps = np.where(some, one(qmin) - lo / scale, one(0))
            zero = np.clip(np.rint(steps), qmin, qmax).astype(np.int32)
    return _checked(np.asarray(scale)), np.asarray(zero)


def log_scale_from_range(lo: Array, hi: Array) -> Array:
    """max|x|, the value of the greatest logarithmic magnitude; 1 where all is zero."""
    return affine_from_range(lo, hi, -1, 1, symmetric=True)[0]


def mixed_scale_from_range(
    widths: tuple[int, ...], lo: Array, hi: Array, mean_abs: Array | None, full_range: bool
) -> Array:
    """One scale per channel: mean|x| where the channel has one bit, else the symmetric formula."""
    each = np.asarray(widths).reshape(lo.shape)
    if (each == 1).any() and mean_abs is None:
        raise InvalidProblem("mean_abs: missing; a binary scale is the mean of |x|, which a range does not give")
    out = np.empty(lo.shape, lo.dtype)
    for width in set(widths):
        at = each == width
        if width == 1:
            assert mean_abs is not None
            mean = np.broadcast_to(mean_abs, lo.shape)[at]
            out[at] = np.where(mean > 0, np.maximum(mean, lo.dtype.type(MIN_SCALE)), 1)
        else:
            top = (1 << (width - 1)) - 1
            least = -top - 1 if full_range else -top
            out[at] = affine_from_range(lo[at], hi[at], least, top, symmetric=True, full_range=full_range)[0]
    return out


def held(scale: Array, dtype: str) -> Array:
    """Scales as float32, float16 or bfloat16 holds them, as float32: the nearest one that it does, ties to even.

    >>> held(np.float32([0.1, 1e9, 0]), "float16").tolist()
    [0.0999755859375, 65504.0, 5.960464477539063e-08]
    """
    stored: Array = np.clip(scale, *_HELD[dtype]).astype(np.float32)
    if dtype == "float16":
        stored = stored.astype(np.float16).astype(np.float32)
    elif dtype == "bfloat16":  # the upper half of float32
        bits = stored.view(np.uint32)
        stored = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.ascontiguousarray(stored)


def _checked(scale: Array) -> Array:
    if not (scale <= MAX_SCALE).all():
        worst = scale[~(scale <= MAX_SCALE)].flat[0]
        raise InvalidProblem(f"scale: the range is too wide: it needs a scale of {worst}, above {MAX_SCALE:.6g}")
    return scale
