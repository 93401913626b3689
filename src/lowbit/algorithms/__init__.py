"""Algorithms for weights: matrices and statistics of their inputs in, quantized tensors out."""

from lowbit.algorithms.gptq import gptq
from lowbit.algorithms.rounding import mse, rtn, weighted

__all__ = ["gptq", "mse", "rtn", "weighted"]
