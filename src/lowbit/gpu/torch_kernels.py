"""GPU kernels of the torch operators: the functions of `kernels`, for CUDA tensors.

Imported when an operator first meets one. Kernels run on torch's current stream. Values of scales are not looked at,
since that would wait for the GPU; `range_params` and `observe_` wait only where they are told to refuse NaN and Inf.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from lowbit.gpu import launch
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem, UnsupportedDType
from lowbit.numerics.granularity import Granularity, granularity_of
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE
from lowbit.runtime.arrays import HIGHEST_CODE, LOWEST_CODE
from lowbit.runtime.torch_types import CODES, FLOATS, WIDEST, codes_dtype, compute_dtype, granularity, require_bits
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Arguments of the operators' schemas: s, z, qmin, qmax, axis, block; qmin, qmax, axis, block, gradient_scale; axis,
# block, name, ignore.
Affine: TypeAlias = tuple[Tensor, Tensor, int, int, int | None, int | None]
Learned: TypeAlias = tuple[int, int, int | None, int | None, float]
Scope: TypeAlias = tuple[int | None, int | None, str, bool]

_granularity = functools.lru_cache(4096)(granularity)


def _floats(x: Tensor, name: str = "x") -> Tensor:
    if x.dtype not in FLOATS.values():
        raise UnsupportedDType(f"{name}: {x.dtype}; expected float32, float64, float16 or bfloat16")
    return x.detach().contiguous()


def _gradient(dy: Tensor, x: Tensor) -> Tensor:
    if dy.shape != x.shape or dy.dtype is not x.dtype:
        raise InvalidProblem(f"dy: {dy.dtype} {tuple(dy.shape)}; expected x's, {x.dtype} {tuple(x.shape)}")
    return _floats(dy, "dy")


def _each(name: str, values: Tensor, dtype: torch.dtype, g: Granularity) -> Tensor:
    """One value for each parameter set, or one for all, contiguous."""
    if tuple(values.shape) != g.scale_shape and values.numel() != 1:
        raise InvalidProblem(f"{name}: shape {tuple(values.shape)}; expected {g.scale_shape}")
    if dtype is torch.int32 and values.is_floating_point():
        raise InvalidProblem(f"{name}: {values.dtype}; expected integers")
    return values.detach().to(dtype).contiguous()


def _one_each(values: Tensor, g: Granularity) -> Tensor:
    return values.reshape(()).expand(g.scale_shape).contiguous() if values.numel() == 1 else values


def _affine(
    x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None
) -> tuple[Tensor, Tensor, int, int, Granularity]:
    """Scales, zero points, code range and granularity, as launches take them."""
    if not LOWEST_CODE <= qmin <= qmax <= HIGHEST_CODE:
        raise InvalidProblem(f"qmin, qmax: [{qmin}, {qmax}]; expected within [{LOWEST_CODE}, {HIGHEST_CODE}]")
    g = _granularity(x.shape, axis, block)
    scale, zero = _each("scale", s, compute_dtype(x), g), _each("zero_point", z, torch.int32, g)
    if scale.numel() != zero.numel():  # kernels take one for all, or one each, of both
        scale, zero = _one_each(scale, g), _one_each(zero, g)
    return scale, zero, qmin, qmax, g


def fake_quantize(x: Tensor, *affine: Unpack[Affine]) -> Tensor:
    return launch.fake_quantize(_floats(x), *_affine(x, *affine))


def fake_quantize_backward(dy: Tensor, x: Tensor, *affine: Unpack[Affine]) -> Tensor:
    return launch.fake_quantize_backward(_gradient(dy, x), _floats(x), *_affine(x, *affine))


def keep_where(dy: Tensor, bits: Tensor) -> Tensor:
    """dy where a bit is set, else 0. No GPU kernel makes such bits yet; the operator must exist on every device."""
    require_bits(dy, bits)
    places = torch.arange(8, dtype=torch.uint8, device=bits.device)
    kept = (bits.unsqueeze(1) >> places & 1).flatten()[: dy.numel()].view(dy.shape) != 0
    return torch.where(kept, dy, torch.zeros((), dtype=dy.dtype, device=dy.device)).contiguous()


def quantize_ste_backward(dy: Tensor, x: Tensor, *affine: Unpack[Affine]) -> Tensor:
    return launch.quantize_backward(_gradient(dy, x), _floats(x), *_affine(x, *affine))


def _learned(s: Tensor, z: Tensor, qmin: int, qmax: int) -> tuple[Tensor, Tensor]:
    """A learned scale and zero point, clamped: an optimizer may move them out of range."""
    scale = s.detach().to(torch.promote_types(s.dtype, torch.float32)).clamp(MIN_SCALE, MAX_SCALE)
    return scale, z.detach().round().clamp(qmin, qmax).to(torch.int32) if z.is_floating_point() else z


def fake_quantize_learned(x: Tensor, s: Tensor, z: Tensor, *rest: Unpack[Learned]) -> Tensor:
    s, z = _learned(s, z, *rest[:2])
    return fake_quantize(x, s, z, *rest[:4])


def fake_quantize_learned_backward(
    dy: Tensor, x: Tensor, s: Tensor, z: Tensor, *rest: Unpack[Learned]
) -> tuple[Tensor, Tensor, Tensor]:
    scale, zero = _learned(s, z, *rest[:2])
    scale, zero, qmin, qmax, g = _affine(x, scale, zero, *rest[:4])
    affine = (_one_each(scale, g), _one_each(zero, g), qmin, qmax, g)
    dx, ds, dz = launch.fake_quantize_learned_backward(_gradient(dy, x), _floats(x), *affine)
    if rest[4] != 1.0:
        ds, dz = ds * rest[4], dz * rest[4]
    return dx, ds.to(s.dtype), dz.to(z.dtype if z.is_floating_point() else compute_dtype(x))


def quantize(
    x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None, dtype: torch.dtype
) -> Tensor:
    info = torch.iinfo(dtype)
    if not info.min <= qmin <= qmax <= info.max:
        raise InvalidProblem(f"qmin, qmax: [{qmin}, {qmax}]; expected within {dtype}'s, [{info.min}, {info.max}]")
    return launch.quantize(_floats(x), *_affine(x, s, z, qmin, qmax, axis, block), QuantizedDType.of(CODES[dtype]))


def quantize_ste(x: Tensor, *affine: Unpack[Affine]) -> Tensor:
    return quantize(x, *affine, codes_dtype(*affine[2:4])).to(x.dtype)


def dequantize(q: Tensor, s: Tensor, z: Tensor, axis: int | None, block: int | None, dtype: torch.dtype) -> Tensor:
    info = torch.iinfo(q.dtype)
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    scale, zero, _, _, g = _affine(out, s, z, info.min, info.max, axis, block)
    return launch.dequantize(q.contiguous(), scale, zero, g, QuantizedDType.of(CODES[q.dtype]), out=out)


def dequantize_ste(q: Tensor, s: Tensor, z: Tensor, axis: int | None, block: int | None) -> Tensor:
    g, wide = _granularity(q.shape, axis, block), q.detach().to(compute_dtype(q)).contiguous()
    zero = _each("zero_point", z, torch.int32, g).to(wide.dtype)
    # z of each element is 1 * z: a kernel spreads z as it spreads scales.
    each = zero.reshape(()) if zero.numel() == 1 else launch.dequantize_backward(torch.ones_like(wide), zero, g)
    return dequantize_ste_backward(wide - each, s, axis, block).to(q.dtype)  # the difference is exact


def dequantize_ste_backward(dy: Tensor, s: Tensor, axis: int | None, block: int | None) -> Tensor:
    g = _granularity(dy.shape, axis, block)
    return launch.dequantize_backward(_floats(dy, "dy"), _each("scale", s, compute_dtype(dy), g), g)


def range_params(x: Tensor, qmin: int, qmax: int, symmetric: bool, *scope: Unpack[Scope]) -> tuple[Tensor, Tensor]:
    lo, hi = _value_range(x, *scope)
    # As on the CPU: Inf counts as MAX_SCALE, and a scope of NaN alone as 0.
    lo, hi = (torch.where(lo <= hi, v, 0).clamp(-MAX_SCALE, MAX_SCALE) for v in (lo, hi))
    return affine_params(lo, hi, qmin, qmax, symmetric)


def observe_(
    x: Tensor, lo: Tensor, hi: Tensor, left_out: Tensor, momentum: float | None, *scope: Unpack[Scope]
) -> None:
    new_lo, new_hi = _value_range(x, *scope)
    usable = ((new_lo <= new_hi) & (new_lo >= -WIDEST) & (new_hi <= WIDEST)).all()
    left_out += (~usable).to(left_out.dtype)
    low, high = torch.minimum(lo, new_lo.to(lo.dtype)), torch.maximum(hi, new_hi.to(hi.dtype))
    if momentum is not None:
        first = (lo > hi).any()
        low, high = (
            torch.where(first, begun, (old + momentum * (new - old)).to(old.dtype))
            for begun, old, new in ((low, lo, new_lo), (high, hi, new_hi))
        )
    lo.copy_(torch.where(usable, low, lo))
    hi.copy_(torch.where(usable, high, hi))


def _value_range(x: Tensor, axis: int | None, block: int | None, name: str, ignore: bool) -> tuple[Tensor, Tensor]:
    """(lo, hi) of each scope. Unless told to ignore them, NaN and Inf are an error, for which this waits."""
    if x.numel() == 0:
        raise InvalidProblem(f"{name}: empty (shape {tuple(x.shape)}); there is nothing to find a range in")
    floats = _floats(x)
    lo, hi, nan = launch.value_range(floats, _granularity(x.shape, axis, block))
    if not ignore and not bool((torch.isfinite(lo) & torch.isfinite(hi) & (nan == 0)).all()):
        index = tuple(int(i) for i in (~torch.isfinite(floats)).nonzero()[0])
        raise InvalidProblem(f"{name}: {float(floats[index])} at index {index}; a range needs finite numbers")
    return lo, hi


def affine_params(lo: Tensor, hi: Tensor, qmin: int, qmax: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """The ends of a range are data with that range, so the kernel that finds scales in data finds these."""
    ends = torch.stack((lo.detach().reshape(-1), hi.detach().reshape(-1)), 1)
    g = granularity_of(tuple(ends.shape), 0, None)
    kind = QuantizedDType.of(CODES[codes_dtype(qmin, qmax)])
    zero = torch.empty(g.scale_shape, dtype=torch.int32, device=lo.device)
    scale = torch.empty(g.scale_shape, dtype=compute_dtype(lo), device=lo.device)
    codes: Any = launch.empty_codes(tuple(ends.shape), kind, ends)
    launch.quantize_dynamic(ends, g, qmin, qmax, kind, symmetric=symmetric, out=(codes, scale, zero))
    return scale.reshape(lo.shape), zero.reshape(lo.shape)
