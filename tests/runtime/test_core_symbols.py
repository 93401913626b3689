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

OBJECTS = sorted((Path(__file__).parents[2] / "build/python/CMakeFiles").glob("kernels_*.dir/core/kernels/*/*.o"))


@pytest.mark.skipif(not OBJECTS or shutil.which("nm") is None, reason="no objects of a build, or no nm")
def test_no_kernel_is_shared_between_instruction_sets() -> None:
    files = defaultdict(set)
    assert len({path.parts[-5] for path in OBJECTS}) >= 3
    assert len(OBJECTS) > 20
    for path in OBJECTS:
        found = subprocess.run(["nm", "-C", "--defined-only", path], capture_output=True, text=True, check=True)
        for line in found.stdout.splitlines():
            _, kind, name = line.split(maxsplit=2)
            if kind in "WVu" and not name.startswith("DW.ref."):  # those are of exceptions, and data
                files[name].add(path.parts[-5])
    assert {name: sorted(found) for name, found in files.items() if len(found) > 1} == {}
