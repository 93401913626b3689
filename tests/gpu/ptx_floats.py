"""Floating-point instructions, with one rounding each and PTX's rules for NaN and signed zeros.

Approximate forms (div.full, ex2.approx, .ftz) are not here on purpose: a kernel that has one must fault.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from gpu.ptx_conversions import as_f64, bf16_to_f32, canonical, directed, narrow, quiet
from gpu.ptx_integers import Form
from gpu.ptx_registers import Array

__all__ = ["FLOATS", "MAY_CONTRACT", "THREE_INPUTS", "TWO_RESULTS", "fused_f32", "to_odd_sum"]


def to_odd_sum(a: Array, b: Array) -> Array:
    """a + b in f64, rounded to odd: rounding it once more, to 51 bits or fewer, gives what one rounding would."""
    with np.errstate(all="ignore"):
        total = a + b
        part = total - a
        error = (a - (total - part)) + (b - part)
        inexact = np.isfinite(total) & np.isfinite(error) & (error != 0) & (total.view(np.uint64) & np.uint64(1) == 0)
        towards = np.where(error > 0, np.inf, -np.inf)
        return np.where(inexact, np.nextafter(total, towards), total)


def fused_f32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c with one rounding: the product of two f32 is exact in f64, the sum is rounded to odd."""
    with np.errstate(all="ignore"):
        return canonical(to_odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)).astype("f4"))


def _fused_f64(a: Array, b: Array, c: Array) -> Array:
    """Exact rationals, a lane at a time."""
    with np.errstate(all="ignore"):
        plain = a * b + c
    out = plain.copy()
    for i, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        if math.isfinite(x) and math.isfinite(y) and math.isfinite(z):
            exact = Fraction(x) * Fraction(y) + Fraction(z)
            try:
                out[i] = float(exact) if exact else plain[i]
            except OverflowError:
                out[i] = math.inf if exact > 0 else -math.inf
    return out


def _least(a: Array, b: Array) -> Array:
    """The number where the other is NaN; -0 is less than +0."""
    word = np.dtype(f"u{a.dtype.itemsize}")
    zero = (a.view(word) | b.view(word)).view(a.dtype)
    return np.where(a == b, zero, np.fmin(a, b))


def _greatest(a: Array, b: Array) -> Array:
    word = np.dtype(f"u{a.dtype.itemsize}")
    zero = (a.view(word) & b.view(word)).view(a.dtype)
    return np.where(a == b, zero, np.fmax(a, b))


def _nan_wins(best: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    return lambda a, b: np.where(np.isnan(a) | np.isnan(b), a.dtype.type(np.nan), best(a, b))


def _of_three(best: Callable[[Array, Array], Array]) -> Callable[[Array, Array, Array], Array]:
    return lambda a, b, c: canonical(best(best(a, b), c))


def _pairs(kind: str, function: Callable[..., Array]) -> Callable[..., Array]:
    """An f32 or f64 function on both halves of packed registers: f32x2, f16x2, bf16x2."""
    half = kind[:-2]

    def run(*sources: Array) -> Array:
        parts = [s.view(np.uint32 if half == "f32" else np.uint16) for s in sources]
        if half == "f32":
            return function(*(p.view(np.float32) for p in parts)).view(np.uint64)
        return narrow(half, function(*(as_f64(half, p) for p in parts))).view(np.uint32)

    return run


def _rounded_elsewhere() -> Iterator[tuple[str, Form]]:
    """Directions other than the nearest; lowbit's kernels have none, and mutations of them do."""
    exact: dict[str, Callable[..., Array]] = {
        "add": to_odd_sum, "sub": lambda a, b: to_odd_sum(a, -b), "mul": operator.mul, "div": operator.truediv,
    }  # fmt: skip
    for mode in ("rz", "rm", "rp"):
        for name, function in exact.items():
            both = directed(mode, lambda x: x.astype(np.float32), function)
            yield f"{name}.{mode}.f32", Form("f32", ("f32", "f32"), quiet(both, canonical))
            if name != "div":
                yield f"{name}.{mode}.f32x2", Form("f32x2", ("f32x2", "f32x2"), _pairs("f32x2", quiet(both, canonical)))


_TESTS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge, "neu": operator.ne,
    "ne": lambda a, b: (a != b) & ~np.isnan(a) & ~np.isnan(b), "equ": lambda a, b: (a == b) | np.isnan(a) | np.isnan(b),
    "ltu": lambda a, b: ~(a >= b), "leu": lambda a, b: ~(a > b), "gtu": lambda a, b: ~(a <= b),
    "geu": lambda a, b: ~(a < b), "num": lambda a, b: ~np.isnan(a) & ~np.isnan(b),
    "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip


def _compared(kind: str, test: Callable[[Any, Any], Any], join: Callable[[Any, Any], Any] | None) -> Callable[..., Any]:
    def compare(a: Array, b: Array, *p: Array) -> Any:
        found = test(bf16_to_f32(a), bf16_to_f32(b)) if kind == "bf16" else test(a, b)
        return join(found, p[0]) if join else found

    return compare


def _comparisons() -> Iterator[tuple[str, Form]]:
    joins = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
    for kind in ("f16", "bf16", "f32", "f64"):
        for name, test in _TESTS.items():
            yield f"setp.{name}.{kind}", Form("pred", (kind, kind), _compared(kind, test, None))
            for how, join in joins.items():
                yield f"setp.{name}.{how}.{kind}", Form("pred", (kind, kind, "pred"), _compared(kind, test, join))


def _of_halves(kind: str, test: Callable[[Any, Any], Any]) -> Callable[[Array, Array], tuple[Any, Any]]:
    """setp.num.f16x2 p|q, a, b: p for the low halves, q for the high ones."""

    def compare(a: Array, b: Array) -> tuple[Any, Any]:
        (low_a, high_a), (low_b, high_b) = (as_f64(kind, x.view(np.uint16)).reshape(-1, 2).T for x in (a, b))
        return test(low_a, low_b), test(high_a, high_b)

    return compare


def _arithmetic() -> Iterator[tuple[str, Form]]:
    for kind, finish in (("f32", canonical), ("f64", lambda x: x)):
        two = (kind, kind)
        for name, function in (("add", operator.add), ("sub", operator.sub), ("mul", operator.mul)):
            yield f"{name}.rn.{kind}", Form(kind, two, quiet(function, finish))
        yield f"div.rn.{kind}", Form(kind, two, quiet(operator.truediv, finish))
        yield f"sqrt.rn.{kind}", Form(kind, (kind,), quiet(np.sqrt, finish))
        yield f"neg.{kind}", Form(kind, (kind,), operator.neg)
        yield f"abs.{kind}", Form(kind, (kind,), np.abs)
        yield f"min.{kind}", Form(kind, two, quiet(_least, finish))
        yield f"max.{kind}", Form(kind, two, quiet(_greatest, finish))
        yield f"fma.rn.{kind}", Form(kind, (*two, kind), fused_f32 if kind == "f32" else _fused_f64)
    for name, best in (("min", _least), ("max", _greatest)):
        yield f"{name}.NaN.f32", Form("f32", ("f32", "f32"), quiet(_nan_wins(best), canonical))
    for kind in ("f32x2", "f16x2", "bf16x2"):
        fused = fused_f32 if kind == "f32x2" else lambda a, b, c: to_odd_sum(a * b, c)
        for name, function in (("add", operator.add), ("sub", operator.sub), ("mul", operator.mul)):
            odd = {"add": to_odd_sum, "sub": lambda a, b: to_odd_sum(a, -b), "mul": function}[name]
            run = quiet(function, canonical) if kind == "f32x2" else odd
            yield f"{name}.rn.{kind}", Form(kind, (kind, kind), _pairs(kind, run))
        yield f"fma.rn.{kind}", Form(kind, (kind, kind, kind), _pairs(kind, fused))


FLOATS: dict[str, Form] = dict([*_arithmetic(), *_comparisons(), *_rounded_elsewhere()])
TWO_RESULTS: dict[str, Callable[[Array, Array], tuple[Any, Any]]] = {
    f"setp.{name}.{kind}x2": _of_halves(kind, test) for name, test in _TESTS.items() for kind in ("f16", "bf16")
}
# Without .rn the assembler may contract a product and a sum to one: known only where a test asks for them.
MAY_CONTRACT: dict[str, Form] = {
    f"{name}.{kind}": FLOATS[f"{name}.rn.{kind}"] for name in ("add", "sub", "mul") for kind in ("f32", "f64", "f32x2")
}
THREE_INPUTS: dict[str, Form] = {
    f"{name}.f32": Form("f32", ("f32", "f32", "f32"), _of_three(best))
    for name, best in (("min", _least), ("max", _greatest))
}
