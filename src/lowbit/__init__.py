"""Quantization with the same bits on every backend, at the speed of memory."""

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
    from lowbit.system import QuantizationSystem, create_quantization_system

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
    """The front desk comes with every room behind it: opened when somebody asks for it."""
    if name in ("QuantizationSystem", "create_quantization_system"):
        from lowbit import system

        return getattr(system, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
