"""Batches for a model from files: .npz with an array for each input, .npy for the only input, or folders of these."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from lowbit.calibration.files import arrays_of
from lowbit.formats.onnx.batch_axes import Cut, batch_axes, cuts_of
from lowbit.formats.onnx.inputs import check_fits, fixed_sizes, given_inputs
from lowbit.formats.onnx.model_file import read_proto
from lowbit.numerics.errors import FormatError, InvalidProblem

BATCH = 32
_KEPT = 16  # batches of an iterator
_MOST_RANDOM = 1 << 27  # numbers of a random input
_ARRAYS = set(onnx.helper.get_all_tensor_dtypes())


def model_inputs(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """The inputs of a model that no initializer provides, each a tensor of a type that arrays have."""
    found = given_inputs(proto)
    for name, declared in found.items():
        if declared.type.tensor_type.elem_type not in _ARRAYS:
            raise FormatError(f"input {name!r}: not a tensor of numbers, strings or booleans")
    return found


def random_feed(inputs: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """Normal numbers for floats and ones for integers; a size that is not fixed is that of the batch, or 8.

    Axes of the same name have the same size.
    """
    rng = np.random.default_rng(0)
    axes, named = batch_axes(inputs), dict[str, int]()
    feed: dict[str, Any] = {}
    for name, declared in inputs.items():
        tensor = declared.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = []
        for i, (dim, size) in enumerate(zip(tensor.shape.dim, fixed_sizes(declared), strict=True)):
            free = batch if i == (axes[name] or 0) else 8
            shape.append(size if size is not None else named.setdefault(dim.dim_param, free) if dim.dim_param else free)
        if math.prod(shape) > _MOST_RANDOM:
            raise InvalidProblem(f"{name!r}: shape {tuple(shape)} is too large for random inputs; give data")
        feed[name] = rng.standard_normal(shape).astype(dtype) if dtype.kind == "f" else np.ones(shape, dtype)
    return feed


def reread(
    data: Any, model: str | os.PathLike[str], batch_size: int | None, max_batches: int | None
) -> Batches | GivenBatches:
    """Batches that can be read more than once: from files, or as the caller gave them."""
    if isinstance(data, str | os.PathLike):
        return Batches(data, read_proto(model), batch_size, max_batches)
    return GivenBatches(data)


def read_once(batches: Any) -> bool:
    """Whether batches are an iterator, or kept by a `Peeked` that was given one."""
    return bool(getattr(batches, "is_read_once", False)) or iter(batches) is batches


class GivenBatches:
    """The caller's batches. Of an iterator, later passes get the first few, which are kept: `kept` at most."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data
        self.kept = _KEPT if iter(data) is data else 0
        self._first: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        yield from list(self._first)
        for batch in self._data:  # of an iterator, those that no pass has read yet
            if len(self._first) < self.kept:
                self._first.append(batch)
            yield batch

    def feeds(self) -> Iterable[Any]:
        """The batches; of an iterator, an iterator."""
        return iter(self) if self.kept else self


class Batches:
    """Mappings from input names to arrays, for any number of passes; one batch is in memory at a time.

    Arrays are cut into pieces of `batch_size`, the model's own where it is fixed and 32 otherwise, each along the axis
    that its declared shape tells (see `batch_axes`). Arrays without such an axis are passed whole to every call, and so
    are those of a file that cannot be cut. Names and shapes are checked on construction. Other arrays in the files are
    labels: they are cut alike and passed to metrics.
    """

    kept = 0  # files can be read again

    def __init__(
        self, path: str | os.PathLike[str], proto: onnx.ModelProto, batch_size: int | None, limit: int | None
    ) -> None:
        self.inputs = model_inputs(proto)
        if not self.inputs:
            raise InvalidProblem("data: given; the model takes no inputs")
        self.files, self.limit = _files(Path(path)), limit
        self.axes = batch_axes(self.inputs)
        fixed = [sizes[0] for sizes in map(fixed_sizes, self.inputs.values()) if sizes and sizes[0] is not None]
        if 0 in fixed:
            raise InvalidProblem("data: given; the model's batch is fixed at 0")
        if fixed and batch_size not in (None, *fixed) and not any(axis is not None for axis in self.axes.values()):
            raise InvalidProblem(f"batch_size: {batch_size}; the model's is fixed at {fixed[0]}")
        self.batch_size = batch_size
        next(self._of(self.files[0]), None)  # the first batch shows whether names and shapes fit

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return itertools.islice(itertools.chain.from_iterable(map(self._of, self.files)), self.limit)

    def feeds(self) -> Iterable[dict[str, Any]]:
        """Batches with the inputs of the model, and nothing else, for any number of passes."""
        return _Feeds(self)

    def _of(self, file: Path) -> Iterator[dict[str, Any]]:
        arrays = dict(arrays_of(file))
        if file.suffix == ".npy" and len(self.inputs) == 1 and len(arrays) == 1:
            arrays = {next(iter(self.inputs)): next(iter(arrays.values()))}
        missing = next((n for n in self.inputs if n not in arrays), None)
        if missing is not None:
            takes, has = ", ".join(self.inputs), ", ".join(arrays) or "none"
            said = f"{file}: no array {missing!r}; the model takes {takes}, the file has {has}"
            raise InvalidProblem(f"{said}; save each input under its name: np.savez(file, **{{{missing!r}: array}})")
        try:
            cuts, count = cuts_of(self.inputs, self.axes, arrays, self.batch_size, BATCH)
        except InvalidProblem as error:
            raise InvalidProblem(f"{file}: {error}") from None
        if count > 1:
            cuts |= self._labels_cut(arrays, cuts)
        for i in range(count):
            piece = {name: _piece(array, cuts.get(name), i) for name, array in arrays.items()}
            for name, declared in self.inputs.items():
                check_fits(declared, piece[name], str(file))
            yield piece

    def _labels_cut(self, arrays: Mapping[str, Any], cuts: Mapping[str, Cut]) -> dict[str, Cut]:
        """The cuts of arrays besides the inputs that have as many rows."""
        name, cut = next(iter(cuts.items()))
        rows = arrays[name].shape[cut.axis]
        labels = (n for n, a in arrays.items() if n not in self.inputs and a.ndim and a.shape[0] == rows)
        return {label: Cut(0, cut.step) for label in labels}


class _Feeds:
    """The inputs of the model among the arrays of batches."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._batches:
            yield {name: batch[name] for name in self._batches.inputs}


def _piece(array: Any, cut: Cut | None, index: int) -> Any:
    """The part of an array that belongs to the batch of this index."""
    if cut is None:
        return array
    rows = slice(index * cut.step, (index + 1) * cut.step)
    return np.ascontiguousarray(array[(slice(None),) * cut.axis + (rows,)])


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix in (".npy", ".npz"))
        if not found:
            raise InvalidProblem(f"{path}: no .npy or .npz file in it")
        return found
    if not path.exists():
        raise InvalidProblem(f"{path}: not there; expected a .npy or .npz file, or a folder of them")
    return [path]
