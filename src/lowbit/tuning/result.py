"""The result of a search: every candidate with timing, errors and size; the winner, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lowbit.bench.timing import Timing
from lowbit.numerics.errors import InvalidProblem
from lowbit.tuning.candidates import Candidate
from lowbit.tuning.workload import QuantizationWorkload

FLOAT = "float32"


@dataclass(frozen=True)
class CandidateResult:
    """One setting, measured. `candidate` is None for the float baseline."""

    name: str
    candidate: Candidate | None
    timing: Timing
    sqnr_db: float
    cosine: float
    nbytes: int
    violations: tuple[str, ...] = ()
    distance: float = 0.0  # from the requirements: the sum of the shares by which each bound is exceeded
    on_front: bool = False  # no other setting is faster, more accurate and smaller at once
    dropped: bool = False  # clearly slower in the first rounds, which its timing is from

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(d: dict[str, Any]) -> CandidateResult:
        """The result of `to_dict`, read back. Raises for anything else."""
        candidate = None if d["candidate"] is None else Candidate(**d["candidate"])
        figures = Timing(**d["timing"]), float(d["sqnr_db"]), float(d["cosine"]), int(d["nbytes"])
        verdict = tuple(map(str, d["violations"])), float(d["distance"]), bool(d["on_front"]), bool(d["dropped"])
        return CandidateResult(str(d["name"]), candidate, *figures, *verdict)


@dataclass(frozen=True)
class OptimalQuantizationConfig:
    """The winner of a search, or None where float32 stays; and every measurement.

    Speed-ups and latencies are medians. Errors are measured on the workload's data, or on normal numbers (`data`).
    """

    workload: QuantizationWorkload = field(repr=False)
    winner: Candidate | None  # None: keep float
    why: str
    results: tuple[CandidateResult, ...] = field(repr=False)  # the float baseline first, then the fastest first
    data: str
    seconds: float  # the search took
    complete: bool = True  # False: stopped before every candidate was measured
    meets_requirements: bool = True
    from_cache: bool = False
    load: float | None = None  # CPUs kept busy by other processes during the search; None: not known
    provisional: bool = False  # other processes took CPUs that the search could have used; not cached

    @property
    def keep_float(self) -> bool:
        return self.winner is None

    @property
    def baseline(self) -> CandidateResult | None:
        return next((r for r in self.results if r.candidate is None), None)

    @property
    def best(self) -> CandidateResult | None:
        """The winner's figures."""
        return next((r for r in self.results if r.candidate == self.winner), None)

    @property
    def speedup(self) -> float:
        """The float baseline's time divided by the winner's; 1 if float32 stays."""
        if self.winner is None or self.best is None or self.baseline is None:
            return 1.0
        return self.baseline.timing.median / self.best.timing.median

    @property
    def front(self) -> tuple[CandidateResult, ...]:
        """The Pareto front: candidates that no other beats in speed, accuracy and size at once."""
        return tuple(r for r in self.results if r.on_front)

    def build(self, weight: Any, bias: Any = None) -> Any:
        """The winner's QuantizedLinear or QuantizedConv2d for these weights. Raises if float32 stays."""
        if self.winner is None:
            raise InvalidProblem(f"winner: none, {self.why}")
        if self.workload.kind == "elementwise":
            raise InvalidProblem(f"workload: {self.workload!r} has no weights")
        return self.winner.layer(weight, bias, self.workload)

    def to_dict(self) -> dict[str, Any]:
        winner = None if self.winner is None else asdict(self.winner)
        known = {"workload": repr(self.workload), "winner": winner, "keep_float": self.keep_float, "why": self.why}
        plain = "speedup data seconds complete meets_requirements from_cache load provisional"
        known |= {name: getattr(self, name) for name in plain.split()}
        return {**known, "results": [r.to_dict() for r in self.results]}

    @staticmethod
    def from_dict(d: dict[str, Any], workload: QuantizationWorkload) -> OptimalQuantizationConfig:
        """The result of `to_dict`, read back for this workload. Raises for anything else."""
        winner = None if d["winner"] is None else Candidate(**d["winner"])
        results = tuple(CandidateResult.from_dict(r) for r in d["results"])
        if winner is not None and winner not in [r.candidate for r in results]:
            raise InvalidProblem("winner: none of the settings measured")
        search = str(d["data"]), float(d["seconds"]), bool(d["complete"]), bool(d["meets_requirements"])
        load = None if d["load"] is None else float(d["load"])
        found = winner, str(d["why"]), results, *search
        return OptimalQuantizationConfig(workload, *found, True, load, bool(d["provisional"]))

    def __str__(self) -> str:
        return f"{self.workload!r}: {'keep float' if self.winner is None else self.winner.name}: {self.why}"
