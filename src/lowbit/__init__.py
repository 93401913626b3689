"""Quantization with the same bits on every backend, at the speed of memory."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from lowbit import ops
from lowbit._version import __version__
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported, UnsupportedDType
from lowbit.numerics.metrics import ErrorReport
from lowbit.numerics.params import QuantizationParams, QuantizationScheme
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import *  # noqa: F403
from lowbit.runtime.hardware import HardwareFeatures, hardware
from lowbit.runtime.threads import get_num_threads, set_num_threads

if TYPE_CHECKING:
    from lowbit import algorithms as algorithms
    from lowbit import bench as bench
    from lowbit import calibration as calibration
    from lowbit import data as data
    from lowbit import formats as formats
    from lowbit import gpu as gpu
    from lowbit import layers as layers
    from lowbit import models as models
    from lowbit import plans as plans
    from lowbit import reference as reference
    from lowbit import report as report
    from lowbit import system as system
    from lowbit import torch as torch
    from lowbit import tuning as tuning
    from lowbit.calibration import CalibrationMethod, CalibrationStatistics, Calibrator, PercentileCalibrator, calibrate
    from lowbit.layers import QuantizedConv2d, QuantizedLinear
    from lowbit.system import QuantizationSystem, create_quantization_system
    from lowbit.system.accuracy import (
        AccuracyImpact,
        auto_quantize_tensor,
        create_optimal_params,
        estimate_accuracy_impact,
        estimate_memory_savings,
        measure_accuracy_impact,
    )
    from lowbit.system.backends import CpuQuantizationOps, QuantizationOps, ReferenceQuantizationOps

# Imported on first use, so that `import lowbit` stays light.
_LAZY = {
    "lowbit": "algorithms bench calibration data formats gpu layers models plans reference report system torch tuning",
    "lowbit.calibration": "CalibrationMethod CalibrationStatistics Calibrator PercentileCalibrator calibrate",
    "lowbit.layers": "QuantizedConv2d QuantizedLinear",
    "lowbit.system": "QuantizationSystem create_quantization_system",
    "lowbit.system.accuracy": "AccuracyImpact auto_quantize_tensor create_optimal_params estimate_accuracy_impact "
    "estimate_memory_savings measure_accuracy_impact",
    "lowbit.system.backends": "CpuQuantizationOps QuantizationOps ReferenceQuantizationOps",
}
_MODULE_OF = {name: module for module, names in _LAZY.items() for name in names.split()}

__all__ = [
    "AccuracyImpact",
    "CalibrationMethod",
    "CalibrationStatistics",
    "Calibrator",
    "CpuQuantizationOps",
    "ErrorReport",
    "FormatError",
    "HardwareFeatures",
    "InvalidProblem",
    "PercentileCalibrator",
    "QuantizationOps",
    "QuantizationParams",
    "QuantizationScheme",
    "QuantizationSystem",
    "QuantizedConv2d",
    "QuantizedDType",
    "QuantizedLinear",
    "QuantizedTensor",
    "ReferenceQuantizationOps",
    "Unsupported",
    "UnsupportedDType",
    "__version__",
    "auto_quantize_tensor",
    "calibrate",
    "create_optimal_params",
    "create_quantization_system",
    "estimate_accuracy_impact",
    "estimate_memory_savings",
    "get_num_threads",
    "hardware",
    "measure_accuracy_impact",
    "set_num_threads",
]
__all__ += ops.__all__


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = _import_module(f"lowbit.{name}") if module == "lowbit" else getattr(_import_module(module), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    from importlib.util import find_spec

    hidden = set() if find_spec("torch") else {"torch"}
    return sorted({*globals(), *_MODULE_OF} - hidden)
