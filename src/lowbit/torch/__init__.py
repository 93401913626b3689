"""lowbit for torch: differentiable quantization operators, modules for training with them and for inference."""

from lowbit.torch.layers import QuantizedConv2d, QuantizedLinear
from lowbit.torch.modules import ConvertedConv1d, ConvertedConv2d, ConvertedLinear, QATConv1d, QATConv2d, QATLinear
from lowbit.torch.observe import observe
from lowbit.torch.observers import Histogram, MinMax, MovingAverage, Observer
from lowbit.torch.ops import dequantize, dequantize_ste, fake_quantize, fake_quantize_learned, quantize, quantize_ste
from lowbit.torch.qat import Coverage, CoverageRow, QATRecipe, calibrate, convert, prepare_qat
from lowbit.torch.quantizer import FakeQuantize

__all__ = [
    "ConvertedConv1d",
    "ConvertedConv2d",
    "ConvertedLinear",
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
    "QuantizedConv2d",
    "QuantizedLinear",
    "calibrate",
    "convert",
    "dequantize",
    "dequantize_ste",
    "fake_quantize",
    "fake_quantize_learned",
    "observe",
    "prepare_qat",
    "quantize",
    "quantize_ste",
]
