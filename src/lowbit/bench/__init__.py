"""Benchmarks: interleaved timing, suites of operations with float baselines, reports and plots."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lowbit.bench.timing import Timing, measure

if TYPE_CHECKING:
    from lowbit.bench.results import (
        BenchmarkResult,
        BenchmarkSummary,
        Change,
        ComparativeBenchmarkResult,
        MemoryBenchmarkResults,
        MemoryUsage,
        compare,
    )
    from lowbit.bench.roofline import plot_roofline
    from lowbit.bench.suite import FAMILIES, BenchmarkConfig, QuantizationBenchmarkSuite

__all__ = [
    "FAMILIES",
    "BenchmarkConfig",
    "BenchmarkResult",
    "BenchmarkSummary",
    "Change",
    "ComparativeBenchmarkResult",
    "MemoryBenchmarkResults",
    "MemoryUsage",
    "QuantizationBenchmarkSuite",
    "Timing",
    "compare",
    "measure",
    "plot_roofline",
]

_HOMES = {"suite": ("FAMILIES", "BenchmarkConfig", "QuantizationBenchmarkSuite"), "roofline": ("plot_roofline",)}


def __getattr__(name: str) -> Any:
    """Import suites lazily: `import lowbit` needs the timing only."""
    if name in __all__:
        home = next((home for home, names in _HOMES.items() if name in names), "results")
        return getattr(import_module(f"lowbit.bench.{home}"), name)
    raise AttributeError(f"module 'lowbit.bench' has no attribute {name!r}")
