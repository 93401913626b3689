# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""int8 products on Tensor Cores (AMD: matrix cores):

    y[m, n] = epilogue(sum over k of (a[m, k] - za[m]) * (b[n, k] - zb[n]))

a: [M, K], b: [N, K], both with k contiguous, which is how every matrix unit wants them. A program makes a tile of
BLOCK_M by BLOCK_N, walking along k; programs are numbered so that GROUP_M tiles of rows share columns of b in cache.
Rows and columns past the end wrap around and are not stored, so that only the end of k needs a mask.
"""

from __future__ import annotations

from lowbit.gpu.epilogue import applied, centred, corrected
from lowbit.gpu.language import jit, tl

GROUP_M = tl.constexpr(8)  # tiles of rows that share columns of b in cache


@jit
def tile_of(program, M, N, TILE: tl.constexpr):
    """(rows, columns) of a program's tile: down GROUP_M tiles of rows, then on to the next columns."""
    tiles_m = tl.cdiv(M, TILE.rows)
    tiles_n = tl.cdiv(N, TILE.columns)
    group = program // (GROUP_M * tiles_n)
    first = group * GROUP_M
    height = tl.minimum(tiles_m - first, GROUP_M)
    within = program % (GROUP_M * tiles_n)
    tile_m, tile_n = first + within % height, within // height
    return tile_m * TILE.rows + tl.arange(0, TILE.rows), tile_n * TILE.columns + tl.arange(0, TILE.columns)


@jit
def int8_gemm(a, b, out, scales, shape, epilogue, RULES: tl.constexpr, EVEN_K: tl.constexpr, TILE: tl.constexpr):
    """scales, shape, epilogue, RULES: see arguments.py. EVEN_K: the tile's depth divides K."""
    M, N, K = shape.M, shape.N, shape.K
    rows, columns = tile_of(tl.program_id(0), M, N, TILE)
    depth = tl.arange(0, TILE.depth)
    a_tile = a + (rows % M).to(tl.int64)[:, None] * shape.a_row + depth[None, :]
    b_tile = b + (columns % N).to(tl.int64)[None, :] * shape.b_row + depth[:, None]

    dot = tl.zeros((TILE.rows, TILE.columns), tl.int32)
    row_sum = tl.zeros((TILE.rows,), tl.int32)
    for k in range(0, K, TILE.depth):
        if EVEN_K:
            a_codes = tl.load(a_tile)
            b_codes = tl.load(b_tile)
        else:
            # Codes past the end are 0 once centred.
            a_codes = tl.load(a_tile, mask=depth[None, :] < K - k, other=128 if RULES.A_UNSIGNED else 0)
            b_codes = tl.load(b_tile, mask=depth[:, None] < K - k, other=128 if RULES.B_UNSIGNED else 0)
        a_codes = centred(a_codes, RULES.A_UNSIGNED)
        dot = tl.dot(a_codes, centred(b_codes, RULES.B_UNSIGNED), dot, out_dtype=tl.int32)
        if RULES.HAS_ZB:
            row_sum += tl.sum(a_codes.to(tl.int32), axis=1)
        a_tile += TILE.depth
        b_tile += TILE.depth
    apply_epilogue(dot, row_sum, rows, columns, 0, out, shape.out_row, scales, M, N, K, epilogue, RULES)


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
