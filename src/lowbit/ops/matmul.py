"""Products of quantized matrices: integer sums, exact, then floats or codes of another scale.

Which path a pair of dtypes takes, and `path_of` says so:

- "integer": 8 bits and below on both sides. Integer dot products; below 8 bits codes are unpacked to bytes first.
- "groups": 4 or 2 bits in blocks along k, times int8 with a scale a row or for all. Unpacked in registers.
- "binary": bits on both sides. XNOR and popcount.
- "integer16": 16 bits on a side. Each is split in bytes, whose products are added in int64.
- "blocks": any other linear codes in blocks along k: an integer product a block, blocks added in order in float32.
- "general": logarithmic and mixed codes, and scales along k: products of the numbers they stand for, in float64.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from lowbit import _core
from lowbit.errors import InvalidProblem, Unsupported, UnsupportedDType
from lowbit.fields import refuse_masked
from lowbit.kernels import binary
from lowbit.ops.operands import BYTES, SUMS, multiplies_as_bytes, remember, require_tensor, sum_dtype, zero_points
from lowbit.ops.outcome import Outcome, row_pieces
from lowbit.params import QuantizationParams
from lowbit.tensor import QuantizedTensor

__all__ = [
    "PackedMatrix", "float_bias", "matmul_integer", "multiply_groups", "multiply_into", "pack_groups", "path_of",
    "prepack", "qmatmul", "settled",
]  # fmt: skip

Array = npt.NDArray[Any]
F32 = np.float32


class PackedMatrix:
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
        self.native = _core.pack_matrix(
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
    if b.params.block_size is not None or b.params.axis not in (None, 0 if transpose else 1, -2 if transpose else -1):
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
    a: QuantizedTensor,
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
    """a @ b: floats, or codes of `out_params` (int8 or uint8 with one scale), rounded once from exact sums.

    a [..., m, k], one scale, or one a row where it has two dimensions; b [..., k, n], one scale or one a column, or a
    PackedMatrix. transpose_a and transpose_b swap the last two dimensions first. bias [n]: integers are added to the
    sums; floats to the result, or before requantizing in steps of the sums. activation "relu", and clamp (least,
    greatest), speak of real numbers. Every dtype works; which path it takes, `path_of` says.

    >>> import lowbit as lb
    >>> a = lb.quantize(np.float32([[1, 2], [3, 4]]))
    >>> lb.qmatmul(a, a).round()
    array([[ 7., 10.],
           [15., 22.]], dtype=float32)
    >>> lb.qmatmul(a, a, out_params=lb.QuantizationParams("uint8", scale=0.5)).unpack()
    array([[14, 20],
           [30, 44]], dtype=uint8)
    """
    if type(b) is PackedMatrix and bias is None and type(a) is QuantizedTensor:
        # The call that repeats: everything but the kernel was settled the first time.
        ready = b._settled.get((id(a.params), id(out_params), out_dtype, activation, clamp, transpose_a or transpose_b))
        if ready is not None and a.shape[-1] == b.shape[0] and a.data.flags.c_contiguous and a.data.ndim == 2:
            _, _, outcome, finish, signed, za = ready
            y, memory = outcome.empty((a.shape[0], b.shape[1]))
            _core.multiply(a.data, signed, a.shape[0], za, b.native, finish, memory, False)
            return cast("Array | QuantizedTensor", outcome.wrap(y))
    require_tensor("a", a)
    if not isinstance(b, PackedMatrix):
        require_tensor("b", b)
    _require_matrix("a", a)
    if isinstance(b, PackedMatrix):
        if transpose_b:
            raise InvalidProblem("transpose_b: True; a PackedMatrix was transposed when it was packed")
    else:
        _require_matrix("b", b)
        b = _transposed(b) if transpose_b else b
    a = _transposed(a) if transpose_a else a
    k, n = a.shape[-1], b.shape[-1]
    if b.shape[-2] != k:
        raise InvalidProblem(f"a: {k} columns; b has {b.shape[-2]} rows")
    outcome = Outcome.of(n, bias, out_params, out_dtype, activation, clamp)
    path = path_of(a.params, b.params, a.ndim, len(b.shape))
    if isinstance(b, PackedMatrix):
        if path == "integer":
            if bias is None and not transpose_a and a.params.axis is None and not a.dtype.is_packed and a.ndim == 2:
                _settle(b, a.params, out_params, outcome, (out_dtype, activation, clamp))
            return _integer(a, b, outcome)
        b = b.to_tensor()
    assert isinstance(b, QuantizedTensor)
    if b.ndim > 2:
        return _by_batch(a, b, outcome)
    if a.ndim == 2 or path == "integer":
        return _PATHS[path](a, b, outcome)
    return _unfolded(_PATHS[path](_folded(a), b, outcome), (*a.shape[:-1], n))


def path_of(a: QuantizationParams, b: QuantizationParams, a_ndim: int = 2, b_ndim: int = 2) -> str:
    """The path qmatmul takes for these params; the module's docstring describes them.

    >>> from lowbit import QuantizationParams
    >>> path_of(QuantizationParams("uint8"), QuantizationParams("int4"))
    'integer'
    """
    linear = all(not (p.is_logarithmic or p.dtype.is_mixed) for p in (a, b))
    bits = a.dtype.is_binary + b.dtype.is_binary
    if not linear or bits == 1:
        return "general"
    by_row = a.axis is None or (a.block_size is None and a.axis % a_ndim == a_ndim - 2 and a_ndim == 2)
    by_column = b.axis is None or (b.block_size is None and b.axis % b_ndim == b_ndim - 1)
    if bits == 2:
        return "binary" if by_row and by_column else "general"
    if by_row and by_column:
        return "integer" if max(a.dtype.bits, b.dtype.bits) <= 8 else "integer16"
    if by_row and b.block_size is not None and b.axis is not None and b.axis % b_ndim == b_ndim - 2:
        signed = a.dtype.is_signed and a.dtype.bits <= 8 and not a.zero_point.any()
        low = b.dtype.bits in (2, 4)
        return "groups" if signed and low else "blocks" if max(a.dtype.bits, b.dtype.bits) <= 8 else "general"
    return "general"


def multiply_into(
    path: str, a: QuantizedTensor, b: QuantizedTensor | PackedMatrix, outcome: Outcome, out: Array
) -> None:
    """a [m, k] by b [k, n] on this path, into `out` [m, n]. For callers who have made all of qmatmul's checks."""
    if isinstance(b, PackedMatrix):
        if path == "integer":
            _integer(a, b, outcome, out)
            return
        b = b.to_tensor()
    _PATHS[path](a, b, outcome, out)


# ---- paths: into `out` where it is given ----------------------------------------------------------------------------


def _integer(
    a: QuantizedTensor, b: PackedMatrix, outcome: Outcome, out: Array | None = None
) -> Array | QuantizedTensor:
    codes = np.ascontiguousarray(a.unpack())
    rows, k = math.prod(a.shape[:-1]), a.shape[-1]
    finish, signed, za = settled(a.params, b.params, k, outcome)
    y, memory = outcome.empty((*a.shape[:-1], b.shape[1]), out)
    if finish is not None:
        _core.multiply(codes, signed, rows, za, b.native, finish, memory, False)
        return outcome.wrap(y)
    sa, sb = a.params.scale.astype(F32), b.params.scale.astype(F32)
    codes, target = codes.reshape(rows, k), y.reshape(rows, b.shape[1])
    for part in row_pieces(target.shape):
        acc = np.empty((part.stop - part.start, b.shape[1]), np.int64)
        own = za if za.size == 1 else za[part]
        _core.multiply(codes[part], signed, len(acc), own, b.native, SUMS, acc, True)
        outcome.general(acc, sa[part] if sa.ndim else sa, sb, target[part])
    return outcome.wrap(y)


def settled(
    a: QuantizationParams, b: QuantizationParams, k: int, outcome: Outcome
) -> tuple[_core.Finish | None, bool, Array]:
    """What one native call on the integer path needs beside codes: what becomes of the sums (None: NumPy's business),
    whether a is signed, and its zero points."""
    finish = outcome.finish(a.scale.astype(F32), b.scale.astype(F32), k)
    return finish, a.dtype.is_signed, np.ascontiguousarray(a.zero_point.reshape(-1), np.int32)


def _settle(
    b: PackedMatrix, a: QuantizationParams, out: QuantizationParams | None, outcome: Outcome, options: tuple[Any, ...]
) -> None:
    """Remembers what was checked for calls with these very params; it holds on to them, so that ids stay theirs."""
    try:
        hash(options)
    except TypeError:
        return
    ready = settled(a, b.params, b.shape[0], outcome)
    if ready[0] is None:
        return
    remember(b._settled, (id(a), id(out), *options, False), (a, out, outcome, *ready))


def _bytes(
    a: QuantizedTensor, b: QuantizedTensor, outcome: Outcome, out: Array | None = None
) -> Array | QuantizedTensor:
    return _integer(a, PackedMatrix(b), outcome, out)


def _groups(
    a: QuantizedTensor, b: QuantizedTensor, outcome: Outcome, out: Array | None = None
) -> Array | QuantizedTensor:
    bias = float_bias(outcome, "groups")
    return multiply_groups(a, pack_groups(_transposed(b)), outcome, bias, out)


def multiply_groups(
    a: QuantizedTensor, b: _core.PackedGroups, outcome: Outcome, bias: Array | None, out: Array | None = None
) -> Array | QuantizedTensor:
    """a [m, k] of signed codes without zero points by packed groups. bias: the outcome's, or what it is as floats."""
    m, codes = a.shape[0], np.ascontiguousarray(a.unpack())
    sa = np.ascontiguousarray(np.broadcast_to(a.params.scale.astype(F32).reshape(-1), m))
    finish = outcome.groups_finish()
    y, memory = outcome.empty((m, b.n), out)
    if finish is not None:
        _core.multiply_groups(codes, m, sa, b, finish, memory)
        return outcome.wrap(y)
    plain = cast(Any, Outcome.of(b.n).groups_finish())
    for part in row_pieces(y.shape):
        sums = np.empty((part.stop - part.start, b.n), F32)
        _core.multiply_groups(codes[part], len(sums), sa[part], b, plain, sums)
        outcome.from_floats(sums, bias, y[part])
    return outcome.wrap(y)


def _blocks(
    a: QuantizedTensor, b: QuantizedTensor, outcome: Outcome, out: Array | None = None
) -> Array | QuantizedTensor:
    bias = float_bias(outcome, "blocks")
    left, right, p = a.unpack(), b.unpack(), b.params
    assert p.block_size is not None
    za, sa = a.params.zero_point, a.params.scale.astype(F32)
    y = np.zeros((a.shape[0], b.shape[1]), F32)
    for g in range(p.scale.shape[0]):
        part = slice(g * p.block_size, (g + 1) * p.block_size)
        sums = matmul_integer(np.ascontiguousarray(left[:, part]), right[part], za, p.zero_point[g])
        y += sums.astype(F32) * p.scale[g].astype(F32)
    y *= sa[:, None] if sa.ndim else sa
    return outcome.from_floats(y, bias, out)


def _integer16(
    a: QuantizedTensor, b: QuantizedTensor, outcome: Outcome, out: Array | None = None
) -> Array | QuantizedTensor:
    acc = np.zeros((a.shape[0], b.shape[1]), np.int64)
    for left, by_left in _in_bytes(a.unpack()):
        for right, by_right in _in_bytes(b.unpack()):
            acc += matmul_integer(left, right).astype(np.int64) * (by_left * by_right)
    za, zb = a.params.zero_point.astype(np.int64), b.params.zero_point.astype(np.int64)
    k = a.shape[1]
    columns, rows = b.unpack().astype(np.int64).sum(0), a.unpack().astype(np.int64).sum(1)
    za = za[:, None] if za.ndim else za
    acc += k * za * zb - za * columns - rows[:, None] * zb
    return outcome.general(acc, a.params.scale.astype(F32), b.params.scale.astype(F32), out)


def _general(
    a: QuantizedTensor, b: QuantizedTensor, outcome: Outcome, out: Array | None = None
) -> Array | QuantizedTensor:
    bias = float_bias(outcome, "general")
    y = a.dequantize(dtype=np.float64) @ b.dequantize(dtype=np.float64)
    return outcome.from_floats(y.astype(F32), bias, out)


def _binary(
    a: QuantizedTensor, b: QuantizedTensor, outcome: Outcome, out: Array | None = None
) -> Array | QuantizedTensor:
    k = a.shape[1]
    left = np.packbits(a.unpack(), axis=1, bitorder="little")
    right = np.packbits(np.ascontiguousarray(b.unpack().T), axis=1, bitorder="little")
    acc = binary.matmul(left, binary.prepack(right, k), k)
    return outcome.general(acc, a.params.scale.astype(F32), b.params.scale.astype(F32), out)


_PATHS = {
    "integer": _bytes, "groups": _groups, "blocks": _blocks, "integer16": _integer16, "general": _general,
    "binary": _binary,
}  # fmt: skip


def pack_groups(weight: QuantizedTensor) -> _core.PackedGroups:
    """[n, k] of 4 or 2 bits in blocks along k, arranged as the kernels read it."""
    p, (n, k) = weight.params, weight.shape
    assert p.block_size is not None
    up = -p.dtype.qmin  # kernels have codes from 0 on
    codes = (weight.unpack().astype(np.int16) + up).astype(np.uint8)
    zero = (p.zero_point + up).astype(np.uint8)
    same = bool((zero == up).all())
    scale = np.ascontiguousarray(p.scale, F32)
    return _core.pack_groups(codes, k, n, p.dtype.bits, p.block_size, scale, None if same else zero, up)


# ---- pieces ---------------------------------------------------------------------------------------------------------


def _by_batch(a: QuantizedTensor, b: QuantizedTensor, outcome: Outcome) -> Array | QuantizedTensor:
    """b has leading dimensions: a product for each."""
    pa, pb = (_of_matrix(name, t) for name, t in (("a", a), ("b", b)))
    batch = _batch(a, b)
    left, right = a.unpack(), b.unpack()
    lefts, rights = np.broadcast_to(left, batch + left.shape[-2:]), np.broadcast_to(right, batch + right.shape[-2:])
    out = np.empty((*batch, left.shape[-2], right.shape[-1]), outcome.dtype)
    run = _PATHS[path_of(pa, pb)]
    for index in np.ndindex(batch):
        x, y = (QuantizedTensor.from_codes(m[index], p) for m, p in ((lefts, pa), (rights, pb)))
        one = run(x, y, outcome)
        out[index] = one.data if isinstance(one, QuantizedTensor) else one
    return outcome.wrap(out)


def _of_matrix(name: str, t: QuantizedTensor) -> QuantizationParams:
    """The params that each matrix of a batch has by itself."""
    p = t.params
    if p.axis is None:
        return p
    axis = p.axis % t.ndim - (t.ndim - 2)
    if axis < 0 or (p.block_size is not None and t.ndim > 2):
        raise Unsupported(f"{name}: scales along axis {p.axis} of {t.ndim} dimensions; expected the last two alike")
    return p.replace(axis=axis)


def float_bias(outcome: Outcome, path: str) -> Array | None:
    """The bias, for paths whose sums are floats: groups, blocks, general."""
    if outcome.bias is not None and outcome.bias.dtype.kind == "i":
        raise Unsupported(f"bias: integers; on the {path} path there is no integer sum to add them to")
    return outcome.bias


def _in_bytes(codes: Array) -> list[tuple[Array, int]]:
    """16-bit codes as bytes and what each counts; 8-bit ones as they are."""
    if codes.dtype.itemsize == 1:
        return [(codes, 1)]
    high = (codes >> 8).astype(np.int8 if codes.dtype == np.int16 else np.uint8)
    return [(high, 256), ((codes & 255).astype(np.uint8), 1)]


def _packed(b: Array, zero: Array) -> _core.PackedMatrix:
    k, n = b.shape
    turned = not b.flags.c_contiguous and b.T.flags.c_contiguous
    codes = b.T if turned else np.ascontiguousarray(b)
    return _core.pack_matrix(codes, b.dtype == np.int8, k, n, turned, zero)


def _multiply_rows(a: Array, zero: Array, b: _core.PackedMatrix) -> Array:
    """a [..., m, k] by one matrix. Zero points of rows repeat for each leading index."""
    rows = math.prod(a.shape[:-1])
    if zero.size != 1 and a.ndim > 2:
        zero = np.tile(zero, rows // zero.size if zero.size else 0)
    out = np.empty((*a.shape[:-1], b.n), sum_dtype(a.shape[-1]))
    _core.multiply(np.ascontiguousarray(a), a.dtype == np.int8, rows, zero, b, SUMS, out, False)
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


def _require_matrix(name: str, value: QuantizedTensor) -> None:
    if value.ndim < 2:
        raise InvalidProblem(f"{name}: shape {value.shape}; expected at least two dimensions")


def _transposed(t: QuantizedTensor) -> QuantizedTensor:
    """The last two dimensions swapped, scales with them."""
    p, ndim = t.params, t.ndim
    axes = (*range(ndim - 2), ndim - 1, ndim - 2)
    if p.axis is not None:
        p = p.replace(axis=axes[p.axis % ndim])
        if p.block_size is not None:
            p = p.replace(scale=np.swapaxes(p.scale, -1, -2), zero_point=np.swapaxes(p.zero_point, -1, -2))
    return QuantizedTensor.from_codes(np.ascontiguousarray(np.swapaxes(t.unpack(), -1, -2)), p)


def _folded(a: QuantizedTensor) -> QuantizedTensor:
    if a.params.axis is not None:
        raise Unsupported(f"a: scales along axis {a.params.axis} of {a.ndim} dimensions; expected one scale")
    return QuantizedTensor.from_codes(a.unpack().reshape(-1, a.shape[-1]), a.params)


def _unfolded(y: Array | QuantizedTensor, shape: tuple[int, ...]) -> Array | QuantizedTensor:
    if isinstance(y, QuantizedTensor):
        return QuantizedTensor._trusted(y.data.reshape(shape), y.params, shape)
    return y.reshape(shape)
