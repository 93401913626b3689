"""Codes of weights as constants of a graph, stored once per weight and recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, helper

from lowbit.formats.onnx.arrangement import arrangement, is_a_matrix, layout_of
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.solved import SolvedWeights
from lowbit.formats.onnx.stored_weight import StoredWeight
from lowbit.formats.onnx.weight_uses import WeightUse
from lowbit.models.recipe import WeightRecipe
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import quantize
from lowbit.ops.fitting import unsaturated

Array = npt.NDArray[Any]

_STEPS = 256  # different scales of a table whose scales are stored as one byte each


def lost_db(value: Array, plain: QuantizedTensor, guarded: QuantizedTensor) -> float:
    """How much less the SQNR of the second is, in decibels."""
    before, after = plain.error(value).sqnr_db, guarded.error(value).sqnr_db
    return 0.0 if before == after else before - after  # both may be infinite


def is_int8(recipe: WeightRecipe) -> bool:
    """Whether integer kernels take codes by this recipe: 8 bits, per tensor or channel."""
    return recipe.dtype in ("int8", "uint8") and recipe.granularity != "group"


def rescaled(value: Array, q: QuantizedTensor, scale: Array) -> QuantizedTensor:
    """The codes of a value on other scales, rounded to nearest; where a scale stays, so do its codes."""
    p = q.params.replace(scale=np.asarray(scale, np.float32))
    changed = np.asarray(p.scale != q.params.scale)
    if not changed.any():
        return q
    made = quantize(value, params=p)
    if changed.all() or p.axis is None or p.group_size is not None:
        return made
    changed = np.expand_dims(changed, [i for i in range(value.ndim) if i != p.axis])
    return QuantizedTensor.from_codes(np.where(changed, made.unpack(), q.unpack()), p)


class CodeStore:
    """The weights of a graph that are quantized so far."""

    def __init__(self, graph: Graph, guarded: bool = True, solved: SolvedWeights | None = None) -> None:
        self.graph = graph
        self.solved = SolvedWeights() if solved is None else solved
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
        How groups are held: see `arrangement`.
        """
        how = arrangement(use, recipe, home is not None)
        home = self.graph.home(use.node) if home is None else home
        key = self._key(use, how.recipe, home)
        if key in self._stored:
            return self._stored[key]
        solved = self.solved.of(self.graph, use, how)
        q, steps, lost = solved.q, None, 0.0
        if (bounded and self.guarded and q.params.dtype.is_signed) or stepped:
            wide = how.array(np.asarray(use.value(self.graph)))
            scale = np.asarray(q.params.scale, np.float32)
            if bounded and wide.ndim == 2 and how.axis == 0:
                scale = unsaturated(wide, np.broadcast_to(scale, len(wide)).copy())
                scale = scale.max() if q.params.axis is None else scale
            steps = _scale_steps(wide, scale) if stepped else None
            if steps is not None:
                scale = steps[np.minimum(np.searchsorted(steps, np.where(wide.any(axis=1), scale, 0)), _STEPS - 1)]
            plain, q = q, rescaled(wide, q, scale)
            lost = lost_db(wide, plain, q) if bounded and q is not plain else 0.0
        made = StoredWeight(self.graph, use.name, how.recipe, q, np.dtype(use.dtype), how.is_matrix, home, how.layout)
        made.unrolled, made.steps, made.guard_db, made.solved = how.unrolled, steps, lost, solved
        made.half = solved.half and made.element == np.float32
        made.note = "; ".join(filter(None, (how.note, solved.note)))
        self._stored[key] = made
        return made

    def put_exact(self, use: WeightUse, recipe: WeightRecipe, q: QuantizedTensor, is_own: bool = False) -> StoredWeight:
        """The codes of a weight that were computed elsewhere, in the shape its node reads. Those of the same weight
        that are the same are stored once. is_own: nothing else reads this value of the weight."""
        home, is_matrix = self.graph.home(use.node), is_a_matrix(use)
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
