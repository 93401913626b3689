# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The contract's arithmetic on the device: functions that kernels call. x input, s scale, z zero point, y = x / s.

Every step rounds once, so kernels must be compiled without contraction (enable_fp_fusion=False). Computed in f32 for
f16, bf16 and f32, in f64 for f64.
"""

from __future__ import annotations

from lowbit.gpu.language import jit, tl

# Adding 1.5 * 2^23 leaves no bits for a fraction, and the adder rounds half to even. Good for |y| < 2^22.
ROUND_F32 = tl.constexpr(12582912.0)
ROUND_F64 = tl.constexpr(6755399441055744.0)
MIN_SCALE = tl.constexpr(2.0**-125)
MAX_SCALE = tl.constexpr((2.0**128 - 2.0**104) / 65536.0)  # FLT_MAX / 65536


@jit
def widen(x):
    """x in its compute type; exact."""
    if x.dtype == tl.float64:
        return x
    else:
        return x.to(tl.float32)


@jit
def divide(a, b):
    """a / b as IEEE rounds it: `/` alone is an approximation in f32."""
    if a.dtype == tl.float64:
        return a / b
    else:
        return tl.div_rn(a, b)


@jit
def round_to_even(y):
    """rne(y) for |y| < 2^22; never -0."""
    if y.dtype == tl.float64:
        return (y + ROUND_F64) - ROUND_F64
    else:
        return (y + ROUND_F32) - ROUND_F32


@jit
def low_and_high(z, qmin, qmax, like):
    """(qmin - z, qmax - z) in the compute type: the codes' ends, in steps from zero."""
    return (qmin - z).to(like.dtype), (qmax - z).to(like.dtype)


@jit
def steps_clamped(v, s, z, qmin, qmax):
    """clamp(rne(v / s), qmin - z, qmax - z); NaN gives the least. Clamped first: the ends are whole, so rounding cannot
    leave them."""
    low, high = low_and_high(z, qmin, qmax, v)
    return round_to_even(tl.minimum(tl.maximum(divide(v, s), low), high))


@jit
def steps_seen(y, low, high):
    """rne(y), or one step outside where it is below low or above high: enough to tell inside from outside. NaN is
    below."""
    return round_to_even(tl.minimum(tl.maximum(y, low - 1), high + 1))


@jit
def nan_of(like):
    return tl.full(like.shape, float("nan"), like.dtype)


@jit
def affine_from_range(lo, hi, qmin, qmax, SYMMETRIC: tl.constexpr):
    """(s, z) that cover [lo, hi], NaN left out of it and -0 as +0. A range that no scale can cover gives s = NaN.

    symmetric   s = max(-lo, hi) / qmax, z = 0
    asymmetric  widen to contain 0, s = (hi - lo) / (qmax - qmin), z = clamp(rne(qmin - lo / s), qmin, qmax)
    s is at least 2^-125; all-zero data gets s = 1 and z = 0, clamped into the codes' range.
    """
    whole = tl.zeros_like(lo).to(tl.int32)
    first, last = (whole + qmin).to(lo.dtype), (whole + qmax).to(lo.dtype)
    parts = whole + qmax
    if SYMMETRIC:
        span = tl.maximum(-lo, hi)
    else:
        parts -= qmin
        lo = tl.minimum(lo, 0.0)
        hi = tl.maximum(hi, 0.0)
        span = hi - lo
    some = span > 0
    s = tl.where(some, tl.maximum(divide(span, tl.maximum(parts, 1).to(lo.dtype)), MIN_SCALE), 1.0)
    steps = tl.zeros_like(lo)
    if not SYMMETRIC:
        steps = tl.where(some, first - divide(lo, s), 0.0)
    z = round_to_even(tl.minimum(tl.maximum(steps, first), last)).to(tl.int32)
    return tl.where(s <= MAX_SCALE, s, nan_of(s)), z


@jit
def join_nibbles(pairs):
    """Pairs of codes, along the last axis, as bytes: the first of a pair in the low nibble."""
    low, high = tl.split(pairs & 15)
    return (low | (high << 4)).to(tl.uint8)


@jit
def split_nibbles(packed, BLOCK: tl.constexpr, SIGNED: tl.constexpr):
    """The BLOCK codes of BLOCK / 2 bytes, sign-extended where SIGNED."""
    wide = packed.to(tl.int32)
    codes = tl.reshape(tl.join(wide & 15, (wide >> 4) & 15), (BLOCK,))
    if SIGNED:
        codes = (codes ^ 8) - 8
    return codes
