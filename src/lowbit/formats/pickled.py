"""Checkpoints in torch pickles, read with torch's weights-only reader, and only on request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from lowbit.formats.safetensors.checkpoint import INDEX, Array, Checkpoint, TensorInfo, read_index, shards_of
from lowbit.numerics.errors import FormatError, Unsupported
from lowbit.runtime.files.container import NUMPY_DTYPES

_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
_SINGLE, _INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"


def is_pickled(path: Path) -> bool:
    """Whether a checkpoint is stored in pickles only.

    >>> is_pickled(Path("model.safetensors")), is_pickled(Path("pytorch_model.bin"))
    (False, True)
    """
    if path.is_dir():
        return not (path / INDEX).exists() and not any(path.glob("*.safetensors")) and _found(path) is not None
    return path.name.endswith(_SUFFIXES) or path.name == _INDEX


class PickledCheckpoint(Checkpoint):
    """The tensors of `.bin` files, mapped by torch."""

    def __init__(self, folder: Path, files: tuple[Path, ...]) -> None:
        self._loaded: dict[str, Any] = {}
        super().__init__(folder, files)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> PickledCheckpoint:
        given = Path(path)
        if given.is_dir():
            given = _found(given) or given / _SINGLE
        if given.name.endswith(".index.json"):
            return cls(given.parent, shards_of(given, read_index(given)))
        return cls(given.parent, (given,))

    def read_into(self, name: str, start: int, buffer: Array) -> None:
        buffer[:] = self._bytes(self.tensors[name])[start : start + buffer.size]

    def _tensors_of(self, file: Path, metadata: dict[str, str]) -> list[TensorInfo]:
        found = []
        for name, tensor in _load(file).items():
            dtype, nbytes = _dtype_name(tensor, name), tensor.numel() * tensor.element_size()
            found.append(TensorInfo(name, dtype, tuple(tensor.shape), file, len(self._loaded), nbytes))
            self._loaded[name] = tensor
        return found

    def _bytes(self, info: TensorInfo) -> Array:
        import torch

        flat: Array = self._loaded[info.name].contiguous().reshape(-1).view(torch.uint8).numpy()
        return flat

    def close(self) -> None:
        self._loaded.clear()


def _found(folder: Path) -> Path | None:
    for name in (_INDEX, _SINGLE):
        if (folder / name).exists():
            return folder / name
    return next(iter(sorted(f for f in folder.glob("*.bin") if f.is_file())), None)


def _load(file: Path) -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        raise Unsupported(f"{file.name}: reading pickles needs torch") from None
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # torch passes on any error of the unpickler
        raise FormatError(f"{file.name}: torch cannot read it ({str(error).splitlines()[0][:120]})") from None
    if not isinstance(loaded, dict) or not all(isinstance(v, torch.Tensor) for v in loaded.values()):
        raise FormatError(f"{file.name}: not a mapping of names to tensors")
    return loaded


def _dtype_name(tensor: Any, name: str) -> str:
    known = {np.dtype(text).name: name for name, text in NUMPY_DTYPES.items()} | {"bfloat16": "BF16"}
    found = known.get(str(tensor.dtype).removeprefix("torch."))
    if found is None:
        raise Unsupported(f"{name}: {tensor.dtype}; expected {', '.join(known)}")
    return found
