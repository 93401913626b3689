"""What follows from what the machine is: which dtypes run fast, how work is best cut, and why.

Each from a measurement, or from a kernel that is there.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lowbit.hardware import HardwareFeatures, hardware
from lowbit.limits import Limits, limits

__all__ = [
    "PerformanceHint", "QuantizationPerformanceHints", "QuantizedMemoryLayout", "efficient_dtypes", "memory_layouts",
    "optimal_block_size", "performance_hints",
]  # fmt: skip

# As the products' kernels read weights: columns of a block (of 8 bits, of 4), and codes along k side by side.
_COLUMNS, _FEW_BIT_COLUMNS, _DEPTH = 16, 64, 4
_PIECE = 1152  # codes along k of a block that stays in the caches while rows pass it


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
    columns: int  # outputs side by side
    depth: int  # consecutive inputs of an output side by side
    bytes_per_tile: int
    reason: str


@dataclass(frozen=True)
class QuantizationPerformanceHints:
    """What to prefer on this machine, each with its reason."""

    preferred_dtypes: PerformanceHint
    preferred_schemes: PerformanceHint
    batch_size: PerformanceHint
    threads: PerformanceHint
    block_size: PerformanceHint

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(f"{name}: {h.value} ({h.reason})" for name, h in self.__dict__.items())


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

    >>> memory_layouts()[0].columns
    16
    """
    piece = f"pieces of at most {_PIECE} codes along k, so that blocks stay in the caches while rows pass them"
    return (
        QuantizedMemoryLayout("int8", "blocks of columns, quads of k", _COLUMNS, _DEPTH, _COLUMNS * _PIECE, piece),
        QuantizedMemoryLayout(
            "int4", "blocks of columns, halves of bytes", _FEW_BIT_COLUMNS, _DEPTH, _FEW_BIT_COLUMNS * _DEPTH,
            "unpacked in registers; a row reads them from front to back, and a scale a group beside them",
        ),
        QuantizedMemoryLayout("binary", "panels of columns", 8, 8, 8 * 64, "eight columns share a pass over a row"),
    )  # fmt: skip


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
    scheme = "weights without a zero point need no row sums; activations may have one"
    cpus = "cores this process may use" if m.threads == m.usable_cpus else "as set"
    return QuantizationPerformanceHints(
        PerformanceHint(dtypes, why), PerformanceHint(["symmetric weights, one scale an output"], scheme),
        PerformanceHint(batch, f"below so many rows reading weights at {dram / 1e9:.0f} GB/s is the limit"),
        PerformanceHint(m.threads, cpus),
        PerformanceHint(optimal_block_size(m), "codes a group that kernels take without loss of speed"),
    )  # fmt: skip
