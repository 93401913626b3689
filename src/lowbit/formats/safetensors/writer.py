"""Safetensors files written as they are computed: sizes first, then the bytes of each tensor as they come."""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.runtime.files.atomic import sync_directory
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
    """The place of each tensor: widest elements first, so that all are aligned without padding, else as they come.

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

    The tensors may come in any order, and pieces of several may be mixed; the pieces of one come in theirs. `close`
    syncs the file and renames it in; leaving the block by an error removes it.

    >>> import tempfile
    >>> from lowbit.runtime.files.container import read_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with ShardWriter(Path(folder) / "a", [Stored("x", "F32", (2,))], {"format": "pt"}) as shard:
    ...         shard.write("x", np.float32([1, 2]))
    ...     read_arrays(Path(folder) / "a")[0]["x"]
    array([1., 2.], dtype=float32)
    """

    def __init__(self, path: Path, tensors: Iterable[Stored], metadata: Mapping[str, str]) -> None:
        self.path = path
        entries = shard_entries(tensors)
        header = header_bytes(entries, metadata)
        self.nbytes = len(header) + max((e.end for e in entries.values()), default=0)
        self._header = header
        self._cursors = {name: _Cursor(len(header) + e.begin, len(header) + e.end) for name, e in entries.items()}
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        self._handle: int | None = os.open(self._temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        try:
            os.truncate(self._handle, self.nbytes)
            _write_all(self._handle, memoryview(header), 0)
        except BaseException:
            self.abandon()
            raise

    def write(self, name: str, data: Array | bytes) -> None:
        """The next bytes of a tensor, in C order and little-endian."""
        cursor = self._cursors[name]
        view = memoryview(data) if isinstance(data, bytes) else _view_of(data)
        if cursor.at + view.nbytes > cursor.end:
            raise InvalidProblem(f"{name}: {view.nbytes} bytes more, where {cursor.end - cursor.at} were left")
        assert self._handle is not None, "the file is closed"
        _write_all(self._handle, view, cursor.at)
        cursor.at += view.nbytes
        cursor.crc = zlib.crc32(view, cursor.crc)

    @property
    def checksum(self) -> int:
        """What `checksum` finds in the finished file, without reading it."""
        return _combined(self._header, [cursor.crc for cursor in self._cursors.values()])

    def flush(self) -> None:
        """Has the system write what it was given so far, so that little is left to wait for at the end."""
        if self._handle is not None:
            os.fdatasync(self._handle)

    def close(self) -> None:
        """Syncs the file and puts it in its place; every byte of every tensor must have come."""
        assert self._handle is not None, "the file is closed"
        for name, cursor in self._cursors.items():
            if cursor.at != cursor.end:
                raise InvalidProblem(f"{name}: {cursor.end - cursor.at} bytes were never written")
        os.fsync(self._handle)
        os.close(self._handle)
        self._handle = None
        os.replace(self._temporary, self.path)
        sync_directory(self.path.parent)

    def abandon(self) -> None:
        """Removes what was written."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.close()
        finally:
            self.abandon()


def checksum(path: Path) -> int:
    """A number that tells a file that was torn or changed by accident, no more: CRC-32 over the header and over the
    CRC-32 of each tensor. FormatError where there is no sound header."""
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
    # Empty tensors share their place with a neighbour, so that their order is not known from the file: they are 0.
    return zlib.crc32(b"".join(crc.to_bytes(4, "little") for crc in parts if crc), zlib.crc32(header))


def _view_of(data: Array) -> memoryview:
    return memoryview(np.ascontiguousarray(data).reshape(-1).view(np.uint8).data)


def _write_all(handle: int, view: memoryview, at: int) -> None:
    while view.nbytes:
        count = os.pwrite(handle, view, at)
        view, at = view[count:], at + count
