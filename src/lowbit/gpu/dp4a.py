# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""int8 products four at a time, with no matrix unit:

    y[m, n] = finish(sum over k of (a[m, k] - za[m]) * (b[n, k] - zb[n]))

DP4A adds the four products of the bytes of two words to a third:

    dp4a(a, b, c) = c + a0 * b0 + a1 * b1 + a2 * b2 + a3 * b3

It is an instruction of NVIDIA's from Pascal on, written here as assembly, and one of AMD's (v_dot4), which LLVM finds
in shifts and products. It serves sm_75, whose Tensor Cores Triton does not reach with int8, and single rows, for which
a tile of a matrix unit would be empty but for a sixteenth.
"""

from __future__ import annotations

from lowbit.gpu.gemm import finish_tile, tile_of
from lowbit.gpu.language import jit, tl

__all__ = ["dp4a", "int8_gemm_dp4a", "int8_gemv_dp4a", "words"]


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
def int8_gemv_dp4a(
    a, b, out, sa, za, sb, zb, column_sums, bias, M, N, K, a_row, b_row, out_row, sy, zy, lo, hi, floor, ceiling,
    SA_STEP: tl.constexpr, ZA_STEP: tl.constexpr, SB_STEP: tl.constexpr, ZB_STEP: tl.constexpr,
    A_UNSIGNED: tl.constexpr, B_UNSIGNED: tl.constexpr, HAS_ZA: tl.constexpr, HAS_ZB: tl.constexpr,
    WIDE: tl.constexpr, OUT: tl.constexpr, BIAS: tl.constexpr, WHOLE: tl.constexpr, BACKEND: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_WORDS: tl.constexpr,
):  # fmt: skip
    """A row of a, program 1's, times BLOCK_N rows of b; the words of a block of k side by side, added up at the end."""
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    lanes = tl.arange(0, BLOCK_WORDS)[None, :]
    b_rows = (columns % N).to(tl.int64)[:, None]
    partial = tl.zeros((BLOCK_N, BLOCK_WORDS), tl.int32)
    of_row = tl.zeros((1, BLOCK_WORDS), tl.int32)
    for first in range(0, tl.cdiv(K, 4), BLOCK_WORDS):
        a_words = words(a, row.to(tl.int64), a_row, first + lanes, K, A_UNSIGNED, WHOLE)
        b_words = words(b, b_rows, b_row, first + lanes, K, B_UNSIGNED, WHOLE)
        partial = dp4a(b_words, a_words, partial, BACKEND)
        if HAS_ZB:
            of_row = dp4a(a_words, tl.full((1, BLOCK_WORDS), 0x01010101, tl.int32), of_row, BACKEND)
    finish_tile(
        tl.sum(partial, axis=1)[None, :], tl.sum(of_row, axis=1), row + tl.arange(0, 1), columns, out, sa, za, sb, zb,
        column_sums, bias, M, N, K, out_row, sy, zy, lo, hi, floor, ceiling, SA_STEP, ZA_STEP, SB_STEP, ZB_STEP,
        A_UNSIGNED, B_UNSIGNED, HAS_ZA, HAS_ZB, WIDE, OUT, BIAS,
    )  # fmt: skip


@jit
def int8_gemm_dp4a(
    a, b, out, sa, za, sb, zb, column_sums, bias, M, N, K, a_row, b_row, out_row, sy, zy, lo, hi, floor, ceiling,
    SA_STEP: tl.constexpr, ZA_STEP: tl.constexpr, SB_STEP: tl.constexpr, ZB_STEP: tl.constexpr,
    A_UNSIGNED: tl.constexpr, B_UNSIGNED: tl.constexpr, HAS_ZA: tl.constexpr, HAS_ZB: tl.constexpr,
    WIDE: tl.constexpr, OUT: tl.constexpr, BIAS: tl.constexpr, WHOLE: tl.constexpr, BACKEND: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """A tile of BLOCK_M by BLOCK_N, a word of k at a time: an outer product of BLOCK_M and BLOCK_N words."""
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    a_rows = (rows % M).to(tl.int64)[:, None]
    b_rows = (columns % N).to(tl.int64)[None, :]
    dot = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    row_sum = tl.zeros((BLOCK_M, 1), tl.int32)
    for index in range(0, tl.cdiv(K, 4)):
        word = tl.zeros((1, 1), tl.int32) + index
        a_words = words(a, a_rows, a_row, word, K, A_UNSIGNED, WHOLE)
        dot = dp4a(a_words, words(b, b_rows, b_row, word, K, B_UNSIGNED, WHOLE), dot, BACKEND)
        if HAS_ZB:
            row_sum = dp4a(a_words, tl.full((BLOCK_M, 1), 0x01010101, tl.int32), row_sum, BACKEND)
    finish_tile(
        dot, tl.sum(row_sum, axis=1), rows, columns, out, sa, za, sb, zb, column_sums, bias, M, N, K, out_row, sy, zy,
        lo, hi, floor, ceiling, SA_STEP, ZA_STEP, SB_STEP, ZB_STEP, A_UNSIGNED, B_UNSIGNED, HAS_ZA, HAS_ZB, WIDE, OUT,
        BIAS,
    )  # fmt: skip
