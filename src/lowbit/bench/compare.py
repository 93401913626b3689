"""Compare two benchmark runs: regressions and improvements beyond noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lowbit.bench.results import BenchmarkResult, BenchmarkSummary

_MARGIN = 1.05


@dataclass(frozen=True)
class Change:
    """An operation of either run."""

    name: str
    kind: str  # "regression", "improvement", "same", "missing" (from the new run), "added"
    old: float | None = None  # seconds, medians
    new: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """New time divided by old time: above 1 is slower."""
        return None if self.old is None or self.new is None else self.new / self.old


def compare(old: BenchmarkSummary, new: BenchmarkSummary) -> list[Change]:
    """One change per name, in the order of the old run. Slower or faster means that the confidence intervals of the
    medians are more than 5 % apart. An operation that was timed in the old run only is a regression.

    >>> from lowbit.bench import BenchmarkResult, BenchmarkSummary, Timing
    >>> old, new = (BenchmarkSummary((BenchmarkResult("sort", "example", timing=Timing.of([t] * 9)),)) for t in (1, 2))
    >>> compare(old, new)
    [Change(name='sort', kind='regression', old=1.0, new=2.0, note='')]
    """
    before, after = ({r.name: r for r in s.results} for s in (old, new))
    found = [_change(r, after[name]) if name in after else _alone(r, "missing") for name, r in before.items()]
    return found + [_alone(r, "added") for name, r in after.items() if name not in before]


def _change(old: BenchmarkResult, new: BenchmarkResult) -> Change:
    was, now = old.timing, new.timing
    if was is None or now is None:
        worse = new.status != "ok" and old.status == "ok"
        better = old.status != "ok" and new.status == "ok"
        note = f"{old.status} before, {new.status} now" if worse or better else ""
        if worse and new.reason:
            note += f": {new.reason}"
        kind = "regression" if worse else "improvement" if better else "same"
        return Change(old.name, kind, was.median if was else None, now.median if now else None, note)
    slower, faster = now.low > was.high * _MARGIN, was.low > now.high * _MARGIN
    kind = "regression" if slower else "improvement" if faster else "same"
    return Change(old.name, kind, was.median, now.median)


def _alone(r: BenchmarkResult, kind: str) -> Change:
    median = None if r.timing is None else r.timing.median
    return Change(r.name, kind, *((median, None) if kind == "missing" else (None, median)))
