"""Quantizing one weight by a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.algorithms.adaround import solve as solve_adaround
from lowbit.algorithms.bias_correction import covariance
from lowbit.algorithms.gptq import Factor, factored
from lowbit.algorithms.gptq import solve as solve_gptq
from lowbit.algorithms.grid import Grid, matrix
from lowbit.algorithms.hqq import solve as solve_hqq
from lowbit.algorithms.rounding import best_scales, held, nearest
from lowbit.calibration import Moments
from lowbit.models.recipe import WeightRecipe
from lowbit.models.report import Histogram
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.metrics import sqnr_db
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import quantize
from lowbit.runtime import arrays as cpu
from lowbit.runtime.solve import product_in_order

_BINS = 64
_LEAST_GROUP = 16  # of the groups that replace those that do not divide a layer's inputs
_NEEDS = {
    "weighted": "second moments", "awq": "second moments", "gptq": "a Gram matrix", "adaround": "a Gram matrix"
}  # fmt: skip


class LayerInputs:
    """Statistics of the rows that a layer multiplies. Layers that share their inputs share one, and its factors.

    The moments are let go of once their Gram matrices are factored. centered: the layer's bias will be corrected by
    `bias_correction` with `means`, so that errors count by the covariance of the inputs, and not by E[x x^T].
    """

    means: npt.NDArray[Any] | None = None  # E[x] of each input, [groups, width], where centered

    def __init__(self, moments: Moments, *, centered: bool = False) -> None:
        self._moments: Moments | None = moments
        if centered:
            self.means = moments.mean().reshape(moments.groups, moments.width)
        self.groups, self.width, self.has_gram = moments.groups, moments.width, moments.has_gram
        self.count = moments.count

    @cached_property
    def diagonals(self) -> npt.NDArray[Any]:
        """E[x^2] of each input, or its variance where centered, [groups, width]."""
        if self._moments is None:
            return np.stack([f.diagonal - f.added for f in self.factors])
        squares = self._moments.diagonal().reshape(self.groups, self.width)
        return squares if self.means is None else np.maximum(squares - np.square(self.means), 0.0)

    @cached_property
    def factors(self) -> tuple[Factor, ...]:
        """The factor of E[x x^T], or of the covariance where centered, of each group, for GPTQ."""
        assert self._moments is not None
        gram, self._moments = self._moments.gram().reshape(-1, self.width, self.width), None
        gram = gram if self.means is None else covariance(gram, self.means)
        return tuple(factored(each, self.width, overwrite=True) for each in gram)

    def divided(self, scale: npt.NDArray[np.float32]) -> LayerInputs:
        """Statistics of the inputs, each divided by a scale: their mean squares."""
        made = LayerInputs.__new__(LayerInputs)
        made.groups, made.width, made.has_gram, made.count, made._moments = (
            self.groups,
            self.width,
            False,
            self.count,
            None,
        )
        made.diagonals = self.diagonals / np.square(scale, dtype=np.float64)
        return made

    def energies(self, *matrices: npt.NDArray[np.float32]) -> tuple[float, ...]:
        """The mean square of what each of these matrices [outputs, inputs] makes of the inputs, summed over outputs."""
        return tuple(sum(map(self._energy, range(self.groups), np.split(m, self.groups))) for m in matrices)

    def mean_energy(self, w: npt.NDArray[np.float32]) -> float:
        """What the means of the inputs add to the energy of a weight where centered: that of the outputs' means."""
        if self.means is None:
            return 0.0
        by_group = w.astype(np.float64).reshape(self.groups, -1, self.width)
        return float(np.square((by_group * self.means[:, None]).sum(-1)).sum())

    def _energy(self, group: int, rows: npt.NDArray[np.float32]) -> float:
        """The sum of w^T H w over rows."""
        if not self.has_gram:
            return float((np.square(rows, dtype=np.float64) @ self.diagonals[group]).sum())
        factor = self.factors[group]
        product = product_in_order(rows, np.ascontiguousarray(factor.hessian, np.float32)).astype(np.float64)
        damping = factor.added * float(np.square(rows, dtype=np.float64).sum())
        return float((product * rows).sum()) - damping


def method_for(recipe: WeightRecipe, inputs: LayerInputs | None = None, *, name: str = "weight") -> str:
    """The method that quantizes a weight: the recipe's, or for "auto" the best for the statistics of its inputs.

    That is "gptq" with a Gram matrix, "weighted" with mean squares, and "mse" without data; of 8 bits, where rounding
    costs little, and with one scale for all, "rtn".

    >>> method_for(WeightRecipe("int4")), method_for(WeightRecipe("int8"))
    ('mse', 'rtn')
    """
    if recipe.method == "auto":
        if recipe.dtype in ("int8", "uint8") or recipe.granularity == "tensor":
            return "rtn"
        if inputs is None:
            return "mse"
        return "gptq" if inputs.has_gram else "weighted"
    needs = _NEEDS.get(recipe.method)
    if needs is not None and (inputs is None or (needs == "a Gram matrix" and not inputs.has_gram)):
        raise InvalidProblem(f"{name}: {recipe.method} needs {needs} of its inputs, and there are none; give data")
    if recipe.granularity == "tensor" and recipe.method not in ("rtn", "mse"):
        raise InvalidProblem(
            f"{name}: {recipe.method} chooses scales per channel or group; one for all takes rtn or mse"
        )
    return recipe.method


def needs_of(recipe: WeightRecipe) -> str:
    """What the method uses of a layer's inputs where it is known: "gram", "diagonal" (mean squares), or nothing.

    >>> needs_of(WeightRecipe("int4")), needs_of(WeightRecipe("int4", method="awq")), needs_of(WeightRecipe("int8"))
    ('gram', 'diagonal', '')
    """
    if recipe.method == "auto":
        return "" if recipe.dtype in ("int8", "uint8") or recipe.granularity == "tensor" else "gram"
    return {"weighted": "diagonal", "awq": "diagonal", "gptq": "gram", "adaround": "gram"}.get(recipe.method, "")


def quantize_weight(
    weight: npt.NDArray[Any],
    recipe: WeightRecipe,
    *,
    axis: int = 0,
    name: str = "weight",
    inputs: LayerInputs | None = None,
    scale_dtype: str = "float32",
    either_sign: bool = True,
) -> QuantizedTensor:
    """The weight quantized by this recipe, with scales along `axis` (the output channels), or groups on the last axis.

    Groups need a matrix [outputs, inputs]. inputs: statistics of the rows that the weight multiplies, in the order
    of its elements per output channel. scale_dtype: the type in which the scales are stored: those chosen are numbers
    of it. either_sign: symmetric scales may be negative, which gains 0.5 dB and takes zero points of 0 and -1. Weights
    with NaN or Inf raise InvalidProblem with name and index.

    >>> w = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)
    >>> q = quantize_weight(w, WeightRecipe("int4", group_size=32))
    >>> q.params.scale.shape
    (4, 2)
    """
    if recipe.granularity == "group" and weight.ndim != 2:
        raise InvalidProblem(f"{name}: shape {weight.shape}; groups need a matrix")
    method = method_for(recipe, inputs, name=name)
    try:
        if method == "rtn":
            return _rounded(weight, recipe, axis, name, scale_dtype)
        grid = Grid.of(recipe.dtype, recipe.scheme, recipe.group_size, scale_dtype, full_range=_uses_all(recipe))
        grid = replace(grid, either_sign=either_sign)
        if recipe.granularity == "tensor":
            q = _solved(matrix(weight.reshape(1, -1), name), method, grid, inputs)
            whole = q.params.replace(axis=None, scale=q.params.scale[0], zero_point=q.params.zero_point[0])
            return QuantizedTensor.from_codes(q.unpack().reshape(weight.shape), whole)
        return _by_rows(weight, axis, lambda rows: _solved(matrix(rows, name), method, grid, inputs))
    except InvalidProblem:
        refuse_nonfinite(weight, name)  # only after an error: the search costs as much as quantizing
        raise


def predicted_db(weight: npt.NDArray[Any], q: QuantizedTensor, inputs: LayerInputs) -> float:
    """The SQNR of the layer's outputs that the moments of its inputs predict, in dB: of tr(W H W^T) to tr(E H E^T).

    weight: [outputs, inputs], as q is. Where the inputs are centered, those of the layer with its bias corrected.
    """
    w = np.ascontiguousarray(weight.reshape(len(weight), -1), np.float32)
    signal, noise = inputs.energies(w, w - np.asarray(q.dequantize(), np.float32).reshape(w.shape))
    return sqnr_db(signal + inputs.mean_energy(w), noise)


def fitted(weights: WeightRecipe, inputs: int) -> tuple[WeightRecipe, str]:
    """The recipe with groups that divide the inputs, and a note where these are not the groups it asks for.

    Of the divisors from 16 to the group size asked for, the largest multiple of 8 is taken, else the largest. Where
    there is none, a row has one scale.

    >>> fitted(WeightRecipe("int4", group_size=128), 576)[1]
    'groups of 96: 128 does not divide 576 inputs'
    """
    asked = weights.group_size
    if asked is None or inputs % asked == 0:
        return weights, ""
    dividing = [size for size in range(min(asked, inputs), _LEAST_GROUP - 1, -1) if inputs % size == 0]
    if not dividing:
        note = f"per channel: no group of {_LEAST_GROUP} to {asked} divides {inputs} inputs"
        return replace(weights, group_size=None, granularity="channel"), note
    size = next((size for size in dividing if size % 8 == 0), dividing[0])
    return replace(weights, group_size=size), f"groups of {size}: {asked} does not divide {inputs} inputs"


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


def _uses_all(recipe: WeightRecipe) -> bool:
    """Whether symmetric codes go down to the least: of 16 codes the sixteenth counts, 0.3 dB in groups of 32 and 1 dB
    in longer ones; of 256 it does not, and -128 would cost integer kernels."""
    return recipe.dtype in ("int4", "int2")


def _rounded(weight: npt.NDArray[Any], recipe: WeightRecipe, axis: int, name: str, scale_dtype: str) -> QuantizedTensor:
    """Rounded to nearest on scales of the range."""
    options: dict[str, Any] = {"scheme": recipe.scheme, "full_range": recipe.dtype == "int4"}
    if recipe.granularity == "group":
        options |= {"axis": 1, "group_size": recipe.group_size}
    elif recipe.granularity == "channel":
        options["axis"] = axis
    q = quantize(weight, recipe.dtype, name=name, **options)
    if scale_dtype == "float32":
        return q
    p = q.params
    wanted, scale = p.scale.astype(np.float64), held(p.scale, scale_dtype)
    if scale_dtype == "float16":  # among its smallest numbers the nearest may clip by more than half a step
        steps = p.qmax - p.qmin if p.zero_point.any() else p.qmax
        short = scale * (steps + 0.5) < wanted * steps
        scale = np.where(short, np.nextafter(scale.astype(np.float16), np.float16(np.inf)).astype(np.float32), scale)
    return quantize(weight, params=p.replace(scale=scale))


def _by_rows(
    weight: npt.NDArray[Any], axis: int, solve: Callable[[npt.NDArray[Any]], QuantizedTensor]
) -> QuantizedTensor:
    """A weight whose output channels are along `axis`, solved as a matrix [outputs, inputs]."""
    if weight.ndim == 2 and axis == 0:
        return solve(weight)
    turned = np.moveaxis(weight, axis, 0)
    q = solve(np.ascontiguousarray(turned.reshape(len(turned), -1)))
    codes = np.moveaxis(q.unpack().reshape(turned.shape), 0, axis)
    return QuantizedTensor.from_codes(np.ascontiguousarray(codes), q.params.replace(axis=axis))


def _solved(w: npt.NDArray[Any], method: str, grid: Grid, inputs: LayerInputs | None) -> QuantizedTensor:
    if method == "mse":
        return nearest(w, grid, best_scales(w, grid))
    if method == "hqq":
        return solve_hqq(w, grid)
    if method == "awq":
        raise InvalidProblem(
            "method: awq folds scales into the layer before, which it does in checkpoints of decoders only"
        )
    assert inputs is not None
    groups, width = inputs.groups, inputs.width
    if w.shape[1] != width or len(w) % groups:
        raise InvalidProblem(
            f"inputs: moments of {groups} × {width} inputs; the weight has {len(w)} outputs of {w.shape[1]} inputs"
        )
    parts = [_solved_group(rows, method, grid, inputs, g) for g, rows in enumerate(np.split(w, groups))]
    return parts[0] if groups == 1 else _stacked(parts)


def _solved_group(w: npt.NDArray[Any], method: str, grid: Grid, inputs: LayerInputs, group: int) -> QuantizedTensor:
    if method == "gptq":
        return solve_gptq(w, grid, inputs.factors[group])
    if method == "adaround":
        return solve_adaround(w, grid, inputs.factors[group])
    if method == "weighted":
        return nearest(w, grid, best_scales(w, grid, inputs.diagonals[group]))
    raise InvalidProblem(f"method: {method}; expected rtn, mse, hqq, weighted, gptq or adaround")


def _stacked(parts: Sequence[QuantizedTensor]) -> QuantizedTensor:
    """Tensors of the same grid, one above the other."""
    params = [q.params for q in parts]
    scale, zero = (np.concatenate([getattr(p, field) for p in params]) for field in ("scale", "zero_point"))
    scheme = "asymmetric" if any(p.scheme != params[0].scheme for p in params) else params[0].scheme
    whole = params[0].replace(scheme=scheme, scale=scale, zero_point=zero)
    return QuantizedTensor.from_codes(np.concatenate([q.unpack() for q in parts]), whole)
