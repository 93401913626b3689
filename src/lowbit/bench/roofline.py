"""The roofline: the rate that arithmetic and memory allow at each arithmetic intensity, and where layers lie."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import numpy as np

from lowbit.bench.results import BenchmarkSummary
from lowbit.numerics.errors import InvalidProblem

# Distinct for every kind of colour vision, and by dashes.
_SLOPES = {"L1": ("#0072b2", "-"), "L2": ("#009e73", "--"), "L3": ("#cc79a7", "-."), "DRAM": ("#000000", ":")}
_POINTS = (("#d55e00", "o"), ("#56b4e9", "s"), ("#e69f00", "^"), ("#999999", "D"))


class _Point(NamedTuple):
    kind: str
    shape: str
    intensity: float  # operations per byte
    rate: float  # GOPS


def plot_roofline(summary: BenchmarkSummary, path: str | os.PathLike[str] | None = None) -> Any:
    """Plot the matrix results under the machine's limits; write the figure to `path` too, if given. Limits are those of
    one thread times the number of threads: an upper bound, as threads share caches and DRAM."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError("pictures need matplotlib: pip install 'lowbit[report]'", name="matplotlib") from None

    points = [
        _Point(*r.name.rpartition(" ")[::2], r.operations / r.bytes_moved, r.gops)
        for r in summary.of("matrix")
        if r.gops is not None and r.bytes_moved
    ]
    if not points:
        raise InvalidProblem("summary: no timed matrix results; expected some to plot")
    figure = Figure(figsize=(9, 5.8), layout="constrained")
    axes = figure.subplots()
    _draw_roofs(axes, summary, points)
    _draw_points(axes, points)
    axes.set_xlabel("operations per byte of weights, activations and results")
    axes.set_ylabel("GOPS, by the median")
    axes.grid(which="major", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.11), ncols=3, fontsize="small", frameon=False)
    threads = f"{summary.threads} thread{'s' * (summary.threads > 1)}"
    figure.suptitle(f"{summary.hardware.get('cpu', 'CPU')}, {summary.limits.get('isa', '')}, {threads}")
    if path is not None:
        try:
            figure.savefig(path, dpi=144)
        except ValueError as error:  # a suffix that matplotlib does not know
            raise InvalidProblem(f"path: {error}") from None
    return figure


def _draw_roofs(axes: Any, summary: BenchmarkSummary, points: list[_Point]) -> None:
    """The limits of all threads: arithmetic in GOPS, reading in GB/s."""
    scale = summary.threads / 1e9
    known = {"8-bit dot products": "dot_ops", "f32 arithmetic": "fma_ops"}
    flat = {label: rate * scale for label, key in known.items() if (rate := summary.limits.get(key, 0)) > 0}
    reads = {name: rate * scale for name, rate in summary.limits.get("read_bytes", {}).items() if rate > 0}
    top = max([*flat.values(), *(p.rate for p in points)])
    places = [p.intensity for p in points] + [top / rate for rate in reads.values()]
    left, right = min(places) / 3, max(places) * 3
    floor = min(p.rate for p in points) / 4
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(floor, top * 2.2))
    for i, (label, rate) in enumerate(sorted(flat.items(), key=lambda item: -item[1])):
        start = max(left, rate / max(reads.values())) if reads else left
        axes.plot([start, right], [rate, rate], color="#000000", linewidth=1.8 if i == 0 else 1.0)
        style = {"textcoords": "offset points", "va": "center", "size": "small", "annotation_clip": False}
        axes.annotate(f"{label}\n{rate:.0f} GOPS", (right, rate), (5, 0), **style)
    roof = max(flat.values(), default=top)
    for name, rate in reads.items():
        color, dashes = _SLOPES.get(name, ("#999999", "-"))
        x = np.array([left, roof / rate])
        axes.plot(x, rate * x, color=color, linestyle=dashes, linewidth=1.4, label=f"reading {name}: {rate:.0f} GB/s")


def _draw_points(axes: Any, points: list[_Point]) -> None:
    """Each kind of layer in its colour. Points often lie close together, so labels of the first kind stand to their
    left and all others to their right."""
    for i, kind in enumerate(dict.fromkeys(p.kind for p in points)):
        color, marker = _POINTS[i % len(_POINTS)]
        mine = [p for p in points if p.kind == kind]
        dots = {"color": color, "marker": marker, "s": 46, "zorder": 3, "edgecolor": "black", "linewidth": 0.6}
        axes.scatter([p.intensity for p in mine], [p.rate for p in mine], label=kind, **dots)
        away, side, edge = (-5, "right", "top") if i == 0 else (5, "left", "bottom")
        text = {"color": "#222222", "ha": side, "va": edge, "fontsize": "x-small", "zorder": 2.5}
        for p in mine:
            axes.annotate(p.shape, (p.intensity, p.rate), (away, away), textcoords="offset points", **text)
