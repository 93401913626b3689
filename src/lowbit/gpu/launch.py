"""Launches of the quantize family on torch tensors, on torch's current stream.

Tensors are contiguous and on one GPU; callers have checked values and shapes. scale has the compute type and one value
per parameter set of the granularity g, or a single value; zero likewise, as int32, or None for all 0. Without `out`
results are new tensors; with `out`, and `workspace` where there is one, nothing is allocated. No function waits for
the GPU.

Tensors on the CPU are taken only where Triton interprets kernels (TRITON_INTERPRET=1), which is for tests.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from lowbit.gpu import elementwise
from lowbit.gpu.arguments import Block, Spread, SpreadRules
from lowbit.gpu.grids import ScaleLayout, indices_are_wide, scale_layout
from lowbit.gpu.tiles import Tile
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.granularity import Granularity
from lowbit.runtime.torch_types import STORED
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
    threads = warps(block * numbers.element_size() // 16, numbers)
    launch(kernel, (-(-n // block),), numbers, threads, *tensors, at, *rest, rules)


def _block(numbers: Tensor, layout: ScaleLayout) -> int:
    """16 bytes per thread, but at most one row per program where rows are long enough."""
    most = 16 // numbers.element_size() * THREADS
    if _SHORTEST_LONG_ROW <= layout.columns < most:
        return 1 << (layout.columns.bit_length() - 1)
    return most
