"""A cache of calibrated params, by data, method and target."""

from __future__ import annotations

import json
import logging
import os
import warnings
from pathlib import Path
from typing import Any

from lowbit.calibration.methods import CalibrationMethod, Custom
from lowbit.calibration.scores import Target
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.params import QuantizationParams
from lowbit.runtime.cache_file import CacheFile

_LOG = logging.getLogger("lowbit")
_VERSION = 2


class CalibrationCache:
    """Params by what they were computed from: a fingerprint of the data, the method, the dtype and the mapping.

    Entries are in memory, and with a path also in a JSON file (`CacheFile`), which several processes may share. An
    entry whose digest does not match its key and params is computed again, with a warning.

    >>> import numpy as np
    >>> import lowbit as lb
    >>> cache, x = CalibrationCache(), np.linspace(-1, 1, 100, dtype=np.float32)
    >>> a = lb.calibrate(x, "int8", "mse", cache=cache)
    >>> b = lb.calibrate(x, "int8", "mse", cache=cache)
    >>> a == b, cache.hits
    (True, 1)
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.hits = 0
        self._file = None if path is None else CacheFile(Path(path))
        self._entries: dict[str, QuantizationParams] = {}

    @staticmethod
    def of(cache: CalibrationCache | str | os.PathLike[str] | None) -> CalibrationCache | None:
        if cache is None or isinstance(cache, CalibrationCache):
            return cache
        if isinstance(cache, str | os.PathLike):
            return CalibrationCache(cache)
        raise InvalidProblem(f"cache: {type(cache).__name__}; expected a CalibrationCache or a path")

    def key(self, fingerprint: str, method: CalibrationMethod, target: Target, scope: dict[str, Any]) -> str | None:
        """None where equal arguments may give different params: a callable method."""
        if isinstance(method, Custom) or "Custom" in repr(method) or not fingerprint:
            return None
        mapping = [target.template.to_json(), target.full_range, target.wide, target.codes]
        granularity = [scope.get(name) for name in ("axis", "group_size", "options")]
        return _sha256(json.dumps([_VERSION, fingerprint, repr(method), *mapping, *granularity]))

    def get(self, key: str) -> QuantizationParams | None:
        found = self._entries.get(key) or self._stored(key)
        if found is None:
            return None
        self.hits += 1
        _LOG.info("calibration: params of the same data, method and dtype were found in the cache")
        return found

    def _stored(self, key: str) -> QuantizationParams | None:
        """The entry of the file, if it is one that `put` wrote."""
        if self._file is None or (entry := self._file.get(key)) is None:
            return None
        try:
            if entry["digest"] == _digest(key, entry["params"]):
                return QuantizationParams.from_json(entry["params"])
        except (ValueError, TypeError, KeyError, NotImplementedError, OverflowError, RecursionError):
            pass
        warnings.warn(f"{self._file.path}: an entry was edited or damaged; it is computed again", stacklevel=4)
        return None

    def put(self, key: str, params: QuantizationParams) -> None:
        self._entries[key] = params
        if self._file is not None:
            text = params.to_json()
            self._file.put(key, {"params": text, "digest": _digest(key, text)})

    def clear(self) -> None:
        self._entries = {}
        if self._file is not None:
            self._file.remove()


def _digest(key: str, text: str) -> str:
    return _sha256(f"{key} {text}")


def _sha256(text: str) -> str:
    import hashlib  # slow to import

    return hashlib.sha256(text.encode()).hexdigest()
