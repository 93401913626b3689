"""CPU kernels of the torch operators: tensors in and out, lowbit's plans in between.

Results are new contiguous tensors, and contiguous input is read without a copy. Arguments are those of the schemas in
`library`: s scales, z zero points, block the group size along `axis`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

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
from lowbit.reference import spread
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise
from lowbit.runtime.cache import Cache
from lowbit.runtime.native import core
from lowbit.runtime.torch_types import CODES, WIDEST, codes_dtype, compute_dtype, granularity, require_bits
from lowbit.torch.functional.channels_last import axis_innermost, channels_innermost, empty_like, is_channels_last
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = npt.NDArray[Any]
# Arguments of the operators' schemas: qmin, qmax, axis, block; and axis, block, name, ignore.
Codes: TypeAlias = tuple[int, int, int | None, int | None]
Scopes: TypeAlias = tuple[int | None, int | None, str, bool]

LOWEST, HIGHEST = cpu.LOWEST_CODE, cpu.HIGHEST_CODE
_ELEMENTS = {
    torch.float32: cpu.Element.f32,
    torch.float64: cpu.Element.f64,
    torch.float16: cpu.Element.f16,
    torch.bfloat16: cpu.Element.bf16,
}

_GRANULARITIES: Cache[Granularity] = Cache(4096)


def cached_granularity(shape: torch.Size, axis: int | None, block: int | None) -> Granularity:
    found = _GRANULARITIES.get((shape, axis, block))
    return _GRANULARITIES.put((shape, axis, block), granularity(shape, axis, block)) if found is None else found


def floats_of(x: Tensor, name: str = "x") -> cpu.FloatArray:
    """A float tensor as native kernels take it, without a copy where it is contiguous."""
    element = _ELEMENTS.get(x.dtype)
    if element is None or not x.is_contiguous():
        return cpu.as_float_array(x, name)
    x = x.detach()
    if element is cpu.BFLOAT16:
        return cpu.FloatArray(x.view(torch.int16).numpy().view(np.uint16), element)
    return cpu.FloatArray(x.numpy(), element)


def _numbers(values: Tensor) -> Array:
    """A small tensor as an array; 16-bit floats widen to float32."""
    values = values.detach()
    if values.dtype in (torch.float16, torch.bfloat16):
        values = values.float()
    return values.numpy()


def _described(
    x: Tensor, s: Array, z: Array, qmin: int, qmax: int, axis: int | None, block: int | None
) -> tuple[cpu.FloatArray, elementwise.Affine, Granularity]:
    """x, scales and granularity as native kernels take them; `affine_of` converts and checks what does not fit."""
    floats, g = floats_of(x), cached_granularity(x.shape, axis, block)
    fits = s.shape == z.shape == g.scale_shape and s.dtype == floats.compute and z.dtype == np.int32
    if fits and s.flags.c_contiguous and z.flags.c_contiguous and LOWEST <= qmin <= qmax <= HIGHEST:
        return floats, elementwise.Affine(s, z, qmin, qmax), g
    return floats, affine_of(floats.compute, s, z, qmin, qmax, g), g


def _gradient(dy: Tensor, x: Tensor) -> cpu.FloatArray:
    if dy.shape != x.shape or dy.dtype is not x.dtype:
        raise InvalidProblem(f"dy: {dy.dtype} {tuple(dy.shape)}; expected x's, {x.dtype} {tuple(x.shape)}")
    return floats_of(dy, "dy")


def _fake_quantize(x: Tensor, *affine: Any) -> Tensor:
    out = empty_like(x)
    floats, described, g = _described(x, *affine)
    elementwise.run("run", described, g, floats_of(out), x=floats)
    return out


def _backward(method: str, dy: Tensor, x: Tensor, *affine: Any) -> Tensor:
    out = empty_like(x)
    floats, described, g = _described(x, *affine)
    elementwise.run(method, described, g, floats_of(out), dy=_gradient(dy, x), x=floats)
    return out


def fake_quantize(x: Tensor, s: Tensor, z: Tensor, *rest: Unpack[Codes]) -> Tensor:
    return _fake_quantize(x, _numbers(s), _numbers(z), *rest)


def fake_quantize_backward(dy: Tensor, x: Tensor, s: Tensor, z: Tensor, *rest: Unpack[Codes]) -> Tensor:
    return _backward("backward", dy, x, _numbers(s), _numbers(z), *rest)


def quantize_ste_backward(dy: Tensor, x: Tensor, s: Tensor, z: Tensor, *rest: Unpack[Codes]) -> Tensor:
    return _backward("quantize_backward", dy, x, _numbers(s), _numbers(z), *rest)


_MASKED: Cache[tuple[Granularity, core.FakeQuantizePlan, int]] = Cache(4096)


def _masked(
    x: Tensor, last: bool, qmin: int, qmax: int, axis: int | None, block: int | None
) -> tuple[Granularity, core.FakeQuantizePlan, int] | None:
    """The granularity of x in memory order, its plan and the bytes of a mask; None where scales change within one."""
    key = (x.shape, x.dtype, last, qmin, qmax, axis, block)
    found = _MASKED.get(key)
    if found is None:
        if last and block is not None:
            return None
        shape, axis = (channels_innermost(x).shape, axis_innermost(axis, x.ndim)) if last else (x.shape, axis)
        g = granularity(shape, axis, block)
        element = _ELEMENTS.get(x.dtype) or floats_of(x).element  # which raises
        plan = elementwise.fake_quantize_plan(element, tuple(shape), g, qmin, qmax)
        found = _MASKED.put(key, (g, plan, plan.mask_bytes))
    return found if found[1].has_mask else None


def mask_fits(x: Tensor, axis: int | None, block: int | None) -> bool:
    return _masked(x, is_channels_last(x), 0, 0, axis, block) is not None


def fake_quantize_masked(
    x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None
) -> tuple[Tensor, Tensor]:
    """fake_quantize, and a bit for each element that was not clipped, in memory order."""
    last = is_channels_last(x)
    if not LOWEST <= qmin <= qmax <= HIGHEST:
        affine_of(np.dtype(np.float32), _numbers(s), _numbers(z), qmin, qmax, granularity(x.shape, axis, block))
    found = _masked(x, last, qmin, qmax, axis, block)
    if found is None:
        raise InvalidProblem(f"x: shape {tuple(x.shape)}, axis {axis}, group_size {block}; scales change within a byte")
    g, plan, size = found
    x = x if last else x.contiguous()
    out, bits = torch.empty_like(x), torch.empty(size, dtype=torch.uint8)
    ready = s.shape == z.shape == g.scale_shape and s.dtype is compute_dtype(x) and z.dtype is torch.int32
    if not (ready and s.is_contiguous() and z.is_contiguous()):
        compute = np.dtype(np.float64 if x.dtype is torch.float64 else np.float32)
        f = affine_of(compute, _numbers(s), _numbers(z), qmin, qmax, g)
        s, z = torch.tensor(f.scale), torch.tensor(f.zero)
    status = plan.run_masked(x.data_ptr(), out.data_ptr(), bits.data_ptr(), s.data_ptr(), z.data_ptr())
    if status != -1:
        raise cpu.bad_parameter(status, _numbers(s), _numbers(z), qmin, qmax)
    return out, bits


def keep_where(dy: Tensor, bits: Tensor) -> Tensor:
    """dy where a bit is set, else 0."""
    require_bits(dy, bits)
    found = _masked(dy, False, 0, 0, None, None)
    assert found is not None  # one scale for all
    dy, bits = dy.contiguous(), bits.contiguous()
    out = torch.empty_like(dy)
    found[1].masked_backward(dy.data_ptr(), bits.data_ptr(), out.data_ptr())
    return out


def _learned(s: Tensor, z: Tensor, qmin: int, qmax: int, *granularity: int | None) -> tuple[Any, ...]:
    """The arguments with a learned scale and zero point clamped: an optimizer may move them out of range."""
    scale, zero = np.minimum(np.maximum(_numbers(s), MIN_SCALE), MAX_SCALE), _numbers(z)
    if zero.dtype.kind == "f":
        if np.isnan(zero).any():
            raise InvalidProblem("zero_point: nan; expected a number: training diverged")
        zero = np.asarray(np.clip(np.rint(zero), qmin, qmax).astype(np.int32))
    return np.asarray(scale), zero, qmin, qmax, *granularity


def fake_quantize_learned(
    x: Tensor, s: Tensor, z: Tensor, qmin: int, qmax: int, axis: int | None, block: int | None, gradient_scale: float
) -> Tensor:
    return _fake_quantize(x, *_learned(s, z, qmin, qmax, axis, block))


def fake_quantize_learned_backward(
    dy: Tensor,
    x: Tensor,
    s: Tensor,
    z: Tensor,
    qmin: int,
    qmax: int,
    axis: int | None,
    block: int | None,
    gradient_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    out = empty_like(x)
    described = _described(x, *_learned(s, z, qmin, qmax, axis, block))
    ds, dz = elementwise.fake_quantize_learned_backward(_gradient(dy, x), *described, floats_of(out))
    of_zero = z.dtype if z.is_floating_point() else compute_dtype(x)
    return out, _scaled(ds, gradient_scale, s.dtype), _scaled(dz, gradient_scale, of_zero)


def _scaled(sums: Array, by: float, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(np.asarray(sums if by == 1.0 else sums * sums.dtype.type(by))).to(dtype)


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


def quantize_ste(x: Tensor, s: Tensor, z: Tensor, *rest: Unpack[Codes]) -> Tensor:
    return quantize(x, s, z, *rest, codes_dtype(*rest[:2])).to(x.dtype)


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
    out, floats, g = empty_like(dy), floats_of(dy, "dy"), cached_granularity(dy.shape, axis, block)
    affine = affine_of(floats.compute, _numbers(s), 0, 0, 0, g)
    elementwise.run("dequantize_backward", affine, g, floats_of(out), dy=floats)
    return out


def range_params(x: Tensor, qmin: int, qmax: int, symmetric: bool, *scopes: Unpack[Scopes]) -> tuple[Tensor, Tensor]:
    lo, hi = _value_range(x, *scopes)
    least, most = _ends(lo, hi)
    if not -MAX_SCALE <= least <= most <= MAX_SCALE:
        # Inf counts as MAX_SCALE, and a scope of NaN alone as 0: loss scaling discards the step anyway.
        lo, hi = (np.asarray(np.clip(np.where(lo <= hi, v, v.dtype.type(0)), -MAX_SCALE, MAX_SCALE)) for v in (lo, hi))
    return _affine(lo, hi, qmin, qmax, symmetric)


def observe_(
    x: Tensor, lo: Tensor, hi: Tensor, left_out: Tensor, momentum: float | None, *scopes: Unpack[Scopes]
) -> None:
    """Widen [lo, hi] to x's range, or move it by `momentum`; count x in `left_out` where its range is not finite."""
    new_lo, new_hi = _value_range(x, *scopes)
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
    """The least lo and the greatest hi; NaN where a scope has no number."""
    if lo.ndim == 0:
        return float(lo), float(hi)
    return (float(lo.min()), float(hi.max())) if (lo <= hi).all() else (np.nan, np.nan)


def _value_range(x: Tensor, axis: int | None, block: int | None, name: str, ignore: bool) -> tuple[Array, Array]:
    """(lo, hi) of each scope. NaN or Inf raises with its index, unless `ignore` leaves it to the caller."""
    if x.numel() == 0:
        raise InvalidProblem(f"{name}: empty (shape {tuple(x.shape)}); there is nothing to find a range in")
    ordered, along = x, axis
    if block is None and is_channels_last(x):
        ordered, along = channels_innermost(x), axis_innermost(axis, x.ndim)
    lo, hi, nan = elementwise.value_range(floats_of(ordered), cached_granularity(ordered.shape, along, block))
    if not ignore and (nan or not (np.isfinite(lo).all() and np.isfinite(hi).all())):
        cpu.refuse_nonfinite(floats_of(x), name)
    return lo, hi


def affine_params(lo: Tensor, hi: Tensor, qmin: int, qmax: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    return _affine(lo.numpy(), hi.numpy(), qmin, qmax, symmetric)


def _affine(lo: Array, hi: Array, qmin: int, qmax: int, symmetric: bool) -> tuple[Tensor, Tensor]:
    """`affine_from_range`, with shortcuts of the same arithmetic for the frequent cases, in a third of the time."""
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
