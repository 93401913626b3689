"""Kernels compiled for GPUs that are not there: the emitted text of a kernel, for each target.

    text = compile_case(case, "sm_80")["ptx"]
    text = compile_case(case, "gfx942")["amdgcn"]

Needs the triton wheel alone: no torch, no GPU, no CUDA or ROCm. Triton decides when a kernel is imported whether it
interprets it, so nothing can be compiled in a process that has TRITON_INTERPRET set.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lowbit.numerics.errors import InvalidProblem, Unsupported

NVIDIA = ("sm_75", "sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
AMD = ("gfx90a", "gfx942", "gfx1100")
TARGETS = (*NVIDIA, *AMD)
_WAVE = {"gfx90a": 64, "gfx942": 64, "gfx1100": 32}  # threads that step together
_NVIDIA_ASSEMBLY = re.compile(r'\basm\b[^"\n]*"[^"\n]*\w\.[subf]\d+\b')  # types after a dot are PTX's
_TEXTS = ("ttir", "ttgir", "llir", "ptx", "amdgcn")


@dataclass(frozen=True, eq=False)
class Case:
    """A kernel with all that a launch would tell the compiler.

    signature: a type for each argument that is no constant ("*i8", "*fp32", "i32", ...), or a NamedTuple of types.
    divisible: arguments that are multiples of 16, as Triton finds out by itself at a launch: pointers, mostly.
    not_on: targets it is not for, each with its reason.
    A constant named BACKEND is set to the target's backend, "cuda" or "hip", whatever the case says.
    """

    name: str
    kernel: Any
    signature: Mapping[str, Any]
    constexprs: Mapping[str, Any]
    divisible: tuple[str, ...] = ()
    num_warps: int = 4
    num_stages: int = 2
    not_on: Mapping[str, str] = field(default_factory=dict)

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(t for t in TARGETS if t not in self.not_on)


def backend_of(target: str) -> str:
    """The value of BACKEND that kernels are compiled with for a target.

    >>> backend_of("sm_75"), backend_of("gfx942")
    ('cuda', 'hip')
    """
    if target not in TARGETS:
        raise InvalidProblem(f"target: {target!r}; expected one of {', '.join(TARGETS)}")
    return "cuda" if target in NVIDIA else "hip"


def compile_case(case: Case, target: str) -> dict[str, str]:
    """The texts of every stage, by Triton's name for it: ttir, ttgir, llir, and ptx or amdgcn. Under "shared" are the
    bytes of shared memory (AMD: LDS) that a launch takes.

    The whole way is gone, to the cubin or the hsaco, so that ptxas or the assembler has accepted the text too.
    Contraction is off, as it is on every launch.
    """
    backend = backend_of(target)
    if target in case.not_on:
        raise Unsupported(f"{case.name}: not for {target}: {case.not_on[target]}")
    from triton import compile as compile_source  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from triton import knobs
    from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found,import-untyped,unused-ignore]
    from triton.compiler import ASTSource  # type: ignore[import-not-found,import-untyped,unused-ignore]

    if not hasattr(case.kernel, "cache_key"):
        raise Unsupported(f"{case.name}: an interpreted kernel; expected a process without TRITON_INTERPRET")
    constants = dict(case.constexprs)
    if "BACKEND" in constants:
        constants["BACKEND"] = backend
    names = case.kernel.arg_names
    unknown = [n for n in (*case.signature, *constants, *case.divisible) if n.partition(".")[0] not in names]
    missing = [n for n in names if n not in case.signature and n not in constants]
    if unknown or missing:
        raise InvalidProblem(f"{case.name}: unknown arguments {unknown}, missing arguments {missing}")
    source = ASTSource(
        fn=case.kernel,
        signature={n: "constexpr" if n in constants else case.signature[n] for n in names},
        constexprs=constants,
        attrs={_path(case, n): [["tt.divisibility", 16]] for n in case.divisible},
    )
    gpu = GPUTarget("hip", target, _WAVE[target]) if backend == "hip" else GPUTarget("cuda", int(target[3:]), 32)
    options = {"num_warps": case.num_warps, "num_stages": case.num_stages, "enable_fp_fusion": False}
    # A cache folder of its own, so that no text of an earlier compiler or kernel is ever seen.
    with tempfile.TemporaryDirectory(prefix="lowbit-triton-") as folder, knobs.cache.scope():
        knobs.cache.dir = folder
        compiled = compile_source(source, target=gpu, options=options)
        texts = {name: str(compiled.asm[name]) for name in _TEXTS if name in compiled.asm}
    texts["shared"] = str(compiled.metadata.shared)
    # Triton 3.9 may return a binary for NVIDIA assembly on AMD, with garbage in it: the text is the only sign.
    if backend == "hip" and _NVIDIA_ASSEMBLY.search(texts["llir"]):
        raise InvalidProblem(f"{case.name}: NVIDIA assembly in code for {target}")
    return texts


def _path(case: Case, name: str) -> tuple[int, ...]:
    """Of an argument, "x", or of a field of a tuple, "scales.sa"."""
    argument, _, member = name.partition(".")
    index = case.kernel.arg_names.index(argument)
    return (index, case.signature[argument]._fields.index(member)) if member else (index,)
