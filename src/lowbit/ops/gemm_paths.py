"""Matrices packed once for many products, and the paths of `qmatmul`, two dimensions on each side: sums, then the
epilogue. `lowbit.ops.matmul` describes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.granularity import Kind
from lowbit.numerics.logarithm import log_tables
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import binary
from lowbit.ops.epilogue import Epilogue, row_parts
from lowbit.ops.operands import (
    BYTES,
    F32,
    PLAIN_FLOATS,
    SUMS,
    WIDE_SUMS,
    Frozen,
    in_bytes,
    multiplies_as_bytes,
    require_tensor,
    sum_dtype,
    transposed,
)
from lowbit.runtime import arrays as cpu
from lowbit.runtime.arrays import Array
from lowbit.runtime.cache import Cache
from lowbit.runtime.native import KINDS, core


class PackedMatrix(Frozen):
    """The right side of a GEMM, [k, n], packed once in the order of the kernels. Made by `prepack`.

    >>> import lowbit as lb
    >>> w = lb.quantize(np.eye(3, dtype=np.float32), axis=1)
    >>> lb.prepack(w)
    PackedMatrix((3, 3), int8)
    """

    def __init__(self, tensor: QuantizedTensor, transpose: bool = False) -> None:
        k, n = tensor.shape[::-1] if transpose else tensor.shape
        p = tensor.params
        codes = tensor.unpack()
        self.shape = (k, n)
        self._calls: Cache[Any] = Cache(16)
        self.params = p if not transpose or p.axis is None else p.replace(axis=1 - p.axis % 2)
        zero = np.ascontiguousarray(p.zero_point.reshape(-1), np.int32)
        self.native = core.PackedMatrix(np.ascontiguousarray(codes), transpose, zero if p.zero_point.any() else None)

    @property
    def dtype(self) -> Any:
        return self.params.dtype

    @property
    def nbytes(self) -> int:
        """Of codes, scales, zero points and column sums."""
        return int(self.native.nbytes) + self.params.scale.nbytes

    def to_tensor(self) -> QuantizedTensor:
        """The matrix it was made of, [k, n]."""
        k, n = self.shape
        codes = np.empty((n, k), self.params.dtype.code_dtype)
        self.native.unpack(codes)
        return QuantizedTensor.from_codes(np.ascontiguousarray(codes.T), self.params)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedMatrix, (self.to_tensor(),)

    def __repr__(self) -> str:
        return f"PackedMatrix({self.shape}, {self.dtype})"


def prepack(b: QuantizedTensor, transpose: bool = False) -> PackedMatrix:
    """b [k, n], or [n, k] with `transpose`, packed once for many products.

    Codes of 8 bits or less, one scale or one a column.

    >>> import lowbit as lb
    >>> b = lb.quantize(np.float32([[1, 2], [3, 4]]), axis=1)
    >>> a = lb.quantize(np.float32([[1, -1]]))
    >>> lb.qmatmul(a, lb.prepack(b)).round(1)
    array([[-2., -2.]], dtype=float32)
    """
    require_tensor("b", b)
    if b.ndim != 2:
        raise InvalidProblem(f"b: shape {b.shape}; expected two dimensions")
    if not multiplies_as_bytes(b.params):
        raise Unsupported(f"b: {b.dtype}, {b.params.scheme}; expected linear codes of at most 8 bits")
    if b.params.group_size is not None or b.params.axis not in (None, 0 if transpose else 1, -2 if transpose else -1):
        raise Unsupported(f"b: scales along axis {b.params.axis}; expected one scale, or one an output")
    return PackedMatrix(b, transpose)


def gemm_plan(a: QuantizationParams, b: PackedMatrix, epilogue: Epilogue) -> core.GemmPlan | None:
    """The native plan of one product; None where NumPy applies the epilogue."""
    native = epilogue.native(a.scale.astype(F32), b.params.scale.astype(F32), b.shape[0])
    if native is None:
        return None
    zero = np.ascontiguousarray(a.zero_point.reshape(-1), np.int32)
    return core.GemmPlan(b.native, BYTES[a.dtype.code_dtype], zero, native)


def pack_groups(weight: QuantizedTensor) -> core.PackedGroups:
    """Weights [n, k] of 4 or 2 bits in groups along k, in the order of the kernels."""
    p = weight.params
    assert p.group_size is not None
    up = -p.dtype.qmin  # kernels take codes from 0 on
    codes = (weight.unpack().astype(np.int16) + up).astype(np.uint8)
    zero = (p.zero_point + up).astype(np.uint8)
    same = bool((zero == up).all())
    scale = np.ascontiguousarray(p.scale, F32)
    return core.PackedGroups(codes, p.dtype.bits, p.group_size, scale, None if same else zero, up)


def pack_weight_only(weight: QuantizedTensor) -> core.WeightOnly:
    """Weights [n, k] that products with floats expand a block at a time; codes and scales are shared, not copied, where
    rows fill whole bytes.

    >>> import lowbit as lb
    >>> q = lb.quantize(np.float32([[1, 2, 3], [4, 5, 6]]), "int4", axis=0)
    >>> packed = pack_weight_only(q)
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
    per_row = g.kind is Kind.CHANNEL and p.axis in (0, -2)
    per_block = g.kind is Kind.GROUP and p.axis in (1, -1)
    if g.kind is not Kind.TENSOR and not per_row and not per_block:
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


def multiply(
    path: str,
    a: QuantizedTensor,
    b: QuantizedTensor | PackedMatrix | core.PackedGroups,
    epilogue: Epilogue,
    out: Array | None = None,
) -> Array:
    """a [m, k] times b [k, n] on this path, before `Epilogue.wrap`; in `out` [m, n] where it is given. PackedGroups are
    for the path "groups" alone. For callers that have made qmatmul's checks."""
    return _PATHS[path](a, b.to_tensor() if isinstance(b, PackedMatrix) and path != "integer" else b, epilogue, out)


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


def _integer(a: QuantizedTensor, b: QuantizedTensor | PackedMatrix, epilogue: Epilogue, out: Array | None) -> Array:
    b = b if isinstance(b, PackedMatrix) else PackedMatrix(b)
    codes, n = np.ascontiguousarray(a.unpack()), b.shape[1]
    if out is None or epilogue.bias is not None:  # the epilogue was made for this call
        plan = gemm_plan(a.params, b, epilogue)
    else:  # the cache holds its key's objects, so that their ids stay theirs
        kept = a.params, epilogue
        key = id(a.params), id(epilogue)
        plan, _ = b._calls.find(key, lambda: (gemm_plan(a.params, b, epilogue), kept))
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


def _groups(a: QuantizedTensor, b: QuantizedTensor | core.PackedGroups, epilogue: Epilogue, out: Array | None) -> Array:
    epilogue.refuse_integer_bias("groups")
    b = pack_groups(transposed(b)) if isinstance(b, QuantizedTensor) else b
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
        epilogue.narrow(sums, y[part])
    return y


def _sums(a: Array, b: Array, za: Array, zb: Array) -> Array:
    left, right = (np.ascontiguousarray(z, np.int32).reshape(-1) for z in (za, zb))
    return multiply_rows(a, left, packed(b, right))


def _blocks(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None) -> Array:
    epilogue.refuse_integer_bias("blocks")
    left, right, p = a.unpack(), b.unpack(), b.params
    assert p.group_size is not None
    za, sa = a.params.zero_point, a.params.scale.astype(F32)
    y = np.zeros((a.shape[0], b.shape[1]), F32)
    for g in range(p.scale.shape[0]):
        part = slice(g * p.group_size, (g + 1) * p.group_size)
        sums = _sums(left[:, part], right[part], za, p.zero_point[g])
        y += sums.astype(F32) * p.scale[g].astype(F32)
    y *= sa[:, None] if sa.ndim else sa
    return epilogue.narrow(y, out)


def _integer16(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None) -> Array:
    acc = np.zeros((a.shape[0], b.shape[1]), np.int64)
    for left, za, by_left in in_bytes(a.unpack(), a.params.zero_point):
        for right, zb, by_right in in_bytes(b.unpack(), b.params.zero_point):
            acc += _sums(left, right, za, zb).astype(np.int64) * (by_left * by_right)
    return epilogue.scale_sums(acc, a.params.scale.astype(F32), b.params.scale.astype(F32), out)


def _general(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None) -> Array:
    epilogue.refuse_integer_bias("general")
    y = a.dequantize(dtype=np.float64) @ b.dequantize(dtype=np.float64)
    with np.errstate(over="ignore"):
        return epilogue.narrow(y.astype(F32), out)


def _binary(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None) -> Array:
    k = a.shape[1]
    left = np.packbits(a.unpack(), axis=1, bitorder="little")
    right = np.packbits(np.ascontiguousarray(b.unpack().T), axis=1, bitorder="little")
    acc = np.empty((a.shape[0], b.shape[1]), np.int32)
    binary.multiply(left, core.BinaryMatrix(right, k), acc)
    return epilogue.scale_sums(acc, a.params.scale.astype(F32), b.params.scale.astype(F32), out)


_PATHS: dict[str, Callable[..., Array]] = {
    "integer": _integer,
    "groups": _groups,
    "blocks": _blocks,
    "integer16": _integer16,
    "general": _general,
    "binary": _binary,
}
