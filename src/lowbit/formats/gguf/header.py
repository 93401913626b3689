"""The header of a GGUF file, every length checked against the file before it is used."""

from __future__ import annotations

import math
import os
import struct
from collections import Counter
from pathlib import Path
from typing import IO, Any

from lowbit.formats.inspection import Inspection, QuantizationFound, StoredTensor
from lowbit.numerics.errors import FormatError, Unsupported

# number: (name, elements per block, bytes per block) of the types that files store.
GGML_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_MAX_NAME = 1 << 16


class _Reader:
    def __init__(self, file: IO[bytes], name: str) -> None:
        self.file, self.name = file, name
        self.left = os.fstat(file.fileno()).st_size
        self.size = self.left

    def take(self, count: int, what: str) -> bytes:
        self._spend(count, what)
        return self.file.read(count)

    def skip(self, count: int, what: str) -> None:
        self._spend(count, what)
        self.file.seek(count, os.SEEK_CUR)

    def number(self, form: str, what: str) -> Any:
        return struct.unpack(f"<{form}", self.take(struct.calcsize(f"<{form}"), what))[0]

    def text(self, what: str) -> str:
        length = self.number("Q", what)
        if length > _MAX_NAME:
            raise FormatError(f"{self.name}: {what} claims {length} bytes; names have at most {_MAX_NAME}")
        return self.take(length, what).decode("utf-8", "replace")

    def _spend(self, count: int, what: str) -> None:
        if count > self.left:
            raise FormatError(f"{self.name}: {what} claims {count} bytes, the file has {self.left} left")
        self.left -= count


def inspect_gguf(file: Path) -> Inspection:
    """The tensors of a GGUF file, shapes with the slowest dimension first, as NumPy has them."""
    with open(file, "rb") as opened:
        r = _Reader(opened, str(file))
        if r.take(4, "the magic") != b"GGUF":
            raise FormatError(f"{file}: not a GGUF file")
        version = r.number("I", "the version")
        if version not in (2, 3):
            raise Unsupported(f"{file}: GGUF version {version}; 2 and 3 in little-endian order are read")
        count, pairs = r.number("Q", "the number of tensors"), r.number("Q", "the number of keys")
        for claimed, least, what in ((count, 24, "tensors"), (pairs, 12, "keys")):
            if claimed * least > r.left:
                raise FormatError(f"{file}: {claimed} {what} claimed, more than {r.left} bytes can hold")
        facts: dict[str, Any] = {}
        for _ in range(pairs):
            key = r.text("a key")
            value = _value(r, r.number("I", key), key)
            if value is not None:
                facts[key] = value
        infos = [_info(r) for _ in range(count)]
        twice = next((n for n, seen in Counter(i[0] for i in infos).items() if seen > 1), None)
        if twice is not None:
            raise FormatError(f"{file}: {twice!r} occurs twice")
        alignment = facts.get("general.alignment", 32)
        if not isinstance(alignment, int) or isinstance(alignment, bool) or alignment < 1:
            raise FormatError(f"{file}: general.alignment is {alignment!r}")
        data = r.size - -(-(r.size - r.left) // alignment) * alignment
    tensors = [_tensor(file, *info, data) for info in infos]
    end = 0
    for (_, _, _, offset), t in sorted(zip(infos, tensors, strict=True), key=lambda both: (both[0][3], both[1].nbytes)):
        if offset < end:
            raise FormatError(f"{file}: {t.name!r} begins at byte {offset}, inside another tensor")
        end = offset + t.nbytes
    shown = {k.removeprefix("general."): str(v) for k, v in facts.items() if k in _SHOWN}
    return Inspection(str(file), f"gguf {version}", r.size, tuple(tensors), _found(tensors), shown)


_SHOWN = ("general.architecture", "general.name", "general.file_type", "general.quantization_version")


def _value(r: _Reader, kind: int, key: str, depth: int = 0) -> Any:
    """A scalar or short string; None for arrays and long strings, which are skipped."""
    if kind in _SCALARS:
        return r.number(_SCALARS[kind], key)
    if kind == _TEXT:
        length = r.number("Q", key)
        if length <= _MAX_NAME:
            return r.take(length, key).decode("utf-8", "replace")
        r.skip(length, key)
    elif kind == _ARRAY and depth < 4:
        inner, length = r.number("I", key), r.number("Q", key)
        if inner in _SCALARS:
            r.skip(length * struct.calcsize(f"<{_SCALARS[inner]}"), key)
        else:
            if length * 8 > r.left:
                raise FormatError(f"{r.name}: {key!r} claims {length} entries, the file has {r.left} bytes left")
            for _ in range(length):
                _value(r, inner, key, depth + 1)
    else:
        raise FormatError(f"{r.name}: {key!r} has unknown type {kind}")
    return None


def _info(r: _Reader) -> tuple[str, tuple[int, ...], int, int]:
    name = r.text("a tensor's name")
    rank = r.number("I", name)
    if rank > 8:
        raise FormatError(f"{r.name}: {name!r} has {rank} dimensions")
    shape = tuple(r.number("Q", name) for _ in range(rank))[::-1]
    return name, shape, r.number("I", name), r.number("Q", name)


def _tensor(file: Path, name: str, shape: tuple[int, ...], kind: int, offset: int, available: int) -> StoredTensor:
    if kind not in GGML_TYPES:
        raise Unsupported(f"{file}: {name!r} has ggml type {kind}, whose size is not known")
    dtype, block, bytes_of_block = GGML_TYPES[kind]
    if shape and shape[-1] % block:
        raise FormatError(f"{file}: {name!r} has rows of {shape[-1]}; {dtype} has blocks of {block}")
    nbytes = math.prod(shape) // block * bytes_of_block
    if offset + nbytes > available:
        raise FormatError(f"{file}: {name!r} claims bytes {offset} to {offset + nbytes}; the file has {available}")
    said = f"{dtype}, blocks of {block}" if block > 1 else ""
    return StoredTensor(name, dtype, shape, nbytes, said)


def _found(tensors: list[StoredTensor]) -> tuple[QuantizationFound, ...]:
    counts = Counter(t.dtype for t in tensors if t.quantized)
    blocks = {name: (block, size) for name, block, size in GGML_TYPES.values()}
    made = []
    for dtype, n in counts.most_common():
        block, size = blocks[dtype]
        what = f"{8 * size / block:.4g} bits per weight, blocks of {block}"
        # Bits per code are in the name of the type: Q4_K, IQ3_XXS, MXFP4.
        bits = next((int(c) for c in dtype if c.isdigit() and not dtype.startswith("TQ")), None)
        made.append(QuantizationFound(f"GGUF {dtype}", what, n, bits, block))
    return tuple(made)
