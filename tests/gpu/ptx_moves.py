"""Instructions that move data: mov, ld, st, atom, cp.async; each is decoded once, to a function of active lanes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpu.ptx_memory import SHARED_BASE
from gpu.ptx_parser import Address, Immediate, Instruction, Operand, PtxFault, Register, Sink, Symbol, Vector
from gpu.ptx_registers import BITS, NUMPY, Array, Mask, low_bits

if TYPE_CHECKING:
    from gpu.ptx_executor import Machine

__all__ = ["MOVES", "Action", "addresses", "count", "load_parameter"]

Action = Callable[[Mask], None]
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def count(instruction: Instruction, *allowed: int) -> None:
    if len(instruction.operands) not in allowed:
        raise PtxFault(f"{len(instruction.operands)} operands; expected {' or '.join(map(str, allowed))}")


def _selected(machine: Machine, mask: Mask) -> Array:
    return machine.all_lanes if mask is None else np.flatnonzero(mask)


def addresses(machine: Machine, operand: Operand, space: str) -> Callable[[Mask], Array]:
    """The address in each lane: 64-bit registers for global memory, 32-bit ones or names for shared memory."""
    if not isinstance(operand, Address):
        raise PtxFault(f"{operand} where an address is expected")
    offset = np.uint64(operand.offset & (1 << 64) - 1)
    if isinstance(operand.base, Symbol):
        if space != "shared" or operand.base.name not in machine.kernel.shared:
            raise PtxFault(f"no {space} array {operand.base.name}")
        fixed = np.full(machine.lanes, SHARED_BASE + operand.offset, np.uint64)
        return lambda mask: fixed
    read = machine.registers.reader(operand.base, "u64" if space == "global" else "u32")
    if space == "global":
        return lambda mask: read(mask) + offset
    return lambda mask: ((read(mask).astype(np.uint64) + offset) & np.uint64(0xFFFFFFFF)).astype(np.uint64)


def _parts(operand: Operand, wanted: int) -> tuple[Operand, ...]:
    """Registers of a vector operand; one may stand with or without braces."""
    parts = operand.parts if isinstance(operand, Vector) else (operand,)
    if len(parts) != wanted:
        raise PtxFault(f"{len(parts)} registers for a vector of {wanted}")
    return parts


def move(machine: Machine, instruction: Instruction) -> Action:
    count(instruction, 2)
    found = re.fullmatch(r"mov\.(pred|[bus](?:16|32|64)|f32|f64)", instruction.opcode)
    if not found:
        raise PtxFault("this form of mov is unknown")
    kind, (target, source) = found[1], instruction.operands
    if isinstance(target, Vector) or isinstance(source, Vector):
        return _repack(machine, kind, target, source)
    write = machine.registers.writer(target, kind)
    if isinstance(source, Symbol):
        value = machine.special(source.name, kind)
        return lambda mask: write(value, mask)
    read = machine.registers.reader(source, kind)
    return lambda mask: write(read(mask), mask)


def _repack(machine: Machine, kind: str, target: Operand, source: Operand) -> Action:
    """mov.b64 {a, b}, c and mov.b64 c, {a, b}: the first part is the low one."""
    inner = target if isinstance(target, Vector) else source
    if kind[0] != "b" or not isinstance(inner, Vector) or (isinstance(target, Vector) and isinstance(source, Vector)):
        raise PtxFault("mov of a vector is between one .b register and its parts")
    each = BITS[kind] // len(inner.parts)
    part = f"b{each}"
    if each * len(inner.parts) != BITS[kind] or part not in ("b8", "b16", "b32"):
        raise PtxFault(f"{len(inner.parts)} parts of .{kind}")
    whole = _UNSIGNED[BITS[kind]]
    shifts = [whole(each * i) for i in range(len(inner.parts))]
    if isinstance(target, Vector):
        read = machine.registers.reader(source, kind)
        writes = [machine.registers.writer(p, part) for p in inner.parts]

        def unpack(mask: Mask) -> None:
            value = read(mask)
            for write, shift in zip(writes, shifts, strict=True):
                write(low_bits(value >> shift, part), mask)

        return unpack
    reads = [machine.registers.reader(p, part) for p in inner.parts]
    write_whole = machine.registers.writer(target, kind)

    def pack(mask: Mask) -> None:
        value = np.zeros(machine.lanes, whole)
        for one, shift in zip(reads, shifts, strict=True):
            value |= one(mask).astype(whole) << shift
        write_whole(value, mask)

    return pack


_ACCESS = re.compile(r"(ld|st)\.(global|shared)(?:\.v([24]))?\.([busf])(8|16|32|64)")


def load_parameter(machine: Machine, instruction: Instruction) -> Action:
    count(instruction, 2)
    found = re.fullmatch(r"ld\.param\.([bus](?:32|64))", instruction.opcode)
    target, source = instruction.operands
    if not found or not isinstance(source, Address) or not isinstance(source.base, Symbol) or source.offset:
        raise PtxFault("this form of ld.param is unknown")
    value = machine.parameter(source.base.name, BITS[found[1]])
    write = machine.registers.writer(target, found[1], wider=True)
    row = np.full(machine.lanes, value, np.uint64).astype(_UNSIGNED[BITS[found[1]]]).view(NUMPY[found[1]])
    return lambda mask: write(row, mask)


def load(machine: Machine, instruction: Instruction) -> Action:
    count(instruction, 2)
    found = _ACCESS.fullmatch(instruction.opcode)
    if not found or found[1] != "ld":
        raise PtxFault("this form of ld is unknown")
    space, many, kind = found[2], int(found[3] or 1), found[4] + found[5]
    width = BITS[kind] // 8
    targets = _parts(instruction.operands[0], many)
    writes = [machine.registers.writer(t, kind, wider=True) for t in targets]
    at = addresses(machine, instruction.operands[1], space)
    out = np.zeros(machine.lanes, NUMPY[kind])

    def run(mask: Mask) -> None:
        lanes = _selected(machine, mask)
        first = at(mask)[lanes]
        machine.aligned(space, first, width * many)
        for i, (target, write) in enumerate(zip(targets, writes, strict=True)):
            place = first + np.uint64(i * width)
            if space == "global":
                words = machine.memory.load(place, width, machine.threads[lanes])
                known = None
            else:
                words, known = machine.shared.load(place, width, lanes)
            out[lanes] = words.view(NUMPY[kind])
            write(out, mask)
            if known is not None and not known.all() and isinstance(target, Register):
                empty = np.zeros(machine.lanes, bool)
                empty[lanes[~known]] = True
                machine.registers.unmark(target.name, empty)

    return run


def store(machine: Machine, instruction: Instruction) -> Action:
    count(instruction, 2)
    found = _ACCESS.fullmatch(instruction.opcode)
    if not found or found[1] != "st":
        raise PtxFault("this form of st is unknown")
    space, many, kind = found[2], int(found[3] or 1), found[4] + found[5]
    width = BITS[kind] // 8
    reads = [machine.registers.reader(p, kind, wider=True) for p in _parts(instruction.operands[1], many)]
    at = addresses(machine, instruction.operands[0], space)

    def run(mask: Mask) -> None:
        lanes = _selected(machine, mask)
        first = at(mask)[lanes]
        machine.aligned(space, first, width * many)
        for i, read in enumerate(reads):
            words = read(mask)[lanes].view(_UNSIGNED[width * 8])
            place = first + np.uint64(i * width)
            if space == "global":
                machine.memory.store(place, words, machine.threads[lanes])
            else:
                machine.shared.store(place, words, lanes)

    return run


_ATOMIC = re.compile(r"(atom|red)\.global(?:\.gpu)?\.(relaxed|acq_rel)\.(add|min|max|or|exch)\.([busf](?:32|64))")


def atomic(machine: Machine, instruction: Instruction) -> Action:
    """One thread after another, in the order of their numbers."""
    found = _ATOMIC.fullmatch(instruction.opcode)
    if not found or (found[4][0] == "f" and found[3] != "add"):
        raise PtxFault("this form of atom is unknown")
    kind, gives = found[4], found[1] == "atom"
    count(instruction, 3 if gives else 2)
    target = instruction.operands[0] if gives else Sink()
    write = machine.registers.writer(target, kind)
    at = addresses(machine, instruction.operands[-2], "global")
    read = machine.registers.reader(instruction.operands[-1], kind)
    kind_np = NUMPY[kind]
    function = {"add": np.add, "min": np.minimum, "max": np.maximum, "or": np.bitwise_or, "exch": lambda a, b: b}

    def run(mask: Mask) -> None:
        lanes = _selected(machine, mask)
        values = read(mask)[lanes]

        def change(word: Array, i: int) -> Array:
            with np.errstate(all="ignore"):
                result = function[found[3]](word.view(kind_np), values[i])  # type: ignore[index]
            return np.asarray(result, kind_np).view(word.dtype)

        before = machine.memory.update(at(mask)[lanes], BITS[kind] // 8, change)
        out = np.zeros(machine.lanes, kind_np)
        out[lanes] = before.view(kind_np)
        write(out, mask)

    return run


def copy_async(machine: Machine, instruction: Instruction) -> Action:
    """cp.async: global to shared, the rest filled with zeros; the bytes are nobody's until they are waited for."""
    if instruction.opcode == "cp.async.commit_group":
        count(instruction, 0)
        return machine.commit_copies
    if instruction.opcode in ("cp.async.wait_group", "cp.async.wait_all"):
        count(instruction, 1 if instruction.opcode.endswith("group") else 0)
        keep = _number(instruction.operands[0]) if instruction.operands else -1
        return lambda mask: machine.wait_copies(mask, keep)
    if instruction.opcode not in ("cp.async.cg.shared.global", "cp.async.ca.shared.global"):
        raise PtxFault("this form of cp.async is unknown")
    count(instruction, 3, 4)
    width = _number(instruction.operands[2])
    if width not in ((16,) if ".cg." in instruction.opcode else (4, 8, 16)):
        raise PtxFault(f"cp.async of {width} bytes")
    to = addresses(machine, instruction.operands[0], "shared")
    origin = addresses(machine, instruction.operands[1], "global")
    size = machine.registers.reader(instruction.operands[3], "u32") if len(instruction.operands) == 4 else None

    def run(mask: Mask) -> None:
        lanes = _selected(machine, mask)
        lengths = size(mask)[lanes] if size else np.full(len(lanes), width, np.uint32)
        source = origin(mask)[lanes]
        data = np.zeros((len(lanes), width), np.uint8)
        if ((lengths != 0) & (lengths != width)).any():
            raise PtxFault("cp.async of a part of its bytes")
        taken = np.flatnonzero(lengths)
        if taken.size:
            machine.aligned("global", source[taken], width)
            step = min(width, 8)
            for part in range(0, width, step):
                words = machine.memory.load(source[taken] + np.uint64(part), step, machine.threads[lanes[taken]])
                data[taken, part : part + step] = words.view(np.uint8).reshape(-1, step)
        machine.begin_copies(to(mask)[lanes], data, lanes)

    return run


def _number(operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise PtxFault(f"{operand} where a constant is expected")
    return int(operand.text.rstrip("U"), 0)


MOVES: dict[str, Callable[[Machine, Instruction], Action]] = {
    "mov": move, "ld": load, "st": store, "atom": atomic, "red": atomic, "cp": copy_async,
}  # fmt: skip
