"""lowbit's compute functions by the reference: the same names and arguments, in plain NumPy, arguments unchecked.

Where lowbit.reference.compute has the arithmetic, this page has the meaning of the arguments around it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import ml_dtypes  # noqa: F401  "bfloat16" is a dtype once it is imported
import numpy as np

import lowbit as lb
from lowbit import QuantizationParams, QuantizedTensor, reference
from lowbit.numerics.ranges import affine_from_range
from lowbit.reference import compute as reference_compute

Array = np.ndarray[Any, Any]
F32 = np.float32
INT32_DEPTH = 33025  # the longest sum of (a - za) * (b - zb) that int32 holds whatever the codes: 255 * 255 * 33025


class PackedMatrix(NamedTuple):
    tensor: QuantizedTensor
    transpose: bool


class PackedConv(NamedTuple):
    tensor: QuantizedTensor
    groups: int


def prepack(b: QuantizedTensor, transpose: bool = False) -> PackedMatrix:
    return PackedMatrix(b.copy(), transpose)


def prepack_conv2d(w: QuantizedTensor, groups: int = 1) -> PackedConv:
    return PackedConv(w.copy(), groups)


# ---- what becomes of sums ---------------------------------------------------------------------------------


def finished(
    acc: Array, sa: Any, sb: Any, bias: Array | None, out_params: QuantizationParams | None,
    out_dtype: Any, activation: str | None, clamp: tuple[float, float] | None,
) -> Any:  # fmt: skip
    """Sums [..., n] as floats, or as codes of out_params. A bias of integers belongs to the sums; one of floats is
    added to a float result, or takes the steps of the sums. relu and clamp speak of real numbers."""
    sa, sb = np.asarray(sa, F32), np.asarray(sb, F32)
    if bias is not None and bias.dtype.kind == "i":
        acc, bias = acc.astype(np.int64) + bias, None
    if out_params is None:
        y = reference_compute.scaled(acc, sa, sb, 0 if bias is None else bias)
        y = y if activation is None else np.maximum(y, F32(0))
        y = y if clamp is None else np.clip(y, F32(clamp[0]), F32(clamp[1]))
        with np.errstate(over="ignore"):
            return y.astype(np.dtype(out_dtype))
    if bias is not None:
        acc = acc.astype(np.int64) + bias_steps(bias, sa, sb)
    p = out_params.for_compute(F32)
    zero, scale, lo, hi = int(p.zero_point), p.scale, p.qmin, p.qmax
    codes = reference_compute.requantize(acc, sa, sb, scale, zero, lo, hi)
    codes = codes if activation is None else np.maximum(codes, zero)
    if clamp is not None:
        codes = np.clip(codes, *reference.quantize(np.asarray(clamp, F32), p).astype(np.int64))
    return QuantizedTensor.from_codes(codes.astype(p.dtype.storage_dtype), p)


def bias_steps(bias: Array, sa: Any, sb: Any) -> Array:
    """rne(bias / (sa * sb)): one row, or a row a token where tokens have scales of their own."""
    sa = np.asarray(sa, F32)
    return np.rint(bias.astype(F32) / ((sa[:, None] if sa.ndim else sa) * np.asarray(sb, F32))).astype(np.int64)


# ---- products ---------------------------------------------------------------------------------------------


def matmul_integer(a: Array, b: Array, a_zero_point: Any = 0, b_zero_point: Any = 0) -> Array:
    acc = reference_compute.matmul_integer(a, b, a_zero_point, b_zero_point)
    return acc.astype(np.int64 if a.shape[-1] > INT32_DEPTH else np.int32)


def qmatmul(
    a: QuantizedTensor, b: QuantizedTensor | PackedMatrix, *, bias: Array | None = None,
    out_params: QuantizationParams | None = None, out_dtype: Any = "float32", transpose_a: bool = False,
    transpose_b: bool = False, activation: str | None = None, clamp: tuple[float, float] | None = None,
) -> Any:  # fmt: skip
    if isinstance(b, PackedMatrix):
        b, transpose_b = b
    left, right = (
        np.swapaxes(t.unpack(), -1, -2) if swap else t.unpack() for t, swap in ((a, transpose_a), (b, transpose_b))
    )
    acc = reference_compute.matmul_integer(left, right, a.params.zero_point, b.params.zero_point)
    return finished(acc, a.params.scale, b.params.scale, bias, out_params, out_dtype, activation, clamp)


def pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def sides(padding: Any) -> tuple[int, int, int, int]:
    """top, left, bottom, right."""
    padding = pair(padding)
    return padding if len(padding) == 4 else padding * 2


def conv2d_integer(
    x: Array, w: Array, x_zero_point: Any = 0, w_zero_point: Any = 0, *, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1, layout: str = "NCHW",
) -> Array:  # fmt: skip
    """w is [out, in / groups, kh, kw] whatever the layout of x: what prepack_conv2d takes, which knows no layout."""
    x = x if layout == "NCHW" else np.moveaxis(x, -1, 1)
    acc = reference_compute.conv2d_integer(
        x, w, int(x_zero_point), w_zero_point, pair(stride), sides(padding), pair(dilation), groups
    )
    acc = acc if layout == "NCHW" else np.moveaxis(acc, 1, -1)
    return acc.astype(np.int64 if math.prod(w.shape[1:]) > INT32_DEPTH else np.int32)


def qconv2d(
    x: QuantizedTensor, w: QuantizedTensor | PackedConv, bias: Array | None = None, *, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1, layout: str = "NCHW",
    out_params: QuantizationParams | None = None, out_dtype: Any = "float32", activation: str | None = None,
    clamp: tuple[float, float] | None = None,
) -> Any:  # fmt: skip
    if isinstance(w, PackedConv):
        w, groups = w
    codes = x.data if layout == "NHWC" else np.moveaxis(x.data, 1, -1)
    acc = conv2d_integer(
        codes, w.data, x.params.zero_point, w.params.zero_point,
        stride=stride, padding=padding, dilation=dilation, groups=groups, layout="NHWC",
    )  # fmt: skip
    y = finished(acc, x.params.scale, w.params.scale, bias, out_params, out_dtype, activation, clamp)
    if layout == "NHWC":
        return y
    if isinstance(y, QuantizedTensor):
        return QuantizedTensor(np.moveaxis(y.data, -1, 1), y.params)
    return np.moveaxis(y, -1, 1)


def qconv1d(
    x: QuantizedTensor, w: QuantizedTensor, bias: Array | None = None, *, stride: int = 1, padding: Any = 0,
    dilation: int = 1, **options: Any,
) -> Any:  # fmt: skip
    """A convolution of images one row high. padding: one number, or left and right."""
    left, right = pair(padding)
    flat_x = QuantizedTensor(x.data[:, :, None], x.params)
    flat_w = QuantizedTensor(w.data[:, :, None], w.params)
    y = qconv2d(
        flat_x, flat_w, bias, stride=(1, stride), padding=(0, left, 0, right), dilation=(1, dilation), **options
    )
    return QuantizedTensor(y.data[:, :, 0], y.params) if isinstance(y, QuantizedTensor) else y[:, :, 0]


# ---- layers -----------------------------------------------------------------------------------------------


def quantized_from_data(x: Array, dtype: str, scheme: str, axis: int | None = None) -> QuantizedTensor:
    """x under parameters of its own range, or each row of x [m, k] (axis 0) under parameters of its own."""
    wide, lo_code, symmetric = reference.widen(x), (-127 if scheme == "symmetric" else 0), scheme == "symmetric"
    lo, hi = reference.value_range(wide.reshape(1, -1) if axis is None else wide)
    scale, zero = affine_from_range(lo, hi, lo_code, 127 if symmetric else 255, symmetric=symmetric)
    if axis is None:
        scale, zero = scale[0], zero[0]
    params = QuantizationParams(dtype, scheme, scale, zero, axis, qmin=lo_code)
    return QuantizedTensor.from_codes(reference.quantize(wide, params), params)


class QuantizedLinear:
    def __init__(
        self, weight: Any, bias: Array | None = None, *, dtype: str = "int8", scheme: str = "symmetric",
        group_size: int | None = None, activation_dtype: str = "int8", input_params: QuantizationParams | None = None,
        out_params: QuantizationParams | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(weight, QuantizedTensor):
            axis = -1 if group_size else 0  # blocks of inputs, or a scale an output
            weight = lb.quantize(weight, dtype, scheme=scheme, axis=axis, group_size=group_size)
        self.weight, self.bias, self.activation_dtype = weight, bias, activation_dtype
        self.input_params, self.out_params = input_params, out_params

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __repr__(self) -> str:
        out, inputs = self.weight.shape
        return f"QuantizedLinear({inputs}, {out}, {self.weight.dtype}, activation_dtype={self.activation_dtype!r})"

    def __call__(self, x: Array) -> Any:
        out, inputs = self.weight.shape
        y = self._rows(x.reshape(-1, inputs), x.dtype)
        return y.reshape(*x.shape[:-1], out)

    def _rows(self, x: Array, dtype: np.dtype[Any]) -> Any:
        w, p = self.weight, self.weight.params
        if self.activation_dtype == "float":
            terms = x.astype(np.float64) @ w.dequantize(dtype=np.float64).T
            return (terms + (0 if self.bias is None else self.bias)).astype(F32).astype(dtype)
        if self.input_params is not None:
            params = self.input_params.for_compute(F32)
            q = QuantizedTensor.from_codes(reference.quantize(x, params), params)
        else:
            scheme = "symmetric" if self.activation_dtype == "int8" else "asymmetric"
            q = quantized_from_data(x, self.activation_dtype, scheme, axis=0)
        if p.group_size is not None:
            y = reference_compute.matmul_groups(
                q.data, w.unpack().T, q.params.scale, p.scale.T, p.zero_point.T, p.group_size,
                0 if self.bias is None else self.bias,
            )  # fmt: skip
            return y.astype(dtype)
        acc = reference_compute.matmul_integer(q.data, w.unpack().T, q.params.zero_point, p.zero_point)
        return finished(acc, q.params.scale, p.scale, self.bias, self.out_params, dtype, None, None)


class QuantizedConv2d:
    def __init__(
        self, weight: Any, bias: Array | None = None, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: int = 1, layout: str = "NCHW", dtype: str = "int8", input_params: QuantizationParams | None = None,
        out_params: QuantizationParams | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(weight, QuantizedTensor):
            weight = lb.quantize(weight, dtype, axis=0)
        self.weight, self.bias, self.input_params, self.out_params = weight, bias, input_params, out_params
        self.options = {
            "stride": stride, "padding": padding, "dilation": dilation, "groups": groups, "layout": layout
        }  # fmt: skip

    @property
    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)

    def __repr__(self) -> str:
        return f"QuantizedConv2d({self.weight.shape}, {self.weight.dtype})"

    def __call__(self, x: Array) -> Any:
        if self.input_params is not None:
            params = self.input_params.for_compute(F32)
            q = QuantizedTensor.from_codes(reference.quantize(x, params), params)
        else:
            q = quantized_from_data(x, "int8", "symmetric")
        return qconv2d(q, self.weight, self.bias, out_params=self.out_params, out_dtype=x.dtype, **self.options)
