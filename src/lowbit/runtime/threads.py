"""The number of threads that kernels use. Results do not depend on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.native import core


def get_num_threads() -> int:
    """The number of threads per call, the calling one included. Initially LOWBIT_NUM_THREADS, else OMP_NUM_THREADS,
    else the number of CPUs this process may run on."""
    return core.num_threads()


def set_num_threads(n: int) -> None:
    """Set the number of threads for later calls in this process.

    >>> before = get_num_threads()
    >>> set_num_threads(1)
    >>> get_num_threads()
    1
    >>> set_num_threads(before)
    """
    if int(n) != n or n < 1:
        raise InvalidProblem(f"n: {n!r}; expected at least 1 thread")
    core.set_num_threads(int(n))


@contextmanager
def threads_set_to(n: int) -> Iterator[None]:
    """Set the number of threads within a `with` statement."""
    before = get_num_threads()
    set_num_threads(n)
    try:
        yield
    finally:
        set_num_threads(before)
