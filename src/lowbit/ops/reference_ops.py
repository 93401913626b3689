"""The operations of a backend by the contract in NumPy: slow, short, and for every dtype, scheme and granularity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lowbit import reference
from lowbit.numerics.dtypes import DTypeLike
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams, QuantizationScheme
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.conv import ConvGeometry, conv_path_of
from lowbit.ops.epilogue import Epilogue
from lowbit.ops.matmul import path_of
from lowbit.reference import compute as reference_compute
from lowbit.runtime.arrays import Array, as_float_array, first_nonfinite

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lowbit.ops.epilogue import EpilogueOptions

F32 = np.float32


def calibrate(
    samples: Any, dtype: DTypeLike = "int8", *, scheme: str | QuantizationScheme = "linear"
) -> QuantizationParams:
    data = [reference.widen(np.asarray(x)) for x in arrays_of(samples)]
    x = np.concatenate([d.reshape(-1) for d in data]) if data else np.empty(0, F32)
    bad = first_nonfinite(as_float_array(x, "samples"))
    if bad is not None:
        raise InvalidProblem(f"samples: {bad[0]} at element {bad[1][0]}; a range needs finite numbers")
    if not x.size:
        raise InvalidProblem("samples: none; there is nothing to find a range in")
    lo, hi = (np.asarray(v, x.dtype) for v in reference.value_range(x))
    mean = np.asarray(reference.mean_abs(x), x.dtype)
    return QuantizationParams.from_statistics(lo, hi, dtype=dtype, scheme=scheme, mean_abs=mean)


def arrays_of(samples: Any) -> list[Any]:
    """One array, or each of an iterable of arrays."""
    if hasattr(samples, "shape") or hasattr(samples, "__dlpack__"):
        return [samples]
    if isinstance(samples, str | bytes) or not isinstance(samples, Iterable):
        raise InvalidProblem(f"samples: {type(samples).__name__}; expected an array or an iterable of arrays")
    return list(samples)


def quantize(x: Any, params: QuantizationParams) -> QuantizedTensor:
    x = np.asarray(x)
    params = params.for_compute(reference.compute_dtype(x.dtype))
    return QuantizedTensor.from_codes(reference.quantize(x, params), params)


def dequantize(q: QuantizedTensor, dtype: npt.DTypeLike | None = None) -> Array:
    return reference.dequantize(q.unpack(), q.params, q.params.scale.dtype if dtype is None else dtype)


def qmatmul(
    a: QuantizedTensor, b: QuantizedTensor, *, bias: Any = None, **options: Unpack[EpilogueOptions]
) -> Array | QuantizedTensor:
    epilogue = Epilogue.of(b.shape[-1], bias, **options, any_codes=True)
    path = path_of(a.params, b.params, a.ndim, b.ndim)
    left, right, za, zb = a.unpack(), b.unpack(), a.params.zero_point, b.params.zero_point
    sa, sb = a.params.scale.astype(F32), b.params.scale.astype(F32)
    if path in ("integer", "integer16"):
        return epilogue.wrap(epilogue.scale_sums(reference_compute.matmul_integer(left, right, za, zb), sa, sb))
    if path == "binary":
        return epilogue.wrap(epilogue.scale_sums(reference_compute.binary_matmul(left, right), sa, sb))
    epilogue.refuse_integer_bias(path)
    if path == "general":
        return epilogue.wrap(epilogue.narrow((dequantize(a, np.float64) @ dequantize(b, np.float64)).astype(F32)))
    assert b.params.group_size is not None
    steps, rows = left.astype(np.int64) - (za[:, None] if za.ndim else za), np.broadcast_to(sa, a.shape[-2:-1])
    scales = b.params.granularity(b.shape).scale_shape
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    y = np.empty((*batch, a.shape[-2], b.shape[-1]), F32)
    for i in np.ndindex(batch):
        p, q, s, z = (
            np.broadcast_to(v, batch + v.shape[-2:])[i]
            for v in (steps, right, np.broadcast_to(sb, scales), np.broadcast_to(zb, scales))
        )
        y[i] = reference_compute.matmul_groups(p, q, rows, s, z, b.params.group_size)
    return epilogue.wrap(epilogue.narrow(y))


def qconv2d(
    x: QuantizedTensor,
    w: QuantizedTensor,
    bias: Any = None,
    *,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    layout: str = "NCHW",
    **options: Unpack[EpilogueOptions],
) -> Array | QuantizedTensor:
    g = ConvGeometry.of(stride, padding, dilation, groups, layout)
    epilogue = Epilogue.of(w.shape[0], bias, **options, any_codes=True)
    geometry = g.stride, g.padding, g.dilation, g.groups
    path = conv_path_of(x.params, w.params, w.shape, g.groups)
    if path == "general":
        image, kernel = _channels_first(dequantize(x, np.float64), g), dequantize(w, np.float64)
        rows = np.moveaxis(reference_compute.conv2d_general(image, kernel, *geometry).astype(F32), 1, -1)
        epilogue.refuse_integer_bias(path)
        y = epilogue.narrow(rows.reshape(-1, w.shape[0]))
    else:
        image, kernel, zx, zw = x.unpack(), w.unpack(), int(x.params.zero_point), w.params.zero_point
        if path == "binary":  # -1 and 1; padding is 0
            image, kernel = (2 * bits.astype(np.int64) - 1 for bits in (image, kernel))
        sums = reference_compute.conv2d_integer(_channels_first(image, g), kernel, zx, zw, *geometry)
        rows = np.moveaxis(sums, 1, -1)
        sx, sw = x.params.scale.astype(F32), w.params.scale.astype(F32)
        y = epilogue.scale_sums(rows.reshape(-1, w.shape[0]), sx, sw)
    y = y.reshape(rows.shape)
    return epilogue.wrap(y if layout == "NHWC" else np.ascontiguousarray(np.moveaxis(y, -1, 1)))


def qadd(a: QuantizedTensor, b: QuantizedTensor, *, out_params: QuantizationParams | None = None) -> QuantizedTensor:
    compute = np.result_type(a.params.scale, b.params.scale)
    p = (a.params if out_params is None else out_params).for_compute(compute)
    with np.errstate(over="ignore"):
        y = np.asarray(dequantize(a, compute) + dequantize(b, compute))
    return QuantizedTensor.from_codes(reference.quantize(y, p), p)


def qrelu(a: QuantizedTensor) -> QuantizedTensor:
    if a.dtype.is_binary or 1 in a.dtype.widths:
        raise Unsupported(f"a: {a.dtype}; a binary code is one of two numbers, and neither is a bound")
    zero = reference.expand(a.params.zero_point, a.params, a.shape)
    return QuantizedTensor.from_codes(np.maximum(a.unpack().astype(np.int32), zero), a.params)


def _channels_first(image: Array, g: ConvGeometry) -> Array:
    return image if g.layout == "NCHW" else np.moveaxis(image, -1, 1)
