"""Conversions between types, and what all float instructions share: PTX's NaN, f16 and bf16, directed rounding.

A result that is NaN is the canonical one (f32 0x7fffffff, f16 and bf16 0x7fff); f64 keeps what the host gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpu.ptx_integers import Form
from gpu.ptx_registers import BITS, NUMPY, Array

__all__ = ["CONVERSIONS", "as_f64", "bf16_to_f32", "canonical", "directed", "f64_to_bf16", "narrow", "quiet"]

_CANONICAL = {"f16": np.uint16(0x7FFF), "bf16": np.uint16(0x7FFF), "f32": np.uint32(0x7FFFFFFF)}


def canonical(value: Array) -> Array:
    """f32 with every NaN the one that the hardware makes."""
    lost = np.isnan(value)
    if not lost.any():
        return value
    return np.where(lost, _CANONICAL["f32"].view(np.float32), value).astype(np.float32)


def bf16_to_f32(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _f32_to_bf16(value: Array) -> Array:
    """Round half to even at bit 16; the carry goes into the exponent as it should."""
    bits = value.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(value), _CANONICAL["bf16"], rounded).astype(np.uint16)


def f64_to_bf16(value: Array) -> Array:
    """One rounding: f64 to f32 rounded to odd, then to bf16."""
    with np.errstate(all="ignore"):
        near = value.astype(np.float32)
        error = value - near.astype(np.float64)
        fix = np.isfinite(near) & (error != 0) & (near.view(np.uint32) & np.uint32(1) == 0)
        odd = np.where(fix, np.nextafter(near, np.where(error > 0, np.inf, -np.inf).astype(np.float32)), near)
    return _f32_to_bf16(odd.astype(np.float32))


def quiet(function: Callable[..., Any], finish: Callable[[Any], Any]) -> Callable[..., Any]:
    def run(*sources: Array) -> Any:
        with np.errstate(all="ignore"):
            return finish(function(*sources))

    return run


def as_f64(kind: str, raw: Array) -> Array:
    return (bf16_to_f32(raw) if kind == "bf16" else raw.view(np.float16)).astype(np.float64)


def narrow(kind: str, value: Array) -> Array:
    """f64 to the bits of f16 or bf16, rounded once."""
    if kind == "bf16":
        return f64_to_bf16(value)
    with np.errstate(all="ignore"):
        return np.where(np.isnan(value), _CANONICAL["f16"], value.astype(np.float16).view(np.uint16)).astype(np.uint16)


def _to_integer(kind: str, source: str, toward: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Rounded, then held in the range. NaN is 0, or the lowest bit pattern with a 64-bit type on either side."""
    info = np.iinfo(NUMPY[kind])
    sixty_four = source == "f64" or BITS[kind] == 64
    nan = info.min if kind[0] == "s" else 1 << (BITS[kind] - 1)

    def convert(a: Array) -> Array:
        with np.errstate(all="ignore"):
            whole = toward(a.astype(np.float64))
            out = np.clip(whole, info.min, info.max).astype(NUMPY[kind])
            out = np.where(whole >= float(info.max), info.max, np.where(whole <= float(info.min), info.min, out))
        return np.where(np.isnan(a), nan if sixty_four else 0, out).astype(NUMPY[kind])

    return convert


def directed(mode: str, to_nearest: Callable[[Array], Array], exact: Callable[..., Array]) -> Callable[..., Array]:
    """rz, rm, rp: the nearest float, moved by one where it lies on the wrong side of a value that f64 holds exactly or
    rounded to odd. (A quotient of f32 is never so near to an f32 that f64 would not tell.)"""

    def run(*sources: Array) -> Array:
        with np.errstate(all="ignore"):
            value = exact(*(s.astype(np.float64) for s in sources))
            near = to_nearest(value)
            gap = near.astype(np.float64) - value
            outwards = np.where(value < 0, gap < 0, gap > 0)
            wrong = {"rz": outwards, "rm": gap > 0, "rp": gap < 0}[mode] & np.isfinite(value)
            goal = {"rz": 0.0 * value, "rm": np.full_like(value, -np.inf), "rp": np.full_like(value, np.inf)}[mode]
            return np.where(wrong, np.nextafter(near, goal.astype(near.dtype)), near)

    return run


def _to_f16(a: Array) -> Array:
    with np.errstate(all="ignore"):
        narrow = a.astype(np.float16)
    return np.where(np.isnan(a), _CANONICAL["f16"].view(np.float16), narrow).astype(np.float16)


def _two_to_one(kind: str) -> Callable[[Array, Array], Array]:
    """cvt.rn.f16x2.f32 d, a, b: a in the high half, b in the low one."""

    def pack(a: Array, b: Array) -> Array:
        high, low = (narrow(kind, x.astype(np.float64)).astype(np.uint32) for x in (a, b))
        return (high << np.uint32(16)) | low

    return pack


def _conversions() -> Iterator[tuple[str, Form]]:
    def cast(name: str, result: str, source: str, function: Callable[[Array], Array]) -> tuple[str, Form]:
        return f"cvt.{name}{result}.{source}", Form(result, (source,), function, wider=result[0] in "su")

    integers = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")
    for source in integers:
        for result in integers:
            yield cast("", result, source, lambda a, r=result: a.astype(NUMPY[r]))  # type: ignore[misc]
        for kind in ("f32", "f64"):
            form = Form(kind, (source,), lambda a, k=kind: a.astype(NUMPY[k]), wider=True)  # type: ignore[misc]
            yield f"cvt.rn.{kind}.{source}", form
        if BITS[source] <= 32:
            as_f16 = Form("f16", (source,), lambda a: narrow("f16", a.astype(np.float64)).view(np.float16), wider=True)
            yield f"cvt.rn.f16.{source}", as_f16
            as_bf16 = Form("bf16", (source,), lambda a: f64_to_bf16(a.astype(np.float64)), wider=True)
            yield f"cvt.rn.bf16.{source}", as_bf16
    roundings: dict[str, Callable[[Array], Array]] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
    for name, toward in roundings.items():
        for source in ("f32", "f64"):
            for result in integers:
                convert = _to_integer(result, source, toward)
                yield cast(f"{name}.", result, source, convert)
                yield cast(f"{name}.sat.", result, source, convert)  # integers are held in range either way
        yield f"cvt.{name}.f32.f32", Form("f32", ("f32",), quiet(toward, canonical))
        yield f"cvt.{name}.f64.f64", Form("f64", ("f64",), quiet(toward, lambda x: x))
    yield cast("", "f64", "f32", lambda a: a.astype(np.float64))
    yield "cvt.rn.f32.f64", Form("f32", ("f64",), quiet(lambda a: a.astype(np.float32), canonical))
    yield cast("", "f32", "f16", lambda a: canonical(a.astype(np.float32)))
    yield cast("", "f32", "bf16", lambda a: canonical(bf16_to_f32(a)))
    yield cast("", "f64", "f16", lambda a: a.astype(np.float64))
    yield cast("", "f64", "bf16", lambda a: bf16_to_f32(a).astype(np.float64))
    for source in ("f32", "f64"):
        yield f"cvt.rn.f16.{source}", Form("f16", (source,), _to_f16)
    yield "cvt.rn.bf16.f32", Form("bf16", ("f32",), _f32_to_bf16)
    for kind in ("f16", "bf16"):
        yield f"cvt.rn.{kind}x2.f32", Form("b32", ("f32", "f32"), _two_to_one(kind))
    # Directions other than the nearest: lowbit's kernels have none, and mutations of them do.
    for mode in ("rz", "rm", "rp"):
        for source in ("s32", "u32"):
            one = directed(mode, lambda x: x.astype(np.float32), lambda x: x)
            yield f"cvt.{mode}.f32.{source}", Form("f32", (source,), one)
        yield f"cvt.{mode}.f16.f32", Form("f16", ("f32",), directed(mode, lambda x: x.astype(np.float16), lambda x: x))


CONVERSIONS: dict[str, Form] = dict(_conversions())
