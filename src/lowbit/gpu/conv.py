# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Convolutions of int8 codes, images [n, h, w, c] and filters [out, kh, kw, c / groups], as products without patches:

    y[n, oy, ox, o] = finish(sum over i, j, c of (x[n, oy * sh - top + i * dh, ox * sw - left + j * dw, c] - zx)
                                                  * (w[o, i, j, c] - zw[o]))

Row m of the product is a place of the result, (n, oy, ox); k is (i, j, c). Codes outside the image are zx, so they add
nothing and the corrections of epilogue.py hold as they are.
"""

from __future__ import annotations

from lowbit.gpu.dp4a import dp4a
from lowbit.gpu.epilogue import centred, finished
from lowbit.gpu.gemm import finish_tile, tile_of
from lowbit.gpu.language import jit, tl

__all__ = ["int8_conv2d", "int8_conv2d_depthwise", "int8_conv2d_dp4a"]


@jit
def places(rows, OH, OW, stride_h, stride_w, top, left):
    """(n, first row, first column) in the image of the patches of these rows of the product."""
    x = rows % OW
    y = rows // OW % OH
    return rows // (OW * OH), y * stride_h - top, x * stride_w - left


@jit
def int8_conv2d(
    x, w, out, sa, za, sb, zb, column_sums, bias, M, N, H, W, C, OH, OW, KW, taps, per_group,
    stride_h, stride_w, top, left, dilation_h, dilation_w, sy, zy, lo, hi, floor, ceiling,
    SB_STEP: tl.constexpr, ZB_STEP: tl.constexpr, A_UNSIGNED: tl.constexpr, B_UNSIGNED: tl.constexpr,
    HAS_ZA: tl.constexpr, HAS_ZB: tl.constexpr, WIDE: tl.constexpr, OUT: tl.constexpr, BIAS: tl.constexpr,
    FLAT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """On matrix units. Program 1 is the group; N = out / groups, per_group = c / groups, taps = kh * kw.

    FLAT: blocks of k run across taps, for few channels; otherwise a block is channels of one tap, contiguous in memory.
    """
    group = tl.program_id(1)
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    lanes = tl.arange(0, BLOCK_K)
    K = taps * per_group
    image, first_y, first_x = places(rows % M, OH, OW, stride_h, stride_w, top, left)
    x_image = x + image.to(tl.int64)[:, None] * H * W * C + group * per_group
    w_rows = w + (group * N + columns % N).to(tl.int64)[None, :] * K
    outside = tl.zeros((1, 1), tl.int32)
    if HAS_ZA:
        outside += tl.load(za) - (128 if A_UNSIGNED else 0)

    dot = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    row_sum = tl.zeros((BLOCK_M,), tl.int32)
    blocks = tl.cdiv(per_group, BLOCK_K)
    for step in range(0, tl.cdiv(K, BLOCK_K) if FLAT else taps * blocks):
        if FLAT:
            k = step * BLOCK_K + lanes
            tap = k // per_group
            channel = k % per_group
            inside = k < K
        else:
            tap = tl.zeros((BLOCK_K,), tl.int32) + step // blocks
            channel = step % blocks * BLOCK_K + lanes
            inside = channel < per_group
            k = tap * per_group + channel
        y = first_y[:, None] + (tap // KW * dilation_h)[None, :]
        x_ = first_x[:, None] + (tap % KW * dilation_w)[None, :]
        seen = (y >= 0) & (y < H) & (x_ >= 0) & (x_ < W)
        a = tl.load(x_image + (y * W + x_) * C + channel[None, :], mask=seen & inside[None, :], other=0)
        b = tl.load(w_rows + k[:, None], mask=inside[:, None], other=128 if B_UNSIGNED else 0)
        a = centred(a, A_UNSIGNED)
        if HAS_ZA:
            a = tl.where(seen, a, outside.to(tl.int8))
        dot = tl.dot(a, centred(b, B_UNSIGNED), dot, out_dtype=tl.int32)
        if HAS_ZB:
            row_sum += tl.sum(tl.where(inside[None, :], a, 0).to(tl.int32), axis=1)

    finish_tile(
        dot, row_sum, rows, columns, out + group * N, sa, za, sb + group * N * SB_STEP, zb + group * N * ZB_STEP,
        column_sums + group * N, bias + group * N, M, N, K, N * tl.num_programs(1), sy, zy, lo, hi, floor, ceiling,
        0, 0, SB_STEP, ZB_STEP, A_UNSIGNED, B_UNSIGNED, HAS_ZA, HAS_ZB, WIDE, OUT, BIAS,
    )  # fmt: skip


@jit
def int8_conv2d_dp4a(
    x, w, out, sa, za, sb, zb, column_sums, bias, M, N, H, W, C, OH, OW, KW, taps, per_group,
    stride_h, stride_w, top, left, dilation_h, dilation_w, sy, zy, lo, hi, floor, ceiling,
    SB_STEP: tl.constexpr, ZB_STEP: tl.constexpr, A_UNSIGNED: tl.constexpr, B_UNSIGNED: tl.constexpr,
    HAS_ZA: tl.constexpr, HAS_ZB: tl.constexpr, WIDE: tl.constexpr, OUT: tl.constexpr, BIAS: tl.constexpr,
    BACKEND: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """The same by DP4A, four channels a word: C and per_group are multiples of 4, and x and w start on words."""
    group = tl.program_id(1)
    tile_m, tile_n = tile_of(tl.program_id(0), M, N, BLOCK_M, BLOCK_N, GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    K = taps * per_group
    steps = per_group // 4
    image, first_y, first_x = places(rows % M, OH, OW, stride_h, stride_w, top, left)
    x_image = x.to(tl.pointer_type(tl.int32)) + image.to(tl.int64) * H * W * (C // 4) + group * steps
    w_rows = w.to(tl.pointer_type(tl.int32)) + (group * N + columns % N).to(tl.int64) * (K // 4)
    outside = tl.load(za) if HAS_ZA else 0
    outside = (outside & 0xFF) * 0x01010101  # four of them as they are stored; centred with the others

    dot = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    row_sum = tl.zeros((BLOCK_M, 1), tl.int32)
    for word in range(0, taps * steps):
        tap = word // steps
        y = first_y + tap // KW * dilation_h
        x_ = first_x + tap % KW * dilation_w
        seen = (y >= 0) & (y < H) & (x_ >= 0) & (x_ < W)
        a = tl.load(x_image + (y * W + x_) * (C // 4) + word % steps, mask=seen, other=outside)
        b = tl.load(w_rows + word)
        if A_UNSIGNED:
            a ^= -0x7F7F7F80  # 0x80808080
        if B_UNSIGNED:
            b ^= -0x7F7F7F80
        dot = dp4a(a[:, None], b[None, :], dot, BACKEND)
        if HAS_ZB:
            row_sum = dp4a(a[:, None], tl.full((BLOCK_M, 1), 0x01010101, tl.int32), row_sum, BACKEND)

    finish_tile(
        dot, tl.sum(row_sum, axis=1), rows, columns, out + group * N, sa, za, sb + group * N * SB_STEP,
        zb + group * N * ZB_STEP, column_sums + group * N, bias + group * N, M, N, K, N * tl.num_programs(1), sy, zy,
        lo, hi, floor, ceiling, 0, 0, SB_STEP, ZB_STEP, A_UNSIGNED, B_UNSIGNED, HAS_ZA, HAS_ZB, WIDE, OUT, BIAS,
    )  # fmt: skip


@jit
def int8_conv2d_depthwise(
    x, w, out, sa, za, sb, zb, bias, M, N, H, W, C, OH, OW, KW, taps, multiplier,
    stride_h, stride_w, top, left, dilation_h, dilation_w, sy, zy, lo, hi, floor, ceiling,
    SB_STEP: tl.constexpr, ZB_STEP: tl.constexpr, HAS_ZA: tl.constexpr, HAS_ZB: tl.constexpr, OUT: tl.constexpr,
    BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One channel a filter: N = C * multiplier results, w [N, kh, kw]. Differences are multiplied as they are."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_in = rows < M
    column_in = columns < N
    image, first_y, first_x = places(rows % M, OH, OW, stride_h, stride_w, top, left)
    x_image = x + image.to(tl.int64)[:, None] * H * W * C + (columns % N // multiplier)[None, :]
    w_rows = w + (columns % N).to(tl.int64) * taps
    zx = tl.load(za).to(tl.int32) if HAS_ZA else 0
    zw = tl.load(zb + columns * ZB_STEP, mask=column_in, other=0).to(tl.int32) if HAS_ZB else 0

    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    for tap in range(0, taps):
        y = first_y + tap // KW * dilation_h
        x_ = first_x + tap % KW * dilation_w
        seen = ((y >= 0) & (y < H) & (x_ >= 0) & (x_ < W))[:, None]
        a = tl.load(x_image + ((y * W + x_) * C)[:, None], mask=seen, other=0).to(tl.int32) - zx
        b = tl.load(w_rows + tap).to(tl.int32) - zw
        sums += tl.where(seen, a, 0) * b[None, :]

    sa_tile = tl.zeros((1, 1), tl.float32)
    sb_tile = tl.zeros((1, 1), tl.float32)
    bias_tile = tl.zeros((1, 1), tl.float32)
    if OUT != "sums":
        sa_tile += tl.load(sa)
        sb_tile = tl.load(sb + columns * SB_STEP, mask=column_in, other=1.0)[None, :]
    if BIAS != "none":
        bias_tile = tl.load(bias + columns, mask=column_in, other=0)[None, :]
    result = finished(sums, sa_tile, sb_tile, bias_tile, sy, zy, lo, hi, floor, ceiling, OUT, BIAS)
    place = out + rows.to(tl.int64)[:, None] * N + columns[None, :]
    tl.store(place, result.to(out.dtype.element_ty), mask=row_in[:, None] & column_in[None, :])
