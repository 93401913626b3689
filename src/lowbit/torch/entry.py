"""`quantize`: of a model, or of a tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar, overload

import torch
from torch import Tensor, nn

from lowbit.ops.fitting import Products
from lowbit.torch import ops
from lowbit.torch.ops import Number
from lowbit.torch.swap import RecipeLike, quantize_model

__all__ = ["quantize"]

M = TypeVar("M", bound=nn.Module)


@overload
def quantize(
    x: M,
    recipe: RecipeLike = "dynamic-int8",
    *,
    calibration: Iterable[Any] | None = None,
    example: Any = None,
    inplace: bool = False,
    strict: bool = False,
    keep_float: Literal["slower", "never"] = "slower",
    fold_norms: bool = True,
    fit_products: Products | None = None,
    progress: bool = True,
) -> M: ...
@overload
def quantize(
    x: Tensor,
    scale: Number,
    zero_point: Number = 0,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    block_size: int | None = None,
    per_token: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor: ...
def quantize(x: Any, *arguments: Any, **options: Any) -> Any:
    """A model with its layers swapped for lowbit's (see `lowbit.torch.swap.quantize_model`), or a tensor's codes (see
    `lowbit.torch.ops.quantize`).

    >>> quantize(nn.Sequential(nn.Linear(64, 32)), "W8A8")
    Sequential(
      (0): QuantizedLinear(in=64, out=32, int8, activation='int8')
    )
    >>> quantize(torch.tensor([-9.0, 0.3, 1.0]), 0.5, qmin=-8, qmax=7)
    tensor([-8,  1,  2], dtype=torch.int8)
    """
    if isinstance(x, nn.Module):
        return quantize_model(x, *arguments, **options)
    return ops.quantize(x, *arguments, **options)
