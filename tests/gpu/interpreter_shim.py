"""What Triton's interpreter gets wrong or lacks, put right for tests: bfloat16, and inline assembly.

The interpreter holds bfloat16 as the uint16 of its bits. It truncates where it should round to it, and computes with
the bits as if they were integers. Here conversions round half to even, products of matrices go through float32, and any
other arithmetic on bfloat16 is an error: kernels widen first. Inline assembly runs as the NumPy function of its text.

It reaches into private classes, so Triton's version is pinned.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder, TensorHandle

Array = np.ndarray[Any, Any]
VERSION = "3.9.0"


def to_bfloat16(x: Array) -> Array:
    """The bits of float32 numbers rounded half to even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def dp4a(a: Array, b: Array, c: Array) -> Array:
    """c + the four products of the bytes of a and b."""
    a, b, c = (np.ascontiguousarray(v, np.int32) for v in np.broadcast_arrays(a, b, c))
    x, y = (v.view(np.int8).reshape(*v.shape, 4).astype(np.int32) for v in (a, b))
    return c + (x * y).sum(-1, dtype=np.int32)


ASSEMBLY: dict[str, Callable[..., Array]] = {"dp4a.s32.s32 $0, $1, $2, $3;": dp4a}


class _Call:
    def __init__(self, handles: list[TensorHandle]) -> None:
        self.handles = handles

    def get_result(self, i: int) -> TensorHandle:
        return self.handles[i]


def _inline_assembly(
    self: Any, text: str, constraints: str, values: list[Any], types: list[Any], pure: bool, pack: int
) -> _Call:
    out = ASSEMBLY[" ".join(text.split())](*(v.data for v in values))
    return _Call([TensorHandle(np.asarray(out), types[0].scalar)])


def install() -> None:
    """Once a process, before kernels are imported: Triton decides then whether it interprets them."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("these tests interpret kernels; run them in a process of their own with TRITON_INTERPRET=1")
    if triton.__version__ != VERSION:
        raise RuntimeError(f"triton {triton.__version__}; the shim was written for {VERSION}")
    if getattr(InterpreterBuilder, "lowbit_shim", False):
        return
    cast, fp_to_fp, dot = (
        InterpreterBuilder.cast_impl,
        InterpreterBuilder.create_fp_to_fp,
        InterpreterBuilder.create_dot,
    )
    binary, unary = InterpreterBuilder.binary_op, InterpreterBuilder.unary_op

    def converted(self: Any, src: Any, dst_type: Any, otherwise: Callable[[], Any]) -> Any:
        source, target = src.dtype.scalar, dst_type.scalar
        if source == target or tl.bfloat16 not in (source, target):
            return otherwise()
        if source == tl.bfloat16:
            wide = TensorHandle(from_bfloat16(src.data), tl.float32)
            return wide if target == tl.float32 else cast(self, wide, dst_type)
        if source not in (tl.float32, tl.float16):
            raise TypeError(f"{source} to bfloat16 would round twice; go through float32")
        return TensorHandle(to_bfloat16(src.data.astype(np.float32)), tl.bfloat16)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        return converted(self, src, dst_type, lambda: cast(self, src, dst_type))

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, mode: Any) -> Any:
        return converted(self, src, dst_type, lambda: fp_to_fp(self, src, dst_type, mode))

    def create_dot(self: Any, a: Any, b: Any, d: Any, *rest: Any) -> Any:
        a, b = (TensorHandle(from_bfloat16(v.data), tl.float32) if v.dtype == tl.bfloat16 else v for v in (a, b))
        return dot(self, a, b, d, *rest)

    def no_bfloat16(op: Any) -> Any:
        def checked(self: Any, *args: Any) -> Any:
            if any(getattr(a, "dtype", None) == tl.bfloat16 for a in args):
                raise TypeError("arithmetic on bfloat16; kernels widen to float32 first")
            return op(self, *args)

        return checked

    call, prepared = InterpretedFunction.__call__, set[str]()

    def call_device_function(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = self.fn.__module__
        if module.startswith("triton.") and module not in prepared:
            prepared.add(module)
            return call(self, *args, **kwargs)
        return self.rewrite()(*args, **kwargs)

    # A launch puts the interpreter's operations into triton.language, and the first call of one of Triton's own device
    # functions into what those import; doing it again at every call takes most of the time.
    InterpretedFunction.__call__ = call_device_function
    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_fp_to_fp = create_fp_to_fp
    InterpreterBuilder.create_dot = create_dot
    InterpreterBuilder.binary_op = no_bfloat16(binary)
    InterpreterBuilder.unary_op = no_bfloat16(unary)
    InterpreterBuilder.create_inline_asm = _inline_assembly
    InterpreterBuilder.lowbit_shim = True
