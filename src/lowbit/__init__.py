"""Quantization with the same bits on every backend, at the speed of memory."""

from lowbit._version import __version__
from lowbit.accuracy import (
    AccuracyImpact,
    auto_quantize_tensor,
    create_optimal_params,
    estimate_accuracy_impact,
    estimate_memory_savings,
    measure_accuracy_impact,
)
from lowbit.dtypes import QuantizedDType
from lowbit.errors import FormatError, InvalidProblem, Unsupported, UnsupportedDType
from lowbit.hardware import HardwareFeatures, hardware
from lowbit.metrics import ErrorReport
from lowbit.ops import (
    dequantize,
    dequantize_backward,
    dequantize_from_int8,
    fake_quantize,
    fake_quantize_backward,
    fake_quantize_learned_backward,
    qadd,
    qavg_pool2d,
    qclamp,
    qconcat,
    qmax_pool2d,
    qmul,
    qrelu,
    quantize,
    quantize_backward,
    quantize_to_int8,
)
from lowbit.params import QuantizationParams, QuantizationScheme
from lowbit.tensor import QuantizedTensor
from lowbit.threads import get_num_threads, set_num_threads

__all__ = [
    "AccuracyImpact",
    "ErrorReport",
    "FormatError",
    "HardwareFeatures",
    "InvalidProblem",
    "QuantizationParams",
    "QuantizationScheme",
    "QuantizedDType",
    "QuantizedTensor",
    "Unsupported",
    "UnsupportedDType",
    "__version__",
    "auto_quantize_tensor",
    "create_optimal_params",
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
    "measure_accuracy_impact",
    "qadd",
    "qavg_pool2d",
    "qclamp",
    "qconcat",
    "qmax_pool2d",
    "qmul",
    "qrelu",
    "quantize",
    "quantize_backward",
    "quantize_to_int8",
    "set_num_threads",
]
