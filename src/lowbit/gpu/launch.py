"""Launches of the quantize family on torch tensors, on torch's current stream: element-wise kernels, ranges, scales
from data and learned gradients.

Tensors are contiguous and on one GPU; callers have checked values and shapes. scale has the compute type and one value
per parameter set of the granularity g, or a single value; zero likewise, as int32, or None for all 0. Without `out`
results are new tensors; with `out`, and `workspace` where there is one, nothing is allocated. A workspace is a uint8
tensor of the size that the `*_workspace` function gives. No function waits for the GPU.

Tensors on the CPU are taken only where Triton interprets kernels (TRITON_INTERPRET=1), which is for tests.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from lowbit.gpu import elementwise, reductions
from lowbit.gpu.arguments import Block, CodeRules, Spread, SpreadRules, SumBlock
from lowbit.gpu.grids import (
    PIECE,
    RANGE_PIECE,
    Parts,
    ScaleLayout,
    indices_are_wide,
    parts_of,
    power_of_two,
    scale_layout,
)
from lowbit.gpu.tiles import Tile
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.granularity import Granularity
from lowbit.runtime.torch_types import STORED, compute_dtype
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Scale, zero, qmin, qmax, g; and the dtype of codes.
Affine: TypeAlias = tuple[Tensor, Tensor | None, int, int, Granularity]
Coded: TypeAlias = tuple[Tensor, Tensor | None, int, int, Granularity, QuantizedDType]
# Codes, scale and zero point of a and of b, qmin, qmax.
Operands: TypeAlias = tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor, Tensor | None, int, int]
THREADS = 256  # of a program, each with 16 bytes of floats
_SHORTEST_LONG_ROW = 256
_LONGEST_FUSED = 8192  # longest run, in elements, that one program processes


def empty_codes(shape: tuple[int, ...], dtype: QuantizedDType, like: Tensor) -> Tensor:
    """An uninitialized tensor for codes of this dtype; packed codes take a flat tensor of bytes."""
    if dtype.name not in STORED:
        raise Unsupported(f"dtype: {dtype}; kernels on GPUs have {', '.join(STORED)}")
    stored = (dtype.storage_bytes(math.prod(shape)),) if dtype.is_sub_byte else shape
    return torch.empty(stored, dtype=STORED[dtype.name], device=like.device)


def warps(threads: int, like: Tensor) -> int:
    size = torch.cuda.get_device_properties(like.device).warp_size if like.is_cuda else 32
    return max(1, min(threads, 1024) // size)


def launch(kernel: Any, grid: tuple[int, ...], like: Tensor, by: int | Tile, *args: Any) -> None:
    """Runs a grid of a kernel's programs on the GPU of `like`. by: warps of a program, or the tile that says so.
    Contraction is off: it would change codes at ties."""
    if 0 in grid:
        return
    if grid[0] >= 1 << 31:
        raise Unsupported(f"shape: {grid[0]} programs; a launch has fewer than 2^31")
    options = {"num_warps": by} if isinstance(by, int) else {"num_warps": by.warps, "num_stages": by.stages}
    options["enable_fp_fusion"] = False
    if like.is_cuda:
        with torch.cuda.device(like.device):
            kernel[grid](*args, **options)
    elif not hasattr(kernel, "cache_key"):  # an interpreted function
        kernel[grid](*args, **options)
    else:
        raise Unsupported(f"x: on {like.device}; expected a GPU's memory")


def quantize(x: Tensor, *coded: Unpack[Coded], out: Tensor | None = None) -> Tensor:
    """Codes of x as the dtype stores them: q = int(clamp(rne(x / s), qmin - z, qmax - z)) + z."""
    scale, zero, qmin, qmax, g, dtype = coded
    out = empty_codes(tuple(x.shape), dtype, x) if out is None else out
    _run(elementwise.quantize, x, scale, g, (x, scale, zero, out), out.numel(), qmin, qmax, dtype.is_sub_byte)
    return out


def dequantize(
    codes: Tensor, scale: Tensor, zero: Tensor | None, g: Granularity, dtype: QuantizedDType, *, out: Tensor
) -> Tensor:
    """y = float(q - z) * s of stored codes, into `out`, which says the shape and the type."""
    stored = (codes.numel(), dtype.is_sub_byte, dtype.is_signed)
    _run(elementwise.dequantize, out, scale, g, (codes, scale, zero, out), *stored)
    return out


def fake_quantize(x: Tensor, *affine: Unpack[Affine], out: Tensor | None = None) -> Tensor:
    """dequantize(quantize(x)), except that NaN stays NaN. out may be x."""
    return _run_affine(elementwise.fake_quantize, (x,), affine, out)


def fake_quantize_backward(dy: Tensor, x: Tensor, *affine: Unpack[Affine], out: Tensor | None = None) -> Tensor:
    """dx = m ? dy : 0, m = qmin <= rne(x / s) + z <= qmax. out may be dy or x."""
    return _run_affine(elementwise.backward, (dy, x), affine, out, False)


def quantize_backward(dy: Tensor, x: Tensor, *affine: Unpack[Affine], out: Tensor | None = None) -> Tensor:
    """dx = m ? dy / s : 0, m = qmin <= rne(x / s) + z <= qmax. out may be dy or x."""
    return _run_affine(elementwise.backward, (dy, x), affine, out, True)


def dequantize_backward(dy: Tensor, scale: Tensor, g: Granularity, *, out: Tensor | None = None) -> Tensor:
    """dq = dy * s. out may be dy."""
    out = torch.empty_like(dy) if out is None else out
    _run(elementwise.dequantize_backward, dy, scale, g, (dy, scale, out))
    return out


def add(*operands: Unpack[Operands], out: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """q = quantize((qa - za) * sa + (qb - zb) * sb) of codes that are not packed. All three scales are scalars of one
    type. out may be a or b."""
    a, bounds = operands[0], operands[6:]
    tensors = (*operands[:6], out, scale, zero)
    _same_device(*tensors)
    n, length = a.numel(), 4 * THREADS
    block = Block(indices_are_wide(n), 1, length)
    launch(elementwise.add, (-(-n // length),), a, warps(THREADS, a), *tensors, n, *bounds, block)
    return out


def _same_device(*tensors: Tensor | None) -> None:
    there = [t for t in tensors if t is not None]
    for t in there:
        if t.device != there[0].device or not t.is_contiguous():
            raise InvalidProblem(
                f"expected contiguous tensors on {there[0].device}; one is on {t.device}, {t.stride()}"
            )


def _run_affine(kernel: Any, reads: tuple[Tensor, ...], affine: Affine, out: Tensor | None, *rest: bool) -> Tensor:
    scale, zero, qmin, qmax, g = affine
    out = torch.empty_like(reads[0]) if out is None else out
    _run(kernel, reads[-1], scale, g, (*reads, scale, zero, out), qmin, qmax, *rest)
    return out


def _run(
    kernel: Any, numbers: Tensor, scale: Tensor, g: Granularity, tensors: tuple[Tensor | None, ...], *rest: Any
) -> None:
    """Run one program per BLOCK elements of `numbers`."""
    _same_device(*tensors)
    n, layout = numbers.numel(), scale_layout(g, scale.numel())
    block = _block(numbers, layout)
    at = Spread(n, layout.columns, layout.axis, layout.groups)
    rules = SpreadRules(layout.kind, layout.group, layout.columns >= block, indices_are_wide(n), block)
    launch(kernel, (-(-n // block),), numbers, _warps_of(block, numbers), *tensors, at, *rest, rules)


def _block(numbers: Tensor, layout: ScaleLayout) -> int:
    """16 bytes per thread, but at most one row per program where rows are long enough."""
    most = _tile(numbers)
    if _SHORTEST_LONG_ROW <= layout.columns < most:
        return 1 << (layout.columns.bit_length() - 1)
    return most


# ---- reductions: ranges, scales from data, learned gradients ----------------------------------------------------


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
    if out is None:
        lo, hi, nans = (torch.empty(g.scale_shape, dtype=t, device=x.device) for t in (wide, wide, torch.int64))
        out = lo, hi, nans
    parts, found = _partial_ranges(x, g, workspace)
    _fold(reductions.whole_range, x, parts, (*found, *out))
    return out


def quantize_dynamic(
    x: Tensor,
    g: Granularity,
    qmin: int,
    qmax: int,
    dtype: QuantizedDType,
    *,
    symmetric: bool,
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
    if _is_fused(g, dtype):
        parts = parts_of(g, _LONGEST_FUSED)
        width = power_of_two(max(2, parts.longest))
        block, programs, threads = _run_block(x, parts, width)
        sizes = (parts.total, -(-parts.group // 2), parts)
        rules = CodeRules(symmetric, dtype.is_sub_byte)
        launch(reductions.quantize_runs, (programs,), x, threads, x, *out, *sizes, qmin, qmax, rules, block)
        return out
    parts, found = _partial_ranges(x, g, workspace)
    _fold(reductions.parameters_from_ranges, x, parts, (*found, scale, zero), qmin, qmax, symmetric)
    quantize(x, scale, zero, qmin, qmax, g, dtype, out=codes)
    return out


def fake_quantize_learned_backward(
    dy: Tensor,
    x: Tensor,
    *affine: Unpack[Affine],
    out: tuple[Tensor, Tensor, Tensor] | None = None,
    workspace: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, ds, dz) of fake_quantize with a learned scale and zero point; the same bits as on the CPU. There is a scale
    for each of the granularity. dx may be dy."""
    scale, zero, qmin, qmax, g = affine
    dx, ds, dz = (torch.empty_like(dy), torch.empty_like(scale), torch.empty_like(scale)) if out is None else out
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
        block = SumBlock(wide, power_of_two(parts.columns, THREADS // 2), unroll)
        programs = _column_programs(parts, block.COUNT)
        launch(reductions.learned_of_columns, (programs,), x, warps(block.COUNT, x), *tensors, parts, qmin, qmax, block)
    else:
        block = SumBlock(wide, THREADS // 16, unroll)
        programs, threads = -(-parts.total // block.COUNT), warps(8 * block.COUNT, x)
        launch(reductions.learned_of_runs, (programs,), x, threads, *tensors, parts.total, parts, qmin, qmax, block)
    if not parts.is_final:
        # A chain of additions cannot be shortened, but many loads can be in flight at a time.
        size = power_of_two(parts.scales, THREADS // 2)
        block = SumBlock(wide, size, *((16, 1) if parts.pieces == 1 else (1, 16)))
        launch(reductions.add_in_order, (-(-parts.scales // size),), x, warps(size, x), *sums, ds, dz, parts, block)
    return dx, ds, dz


def _workspace(given: Tensor | None, size: int, like: Tensor) -> Tensor:
    room = torch.empty(size, dtype=torch.uint8, device=like.device) if given is None else given
    if room.dtype is not torch.uint8 or room.numel() < size or room.data_ptr() % 8:
        raise InvalidProblem(f"workspace: {room.numel()} of {room.dtype}; expected {size} bytes, aligned to 8")
    return room[:size]


def _tile(x: Tensor) -> int:
    """Elements per program: 16 bytes per thread."""
    return 16 // x.element_size() * THREADS


def _column_programs(parts: Parts, block: int) -> int:
    return parts.total // parts.columns * -(-parts.columns // block)


def _partial_ranges(x: Tensor, g: Granularity, workspace: Tensor | None) -> tuple[Parts, tuple[Tensor, Tensor, Tensor]]:
    if not x.numel():
        raise InvalidProblem(f"x: empty (shape {tuple(x.shape)}); there is nothing to find a range in")
    parts = parts_of(g, RANGE_PIECE)
    wide = compute_dtype(x.dtype)
    room, end = _workspace(workspace, range_workspace(g, x.dtype), x), parts.total * wide.itemsize
    found = room[:end].view(wide), room[end : 2 * end].view(wide), room[2 * end :].view(torch.int32)
    if parts.by_columns:
        columns = power_of_two(parts.columns, THREADS)
        height = power_of_two(parts.longest, _tile(x) // columns)
        block, programs = Block(indices_are_wide(x.numel()), columns, height), _column_programs(parts, columns)
        launch(reductions.range_of_columns, (programs,), x, _warps_of(height * columns, x), x, *found, parts, block)
    else:
        block, programs, threads = _run_block(x, parts, power_of_two(parts.longest, _tile(x)))
        launch(reductions.range_of_runs, (programs,), x, threads, x, *found, parts.total, parts, block)
    return parts, found


def _run_block(x: Tensor, parts: Parts, width: int) -> tuple[Block, int, int]:
    """What a program has of runs, `width` elements of each at a time; how many programs there are, and their warps."""
    runs = power_of_two(parts.total, max(1, _tile(x) // width))
    block = Block(indices_are_wide(x.numel()), runs, width, parts.is_uniform)
    return block, -(-parts.total // runs), _warps_of(runs * width, x)


def _warps_of(elements: int, x: Tensor) -> int:
    """Warps of a program of this many elements, 16 bytes per thread."""
    return warps(elements * x.element_size() // 16, x)


def _fold(kernel: Any, x: Tensor, parts: Parts, tensors: tuple[Tensor | None, ...], *rest: Any) -> None:
    width = power_of_two(parts.outer * parts.pieces, 1024)
    scales = power_of_two(parts.scales, 1024 // width)
    block = Block(indices_are_wide(x.numel()), scales, width)
    launch(kernel, (-(-parts.scales // scales),), x, warps(width * scales // 4, x), *tensors, parts, *rest, block)


def _is_fused(g: Granularity, codes: QuantizedDType) -> bool:
    """Whether one program can hold all elements of a scale, and no byte of codes is shared by two programs."""
    parts = parts_of(g, _LONGEST_FUSED)
    if parts.by_columns or not parts.is_final:
        return False
    rows = parts.scales // parts.groups
    whole_bytes = (parts.groups == 1 or parts.group % 2 == 0) and (rows == 1 or parts.length % 2 == 0)
    return whole_bytes or not codes.is_sub_byte
