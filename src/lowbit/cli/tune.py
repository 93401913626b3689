"""`lowbit tune` and `lowbit recommend`: settings measured on this machine."""

# No `from __future__ import annotations`: typer reads the annotations.
import json
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowbit.cli.errors import end_interrupted, refuse_given, screen

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lowbit.tuning import OptimalQuantizationConfig, QuantizationWorkload

__all__ = ["recommend", "tune"]

_MATMUL = Annotated[list[str], typer.Option(help="Sizes of x [M, K] by weights [N, K].", metavar="MxNxK")]
_CONV = Annotated[
    list[str],
    typer.Option(
        help="Sizes of x and w; stride=, padding=, dilation= and groups= may follow.", metavar="NxCxHxW,OxIxHxW"
    ),
]
_ADD = Annotated[list[str], typer.Option(help="Sizes of two arrays to add.", metavar="AxB...")]
_SECONDS = Annotated[float, typer.Option(help="For each workload.")]
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
_LATENCY = Annotated[float | None, typer.Option(help="Milliseconds at the most.", show_default=False)]
_SQNR = Annotated[float | None, typer.Option(help="Decibels at the least.", show_default=False)]
_COSINE = Annotated[float | None, typer.Option(help="To float results, at the least.", show_default=False)]
_MEMORY = Annotated[int | None, typer.Option(help="Bytes of weights at the most.", show_default=False)]
_ANEW = Annotated[bool, typer.Option("--no-cache", help="Measure anew, and keep nothing.")]
# What says something of workloads, and nothing without any.
_SETTINGS = ("seconds", "max_latency", "min_sqnr", "min_cosine", "memory", "torch", "no_cache")
_TORCH = Annotated[bool, typer.Option(help="Hold settings against torch too, where it is installed.")]


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
    clear_cache: Annotated[bool, typer.Option("--clear-cache", help="Forget what was measured before.")] = False,
    as_json: _JSON = False,
) -> None:
    """Measure settings for products and convolutions beside float32, and name the best."""
    from lowbit.runtime.cache_file import clear_caches

    if not (matmul or conv or add):
        refuse_given(ctx, "there is no workload; give --matmul, --conv or --add", *_SETTINGS)
    if clear_cache:
        gone = clear_caches()
        if not as_json:
            typer.echo(f"Removed {len(gone)} cache file{'s' * (len(gone) != 1)}")
        if not (matmul or conv or add):
            return
    limits = max_latency, min_sqnr, min_cosine, memory
    found, interrupted = _searched(matmul, conv, add, seconds, limits, torch, no_cache, as_json)
    if as_json:
        typer.echo(json.dumps([f.to_dict() for f in found], indent=2, default=str))
    else:
        shown = screen()
        for f in found:
            shown.print(_table(f))
    if interrupted:
        end_interrupted("shown is what was measured until then")


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
    as_json: _JSON = False,
) -> None:
    """Say what to do about workloads, and why; without any, what this machine prefers."""
    from lowbit.runtime.hints import performance_hints
    from lowbit.tuning.recommend import recommend as recommended

    if not (matmul or conv or add):
        refuse_given(ctx, "there is no workload; give --matmul, --conv or --add", *_SETTINGS)
        hints = performance_hints()
        typer.echo(json.dumps(hints.to_dict(), indent=2) if as_json else str(hints))
        return
    limits = max_latency, min_sqnr, min_cosine, memory
    searched, interrupted = _searched(matmul, conv, add, seconds, limits, torch, no_cache, as_json)
    if interrupted:
        end_interrupted("nothing is kept" if no_cache else "workloads that were measured to the end are in the cache")
    found = [recommended(answer.workload, found=answer) for answer in searched]
    typer.echo(json.dumps([f.to_dict() for f in found], indent=2) if as_json else "\n\n".join(map(str, found)))


def _asked(matmul: list[str], conv: list[str], add: list[str], limits: tuple[Any, ...]) -> tuple[Any, Any]:
    from lowbit.numerics.errors import InvalidProblem
    from lowbit.tuning import PerformanceRequirements, QuantizationWorkload

    latency, sqnr, cosine, memory = limits
    wanted = PerformanceRequirements(None if latency is None else latency / 1e3, None, memory, sqnr, cosine)
    work = [QuantizationWorkload.parse("matmul", t) for t in matmul]
    work += [QuantizationWorkload.parse("conv2d", t) for t in conv]
    work += [QuantizationWorkload.parse("add", t) for t in add]
    if not work:
        raise InvalidProblem("workload: none; give --matmul, --conv or --add")
    return wanted, work


def _searched(
    matmul: list[str], conv: list[str], add: list[str], seconds: float, limits: tuple[Any, ...], torch: bool,
    no_cache: bool, quiet: bool,
) -> "tuple[list[OptimalQuantizationConfig], bool]":  # fmt: skip
    """What was found, and whether Ctrl-C came before the end."""
    from lowbit.tuning import AutoTuningConfig, auto_tune

    wanted, work = _asked(matmul, conv, add, limits)
    config = AutoTuningConfig(max_search_time=seconds)
    if torch:
        _import_torch()
    found: list[OptimalQuantizationConfig] = []
    with screen(stderr=True, quiet=quiet).status("Starting") as status:
        for i, w in enumerate(work):
            said = f"{i + 1} of {len(work)}: {_short(w)}"
            found.append(auto_tune(w, wanted, config, cache=not no_cache, progress=_shown(status, said)))
            if not found[-1].complete and found[-1].seconds < 0.5 * seconds:
                return found, True
    return found, False


def _import_torch() -> None:
    """The search holds settings against whatever is at hand."""
    if find_spec("torch") is not None:
        import_module("torch")


def _shown(status: Any, said: str) -> Any:
    return lambda text: status.update(f"{said}, {text}")


def _short(w: "QuantizationWorkload") -> str:
    return repr(w).removeprefix("QuantizationWorkload(").removesuffix(")")


def _table(found: "OptimalQuantizationConfig") -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    verdict = "keep float" if found.winner is None else found.winner.name
    note = "" if found.complete else " Not every setting was measured."
    if any(r.dropped for r in found.results):
        note += "\n~ Clearly slower in the first rounds, and left out of later ones."
    kept = "remembered from before" if found.from_cache else f"{found.seconds:.1f} s"
    table = Table(
        title=f"{_short(found.workload)}\n", title_style="bold", title_justify="left", box=box.SIMPLE_HEAD,
        caption=f"\n{verdict}: {found.why}.{note}\nErrors on {found.data}; {kept}.\n", caption_justify="left",
        header_style="bold cyan", show_edge=False, pad_edge=False,
    )  # fmt: skip
    table.add_column("setting")
    for heading in ("median", "×float", "GOPS", "SQNR dB", "bytes"):
        table.add_column(heading, justify="right", no_wrap=True)
    base = found.baseline
    for r in found.results:
        t = r.timing.median
        scale, unit = (1e6, "µs") if t < 1e-3 else (1e3, "ms")
        style = "green" if r.candidate is not None and r.candidate == found.winner else "dim" if r.violations else ""
        mark, early = " *" if r.on_front else "", "~ " if r.dropped else ""
        table.add_row(
            Text(r.name + mark + "".join(f"\n  {v}" for v in r.violations), style=style),
            f"{early}{t * scale:.4g} {unit}",
            f"{base.timing.median / t:.2f}" if base else "", f"{found.workload.operations / t / 1e9:.1f}",
            "exact" if r.candidate is None else f"{r.sqnr_db:.1f}", f"{r.nbytes:,}",
        )  # fmt: skip
    return table
