# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Convolutions of int8 codes, images [n, h, w, c] and filters [out, kh, kw, c / groups], as products without patches:

    y[n, oy, ox, o] = epilogue(sum over i, j, c of (x[n, oy * sh - top + i * dh, ox * sw - left + j * dw, c] - zx)
                                                  * (w[o, i, j, c] - zw[o]))

Row m of the product is a position in the result, (n, oy, ox); k is (i, j, c). Codes outside the image are zx, so they
add nothing and the corrections of epilogue.py hold as they are.
"""

from __future__ import annotations

from lowbit.gpu.epilogue import apply_epilogue, centred, store_tile
from lowbit.gpu.gemm import dp4a, tile_of
from lowbit.gpu.language import jit, tl


@jit
def patches(rows, g):
    """(n, first row, first column) in the image of the patches of these rows of the product."""
    x = rows % g.OW
    y = rows // g.OW % g.OH
    return rows // (g.OW * g.OH), y * g.stride_h - g.top, x * g.stride_w - g.left


@jit
def int8_conv2d(x, w, out, scales, g, epilogue, RULES: tl.constexpr, FLAT: tl.constexpr, TILE: tl.constexpr):
    """On matrix units. Program 1 is the group; g: a ConvShape, with N = out / groups, per_group = c / groups.

    FLAT: k-blocks run across taps, for few channels; otherwise a block is channels of one tap, contiguous in memory.
    """
    group = tl.program_id(1)
    M, N, per_group = g.M, g.N, g.per_group
    rows, columns = tile_of(tl.program_id(0), M, N, TILE)
    lanes = tl.arange(0, TILE.depth)
    K = g.taps * per_group
    image, first_y, first_x = patches(rows % M, g)
    x_image = x + image.to(tl.int64)[:, None] * g.H * g.W * g.C + group * per_group
    w_rows = w + (group * N + columns % N).to(tl.int64)[None, :] * K
    outside = tl.zeros((1, 1), tl.int32)
    if RULES.HAS_ZA:
        outside += tl.load(scales.za) - (128 if RULES.A_UNSIGNED else 0)

    dot = tl.zeros((TILE.rows, TILE.columns), tl.int32)
    row_sum = tl.zeros((TILE.rows,), tl.int32)
    blocks = tl.cdiv(per_group, TILE.depth)
    for step in range(0, tl.cdiv(K, TILE.depth) if FLAT else g.taps * blocks):
        if FLAT:
            k = step * TILE.depth + lanes
            tap = k // per_group
            channel = k % per_group
            inside = k < K
        else:
            tap = tl.zeros((TILE.depth,), tl.int32) + step // blocks
            channel = step % blocks * TILE.depth + lanes
            inside = channel < per_group
            k = tap * per_group + channel
        y = first_y[:, None] + (tap // g.KW * g.dilation_h)[None, :]
        x_ = first_x[:, None] + (tap % g.KW * g.dilation_w)[None, :]
        seen = (y >= 0) & (y < g.H) & (x_ >= 0) & (x_ < g.W)
        a = tl.load(x_image + (y * g.W + x_) * g.C + channel[None, :], mask=seen & inside[None, :], other=0)
        b = tl.load(w_rows + k[:, None], mask=inside[:, None], other=128 if RULES.B_UNSIGNED else 0)
        a = centred(a, RULES.A_UNSIGNED)
        if RULES.HAS_ZA:
            a = tl.where(seen, a, outside.to(tl.int8))
        dot = tl.dot(a, centred(b, RULES.B_UNSIGNED), dot, out_dtype=tl.int32)
        if RULES.HAS_ZB:
            row_sum += tl.sum(tl.where(inside[None, :], a, 0).to(tl.int32), axis=1)
    out_row = N * tl.num_programs(1)
    apply_epilogue(dot, row_sum, rows, columns, group * N, out, out_row, scales, M, N, K, epilogue, RULES)


@jit
def int8_conv2d_dp4a(x, w, out, scales, g, epilogue, RULES: tl.constexpr, BACKEND: tl.constexpr, TILE: tl.constexpr):
    """The same by DP4A, four channels per word: C and per_group are multiples of 4, and x and w start on words."""
    group = tl.program_id(1)
    M, N = g.M, g.N
    rows, columns = tile_of(tl.program_id(0), M, N, TILE)
    K = g.taps * g.per_group
    steps = g.per_group // 4
    image, first_y, first_x = patches(rows % M, g)
    x_image = x.to(tl.pointer_type(tl.int32)) + image.to(tl.int64) * g.H * g.W * (g.C // 4) + group * steps
    w_rows = w.to(tl.pointer_type(tl.int32)) + (group * N + columns % N).to(tl.int64) * (K // 4)
    outside = tl.load(scales.za) if RULES.HAS_ZA else 0
    outside = (outside & 0xFF) * 0x01010101  # four of them as they are stored; centred with the others

    dot = tl.zeros((TILE.rows, TILE.columns), tl.int32)
    row_sum = tl.zeros((TILE.rows, 1), tl.int32)
    for word in range(0, g.taps * steps):
        tap = word // steps
        y = first_y + tap // g.KW * g.dilation_h
        x_ = first_x + tap % g.KW * g.dilation_w
        seen = (y >= 0) & (y < g.H) & (x_ >= 0) & (x_ < g.W)
        a = tl.load(x_image + (y * g.W + x_) * (g.C // 4) + word % steps, mask=seen, other=outside)
        b = tl.load(w_rows + word)
        if RULES.A_UNSIGNED:
            a ^= -0x7F7F7F80  # 0x80808080
        if RULES.B_UNSIGNED:
            b ^= -0x7F7F7F80
        dot = dp4a(a[:, None], b[None, :], dot, BACKEND)
        if RULES.HAS_ZB:
            row_sum = dp4a(a[:, None], tl.full((TILE.rows, 1), 0x01010101, tl.int32), row_sum, BACKEND)
    row_sums, out_row = tl.sum(row_sum, axis=1), N * tl.num_programs(1)
    apply_epilogue(dot, row_sums, rows, columns, group * N, out, out_row, scales, M, N, K, epilogue, RULES)


@jit
def int8_conv2d_depthwise(x, w, out, scales, g, epilogue, multiplier, RULES: tl.constexpr, TILE: tl.constexpr):
    """One channel per filter: N = C * multiplier results, w [N, kh, kw]. Differences are multiplied as they are."""
    M, N = g.M, g.N
    rows = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
    columns = tl.program_id(1) * TILE.columns + tl.arange(0, TILE.columns)
    image, first_y, first_x = patches(rows % M, g)
    x_image = x + image.to(tl.int64)[:, None] * g.H * g.W * g.C + (columns % N // multiplier)[None, :]
    w_rows = w + (columns % N).to(tl.int64) * g.taps
    zx = tl.load(scales.za).to(tl.int32) if RULES.HAS_ZA else 0
    zw = 0
    if RULES.HAS_ZB:
        zw = tl.load(scales.zb + columns * RULES.ZB_STEP, mask=columns < N, other=0).to(tl.int32)

    sums = tl.zeros((TILE.rows, TILE.columns), tl.int32)
    for tap in range(0, g.taps):
        y = first_y + tap // g.KW * g.dilation_h
        x_ = first_x + tap % g.KW * g.dilation_w
        seen = ((y >= 0) & (y < g.H) & (x_ >= 0) & (x_ < g.W))[:, None]
        a = tl.load(x_image + ((y * g.W + x_) * g.C)[:, None], mask=seen, other=0).to(tl.int32) - zx
        b = tl.load(w_rows + tap).to(tl.int32) - zw
        sums += tl.where(seen, a, 0) * b[None, :]
    sa = tl.zeros((1, 1), tl.float32)
    if RULES.OUT != "sums":
        sa += tl.load(scales.sa)
    store_tile(sums, sa, rows, columns, 0, out, N, scales, M, N, epilogue, RULES)
