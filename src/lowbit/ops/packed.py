"""Weights packed once for many products."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.epilogue import Epilogue
from lowbit.ops.operands import BYTES, F32, Frozen, multiplies_as_bytes, require_tensor
from lowbit.runtime.cache import Cache
from lowbit.runtime.native import core


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

    def plan(self, a: QuantizationParams, epilogue: Epilogue) -> core.GemmPlan | None:
        """The native plan for a left side of these params; None where NumPy applies the epilogue.

        A plan whose epilogue has no bias is cached; the cache holds its key's objects, so that their ids stay theirs.
        """
        if epilogue.bias is not None:
            return gemm_plan(a, self, epilogue)
        plan: core.GemmPlan | None
        plan, _, _ = self._calls.find((id(a), id(epilogue)), lambda: (gemm_plan(a, self, epilogue), a, epilogue))
        return plan


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
