"""Reading folders of statistics: an index, and a safetensors file for each Moments."""

from __future__ import annotations

import hashlib
import json
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lowbit.calibration import Moments
from lowbit.formats.safetensors.checkpoint import inside
from lowbit.formats.safetensors.writer import checksum
from lowbit.formats.statistics.data import DataPart
from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.runtime.files.container import read_arrays

INDEX = "statistics.json"
VERSION = 1
_MAX_INDEX = 1 << 28
_MOST_SORTED = 1000  # characters of a name


@dataclass(frozen=True)
class Group:
    """Layers that multiply the same rows, and so share one Moments: their names, and what the index says of it."""

    names: tuple[str, ...]
    file: str
    width: int
    groups: int
    rows: int
    has_gram: bool
    nbytes: int
    checksum: int

    @property
    def kind(self) -> str:
        """What was collected."""
        return "E[x xᵀ]" if self.has_gram else "E[x²]"

    def to_dict(self) -> dict[str, Any]:
        """Plain types for JSON."""
        return {
            "names": list(self.names), "width": self.width, "groups": self.groups, "rows": self.rows,
            "gram": self.has_gram, "bytes": self.nbytes, "checksum": self.checksum,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, file: str, found: Mapping[str, Any]) -> Group:
        """The group of `to_dict`; raises KeyError, TypeError or ValueError for any other mapping."""
        names = tuple(found["names"])
        numbers = [found[name] for name in ("width", "groups", "rows", "bytes", "checksum")]
        good = names and all(isinstance(n, str) for n in names) and all(type(n) is int and n >= 0 for n in numbers)
        if not good:
            raise ValueError(f"{file}: expected names and numbers")
        width, groups, rows, nbytes, crc = numbers
        return cls(names, file, width, groups, rows, found["gram"] is True, nbytes, crc)


class Statistics(Mapping[str, Moments]):
    """Moments by the name of a layer's weight, read from their files one at a time.

    Layers that share their inputs share one object. What was read last is kept, and beyond that only what the caller
    holds: with one layer after the other, one Moments is in memory.

    >>> import tempfile
    >>> import numpy as np
    >>> from lowbit.formats.statistics import save_statistics
    >>> m = Moments(2, name="hidden")
    >>> m.add(np.float32([[1, 2], [3, -4]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_statistics({"q_proj": m, "k_proj": m}, f"{folder}/stats", model="m", data=DataPart("d", 1))
    ...     stats = open_statistics(f"{folder}/stats")
    ...     stats["q_proj"] is stats["k_proj"], stats["q_proj"].diagonal(), stats.of("q_proj").rows
    (True, array([ 5., 10.]), 2)
    """

    def __init__(
        self, folder: Path, model: str, data: tuple[DataPart, ...], options: Mapping[str, Any], groups: Iterable[Group]
    ) -> None:
        self.folder, self.model, self.data, self.options = folder, model, data, options
        self._groups = {name: group for group in groups for name in group.names}
        self._read: weakref.WeakValueDictionary[str, Moments] = weakref.WeakValueDictionary()
        self._last: Moments | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups)

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, name: object) -> bool:
        return name in self._groups

    def __getitem__(self, name: str) -> Moments:
        group = self._groups[name]
        found = self._read.get(group.file)
        if found is None:
            self._last = None  # free it before the next one is read
            found = self._read[group.file] = read_group(self.folder, group)
        self._last = found
        return found

    def of(self, name: str) -> Group:
        """What the index says of a layer's statistics; nothing else is read."""
        return self._groups[name]

    def shared(self) -> list[Group]:
        """The groups of layers that share one Moments, in the order of their first names."""
        return list(dict.fromkeys(self._groups.values()))

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        return sum(group.nbytes for group in self.shared())

    @property
    def records(self) -> int:
        """The number of records whose rows were collected; of shards, about their share of the data's."""
        return sum(part.records * len(part.parts) // part.of for part in self.data)

    def refuse_other(self, model: str) -> None:
        """Raise where the statistics are not of the model with this fingerprint."""
        if model != self.model:
            raise InvalidProblem(
                f"{self.folder}: statistics of another model ({self.model[:12]}..., not {model[:12]}...); "
                "collect those of this one (lowbit observe)"
            )

    def notes(self) -> list[str]:
        """What a user should know before relying on the statistics: shards that are missing, and too few rows."""
        made = [
            f"The statistics lack shard {', '.join(part.missing)} of the data; observe and merge the rest."
            for part in self.data
            if part.missing
        ]
        few = [g for g in self.shared() if g.has_gram and g.rows < g.width]
        if few:
            worst = max(few, key=lambda g: g.width / g.rows)
            layers = sum(len(g.names) for g in few)
            have = "1 layer has" if layers == 1 else f"{layers} layers have"
            made.append(
                f"{have} more inputs than rows of data ({worst.names[0]}: {worst.width} inputs, {worst.rows} rows), "
                "so that the Gram matrix is singular and gptq fits the noise of few rows; give more data."
            )
        return made

    def __repr__(self) -> str:
        return f"Statistics({str(self.folder)!r}: {len(self)} layers, {len(self.shared())} files)"


def is_statistics(path: str | os.PathLike[str]) -> bool:
    """Whether a folder has the index of statistics."""
    return (Path(path) / INDEX).is_file()


def open_statistics(folder: str | os.PathLike[str]) -> Statistics:
    """The statistics in a folder; only their index is read. FormatError where it is not valid."""
    path = Path(folder)
    if not is_statistics(path):
        unfinished = path.with_name(f".{path.name}.partial")
        remedy = f"an unfinished run is in {unfinished.name}; resume it" if unfinished.is_dir() else "lowbit observe"
        what = "not a folder of statistics" if path.exists() else "not there"
        raise InvalidProblem(f"{path}: {what}; expected a folder with {INDEX} ({remedy})")
    index = path / INDEX
    if index.stat().st_size > _MAX_INDEX:
        raise FormatError(f"{index}: {index.stat().st_size} bytes; an index has at most {_MAX_INDEX}")
    try:
        found = json.loads(index.read_bytes().decode("utf-8"))
        if found["version"] != VERSION:
            raise FormatError(f"{index}: version {found['version']!r}; this lowbit reads {VERSION}")
        groups = [Group.from_dict(file, about) for file, about in found["files"].items()]
        names = [name for group in groups for name in group.names]
        if len(set(names)) != len(names):
            raise ValueError("a layer is in two files")
        data = tuple(DataPart.from_dict(part) for part in found["data"])
        model, options = found["model"], found["options"]
        if not isinstance(model, str) or not isinstance(options, dict):
            raise ValueError("expected a model and options")
    except FormatError as error:
        raise FormatError(f"{index}: {error}" if str(index) not in str(error) else str(error)) from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise FormatError(f"{index}: not an index of statistics ({type(error).__name__}: {error})") from None
    return Statistics(path, model, data, options, sorted(groups, key=lambda group: _natural(group.names[0])))


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts layer 2 before layer 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in name[:_MOST_SORTED].split(".")]


def read_group(folder: Path, group: Group) -> Moments:
    """The moments in the file of a group; FormatError, with the file, where it is not as it was written."""
    file = inside(folder, group.file, str(folder / INDEX))
    size = file.stat().st_size
    if size != group.nbytes:
        raise FormatError(f"{file}: {size} bytes; expected {group.nbytes}; copy it again, or observe again")
    if checksum(file) != group.checksum:
        raise FormatError(f"{file}: its content has changed since it was written; copy it again, or observe again")
    arrays, metadata = read_arrays(file)
    try:
        return Moments.from_arrays(arrays, metadata["moments"])
    except (FormatError, KeyError) as error:
        raise FormatError(f"{file}: not moments ({error})") from None


def file_of(names: Iterable[str]) -> str:
    """The name of the file for layers that share their inputs, which depends on their names alone."""
    return hashlib.sha256(json.dumps(sorted(names)).encode()).hexdigest()[:24] + ".safetensors"
