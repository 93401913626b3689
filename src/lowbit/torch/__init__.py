"""lowbit for torch: differentiable operators, quantized models for inference, and quantization-aware training.

Three packages, each importing only from those before it: `functional` (operators), `inference` (quantized modules and
models), `qat` (training, which folds and replaces modules by `inference`).
"""

from lowbit.torch.functional.ops import dequantize, dequantize_ste, fake_quantize, fake_quantize_learned, quantize_ste
from lowbit.torch.inference.attention import QuantizedMultiheadAttention
from lowbit.torch.inference.batches import observe
from lowbit.torch.inference.embedding import QuantizedEmbedding
from lowbit.torch.inference.equalization import equalize
from lowbit.torch.inference.layers import QuantizedConv1d, QuantizedConv2d, QuantizedLinear
from lowbit.torch.inference.loading import load_quantized
from lowbit.torch.inference.moments import observe_moments
from lowbit.torch.inference.quantize import quantize, report
from lowbit.torch.inference.recurrent import QuantizedGRU, QuantizedLSTM
from lowbit.torch.qat import Coverage, CoverageRow, QATRecipe, calibrate, convert, prepare_qat
from lowbit.torch.qat.modules import ConvertedConv1d, ConvertedConv2d, ConvertedLinear, QATConv1d, QATConv2d, QATLinear
from lowbit.torch.qat.observers import Histogram, MinMax, MovingAverage, Observer
from lowbit.torch.qat.quantizer import FakeQuantize

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
    "QuantizedConv1d",
    "QuantizedConv2d",
    "QuantizedEmbedding",
    "QuantizedGRU",
    "QuantizedLSTM",
    "QuantizedLinear",
    "QuantizedMultiheadAttention",
    "calibrate",
    "convert",
    "dequantize",
    "dequantize_ste",
    "equalize",
    "fake_quantize",
    "fake_quantize_learned",
    "load_quantized",
    "observe",
    "observe_moments",
    "prepare_qat",
    "quantize",
    "quantize_ste",
    "report",
]
