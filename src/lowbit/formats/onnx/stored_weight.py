"""The constants and nodes that a quantized weight is stored as in a graph.

A symmetric grid of 4 bits reaches one step further below zero than above, and the best scales have either sign. Those
that `quantize_weight` gives as s with zero point -1 are stored as -s without one: (q + 1) * s = (-q - 1) * -s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, helper

from lowbit.formats.onnx.arrangement import Unrolled
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.solved import Solved
from lowbit.formats.onnx.weight_uses import WeightUse
from lowbit.models.recipe import WeightRecipe
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor

Array = npt.NDArray[Any]

_STACK = ("codes", "stacked")
# Types of ONNX that NumPy lacks.
_NARROW = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}


def narrow(codes: Array, dtype: str) -> Array:
    """Codes in the type that ONNX stores."""
    return codes.astype(_NARROW[dtype]) if dtype in _NARROW else codes


@dataclass
class StoredWeight:
    """A weight's codes, and the names of the constants that hold them."""

    graph: Graph
    name: str
    recipe: WeightRecipe  # as it was done
    q: QuantizedTensor  # matrices with one row per output; others so too with `unrolled`, else as their node reads them
    element: Any  # the float type of the model
    is_matrix: bool
    home: GraphProto  # of its readers: ONNX Runtime does not load bodies that read codes from outside
    layout: Any = None  # in comparison with the stored constant; None: the values differ from it
    unrolled: Unrolled | None = None
    steps: Array | None = None  # distinct scales, where scales are stored as one byte each
    half: bool = False  # scales are stored as float16 and cast
    note: str = ""
    guard_db: float = 0.0  # decibels, for scales with which no accumulator saturates
    solved: Solved | None = None  # how the codes were found
    bytes: int = 0
    _names: dict[Any, str] = field(default_factory=dict)

    @property
    def signed(self) -> bool:
        return self.q.params.dtype.is_signed

    @property
    def bits(self) -> int:
        return int(self.recipe.dtype.lstrip("uint"))

    @cached_property
    def negative(self) -> Array:
        """Which scales of a symmetric grid are stored as negative numbers, in their shape."""
        zero = np.asarray(self.q.params.zero_point)
        is_disguised = self.recipe.scheme == "symmetric" and bool(np.isin(zero, (-1, 0)).all())
        return np.broadcast_to(zero == -1 if is_disguised else np.False_, np.shape(self.q.params.scale))

    @property
    def code_array(self) -> Array:
        """The codes as they are stored, in the shape of `q`."""
        codes = self.q.unpack()
        return np.where(_spread(self.negative, self.q.params, codes.shape), ~codes, codes)  # -1 - q

    @property
    def scale_array(self) -> Array:
        """The scales as they are stored, in the model's float type or in float16, which is cast to it."""
        scale = np.asarray(self.q.params.scale, np.float16 if self.half else self.element)
        return np.where(self.negative, -scale, scale)

    @property
    def zero_point_array(self) -> Array:
        """The zero points as they are stored, in the shape of the scales."""
        zero = np.broadcast_to(np.asarray(self.q.params.zero_point), np.shape(self.q.params.scale))
        return np.where(self.negative, 0, zero)

    @property
    def has_zero_point(self) -> bool:
        return not self.signed or bool(self.zero_point_array.any())

    @property
    def method_fields(self) -> dict[str, Any]:
        """How the codes were found, as fields of a WeightRow; those on other scales were rounded to nearest."""
        if self.solved is None:
            return {}
        found, is_own = self.solved, self.q is self.solved.q
        rows = self.q.params.scale == found.q.params.scale
        method = found.method if is_own or bool(np.any(rows)) else "rtn"
        return {"method": method, "predicted_db": found.predicted_db if is_own else None, "seconds": found.seconds}

    def arranged(self, use: WeightUse, value: Array) -> Array:
        """The value that a node reads, in the shape of the codes."""
        if self.unrolled is not None:
            return self.unrolled.rows(value)
        return value.T if self.is_matrix and use.channel_axis == 1 else value

    def constant(self, label: str, array: Array, key: Any = None) -> str:
        """Store an array under the weight's name and a label, once; returns its name."""
        key = label if key is None else key
        if key not in self._names:
            self._names[key] = self.graph.add_constant(f"{self.name}_{label}", array, self.home)
            self.bytes += array.nbytes if array.dtype not in _NARROW.values() else -(-array.size // 2)
        return self._names[key]

    def codes(self, by_columns: bool = False) -> str:
        """The name of the codes, with one row or one column per output. Of 8-bit codes the second is a Transpose of the
        first, which the runtime computes once as it loads the model."""
        key, other = ("codes", by_columns), ("codes", not by_columns)
        if key in self._names:
            return self._names[key]
        if _STACK in self._names:
            self._names[key] = self._rows_of_stack()
            return self._names[key]
        if other in self._names and self.bits == 8:
            made = self.graph.fresh(f"{self.name}_codes_turned")
            turn = helper.make_node("Transpose", [self._names[other]], [made], name=made)
            self.graph.insert_first([turn], self.home)
            self._names[key] = made
            return made
        codes = self.code_array
        turned = np.ascontiguousarray(codes.T) if by_columns else codes
        return self.constant("codes", narrow(turned, self.recipe.dtype), key)

    def stacked_codes(self) -> str:
        """The name of the codes of a recurrent weight as [directions, inputs, rows of gates], int8."""
        assert self.unrolled is not None
        return self.constant("codes", self.code_array.reshape(self.unrolled.shape).swapaxes(1, 2), _STACK)

    def _rows_of_stack(self) -> str:
        made = self.graph.fresh(f"{self.name}_codes_rows")
        turned = self.graph.fresh(f"{self.name}_codes_turned")
        turn = helper.make_node("Transpose", [self._names[_STACK]], [turned], name=turned, perm=[0, 2, 1])
        rows = helper.make_node("Reshape", [turned, self._integers(*self.q.shape)], [made], name=made)
        self.graph.insert_first([turn, rows], self.home)
        return made

    def as_float(self, by_columns: bool = False) -> str:
        """The name of the weight as floats, (codes - zero point) * scale. The runtime computes it once as it loads the
        model, so that its readers run as fast as with a float constant. by_columns: a matrix with a column per output.
        """
        key = ("float", by_columns)
        if key not in self._names:
            self._names[key] = self._turned_float() if by_columns else self._decoded()
        return self._names[key]

    def _turned_float(self) -> str:
        rows = self.as_float()
        made = self.graph.fresh(f"{self.name}_turned")
        turn = helper.make_node("Transpose", [rows], [made], name=made, perm=[1, 0])
        before = self.graph.producer(rows)
        assert before is not None
        self.graph.insert_after(before, [turn])
        return made

    def _decoded(self) -> str:
        """The nodes that turn codes into floats; returns the name of what they give."""
        steps: list[NodeProto] = []

        def step(op: str, *inputs: str, **options: Any) -> str:
            made = self.graph.fresh(f"{self.name}_{op.lower()}")
            steps.append(helper.make_node(op, inputs, [made], name=made, **options))
            return made

        shape, size = self.q.shape, self.recipe.group_size
        if size is None:
            axis = self.q.params.axis
            codes = self.codes()
            scales = [] if axis is None else [n if i == axis else 1 for i, n in enumerate(shape)]
        else:
            rows, columns = shape
            size = min(size, columns)
            count = -(-columns // size)
            padded = np.pad(self.code_array, ((0, 0), (0, count * size - columns)))
            codes = self.constant("codes", narrow(padded.reshape(rows, count, size), self.recipe.dtype), "in groups")
            scales = [rows, count, 1]
        to = helper.np_dtype_to_tensor_dtype(np.dtype(self.element))
        value = step("Cast", codes, to=to)
        if self.has_zero_point:
            zero = narrow(self.zero_point_array.astype(self.q.params.dtype.code_dtype), self.recipe.dtype)
            stored = self.constant("zero_point", zero.reshape(scales), ("zero", "decoded"))
            value = step("Sub", value, step("Cast", stored, to=to))
        scale = self.constant("scale", self.scale_array.reshape(scales), ("scale", "decoded"))
        value = step("Mul", value, step("Cast", scale, to=to) if self.half else scale)
        if size is not None and (count * size != columns or self.unrolled is None):
            value = step("Reshape", value, self._integers(rows, count * size))
        if size is not None and count * size != columns:
            value = step("Slice", value, self._integers(0), self._integers(columns), self._integers(1))
        for op, inputs, options in self.rolled_up():
            value = step(op, value, *inputs, **options)
        before = self.graph.producer(codes)
        if before is None:
            self.graph.insert_first(steps, self.home)
        else:
            self.graph.insert_after(before, steps)
        return value

    def rolled_up(self) -> list[tuple[str, list[str], dict[str, Any]]]:
        """(operator, other inputs, attributes) of the nodes that make an unrolled matrix what its node reads."""
        if self.unrolled is None:
            return []
        steps: list[tuple[str, list[str], dict[str, Any]]]
        steps = [("Reshape", [self._integers(*self.unrolled.moved)], {})]
        if self.unrolled.back != tuple(range(len(self.unrolled.shape))):
            steps.append(("Transpose", [], {"perm": self.unrolled.back}))
        return steps

    def _integers(self, *values: int) -> str:
        return self.constant("integers", np.array(values, np.int64), ("integers", values))

    def scale(self, shape: str = "") -> str:
        """The name of the scales, in the model's float type; shape: "turned" or "column" for a matrix."""
        return self.cast_scale("scale", _shaped(self.scale_array, shape), ("scale", shape))

    def cast_scale(self, label: str, scale: Array, key: Any = None) -> str:
        """The name of scales in the model's float type, which the runtime computes as it loads the model."""
        stored = self.constant(label, scale, key)
        if scale.dtype == self.element:
            return stored
        key = ("cast", stored)
        if key not in self._names:
            self._names[key] = self.graph.fresh(f"{stored}_cast")
            to = helper.np_dtype_to_tensor_dtype(np.dtype(self.element))
            cast = helper.make_node("Cast", [stored], [self._names[key]], name=self._names[key], to=to)
            self.graph.insert_first([cast], self.home)
        return self._names[key]

    def scale_steps(self) -> tuple[str, str]:
        """The names of (index into the steps per row, steps), where `steps` is set."""
        assert self.steps is not None
        which = np.searchsorted(self.steps, np.asarray(self.q.params.scale)).astype(np.uint8).reshape(-1, 1)
        return self.constant("scale_step", which), self.constant("steps", self.steps.astype(self.element))

    def zero_point(self, shape: str = "") -> str:
        """The name of the zero points, in the type of the codes."""
        zero = _shaped(self.zero_point_array.astype(self.q.params.dtype.code_dtype), shape)
        return self.constant("zero_point", narrow(zero, self.recipe.dtype), ("zero", shape))


def _spread(array: Array, params: QuantizationParams, shape: tuple[int, ...]) -> Array:
    """What there is one of per scale, in a shape that goes with the codes'."""
    if params.group_size is not None:
        return np.repeat(array, params.group_size, axis=-1)[..., : shape[-1]]
    return array if params.axis is None else np.expand_dims(array, [i for i in range(len(shape)) if i != params.axis])


def _shaped(array: Array, shape: str) -> Array:
    if shape == "turned":
        return np.ascontiguousarray(array.T)
    return array.reshape(-1, 1) if shape == "column" else array
