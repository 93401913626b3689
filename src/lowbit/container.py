"""Arrays on disk in the safetensors layout: read with every offset checked, written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.errors import FormatError
from lowbit.whole_file import written_whole

__all__ = [
    "DTYPE_BITS",
    "NUMPY_DTYPES",
    "Entry",
    "Header",
    "header_bytes",
    "read_arrays",
    "read_header",
    "write_arrays",
]

Array = npt.NDArray[Any]

NUMPY_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_NAMES = {np.dtype(text): name for name, text in NUMPY_DTYPES.items()}
# Bits an element of everything the format knows; what NumPy has no type for can still be found, copied and skipped.
DTYPE_BITS = {name: 8 * np.dtype(text).itemsize for name, text in NUMPY_DTYPES.items()} | {
    "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
_MAX_HEADER = 100_000_000


class Entry(NamedTuple):
    """One array of a file: its dtype by the format's name, and its bytes counted from the end of the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """What a file holds; `data` is where in the file the arrays begin."""

    entries: dict[str, Entry]
    metadata: dict[str, str]
    data: int


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Writes the file beside its place, syncs it and renames it in: at every moment the old file is there, or
    the new one. Whatever fails, the old one stays and nothing is left behind."""
    target = Path(path)
    # Widest elements first keeps every array aligned without padding.
    order = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    entries = {}
    at = 0
    for name in order:
        a = arrays[name]
        entries[name] = Entry(_NAMES[a.dtype.newbyteorder("<")], a.shape, at, at + a.nbytes)
        at += a.nbytes
    text = header_bytes(entries, metadata)
    with written_whole(target, binary=True) as file:
        file.write(text)
        for name in order:
            a = np.ascontiguousarray(arrays[name], arrays[name].dtype.newbyteorder("<"))
            file.write(a.data.cast("B") if a.size else b"")


def header_bytes(entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> bytes:
    """What stands before the arrays: the length, and the header padded so that they begin at a multiple of 8.

    >>> header_bytes({"a": Entry("U8", (2,), 0, 2)}, {})[8:]
    b'{"__metadata__": {}, "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}'
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    for name, e in entries.items():
        header[name] = {"dtype": e.dtype, "shape": list(e.shape), "data_offsets": [e.begin, e.end]}
    text = json.dumps(header, ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def read_header(file: IO[bytes], name: str, dtypes: Iterable[str] = DTYPE_BITS) -> Header:
    """The header of a file open at its start, every offset checked against the file's size; FormatError otherwise."""
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    if len(prefix) < 8:
        raise FormatError(f"{name}: {size} bytes are too few for a safetensors file")
    (length,) = struct.unpack("<Q", prefix)
    if length > min(size - 8, _MAX_HEADER):
        raise FormatError(f"{name}: the header claims {length} bytes, the file has {size - 8}")
    header = _parse(name, file.read(length))
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise FormatError(f"{name}: __metadata__ is not a mapping of strings")
    return Header(_checked_entries(name, header, size - 8 - length, dtypes), metadata, 8 + length)


def read_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """(arrays, metadata) of a file. Anything amiss is a FormatError; memory never exceeds the file's size."""
    name = os.fspath(path)
    with open(path, "rb") as file:
        header = read_header(file, name, NUMPY_DTYPES)
        body = np.empty(os.fstat(file.fileno()).st_size - header.data, np.uint8)
        if file.readinto(body.data) != body.size:
            raise FormatError(f"{name}: the file ends early")
    arrays = {}
    for key, e in header.entries.items():
        array = np.frombuffer(body[e.begin : e.end], np.dtype(NUMPY_DTYPES[e.dtype])).reshape(e.shape)
        arrays[key] = array if array.flags.aligned else array.copy()
    return arrays, header.metadata


def _parse(name: str, text: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            raise FormatError(f"{name}: a key occurs twice in the header")
        return made

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:  # also integers of more digits than Python converts
        raise FormatError(f"{name}: the header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise FormatError(f"{name}: the header is not a JSON object")
    return header


def _checked_entries(name: str, header: dict[str, Any], available: int, dtypes: Iterable[str]) -> dict[str, Entry]:
    """Every entry with its dtype, shape and place; together they fill the data without gap or overlap."""

    def natural(v: Any) -> bool:
        return isinstance(v, int) and not isinstance(v, bool) and v >= 0

    entries = {}
    for key, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise FormatError(f"{name}: entry {key!r} lacks dtype, shape or data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in dtypes:
            raise FormatError(f"{name}: {key!r} has dtype {dtype!r}; known are {', '.join(dtypes)}")
        if not isinstance(shape, list) or len(shape) > 32 or not all(map(natural, shape)):
            raise FormatError(f"{name}: {key!r} has a bad shape")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(natural, offsets)):
            raise FormatError(f"{name}: {key!r} has bad data_offsets")
        begin, end = offsets
        bits = DTYPE_BITS[dtype]
        if math.prod(n or 1 for n in shape) * bits >= 1 << 66:  # beyond NumPy even where it is empty
            raise FormatError(f"{name}: {key!r} has a bad shape")
        if end > available or 8 * (end - begin) != math.prod(shape) * bits:
            raise FormatError(
                f"{name}: {key!r} claims bytes {begin} to {end} for shape {shape} of {dtype}; the file has {available}"
            )
        entries[key] = Entry(dtype, tuple(shape), begin, end)
    at = 0
    for key, e in sorted(entries.items(), key=lambda item: item[1][2:]):
        if e.begin != at:
            raise FormatError(f"{name}: {key!r} begins at byte {e.begin}, expected {at}")
        at = e.end
    if at != available:
        raise FormatError(f"{name}: {available - at} bytes belong to no entry")
    return entries
