"""The settings that `benchmarks.accuracy` tries: a method, its bits, groups and scheme; and how layers are solved."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.minilm import Array
from lowbit.algorithms.awq import awq, input_scales
from lowbit.algorithms.gptq import factored
from lowbit.algorithms.gptq import solve as solve_gptq
from lowbit.algorithms.grid import Grid, matrix
from lowbit.algorithms.hqq import hqq
from lowbit.algorithms.rounding import mse, rtn, weighted
from lowbit.calibration import Moments
from lowbit.models.recipe import WeightRecipe
from lowbit.models.weights import LayerInputs, fitted
from lowbit.numerics.tensor import QuantizedTensor

SCALE_BITS = 16
_DATA_FREE: dict[str, Callable[..., QuantizedTensor]] = {"rtn": rtn, "mse": mse, "hqq": hqq}
FOLDED = "awq+gptq"  # gptq of weights whose inputs awq has scaled
_STATISTICS = {"weighted": "diagonal", "awq": "diagonal", "gptq": "gram", FOLDED: "gram"}
NEEDS = {**dict.fromkeys(_DATA_FREE, ""), **_STATISTICS}  # of the inputs of a layer
SEQUENTIAL = "sequential"  # gptq, with what the layers before did to the inputs; its moments are taken on the way
METHODS = (*NEEDS, SEQUENTIAL)
BITS, GROUPS, SCHEMES = (2, 3, 4, 8), (32, 64, 128), ("sym", "asym")
_DTYPES = {2: "int2", 3: "int4", 4: "int4", 8: "int8"}


@dataclass(frozen=True)
class Setting:
    """How all layers are quantized. group: inputs that share a scale, or 0 for one scale per output."""

    method: str
    bits: int
    group: int
    scheme: str  # of SCHEMES

    def __str__(self) -> str:
        return f"{self.method} {self.bits} bits {f'g{self.group}' if self.group else 'channel'} {self.scheme}"

    def grid(self, inputs: int) -> Grid:
        """That of a layer: where the group does not divide the inputs, with the groups that a recipe would take."""
        fits, _ = fitted(WeightRecipe(_DTYPES[self.bits], group_size=self.group or None), inputs)
        scheme = "symmetric" if self.scheme == "sym" else "asymmetric"
        return Grid.of(_DTYPES[self.bits], scheme, fits.group_size, "float16", self.bits)


def settings(
    methods: Sequence[str], bits: Sequence[int], groups: Sequence[int], schemes: Sequence[str] = SCHEMES
) -> list[Setting]:
    """All of them, those of few groups and bits last."""
    product = itertools.product(bits, groups, schemes, methods)
    return [Setting(method, b, group, scheme) for b, group, scheme, method in product]


def true_bits(w: Array, grid: Grid) -> float:
    """Of the codes, scales and zero points of a weight. A symmetric scale holds its sign, and has no zero point."""
    groups = len(w) * -(-w.shape[1] // grid.size(w.shape[1]))
    return float(w.size * grid.width + groups * (SCALE_BITS + (0 if grid.symmetric else grid.width)))


def solutions(
    floats: Mapping[str, Array], setting: Setting, moments: Mapping[str, Moments], tied: Mapping[str, Any]
) -> Iterator[tuple[str, Array]]:
    """Each layer's name and dequantized weight. Layers with the same inputs follow each other, so that one factor is in
    memory at a time. tied: see `_folded`."""
    sharing: dict[int, list[str]] = {}
    for name in floats:
        sharing.setdefault(id(moments[name]) if moments else id(floats[name]), []).append(name)
    for names in sharing.values():
        inputs = LayerInputs(moments[names[0]]) if moments else None
        weights = [floats[name] for name in names]
        if setting.method in ("awq", FOLDED):
            folded = _folded(weights, setting, moments[names[0]], tied.get(names[0], False))
            yield from zip(names, folded, strict=True)
            continue
        for name, w in zip(names, weights, strict=True):
            yield name, np.asarray(solved(w, setting, inputs).dequantize())


def solved(w: Array, setting: Setting, inputs: LayerInputs | None) -> QuantizedTensor:
    """The weight [outputs, inputs] of one layer, quantized."""
    grid = setting.grid(w.shape[1])
    if setting.method in _DATA_FREE:
        return _DATA_FREE[setting.method](w, **_options(grid))
    assert inputs is not None
    if setting.method == "gptq":
        return solve_gptq(matrix(w), grid, inputs.factors[0])  # shared by the layers of these inputs
    return weighted(w, inputs.diagonals[0], **_options(grid))


def _folded(weights: Sequence[Array], setting: Setting, moments: Moments, tied: Any) -> list[Array]:
    """Weights that share their inputs, by awq, as a model without the folded scales would have them.

    tied: inputs that have one scale, as integers; None: each has its own; False: the layer before can take none back.
    """
    grid, diagonal = setting.grid(weights[0].shape[1]), moments.diagonal()
    if setting.method == FOLDED:
        s = np.ones(weights[0].shape[1], np.float32)
        if tied is not False:
            s, *_ = input_scales(weights, diagonal, grid, tied=tied)
        factor = factored(moments.gram() / np.outer(s, s), len(s))
        return [np.asarray(solve_gptq(matrix(w) * s, grid, factor).dequantize()) / s for w in weights]
    if tied is False:
        return [np.asarray(weighted(w, diagonal, **_options(grid)).dequantize()) for w in weights]
    found = awq(weights, diagonal, tied=tied, **_options(grid))
    return [np.asarray(q.dequantize()) / found.scale for q in found.weights]


def _options(grid: Grid) -> dict[str, Any]:
    return {
        "dtype": grid.dtype, "scheme": grid.scheme, "group_size": grid.group_size, "bits": grid.bits,
        "scale_dtype": grid.scale_dtype,
    }  # fmt: skip
