"""The limits of one thread, measured by short loops and cached: arithmetic and memory reads."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from lowbit._version import __version__
from lowbit.runtime.cache_file import CacheFile
from lowbit.runtime.hardware import HardwareFeatures, hardware
from lowbit.runtime.native import core

_ROUNDS, _SECONDS = 5, 0.015  # per size that is read. Sizes alternate, so that a slow moment does not affect only one
_SAME = 1.5  # the largest ratio of two measurements of the same machine
_FALLBACK = {"L1": 32 << 10, "L2": 512 << 10, "L3": 8 << 20}  # where the system does not report sizes


@dataclass(frozen=True)
class Limits:
    """Rates of one thread: the best of many runs, since other work on the machine can only lower them."""

    cpu: str
    isa: str
    dot_ops: float  # per second, of 8-bit dot products in registers; 0 where no loop measures it
    fma_ops: float  # per second, of f32 multiplications and additions in registers
    read_bytes: dict[str, float]  # per second, from L1, L2, L3 and DRAM

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        reads = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in self.read_bytes.items())
        return (
            f"{self.isa}, one thread: dot products {self.dot_ops / 1e9:.0f} GOPS, f32 {self.fma_ops / 1e9:.0f} GFLOPS, "
            f"reading {reads} GB/s"
        )


def limits(refresh: bool = False) -> Limits:
    """The limits of this CPU with the kernels in use; measured in about a second by the first call, then cached.
    `refresh` measures again; each limit becomes the greater of the two.

    >>> limits().fma_ops > 0
    True
    """
    machine = hardware()
    file, key = CacheFile("limits"), f"{machine.cpu}|{machine.isa}|{__version__}"
    kept = _from_entry(file.get(key))
    if kept is not None and not refresh:
        return kept
    found = _measured(machine)
    if kept is not None:
        found = _better(found, kept)
    file.put(key, found.to_dict())
    return found


def _measured(machine: HardwareFeatures) -> Limits:
    sizes = _sizes(machine)
    dot, fma, read = 0.0, 0.0, dict.fromkeys(sizes, 0.0)
    for _ in range(_ROUNDS):
        dot, fma = max(dot, core.dot_limit()), max(fma, core.fma_limit())
        read = {name: max(read[name], core.read_limit(size, _SECONDS)) for name, size in sizes.items()}
    return Limits(machine.cpu, machine.isa, dot, fma, read)


def _better(found: Limits, kept: Limits) -> Limits:
    """The greater of each two rates; the new one where the old one is implausible for this machine."""

    def of(new: float, old: float) -> float:
        return max(new, old) if old <= _SAME * new else new

    read = {name: of(rate, kept.read_bytes[name]) for name, rate in found.read_bytes.items()}
    dot, fma = of(found.dot_ops, kept.dot_ops), of(found.fma_ops, kept.fma_ops)
    return replace(found, dot_ops=dot, fma_ops=fma, read_bytes=read)


def _sizes(machine: HardwareFeatures) -> dict[str, int]:
    """Bytes that lie well within each level, and beyond the last."""
    size = dict(_FALLBACK)
    for cache in machine.caches:
        if cache.kind != "instruction" and f"L{cache.level}" in size:
            size[f"L{cache.level}"] = cache.size_bytes
    dram = min(max(4 * max(size.values()), 64 << 20), 512 << 20)
    return {"L1": size["L1"] // 2, "L2": size["L2"] // 2, "L3": max(size["L2"] * 4, size["L3"] // 4), "DRAM": dram}


def _from_entry(entry: Any) -> Limits | None:
    try:
        found = Limits(**entry)
        rates = [found.dot_ops, found.fma_ops, *found.read_bytes.values()]
        good = all(isinstance(r, float | int) and math.isfinite(r) and r >= 0 for r in rates)
        return found if good and set(found.read_bytes) == {"L1", "L2", "L3", "DRAM"} else None
    except (TypeError, AttributeError, ValueError):
        return None
