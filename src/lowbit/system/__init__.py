"""One object over hardware, calibration, tuning, benchmarks and operations: `QuantizationSystem`."""

from lowbit.system.system import AdvancedQuantizationAccelerator, QuantizationSystem, create_quantization_system

__all__ = ["AdvancedQuantizationAccelerator", "QuantizationSystem", "create_quantization_system"]
