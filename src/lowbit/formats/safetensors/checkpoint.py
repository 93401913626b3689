"""Reading checkpoints in one or many safetensors files; headers are checked before any data is read."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import FormatError, Unsupported
from lowbit.runtime.files.container import DTYPE_BITS, NUMPY_DTYPES, read_header
from lowbit.runtime.files.json_members import Members, decoded, unique_keys

Array = npt.NDArray[Any]

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Limits of an index: its bytes, and the names beside the weight_map with the characters of each value.
_MAX_INDEX, _MOST_NOTES, _MAX_NOTE = 100_000_000, 1000, 1 << 16


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its dtype by the format's name ("BF16"), and the place of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int  # from the start of the file
    nbytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class Checkpoint:
    """The tensors of a `.safetensors` file, a folder, or an index of shards.

    Opening reads and checks the headers. `read` returns a tensor as a view of the mapped file, and `release` returns
    its memory to the system.

    >>> import tempfile
    >>> from lowbit.runtime.files.container import write_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_arrays(f"{folder}/model.safetensors", {"w": np.eye(2, dtype=np.float32)}, {})
    ...     with Checkpoint.open(folder) as checkpoint:
    ...         checkpoint.tensors["w"].shape, float(checkpoint.read("w").sum())
    ((2, 2), 2.0)
    """

    def __init__(self, folder: Path, files: tuple[Path, ...], index: Mapping[str, str] | None = None) -> None:
        self.folder, self.files = folder, files
        tensors: dict[str, TensorInfo] = {}
        metadata: dict[str, str] = {}
        for file in files:
            for info in self._tensors_of(file, metadata):
                if info.name in tensors:
                    raise FormatError(f"{file.name}: {info.name!r} is in {tensors[info.name].file.name} too")
                tensors[info.name] = info
        if index is not None:
            _check_index(index, tensors)
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(tensors)
        self.metadata: Mapping[str, str] = MappingProxyType(metadata)
        self._maps: dict[Path, mmap.mmap] = {}
        self._handles: dict[Path, int] = {}

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Checkpoint:
        """The checkpoint at a path; FormatError with the file and tensor where it is not valid."""
        given = Path(path)
        if given.is_dir():
            if (given / INDEX).exists():
                return cls.open(given / INDEX)
            if (given / SINGLE).exists():
                return cls(given, (inside(given, SINGLE, SINGLE),))
            found = sorted(f.name for f in given.glob("*.safetensors"))
            if not found:
                raise FormatError(f"{given}: no .safetensors file and no {INDEX} in this folder")
            return cls(given, tuple(inside(given, name, name) for name in found))
        if not given.exists():
            raise FormatError(f"{given}: there is no such file or folder")
        if given.name.endswith(".index.json"):
            index = read_index(given)
            return cls(given.parent, shards_of(given, index), index)
        return cls(given.parent, (given,))

    @property
    def nbytes(self) -> int:
        """Bytes of the files."""
        return sum(file.stat().st_size for file in self.files)

    def read(self, name: str) -> Array:
        """The tensor as a read-only view of the mapped file. bfloat16 is ml_dtypes' type where that is installed, else
        uint16; Unsupported for types that NumPy does not have."""
        info = self.tensors[name]
        return as_array(self._bytes(info), info.dtype, info.shape, name)

    def release(self, name: str) -> None:
        """Release the pages of a tensor; its views stay valid and are read again on access."""
        info = self.tensors[name]
        mapped = self._maps.get(info.file)
        # Whole pages only; neighbours on the first and last page are read again on access.
        start = info.offset // mmap.PAGESIZE * mmap.PAGESIZE
        if mapped is not None and info.nbytes and hasattr(mapped, "madvise"):
            mapped.madvise(mmap.MADV_DONTNEED, start, info.offset + info.nbytes - start)

    def read_into(self, name: str, start: int, buffer: Array) -> None:
        """Copy the bytes of a tensor from `start` on into a buffer. Unlike a mapping, this raises no signal where the
        file shrinks meanwhile."""
        info = self.tensors[name]
        if info.file not in self._handles:
            self._handles[info.file] = os.open(info.file, os.O_RDONLY)
        view, at = memoryview(buffer.data), info.offset + start
        while view.nbytes:
            count = os.preadv(self._handles[info.file], [view], at)
            if not count:
                raise FormatError(f"{info.file.name}: the file ends early, in {name!r}")
            view, at = view[count:], at + count

    def _tensors_of(self, file: Path, metadata: dict[str, str]) -> list[TensorInfo]:
        try:
            with open(file, "rb") as opened:
                header = read_header(opened, file.name)
        except OSError as error:
            raise FormatError(f"{file.name}: {error.strerror or error}") from None
        metadata.update(header.metadata)
        found = []
        while header.entries:  # emptied on the way, to hold each description once
            name, e = header.entries.popitem()
            if DTYPE_BITS[e.dtype] % 8 and (e.end - e.begin) * 8 % DTYPE_BITS[e.dtype]:
                raise FormatError(f"{file.name}: {name!r} does not fill whole elements of {e.dtype}")
            found.append(TensorInfo(name, e.dtype, e.shape, file, header.data + e.begin, e.end - e.begin))
        return sorted(found, key=lambda info: info.offset)

    def _bytes(self, info: TensorInfo) -> Array:
        if not info.nbytes:
            return np.zeros(0, np.uint8)
        if info.file not in self._maps:
            with open(info.file, "rb") as file:
                self._maps[info.file] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._maps[info.file], np.uint8, info.nbytes, info.offset)

    def close(self) -> None:
        """Close the maps and files; views that were returned keep their map alive."""
        self._maps.clear()
        while self._handles:
            os.close(self._handles.popitem()[1])

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def as_array(data: Array, dtype: str, shape: tuple[int, ...], name: str = "tensor") -> Array:
    """Bytes as an array, without a copy where they are aligned.

    >>> as_array(np.array([0, 0, 128, 63], np.uint8), "F32", (1,))
    array([1.], dtype=float32)
    """
    if dtype == "BF16":
        kind = _bfloat16()
    elif dtype in NUMPY_DTYPES:
        kind = np.dtype(NUMPY_DTYPES[dtype])
    else:
        raise Unsupported(f"{name}: {dtype}; NumPy has no such type")
    array = data.view(kind) if data.size else np.zeros(0, kind)
    return (array if array.flags.aligned else array.copy()).reshape(shape)


def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16)
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found


def shards_of(path: Path, index: Mapping[str, str]) -> tuple[Path, ...]:
    """The files that an index names, which must lie in its folder."""
    return tuple(inside(path.parent, name, path.name) for name in sorted(set(index.values())))


def read_index(path: Path) -> dict[str, str]:
    """The weight_map of an index: from tensors to files."""
    size = path.stat().st_size
    if size > _MAX_INDEX:
        raise FormatError(f"{path.name}: {size} bytes; an index has at most {_MAX_INDEX}")
    named: dict[str, str] = {}
    seen: set[str] = set()
    try:
        text = path.read_bytes().decode("utf-8")
        index = Members(text)
        for key, begin, end in index:
            if key in seen or len(seen) == _MOST_NOTES:
                raise FormatError(f"{path.name}: {key[:80]!r} occurs twice, or is one of more than {_MOST_NOTES} names")
            seen.add(key)
            if key == "weight_map" and text[begin] == "{":
                named = _read_weight_map(path.name, text, begin)
            elif end - begin > _MAX_NOTE:
                raise FormatError(
                    f"{path.name}: {key[:80]!r} has {end - begin} characters; expected {_MAX_NOTE} at most"
                )
            else:
                json.loads(text[begin:end], object_pairs_hook=unique_keys)
        index.refuse_more()
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path.name}: not JSON ({error})") from None
    if not named:
        raise FormatError(f"{path.name}: no weight_map of tensor names to file names")
    return named


def _read_weight_map(said_by: str, text: str, begin: int) -> dict[str, str]:
    found: dict[str, str] = {}
    files: dict[str, str] = {}  # one string for each file, however many tensors are in it
    for tensor, at, _ in Members(text, begin):
        if tensor in found:
            raise FormatError(f"{said_by}: {tensor!r} occurs twice")
        if text[at] != '"':
            raise FormatError(f"{said_by}: {tensor!r} has no file name; no weight_map of tensor names to file names")
        file = decoded(text, at)
        found[tensor] = files.setdefault(file, file)
    return found


def inside(folder: Path, name: str, said_by: str) -> Path:
    """The file of this name; FormatError where it does not lie in the folder."""
    parts = Path(name).parts
    if not name or Path(name).is_absolute() or ".." in parts or "\0" in name or "\\" in name:
        raise FormatError(f"{said_by}: {name!r} leads out of the folder")
    file = folder / name
    try:
        there = file.is_file()
        root, real = folder.resolve(), file.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # too long, not a file name, circular links
        raise FormatError(f"{said_by}: {name[:80]!r} is named ({error})") from None
    if not there:
        raise FormatError(f"{said_by}: {name!r} is named, but there is no such file")
    # The hub's cache keeps the files of snapshots/<revision> in blobs beside it, behind links.
    blobs = root.parent.parent / "blobs"
    if not real.is_relative_to(root) and not (root.parent.name == "snapshots" and real.is_relative_to(blobs)):
        raise FormatError(f"{said_by}: {name!r} is a link that leads out of the folder")
    return file


def _check_index(index: Mapping[str, str], tensors: Mapping[str, TensorInfo]) -> None:
    for name, shard in index.items():
        if name not in tensors:
            raise FormatError(f"{shard}: the index says {name!r} is in this file, but it is not")
        if tensors[name].file.name != Path(shard).name:
            raise FormatError(f"{shard}: the index says {name!r} is in this file; it is in {tensors[name].file.name}")
    unnamed = next((name for name in tensors if name not in index), None)
    if unnamed is not None:
        raise FormatError(f"{tensors[unnamed].file.name}: the index does not name {unnamed!r}")
