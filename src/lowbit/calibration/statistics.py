"""Statistics of a calibrator: moments, the error of each method, the recommended ones, and a plot of them."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from lowbit.calibration.distribution import Distribution
from lowbit.calibration.methods import ALL_METHODS, Adaptive, MethodCost
from lowbit.calibration.scores import Target
from lowbit.calibration.sketch import Sketch

_SIGMAS = 4.0
_ALIKE = 0.05  # methods within 5 % of the least squared error are recommended too

# Distinct for any colour vision, and by their dashes.
_STYLES = {
    "min_max": ("#000000", "-"), "moving_average": ("#999999", (0, (1, 1))), "percentile 99.9": ("#e69f00", "--"),
    "percentile 99.99": ("#cc79a7", "-."), "entropy": ("#0072b2", (0, (5, 1))), "mse": ("#d55e00", "-"),
}  # fmt: skip
_BARS = 200


@dataclass(frozen=True)
class CalibrationStatistics:
    """Statistics of one tensor, or of one index of an axis. `methods` begins with that of least error.

    >>> import numpy as np
    >>> import lowbit as lb
    >>> c = lb.Calibrator()
    >>> c.add(np.random.default_rng(0).standard_normal(100_000).astype(np.float32))
    >>> s = c.statistics("int4")
    >>> s.methods[0].method, round(s.std, 2)
    ('mse', 1.0)
    """

    name: str
    count: int
    num_samples: int
    min: float
    max: float
    absmax: float
    mean: float
    std: float
    zero_share: float
    outlier_share: float  # beyond 4 standard deviations of the mean
    excess_kurtosis: float
    num_nan: int
    num_inf: int
    target: str
    methods: tuple[MethodCost, ...]
    decided_by: str
    recommended: tuple[tuple[str, str], ...]  # methods, each with the reason
    distribution: Distribution

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        kept = {k: v for k, v in self.__dict__.items() if k not in ("distribution", "methods")}
        return {**kept, "methods": [asdict(m) for m in self.methods]}

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """Plot the histogram, each method's range and its SQNR; with a path, also write the figure there.

        Needs matplotlib: pip install 'lowbit[report]'.
        """
        return _plot(self, path)

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.count:,} numbers in {self.num_samples} samples, [{self.min:.6g}, {self.max:.6g}], "
            f"mean {self.mean:.4g}, std {self.std:.4g}; at {self.target} take {self.recommended[0][0]}: "
            f"{self.recommended[0][1]}"
        )


def statistics_of(sketch: Sketch, target: Target, index: int) -> CalibrationStatistics:
    """The statistics of one distribution of a sketch."""
    d = sketch.distribution(index)
    choice = Adaptive(ALL_METHODS).choose(d, target)
    far = _SIGMAS * d.std
    name = sketch.name if sketch.axis is None else f"{sketch.name}[{index}]"
    t = target.template
    return CalibrationStatistics(
        name, d.count, d.num_samples, d.lo, d.hi, d.absmax, d.mean, d.std, d.zeros / max(1, d.count),
        d.share_outside(d.mean - far, d.mean + far), d.excess_kurtosis, d.nan, d.above + d.below,
        f"{t.dtype} {'symmetric' if t.is_symmetric else 'asymmetric'}", choice.costs, choice.decided_by,
        _recommended(choice.costs), d,
    )  # fmt: skip


def _recommended(costs: tuple[MethodCost, ...]) -> tuple[tuple[str, str], ...]:
    """The method of least error and those close to it, each with a reason."""
    best = costs[0]
    plain = next((c for c in costs if c.method == "min_max"), None)
    if plain is None or plain is best:
        reason = "clips nothing and no other range costs less"
    elif best.mse > 0:
        reason = f"{plain.mse / best.mse:.3g} times less squared error than min_max, clipping {best.clipped:.2%}"
    else:
        reason = "no error"
    found = [(best.method, reason)]
    for other in costs[1:]:
        if best.mse > 0 and other.mse <= best.mse * (1 + _ALIKE):
            found.append((other.method, f"within {other.mse / best.mse - 1:.1%} of {best.method}"))
    return tuple(found)


def _plot(statistics: CalibrationStatistics, path: str | os.PathLike[str] | None = None) -> Any:
    """The histogram, where each method clips it, and the resulting SQNR."""
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
