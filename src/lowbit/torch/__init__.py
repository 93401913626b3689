"""lowbit for torch: differentiable quantization operators, and modules for quantization-aware training."""

from lowbit.torch.modules import QATConv1d, QATConv2d, QATLinear, QuantizedConv1d, QuantizedConv2d, QuantizedLinear
from lowbit.torch.observers import Histogram, MinMax, MovingAverage, Observer
from lowbit.torch.ops import dequantize, dequantize_ste, fake_quantize, fake_quantize_learned, quantize, quantize_ste
from lowbit.torch.qat import Coverage, CoverageRow, QATRecipe, calibrate, convert, prepare_qat
from lowbit.torch.quantizer import FakeQuantize

__all__ = [
    "Coverage",
    "CoverageRow",
    "FakeQuantize",
    "Histogram",
    "MinMax",
    "MovingAverage",
    "Observer",
    "QATConv1d",
    "QATConv2d",
    "QATLinear",
    "QATRecipe",
    "QuantizedConv1d",
    "QuantizedConv2d",
    "QuantizedLinear",
    "calibrate",
    "convert",
    "dequantize",
    "dequantize_ste",
    "fake_quantize",
    "fake_quantize_learned",
    "prepare_qat",
    "quantize",
    "quantize_ste",
]
