"""Whether there is a GPU that kernels can run on, and if not, why: asked when a device is named, never at an import.
And the formats that a GPU multiplies, by the name of its architecture, from the vendors' instruction sets.

LOWBIT_GPU_INTERPRETER=1 beside TRITON_INTERPRET=1 is for tests: a device "cuda" then has its memory on the CPU and its
kernels run in Triton's interpreter, and says so wherever it names itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, NamedTuple

from lowbit.numerics.errors import InvalidProblem, Unsupported

OLDEST = (7, 5)  # what the kernels have been compiled for
EXPERIMENTAL = "GPU kernels are experimental: no GPU has run them yet"


class GpuFeatures(NamedTuple):
    """dot4: the instruction that adds four products of bytes to 32 bits. matrix_unit: Tensor Cores, MFMA or WMMA.
    formats: what that unit multiplies. Each is empty where there is none."""

    dot4: str
    matrix_unit: str
    formats: tuple[str, ...]

    def multiplies(self, name: str) -> bool:
        """Whether the matrix unit takes this format: "s8", "s4", "b1", "f16", "bf16", "f8" or "f4"."""
        return name in self.formats


# From this compute capability on. sm_90 and later take s4 instructions, but have no unit for them.
_TENSOR_CORES = (
    ((7, 0), ("f16",)),
    ((7, 2), ("f16", "s8")),
    ((7, 5), ("f16", "s8", "s4", "b1")),
    ((8, 0), ("f16", "bf16", "s8", "s4", "b1")),
    ((8, 9), ("f16", "bf16", "s8", "s4", "b1", "f8")),
    ((9, 0), ("f16", "bf16", "s8", "b1", "f8")),
    ((10, 0), ("f16", "bf16", "s8", "f8", "f4")),
)
_DP4A = (6, 1)

_RDNA3 = GpuFeatures("v_dot4_i32_iu8", "WMMA", ("f16", "bf16", "s8", "s4"))
_RDNA4 = _RDNA3._replace(formats=(*_RDNA3.formats, "f8"))
_CDNA = GpuFeatures("v_dot4_i32_i8", "MFMA", ("f16", "bf16", "s8"))
_AMD = {
    "gfx906": GpuFeatures("v_dot4_i32_i8", "", ()),
    "gfx908": _CDNA,
    "gfx90a": _CDNA,
    "gfx942": _CDNA._replace(formats=(*_CDNA.formats, "f8")),
    "gfx950": _CDNA._replace(formats=(*_CDNA.formats, "f8", "f4")),
    "gfx1030": GpuFeatures("v_dot4_i32_i8", "", ()),
    "gfx1100": _RDNA3,
    "gfx1101": _RDNA3,
    "gfx1102": _RDNA3,
    "gfx1200": _RDNA4,
    "gfx1201": _RDNA4,
}


def architecture_of(capability: tuple[int, int]) -> str:
    """NVIDIA's name for a compute capability.

    >>> architecture_of((12, 0))
    'sm_120'
    """
    return f"sm_{capability[0]}{capability[1]}"


def gpu_features(architecture: str) -> GpuFeatures:
    """The features of "sm_80", "gfx942" and their like; an unknown architecture has none.

    >>> gpu_features("sm_75")
    GpuFeatures(dot4='dp4a', matrix_unit='Tensor Cores', formats=('f16', 's8', 's4', 'b1'))
    >>> gpu_features("gfx1100").matrix_unit
    'WMMA'
    """
    if architecture.startswith("gfx"):
        return _AMD.get(architecture.partition(":")[0], GpuFeatures("", "", ()))
    found = re.fullmatch(r"sm_(\d+)(\d)a?", architecture)
    if found is None:
        raise InvalidProblem(f"architecture: {architecture!r}; expected a name like 'sm_80' or 'gfx942'")
    capability = int(found[1]), int(found[2])
    formats: tuple[str, ...] = ()
    for least, takes in _TENSOR_CORES:
        formats = takes if capability >= least else formats
    return GpuFeatures("dp4a" if capability >= _DP4A else "", "Tensor Cores" if formats else "", formats)


@dataclass(frozen=True)
class GpuDevice:
    """backend: "cuda", "hip", or "interpreter", whose architecture is "interpreter" too."""

    name: str
    backend: str
    architecture: str

    @property
    def memory(self) -> str:
        """The torch device of its tensors."""
        return "cpu" if self.backend == "interpreter" else self.name

    @property
    def features(self) -> GpuFeatures:
        if self.backend == "interpreter":
            return GpuFeatures("interpreted", "interpreted", ("s8", "f16", "bf16"))
        return gpu_features(self.architecture)

    def holds(self, tensor: Any) -> bool:
        return str(tensor.device) == self.memory

    def __str__(self) -> str:
        return self.name


def is_interpreted() -> bool:
    """Whether Triton's interpreter stands in for a GPU, for tests."""
    return os.environ.get("LOWBIT_GPU_INTERPRETER") == "1" and os.environ.get("TRITON_INTERPRET") == "1"


def find_device(device: str = "cuda") -> GpuDevice:
    """The GPU that "cuda" (torch's current one) or "cuda:1" names; Unsupported, with the reason, where there is none.

    >>> find_device("tpu")
    Traceback (most recent call last):
    lowbit.numerics.errors.Unsupported: device: 'tpu'; expected 'cpu', 'cuda' or 'cuda:1' and so on
    """
    found = re.fullmatch(r"cuda(?::(\d+))?", device) if isinstance(device, str) else None
    if found is None:
        raise Unsupported(f"device: {device!r}; expected 'cpu', 'cuda' or 'cuda:1' and so on")
    if missing := _missing():
        raise Unsupported(f"device: {device!r}: {missing} ({EXPERIMENTAL})")
    if is_interpreted():
        return GpuDevice("cuda:0", "interpreter", "interpreter")
    import torch

    index = torch.cuda.current_device() if found[1] is None else int(found[1])
    if index >= torch.cuda.device_count():
        raise InvalidProblem(f"device: {device!r}; torch finds {torch.cuda.device_count()}, counted from 0")
    if torch.version.hip is not None:
        name = str(torch.cuda.get_device_properties(index).gcnArchName).partition(":")[0]
        return GpuDevice(f"cuda:{index}", "hip", name)
    capability = torch.cuda.get_device_capability(index)
    if capability < OLDEST:
        raise Unsupported(
            f"device: {device!r}: {architecture_of(capability)}; expected {architecture_of(OLDEST)} or later"
        )
    return GpuDevice(f"cuda:{index}", "cuda", architecture_of(capability))


# What a device of each kind offers. The modules import torch and Triton, so they are named here and imported on use.
_OFFERED: dict[str, str] = {
    "plans": "lowbit.gpu.plans",  # gpu_plan(plan class)
    "tensors": "lowbit.gpu.tensors",  # GpuQuantizedTensor
    "operations": "lowbit.gpu.ops",  # GpuQuantizationOps
    "torch_kernels": "lowbit.gpu.torch_kernels",  # the torch operators, by name
}


def device_module(device: str, offer: Literal["plans", "tensors", "operations", "torch_kernels"]) -> ModuleType:
    """The module with what a device offers; Unsupported, with the reason, where the device is not available."""
    find_device(device)  # first, as the import needs torch and Triton
    return importlib.import_module(_OFFERED[offer])


def why_not(device: str = "cuda") -> str:
    """What is missing to run kernels there; empty if nothing is."""
    try:
        find_device(device)
    except (Unsupported, InvalidProblem) as error:
        return str(error).removeprefix(f"device: {device!r}: ")
    return ""


def _missing() -> str:
    if importlib.util.find_spec("torch") is None:
        return "no CUDA device: torch is not installed, which finds it and holds its memory"
    if not is_interpreted():
        import torch

        if torch.version.cuda is None and torch.version.hip is None:
            return "no CUDA device: torch has no CUDA build"
        if not torch.cuda.is_available():
            return "no CUDA device: torch finds none"
    return "triton is not installed: pip install 'lowbit[gpu]'" if importlib.util.find_spec("triton") is None else ""
