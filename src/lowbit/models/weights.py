"""Quantizing one weight by a recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.models.recipe import WeightRecipe
from lowbit.models.report import Histogram
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import fake_quantize, quantize
from lowbit.runtime import arrays as cpu

_BINS = 64

# Fractions of the full range that the "mse" method tries.
_SHARES = tuple(np.linspace(1.0, 0.5, 26)[1:])


def quantize_weight(
    weight: npt.NDArray[Any], recipe: WeightRecipe, *, axis: int = 0, name: str = "weight"
) -> QuantizedTensor:
    """The weight quantized by this recipe, with scales along `axis` (the output channels), or groups on the last axis.

    Groups need a matrix [outputs, inputs]. int4 uses all codes, -8 to 7. Weights with NaN or Inf raise InvalidProblem
    with name and index.

    >>> w = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)
    >>> q = quantize_weight(w, WeightRecipe("int4", group_size=32))
    >>> q.params.scale.shape
    (4, 2)
    """
    # Of 16 codes the sixteenth counts: 0.3 dB in groups of 32, 1 dB in longer ones.
    options: dict[str, Any] = {"scheme": recipe.scheme, "full_range": recipe.dtype == "int4"}
    if recipe.granularity == "group":
        if weight.ndim != 2:
            raise InvalidProblem(f"{name}: shape {weight.shape}; groups need a matrix")
        options |= {"axis": 1, "group_size": recipe.group_size}
    elif recipe.granularity == "channel":
        options["axis"] = axis
    try:
        q = quantize(weight, recipe.dtype, name=name, **options)
    except InvalidProblem:
        refuse_nonfinite(weight, name)  # only after an error: the search costs as much as quantizing
        raise
    return q if recipe.method == "min_max" else _least_squares(weight, q)


def refuse_nonfinite(weight: npt.NDArray[Any], name: str, first_row: int = 0) -> None:
    """Raise InvalidProblem with name and index where a weight has NaN or Inf; `first_row` is that of a block."""
    found = cpu.first_nonfinite(cpu.as_float_array(weight, name))
    if found is not None:
        value, (row, *rest) = found
        raise InvalidProblem(f"{name}: {float(value)} at index {(first_row + row, *rest)}; weights must be finite")


def spread(name: str, weight: npt.NDArray[Any], p: QuantizationParams) -> Histogram:
    """A histogram of the weight in 64 bins, with the ends of the range of its codes."""
    counts, edges = np.histogram(np.asarray(weight, np.float32), _BINS)
    ends = [(code - np.asarray(p.zero_point, np.float64)) * p.scale for code in (p.qmin, p.qmax)]
    clip = (float(np.min(ends[0])), float(np.max(ends[1])))
    return Histogram(name, tuple(map(float, edges)), tuple(map(int, counts)), clip)


def _least_squares(weight: npt.NDArray[Any], widest: QuantizedTensor) -> QuantizedTensor:
    """The weight with each scale reduced to the fraction of the full range with the least squared error."""
    p = widest.params
    best = np.asarray(p.scale, np.float32).copy()
    least = _losses(weight, p, best)
    for share in _SHARES:
        scale = np.asarray(p.scale * share, np.float32)
        loss = _losses(weight, p, scale)
        better = loss < least
        best, least = np.where(better, scale, best), np.where(better, loss, least)
    return quantize(weight, params=p.replace(scale=best.astype(np.float32)))


def _losses(weight: npt.NDArray[Any], p: QuantizationParams, scale: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """The squared error of each scale's elements, in the shape of the scales."""
    y = fake_quantize(weight, scale, p.zero_point, qmin=p.qmin, qmax=p.qmax, axis=p.axis, group_size=p.group_size)
    lost = np.square(np.asarray(weight, np.float32) - np.asarray(y, np.float32))
    if p.axis is None:
        return np.asarray(lost.sum(dtype=np.float64))
    if p.group_size is None:
        others = tuple(i for i in range(weight.ndim) if i != p.axis % weight.ndim)
        return np.asarray(lost.sum(axis=others, dtype=np.float64))
    starts = np.arange(0, weight.shape[-1], p.group_size)
    return np.asarray(np.add.reduceat(lost, starts, axis=-1, dtype=np.float64))
