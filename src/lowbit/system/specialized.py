"""Operations tied to one kind of instruction: they run just that, or say what is missing."""

from __future__ import annotations

from typing import Any, ClassVar

from lowbit.numerics.errors import Unsupported
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.conv import PackedConv, conv_path_of, qconv2d
from lowbit.ops.matmul import PackedMatrix, path_of, qmatmul
from lowbit.ops.operands import transposed
from lowbit.runtime.devices import GpuFeatures, device_module, is_interpreted, why_not
from lowbit.runtime.hardware import HardwareFeatures, hardware
from lowbit.runtime.native import core


class SpecializedQuantizationOps:
    """Products and convolutions by one kind of instruction."""

    instruction: ClassVar[str]
    formats: ClassVar[tuple[str, ...]]
    group_size: ClassVar[int]  # codes that one instruction takes along k
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
        """`lb.qmatmul` by this instruction; raises Unsupported, saying what is missing, where it is not here or these
        operands take another path."""
        raise NotImplementedError

    def qconv2d(self, x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
        """`lb.qconv2d` by this instruction, likewise."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'available' if self.is_available else self.why_not()})"


class VnniQuantizationOps(SpecializedQuantizationOps):
    """vpdpbusd: four products of bytes added to 32 bits in one step, sixteen times over, or eight with AVX-VNNI."""

    instruction = "VNNI (vpdpbusd)"
    formats = ("int8", "uint8", "int4", "uint4", "int2", "uint2")
    group_size = 4
    tile = (6, 64)

    def why_not(self) -> str:
        if self.machine.architecture not in ("x86_64", "AMD64"):
            return f"an instruction of x86, and this is {self.machine.architecture}"
        if not (self.machine.avx512_vnni or self.machine.avx_vnni):
            return f"{self.machine.cpu} has neither avx512_vnni nor avx_vnni"
        active = core.active_isa()
        return "" if active in ("vnni", "avxvnni") else f"the kernels in use are {active}; LOWBIT_MAX_ISA caps them"

    def qmatmul(self, a: Any, b: Any, *, transpose_a: bool = False, transpose_b: bool = False, **options: Any) -> Any:
        self._require(a, b)
        if isinstance(a, QuantizedTensor) and isinstance(b, QuantizedTensor | PackedMatrix):
            a = transposed(a) if transpose_a else a
            if transpose_b and isinstance(b, QuantizedTensor):
                b, transpose_b = transposed(b), False
            path = path_of(a.params, b.params, len(a.shape), len(b.shape))
            if path not in ("integer", "groups", "blocks"):
                raise Unsupported(f"{self.instruction}: {a.params!r} by {b.params!r} takes the path {path!r}")
        return qmatmul(a, b, transpose_b=transpose_b, **options)

    def qconv2d(self, x: Any, w: Any, bias: Any = None, *, groups: int = 1, **options: Any) -> Any:
        self._require(x, w)
        if isinstance(x, QuantizedTensor) and isinstance(w, QuantizedTensor | PackedConv):
            groups = w.groups if isinstance(w, PackedConv) else groups
            path = conv_path_of(x.params, w.params, w.shape, groups)
            if path == "depthwise":
                raise Unsupported(f"{self.instruction}: depthwise convolutions multiply 16-bit codes (vpmaddwd)")
            if path != "integer":
                raise Unsupported(f"{self.instruction}: {x.params!r} by {w.params!r} takes the path {path!r}")
        return qconv2d(x, w, bias, groups=groups, **options)


class _OnGpu(SpecializedQuantizationOps):
    """On a CUDA device, or AMD's counterpart. Operands of the host are copied there and the result is copied back;
    GpuQuantizedTensor operands give results that stay there."""

    path: ClassVar[str]  # of the GPU kernels
    device: ClassVar[str] = "cuda"

    def lacks(self, features: GpuFeatures, architecture: str) -> str:
        """Why a GPU of these features does not serve; empty if it does."""
        raise NotImplementedError

    def why_not(self) -> str:
        if is_interpreted():
            return why_not(self.device)
        gpus = self.machine.gpus
        if not gpus:
            return "no CUDA device"
        reasons = [self.lacks(g.features, g.architecture) for g in gpus]
        return reasons[0] if all(reasons) else why_not(self.device)

    def qmatmul(self, a: Any, b: Any, **options: Any) -> Any:
        self._require(a, b)
        return _as_given(self._ops().qmatmul(a, b, **options), a)

    def qconv2d(self, x: Any, w: Any, bias: Any = None, **options: Any) -> Any:
        self._require(x, w)
        return _as_given(self._ops().qconv2d(x, w, bias, **options), x)

    def _ops(self) -> Any:
        return device_module(self.device, "operations").GpuQuantizationOps(self.device, self.path)


class Dp4aQuantizationOps(_OnGpu):
    """dp4a of CUDA devices, v_dot4 of AMD's: four products of bytes added to 32 bits."""

    instruction = "DP4A"
    formats = ("int8", "uint8")
    group_size = 4
    tile = (1, 32)
    path = "dp4a"

    def lacks(self, features: GpuFeatures, architecture: str) -> str:
        return "" if features.dot4 else f"{architecture} has no dp4a; it begins with sm_61"


class TensorCoreQuantizationOps(_OnGpu):
    """Tensor Cores of CUDA devices, MFMA and WMMA of AMD's: tiles of integer products. Unsigned codes are offset."""

    instruction = "Tensor Cores"
    formats = ("int8", "uint8")
    group_size = 32
    tile = (16, 8)
    path = "matrix"

    def lacks(self, features: GpuFeatures, architecture: str) -> str:
        if not features.multiplies("s8"):
            return f"{architecture} has no matrix unit for int8; on NVIDIA's it begins with sm_72"
        if architecture in ("sm_72", "sm_75"):
            return f"{architecture} has them, but Triton compiles no int8 products for it: DP4A serves"
        return ""


def _as_given(y: Any, operand: Any) -> Any:
    """On the host, where the operands were there."""
    if not isinstance(operand, QuantizedTensor):
        return y
    return y.to("cpu") if hasattr(y, "params") else y.cpu().numpy()
