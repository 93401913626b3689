# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""int8 products, on Tensor Cores (AMD: matrix cores) or four at a time:

    y[m, n] = epilogue(sum over k of (a[m, k] - za[m]) * (b[n, k] - zb[n]))

a: [M, K], b: [N, K], both with k contiguous, which is how every matrix unit wants them. A program makes a tile,
walking along k; programs are numbered so that GROUP_M tiles of rows share columns of b in cache. Rows and columns past
the end wrap around and are not stored, so that only the end of k needs a mask.

DP4A adds the four products of the bytes of two words to a third:

    dp4a(a, b, c) = c + a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3

It is an instruction of NVIDIA's from Pascal on, written here as assembly, and one of AMD's (v_dot4), which LLVM finds
in shifts and products. It serves sm_75, whose Tensor Cores Triton does not reach with int8, and single rows, for which
a tile of a matrix unit would be empty but for a sixteenth.
"""

from __future__ import annotations

from lowbit.gpu.epilogue import apply_epilogue, centred
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
def dp4a(a, b, c, BACKEND: tl.constexpr):
    """c + the four products of the signed bytes of a and b; all i32."""
    if BACKEND == "cuda":
        return tl.inline_asm_elementwise(
            "dp4a.s32.s32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, c], dtype=tl.int32, is_pure=True, pack=1
        )
    else:
        for i in tl.static_range(4):
            c += ((a << (24 - 8 * i)) >> 24) * ((b << (24 - 8 * i)) >> 24)
        return c


@jit
def words(codes, row, row_bytes, word, K, UNSIGNED: tl.constexpr, WHOLE: tl.constexpr):
    """Words `word` of rows `row` (i64) of K codes: codes 4 * word to 4 * word + 3, centred, with 0 past the end.

    WHOLE: rows start on words and K is a multiple of 4, so that a word is one load; otherwise it is put together.
    """
    if WHOLE:
        at = codes.to(tl.pointer_type(tl.int32)) + row * (row_bytes // 4) + word
        found = tl.load(at, mask=word < K // 4, other=-0x7F7F7F80 if UNSIGNED else 0)
        if UNSIGNED:
            found ^= -0x7F7F7F80  # 0x80808080
    else:
        at = codes + row * row_bytes + 4 * word
        found = tl.zeros_like(4 * word + row).to(tl.int32)
        for i in tl.static_range(4):
            code = tl.load(at + i, mask=4 * word + i < K, other=128 if UNSIGNED else 0).to(tl.int32)
            if UNSIGNED:
                code ^= 0x80
            found |= (code & 0xFF) << (8 * i)
    return found


@jit
def int8_gemv_dp4a(a, b, out, scales, shape, epilogue, RULES: tl.constexpr, WHOLE: tl.constexpr, BACKEND: tl.constexpr):
    """A row of a, program 1's, times 16 rows of b; the words of a k-block are side by side and added up at the end."""
    BLOCK_N: tl.constexpr = 16
    BLOCK_WORDS: tl.constexpr = 64
    N, K = shape.N, shape.K
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lanes = tl.arange(0, BLOCK_WORDS)[None, :]
    b_rows = (columns % N).to(tl.int64)[:, None]
    partial = tl.zeros((BLOCK_N, BLOCK_WORDS), tl.int32)
    of_row = tl.zeros((1, BLOCK_WORDS), tl.int32)
    for first in range(0, tl.cdiv(K, 4), BLOCK_WORDS):
        a_words = words(a, row.to(tl.int64), shape.a_row, first + lanes, K, RULES.A_UNSIGNED, WHOLE)
        b_words = words(b, b_rows, shape.b_row, first + lanes, K, RULES.B_UNSIGNED, WHOLE)
        partial = dp4a(b_words, a_words, partial, BACKEND)
        if RULES.HAS_ZB:
            of_row = dp4a(a_words, tl.full((1, BLOCK_WORDS), 0x01010101, tl.int32), of_row, BACKEND)
    dot, row_sum, rows = tl.sum(partial, axis=1)[None, :], tl.sum(of_row, axis=1), row + tl.arange(0, 1)
    apply_epilogue(dot, row_sum, rows, columns, 0, out, shape.out_row, scales, shape.M, N, K, epilogue, RULES)


@jit
def int8_gemm_dp4a(
    a,
    b,
    out,
    scales,
    shape,
    epilogue,
    RULES: tl.constexpr,
    WHOLE: tl.constexpr,
    BACKEND: tl.constexpr,
    TILE: tl.constexpr,
):
    """A tile, a word of k at a time: an outer product of words of a's rows and of b's."""
    M, N, K = shape.M, shape.N, shape.K
    rows, columns = tile_of(tl.program_id(0), M, N, TILE)
    a_rows = (rows % M).to(tl.int64)[:, None]
    b_rows = (columns % N).to(tl.int64)[None, :]
    dot = tl.zeros((TILE.rows, TILE.columns), tl.int32)
    row_sum = tl.zeros((TILE.rows, 1), tl.int32)
    for index in range(0, tl.cdiv(K, 4)):
        word = tl.zeros((1, 1), tl.int32) + index
        a_words = words(a, a_rows, shape.a_row, word, K, RULES.A_UNSIGNED, WHOLE)
        dot = dp4a(a_words, words(b, b_rows, shape.b_row, word, K, RULES.B_UNSIGNED, WHOLE), dot, BACKEND)
        if RULES.HAS_ZB:
            row_sum = dp4a(a_words, tl.full((TILE.rows, 1), 0x01010101, tl.int32), row_sum, BACKEND)
    row_sums = tl.sum(row_sum, axis=1)
    apply_epilogue(dot, row_sums, rows, columns, 0, out, shape.out_row, scales, M, N, K, epilogue, RULES)
