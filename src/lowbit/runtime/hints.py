"""What follows from what the machine is: which dtypes run fast, how work is best cut, and why.

Each from a measurement, or from a kernel that is there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lowbit.numerics.schemes import QuantizationScheme
from lowbit.runtime.hardware import HardwareFeatures, hardware
from lowbit.runtime.limits import Limits, limits

__all__ = [
    "PerformanceHint", "QuantizationPerformanceHints", "QuantizedMemoryLayout", "efficient_dtypes", "memory_layouts",
    "optimal_block_size", "performance_hints",
]  # fmt: skip

# As kernels read weights: kGemmCols, kGemmDepth, kGroupCols and kBinaryColumns of core/kernels.
_GEMM_COLUMNS, _GEMM_DEPTH, _GROUP_COLUMNS, _BINARY_COLUMNS = 16, 1152, 64, 64


@dataclass(frozen=True)
class PerformanceHint:
    """An answer and its reason."""

    value: Any
    reason: str


@dataclass(frozen=True)
class QuantizedMemoryLayout:
    """How kernels want weights of a dtype in memory; `prepack` and layers arrange them so once."""

    dtype: str
    name: str
    columns: int  # outputs of a block
    depth: int  # inputs of each that lie side by side, before those of the next output
    bytes_per_tile: int  # of so many outputs and inputs
    reason: str


@dataclass(frozen=True)
class QuantizationPerformanceHints:
    """What to prefer on this machine, each with its reason."""

    preferred_dtypes: PerformanceHint
    preferred_schemes: PerformanceHint
    batch_size: PerformanceHint
    threads: PerformanceHint
    group_size: PerformanceHint

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {_text(h.value)} ({h.reason})" for name, h in self.__dict__.items())


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def efficient_dtypes(machine: HardwareFeatures | None = None) -> dict[str, str]:
    """Dtypes whose products have vector kernels on this CPU, with the instruction that does them.

    >>> "int8" in efficient_dtypes() or hardware().isa == "scalar"
    True
    """
    isa = (machine or hardware()).isa
    bytes_by = {
        "vnni": "vpdpbusd", "avxvnni": "vpdpbusd", "avx512": "vpmaddwd", "avx2": "vpmaddwd",
        "i8mm": "smmla", "dotprod": "sdot", "neon": "smull",
    }  # fmt: skip
    few_by = {
        "vnni": "vpdpbusd", "avxvnni": "vpdpbusd", "avx512": "vpmaddubsw", "avx2": "vpmaddubsw",
        "i8mm": "sdot", "dotprod": "sdot", "neon": "smull",
    }  # fmt: skip
    bits_by = {
        "vnni": "vpopcnt or vpshufb", "avxvnni": "vpshufb", "avx512": "vpshufb", "avx2": "vpshufb",
        "i8mm": "cnt", "dotprod": "cnt", "neon": "cnt",
    }  # fmt: skip
    if isa not in bytes_by:
        return {}
    found = dict.fromkeys(("int8", "uint8"), bytes_by[isa])
    found |= dict.fromkeys(("int4", "uint4", "int2", "uint2"), few_by[isa])
    return {**found, "binary": bits_by[isa]}


def memory_layouts() -> tuple[QuantizedMemoryLayout, ...]:
    """Layouts of packed weights.

    >>> [(layout.dtype, layout.columns, layout.depth) for layout in memory_layouts()]
    [('int8', 16, 4), ('int4', 64, 8), ('int2', 64, 16), ('binary', 64, 8)]
    """
    piece = f"k-blocks of at most {_GEMM_DEPTH} codes, so that blocks of columns stay in L2 while rows pass them"
    groups = "unpacked in registers; one row reads them from front to back, with the scales of a group behind its codes"
    bits = "a vector holds the same eight inputs of many outputs, so that counts need no sum across its lanes"
    return (
        _layout("int8", 8, "blocks of columns, four codes of each side by side", _GEMM_COLUMNS, 4, piece),
        _layout("int4", 4, "blocks of columns, four bytes of each side by side", _GROUP_COLUMNS, 8, groups),
        _layout("int2", 2, "blocks of columns, four bytes of each side by side", _GROUP_COLUMNS, 16, groups),
        _layout("binary", 1, "panels of columns, a byte of each side by side", _BINARY_COLUMNS, 8, bits),
    )


def _layout(dtype: str, bits: int, name: str, columns: int, depth: int, reason: str) -> QuantizedMemoryLayout:
    return QuantizedMemoryLayout(dtype, name, columns, depth, columns * depth * bits // 8, reason)


def optimal_block_size(machine: HardwareFeatures | None = None) -> int:
    """Codes a group for weights in blocks: as few as cost no speed, since fewer are more accurate.

    >>> optimal_block_size() in (32, 128)
    True
    """
    # A group ends with a multiplication by its scale: two vectors of codes pay for it, one does not.
    width = {"vnni": 64, "avx512": 64, "avxvnni": 32, "avx2": 32, "neon": 16, "dotprod": 16, "i8mm": 16}
    return 128 if width.get((machine or hardware()).isa, 16) >= 64 else 32


def performance_hints(
    machine: HardwareFeatures | None = None, measured: Limits | None = None
) -> QuantizationPerformanceHints:
    """What to prefer here, from the kernels in use and the limits measured."""
    m, rates = machine or hardware(), measured or limits()
    gain = rates.dot_ops / rates.fma_ops if rates.fma_ops else 0.0
    dram = rates.read_bytes["DRAM"]
    arithmetic = f"dot products reach {rates.dot_ops / 1e9:.0f} GOPS, float32 {rates.fma_ops / 1e9:.0f}"
    if gain > 1.2:
        dtypes = ["int8", "int4"]
        why = f"{arithmetic}: {gain:.1f} times as many; int4 where reading weights is the limit"
    else:
        dtypes = ["int4", "int8"]
        why = f"{arithmetic}: little to gain but in reading weights, of which int4 has an eighth of the bytes"
    # Rows at which computing a weight byte takes as long as reading it.
    batch = max(1, round(rates.dot_ops / 2 / dram)) if rates.dot_ops else 1
    schemes = [QuantizationScheme.SYMMETRIC, QuantizationScheme.ASYMMETRIC]
    scheme = (
        "of weights: zero points cost a sum over each row of activations; logarithmic codes have no integer kernels"
    )
    cpus = "cores this process may use" if m.threads == m.usable_cpus else "as set"
    return QuantizationPerformanceHints(
        PerformanceHint(dtypes, why), PerformanceHint(schemes, scheme),
        PerformanceHint(batch, f"below so many rows reading weights at {dram / 1e9:.0f} GB/s is the limit"),
        PerformanceHint(m.threads, cpus),
        PerformanceHint(optimal_block_size(m), "codes a group that kernels take without loss of speed"),
    )  # fmt: skip
