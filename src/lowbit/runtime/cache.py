"""Settled calls: plans that were described and checked once, by key."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from lowbit.numerics.params import QuantizationParams
from lowbit.runtime.native import core

T = TypeVar("T")
_LOCK = threading.Lock()
_ALL: weakref.WeakSet[Cache[Any]] = weakref.WeakSet()


class Cache(Generic[T]):
    """At most `most` values by key, the oldest leaving first; everything leaves when the ISA cap or the number of
    threads is set. Keys compare by value, and 1 == 1.0 == True: let only one type into each place of a key.

    `get(key)` gives None for an unknown key. An owner of settled calls (params, packed weights, a layer) keeps a Cache
    of its own, so that they go with it.

    >>> settled: Cache[str] = Cache(2)
    >>> settled.find("a", lambda: "made"), settled.get("b")
    ('made', None)
    """

    __slots__ = ("__weakref__", "_found", "_most", "get")

    def __init__(self, most: int = 1024) -> None:
        self._most = most
        self._found: dict[Hashable, T] = {}
        self.get = self._found.get  # one lookup, without a Python frame
        with _LOCK:
            _ALL.add(self)

    def settled(self, key: Hashable) -> T | None:
        """The value of this key, or None; None too for a key with an option that has no hash, which `put` passes
        over."""
        try:
            return self.get(key)
        except TypeError:
            return None

    def find(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of this key, made now unless it is known."""
        found = self.get(key)
        if found is None:
            made_under = _settings[0]
            found = make()
            with _LOCK:
                if made_under == _settings[0]:  # else it may be planned for another ISA
                    self._found[key] = found
                    while len(self._found) > self._most:
                        del self._found[next(iter(self._found))]
        return found

    def put(self, key: Hashable, value: T) -> T:
        """The value of this key from now on, unless one is known; for values that depend on no setting."""
        try:
            return self.find(key, lambda: value)
        except TypeError:  # no hash
            return value

    def clear(self) -> None:
        with _LOCK:
            self._found.clear()

    def __len__(self) -> int:
        return len(self._found)


def _after_fork() -> None:
    global _LOCK
    _LOCK = threading.Lock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_after_fork)
_settings = [0]  # counts changes of the ISA cap and the number of threads


def _forget_all() -> None:
    with _LOCK:
        _settings[0] += 1
        for cache in list(_ALL):
            cache._found.clear()


core.on_settings_change(_forget_all)


def cache_of(params: QuantizationParams) -> Cache[Any]:
    """The settled calls with these params."""
    found: Cache[Any] | None = params._calls
    if found is None:
        params._set(_calls=Cache(64))
        found = params._calls
    return found
