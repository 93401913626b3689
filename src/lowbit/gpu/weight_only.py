# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False
"""Floats times int4 weights:

    y[m, n] = bias[n] + sum over groups g of s[n, g] * (sum over k in g of x[m, k] * (q[n, k] - z[n, g]))

x: [M, K] of f16, bf16 or f32; q: [N, ceil(K / 2)] bytes, two codes each, the first in the low nibble; s, z:
[N, groups].

q - z is a whole number of at most 15, exact in every float type, so x meets Tensor Cores as it is and every product of
f16 or bf16 is exact in f32: nothing is rounded but sums. The order: within a group as the matrix unit adds in f32 (f32
activations: fused multiply-adds); a group's sum times its scale, rounded; groups added in order, each time rounded. A
term thus passes at most group + groups + 2 roundings to f32. How a matrix unit rounds within one instruction is not
documented by its makers, so the contract's 4 * eps * sum|terms| is tested on data, not proved.
"""

from __future__ import annotations

from lowbit.gpu.gemm import tile_of
from lowbit.gpu.language import jit, tl


@jit
def nibbles(packed, SIGNED: tl.constexpr, ROWS: tl.constexpr, CODES: tl.constexpr):
    """Bytes [ROWS, CODES / 2] as codes [ROWS, CODES] of int8."""
    if SIGNED:
        # The sign travels with the upper nibble of a signed byte; the lower one is moved there first.
        low = (packed << 4).to(tl.int8, bitcast=True) >> 4
        high = packed.to(tl.int8, bitcast=True) >> 4
    else:
        low = (packed & 0xF).to(tl.int8, bitcast=True)
        high = (packed >> 4).to(tl.int8, bitcast=True)
    return tl.reshape(tl.join(low, high), (ROWS, CODES))


@jit
def int4_gemm(x, q, out, s, z, bias, shape, RULES: tl.constexpr, TILE: tl.constexpr):
    """shape: an Int4Shape; RULES: Int4Rules."""
    M, N, K, group = shape.M, shape.N, shape.K, shape.group
    rows, columns = tile_of(tl.program_id(0), M, N, TILE)
    depth = tl.arange(0, TILE.depth)
    bytes_of_row = tl.arange(0, TILE.depth // 2)
    x_tile = x + (rows % M).to(tl.int64)[:, None] * shape.x_row + depth[None, :]
    q_tile = q + (columns % N).to(tl.int64)[:, None] * shape.q_row + bytes_of_row[None, :]
    s_tile = s + (columns % N).to(tl.int64) * shape.s_row
    z_tile = z + (columns % N).to(tl.int64) * shape.s_row

    total = tl.zeros((TILE.rows, TILE.columns), tl.float32)
    for g in range(0, tl.cdiv(K, group)):
        sum_of_group = tl.zeros((TILE.rows, TILE.columns), tl.float32)
        first = g * group
        length = tl.minimum(group, K - first)
        for k in range(0, length, TILE.depth):
            if RULES.EVEN_K:
                values = tl.load(x_tile + first + k)
                packed = tl.load(q_tile + (first + k) // 2)
            else:
                # 0 past the end of the group: whatever the codes are there, they do not count.
                values = tl.load(x_tile + first + k, mask=depth[None, :] < length - k, other=0.0)
                packed = tl.load(q_tile + (first + k) // 2, mask=2 * bytes_of_row[None, :] < length - k, other=0)
            codes = nibbles(packed, RULES.SIGNED, TILE.columns, TILE.depth)
            if RULES.HAS_Z:
                codes = codes - tl.load(z_tile + g)[:, None].to(tl.int8)
            steps = codes.to(tl.float32) if values.dtype == tl.bfloat16 else codes  # exact either way
            steps = tl.trans(steps.to(values.dtype))
            sum_of_group = tl.dot(values, steps, sum_of_group, input_precision="ieee")
        total += sum_of_group * tl.load(s_tile + g)[None, :]

    row_in = rows < M
    column_in = columns < N
    if RULES.HAS_BIAS:
        total += tl.load(bias + columns, mask=column_in, other=0.0)[None, :]
    offsets = out + rows.to(tl.int64)[:, None] * shape.out_row + columns[None, :]
    tl.store(offsets, total.to(out.dtype.element_ty), mask=row_in[:, None] & column_in[None, :])
