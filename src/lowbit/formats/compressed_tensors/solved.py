"""Weights that were quantized with statistics of their inputs, kept in the working folder until their shard is written.

The order in which layers are solved is that of the model, and the order in which tensors are written that of the
source. Each solved weight is a file of its own, which an interrupted run finds again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lowbit.formats.compressed_tensors.plan import Item
from lowbit.formats.compressed_tensors.scheme import Rows
from lowbit.formats.work_folder import Assembly
from lowbit.models.weights import LayerInputs, method_for, quantize_weight
from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import FormatError
from lowbit.numerics.metrics import sqnr_db
from lowbit.runtime.files.container import read_arrays, write_arrays

_PREFIX = ".solved-"
_BLOCK = 1 << 24  # weights that are solved at once; rows do not depend on each other


class Figures(NamedTuple):
    """What the report says of a solved weight."""

    energy: tuple[float, float]  # of the weight, and of its error
    method: str
    predicted_db: float

    @property
    def sqnr_db(self) -> float:
        return sqnr_db(*self.energy)


class SolvedWeights:
    """The solved weights of a run, by the names of their tensors."""

    def __init__(self, assembly: Assembly, items: Iterable[Item]) -> None:
        self._assembly = assembly
        self._files = {item.info.name: f"{_PREFIX}{i:06}.safetensors" for i, item in enumerate(items)}
        self.seconds: dict[str, float] = {}

    @property
    def folder(self) -> Path:
        """The working folder."""
        return self._assembly.folder

    def __contains__(self, name: object) -> bool:
        return self._files.get(str(name)) in self._assembly.finished

    def put(self, item: Item, weight: Array, inputs: LayerInputs, scale: Array | None = None) -> None:
        """Solve a float32 weight [outputs, inputs] and keep it. scale: of each input, which what makes it is divided
        by."""
        assert item.scheme is not None
        begun = time.perf_counter()
        name, scheme = item.info.name, item.scheme
        method, weights, seen = method_for(scheme.weights, inputs, name=name), scheme.weights, inputs
        if method == "awq":
            weights, seen = replace(weights, method="weighted"), inputs if scale is None else inputs.divided(scale)
        factor: Array = np.ones(weight.shape[1], np.float32) if scale is None else scale
        parts: list[Rows] = []
        signal = noise = 0.0
        step = max(1, _BLOCK // weight.shape[1])
        expected = np.zeros(2)
        for start in range(0, len(weight), step):
            block = np.ascontiguousarray(weight[start : start + step])
            options: dict[str, Any] = {"inputs": seen, "scale_dtype": scheme.scale_dtype(item.info.dtype)}
            q = quantize_weight(block * factor, weights, name=name, **options)
            error: Array = block - np.asarray(q.dequantize(), np.float32) / factor
            signal += float(np.square(block, dtype=np.float64).sum())
            noise += float(np.square(error, dtype=np.float64).sum())
            expected += inputs.energies(block, error)
            parts.append(scheme.rows(q, item.info.dtype))
        arrays = {
            field: np.concatenate(found)
            for field in Rows._fields
            if (found := [part for rows in parts if (part := getattr(rows, field)) is not None])
        }
        figures = Figures((signal, noise), method, sqnr_db(*expected))
        path = self._assembly.folder / self._files[name]
        write_arrays(path, arrays, {"figures": json.dumps(figures)})
        self.seconds[name] = time.perf_counter() - begun
        self._assembly.finish_file(path)

    def put_copied(self, item: Item, array: Array) -> None:
        """Keep what replaces a tensor that is not quantized, in its own dtype."""
        path = self._assembly.folder / self._files[item.info.name]
        write_arrays(path, {"copied": array.reshape(-1).view(np.uint8)}, {})
        self._assembly.finish_file(path)

    def read_copied(self, name: str) -> Array:
        """The bytes of `put_copied`."""
        return read_arrays(self._assembly.folder / self._files[name])[0]["copied"]

    def read(self, name: str) -> tuple[Rows, Figures]:
        """The rows of a weight, as they are stored, and its figures."""
        file = self._files[name]
        arrays, metadata = read_arrays(self._assembly.folder / file)
        try:
            energy, method, predicted = json.loads(metadata["figures"])
            rows = Rows(arrays["codes"], arrays["scale"], arrays.get("zero_point"))
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{file}: not a solved weight ({error})") from None
        return rows, Figures(tuple(energy), str(method), predicted)

    def figures(self, items: Iterable[Item]) -> tuple[dict[str, float], dict[str, str]]:
        """The predicted decibels and the methods of those weights that are solved."""
        found = {
            item.info.name: self.read(item.info.name)[1] for item in items if item.scheme and item.info.name in self
        }
        predicted = {name: f.predicted_db for name, f in found.items()}
        return predicted, {name: f.method for name, f in found.items()}

    def discard(self) -> None:
        """Delete the files, once all shards are written."""
        self._assembly.discard_files(self._files.values())
