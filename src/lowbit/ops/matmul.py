"""Products of quantized matrices: integer sums, exact, then floats or codes of another scale.

Which path a pair of dtypes takes, and `path_of` says so:

- "integer": 8 bits and below on both sides. Integer dot products; below 8 bits codes are unpacked to bytes first.
- "groups": 4 or 2 bits in blocks along k, times int8 with a scale a row or for all. Unpacked in registers.
- "binary": bits on both sides. XNOR and popcount.
- "integer16": 16 bits on a side. Each is split in bytes, whose products are added in int64.
- "blocks": any other linear codes in blocks along k: an integer product a block, blocks added in order in float32.
- "general": logarithmic and mixed codes, scales along k, and blocks along leading dimensions: products of the numbers
  they stand for, in float64.

On every path the accumulators pass through the epilogue of `lowbit.ops.epilogue`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem, Unsupported, UnsupportedDType
from lowbit.numerics.fields import refuse_masked
from lowbit.numerics.indexing import sliced
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops import binary_kernels as binary
from lowbit.ops.epilogue import Epilogue, row_pieces
from lowbit.ops.operands import (
    BYTES,
    SUMS,
    Settled,
    float_operand,
    in_bytes,
    multiplies_as_bytes,
    remember,
    require_tensor,
    sum_dtype,
    zero_points,
)
from lowbit.ops.quantize import quantize
from lowbit.runtime.native import core

__all__ = [
    "PackedMatrix", "float_bias", "matmul_integer", "multiply_groups", "multiply_into", "pack_groups", "path_of",
    "prepack", "qmatmul", "settled",
]  # fmt: skip

Array = npt.NDArray[Any]
F32 = np.float32


class PackedMatrix(Settled):
    """The right side of a product, [k, n], arranged once as the kernels read it. Made by `prepack`.

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
        self._settled: dict[Any, tuple[Any, ...]] = {}
        self.params = p if not transpose or p.axis is None else p.replace(axis=1 - p.axis % 2)
        zero = np.ascontiguousarray(p.zero_point.reshape(-1), np.int32)
        self.native = core.pack_matrix(
            np.ascontiguousarray(codes), codes.dtype == np.int8, k, n, transpose, zero if p.zero_point.any() else None
        )

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
        self.native.unpack(codes.view(np.uint8))
        return QuantizedTensor.from_codes(np.ascontiguousarray(codes.T), self.params)

    def __reduce__(self) -> tuple[Any, ...]:
        return PackedMatrix, (self.to_tensor(),)

    def __repr__(self) -> str:
        return f"PackedMatrix({self.shape}, {self.dtype})"


def prepack(b: QuantizedTensor, transpose: bool = False) -> PackedMatrix:
    """b [k, n], or [n, k] with `transpose`, arranged once for many products.

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


def matmul_integer(
    a: npt.ArrayLike, b: npt.ArrayLike | PackedMatrix, a_zero_point: Any = 0, b_zero_point: Any = 0
) -> Array:
    """sum over k of (a - za) * (b - zb), exactly: int32, or int64 for a k past 33,025, where int32 might not hold it.

    a [..., m, k] and b [..., k, n] of int8 or uint8; leading dimensions broadcast. Zero points: one number, or one a
    row of a, or one a column of b. A PackedMatrix has its own.

    >>> matmul_integer(np.uint8([[255, 1]]), np.int8([[-128], [2]]), 1, 0)
    array([[-32512]], dtype=int32)
    """
    left = _codes("a", a)
    if isinstance(b, PackedMatrix):
        if left.shape[-1] != b.shape[0]:
            raise InvalidProblem(f"a: {left.shape[-1]} columns; b has {b.shape[0]} rows")
        rows = zero_points("a_zero_point", a_zero_point, left, left.shape[-2])
        return _multiply_rows(left, rows, b.native)
    right = _codes("b", b)
    if left.shape[-1] != right.shape[-2]:
        raise InvalidProblem(f"a: {left.shape[-1]} columns; b has {right.shape[-2]} rows")
    za = zero_points("a_zero_point", a_zero_point, left, left.shape[-2])
    zb = zero_points("b_zero_point", b_zero_point, right, right.shape[-1])
    if right.ndim == 2:
        return _multiply_rows(left, za, _packed(right, zb))
    batch = _batch(left, right)
    out = np.empty((*batch, left.shape[-2], right.shape[-1]), sum_dtype(left.shape[-1]))
    lefts, rights = np.broadcast_to(left, batch + left.shape[-2:]), np.broadcast_to(right, batch + right.shape[-2:])
    for index in np.ndindex(batch):
        out[index] = _multiply_rows(np.ascontiguousarray(lefts[index]), za, _packed(rights[index], zb))
    return out


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

    a [..., m, k], one scale, or one a row where it has two dimensions; b [..., k, n], one scale or one a column, or a
    PackedMatrix. transpose_a and transpose_b swap the last two dimensions first. a may be floats: each row is then
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
    if type(b) is PackedMatrix and bias is None and type(a) is QuantizedTensor:
        # The call that repeats: everything but the kernel was settled the first time.
        key = id(a.params), id(out_params), out_dtype, activation, clamp, transpose_a or transpose_b
        try:
            ready = b._settled.get(key)
        except TypeError:  # a list cannot be a key
            ready = None
        if ready is not None and a.shape[-1] == b.shape[0] and a.data.flags.c_contiguous and a.data.ndim == 2:
            _, _, epilogue, finish, signed, za = ready
            y, memory = epilogue.empty((a.shape[0], b.shape[1]))
            core.multiply(a.data, signed, a.shape[0], za, b.native, finish, memory, False)
            return cast("Array | QuantizedTensor", epilogue.wrap(y))
    if not isinstance(b, PackedMatrix):
        require_tensor("b", b, "or a PackedMatrix; quantize floats first, lb.quantize(b, axis=1)")
    left = _Left.of(a, transpose_a)
    if isinstance(b, PackedMatrix):
        if transpose_b:
            raise InvalidProblem("transpose_b: True; a PackedMatrix was transposed when it was packed")
    else:
        _require_matrix("b", b.shape)
        b = _transposed(b) if transpose_b else b
    k, n = left.shape[-1], b.shape[-1]
    if b.shape[-2] != k:
        raise InvalidProblem(f"a: {k} columns; b has {b.shape[-2]} rows")
    epilogue = Epilogue.of(n, bias, out_params, out_dtype, activation, clamp, any_codes=True)
    batch = _batch(left, b)
    epilogue.require_shape((*batch, left.shape[-2], n))
    tensor = left.folded() if len(b.shape) == 2 else None
    if tensor is None:
        right = b.to_tensor() if isinstance(b, PackedMatrix) else b
        return epilogue.wrap(_by_batch(left, right, epilogue, batch))
    path = path_of(tensor.params, b.params)
    if isinstance(b, PackedMatrix) and path == "integer":
        plain = bias is None and not transpose_a and tensor is a and epilogue.then is None
        if plain and tensor.params.axis is None and not tensor.dtype.is_packed:
            _settle(b, tensor.params, out_params, epilogue, (out_dtype, activation, clamp))
        y = _integer(tensor, b, epilogue)
    else:
        y = _PATHS[path](tensor, b.to_tensor() if isinstance(b, PackedMatrix) else b, epilogue)
    return epilogue.wrap(y.reshape(*left.shape[:-1], n))


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


def multiply_into(
    path: str, a: QuantizedTensor, b: QuantizedTensor | PackedMatrix, epilogue: Epilogue, out: Array
) -> None:
    """a [m, k] by b [k, n] on this path, into `out` [m, n]. For callers who have made all of qmatmul's checks."""
    if isinstance(b, PackedMatrix):
        if path == "integer":
            _integer(a, b, epilogue, out)
            return
        b = b.to_tensor()
    _PATHS[path](a, b, epilogue, out)


# ---- paths: into `out` where it is given ----------------------------------------------------------------------------


def _integer(a: QuantizedTensor, b: PackedMatrix, epilogue: Epilogue, out: Array | None = None) -> Array:
    codes = np.ascontiguousarray(a.unpack())
    rows, k = math.prod(a.shape[:-1]), a.shape[-1]
    finish, signed, za = settled(a.params, b.params, k, epilogue)
    y, memory = epilogue.empty((*a.shape[:-1], b.shape[1]), out)
    if finish is not None:
        core.multiply(codes, signed, rows, za, b.native, finish, memory, False)
        return y
    sa, sb = a.params.scale.astype(F32), b.params.scale.astype(F32)
    codes, target = codes.reshape(rows, k), y.reshape(rows, b.shape[1])
    for part in row_pieces(target.shape):
        acc = np.empty((part.stop - part.start, b.shape[1]), np.int64)
        own = za if za.size == 1 else za[part]
        core.multiply(codes[part], signed, len(acc), own, b.native, SUMS, acc, True)
        epilogue.scale_sums(acc, sa[part] if sa.ndim else sa, sb, target[part])
    return y


def settled(
    a: QuantizationParams, b: QuantizationParams, k: int, epilogue: Epilogue
) -> tuple[core.Epilogue | None, bool, Array]:
    """What one native call on the integer path needs beside codes: what becomes of the sums (None: NumPy's business),
    whether a is signed, and its zero points."""
    finish = epilogue.native(a.scale.astype(F32), b.scale.astype(F32), k)
    return finish, a.dtype.is_signed, np.ascontiguousarray(a.zero_point.reshape(-1), np.int32)


def _settle(
    b: PackedMatrix, a: QuantizationParams, out: QuantizationParams | None, epilogue: Epilogue, options: tuple[Any, ...]
) -> None:
    """Remembers what was checked for calls with these very params; it holds on to them, so that ids stay theirs."""
    try:
        hash(options)
    except TypeError:
        return
    ready = settled(a, b.params, b.shape[0], epilogue)
    if ready[0] is None:
        return
    remember(b._settled, (id(a), id(out), *options, False), (a, out, epilogue, *ready))


def _bytes(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None = None) -> Array:
    return _integer(a, PackedMatrix(b), epilogue, out)


def _groups(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None = None) -> Array:
    bias = float_bias(epilogue, "groups")
    return multiply_groups(a, pack_groups(_transposed(b)), epilogue, bias, out)


def multiply_groups(
    a: QuantizedTensor, b: core.PackedGroups, epilogue: Epilogue, bias: Array | None, out: Array | None = None
) -> Array:
    """a [m, k] of signed codes without zero points by packed groups. bias: the epilogue's, or what it is as floats."""
    m, codes = a.shape[0], np.ascontiguousarray(a.unpack())
    sa = np.ascontiguousarray(np.broadcast_to(a.params.scale.astype(F32).reshape(-1), m))
    finish = epilogue.native_float()
    y, memory = epilogue.empty((m, b.n), out)
    if finish is not None:
        core.multiply_groups(codes, m, sa, b, finish, memory)
        return y
    plain = cast(Any, Epilogue.of(b.n).native_float())
    for part in row_pieces(y.shape):
        sums = np.empty((part.stop - part.start, b.n), F32)
        core.multiply_groups(codes[part], len(sums), sa[part], b, plain, sums)
        epilogue.narrow(sums, bias, y[part])
    return y


def _blocks(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None = None) -> Array:
    bias = float_bias(epilogue, "blocks")
    left, right, p = a.unpack(), b.unpack(), b.params
    assert p.group_size is not None
    za, sa = a.params.zero_point, a.params.scale.astype(F32)
    y = np.zeros((a.shape[0], b.shape[1]), F32)
    for g in range(p.scale.shape[0]):
        part = slice(g * p.group_size, (g + 1) * p.group_size)
        sums = matmul_integer(np.ascontiguousarray(left[:, part]), right[part], za, p.zero_point[g])
        y += sums.astype(F32) * p.scale[g].astype(F32)
    y *= sa[:, None] if sa.ndim else sa
    return epilogue.narrow(y, bias, out)


def _integer16(a: QuantizedTensor, b: QuantizedTensor, epilogue: Epilogue, out: Array | None = None) -> Array:
    acc = np.zeros((a.shape[0], b.shape[1]), np.int64)
    for left, za, by_left in in_bytes(a.unpack(), a.params.zero_point):
        for right, zb, by_right in in_bytes(b.unpack(), b.params.zero_point):
            acc += matmul_integer(left, right, za, zb).astype(np.int64) * (by_left * by_right)
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
    acc = binary.matmul(left, binary.prepack(right, k), k)
    return epilogue.scale_sums(acc, a.params.scale.astype(F32), b.params.scale.astype(F32), out)


_PATHS = {
    "integer": _bytes, "groups": _groups, "blocks": _blocks, "integer16": _integer16, "general": _general,
    "binary": _binary,
}  # fmt: skip


def pack_groups(weight: QuantizedTensor) -> core.PackedGroups:
    """[n, k] of 4 or 2 bits in blocks along k, arranged as the kernels read it."""
    p, (n, k) = weight.params, weight.shape
    assert p.group_size is not None
    up = -p.dtype.qmin  # kernels have codes from 0 on
    codes = (weight.unpack().astype(np.int16) + up).astype(np.uint8)
    zero = (p.zero_point + up).astype(np.uint8)
    same = bool((zero == up).all())
    scale = np.ascontiguousarray(p.scale, F32)
    return core.pack_groups(codes, k, n, p.dtype.bits, p.group_size, scale, None if same else zero, up)


# ---- pieces ---------------------------------------------------------------------------------------------------------


class _Left(NamedTuple):
    """The left side, [..., m, k]: a tensor, or floats quantized row by row, with codes [..., m, k], scales [..., m]."""

    tensor: QuantizedTensor | None
    codes: Array
    scale: Array
    shape: tuple[int, ...]

    @classmethod
    def of(cls, a: Any, transpose: bool) -> _Left:
        if isinstance(a, QuantizedTensor):
            _require_matrix("a", a.shape)
            tensor = _transposed(a) if transpose else a
            return cls(tensor, _NONE, _NONE, tensor.shape)
        floats = float_operand("a", a, "which are quantized by row")
        _require_matrix("a", floats.shape)
        x = floats.widened()
        x = np.ascontiguousarray(np.swapaxes(x, -1, -2)) if transpose else x
        if not x.size:
            return cls(None, np.zeros(x.shape, np.int8), np.ones(x.shape[:-1], F32), x.shape)
        q = quantize(x, axis=-1, group_size=x.shape[-1], name="a")
        return cls(None, q.data, q.params.scale.astype(F32).reshape(x.shape[:-1]), x.shape)

    def folded(self) -> QuantizedTensor | None:
        """One matrix of all rows, for one matrix b; None where they do not share their scales."""
        if self.tensor is None:
            return _of_rows(self.codes.reshape(self.scale.size, self.shape[-1]), self.scale.reshape(-1))
        t = self.tensor
        if t.ndim == 2:
            return t
        try:
            return t.reshape(math.prod(t.shape[:-1]), t.shape[-1])
        except InvalidProblem:
            return None

    def numbers(self) -> Array:
        """What the codes stand for, in float64."""
        if self.tensor is not None:
            return self.tensor.dequantize(dtype=np.float64)
        return self.codes.astype(np.float64) * self.scale[..., None]

    def matrices(self, batch: tuple[int, ...]) -> Callable[[tuple[int, ...]], QuantizedTensor]:
        """What gives the matrix at each index of the batch."""
        if self.tensor is not None:
            return _matrices(self.tensor, batch)
        codes = np.broadcast_to(self.codes, batch + self.shape[-2:])
        scale = np.broadcast_to(self.scale, (*batch, self.shape[-2]))
        return lambda index: _of_rows(np.ascontiguousarray(codes[index]), scale[index])


_NONE = np.empty(0, np.int8)


def _of_rows(codes: Array, scale: Array) -> QuantizedTensor:
    """int8 codes [m, k] with a scale for each row."""
    return QuantizedTensor._trusted(codes, QuantizationParams("int8", "symmetric", scale, axis=0), codes.shape)


def _by_batch(left: _Left, b: QuantizedTensor, epilogue: Epilogue, batch: tuple[int, ...]) -> Array:
    """b has leading dimensions, or a has scales of its own for some of its: a product for each."""
    out, _ = epilogue.empty((*batch, left.shape[-2], b.shape[-1]))
    if any(t is not None and _across_matrices(t) for t in (left.tensor, b)):
        bias, rows = float_bias(epilogue, "general"), (math.prod(out.shape[:-1]), b.shape[-1])
        with np.errstate(over="ignore"):
            floats = np.matmul(left.numbers(), b.dequantize(dtype=np.float64)).astype(F32)
        epilogue.narrow(floats.reshape(rows), bias, out.reshape(rows))
        return out
    lefts, rights = left.matrices(batch), _matrices(b, batch)
    for index in np.ndindex(batch):
        x, y = lefts(index), rights(index)
        out[index] = _PATHS[path_of(x.params, y.params)](x, y, epilogue)
    return out


def _across_matrices(t: QuantizedTensor) -> bool:
    """Whether a matrix of the batch is no tensor by itself: blocks or mixed channels lie along a leading dimension."""
    p = t.params
    leading = p.axis is not None and p.axis % t.ndim < t.ndim - 2
    return leading and (p.group_size is not None or p.dtype.is_mixed)


def _matrices(t: QuantizedTensor, batch: tuple[int, ...]) -> Callable[[tuple[int, ...]], QuantizedTensor]:
    """What gives the matrix at each index of the batch, with the scales it has there."""
    codes, lead = t.unpack(), t.shape[:-2]

    def at(index: tuple[int, ...]) -> QuantizedTensor:
        own = tuple(i if size > 1 else 0 for i, size in zip(index[len(batch) - len(lead) :], lead, strict=True))
        return QuantizedTensor.from_codes(codes[own], sliced(t.params, t.shape, own).params)

    return at


def float_bias(epilogue: Epilogue, path: str) -> Array | None:
    """The bias, for paths whose sums are floats: groups, blocks, general."""
    if epilogue.bias is not None and epilogue.bias.dtype.kind == "i":
        raise Unsupported(f"bias: integers; on the {path} path there is no integer sum to add them to")
    return epilogue.bias


def _packed(b: Array, zero: Array) -> core.PackedMatrix:
    k, n = b.shape
    turned = not b.flags.c_contiguous and b.T.flags.c_contiguous
    codes = b.T if turned else np.ascontiguousarray(b)
    return core.pack_matrix(codes, b.dtype == np.int8, k, n, turned, zero)


def _multiply_rows(a: Array, zero: Array, b: core.PackedMatrix) -> Array:
    """a [..., m, k] by one matrix. Zero points of rows repeat for each leading index."""
    rows = math.prod(a.shape[:-1])
    if zero.size != 1 and a.ndim > 2:
        zero = np.tile(zero, rows // zero.size if zero.size else 0)
    out = np.empty((*a.shape[:-1], b.n), sum_dtype(a.shape[-1]))
    core.multiply(np.ascontiguousarray(a), a.dtype == np.int8, rows, zero, b, SUMS, out, False)
    return out


def _codes(name: str, value: Any) -> Array:
    refuse_masked(name, value)
    array = np.asarray(value)
    if array.dtype not in BYTES:
        raise UnsupportedDType(f"{name}: {array.dtype}; expected int8 or uint8")
    if array.ndim < 2:
        raise InvalidProblem(f"{name}: shape {array.shape}; expected at least two dimensions")
    return array


def _batch(a: Any, b: Any) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise InvalidProblem(
            f"a: leading dimensions {a.shape[:-2]} do not broadcast with b's, {b.shape[:-2]}"
        ) from None


def _require_matrix(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) < 2:
        raise InvalidProblem(f"{name}: shape {shape}; expected at least two dimensions")


def _transposed(t: QuantizedTensor) -> QuantizedTensor:
    """The last two dimensions swapped, scales with them."""
    p, ndim = t.params, t.ndim
    axes = (*range(ndim - 2), ndim - 1, ndim - 2)
    if p.axis is not None:
        p = p.replace(axis=axes[p.axis % ndim])
        if p.group_size is not None:
            p = p.replace(scale=np.swapaxes(p.scale, -1, -2), zero_point=np.swapaxes(p.zero_point, -1, -2))
    return QuantizedTensor.from_codes(np.ascontiguousarray(np.swapaxes(t.unpack(), -1, -2)), p)
