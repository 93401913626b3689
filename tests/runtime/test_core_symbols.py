"""Code compiled for one instruction set never runs in place of another's.

A template that does not name the vector type has the same symbol in every file of kernels: a linker keeps one of them,
which may use instructions that the CPU lacks, or run far slower than the file it was written in.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

OBJECTS = Path(__file__).parents[2] / "build/python/CMakeFiles/lowbit_core.dir/core/kernels"


@pytest.mark.skipif(not OBJECTS.is_dir() or shutil.which("nm") is None, reason="no objects of a build, or no nm")
def test_no_kernel_is_shared_between_instruction_sets() -> None:
    files = defaultdict(set)
    objects = [o for o in OBJECTS.glob("*/*.o") if o.name.startswith(("scalar", "x86_", "arm_"))]
    assert len(objects) > 20
    for path in objects:
        found = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True)
        for line in found.stdout.splitlines():
            _, kind, name = line.split(maxsplit=2)
            if kind in "WVu" and not name.startswith("DW.ref."):  # those are of exceptions, and data
                files[name].add(path.name)
    assert {name: sorted(found) for name, found in files.items() if len(found) > 1} == {}
