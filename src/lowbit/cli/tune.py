"""`lowbit tune` and `lowbit recommend`: settings measured on this machine."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from lowbit.cli.errors import end_interrupted, refuse_given
from lowbit.cli.options import AS_JSON
from lowbit.cli.screen import add_numbers, screen, table
from lowbit.numerics.errors import InvalidProblem

if TYPE_CHECKING:
    from lowbit.tuning import OptimalQuantizationConfig, QuantizationWorkload

_MATMUL = Annotated[
    list[str], typer.Option(help="Matrix product of x [M, K] by weights [N, K]. Repeatable.", metavar="MxNxK")
]
_CONV = Annotated[
    list[str],
    typer.Option(
        help="Convolution of x by w; stride=, padding=, dilation= and groups= may follow. Repeatable.",
        metavar="NxCxHxW,OxIxHxW",
    ),
]
_ADD = Annotated[list[str], typer.Option(help="Sum of two arrays of this shape. Repeatable.", metavar="AxB...")]
_SECONDS = Annotated[float, typer.Option(help="Maximum seconds of measuring per workload.", metavar="S")]
_LATENCY = Annotated[float | None, typer.Option(help="Maximum latency in milliseconds.", metavar="MS")]
_SQNR = Annotated[float | None, typer.Option(help="Minimum SQNR in decibels.", metavar="DB")]
_COSINE = Annotated[float | None, typer.Option(help="Minimum cosine similarity to the float result.", metavar="X")]
_MEMORY = Annotated[int | None, typer.Option(help="Maximum size of the weights in bytes.", metavar="BYTES")]
_ANEW = Annotated[bool, typer.Option("--no-cache", help="Measure again, and cache nothing.")]
# Options that have no meaning without a workload.
_SETTINGS = ("seconds", "max_latency", "min_sqnr", "min_cosine", "memory", "torch", "no_cache")
_EXPLAIN = Annotated[
    bool, typer.Option("--explain", help="Print the schedule of each --matmul for int8 weights; measure nothing.")
]
_TORCH = Annotated[bool, typer.Option(help="Compare with torch as well, where it is installed.")]


EPILOG = "Example: lowbit tune --matmul 128x768x768 --conv 1x64x56x56,64x64x3x3,padding=1 --min-sqnr 30"


def tune(
    ctx: typer.Context,
    matmul: _MATMUL = [],  # noqa: B006
    conv: _CONV = [],  # noqa: B006
    add: _ADD = [],  # noqa: B006
    seconds: _SECONDS = 5.0,
    max_latency: _LATENCY = None,
    min_sqnr: _SQNR = None,
    min_cosine: _COSINE = None,
    memory: _MEMORY = None,
    torch: _TORCH = True,
    no_cache: _ANEW = False,
    clear_cache: Annotated[bool, typer.Option("--clear-cache", help="Delete all cached measurements first.")] = False,
    explain: _EXPLAIN = False,
    as_json: AS_JSON = False,
) -> None:
    """Measure quantized settings for workloads on this machine against float32, and name the best."""
    from lowbit.runtime.cache_file import clear_caches

    if not (matmul or conv or add):
        refuse_given(ctx, "there is no workload; give --matmul, --conv or --add", *_SETTINGS, "explain")
    if clear_cache:
        gone = clear_caches()
        if not as_json:
            typer.echo(f"Removed {len(gone)} cache file{'s' * (len(gone) != 1)}")
        if not (matmul or conv or add):
            return
    if explain:
        refuse_given(ctx, "--explain measures nothing; give --matmul alone", "conv", "add", *_SETTINGS)
        return _explain(matmul, as_json)
    given, bounds = (matmul, conv, add), (max_latency, min_sqnr, min_cosine, memory)
    found, interrupted = _searched(given, bounds, seconds, torch, no_cache, as_json)
    if as_json:
        typer.echo(json.dumps([f.to_dict() for f in found], indent=2, default=str))
    else:
        shown = screen()
        for f in found:
            shown.print(_table(f))
    if interrupted:
        end_interrupted("shown is what was measured until then")


def _explain(matmul: list[str], as_json: bool) -> None:
    from lowbit.tuning.explain import explain
    from lowbit.tuning.workload import QuantizationWorkload

    found = [explain(QuantizationWorkload.parse("matmul", text)) for text in matmul]
    if as_json:
        typer.echo(json.dumps([f.to_dict() for f in found], indent=2))
        return
    for f in found:
        shown = table(f"matmul {f.workload}, int8 weights")
        shown.add_column("")
        shown.add_column("schedule")
        for row in f.lines():
            shown.add_row(*row)
        screen().print(shown)


def recommend(
    ctx: typer.Context,
    matmul: _MATMUL = [],  # noqa: B006
    conv: _CONV = [],  # noqa: B006
    add: _ADD = [],  # noqa: B006
    seconds: _SECONDS = 5.0,
    max_latency: _LATENCY = None,
    min_sqnr: _SQNR = None,
    min_cosine: _COSINE = None,
    memory: _MEMORY = None,
    torch: _TORCH = True,
    no_cache: _ANEW = False,
    as_json: AS_JSON = False,
) -> None:
    """Recommend a setting for each workload, with the reason; without workloads, print hints for this machine."""
    from lowbit.runtime.hints import performance_hints
    from lowbit.tuning.recommend import recommend as recommended

    if not (matmul or conv or add):
        refuse_given(ctx, "there is no workload; give --matmul, --conv or --add", *_SETTINGS)
        hints = performance_hints()
        typer.echo(json.dumps(hints.to_dict(), indent=2) if as_json else str(hints))
        return
    given, bounds = (matmul, conv, add), (max_latency, min_sqnr, min_cosine, memory)
    searched, interrupted = _searched(given, bounds, seconds, torch, no_cache, as_json)
    if interrupted:
        end_interrupted("nothing is kept" if no_cache else "workloads that were measured to the end are in the cache")
    found = [recommended(answer.workload, found=answer) for answer in searched]
    typer.echo(json.dumps([f.to_dict() for f in found], indent=2) if as_json else "\n\n".join(map(str, found)))


def _searched(
    given: tuple[list[str], ...], bounds: tuple[Any, ...], seconds: float, torch: bool, no_cache: bool, quiet: bool
) -> "tuple[list[OptimalQuantizationConfig], bool]":
    """The settings that were found, and whether Ctrl-C came before the end."""
    from lowbit.tuning import AutoTuningConfig, PerformanceRequirements, QuantizationWorkload, auto_tune

    kinds = zip(("matmul", "conv2d", "add"), given, strict=True)
    work = [QuantizationWorkload.parse(kind, text) for kind, texts in kinds for text in texts]
    if not work:
        raise InvalidProblem("workload: none; give --matmul, --conv or --add")
    latency, sqnr, cosine, memory = bounds
    wanted = PerformanceRequirements(None if latency is None else latency / 1e3, None, memory, sqnr, cosine)
    config = AutoTuningConfig(max_search_time=seconds)
    if torch and find_spec("torch") is not None:
        import_module("torch")  # the search compares with every peer that is imported
    found: list[OptimalQuantizationConfig] = []
    with screen(stderr=True, quiet=quiet).status("Starting") as status:
        for i, w in enumerate(work):
            say = partial(_say, status, f"{i + 1} of {len(work)}: {_short(w)}")
            found.append(auto_tune(w, wanted, config, cache=not no_cache, progress=say))
            if not found[-1].complete and found[-1].seconds < 0.5 * seconds:
                return found, True
    return found, False


def _say(status: Any, workload: str, text: str) -> None:
    status.update(f"{workload}, {text}")


def _short(w: "QuantizationWorkload") -> str:
    return repr(w).removeprefix("QuantizationWorkload(").removesuffix(")")


def _table(found: "OptimalQuantizationConfig") -> RenderableType:
    from lowbit.bench.results import seconds_text

    verdict = "keep float" if found.winner is None else found.winner.name
    note = "" if found.complete else " Not every setting was measured."
    if any(r.dropped for r in found.results):
        note += "\n~ Clearly slower in the first rounds, and skipped in later ones."
    kept = "from the cache" if found.from_cache else f"{found.seconds:.1f} s"
    caption = f"\n{verdict}: {found.why}.{note}\nErrors on {found.data}; {kept}.\n"
    made = table(_short(found.workload), caption)
    made.add_column("setting")
    add_numbers(made, ("median", "×float", "GOPS", "SQNR dB", "bytes"))
    base = found.baseline
    for r in found.results:
        t = r.timing.median
        style = "green" if r.candidate is not None and r.candidate == found.winner else "dim" if r.violations else ""
        mark, early = " *" if r.on_front else "", "~ " if r.dropped else ""
        name = Text(r.name + mark + "".join(f"\n  {v}" for v in r.violations), style=style)
        speed = f"{base.timing.median / t:.2f}" if base else "", f"{found.workload.operations / t / 1e9:.1f}"
        error = "exact" if r.candidate is None else f"{r.sqnr_db:.1f}"
        made.add_row(name, f"{early}{seconds_text(t)}", *speed, error, f"{r.nbytes:,}")
    return made
