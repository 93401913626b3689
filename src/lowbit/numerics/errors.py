"""What can go wrong, said plainly: what was wrong, what was expected, and the tensor's name."""

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
    """Adds what a traceback and the command line say after the error itself: BaseException.add_note of Python 3.11."""
    error.__notes__ = [*notes_of(error), text]  # type: ignore[attr-defined]


def notes_of(error: BaseException) -> list[str]:
    """What was added to an error by `add_note`."""
    return list(getattr(error, "__notes__", ()))
