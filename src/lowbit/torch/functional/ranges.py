"""CPU kernels of the torch operators that find ranges, and scales and zero points from ranges."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import torch
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE, affine_from_range
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise
from lowbit.runtime.torch_types import WIDEST
from lowbit.torch.functional.channels_last import axis_innermost, channels_innermost, is_channels_last
from lowbit.torch.functional.kernels import cached_granularity, floats_of
from torch import Tensor

Array = npt.NDArray[Any]


def range_params(
    x: Tensor, qmin: int, qmax: int, symmetric: bool, axis: int | None, block: int | None, name: str, ignore: bool
) -> tuple[Tensor, Tensor]:
    lo, hi = _value_range(x, axis, block, name, ignore)
    least, most = _ends(lo, hi)
    if not -MAX_SCALE <= least <= most <= MAX_SCALE:
        # Inf counts as MAX_SCALE, and a scope of NaN alone as 0: loss scaling discards the step anyway.
        lo, hi = (np.asarray(np.clip(np.where(lo <= hi, v, v.dtype.type(0)), -MAX_SCALE, MAX_SCALE)) for v in (lo, hi))
    return _affine(lo, hi, qmin, qmax, symmetric)


def observe_(
    x: Tensor,
    lo: Tensor,
    hi: Tensor,
    left_out: Tensor,
    momentum: float | None,
    axis: int | None,
    block: int | None,
    name: str,
    ignore: bool,
) -> None:
    """Widen [lo, hi] to x's range, or move it by `momentum`; count x in `left_out` where its range is not finite."""
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
