"""Tuning: measure quantized settings for a workload on this machine, and cache the best."""

from lowbit.tuning.candidates import Candidate
from lowbit.tuning.result import CandidateResult, OptimalQuantizationConfig
from lowbit.tuning.tuner import auto_tune
from lowbit.tuning.workload import AutoTuningConfig, PerformanceRequirements, QuantizationWorkload

__all__ = [
    "AutoTuningConfig",
    "Candidate",
    "CandidateResult",
    "OptimalQuantizationConfig",
    "PerformanceRequirements",
    "QuantizationWorkload",
    "auto_tune",
]
