"""Quantization-aware training: observers, fake-quantize modules, layers that train with them, and conversion."""

from lowbit.torch.qat.prepare import Coverage, CoverageRow, QATRecipe, calibrate, convert, prepare_qat

__all__ = ["Coverage", "CoverageRow", "QATRecipe", "calibrate", "convert", "prepare_qat"]
