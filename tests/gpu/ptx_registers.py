"""The registers of all threads that run together: one row of a table a register, one column a thread (a lane).

Registers have a width, not a type, so each use names the type it reads the bits as. A row remembers which lanes have
been written; a read of any other faults. The width of a register must be that of the type, except where PTX says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu.ptx_parser import Immediate, Kernel, Negated, Operand, PtxFault, Register, Sink, Symbol

__all__ = ["BITS", "NUMPY", "Array", "Mask", "Registers", "constant", "low_bits"]

Array = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_] | None  # None: every lane

# f16, bf16 and packed pairs stay bits; the float instructions widen them.
NUMPY: dict[str, Any] = {
    "pred": np.bool_, "b8": np.uint8, "u8": np.uint8, "s8": np.int8,
    "b16": np.uint16, "u16": np.uint16, "s16": np.int16, "f16": np.float16, "bf16": np.uint16,
    "b32": np.uint32, "u32": np.uint32, "s32": np.int32, "f32": np.float32, "f16x2": np.uint32, "bf16x2": np.uint32,
    "b64": np.uint64, "u64": np.uint64, "s64": np.int64, "f64": np.float64, "f32x2": np.uint64,
}  # fmt: skip
BITS = {name: 1 if name == "pred" else np.dtype(kind).itemsize * 8 for name, kind in NUMPY.items()}
_ROW = {"pred": np.bool_, "b8": np.uint8, "b16": np.uint16, "b32": np.uint32, "b64": np.uint64}
_REGISTER_BITS = {"pred": 1, "b8": 8, "b16": 16, "b32": 32, "b64": 64}
_UNSIGNED = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
Read = Callable[[Mask], Array]
Write = Callable[[Array, Mask], None]


def constant(text: str, kind: str) -> Any:
    """An immediate as one value of a type; faults where it does not fit."""
    if text.startswith(("0f", "0d")):
        bits, value = (32, np.uint32(int(text[2:], 16))) if text[1] == "f" else (64, np.uint64(int(text[2:], 16)))
        if BITS[kind] != bits or kind[0] in "su":
            raise PtxFault(f"immediate {text} read as .{kind}")
        return np.array(value).view(NUMPY[kind])[()]
    value = int(text.rstrip("U"), 0)
    if kind == "pred" and value in (0, 1, -1):
        return np.bool_(value != 0)
    bits = BITS[kind]
    if kind[0] == "f" or "x2" in kind or kind == "pred" or not -(1 << (bits - 1)) <= value < (1 << bits):
        raise PtxFault(f"immediate {text} read as .{kind}")
    return np.array(value & ((1 << bits) - 1), _UNSIGNED[bits]).view(NUMPY[kind])[()]


def low_bits(row: Array, kind: str) -> Array:
    """The low bits of a wider row, as a type."""
    return row.astype(_UNSIGNED[BITS[kind]]).view(NUMPY[kind])


class Registers:
    """Rows of every register of a kernel."""

    def __init__(self, kernel: Kernel, lanes: int) -> None:
        self.lanes = lanes
        self.kinds = kernel.registers
        self.constants: dict[tuple[str, str], Array] = {}
        self.rows: dict[str, Array] = {name: np.zeros(lanes, _ROW[kind]) for name, kind in self.kinds.items()}
        # True once all lanes are written; until then a mask of those that are
        self.written: dict[str, Any] = {name: np.zeros(lanes, bool) for name in self.kinds}

    def constant(self, text: str, kind: str) -> Array:
        """An immediate in every lane."""
        if (text, kind) not in self.constants:
            self.constants[text, kind] = np.full(self.lanes, constant(text, kind), NUMPY[kind])
        return self.constants[text, kind]

    def check(self, name: str, mask: Mask) -> None:
        state = self.written[name]
        if state is not True and not (state.all() if mask is None else state[mask].all()):
            raise PtxFault(f"{name} is read before it is written")

    def mark(self, name: str, mask: Mask) -> None:
        if mask is None:
            self.written[name] = True
        elif self.written[name] is not True:
            self.written[name] = self.written[name] | mask

    def unmark(self, name: str, lanes: Array) -> None:
        """Lanes hold nothing: what was loaded had not been written."""
        state = self.written[name]
        self.written[name] = (np.ones(self.lanes, bool) if state is True else state) & ~lanes

    def width(self, operand: Register, kind: str, *, wider: bool) -> None:
        have, want = _REGISTER_BITS[self.kinds[operand.name]], BITS[kind]
        if (have == 1) != (want == 1) or not (have == want or (wider and have > want and "f" not in kind)):
            raise PtxFault(f"{operand.name} is .{self.kinds[operand.name]}, the instruction says .{kind}")

    def reader(self, operand: Operand, kind: str, *, wider: bool = False, unused: bool = False) -> Read:
        """A function that gives an operand's value in every lane; faults where an active lane was never written, unless
        the value cannot matter."""
        if isinstance(operand, Immediate):
            value = self.constant(operand.text, kind)
            return lambda mask: value
        if isinstance(operand, Negated) and kind == "pred":
            inner = self.reader(operand.register, kind)
            return lambda mask: ~inner(mask)
        if not isinstance(operand, Register):
            raise PtxFault(f"{operand} where a value of .{kind} is read")
        self.width(operand, kind, wider=wider)
        name, row, written = operand.name, self.rows[operand.name], self.written
        if _REGISTER_BITS[self.kinds[name]] > BITS[kind]:

            def read_low(mask: Mask) -> Array:
                self.check(name, mask)
                return low_bits(row, kind)

            return read_low
        typed = row.view(NUMPY[kind])
        if unused:
            return lambda mask: typed

        def read(mask: Mask) -> Array:
            if written[name] is not True:
                self.check(name, mask)
            return typed

        return read

    def writer(self, operand: Operand, kind: str, *, wider: bool = False) -> Write:
        """A function that sets an operand in the lanes of a mask; a wider register is sign- or zero-extended into."""
        if isinstance(operand, Sink):
            return lambda value, mask: None
        if not isinstance(operand, Register):
            raise PtxFault(f"{operand} where a result of .{kind} is written")
        self.width(operand, kind, wider=wider)
        name, row = operand.name, self.rows[operand.name]
        have = _REGISTER_BITS[self.kinds[name]]
        extended = np.dtype(f"i{have // 8}") if have > BITS[kind] and kind[0] == "s" else row.dtype
        typed = row.view(extended if have > BITS[kind] else NUMPY[kind])
        written = self.written

        def write(value: Array, mask: Mask) -> None:
            if have == BITS[kind] and value.dtype != typed.dtype:
                raise TypeError(f"{value.dtype} for a result of .{kind}")  # a fault of the executor
            if mask is None:
                typed[...] = value
                written[name] = True
            else:
                np.copyto(typed, value, where=mask, casting="unsafe")
                self.mark(name, mask)

        return write

    def symbol(self, operand: Operand) -> str:
        if not isinstance(operand, Symbol):
            raise PtxFault(f"{operand} where a name is expected")
        return operand.name
