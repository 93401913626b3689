"""How many threads the kernels use. Results do not depend on it."""

from __future__ import annotations

from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.native import core

__all__ = ["get_num_threads", "set_num_threads"]


def get_num_threads() -> int:
    """Threads a call may use, the calling one included. At start: LOWBIT_NUM_THREADS, else
    OMP_NUM_THREADS, else the CPUs this process may run on."""
    return core.num_threads()


def set_num_threads(n: int) -> None:
    """Sets the number of threads for every later call in this process.

    >>> before = get_num_threads()
    >>> set_num_threads(1)
    >>> get_num_threads()
    1
    >>> set_num_threads(before)
    """
    if int(n) != n or n < 1:
        raise InvalidProblem(f"n: {n!r}; expected at least 1 thread")
    core.set_num_threads(int(n))
