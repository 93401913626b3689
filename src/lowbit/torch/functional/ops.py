"""Functions of torch tensors: fake quantization, codes and back, with straight-through gradients.

Granularity: scale and zero_point are per tensor; with `axis` per channel; with `group_size` per group along `axis`
(default the last); with `per_token` per row of the last axis, shaped x.shape[:-1]. They are numbers, arrays or tensors;
zero points are integers, also as floats (2.0, but not 2.7). Results have x's dtype, inside torch.autocast too. Their
memory format is x's if that is torch.channels_last, else contiguous. Transforms of torch.func and tracers give the same
numbers; only forward-mode differentiation of `fake_quantize_learned` raises.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

import torch
from lowbit.numerics.errors import InvalidProblem, UnsupportedDType
from lowbit.numerics.fields import as_zero_point
from lowbit.runtime.torch_types import CODES, codes_dtype, granularity
from lowbit.torch.functional import library
from lowbit.torch.functional.registration import is_direct
from torch import Tensor

Number = float | Tensor  # anything that torch.tensor takes is accepted too


def fake_quantize(
    x: Tensor,
    scale: Number,
    zero_point: Number = 0,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    group_size: int | None = None,
    per_token: bool = False,
) -> Tensor:
    """dequantize(quantize(x)); NaN stays NaN. Gradient by x: dy where the code was not clipped, else 0; by scale none.

    >>> x = torch.tensor([0.3, 1.0, 9.0], requires_grad=True)
    >>> y = fake_quantize(x, 0.5, qmin=-2, qmax=2)
    >>> y.sum().backward()
    >>> y.tolist(), x.grad.tolist()
    ([0.5, 1.0, 1.0], [1.0, 1.0, 0.0])
    """
    rows, s, z, axis = _arguments("x", x, scale, zero_point, axis, group_size, per_token)
    return _shaped(library.fake_quantize(rows, s, z, qmin, qmax, axis, group_size), x)


def fake_quantize_learned(
    x: Tensor,
    scale: Tensor,
    zero_point: Number = 0,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    group_size: int | None = None,
    per_token: bool = False,
    gradient_scale: float = 1.0,
) -> Tensor:
    """fake_quantize whose scale learns, as in learned step size quantization (LSQ).

    Gradient by scale: sum(dy * t) with t = rne(x/s) - x/s inside, qmin - z below and qmax - z above the range. A zero
    point given as a tensor of floats is rounded to the nearest integer in the range and learns too: sum(dy * -s) over
    what is clipped. Both are multiplied by gradient_scale. Scales below 2^-125 count as that.

    >>> s = torch.tensor(0.5, requires_grad=True)
    >>> fake_quantize_learned(torch.tensor([0.4, 9.0]), s, qmin=-2, qmax=2).sum().backward()
    >>> round(s.grad.item(), 3)
    2.2
    """
    rows, s, z, axis = _arguments("x", x, scale, zero_point, axis, group_size, per_token)
    shape = granularity(rows.shape, axis, group_size).scale_shape
    s, z = _spread("scale", s, shape), _spread("zero_point", z, shape)
    return _shaped(library.fake_quantize_learned(rows, s, z, qmin, qmax, axis, group_size, gradient_scale), x)


def quantize(
    x: Tensor,
    scale: Number,
    zero_point: Number = 0,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    group_size: int | None = None,
    per_token: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Integer codes of x, one per element, in the narrowest type for [qmin, qmax] or in `dtype`. Not differentiable.

    >>> quantize(torch.tensor([-9.0, 0.3, 1.0]), 0.5, qmin=-8, qmax=7)
    tensor([-8,  1,  2], dtype=torch.int8)
    """
    if dtype is None:
        dtype = codes_dtype(qmin, qmax)
    elif dtype not in CODES:
        raise UnsupportedDType(f"dtype: {dtype}; expected one of {', '.join(map(str, CODES))}")
    rows, s, z, axis = _arguments("x", x, scale, zero_point, axis, group_size, per_token)
    return _shaped(library.quantize(rows.detach(), s.detach(), z, qmin, qmax, axis, group_size, dtype), x)


def quantize_ste(
    x: Tensor,
    scale: Number,
    zero_point: Number = 0,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    group_size: int | None = None,
    per_token: bool = False,
) -> Tensor:
    """The codes of x as floats of x's dtype. Gradient by x: dy / s where the code was not clipped, else 0.

    >>> x = torch.tensor([0.9, 9.0], requires_grad=True)
    >>> codes = quantize_ste(x, 0.5, qmin=-2, qmax=2)
    >>> codes.sum().backward()
    >>> codes.tolist(), x.grad.tolist()
    ([2.0, 2.0], [2.0, 0.0])
    """
    rows, s, z, axis = _arguments("x", x, scale, zero_point, axis, group_size, per_token)
    return _shaped(library.quantize_ste(rows, s, z, qmin, qmax, axis, group_size), x)


def dequantize(
    codes: Tensor,
    scale: Number,
    zero_point: Number = 0,
    *,
    axis: int | None = None,
    group_size: int | None = None,
    per_token: bool = False,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """The values of integer codes: (codes - zero_point) * scale. Not differentiable.

    >>> dequantize(torch.tensor([-8, 2], dtype=torch.int8), 0.5, 1)
    tensor([-4.5000,  0.5000])
    """
    if isinstance(codes, Tensor) and codes.dtype not in CODES:
        raise UnsupportedDType(f"codes: {codes.dtype}; expected one of {', '.join(map(str, CODES))}")
    rows, s, z, axis = _arguments("codes", codes, scale, zero_point, axis, group_size, per_token, dtype)
    return _shaped(library.dequantize(rows, s.detach(), z, axis, group_size, dtype), codes)


def dequantize_ste(
    codes: Tensor,
    scale: Number,
    zero_point: Number = 0,
    *,
    axis: int | None = None,
    group_size: int | None = None,
    per_token: bool = False,
) -> Tensor:
    """(codes - zero_point) * scale for codes held as floats, in their dtype. Gradient by codes: dy * s.

    >>> codes = torch.tensor([-8.0, 2.0], requires_grad=True)
    >>> y = dequantize_ste(codes, 0.5, 1)
    >>> y.sum().backward()
    >>> y.tolist(), codes.grad.tolist()
    ([-4.5, 0.5], [0.5, 0.5])
    """
    rows, s, z, axis = _arguments("codes", codes, scale, zero_point, axis, group_size, per_token)
    return _shaped(library.dequantize_ste(rows, s, z, axis, group_size), codes)


def _arguments(
    name: str,
    x: Tensor,
    scale: Any,
    zero_point: Any,
    axis: int | None,
    group_size: int | None,
    per_token: bool,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor, Tensor, int | None]:
    """x, scale, zero point and axis as operators take them; tokens become the channels of a matrix."""
    if not isinstance(x, Tensor):
        raise InvalidProblem(f"{name}: {type(x).__name__}; expected a torch tensor")
    if not (isinstance(scale, Tensor) and isinstance(zero_point, Tensor)):
        direct = is_direct(name, x)
        if not isinstance(scale, Tensor):
            wide = (x.dtype if dtype is None else dtype) is torch.float64
            scale = _scale(x, scale, torch.float64 if wide else torch.float32, direct)
        if not isinstance(zero_point, Tensor):
            zero_point = _zero_point(x, zero_point, direct)
    if not per_token:
        return x, scale, zero_point, axis
    if axis is not None or group_size is not None:
        raise InvalidProblem("per_token: True contradicts axis and group_size, which give another granularity")
    if x.ndim == 0:
        raise InvalidProblem(f"{name}: no dimensions; per_token needs at least one, the features of a token")
    for what, given in (("scale", scale), ("zero_point", zero_point)):
        if given.ndim and given.shape != x.shape[:-1]:
            raise InvalidProblem(f"{what}: shape {tuple(given.shape)}; expected {tuple(x.shape[:-1])}, one per token")
    rows = x.flatten(0, -2) if x.ndim > 1 else x.unsqueeze(0)
    scale, zero_point = (v.flatten() if v.ndim else v for v in (scale, zero_point))
    return rows, scale, zero_point, 0


def _scale(x: Tensor, value: Any, dtype: torch.dtype, direct: bool) -> Tensor:
    if direct and type(value) in (int, float):
        return _constant(value, dtype)
    try:
        return torch.tensor(value, dtype=dtype, device=x.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidProblem(f"scale: {value!r}; expected a number, an array or a tensor ({error})") from None


def _zero_point(x: Tensor, value: Any, direct: bool) -> Tensor:
    if isinstance(value, np.integer) or (type(value) is float and value.is_integer()):
        value = int(value)
    if type(value) is int:
        if not -(2**31) <= value < 2**31:
            raise InvalidProblem(f"zero_point: {value}; expected an integer of 32 bits")
        return _constant(value, torch.int32) if direct else torch.tensor(value, dtype=torch.int32, device=x.device)
    return torch.tensor(as_zero_point(value, np.shape(value)), device=x.device)


@functools.lru_cache(256)
def _constant(value: float, dtype: torch.dtype) -> Tensor:
    """A number as a tensor, cached: to create one takes as long as to quantize about ten thousand elements."""
    with torch.inference_mode(False):  # autograd cannot save an inference tensor
        return torch.tensor(value, dtype=dtype, device="cpu")


def _spread(name: str, values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """One value per scale; autograd sums the gradient of an expanded one."""
    if tuple(values.shape) == shape:
        return values
    if values.numel() == 1 and values.ndim <= 1:
        return values.reshape(()).expand(shape)
    raise InvalidProblem(f"{name}: shape {tuple(values.shape)}; expected {shape}")


def _shaped(y: Tensor, like: Tensor) -> Tensor:
    return y if y.ndim == like.ndim else y.view(like.shape)
