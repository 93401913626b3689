"""Calibration: streams of arrays to ranges to params, in one pass and fixed memory."""

from lowbit.calibration.cache import CalibrationCache
from lowbit.calibration.calibrator import Calibrator, PercentileCalibrator, calibrate
from lowbit.calibration.distribution import Distribution, Histogram
from lowbit.calibration.methods import (
    MSE,
    Adaptive,
    CalibrationMethod,
    Choice,
    Custom,
    Entropy,
    MethodCost,
    MinMax,
    MovingAverage,
    Percentile,
)
from lowbit.calibration.moments import Moments
from lowbit.calibration.sketch import Sketch
from lowbit.calibration.statistics import CalibrationStatistics

__all__ = [
    "MSE", "Adaptive", "CalibrationCache", "CalibrationMethod", "CalibrationStatistics", "Calibrator", "Choice",
    "Custom", "Distribution", "Entropy", "Histogram", "MethodCost", "MinMax", "Moments", "MovingAverage",
    "Percentile", "PercentileCalibrator", "Sketch", "calibrate",
]  # fmt: skip
