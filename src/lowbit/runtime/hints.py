"""Recommendations for this machine, with reasons: fast dtypes, group and batch sizes, threads, memory layouts.

Each follows from a measurement or from the kernels that run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lowbit.numerics.schemes import QuantizationScheme
from lowbit.runtime.hardware import HardwareFeatures, hardware
from lowbit.runtime.limits import Limits, limits

# The order in which kernels read weights: kGemmCols, kGemmDepth, kGroupCols and kBinaryColumns of core/kernels.
_GEMM_COLUMNS, _GEMM_DEPTH, _GROUP_COLUMNS, _BINARY_COLUMNS = 16, 1152, 64, 64

# The instructions of matrix products by ISA: codes of 8 bits, of 4 and 2 bits, of 1 bit.
_INSTRUCTIONS = {
    "vnni": ("vpdpbusd", "vpdpbusd", "vpopcnt or vpshufb"),
    "avxvnni": ("vpdpbusd", "vpdpbusd", "vpshufb"),
    "avx512": ("vpmaddwd", "vpmaddubsw", "vpshufb"),
    "avx2": ("vpmaddwd", "vpmaddubsw", "vpshufb"),
    "i8mm": ("smmla", "sdot", "cnt"),
    "dotprod": ("sdot", "sdot", "cnt"),
    "neon": ("smull", "smull", "cnt"),
}


@dataclass(frozen=True)
class PerformanceHint:
    """An answer and its reason."""

    value: Any
    reason: str


@dataclass(frozen=True)
class QuantizedMemoryLayout:
    """The order of packed weights of a dtype in memory; `prepack` and layers pack them once."""

    dtype: str
    name: str
    columns: int  # outputs per panel
    depth: int  # consecutive inputs of an output, before those of the next
    bytes_per_tile: int  # of `columns` outputs and `depth` inputs
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
    """Dtypes with vector kernels for matrix products on this CPU, and the instruction they use.

    >>> "int8" in efficient_dtypes() or hardware().isa == "scalar"
    True
    """
    instructions = _INSTRUCTIONS.get((machine or hardware()).isa, ())
    dtypes = ("int8", "uint8"), ("int4", "uint4", "int2", "uint2"), ("binary",)
    return {dtype: name for group, name in zip(dtypes, instructions, strict=False) for dtype in group}


def memory_layouts() -> tuple[QuantizedMemoryLayout, ...]:
    """Layouts of packed weights.

    >>> [(layout.dtype, layout.columns, layout.depth) for layout in memory_layouts()]
    [('int8', 16, 4), ('int4', 64, 8), ('int2', 64, 16), ('binary', 64, 8)]
    """
    blocks = f"k-blocks of at most {_GEMM_DEPTH} codes, so that a panel stays in L2 for all rows"
    groups = "unpacked in registers; one row reads them sequentially, with the scales of a group after its codes"
    bits = "a vector holds the same eight inputs of many outputs, so that counts need no horizontal sum"
    return (
        _layout("int8", 8, "panels, four codes of each column side by side", _GEMM_COLUMNS, 4, blocks),
        _layout("int4", 4, "panels, four bytes of each column side by side", _GROUP_COLUMNS, 8, groups),
        _layout("int2", 2, "panels, four bytes of each column side by side", _GROUP_COLUMNS, 16, groups),
        _layout("binary", 1, "panels, one byte of each column side by side", _BINARY_COLUMNS, 8, bits),
    )


def _layout(dtype: str, bits: int, name: str, columns: int, depth: int, reason: str) -> QuantizedMemoryLayout:
    return QuantizedMemoryLayout(dtype, name, columns, depth, columns * depth * bits // 8, reason)


def optimal_block_size(machine: HardwareFeatures | None = None) -> int:
    """The group size for weights: the smallest that costs no speed, since smaller groups are more accurate.

    >>> optimal_block_size() in (32, 128)
    True
    """
    # A group ends with a multiplication by its scale, which two vectors of codes amortise and one does not.
    width = {"vnni": 64, "avx512": 64, "avxvnni": 32, "avx2": 32, "neon": 16, "dotprod": 16, "i8mm": 16}
    return 128 if width.get((machine or hardware()).isa, 16) >= 64 else 32


def performance_hints(
    machine: HardwareFeatures | None = None, measured: Limits | None = None
) -> QuantizationPerformanceHints:
    """Recommendations for this machine, from the kernels in use and the measured limits."""
    m, rates = machine or hardware(), measured or limits()
    gain = rates.dot_ops / rates.fma_ops if rates.fma_ops else 0.0
    dram = rates.read_bytes["DRAM"]
    arithmetic = f"dot products reach {rates.dot_ops / 1e9:.0f} GOPS, float32 {rates.fma_ops / 1e9:.0f}"
    if gain > 1.2:
        dtypes = ["int8", "int4"]
        why = f"{arithmetic}: {gain:.1f} times as many; int4 where reading weights is the limit"
    else:
        dtypes = ["int4", "int8"]
        why = f"{arithmetic}: the gain is in reading weights, of which int4 has an eighth of the bytes"
    # Rows at which computing a weight byte takes as long as reading it.
    batch = max(1, round(rates.dot_ops / 2 / dram)) if rates.dot_ops else 1
    schemes = [QuantizationScheme.SYMMETRIC, QuantizationScheme.ASYMMETRIC]
    scheme = (
        "of weights: zero points cost a sum over each row of activations; logarithmic codes have no integer kernels"
    )
    cpus = "cores this process may use" if m.threads == m.usable_cpus else "as set"
    return QuantizationPerformanceHints(
        preferred_dtypes=PerformanceHint(dtypes, why),
        preferred_schemes=PerformanceHint(schemes, scheme),
        batch_size=PerformanceHint(batch, f"with fewer rows reading weights at {dram / 1e9:.0f} GB/s is the limit"),
        threads=PerformanceHint(m.threads, cpus),
        group_size=PerformanceHint(optimal_block_size(m), "codes per group: the fewest without loss of speed"),
    )
