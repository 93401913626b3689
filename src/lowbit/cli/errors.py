"""Errors on the command line: one line and an exit code, and a traceback only where it is asked for."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from lowbit.cli.screen import printable
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported, notes_of

# Raised by bad input, a full disk or a missing package; any other exception is a fault of lowbit.
_EXPECTED = (InvalidProblem, Unsupported, FormatError, OSError, ModuleNotFoundError, MemoryError)
_BAD_INPUT, _FAULT, _INTERRUPTED = 2, 70, 130
_LONGEST = 2000  # characters of a line: names in files may be of any length
# typer comes with a click of its own in newer versions; this is the base of its errors in all of them.
_USAGE: Any = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


class Commands(TyperGroup):
    """The commands, with the one place that catches what they raise.

    Expected errors end with code 2, Ctrl-C with 130, anything else with 70. `--traceback` anywhere on the line, or
    LOWBIT_TRACEBACK=1, shows the traceback as well.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        asked = "--traceback" in args[:end]
        ctx.obj = asked or os.environ.get("LOWBIT_TRACEBACK", "0") not in ("", "0")
        kept = [a for a in args[:end] if a != "--traceback"] + args[end:]
        # A bare `lowbit --traceback` shows the help as `lowbit` does.
        return list(super().parse_args(ctx, kept))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (typer.Exit, typer.Abort, _USAGE, BrokenPipeError):
            raise
        except KeyboardInterrupt as error:
            end_interrupted("; ".join(notes_of(error)) or "nothing was written")
        except Exception as error:
            expected = isinstance(error, _EXPECTED)
            _say(_told(error) if expected else f"internal error: {_told(error)}; --traceback shows where", ctx.obj)
            raise typer.Exit(_BAD_INPUT if expected else _FAULT) from None


def _told(error: Exception) -> str:
    if isinstance(error, MemoryError):
        said = f"out of memory{f' ({error})' if str(error) else ''}"
    else:
        said = str(error) if isinstance(error, _EXPECTED) and str(error) else f"{type(error).__name__}: {error}"
    return "; ".join([said, *notes_of(error)])


def _say(text: str, with_traceback: bool) -> None:
    if with_traceback:
        typer.echo("\n".join(map(printable, traceback.format_exc().splitlines())), err=True)
    line = printable(" ".join(text.split()))
    typer.echo(f"lowbit: {line if len(line) <= _LONGEST else f'{line[:_LONGEST]} ...'}", err=True)


def end_interrupted(kept: str) -> NoReturn:
    """End the command after Ctrl-C, and print what was kept."""
    _say(f"interrupted; {kept}", False)
    raise typer.Exit(_INTERRUPTED) from None


def refuse_given(ctx: typer.Context, why: str, *names: str) -> None:
    """Raise where one of these options is given: it would be ignored."""
    for name in names:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = next((p.opts[0] for p in ctx.command.params if p.name == name), name)
            raise InvalidProblem(f"{option}: given; {why}")


def refuse_unwritable(option: str, path: Path, suffixes: tuple[str, ...] = ()) -> None:
    """Raise, before any work, where a file cannot be written later."""
    if suffixes and path.suffix.lower() not in suffixes:
        *others, last = suffixes
        raise InvalidProblem(f"{option}: {path}; expected a name that ends in {', '.join(others)} or {last}")
    if path.is_dir():
        raise InvalidProblem(f"{option}: {path} is a folder; expected a file to write")
    if not path.absolute().parent.is_dir():
        raise InvalidProblem(f"{option}: {path}; its folder does not exist")
    from lowbit.runtime.files.atomic import refuse_unwritable as refuse

    try:
        refuse(path)
    except OSError as error:
        raise InvalidProblem(f"{option}: {path}; {error.filename}: {error.strerror}") from None
