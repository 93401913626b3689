"""The operations a backend has, as one object: the native one, and plain NumPy to compare it with."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lowbit import ops, reference, reference_compute
from lowbit.ops.conv import ConvGeometry
from lowbit.ops.outcome import Outcome
from lowbit.params import QuantizationParams
from lowbit.tensor import QuantizedTensor

__all__ = ["CpuQuantizationOps", "QuantizationOps", "ReferenceQuantizationOps"]

Array = npt.NDArray[Any]
F32 = np.float32


@runtime_checkable
class QuantizationOps(Protocol):
    """What every backend can do, with the same bits for the same arguments."""

    def quantize(self, x: Any, params: QuantizationParams) -> QuantizedTensor: ...
    def dequantize(self, q: QuantizedTensor) -> Array: ...
    def qmatmul(
        self, a: QuantizedTensor, b: QuantizedTensor, *, bias: Any = None, out_params: QuantizationParams | None = None
    ) -> Array | QuantizedTensor: ...
    def qconv2d(
        self,
        x: QuantizedTensor,
        w: QuantizedTensor,
        bias: Any = None,
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        out_params: QuantizationParams | None = None,
    ) -> Array | QuantizedTensor: ...
    def qadd(self, a: QuantizedTensor, b: QuantizedTensor, *, out_params: QuantizationParams) -> QuantizedTensor: ...
    def qrelu(self, a: QuantizedTensor) -> QuantizedTensor: ...


class CpuQuantizationOps:
    """lowbit's own functions.

    >>> isinstance(CpuQuantizationOps(), QuantizationOps)
    True
    """

    def quantize(self, x: Any, params: QuantizationParams) -> QuantizedTensor:
        return ops.quantize(x, params=params)

    def dequantize(self, q: QuantizedTensor) -> Array:
        return ops.dequantize(q)

    def qmatmul(
        self, a: QuantizedTensor, b: QuantizedTensor, *, bias: Any = None, out_params: QuantizationParams | None = None
    ) -> Array | QuantizedTensor:
        return ops.qmatmul(a, b, bias=bias, out_params=out_params)

    def qconv2d(self, x: QuantizedTensor, w: QuantizedTensor, bias: Any = None, **options: Any) -> Any:
        return ops.qconv2d(x, w, bias, **options)

    def qadd(self, a: QuantizedTensor, b: QuantizedTensor, *, out_params: QuantizationParams) -> QuantizedTensor:
        return ops.qadd(a, b, out_params=out_params)

    def qrelu(self, a: QuantizedTensor) -> QuantizedTensor:
        return ops.qrelu(a)


class ReferenceQuantizationOps:
    """The contract in NumPy: slow, short, and what the others are compared with. Linear codes with one scale, or one a
    row of a, a column of b, an output of w.

    >>> a = ops.quantize(F32([[1, -2], [3, 4]]))
    >>> bool((ReferenceQuantizationOps().qmatmul(a, a) == CpuQuantizationOps().qmatmul(a, a)).all())
    True
    """

    def quantize(self, x: Any, params: QuantizationParams) -> QuantizedTensor:
        x = np.asarray(x)
        params = params.for_compute(reference.compute_dtype(x.dtype))
        return QuantizedTensor.from_codes(reference.quantize(x, params), params)

    def dequantize(self, q: QuantizedTensor) -> Array:
        return reference.dequantize(q.unpack(), q.params)

    def qmatmul(
        self, a: QuantizedTensor, b: QuantizedTensor, *, bias: Any = None, out_params: QuantizationParams | None = None
    ) -> Array | QuantizedTensor:
        outcome = Outcome.of(b.shape[-1], bias, out_params)
        acc = reference_compute.matmul_integer(a.unpack(), b.unpack(), a.params.zero_point, b.params.zero_point)
        return outcome.general(acc, a.params.scale.astype(F32), b.params.scale.astype(F32))

    def qconv2d(
        self,
        x: QuantizedTensor,
        w: QuantizedTensor,
        bias: Any = None,
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        out_params: QuantizationParams | None = None,
    ) -> Array | QuantizedTensor:
        g = ConvGeometry.of(stride, padding, dilation, groups, "NCHW")
        outcome = Outcome.of(w.shape[0], bias, out_params)
        acc = reference_compute.conv2d_integer(
            x.unpack(),
            w.unpack(),
            int(x.params.zero_point),
            w.params.zero_point,
            g.stride,
            g.padding,
            g.dilation,
            groups,
        )
        rows = np.moveaxis(acc, 1, -1)
        y = outcome.general(rows.reshape(-1, w.shape[0]), x.params.scale.astype(F32), w.params.scale.astype(F32))
        found = y.data if isinstance(y, QuantizedTensor) else y
        return outcome.wrap(np.ascontiguousarray(np.moveaxis(found.reshape(rows.shape), -1, 1)))

    def qadd(self, a: QuantizedTensor, b: QuantizedTensor, *, out_params: QuantizationParams) -> QuantizedTensor:
        p = out_params.for_compute(F32)
        left, right = ((q.unpack(), q.params.scale, q.params.zero_point) for q in (a, b))
        codes = reference_compute.qadd(*left, *right, p.scale, p.zero_point, p.qmin, p.qmax)
        return QuantizedTensor.from_codes(codes, p)

    def qrelu(self, a: QuantizedTensor) -> QuantizedTensor:
        codes = np.maximum(a.unpack().astype(np.int32), int(a.params.zero_point))
        return QuantizedTensor.from_codes(codes, a.params)
