"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

__all__ = ["sync_directory", "written_whole"]


@contextmanager
def written_whole(path: str | os.PathLike[str], binary: bool = False) -> Iterator[IO[Any]]:
    """A file beside `path`, synced and renamed in when the block ends: at every moment the old file is there, or the
    new one. Whatever fails, the old one stays and nothing is left behind."""
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb") if binary else open(temporary, "x", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(target.parent)


def sync_directory(directory: Path) -> None:
    """Lets a rename in a folder survive a power cut, where the system can sync folders."""
    try:
        handle = os.open(directory, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError:
        pass
    finally:
        os.close(handle)
