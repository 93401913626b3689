"""Recommend settings for a workload, with reasons from measured limits and a search."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from lowbit.runtime.hints import optimal_block_size
from lowbit.runtime.limits import Limits, limits
from lowbit.tuning.result import OptimalQuantizationConfig
from lowbit.tuning.tuner import auto_tune
from lowbit.tuning.workload import AutoTuningConfig, PerformanceRequirements, QuantizationWorkload


@dataclass(frozen=True)
class QuantizationRecommendations:
    """The recommended setting of a workload, and why."""

    workload: str
    dtype: str  # "float32": do not quantize
    scheme: str
    group_size: int | None
    activation_dtype: str
    threads: int
    reasons: tuple[str, ...]
    bound: str  # "reading weights" or "arithmetic": what limits the float baseline
    measured: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        block = "" if self.group_size is None else f", groups of {self.group_size}"
        return f"{self.workload}: {self.dtype}{block}\n" + "\n".join(f"  - {r}" for r in self.reasons)


def recommend(
    workload: QuantizationWorkload,
    requirements: PerformanceRequirements | None = None,
    config: AutoTuningConfig | None = None,
    *,
    cache: bool = True,
    found: OptimalQuantizationConfig | None = None,
) -> QuantizationRecommendations:
    """The best measured setting for a workload, with reasons. found: the result of an earlier search.

    >>> recommend(QuantizationWorkload.matmul(1, 64, 64), config=AutoTuningConfig(max_search_time=0.2)).measured
    True
    """
    rates = limits()
    if found is None:
        found = auto_tune(workload, requirements, config, cache=cache)
    assert found is not None
    bound, why = _bound(workload, rates)
    reasons = [found.why, why]
    w = found.winner
    setting: tuple[str, str, int | None, str, int] = ("float32", "", None, "", 1)
    if w is not None:
        setting = (w.dtype, w.scheme, w.group_size, w.activation_dtype, w.threads)
        if w.group_size is not None and w.group_size != optimal_block_size():
            reasons.append(
                f"groups of {w.group_size} measured better than {optimal_block_size()}, which kernels prefer"
            )
        if not workload.is_sampled:
            reasons.append("errors are those of normal numbers; give x and weight for your own")
    elif not found.meets_requirements:
        reasons.append("the requirements are not met")
    measured = w is not None or bool(found.results)
    return QuantizationRecommendations(repr(workload), *setting, tuple(reasons), bound, measured)


def _bound(workload: QuantizationWorkload, rates: Limits) -> tuple[str, str]:
    if workload.kind == "elementwise":
        return "memory", "element-wise work is limited by memory; codes need a quarter of the bytes"
    if workload.kind == "matmul":
        _, n, k = workload.shape
        nbytes = 4 * n * k
    else:
        nbytes = 4 * math.prod(workload.kernel)
    level = next((name for name, size in (("L2", 1 << 19), ("L3", 1 << 24)) if nbytes <= size), "DRAM")
    reading, computing = nbytes / rates.read_bytes[level], workload.operations / rates.fma_ops
    if reading > computing:
        return "reading weights", (
            f"float32 must read {nbytes:,} bytes of weights from {level}, {reading * 1e6:.0f} µs at the least, "
            f"and computes for {computing * 1e6:.0f}: fewer bytes are what helps"
        )
    return "arithmetic", (
        f"float32 computes for {computing * 1e6:.0f} µs at the least, and reads weights in {reading * 1e6:.0f}: "
        f"dot products of bytes are {rates.dot_ops / rates.fma_ops:.1f} times as fast"
    )
