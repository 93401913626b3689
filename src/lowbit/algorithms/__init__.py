"""Algorithms for weights: matrices and statistics of their inputs in, quantized tensors out."""

from lowbit.algorithms.adaround import adaround
from lowbit.algorithms.bias_correction import bias_correction
from lowbit.algorithms.equalize import equalize
from lowbit.algorithms.gptq import gptq
from lowbit.algorithms.rounding import mse, rtn, weighted

__all__ = ["adaround", "bias_correction", "equalize", "gptq", "mse", "rtn", "weighted"]
