"""Checks of what models are measured on, before any work."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from lowbit.numerics.errors import InvalidProblem

_MOST_THREADS = 4096


def load_metric(text: str) -> Callable[..., float]:
    """The function that `module:function` names; modules of the working folder are found first."""
    module, colon, name = text.partition(":")
    if not (colon and module and name):
        raise InvalidProblem(f"metric: {text!r}; expected module:function")
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever the user's own module raises
        raise InvalidProblem(f"metric: {module!r} cannot be imported ({type(error).__name__}: {error})") from error
    finally:
        sys.path.pop(0)
    function = getattr(found, name, None)
    if not callable(function):
        raise InvalidProblem(f"metric: {module!r} has no function {name!r}")
    try:
        inspect.signature(function).bind("predict", "batches")
    except TypeError as error:
        raise InvalidProblem(f"metric: {text} does not take (predict, batches): {error}") from None
    except ValueError:  # some built-in functions do not say what they take
        pass
    return function  # type: ignore[no-any-return]


def check_measuring(
    data: Any, batch_size: int | None, max_batches: int | None, seconds: float, threads: Sequence[int]
) -> None:
    """Raise where models cannot be run as asked, or where an option would be ignored."""
    for name, value in (("batch_size", batch_size), ("max_batches", max_batches)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            raise InvalidProblem(f"{name}: {value!r}; expected an integer of at least 1")
        if value is not None and data is not None and not isinstance(data, str | os.PathLike):
            raise InvalidProblem(f"{name}: given; it is for files, and the data are batches already")
    if not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise InvalidProblem(f"seconds: {seconds!r}; expected a finite number of at least 0")
    if not isinstance(threads, Sequence) or isinstance(threads, str) or not threads:
        raise InvalidProblem(f"threads: {threads!r}; expected a list of numbers of threads")
    for count in threads:
        if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= _MOST_THREADS:
            raise InvalidProblem(f"threads: {count!r}; expected an integer from 1 to {_MOST_THREADS}")
