"""Operations: check the arguments, choose a kernel, run it."""

from lowbit.ops.dequantize import dequantize, dequantize_from_int8
from lowbit.ops.elementwise import qadd, qclamp, qconcat, qmul, qrelu
from lowbit.ops.fake_quantize import (
    dequantize_backward,
    fake_quantize,
    fake_quantize_backward,
    fake_quantize_learned_backward,
    quantize_backward,
)
from lowbit.ops.pooling import qavg_pool2d, qmax_pool2d
from lowbit.ops.quantize import quantize, quantize_to_int8

__all__ = [
    "dequantize",
    "dequantize_backward",
    "dequantize_from_int8",
    "fake_quantize",
    "fake_quantize_backward",
    "fake_quantize_learned_backward",
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
]
