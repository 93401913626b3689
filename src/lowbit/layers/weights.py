"""What layers share: weights to quantize, and the params that inputs may have."""

from __future__ import annotations

from typing import Any

from lowbit.numerics.dtypes import DTypeLike, QuantizedDType
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.schemes import QuantizationScheme
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.fitting import Products
from lowbit.ops.fitting import fit_products as fitted
from lowbit.ops.operands import multiplies_as_bytes
from lowbit.ops.quantize import quantize
from lowbit.runtime import arrays as cpu

DTYPES = {cpu.Element.f32: "float32", cpu.Element.f16: "float16", cpu.Element.bf16: "bfloat16"}
SCHEMES = {"int8": "symmetric", "uint8": "asymmetric"}  # of activations that are quantized on the way


def quantized_weight(
    weight: Any,
    ndim: int,
    dtype: DTypeLike,
    scheme: str | QuantizationScheme,
    group_size: int | None,
    products: Products,
) -> QuantizedTensor:
    """The weight as a quantized tensor, which it may be already."""
    if isinstance(weight, QuantizedTensor):
        if products != 1:
            raise InvalidProblem("fit_products: the weight is quantized already; give it as floats")
        return weight
    floats = cpu.as_float_array(weight, "weight")
    if len(floats.shape) != ndim:
        raise InvalidProblem(f"weight: shape {floats.shape}; expected {ndim} dimensions, outputs first")
    kind = QuantizedDType.of(dtype)
    axis = -1 if group_size is not None else 0
    q = quantize(weight, kind, scheme=scheme, axis=axis, group_size=group_size, name="weight")
    if products == 1:
        return q
    if kind.name != "int8" or q.params.zero_point.any() or group_size is not None or q.params.is_logarithmic:
        raise Unsupported(f"fit_products: {kind}, {q.params.scheme}; expected symmetric int8 with one scale per output")
    return fitted(floats.widened(), q, products)


def check_input(p: QuantizationParams) -> None:
    if not isinstance(p, QuantizationParams):
        raise InvalidProblem(f"input_params: {type(p).__name__}; expected QuantizationParams")
    if not multiplies_as_bytes(p) or p.dtype.is_packed or p.axis is not None:
        raise Unsupported(f"input_params: {p.dtype}, {p.scheme}, axis {p.axis}; expected int8 or uint8 with one scale")
