"""Write docs/reference/cli.md from the commands themselves.

python scripts/cli_reference.py            write the page
python scripts/cli_reference.py --check    write nothing; fail where the page differs
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from lowbit.cli.app import _app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def meaning_of(parameter: Any) -> str:
    """The help, and the default if it says something. Types are left out, as versions of typer differ in them."""
    text, value = cell(getattr(parameter, "help", "") or ""), parameter.default
    if isinstance(value, bool) or value in (None, "", [], ()) or not parameter.show_default:
        return text
    return f"{text} Default: `{', '.join(map(str, value)) if isinstance(value, list | tuple) else value}`."


def sections(group: Any) -> Iterator[str]:
    context = typer.Context(group, info_name="lowbit")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        yield f"## lowbit {name}\n\n{' '.join((command.help or '').split())}\n"
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        options = [p for p in command.params if p.param_type_name == "option" and not getattr(p, "hidden", False)]
        usage = " ".join(f"{p.name.upper()}{' ...' if p.nargs == -1 else ''}" for p in arguments)
        yield f"```sh\nlowbit {name} {'[OPTIONS] ' if options else ''}{usage}".rstrip() + "\n```\n"
        rows = [(f"`{p.name.upper()}`", meaning_of(p)) for p in arguments]
        rows += [(", ".join(f"`{o}`" for o in p.opts), meaning_of(p)) for p in options]
        if rows:
            yield "| | meaning |\n|---|---|\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
        if example := (getattr(command, "epilog", None) or "").removeprefix("Example: ").strip():
            yield f"```sh\n{' '.join(example.split())}\n```\n"


def page() -> str:
    intro = (
        "# Command line\n\nEvery command of `lowbit`, with its arguments and options. `-h` and `--help` show the same; "
        "`--version`\nprints the version, and `--traceback` shows where an error comes from. "
        "[Errors](errors.md) has the exit codes.\n"
    )
    return "\n".join([intro, *sections(typer.main.get_command(_app()))])


def main() -> int:
    text = page()
    if PAGE.exists() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    if "--check" in sys.argv[1:]:
        print(f"{PAGE}: differs from the commands; run python scripts/cli_reference.py")
        return 1
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
