"""JSON kept between runs, in the user's cache folder: whole or absent, safe with several writers, never trusted.

A file that is damaged, or of another version, is reported by a warning and begun anew. What it says may only
choose among things that are correct whichever is chosen.
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

__all__ = ["CacheFile", "cache_folder", "clear_caches"]

_VERSION = 1


def cache_folder() -> Path:
    """LOWBIT_CACHE_DIR, else lowbit in XDG_CACHE_HOME, else ~/.cache/lowbit."""
    if given := os.environ.get("LOWBIT_CACHE_DIR"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lowbit"


def clear_caches() -> list[Path]:
    """Removes every cache file that lowbit wrote; gives those there were."""
    found = sorted(path for path in cache_folder().glob("*.json") if _is_cache(path))
    for path in found:
        path.unlink(missing_ok=True)
    return found


def _is_cache(path: Path) -> bool:
    """Whether a file begins as lowbit writes caches, or is cut short before that: others are kept as they are."""
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
        """What was put there; None if nothing was."""
        return self._read().get(key)

    def put(self, key: str, value: Any) -> None:
        """Keeps a value. Where it cannot be written, or the file is another program's, a warning says so and nothing
        is kept."""
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
        """Deletes the file, unless it is another program's."""
        if not self._is_foreign():
            self.path.unlink(missing_ok=True)

    def _is_foreign(self) -> bool:
        """A file outside of the cache folder that lowbit did not write."""
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
        """Between reading and replacing, no other process writes."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)
