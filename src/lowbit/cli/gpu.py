"""`lowbit gpu-check`: the GPU kernels on a real device, compared with the reference and timed."""

# No `from __future__ import annotations`: typer reads the annotations.
import datetime
import json
import os
import platform
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lowbit.cli.errors import refuse_unwritable
from lowbit.cli.screen import printable, screen
from lowbit.numerics.errors import InvalidProblem

if TYPE_CHECKING:
    from lowbit.gpu.self_check import Result
    from lowbit.gpu.speed import Speed
    from lowbit.runtime.devices import GpuDevice


def gpu_check(
    device: Annotated[str, typer.Option(help="GPU to check: cuda, cuda:1 and so on.")] = "cuda",
    json_path: Annotated[
        Path, typer.Option("--json", metavar="PATH", help="Report to write; - prints JSON and nothing else.")
    ] = Path("lowbit-gpu-check.json"),
    speeds: Annotated[bool, typer.Option(help="Also measure speed, against torch on the same GPU.")] = True,
    only: Annotated[str, typer.Option(help="Run only comparisons whose name contains this text.")] = "",
    interpreter: Annotated[bool, typer.Option("--interpreter", hidden=True)] = False,
) -> None:
    """Compare the GPU kernels (experimental) with the NumPy reference on a GPU, measure them, and write a report."""
    from lowbit.runtime.devices import EXPERIMENTAL, find_device, why_not

    if interpreter:
        os.environ |= {"LOWBIT_GPU_INTERPRETER": "1"}
    if missing := why_not(device):
        typer.echo(f"lowbit gpu-check: {missing}", err=True)
        raise typer.Exit(2)
    if json_path != Path("-"):
        refuse_unwritable("--json", json_path)
    place = find_device(device)
    results, measured = _run(place, only, speeds)
    wrong = [r for r in results if not r.is_right]
    report = json.dumps(_report(place, results, measured), indent=2)
    if json_path == Path("-"):
        typer.echo(report)
    else:
        json_path.write_text(report + "\n")
        shown = screen()
        for r in wrong:
            why = r.error or f"{r.wrong} of {r.compared} results differ"
            shown.print(printable(f"WRONG {r.name}: {why}"), style="red")
        compared = sum(r.compared for r in results)
        right = len(results) - len(wrong)
        shown.print(f"{right} of {len(results)} comparisons right, {compared:,} results.")
        shown.print(f"{EXPERIMENTAL}. Please report the results of this command.", style="dim")
        if place.backend != "interpreter":
            for s in measured:
                shown.print(_line(s))
        shown.print(printable(f"Wrote {json_path}"), style="dim")
    if wrong or not results:
        raise typer.Exit(1)


def _run(place: "GpuDevice", only: str, speeds: bool) -> "tuple[list[Result], list[Speed]]":
    from lowbit.gpu.self_check import all_checks, result_of
    from lowbit.gpu.speed import measure

    real = place.backend != "interpreter"
    results = []
    checks = list(all_checks(place, large=real))
    chosen = [check for check in checks if only in check.name]
    if not chosen:
        near = get_close_matches(only, [check.name for check in checks], 3, 0.0)
        raise InvalidProblem(f"--only: {only!r} is in no comparison's name; the nearest are {', '.join(near)}")
    with screen(stderr=True).status("Starting") as status:
        for check in chosen:
            status.update(f"Comparing: {check.name}")
            results.append(result_of(check, place))
        status.update("Measuring")
        return results, measure(place, small=not real) if speeds else []


def _report(place: "GpuDevice", results: "list[Result]", measured: "list[Speed]") -> dict[str, Any]:
    import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]

    import lowbit
    import torch
    from lowbit.runtime.hardware import hardware

    real = place.backend != "interpreter"
    return {
        "made": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "lowbit": lowbit.__version__,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "device": torch.cuda.get_device_name(place.memory) if real else "Triton's interpreter: no speed means anything",
        "backend": place.backend,
        "architecture": place.architecture,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "hardware": hardware().to_dict(),
        "right": sum(r.is_right for r in results),
        "comparisons": [r.to_dict() for r in results],
        "speeds": [s.to_dict() for s in measured],
    }


def _line(s: "Speed") -> str:
    line = f"{s.name:<58} {s.rate:>10,.1f} {s.unit}"
    return line if s.times_torch is None else f"{line}  {s.times_torch:.2f} × torch's {s.torch_name}"
