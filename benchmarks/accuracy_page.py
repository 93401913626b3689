"""The section of docs/benchmarks.md that is made from the results of `benchmarks.accuracy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]

_ABOUT = """## Accuracy at few bits

What a model loses with all its linear layers quantized, by `python -m benchmarks.accuracy`: perplexity of held-out text
above float's in percent, and for MiniLM the noise of its sentence vectors relative to the signal in dB; ± is a standard
error. Bits are all that is stored: codes, 16-bit scales and zero points. SmolLM2's inputs are permuted, as its
file has a 4-bit grid already.
"""


def section(runs: Sequence[Row], table: Table) -> str:
    """One table of settings by methods for each bed of each run, and one of its peers; "" without runs."""
    parts = [_ABOUT]
    for run in runs:
        judged = [row for row in run["measurements"] if "loss" in row]
        for bed, calibrated in dict.fromkeys((row["bed"], row["calibrated"]) for row in judged):
            of_bed = [row for row in judged if (row["bed"], row["calibrated"]) == (bed, calibrated)]
            link = f"[file](../benchmarks/results/{run['file']})"
            title = f"{bed}, calibrated on {calibrated} {'sentences' if bed == 'minilm' else 'windows'}"
            parts.append(f"\n**{title}**, {run['cpu']} ({run['date'][:10]}, commit `{run['commit']}`, {link})\n\n")
            parts += _tables(of_bed, table)
    return "".join(parts) if len(parts) > 1 else ""


def _tables(rows: Sequence[Row], table: Table) -> Iterator[str]:
    ours, peers = ([row for row in rows if bool(row["scheme"]) == own] for own in (True, False))
    methods = list(dict.fromkeys(row["method"] for row in ours))
    settings = dict.fromkeys((row["true bits"], row["bits"], row["group"], row["scheme"]) for row in ours)
    lines = []
    for bits, *setting in sorted(settings):
        found = {r["method"]: _loss(r) for r in ours if [r["bits"], r["group"], r["scheme"]] == setting}
        group = f"g{setting[1]}" if setting[1] else "per output"
        lines.append([f"{setting[0]} bits, {group}, {setting[2]}", f"{bits:.2f}", *(found.get(m, "") for m in methods)])
    if lines:
        yield table(["setting", "true bits", *methods], lines)
    found = [[r["method"], f"{r['true bits']:.2f}", _loss(r), f"{r['CPU seconds']:.0f}"] for r in peers]
    if found:
        yield "\n" + table(["peer", "true bits", "loss", "CPU seconds"], sorted(found, key=lambda line: float(line[1])))


def _loss(row: Row) -> str:
    return f"{row['loss']:.1f} ± {row['loss error']:.1f}"
