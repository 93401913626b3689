"""The operations a backend has, as one object: the native one, and plain NumPy to compare it with."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from lowbit import ops, reference, reference_compute
from lowbit.ops.conv import ConvGeometry
from lowbit.ops.matmul import float_bias, path_of
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
    """The contract in NumPy: slow, short, and what the others are compared with. Images have linear codes with one
    scale, kernels one or one an output.

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
        self,
        a: QuantizedTensor,
        b: QuantizedTensor,
        *,
        bias: Any = None,
        out_params: QuantizationParams | None = None,
        out_dtype: Any = "float32",
        activation: str | None = None,
        clamp: tuple[float, float] | None = None,
    ) -> Array | QuantizedTensor:
        outcome = Outcome.of(b.shape[-1], bias, out_params, out_dtype, activation, clamp)
        path = path_of(a.params, b.params, a.ndim, b.ndim)
        left, right, za, zb = a.unpack(), b.unpack(), a.params.zero_point, b.params.zero_point
        sa, sb = a.params.scale.astype(F32), b.params.scale.astype(F32)
        if path in ("integer", "integer16"):
            return outcome.general(reference_compute.matmul_integer(left, right, za, zb), sa, sb)
        if path == "binary":
            return outcome.general(reference_compute.binary_matmul(left, right), sa, sb)
        bias = float_bias(outcome, path)
        if path == "general":
            y = reference.dequantize(left, a.params, np.float64) @ reference.dequantize(right, b.params, np.float64)
            return outcome.from_floats(y.astype(F32), bias)
        assert b.params.block_size is not None
        steps = left.astype(np.int64) - (za[:, None] if za.ndim else za)
        rows = np.broadcast_to(sa, a.shape[:1])
        return outcome.from_floats(
            reference_compute.matmul_groups(steps, right, rows, sb, zb, b.params.block_size), bias
        )

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
        layout: str = "NCHW",
        out_params: QuantizationParams | None = None,
        out_dtype: Any = "float32",
        activation: str | None = None,
        clamp: tuple[float, float] | None = None,
    ) -> Array | QuantizedTensor:
        g = ConvGeometry.of(stride, padding, dilation, groups, layout)
        outcome = Outcome.of(w.shape[0], bias, out_params, out_dtype, activation, clamp)
        image = x.unpack() if layout == "NCHW" else np.moveaxis(x.unpack(), -1, 1)
        acc = reference_compute.conv2d_integer(
            image,
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
        found = (y.data if isinstance(y, QuantizedTensor) else y).reshape(rows.shape)
        return outcome.wrap(found if layout == "NHWC" else np.ascontiguousarray(np.moveaxis(found, -1, 1)))

    def qadd(self, a: QuantizedTensor, b: QuantizedTensor, *, out_params: QuantizationParams) -> QuantizedTensor:
        p = out_params.for_compute(F32)
        left, right = ((q.unpack(), q.params.scale, q.params.zero_point) for q in (a, b))
        codes = reference_compute.qadd(*left, *right, p.scale, p.zero_point, p.qmin, p.qmax)
        return QuantizedTensor.from_codes(codes, p)

    def qrelu(self, a: QuantizedTensor) -> QuantizedTensor:
        codes = np.maximum(a.unpack().astype(np.int32), int(a.params.zero_point))
        return QuantizedTensor.from_codes(codes, a.params)
