"""Algorithms for weights: matrices and statistics of their inputs in, quantized tensors out."""

from lowbit.algorithms.adaround import adaround
from lowbit.algorithms.awq import Folded, awq
from lowbit.algorithms.bias_correction import bias_correction
from lowbit.algorithms.equalize import equalize
from lowbit.algorithms.gptq import gptq
from lowbit.algorithms.hqq import hqq
from lowbit.algorithms.rounding import mse, rtn, weighted
from lowbit.algorithms.sequential import gptq_sequential
from lowbit.algorithms.smoothquant import smoothquant

__all__ = [
    "Folded",
    "adaround",
    "awq",
    "bias_correction",
    "equalize",
    "gptq",
    "gptq_sequential",
    "hqq",
    "mse",
    "rtn",
    "smoothquant",
    "weighted",
]
