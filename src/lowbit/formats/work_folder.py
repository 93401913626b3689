"""Working folders: locked, marked with a manifest, never a link, and renamed to the target at the end.

`WorkFolder` is the locked folder; `Assembly` is a folder of shards in one, which an interrupted run can resume.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple

from lowbit.formats.safetensors.writer import checksum
from lowbit.numerics.errors import FormatError, InvalidProblem, add_note
from lowbit.runtime.files.atomic import sync_directory, written_whole

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
        except BaseException as error:
            os.close(handle)
            if isinstance(error, BlockingIOError):
                raise InvalidProblem(f"{target}: another run is writing it") from None
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


class Finished(NamedTuple):
    """A shard that is written and synced."""

    nbytes: int
    checksum: int
    sqnr_db: Mapping[str, float]
    predicted_db: Mapping[str, float] = MappingProxyType({})
    methods: Mapping[str, str] = MappingProxyType({})


def real_target(target: str | os.PathLike[str]) -> Path:
    """The folder to write to, links resolved, so that all renames stay on one disk."""
    real = Path(os.path.realpath(target))
    if real.exists() and not real.is_dir():
        raise InvalidProblem(f"{os.fspath(target)}: a file; expected a folder to write to")
    return real


class Assembly:
    """The folder `.<name>.partial` beside the target, until `commit` renames it.

    Finished shards are recorded in a manifest. A later run with the same fingerprint and `resume` checks and keeps
    them. Bad input removes the folder, and so does an end before the first shard; any other end leaves it.
    """

    def __init__(self, target: Path, fingerprint: str, *, resume: bool, overwrite: bool) -> None:
        self.target, self.fingerprint = real_target(target), fingerprint
        self.folder = self.target.with_name(f".{self.target.name}.partial")
        self.finished: dict[str, Finished] = {}
        self.complete = False  # the target is there already, by the same recipe from the same source
        self._resume, self._overwrite = resume, overwrite
        self._old = self.target.with_name(f".{self.target.name}.old")

    def __enter__(self) -> Assembly:
        self._work = WorkFolder(self.folder, self.target)
        try:
            self._recover()
            self._begin()
        except BaseException:
            self._work.close()
            raise
        return self

    def _recover(self) -> None:
        """Undo a commit that was killed between its renames, or finish one that was killed after them."""
        if not os.path.lexists(self._old):
            return
        old = WorkFolder(self._old, self.target)
        try:
            if self.target.exists():
                old.clear()
            else:
                os.rename(self._old, self.target)
                sync_directory(self.target.parent)
        finally:
            old.close()

    def _begin(self) -> None:
        if self._is_full():
            fingerprint, finished = _finished(self.target)
            if self._resume and fingerprint == self.fingerprint:
                self.complete, self.finished = True, finished
                self._work.close()
                return
            if not self._overwrite:
                why = "not empty; choose another folder, or overwrite"
                if self._resume:
                    why = "not empty, and not made by this recipe from this source"
                raise InvalidProblem(f"{self.target}: {why}")
            refuse_foreign(self.target)
        fingerprint, finished = _finished(self.folder)
        if fingerprint and not self._overwrite and (not self._resume or fingerprint != self.fingerprint):
            why = f"an unfinished run is in {self.folder.name}; resume it, or overwrite"
            if self._resume:
                why = f"{self.folder.name} is of another source, recipe or version; overwrite it"
            raise InvalidProblem(f"{self.target}: {why}")
        if self._resume and fingerprint == self.fingerprint:
            self.finished = {name: shard for name, shard in finished.items() if self._is_sound(name, shard)}
        self._work.clear(keep={MANIFEST, *self.finished})
        self._write_manifest()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self._work.close()
        elif not self.folder.exists():  # put in its place already
            add_note(error, f"{self.target} is written and kept")
            self._work.close()
        elif isinstance(error, (InvalidProblem, FormatError, NotImplementedError)) or not self.finished:
            self._work.remove()
        else:
            shards = "1 finished shard is" if len(self.finished) == 1 else f"{len(self.finished)} finished shards are"
            add_note(error, f"{shards} kept in {self.folder}; resume goes on from there")
            self._work.close()

    def finish(self, name: str, shard: Finished) -> None:
        """Record a shard as finished: a resumed run does not write it again."""
        self.finished[name] = shard
        self._write_manifest()

    def finish_file(self, path: Path) -> None:
        """Record a file of the folder that was written whole, and that a resumed run needs."""
        self.finish(path.name, Finished(path.stat().st_size, checksum(path), {}))

    def discard_files(self, names: Iterable[str]) -> None:
        """Delete files that only a resumed run would need."""
        found = [name for name in names if self.finished.pop(name, None) is not None]
        if found:
            self._write_manifest()
        for name in found:
            (self.folder / name).unlink()

    def commit(self) -> None:
        """Rename the folder to the target, and then remove what was there before."""
        sync_directory(self.folder)
        replaced = self._is_full()
        if replaced:
            if not self._overwrite or read_manifest(self.target) is None:
                raise FileExistsError(errno.EEXIST, "files were put into the target meanwhile", str(self.target))
            os.rename(self.target, self._old)
        try:
            os.rename(self.folder, self.target)
        except OSError:
            if replaced:
                os.rename(self._old, self.target)
            raise
        sync_directory(self.target.parent)
        if replaced:
            self._recover()

    def _is_full(self) -> bool:
        return self.target.is_dir() and any(self.target.iterdir())

    def _is_sound(self, name: str, shard: Finished) -> bool:
        file = self.folder / name
        try:
            return not file.is_symlink() and file.stat().st_size == shard.nbytes and checksum(file) == shard.checksum
        except (OSError, FormatError):
            return False

    def _write_manifest(self) -> None:
        shards = {}
        for name, f in sorted(self.finished.items()):
            shards[name] = {"bytes": f.nbytes, "checksum": f.checksum, "sqnr_db": _rounded(f.sqnr_db)}
            if f.methods:
                shards[name] |= {"predicted_db": _rounded(f.predicted_db), "methods": dict(f.methods)}
        self._work.mark({"fingerprint": self.fingerprint, "shards": shards})


def _rounded(figures: Mapping[str, float]) -> dict[str, float | str]:
    """Decibels for JSON, which has no infinity."""
    return {k: round(v, 6) if abs(v) < 1e9 else str(v) for k, v in figures.items()}


def _floats(figures: Mapping[str, Any]) -> dict[str, float]:
    return {str(k): float(v) for k, v in figures.items()}


def _finished(folder: Path) -> tuple[str, dict[str, Finished]]:
    """(fingerprint, finished shards) of a folder; empty without a manifest of lowbit."""
    found: Any = read_manifest(folder)
    if found is None:
        return "", {}
    try:
        shards = {
            name: Finished(
                int(s["bytes"]),
                int(s["checksum"]),
                _floats(s["sqnr_db"]),
                _floats(s.get("predicted_db", {})),
                {str(k): str(v) for k, v in s.get("methods", {}).items()},
            )
            for name, s in found["shards"].items()
            if Path(name).name == name
        }
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        shards = {}
    return found["fingerprint"], shards
