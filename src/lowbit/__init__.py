"""Quantization with the same bits on every backend, at the speed of memory."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

from lowbit._version import __version__
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported, UnsupportedDType
from lowbit.numerics.metrics import ErrorReport
from lowbit.numerics.params import QuantizationParams, QuantizationScheme
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import (
    PackedConv,
    PackedMatrix,
    binary_conv2d,
    binary_matmul,
    conv2d_integer,
    dequantize,
    dequantize_backward,
    dequantize_from_int8,
    fake_quantize,
    fake_quantize_backward,
    fake_quantize_learned_backward,
    matmul_integer,
    prepack,
    prepack_binary,
    prepack_binary_conv2d,
    prepack_conv2d,
    qadd,
    qavg_pool2d,
    qclamp,
    qconcat,
    qconv1d,
    qconv2d,
    qmatmul,
    qmax_pool2d,
    qmul,
    qrelu,
    quantize,
    quantize_backward,
    quantize_to_int8,
)
from lowbit.runtime.hardware import HardwareFeatures, hardware
from lowbit.runtime.threads import get_num_threads, set_num_threads

if TYPE_CHECKING:
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
_MODULES = (
    "bench",
    "calibration",
    "data",
    "formats",
    "gpu",
    "layers",
    "models",
    "plans",
    "reference",
    "report",
    "system",
    "torch",
    "tuning",
)
_LAZY = {
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
    "PackedConv",
    "PackedMatrix",
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
    "binary_conv2d",
    "binary_matmul",
    "calibrate",
    "conv2d_integer",
    "create_optimal_params",
    "create_quantization_system",
    "dequantize",
    "dequantize_backward",
    "dequantize_from_int8",
    "estimate_accuracy_impact",
    "estimate_memory_savings",
    "fake_quantize",
    "fake_quantize_backward",
    "fake_quantize_learned_backward",
    "get_num_threads",
    "hardware",
    "matmul_integer",
    "measure_accuracy_impact",
    "prepack",
    "prepack_binary",
    "prepack_binary_conv2d",
    "prepack_conv2d",
    "qadd",
    "qavg_pool2d",
    "qclamp",
    "qconcat",
    "qconv1d",
    "qconv2d",
    "qmatmul",
    "qmax_pool2d",
    "qmul",
    "qrelu",
    "quantize",
    "quantize_backward",
    "quantize_to_int8",
    "set_num_threads",
]


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        found = getattr(_import_module(_MODULE_OF[name]), name)
    elif name in _MODULES:
        found = _import_module(f"lowbit.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    from importlib.util import find_spec

    hidden = () if find_spec("torch") else ("torch",)
    return sorted({*globals(), *__all__, *_MODULES} - {*hidden})
