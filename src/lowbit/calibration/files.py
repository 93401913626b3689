"""Arrays of .npy and .npz files, one at a time."""

from __future__ import annotations

import os
import tokenize
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import FormatError, InvalidProblem


def arrays_of(path: str | os.PathLike[str], only: str | None = None) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    """(name, array) of each array in a file: an .npy has one, named after the file. Nothing is unpickled.

    A large .npy is mapped, not read; of an .npz one array is in memory at a time.
    """
    file = Path(path)
    try:
        if file.suffix == ".npy":
            if only is not None and only != file.stem:
                raise InvalidProblem(f"array: {only!r}; {file.name} has {file.stem!r} alone")
            yield file.stem, np.load(file, mmap_mode="r", allow_pickle=False)
        elif file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as archive:
                if only is not None and only not in archive.files:
                    raise InvalidProblem(f"array: {only!r} is not in {file.name}, which has {', '.join(archive.files)}")
                for name in archive.files if only is None else [only]:
                    yield name, archive[name]
        else:
            raise InvalidProblem(f"{file}: expected a .npy or .npz file")
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError, SyntaxError, tokenize.TokenError) as error:
        if isinstance(error, InvalidProblem):
            raise
        raise FormatError(f"{file}: not a NumPy file of plain arrays ({error})") from None
