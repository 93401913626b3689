"""Statistics of a calibrator: moments, the error of each method, and the recommended ones."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any

from lowbit.calibration.distribution import Distribution
from lowbit.calibration.methods import Adaptive, MethodCost
from lowbit.calibration.scores import Target
from lowbit.calibration.sketch import Sketch

_SIGMAS = 4.0
_ALIKE = 0.05  # methods within 5 % of the least squared error are recommended too


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
        from lowbit.calibration.plot import plot

        return plot(self, path)

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.count:,} numbers in {self.num_samples} samples, [{self.min:.6g}, {self.max:.6g}], "
            f"mean {self.mean:.4g}, std {self.std:.4g}; at {self.target} take {self.recommended[0][0]}: "
            f"{self.recommended[0][1]}"
        )


def statistics_of(sketch: Sketch, target: Target, index: int) -> CalibrationStatistics:
    """The statistics of one distribution of a sketch."""
    d = sketch.distribution(index)
    choice = Adaptive().choose(d, target)
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
