"""Patterns that select weights by name."""

from __future__ import annotations

import difflib
import fnmatch
import itertools
import re
from collections.abc import Iterable

from lowbit.models.recipe_file import shown
from lowbit.numerics.errors import InvalidProblem

_MAX_PATTERN = 1000  # characters
_MAX_COMPARED = 20_000  # names; each is compared letter by letter


def compiled(pattern: str, key: str = "match") -> re.Pattern[str]:
    """The regular expression of a shell pattern, or of a regular expression between slashes."""
    if not isinstance(pattern, str) or not 0 < len(pattern) <= _MAX_PATTERN:
        raise InvalidProblem(f"{key}: {shown(pattern)}; expected a pattern of 1 to {_MAX_PATTERN} characters")
    if len(pattern) > 1 and pattern[0] == pattern[-1] == "/":
        try:
            return re.compile(f".*(?:{pattern[1:-1]}).*", re.DOTALL)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidProblem(f"{key}: {shown(pattern)} is not a regular expression ({error})") from None
    return re.compile(fnmatch.translate(pattern))


def nearest(pattern: str, names: Iterable[str]) -> str:
    """The names that are most like a pattern, as the end of an error message."""
    if not names:
        return "the model has none"
    some = [name for name in itertools.islice(names, _MAX_COMPARED) if len(name) <= _MAX_PATTERN]
    plain = pattern.strip("/*^$").replace("\\", "").replace("*", "")
    near = difflib.get_close_matches(plain, some, 3, 0.5)
    near = near or difflib.get_close_matches(plain.rpartition(".")[2], some, 3, 0.0) or some[:3]
    return f"the nearest names are {', '.join(map(shown, near))}"
