"""Benchmarks: interleaved timing, suites of operations with float baselines, reports and plots."""

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
from lowbit.bench.timing import Timing, measure

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
