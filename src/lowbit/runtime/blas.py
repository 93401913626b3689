"""NumPy's BLAS on one thread per call: its own threads wait by spinning, which on a busy machine costs 16 times the
work."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

_lock = threading.Lock()
_users = 0
_limit: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run NumPy's BLAS on the calling thread, where threadpoolctl is installed; calls may overlap in several threads.

    >>> with one_blas_thread():
    ...     float(np.ones(3) @ np.ones(3))
    3.0
    """
    global _users, _limit
    pools = _pools()
    with _lock:
        _users += 1
        if _users == 1 and pools is not None:
            _limit = pools.limit(limits=1)
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _limit is not None:
                _limit.restore_original_limits()
                _limit = None


@cache
def _pools() -> Any:
    try:
        pools = importlib.import_module("threadpoolctl")
    except ModuleNotFoundError:
        return None
    np.ones((2, 2)) @ np.ones((2, 2))  # its libraries are loaded by now
    return pools.ThreadpoolController().select(internal_api="openblas")
