"""Tensors of every dtype, scheme and granularity, in square shapes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt

import lowbit as lb

F32 = np.float32
SIDE = 3  # of square shapes, in which the axis of a scale cannot be told from its length
WIDTHS = {"mixed": (4, 8, 16), "mixed with bits": (2, 1, 8)}
DTYPES = ("int16", "uint16", "int8", "uint8", "int4", "uint4", "int2", "uint2", "binary", *WIDTHS)
SCHEMES = ("symmetric", "asymmetric", "logarithmic")


def kinds(ndim: int) -> dict[str, dict[str, Any]]:
    """Options of `lb.quantize` for every dtype, scheme and granularity that params can have."""
    found = {}
    axes = range(ndim)
    scopes = [(None, None), *((axis, None) for axis in axes), *((axis, 2) for axis in axes)]
    for dtype, scheme, (axis, block) in itertools.product(DTYPES, SCHEMES, scopes):
        kind = lb.QuantizedDType.mixed(WIDTHS[dtype]) if dtype in WIDTHS else lb.QuantizedDType.of(dtype)
        try:
            lb.QuantizationParams(kind, scheme, axis=axis, group_size=block)
        except (lb.InvalidProblem, lb.Unsupported):
            continue
        if kind.is_mixed and axis is None:
            continue
        options = {"dtype": kind, "scheme": scheme, "axis": axis, "group_size": block}
        found[f"{dtype} {scheme} axis={axis} block={block}"] = options
    return found


def tensor(seed: int, options: dict[str, Any], ndim: int, dtype: npt.DTypeLike = F32) -> lb.QuantizedTensor:
    rng = np.random.default_rng(seed)
    spread = np.exp2(rng.integers(-3, 3, (SIDE,) * ndim))
    return lb.quantize((rng.standard_normal((SIDE,) * ndim) * spread + 0.25).astype(dtype), **options)
