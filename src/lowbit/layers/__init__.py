"""Layers over quantized weights, called on floats."""

from lowbit.layers.conv import QuantizedConv2d
from lowbit.layers.linear import QuantizedLinear, linear_path
from lowbit.layers.weights import check_input

__all__ = ["QuantizedConv2d", "QuantizedLinear", "check_input", "linear_path"]
