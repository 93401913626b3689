"""`QuantizationSystem`: hardware, calibration, tuning, benchmarks and operations of one device in one object."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lowbit.calibration import CalibrationMethod, calibrate
from lowbit.numerics.dtypes import DTypeLike
from lowbit.numerics.errors import Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.schemes import QuantizationScheme
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.matmul import qmatmul
from lowbit.ops.quantize import quantize
from lowbit.runtime.devices import device_module
from lowbit.runtime.hardware import HardwareFeatures, hardware
from lowbit.runtime.hints import QuantizationPerformanceHints, optimal_block_size, performance_hints
from lowbit.system.accuracy import auto_quantize_tensor
from lowbit.system.backends import CpuQuantizationOps
from lowbit.system.specialized import Dp4aQuantizationOps, TensorCoreQuantizationOps, VnniQuantizationOps
from lowbit.tuning import (
    AutoTuningConfig,
    OptimalQuantizationConfig,
    PerformanceRequirements,
    QuantizationWorkload,
    auto_tune,
)
from lowbit.tuning.recommend import QuantizationRecommendations, recommend


class AdvancedQuantizationAccelerator:
    """Searches and recommendations with one configuration.

    >>> AdvancedQuantizationAccelerator(AutoTuningConfig(max_search_time=0.2)).config.max_search_time
    0.2
    """

    def __init__(self, config: AutoTuningConfig | None = None, *, cache: bool = True) -> None:
        self.config, self.cache = config or AutoTuningConfig(), cache

    def auto_tune(
        self,
        workload: QuantizationWorkload | Iterable[QuantizationWorkload],
        requirements: PerformanceRequirements | None = None,
    ) -> Any:
        """`lowbit.tuning.auto_tune`."""
        return auto_tune(workload, requirements, self.config, cache=self.cache)

    def recommendations(
        self, workload: QuantizationWorkload, requirements: PerformanceRequirements | None = None
    ) -> QuantizationRecommendations:
        """`lowbit.tuning.recommend`."""
        return recommend(workload, requirements, self.config, cache=self.cache)


class QuantizationSystem:
    """Everything about quantization on one device, from one place.

    >>> import numpy as np
    >>> system = QuantizationSystem()
    >>> q = system.create_quantized_tensor(np.float32([[1, -2], [3, 4]]), "int8")
    >>> system.qmatmul(q, q).round()
    array([[ -5., -10.],
           [ 15.,  10.]], dtype=float32)
    """

    def __init__(self, device: str = "cpu", config: AutoTuningConfig | None = None) -> None:
        self.device = device
        self.ops: Any = (
            CpuQuantizationOps() if device == "cpu" else device_module(device, "operations").GpuQuantizationOps(device)
        )
        self.accelerator = AdvancedQuantizationAccelerator(config)

    @property
    def hardware_features(self) -> HardwareFeatures:
        return hardware()

    @property
    def has_acceleration(self) -> bool:
        """Whether products run on vector kernels, or on a GPU."""
        return self.device != "cpu" or hardware().isa != "scalar"

    @property
    def specialized(self) -> tuple[VnniQuantizationOps, Dp4aQuantizationOps, TensorCoreQuantizationOps]:
        """Operations by one kind of instruction; each says whether it is here, and what is missing."""
        return VnniQuantizationOps(), Dp4aQuantizationOps(), TensorCoreQuantizationOps()

    @property
    def optimal_block_size(self) -> int:
        return optimal_block_size()

    def performance_hints(self) -> QuantizationPerformanceHints:
        return performance_hints()

    def recommendations(
        self, workload: QuantizationWorkload, requirements: PerformanceRequirements | None = None
    ) -> QuantizationRecommendations:
        return self.accelerator.recommendations(workload, requirements)

    def auto_tune(
        self, workload: QuantizationWorkload, requirements: PerformanceRequirements | None = None
    ) -> OptimalQuantizationConfig:
        found: OptimalQuantizationConfig = self.accelerator.auto_tune(workload, requirements)
        return found

    def benchmark_operations(self, config: Any = None) -> Any:
        """The summary of `lowbit.bench.QuantizationBenchmarkSuite`."""
        from lowbit.bench import QuantizationBenchmarkSuite

        return QuantizationBenchmarkSuite(config).run()

    def calibrate_from_samples(
        self, samples: Any, dtype: DTypeLike = "int8", method: CalibrationMethod | str = "adaptive", **options: Any
    ) -> QuantizationParams:
        """`lb.calibrate`."""
        return calibrate(samples, dtype, method, **options)

    def quantize(self, x: Any, params: QuantizationParams | None = None, **options: Any) -> Any:
        """`lb.quantize`; on a GPU by params alone, to a GpuQuantizedTensor."""
        if self.device == "cpu":
            return quantize(x, params=params, **options)
        if params is None or options:
            raise Unsupported(f"quantize: on {self.device!r} it takes params, and no options")
        return self.ops.quantize(x, params)

    def dequantize(self, q: Any) -> Any:
        """`lb.dequantize`."""
        return self.ops.dequantize(q)

    def qmatmul(self, a: Any, b: Any, **options: Any) -> Any:
        """`lb.qmatmul`."""
        return qmatmul(a, b, **options) if self.device == "cpu" else self.ops.qmatmul(a, b, **options)

    def qconv2d(self, x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
        """`lb.qconv2d`."""
        return self.ops.qconv2d(x, w, bias, **options)

    def create_quantized_tensor(
        self, x: Any, dtype: DTypeLike = "int8", scheme: str | QuantizationScheme | None = None
    ) -> QuantizedTensor:
        """x with the mapping and clipping that lose least of it, or with the scheme given; in CPU memory, from which
        `to` takes it."""
        if scheme is None:
            return auto_quantize_tensor(x, dtype)
        return quantize(x, dtype, scheme=scheme)

    def __repr__(self) -> str:
        if self.device != "cpu":
            return f"QuantizationSystem(device={self.device!r}, {self.ops.device.architecture})"
        return f"QuantizationSystem(device={self.device!r}, {hardware().isa}, {hardware().threads} threads)"


def create_quantization_system(device: str = "cpu") -> QuantizationSystem:
    """The system for a device: "cpu", or "cuda" and "cuda:1", which raise Unsupported with the reason where they
    are not there.

    >>> create_quantization_system().has_acceleration in (True, False)
    True
    """
    return QuantizationSystem(device)
