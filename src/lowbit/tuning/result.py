"""What a search found: every setting with its timing, errors and size; the winner, and why."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from lowbit.bench.timing import Timing
from lowbit.numerics.errors import InvalidProblem
from lowbit.tuning.candidates import Candidate
from lowbit.tuning.workload import QuantizationWorkload

__all__ = ["CandidateResult", "OptimalQuantizationConfig"]

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
    # Left out of later rounds as clearly slower than another; its figure is from the first ones, which may have been
    # faster or slower times of the machine than those of the others.
    dropped: bool = False

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_dict(d: dict[str, Any]) -> CandidateResult:
        """Raises for what is no setting."""
        candidate = None if d["candidate"] is None else Candidate(**d["candidate"])
        return CandidateResult(
            str(d["name"]), candidate, Timing(**d["timing"]), float(d["sqnr_db"]), float(d["cosine"]), int(d["nbytes"]),
            tuple(map(str, d["violations"])), float(d["distance"]), bool(d["on_front"]), bool(d["dropped"]),
        )  # fmt: skip


@dataclass(frozen=True)
class OptimalQuantizationConfig:
    """The winner of a search, or that floats are to be kept; and everything that was measured on the way.

    Speed-ups and latencies are medians. Errors are those on the workload's own data, or on normal numbers (`data`).
    """

    workload: QuantizationWorkload = field(repr=False)
    winner: Candidate | None  # None: keep float
    why: str
    results: tuple[CandidateResult, ...] = field(repr=False)  # the float baseline first, then the fastest first
    data: str
    seconds: float  # the search took
    complete: bool = True  # False: time was over, or Ctrl-C, before every setting was measured
    meets_requirements: bool = True
    from_cache: bool = False
    load: float | None = None  # CPUs that other processes kept busy during the search; None: the system does not tell
    provisional: bool = False  # they needed CPUs that the search could have used: the answer is not cached

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
        """How many times as fast as float; 1 if floats are kept."""
        if self.winner is None or self.best is None or self.baseline is None:
            return 1.0
        return self.baseline.timing.median / self.best.timing.median

    @property
    def front(self) -> tuple[CandidateResult, ...]:
        """Settings that no other beats in speed, accuracy and size at once."""
        return tuple(r for r in self.results if r.on_front)

    def build(self, weight: Any, bias: Any = None) -> Any:
        """The winner's layer for these weights: QuantizedLinear or QuantizedConv2d. Raises if floats are to be kept."""
        if self.winner is None:
            raise InvalidProblem(f"winner: none, {self.why}")
        if self.workload.kind == "elementwise":
            raise InvalidProblem(f"workload: {self.workload!r} has no weights")
        return self.winner.layer(weight, bias, self.workload)

    def to_dict(self) -> dict[str, Any]:
        return {
            "workload": repr(self.workload), "winner": None if self.winner is None else asdict(self.winner),
            "keep_float": self.keep_float, "why": self.why, "speedup": self.speedup, "data": self.data,
            "seconds": self.seconds, "complete": self.complete, "meets_requirements": self.meets_requirements,
            "from_cache": self.from_cache, "load": self.load, "provisional": self.provisional,
            "results": [r.to_dict() for r in self.results],
        }  # fmt: skip

    @staticmethod
    def from_dict(d: dict[str, Any], workload: QuantizationWorkload) -> OptimalQuantizationConfig:
        """What `to_dict` gave, for this workload. Raises for anything else."""
        winner = None if d["winner"] is None else Candidate(**d["winner"])
        results = tuple(CandidateResult.from_dict(r) for r in d["results"])
        if winner is not None and winner not in [r.candidate for r in results]:
            raise InvalidProblem("winner: none of the settings measured")
        return OptimalQuantizationConfig(
            workload, winner, str(d["why"]), results, str(d["data"]), float(d["seconds"]), bool(d["complete"]),
            bool(d["meets_requirements"]), True, None if d["load"] is None else float(d["load"]),
            bool(d["provisional"]),
        )  # fmt: skip

    def __str__(self) -> str:
        return f"{self.workload!r}: {'keep float' if self.winner is None else self.winner.name}: {self.why}"
