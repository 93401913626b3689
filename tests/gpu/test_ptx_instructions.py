"""Single PTX instructions against NumPy or plain Python: rounding, NaN, saturation, bits."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpu.ptx_floats import fused_f32, to_odd_sum
from gpu.ptx_parser import PtxFault
from gpu.ptx_registers import NUMPY
from gpu.ptx_single import RNG, apply, words

SPECIAL = np.array(
    [0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4e38, 127.5, 1e10], "f4"
)


def floats(n: int = 1000) -> Any:
    """f32 of all sizes, in all bit patterns, special ones too."""
    wild = RNG.integers(0, 2**32, n, dtype=np.uint32).view(np.float32)
    return np.concatenate([SPECIAL, wild, RNG.standard_normal(n).astype(np.float32)])


def same(found: Any, expected: Any) -> bool:
    bits = f"u{found.dtype.itemsize}"
    expected = np.asarray(expected).astype(found.dtype)
    return bool(((found.view(bits) == expected.view(bits)) | (np.isnan(found) & np.isnan(expected))).all())


# ---- floats -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opcode", "function"), [("add", np.add), ("sub", np.subtract), ("mul", np.multiply), ("div", np.divide)]
)
def test_arithmetic_rounds_to_nearest(opcode: str, function: Any) -> None:
    a, b = floats()[:960], RNG.permutation(floats())[:960]
    with np.errstate(all="ignore"):
        assert same(apply(f"{opcode}.rn.f32", "f32", ("f32", a), ("f32", b)), function(a, b))
        wide = function(a.astype("f8") * 1.1, b.astype("f8"))
    assert same(apply(f"{opcode}.rn.f64", "f64", ("f64", a.astype("f8") * 1.1), ("f64", b.astype("f8"))), wide)


def test_nan_is_the_canonical_one() -> None:
    found = apply("add.rn.f32", "f32", ("f32", np.full(32, np.inf, "f4")), ("f32", np.full(32, -np.inf, "f4")))
    assert (found.view(np.uint32) == 0x7FFFFFFF).all()


def test_fma_rounds_once() -> None:
    """Against exact rationals, where a sum of f64 would be rounded twice."""
    a, b = RNG.standard_normal((2, 800)).astype("f4")
    c = (-(a.astype("f8") * b) * (1 + RNG.integers(-3, 4, 800) * 2.0**-25)).astype("f4")
    c[::3] = RNG.standard_normal(267).astype("f4") * np.float32(2.0**-30)
    # halfway between two f32, but for a term far below: 1 + 2^-24 + 2^-60 is above the tie
    a[:2], b[:2], c[:2] = 1 + 2.0**-12, 1 - 2.0**-13, [2.0**-60, -(2.0**-60)]
    a[0], b[0], c[0] = 2.0**-24, 1, 1
    found = apply("fma.rn.f32", "f32", ("f32", a), ("f32", b), ("f32", c))
    for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), found, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        near = np.float32(got)
        for other in (np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))):
            assert abs(Fraction(float(near)) - exact) <= abs(Fraction(float(other)) - exact)


def test_fma_is_not_two_roundings() -> None:
    one = np.float32([1 + 2.0**-12])
    product = one * one
    assert fused_f32(one, one, -product)[0] == 2.0**-24
    assert (one * one - product)[0] == 0
    assert to_odd_sum(np.array([1.0]), np.array([2.0**-80]))[0] == np.nextafter(1.0, 2.0)


def test_fma_of_f64() -> None:
    a, b = np.full(32, 1 + 2.0**-30), np.full(32, 1 - 2.0**-30)
    assert (apply("fma.rn.f64", "f64", ("f64", a), ("f64", b), ("f64", np.full(32, -1.0))) == -(2.0**-60)).all()


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_min_and_max_drop_nan(kind: str) -> None:
    a, b = SPECIAL.astype(NUMPY[kind]), SPECIAL[::-1].astype(NUMPY[kind])
    least, most = (apply(f"{name}.{kind}", kind, (kind, a), (kind, b)) for name in ("min", "max"))
    assert same(least[np.isfinite(a) | np.isfinite(b)], np.fmin(a, b)[np.isfinite(a) | np.isfinite(b)])
    assert same(most[a != b], np.fmax(a, b)[a != b])
    zeros = np.array([0.0, -0.0], NUMPY[kind])
    assert np.signbit(apply(f"min.{kind}", kind, (kind, zeros), (kind, zeros[::-1]))).all()
    assert not np.signbit(apply(f"max.{kind}", kind, (kind, zeros), (kind, zeros[::-1]))).any()


def test_min_of_three_and_of_nan() -> None:
    a, b, c = floats()[:320], floats()[100:420], floats()[200:520]
    assert same(
        apply("min.f32", "f32", ("f32", a), ("f32", b), ("f32", c), target="sm_120a"), np.fmin(np.fmin(a, b), c)
    )
    with pytest.raises(PtxFault, match="sm_100"):
        apply("min.f32", "f32", ("f32", a), ("f32", b), ("f32", c))
    assert np.isnan(apply("max.NaN.f32", "f32", ("f32", a), ("f32", np.full(320, np.nan, "f4")))).all()


@pytest.mark.parametrize(
    ("mode", "function"), [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)]
)
def test_floats_to_integers_saturate(mode: str, function: Any) -> None:
    a = floats()
    for kind in ("s32", "u32", "s64"):
        info = np.iinfo(NUMPY[kind])
        expected = [
            (info.min if kind == "s64" else 0) if np.isnan(x) else info.max if x == np.inf else info.min if x == -np.inf
            else max(info.min, min(info.max, int(function(np.float64(x))))) for x in a
        ]  # fmt: skip
        assert apply(f"cvt.{mode}.{kind}.f32", kind, ("f32", a)).tolist() == expected
    with np.errstate(all="ignore"):
        assert same(apply(f"cvt.{mode}.f32.f32", "f32", ("f32", a)), function(a))


def test_narrow_floats() -> None:
    a = floats()
    with np.errstate(all="ignore"):
        assert same(apply("cvt.rn.f16.f32", "f16", ("f32", a)), a.astype(np.float16))
        bf16 = apply("cvt.rn.bf16.f32", "b16", ("f32", a)).view(ml_dtypes.bfloat16)
        assert same(bf16.astype("f4"), a.astype(ml_dtypes.bfloat16).astype("f4"))
    halves = np.arange(2**16, dtype=np.uint16)
    for first in range(0, 2**16, 1024):
        some = halves[first : first + 1024]
        assert same(apply("cvt.f32.f16", "f32", ("f16", some.view(np.float16))), some.view(np.float16).astype("f4"))
        assert same(apply("cvt.f32.bf16", "f32", ("b16", some)), some.view(ml_dtypes.bfloat16).astype("f4"))
    packed = apply("cvt.rn.f16x2.f32", "b32", ("f32", a[:64]), ("f32", a[64:128]))
    with np.errstate(all="ignore"):
        assert same((packed >> 16).astype(np.uint16).view("f2"), a[:64].astype("f2"))
        assert same(packed.astype(np.uint16).view("f2"), a[64:128].astype("f2"))


@pytest.mark.parametrize("kind", ["bf16", "f16"])
def test_pairs_round_once(kind: str) -> None:
    dtype = ml_dtypes.bfloat16 if kind == "bf16" else np.float16
    a, b, c = (RNG.standard_normal(128).astype(dtype) for _ in range(3))
    for opcode, exact in (("add", a.astype("f8") + b), ("sub", a.astype("f8") - b), ("mul", a.astype("f8") * b)):
        found = apply(f"{opcode}.rn.{kind}x2", "b32", ("b32", a.view("u4")), ("b32", b.view("u4")))
        assert same(found.view(dtype).astype("f4"), exact.astype(dtype).astype("f4"))
    found = apply(f"fma.rn.{kind}x2", "b32", ("b32", a.view("u4")), ("b32", b.view("u4")), ("b32", c.view("u4")))
    assert same(found.view(dtype).astype("f4"), (a.astype("f8") * b + c.astype("f8")).astype(dtype).astype("f4"))


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
def test_directed_rounding(mode: str) -> None:
    a, b = RNG.standard_normal((2, 500)).astype("f4")
    for opcode in ("add", "mul", "div"):
        for x, y, got in zip(a, b, apply(f"{opcode}.{mode}.f32", "f32", ("f32", a), ("f32", b)), strict=True):
            fx, fy = Fraction(float(x)), Fraction(float(y))
            exact = {"add": fx + fy, "mul": fx * fy, "div": fx / fy}[opcode]
            up = mode == "rp" or (mode == "rz" and exact < 0)
            value = Fraction(float(got))
            inner = Fraction(float(np.nextafter(got, np.float32(-np.inf if up else np.inf))))
            assert (inner < exact <= value) if up else (value <= exact < inner)


# ---- integers -----------------------------------------------------------------------------------------------


def test_integer_arithmetic_wraps_and_widens() -> None:
    a, b = words(), RNG.permutation(words())
    sa, sb = a.view("i4"), b.view("i4")
    assert (apply("add.s32", "s32", ("s32", sa), ("s32", sb)) == sa + sb).all()
    assert (apply("mul.wide.s32", "s64", ("s32", sa), ("s32", sb)) == sa.astype("i8") * sb).all()
    assert (apply("mul.hi.u32", "u32", ("u32", a), ("u32", b)) == (a.astype("u8") * b >> 32)).all()
    assert (apply("mad.lo.s32", "s32", ("s32", sa), ("s32", sb), "7") == sa * sb + 7).all()
    expected = [int(x / y) if abs(y) > 2**20 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) if y else -1
                for x, y in zip(sa.tolist(), sb.tolist(), strict=True)]  # fmt: skip
    found = apply("div.s32", "s32", ("s32", sa), ("s32", sb))
    safe = ~((sa == -(2**31)) & (sb == -1))
    assert (found == np.array(expected, "i8").astype("i4"))[safe].all()
    assert (apply("rem.s32", "s32", ("s32", sa), ("s32", sb)) == sa - found * sb)[safe & (sb != 0)].all()


def test_shifts_past_the_width() -> None:
    a, by = words(64), np.arange(64, dtype=np.uint32)
    assert apply("shl.b32", "b32", ("b32", a), ("u32", by)).tolist() == [
        int(x) << i & 0xFFFFFFFF for i, x in enumerate(a)
    ]
    assert apply("shr.u32", "u32", ("u32", a), ("u32", by)).tolist() == [int(x) >> i for i, x in enumerate(a)]
    assert apply("shr.s32", "s32", ("s32", a.view("i4")), ("u32", by)).tolist() == [
        int(x) >> i for i, x in enumerate(a.view("i4"))
    ]
    joined = [(int(x) << 32 | int(x) ^ 5) for x in a]
    found = apply("shf.r.wrap.b32", "b32", ("b32", a ^ 5), ("b32", a), ("u32", by))
    assert found.tolist() == [(x >> (i % 32)) & 0xFFFFFFFF for i, x in enumerate(joined)]


def test_byte_permutation() -> None:
    a, b, selector = words(), words()[::-1], RNG.integers(0, 2**16, 320).astype(np.uint32)
    expected = []
    for x, y, s in zip(a.tolist(), b.tolist(), selector.tolist(), strict=True):
        source = (x | y << 32).to_bytes(8, "little")
        nibbles = [(s >> 4 * i) & 15 for i in range(4)]
        picked = [(255 * (source[n & 7] >> 7)) if n & 8 else source[n & 7] for n in nibbles]
        expected.append(int.from_bytes(bytes(picked), "little"))
    assert apply("prmt.b32", "b32", ("b32", a), ("b32", b), ("b32", selector)).tolist() == expected


def test_bit_fields() -> None:
    a = words(1024)
    start, length = RNG.integers(0, 40, (2, 1024)).astype(np.uint32)
    expected = [(int(x) >> p) & ((1 << n) - 1) for x, p, n in zip(a, start.tolist(), length.tolist(), strict=True)]
    assert apply("bfe.u32", "u32", ("u32", a), ("u32", start), ("u32", length)).tolist() == expected
    signed = apply("bfe.s32", "s32", ("s32", a.view("i4")), ("u32", start), ("u32", length))
    for x, p, n, got in zip(a.tolist(), start.tolist(), length.tolist(), signed.tolist(), strict=True):
        sign = (x >> min(p + n - 1, 31)) & 1 if n else 0
        bits = [(x >> (p + i)) & 1 if i < n and p + i < 32 else sign for i in range(32)]
        assert got & 0xFFFFFFFF == sum(bit << i for i, bit in enumerate(bits))
    assert (apply("bfe.s32", "s32", ("s32", a.view("i4")), "4", "4") == (a.view("i4") << 24) >> 28).all()
    found = apply("bfi.b32", "b32", ("b32", a), ("b32", a[::-1]), "8", "4")
    assert (found == ((a[::-1] & ~np.uint32(0xF00)) | ((a & 15) << 8))).all()


def test_logic_of_three() -> None:
    a, b, c = words(), words()[::-1], RNG.permutation(words())
    for table, expected in ((0x80, a & b & c), (0x96, a ^ b ^ c), (0xE2, (a & b) | (c & ~b)), (0x1E, a ^ (b | c))):
        assert (apply("lop3.b32", "b32", ("b32", a), ("b32", b), ("b32", c), hex(table)) == expected).all()
    assert apply("popc.b32", "u32", ("b32", a)).tolist() == [int(x).bit_count() for x in a]


@pytest.mark.parametrize(("a_kind", "b_kind"), [("s32", "s32"), ("u32", "s32"), ("s32", "u32"), ("u32", "u32")])
def test_dot_of_four_bytes(a_kind: str, b_kind: str) -> None:
    a, b, c = words(), RNG.permutation(words()), words()[::-1]
    kinds = {"s32": np.int8, "u32": np.uint8}
    products = a.view(kinds[a_kind]).reshape(-1, 4).astype("i8") * b.view(kinds[b_kind]).reshape(-1, 4)
    expected = (products.sum(axis=1) + c.astype("i8")).astype(np.uint64).astype(np.uint32)
    assert (apply(f"dp4a.{a_kind}.{b_kind}", "b32", ("b32", a), ("b32", b), ("b32", c)) == expected).all()
