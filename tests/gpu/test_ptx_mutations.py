"""PTX with one thing wrong in it: every such text is found out, by other bits or by a fault, or is the same program.

Ten or more for each family of kernels. A mutation that finds nothing to change fails. `pytest -s` prints the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

import torch
from gpu.ptx_launch import on_target
from gpu.ptx_parser import PtxFault
from gpu.ptx_products import codes_of, floats_of, multiply, product_case
from gpu.ptx_tensors import affine_of, as_numpy, same_bits, tensor_of
from lowbit import reference
from lowbit.gpu import launch
from lowbit.gpu.launch_compute import GpuEpilogue
from lowbit.numerics.packing import unpack


@dataclass(frozen=True)
class Mutation:
    """Occurrence `at` of a pattern replaced (None: all of them). same: why the result cannot change. on: the only
    target that has such an instruction."""

    name: str
    find: str
    put: str
    at: int | None = 0
    same: str = ""
    on: str = ""

    def edit(self, ptx: str) -> str:
        found = list(re.finditer(self.find, ptx, flags=re.M))
        assert found, f"{self.name}: nothing matches {self.find}"
        for one in reversed(found if self.at is None else [found[self.at]]):
            ptx = ptx[: one.start()] + one.expand(self.put) + ptx[one.end() :]
        return ptx


Check = Callable[[str, Callable[[str], str]], int]  # (target, edit) -> elements that are wrong


def quantize_f32(target: str, edit: Callable[[str], str]) -> int:
    a = affine_of("f32", "int8", "ragged", seed=9)
    with on_target(target, edit=edit, most=20_000):
        found = launch.quantize(a.x, a.scale, a.zero, a.qmin, a.qmax, a.g, a.dtype)
    return same_bits(found, a.codes())


def quantize_packed(target: str, edit: Callable[[str], str]) -> int:
    a = affine_of("f16", "uint4", "ragged", seed=9)
    with on_target(target, edit=edit, most=20_000):
        found = launch.quantize(a.x, a.scale, a.zero, a.qmin, a.qmax, a.g, a.dtype)
    return same_bits(found, a.codes())


def dequantize_packed(target: str, edit: Callable[[str], str]) -> int:
    a = affine_of("f16", "int4", "ragged", seed=10)
    # Three steps make a number between two f16, up to the rounding to f32.
    between = (2 * torch.arange(a.scale.numel()) + 2049).double() / 4096
    a = a._replace(scale=(between / 3).float().view(a.scale.shape))
    stored, (_, s, z) = a.codes(), a.spread
    with on_target(target, edit=edit, most=20_000):
        found = launch.dequantize(stored, a.scale, a.zero, a.g, a.dtype, out=torch.zeros_like(a.x))
    values = reference.dequantize_affine(unpack(stored.numpy(), a.dtype, tuple(a.x.shape)), s, z)
    return same_bits(found, tensor_of(values.astype(as_numpy(a.x).dtype)))


def fake_quantize(target: str, edit: Callable[[str], str]) -> int:
    a = affine_of("f16", "int8", "ragged", seed=11)
    expected = reference.fake_quantize(as_numpy(a.x), a.scale.numpy(), a.zero.numpy(), a.qmin, a.qmax, a.g)
    with on_target(target, edit=edit, most=20_000):
        found = launch.fake_quantize(a.x, a.scale, a.zero, a.qmin, a.qmax, a.g)
    return same_bits(found, tensor_of(expected))


def fake_quantize_backward(target: str, edit: Callable[[str], str]) -> int:
    a = affine_of("f32", "int8", "last", seed=12)
    dy = torch.randn(a.x.shape, generator=torch.Generator().manual_seed(5))
    s, z = a.scale.numpy(), a.zero.numpy()
    expected = reference.fake_quantize_backward(dy.numpy(), a.x.numpy(), s, z, a.qmin, a.qmax, a.g)
    with on_target(target, edit=edit, most=20_000):
        found = launch.fake_quantize_backward(dy, a.x, a.scale, a.zero, a.qmin, a.qmax, a.g)
    return same_bits(found, tensor_of(expected))


def floats_by(path: str, m: int, n: int, k: int) -> Check:
    def check(target: str, edit: Callable[[str], str]) -> int:
        c = product_case(m, n, k, torch.int8, torch.int8)
        y = multiply(c, GpuEpilogue(torch.float32, bias=c["bias"]), target, path, edit=edit, most=60_000)
        return same_bits(y, tensor_of(floats_of(c)))

    return check


def codes_by(path: str, m: int, n: int, k: int) -> Check:
    def check(target: str, edit: Callable[[str], str]) -> int:
        c = product_case(m, n, k, torch.uint8, torch.int8)
        q = multiply(c, GpuEpilogue(torch.int8, scale=37.5, zero_point=-3), target, path, edit=edit, most=60_000)
        return int((q.numpy() != codes_of(c, 37.5, -3)).sum())

    return check


WHOLE = "the number is whole already, so every direction of rounding leaves it"
ROUNDING = [
    Mutation("the quotient towards zero", r"div\.rn\.f32", "div.rz.f32", None),
    Mutation("a product for the quotient", r"div\.rn\.f32", "mul.rn.f32", None),
    Mutation("an approximate quotient", r"div\.rn\.f32", "div.full.f32", None),
    Mutation("ties towards zero", r"add\.rn\.f32(.*0f4B400000)", r"add.rz.f32\1", None),
    Mutation("ties upwards", r"add\.rn\.f32(.*0f4B400000)", r"add.rp.f32\1", None),
    Mutation("2^23 where 1.5 * 2^23 rounds", r"0f([4C])B400000", r"0f\g<1>B000000", None),
    Mutation("no max", r"max\.f32", "min.f32", 0),
    Mutation("no min", r"min\.f32", "max.f32", -1),
]
TAIL = [
    Mutation("a store past the end", r"@%p\d+ (st\.global)", r"\1", -1),
    Mutation("a load past the end", r"@%p\d+ (ld\.global)", r"\1", -1),
    Mutation("a store where there is none", r"@(%p\d+) (st\.global)", r"@!\1 \2", 0),
    Mutation("n itself is inside", r"setp\.lt\.s32", "setp.le.s32", None),
]
PLACES = [
    Mutation("blocks of another size", r"shl\.b32(.*), 1([01]);", r"shl.b32\1, 9;", 0),
    Mutation("the scale of a neighbour", r"(ld\.global\.b32 \{ %r\d+ \}, \[ %rd\d+ \+) 0 \]", r"\1 4 ]", 0),
    Mutation("the low half of an address lost", r"(mul\.wide)\.s32(.*), 4;", r"\1.s32\2, 2;", 0),
]
CODES = [
    Mutation("the zero point added", r"sub\.s32(\s+%r\d+, %r2\d, %r\d+;)", r"add.s32\1", -1),
    Mutation("a store of the next register", r"(st\.global\.b8 \[ %rd\d+ \+ 1 \], \{ )%rs\d+", r"\1%rs1", 0),
    Mutation("a store in another place", r"(st\.global\.b8 \[ %rd\d+ \+) 1 \]", r"\1 0 ]", 0),
    Mutation("two bytes stored", r"st\.global\.b8", "st.global.b16", 0),
    Mutation("to the nearest, of whole numbers", r"cvt\.rzi\.s32", "cvt.rni.s32", None, same=WHOLE),
    Mutation("down, of whole numbers", r"cvt\.rzi\.s32", "cvt.rmi.s32", None, same=WHOLE),
    Mutation("the smallest integers read unsigned", r"cvt\.rzi\.s32\.f32", "cvt.rzi.u32.f32", None),
]
FAMILIES: dict[str, tuple[Check, list[Mutation]]] = {
    "quantize": (quantize_f32, ROUNDING + TAIL + PLACES + CODES),
    "quantize, packed": (
        quantize_packed,
        [
            *ROUNDING, *TAIL,
            Mutation("the wrong nibble", r"shl\.b32(.*), 4;", r"shl.b32\1, 3;", -1),
            Mutation("bits past the end of the data", r"selp\.b32(\s+%r\d+), %r\d+, 0", r"selp.b32\1, 15, 0", -1),
            Mutation("three bits of four", r"and\.b32(.*), 15;", r"and.b32\1, 7;", -1),
        ],
    ),
    "dequantize": (
        dequantize_packed,
        [
            *TAIL, *PLACES,
            Mutation("f16 towards zero", r"cvt\.rn\.f16\.f32", "cvt.rz.f16.f32", None),
            Mutation("f32 towards zero", r"mul\.rn\.f32", "mul.rz.f32", None),
            Mutation("no sign", r"bfe\.s32", "bfe.u32", 0),
            Mutation("the high nibble from bit 3 on", r"bfe\.s32(.*), 4, 4;", r"bfe.s32\1, 3, 4;", 0),
            Mutation("the low nibble has three bits", r"bfe\.s32(.*), 0, 4;", r"bfe.s32\1, 0, 3;", 0),
            Mutation("the high nibble for the low one", r"bfe\.s32(.*), 0, 4;", r"bfe.s32\1, 4, 4;", 1),
            Mutation("the sum of code and zero point", r"sub\.s32", "add.s32", -1),
            Mutation("the integer towards zero", r"cvt\.rn\.f32\.s32", "cvt.rz.f32.s32", None,
                     same="differences of codes are below 2^24: every direction gives them exactly"),
            Mutation("a step of four bytes for two", r"mad\.wide\.s32(.*), 2,", r"mad.wide.s32\1, 4,", -1),
            Mutation("a store of the neighbour", r"(st\.global\.b16 \[ %rd\d+ \+) 2 \]", r"\1 4 ]", 0),
            Mutation("bytes stored", r"st\.global\.b16", "st.global.b8", 0),
        ],
    ),
    "fake_quantize": (
        fake_quantize,
        [
            *ROUNDING, *TAIL, *PLACES,
            Mutation("NaN as a number", r"setp\.num\.f16(x2)?", r"setp.nan.f16\1", None),
            Mutation("NaN becomes the low end", r"selp\.b16(\s+%rs\d+, %rs\d+), %rs\d+,", r"selp.b16\1, 0,", None),
            Mutation("f16 towards zero", r"cvt\.rn\.f16(x2)?\.f32", "cvt.rz.f16.f32", None),
            Mutation("another lane's scale", r"(mul\.rn\.f32\s+%r\d+, %r\d+), %r\d+;", r"\1, %r1;", -1),
        ],
    ),
    "fake_quantize_backward": (
        fake_quantize_backward,
        [
            *[m for m in ROUNDING if not m.name.startswith(("no ", "ties"))], *TAIL,
            *[replace(m, on="sm_80") for m in ROUNDING if m.name.startswith("ties")],
            Mutation("ties towards zero, of pairs", r"add\.rn\.f32x2", "add.rz.f32x2", None, on="sm_120"),
            Mutation("ties upwards, of pairs", r"add\.rn\.f32x2", "add.rp.f32x2", None, on="sm_120"),
            Mutation("one step inside of the low end", r"setp\.ge\.f32", "setp.gt.f32", 0),
            Mutation("one step inside of the high end", r"setp\.le\.f32", "setp.lt.f32", 0),
            Mutation("below the low end", r"setp\.ge\.f32", "setp.le.f32", 0),
            Mutation("clamped to the low end itself", r"0fBF800000", "0f00000000", None),
            Mutation("clamped to the high end itself", r"0f3F800000", "0f00000000", None),
            Mutation("outside for inside", r"selp\.(\w+)(\s+%\w+), (%\w+), (\S+), %p", r"selp.\1\2, \4, \3, %p", 0),
            Mutation("NaN passes", r"max\.f32", "max.NaN.f32", None, same=(
                "the comparisons that follow are false for NaN as well as for one step below")),
            Mutation("dy of a neighbour", r"(ld\.global\.(?:v4\.)?b32 .*, \[ %rd\d+) \+ 0 \]", r"\1 + 16 ]", -1),
        ],
    ),
    "DP4A product": (
        floats_by("dp4a", 18, 68, 96),
        [
            Mutation("bytes of a unsigned", r"dp4a\.s32\.s32", "dp4a.u32.s32", 0),
            Mutation("bytes of b unsigned", r"dp4a\.s32\.s32", "dp4a.s32.u32", 5),
            Mutation("sums of both unsigned", r"dp4a\.s32\.s32", "dp4a.u32.u32", None),
            Mutation("another word", r"(dp4a\.s32\.s32 %r\d+, %r\d+, )%r(\d+),", r"\1%r1,", 0),
            Mutation("no sum", r"(dp4a\.s32\.s32 %r\d+, %r\d+, %r\d+, )%r\d+;", r"\g<1>0;", 0),
            Mutation("a word past the end", r"setp\.lt\.u64", "setp.le.u64", 0, same=(
                "the loop has no such word: the condition of its loads always holds")),
            Mutation("every second word", r"add\.s64\s+(%rd\d+), \1, 4;", r"add.s64 \1, \1, 8;", 0),
            Mutation("the loop once", r"@(%p\d+) bra(\s+\$L__BB0_2)", r"@!\1 bra\2", 0),
            Mutation("a store past the end", r"@%p\d+ (st\.global)", r"\1", -1),
            Mutation("no store", r"@%p\d+ st\.global[^;]*;", "", 0),
            Mutation("rows that wrap at another number", r"rem\.s32", "div.s32", 0),
            Mutation("columns that are not wrapped", r"rem\.s32(\s+%r\d+), (%r\d+), %r\d+", r"mov.b32\1, \2", -1),
            Mutation("the scale towards zero", r"mul\.rn\.f32", "mul.rz.f32", None),
            Mutation("the bias upwards", r"add\.rn\.f32", "add.rp.f32", None),
            Mutation("the sum towards zero", r"cvt\.rn\.f32\.s32", "cvt.rz.f32.s32", None, same=(
                "sums of 96 products are below 2^24")),
            Mutation("the wrong sign of a correction", r"sub\.s32", "add.s32", 4, on="sm_80"),
            Mutation("the bias twice", r"add\.rn\.f32\s+(%r\d+), (%r\d+), (%r\d+);",
                     r"fma.rn.f32 \1, \3, 0f40000000, \2;", on="sm_80"),
        ],
    ),
    "DP4A product with a vector": (
        codes_by("gemv", 2, 37, 75),
        [
            Mutation("no barrier before the sums of warps are read", r"bar\.sync\s+0;", "", 0),
            Mutation("no barrier before they are written over", r"bar\.sync\s+0;", "", 1),
            Mutation("a shuffle that skips a lane", r"(shfl\.sync\.bfly\.b32 .*), 1, 31", r"\1, 2, 31", 0),
            Mutation("a sum of the wrong kind", r"redux\.sync\.add\.s32", "redux.sync.max.s32", 0),
            Mutation("a member mask without a thread", r"mov\.b32(\s+%r\d+), -1;", r"mov.b32\1, -2;", 0),
            Mutation("bytes of a unsigned", r"dp4a\.s32\.s32", "dp4a.u32.s32", 0),
            Mutation("the second byte at the first", r"mul\.wide\.u16(.*), 256;", r"mul.wide.u16\1, 1;", on="sm_80"),
            Mutation("the third byte at the fourth", r"shl\.b32(.*), 16;", r"shl.b32\1, 24;", on="sm_80"),
            Mutation("two bytes of a word swapped", r"0x3340U", "0x3304U", 0, on="sm_120"),
            Mutation("two halves of a word swapped", r"0x5410U", "0x1054U", 1, on="sm_120"),
            Mutation("not centred", r"xor\.b(16|32)(.*), (128|-128|-2139062144|-2147483648);", r"xor.b\1\2, 0;", 0),
            Mutation("what is past the end of k", r"setp\.lt\.u64", "setp.le.u64", 3),
            Mutation("ties towards zero", r"add\.rn\.f32(.*0f4B400000)", r"add.rz.f32\1", None),
            Mutation("the scale as a product", r"div\.rn\.f32", "mul.rn.f32", None),
            Mutation("codes that wrap", r"min\.f32", "max.f32", None),
            Mutation("a store past the end", r"@%p\d+ (st\.global)", r"\1", -1),
        ],
    ),
    "int8 product": (
        floats_by("matrix", 64, 64, 384),
        [
            Mutation("a's tile transposed", r"(ldmatrix\.sync\.aligned\.m8n8\.x4)(\.shared)", r"\1.trans\2", 0),
            Mutation("b's tile transposed", r"(ldmatrix\.sync\.aligned\.m8n8\.x4)(\.shared)", r"\1.trans\2", 3),
            Mutation("or for xor in a swizzle", r"xor\.b32", "or.b32", 0),
            Mutation("or for xor in another swizzle", r"xor\.b32", "or.b32", 3),
            Mutation("a swizzle off by a row", r"(ldmatrix\S+ \{[^}]*\}, \[%r\d+)\+4096\]", r"\1+4112]", 0),
            Mutation("a half-aligned row", r"(ldmatrix\S+ \{[^}]*\}, \[%r\d+)\+4096\]", r"\1+4104]", 0),
            Mutation("one byte's selector", r"prmt\.b32(.*), 0x7773U", r"prmt.b32\1, 0x7772U", on="sm_80"),
            Mutation("a pair of halves swapped", r"prmt\.b32(.*), 0x5410U", r"prmt.b32\1, 0x1054U", on="sm_80"),
            Mutation("no wait for the copies", r"cp\.async\.wait_group\s+\d+;", "", None),
            Mutation("a wait for one group less", r"cp\.async\.wait_group(\s+)2;", r"cp.async.wait_group\g<1>4;", None),
            Mutation("no barrier after the wait",
                     r"(cp\.async\.wait_group\s+2;\s*(?:\.loc[^\n]*\s*)*)bar\.sync\s+0;", r"\1"),
            Mutation("no barrier in the loop", r"bar\.sync\s+0;", "", 2),
            Mutation("a copy past the end", r"(selp\.b32\s+%r\d+, 16), 0,", r"\1, 16,", -1),
            Mutation("half of a copy", r"(cp\.async\.c[ag]\.shared\.global [^;]*), 0x10,", r"\1, 0x8,", 0),
            Mutation("a tile's registers swapped", r"(mma\S+ \{[^}]*\}, \{ )(%r\d+), (%r\d+),", r"\1\3, \2,", 0),
            Mutation("b's registers swapped", r"(mma\S+ \{[^}]*\}, \{[^}]*\}, \{ )(%r\d+), (%r\d+) ", r"\1\3, \2 ", 0),
            Mutation("another kind of product", r"\.s32\.s8\.s8\.s32", ".s32.u8.s8.s32", 0),
            Mutation("no saturation", r"\.satfinite", "", None, same="sums of 384 products are far below 2^31"),
            Mutation("the loop ends early", r"@(%p\d+) bra(\s+\$L__BB0_\d+;)", r"@!\1 bra\2", -1),
            Mutation("a store of half a vector", r"st\.global\.v4\.b32", "st.global.v2.b32", 0),
            Mutation("rows stored apart", r"shl\.b64(.*), 2;", r"shl.b64\1, 3;", -1),
            Mutation("a shared store off by a row", r"st\.shared\.v4\.b32(\s+\[%r\d+)\+1024\]",
                     r"st.shared.v4.b32\1+1040]"),
        ],
    ),
}  # fmt: skip


def outcome(check: Check, target: str, mutation: Mutation) -> str:
    try:
        wrong = check(target, mutation.edit)
    except PtxFault as fault:
        return f"fault: {str(fault).rpartition(': ')[2]}"
    return f"{wrong} wrong" if wrong else ""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("target", ["sm_80", pytest.param("sm_120", marks=pytest.mark.deep)])
def test_every_mutation_is_caught(family: str, target: str) -> None:
    check, mutations = FAMILIES[family]
    assert check(target, lambda ptx: ptx) == 0
    rows = [(m, outcome(check, target, m)) for m in mutations if m.on in ("", target)]
    print(f"\n{family} on {target}")
    for mutation, found in rows:
        unseen = f"same: {mutation.same}" if mutation.same else "not caught"
        print(f"  {mutation.name:45} {found or unseen}")
    caught = [m for m, found in rows if found and not m.same]
    assert [m.name for m, found in rows if not found and not m.same] == []
    assert [m.name for m, found in rows if found and m.same] == []
    assert len(caught) >= 10
