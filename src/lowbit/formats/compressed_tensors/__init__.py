"""Checkpoints in the compressed-tensors layout, as vLLM and transformers load them."""

from lowbit.formats.compressed_tensors.convert import quantize_checkpoint
from lowbit.formats.compressed_tensors.scheme import Scheme, decompressed

__all__ = ["Scheme", "decompressed", "quantize_checkpoint"]
