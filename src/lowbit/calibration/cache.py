"""Params found before, by data, method and target."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from lowbit.calibration.methods import CalibrationMethod, Custom
from lowbit.errors import InvalidProblem
from lowbit.ops.scores import Target
from lowbit.params import QuantizationParams

__all__ = ["CalibrationCache"]

_LOG = logging.getLogger("lowbit")
_VERSION = 1


class CalibrationCache:
    """Params by what they were found from: a fingerprint of the data, the method, the dtype and the mapping.

    Kept in memory, or with a path in a JSON file too, which is replaced whole. A file that cannot be read is
    reported by a warning in the log, and begun anew.

    >>> import numpy as np
    >>> import lowbit as lb
    >>> cache, x = CalibrationCache(), np.linspace(-1, 1, 100, dtype=np.float32)
    >>> a = lb.calibrate(x, "int8", "mse", cache=cache)
    >>> b = lb.calibrate(x, "int8", "mse", cache=cache)
    >>> a == b, cache.hits
    (True, 1)
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self.hits = 0
        self._entries: dict[str, str] = self._read()

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
        text = self._entries.get(key)
        if text is None:
            return None
        try:
            found = QuantizationParams.from_json(text)
        except (ValueError, TypeError, KeyError):
            _LOG.warning("%s: an entry is damaged and was left out", self.path or "calibration cache")
            del self._entries[key]
            return None
        self.hits += 1
        _LOG.info("calibration: params of the same data, method and dtype were found in the cache")
        return found

    def put(self, key: str, params: QuantizationParams) -> None:
        self._entries[key] = params.to_json()
        if self.path is None:
            return
        merged = {**self._read(), **self._entries}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
        try:
            with open(temporary, "x") as file:
                json.dump({"version": _VERSION, "entries": merged}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise

    def clear(self) -> None:
        self._entries = {}
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def __len__(self) -> int:
        return len(self._entries)

    def _read(self) -> dict[str, str]:
        if self.path is None:
            return {}
        try:
            content = json.loads(self.path.read_text())
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']!r}")
            return {str(k): v for k, v in content["entries"].items() if isinstance(v, str)}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _LOG.warning("%s: not a calibration cache (%s); it is begun anew", self.path, error)
            return {}
