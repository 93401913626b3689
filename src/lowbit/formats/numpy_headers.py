"""The headers of .npy and .npz files: nothing is unpickled, and no more than a header is ever decompressed."""

from __future__ import annotations

import io
import math
import struct
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO

from numpy.lib import format as npy

from lowbit.formats.inspection import Inspection, StoredTensor
from lowbit.numerics.errors import FormatError

_MAX_HEADER = 1 << 16
_BAD = ValueError, LookupError, OverflowError, EOFError, RuntimeError
_BAD_ARCHIVE = *_BAD, zipfile.BadZipFile, zlib.error, struct.error, OSError
# What NumPy's reading of a header as Python literals can raise.
_BAD_HEADER = *_BAD, SyntaxError, TypeError, MemoryError, tokenize.TokenError


def inspect_numpy(file: Path) -> Inspection:
    """The arrays of a file; each declared size is compared with the file."""
    size = file.stat().st_size
    with open(file, "rb") as opened:
        if opened.read(6) == b"\x93NUMPY":
            opened.seek(0)
            return Inspection(str(file), "npy", size, (_array(opened, size, file.stem, str(file)),))
    try:
        with zipfile.ZipFile(file) as archive:
            found = tuple(_member(archive, m, str(file)) for m in archive.infolist() if not m.is_dir())
    except FormatError:
        raise
    except _BAD_ARCHIVE as error:
        raise FormatError(f"{file}: not an archive of arrays ({error})") from None
    return Inspection(str(file), "npz", size, found)


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: str) -> StoredTensor:
    name = member.filename.removesuffix(".npy")
    with archive.open(member) as opened:
        return _array(opened, member.file_size, name, f"{file}: {name!r}")


def _array(opened: IO[bytes], size: int, name: str, where: str) -> StoredTensor:
    start = opened.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY" or start[6] not in (1, 2, 3):
        raise FormatError(f"{where}: not a NumPy array")
    # NumPy would read as much as the length claims before it checks it.
    field = opened.read(2 if start[6] == 1 else 4)
    length = struct.unpack("<H" if start[6] == 1 else "<I", field)[0] if len(field) in (2, 4) else _MAX_HEADER + 1
    if length > min(_MAX_HEADER, size):
        raise FormatError(f"{where}: the header claims {length} bytes, the array has {size}")
    header = io.BytesIO(field + opened.read(length))
    try:
        read = npy.read_array_header_1_0 if start[6] == 1 else npy.read_array_header_2_0
        shape, _, dtype = read(header)
    except _BAD_HEADER as error:
        reason = (str(error).splitlines() or ["no reason"])[0]
        raise FormatError(f"{where}: a bad header ({reason[:200]})") from None
    stored = size - len(start) - len(field) - length
    if dtype.hasobject:
        return StoredTensor(name, "object (pickled)", tuple(shape), stored)
    nbytes = math.prod(shape) * dtype.itemsize
    if any(n < 0 for n in shape) or nbytes != stored:
        raise FormatError(f"{where}: shape {tuple(shape)} of {dtype.name} needs {nbytes} bytes, there are {stored}")
    return StoredTensor(name, dtype.name, tuple(shape), nbytes)
