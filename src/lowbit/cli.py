"""The `lowbit` command: `lowbit hardware`, `lowbit calibrate`, `lowbit demo`, `lowbit --version`."""

# No `from __future__ import annotations`: typer reads the annotations of functions made inside _app.
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

if TYPE_CHECKING:
    import typer
    from rich.console import RenderableType

    from lowbit.demo import DemoRow
    from lowbit.hardware import HardwareFeatures

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
    app(prog_name="lowbit")


def _app() -> "typer.Typer":
    import typer
    from rich.console import Console

    import lowbit

    # Called `screen` and not used for JSON, which must reach pipes unwrapped and uncoloured.
    screen = Console()
    app = typer.Typer(no_args_is_help=True, add_completion=False, help="Quantization, from the command line.")

    def show_version(wanted: bool) -> None:
        if wanted:
            typer.echo(f"lowbit {lowbit.__version__}")
            raise typer.Exit

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
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
        from lowbit.hardware import hardware as detect

        found = detect()
        facts = _probed() if probe else {}
        if as_json:
            typer.echo(json.dumps({**found.to_dict(), **{k: v.to_dict() for k, v in facts.items()}}, indent=2))
        else:
            screen.print(_hardware_panel(found))
            for text in facts.values():
                screen.print(str(text), markup=False, highlight=False)

    @app.command()
    def demo(
        json_path: Annotated[
            Path | None,
            typer.Option("--json", metavar="PATH", help="Also write the rows as JSON; - prints only that."),
        ] = None,
        quick: Annotated[bool, typer.Option("--quick", hidden=True)] = False,
    ) -> None:
        """Quantize a small trained network in every dtype and scheme, and compare."""
        from lowbit.demo import TIMED_ELEMENTS, run_demo
        from lowbit.hardware import hardware as detect

        elements = TIMED_ELEMENTS // 64 if quick else TIMED_ELEMENTS
        with Console(stderr=True).status("Starting") as status:
            rows = run_demo(elements=elements, progress=lambda name: status.update(f"Quantizing {name}"))
        report = json.dumps(_demo_json(rows, elements, detect()), indent=2)
        if json_path == Path("-"):
            typer.echo(report)
            return
        screen.print(_demo_table(rows, elements, detect()))
        if json_path is not None:
            json_path.write_text(report + "\n")
            screen.print(f"Wrote {json_path}", style="dim", markup=False)

    from lowbit.cli_bench import bench
    from lowbit.cli_calibrate import calibrate
    from lowbit.cli_tune import recommend, tune

    for command in (calibrate, tune, recommend, bench):
        app.command()(command)
    return app


def _probed() -> dict[str, Any]:
    from lowbit.hints import performance_hints
    from lowbit.limits import limits

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
    title = "[bold]lowbit[/] on this machine"
    return Panel(grid, title=title, title_align="left", expand=False, padding=(1, 2))


def _demo_json(rows: "list[DemoRow]", elements: int, found: "HardwareFeatures") -> dict[str, Any]:
    import lowbit

    return {
        "lowbit": lowbit.__version__,
        "hardware": found.to_dict(),
        "timed_elements": elements,
        "rows": [dataclasses.asdict(row) for row in rows],
    }


def _demo_table(rows: "list[DemoRow]", elements: int, found: "HardwareFeatures") -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    # Gaps of two and no edges: the table is 80 columns wide, as pipes and old terminals are.
    table = Table(
        title="A digits CNN, quantized\n", title_style="bold", title_justify="left", caption_justify="left",
        caption=_demo_caption(rows, elements, found), box=box.SIMPLE_HEAD, header_style="bold cyan",
        show_edge=False, pad_edge=False, padding=(0, 1, 0, 0),
    )  # fmt: skip
    table.add_column("dtype", no_wrap=True, style="bold")
    table.add_column("scheme", no_wrap=True)
    for heading in ("bytes", "bits/w", "SQNR dB", "accuracy", "GB/s", "×NumPy"):
        table.add_column(heading, justify="right", no_wrap=True)
    above = ""
    for row, below in zip(rows, [*rows[1:], rows[-1]], strict=True):
        table.add_row(
            row.dtype if row.dtype != above else "",
            row.scheme,
            f"{row.nbytes:,}",
            f"{row.bits_per_weight:.2f}",
            _number(row.sqnr_db, ".1f"),
            Text(f"{row.accuracy:.1%}", style=_accuracy_style(row.accuracy, rows[0].accuracy)),
            _number(row.gb_per_s, ".1f"),
            _number(row.times_numpy, ".1f"),
            end_section=row.dtype.lstrip("u") != below.dtype.lstrip("u"),
        )
        above = row.dtype
    return table


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _accuracy_style(accuracy: float, baseline: float) -> str:
    lost = baseline - accuracy
    return "green" if lost <= 0.005 else "yellow" if lost <= 0.05 else "red"


def _demo_caption(rows: "list[DemoRow]", elements: int, found: "HardwareFeatures") -> str:
    checked = [row for row in rows if row.exact is not None]
    exact = sum(bool(row.exact) for row in checked)
    return (
        "\nBytes count codes, scales and zero points of all weights; biases stay float32. Accuracy: 360 test "
        "images (one is 0.3 %), NumPy forward pass with the dequantized weights.\n"
        f"Speed: float32 read per second while quantizing the same weights tiled to {elements:,} elements, "
        f"parameters given, best of several runs; lowbit with {found.isa} on {found.threads} "
        f"thread{'s' * (found.threads > 1)}, the NumPy reference on one. "
        f"Codes equal to the reference's in {exact} of {len(checked)} settings."
    )


if __name__ == "__main__":
    main()
