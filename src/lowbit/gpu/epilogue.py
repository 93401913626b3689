# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""The epilogue of integer matrix products: the contract's formulas on a tile [rows, columns].

Codes are multiplied as signed bytes: unsigned codes are xored with 0x80, which subtracts 128, and 128 is subtracted
from their zero points. With a, b, za and zb so shifted,

    sum over k of (a - za) * (b - zb) = sum a * b - za * sum b - zb * (sum a - K * za)

to the bit: every product is exact in int32 for K <= 131,071, and where the result might not be, WIDE makes it int64.

Floats are rounded after each operation, as on the CPU: kernels are launched with contraction off.
"""

from __future__ import annotations

from lowbit.gpu.language import jit, tl


@jit
def centred(codes, UNSIGNED: tl.constexpr):
    """Codes as signed bytes; unsigned ones become 128 less."""
    if UNSIGNED:
        return (codes ^ 0x80).to(tl.int8, bitcast=True)
    else:
        return codes


@jit
def corrected(dot, row_sum, column_sum, za, zb, K, RULES: tl.constexpr):
    """dot - za * column_sum - zb * (row_sum - K * za), for za, row_sum [rows, 1] and zb, column_sum [1, columns]."""
    if RULES.WIDE:
        dot = dot.to(tl.int64)
        za = za.to(tl.int64)
        zb = zb.to(tl.int64)
    if RULES.HAS_ZA:
        dot -= za * column_sum
    if RULES.HAS_ZB:
        dot -= zb * (row_sum - K * za)
    return dot


@jit
def rounded(x):
    """The nearest integer to an f32, ties to even, as an f32: 2^23 + |x| has no room for a fraction."""
    magnitude = tl.abs(x)
    whole = (magnitude + 8388608.0) - 8388608.0
    whole = tl.where(magnitude < 8388608.0, whole, magnitude)
    return tl.where(x < 0.0, -whole, whole)


@jit
def applied(sums, sa, sb, bias, epilogue, RULES: tl.constexpr):
    """The tile of results in i32, i64 or f32; the store narrows it.

    OUT "sums":   sums
    OUT "floats": y = clamp(f32(sums) * (sa * sb) + bias, floor, ceiling); NaN stays NaN
    OUT "codes":  q = clamp(rne(f32(sums) * ((sa * sb) / sy)) + zy, lo, hi)

    BIAS "integers" is added to the sums, "floats" to float results; "steps" are floats that become steps of the sums,
    rne(bias / (sa * sb)), where codes are asked for. sa: [rows, 1]; sb, bias: [1, columns].
    """
    if RULES.OUT == "sums":
        return sums
    else:
        by = sa * sb
        if RULES.BIAS == "integers":
            sums = sums.to(tl.int64) + bias
        elif RULES.BIAS == "steps":
            # Beyond 2^62 a code is saturated either way.
            steps = tl.minimum(tl.maximum(rounded(tl.div_rn(bias, by)), -4.6e18), 4.6e18)
            sums = sums.to(tl.int64) + steps.to(tl.int64)
        y = sums.to(tl.float32)
        if RULES.OUT == "codes":
            y = y * tl.div_rn(by, epilogue.sy)
            y = tl.minimum(tl.maximum(y, 1.0 * (epilogue.lo - epilogue.zy)), 1.0 * (epilogue.hi - epilogue.zy))
            # Small by now: 1.5 * 2^23 is enough, and keeps the sign.
            return ((y + 12582912.0) - 12582912.0).to(tl.int32) + epilogue.zy
        else:
            y = y * by
            if RULES.BIAS == "floats":
                y = y + bias
            y = tl.where(y < epilogue.floor, epilogue.floor, y)
            return tl.where(y > epilogue.ceiling, epilogue.ceiling, y)


@jit
def apply_epilogue(dot, row_sum, rows, columns, first, out, out_row, scales, M, N, K, epilogue, RULES: tl.constexpr):
    """Corrects a tile [rows, columns] of dot products of centred codes, applies the epilogue and stores what is inside.
    first: the column of the whole result at which this product's N begin."""
    row_in = rows < M
    column_in = columns < N
    za = tl.zeros((1, 1), tl.int32)
    zb = tl.zeros((1, 1), tl.int32)
    of_columns = tl.zeros((1, 1), tl.int32)
    # One value for all rows or columns stays one, so that what depends on it is computed once.
    if RULES.HAS_ZA:
        if RULES.ZA_STEP:
            za = tl.load(scales.za + rows, mask=row_in, other=0)[:, None] - (128 if RULES.A_UNSIGNED else 0)
        else:
            za += tl.load(scales.za) - (128 if RULES.A_UNSIGNED else 0)
        of_columns = tl.load(scales.column_sums + first + columns, mask=column_in, other=0)[None, :]
    if RULES.HAS_ZB:
        if RULES.ZB_STEP:
            zb = tl.load(scales.zb + first + columns, mask=column_in, other=0)[None, :]
            zb -= 128 if RULES.B_UNSIGNED else 0
        else:
            zb += tl.load(scales.zb) - (128 if RULES.B_UNSIGNED else 0)
    sums = corrected(dot, row_sum[:, None], of_columns, za, zb, K, RULES)

    sa = tl.zeros((1, 1), tl.float32)
    if RULES.OUT != "sums":
        if RULES.SA_STEP:
            sa = tl.load(scales.sa + rows, mask=row_in, other=1.0)[:, None]
        else:
            sa += tl.load(scales.sa)
    store_tile(sums, sa, rows, columns, first, out, out_row, scales, M, N, epilogue, RULES)


@jit
def store_tile(sums, sa, rows, columns, first, out, out_row, scales, M, N, epilogue, RULES: tl.constexpr):
    """Applies the epilogue to a tile of exact sums and stores what is inside."""
    row_in = rows < M
    column_in = columns < N
    sb = tl.zeros((1, 1), tl.float32)
    bias = tl.zeros((1, 1), tl.float32)
    if RULES.OUT != "sums":
        if RULES.SB_STEP:
            sb = tl.load(scales.sb + first + columns, mask=column_in, other=1.0)[None, :]
        else:
            sb += tl.load(scales.sb)
    if RULES.BIAS != "none":
        bias = tl.load(epilogue.bias + first + columns, mask=column_in, other=0)[None, :]
    y = applied(sums, sa, sb, bias, epilogue, RULES)
    offsets = out + first + rows.to(tl.int64)[:, None] * out_row + columns[None, :]
    tl.store(offsets, y.to(out.dtype.element_ty), mask=row_in[:, None] & column_in[None, :])
