"""Observing a model's file of any format: from records of data to a folder of statistics."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from lowbit.calibration.calibrator import tracked
from lowbit.formats.files import bar, kind_of
from lowbit.formats.inspection import onnx_extra
from lowbit.formats.statistics.data import DataDigest, Shard
from lowbit.formats.statistics.fingerprint import model_fingerprint
from lowbit.formats.statistics.folder import Statistics, is_statistics, open_statistics
from lowbit.formats.statistics.writer import StatisticsWriter, refuse_target, shared_moments
from lowbit.formats.work_folder import real_target
from lowbit.numerics.errors import InvalidProblem, add_note

MAX_BYTES = 2 << 30


def observe_file(
    source: str | os.PathLike[str],
    data: str | os.PathLike[str] | Iterable[Any],
    target: str | os.PathLike[str],
    *,
    gram: bool = True,
    shard: Shard | str | None = None,
    batch_size: int | None = None,
    max_batches: int | None = None,
    max_bytes: int = MAX_BYTES,
    sequence_length: int | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
    warn: Callable[[str], None] | None = None,
) -> Statistics:
    """Run a model over data, and write second moments of what each of its layers multiplies to a folder.

    The bytes of the folder do not depend on the order of records, threads, `max_bytes`, a run that was killed and
    resumed, or on processes that each observed a shard and were merged, on CPUs where ONNX Runtime computes the same.
    data: .npz or .npy files, a folder of them, or batches that can be read several times; for a checkpoint text, of
    which `max_batches` sequences of `sequence_length` tokens are taken. gram: collect E[x x^T], else E[x^2]. shard:
    "i/n" of the records. batch_size: records that the model runs on at once; by default one, so that no record changes
    what is computed for another. max_bytes: of the sums in memory; what needs more takes several passes over the data,
    and one layer at least is in memory. warn: gets notes on text before any work.

    >>> import tempfile
    >>> from importlib import resources
    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((60, 1, 8, 8)).astype(np.float32)
    >>> with tempfile.TemporaryDirectory() as folder, resources.as_file(resources.files("lowbit.data")) as models:
    ...     np.save(f"{folder}/x.npy", x)
    ...     found = observe_file(models / "digits_cnn.onnx", f"{folder}/x.npy", f"{folder}/s", progress=False)
    ...     found["fc1.weight"].count, len(found.notes())  # one on layers with more inputs than rows
    (60, 1)
    """
    path, cut = Path(source), Shard.parse(shard) if isinstance(shard, str) else shard or Shard()
    if is_statistics(path):
        raise InvalidProblem(f"{path}: statistics already; expected a model")
    kind = kind_of(path)
    refuse_target(target, resume=resume, overwrite=overwrite)
    given = [Path(each).resolve() for each in (path, data) if isinstance(each, str | os.PathLike)]
    inner = next((each for each in given if real_target(target).is_relative_to(each)), None)
    if inner is not None:
        raise InvalidProblem(f"{os.fspath(target)}: in {inner}, which is read; choose a folder outside")
    if max_bytes < 1:
        raise InvalidProblem(f"max_bytes: {max_bytes}; expected a positive number")
    if kind == "checkpoint":
        if batch_size is not None:
            raise InvalidProblem("batch_size: given; each sequence of a checkpoint's text runs by itself")
        from lowbit.formats.causal_lm.statistics import observe_checkpoint

        with bar(progress) as tell:
            lengths: dict[str, Any] = {"sequence_length": sequence_length, "max_sequences": max_batches}
            kept: dict[str, Any] = {"resume": resume, "overwrite": overwrite, "progress": tell, "warn": warn}
            return observe_checkpoint(path, data, target, gram=gram, shard=cut, max_bytes=max_bytes, **lengths, **kept)
    if sequence_length is not None:
        raise InvalidProblem("sequence_length: given; only text has it, which checkpoints are observed on")
    with onnx_extra():
        from lowbit.formats.onnx.moments import POSITIONS, inputs_of, iterate_moments, prepared
        from lowbit.formats.onnx.weight_uses import weights
    graph = prepared(path)
    if not inputs_of(graph, weights(graph)):
        raise InvalidProblem(f"{path}: no MatMul, Gemm, Conv or recurrent layer with a weight; nothing to observe")
    records = _Records(path, data, batch_size, max_batches, cut, progress)
    options = {"gram": gram, "positions": POSITIONS, "batch_size": records.batch_size}
    about: dict[str, Any] = {"model": model_fingerprint(path), "data": records.digest.part(cut), "options": options}
    with StatisticsWriter(target, **about, resume=resume, overwrite=overwrite) as writer:
        if not writer.complete:
            done = frozenset(writer.finished)
            wanted: dict[str, Any] = {"weights": lambda name: name not in done, "gram": gram}
            try:
                for found in iterate_moments(graph, records, **wanted, max_bytes=max_bytes, progress=progress):
                    for names, moments in shared_moments(found):
                        writer.put(names, moments)
                    found.clear()  # before the next pass fills memory
            except InvalidProblem as error:
                if cut.of > 1:
                    add_note(error, f"batches are numbered within shard {cut}")
                raise
            writer.commit()
    return open_statistics(target)


class _Records:
    """The records of a shard, each a mapping from inputs to arrays, for any number of passes. The first pass, over all
    records, is made on construction: their number and digest."""

    def __init__(
        self, model: Path, data: Any, batch_size: int | None, max_batches: int | None, shard: Shard, progress: bool
    ) -> None:
        from lowbit.formats.onnx.batch_axes import batch_axes
        from lowbit.formats.onnx.batches import model_inputs, reread
        from lowbit.formats.onnx.inputs import feed_of
        from lowbit.formats.onnx.model_file import read_proto

        inputs = model_inputs(read_proto(model))
        self.batch_size: int | None = None
        if isinstance(data, str | os.PathLike):
            has_axis = any(axis is not None for axis in batch_axes(inputs).values())
            self.batch_size = batch_size or (1 if has_axis else None)
        elif iter(data) is data:
            raise InvalidProblem("data: an iterator, which is read once; expected files, or a list of batches")
        self._batches = reread(data, model, self.batch_size, max_batches)
        self._shard = shard
        self.digest = DataDigest()
        for i, batch in enumerate(tracked(self._batches.feeds(), "Reading data", progress)):
            self.digest.add(feed_of(batch, list(inputs), i))
        if not len(self.digest):
            raise InvalidProblem("data: no records; expected at least one")

    def __len__(self) -> int:
        return len(range(self._shard.index - 1, len(self.digest), self._shard.of))

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (batch for i, batch in enumerate(self._batches.feeds()) if self._shard.takes(i))
