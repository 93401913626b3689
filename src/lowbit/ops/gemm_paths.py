"""The paths of `qmatmul`, two dimensions on each side: sums, then the epilogue. `lowbit.ops.matmul` describes them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from lowbit.numerics.errors import Unsupported
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import binary
from lowbit.ops.epilogue import Epilogue, row_parts
from lowbit.ops.operands import (
    BYTES,
    F32,
    PLAIN_FLOATS,
    SUMS,
    WIDE_SUMS,
    Array,
    in_bytes,
    sum_dtype,
    transposed,
)
from lowbit.ops.packed import PackedMatrix, gemm_plan, pack_groups
from lowbit.runtime.native import core


def multiply_into(
    path: str, a: QuantizedTensor, b: QuantizedTensor | PackedMatrix, epilogue: Epilogue, out: Array
) -> None:
    """Write a [m, k] times b [k, n] on this path into `out` [m, n]. For callers that have made qmatmul's checks."""
    PATHS[path](a, b.to_tensor() if isinstance(b, PackedMatrix) and path != "integer" else b, epilogue, out)


def float_bias(epilogue: Epilogue, path: str) -> Array | None:
    """The bias, on paths whose sums are floats: groups, blocks, general."""
    if epilogue.bias is not None and epilogue.bias.dtype.kind == "i":
        raise Unsupported(f"bias: integers; on the {path} path there is no integer sum to add them to")
    return epilogue.bias


def packed(b: Array, zero: Array) -> core.PackedMatrix:
    turned = not b.flags.c_contiguous and b.T.flags.c_contiguous
    codes = b.T if turned else np.ascontiguousarray(b)
    return core.PackedMatrix(codes, turned, zero)


def multiply_rows(a: Array, zero: Array, b: core.PackedMatrix) -> Array:
    """The sums of a [..., m, k] times one matrix. Zero points of rows repeat for each leading index."""
    rows = math.prod(a.shape[:-1])
    if zero.size != 1 and a.ndim > 2:
        zero = np.tile(zero, rows // zero.size if zero.size else 0)
    out = np.empty((*a.shape[:-1], b.n), sum_dtype(a.shape[-1]))
    core.GemmPlan(b, BYTES[a.dtype], zero, SUMS).run(np.ascontiguousarray(a), out)
    return out


# ---- paths: into `out` where it is given ----


def _integer(
    a: QuantizedTensor, b: QuantizedTensor | PackedMatrix, epilogue: Epilogue, out: Array | None = None
) -> Array:
    b = b if isinstance(b, PackedMatrix) else PackedMatrix(b)
    codes, n = np.ascontiguousarray(a.unpack()), b.shape[1]
    plan = b.plan(a.params, epilogue) if out is not None else gemm_plan(a.params, b, epilogue)
    y, memory = epilogue.empty((a.shape[0], n), out)
    if plan is not None:
        plan.run(codes, memory)
        return y
    sa, sb = a.params.scale.astype(F32), b.params.scale.astype(F32)
    za = np.ascontiguousarray(a.params.zero_point.reshape(-1), np.int32)
    for part in row_parts(y.shape):
        acc = np.empty((part.stop - part.start, n), np.int64)
        own = za if za.size == 1 else np.ascontiguousarray(za[part])
        core.GemmPlan(b.native, BYTES[codes.dtype], own, WIDE_SUMS).run(codes[part], acc)
        epilogue.scale_sums(acc, sa[part] if sa.ndim else sa, sb, y[part])
    return y


def _groups(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None = None) -> Array:
    bias = float_bias(epilogue, "groups")
    return multiply_groups(a, pack_groups(transposed(b)), epilogue, bias, out)


def multiply_groups(
    a: QuantizedTensor, b: core.PackedGroups, epilogue: Epilogue, bias: Array | None, out: Array | None = None
) -> Array:
    """a [m, k], signed codes without zero points, times packed groups. bias: the epilogue's, as floats."""
    m, codes = a.shape[0], np.ascontiguousarray(a.unpack())
    sa = np.ascontiguousarray(np.broadcast_to(a.params.scale.astype(F32).reshape(-1), m))
    native = epilogue.native_float()
    y, memory = epilogue.empty((m, b.n), out)
    if native is not None:
        core.GroupGemmPlan(b, native).run(codes, sa, memory)
        return y
    plan = core.GroupGemmPlan(b, PLAIN_FLOATS)
    for part in row_parts(y.shape):
        sums = np.empty((part.stop - part.start, b.n), F32)
        plan.run(codes[part], sa[part], sums)
        epilogue.narrow(sums, bias, y[part])
    return y


def _sums(a: Array, b: Array, za: Array, zb: Array) -> Array:
    left, right = (np.ascontiguousarray(z, np.int32).reshape(-1) for z in (za, zb))
    return multiply_rows(a, left, packed(b, right))


def _blocks(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None = None) -> Array:
    bias = float_bias(epilogue, "blocks")
    left, right, p = a.unpack(), b.unpack(), b.params
    assert p.group_size is not None
    za, sa = a.params.zero_point, a.params.scale.astype(F32)
    y = np.zeros((a.shape[0], b.shape[1]), F32)
    for g in range(p.scale.shape[0]):
        part = slice(g * p.group_size, (g + 1) * p.group_size)
        sums = _sums(left[:, part], right[part], za, p.zero_point[g])
        y += sums.astype(F32) * p.scale[g].astype(F32)
    y *= sa[:, None] if sa.ndim else sa
    return epilogue.narrow(y, bias, out)


def _integer16(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None = None) -> Array:
    acc = np.zeros((a.shape[0], b.shape[1]), np.int64)
    for left, za, by_left in in_bytes(a.unpack(), a.params.zero_point):
        for right, zb, by_right in in_bytes(b.unpack(), b.params.zero_point):
            acc += _sums(left, right, za, zb).astype(np.int64) * (by_left * by_right)
    return epilogue.scale_sums(acc, a.params.scale.astype(F32), b.params.scale.astype(F32), out)


def _general(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None = None) -> Array:
    bias = float_bias(epilogue, "general")
    y = a.dequantize(dtype=np.float64) @ b.dequantize(dtype=np.float64)
    with np.errstate(over="ignore"):
        return epilogue.narrow(y.astype(F32), bias, out)


def _binary(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None = None) -> Array:
    k = a.shape[1]
    left = np.packbits(a.unpack(), axis=1, bitorder="little")
    right = np.packbits(np.ascontiguousarray(b.unpack().T), axis=1, bitorder="little")
    acc = np.empty((a.shape[0], b.shape[1]), np.int32)
    binary.multiply(left, core.BinaryMatrix(right, k), acc)
    return epilogue.scale_sums(acc, a.params.scale.astype(F32), b.params.scale.astype(F32), out)


PATHS: dict[str, Callable[..., Array]] = {
    "integer": _integer,
    "groups": _groups,
    "blocks": _blocks,
    "integer16": _integer16,
    "general": _general,
    "binary": _binary,
}
