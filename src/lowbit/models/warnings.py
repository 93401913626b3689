"""What a person should know about a result before using it, and what to try."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lowbit.models.report import ModelReport, WeightRow

_LEAST_SQNR = 15.0  # dB of an output
_LARGEST_DROP = 0.01  # of a metric, relative to the float model's
_LEAST_COVERAGE = 0.5  # of the elements of all float weights
_LEAST_SPEED = 0.97  # times that of float; less is more than noise


def warnings_of(report: ModelReport) -> list[str]:
    """A sentence for each of these: outputs far from float, a worse metric, few weights quantized, larger, slower."""
    return [*_inaccurate(report), *_uncovered(report), *_larger(report), *_slower(report)]


def _inaccurate(report: ModelReport) -> Iterator[str]:
    remedy = _accuracy_remedy(report)
    for a in report.accuracy:
        if not a.sqnr_db >= _LEAST_SQNR:  # NaN, too
            told = "is not a number" if math.isnan(a.sqnr_db) else f"has an SQNR of {a.sqnr_db:.1f} dB"
            yield f"Output {a.output} {told}; below {_LEAST_SQNR:.0f} dB results differ noticeably. Try {remedy}."
    for m in report.metrics:
        drop = (m.float_value - m.quantized_value) / abs(m.float_value) if m.float_value else 0.0
        if not drop <= _LARGEST_DROP:
            yield f"{m.name} falls from {m.float_value:.4g} to {m.quantized_value:.4g}, by {drop:.1%}. Try {remedy}."


def _accuracy_remedy(report: ModelReport) -> str:
    """What makes outputs by this recipe better, in the order of what it costs."""
    weights: Any = report.recipe.get("weights") or {}
    activations: Any = report.recipe.get("activations") or {}
    tried = []
    if activations and not activations.get("dynamic"):
        tried.append("more calibration data, --method percentile:99.99")
    if str(weights.get("dtype", "")).endswith(("4", "2")):
        tried.append("--group-size 32")
    worst = min((r for r in report.treated if r.sqnr_db is not None), key=lambda r: r.sqnr_db or 0.0, default=None)
    if worst is not None and len(report.treated) > 1:
        tried.append(f"--skip for the weights of least dB, such as {worst.name}")
    tried.append("the recipe W8A16")
    return ", or ".join(filter(None, (", ".join(tried[:-1]), tried[-1])))


def _uncovered(report: ModelReport) -> Iterator[str]:
    rows = [r for r in report.rows if not r.why_not.startswith("came quantized")]
    total = sum(map(_elements, rows))
    share = sum(_elements(r) for r in rows if r.treated) / total if total else 1.0
    if share >= _LEAST_COVERAGE:
        return
    reasons: Counter[str] = Counter()
    for row in rows:
        if not row.treated:
            reasons[row.why_not or "no reason given"] += _elements(row)
    why, _ = reasons.most_common(1)[0]
    told = f"Only {share:.0%} of the elements of weights are quantized; most of the others: {why}."
    yield f"{told} Try a recipe of weights alone, such as W8A16, or overrides for them."


def _elements(row: WeightRow) -> int:
    return math.prod(row.shape)


def _larger(report: ModelReport) -> Iterator[str]:
    if report.bytes_after >= report.bytes_before > 0:
        yield (
            f"The result has {report.bytes_after:,} bytes, the source {report.bytes_before:,}: it is not smaller. "
            "Try the recipe W4A16, or leave the model in float."
        )


def _slower(report: ModelReport) -> Iterator[str]:
    slow = [t for t in report.latency if t.speedup < _LEAST_SPEED]
    if slow:
        worst = min(slow, key=lambda t: t.speedup)
        threads = f"{worst.threads} thread{'s' * (worst.threads > 1)}"
        yield (
            f"The result is slower than float: {worst.speedup:.2f}× as fast in {worst.runtime} with {threads}. "
            "Try --optimize balanced or speed, or the recipe W8A16."
        )
