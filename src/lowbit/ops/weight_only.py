"""Linear layers on floats with quantized weights: the weights stay packed and are expanded a block at a time."""

from __future__ import annotations

import math

import numpy as np

from lowbit.numerics.errors import InvalidProblem, Unsupported, UnsupportedDType
from lowbit.numerics.logarithm import log_tables
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.operands import Array
from lowbit.runtime import arrays as cpu
from lowbit.runtime.native import KINDS, core

_RESULTS = {cpu.Element.f32: core.Result.f32, cpu.Element.f16: core.Result.f16, cpu.Element.bf16: core.Result.bf16}


def pack(weight: QuantizedTensor) -> core.WeightOnly:
    """Weights [n, k] as `linear` takes them; codes and scales are shared, not copied, where rows fill whole bytes.

    >>> import lowbit as lb
    >>> q = lb.quantize(np.float32([[1, 2, 3], [4, 5, 6]]), "int4", axis=0)
    >>> packed = pack(q)
    >>> packed.n, packed.k, packed.nbytes
    (2, 3, 12)
    """
    if weight.ndim != 2:
        raise InvalidProblem(f"weight: shape {weight.shape}; expected [n, k]")
    if weight.dtype.is_mixed:
        raise Unsupported("weight: mixed codes; expected one dtype for all rows")
    n, k = weight.shape
    p = weight.params.for_compute(np.float32)
    g = p.granularity(weight.shape)
    per_row = g.kind == 1 and p.axis in (0, -2)
    per_block = g.kind == 2 and p.axis in (1, -1)
    if g.kind and not per_row and not per_block:
        raise Unsupported(f"weight: scales along axis {p.axis} of [n, k]; expected one, one a row, or blocks along k")
    scale, zero = (np.broadcast_to(v, g.scale_shape) for v in (p.scale, p.zero_point))
    tables = None
    if p.is_logarithmic:
        tables = log_tables(p.magnitude_levels, p.steps_per_octave or 1.0, scale.dtype)
    zeros = np.ascontiguousarray(zero) if zero.any() else None
    layout = core.WeightLayout(n, k, KINDS[g.kind], g.block)
    return core.WeightOnly(_whole_rows(weight), cpu.code_of(p), layout, np.ascontiguousarray(scale), zeros, tables)


def _whole_rows(weight: QuantizedTensor) -> Array:
    """The codes as stored, each row starting on a byte."""
    bits = weight.dtype.bits
    n, k = weight.shape
    if bits >= 8 or k * bits % 8 == 0:
        return np.ascontiguousarray(weight.data)
    padded = np.zeros((n, -(-k * bits // 8) * 8 // bits), np.uint8)
    padded[:, :k] = weight.unpack().view(np.uint8)
    return cpu.pack(padded, bits)


def linear(
    x: cpu.FloatArray,
    packed: core.WeightOnly | core.PackedGroups,
    bias: Array | None,
    out: cpu.FloatArray,
    floor: float = -math.inf,
    ceiling: float = math.inf,
) -> None:
    """Writes clamp(x @ w.T + bias, floor, ceiling) into `out` [m, n], for x [m, k] of float32, float16 or bfloat16.

    Within 4 * eps * sum|terms| of the exact result before it is narrowed to float16 or bfloat16, in an order that
    depends on k and the instruction set only: core/kernels/gemm_float/gemm_float.h.

    >>> import lowbit as lb
    >>> packed = pack(lb.quantize(np.float32([[7, 0], [0, -7]]), "int4"))
    >>> y, out = cpu.empty_float((1, 2), np.float32)
    >>> linear(cpu.as_float_array(np.float32([[1, 2]])), packed, np.float32([0.5, 0]), out)
    >>> y
    array([[  7.5, -14. ]], dtype=float32)
    """
    for name, array in (("x", x), ("out", out)):
        if array.element not in _RESULTS:
            raise UnsupportedDType(f"{name}: {array.dtype}; expected float32, float16 or bfloat16")
    if len(x.shape) != 2 or x.shape[1] != packed.k:
        raise InvalidProblem(f"x: shape {x.shape}; expected [m, {packed.k}]")
    m = x.shape[0]
    if out.shape != (m, packed.n):
        raise InvalidProblem(f"out: shape {out.shape}; expected {(m, packed.n)}")
    if bias is not None and (bias.dtype != np.float32 or bias.shape != (packed.n,)):
        raise InvalidProblem(f"bias: {bias.dtype} of shape {bias.shape}; expected float32 of shape ({packed.n},)")
    if bias is not None:
        bias = np.ascontiguousarray(bias)
    epilogue = core.Epilogue.floats(_RESULTS[out.element], (floor, ceiling), bias=bias)
    core.FloatLinearPlan(packed, x.element, epilogue).run(x.array, out.array)
