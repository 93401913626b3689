"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


@contextmanager
def written_whole(path: str | os.PathLike[str], binary: bool = False) -> Iterator[IO[Any]]:
    """A file beside `path`, synced and renamed in when the block ends: at every moment the old file is there, or the
    new one. Whatever fails, the old one stays and nothing is left behind; what a killed run left is removed."""
    target = Path(path)
    temporary, handle = _claimed(target)
    with os.fdopen(handle, "wb") if binary else os.fdopen(handle, "w", encoding="utf-8") as file:
        # The lock ends with the file, so the temporary name is given up before that.
        try:
            yield file
            file.flush()
            os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    sync_directory(target.parent)


def _claimed(target: Path) -> tuple[Path, int]:
    """A new file beside the target, locked until it is closed: its name, which only lowbit uses, and its handle."""
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file; expected one, or nothing", os.fspath(target))
    for number in itertools.count(1):
        temporary = target.with_name(f".{target.name}.{number}.lowbit-tmp")
        while not os.path.lexists(temporary) or _removed_if_abandoned(temporary):
            with suppress(FileExistsError):
                handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
                with suppress(OSError):  # a file system without locks
                    fcntl.flock(handle, fcntl.LOCK_EX)
                if os.fstat(handle).st_nlink:
                    return temporary, handle
                os.close(handle)  # removed by another process before it was locked
    raise AssertionError("unreachable")


def _removed_if_abandoned(temporary: Path) -> bool:
    """Removes a temporary file whose writer is gone: a regular file that nobody holds the lock of."""
    try:
        handle = os.open(temporary, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or not os.path.samestat(found, os.lstat(temporary)):
            return False
        temporary.unlink()
        return True
    except FileNotFoundError:  # its writer has just renamed it
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


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


def refuse_unwritable(path: str | os.PathLike[str]) -> None:
    """Raises the OSError that creating a file or folder at `path` would end in: for checks before long work."""
    folder = Path(os.path.abspath(path)).parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(folder))
    import tempfile  # slow to import, and every import of lowbit imports this module

    try:
        tempfile.TemporaryFile(dir=folder).close()  # os.access does not know of every file system's rules
    except OSError as error:
        raise OSError(error.errno, f"no file can be written here ({error.strerror})", os.fspath(folder)) from None
