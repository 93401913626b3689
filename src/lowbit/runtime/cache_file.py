"""JSON files in the user's cache folder: written atomically, safe with several writers, validated when read.

A damaged file, or one of another version, is reported by a warning and replaced. Its content may only choose
among alternatives that are all correct.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lowbit.runtime.files.atomic import written_whole

_VERSION = 1


def cache_folder() -> Path:
    """LOWBIT_CACHE_DIR, else lowbit in XDG_CACHE_HOME, else ~/.cache/lowbit."""
    if given := os.environ.get("LOWBIT_CACHE_DIR"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lowbit"


def clear_caches() -> list[Path]:
    """Remove every cache file that lowbit wrote, and return their paths."""
    found = sorted(path for path in cache_folder().glob("*.json") if _is_cache(path))
    for path in found:
        path.unlink(missing_ok=True)
    return found


def _is_cache(path: Path) -> bool:
    """Whether a file begins like a cache of lowbit, or is a truncated one; others are never deleted."""
    try:
        with open(path, "rb") as file:
            return re.match(rb'\s*(\{\s*"version":|[][{}\s]*\Z)', file.read(64)) is not None
    except OSError:
        return False


class CacheFile:
    """Entries by key, in one file of the cache folder.

    >>> import tempfile
    >>> file = CacheFile("numbers", Path(tempfile.mkdtemp()))
    >>> file.put("a", {"best": 3})
    >>> CacheFile("numbers", file.path.parent).get("a")
    {'best': 3}
    """

    def __init__(self, name: str | os.PathLike[str], folder: Path | None = None) -> None:
        """name: of a file in the folder; a path stands for itself."""
        self.path = (
            (cache_folder() if folder is None else folder) / f"{name}.json" if isinstance(name, str) else Path(name)
        )

    def get(self, key: str) -> Any:
        """The value of this key, or None."""
        return self._read().get(key)

    def put(self, key: str, value: Any) -> None:
        """Store a value. If the file cannot be written, or belongs to another program, warn and store nothing."""
        if self._is_foreign():
            warnings.warn(f"{self.path}: not a cache of lowbit's; it is kept as it is", stacklevel=2)
            return
        try:
            with self._alone():
                entries = {**self._read(), key: value}
                with written_whole(self.path) as file:
                    json.dump({"version": _VERSION, "entries": entries}, file, indent=1)
        except OSError as error:
            warnings.warn(f"{self.path}: not written ({error})", stacklevel=2)

    def remove(self) -> None:
        """Delete the file, unless it belongs to another program."""
        if not self._is_foreign():
            self.path.unlink(missing_ok=True)

    def _is_foreign(self) -> bool:
        """Whether it is a file outside of the cache folder that lowbit did not write."""
        return self.path.parent != cache_folder() and self.path.exists() and not _is_cache(self.path)

    def _read(self) -> dict[str, Any]:
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']!r}, expected {_VERSION}")
            entries = content["entries"]
            if not isinstance(entries, dict):
                raise ValueError("no entries")
            return entries
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            then = "it is kept as it is" if self._is_foreign() else "it is begun anew"
            warnings.warn(f"{self.path}: not usable ({error}); {then}", stacklevel=3)
            return {}

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock: no other process writes between reading and replacing."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
