"""The memory of settled calls: bounded, shared by threads, and forgotten when kernels or threads change."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np

import lowbit as lb
from lowbit import _core
from lowbit.runtime.cache import Cache, cache_of


def test_the_oldest_leave_first() -> None:
    cache: Cache[int] = Cache(3)
    for i in range(5):
        assert cache.find(i, lambda i=i: i * i) == i * i  # type: ignore[misc]
    assert len(cache) == 3
    assert [cache.get(i) for i in range(5)] == [None, None, 4, 9, 16]
    assert cache.put(4, 7) == 16  # the first one stays


def test_a_key_without_a_hash_is_passed_over() -> None:
    cache: Cache[int] = Cache()
    assert cache.settled([1]) is None  # type: ignore[arg-type]
    assert cache.put(("clamp", [0, 6]), 3) == 3
    assert len(cache) == 0
    cache.put("a", 1)
    assert cache.settled("a") == 1


def test_everything_is_forgotten_when_a_setting_changes() -> None:
    cache: Cache[int] = Cache()
    cap, threads = _core.max_isa(), lb.get_num_threads()
    for change in (lambda: _core.set_max_isa(cap), lambda: lb.set_num_threads(threads)):
        cache.put("a", 1)
        change()
        assert cache.get("a") is None


def test_what_was_planned_before_a_change_is_not_kept() -> None:
    cache: Cache[int] = Cache()

    def make() -> int:
        _core.set_max_isa(_core.max_isa())
        return 1

    assert cache.find("a", make) == 1
    assert cache.get("a") is None


def test_threads_may_share_a_cache() -> None:
    cache: Cache[int] = Cache(8)

    def work(seed: int) -> None:
        for i in range(2000):
            key = (i * seed) % 13
            assert cache.find(key, lambda: key) == key  # noqa: B023

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 3, 5, 7)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(cache) <= 8


def test_settled_calls_leave_with_their_params() -> None:
    params = lb.QuantizationParams("int8", scale=np.float32(0.5))
    x = np.ones(4, np.float32)
    lb.quantize(x, params=params)
    assert len(cache_of(params)) > 0
    gone = weakref.ref(cache_of(params))
    del params
    gc.collect()
    assert gone() is None
