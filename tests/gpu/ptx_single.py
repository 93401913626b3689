"""One PTX instruction at a time: a kernel around it, a lane for each element."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu.ptx_executor import run
from gpu.ptx_registers import BITS, NUMPY

__all__ = ["RNG", "apply", "kernel", "launch", "words"]

RNG = np.random.default_rng(0)
LANES = 64


def kernel(body: str, parameters: int, *, target: str = "sm_80", threads: int = LANES) -> str:
    """A kernel of pointers p0, p1, ...: %rd1 is 4 bytes a thread from p0 on, %rd10 + i its parameter i."""
    names = ",\n".join(f".param .u64 .ptr .global .align 1 p{i}" for i in range(parameters))
    loads = "\n".join(f"ld.param.b64 %rd{10 + i}, [p{i}];" for i in range(parameters))
    return f""".version 8.8
.target {target}
.address_size 64
.extern .shared .align 16 .b8 smem[];
.visible .entry k({names})
.reqntid {threads}
{{
.reg .pred %p<9>;
.reg .b16 %rs<30>;
.reg .b32 %r<60>;
.reg .b64 %rd<60>;
{loads}
mov.u32 %r50, %tid.x;
{body}
ret;
}}
"""


def launch(body: str, *arrays: Any, target: str = "sm_80", threads: int = LANES, shared: int = 4096) -> None:
    run(kernel(body, len(arrays), target=target, threads=threads), (1,), list(arrays), shared_bytes=shared, most=5000)


_REGISTER = {1: "%p", 16: "%rs", 32: "%r", 64: "%rd"}


def apply(opcode: str, result: str, *sources: tuple[str, Any] | str, target: str = "sm_80") -> Any:
    """One instruction on a lane for each element; a source is (type, values) or an immediate."""
    arrays = [np.ascontiguousarray(s[1], NUMPY[s[0]]) for s in sources if not isinstance(s, str)]
    lanes = -(-len(arrays[0]) // 32) * 32
    out = np.zeros(lanes, NUMPY[result])
    text, names, given = [], [], []
    for i, source in enumerate(sources):
        if isinstance(source, str):
            names.append(source)
            continue
        kind, width = source[0], BITS[source[0]] // 8
        register = f"{_REGISTER[max(16, BITS[kind])]}{20 + i}"
        text.append(f"mad.wide.u32 %rd{1 + i}, %r50, {width}, %rd{10 + len(given)};")
        text.append(f"ld.global.b{width * 8} {register}, [%rd{1 + i}];")
        names.append(register)
        given.append(np.resize(arrays[len(given)], lanes))
    width = BITS[result] // 8
    target_register = f"{_REGISTER[max(16, BITS[result])]}19"
    text.append(f"{opcode} {target_register}, {', '.join(names)};")
    text.append(f"mad.wide.u32 %rd9, %r50, {width}, %rd{10 + len(given)};")
    text.append(f"st.global.b{width * 8} [%rd9], {target_register};")
    launch("\n".join(text), *given, out, target=target, threads=lanes)
    return out[: len(arrays[0])]


def words(n: int = 320) -> Any:
    edge = np.array([0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x80, 0xFF, 0x8000], np.uint32)
    return np.concatenate([edge, RNG.integers(0, 2**32, n - 8, dtype=np.uint32)])
