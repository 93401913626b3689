"""Calibration methods: choose a range for a distribution and a target dtype. One pass over the data serves all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from lowbit import reference
from lowbit.calibration.distribution import Distribution, Floats
from lowbit.calibration.scores import Target, best_range, divergence, mean_squared_error
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams


@dataclass(frozen=True)
class MethodCost:
    """The error of a method's range, from the histogram."""

    method: str
    lo: float
    hi: float
    mse: float
    sqnr_db: float
    clipped: float  # share of numbers beyond the range


@dataclass(frozen=True)
class Choice:
    """A range and how it was chosen."""

    lo: float
    hi: float
    method: str  # that gave the range
    costs: tuple[MethodCost, ...] = ()  # Adaptive: of every method tried, the best first
    decided_by: str = ""  # Adaptive: "histogram" or "values"

    def __str__(self) -> str:
        text = f"{self.method}: [{self.lo:.6g}, {self.hi:.6g}]"
        if len(self.costs) > 1:
            first, second = self.costs[:2]
            ahead = second.mse / first.mse - 1 if first.mse > 0 else np.inf
            text += f", MSE {first.mse:.4g}, {100 * ahead:.1f} % below {second.method}'s, by its {self.decided_by}"
        return text


class CalibrationMethod:
    """Chooses the range to quantize. `CalibrationMethod.of` also takes names.

    >>> CalibrationMethod.of("percentile")
    Percentile(p=99.99)
    >>> CalibrationMethod.of(MSE()).name
    'mse'
    """

    name: ClassVar[str] = ""
    needs_histogram: ClassVar[bool] = True

    @staticmethod
    def of(method: CalibrationMethod | str | Callable[[Distribution], tuple[float, float]]) -> CalibrationMethod:
        """A method from itself, its name ("min_max", "mse", ...), or a callable from a distribution to a range."""
        if isinstance(method, CalibrationMethod):
            return method
        if isinstance(method, str):
            plain = method.lower().replace("-", "_").replace("minmax", "min_max")
            if plain in _NAMED:
                return _NAMED[plain]()
            raise InvalidProblem(f"method: {method!r}; expected one of {', '.join(_NAMED)}")
        if isinstance(method, type):
            if not issubclass(method, CalibrationMethod):
                raise InvalidProblem(f"method: {method.__name__}; expected a CalibrationMethod")
            return method()
        if callable(method):
            return Custom(method)
        raise InvalidProblem(f"method: {method!r}; expected a name, a CalibrationMethod or a callable")

    def check(self, target: QuantizationParams) -> None:
        """Raise Unsupported if the method does not support the target."""

    def choose(self, d: Distribution, target: Target) -> Choice:
        """The range for one distribution."""
        lo, hi = self.range(d, target)
        return Choice(float(lo), float(hi), self.name)

    def range(self, d: Distribution, target: Target) -> tuple[float, float]:
        raise NotImplementedError


@dataclass(frozen=True)
class MinMax(CalibrationMethod):
    """Minimum and maximum: nothing is clipped."""

    name: ClassVar[str] = "min_max"
    needs_histogram: ClassVar[bool] = False

    def range(self, d: Distribution, target: Target) -> tuple[float, float]:
        return d.lo, d.hi


@dataclass(frozen=True)
class MovingAverage(CalibrationMethod):
    """The mean of the arrays' minima and the mean of their maxima, so that one outlier batch does not set the range.

    Every array has the same weight. An exponential average would depend on their order and could not be merged.
    """

    name: ClassVar[str] = "moving_average"
    needs_histogram: ClassVar[bool] = False

    def range(self, d: Distribution, target: Target) -> tuple[float, float]:
        return d.mean_lo, d.mean_hi


@dataclass(frozen=True)
class Percentile(CalibrationMethod):
    """The range that holds p percent of the numbers: by |x| for symmetric mappings, else with equal tails."""

    p: float = 99.99
    name: ClassVar[str] = "percentile"

    def __post_init__(self) -> None:
        if not isinstance(self.p, (int, float)) or not 0 < self.p <= 100:
            raise InvalidProblem(f"p: {self.p!r}; expected more than 0 and at most 100")

    def range(self, d: Distribution, target: Target) -> tuple[float, float]:
        share = self.p / 100
        if target.is_symmetric:
            most = float(d.magnitudes.quantile(share)) if self.p < 100 else d.absmax
            return -most, most
        if self.p == 100:
            return d.lo, d.hi
        lo, hi = d.histogram.quantile([(1 - share) / 2, (1 + share) / 2])
        return max(float(lo), d.lo), min(float(hi), d.hi)


@dataclass(frozen=True)
class Entropy(CalibrationMethod):
    """The range of least Kullback-Leibler divergence between the numbers and their codes.

    `lowbit.reference.calibration.divergence` defines it. Zeros, which have a code of their own, do not count. Linear
    codes only.
    """

    name: ClassVar[str] = "entropy"

    def check(self, target: QuantizationParams) -> None:
        if target.dtype.is_binary or target.is_logarithmic:
            kind = "binary" if target.dtype.is_binary else "logarithmic"
            raise Unsupported(
                f"method: entropy needs evenly spaced codes; {kind} codes take min_max, percentile or mse"
            )

    def range(self, d: Distribution, target: Target) -> tuple[float, float]:
        return best_range(d, target.is_symmetric, partial(divergence, d, target), steps=64)


@dataclass(frozen=True)
class MSE(CalibrationMethod):
    """The range of least mean squared error, searched over both ends."""

    name: ClassVar[str] = "mse"

    def range(self, d: Distribution, target: Target) -> tuple[float, float]:
        return best_range(d, target.is_symmetric, partial(mean_squared_error, d, target))


@dataclass(frozen=True)
class Custom(CalibrationMethod):
    """A range from any callable on a `Distribution`.

    >>> Custom(lambda d: (-3 * d.std, 3 * d.std)).name
    'custom'
    """

    function: Callable[[Distribution], tuple[float, float]]
    name: ClassVar[str] = "custom"

    def range(self, d: Distribution, target: Target) -> tuple[float, float]:
        found = self.function(d)
        try:
            lo, hi = (float(v) for v in found)
        except (TypeError, ValueError):
            raise InvalidProblem(f"method: the callable returned {found!r}; expected two numbers") from None
        if not (np.isfinite(lo) and np.isfinite(hi) and lo <= hi):
            raise InvalidProblem(f"method: the callable returned [{lo}, {hi}]; expected a finite range")
        return lo, hi


_TRIED = MinMax(), MovingAverage(), Percentile(99.9), Percentile(99.99), MSE()
ALL_METHODS = *_TRIED, Entropy()


@dataclass(frozen=True)
class Adaptive(CalibrationMethod):
    """Tries the other methods at the target dtype and takes the one of least mean squared error.

    Entropy is not among them unless given: its search takes several times as long as all others, for another aim.
    Errors come from the histogram and are checked against the sketch's sample. Where the two differ by more than
    chance allows, numbers are not uniform within bins (they may have been quantized before), and the sample decides.
    """

    methods: Sequence[CalibrationMethod] = _TRIED
    name: ClassVar[str] = "adaptive"

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", tuple(CalibrationMethod.of(m) for m in self.methods))
        if not self.methods:
            raise InvalidProblem("methods: none; expected at least one")

    def choose(self, d: Distribution, target: Target) -> Choice:
        costs: list[MethodCost] = []
        for method in self.methods:
            try:
                method.check(target.template)
            except Unsupported:
                continue
            costs.append(cost_of(d, target, method))
        if not costs:
            raise Unsupported(f"methods: none of them serves {target.template.dtype}, {target.template.scheme}")
        seen = np.array([c.mse for c in costs])
        sampled, spread = _on_values(d, target, costs)
        by_values = bool((np.abs(sampled - seen) > 8 * spread + 1e-3 * seen).any())
        order = np.argsort(sampled if by_values else seen, kind="stable")
        best, decided_by = costs[order[0]], "values" if by_values else "histogram"
        return Choice(best.lo, best.hi, best.method, tuple(costs[i] for i in order), decided_by)

    def range(self, d: Distribution, target: Target) -> tuple[float, float]:
        found = self.choose(d, target)
        return found.lo, found.hi


def cost_of(d: Distribution, target: Target, method: CalibrationMethod) -> MethodCost:
    """The error of a method's range."""
    lo, hi = method.range(d, target)
    mse = float(mean_squared_error(d, target, lo, hi)[0])
    clipped = d.share_outside(*(_both(lo, hi) if target.is_symmetric else (lo, hi)))
    name = f"percentile {method.p:g}" if isinstance(method, Percentile) else method.name
    sqnr_db = float(10 * np.log10(d.mean_square / mse)) if mse > 0 and d.mean_square > 0 else float("inf")
    return MethodCost(name, lo, hi, mse, sqnr_db, clipped)


def _both(lo: float, hi: float) -> tuple[float, float]:
    most = max(abs(lo), abs(hi))
    return -most, most


def _on_values(d: Distribution, target: Target, costs: list[MethodCost]) -> tuple[Floats, Floats]:
    """Mean squared errors of the sample, and their standard errors.

    Clipped numbers are left to the histogram: a sample has too few of them.
    """
    p = target.candidates(d, np.array([c.lo for c in costs]), np.array([c.hi for c in costs]))
    x = d.values.astype(np.float64)
    means, errors = [], []
    for i, cost in enumerate(costs):
        one = p.replace(scale=p.scale[i], zero_point=p.zero_point[i], axis=None)
        lo, hi = _ends(one, cost)
        inside = x[(x >= lo) & (x <= hi)]
        if inside.size < 64 or p.dtype.is_binary:
            means.append(cost.mse)
            errors.append(np.inf)
            continue
        back = reference.dequantize(reference.quantize(inside, one), one, np.float64)
        lost = (inside - back) ** 2
        share = 1 - d.share_outside(lo, hi)
        beyond = cost.mse - float(mean_squared_error(d.within(lo, hi), target, cost.lo, cost.hi)[0])
        means.append(beyond + share * float(lost.mean()))
        errors.append(share * float(lost.std()) / np.sqrt(inside.size))
    return np.asarray(means), np.asarray(errors)


def _ends(p: QuantizationParams, cost: MethodCost) -> tuple[float, float]:
    """The interval in which the error comes from rounding, not from clipping."""
    if p.is_logarithmic:
        return _both(cost.lo, cost.hi)
    s, z = float(p.scale), int(p.zero_point)
    return s * (p.qmin - z - 0.5), s * (p.qmax - z + 0.5)


_NAMED: dict[str, Callable[[], CalibrationMethod]] = {
    m.name: m for m in (MinMax, MovingAverage, Percentile, Entropy, MSE, Adaptive)
}
