"""Writing safetensors files as they are computed: the header first, then the bytes of each tensor in any order."""

from __future__ import annotations

import math
import os
import sys
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.runtime.files.atomic import written_whole
from lowbit.runtime.files.container import DTYPE_BITS, Entry, header_bytes, read_header

Array = npt.NDArray[Any]
_PIECE = 1 << 22


class Stored(NamedTuple):
    """A tensor that will be written: its name, dtype by the format's name, and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BITS[self.dtype] // 8


def shard_entries(tensors: Iterable[Stored]) -> dict[str, Entry]:
    """The place of each tensor, in order of falling element width, which aligns all of them without padding.

    >>> shard_entries([Stored("a", "I8", (3,)), Stored("b", "F32", (1,))])["a"].begin
    4
    """
    order = sorted(tensors, key=lambda t: -DTYPE_BITS[t.dtype])
    entries: dict[str, Entry] = {}
    at = 0
    for t in order:
        if t.name in entries:
            raise InvalidProblem(f"{t.name}: two tensors of this name in one file")
        entries[t.name] = Entry(t.dtype, t.shape, at, at + t.nbytes)
        at += t.nbytes
    return entries


@dataclass
class _Cursor:
    at: int
    end: int
    crc: int = 0


class ShardWriter:
    """A file that is there whole or not at all, written a piece of a tensor at a time.

    Pieces of several tensors may be interleaved; those of one tensor are written in order. Leaving the block syncs
    the file and renames it in, or removes it after an error.

    >>> import tempfile
    >>> from lowbit.runtime.files.container import read_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ShardWriter(Path(folder) / "a", [Stored("x", "F32", (2,))], {"format": "pt"}) as shard:
    ...         shard.write("x", np.float32([1, 2]))
    ...     read_arrays(Path(folder) / "a")[0]["x"]
    array([1., 2.], dtype=float32)
    """

    def __init__(self, path: Path, tensors: Iterable[Stored], metadata: Mapping[str, str]) -> None:
        entries = shard_entries(tensors)
        self._header = header = header_bytes(entries, metadata)
        self.nbytes = len(header) + max((e.end for e in entries.values()), default=0)
        self._cursors = {name: _Cursor(len(header) + e.begin, len(header) + e.end) for name, e in entries.items()}
        self._whole = written_whole(path, binary=True)

    def __enter__(self) -> ShardWriter:
        self._handle = self._whole.__enter__().fileno()
        try:
            os.truncate(self._handle, self.nbytes)
            _write_all(self._handle, memoryview(self._header), 0)
        except BaseException:
            self._whole.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Sync the file and put it in its place, if every byte of every tensor was written."""
        left = next(((name, c.end - c.at) for name, c in self._cursors.items() if c.at != c.end), None)
        if kind is None and left is not None:
            kind, error = InvalidProblem, InvalidProblem(f"{left[0]}: {left[1]} bytes were never written")
            self._whole.__exit__(kind, error, at)
            raise error
        self._whole.__exit__(kind, error, at)

    def write(self, name: str, data: Array | bytes) -> None:
        """The next bytes of a tensor, in C order and little-endian."""
        cursor = self._cursors[name]
        given = data if isinstance(data, bytes) else np.ascontiguousarray(data).reshape(-1).view(np.uint8).data
        view = memoryview(given)
        if cursor.at + view.nbytes > cursor.end:
            raise InvalidProblem(f"{name}: {view.nbytes} bytes; expected at most {cursor.end - cursor.at} more")
        _write_all(self._handle, view, cursor.at)
        cursor.at += view.nbytes
        cursor.crc = zlib.crc32(view, cursor.crc)

    @property
    def checksum(self) -> int:
        """The checksum of the finished file, without reading it."""
        return _combined(self._header, [cursor.crc for cursor in self._cursors.values()])

    def flush(self) -> None:
        """Ask the system to write what it was given so far, so that little remains for the end."""
        os.fdatasync(self._handle)


def checksum(path: Path) -> int:
    """A checksum that detects accidental changes: CRC-32 over the header and over the CRC-32 of each tensor.

    FormatError where the header is not valid.
    """
    buffer = bytearray(_PIECE)
    found = []
    with open(path, "rb") as file:
        header = read_header(file, path.name)
        file.seek(0)
        text = file.read(header.data)
        for entry in sorted(header.entries.values(), key=lambda e: (e.begin, e.end)):
            crc, left = 0, entry.end - entry.begin
            while left:
                count = file.readinto(memoryview(buffer)[: min(left, _PIECE)])
                if not count:
                    raise FormatError(f"{path.name}: the file ends early")
                crc, left = zlib.crc32(memoryview(buffer)[:count], crc), left - count
            found.append(crc)
    return _combined(text, found)


def _combined(header: bytes, parts: list[int]) -> int:
    # Empty tensors share their place with a neighbour, so that the file does not tell their order: they count as 0.
    return zlib.crc32(b"".join(crc.to_bytes(4, "little") for crc in parts if crc), zlib.crc32(header))


def _write_all(handle: int, view: memoryview, at: int) -> None:
    while view.nbytes:
        count = os.pwrite(handle, view, at)
        view, at = view[count:], at + count
