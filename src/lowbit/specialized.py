"""Operations tied to one kind of instruction: they run just that, or say what is missing."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar

from lowbit import _core
from lowbit.errors import Unsupported
from lowbit.hardware import HardwareFeatures, hardware
from lowbit.ops.conv import qconv2d
from lowbit.ops.matmul import qmatmul

__all__ = [
    "Dp4aQuantizationOps", "SpecializedQuantizationOps", "TensorCoreFormat", "TensorCoreQuantizationOps",
    "VnniQuantizationOps",
]  # fmt: skip


class TensorCoreFormat(str, Enum):
    """What Tensor Cores multiply, and from which compute capability on."""

    INT8 = "int8"
    INT4 = "int4"
    BINARY = "binary"

    @property
    def least_capability(self) -> tuple[int, int]:
        return (7, 5)


class SpecializedQuantizationOps:
    """Products and convolutions by one kind of instruction."""

    instruction: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]
    block_size: ClassVar[int]  # codes that one instruction takes along k
    tile: ClassVar[tuple[int, int]]  # rows and columns that are computed together

    def __init__(self, machine: HardwareFeatures | None = None) -> None:
        self.machine = machine or hardware()

    def why_not(self) -> str:
        """What is missing; empty if nothing is."""
        raise NotImplementedError

    @property
    def is_available(self) -> bool:
        return not self.why_not()

    @property
    def supported_formats(self) -> tuple[str, ...]:
        """Dtypes it multiplies, whether or not it is here."""
        return self.formats

    def _require(self, a: Any, b: Any) -> None:
        if missing := self.why_not():
            raise Unsupported(f"{self.instruction}: {missing}")
        for name, t in (("a", a), ("b", b)):
            dtype = getattr(getattr(t, "dtype", None), "name", "")
            if dtype not in self.formats:
                takes = ", ".join(self.formats)
                raise Unsupported(f"{name}: {dtype or type(t).__name__}; {self.instruction} takes {takes}")

    def qmatmul(self, a: Any, b: Any, **options: Any) -> Any:
        """`lb.qmatmul` by this instruction; raises Unsupported, saying what is missing, where it is not here."""
        self._require(a, b)
        return qmatmul(a, b, **options)

    def qconv2d(self, x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
        """`lb.qconv2d` by this instruction."""
        self._require(x, w)
        return qconv2d(x, w, bias, **options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'available' if self.is_available else self.why_not()})"


class VnniQuantizationOps(SpecializedQuantizationOps):
    """vpdpbusd: four products of bytes added to 32 bits in one step, sixteen times over."""

    instruction = "VNNI (vpdpbusd)"
    formats = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
    block_size = 4
    tile = (6, 64)

    def why_not(self) -> str:
        if self.machine.architecture not in ("x86_64", "AMD64"):
            return f"an instruction of x86, and this is {self.machine.architecture}"
        if not self.machine.avx512_vnni:
            return f"{self.machine.cpu} has no avx512_vnni"
        active = _core.active_isa()
        return "" if active == "vnni" else f"the kernels in use are {active}; LOWBIT_MAX_ISA caps them"


class _OnGpu(SpecializedQuantizationOps):
    least: ClassVar[tuple[int, int]]

    def why_not(self) -> str:
        gpus = self.machine.gpus
        if not gpus:
            return "no CUDA device"
        best = max(g.compute_capability for g in gpus)
        if best < self.least:
            return f"compute capability {best[0]}.{best[1]}; it begins with {self.least[0]}.{self.least[1]}"
        return "this version of lowbit has no GPU kernels yet"


class Dp4aQuantizationOps(_OnGpu):
    """dp4a of CUDA devices: four products of bytes added to 32 bits."""

    instruction = "DP4A"
    formats = ("int8", "uint8")
    block_size = 4
    tile = (1, 32)
    least = (6, 1)


class TensorCoreQuantizationOps(_OnGpu):
    """Tensor Cores of CUDA devices: tiles of integer products."""

    instruction = "Tensor Cores"
    formats = tuple(f.value for f in TensorCoreFormat)
    block_size = 32
    tile = (16, 8)
    least = (7, 5)
