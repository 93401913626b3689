"""The `lowbit` command. Each of its commands is a module of its own."""

import sys
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer

EPILOG = """Examples:

  lowbit quantize model.onnx --recipe static-int8 --data batches/

  lowbit inspect model.onnx

  lowbit demo
"""


def main() -> None:
    """Run the `lowbit` command. Exit with code 1 if its extra, typer and rich, is not installed."""
    try:
        app = _app()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print(f"lowbit: the command needs {error.name}: pip install 'lowbit[cli]'", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:  # while modules are loaded; later Commands handles it
        print("lowbit: interrupted; nothing was written", file=sys.stderr)
        raise SystemExit(130) from None
    app(prog_name="lowbit")


def _app() -> "typer.Typer":
    import rich  # noqa: F401 - so that `main` can say what to install, before any command needs it
    import typer

    import lowbit
    from lowbit.cli.errors import Commands

    settings = {"help_option_names": ["-h", "--help"]}
    about = "Quantize models and arrays, measure the result, and tune kernels for this machine."
    app = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        help=about,
        epilog=EPILOG,
        context_settings=settings,
        pretty_exceptions_enable=False,
    )

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"lowbit {lowbit.__version__}")
            raise typer.Exit

    # `Commands.parse_args` handles --traceback at any position; it is declared here for the help.
    in_detail = "Print the Python traceback of an error. LOWBIT_TRACEBACK=1 does the same."

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version and exit.")
        ] = False,
        traceback: Annotated[bool, typer.Option("--traceback", help=in_detail)] = False,
    ) -> None:
        pass

    from lowbit.cli.bench import bench
    from lowbit.cli.calibrate import calibrate
    from lowbit.cli.compare import compare
    from lowbit.cli.demo import demo
    from lowbit.cli.dtypes import dtypes
    from lowbit.cli.gpu import gpu_check
    from lowbit.cli.hardware import hardware
    from lowbit.cli.inspect import inspect
    from lowbit.cli.observe import observe
    from lowbit.cli.quantize import quantize
    from lowbit.cli.tune import recommend, tune

    commands = (
        hardware, quantize, inspect, compare, calibrate, observe, tune, recommend, bench, dtypes, gpu_check, demo,
    )  # fmt: skip
    for command in commands:
        app.command(epilog=getattr(sys.modules[command.__module__], "EPILOG", None))(command)
    return app
