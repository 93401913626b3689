"""Writing folders of statistics a layer at a time, resuming runs that were killed, and merging folders exactly."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from lowbit.calibration import Moments
from lowbit.formats.safetensors.writer import ShardWriter, Stored
from lowbit.formats.statistics.data import DataPart, joined
from lowbit.formats.statistics.folder import INDEX, VERSION, Group, Statistics, file_of, open_statistics, read_group
from lowbit.formats.work_folder import Assembly, Finished, real_target
from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.runtime.files.atomic import refuse_unwritable, written_whole
from lowbit.runtime.files.container import read_header

Progress = Callable[[int, int], None]  # (files done, total)


class StatisticsWriter:
    """A folder of statistics that is there whole or not at all: `put` after each layer, and `commit` at the end.

    The bytes depend on model, data, options and moments alone: not on the order of calls, and not on a run that was
    killed and resumed. model: its fingerprint. data: what the rows are of. options: everything else that they depend
    on, in plain types. resume: keep what a run with the same model, data and options has finished; `finished` has the
    names. overwrite: replace statistics that are there. `complete`: the folder is there already, by such a run.

    >>> import tempfile
    >>> import numpy as np
    >>> m = Moments(2)
    >>> m.add(np.eye(2, dtype=np.float32))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with StatisticsWriter(f"{folder}/stats", model="m", data=DataPart("d", 1), options={}) as writer:
    ...         writer.put(["q_proj", "k_proj"], m)
    ...         writer.commit()
    ...     list(open_statistics(f"{folder}/stats"))
    ['k_proj', 'q_proj']
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        model: str,
        data: DataPart | Iterable[DataPart],
        options: Mapping[str, Any],
        resume: bool = False,
        overwrite: bool = False,
    ) -> None:
        parts = joined([data] if isinstance(data, DataPart) else data)
        self._about: dict[str, Any] = {"version": VERSION, "model": model, "options": dict(options)}
        self._about["data"] = [part.to_dict() for part in parts]
        refuse_target(folder, resume=resume, overwrite=overwrite)
        fingerprint = hashlib.sha256(json.dumps(self._about, sort_keys=True).encode()).hexdigest()
        self._assembly = Assembly(Path(folder), fingerprint, resume=resume, overwrite=overwrite)
        self._groups: dict[str, Group] = {}

    def __enter__(self) -> StatisticsWriter:
        assembly = self._assembly.__enter__()
        folder = assembly.target if assembly.complete else assembly.folder
        self._groups = {name: _group_of(folder / name, shard) for name, shard in assembly.finished.items()}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._assembly.__exit__(kind, error, at)

    @property
    def complete(self) -> bool:
        """Whether the folder is there already, by a run with the same model, data and options."""
        return self._assembly.complete

    @property
    def finished(self) -> Collection[str]:
        """The names of the layers that are written."""
        return {name for group in self._groups.values() for name in group.names}

    def put(self, names: Iterable[str], moments: Moments) -> None:
        """Write the moments that layers of these names share."""
        ordered = tuple(sorted(names))
        twice = next((name for name in ordered if ordered.count(name) > 1 or name in self.finished), None)
        if twice is not None or not ordered:
            raise InvalidProblem(f"names: {twice!r} twice" if ordered else "names: none; expected those of layers")
        if not moments.count:
            raise InvalidProblem(f"{ordered[0]}: no rows; expected at least one")
        arrays, about = moments.to_arrays()
        stored = [Stored(name, "I64", array.shape) for name, array in arrays.items()]
        file = file_of(ordered)
        metadata = {"format": "lowbit", "names": json.dumps(ordered), "moments": about}
        with ShardWriter(self._assembly.folder / file, stored, metadata) as shard:
            for name in list(arrays):
                shard.write(name, arrays.pop(name))
        finished = Finished(shard.nbytes, shard.checksum, {})
        self._groups[file] = _group(file, ordered, about, finished)
        self._assembly.finish(file, finished)

    def commit(self) -> None:
        """Write the index, and put the folder in its place."""
        files = {file: group.to_dict() for file, group in sorted(self._groups.items())}
        if not files:
            raise InvalidProblem("statistics: of no layer; expected at least one")
        with written_whole(self._assembly.folder / INDEX) as index:
            index.write(json.dumps(self._about | {"files": files}, indent=1, sort_keys=True) + "\n")
        self._assembly.commit()


def refuse_target(folder: str | os.PathLike[str], *, resume: bool, overwrite: bool) -> None:
    """Raise, before any work, where statistics cannot be written to this folder later."""
    target = real_target(folder)
    refuse_unwritable(target)
    if target.is_dir() and any(target.iterdir()) and not resume and not overwrite:
        raise InvalidProblem(f"{target}: already there; give another name, or overwrite it (--overwrite)")


def save_statistics(
    found: Mapping[str, Moments],
    folder: str | os.PathLike[str],
    *,
    model: str,
    data: DataPart | Iterable[DataPart],
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> None:
    """Write moments by the names of layers; those that share one object share a file."""
    with StatisticsWriter(folder, model=model, data=data, options=options or {}, overwrite=overwrite) as writer:
        for names, moments in shared_moments(found):
            writer.put(names, moments)
        writer.commit()


def shared_moments(found: Mapping[str, Moments]) -> list[tuple[list[str], Moments]]:
    """The distinct moments, each with the names that share it."""
    made: dict[int, tuple[list[str], Moments]] = {}
    for name, moments in found.items():
        made.setdefault(id(moments), ([], moments))[0].append(name)
    return list(made.values())


def merge_statistics(
    folders: Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Statistics:
    """Write the sum of statistics to a folder: of all shards, the bytes that one run over all the data writes.

    Refuses statistics of another model or with other options, and data that would count twice. Two Moments are in
    memory at a time.
    """
    given = [open_statistics(folder) for folder in folders]
    if len(given) < 2:
        raise InvalidProblem(f"folders: {len(given)}; expected at least two folders of statistics to merge")
    first, *others = given
    for other in others:
        other.refuse_other(first.model)
        if other.options != first.options:
            odd = sorted(k for k in {*first.options, *other.options} if first.options.get(k) != other.options.get(k))
            pair = ", ".join(f"{k} {other.options.get(k)!r} (not {first.options.get(k)!r})" for k in odd)
            raise InvalidProblem(f"{other.folder}: collected with {pair}; expected the options of {first.folder}")
    inputs, place = {stats.folder.resolve() for stats in given}, real_target(target)
    if place in inputs:
        raise InvalidProblem(f"{os.fspath(target)}: one of the folders to merge; choose another name")
    parts: tuple[DataPart, ...] = ()
    for stats in given:
        try:
            parts = joined((*parts, *stats.data))
        except InvalidProblem as error:
            raise InvalidProblem(f"{stats.folder}: {error}") from None
    found: dict[tuple[str, ...], list[tuple[Path, Group]]] = {}
    for stats in given:
        for group in stats.shared():
            found.setdefault(group.names, []).append((stats.folder, group))
    names = [name for group in found for name in group]
    if len(set(names)) != len(names):
        raise InvalidProblem(f"{given[-1].folder}: other layers share their inputs; expected as in {first.folder}")
    options: dict[str, Any] = {"options": first.options, "resume": resume, "overwrite": overwrite}
    with StatisticsWriter(target, model=first.model, data=parts, **options) as writer:
        if not writer.complete:
            for done, (group_names, places) in enumerate(found.items()):
                if group_names[0] not in writer.finished:
                    writer.put(group_names, _sum(places))
                if progress is not None:
                    progress(done + 1, len(found))
            writer.commit()
    return open_statistics(target)


def _sum(places: list[tuple[Path, Group]]) -> Moments:
    (folder, group), *others = places
    total = read_group(folder, group)
    for other, theirs in others:
        try:
            total.merge(read_group(other, theirs))
        except InvalidProblem as error:
            raise InvalidProblem(f"{other}: {theirs.names[0]}: {error}") from None
    return total


def _group_of(file: Path, shard: Finished) -> Group:
    """The group in a file that an earlier run has finished."""
    try:
        with open(file, "rb") as opened:
            metadata = read_header(opened, file.name).metadata
        return _group(file.name, tuple(json.loads(metadata["names"])), metadata["moments"], shard)
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{file}: not moments ({error})") from None


def _group(file: str, names: tuple[str, ...], about: str, shard: Finished) -> Group:
    fields = json.loads(about)
    width, groups, rows, gram = (fields[name] for name in ("width", "groups", "count", "gram"))
    return Group(names, file, width, groups, rows, gram, shard.nbytes, shard.checksum)
