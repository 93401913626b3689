"""How a weight is quantized: as which array, with scales along which axis."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.formats.onnx.weight_uses import WeightUse
from lowbit.models.recipe import WeightRecipe

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Unrolled:
    """How an array of any rank is a matrix with one row per output: its channel axes come first, in their order, and
    its other axes are flattened."""

    shape: tuple[int, ...]
    channel_axes: tuple[int, ...]

    @property
    def axes(self) -> tuple[int, ...]:
        """All axes, those of the channels first."""
        return self.channel_axes + tuple(i for i in range(len(self.shape)) if i not in self.channel_axes)

    @property
    def moved(self) -> tuple[int, ...]:
        """The shape after the channel axes were moved to the front."""
        return tuple(self.shape[i] for i in self.axes)

    @property
    def back(self) -> tuple[int, ...]:
        """The permutation of the moved shape into the original one."""
        return tuple(self.axes.index(i) for i in range(len(self.shape)))

    def rows(self, array: Array) -> Array:
        """The matrix of an array of this shape."""
        count = math.prod(self.shape[i] for i in self.channel_axes)
        return np.ascontiguousarray(array.transpose(self.axes)).reshape(count, -1)


@dataclass(frozen=True)
class Arrangement:
    """What `quantize_weight` is given for a use of a weight."""

    recipe: WeightRecipe  # as it is done
    is_matrix: bool  # quantized as [outputs, inputs]; else, unless unrolled, as the node reads it
    unrolled: Unrolled | None
    axis: int  # of the outputs, in the array that is quantized
    layout: Any  # in comparison with the stored constant
    is_turned: bool  # the node reads the matrix transposed
    note: str = ""

    @property
    def is_rows(self) -> bool:
        """Whether it has one row per output, of the inputs that are multiplied with that."""
        return self.axis == 0

    def array(self, value: Array) -> Array:
        """The array that is quantized, float32, of the value that the node reads."""
        wide = value.astype(np.float32, copy=False)
        if self.unrolled is not None:
            return self.unrolled.rows(wide)
        return np.ascontiguousarray(wide.T) if self.is_turned else wide


def arrangement(use: WeightUse, recipe: WeightRecipe, folded: bool) -> Arrangement:
    """How a use of a weight is quantized by a recipe. folded: codes are multiplied with scales as the model is loaded.

    Groups are along the inputs of each output; no operator takes those of convolutions and stacks of matrices, which
    get one scale per channel, and a note, unless they are folded.
    """
    is_matrix, note = is_a_matrix(use), ""
    in_groups = recipe.granularity == "group" and not is_matrix
    by_rows = use.kind == "recurrent" or (in_groups and folded)
    if in_groups and not by_rows:
        recipe = dataclasses.replace(recipe, group_size=None, granularity="channel")
        note = "groups are for matrices; one scale per channel"
    unrolled = Unrolled(use.shape, use.channel_axes) if by_rows else None
    axis = 0 if by_rows or is_matrix else use.channel_axis
    is_turned = is_matrix and use.channel_axis == 1
    return Arrangement(recipe, is_matrix, unrolled, axis, layout_of(use), is_turned, note)


def is_a_matrix(use: WeightUse) -> bool:
    return len(use.shape) == 2 and use.kind != "conv"


def layout_of(use: WeightUse) -> Any:
    """How codes lie in comparison with the stored constant: for a matrix, 1 where they are turned."""
    turns = tuple(tuple(a.ints) for s in use.steps if s.op_type == "Transpose" for a in s.attribute)
    is_turned = (sum(s.op_type == "Transpose" for s in use.steps) + use.channel_axis) % 2
    return is_turned if is_a_matrix(use) else (turns, use.channel_axes)
