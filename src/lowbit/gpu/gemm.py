# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""int8 products on Tensor Cores (AMD: matrix cores):

    y[m, n] = finish(sum over k of (a[m, k] - za[m]) * (b[n, k] - zb[n]))

a: [M, K], b: [N, K], both with k contiguous, which is how every matrix unit wants them. A program makes a tile of
BLOCK_M by BLOCK_N, walking along k; programs are numbered so that GROUP_M tiles of rows share columns of b in cache.
Rows and columns past the end wrap around and are not stored, so that only the end of k needs a mask.
"""

from __future__ import annotations

from lowbit.gpu.epilogue import centred, corrected, finished
from lowbit.gpu.language import jit, tl

__all__ = ["int8_gemm", "tile_of"]


@jit
def tile_of(program, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr):
    """Row and column of a program's tile: down GROUP_M tiles of rows, then on to the next columns."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    group = program // (GROUP_M * tiles_n)
    first = group * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)
    within = program % (GROUP_M * tiles_n)
    return first + within % height, within // height


@jit
def int8_gemm(
    a, b, out, sa, za, sb, zb, column_sums, bias, M, N, K, a_row, b_row, out_row, sy, zy, lo, hi, floor, ceiling,
    SA_STEP: tl.constexpr, ZA_STEP: tl.constexpr, SB_STEP: tl.constexpr, ZB_STEP: tl.constexpr,
    A_UNSIGNED: tl.constexpr, B_UNSIGNED: tl.constexpr, HAS_ZA: tl.constexpr, HAS_ZB: tl.constexpr,
    WIDE: tl.constexpr, OUT: tl.constexpr, BIAS: tl.constexpr, EVEN_K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """za, zb: null where HAS_ZA, HAS_ZB say so. *_STEP: 1 with a value for each row or column, 0 with one for all."""
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    a_tile = a + (rows % M).to(tl.int64)[:, None] * a_row + depth[None, :]
    b_tile = b + (columns % N).to(tl.int64)[None, :] * b_row + depth[:, None]

    dot = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    row_sum = tl.zeros((BLOCK_M,), tl.int32)
    for k in range(0, K, BLOCK_K):
        if EVEN_K:
            a_codes = tl.load(a_tile)
            b_codes = tl.load(b_tile)
        else:
            # Past the end stands what is 0 once centred.
            a_codes = tl.load(a_tile, mask=depth[None, :] < K - k, other=128 if A_UNSIGNED else 0)
            b_codes = tl.load(b_tile, mask=depth[:, None] < K - k, other=128 if B_UNSIGNED else 0)
        a_codes = centred(a_codes, A_UNSIGNED)
        dot = tl.dot(a_codes, centred(b_codes, B_UNSIGNED), dot, out_dtype=tl.int32)
        if HAS_ZB:
            row_sum += tl.sum(a_codes.to(tl.int32), axis=1)
        a_tile += BLOCK_K
        b_tile += BLOCK_K

    finish_tile(
        dot, row_sum, rows, columns, out, sa, za, sb, zb, column_sums, bias, M, N, K, out_row, sy, zy, lo, hi, floor,
        ceiling, SA_STEP, ZA_STEP, SB_STEP, ZB_STEP, A_UNSIGNED, B_UNSIGNED, HAS_ZA, HAS_ZB, WIDE, OUT, BIAS,
    )  # fmt: skip


@jit
def finish_tile(
    dot, row_sum, rows, columns, out, sa, za, sb, zb, column_sums, bias, M, N, K, out_row, sy, zy, lo, hi, floor,
    ceiling, SA_STEP: tl.constexpr, ZA_STEP: tl.constexpr, SB_STEP: tl.constexpr, ZB_STEP: tl.constexpr,
    A_UNSIGNED: tl.constexpr, B_UNSIGNED: tl.constexpr, HAS_ZA: tl.constexpr, HAS_ZB: tl.constexpr,
    WIDE: tl.constexpr, OUT: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """Corrects a tile [rows, columns] of dot products of centred codes, finishes it and stores what is inside."""
    row_in = rows < M
    column_in = columns < N
    za_tile = tl.zeros((1, 1), tl.int32)
    zb_tile = tl.zeros((1, 1), tl.int32)
    of_columns = tl.zeros((1, 1), tl.int32)
    # One value for all rows or columns stays one, so that what depends on it is computed once.
    if HAS_ZA:
        if ZA_STEP:
            za_tile = tl.load(za + rows, mask=row_in, other=0)[:, None] - (128 if A_UNSIGNED else 0)
        else:
            za_tile += tl.load(za) - (128 if A_UNSIGNED else 0)
        of_columns = tl.load(column_sums + columns, mask=column_in, other=0)[None, :]
    if HAS_ZB:
        if ZB_STEP:
            zb_tile = tl.load(zb + columns, mask=column_in, other=0)[None, :] - (128 if B_UNSIGNED else 0)
        else:
            zb_tile += tl.load(zb) - (128 if B_UNSIGNED else 0)
    sums = corrected(dot, row_sum[:, None], of_columns, za_tile, zb_tile, K, HAS_ZA, HAS_ZB, WIDE)

    sa_tile = tl.zeros((1, 1), tl.float32)
    sb_tile = tl.zeros((1, 1), tl.float32)
    bias_tile = tl.zeros((1, 1), tl.float32)
    if OUT != "sums":
        if SA_STEP:
            sa_tile = tl.load(sa + rows, mask=row_in, other=1.0)[:, None]
        else:
            sa_tile += tl.load(sa)
        if SB_STEP:
            sb_tile = tl.load(sb + columns, mask=column_in, other=1.0)[None, :]
        else:
            sb_tile += tl.load(sb)
    if BIAS != "none":
        bias_tile = tl.load(bias + columns, mask=column_in, other=0)[None, :]
    y = finished(sums, sa_tile, sb_tile, bias_tile, sy, zy, lo, hi, floor, ceiling, OUT, BIAS)
    place = out + rows.to(tl.int64)[:, None] * out_row + columns[None, :]
    tl.store(place, y.to(out.dtype.element_ty), mask=row_in[:, None] & column_in[None, :])
