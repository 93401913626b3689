"""Tuning: a workload, settings measured on this machine, and the best of them, remembered."""

from lowbit.tuning.candidates import Candidate
from lowbit.tuning.result import CandidateResult, OptimalQuantizationConfig
from lowbit.tuning.tuner import auto_tune
from lowbit.tuning.workload import AutoTuningConfig, PerformanceRequirements, QuantizationWorkload

__all__ = [
    "AutoTuningConfig", "Candidate", "CandidateResult", "OptimalQuantizationConfig", "PerformanceRequirements",
    "QuantizationWorkload", "auto_tune",
]  # fmt: skip
