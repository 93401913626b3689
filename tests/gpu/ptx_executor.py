"""Runs the PTX of one kernel on the CPU, in NumPy, and faults on everything that is not surely right.

    out = np.zeros(n, np.int8)
    run(ptx, grid=(4,), arguments=[x, scale, out, n], shared_bytes=0)

All threads of many blocks step together, a column each. Every thread has its own place in the program; those at the
lowest place go first, so split threads meet again. Faults (PtxFault): an instruction, modifier or operand that is not
known exactly; a register read before it is written or at another width; memory outside of an argument or not aligned;
races in shared and global memory; a barrier or a warp-wide instruction that some threads do not reach; no end.
Arrays are arguments by reference; those that NumPy says are read-only must not be written.
Not covered: wgmma, tcgen05, the rounding order inside a float matrix product, and what ptxas makes of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu.ptx_conversions import CONVERSIONS
from gpu.ptx_floats import FLOATS, MAY_CONTRACT, THREE_INPUTS, TWO_RESULTS
from gpu.ptx_integers import INTEGERS, Form
from gpu.ptx_memory import SHARED_BASE, GlobalMemory, SharedMemory
from gpu.ptx_moves import MOVES, Action, count, load_parameter
from gpu.ptx_parser import Immediate, Instruction, Kernel, Pair, PtxFault, Symbol, parse
from gpu.ptx_registers import NUMPY, Array, Mask, Registers, constant
from gpu.ptx_warp import WARP

__all__ = ["Machine", "decode", "run"]

_BARRIER, _DONE = 1 << 40, 1 << 41  # places in the program of threads that wait, and of those that are through
_LANES = 4096  # threads that step together
_FORMS = {**INTEGERS, **FLOATS, **CONVERSIONS}
_DECODERS = {**WARP, **MOVES}


class Machine:
    """Some blocks of a launch, with all their threads."""

    def __init__(self, kernel: Kernel, grid: tuple[int, int, int], blocks: Array, memory: GlobalMemory,
                 parameters: dict[str, int], shared_bytes: int, contraction: bool) -> None:  # fmt: skip
        self.contraction = contraction
        self.kernel, self.grid, self.memory, self.values = kernel, grid, memory, parameters
        self.lanes = len(blocks) * kernel.threads
        self.all_lanes = np.arange(self.lanes)
        self.block = np.repeat(blocks, kernel.threads)
        self.thread = np.tile(np.arange(kernel.threads), len(blocks))
        self.threads = self.block * kernel.threads + self.thread
        self.registers = Registers(kernel, self.lanes)
        self.shared = SharedMemory(len(blocks), shared_bytes, self.lanes)
        self.copies: list[tuple[Array, Array, Array]] = []  # places, lanes, the group of each
        self.commits = np.zeros(self.lanes, np.int64)
        self.after = np.zeros(self.lanes, np.int64)  # where a thread at a barrier goes on
        self.guards = [self.registers.reader(i.guard, "pred") if i.guard else None for i in kernel.instructions]
        self.actions = [self._decode(i) for i in kernel.instructions]

    def _decode(self, instruction: Instruction) -> Action | str:
        """What an instruction does to its active lanes; a name for those that move threads about."""
        opcode = instruction.opcode
        try:
            if opcode in ("bra", "bra.uni"):
                count(instruction, 1)
                if self.registers.symbol(instruction.operands[0]) not in self.kernel.labels:
                    raise PtxFault("no such label")
                return "branch"
            if opcode in ("ret", "exit"):
                count(instruction, 0)
                return "end"
            if opcode in ("bar.sync", "barrier.sync"):
                count(instruction, 1)
                if instruction.text.split()[-1] != "0" or instruction.guard:
                    raise PtxFault("only barrier 0, without a condition")
                return "barrier"
            tables = (_FORMS, THREE_INPUTS, MAY_CONTRACT if self.contraction else {})
            forms = [form for table in tables if (form := table.get(opcode))]
            for form in forms:
                if len(instruction.operands) == len(form.sources) + 1:
                    return self._arithmetic(instruction, form)
            if forms:
                raise PtxFault(f"{len(instruction.operands)} operands; expected {len(forms[0].sources) + 1}")
            if opcode in TWO_RESULTS:
                return self._two_results(instruction)
            prefix = ".".join(opcode.split(".")[: 3 if opcode.startswith("bar.") else 1])
            decoder = load_parameter if opcode.startswith("ld.param.") else _DECODERS.get(prefix)
            if decoder is None:
                raise PtxFault("this instruction is unknown")
            return decoder(self, instruction)
        except PtxFault as fault:
            raise PtxFault(f"line {instruction.line}: {instruction.text}: {fault}") from None

    def _arithmetic(self, instruction: Instruction, form: Form) -> Action:
        target, *sources = instruction.operands
        if form is THREE_INPUTS.get(instruction.opcode) and int(self.kernel.target[3:].rstrip("af")) < 100:
            raise PtxFault("three inputs need sm_100")
        function = form.function
        unused = unused_sources(instruction)
        reads = [
            self.registers.reader(source, kind, wider=form.wider, unused=i in unused)
            for i, (source, kind) in enumerate(zip(sources, form.sources, strict=True))
        ]
        write = self.registers.writer(target, form.result, wider=form.wider)
        if len(reads) == 1:
            one = reads[0]
            return lambda mask: write(function(one(mask)), mask)
        if len(reads) == 2:
            first, second = reads
            return lambda mask: write(function(first(mask), second(mask)), mask)
        return lambda mask: write(function(*[read(mask) for read in reads]), mask)

    def _two_results(self, instruction: Instruction) -> Action:
        count(instruction, 3)
        target, *sources = instruction.operands
        if not isinstance(target, Pair):
            raise PtxFault("two results are expected")
        function = TWO_RESULTS[instruction.opcode]
        first, second = (self.registers.writer(p, "pred") for p in (target.first, target.second))
        a, b = (self.registers.reader(s, "b32") for s in sources)

        def run(mask: Mask) -> None:
            low, high = function(a(mask), b(mask))
            first(low, mask)
            second(high, mask)

        return run

    def special(self, name: str, kind: str) -> Array:
        """The value of %tid.x and its like, or the address of a shared array."""
        x, y, z = self.grid
        known: dict[str, Any] = {
            "%tid.x": self.thread, "%tid.y": 0, "%tid.z": 0, "%ntid.x": self.kernel.threads, "%ntid.y": 1, "%ntid.z": 1,
            "%ctaid.x": self.block % x, "%ctaid.y": self.block // x % y, "%ctaid.z": self.block // (x * y),
            "%nctaid.x": x, "%nctaid.y": y, "%nctaid.z": z, "%laneid": self.thread % 32,
        }  # fmt: skip
        if name in known and kind in ("u32", "b32"):
            return np.broadcast_to(np.asarray(known[name], np.uint32), self.lanes)
        if name in self.kernel.shared and kind in ("u32", "b32", "u64", "b64"):
            return np.broadcast_to(np.asarray(SHARED_BASE, NUMPY[kind]), self.lanes)
        raise PtxFault(f"{name} read as .{kind}")

    def parameter(self, name: str, bits: int) -> int:
        for parameter in self.kernel.parameters:
            if parameter.name == name and parameter.bits == bits:
                return self.values[name]
        raise PtxFault(f"no parameter {name} of {bits} bits")

    def aligned(self, space: str, addresses: Array, width: int) -> None:
        if (addresses & np.uint64(width - 1)).any():
            raise PtxFault(f"{space} access of {width} bytes at an address that is not a multiple of {width}")

    # ---- cp.async: each thread's groups end in the order it committed them in -----------------------------
    def begin_copies(self, addresses: Array, data: Array, lanes: Array) -> None:
        self.copies.append((self.shared.copy_begins(addresses, data, lanes), lanes, self.commits[lanes]))

    def commit_copies(self, mask: Mask) -> None:
        self.commits[slice(None) if mask is None else mask] += 1

    def wait_copies(self, mask: Mask, keep: int) -> None:
        """Ends all groups but the last `keep`; -1: what is not committed too."""
        left = []
        for touched, lanes, group in self.copies:
            ends = group < self.commits[lanes] - keep
            ends = ends if mask is None else ends & mask[lanes]
            self.shared.copy_ends(touched[ends], lanes[ends])
            if not ends.all():
                left.append((touched[~ends], lanes[~ends], group[~ends]))
        self.copies = left

    # ---- threads ------------------------------------------------------------------------------------------
    def execute(self, most: int) -> None:
        """Until every thread is through; faults after `most` instructions."""
        places = np.zeros(self.lanes, np.int64)
        steps = 0
        while (place := int(places.min())) < _DONE:
            if place == _BARRIER:
                self._release(places)
                continue
            active = places == place
            mask: Mask = None if active.all() else active
            stop = len(self.actions) if mask is None else int(places[~active].min())
            # those at the lowest place run until a branch, or until they meet others
            while True:
                steps += 1
                if steps > most:
                    raise PtxFault(f"no end after {most} instructions")
                if place >= len(self.actions):
                    raise PtxFault("threads run past the last instruction")
                action = self.actions[place]
                if isinstance(action, str):
                    self._go(action, place, places, active)
                    break
                self._step(action, place, mask)
                place += 1
                if place >= stop:
                    places[active] = place
                    break
        if self.copies:
            raise PtxFault("the kernel ends with cp.async under way")

    def _guarded(self, place: int, mask: Mask) -> Mask | bool:
        """The lanes whose condition holds; False where there are none."""
        guard = self.guards[place]
        if guard is None:
            return mask
        holds = guard(mask)
        if self.kernel.instructions[place].guard_negated:
            holds = ~holds
        lanes = holds if mask is None else holds & mask
        if lanes.all():
            return None
        return lanes.copy() if lanes.any() else False

    def _step(self, action: Action, place: int, mask: Mask) -> None:
        try:
            lanes = self._guarded(place, mask)
            if lanes is not False:
                action(lanes)  # type: ignore[arg-type]
        except PtxFault as fault:
            instruction = self.kernel.instructions[place]
            raise PtxFault(f"line {instruction.line}: {instruction.text}: {fault}") from None

    def _go(self, action: str, place: int, places: Array, active: Array) -> None:
        lanes = self._guarded(place, active)
        if lanes is None or lanes is True:
            lanes = active
        places[active] = place + 1
        if lanes is False:
            return
        if action == "end":
            places[lanes] = _DONE
        elif action == "branch":
            label = self.kernel.instructions[place].operands[0]
            assert isinstance(label, Symbol)
            places[lanes] = self.kernel.labels[label.name]
        else:
            places[lanes] = _BARRIER
            self.after[lanes] = place + 1

    def _release(self, places: Array) -> None:
        """Every thread waits or is through: a block whose threads all wait at one barrier goes on."""
        waiting = (places == _BARRIER).reshape(-1, self.kernel.threads)
        if (waiting.any(axis=1) != waiting.all(axis=1)).any():
            raise PtxFault("a barrier that some threads of the block never reach")
        after = self.after.reshape(waiting.shape)
        if (waiting & (after != after[:, :1])).any():
            raise PtxFault("threads of a block wait at different barriers")
        places[waiting.reshape(-1)] = self.after[waiting.reshape(-1)]
        self.shared.time += 1


def unused_sources(instruction: Instruction) -> set[int]:
    """Sources of a byte permutation that its selector takes no byte of: the compiler leaves them undefined."""
    selector = instruction.operands[-1]
    if instruction.opcode != "prmt.b32" or not isinstance(selector, Immediate):
        return set()
    taken = {int(constant(selector.text, "b32")) >> shift & 7 for shift in (0, 4, 8, 12)}
    return {source for source in (0, 1) if not any(byte // 4 == source for byte in taken)}


def decode(ptx: str) -> int:
    """The number of instructions; faults on one that is not known exactly."""
    kernel = parse(ptx)
    zeros = {p.name: 0 for p in kernel.parameters}
    return len(Machine(kernel, (1, 1, 1), np.arange(1), GlobalMemory(), zeros, 0, False).actions)


def run(
    ptx: str,
    grid: Sequence[int],
    arguments: Sequence[Any],
    *,
    shared_bytes: int = 0,
    shift: Callable[[int], int] = lambda argument: 0,
    most: int = 400_000,
    contraction: bool = False,
) -> int:
    """Runs a launch; the number of blocks. `shift` moves an argument's first byte off its alignment. `contraction`
    takes additions and products that the assembler might still contract, as they stand."""
    kernel = parse(ptx)
    memory = GlobalMemory()
    # Triton adds two pointers of its own, to scratch memory that these kernels must not touch
    missing = len(kernel.parameters) - len(arguments)
    if missing not in (0, 2):
        raise PtxFault(f"{len(arguments)} arguments for {len(kernel.parameters)} parameters")
    values: dict[str, int] = {}
    for i, parameter in enumerate(kernel.parameters):
        argument = arguments[i] if i < len(arguments) else None
        if parameter.is_pointer != (argument is None or isinstance(argument, np.ndarray)):
            raise PtxFault(f"argument {i} and {parameter}")
        if argument is None:
            values[parameter.name] = 0
        elif isinstance(argument, np.ndarray):
            values[parameter.name] = memory.add(argument, shift(i))
        elif -(1 << (parameter.bits - 1)) <= int(argument) < 1 << parameter.bits:
            values[parameter.name] = int(argument) & ((1 << parameter.bits) - 1)
        else:
            raise PtxFault(f"argument {i} does not fit {parameter}")
    if any(size is not None for size in kernel.shared.values()) or len(kernel.shared) > 1:
        raise PtxFault(f"shared arrays {kernel.shared}; expected one whose size the launch says")
    x, y, z = (*grid, 1, 1, 1)[:3]
    blocks = np.arange(x * y * z)
    together = max(1, _LANES // kernel.threads)
    for first in range(0, len(blocks), together):
        machine = Machine(
            kernel, (x, y, z), blocks[first : first + together], memory, values, shared_bytes, contraction
        )
        machine.execute(most)
    for buffer in memory.buffers.values():
        buffer.give_back()
    return len(blocks)
