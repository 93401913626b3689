# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Quantize, dequantize, fake-quantize and their gradients for given scales, and sums of codes, each in one pass over
flat arrays.

at, RULES: the scale of each element, see scale_access.py. zero may be None. PACKED: codes of 4 bits, two per byte,
`stored` bytes in all, and a program writes whole bytes.
"""

from __future__ import annotations

from lowbit.gpu.arithmetic import divide, join_nibbles, low_and_high, split_nibbles, steps_clamped, steps_seen, widen
from lowbit.gpu.language import jit, tl
from lowbit.gpu.scale_access import affine_elements, load_one, program_index


@jit
def quantize(x, scale, zero, out, at, stored, qmin, qmax, PACKED: tl.constexpr, RULES: tl.constexpr):
    """q = int(clamp(rne(x / s), qmin - z, qmax - z)) + z. NaN gives qmin, ±Inf saturate."""
    first, offsets, here, s, z = affine_elements(scale, zero, at, RULES)
    v = widen(tl.load(x + offsets, mask=here, other=0.0))
    codes = steps_clamped(v, s, z, qmin, qmax).to(tl.int32) + z
    if PACKED:
        # An odd length leaves half a byte, whose bits are 0.
        packed = join_nibbles(tl.reshape(tl.where(here, codes, 0), (RULES.BLOCK // 2, 2)))
        byte = first // 2 + tl.arange(0, RULES.BLOCK // 2)
        tl.store(out + byte, packed, mask=byte < stored)
    else:
        tl.store(out + offsets, codes.to(out.dtype.element_ty), mask=here)


@jit
def dequantize(codes, scale, zero, out, at, stored, PACKED: tl.constexpr, SIGNED: tl.constexpr, RULES: tl.constexpr):
    """y = float(q - z) * s, the subtraction in integers; rounded once more to what `out` holds."""
    first, offsets, here, s, z = affine_elements(scale, zero, at, RULES)
    if PACKED:
        byte = first // 2 + tl.arange(0, RULES.BLOCK // 2)
        q = split_nibbles(tl.load(codes + byte, mask=byte < stored, other=0), RULES.BLOCK, SIGNED)
    else:
        q = tl.load(codes + offsets, mask=here, other=0).to(tl.int32)
    y = (q - z).to(s.dtype) * s
    tl.store(out + offsets, y.to(out.dtype.element_ty), mask=here)


@jit
def fake_quantize(x, scale, zero, out, at, qmin, qmax, RULES: tl.constexpr):
    """y = clamp(rne(x / s), qmin - z, qmax - z) * s; NaN stays as it is."""
    _, offsets, here, s, z = affine_elements(scale, zero, at, RULES)
    given = tl.load(x + offsets, mask=here, other=0.0)
    v = widen(given)
    # Whole numbers below 2^22, never -0: what float(q - z) is.
    y = steps_clamped(v, s, z, qmin, qmax) * s
    tl.store(out + offsets, tl.where(v == v, y.to(given.dtype), given), mask=here)


@jit
def backward(dy, x, scale, zero, out, at, qmin, qmax, DIVIDE: tl.constexpr, RULES: tl.constexpr):
    """dx = m ? dy : 0, m = qmin <= rne(x / s) + z <= qmax; DIVIDE: m ? dy / s : 0. A select: no NaN where dy is Inf and
    m is 0. NaN and ±Inf of x are outside."""
    _, offsets, here, s, z = affine_elements(scale, zero, at, RULES)
    v = widen(tl.load(x + offsets, mask=here, other=0.0))
    given = tl.load(dy + offsets, mask=here, other=0.0)
    low, high = low_and_high(z, qmin, qmax, v)
    steps = steps_seen(divide(v, s), low, high)
    inside = (steps >= low) & (steps <= high)
    if DIVIDE:
        given = divide(widen(given), s)
    tl.store(out + offsets, tl.where(inside, given, tl.zeros_like(given)).to(out.dtype.element_ty), mask=here)


@jit
def dequantize_backward(dy, scale, out, at, RULES: tl.constexpr):
    """dq = dy * s."""
    _, offsets, here, s, _ = affine_elements(scale, None, at, RULES)
    y = widen(tl.load(dy + offsets, mask=here, other=0.0)) * s
    tl.store(out + offsets, y.to(out.dtype.element_ty), mask=here)


@jit
def add(a, a_scale, a_zero, b, b_scale, b_zero, out, out_scale, out_zero, n, qmin, qmax, BLOCK: tl.constexpr):
    """q = quantize((qa - za) * sa + (qb - zb) * sb), every step rounded; one scale for each of the three. BLOCK: a
    Block of one run."""
    offsets = program_index(BLOCK.INDEX64) * BLOCK.LENGTH + tl.arange(0, BLOCK.LENGTH)
    y = _number(a, a_scale, a_zero, offsets, n) + _number(b, b_scale, b_zero, offsets, n)
    s, z = load_one(out_scale, out_zero)
    codes = steps_clamped(y, s, z, qmin, qmax).to(tl.int32) + z
    tl.store(out + offsets, codes.to(out.dtype.element_ty), mask=offsets < n)


@jit
def _number(codes, scale, zero, offsets, n):
    """float(q - z) * s of the codes at these offsets."""
    s, z = load_one(scale, zero)
    return (tl.load(codes + offsets, mask=offsets < n, other=0).to(tl.int32) - z).to(s.dtype) * s
