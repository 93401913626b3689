"""The report of a quantized model: one row per weight, and what was measured on the whole model."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lowbit.models.warnings import warnings_of
from lowbit.runtime.files.atomic import written_whole

if TYPE_CHECKING:
    from lowbit.bench.timing import Timing


@dataclass(frozen=True)
class WeightRow:
    """One weight: how it was quantized, or why not."""

    name: str
    kind: str  # of the layer that uses it: "Linear", "Conv", "Gemm", "MatMul", "Gather", ...
    shape: tuple[int, ...]
    dtype: str  # before
    how: str = ""  # "int8 symmetric, per channel"; empty: not quantized
    why_not: str = ""  # empty: quantized
    asked: bool = True  # whether the recipe asks for it
    bytes_before: int = 0
    bytes_after: int = 0
    sqnr_db: float | None = None  # of the weight itself
    activations: str = ""  # how its activations are quantized
    note: str = ""
    guard_db: float = 0.0  # of the SQNR, what sums that are exact on CPUs without VNNI cost
    bits: float = 0.0  # per weight as stored, with scales and zero points; 0: not quantized
    method: str = ""  # that chose the codes: "rtn", "mse", "gptq", ...
    predicted_db: float | None = None  # the SQNR of the layer's outputs that statistics of its inputs predict
    seconds: float = 0.0  # that the method took

    @property
    def treated(self) -> bool:
        return bool(self.how)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def described(self) -> str:
        """How it was quantized, with the method unless that is to round to nearest."""
        named = "" if self.method in ("", "rtn") or self.how.endswith(self.method) else f", {self.method}"
        return self.how and self.how + named

    @property
    def remark(self) -> str:
        """The note, with what exact sums cost."""
        guard = f"−{self.guard_db:.1f} dB for CPUs without VNNI; --target-cpu vnni" if self.guard_db >= 0.05 else ""
        return "; ".join(filter(None, (self.note, guard))).replace("inf", "∞")

    @property
    def skipped(self) -> bool:
        """Whether it was asked for and not quantized, for which --strict fails."""
        return self.asked and not self.treated


@dataclass(frozen=True)
class Accuracy:
    """The error of one output of the quantized model over all data."""

    output: str
    sqnr_db: float
    cosine: float
    max_error: float
    samples: int


@dataclass(frozen=True)
class Latency:
    """Medians of interleaved runs of both models in one runtime, with their 95 % confidence intervals."""

    runtime: str
    shape: str
    threads: int
    float_ms: float
    quantized_ms: float
    float_interval: tuple[float, float] = (math.nan, math.nan)
    quantized_interval: tuple[float, float] = (math.nan, math.nan)

    @staticmethod
    def of(runtime: str, shape: str, threads: int, before: Timing, after: Timing) -> Latency:
        """From the timings of the float model and the quantized one."""
        intervals = ((1e3 * t.low, 1e3 * t.high) for t in (before, after))
        return Latency(runtime, shape, threads, 1e3 * before.median, 1e3 * after.median, *intervals)

    @property
    def speedup(self) -> float:
        return self.float_ms / self.quantized_ms if self.quantized_ms else math.inf


@dataclass(frozen=True)
class MetricResult:
    """The user's metric for both models."""

    name: str
    float_value: float
    quantized_value: float


@dataclass(frozen=True)
class Histogram:
    """The distribution of a tensor's values, and where they are clipped."""

    name: str
    edges: tuple[float, ...]
    counts: tuple[int, ...]
    clip: tuple[float, float] | None = None
    kind: str = "weight"  # or "activation"


@dataclass(frozen=True)
class ModelReport:
    """The result of a run. `notes` hold what concerns the whole model."""

    source: str
    target: str
    format: str
    recipe: Mapping[str, Any]
    rows: Sequence[WeightRow]
    bytes_before: int  # of the files
    bytes_after: int
    accuracy: Sequence[Accuracy] = ()
    latency: Sequence[Latency] = ()
    metrics: Sequence[MetricResult] = ()
    histograms: Sequence[Histogram] = ()
    notes: Sequence[str] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    lowbit_version: str = ""
    compared_on: str = ""  # "calibration data" or "evaluation data"; empty: outputs were not compared

    @property
    def warnings(self) -> list[str]:
        """What a person should know before using the result, with what to try."""
        return warnings_of(self)

    @property
    def treated(self) -> list[WeightRow]:
        return [r for r in self.rows if r.treated]

    @property
    def skipped(self) -> list[WeightRow]:
        """Weights that were asked for and not quantized, for which --strict fails."""
        return [r for r in self.rows if r.skipped]

    @property
    def ratio(self) -> float:
        return self.bytes_before / self.bytes_after if self.bytes_after else math.inf

    @property
    def bits_per_weight(self) -> float | None:
        """The mean over quantized weights, with scales and zero points; None where the rows do not say."""
        rows = [r for r in self.treated if r.bits]
        elements = sum(r.elements for r in rows)
        return sum(r.bits * r.elements for r in rows) / elements if elements else None

    @property
    def methods(self) -> list[str]:
        """What each method did, in words; empty where all weights were rounded to nearest.

        >>> row = WeightRow("w", "Linear", (2, 4), "F32", "int4", method="gptq", predicted_db=21.53, seconds=1.5)
        >>> ModelReport("a", "b", "onnx", {}, [row], 9, 3).methods
        ['gptq: 1 weight in 1.5 s, outputs of layers 21.5 dB expected']
        """
        said = []
        names = dict.fromkeys(r.method for r in self.treated if r.method)
        for name in names if set(names) != {"rtn"} else ():
            rows = [r for r in self.treated if r.method == name]
            seconds, expected = (
                sum(r.seconds for r in rows),
                sorted(r.predicted_db for r in rows if r.predicted_db is not None),
            )
            text = f"{name}: {len(rows)} weight{'s' * (len(rows) > 1)}" + (f" in {seconds:.1f} s" if seconds else "")
            if expected:
                spread = "–".join(dict.fromkeys(f"{db:.1f}" for db in (expected[0], expected[-1])))
                text += f", outputs of layers {spread} dB expected"
            said.append(text)
        return said

    def __str__(self) -> str:
        """Warnings, a table of the weights, then the results for the whole model."""
        table = [("weight", "used by", "shape", "bytes", "SQNR dB", "how, or why not")]
        for r in self.rows:
            size = f"{r.bytes_before:,} → {r.bytes_after:,}" if r.treated else f"{r.bytes_before:,}"
            lost = "" if r.sqnr_db is None else f"{r.sqnr_db:.1f}"
            done = r.described or r.why_not
            done += f"; activations {r.activations or 'float'}" if r.sqnr_db is not None else ""
            done += f" ({r.remark})" if r.remark else ""
            table.append((r.name or "(the model)", r.kind, "×".join(map(str, r.shape)), size, lost, done))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        aligned, bits = "<<>>><", self.bits_per_weight
        lines = [
            "  ".join(f"{cell:{to}{width}}" for cell, to, width in zip(row, aligned, widths, strict=True)).rstrip()
            for row in table
        ]
        lines.append(
            f"{len(self.treated)} of {len(self.rows)} weights quantized; {self.bytes_before:,} → {self.bytes_after:,} "
            f"bytes ({self.ratio:.2f}× smaller)" + ("" if bits is None else f", {bits:.2f} bits per quantized weight")
        )
        lines += self.methods
        lines += [f"{a.output}: SQNR {a.sqnr_db:.1f} dB, largest error {a.max_error:.4g}" for a in self.accuracy]
        lines += [f"{t.runtime}, {t.shape}: {t.float_ms:.3g} ms → {t.quantized_ms:.3g} ms" for t in self.latency]
        lines[:0] = [f"Warning: {text}" for text in self.warnings]
        return "\n".join([*lines, *(f"Note: {note}" for note in self.notes)])

    def but(self, **changes: Any) -> ModelReport:
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain types for JSON, with infinities and NaN as strings."""
        found = {"treated": len(self.treated), "skipped": [r.name for r in self.skipped], "warnings": self.warnings}
        return plain_fields(self) | found

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report as JSON, atomically."""
        with written_whole(path) as file:
            file.write(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")


def plain_fields(report: Any) -> dict[str, Any]:
    """The fields of a dataclass with `latency` in types of JSON; the speedups are added."""
    made = dataclasses.asdict(report)
    for entry, latency in zip(made["latency"], report.latency, strict=True):
        entry["speedup"] = latency.speedup
    return {k: plain(v) for k, v in made.items()}


def plain(value: Any) -> Any:
    """The value in types of JSON; infinities and NaN become strings."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value.item() if hasattr(value, "item") else value
