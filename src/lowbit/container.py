"""Arrays on disk in the safetensors layout: read with every offset checked, written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.errors import FormatError
from lowbit.whole_file import written_whole

__all__ = ["read_arrays", "write_arrays"]

Array = npt.NDArray[Any]

_DTYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip
_NAMES = {np.dtype(text): name for name, text in _DTYPES.items()}
_MAX_HEADER = 100_000_000


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Array], metadata: Mapping[str, str]) -> None:
    """Writes the file beside its place, syncs it and renames it in: at every moment the old file is there, or
    the new one. Whatever fails, the old one stays and nothing is left behind."""
    target = Path(path)
    # Widest elements first keeps every array aligned without padding.
    order = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name in order:
        a = arrays[name]
        header[name] = {
            "dtype": _NAMES[a.dtype.newbyteorder("<")],
            "shape": list(a.shape),
            "data_offsets": [at, at + a.nbytes],
        }
        at += a.nbytes
    text = json.dumps(header, ensure_ascii=True).encode()
    text += b" " * (-len(text) % 8)
    with written_whole(target, binary=True) as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in order:
            a = np.ascontiguousarray(arrays[name], arrays[name].dtype.newbyteorder("<"))
            file.write(a.data.cast("B") if a.size else b"")


def read_arrays(path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """(arrays, metadata) of a file. Anything amiss is a FormatError; memory never exceeds the file's size."""
    name = os.fspath(path)
    with open(path, "rb") as file:
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
        entries = _checked_entries(name, header, size - 8 - length)
        body = np.empty(size - 8 - length, np.uint8)
        if file.readinto(body.data) != body.size:
            raise FormatError(f"{name}: the file ends early")
    arrays = {}
    for key, (dtype, shape, begin, end) in entries.items():
        array = np.frombuffer(body[begin:end], dtype).reshape(shape)
        arrays[key] = array if array.flags.aligned else array.copy()
    return arrays, metadata


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


def _checked_entries(
    name: str, header: dict[str, Any], available: int
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...], int, int]]:
    """Every entry with its dtype, shape and place; together they fill the data without gap or overlap."""

    def natural(v: Any) -> bool:
        return isinstance(v, int) and not isinstance(v, bool) and v >= 0

    entries = {}
    for key, entry in header.items():
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise FormatError(f"{name}: entry {key!r} lacks dtype, shape or data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise FormatError(f"{name}: {key!r} has dtype {dtype!r}; known are {', '.join(_DTYPES)}")
        if not isinstance(shape, list) or len(shape) > 32 or not all(map(natural, shape)):
            raise FormatError(f"{name}: {key!r} has a bad shape")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(natural, offsets)):
            raise FormatError(f"{name}: {key!r} has bad data_offsets")
        begin, end = offsets
        kind = np.dtype(_DTYPES[dtype])
        if math.prod(n or 1 for n in shape) * kind.itemsize >= 1 << 63:  # beyond NumPy even where it is empty
            raise FormatError(f"{name}: {key!r} has a bad shape")
        if end > available or end - begin != math.prod(shape) * kind.itemsize:
            raise FormatError(
                f"{name}: {key!r} claims bytes {begin} to {end} for shape {shape} of {dtype}; the file has {available}"
            )
        entries[key] = (kind, tuple(shape), begin, end)
    at = 0
    for key, (_, _, begin, end) in sorted(entries.items(), key=lambda item: item[1][2:]):
        if begin != at:
            raise FormatError(f"{name}: {key!r} begins at byte {begin}, expected {at}")
        at = end
    if at != available:
        raise FormatError(f"{name}: {available - at} bytes belong to no entry")
    return entries
