"""Layers over quantized weights, called on floats."""

from lowbit.layers.layers import QuantizedConv2d, QuantizedLinear, check_input, linear_path

__all__ = ["QuantizedConv2d", "QuantizedLinear", "check_input", "linear_path"]
