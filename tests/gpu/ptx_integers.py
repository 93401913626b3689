"""Integer, bit and predicate instructions: each full name, with all modifiers, and what it does to NumPy arrays."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu.ptx_registers import BITS, NUMPY, Array

__all__ = ["INTEGERS", "Form", "byte_permute", "dot_bytes"]


@dataclass(frozen=True)
class Form:
    """result = function(*sources), with the types they are read and written as.

    wider: PTX lets registers be wider than these types (cvt only).
    """

    result: str
    sources: tuple[str, ...]
    function: Callable[..., Any]
    wider: bool = False


_WIDER = {"s16": np.int32, "u16": np.uint32, "s32": np.int64, "u32": np.uint64}


def _high(kind: str) -> Callable[[Array, Array], Array]:
    def high(a: Array, b: Array) -> Array:
        wide = a.astype(_WIDER[kind]) * b.astype(_WIDER[kind])
        return (wide >> BITS[kind]).astype(NUMPY[kind])

    return high


def _high64(kind: str) -> Callable[[Array, Array], Array]:
    def high(a: Array, b: Array) -> Array:
        return np.array([(int(x) * int(y)) >> 64 for x, y in zip(a, b, strict=True)], NUMPY[kind])

    return high


def _wide(kind: str) -> Callable[..., Array]:
    def wide(a: Array, b: Array, *c: Array) -> Array:
        product = a.astype(_WIDER[kind]) * b.astype(_WIDER[kind])
        return product + c[0] if c else product

    return wide


def _quotient(a: Array, b: Array) -> Array:
    """Towards zero; by zero gives all ones, as the hardware does."""
    with np.errstate(all="ignore"):
        safe = np.where(b == 0, 1, b).astype(a.dtype)
        found = a // safe
        found = found + ((a % safe != 0) & ((a < 0) != (safe < 0))).astype(a.dtype)
    return np.where(b == 0, np.array(-1).astype(a.dtype), found).astype(a.dtype)


def _remainder(a: Array, b: Array) -> Array:
    return (a - _quotient(a, b) * b).astype(a.dtype)


def _shift_left(a: Array, by: Array) -> Array:
    """Amounts past the width give 0."""
    width = a.dtype.itemsize * 8
    return np.where(by >= width, 0, a << np.minimum(by, width - 1).astype(a.dtype)).astype(a.dtype)


def _shift_right(a: Array, by: Array) -> Array:
    """Amounts past the width give 0, or the sign everywhere."""
    width = a.dtype.itemsize * 8
    moved = a >> np.minimum(by, width - 1).astype(a.dtype)
    return moved if a.dtype.kind == "i" else np.where(by >= width, 0, moved).astype(a.dtype)


def _funnel(side: str, clamp: bool) -> Callable[[Array, Array, Array], Array]:
    def funnel(low: Array, high: Array, by: Array) -> Array:
        amount = np.minimum(by, 32).astype(np.uint64) if clamp else (by & 31).astype(np.uint64)
        both = (high.astype(np.uint64) << np.uint64(32)) | low
        moved = (both << amount) >> np.uint64(32) if side == "l" else both >> amount
        return moved.astype(np.uint32)

    return funnel


def _extract(kind: str) -> Callable[[Array, Array, Array], Array]:
    bits = BITS[kind]

    def extract(a: Array, start: Array, length: Array) -> Array:
        """bfe: `length` bits from `start` on, extended with the sign bit of the field, or of the word at its end."""
        out = np.zeros_like(a)
        for i, (word, first, count) in enumerate(zip(a.tolist(), start.tolist(), length.tolist(), strict=True)):
            first, count, word = first & 255, count & 255, word & ((1 << bits) - 1)
            value = (word >> first) & ((1 << count) - 1)
            sign = kind[0] == "s" and count and (word >> min(first + count - 1, bits - 1)) & 1
            value = value | (-1 << min(count, max(bits - first, 0))) if sign else value
            out[i] = np.array(value & ((1 << bits) - 1), f"u{bits // 8}").view(a.dtype)
        return out

    def same_field(a: Array, start: Array, length: Array) -> Array:
        """The usual case, one field for all lanes and inside the word: two shifts."""
        first, count = int(start[0]) & 255, int(length[0]) & 255
        if count == 0 or first + count > bits or (start != start[0]).any() or (length != length[0]).any():
            return extract(a, start, length)
        return (a << a.dtype.type(bits - first - count)) >> a.dtype.type(bits - count)

    return same_field


def _insert(field: Array, into: Array, start: Array, length: Array) -> Array:
    """bfi: the low `length` bits of `field` in place of those of `into` from `start` on."""
    bits = into.dtype.itemsize * 8
    first, count = (start & 255).astype(np.uint64), np.minimum(length & 255, bits).astype(np.uint64)
    ones = np.where(count >= 64, ~np.uint64(0), (np.uint64(1) << np.minimum(count, 63)) - np.uint64(1))
    mask = np.where(first >= bits, np.uint64(0), ones << np.minimum(first, 63))
    moved = np.where(first >= bits, np.uint64(0), field.astype(np.uint64) << np.minimum(first, 63))
    return ((into & ~mask) | (moved & mask)).astype(into.dtype)


def byte_permute(a: Array, b: Array, selector: Array) -> Array:
    """prmt: byte i of the result is the byte of {b, a} that nibble i of the selector names; bit 3 spreads its sign."""
    both = (b.astype(np.uint64) << np.uint64(32)) | a
    out = np.zeros_like(a)
    for i in range(4):
        nibble = (selector >> np.uint32(4 * i)) & np.uint32(15)
        byte = ((both >> ((nibble & np.uint32(7)) * np.uint32(8)).astype(np.uint64)) & np.uint64(255)).astype(np.uint32)
        byte = np.where(nibble & np.uint32(8), np.where(byte & np.uint32(128), 255, 0), byte).astype(np.uint32)
        out |= byte << np.uint32(8 * i)
    return out


def _count_ones(a: Array) -> Array:
    bytes_of = np.ascontiguousarray(a).view(np.uint8).reshape(len(a), -1)
    return np.unpackbits(bytes_of, axis=1).sum(axis=1, dtype=np.uint32)


def _logic(a: Array, b: Array, c: Array, table: Array) -> Array:
    """lop3: bit (a, b, c) of the table, bit by bit."""
    out = np.zeros_like(a)
    for row in range(8):
        terms = (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        out |= np.where((table >> np.uint32(row)) & np.uint32(1), terms, 0).astype(a.dtype)
    return out


def dot_bytes(kind_a: str, kind_b: str) -> Callable[[Array, Array, Array], Array]:
    """dp4a: c + sum of four products of bytes, wrapping at 32 bits."""

    def dot(a: Array, b: Array, c: Array) -> Array:
        total = c.astype(np.int64)
        for i in range(4):
            byte_a = (a >> np.uint32(8 * i)).astype(np.uint8).view(NUMPY[kind_a]).astype(np.int64)
            byte_b = (b >> np.uint32(8 * i)).astype(np.uint8).view(NUMPY[kind_b]).astype(np.int64)
            total += byte_a * byte_b
        return total.astype(np.uint64).astype(np.uint32).view(c.dtype)

    return dot


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_UNSIGNED_COMPARE = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
_COMBINE = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def _compared(test: Callable[[Any, Any], Any], combine: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda a, b, p: combine(test(a, b), p)


def _forms() -> Iterator[tuple[str, Form]]:
    for kind in ("s16", "u16", "s32", "u32", "s64", "u64"):
        two = (kind, kind)
        yield f"add.{kind}", Form(kind, two, operator.add)
        yield f"sub.{kind}", Form(kind, two, operator.sub)
        yield f"mul.lo.{kind}", Form(kind, two, operator.mul)
        yield f"mul.hi.{kind}", Form(kind, two, _high(kind) if BITS[kind] < 64 else _high64(kind))
        yield f"mad.lo.{kind}", Form(kind, (*two, kind), lambda a, b, c: a * b + c)
        yield f"div.{kind}", Form(kind, two, _quotient)
        yield f"rem.{kind}", Form(kind, two, _remainder)
        yield f"min.{kind}", Form(kind, two, np.minimum)
        yield f"max.{kind}", Form(kind, two, np.maximum)
        yield f"shr.{kind}", Form(kind, (kind, "u32"), _shift_right)
        if BITS[kind] < 64:
            wide = f"{kind[0]}{BITS[kind] * 2}"
            yield f"mul.wide.{kind}", Form(wide, two, _wide(kind))
            yield f"mad.wide.{kind}", Form(wide, (*two, wide), _wide(kind))
        if kind[0] == "s":
            yield f"neg.{kind}", Form(kind, (kind,), operator.neg)
            yield f"abs.{kind}", Form(kind, (kind,), np.abs)
        tests = {**_COMPARE, **(_UNSIGNED_COMPARE if kind[0] == "u" else {})}
        for name, test in tests.items():
            yield f"setp.{name}.{kind}", Form("pred", two, test)
            for how, combine in _COMBINE.items():
                yield f"setp.{name}.{how}.{kind}", Form("pred", (*two, "pred"), _compared(test, combine))
    for kind in ("b16", "b32", "b64"):
        yield f"shl.{kind}", Form(kind, (kind, "u32"), _shift_left)
        yield f"shr.{kind}", Form(kind, (kind, "u32"), _shift_right)
        for name in ("eq", "ne"):
            yield f"setp.{name}.{kind}", Form("pred", (kind, kind), _COMPARE[name])
    for kind in ("pred", "b16", "b32", "b64"):
        for name, bitwise in _COMBINE.items():
            yield f"{name}.{kind}", Form(kind, (kind, kind), bitwise)
        yield f"not.{kind}", Form(kind, (kind,), operator.invert)
    for kind in ("b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"):
        yield f"selp.{kind}", Form(kind, (kind, kind, "pred"), lambda a, b, p: np.where(p, a, b))
    for kind in ("s32", "u32", "s64", "u64"):
        yield f"bfe.{kind}", Form(kind, (kind, "u32", "u32"), _extract(kind))
    for kind in ("b32", "b64"):
        yield f"bfi.{kind}", Form(kind, (kind, kind, "u32", "u32"), _insert)
    for side in "lr":
        yield f"shf.{side}.wrap.b32", Form("b32", ("b32", "b32", "u32"), _funnel(side, clamp=False))
        yield f"shf.{side}.clamp.b32", Form("b32", ("b32", "b32", "u32"), _funnel(side, clamp=True))
    for kind in ("b32", "b64"):
        yield f"popc.{kind}", Form("u32", (kind,), _count_ones)
    yield "prmt.b32", Form("b32", ("b32", "b32", "b32"), byte_permute)
    yield "lop3.b32", Form("b32", ("b32", "b32", "b32", "u32"), _logic)
    for a in ("s32", "u32"):
        for b in ("s32", "u32"):
            total = "s32" if "s32" in (a, b) else "u32"
            yield f"dp4a.{a}.{b}", Form(total, ("b32", "b32", total), dot_bytes(f"{a[0]}8", f"{b[0]}8"))


INTEGERS: dict[str, Form] = dict(_forms())
