"""The operations a backend has, as one object: the native one, and plain NumPy to compare it with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lowbit import ops
from lowbit.calibration import calibrate
from lowbit.numerics.dtypes import DTypeLike
from lowbit.numerics.params import QuantizationParams, QuantizationScheme
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import reference_ops
from lowbit.runtime.devices import GpuDevice
from lowbit.runtime.hardware import HardwareFeatures, hardware

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lowbit.ops.epilogue import ConvOptions, MatMulOptions

Array = npt.NDArray[Any]
F32 = np.float32


@runtime_checkable
class QuantizationOps(Protocol):
    """What every backend can do, with the same bits for the same arguments."""

    @property
    def device(self) -> str | GpuDevice:
        """Where it runs: "cpu", or a GpuDevice."""

    @property
    def hardware_features(self) -> HardwareFeatures:
        """The machine it runs on."""

    def calibrate(
        self, samples: Any, dtype: DTypeLike = "int8", *, scheme: str | QuantizationScheme = "linear"
    ) -> QuantizationParams:
        """Params that cover the least and the greatest number of samples: one array, or an iterable of arrays."""

    def quantize(self, x: Any, params: QuantizationParams) -> QuantizedTensor: ...
    def dequantize(self, q: QuantizedTensor) -> Array: ...
    def qmatmul(
        self, a: QuantizedTensor, b: QuantizedTensor, **options: Unpack[MatMulOptions]
    ) -> Array | QuantizedTensor: ...
    def qconv2d(
        self, x: QuantizedTensor, w: QuantizedTensor, bias: Any = None, **options: Unpack[ConvOptions]
    ) -> Array | QuantizedTensor: ...
    def qadd(
        self, a: QuantizedTensor, b: QuantizedTensor, *, out_params: QuantizationParams | None = None
    ) -> QuantizedTensor:
        """The quantized sum, with the params of `a` where no others are given."""

    def qrelu(self, a: QuantizedTensor) -> QuantizedTensor: ...


class _HostOps:
    @property
    def device(self) -> str:
        return "cpu"

    @property
    def hardware_features(self) -> HardwareFeatures:
        return hardware()


class CpuQuantizationOps(_HostOps):
    """lowbit's own functions.

    >>> backend = CpuQuantizationOps()
    >>> isinstance(backend, QuantizationOps), backend.device
    (True, 'cpu')
    >>> p = backend.calibrate([F32([-1.27, 1.0]), F32([0.5])])
    >>> q = backend.quantize(F32([0.5, 1.0]), p)
    >>> backend.qadd(q, q).unpack()  # 2.0 is beyond the range of q's params
    array([100, 127], dtype=int8)
    """

    def calibrate(
        self, samples: Any, dtype: DTypeLike = "int8", *, scheme: str | QuantizationScheme = "linear"
    ) -> QuantizationParams:
        """`lb.calibrate` by the method "min_max"; it has others."""
        return calibrate(samples, dtype, "min_max", scheme=scheme)

    def quantize(self, x: Any, params: QuantizationParams) -> QuantizedTensor:
        """`lb.quantize` by these params."""
        return ops.quantize(x, params=params)

    dequantize = staticmethod(ops.dequantize)
    qmatmul = staticmethod(ops.qmatmul)
    qconv2d = staticmethod(ops.qconv2d)
    qadd = staticmethod(ops.qadd)
    qrelu = staticmethod(ops.qrelu)


class ReferenceQuantizationOps(_HostOps):
    """The contract in NumPy: slow, short, and what the others are compared with. It takes operands of every dtype,
    scheme and granularity.

    >>> a = ops.quantize(F32([[1, -2], [3, 4]]))
    >>> bool((ReferenceQuantizationOps().qmatmul(a, a) == CpuQuantizationOps().qmatmul(a, a)).all())
    True
    """

    calibrate = staticmethod(reference_ops.calibrate)
    quantize = staticmethod(reference_ops.quantize)
    dequantize = staticmethod(reference_ops.dequantize)
    qmatmul = staticmethod(reference_ops.qmatmul)
    qconv2d = staticmethod(reference_ops.qconv2d)
    qadd = staticmethod(reference_ops.qadd)
    qrelu = staticmethod(reference_ops.qrelu)


if TYPE_CHECKING:
    _BACKENDS: tuple[QuantizationOps, ...] = (CpuQuantizationOps(), ReferenceQuantizationOps())
