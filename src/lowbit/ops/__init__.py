"""Operations: check the arguments, choose a kernel, run it."""

from lowbit.ops.dequantize import dequantize, dequantize_from_int8
from lowbit.ops.quantize import quantize, quantize_to_int8

__all__ = ["dequantize", "dequantize_from_int8", "quantize", "quantize_to_int8"]
