"""Warp-wide instructions, memory, barriers and branches of the PTX executor, and all that must fault."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from gpu.ptx_parser import PtxFault
from gpu.ptx_single import RNG, launch, words


def per_thread(name: str, register: str, parameter: int, index: int = 0, many: int = 1) -> str:
    """Loads or stores word `index` of `many` a thread."""
    address = f"mad.wide.u32 %rd1, %r50, {4 * many}, %rd{10 + parameter};"
    move = (
        f"ld.global.b32 {register}, [%rd1+{4 * index}];"
        if name == "ld"
        else f"st.global.b32 [%rd1+{4 * index}], {register};"
    )
    return address + move


@pytest.mark.parametrize(("mode", "by", "from_lane"), [
    ("bfly", 5, lambda i: i ^ 5), ("down", 3, lambda i: i + 3 if i + 3 < 32 else i), ("idx", 7, lambda i: 7),
    ("up", 3, lambda i: i - 3 if i >= 3 else i),
])  # fmt: skip
def test_shuffles(mode: str, by: int, from_lane: Any) -> None:
    x, out = words(64), np.zeros(64, np.uint32)
    clamp = 0 if mode == "up" else 31
    launch(
        per_thread("ld", "%r1", 0) + f"shfl.sync.{mode}.b32 %r2, %r1, {by}, {clamp}, -1;" + per_thread("st", "%r2", 1),
        x,
        out,
    )
    assert out.tolist() == [int(x[i // 32 * 32 + from_lane(i % 32)]) for i in range(64)]


def test_reductions_and_votes() -> None:
    x, out = words(64).view("i4"), np.zeros((64, 3), np.int32)
    body = per_thread("ld", "%r1", 0) + "redux.sync.add.s32 %r2, %r1, -1; redux.sync.min.s32 %r3, %r1, -1;"
    body += "setp.lt.s32 %p1, %r1, 0; vote.sync.ballot.b32 %r4, %p1, -1;"
    body += "".join(per_thread("st", f"%r{2 + i}", 1, i, 3) for i in range(3))
    launch(body, x, out)
    warps = x.reshape(2, 32)
    assert (out[::32, 0] == warps.sum(axis=1, dtype="i4")).all()
    assert (out[::32, 1] == warps.min(axis=1)).all()
    assert out[::32, 2].view("u4").tolist() == [sum(1 << i for i in range(32) if w[i] < 0) for w in warps]


@pytest.mark.parametrize("depth", [16, 32])
def test_int8_matrix_product_has_the_documented_fragments(depth: int) -> None:
    """Element by element, from the tables of the PTX manual."""
    a, b = RNG.integers(-128, 128, (16, depth)).astype("i1"), RNG.integers(-128, 128, (depth, 8)).astype("i1")
    c = RNG.integers(-1000, 1000, (16, 8)).astype("i4")
    of_a, of_b = depth // 8, depth // 16
    fa, fb, fc = np.zeros((32, of_a * 4), "i1"), np.zeros((32, of_b * 4), "i1"), np.zeros((32, 4), "i4")
    for lane in range(32):
        group, place = lane >> 2, lane % 4
        for i in range(of_a * 4):
            row = group if i < 4 or 8 <= i < 12 else group + 8
            fa[lane, i] = a[row, place * 4 + (i & 3) + (16 if i >= 8 else 0)]
        for i in range(of_b * 4):
            fb[lane, i] = b[place * 4 + (i & 3) + (16 if i >= 4 else 0), group]
        for i in range(4):
            fc[lane, i] = c[group + (8 if i >= 2 else 0), place * 2 + (i & 1)]
    out = np.zeros((32, 4), "i4")
    body = "".join(per_thread("ld", f"%r{1 + i}", 0, i, of_a) for i in range(of_a))
    body += "".join(per_thread("ld", f"%r{11 + i}", 1, i, of_b) for i in range(of_b))
    body += "".join(per_thread("ld", f"%r{21 + i}", 2, i, 4) for i in range(4))
    regs = [", ".join(f"%r{first + i}" for i in range(n)) for first, n in ((31, 4), (1, of_a), (11, of_b), (21, 4))]
    body += f"mma.sync.aligned.m16n8k{depth}.row.col.satfinite.s32.s8.s8.s32 {', '.join('{' + r + '}' for r in regs)};"
    body += "".join(per_thread("st", f"%r{31 + i}", 3, i, 4) for i in range(4))
    launch(body, fa.view("u4"), fb.view("u4"), fc, out, threads=32)
    expected = a.astype("i4") @ b.astype("i4") + c
    for lane in range(32):
        for i in range(4):
            assert out[lane, i] == expected[(lane >> 2) + (8 if i >= 2 else 0), (lane % 4) * 2 + (i & 1)]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_float_matrix_product_has_the_documented_fragments(kind: str) -> None:
    dtype = np.float16 if kind == "f16" else ml_dtypes.bfloat16
    a, b = RNG.integers(-9, 9, (16, 16)).astype(dtype), RNG.integers(-9, 9, (16, 8)).astype(dtype)
    fa, fb, out = np.zeros((32, 8), dtype), np.zeros((32, 4), dtype), np.zeros((32, 4), np.float32)
    for lane in range(32):
        group, place = lane >> 2, lane % 4
        for i in range(8):
            row = group if i < 2 or 4 <= i < 6 else group + 8
            fa[lane, i] = a[row, place * 2 + (i & 1) + (8 if i >= 4 else 0)]
        for i in range(4):
            fb[lane, i] = b[place * 2 + (i & 1) + (8 if i >= 2 else 0), group]
    body = "".join(per_thread("ld", f"%r{1 + i}", 0, i, 4) for i in range(4))
    body += "".join(per_thread("ld", f"%r{11 + i}", 1, i, 2) for i in range(2)) + "mov.b32 %r20, 0f3F800000;"
    body += (
        f"mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 {{%r31, %r32, %r33, %r34}}, {{%r1, %r2, %r3, %r4}}, "
    )
    body += "{%r11, %r12}, {%r20, %r20, %r20, %r20};"
    body += "".join(per_thread("st", f"%r{31 + i}", 2, i, 4) for i in range(4))
    launch(body, fa.view("u4"), fb.view("u4"), out, threads=32)
    expected = a.astype("f4") @ b.astype("f4") + 1
    for lane in range(32):
        for i in range(4):
            assert out[lane, i] == expected[(lane >> 2) + (8 if i >= 2 else 0), (lane % 4) * 2 + (i & 1)]


@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_from_shared_memory(transposed: bool) -> None:
    """Four 8 x 8 matrices of 16 bits, row r of matrix j at the address of thread 8 j + r."""
    matrices, out = RNG.integers(0, 2**16, (4, 8, 8)).astype(np.uint16), np.zeros((32, 4), np.uint32)
    words_of = matrices.reshape(32, 8).view("u4")
    body = "mov.b32 %r40, smem; shl.b32 %r41, %r50, 4; add.s32 %r42, %r40, %r41;"
    body += "".join(per_thread("ld", f"%r{1 + i}", 0, i, 4) for i in range(4))
    body += "st.shared.v4.b32 [%r42], {%r1, %r2, %r3, %r4}; bar.sync 0;"
    body += f"ldmatrix.sync.aligned.m8n8.x4{'.trans' if transposed else ''}.shared.b16 {{%r5, %r6, %r7, %r8}}, [%r42];"
    body += "".join(per_thread("st", f"%r{5 + i}", 1, i, 4) for i in range(4))
    launch(body, words_of, out, threads=32)
    for lane in range(32):
        for j in range(4):
            matrix = matrices[j].T if transposed else matrices[j]
            low, high = matrix[lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
            assert out[lane, j] == int(low) | int(high) << 16


# ---- faults -------------------------------------------------------------------------------------------------

SHARED = "mov.b32 %r40, smem; shl.b32 %r41, %r50, 2; add.s32 %r42, %r40, %r41; xor.b32 %r43, %r42, 252;"
FAULTS = {
    "an unknown instruction": ("foo.b32 %r1, %r50;", "unknown"),
    "an unknown modifier": ("add.sat.s32 %r1, %r50, %r50;", "unknown"),
    "an approximate quotient": ("mov.b32 %r1, 0; div.full.f32 %r2, %r1, %r1;", "unknown"),
    "a sum that may be contracted": ("mov.b32 %r1, 0; add.f32 %r2, %r1, %r1;", "unknown"),
    "an operand too many": ("add.s32 %r1, %r50, %r50, %r50;", "operands"),
    "an operand too few": ("add.s32 %r1, %r50;", "operands"),
    "a register that is not there": ("add.s32 %r1, %r50, %r99;", "read as|where a value|no register"),
    "a register never written": ("add.s32 %r1, %r50, %r2;", "before it is written"),
    "a register written by half of the threads": (
        "setp.lt.u32 %p1, %r50, 5; @%p1 mov.b32 %r1, 0; add.s32 %r2, %r1, 1;", "before it is written"),
    "a predicate never written": ("@%p1 mov.b32 %r1, 0;", "before it is written"),
    "a register of another width": ("add.s32 %r1, %rd10, %r50;", "the instruction says"),
    "a result of another width": ("add.s64 %r1, %rd10, %rd10;", "the instruction says"),
    "a predicate for a number": ("setp.lt.u32 %p1, %r50, 5; add.s32 %r1, %r50, %p1;", "the instruction says"),
    "a float immediate for an integer": ("add.s32 %r1, %r50, 0f3F800000;", "immediate"),
    "an integer immediate for a float": ("mov.b32 %r1, 0; add.rn.f32 %r2, %r1, 1;", "immediate"),
    "an immediate that does not fit": ("add.s32 %r1, %r50, 4294967296;", "immediate"),
    "memory past the end": ("ld.global.b32 %r1, [%rd10+256];", "outside"),
    "memory before the start": ("ld.global.b32 %r1, [%rd10+-4];", "outside"),
    "half of a word past the end": ("ld.global.b64 %rd1, [%rd10+248]; ld.global.b64 %rd1, [%rd10+256];", "outside"),
    "an address off its alignment": ("ld.global.b32 %r1, [%rd10+2];", "multiple of 4"),
    "a vector off its alignment": ("ld.global.v2.b32 {%r1, %r2}, [%rd10+4];", "multiple of 8"),
    "no pointer at all": ("mov.b64 %rd1, 64; ld.global.b32 %r1, [%rd1];", "in no buffer"),
    "a store to what is only read": ("st.global.b32 [%rd11], %r50;", "only read"),
    "two threads, one place": ("st.global.b32 [%rd10], %r50;", "different values"),
    "what another thread wrote": (
        "mad.wide.u32 %rd1, %r50, 4, %rd10; st.global.b32 [%rd1], %r50; ld.global.b32 %r1, [%rd10];",
        "another one wrote"),
    "shared memory past the end": (SHARED + "ld.shared.b32 %r1, [%r42+4096];", "outside"),
    "shared memory never written": (SHARED + "ld.shared.b32 %r1, [%r42]; add.s32 %r2, %r1, 1;", "before it is written"),
    "no barrier": (SHARED + "st.shared.b32 [%r42], %r50; ld.shared.b32 %r1, [%r43];", "race"),
    "no second barrier": (
        SHARED + "st.shared.b32 [%r42], %r50; bar.sync 0; ld.shared.b32 %r1, [%r43]; st.shared.b32 [%r42], %r1;",
        "race"),
    "a barrier for some": (
        "setp.lt.u32 %p1, %r50, 5; @%p1 bra $L1; bar.sync 0;\n$L1: mov.b32 %r1, 0;", "never reach"),
    "a copy not waited for": (
        SHARED + "cp.async.ca.shared.global [%r42], [%rd10], 4; cp.async.commit_group; ld.shared.b32 %r1, [%r42];",
        "not been waited for"),
    "a copy waited for by its own thread only": (
        SHARED + "cp.async.ca.shared.global [%r42], [%rd10], 4; cp.async.commit_group; cp.async.wait_group 0; "
        "ld.shared.b32 %r1, [%r43];", "race"),
    "a copy left under way": (SHARED + "cp.async.ca.shared.global [%r42], [%rd10], 4;", "under way"),
    "a shuffle in half a warp": (
        "setp.lt.u32 %p1, %r50, 5; @%p1 shfl.sync.bfly.b32 %r1, %r50, 1, 31, -1;", "part of the warp"),
    "a loop without an end": ("$L1: bra $L1;", "no end"),
    "a label that is not there": ("bra $L9;", "label"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_what_must_fault(name: str) -> None:
    body, message = FAULTS[name]
    only_read = np.zeros(64, np.uint32)
    only_read.flags.writeable = False
    with pytest.raises(PtxFault, match=message):
        launch(body, np.zeros(64, np.uint32), only_read)


def test_what_must_not_fault() -> None:
    """The same with its barriers: words exchanged through shared memory, by cp.async too."""
    x, out = words(64), np.zeros(64, np.uint32)
    body = SHARED + "mad.wide.u32 %rd1, %r50, 4, %rd10; cp.async.ca.shared.global [%r42], [%rd1], 4;"
    body += "cp.async.commit_group; cp.async.wait_group 0; bar.sync 0; ld.shared.b32 %r1, [%r43]; bar.sync 0;"
    body += "st.shared.b32 [%r42], %r1; bar.sync 0; ld.shared.b32 %r2, [%r42];" + per_thread("st", "%r2", 1)
    launch(body, x, out)
    assert (out == x[::-1]).all()


def test_split_threads_meet_again() -> None:
    """Each thread goes round as often as its number, then all reach one barrier."""
    out = np.zeros(64, np.uint32)
    body = "mov.b32 %r1, 0; mov.b32 %r2, 0;\n$L1: setp.ge.u32 %p1, %r1, %r50; @%p1 bra $L2; add.s32 %r1, %r1, 1;"
    body += "add.s32 %r2, %r2, %r1; bra.uni $L1;\n$L2: bar.sync 0;" + per_thread("st", "%r2", 0)
    launch(body, out)
    assert out.tolist() == [i * (i + 1) // 2 for i in range(64)]
