"""Inspecting a model's file: its tensors, their types and sizes, and how they are quantized.

Only headers are read (an .onnx file has no separate header and is parsed whole). Every declared size is compared with
the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as it is stored."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    quantized: str = ""  # "int4, groups of 64" for codes, "scales" and "zero points" for what belongs to them

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class QuantizationFound:
    """One recognised way of quantizing, and the number of weights or activations that use it."""

    scheme: str  # operator or layout: "MatMulNBits", "compressed-tensors", "GGUF Q4_K", ...
    what: str  # "int4, groups of 64"
    count: int
    bits: int | None = None  # none: the file does not say
    group_size: int | None = None  # none: per tensor or per channel


@dataclass(frozen=True)
class Inspection:
    """The content of a file, from its headers."""

    path: str
    format: str
    file_bytes: int
    tensors: Sequence[StoredTensor]
    quantization: Sequence[QuantizationFound] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors, without headers."""
        return sum(t.nbytes for t in self.tensors)

    def by_dtype(self) -> dict[str, tuple[int, int]]:
        """(tensors, bytes) of each dtype, in order of falling bytes."""
        made: dict[str, tuple[int, int]] = {}
        for t in self.tensors:
            count, nbytes = made.get(t.dtype, (0, 0))
            made[t.dtype] = count + 1, nbytes + t.nbytes
        return dict(sorted(made.items(), key=lambda item: (-item[1][1], item[0])))

    def to_dict(self) -> dict[str, Any]:
        """Plain types for JSON."""
        return {
            "path": self.path,
            "format": self.format,
            "file_bytes": self.file_bytes,
            "tensor_bytes": self.nbytes,
            "facts": dict(self.facts),
            "quantization": [asdict(q) for q in self.quantization],
            "by_dtype": {k: {"tensors": n, "bytes": b} for k, (n, b) in self.by_dtype().items()},
            "tensors": [asdict(t) | {"shape": list(t.shape)} for t in self.tensors],
        }


@contextmanager
def onnx_extra() -> Iterator[None]:
    """Say what to install where an import of the ONNX modules fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        text = f"ONNX models need {error.name}: pip install 'lowbit[onnx]'"
        raise ModuleNotFoundError(text, name=error.name) from None


def inspect_file(path: str | os.PathLike[str]) -> Inspection:
    """The content of an .onnx, .safetensors, .gguf, .npz or .npy file, or a folder or index of safetensors files.

    Nothing is unpickled and no weight is read. FormatError for files that are not valid.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(f"{folder}/a.npz", w=np.zeros((2, 3), np.float32))
    ...     inspect_file(f"{folder}/a.npz").tensors
    (StoredTensor(name='w', dtype='float32', shape=(2, 3), nbytes=24, quantized=''),)
    """
    file = Path(path)
    if not file.exists():
        raise InvalidProblem(f"{file}: there is no such file or folder")
    if not file.is_dir() and not file.is_file():
        raise InvalidProblem(f"{file}: not a file")
    kind = "checkpoint" if file.is_dir() or file.name.endswith(".index.json") else _KINDS.get(file.suffix.lower(), "")
    kind = kind or _by_content(file)
    if kind == "checkpoint":
        from lowbit.formats.safetensors.inspect import inspect_checkpoint

        return inspect_checkpoint(file)
    if kind == "onnx":
        with onnx_extra():
            from lowbit.formats.onnx.inspect import inspect_onnx
        return inspect_onnx(file)
    if kind == "gguf":
        from lowbit.formats.gguf.header import inspect_gguf

        return inspect_gguf(file)
    from lowbit.formats.numpy_headers import inspect_numpy

    return inspect_numpy(file)


_KINDS = {".onnx": "onnx", ".safetensors": "checkpoint", ".gguf": "gguf", ".npz": "numpy", ".npy": "numpy"}
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def _by_content(file: Path) -> str:
    if file.suffix.lower() in _PICKLED:
        raise Unsupported(f"{file}: a pickle, which cannot be read without running it; expected a format with a header")
    with open(file, "rb") as opened:
        start = opened.read(10)
    if start.startswith(b"GGUF"):
        return "gguf"
    if start.startswith(b"\x93NUMPY"):
        return "numpy"
    if start[8:9] == b"{":
        return "checkpoint"
    raise FormatError(f"{file}: expected .onnx, .safetensors, .gguf, .npz or .npy, or a folder of .safetensors files")
