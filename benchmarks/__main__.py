"""python -m benchmarks [--only family,...] [--quick] [--json PATH] [--machine NAME] [--threads N]

Exits with 0 even where a target is missed, which the output then says; with 1 where something failed to run.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

import lowbit as lb
from benchmarks import (
    bench_binary,
    bench_calibration,
    bench_calls,
    bench_codes,
    bench_conv,
    bench_dequantize,
    bench_fake_quant,
    bench_gemm,
    bench_groups,
    bench_int4,
    bench_linear,
    bench_qat,
    bench_quantize,
    bench_range,
    bench_sweep,
    bench_threads,
)
from benchmarks.machine import keep_freed_memory
from benchmarks.peers import Peers
from benchmarks.report import print_family, print_summary
from benchmarks.results import cases_of, facts, write
from benchmarks.rows import Member, Row, group_rows, members_of, rows_of
from benchmarks.timing import Budget, measure

# Each has `cases(peers)`, and opens with a line that says what it measures.
FAMILIES: dict[str, ModuleType] = {
    "quantize": bench_quantize,
    "dequantize": bench_dequantize,
    "groups": bench_groups,
    "fake_quant": bench_fake_quant,
    "qat": bench_qat,
    "calls": bench_calls,
    "range": bench_range,
    "calibration": bench_calibration,
    "gemm": bench_gemm,
    "linear": bench_linear,
    "int4": bench_int4,
    "conv": bench_conv,
    "sweep": bench_sweep,
    "binary": bench_binary,
    "codes": bench_codes,
    "threads": bench_threads,
}

FULL, QUICK = Budget(seconds=7.0, rounds=7), Budget(seconds=0.7, rounds=3)
SETTLE = 0.01  # seconds in which the idle workers of any peer stop spinning
_PLAIN_WIDTH = 120  # where the output is no terminal


def main() -> int:
    options = _options()
    console = Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    warnings.filterwarnings("ignore", message="torch.quantize_per_tensor", category=UserWarning)  # deprecated
    lb.set_num_threads(options.threads)
    keep_freed_memory()
    run = facts(options.machine, options.threads)
    _print_heading(console, run)

    rows: list[Row] = []
    for family in options.only:
        of_family = _run(family, options)
        print_family(console, family, (FAMILIES[family].__doc__ or "").splitlines()[0], of_family)
        rows += of_family
    print_summary(console, rows, options.threads)
    write(options.json, {**run, "quick": options.quick, "cases": cases_of(rows)})
    console.print(f"Written to {options.json}")
    return 1 if any(row.status == "failed" for row in rows) else 0


def _run(family: str, options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    members: list[Member] = []
    budget = QUICK if options.quick else FULL
    try:
        for case in FAMILIES[family].cases(Peers(options.threads)):
            _say(f"measuring {family}: {case.name} …")
            found = {} if case.not_measurable else measure(case, budget, settle=SETTLE if options.threads > 1 else 0.0)
            rows += rows_of(family, case, found, options.threads)
            members += members_of(case, found)
    except Exception as error:  # one family that cannot be set up does not keep the others from running
        traceback.print_exc()
        rows.append(Row(family, "setting up", "lowbit", "lowbit", "failed", f"{type(error).__name__}: {error}"))
    _say("")
    return rows + group_rows(family, members, options.threads)


def _say(text: str) -> None:
    """What is going on, on one line that is overwritten; only where someone watches."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def _print_heading(console: Console, run: dict[str, Any]) -> None:
    plural, load = "s" if run["threads"] > 1 else "", os.getloadavg()[0]
    cpus = f"{lb.hardware().usable_cpus} usable CPUs"
    console.print(f"[bold]{run['cpu']}[/], {run['isa']}, {run['threads']} thread{plural}, {cpus}")
    if load > lb.hardware().usable_cpus / 2:
        console.print(f"[yellow]The machine is busy (load {load:.1f}): read with caution.[/]")
    named = [f"{name} {found or '[yellow]missing[/]'}" for name, found in run["versions"].items()]
    console.print(", ".join(named[:6]) + ",\n" + ", ".join(named[6:]), highlight=False)
    console.print()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description="lowbit beside its peers, measured.")
    parser.add_argument(
        "--only", type=_families, default=list(FAMILIES), metavar="FAMILY,...", help=", ".join(FAMILIES)
    )
    parser.add_argument("--quick", action="store_true", help="short rounds: does it run, and about how fast")
    parser.add_argument("--json", type=Path, default=Path("results/bench.json"), metavar="PATH")
    parser.add_argument("--machine", default="", metavar="NAME", help="the CPU as the results name it")
    parser.add_argument("--threads", type=_count, default=1, metavar="N", help="for lowbit and every peer")
    return parser.parse_args()


def _families(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in names if name not in FAMILIES]
    if unknown or not names:
        raise argparse.ArgumentTypeError(f"{text!r}; expected some of {', '.join(FAMILIES)}")
    return list(dict.fromkeys(names))


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}; expected at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
