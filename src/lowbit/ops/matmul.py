"""Products of quantized matrices: integer sums, exact, then floats or codes of another scale.

Which path a pair of dtypes takes, and `path_of` says so:

- "integer": 8 bits and below on both sides. Integer dot products; below 8 bits codes are unpacked to bytes first.
- "groups": 4 or 2 bits in blocks along k, times int8 with one scale per row or for all. Unpacked in registers.
- "binary": bits on both sides. XNOR and popcount.
- "integer16": 16 bits on a side. Each is split in bytes, whose products are added in int64.
- "blocks": any other linear codes in blocks along k: one integer product per block, blocks added in order in float32.
- "general": logarithmic and mixed codes, scales along k, and blocks along leading dimensions: products of the numbers
  they stand for, in float64.

On every path the accumulators pass through the epilogue of `lowbit.ops.epilogue`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.indexing import sliced
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.epilogue import Epilogue
from lowbit.ops.gemm_paths import PackedMatrix, gemm_plan, multiply, multiply_rows, packed, prepack
from lowbit.ops.operands import F32, byte_codes, float_operand, require_tensor, sum_dtype, transposed, zero_points
from lowbit.ops.quantize import quantize
from lowbit.runtime.arrays import Array
from lowbit.runtime.native import core

__all__ = ["PackedMatrix", "matmul_integer", "path_of", "prepack", "qmatmul"]


class _Call(NamedTuple):
    """A settled call: the plan for left sides of the same params."""

    plan: core.GemmPlan
    epilogue: Epilogue
    n: int
    keyed: tuple[Any, ...]  # the params whose ids are in the key

    def run(self, a: QuantizedTensor) -> Array | QuantizedTensor:
        plan, epilogue, n, _ = self
        y, memory = epilogue.empty((a.shape[0], n))
        plan.run(a.data, memory)
        return epilogue.wrap(y)


def matmul_integer(
    a: npt.ArrayLike, b: npt.ArrayLike | PackedMatrix, a_zero_point: Any = 0, b_zero_point: Any = 0
) -> Array:
    """sum over k of (a - za) * (b - zb), exactly: int32, or int64 for a k past 33,025, where int32 might not hold it.

    a [..., m, k] and b [..., k, n] of int8 or uint8; leading dimensions broadcast. Zero points: one number, or one
    per row of a, or per column of b. A PackedMatrix has its own.

    >>> matmul_integer(np.uint8([[255, 1]]), np.int8([[-128], [2]]), 1, 0)
    array([[-32512]], dtype=int32)
    """
    left = byte_codes("a", a)
    right = b if isinstance(b, PackedMatrix) else byte_codes("b", b)
    _require_matrices(left.shape, right.shape)
    za = zero_points("a_zero_point", a_zero_point, left, left.shape[-2])
    if isinstance(right, PackedMatrix):
        return multiply_rows(left, za, right.native)
    zb = zero_points("b_zero_point", b_zero_point, right, right.shape[-1])
    if right.ndim == 2:
        return multiply_rows(left, za, packed(right, zb))
    batch = _batch(left.shape, right.shape)
    out = np.empty((*batch, left.shape[-2], right.shape[-1]), sum_dtype(left.shape[-1]))
    lefts, rights = np.broadcast_to(left, batch + left.shape[-2:]), np.broadcast_to(right, batch + right.shape[-2:])
    for index in np.ndindex(batch):
        out[index] = multiply_rows(np.ascontiguousarray(lefts[index]), za, packed(rights[index], zb))
    return out


# Above 60 lines: most are its signature and docstring, and a call more would slow the settled call down.
def qmatmul(
    a: QuantizedTensor | npt.ArrayLike,
    b: QuantizedTensor | PackedMatrix,
    *,
    bias: Any = None,
    out_params: QuantizationParams | None = None,
    out_dtype: Any = "float32",
    transpose_a: bool = False,
    transpose_b: bool = False,
    activation: str | None = None,
    clamp: tuple[float, float] | None = None,
) -> Array | QuantizedTensor:
    """a @ b: floats, or codes of `out_params`, rounded once from exact sums.

    a [..., m, k], one scale, or one per row where it has two dimensions; b [..., k, n], one scale or one per column, or
    a PackedMatrix. transpose_a and transpose_b swap the last two dimensions first. a may be floats: each row is then
    quantized to int8, symmetric, with a scale of its own. Every dtype works; which path it takes, `path_of` says.

    bias [n]: integers are added to the sums; floats to the result, or before requantizing in steps of the sums, where
    infinite ones saturate. activation "relu", and clamp (least, greatest), speak of real numbers.
    out_params: of any dtype, scheme and granularity of the result. Integer sums are requantized to linear codes with
    one scale; otherwise it is exactly `quantize(y, params=out_params)` of the float32 result y.

    >>> import lowbit as lb
    >>> a = lb.quantize(np.float32([[1, 2], [3, 4]]))
    >>> lb.qmatmul(a, a).round()
    array([[ 7., 10.],
           [15., 22.]], dtype=float32)
    >>> lb.qmatmul(a, a, out_params=lb.QuantizationParams("uint8", scale=0.5)).unpack()
    array([[14, 20],
           [30, 44]], dtype=uint8)
    >>> lb.qmatmul(lb.qmatmul(a, a), a).round(-1)  # floats are quantized row by row
    array([[ 40.,  50.],
           [ 80., 120.]], dtype=float32)
    """
    key: Any = None
    plain = bias is None and not (transpose_a or transpose_b)
    if (
        plain
        and type(b) is PackedMatrix
        and type(a) is QuantizedTensor
        and a.data.ndim == 2
        and a.data.flags.c_contiguous
    ):
        key = id(a.params), id(out_params), out_dtype, activation, clamp
        settled: _Call | None = b._calls.settled(key)
        if settled is not None and a.shape[1] == b.shape[0]:
            return settled.run(a)
    left, shape = _left(a, transpose_a)
    right = _right(b, transpose_b)
    _require_matrices(shape, right.shape)
    n = right.shape[-1]
    epilogue = Epilogue.of(n, bias, out_params, out_dtype, activation, clamp, any_codes=True)
    batch = _batch(shape, right.shape)
    epilogue.require_shape((*batch, shape[-2], n))
    tensor = _folded(left) if len(right.shape) == 2 else None
    if tensor is None:
        return epilogue.wrap(_by_batch(left, shape, _tensor(right), epilogue, batch))
    path = path_of(tensor.params, right.params)
    p = tensor.params
    if key is not None and path == "integer" and p.axis is None and not p.dtype.is_packed and epilogue.then is None:
        assert isinstance(right, PackedMatrix)
        plan = gemm_plan(p, right, epilogue)
        if plan is not None:
            call = _Call(plan, epilogue, n, (p, out_params))
            right._calls.put(key, call)
            return call.run(tensor)
    return epilogue.wrap(multiply(path, tensor, right, epilogue).reshape(*shape[:-1], n))


def path_of(a: QuantizationParams, b: QuantizationParams, a_ndim: int = 2, b_ndim: int = 2) -> str:
    """The path qmatmul takes for these params; the module's docstring describes them.

    For batches it is the path of all of them as one; where that would be "general", matrices that have params of their
    own are multiplied one by one, each on the path of its params.

    >>> from lowbit import QuantizationParams
    >>> path_of(QuantizationParams("uint8"), QuantizationParams("int4"))
    'integer'
    """
    linear = all(not (p.is_logarithmic or p.dtype.is_mixed) for p in (a, b))
    bits = a.dtype.is_binary + b.dtype.is_binary
    if not linear or bits == 1:
        return "general"
    by_row = a.axis is None or (a.group_size is None and a.axis % a_ndim == a_ndim - 2 and a_ndim == 2)
    by_column = b.axis is None or (b.group_size is None and b.axis % b_ndim == b_ndim - 1)
    if bits == 2:
        return "binary" if by_row and by_column else "general"
    if by_row and by_column:
        return "integer" if max(a.dtype.bits, b.dtype.bits) <= 8 else "integer16"
    if by_row and b.group_size is not None and b.axis is not None and b.axis % b_ndim == b_ndim - 2:
        signed = a.dtype.is_signed and a.dtype.bits <= 8 and not a.zero_point.any()
        low = b.dtype.bits in (2, 4)
        return "groups" if signed and low else "blocks" if max(a.dtype.bits, b.dtype.bits) <= 8 else "general"
    return "general"


# ---- operands ----


def _left(a: Any, transpose: bool) -> tuple[QuantizedTensor, tuple[int, ...]]:
    """The left side and its shape, [..., m, k]. Floats are quantized by row, and their rows folded to one matrix."""
    if isinstance(a, QuantizedTensor):
        tensor = transposed(a) if transpose and a.ndim > 1 else a
        return tensor, tensor.shape
    x = float_operand("a", a, "which are quantized by row").widened()
    x = np.ascontiguousarray(np.swapaxes(x, -1, -2)) if transpose and x.ndim > 1 else x
    codes, scale = np.zeros(x.shape, np.int8), np.ones(x.shape[:-1], F32)
    if x.size and x.ndim > 1:
        q = quantize(x, axis=-1, group_size=x.shape[-1], name="a")
        codes, scale = q.data, q.params.scale.astype(F32)
    rows = QuantizationParams("int8", "symmetric", scale.reshape(-1), axis=0)
    folded = codes.reshape(scale.size, -1 if codes.size else x.shape[-1])
    return QuantizedTensor._trusted(folded, rows, folded.shape), x.shape


def _right(b: Any, transpose: bool) -> QuantizedTensor | PackedMatrix:
    if isinstance(b, PackedMatrix):
        if transpose:
            raise InvalidProblem("transpose_b: True; a PackedMatrix was transposed when it was packed")
        return b
    require_tensor("b", b, "or a PackedMatrix; quantize floats first, lb.quantize(b, axis=1)")
    tensor: QuantizedTensor = transposed(b) if transpose and b.ndim > 1 else b
    return tensor


def _tensor(b: QuantizedTensor | PackedMatrix) -> QuantizedTensor:
    return b.to_tensor() if isinstance(b, PackedMatrix) else b


def _folded(t: QuantizedTensor) -> QuantizedTensor | None:
    """One matrix of all rows, for one matrix b; None where they do not share their scales."""
    try:
        return t if t.ndim == 2 else t.reshape(math.prod(t.shape[:-1]), t.shape[-1])
    except InvalidProblem:
        return None


def _by_batch(
    a: QuantizedTensor, shape: tuple[int, ...], b: QuantizedTensor, epilogue: Epilogue, batch: tuple[int, ...]
) -> Array:
    """b has leading dimensions, or a has scales of its own for some of its: a product for each."""
    out, _ = epilogue.empty((*batch, shape[-2], b.shape[-1]))
    if _across_matrices(a) or _across_matrices(b):
        epilogue.refuse_integer_bias("general")
        left, right = (t.dequantize(dtype=np.float64) for t in (a, b))
        with np.errstate(over="ignore"):
            floats = np.matmul(left.reshape(shape), right).astype(F32)
        rows = math.prod(out.shape[:-1]), b.shape[-1]
        epilogue.narrow(floats.reshape(rows), out.reshape(rows))
        return out
    lefts, rights = _matrices(a, shape, batch), _matrices(b, b.shape, batch)
    for index in np.ndindex(batch):
        x, y = lefts(index), rights(index)
        out[index] = multiply(path_of(x.params, y.params), x, y, epilogue)
    return out


def _across_matrices(t: QuantizedTensor) -> bool:
    """Whether a matrix of the batch is no tensor by itself: blocks or mixed channels lie along a leading dimension."""
    p = t.params
    leading = p.axis is not None and p.axis % t.ndim < t.ndim - 2
    return leading and (p.group_size is not None or p.dtype.is_mixed)


def _matrices(
    t: QuantizedTensor, shape: tuple[int, ...], batch: tuple[int, ...]
) -> Callable[[tuple[int, ...]], QuantizedTensor]:
    """What gives the matrix at each index of the batch, with the scales it has there. shape: before rows are folded."""
    codes, lead, m = t.unpack(), shape[:-2], shape[-2]

    def at(index: tuple[int, ...]) -> QuantizedTensor:
        own: Any = tuple(i if size > 1 else 0 for i, size in zip(index[len(batch) - len(lead) :], lead, strict=True))
        if t.ndim != len(shape):
            first = m * int(np.ravel_multi_index(own, lead))
            own = (slice(first, first + m),)
        return QuantizedTensor.from_codes(codes[own], sliced(t.params, t.shape, own).params)

    return at


def _batch(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise InvalidProblem(f"a: leading dimensions {a[:-2]} do not broadcast with b's, {b[:-2]}") from None


def _require_matrices(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    for name, shape in (("a", a), ("b", b)):
        if len(shape) < 2:
            raise InvalidProblem(f"{name}: shape {shape}; expected at least two dimensions")
    if a[-1] != b[-2]:
        raise InvalidProblem(f"a: {a[-1]} columns; b has {b[-2]} rows")
