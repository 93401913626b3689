"""Params found before, by data, method and target."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from lowbit.cachefile import CacheFile
from lowbit.calibration.methods import CalibrationMethod, Custom
from lowbit.errors import InvalidProblem
from lowbit.ops.scores import Target
from lowbit.params import QuantizationParams

__all__ = ["CalibrationCache"]

_LOG = logging.getLogger("lowbit")
_VERSION = 1


class CalibrationCache:
    """Params by what they were found from: a fingerprint of the data, the method, the dtype and the mapping.

    Kept in memory, and with a path in a JSON file too: a CacheFile, which is replaced whole, may have several
    writers, and is begun anew, with a warning, where it cannot be read.

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
        self._entries: dict[str, Any] = {}

    @staticmethod
    def of(cache: CalibrationCache | str | os.PathLike[str] | None) -> CalibrationCache | None:
        if cache is None or isinstance(cache, CalibrationCache):
            return cache
        if isinstance(cache, str | os.PathLike):
            return CalibrationCache(cache)
        raise InvalidProblem(f"cache: {type(cache).__name__}; expected a CalibrationCache or a path")

    def key(self, fingerprint: str, method: CalibrationMethod, target: Target, scope: dict[str, Any]) -> str | None:
        """None where the same question could have another answer: a callable's."""
        if isinstance(method, Custom) or "Custom" in repr(method) or not fingerprint:
            return None
        asked = [
            _VERSION, fingerprint, repr(method), target.template.to_json(), target.full_range, target.wide,
            target.codes, scope.get("axis"), scope.get("block_size"), scope.get("options"),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()

    def get(self, key: str) -> QuantizationParams | None:
        text = self._entries.get(key) or (None if self._file is None else self._file.get(key))
        if text is None:
            return None
        try:
            found = QuantizationParams.from_json(text)
        except (ValueError, TypeError, KeyError):
            return None  # damaged: as if it were not there
        self.hits += 1
        _LOG.info("calibration: params of the same data, method and dtype were found in the cache")
        return found

    def put(self, key: str, params: QuantizationParams) -> None:
        self._entries[key] = params.to_json()
        if self._file is not None:
            self._file.put(key, self._entries[key])

    def clear(self) -> None:
        self._entries = {}
        if self._file is not None:
            self._file.remove()
