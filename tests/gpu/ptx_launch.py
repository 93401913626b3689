"""Launches of Triton kernels that go to the PTX executor, so that the library's own host code is tested with them.

    with on_target("sm_80") as launches:
        y = launch.quantize(x, ...)          # tensors on the CPU
    launches[0].ptx

A launch is compiled as on a GPU: Triton itself says what it specializes (pointers and integers that are multiples of
16, integers that are 1), and the addresses of the tensors decide. The arrays keep their alignment in the executor.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import torch
from gpu.ptx_executor import run

__all__ = ["Compiled", "Launch", "compile_launch", "numpy_of", "on_target"]

# One a specialization: kernels are compiled once for many tests.
_COMPILED: dict[Any, Compiled] = {}


@dataclass(frozen=True)
class Compiled:
    ptx: str
    shared_bytes: int


@dataclass
class Launch:
    """What one launch ran."""

    kernel: str
    ptx: str
    shared_bytes: int
    grid: tuple[int, ...]


def numpy_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A tensor's own memory; bf16 as its bits."""
    flat = tensor.detach()
    return (flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat).numpy()


def compile_launch(
    kernel: Any, target: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> tuple[Compiled, list[Any]]:
    """The PTX that a launch would run, and the arguments that are left for it."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime.jit import create_function_from_signature

    if os.environ.get("TRITON_INTERPRET", "0") not in ("", "0"):
        raise RuntimeError("TRITON_INTERPRET is set: PTX can be tested only in a process without it")
    gpu = GPUTarget("cuda", int(target[3:]), 32)
    backend = make_backend(gpu)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    given = {"debug": False, "instrumentation_mode": "", **options}
    bound, specialization, chosen = bind(*arguments, **given)
    settings, signature, constants, attributes = kernel._pack_args(backend, given, bound, specialization, chosen)
    key = (kernel, target, str(specialization), str(sorted(settings.__dict__.items(), key=str)), str(constants))
    if key not in _COMPILED:
        _COMPILED[key] = _compile(kernel, backend, gpu, settings, signature, constants, attributes)
    left = [value for name, given in bound.items() for value in _elements(given, signature[name])]
    return _COMPILED[key], left


def _elements(value: Any, kind: Any) -> list[Any]:
    """What a kernel is passed for an argument: nothing for a constant, the elements of a tuple, or the value."""
    if isinstance(kind, tuple):
        return [e for part, k in zip(value, kind, strict=True) for e in _elements(part, k)]
    return [] if kind == "constexpr" else [value]


def _compile(
    kernel: Any, backend: Any, gpu: Any, settings: Any, signature: Any, constants: Any, attributes: Any
) -> Compiled:
    """Triton's stages up to the PTX; ptxas has its say in the tests of the compiled kernels."""
    from triton._C.libtriton import ir
    from triton.compiler import ASTSource

    source = ASTSource(kernel, signature, constants, attributes)
    stages: dict[str, Callable[[Any, Any], Any]] = {}
    backend.add_stages(stages, settings, source.language)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(
        gpu, settings, backend.get_codegen_implementation(settings), backend.get_module_map(), context
    )
    metadata = {"target": gpu, "hash": "", **settings.__dict__}
    for name, stage in stages.items():
        if name == "cubin":
            break
        module = stage(module, metadata)
    return Compiled(module, metadata["shared"])


@contextmanager
def on_target(
    target: str, *, edit: Callable[[str], str] = lambda ptx: ptx, fusion: bool | None = None, most: int = 400_000
) -> Iterator[list[Launch]]:
    """Sends every launch to the executor, as PTX for a target. `edit` changes the text first; `fusion` overrides
    enable_fp_fusion."""
    from triton.runtime.jit import JITFunction

    launches: list[Launch] = []

    def launch(self: Any, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
        if options.get("enable_fp_fusion") is not False:
            raise AssertionError(f"{self.__name__} is launched without enable_fp_fusion=False")
        if fusion is not None:
            options["enable_fp_fusion"] = fusion
        compiled, left = compile_launch(self, target, arguments, options)
        tensors = {i: value for i, value in enumerate(left) if isinstance(value, torch.Tensor)}
        blocks = {i: _span(t) for i, t in tensors.items()}
        values = [blocks.get(i, value) for i, value in enumerate(left)]
        values = [_bits(v) if isinstance(v, float) else v for v in values]
        ptx = edit(compiled.ptx)
        launches.append(Launch(self.__name__, ptx, compiled.shared_bytes, tuple(grid)))
        run(
            ptx, grid, values, shared_bytes=compiled.shared_bytes, shift=lambda i: tensors[i].data_ptr() % 16,
            most=most, contraction=bool(fusion),
        )  # fmt: skip

    from lowbit.gpu import launch as family
    from lowbit.gpu import launch_compute

    host = family.launch

    def host_launch(kernel: Any, *arguments: Any, **constants: Any) -> None:
        host(_Sent(kernel), *arguments, **constants)

    with (
        mock.patch.object(JITFunction, "run", launch),
        mock.patch.object(family, "launch", host_launch),
        mock.patch.object(launch_compute, "launch", host_launch),
        mock.patch.object(torch, "empty", _filled(torch.empty)),
        mock.patch.object(torch, "empty_like", _filled(torch.empty_like)),
    ):
        yield launches


def _filled(empty: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Room that no result looks like: memory that is given twice may hold the right one from before."""

    def filled(*arguments: Any, **options: Any) -> torch.Tensor:
        room = empty(*arguments, **options)
        numpy_of(room).reshape(-1).view(np.uint8)[...] = 0xA5
        return room

    return filled


class _Sent:
    """A kernel as the host code takes it with tensors on the CPU: not a compiled one."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: Any) -> Any:
        return self.kernel[grid]


def _span(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The memory from a tensor's first element to its last, gaps of its strides too, as one row."""
    if tensor.numel() == 0:
        return np.zeros(0, np.uint8)
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    flat = torch.as_strided(tensor.detach(), (last + 1,), (1,))
    return numpy_of(flat)


def _bits(value: float) -> int:
    return int(np.float32(value).view(np.uint32))
