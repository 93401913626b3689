"""A folder that comes into being whole: assembled beside its place, with a manifest that lets a killed run go on."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from lowbit.errors import FormatError, InvalidProblem
from lowbit.formats.shards import checksum
from lowbit.whole_file import sync_directory, written_whole

__all__ = ["MANIFEST", "Assembly", "Finished"]

MANIFEST = ".lowbit-manifest.json"


class Finished(NamedTuple):
    """A shard that is written and synced."""

    nbytes: int
    checksum: int
    sqnr_db: Mapping[str, float]


class Assembly:
    """The folder `.<name>.partial` beside the target, until `commit` renames it.

    Each finished shard is noted in a manifest. A later run with the same fingerprint and `resume` finds them, checks
    them, and does the rest. Bad input removes the folder; any other end leaves it to be resumed.
    """

    def __init__(self, target: Path, fingerprint: str, *, resume: bool, overwrite: bool) -> None:
        self.target, self.fingerprint = target, fingerprint
        self.folder = target.with_name(f".{target.name}.partial")
        self.finished: dict[str, Finished] = {}
        self.complete = False  # the target is there already, by the same recipe from the same source
        self._overwrite = overwrite
        self._lock: int | None = None
        if target.exists() and not target.is_dir():
            raise InvalidProblem(f"{target}: a file; expected a folder to write to")
        if target.is_dir() and any(target.iterdir()):
            if resume and _fingerprint(target) == fingerprint:
                self.complete = True
                self.finished = _read_manifest(target)[1]
                return
            if not overwrite:
                raise InvalidProblem(
                    f"{target}: not empty, and not made by this recipe from this source"
                    if resume
                    else f"{target}: not empty; choose another folder, or overwrite"
                )
        unfinished = self.folder.is_dir() and any(self.folder.iterdir())
        if unfinished and not resume and not overwrite:
            raise InvalidProblem(f"{target}: an unfinished run is in {self.folder.name}; resume it, or overwrite")
        same = _fingerprint(self.folder) == fingerprint
        if unfinished and resume and not same and not overwrite and (self.folder / MANIFEST).exists():
            raise InvalidProblem(f"{target}: {self.folder.name} is of another source, recipe or version; overwrite it")
        self._resume = resume and same

    def __enter__(self) -> Assembly:
        if self.complete:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            self._lock = None
            raise InvalidProblem(f"{self.target}: another run is writing it") from None
        if self._resume:
            self.finished = {n: f for n, f in _read_manifest(self.folder)[1].items() if self._is_sound(n, f)}
        for file in self.folder.iterdir():  # halves that a killed run left
            if file.name not in self.finished:
                file.unlink() if not file.is_dir() else shutil.rmtree(file)
        self._write_manifest()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is not None and issubclass(kind, (InvalidProblem, FormatError, NotImplementedError)) and self._lock:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def finish(self, name: str, shard: Finished) -> None:
        """Notes a shard; from here on a killed run need not write it again."""
        self.finished[name] = shard
        self._write_manifest()

    def commit(self) -> None:
        """Puts the folder in its place. What stood there goes when the new one is there."""
        sync_directory(self.folder)
        old = None
        if self.target.is_dir() and any(self.target.iterdir()):
            assert self._overwrite
            old = self.target.with_name(f".{self.target.name}.{os.getpid()}.{os.urandom(4).hex()}.old")
            os.rename(self.target, old)
        try:
            os.rename(self.folder, self.target)
        except OSError:
            if old is not None:
                os.rename(old, self.target)
            raise
        sync_directory(self.target.parent)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)

    def _is_sound(self, name: str, shard: Finished) -> bool:
        file = self.folder / name
        try:
            return file.stat().st_size == shard.nbytes and checksum(file) == shard.checksum
        except (OSError, FormatError):
            return False

    def _write_manifest(self) -> None:
        shards = {
            name: {"bytes": f.nbytes, "checksum": f.checksum, "sqnr_db": {k: _text(v) for k, v in f.sqnr_db.items()}}
            for name, f in sorted(self.finished.items())
        }
        with written_whole(self.folder / MANIFEST) as file:
            file.write(json.dumps({"fingerprint": self.fingerprint, "shards": shards}, indent=1) + "\n")


def _text(value: float) -> float | str:
    return round(value, 6) if abs(value) < 1e9 else str(value)  # JSON has no infinity


def _fingerprint(folder: Path) -> str:
    return _read_manifest(folder)[0]


def _read_manifest(folder: Path) -> tuple[str, dict[str, Finished]]:
    """(fingerprint, finished shards); nothing where there is no manifest that makes sense."""
    try:
        found: Any = json.loads((folder / MANIFEST).read_text("utf-8"))
        shards = {
            name: Finished(int(s["bytes"]), int(s["checksum"]), {str(k): float(v) for k, v in s["sqnr_db"].items()})
            for name, s in found["shards"].items()
            if Path(name).name == name
        }
        return str(found["fingerprint"]), shards
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "", {}
