"""The `lowbit` command. Each of its commands is a module of its own."""

# No `from __future__ import annotations`: typer reads the annotations of functions made inside _app.
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer
    from rich.console import RenderableType

    from lowbit.runtime.hardware import HardwareFeatures

__all__ = ["main"]


def main() -> None:
    """Runs the `lowbit` command; exits with code 1 if its extra, typer and rich, is not installed."""
    try:
        app = _app()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print(f"lowbit: the command needs {error.name}: pip install 'lowbit[cli]'", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:  # while modules are loaded; later it is for Commands
        print("lowbit: interrupted; nothing was written", file=sys.stderr)
        raise SystemExit(130) from None
    app(prog_name="lowbit")


def _app() -> "typer.Typer":
    import rich  # noqa: F401 - so that `main` can say what to install, before any command needs it
    import typer

    import lowbit
    from lowbit.cli.errors import Commands, screen

    app = typer.Typer(
        cls=Commands, no_args_is_help=True, help="Quantization, from the command line.", pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )  # fmt: skip

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"lowbit {lowbit.__version__}")
            raise typer.Exit

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
        ] = False,
        # Commands.parse_args takes it, wherever it stands; here it is for the help.
        traceback: Annotated[
            bool, typer.Option("--traceback", help="Show where an error comes from; so does LOWBIT_TRACEBACK=1.")
        ] = False,
    ) -> None:
        pass

    @app.command()
    def hardware(
        as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
        probe: Annotated[
            bool, typer.Option("--probe", help="Also measure what it can do at all, and what follows from that.")
        ] = False,
    ) -> None:
        """Show what this machine is and which kernels lowbit uses on it."""
        from lowbit.runtime.hardware import hardware as detect

        found = detect()
        facts = _probed() if probe else {}
        if as_json:  # not by rich: it must reach pipes unwrapped and uncoloured
            typer.echo(json.dumps({**found.to_dict(), **{k: v.to_dict() for k, v in facts.items()}}, indent=2))
        else:
            shown = screen()
            shown.print(_hardware_panel(found))
            for text in facts.values():
                shown.print(str(text))

    from lowbit.cli.bench import bench
    from lowbit.cli.calibrate import calibrate
    from lowbit.cli.compare import compare
    from lowbit.cli.demo import demo
    from lowbit.cli.dtypes import dtypes
    from lowbit.cli.gpu import gpu_check
    from lowbit.cli.inspect import inspect
    from lowbit.cli.quantize import quantize
    from lowbit.cli.tune import recommend, tune

    for command in (quantize, inspect, compare, calibrate, tune, recommend, bench, dtypes, gpu_check, demo):
        app.command()(command)
    return app


def _probed() -> dict[str, Any]:
    from lowbit.runtime.hints import performance_hints
    from lowbit.runtime.limits import limits

    return {"limits": limits(), "hints": performance_hints()}


def _hardware_panel(found: "HardwareFeatures") -> "RenderableType":
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold cyan", no_wrap=True)
    grid.add_column()
    absent = " ".join(name for name, has in found.features.items() if not has)
    for label, text in found.summary():
        grid.add_row(label, Text(text, style="green" if label == "Features" else ""))
        if label == "Features" and absent:
            grid.add_row("", Text(f"without {absent}", style="dim"))
    title = Text.assemble(("lowbit", "bold"), " on this machine")
    return Panel(grid, title=title, title_align="left", expand=False, padding=(1, 2))


if __name__ == "__main__":
    main()
