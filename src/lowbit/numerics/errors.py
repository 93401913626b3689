"""Exceptions. Messages say what was found and what was expected, and name the argument or tensor."""

from __future__ import annotations


class InvalidProblem(ValueError):
    """The request contradicts itself or the data: a bad shape, scale, range or option."""


class Unsupported(NotImplementedError):
    """A sound request that this build or machine cannot serve."""


class UnsupportedDType(Unsupported, TypeError):
    """An array whose element type has no meaning here (objects, integers, foreign byte order)."""


class FormatError(ValueError):
    """A file that is not what it claims to be."""


def add_note(error: BaseException, text: str) -> None:
    """Add a note that follows the error: BaseException.add_note, which Python 3.10 lacks."""
    error.__notes__ = [*notes_of(error), text]  # type: ignore[attr-defined]


def notes_of(error: BaseException) -> list[str]:
    """The notes of `add_note`."""
    return list(getattr(error, "__notes__", ()))
