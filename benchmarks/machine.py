"""The machine: CPUs that are free, memory that is not returned, and the limits that contenders are compared with."""

from __future__ import annotations

import ctypes
import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.peers import torch_with
from benchmarks.shapes import aligned
from benchmarks.timing import Contender
from lowbit import _core
from lowbit.numerics.granularity import granularity_of
from lowbit.runtime.arrays import as_float_array
from lowbit.runtime.elementwise import value_range

DOT_LIMIT = "limit of dot products"
_READ_LOOPS: dict[str, Callable[[Any, int], Callable[[], Any]]] = {
    "np.max of int8": lambda a, _: lambda: a.view(np.int8).max(),
    "torch.sum of int64": lambda a, threads: _torch_sum(a, threads),
    "lowbit's range of f32": lambda a, _: _lowbit_range(a),
}
READS = tuple(f"read, {name}" for name in _READ_LOOPS)


def keep_freed_memory() -> bool:
    """Tells glibc to keep freed memory below 32 MiB. Else whether a contender that allocates its output gets
    it warm or as page faults depends on what malloc did in the cases before. False where that is unknown."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    trim_threshold, mmap_threshold = -1, -3  # M_TRIM_THRESHOLD, M_MMAP_THRESHOLD of malloc.h
    return bool(mallopt(mmap_threshold, 1 << 25) and mallopt(trim_threshold, 1 << 30))


@contextmanager
def capped(isa: str) -> Iterator[None]:
    """lowbit with no more than these instructions; "": with all that the CPU has."""
    before = _core.max_isa()
    _core.set_max_isa(isa)
    try:
        yield
    finally:
        _core.set_max_isa(before)


def cpus_given(threads: int, seconds: float = 0.2) -> float:
    """CPUs that this number of busy threads gets at this moment. Hashing lets go of the GIL and is none of lowbit's
    code, so that too few mean a busy machine and not a pool that does not work."""
    block, end = bytes(1 << 18), time.perf_counter() + seconds

    def work() -> None:
        while time.perf_counter() < end:
            hashlib.sha256(block)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    start, used = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return (time.process_time() - used) / (time.perf_counter() - start)


def dot_limit(operations: int, threads: int) -> Contender:
    """These operations at the rate of a loop of this CPU's integer dot products on registers alone."""

    def build() -> Callable[[], Any]:
        if not hasattr(_core, "dot_limit"):
            raise NotImplementedError("this build of lowbit has no loop that measures it")
        if not _core.dot_limit():
            raise NotImplementedError(f"no loop measures it for {_core.active_isa()}")
        return _core.dot_limit

    return Contender(DOT_LIMIT, build, kind="limit", seconds=lambda rate: operations / (rate * threads))


def reads(nbytes: int, copies: int, threads: int) -> list[Contender]:
    """Reading this number of bytes, each time of the next array. Which loop reads fastest depends on the CPU:
    the limit is the best of them."""

    def contender(name: str, loop: Callable[[Any, int], Callable[[], Any]]) -> Contender:
        def build() -> Callable[[], Any]:
            calls = cycle([loop(_filled(nbytes), threads) for _ in range(copies)])
            return lambda: next(calls)()

        return Contender(f"read, {name}", build, kind="limit")

    return [contender(name, loop) for name, loop in _READ_LOOPS.items()]


def _filled(nbytes: int) -> Any:
    array = aligned(nbytes, np.uint8)
    array.fill(1)  # else every page of it is the one zero page
    return array


def _torch_sum(array: Any, threads: int) -> Callable[[], Any]:
    tensor = torch_with(threads).from_numpy(array.view(np.int64))
    return lambda: tensor.sum()


def _lowbit_range(array: Any) -> Callable[[], Any]:
    numbers = array.view(np.float32)
    lent, whole = as_float_array(numbers), granularity_of(numbers.shape, None, None)
    return lambda: value_range(lent, whole)
