"""The roofline: what arithmetic and memory allow at each number of operations a byte, and where products lie."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from lowbit.bench.results import BenchmarkSummary
from lowbit.numerics.errors import InvalidProblem

__all__ = ["plot_roofline"]

# Told apart by people of any colour vision, and by their dashes.
_SLOPES = {"L1": ("#0072b2", "-"), "L2": ("#009e73", "--"), "L3": ("#cc79a7", "-."), "DRAM": ("#000000", ":")}
_POINTS = (("#d55e00", "o"), ("#56b4e9", "s"), ("#e69f00", "^"), ("#999999", "D"))


def plot_roofline(summary: BenchmarkSummary, path: str | os.PathLike[str] | None = None) -> Any:
    """The figure, of the matrix results; written to `path` too, if given. Roofs are those of one thread times the
    number of threads: no more is possible, and less where threads share what they read from."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError("pictures need matplotlib: pip install 'lowbit[report]'", name="matplotlib") from None

    points = [
        (r.name, r.operations / r.bytes_moved, r.gops)
        for r in summary.of("matrix")
        if r.gops is not None and r.bytes_moved
    ]
    if not points:
        raise InvalidProblem("summary: no timed matrix results to draw")
    threads = summary.threads
    flat = {
        label: summary.limits.get(key, 0) * threads / 1e9
        for label, key in (("8-bit dot products", "dot_ops"), ("f32 arithmetic", "fma_ops"))
    }
    flat = {label: rate for label, rate in flat.items() if rate > 0}
    reads = {k: v * threads / 1e9 for k, v in summary.limits.get("read_bytes", {}).items() if v > 0}
    top = max([*flat.values(), *(p[2] for p in points)])
    floor = min(p[2] for p in points) / 4
    left = min([p[1] for p in points] + [top / rate for rate in reads.values()]) / 3
    right = max([p[1] for p in points] + [top / rate for rate in reads.values()]) * 3

    figure = Figure(figsize=(9, 5.8), layout="constrained")
    axes = figure.subplots()
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(floor, top * 2.2))
    for i, (label, rate) in enumerate(sorted(flat.items(), key=lambda item: -item[1])):
        start = max(left, rate / max(reads.values())) if reads else left
        axes.plot([start, right], [rate, rate], color="#000000", linewidth=1.8 if i == 0 else 1.0)
        axes.annotate(
            f"{label}\n{rate:.0f} GOPS", (right, rate), (5, 0), textcoords="offset points", va="center", size="small",
            annotation_clip=False,
        )  # fmt: skip
    roof = max(flat.values(), default=top)
    for name, rate in reads.items():
        color, dashes = _SLOPES.get(name, ("#999999", "-"))
        x = np.array([left, roof / rate])
        axes.plot(x, rate * x, color=color, linestyle=dashes, linewidth=1.4, label=f"reading {name}: {rate:.0f} GB/s")
    kinds = list(dict.fromkeys(_kind(p[0]) for p in points))
    for i, kind in enumerate(kinds):
        color, marker = _POINTS[i % len(_POINTS)]
        mine = [p for p in points if _kind(p[0]) == kind]
        axes.scatter(
            [p[1] for p in mine], [p[2] for p in mine], color=color, marker=marker, s=46, zorder=3, edgecolor="black",
            linewidth=0.6, label=kind,
        )  # fmt: skip
        # Shapes of the first kind stand left of its points, those of others right: the points often lie close together.
        for name, intensity, rate in mine:
            away, side, edge = (-5, "right", "top") if i == 0 else (5, "left", "bottom")
            axes.annotate(
                _shape(name), (intensity, rate), (away, away), textcoords="offset points", color="#222222", ha=side,
                va=edge, fontsize="x-small", zorder=2.5,
            )  # fmt: skip
    axes.set_xlabel("operations a byte of weights, activations and results")
    axes.set_ylabel("GOPS, by the median")
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3, fontsize="small", frameon=False)
    plural = "s" * (threads > 1)
    figure.suptitle(f"{summary.hardware.get('cpu', 'CPU')}, {summary.limits.get('isa', '')}, {threads} thread{plural}")
    if path is not None:
        try:
            figure.savefig(path, dpi=144)
        except ValueError as error:  # a suffix that matplotlib does not know
            raise InvalidProblem(f"path: {error}") from None
    return figure


def _kind(name: str) -> str:
    return name.rpartition(" ")[0]


def _shape(name: str) -> str:
    return name.rpartition(" ")[2]
