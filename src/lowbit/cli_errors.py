"""Errors as a person meets them on the command line: one line, exit code 2, no traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from lowbit.errors import FormatError, InvalidProblem, Unsupported

__all__ = ["printable", "told_in_one_line"]


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Ends the command with what was wrong, where the block raises what bad input or a missing package raises."""
    try:
        yield
    except (InvalidProblem, Unsupported, FormatError, OSError, ModuleNotFoundError) as error:
        said = "; ".join([str(error), *getattr(error, "__notes__", ())])
        typer.echo(f"lowbit: {printable(' '.join(said.split()))}", err=True)
        raise typer.Exit(2) from None


def printable(text: str) -> str:
    """Names come from untrusted files: what would move the cursor or turn the text around is written as an escape.

    >>> printable("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
