"""AWQ in checkpoints: scales of inputs, folded into the norm that makes them.

The norm is stored in the dtype of the checkpoint, rounded, and the weights take the scale that the stored norm has, so
that the function changes by no more than the rounding of weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lowbit.algorithms.awq import input_scales
from lowbit.algorithms.grid import Grid
from lowbit.formats.compressed_tensors.plan import Plan, read_config
from lowbit.formats.compressed_tensors.scheme import rounded, widened
from lowbit.formats.compressed_tensors.solved import SolvedWeights
from lowbit.formats.safetensors.checkpoint import Checkpoint
from lowbit.models.scaling import scaling_groups
from lowbit.models.weights import LayerInputs
from lowbit.numerics.dtypes import Array

_SHIFTED = ("gemma",)  # models whose norms multiply by 1 + weight


class InputScales:
    """Which weights of method "awq" take scales together, and which norm takes them back."""

    def __init__(self, source: Checkpoint, plan: Plan) -> None:
        self._source = source
        self.remarks: dict[str, str] = {}
        self._items = {item.info.name: item for item in plan.items}
        self._norms: dict[frozenset[str], tuple[str, ...]] = {}
        self._taken: set[str] = set()
        self._wanted = {
            name for name, item in self._items.items() if item.scheme and item.scheme.weights.method == "awq"
        }
        if not self._wanted or str(read_config(source.folder).get("model_type", "")).startswith(_SHIFTED):
            return
        for group in scaling_groups({name: info.shape for name, info in source.tensors.items()})[0]:
            if all(len(source.tensors[name].shape) == 1 for name in group.divided):
                self._norms[frozenset(group.multiplied)] = group.divided

    def is_done(self, name: str, solved: SolvedWeights) -> bool:
        """Whether a weight is solved, with all that take a scale together with it."""
        together = next((g for g in self._norms if name in g and g <= self._wanted), frozenset({name}))
        return all(each in solved for each in together)

    def takes(self, name: str) -> bool:
        """Whether a weight takes the scale that was found last for its inputs."""
        return name in self._taken

    def scale(self, weights: Mapping[str, Array], inputs: LayerInputs, solved: SolvedWeights) -> Array | None:
        """The scale of the inputs of these weights; the norm that makes them is kept, divided by it."""
        wanted = [name for name in weights if name in self._wanted]
        norms = self._norms.get(frozenset(weights), ()) if len(wanted) == len(weights) else ()
        if not norms:
            self.remarks |= dict.fromkeys(wanted, "no norm before it takes scales of its inputs back: weighted alone")
            return None
        item = self._items[wanted[0]]
        assert item.scheme is not None
        w = item.scheme.weights
        grid = Grid.of(w.dtype, w.scheme, w.group_size, item.scheme.scale_dtype(item.info.dtype))
        found, _, _ = input_scales(list(weights.values()), inputs.diagonals[0], grid)
        scale = self._kept(norms, found, solved)
        self._taken |= set(wanted)
        return scale

    def _kept(self, norms: tuple[str, ...], scale: Array, solved: SolvedWeights) -> Array:
        """Keep norms divided by the scale, and return the scale by which the first was divided once it was rounded."""
        held = scale
        for i, name in enumerate(norms):
            info = self._source.tensors[name]
            norm = np.array(widened(self._source.read(name), info.dtype))
            stored, value = rounded(np.asarray(norm / held, np.float32), info.dtype)
            if i == 0:
                held = np.where(value != 0, norm / np.where(value != 0, value, 1), scale).astype(np.float32)
                held = np.where(np.isfinite(held) & (held > 0), held, np.float32(1))
            solved.put_copied(self._items[name], stored)
        return held
