"""Weights of a graph quantized by their methods, each once, however often the graph is rewritten.

Moments of what weights are multiplied with are observed in parts that fit into memory. Each weight is quantized as the
part with its moments is there; what is kept is codes, not moments or floats.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.calibration.calibrator import tracked
from lowbit.calibration.moments import Moments
from lowbit.formats.onnx.arrangement import Arrangement, layout_of
from lowbit.formats.onnx.batches import read_once
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.moments import MAX_BYTES, POSITIONS, few_rows, in_passes, inputs_of, observed_layouts
from lowbit.formats.onnx.weight_uses import WeightUse, weights
from lowbit.formats.statistics import Statistics
from lowbit.models.recipe import WeightRecipe
from lowbit.models.weights import LayerInputs, method_for, needs_of, predicted_db, quantize_weight, refuse_nonfinite
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.tensor import QuantizedTensor

Array = npt.NDArray[Any]

_LEAST_SCALES = 256  # that are stored as float16: the node that casts them takes about 100 bytes
_HALF_RANGE = 2.0**-12, 2.0**16  # of the largest weight of a row, for float16 scales of full precision


@dataclass(frozen=True)
class Solved:
    """A quantized weight, and how its codes were found."""

    q: QuantizedTensor
    method: str
    half: bool = False  # its scales are numbers of float16
    predicted_db: float | None = None
    seconds: float = 0.0
    note: str = ""


class SolvedWeights:
    """Quantizes the weights of one model, with moments of their inputs by the weights' names where there are some."""

    def __init__(self, stats: Mapping[str, Moments] | None = None, max_bytes: float = MAX_BYTES) -> None:
        self._stats: Mapping[str, Moments] = {} if stats is None else stats
        self._max_bytes = max_bytes
        self._layouts: dict[str, Any] = {}  # of the uses that moments are for, by name
        # Of the weight before, and often of this one, too.
        self._inputs: tuple[weakref.ref[Moments], LayerInputs] | None = None
        self._found: dict[Any, Solved] = {}

    def prepare(
        self,
        graph: Graph,
        wanted: Sequence[tuple[WeightUse, Arrangement]],
        data: Iterable[Any] | None,
        progress: bool,
        passes: int = 0,
    ) -> list[str]:
        """Observe what weights are multiplied with, and quantize those whose methods use it; returns notes on the data.

        wanted: every use that is to be quantized. passes: how often the data will be read for something else.
        """
        needing = [(use, how) for use, how in wanted if needs_of(how.recipe)]
        uses = weights(graph)
        self._layouts = observed_layouts(graph, uses)
        if self._stats:
            names = {use.name for use in uses}
            unknown = next((name for name in self._stats if name not in names), None)
            if unknown is not None:
                raise InvalidProblem(f"stats: {unknown!r} is no weight of the model; expected those of observe_moments")
            if isinstance(self._stats, Statistics):
                return self._stats.notes()
            return few_rows({use.name: self._stats[use.name] for use, _ in needing if use.name in self._stats})
        asked = {use.name for use, _ in needing}
        inputs = inputs_of(graph, [use for use in uses if use.name in asked], POSITIONS)
        if data is None or not inputs:
            return []
        if passes and read_once(data):
            raise InvalidProblem(
                "data: an iterator, which is read once; ranges of activations and statistics of the inputs of weights "
                f"({needing[0][0].name}, ...) take a pass each; give a list or files, or weights with method: mse"
            )
        grams = {use.name for use, how in needing if needs_of(how.recipe) == "gram"}
        notes: list[str] = []
        for part in in_passes(graph, data, inputs, grams, self._max_bytes, progress):
            notes += few_rows(part)
            self._stats = part
            here = [(use, how) for use, how in needing if use.name in part]
            here.sort(key=lambda pair: min(i for i, name in enumerate(part) if part[name] is part[pair[0].name]))
            for use, how in tracked(here, "Solving", progress):
                self.of(graph, use, how)
            self._stats, self._inputs = {}, None
        return notes

    def of(self, graph: Graph, use: WeightUse, how: Arrangement) -> Solved:
        """The weight quantized, with the best statistics of its inputs."""
        key = use.name, use.dtype, how.recipe, how.layout, how.unrolled is not None
        if key in self._found:
            return self._found[key]
        value = np.asarray(use.value(graph))
        refuse_nonfinite(value, use.name)  # before any transposition, so that the index is the model's
        found = self._solve(use, how, how.array(value))
        if found.method != "rtn":  # which takes less time than its codes take memory
            self._found[key] = found
        return found

    def _solve(self, use: WeightUse, how: Arrangement, wide: Array) -> Solved:
        recipe, note, begun = how.recipe, "", time.perf_counter()
        inputs = self._inputs_of(use, how)
        if inputs is None and needs_of(recipe):
            note = "" if recipe.method == "auto" else f"no statistics for {recipe.method}: {_why_none(use)}"
            recipe = replace(recipe, method="auto")
        half = use.dtype == "float16" or takes_half(wide, recipe)
        options: dict[str, Any] = {"inputs": inputs, "scale_dtype": "float16" if half else "float32"}
        q = quantize_weight(wide, recipe, axis=how.axis, name=use.name, **options)
        spent = time.perf_counter() - begun
        predicted = None if inputs is None else predicted_db(wide, q, inputs)
        return Solved(q, method_for(recipe, inputs), half, predicted, spent, note)

    def _inputs_of(self, use: WeightUse, how: Arrangement) -> LayerInputs | None:
        """Statistics of the rows that this use multiplies, where its array has a row per output."""
        is_stack = use.kind == "linear" and len(use.shape) > 2
        if use.name not in self._stats or (is_stack and how.unrolled is None) or not how.is_rows:
            return None
        if self._layouts.get(use.name) != layout_of(use):
            return None
        moments = self._stats[use.name]
        if self._inputs is None or self._inputs[0]() is not moments:
            self._inputs = weakref.ref(moments), LayerInputs(moments)
        return self._inputs[1]


def takes_half(wide: Array, recipe: WeightRecipe) -> bool:
    """Whether scales are stored as float16: those of groups of at most 4 bits, where that pays."""
    size = recipe.group_size
    if size is None or recipe.dtype in ("int8", "uint8") or len(wide) * -(-wide.shape[1] // size) < _LEAST_SCALES:
        return False
    largest = np.abs(wide).max(1, initial=0)
    low, high = _HALF_RANGE
    return bool(((largest == 0) | ((largest >= low) & (largest <= high))).all())


def _why_none(use: WeightUse) -> str:
    """Why there are no statistics of what a weight is multiplied with."""
    why = {"embedding": "rows are looked up, not multiplied", "recurrent": "multiplied with the state of each step"}
    if use.kind in why:
        return why[use.kind]
    if use.kind == "linear" and len(use.shape) > 2:
        return "one scale for a column of each matrix of a stack"
    return f"none for {use.op}" if use.op == "ConvTranspose" else "no data reached it"
