"""PTX text to a list of instructions: one kernel, its parameters, its registers. What it does not know, it refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

__all__ = ["Address", "Immediate", "Instruction", "Kernel", "Negated", "Operand", "Pair", "Parameter", "PtxFault",
           "Register", "Sink", "Symbol", "Vector", "parse"]  # fmt: skip


class PtxFault(Exception):
    """What a GPU, its assembler or a race checker would stop at."""


@dataclass(frozen=True)
class Register:
    name: str


@dataclass(frozen=True)
class Immediate:
    text: str


@dataclass(frozen=True)
class Symbol:
    name: str


@dataclass(frozen=True)
class Sink:
    """`_`: a result nobody wants."""


@dataclass(frozen=True)
class Negated:
    register: Register


@dataclass(frozen=True)
class Address:
    base: Register | Symbol
    offset: int


@dataclass(frozen=True)
class Vector:
    parts: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """`a|b`: two results."""

    first: Operand
    second: Operand


Operand = Register | Immediate | Symbol | Sink | Negated | Address | Vector | Pair


@dataclass(frozen=True)
class Instruction:
    line: int
    text: str
    guard: Register | None
    guard_negated: bool
    opcode: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Parameter:
    name: str
    bits: int
    is_pointer: bool


@dataclass
class Kernel:
    name: str
    target: str
    threads: int
    parameters: list[Parameter]
    shared: dict[str, int | None]  # bytes of each shared array; None where the launch says it
    registers: dict[str, str] = field(default_factory=dict)  # name -> pred, b8, b16, b32, b64
    instructions: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)


_WIDTH = {f"{kind}{bits}": f"b{bits}" for kind in "busf" for bits in (8, 16, 32, 64) if f"{kind}{bits}" != "f8"}
_WIDTH["pred"] = "pred"
_ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\((.*?)\)\s*((?:\.\w+[ \t]+\d+\s*)*)\{", re.S)
_PARAMETER = re.compile(r"\.param\s+\.([usbf])(32|64)\s+(\.ptr\s+\.global\s+\.align\s+\d+\s+)?(\w+)$")
_SHARED = re.compile(r"(?:\.extern\s+|\.visible\s+)?\.shared\s+\.align\s+\d+\s+\.b8\s+(\w+)\[(\d*)\];")
_LABEL = re.compile(r"\s*(\$?\w+):")
_IMMEDIATE = re.compile(r"-?\d+U?$|-?0[xX][0-9a-fA-F]+U?$|0f[0-9a-fA-F]{8}$|0d[0-9a-fA-F]{16}$")
_SPACE = re.compile(r"\s*")
_NAME = re.compile(r"[%$]?[\w.]+$")


@lru_cache(maxsize=64)
def parse(text: str) -> Kernel:
    """The only kernel of a PTX module. Nothing may change it: a text is read once."""
    text = re.sub(r"//[^\n]*", "", text)
    text = re.sub(r"^[ \t]*\.(loc|file)\b[^\n]*$", "", text, flags=re.M)
    entries = list(_ENTRY.finditer(text))
    if len(entries) != 1 or ".func" in text[: entries[0].start()]:
        raise PtxFault(f"{len(entries)} kernels; expected one, and no functions")
    entry = entries[0]
    heads = dict(re.findall(r"\.(\w+)\s+(\d+)", entry[3]))
    if set(heads) - {"reqntid", "maxntid", "minnctapersm", "maxnreg"} or "reqntid" not in heads:
        raise PtxFault(f"directives {sorted(heads)} of the kernel; expected .reqntid")
    target = re.search(r"\.target\s+(\w+)", text)
    kernel = Kernel(
        name=entry[1],
        target=target[1] if target else "",
        threads=int(heads["reqntid"]),
        parameters=[_parameter(p.strip()) for p in entry[2].split(",")],
        shared={name: int(size) if size else None for name, size in _SHARED.findall(text[: entry.start()])},
    )
    _Body(kernel, text, entry.end()).read()
    return kernel


def _parameter(text: str) -> Parameter:
    found = _PARAMETER.match(text)
    if not found:
        raise PtxFault(f"parameter {text!r}")
    return Parameter(found[4], int(found[2]), bool(found[3]))


class _Body:
    """Statements between the braces of a kernel; inner braces are scopes with registers of their own."""

    def __init__(self, kernel: Kernel, text: str, at: int) -> None:
        self.kernel, self.text, self.at = kernel, text, at
        self.scopes: list[dict[str, str]] = [{}]  # a register's name here -> its name in the kernel
        self.made = 0
        self.line, self.counted = text.count("\n", 0, at) + 1, at

    def read(self) -> None:
        while self.scopes:
            self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]
            if self.at >= len(self.text):
                raise PtxFault("the kernel has no end")
            if self.text[self.at] == "{":
                self.scopes.append({})
                self.made += 1
                self.at += 1
            elif self.text[self.at] == "}":
                self.scopes.pop()
                self.at += 1
            elif label := _LABEL.match(self.text, self.at):
                if label[1] in self.kernel.labels:
                    raise PtxFault(f"label {label[1]} twice")
                self.kernel.labels[label[1]] = len(self.kernel.instructions)
                self.at = label.end()
            else:
                end = self.text.find(";", self.at)
                if end < 0:
                    raise PtxFault("a statement without a semicolon")
                self.statement(" ".join(self.text[self.at : end].split()))
                self.at = end + 1

    def statement(self, text: str) -> None:
        if text.startswith(".reg "):
            self.declare(text)
        elif text.startswith(".pragma "):
            if not text.startswith('.pragma "used_bytes_mask'):
                raise PtxFault(f"pragma {text!r}")
        elif text:
            self.line += self.text.count("\n", self.counted, self.at)
            self.counted = self.at
            self.kernel.instructions.append(self.instruction(text, self.line))

    def declare(self, text: str) -> None:
        found = re.match(r"\.reg \.(\w+) (.*)$", text)
        if not found or found[1] not in _WIDTH:
            raise PtxFault(f"declaration {text!r}")
        for name in found[2].replace(" ", "").split(","):
            many = re.match(r"(%?\w+)<(\d+)>$", name)
            for one in [f"{many[1]}{i}" for i in range(int(many[2]))] if many else [name]:
                unique = one if len(self.scopes) == 1 else f"{one}@{self.made}"
                self.scopes[-1][one] = unique
                self.kernel.registers[unique] = _WIDTH[found[1]]

    def instruction(self, text: str, line: int) -> Instruction:
        found = re.match(r"(?:@(!?)\s*(%?\w+)\s+)?([a-z][\w.:]*)(?:\s+(.*))?$", text)
        if not found:
            raise PtxFault(f"line {line}: cannot read {text!r}")
        guard = self.register(found[2], text) if found[2] else None
        operands = tuple(self.operand(part, text) for part in _split(found[4] or ""))
        return Instruction(line, text, guard, found[1] == "!", found[3], operands)

    def register(self, name: str, text: str) -> Register:
        for scope in reversed(self.scopes):
            if name in scope:
                return Register(scope[name])
        raise PtxFault(f"no register {name} in {text!r}")

    def is_register(self, name: str) -> bool:
        return any(name in scope for scope in self.scopes)

    def operand(self, part: str, text: str) -> Operand:
        if part == "_":
            return Sink()
        if part.startswith("{") and part.endswith("}"):
            return Vector(tuple(self.operand(p, text) for p in _split(part[1:-1])))
        if part.startswith("[") and part.endswith("]"):
            return self.address(part[1:-1].replace(" ", ""), text)
        if part.startswith("!"):
            return Negated(self.register(part[1:].strip(), text))
        if "|" in part:
            first, _, second = part.partition("|")
            return Pair(self.operand(first.strip(), text), self.operand(second.strip(), text))
        if _IMMEDIATE.match(part):
            return Immediate(part)
        if self.is_register(part):
            return self.register(part, text)
        if _NAME.match(part) and not part[0].isdigit():
            return Symbol(part)
        raise PtxFault(f"operand {part!r} of {text!r}")

    def address(self, inner: str, text: str) -> Address:
        found = re.match(r"([%$]?[A-Za-z_][\w]*)(?:\+(-?\d+|-?0x[0-9a-fA-F]+))?$", inner)
        if not found:
            raise PtxFault(f"address {inner!r} of {text!r}")
        base = self.register(found[1], text) if self.is_register(found[1]) else Symbol(found[1])
        return Address(base, int(found[2] or "0", 0))


def _split(text: str) -> Iterator[str]:
    """Parts between the commas that stand outside of braces and brackets."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            yield _part(text[start:at])
            start = at + 1
    if text.strip():
        yield _part(text[start:])


def _part(text: str) -> str:
    if not text.strip():
        raise PtxFault(f"an empty operand in {text!r}")
    return text.strip()
