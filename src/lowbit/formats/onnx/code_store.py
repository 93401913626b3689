"""Codes of weights as constants of a graph, stored once per weight and recipe."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from onnx import GraphProto, NodeProto, helper

from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.weight_uses import WeightUse
from lowbit.models.recipe import WeightRecipe
from lowbit.models.weights import quantize_weight, refuse_nonfinite
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import quantize
from lowbit.ops.fitting import unsaturated

Array = npt.NDArray[Any]

_STACK = ("codes", "stacked")
_STEPS = 256  # different scales of a table whose scales are stored as one byte each
# Types of ONNX that NumPy lacks.
_NARROW = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}


def narrow(codes: Array, dtype: str) -> Array:
    """Codes in the type that ONNX stores."""
    return codes.astype(_NARROW[dtype]) if dtype in _NARROW else codes


def lost_db(value: Array, plain: QuantizedTensor, guarded: QuantizedTensor) -> float:
    """How much less the SQNR of the second is, in decibels."""
    before, after = plain.error(value).sqnr_db, guarded.error(value).sqnr_db
    return 0.0 if before == after else before - after  # both may be infinite


def is_int8(recipe: WeightRecipe) -> bool:
    """Whether integer kernels take codes by this recipe: 8 bits, per tensor or channel."""
    return recipe.dtype in ("int8", "uint8") and recipe.granularity != "group"


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
    note: str = ""
    guard_db: float = 0.0  # decibels, for scales with which no accumulator saturates
    bytes: int = 0
    _names: dict[Any, str] = field(default_factory=dict)

    @property
    def signed(self) -> bool:
        return self.q.params.dtype.is_signed

    @property
    def bits(self) -> int:
        return int(self.recipe.dtype.lstrip("uint"))

    @property
    def has_zero_point(self) -> bool:
        return not self.signed or bool(np.any(self.q.params.zero_point))

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
        codes = self.q.unpack()
        turned = np.ascontiguousarray(codes.T) if by_columns else codes
        return self.constant("codes", narrow(turned, self.recipe.dtype), key)

    def stacked_codes(self) -> str:
        """The name of the codes of a recurrent weight as [directions, inputs, rows of gates], int8."""
        assert self.unrolled is not None
        return self.constant("codes", self.q.unpack().reshape(self.unrolled.shape).swapaxes(1, 2), _STACK)

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
            padded = np.pad(self.q.unpack(), ((0, 0), (0, count * size - columns)))
            codes = self.constant("codes", narrow(padded.reshape(rows, count, size), self.recipe.dtype), "in groups")
            scales = [rows, count, 1]
        to = helper.np_dtype_to_tensor_dtype(np.dtype(self.element))
        value = step("Cast", codes, to=to)
        if self.has_zero_point:
            zero = narrow(self.zero_point_array.astype(self.q.params.dtype.code_dtype), self.recipe.dtype)
            stored = self.constant("zero_point", zero.reshape(scales), ("zero", "decoded"))
            value = step("Sub", value, step("Cast", stored, to=to))
        value = step("Mul", value, self.constant("scale", self.scale_array.reshape(scales), ("scale", "decoded")))
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
        return self.constant("scale", _shaped(self.scale_array, shape), ("scale", shape))

    def scale_steps(self) -> tuple[str, str]:
        """The names of (index into the steps per row, steps), where `steps` is set."""
        assert self.steps is not None
        which = np.searchsorted(self.steps, np.asarray(self.q.params.scale)).astype(np.uint8).reshape(-1, 1)
        return self.constant("scale_step", which), self.constant("steps", self.steps.astype(self.element))

    def zero_point(self, shape: str = "") -> str:
        """The name of the zero points, in the type of the codes."""
        zero = _shaped(self.zero_point_array.astype(self.q.params.dtype.code_dtype), shape)
        return self.constant("zero_point", narrow(zero, self.recipe.dtype), ("zero", shape))

    @property
    def scale_array(self) -> Array:
        return np.asarray(self.q.params.scale, self.element)

    @property
    def zero_point_array(self) -> Array:
        return np.broadcast_to(np.asarray(self.q.params.zero_point), np.shape(self.q.params.scale))


class CodeStore:
    """The weights of a graph that are quantized so far."""

    def __init__(self, graph: Graph, guarded: bool = True) -> None:
        self.graph = graph
        self.guarded = guarded  # whether weights that are `bounded` must fit accumulators of 16 bits
        self._stored: dict[Any, StoredWeight] = {}

    def put(
        self,
        use: WeightUse,
        recipe: WeightRecipe,
        *,
        bounded: bool = False,
        stepped: bool = False,
        home: GraphProto | None = None,
    ) -> StoredWeight:
        """The codes of a weight by a recipe; a weight with codes by the same recipe keeps them.

        bounded: choose scales with which no runtime's accumulator saturates, if the store is guarded. stepped: use 256
        different scales at most. home: the graph that holds them, of weights that are folded; by default the reader's.
        Groups are along the inputs of each output; no operator takes those of convolutions and stacks of matrices,
        which get one scale per channel, and a note, unless they are folded.
        """
        is_matrix, note = _is_matrix(use), ""
        in_groups = recipe.granularity == "group" and not is_matrix
        by_rows = use.kind == "recurrent" or (in_groups and home is not None)
        unrolled = Unrolled(use.shape, use.channel_axes) if by_rows else None
        if in_groups and unrolled is None:
            recipe = dataclasses.replace(recipe, group_size=None, granularity="channel")
            note = "groups are for matrices; one scale per channel"
        home = self.graph.home(use.node) if home is None else home
        key = self._key(use, recipe, home)
        if key in self._stored:
            return self._stored[key]
        value = np.asarray(use.value(self.graph))
        refuse_nonfinite(value, use.name)  # before any transposition, so that the index is the model's
        element = value.dtype
        wide = value.astype(np.float32, copy=False)
        axis = use.channel_axis
        if unrolled is not None:
            wide, axis = unrolled.rows(wide), 0
        elif is_matrix:
            wide, axis = np.ascontiguousarray(wide if axis == 0 else wide.T), 0
        q = quantize_weight(wide, recipe, axis=axis, name=use.name)
        scale = np.asarray(q.params.scale, np.float32)
        if bounded and self.guarded and wide.ndim == 2 and axis == 0 and q.params.dtype.is_signed:
            scale = unsaturated(wide, np.broadcast_to(scale, len(wide)).copy())
            scale = scale.max() if q.params.axis is None else scale
        steps = _scale_steps(wide, scale) if stepped else None
        if steps is not None:
            scale = steps[np.minimum(np.searchsorted(steps, np.where(wide.any(axis=1), scale, 0)), _STEPS - 1)]
        if element == np.float16:  # a scale must not underflow, and codes use the stored scale
            least = np.float32(np.finfo(np.float16).smallest_subnormal)
            scale = np.maximum(scale.astype(np.float16).astype(np.float32), least)
        lost = 0.0
        if not np.array_equal(scale, q.params.scale):
            plain, q = q, quantize(wide, params=q.params.replace(scale=np.asarray(scale, np.float32)))
            lost = lost_db(wide, plain, q) if bounded else 0.0
        made = self._stored[key] = StoredWeight(
            self.graph, use.name, recipe, q, element, is_matrix, home, layout_of(use), unrolled, steps, note, lost
        )
        return made

    def put_exact(self, use: WeightUse, recipe: WeightRecipe, q: QuantizedTensor, is_own: bool = False) -> StoredWeight:
        """The codes of a weight that were computed elsewhere, in the shape its node reads. Those of the same weight
        that are the same are stored once. is_own: nothing else reads this value of the weight."""
        home, is_matrix = self.graph.home(use.node), _is_matrix(use)
        key: Any = (id(use.node),) if is_own else self._key(use, recipe, home)
        if is_matrix and use.channel_axis == 1:
            axis = None if q.params.axis is None else 0
            q = QuantizedTensor.from_codes(np.ascontiguousarray(q.unpack().T), q.params.replace(axis=axis))
        while key in self._stored and not _same(self._stored[key].q, q):
            key = (key, "another scale")
        if key not in self._stored:
            layout = None if is_own else layout_of(use)
            made = StoredWeight(self.graph, use.name, recipe, q, np.dtype(np.float32), is_matrix, home, layout)
            self._stored[key] = made
        return self._stored[key]

    def _key(self, use: WeightUse, recipe: WeightRecipe, home: GraphProto) -> Any:
        return use.name, recipe, use.dtype, layout_of(use), id(home)

    def share_with_floats(self) -> set[str]:
        """Let all other readers of a stored weight read its codes as floats, so that the file holds it once; returns
        the names of the weights that had such readers."""
        shared = set()
        for w in list(self._stored.values()):
            left = [] if w.home is not self.graph.proto.graph else self.graph.consumers(w.name)
            stored = self.graph.initializer(w.name)
            if not left or stored is None or self.graph.may_be_given(w.name) or self.graph.is_graph_output(w.name):
                continue
            if w.layout not in (0, 1) if w.is_matrix else w.layout is None or w.layout[0]:
                continue
            if helper.tensor_dtype_to_np_dtype(stored.data_type) != w.element:
                continue
            view = w.as_float(by_columns=w.is_matrix and w.layout == 1)
            for reader, index in left:
                self.graph.replace_input(reader, index, view)
            shared.add(w.name)
        return shared

    def bytes_of(self, name: str) -> int:
        """The bytes of all codes and scales of a weight."""
        return sum(w.bytes for w in self._stored.values() if w.name == name)


def _is_matrix(use: WeightUse) -> bool:
    return len(use.shape) == 2 and use.kind != "conv"


def layout_of(use: WeightUse) -> Any:
    """How codes lie in comparison with the stored constant: for a matrix, 1 where they are turned."""
    turns = tuple(tuple(a.ints) for s in use.steps if s.op_type == "Transpose" for a in s.attribute)
    is_turned = (sum(s.op_type == "Transpose" for s in use.steps) + use.channel_axis) % 2
    return is_turned if _is_matrix(use) else (turns, use.channel_axes)


def _same(a: QuantizedTensor, b: QuantizedTensor) -> bool:
    """Whether two tensors of the same values have the same params, and so the same codes."""
    return np.array_equal(a.params.scale, b.params.scale) and np.array_equal(a.params.zero_point, b.params.zero_point)


def _scale_steps(rows: Array, scale: Array) -> Array:
    """256 scales in equal ratios, from the smallest to the largest of the rows that are not zero. A row uses the next
    larger one: 0.5 % too wide on average where scales differ by a factor of 10, and 3 bytes less."""
    used = scale[rows.any(axis=1)]
    low, high = (float(used.min()), float(used.max())) if used.size else (1.0, 1.0)
    steps = np.geomspace(low, max(high, low * (1 + 1e-4)), _STEPS).astype(np.float32)
    steps[-1] = max(steps[-1], np.float32(high))
    return steps


def _shaped(array: Array, shape: str) -> Array:
    if shape == "turned":
        return np.ascontiguousarray(array.T)
    return array.reshape(-1, 1) if shape == "column" else array
