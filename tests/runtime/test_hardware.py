"""hardware() against what the operating system says, and its GPU path against a driver made here."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from lowbit import _core
from lowbit.runtime.hardware import Gpu, HardwareFeatures, hardware

# lowbit.runtime.hardware, the attribute, is the function.
hardware_module = sys.modules["lowbit.runtime.hardware"]

CPUINFO = Path("/proc/cpuinfo")
CACHE_ROOT = Path("/sys/devices/system/cpu/cpu0/cache")

# Our name -> the kernel's flag on x86, where they differ.
LINUX_FLAG = {"sse4.1": "sse4_1", "avx512_vbmi": "avx512vbmi"}


def test_hardware_is_a_function_whatever_was_imported():
    for statement in ("import lowbit.runtime.hardware", "from lowbit.runtime import hardware", "import lowbit.cli"):
        code = f"{statement}; import lowbit as lb; assert type(lb.hardware).__name__ == 'function'; lb.hardware().isa"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("lowbit.hardware")


def linux_flags() -> set[str]:
    for line in CPUINFO.read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":", 1)[1].split())
    return set()


@pytest.mark.skipif(platform.machine() != "x86_64" or not CPUINFO.exists(), reason="needs the flags of x86 Linux")
def test_features_agree_with_the_kernel():
    flags = linux_flags()
    features = hardware().features
    assert len(features) >= 15
    assert features == {name: LINUX_FLAG.get(name, name) in flags for name in features}


def test_named_features_follow_the_table():
    found = hardware()
    assert found.avx2 is found.features.get("avx2", False)
    assert found.has() is True
    assert found.has("no such feature") is False
    bare = dataclasses.replace(found, features={"avx512f": True, "avx512bw": True, "avx512vl": True})
    assert not bare.avx512
    full = dataclasses.replace(bare, features={**bare.features, "avx512dq": True})
    assert full.avx512
    assert not full.avx512_vnni
    assert not full.neon


def test_facts_cannot_be_set():
    with pytest.raises(AttributeError):
        hardware().avx2 = True
    with pytest.raises(dataclasses.FrozenInstanceError):
        hardware().cpu = "faster"


def test_a_changed_dict_does_not_reach_the_next_caller():
    hardware().features["imagined"] = True
    assert not hardware().has("imagined")


def test_cpu_counts():
    found = hardware()
    assert found.cores == os.cpu_count()
    assert 1 <= found.usable_cpus <= found.cores
    assert found.physical_cores is None or 1 <= found.physical_cores <= found.cores
    assert found.cpu.strip() == found.cpu != ""


@pytest.mark.skipif(not CACHE_ROOT.exists(), reason="this system does not show its caches")
def test_caches_are_those_of_sysfs():
    caches = hardware().caches
    assert len(caches) == len(list(CACHE_ROOT.glob("index*")))
    for cache in caches:
        assert 1 <= cache.level <= 4
        assert cache.kind in ("data", "instruction", "unified")
        assert 4 << 10 <= cache.size_bytes <= 4 << 30
        assert 1 <= cache.shared_by <= (os.cpu_count() or 1)
    data = [c.size_bytes for c in caches if c.kind != "instruction"]
    assert data == sorted(data), "each level is at least as large as the one below"


def test_without_sysfs_nothing_is_invented(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware_module, "_CPU_ROOT", tmp_path)
    monkeypatch.setattr(hardware_module, "_PROC", tmp_path)
    assert hardware_module._caches() == ()
    assert hardware_module._physical_cores() is None
    assert hardware_module._cgroup_memory_limit() is None


@pytest.mark.parametrize(("text", "count"), [("0", 1), ("0-1", 2), ("0-3,8", 5), ("0-3,64-67", 8)])
def test_cpu_lists(text, count):
    assert hardware_module._count_cpus(text) == count


@pytest.mark.parametrize(
    ("cgroup", "files", "limit"),
    [
        pytest.param("0::/a/b", {"a/memory.max": "1000", "a/b/memory.max": "max"}, 1000, id="v2-parent"),
        pytest.param("0::/", {"memory.max": "5000"}, 5000, id="v2-container-root"),
        pytest.param("0::/gone", {"memory.max": "5000"}, 5000, id="v2-path-of-the-host"),
        pytest.param("4:memory:/x", {"memory/x/memory.limit_in_bytes": "77"}, 77, id="v1"),
        pytest.param("0::/a", {"a/memory.max": "max"}, None, id="unlimited"),
        pytest.param("3:cpuset:/", {"memory.max": "5"}, None, id="another-controller"),
    ],
)
def test_cgroup_memory_limit(tmp_path, monkeypatch, cgroup, files, limit):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup + "\n")
    for name, text in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    monkeypatch.setattr(hardware_module, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(hardware_module, "_CGROUP_ROOT", tmp_path / "cgroup")
    assert hardware_module._cgroup_memory_limit() == limit


def test_memory_is_that_of_the_system():
    found = hardware()
    assert found.memory_bytes is None or found.memory_bytes > 64 << 20
    if found.memory_limit_bytes is not None and found.memory_bytes is not None:
        assert found.memory_limit_bytes < found.memory_bytes


def test_threads_are_read_at_each_call():
    before = hardware().threads
    try:
        _core.set_num_threads(1)
        assert hardware().threads == 1
    finally:
        _core.set_num_threads(before)
    assert hardware().threads == before


def test_isa_cap_from_the_environment_is_reported():
    code = "from lowbit.runtime.hardware import hardware; h = hardware(); print(h.isa, *h.available_isas)"
    root = str(Path(hardware_module.__file__).parents[2])
    environment = {**os.environ, "LOWBIT_MAX_ISA": "scalar", "PYTHONPATH": root}
    out = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    isa, *available = out.stdout.split()
    assert isa == "scalar"
    assert available == list(hardware().available_isas)


def test_json_round_trip():
    facts = hardware().to_dict()
    assert json.loads(json.dumps(facts)) == facts
    fields = {f.name for f in dataclasses.fields(HardwareFeatures)} | {"gpus"}
    assert set(facts) == fields


def test_text_names_what_people_look_for():
    found = hardware()
    text = str(found)
    for part in (found.cpu, found.isa, f"{found.threads} threads"):
        assert part in text
    assert len(text.splitlines()) >= 6


class FakeCuda:
    """Two devices behind the driver's C interface; `broken` names a function that reports an error."""

    def __init__(self, broken: str = "") -> None:
        self.broken = broken
        self.attributes = {16: 132, 75: 9, 76: 0}

    def _code(self, name: str) -> int:
        return 100 if name == self.broken else 0

    def cuInit(self, flags):
        return self._code("cuInit")

    def cuDeviceGetCount(self, count):
        count._obj.value = 2
        return self._code("cuDeviceGetCount")

    def cuDeviceGet(self, device, ordinal):
        device._obj.value = ordinal
        return self._code("cuDeviceGet")

    def cuDeviceGetName(self, name, length, device):
        name.value = b"Test GPU %d" % device.value
        return self._code("cuDeviceGetName")

    def cuDeviceTotalMem_v2(self, memory, device):
        memory._obj.value = 80 << 30
        return self._code("cuDeviceTotalMem_v2")

    def cuDeviceGetAttribute(self, value, attribute, device):
        value._obj.value = self.attributes[attribute]
        return self._code("cuDeviceGetAttribute")


@pytest.fixture
def load(monkeypatch):
    """Makes the loader answer with the given object, or raise it if it is an error."""

    def use(library):
        def loader(name):
            assert name == "libcuda.so.1"
            if isinstance(library, Exception):
                raise library
            return library

        monkeypatch.setattr(ctypes, "CDLL", loader)
        monkeypatch.setattr(hardware_module, "_KFD_ROOT", Path("/nowhere"))
        _forget_gpus()

    yield use
    _forget_gpus()


def _forget_gpus():
    hardware_module._cuda_gpus.cache_clear()
    hardware_module._amd_gpus.cache_clear()


def test_gpus_are_those_of_the_driver(load):
    load(FakeCuda())
    expected = tuple(Gpu(f"Test GPU {i}", (9, 0), 80 << 30, 132) for i in range(2))
    found = hardware()
    assert found.gpus == expected
    assert "Test GPU 1 (sm_90, 132 SMs, 80 GiB)" in str(found)
    described = json.loads(json.dumps(found.to_dict()))["gpus"][0]
    assert described["compute_capability"] == [9, 0]
    assert (described["architecture"], described["dot4"], described["matrix_unit"]) == ("sm_90", "dp4a", "Tensor Cores")
    assert "s8" in described["formats"]


@pytest.mark.parametrize(
    "function",
    ["cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceTotalMem_v2",
     "cuDeviceGetAttribute"],
)  # fmt: skip
def test_a_driver_error_means_no_gpu(load, function):
    load(FakeCuda(broken=function))
    assert hardware().gpus == ()


@pytest.mark.parametrize("library", [OSError("no such file"), object()], ids=["absent", "foreign"])
def test_no_usable_driver_library_means_no_gpu(load, library):
    load(library)
    assert hardware().gpus == ()


def test_amd_gpus_are_those_of_the_kernel(load, tmp_path, monkeypatch):
    load(OSError("no such file"))
    # A CPU, an MI210 and a card of RDNA 3, as the amdgpu driver shows them.
    for node, version, name in ((0, 0, ""), (1, 90010, "aldebaran"), (2, 110000, "navi31")):
        bank = tmp_path / str(node) / "mem_banks/0"
        bank.mkdir(parents=True)
        (bank / "properties").write_text("heap_type 1\nsize_in_bytes 68702699520\n")
        (tmp_path / str(node) / "properties").write_text(
            f"cpu_cores_count {8 * (not version)}\nsimd_count 416\nsimd_per_cu 4\ngfx_target_version {version}\n"
        )
        (tmp_path / str(node) / "name").write_text(name + "\n")
    monkeypatch.setattr(hardware_module, "_KFD_ROOT", tmp_path)
    mi210, navi = hardware().gpus
    assert mi210 == Gpu("aldebaran", (9, 0), 68702699520, 104, "gfx90a")
    assert (mi210.architecture, mi210.features.matrix_unit) == ("gfx90a", "MFMA")
    assert (navi.architecture, navi.features.matrix_unit) == ("gfx1100", "WMMA")
    assert "aldebaran (gfx90a, 104 CUs, 63.98 GiB)" in str(hardware())


def test_asking_for_the_cpu_does_not_touch_cuda(load):
    load(AssertionError("CUDA was looked for"))
    assert hardware().cores >= 1
