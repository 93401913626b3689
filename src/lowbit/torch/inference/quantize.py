"""`quantize`: a model for inference, or the codes of a tensor."""

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
from lowbit.torch.inference.quantize_model import RecipeLike, quantize_model
from torch import Tensor, nn

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
    """Quantize a model for inference (Linear, Conv1d, Conv2d, Embedding), or a tensor to integer codes.

    quantize(model, recipe="dynamic-int8", *, calibration=None, example=None, inputs=None, inplace=False, strict=False,
    keep_float="slower", fold_norms=True, fit_products=None, progress=True) gives a copy of the model in eval() mode.

    recipe: a preset's name, a Recipe, a mapping, or a YAML or JSON file. calibration: batches that static ranges are
    found in, in one pass, such as a DataLoader. example: one such batch; by default the first of calibration. With an
    example, every layer is timed against its float self, and stays float where that is faster (keep_float="never"
    replaces it all the same). inputs: which elements of a batch are the model's arguments: an index, a key, or a
    sequence of either; by default all of a mapping as keywords, all of a tuple or list as positional arguments, and
    only the first element where the model takes one argument. inplace: change the model itself. strict:
    InvalidProblem where a weight asked for was not quantized. fold_norms: fold batch norms that certainly follow a
    convolution into it. fit_products: 2 or 4 scales int8 weights so that sums of that many products fit 16 bits; this
    costs 1 to 3 dB, or 3 to 5, and makes CPUs without VNNI faster; 1 follows the recipe. The default is 4 where it is
    faster. `report(model)` gives what was done to each weight; a warning says so where less than half was quantized.

    quantize(tensor, scale, zero_point=0, *, qmin=-128, qmax=127, axis=None, group_size=None, per_token=False,
    dtype=None) gives integer codes, one per element, in the narrowest type for [qmin, qmax] or in `dtype`. Granularity
    is that of `fake_quantize`. Not differentiable.

    >>> quantize(nn.Sequential(nn.Linear(64, 32)), "W8A8")
    Sequential(
      (0): QuantizedLinear(in=64, out=32, int8, activation_dtype='int8')
    )
    >>> quantize(torch.tensor([-9.0, 0.3, 1.0]), 0.5, qmin=-8, qmax=7)
    tensor([-8,  1,  2], dtype=torch.int8)
    """
    options = {name: value for name, value in locals().items() if name not in ("x", "recipe")}
    return _dispatched(x, recipe, options)


def _dispatched(x: Any, recipe: Any, options: dict[str, Any]) -> Any:
    of_model = {name: value for name, value in options.items() if name in _MODEL_OPTIONS}
    of_tensor = {name: value for name, value in options.items() if name not in _MODEL_OPTIONS}
    if isinstance(x, nn.Module):
        _refuse_given(of_tensor, "a tensor", "a model")
        return quantize_model(x, recipe, **of_model)
    _refuse_given(of_model, "a model", "a tensor")
    scale = of_tensor.pop("scale")
    if recipe is not _RECIPE:
        if scale is not None:
            raise InvalidProblem("scale: given twice; expected one")
        scale = recipe
    if scale is None:
        raise InvalidProblem("scale: missing; codes of a tensor need one")
    return ops.quantize(x, scale, **of_tensor)


def _refuse_given(options: dict[str, Any], of: str, given: str) -> None:
    """Raise where one of these options, which have no effect on what was given, differs from its default."""
    for name, value in options.items():
        default = _DEFAULTS[name]
        if value is not default and (type(value) is not type(default) or value != default):
            raise InvalidProblem(f"{name}: an option of {of}; quantize was given {given}")


_DEFAULTS = {name: p.default for name, p in inspect.signature(quantize).parameters.items()}
_MODEL_OPTIONS = frozenset(inspect.signature(quantize_model).parameters) - {"model", "recipe"}
