"""Arrays on disk in the safetensors layout: read with every offset checked, written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import FormatError
from lowbit.runtime.files.atomic import written_whole
from lowbit.runtime.files.json_members import Members, decoded, unique_keys

Array = npt.NDArray[Any]

NUMPY_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_NAMES = {np.dtype(text): name for name, text in NUMPY_DTYPES.items()}
# Bits per element of everything the format knows; what NumPy has no type for can still be found, copied and skipped.
DTYPE_BITS = {name: 8 * np.dtype(text).itemsize for name, text in NUMPY_DTYPES.items()} | {
    "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "C64": 64,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
# Limits of a header: bytes as the format has it, characters of an entry and of a name, and names in the metadata.
_MAX_HEADER, _MAX_ENTRY, _MAX_NAME, _MOST_METADATA = 100_000_000, 4096, 4096, 1 << 16
_MOST_BRACKETS = 8  # in the description of a tensor; nesting would take many times the memory of its text
_METADATA = "__metadata__"


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
    # Widest elements first keeps every array aligned without padding.
    order = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    entries = {}
    at = 0
    for name in order:
        a = arrays[name]
        entries[name] = Entry(_NAMES[a.dtype.newbyteorder("<")], a.shape, at, at + a.nbytes)
        at += a.nbytes
    text = header_bytes(entries, metadata)
    with written_whole(path, binary=True) as file:
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
    try:
        entries, metadata = _parsed(name, file.read(length).decode("utf-8"), size - 8 - length, dtypes)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:  # also integers of more digits than Python converts
        raise FormatError(f"{name}: the header is not JSON ({error})") from None
    return Header(entries, metadata, 8 + length)


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


def _parsed(name: str, text: str, available: int, dtypes: Iterable[str]) -> tuple[dict[str, Entry], dict[str, str]]:
    """(entries, metadata) of a header. Values are decoded one at a time, and only if they are short enough to be what
    they ought to be: nesting would take many times the memory of its text."""
    entries: dict[str, Entry] = {}
    metadata: dict[str, str] | None = None
    header = Members(text)
    if not header.begins:
        raise FormatError(f"{name}: the header is not a JSON object")
    for key, begin, end in header:
        if len(key) > _MAX_NAME:
            raise FormatError(f"{name}: a name of {len(key)} characters; names have at most {_MAX_NAME}")
        if key in entries or (key == _METADATA and metadata is not None):
            raise FormatError(f"{name}: {key!r} occurs twice in the header")
        if key == _METADATA:
            metadata = _read_metadata(name, text, begin)
        else:
            entries[key] = _read_entry(name, key, text[begin:end], available, dtypes)
    header.refuse_more()
    _check_places(name, entries, available)
    return entries, metadata or {}


def _read_metadata(name: str, text: str, begin: int) -> dict[str, str]:
    found: dict[str, str] = {}
    if text[begin] != "{":
        raise FormatError(f"{name}: {_METADATA} is not a mapping of strings")
    for key, at, _ in Members(text, begin):
        if text[at] != '"':
            raise FormatError(f"{name}: {_METADATA} is not a mapping of strings")
        if key in found or len(found) == _MOST_METADATA:
            raise FormatError(f"{name}: {_METADATA} has a name twice, or more than {_MOST_METADATA} names")
        found[key] = decoded(text, at)
    return found


def read_description(metadata: Mapping[str, str], name: str) -> dict[str, Any]:
    """What the metadata of a file that lowbit saved say of its tensor: a JSON object, not checked any further."""
    text = metadata.get("tensor", "")
    try:
        fields = json.loads(text) if text.count("{") + text.count("[") <= _MOST_BRACKETS else None
    except (ValueError, RecursionError):
        fields = None
    if metadata.get("format") != "lowbit" or not isinstance(fields, dict):
        raise FormatError(f"{name}: the metadata of the file describe no tensor of lowbit's")
    return fields


def _read_entry(name: str, key: str, text: str, available: int, dtypes: Iterable[str]) -> Entry:
    """One entry with its dtype, shape and place, each checked on its own."""
    entry = json.loads(text, object_pairs_hook=unique_keys) if len(text) <= _MAX_ENTRY else None
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{name}: entry {key!r} is not an object of dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in dtypes:
        raise FormatError(f"{name}: {key!r} has dtype {dtype!r}; known are {', '.join(dtypes)}")
    if not isinstance(shape, list) or len(shape) > 32 or not all(map(_is_natural, shape)):
        raise FormatError(f"{name}: {key!r} has a bad shape")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_natural, offsets)):
        raise FormatError(f"{name}: {key!r} has bad data_offsets")
    begin, end = offsets
    bits = DTYPE_BITS[dtype]
    if math.prod(n or 1 for n in shape) * bits >= 1 << 66:  # beyond NumPy even where it is empty
        raise FormatError(f"{name}: {key!r} has a bad shape")
    if end > available or 8 * (end - begin) != math.prod(shape) * bits:
        raise FormatError(
            f"{name}: {key!r} claims bytes {begin} to {end} for shape {shape} of {dtype}; the file has {available}"
        )
    return Entry(sys.intern(dtype), tuple(shape), begin, end)


def _is_natural(v: Any) -> bool:
    return isinstance(v, int) and not isinstance(v, bool) and v >= 0


def _check_places(name: str, entries: Mapping[str, Entry], available: int) -> None:
    """Together the entries fill the data without gap or overlap."""
    begins, ends = (np.fromiter((e[i] for e in entries.values()), np.int64, len(entries)) for i in (2, 3))
    order = np.lexsort((ends, begins))
    expected = np.concatenate([np.zeros(1, np.int64), ends[order]])
    wrong = np.flatnonzero(begins[order] != expected[:-1])
    if wrong.size:
        key = list(entries)[order[wrong[0]]]
        raise FormatError(f"{name}: {key!r} begins at byte {entries[key].begin}, expected {expected[wrong[0]]}")
    if expected[-1] != available:
        raise FormatError(f"{name}: {available - expected[-1]} bytes belong to no entry")
