"""CPU kernels of the torch operators: tensors in and out, lowbit's own functions in between.

They write into a new contiguous tensor and read contiguous input where it lies; `library` gives them channels_last
images in that order. Arguments are those of the schemas there: s scales, z zero points, `block` elements along `axis`
sharing one.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

import torch
from lowbit import ops
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.fields import as_zero_point
from lowbit.numerics.granularity import Granularity
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE, affine_from_range
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.fake_quantize import affine_of
from lowbit.ops.quantize import refuse_nonfinite
from lowbit.reference import spread
from lowbit.runtime import arrays as cpu
from lowbit.runtime.torch_types import CODES, WIDEST, codes_dtype, compute_dtype, granularity, require_bits
from lowbit.torch.functional.channels_last import as_it_lies, axis_as_it_lies, empty_like, is_channels_last
from torch import Tensor

__all__ = [
    "CODES", "HIGHEST", "LOWEST", "WIDEST", "affine_params", "codes_dtype", "compute_dtype", "dequantize",
    "dequantize_ste", "dequantize_ste_backward", "fake_quantize", "fake_quantize_backward",
    "fake_quantize_learned", "fake_quantize_learned_backward", "fake_quantize_masked", "granularity", "keep_where",
    "mask_fits", "observe_", "quantize", "quantize_ste", "quantize_ste_backward", "range_params", "require_bits",
]  # fmt: skip

Array = npt.NDArray[Any]

LOWEST, HIGHEST = cpu.LOWEST_CODE, cpu.HIGHEST_CODE
_ELEMENTS = {
    torch.float32: cpu.Element.f32,
    torch.float64: cpu.Element.f64,
    torch.float16: cpu.Element.f16,
    torch.bfloat16: cpu.Element.bf16,
}

_granularity = functools.lru_cache(4096)(granularity)


def _floats(x: Tensor, name: str = "x") -> cpu.FloatArray:
    """A float tensor as native kernels take it, without a copy where it is contiguous."""
    element = _ELEMENTS.get(x.dtype)
    if element is None or not x.is_contiguous():
        return cpu.as_float_array(x, name)
    x = x.detach()
    if element is cpu.BFLOAT16:
        return cpu.FloatArray(x.view(torch.int16).numpy().view(np.uint16), element)
    return cpu.FloatArray(x.numpy(), element)


def _gradient(dy: Tensor, x: Tensor) -> cpu.FloatArray:
    if dy.shape != x.shape or dy.dtype is not x.dtype:
        raise InvalidProblem(f"dy: {dy.dtype} {tuple(dy.shape)}; expected x's, {x.dtype} {tuple(x.shape)}")
    return _floats(dy, "dy")


def _numbers(values: Tensor) -> Array:
    """A small tensor's memory as an array; half-width floats widen."""
    values = values.detach()
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    return values.numpy()


def _affine_of(x: cpu.FloatArray, g: Granularity, s: Array, z: Array, qmin: int, qmax: int) -> cpu.Affine:
    """Scales and zero points as native kernels take them. What is not yet so, lowbit.ops' own check makes so."""
    fits = s.shape == z.shape == g.scale_shape and s.dtype == x.compute and z.dtype == np.int32
    if fits and s.flags.c_contiguous and z.flags.c_contiguous and LOWEST <= qmin <= qmax <= HIGHEST:
        return cpu.Affine(s, z, qmin, qmax)
    return affine_of(x.compute, s, z, qmin, qmax, g)


def fake_quantize(x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None) -> Tensor:
    return _fake_quantize(x, _numbers(s), _numbers(z), qmin, qmax, axis, block)


def _fake_quantize(x: Tensor, s: Array, z: Array, qmin: int, qmax: int, axis: int | None, block: int | None) -> Tensor:
    out, floats, g = empty_like(x), _floats(x), _granularity(x.shape, axis, block)
    cpu.fake_quantize(floats, _affine_of(floats, g, s, z, qmin, qmax), g, _floats(out))
    return out


def fake_quantize_backward(
    dy: Tensor, x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None
) -> Tensor:
    out, floats, g = empty_like(x), _floats(x), _granularity(x.shape, axis, block)
    affine = _affine_of(floats, g, _numbers(s), _numbers(z), qmin, qmax)
    cpu.fake_quantize_backward(_gradient(dy, x), floats, affine, g, _floats(out))
    return out


@functools.lru_cache(4096)
def _masked(shape: torch.Size, axis: int | None, block: int | None) -> tuple[Granularity, Any, int] | None:
    """The granularity, its layout and the bytes of a mask; None where scales change within a byte of one."""
    g = granularity(shape, axis, block)
    return (g, cpu.layout_of(g), (shape.numel() + 7) // 8) if cpu.mask_fits(g) else None


def _masked_as_it_lies(
    x: Tensor, last: bool, axis: int | None, block: int | None
) -> tuple[Granularity, Any, int] | None:
    if not last:
        return _masked(x.shape, axis, block)
    return None if block is not None else _masked(as_it_lies(x).shape, axis_as_it_lies(axis, x.ndim), None)


def mask_fits(x: Tensor, axis: int | None, block: int | None) -> bool:
    return _masked_as_it_lies(x, is_channels_last(x), axis, block) is not None


def _element(x: Tensor, name: str) -> cpu.Element:
    found = _ELEMENTS.get(x.dtype)
    return cpu.as_float_array(x, name).element if found is None else found  # which raises


def fake_quantize_masked(
    x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None
) -> tuple[Tensor, Tensor]:
    """fake_quantize, and a bit for each element that was not clipped, in the order in which they lie."""
    last = is_channels_last(x)
    found = _masked_as_it_lies(x, last, axis, block)
    if found is None:
        raise InvalidProblem(f"x: shape {tuple(x.shape)}, axis {axis}, group_size {block}; scales change within a byte")
    g, layout, size = found
    x, element = x if last else x.contiguous(), _element(x, "x")
    out, bits = torch.empty_like(x), torch.empty(size, dtype=torch.uint8)
    ready = s.shape == z.shape == g.scale_shape and s.dtype is compute_dtype(x) and z.dtype is torch.int32
    if not (ready and s.is_contiguous() and z.is_contiguous() and LOWEST <= qmin <= qmax <= HIGHEST):
        compute = np.dtype(np.float64 if x.dtype is torch.float64 else np.float32)
        f = affine_of(compute, _numbers(s), _numbers(z), qmin, qmax, g)
        s, z = torch.tensor(f.scale), torch.tensor(f.zero)
    status = cpu.fake_quantize_masked_at(
        x.data_ptr(), out.data_ptr(), bits.data_ptr(), element, s.data_ptr(), z.data_ptr(), qmin, qmax, layout
    )
    if status != -1:
        raise cpu.bad_parameter(status, _numbers(s), _numbers(z), qmin, qmax)
    return out, bits


def keep_where(dy: Tensor, bits: Tensor) -> Tensor:
    """dy where a bit is set, else 0."""
    require_bits(dy, bits)
    dy, element = dy.contiguous(), _element(dy, "dy")
    bits, out = bits.contiguous(), torch.empty_like(dy)
    cpu.keep_where_at(dy.data_ptr(), bits.data_ptr(), out.data_ptr(), dy.numel(), element)
    return out


def quantize_ste_backward(
    dy: Tensor, x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None
) -> Tensor:
    out, floats, g = empty_like(x), _floats(x), _granularity(x.shape, axis, block)
    affine = _affine_of(floats, g, _numbers(s), _numbers(z), qmin, qmax)
    cpu.quantize_backward(_gradient(dy, x), floats, affine, g, _floats(out))
    return out


def _learned(s: Tensor, z: Tensor, qmin: int, qmax: int) -> tuple[Any, Any]:
    """A learned scale and zero point as used: an optimizer may leave the range they must lie in."""
    scale, zero = np.minimum(np.maximum(_numbers(s), MIN_SCALE), MAX_SCALE), _numbers(z)
    if zero.dtype.kind == "f":
        if np.isnan(zero).any():
            raise InvalidProblem("zero_point: nan; expected a number, which training has lost")
        zero = np.asarray(np.clip(np.rint(zero), qmin, qmax).astype(np.int32))
    return np.asarray(scale), zero


def fake_quantize_learned(
    x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None, gradient_scale: float
) -> Tensor:
    return _fake_quantize(x, *_learned(s, z, qmin, qmax), qmin, qmax, axis, block)


def fake_quantize_learned_backward(
    dy: Tensor, x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None,
    gradient_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    out, floats, g = empty_like(x), _floats(x), _granularity(x.shape, axis, block)
    affine = _affine_of(floats, g, *_learned(s, z, qmin, qmax), qmin, qmax)
    ds, dz = cpu.fake_quantize_learned_backward(_gradient(dy, x), floats, affine, g, _floats(out))
    of_zero = z.dtype if z.is_floating_point() else compute_dtype(x)
    return out, _scaled(ds, gradient_scale, s.dtype), _scaled(dz, gradient_scale, of_zero)


def _scaled(sums: Array, by: float, dtype: torch.dtype) -> Tensor:
    found = torch.from_numpy(np.asarray(sums if by == 1.0 else sums * sums.dtype.type(by)))
    return found.to(dtype)


def _params(s: Tensor, z: Tensor, dtype: torch.dtype, qmin: int, qmax: int, axis: int | None, block: int | None) -> Any:
    return QuantizationParams(
        CODES[dtype], "asymmetric", _numbers(s), _numbers(z), axis=axis, group_size=block, qmin=qmin, qmax=qmax
    )


def quantize(
    x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None, dtype: torch.dtype
) -> Tensor:
    out = torch.empty(x.shape, dtype=dtype)
    ops.quantize(x, params=_params(s, z, dtype, qmin, qmax, axis, block), out=out.numpy())
    return out


def quantize_ste(x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None) -> Tensor:
    return quantize(x, s, z, qmin, qmax, axis, block, codes_dtype(qmin, qmax)).to(x.dtype)


def dequantize(q: Tensor, s: Tensor, z: Tensor, axis: int | None, block: int | None, dtype: torch.dtype) -> Tensor:
    info = torch.iinfo(q.dtype)
    out = torch.empty(q.shape, dtype=dtype)
    ops.dequantize(QuantizedTensor(q.numpy(), _params(s, z, q.dtype, info.min, info.max, axis, block)), out=out)  # type: ignore[arg-type]
    return out


def dequantize_ste(q: Tensor, s: Tensor, z: Tensor, axis: int | None, block: int | None) -> Tensor:
    wide = q.detach().to(compute_dtype(q))  # exact, and so is the subtraction
    zero = as_zero_point(_numbers(z), tuple(z.shape))
    if zero.ndim:
        zero = np.asarray(spread(zero, granularity(q.shape, axis, block), tuple(q.shape)))
    wide = wide - torch.tensor(zero, device="cpu").to(wide.dtype)
    return dequantize_ste_backward(wide, s, axis, block).to(q.dtype)


def dequantize_ste_backward(dy: Tensor, s: Tensor, axis: int | None, block: int | None) -> Tensor:
    out, floats, g = empty_like(dy), _floats(dy, "dy"), _granularity(dy.shape, axis, block)
    cpu.dequantize_backward(floats, affine_of(floats.compute, _numbers(s), 0, 0, 0, g), g, _floats(out))
    return out


def range_params(
    x: Tensor, qmin: int, qmax: int, symmetric: bool, axis: int | None, block: int | None, name: str, ignore: bool
) -> tuple[Tensor, Tensor]:
    lo, hi = _value_range(x, axis, block, name, ignore)
    least, most = _ends(lo, hi)
    if not -MAX_SCALE <= least <= most <= MAX_SCALE:
        # Inf counts as a very large number, and no number at all as 0: a step that holds them is thrown away.
        lo, hi = (np.asarray(np.clip(np.where(lo <= hi, v, v.dtype.type(0)), -MAX_SCALE, MAX_SCALE)) for v in (lo, hi))
    return _affine(lo, hi, qmin, qmax, symmetric)


def observe_(
    x: Tensor, lo: Tensor, hi: Tensor, left_out: Tensor, momentum: float | None, axis: int | None, block: int | None,
    name: str, ignore: bool,
) -> None:  # fmt: skip
    new_lo, new_hi = _value_range(x, axis, block, name, ignore)
    least, most = _ends(new_lo, new_hi)
    if not -WIDEST <= least <= most <= WIDEST:
        left_out += 1
        return
    old_lo, old_hi = lo.numpy(), hi.numpy()
    if momentum is None or (old_lo > old_hi).any():
        np.minimum(old_lo, new_lo, out=old_lo, casting="same_kind")
        np.maximum(old_hi, new_hi, out=old_hi, casting="same_kind")
    else:
        m = new_lo.dtype.type(momentum)
        old_lo += m * (new_lo - old_lo)
        old_hi += m * (new_hi - old_hi)


def _ends(lo: Array, hi: Array) -> tuple[float, float]:
    """The least lo and the greatest hi; NaN where there is a scope without a number."""
    if lo.ndim == 0:
        return float(lo), float(hi)
    return (float(lo.min()), float(hi.max())) if (lo <= hi).all() else (np.nan, np.nan)


def _value_range(x: Tensor, axis: int | None, block: int | None, name: str, ignore: bool) -> tuple[Array, Array]:
    """(lo, hi) of each scope. NaN or Inf is an error that says where, or with `ignore` left to the caller."""
    if x.numel() == 0:
        raise InvalidProblem(f"{name}: empty (shape {tuple(x.shape)}); there is nothing to find a range in")
    lying, along = x, axis
    if block is None and is_channels_last(x):
        lying, along = as_it_lies(x), axis_as_it_lies(axis, x.ndim)
    lo, hi, nan = cpu.value_range(_floats(lying), _granularity(lying.shape, along, block))
    if not ignore and (nan or not (np.isfinite(lo).all() and np.isfinite(hi).all())):
        refuse_nonfinite(_floats(x), name)
    return lo, hi


def affine_params(lo: Tensor, hi: Tensor, qmin: int, qmax: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    return _affine(lo.numpy(), hi.numpy(), qmin, qmax, symmetric)


def _affine(lo: Array, hi: Array, qmin: int, qmax: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """affine_from_range; where nothing is special about the data, by the same arithmetic in a third of its time."""
    number = lo.dtype.type
    if symmetric and qmin <= 0 < qmax:
        scale = np.asarray(np.maximum(-lo, hi) / number(qmax))
        least, most = _ends(scale, scale)
        if least >= MIN_SCALE and most <= MAX_SCALE:
            return torch.from_numpy(scale), torch.zeros(scale.shape, dtype=torch.int32)
    elif lo.ndim == 0 and not symmetric and abs(float(lo)) <= WIDEST >= abs(float(hi)):
        low, high = min(lo[()], number(0)), max(hi[()], number(0))
        step = (high - low) / number(max(qmax - qmin, 1))
        if MIN_SCALE <= step <= MAX_SCALE:
            at = min(max(int(np.rint(number(qmin) - low / step)), qmin), qmax)
            return torch.from_numpy(np.asarray(step)), torch.from_numpy(np.asarray(at, np.int32))
    scale, zero = affine_from_range(lo, hi, qmin, qmax, symmetric=symmetric)
    return torch.from_numpy(scale), torch.from_numpy(zero)
