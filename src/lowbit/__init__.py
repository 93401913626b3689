"""Quantization with the same bits on every backend, at the speed of memory."""

from importlib import import_module as _import_module
from importlib.util import find_spec as _find_spec
from typing import TYPE_CHECKING, Any

from lowbit._version import __version__
from lowbit.accuracy import (
    AccuracyImpact,
    auto_quantize_tensor,
    create_optimal_params,
    estimate_accuracy_impact,
    estimate_memory_savings,
    measure_accuracy_impact,
)
from lowbit.calibration import (
    CalibrationMethod,
    CalibrationStatistics,
    Calibrator,
    PercentileCalibrator,
    calibrate,
)
from lowbit.dtypes import QuantizedDType
from lowbit.errors import FormatError, InvalidProblem, Unsupported, UnsupportedDType
from lowbit.hardware import HardwareFeatures, hardware
from lowbit.layers import QuantizedConv2d, QuantizedLinear
from lowbit.metrics import ErrorReport
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
from lowbit.params import QuantizationParams, QuantizationScheme
from lowbit.quantization_ops import CpuQuantizationOps, QuantizationOps, ReferenceQuantizationOps
from lowbit.tensor import QuantizedTensor
from lowbit.threads import get_num_threads, set_num_threads

if TYPE_CHECKING:
    from lowbit import bench as bench
    from lowbit import data as data
    from lowbit import formats as formats
    from lowbit import gpu_linear as gpu_linear
    from lowbit import gpu_ops as gpu_ops
    from lowbit import hints as hints
    from lowbit import limits as limits
    from lowbit import models as models
    from lowbit import plans as plans
    from lowbit import reference_calibration as reference_calibration
    from lowbit import report as report
    from lowbit import specialized as specialized
    from lowbit import system as system
    from lowbit import torch as torch
    from lowbit import tuning as tuning
    from lowbit.system import QuantizationSystem, create_quantization_system

# Imported when they are first used, so that `import lowbit` stays light.
_MODULES = (
    "bench", "data", "formats", "gpu_linear", "gpu_ops", "hints", "limits", "models", "plans", "reference_calibration",
    "report", "specialized", "system", "torch", "tuning",
)  # fmt: skip

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
    if name in ("QuantizationSystem", "create_quantization_system"):
        return getattr(_import_module("lowbit.system"), name)
    if name in _MODULES:
        return _import_module(f"lowbit.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    hidden = () if _find_spec("torch") else ("torch",)
    return sorted({*globals(), *__all__, *_MODULES} - {*hidden})
