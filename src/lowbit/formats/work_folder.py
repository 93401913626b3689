"""The working folder of a run, beside its target: locked, marked with a manifest, and never a link."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.files.atomic import written_whole

MANIFEST = ".lowbit-manifest.json"
_MAX_MANIFEST = 1 << 28
_AS_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


class WorkFolder:
    """A folder locked by this process, created if needed; `target` names it in errors.

    Links, folders locked by another process, and folders with files but without lowbit's manifest are refused.
    Deletion uses folder handles, so that no link is followed.
    """

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self._handle: int | None = _locked(path, target)
        try:
            refuse_foreign(path)
        except BaseException:
            self.close()
            raise

    def mark(self, content: Mapping[str, Any]) -> None:
        """Write the manifest: a JSON object with a `fingerprint` of the inputs."""
        with written_whole(self.path / MANIFEST) as file:
            file.write(json.dumps(content, indent=1) + "\n")

    def clear(self, keep: Collection[str] = ()) -> None:
        """Delete all but the entries of these names."""
        assert self._handle is not None
        # The manifest goes last, so that an interrupted deletion leaves a folder that lowbit still recognises.
        for name in sorted(os.listdir(self._handle), key=lambda name: name == MANIFEST):
            if name not in keep:
                _delete(name, self._handle)

    def remove(self) -> None:
        """Delete the folder."""
        self.clear()
        self.close()

    def close(self) -> None:
        """Release the lock, and remove the folder if it is empty."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            try:
                if _is_at(handle, self.path) and not os.listdir(handle):
                    os.rmdir(self.path)
            finally:
                os.close(handle)


def _locked(path: Path, target: Path) -> int:
    while True:
        try:
            path.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, _AS_FOLDER)
        except FileNotFoundError:  # its last owner has just removed it
            continue
        except OSError as error:
            if not os.path.lexists(path) or (path.is_dir() and not path.is_symlink()):
                raise
            raise InvalidProblem(f"{path}: a link or a file; lowbit needs a folder of this name, remove it") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InvalidProblem(f"{target}: another run is writing it") from None
        except BaseException:
            os.close(handle)
            raise
        if _is_at(handle, path):
            return handle
        os.close(handle)


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def refuse_foreign(folder: Path) -> None:
    """Raise for a folder with files that lowbit did not write: such a folder is never deleted."""
    unfinished = f".{MANIFEST}."  # the first manifest, that a killed run did not come to rename
    if any(not name.startswith(unfinished) for name in os.listdir(folder)) and read_manifest(folder) is None:
        raise InvalidProblem(
            f"{folder}: not empty, and not written by lowbit (it has no {MANIFEST}); remove it, or choose another name"
        )


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder that lowbit wrote; None for any other folder."""
    try:
        handle = os.open(folder / MANIFEST, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle, "rb") as file:
            found = json.loads(file.read(_MAX_MANIFEST))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("fingerprint"), str) else None


def _delete(name: str, folder: int) -> None:
    """Delete an entry of an open folder; links are not followed."""
    try:
        inner = os.open(name, _AS_FOLDER, dir_fd=folder)
    except FileNotFoundError:
        return
    except OSError:  # a file or a link
        os.unlink(name, dir_fd=folder)
        return
    try:
        for entry in os.listdir(inner):
            _delete(entry, inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)
