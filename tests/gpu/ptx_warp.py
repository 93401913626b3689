"""Instructions of a whole warp: shuffles, votes, reductions, ldmatrix, stmatrix and the matrix products.

Lanes are [warps, 32]. All 32 threads of a warp must arrive together; a warp that is split faults.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpu.ptx_conversions import bf16_to_f32
from gpu.ptx_moves import Action, addresses, count
from gpu.ptx_parser import Immediate, Instruction, Operand, Pair, PtxFault, Sink, Vector
from gpu.ptx_registers import Array, Mask, constant

if TYPE_CHECKING:
    from gpu.ptx_executor import Machine

__all__ = ["WARP", "product_f16", "product_s8"]


def _whole_warps(machine: Machine, mask: Mask) -> Array:
    """Numbers of the warps that take part."""
    if mask is None:
        return np.arange(machine.lanes // 32)
    by_warp = mask.reshape(-1, 32)
    if (by_warp.any(axis=1) != by_warp.all(axis=1)).any():
        raise PtxFault("a warp-wide instruction with a part of the warp's threads")
    return np.flatnonzero(by_warp.all(axis=1))


def _all_members(operand: Operand) -> None:
    if not isinstance(operand, Immediate) or constant(operand.text, "u32") != 0xFFFFFFFF:
        raise PtxFault(f"member mask {operand}; expected all 32 threads")


def _fixed(operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise PtxFault(f"{operand} where a constant is expected")
    return int(constant(operand.text, "u32"))


def shuffle(machine: Machine, instruction: Instruction) -> Action:
    """shfl.sync: lane i takes from lane j of its segment; where j is outside, it keeps its own and the flag is 0."""
    count(instruction, 5)
    found = re.fullmatch(r"shfl\.sync\.(bfly|up|down|idx)\.b32", instruction.opcode)
    if not found:
        raise PtxFault("this form of shfl is unknown")
    target, source, lane, clamp, members = instruction.operands
    _all_members(members)
    flag: Operand = Sink()
    if isinstance(target, Pair):
        target, flag = target.first, target.second
    write, write_flag = machine.registers.writer(target, "b32"), machine.registers.writer(flag, "pred")
    read, by, bound = machine.registers.reader(source, "b32"), machine.registers.reader(lane, "u32"), _fixed(clamp)
    mode, own = found[1], machine.all_lanes % 32
    segment, limit = (bound >> 8) & 31, bound & 31
    low = own & segment
    high = low | (limit & ~segment)

    def run(mask: Mask) -> None:
        _whole_warps(machine, mask)
        step = by(mask).astype(np.int64) & 31
        wanted = {"bfly": own ^ step, "up": own - step, "down": own + step, "idx": low | (step & ~segment)}[mode]
        inside = wanted >= high if mode == "up" else wanted <= high
        value = read(mask)
        write(value[machine.all_lanes - own + np.where(inside, wanted, own)], mask)
        write_flag(inside, mask)

    return run


def reduce(machine: Machine, instruction: Instruction) -> Action:
    count(instruction, 3)
    found = re.fullmatch(r"redux\.sync\.(add|min|max|and|or|xor)\.([sub]32)", instruction.opcode)
    if not found or (found[2] == "b32") != (found[1] in ("and", "or", "xor")):
        raise PtxFault("this form of redux is unknown")
    members = machine.registers.reader(instruction.operands[2], "u32")
    write = machine.registers.writer(instruction.operands[0], found[2])
    read = machine.registers.reader(instruction.operands[1], found[2])
    fold = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
            "xor": np.bitwise_xor}[found[1]]  # fmt: skip

    def run(mask: Mask) -> None:
        _whole_warps(machine, mask)
        if (members(mask) != 0xFFFFFFFF).any():
            raise PtxFault("a member mask without all 32 threads")
        value = read(mask)
        write(np.repeat(fold.reduce(value.reshape(-1, 32), axis=1, dtype=value.dtype), 32), mask)

    return run


def vote(machine: Machine, instruction: Instruction) -> Action:
    count(instruction, 3)
    mode = {"vote.sync.ballot.b32": "ballot", "vote.sync.any.pred": "any", "vote.sync.all.pred": "all"}
    if instruction.opcode not in mode:
        raise PtxFault("this form of vote is unknown")
    how = mode[instruction.opcode]
    _all_members(instruction.operands[2])
    write = machine.registers.writer(instruction.operands[0], "b32" if how == "ballot" else "pred")
    read = machine.registers.reader(instruction.operands[1], "pred")
    weights = np.uint32(1) << np.arange(32, dtype=np.uint32)

    def run(mask: Mask) -> None:
        _whole_warps(machine, mask)
        votes = read(mask).reshape(-1, 32)
        found = {"ballot": lambda: (votes * weights).sum(axis=1, dtype=np.uint32), "any": lambda: votes.any(axis=1),
                 "all": lambda: votes.all(axis=1)}[how]()  # fmt: skip
        write(np.repeat(found, 32), mask)

    return run


def warp_barrier(machine: Machine, instruction: Instruction) -> Action:
    count(instruction, 1)
    _all_members(instruction.operands[0])

    def run(mask: Mask) -> None:
        warps = _whole_warps(machine, mask)
        machine.shared.warp_time.reshape(-1, 32)[warps] += 1

    return run


_MATRIX = re.compile(r"(ldmatrix|stmatrix)\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared\.b16")


def matrix_access(machine: Machine, instruction: Instruction) -> Action:
    """Thread 8 j + r names row r (8 elements of 16 bits) of matrix j; thread t holds elements 2 (t % 4) and the next of
    row t / 4 of each, or, with .trans, of column t / 4."""
    count(instruction, 2)
    found = _MATRIX.fullmatch(instruction.opcode)
    if not found:
        raise PtxFault("this form of ldmatrix or stmatrix is unknown")
    is_load, many, transposed = found[1] == "ldmatrix", int(found[2]), bool(found[3])
    registers, place = instruction.operands if is_load else instruction.operands[::-1]
    if not isinstance(registers, Vector) or len(registers.parts) != many:
        raise PtxFault(f"{registers} for {many} matrices")
    at = addresses(machine, place, "shared")
    writes = [machine.registers.writer(p, "b32") for p in registers.parts] if is_load else []
    reads = [] if is_load else [machine.registers.reader(p, "b32") for p in registers.parts]

    def rows(mask: Mask) -> tuple[Array, Array, Array]:
        warps = _whole_warps(machine, mask)
        lanes = (warps[:, None] * 32 + np.arange(8 * many)).reshape(-1)
        first = at(mask)[lanes]
        machine.aligned("shared", first, 16)
        return warps, np.repeat(lanes, 4), (first[:, None] + np.uint64(4) * np.arange(4, dtype=np.uint64)).reshape(-1)

    def load(mask: Mask) -> None:
        warps, lanes, words_at = rows(mask)
        words, known = machine.shared.load(words_at, 4, lanes)
        if not known.all():
            raise PtxFault("ldmatrix of shared memory that was never written")
        halves = words.view(np.uint16).reshape(len(warps), many, 8, 8)
        halves = halves.swapaxes(2, 3) if transposed else halves
        for j, write in enumerate(writes):
            out = np.zeros((machine.lanes // 32, 32), np.uint32)
            out[warps] = np.ascontiguousarray(halves[:, j]).view(np.uint32).reshape(-1, 32)
            write(out.reshape(-1), mask)

    def store(mask: Mask) -> None:
        warps, lanes, words_at = rows(mask)
        held = [read(mask).reshape(-1, 32)[warps].view(np.uint16).reshape(-1, 8, 8) for read in reads]
        halves = np.stack([h.swapaxes(1, 2) if transposed else h for h in held], axis=1)
        machine.shared.store(words_at, np.ascontiguousarray(halves).view(np.uint32).reshape(-1), lanes)

    return load if is_load else store


def product_s8(a: Array, b: Array, c: Array, *, saturate: bool) -> Array:
    """d = a b + c of m16n8k(8 r): registers [2 r / 2 .., warps, 32] of four s8, c and d [4, warps, 32] of s32.

    Register i of thread t = 4 g + u has a[g + 8 (i % 2)][4 u + 16 (i / 2) ..], b[4 u + 16 i ..][g] and
    c[g + 8 (i / 2)][2 u + i % 2].
    """
    halves, warps = len(b), a.shape[1]
    left = a.view(np.int8).reshape(halves, 2, warps, 8, 4, 4).transpose(2, 1, 3, 0, 4, 5).reshape(warps, 16, -1)
    right = b.view(np.int8).reshape(halves, warps, 8, 4, 4).transpose(1, 2, 0, 3, 4).reshape(warps, 8, -1)
    sums = _gather(c).astype(np.int64) + np.matmul(
        left.astype(np.float64), right.astype(np.float64).swapaxes(1, 2)
    ).astype(np.int64)
    if saturate:
        sums = np.clip(sums, -(2**31), 2**31 - 1)
    return _scatter(sums.astype(np.int32))


def product_f16(a: Array, b: Array, c: Array, *, bf16: bool) -> Array:
    """d = a b + c of m16n8k16: registers of two f16 or bf16, c and d f32. The sum is taken in f64 and rounded once:
    hardware adds in an order and a precision of its own, so only sums that are exact are equal to its bits."""

    def widen(raw: Array) -> Array:
        return (bf16_to_f32(raw) if bf16 else raw.view(np.float16)).astype(np.float64)

    halves, warps = len(b), a.shape[1]
    left = (
        widen(a.view(np.uint16)).reshape(halves, 2, warps, 8, 4, 2).transpose(2, 1, 3, 0, 4, 5).reshape(warps, 16, -1)
    )
    right = widen(b.view(np.uint16)).reshape(halves, warps, 8, 4, 2).transpose(1, 2, 0, 3, 4).reshape(warps, 8, -1)
    with np.errstate(all="ignore"):
        return _scatter((_gather(c).astype(np.float64) + left @ right.swapaxes(1, 2)).astype(np.float32))


def _gather(c: Array) -> Array:
    """[4, warps, 32] registers to [warps, 16, 8] tiles."""
    warps = c.shape[1]
    return c.reshape(2, 2, warps, 8, 4).transpose(2, 0, 3, 4, 1).reshape(warps, 16, 8)


def _scatter(d: Array) -> Array:
    warps = len(d)
    return np.ascontiguousarray(d.reshape(warps, 2, 8, 4, 2).transpose(1, 4, 0, 2, 3)).reshape(4, warps, 32)


_PRODUCT = re.compile(
    r"mma\.sync\.aligned\.m16n8k(\d+)\.row\.col(\.satfinite)?\.([a-z0-9]+\.[a-z0-9]+\.[a-z0-9]+\.[a-z0-9]+)"
)


def matrix_product(machine: Machine, instruction: Instruction) -> Action:
    count(instruction, 4)
    found = _PRODUCT.fullmatch(instruction.opcode)
    shapes = {("16", "s32.s8.s8.s32"): (2, 1), ("32", "s32.s8.s8.s32"): (4, 2), ("16", "f32.f16.f16.f32"): (4, 2),
              ("8", "f32.f16.f16.f32"): (2, 1), ("16", "f32.bf16.bf16.f32"): (4, 2)}  # fmt: skip
    if not found or (found[1], found[3]) not in shapes or (found[2] and found[3][0] == "f"):
        raise PtxFault("this form of mma is unknown")
    of_a, of_b = shapes[found[1], found[3]]
    kind = found[3][:3]
    vectors = []
    for operand, wanted in zip(instruction.operands, (4, of_a, of_b, 4), strict=True):
        if not isinstance(operand, Vector) or len(operand.parts) != wanted:
            raise PtxFault(f"{operand} where {wanted} registers are expected")
        vectors.append(operand.parts)
    writes = [machine.registers.writer(p, kind) for p in vectors[0]]
    reads_a, reads_b = ([machine.registers.reader(p, "b32") for p in parts] for parts in vectors[1:3])
    reads_c = [machine.registers.reader(p, kind) for p in vectors[3]]

    def run(mask: Mask) -> None:
        warps = _whole_warps(machine, mask)
        a, b, c = (
            np.stack([read(mask).reshape(-1, 32)[warps] for read in reads]) for reads in (reads_a, reads_b, reads_c)
        )
        d = (
            product_s8(a, b, c, saturate=bool(found[2]))
            if kind == "s32"
            else product_f16(a, b, c, bf16="bf16" in found[3])
        )
        for write, row in zip(writes, d, strict=True):
            out = np.zeros((machine.lanes // 32, 32), row.dtype)
            out[warps] = row
            write(out.reshape(-1), mask)

    return run


WARP: dict[str, Callable[[Machine, Instruction], Action]] = {
    "shfl": shuffle, "redux": reduce, "vote": vote, "bar.warp.sync": warp_barrier, "ldmatrix": matrix_access,
    "stmatrix": matrix_access, "mma": matrix_product,
}  # fmt: skip
