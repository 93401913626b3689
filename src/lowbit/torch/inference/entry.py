"""`quantize`: of a model, or of a tensor."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Literal, TypeVar, overload

import torch
from lowbit.numerics.errors import InvalidProblem
from lowbit.ops.fitting import Products
from lowbit.torch.functional import ops
from lowbit.torch.functional.ops import Number
from lowbit.torch.inference.batches import Inputs
from lowbit.torch.inference.swap import RecipeLike, quantize_model
from torch import Tensor, nn

__all__ = ["quantize"]

M = TypeVar("M", bound=nn.Module)
_RECIPE = "dynamic-int8"


@overload
def quantize(
    x: M,
    recipe: RecipeLike = _RECIPE,
    *,
    calibration: Iterable[Any] | None = None,
    example: Any = None,
    inputs: Inputs | None = None,
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
    group_size: int | None = None,
    per_token: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor: ...
def quantize(  # type: ignore[misc]  # the second argument is a model's recipe, or a tensor's scale
    x: Any,
    recipe: Any = _RECIPE,
    zero_point: Any = 0,
    *,
    calibration: Iterable[Any] | None = None,
    example: Any = None,
    inputs: Inputs | None = None,
    inplace: bool = False,
    strict: bool = False,
    keep_float: Literal["slower", "never"] = "slower",
    fold_norms: bool = True,
    fit_products: Products | None = None,
    progress: bool = True,
    scale: Any = None,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    group_size: int | None = None,
    per_token: bool = False,
    dtype: torch.dtype | None = None,
) -> Any:
    """A copy of a model for inference with Linear, Conv1d, Conv2d and Embedding quantized; or the codes of a tensor.

    quantize(model, recipe="dynamic-int8", *, calibration=None, example=None, inputs=None, inplace=False, strict=False,
    keep_float="slower", fold_norms=True, fit_products=None, progress=True) gives a model:

    recipe: a preset's name, a Recipe, a mapping, or a YAML or JSON file. calibration: batches that static ranges are
    found in, in one pass; a DataLoader will do. example: one such batch; by default the first of calibration. With
    one, every layer is timed against its float self on what it gets, and stays float where that is faster
    (keep_float="never": swapped all the same). inputs: what of a batch the model takes: an index or a key, or a
    sequence of them. By default all of it, a mapping as keywords, a tuple or list as positional arguments; where the
    model takes one, the first: the rest of (x, y) are labels. inplace: the model itself is changed, instead of a copy;
    either is set to eval(). strict: InvalidProblem where something asked for could not be done. fold_norms: batch norms
    that certainly follow a convolution become part of it. fit_products: 2 or 4 for int8 weights with steps for which
    products fit 16 bits two by two, or four by four, which costs 1 to 3 dB, or 3 to 5, and gains much on CPUs without
    VNNI; 1 for weights as the recipe says. By default 4 where it gains.
    `report(model)` says what was done to each weight, or why not; a warning does where less than half was quantized.

    quantize(tensor, scale, zero_point=0, *, qmin=-128, qmax=127, axis=None, group_size=None, per_token=False,
    dtype=None) gives integer codes, one an element, in the narrowest type for [qmin, qmax] or in `dtype`. Granularity
    is that of `fake_quantize`. Not differentiable.

    >>> quantize(nn.Sequential(nn.Linear(64, 32)), "W8A8")
    Sequential(
      (0): QuantizedLinear(in=64, out=32, int8, activation_dtype='int8')
    )
    >>> quantize(torch.tensor([-9.0, 0.3, 1.0]), 0.5, qmin=-8, qmax=7)
    tensor([-8,  1,  2], dtype=torch.int8)
    """
    of_model = {
        "calibration": calibration, "example": example, "inputs": inputs, "inplace": inplace, "strict": strict,
        "keep_float": keep_float, "fold_norms": fold_norms, "fit_products": fit_products, "progress": progress,
    }  # fmt: skip
    of_tensor = {
        "zero_point": zero_point, "qmin": qmin, "qmax": qmax, "axis": axis, "group_size": group_size,
        "per_token": per_token, "dtype": dtype,
    }  # fmt: skip
    if isinstance(x, nn.Module):
        _refuse_given({"scale": scale, **of_tensor}, "a tensor", "a model")
        return quantize_model(x, recipe, **of_model)
    _refuse_given(of_model, "a model", "a tensor")
    if recipe is not _RECIPE:
        if scale is not None:
            raise InvalidProblem("scale: given twice; expected one")
        scale = recipe
    if scale is None:
        raise InvalidProblem("scale: missing; codes of a tensor need one")
    return ops.quantize(x, scale, **of_tensor)


def _refuse_given(options: dict[str, Any], of: str, given: str) -> None:
    """Raises where one of these options, which mean nothing here, is not as by default."""
    for name, value in options.items():
        default = _DEFAULTS[name]
        if value is not default and (type(value) is not type(default) or value != default):
            raise InvalidProblem(f"{name}: an option of {of}; quantize was given {given}")


_DEFAULTS = {name: p.default for name, p in inspect.signature(quantize).parameters.items()}
