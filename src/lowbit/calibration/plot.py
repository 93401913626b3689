"""Plot a distribution: the histogram, where each method clips it, and the resulting SQNR."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from lowbit.calibration.statistics import CalibrationStatistics

# Distinct for any colour vision, and by their dashes.
_STYLES = {
    "min_max": ("#000000", "-"), "moving_average": ("#999999", (0, (1, 1))), "percentile 99.9": ("#e69f00", "--"),
    "percentile 99.99": ("#cc79a7", "-."), "entropy": ("#0072b2", (0, (5, 1))), "mse": ("#d55e00", "-"),
}  # fmt: skip
_BARS = 200


def plot(statistics: CalibrationStatistics, path: str | os.PathLike[str] | None = None) -> Any:
    """The figure; written to `path` too, if given."""
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ModuleNotFoundError("pictures need matplotlib: pip install 'lowbit[report]'", name="matplotlib") from None

    d, costs = statistics.distribution, statistics.methods
    figure = Figure(figsize=(9, 5.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 1.3])

    # A lone outlier must not squeeze the rest into one bar.
    wide = [c for c in costs if c.clipped <= 0.2] or list(costs)
    spread = max(abs(d.mean) + 12 * d.std, 1e-30)
    lo = max(d.lo, -spread, min(min(c.lo for c in wide), 0.0) * 1.1)
    hi = min(d.hi, spread, max(max(c.hi for c in wide), 0.0) * 1.1)
    if not lo < hi:
        lo, hi = lo - 0.5, hi + 0.5
    edges = np.linspace(lo, hi, _BARS + 1)
    counts = np.diff(d.histogram.below(edges))
    left.stairs(np.maximum(counts, 0.5), edges, fill=True, color="#56b4e9", alpha=0.6, baseline=0.5)
    left.set_yscale("log")
    left.set_xlim(lo, hi)
    left.set_xlabel("value")
    left.set_ylabel(f"numbers in each of {_BARS} bins")
    symmetric = statistics.target.endswith(" symmetric")
    for cost in costs:
        color, dashes = _STYLES.get(cost.method, ("#009e73", ":"))
        most = max(abs(cost.lo), abs(cost.hi))
        for k, end in enumerate((-most, most) if symmetric else (min(cost.lo, 0.0), max(cost.hi, 0.0))):
            if lo < end < hi:
                left.axvline(end, color=color, linestyle=dashes, linewidth=1.6)
            if k:
                beyond = "" if lo < end < hi else " (beyond)"
                left.plot([], [], color=color, linestyle=dashes, label=f"{cost.method}: {end:.4g}{beyond}")
    left.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, fontsize="small", frameon=False)
    share = d.share_outside(lo, hi)
    left.set_title(f"{statistics.count:,} numbers" + (f", {share:.2%} of them beyond the picture" if share else ""))

    order = costs[::-1]
    heights = [c.sqnr_db if np.isfinite(c.sqnr_db) else 0.0 for c in order]
    colors = [_STYLES.get(c.method, ("#009e73", ":"))[0] for c in order]
    bars = right.barh([c.method for c in order], heights, color=colors, alpha=0.85)
    right.bar_label(bars, [f"{c.sqnr_db:.1f}" for c in order], padding=3, fontsize="small")
    right.margins(x=0.25)
    right.set_xlabel("SQNR, dB")
    right.set_title(f"at {statistics.target}")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(statistics.name)
    if path is not None:
        figure.savefig(path, dpi=144)
    return figure
