"""The facts of this machine: instruction sets, caches, memory and GPUs, as the system reports them.

A fact that the system does not report is absent: an empty tuple, None or False.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from lowbit.runtime.devices import GpuFeatures, architecture_of, gpu_features
from lowbit.runtime.native import core

_CPU_ROOT = Path("/sys/devices/system/cpu")
_CGROUP_ROOT = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_KFD_ROOT = Path("/sys/class/kfd/kfd/topology/nodes")

# CUdevice_attribute values of the CUDA driver API.
_MULTIPROCESSOR_COUNT, _CAPABILITY_MAJOR, _CAPABILITY_MINOR = 16, 75, 76


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache of CPU 0; `shared_by` is the number of logical CPUs that share it."""

    level: int
    kind: str
    size_bytes: int
    shared_by: int


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as its driver describes it. gfx: the name of an AMD architecture; empty for NVIDIA GPUs, which have
    a compute capability instead."""

    name: str
    compute_capability: tuple[int, int]
    memory_bytes: int
    multiprocessors: int
    gfx: str = ""

    @property
    def architecture(self) -> str:
        """
        >>> Gpu("A100", (8, 0), 40 << 30, 108).architecture
        'sm_80'
        """
        return self.gfx or architecture_of(self.compute_capability)

    @property
    def features(self) -> GpuFeatures:
        """The formats it multiplies, and its instructions for them."""
        return gpu_features(self.architecture)


class _Feature:
    """A read-only bool on HardwareFeatures: whether all the named CPU features are there."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __get__(self, machine: HardwareFeatures, owner: type | None = None) -> bool:
        return machine.has(*self.names)


@dataclass(frozen=True)
class HardwareFeatures:
    """The facts of the machine, and how lowbit uses it at the time of the call.

    >>> features = hardware()
    >>> features.isa in features.available_isas
    True
    >>> features.threads >= 1 and features.cores >= features.usable_cpus
    True
    """

    architecture: str
    cpu: str
    # All features that are detected, present or not; the properties below name the common ones.
    features: Mapping[str, bool] = field(hash=False)
    # The ISA that kernels use, capped by LOWBIT_MAX_ISA, and those that this CPU can run.
    isa: str
    available_isas: tuple[str, ...]
    # Logical CPUs, physical cores where the system reports them, and the CPUs this process may use.
    cores: int
    physical_cores: int | None
    usable_cpus: int
    threads: int
    caches: tuple[Cache, ...]
    memory_bytes: int | None
    # The cgroup's limit, where there is one below the machine's memory.
    memory_limit_bytes: int | None

    def has(self, *names: str) -> bool:
        """Whether all the named CPU features are present and usable under this operating system."""
        return all(self.features.get(name, False) for name in names)

    avx2 = _Feature("avx2")
    f16c = _Feature("f16c")
    fma = _Feature("fma")
    avx512 = _Feature("avx512f", "avx512bw", "avx512vl", "avx512dq")
    avx512_vnni = _Feature("avx512_vnni")
    avx512_bf16 = _Feature("avx512_bf16")
    avx512_vbmi = _Feature("avx512_vbmi")
    avx_vnni = _Feature("avx_vnni")
    amx = _Feature("amx_tile", "amx_int8")
    neon = _Feature("neon")
    dotprod = _Feature("dotprod")
    i8mm = _Feature("i8mm")
    sve = _Feature("sve")

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs, detected at the first access: a process that starts CUDA must not fork."""
        return _cuda_gpus() + _amd_gpus()

    def to_dict(self) -> dict[str, Any]:
        """All facts as JSON-serialisable values.

        >>> hardware().to_dict()["architecture"] == platform.machine()
        True
        """
        facts = asdict(self)
        lists = {"available_isas": list(self.available_isas), "caches": list(facts["caches"])}
        return facts | lists | {"gpus": [_gpu_dict(g) for g in self.gpus]}

    def summary(self) -> list[tuple[str, str]]:
        """(label, text) pairs to read; `str()` prints one per line."""
        physical = f", {self.physical_cores} physical cores" if self.physical_cores else ""
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        present = [name for name, found in self.features.items() if found]
        return [
            ("CPU", f"{self.cpu} ({self.architecture})"),
            ("CPUs", f"{self.cores} logical{physical}, {self.usable_cpus} usable by this process"),
            ("Features", " ".join(present) or "none detected"),
            ("Kernels", f"{self.isa} (of {', '.join(self.available_isas)}) with {threads}"),
            ("Caches", ", ".join(_cache_text(c) for c in self.caches) or "not reported"),
            ("Memory", _memory_text(self.memory_bytes, self.memory_limit_bytes)),
            ("GPUs", "; ".join(_gpu_text(g) for g in self.gpus) or "no CUDA device"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{label:<9} {text}" for label, text in self.summary())


def hardware() -> HardwareFeatures:
    """The facts of this machine, and how lowbit uses it now.

    Facts are detected once; threads and ISA are read by each call, since they can be set at run time.

    >>> isinstance(hardware().avx2, bool)
    True
    """
    machine = _machine()
    return HardwareFeatures(
        **(machine | {"features": dict(machine["features"])}),
        isa=core.active_isa(),
        available_isas=tuple(core.available_isas()),
        usable_cpus=core.usable_cpus(),
        threads=core.num_threads(),
    )


@cache
def _machine() -> dict[str, Any]:
    total = _total_memory()
    limit = _cgroup_memory_limit()
    return {
        "architecture": platform.machine(),
        "cpu": _cpu_name(),
        "features": dict(core.cpu_features()),
        "cores": os.cpu_count() or 1,
        "physical_cores": _physical_cores(),
        "caches": _caches(),
        "memory_bytes": total,
        "memory_limit_bytes": limit if limit is not None and (total is None or limit < total) else None,
    }


def _read(path: Path) -> str:
    """The file's text without its last newline; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _cpu_name() -> str:
    brand = " ".join(core.cpu_brand().strip("\0 ").split())
    if brand:
        return brand
    for line in _read(_PROC / "cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("model name", "Hardware"):
            return value.strip()
    return platform.processor() or "unnamed CPU"


def _count_cpus(cpu_list: str) -> int:
    """How many CPUs a kernel list such as "0-3,8" names."""
    spans = [part.split("-") for part in cpu_list.split(",") if part]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


def _physical_cores() -> int | None:
    siblings = {
        _read(cpu / "topology/thread_siblings_list")
        for cpu in _CPU_ROOT.glob("cpu[0-9]*")
        if _read(cpu / "online") != "0"
    }
    return len(siblings - {""}) or None


def _caches() -> tuple[Cache, ...]:
    # No sysconf fall-back: in virtual machines its sizes can differ from those the kernel shows.
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    found = []
    for index in _CPU_ROOT.glob("cpu0/cache/index*"):
        size, level, shared = (_read(index / name) for name in ("size", "level", "shared_cpu_list"))
        try:
            size_bytes = int(size[:-1]) * units[size[-1]] if size[-1:] in units else int(size)
            found.append(Cache(int(level), _read(index / "type").lower(), size_bytes, _count_cpus(shared)))
        except ValueError:
            continue
    return tuple(sorted(found, key=lambda c: (c.level, c.kind)))


def _total_memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _cgroup_memory_limit() -> int | None:
    """The least limit among this process's cgroup and its parents, in version 1 and 2 of cgroups."""
    texts = [_read(path) for path in _cgroup_limit_files()]
    return min((int(t) for t in texts if t.isdigit()), default=None)


def _cgroup_limit_files() -> Iterator[Path]:
    for line in _read(_PROC / "self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if controllers == "":
            root, name = _CGROUP_ROOT, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = _CGROUP_ROOT / "memory", "memory.limit_in_bytes"
        else:
            continue
        # Inside a container the path may be the host's; the mount's own root then holds the limit.
        inside = root / group.lstrip("/")
        for folder in (inside, *inside.parents):
            if folder.is_relative_to(root):
                yield folder / name


@cache
def _cuda_gpus() -> tuple[Gpu, ...]:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        # Without a device cuInit fails and leaves no state behind, so a later fork stays sound.
        if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return ()
        devices = [_cuda_gpu(cuda, ordinal) for ordinal in range(count.value)]
    except (OSError, AttributeError):  # no such library, or one that lacks a function
        return ()
    return tuple(gpu for gpu in devices if gpu is not None)


def _cuda_gpu(cuda: Any, ordinal: int) -> Gpu | None:
    device, memory, name = ctypes.c_int(), ctypes.c_size_t(), ctypes.create_string_buffer(256)
    attributes = {a: ctypes.c_int() for a in (_MULTIPROCESSOR_COUNT, _CAPABILITY_MAJOR, _CAPABILITY_MINOR)}
    if cuda.cuDeviceGet(ctypes.byref(device), ordinal) != 0:
        return None
    failed = cuda.cuDeviceGetName(name, len(name), device)
    failed |= cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    for attribute, value in attributes.items():
        failed |= cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
    if failed:
        return None
    multiprocessors, major, minor = (v.value for v in attributes.values())
    return Gpu(name.value.decode(errors="replace"), (major, minor), memory.value, multiprocessors)


@cache
def _amd_gpus() -> tuple[Gpu, ...]:
    """The AMD GPUs that the kernel driver lists: gfx_target_version 90010 is gfx90a, 110000 is gfx1100."""
    found = []
    for node in sorted(_KFD_ROOT.glob("[0-9]*")):
        facts = _properties(node / "properties")
        major, rest = divmod(facts.get("gfx_target_version", 0), 10000)
        if major:  # a CPU has none
            minor, stepping = divmod(rest, 100)
            banks = [_properties(bank / "properties") for bank in node.glob("mem_banks/*")]
            memory = sum(b.get("size_in_bytes", 0) for b in banks if b.get("heap_type") in (1, 2))
            units = facts.get("simd_count", 0) // max(1, facts.get("simd_per_cu", 1))
            name = _read(node / "name") or "AMD GPU"
            found.append(Gpu(name, (major, minor), memory, units, f"gfx{major}{minor:x}{stepping:x}"))
    return tuple(found)


def _properties(path: Path) -> dict[str, int]:
    pairs = (line.split() for line in _read(path).splitlines())
    return {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}


def _gpu_dict(gpu: Gpu) -> dict[str, Any]:
    return {
        "name": gpu.name,
        "architecture": gpu.architecture,
        "compute_capability": list(gpu.compute_capability),
        "memory_bytes": gpu.memory_bytes,
        "multiprocessors": gpu.multiprocessors,
        **(gpu.features._asdict() | {"formats": list(gpu.features.formats)}),
    }


def _bytes_text(size: int) -> str:
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{size / (1 << power):.4g} {unit}"
    return f"{size} B"


def _cache_text(cache: Cache) -> str:
    kind = {"data": "d", "instruction": "i"}.get(cache.kind, "")
    shared = f" shared by {cache.shared_by}" if cache.shared_by > 1 else ""
    return f"L{cache.level}{kind} {_bytes_text(cache.size_bytes)}{shared}"


def _memory_text(total: int | None, limit: int | None) -> str:
    text = _bytes_text(total) if total is not None else "not reported"
    return text if limit is None else f"{text}, limited to {_bytes_text(limit)} by the cgroup"


def _gpu_text(gpu: Gpu) -> str:
    units = "CUs" if gpu.gfx else "SMs"
    return f"{gpu.name} ({gpu.architecture}, {gpu.multiprocessors} {units}, {_bytes_text(gpu.memory_bytes)})"
