"""Operations: check the arguments, choose a kernel, run it."""

from lowbit.ops.binary import binary_conv2d, binary_matmul, prepack_binary, prepack_binary_conv2d
from lowbit.ops.conv import PackedConv, conv2d_integer, prepack_conv2d, qconv1d, qconv2d
from lowbit.ops.dequantize import dequantize, dequantize_from_int8
from lowbit.ops.elementwise import qadd, qclamp, qconcat, qmul, qrelu
from lowbit.ops.fake_quantize import (
    dequantize_backward,
    fake_quantize,
    fake_quantize_backward,
    fake_quantize_learned_backward,
    quantize_backward,
)
from lowbit.ops.matmul import PackedMatrix, matmul_integer, prepack, qmatmul
from lowbit.ops.pool import qavg_pool2d, qmax_pool2d
from lowbit.ops.quantize import quantize, quantize_to_int8

__all__ = [
    "PackedConv",
    "PackedMatrix",
    "binary_conv2d",
    "binary_matmul",
    "conv2d_integer",
    "dequantize",
    "dequantize_backward",
    "dequantize_from_int8",
    "fake_quantize",
    "fake_quantize_backward",
    "fake_quantize_learned_backward",
    "matmul_integer",
    "prepack",
    "prepack_binary",
    "prepack_binary_conv2d",
    "prepack_conv2d",
    "qadd",
    "qavg_pool2d",
    "qclamp",
    "qconcat",
    "qconv1d",
    "qconv2d",
    "qmatmul",
    "qmax_pool2d",
    "qmul",
    "qrelu",
    "quantize",
    "quantize_backward",
    "quantize_to_int8",
]
