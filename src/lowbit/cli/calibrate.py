"""`lowbit calibrate`: quantization ranges of the arrays in files."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from lowbit.cli.errors import refuse_unwritable
from lowbit.cli.options import AS_JSON
from lowbit.cli.screen import add_numbers, printable, screen, table
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.schemes import QuantizationScheme

if TYPE_CHECKING:
    from lowbit.calibration import CalibrationStatistics, Calibrator
    from lowbit.numerics.params import QuantizationParams


EPILOG = "Example: lowbit calibrate activations.npy --dtype int4 --plot ranges.png"


def calibrate(
    files: Annotated[list[Path], typer.Argument(help=".npy and .npz files.", metavar="FILE...")],
    dtype: Annotated[str, typer.Option(help="Dtype to quantize to.")] = "int8",
    scheme: Annotated[str, typer.Option(help="linear, symmetric, asymmetric or logarithmic.")] = "linear",
    method: Annotated[
        str, typer.Option(help="min_max, moving_average, percentile, percentile:99.9, entropy, mse or adaptive.")
    ] = "adaptive",
    array: Annotated[str | None, typer.Option(help="Read only the array of this name.")] = None,
    join: Annotated[bool, typer.Option("--join", help="Treat all arrays as samples of one tensor.")] = False,
    axis: Annotated[int | None, typer.Option(help="Find one range per index of this axis.")] = None,
    ignore_nonfinite: Annotated[
        bool, typer.Option("--ignore-nonfinite", help="Ignore NaN and Inf, and report how many there are.")
    ] = False,
    plot: Annotated[Path | None, typer.Option(help="Plot histogram and ranges to this PNG, SVG or PDF file.")] = None,
    state: Annotated[
        Path | None, typer.Option(help="Continue from this file if it exists, and save the statistics to it.")
    ] = None,
    as_json: AS_JSON = False,
) -> None:
    """Find quantization ranges for arrays in files, and compare what each calibration method loses."""
    from lowbit.models import ActivationRecipe

    if plot is not None:
        refuse_unwritable("--plot", plot, (".png", ".svg", ".pdf"))
    if state is not None:
        refuse_unwritable("--state", state)
    # Settings that are wrong raise before anything is read.
    chosen = ActivationRecipe(method=method).calibration_method()
    QuantizedDType.of(dtype)
    QuantizationScheme.of(scheme)
    found = _collected(files, array, join, axis, ignore_nonfinite, state, quiet=as_json)
    rows = []
    for c in found:
        params = c.calibrate(dtype, scheme, method=chosen)
        rows.append((c, c.statistics(dtype, scheme), params))
    if plot is not None:
        drawn = _draw(rows, plot)
    if state is not None:
        found[0].save(state)
    if as_json:
        typer.echo(json.dumps([_as_json(*row) for row in rows], indent=2))
        return
    shown = screen()
    for row in rows:
        shown.print(_table(*row))
    if plot is not None:
        shown.print(printable("Drew " + ", ".join(map(str, drawn))), style="dim")


def _collected(
    files: list[Path], only: str | None, join: bool, axis: int | None, ignore: bool, state: Path | None, quiet: bool
) -> "list[Calibrator]":
    from lowbit.calibration import Calibrator
    from lowbit.calibration.files import arrays_of

    if state is not None and not (join or only is not None or len(files) == 1):
        raise InvalidProblem("state: it keeps one tensor; use --join or --array")
    found: dict[str, Calibrator] = {}
    if state is not None and state.exists():
        kept = Calibrator.load(state)
        if axis not in (None, kept.sketch.axis):
            raise InvalidProblem(f"axis: {axis}; {state} was begun with {kept.sketch.axis}")
        if ignore and kept.sketch.on_nonfinite != "ignore":
            raise InvalidProblem(f"ignore_nonfinite: given; {state} was begun without it")
        found[kept.name] = kept
    policy = "ignore" if ignore else "raise"
    with screen(stderr=True, quiet=quiet).status("Reading") as status:
        for file in files:
            for i, (name, x) in enumerate(arrays_of(file, only)):
                if state is not None and i and not join:
                    raise InvalidProblem(f"state: it keeps one tensor, and {file} has several; use --join or --array")
                status.update(Text(printable(f"Reading {file.name}: {name}")))
                key = next(iter(found), "samples") if join or state is not None else name
                if key not in found:
                    found[key] = Calibrator(axis=axis, name=key, on_nonfinite=policy)  # type: ignore[arg-type]
                found[key].sketch.add(x, f"{file.name}:{name}")
    if not found:
        raise InvalidProblem("files: no arrays in them")
    return list(found.values())


def _draw(rows: list[Any], path: Path) -> list[Path]:
    drawn = []
    for c, statistics, _ in rows:
        safe = "".join(ch if ch.isalnum() or ch in "-_." else "_" for ch in c.name)
        target = path if len(rows) == 1 else path.with_name(f"{path.stem}-{safe}{path.suffix}")
        statistics.plot(target)
        drawn.append(target)
    return drawn


def _as_json(c: "Calibrator", s: "CalibrationStatistics", params: "QuantizationParams") -> dict[str, Any]:
    chosen = c.choices[0]
    said = {"method": c.method.name, "chosen": chosen.method, "explanation": str(chosen)}
    return {"statistics": s.to_dict(), "params": json.loads(params.to_json())} | said


def _table(c: "Calibrator", s: "CalibrationStatistics", params: "QuantizationParams") -> RenderableType:
    scope = "" if c.sketch.axis is None else f", index 0 of {c.sketch.shape[0]} along axis {c.sketch.axis}"
    facts = (
        f"{s.count:,} numbers in {s.num_samples} samples, {s.min:.6g} to {s.max:.6g}, mean {s.mean:.4g}, "
        f"std {s.std:.4g}, zeros {s.zero_share:.1%}, beyond 4 std {s.outlier_share:.2%}, "
        f"excess kurtosis {s.excess_kurtosis:.3g}"
    )
    if s.num_nan or s.num_inf:
        facts += f"; {s.num_nan} NaN and {s.num_inf} Inf left out"
    scale = f"scale {float(params.scale):.6g}" if params.scale.ndim == 0 else f"{params.scale.size} scales"
    zero = "" if params.zero_point.any() == 0 else f", zero point {int(params.zero_point.reshape(-1)[0])}"
    title = printable(f"{c.name}{scope}, at {s.target}")
    made = table(title, f"\n{facts}\n{c.choices[0]}: {scale}{zero}\n")
    made.add_column("method", no_wrap=True, style="bold")
    add_numbers(made, ("from", "to", "clipped", "MSE", "SQNR dB"))
    for cost in s.methods:
        style = "green" if cost.method == c.choices[0].method else ""
        cells = f"{cost.lo:.5g}", f"{cost.hi:.5g}", f"{cost.clipped:.3%}", f"{cost.mse:.4g}", f"{cost.sqnr_db:.2f}"
        made.add_row(Text(cost.method, style=style), *cells)
    return made
