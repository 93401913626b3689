"""Quantizing the weights of a checkpoint with statistics of their inputs: from text, or from moments that are there."""

from __future__ import annotations

import gc
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from lowbit.calibration import Moments
from lowbit.formats.compressed_tensors.input_scales import InputScales
from lowbit.formats.compressed_tensors.plan import Item, Plan
from lowbit.formats.compressed_tensors.scheme import widened
from lowbit.formats.compressed_tensors.solved import SolvedWeights
from lowbit.formats.safetensors.checkpoint import Checkpoint
from lowbit.formats.statistics.folder import Statistics
from lowbit.models.recipe import Recipe
from lowbit.models.weights import LayerInputs, method_for
from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import InvalidProblem, Unsupported

Progress = Callable[[int, int, str], None]

_DIAGONAL = ("weighted", "awq")  # methods for which mean squares are enough
_STATISTICAL = (*_DIAGONAL, "gptq", "adaround")
_FACTOR_BYTES = 30  # per element of a Gram matrix, at the peak of its factorization
_LEAST_MEMORY = 1 << 29


class Solver(Protocol):
    """What quantizes weights ahead of the writing of shards."""

    fingerprint: Any  # of the statistics
    notes: list[str]
    remarks: dict[str, str]  # by the names of weights

    def solve(self, solved: SolvedWeights, progress: Progress | None) -> None: ...


class _NoStatistics:
    fingerprint: Any = None

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.remarks: dict[str, str] = {}

    def solve(self, solved: SolvedWeights, progress: Progress | None) -> None:
        """Weights are rounded as they are written."""


def solver_of(
    source: Checkpoint,
    plan: Plan,
    recipe: Recipe,
    data: Any,
    stats: Mapping[str, Moments] | None,
    sequence_length: int | None,
    max_sequences: int | None,
    max_memory: int | None,
) -> Solver:
    """The solver for what was given; raises before any work where it does not fit the plan."""
    wanting = {item.info.name: item for item in plan.items if item.scheme is not None and _wants(item)}
    if data is not None and stats is not None:
        raise InvalidProblem("stats: given with data; expected one of them")
    if data is None:
        for name, value in (("sequence_length", sequence_length), ("max_sequences", max_sequences)):
            if value is not None:
                raise InvalidProblem(f"{name}: given without data; give data too")
    if data is None and stats is None:
        if max_memory is not None:
            raise InvalidProblem("max_memory: given without data; rounding alone takes a few hundred MB")
        for item in wanting.values():
            assert item.scheme is not None
            method_for(item.scheme.weights, name=item.info.name)
        return _NoStatistics()
    if not wanting:
        given = "stats" if data is None else "data"
        raise InvalidProblem(
            f"{given}: given; {recipe.name} rounds 8-bit weights to nearest, which needs none; choose method gptq "
            "(--method gptq), or leave it out"
        )
    if stats is not None:
        return _FromMoments(source, plan, wanting, stats)
    return _FromText(source, plan, wanting, data, sequence_length, max_sequences, max_memory)


def _wants(item: Item) -> bool:
    """Whether statistics change how a weight is quantized."""
    assert item.scheme is not None
    weights = item.scheme.weights
    if weights.method == "auto":
        return weights.dtype not in ("int8", "uint8") and weights.granularity != "tensor"
    return weights.method in _STATISTICAL


class _FromMoments:
    """Solves with moments by the names of weights, or of their modules."""

    def __init__(
        self, source: Checkpoint, plan: Plan, wanting: Mapping[str, Item], stats: Mapping[str, Moments]
    ) -> None:
        self.notes: list[str] = []
        self.remarks: dict[str, str] = {}
        self._source, self._stats = source, stats
        self._folding = InputScales(source, plan)
        self._keys: dict[str, str] = {}
        for name in wanting:
            key = next((k for k in (name, name.removesuffix(".weight")) if k in stats), None)
            if key is not None:
                self._keys[name] = key
        if not self._keys:
            some = ", ".join(list(stats)[:4])
            raise InvalidProblem(f"stats: of {some}; none is of a weight of this checkpoint: they are of another model")
        self._items = wanting
        self.fingerprint = self._digest()
        self._tell_missing(wanting)

    def _tell_missing(self, wanting: Mapping[str, Item]) -> None:
        for name, item in wanting.items():
            if name not in self._keys:
                assert item.scheme is not None
                if item.scheme.weights.method != "auto":
                    method_for(item.scheme.weights, name=name)
                self.remarks[name] = "no statistics of its inputs"

    def solve(self, solved: SolvedWeights, progress: Progress | None) -> None:
        done = 0
        for names in self._together():
            if progress is not None:
                progress(done, len(self._keys), f"solving {names[0]}")
            done += len(names)
            if all(name in solved for name in names):
                continue
            inputs = LayerInputs(self._stats[self._keys[names[0]]])
            scale = self._folding.scale({name: self._weight(name) for name in names}, inputs, solved)
            for name in names:
                if name not in solved:
                    solved.put(
                        self._items[name], self._weight(name), inputs, scale if self._folding.takes(name) else None
                    )
        self.remarks |= self._folding.remarks

    def _together(self) -> list[list[str]]:
        """The names of weights, those that share their moments together."""
        found: dict[Any, list[str]] = {}
        for name in sorted(self._keys):
            key = self._keys[name]
            shared = self._stats.of(key).file if isinstance(self._stats, Statistics) else id(self._stats[key])
            found.setdefault(shared, []).append(name)
        return list(found.values())

    def _digest(self) -> Any:
        """What identifies the moments: of a folder its index, else their sums."""
        if isinstance(self._stats, Statistics):
            return [[group.file, group.checksum] for group in self._stats.shared()]
        found = []
        for key in sorted(set(self._keys.values())):
            arrays, about = self._stats[key].to_arrays()
            crc = zlib.crc32(about.encode())
            for name in sorted(arrays):
                crc = zlib.crc32(np.ascontiguousarray(arrays[name]).data, crc)
            found.append([key, crc])
        return found

    def _weight(self, name: str) -> Array:
        info = self._source.tensors[name]
        found = np.array(widened(self._source.read(name), info.dtype))
        self._source.release(name)
        return found


class _FromText:
    """Solves while a causal language model runs over text, a decoder layer at a time."""

    def __init__(
        self,
        source: Checkpoint,
        plan: Plan,
        wanting: Mapping[str, Item],
        data: Any,
        sequence_length: int | None,
        max_sequences: int | None,
        max_memory: int | None,
    ) -> None:
        try:
            from lowbit.formats.causal_lm.network import LayerwiseModel
            from lowbit.formats.causal_lm.observe import FIRST_TOKEN_SHARE
        except ImportError:
            raise Unsupported(
                "data: running a language model needs torch and transformers: pip install 'lowbit[llm]'"
            ) from None
        from lowbit.formats.causal_lm.text import refuse_other_files, tokenized

        refuse_other_files(data)
        self.remarks: dict[str, str] = {}
        self._items, self._max_memory = dict(wanting), max_memory
        self._folding = InputScales(source, plan)
        self._model = LayerwiseModel(source)
        self._text = tokenized(
            data,
            source.folder,
            self._model.vocabulary,
            sequence_length=sequence_length,
            max_sequences=max_sequences,
            positions=self._model.positions,
        )
        self.fingerprint = [self._text.digest(), FIRST_TOKEN_SHARE, max_memory]
        self.notes = list(self._text.notes)
        self._choose()

    def _choose(self) -> None:
        """Which statistics each weight gets, by the memory that there is."""
        inside = {name: m for i in range(len(self._model.layers)) for name, m in self._model.linears(i).items()}
        self._room = float("inf") if self._max_memory is None else float(self._max_memory - resident())
        if self._room < _LEAST_MEMORY:
            raise InvalidProblem(
                f"max_memory: {self._max_memory:,} bytes; {resident():,} are taken before any layer is read, expected "
                f"at "
                f"least {resident() + _LEAST_MEMORY:,}"
            )
        largest = max(map(self._model.layer_nbytes, range(len(self._model.layers))), default=0)
        passing = largest + self._model.running_nbytes(map(len, self._text.sequences))
        self._kinds: dict[str, str] = {}
        for name, item in self._items.items():
            assert item.scheme is not None
            method = item.scheme.weights.method
            if name not in inside:
                method_for(item.scheme.weights, name=name)
                self.remarks[name] = "outside the decoder layers: no statistics of its inputs"
                continue
            needed = passing + _FACTOR_BYTES * inside[name].in_features ** 2
            fits = needed <= self._room
            if not fits and method not in ("auto", *_DIAGONAL):
                raise InvalidProblem(
                    f"max_memory: {self._max_memory:,} bytes; {method} of {name} needs {resident() + needed:,}; "
                    "allow more, or choose method weighted"
                )
            self._kinds[name] = "gram" if fits and method not in _DIAGONAL else "diagonal"
            if not fits and method == "auto":
                self.remarks[name] = f"mean squares alone: gptq would need {resident() + needed:,} bytes"
        widths = [inside[name].in_features for name, kind in self._kinds.items() if kind == "gram"]
        few = sum(width > self._text.tokens for width in widths)
        if few:
            self.notes.append(
                f"{self._text.tokens:,} tokens for layers of up to {max(widths):,} inputs: the Gram matrices of {few} "
                f"weights "
                "are singular, and damping decides what the data leave open; give more text"
            )

    def solve(self, solved: SolvedWeights, progress: Progress | None) -> None:
        from lowbit.formats.causal_lm.observe import observe_layers

        def wanted(name: str, width: int) -> str:
            return "" if self._folding.is_done(name, solved) else self._kinds.get(name, "")

        found = observe_layers(
            self._model,
            self._text,
            wanted,
            max_bytes=self._room - self._model.running_nbytes(map(len, self._text.sequences)),
            solver_bytes=lambda width: _FACTOR_BYTES * width**2,
            scratch=solved.folder,
            progress=progress,
        )
        for _, weights, moments in found:
            inputs = LayerInputs(moments)
            del moments
            scale = self._folding.scale(weights, inputs, solved)
            for name, weight in weights.items():
                solved.put(self._items[name], weight, inputs, scale if self._folding.takes(name) else None)
        self.remarks |= self._folding.remarks
        del self._model
        gc.collect()


def resident() -> int:
    """Bytes of memory that the process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
