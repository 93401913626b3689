"""Launches of reductions on torch tensors: ranges, scales from data, learned gradients.

Arguments are as in launch.py, and no function waits for the GPU. A workspace is a uint8 tensor of the size that the
`*_workspace` function gives; without one, it is allocated.
"""

from __future__ import annotations

from typing import Any

import torch
from lowbit.gpu import launch as plain
from lowbit.gpu import learned, reductions
from lowbit.gpu.arguments import CodeRange, CodeRules, ColumnBlock, FoldBlock, RunBlock, SumBlock
from lowbit.gpu.grids import PIECE, RANGE_PIECE, Parts, indices_are_wide, parts_of, power_of_two
from lowbit.gpu.launch import empty_codes, launch, warps
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.granularity import Granularity
from lowbit.runtime.torch_types import compute_dtype
from torch import Tensor

_LONGEST_FUSED = 8192  # longest run, in elements, that one program processes


def range_workspace(g: Granularity, dtype: torch.dtype) -> int:
    """Bytes: a minimum, a maximum and a count per part."""
    return parts_of(g, RANGE_PIECE).total * (2 * compute_dtype(dtype).itemsize + 4)


def learned_workspace(g: Granularity) -> int:
    """Bytes: two f64 sums per part; 0 where each scale has one part."""
    parts = parts_of(g, PIECE)
    return 0 if parts.is_final else 16 * parts.total


def dynamic_workspace(g: Granularity, dtype: torch.dtype, codes: QuantizedDType) -> int:
    return 0 if _is_fused(g, codes) else range_workspace(g, dtype)


def value_range(
    x: Tensor, g: Granularity, *, out: tuple[Tensor, Tensor, Tensor] | None = None, workspace: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(min, max, number of NaN) per scale. NaN is ignored, -0 becomes +0; both are NaN where all elements are."""
    wide = compute_dtype(x.dtype)
    lo, hi, nans = (
        out
        if out is not None
        else (
            *(torch.empty(g.scale_shape, dtype=wide, device=x.device) for _ in range(2)),
            torch.empty(g.scale_shape, dtype=torch.int64, device=x.device),
        )
    )
    parts, found = _partial_ranges(x, g, False, workspace)
    _fold(reductions.whole_range, x, parts, (*found, lo, hi, nans))
    return lo, hi, nans


def absmax(
    x: Tensor, g: Granularity, *, out: Tensor | None = None, workspace: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(max |x|, number of NaN) per scale. NaN is ignored; the maximum is NaN where all elements are."""
    most = torch.empty(g.scale_shape, dtype=compute_dtype(x.dtype), device=x.device) if out is None else out
    least, nans = torch.empty_like(most), torch.empty(g.scale_shape, dtype=torch.int64, device=x.device)
    parts, found = _partial_ranges(x, g, True, workspace)
    _fold(reductions.whole_range, x, parts, (*found, least, most, nans))
    return most, nans


def quantize_dynamic(
    x: Tensor,
    g: Granularity,
    qmin: int,
    qmax: int,
    dtype: QuantizedDType,
    *,
    symmetric: bool,
    full_range: bool = False,
    out: tuple[Tensor, Tensor, Tensor | None] | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(codes, scales, zero points) from the range of the data. Symmetric: zero points only if `out` has them.

    A scale is NaN where its data has NaN or ±Inf, or a range that no scale can cover; its codes are then undefined.
    A caller that needs an error checks the scales.
    """
    if not x.numel():
        raise InvalidProblem(f"input: empty (shape {tuple(x.shape)}); there is nothing to find a range in")
    if out is None:
        scale = torch.empty(g.scale_shape, dtype=compute_dtype(x.dtype), device=x.device)
        no_zero = symmetric and qmin <= 0 <= qmax
        zero = None if no_zero else torch.empty(g.scale_shape, dtype=torch.int32, device=x.device)
        out = empty_codes(tuple(x.shape), dtype, x), scale, zero
    codes, scale, zero = out
    if zero is None and not (symmetric and qmin <= 0 <= qmax):
        raise InvalidProblem("zero_point: None; expected room for them, since they are not all 0")
    divisor = max(1, (-qmin if full_range and qmin < 0 else qmax) if symmetric else qmax - qmin)
    numbers = CodeRange(qmin, qmax, divisor)
    if _is_fused(g, dtype):
        _quantize_runs(x, out, parts_of(g, _LONGEST_FUSED), numbers, CodeRules(symmetric, dtype.is_sub_byte))
        return out
    parts, found = _partial_ranges(x, g, False, workspace)
    _fold(reductions.parameters_from_ranges, x, parts, (*found, scale, zero), numbers, symmetric)
    plain.quantize(x, scale, zero, qmin, qmax, g, dtype, out=codes)
    return out


def fake_quantize_learned_backward(
    dy: Tensor,
    x: Tensor,
    scale: Tensor,
    zero: Tensor | None,
    qmin: int,
    qmax: int,
    g: Granularity,
    *,
    out: tuple[Tensor, Tensor, Tensor] | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, ds, dz) of fake_quantize with a learned scale and zero point; the same bits as on the CPU. There is a scale
    for each of the granularity. dx may be dy."""
    dx, ds, dz = out if out is not None else (torch.empty_like(dy), *(torch.empty_like(scale) for _ in range(2)))
    if not x.numel():
        ds.zero_(), dz.zero_()
        return dx, ds, dz
    parts = parts_of(g, PIECE)
    sums: tuple[Tensor, Tensor] = (ds, dz)
    if not parts.is_final:
        room = _workspace(workspace, learned_workspace(g), x).view(torch.float64)
        sums = room[: parts.total], room[parts.total : 2 * parts.total]
    tensors = (dy, x, scale, zero, dx, *sums)
    wide = indices_are_wide(x.numel())
    unroll = power_of_two(-(-parts.longest // (1 if parts.by_columns else 8)), 8)
    if parts.by_columns:
        block = SumBlock(wide, power_of_two(parts.columns, plain.THREADS // 2), unroll)
        programs = _column_programs(parts, block.SIZE)
        launch(learned.learned_of_columns, programs, x, warps(block.SIZE, x), *tensors, parts, qmin, qmax, block)
    else:
        block = SumBlock(wide, plain.THREADS // 16, unroll)
        programs, threads = -(-parts.total // block.SIZE), warps(8 * block.SIZE, x)
        launch(learned.learned_of_runs, programs, x, threads, *tensors, parts.total, parts, qmin, qmax, block)
    if not parts.is_final:
        # A chain of additions cannot be shortened, but many loads can be in flight at a time.
        size = power_of_two(parts.scales, plain.THREADS // 2)
        block = SumBlock(wide, size, *((16, 1) if parts.pieces == 1 else (1, 16)))
        launch(learned.add_in_order, -(-parts.scales // size), x, warps(size, x), *sums, ds, dz, parts, block)
    return dx, ds, dz


def _workspace(given: Tensor | None, size: int, like: Tensor) -> Tensor:
    room = torch.empty(size, dtype=torch.uint8, device=like.device) if given is None else given
    if room.dtype is not torch.uint8 or room.numel() < size or room.data_ptr() % 8:
        raise InvalidProblem(f"workspace: {room.numel()} of {room.dtype}; expected {size} bytes, aligned to 8")
    return room[:size]


def _tile(x: Tensor) -> int:
    """Elements per program: 16 bytes per thread."""
    return 16 // x.element_size() * plain.THREADS


def _column_programs(parts: Parts, block: int) -> int:
    return parts.total // parts.columns * -(-parts.columns // block)


def _partial_ranges(
    x: Tensor, g: Granularity, absolute: bool, workspace: Tensor | None
) -> tuple[Parts, tuple[Tensor, Tensor, Tensor]]:
    if not x.numel():
        raise InvalidProblem(f"x: empty (shape {tuple(x.shape)}); there is nothing to find a range in")
    parts = parts_of(g, RANGE_PIECE)
    wide = compute_dtype(x.dtype)
    room, end = _workspace(workspace, range_workspace(g, x.dtype), x), parts.total * wide.itemsize
    lo, hi, nans = room[:end].view(wide), room[end : 2 * end].view(wide), room[2 * end :].view(torch.int32)
    wide_index, given = indices_are_wide(x.numel()), (x, lo, hi, nans)
    if parts.by_columns:
        columns = power_of_two(parts.columns, plain.THREADS)
        height = power_of_two(parts.longest, _tile(x) // columns)
        threads, block = _warps_of(height * columns, x), ColumnBlock(wide_index, height, columns)
        launch(
            reductions.range_of_columns, _column_programs(parts, columns), x, threads, *given, parts, absolute, block
        )
    else:
        width = power_of_two(parts.longest, _tile(x))
        runs = power_of_two(parts.total, _tile(x) // width)
        rest = (parts.total, parts, absolute, RunBlock(wide_index, parts.is_uniform, runs, width))
        launch(reductions.range_of_runs, -(-parts.total // runs), x, _warps_of(runs * width, x), *given, *rest)
    return parts, (lo, hi, nans)


def _warps_of(elements: int, x: Tensor) -> int:
    """Warps of a program of this many elements, 16 bytes per thread."""
    return warps(elements * x.element_size() // 16, x)


def _fold(kernel: Any, x: Tensor, parts: Parts, tensors: tuple[Tensor | None, ...], *rest: Any) -> None:
    width = power_of_two(parts.outer * parts.pieces, 1024)
    scales = power_of_two(parts.scales, 1024 // width)
    block = FoldBlock(indices_are_wide(x.numel()), scales, width)
    launch(kernel, -(-parts.scales // scales), x, warps(width * scales // 4, x), *tensors, parts, *rest, block)


def _is_fused(g: Granularity, codes: QuantizedDType) -> bool:
    """Whether one program can hold all elements of a scale, and no byte of codes is shared by two programs."""
    parts = parts_of(g, _LONGEST_FUSED)
    if parts.by_columns or not parts.is_final:
        return False
    rows = parts.scales // parts.groups
    whole_bytes = (parts.groups == 1 or parts.group % 2 == 0) and (rows == 1 or parts.length % 2 == 0)
    return whole_bytes or not codes.is_sub_byte


def _quantize_runs(
    x: Tensor, out: tuple[Tensor, Tensor, Tensor | None], parts: Parts, codes: CodeRange, rules: CodeRules
) -> None:
    width = power_of_two(max(2, parts.longest))
    runs = power_of_two(parts.total, max(1, _tile(x) // width))
    block = RunBlock(indices_are_wide(x.numel()), parts.is_uniform, runs, width)
    rest = (parts.total, -(-parts.group // 2), parts, codes, rules, block)
    launch(reductions.quantize_runs, -(-parts.total // runs), x, _warps_of(runs * width, x), x, *out, *rest)
