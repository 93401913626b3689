"""Fingerprints of models, by content: the same on every machine, whatever the names and times of the files."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from lowbit.formats.inspection import onnx_extra
from lowbit.formats.safetensors.checkpoint import Checkpoint
from lowbit.runtime.threads import get_num_threads

_PIECE = 1 << 20
# Entries of a config.json that change nothing of what a model computes.
_NO_MATTER = ("_name_or_path", "transformers_version")


class _Bytes(NamedTuple):
    """Bytes of a file, and what they are."""

    about: Any
    file: Path
    offset: int
    nbytes: int


def model_fingerprint(source: str | os.PathLike[str]) -> str:
    """A digest of an ONNX model with its external data, or of a checkpoint: its config.json and each tensor's name,
    dtype, shape and bytes, however they are sharded.

    Reads all of it, a megabyte at a time: about two seconds per gigabyte and thread.

    >>> import tempfile
    >>> import numpy as np
    >>> from lowbit.runtime.files.container import write_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_arrays(f"{folder}/a.safetensors", {"w": np.eye(2)}, {})
    ...     write_arrays(f"{folder}/b.safetensors", {"w": np.eye(2)}, {"other": "metadata"})
    ...     model_fingerprint(f"{folder}/a.safetensors") == model_fingerprint(f"{folder}/b.safetensors")
    True
    """
    path = Path(source)
    pieces = _of_onnx(path) if path.suffix == ".onnx" else _of_checkpoint(path)
    with ThreadPoolExecutor(get_num_threads()) as pool:
        found = list(pool.map(_digest, pieces))
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


def _of_onnx(path: Path) -> Iterator[_Bytes]:
    with onnx_extra():
        from onnx import TensorProto

        from lowbit.formats.onnx.model_file import external_place, read_proto, tensors

    yield _Bytes("onnx", path, 0, path.stat().st_size)
    for tensor in tensors(read_proto(path).graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            yield _Bytes(tensor.name, *external_place(tensor, path.parent))


def _of_checkpoint(path: Path) -> Iterator[_Bytes]:
    from lowbit.formats.compressed_tensors.plan import read_config  # which imports what writes checkpoints

    with Checkpoint.open(path) as opened:
        config = read_config(opened.folder)
        yield _Bytes({k: v for k, v in config.items() if k not in _NO_MATTER}, opened.files[0], 0, 0)
        for name in sorted(opened.tensors):
            info = opened.tensors[name]
            yield _Bytes([name, info.dtype, list(info.shape)], info.file, info.offset, info.nbytes)


def _digest(piece: _Bytes) -> str:
    found = hashlib.sha256(json.dumps(piece.about, sort_keys=True).encode())
    with open(piece.file, "rb") as file:
        file.seek(piece.offset)
        left = piece.nbytes
        while left and (read := file.read(min(left, _PIECE))):
            found.update(read)
            left -= len(read)
    return found.hexdigest()
