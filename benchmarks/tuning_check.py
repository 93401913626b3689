"""python -m benchmarks.tuning_check [--seconds S] [--sweep S] [--json PATH]

Whether the tuner's choices hold: each winner is timed again in a fresh process, beside every other setting and float32,
for longer than the search had. It holds where its median is within 5 % of the best one there.
"""

from __future__ import annotations

import argparse
import multiprocessing
from pathlib import Path
from typing import Any

from benchmarks.results import report_table
from lowbit.bench.timing import measure
from lowbit.runtime.hardware import hardware
from lowbit.tuning import AutoTuningConfig, QuantizationWorkload, auto_tune
from lowbit.tuning.candidates import build, candidates_for, float_work

WORKLOADS = [
    ("matmul", "1x4096x4096"), ("matmul", "8x2048x2048"), ("matmul", "64x4096x4096"), ("matmul", "128x768x768"),
    ("matmul", "8x64x64"), ("matmul", "1x256x256"), ("conv2d", "1x64x56x56,64x64x3x3,padding=1"),
    ("conv2d", "1x256x14x14,256x256x1x1"), ("conv2d", "1x128x56x56,128x1x3x3,padding=1,groups=128"),
    ("add", "1024x1024"),
]  # fmt: skip
WITHIN = 1.05


def sweep(kind: str, text: str, seconds: float) -> dict[str, float]:
    """Medians of every setting and of float32."""
    workload = QuantizationWorkload.parse(kind, text)
    data = workload.data()
    calls: dict[str, Any] = {f"float32, {name}": work.run for name, work in float_work(workload, data).items()}
    for candidate in candidates_for(workload, hardware().threads):
        calls[candidate.name] = build(workload, candidate, data).run
    # As many rounds as there is time for: a second of a machine that others use may be a slow one.
    timings = measure(calls, seconds=seconds, width=0.005, max_rounds=100_000)
    return {name: t.median for name, t in timings.items()}


def check(kind: str, text: str, seconds: float, sweep_seconds: float) -> list[Any]:
    """A row: the workload, what the tuner chose, what is the fastest, their ratio, and whether that is close enough."""
    workload = QuantizationWorkload.parse(kind, text)
    found = auto_tune(workload, config=AutoTuningConfig(max_search_time=seconds, min_improvement=1.0), cache=False)
    with multiprocessing.get_context("spawn").Pool(1) as fresh:
        medians = fresh.apply(sweep, (kind, text, sweep_seconds))
    floats = min((n for n in medians if n.startswith("float32")), key=medians.__getitem__)
    # Also those the search had no time for; not those too inaccurate to win, which two bits always are.
    broken = {r.name for r in found.results if r.violations}
    allowed = [floats, *(n for n in medians if n not in broken and not n.startswith(("float32", "int2")))]
    best = min(allowed, key=medians.__getitem__)
    chosen = floats if found.winner is None else found.winner.name
    ratio = medians[chosen] / medians[best]
    return [f"{kind} {text}", chosen, best, ratio, ratio <= WITHIN]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--sweep", type=float, default=15.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [check(kind, text, options.seconds, options.sweep) for kind, text in WORKLOADS]
    report_table(
        "The tuner's choice beside every other setting, in a fresh process",
        ["workload", "chosen", "fastest", "chosen / fastest, seconds", "within 5 %"],
        rows,
        options.json,
    )
    print(f"{sum(row[-1] for row in rows)} of {len(rows)} within {WITHIN - 1:.0%}; target 9 of 10")


if __name__ == "__main__":
    main()
