"""The C++ core: includes point down, every family is listed, and the docs' table is the code's."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from lowbit import _core

ROOT = Path(__file__).resolve().parents[2]
CORE = ROOT / "core"
TABLE = ROOT / "scripts" / "kernel_table.py"

# Folders from the bottom up. A file includes from its own folder and from those before it.
ORDER = ["base", "simd", "kernels", "drivers", "bindings"]
FILES = sorted(f for folder in ORDER for f in (CORE / folder).rglob("*") if f.suffix in {".h", ".cc", ".inc"})

pytestmark = pytest.mark.skipif(not CORE.is_dir(), reason="installed without its sources")


def test_includes_point_down():
    upward = [
        f"{file.relative_to(CORE)} includes {path}"
        for file in FILES
        for path in re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE)
        if ORDER.index(path.split("/")[0]) > ORDER.index(file.relative_to(CORE).parts[0])
    ]
    assert upward == []


def test_a_kernel_family_includes_another_only_for_its_rows():
    """generic.h of one family is no library for the others, but quantize takes ranges while it reads."""
    allowed = {("quantize", "range")}
    found = {
        (file.parent.name, family)
        for file in FILES
        if file.parent.parent.name == "kernels"
        for family in re.findall(r'^#include "kernels/(\w+)/generic\.h"', file.read_text(), re.MULTILINE)
        if family != file.parent.name
    }
    assert found == allowed


def test_every_folder_of_kernels_is_a_family():
    listed = set(re.findall(r"^FAMILY\((\w+),", (CORE / "kernels" / "families.inc").read_text(), re.MULTILINE))
    folders = {f.parent.name for name in ("scalar", "rows") for f in (CORE / "kernels").glob(f"*/{name}.cc")}
    assert listed == folders
    assert listed == {family for family, *_ in _core.kernel_rows()}


def test_every_row_is_built_once():
    rows = _core.kernel_rows()
    assert len(set(rows)) == len(rows)
    sys.path.insert(0, str(TABLE.parent))
    try:
        from kernel_table import families
    finally:
        sys.path.pop(0)
    scalar = Counter(family for family, isa, *_ in rows if isa == "scalar")
    assert scalar == {f.name: f.rows for f in families()}
    for isa in {isa for _, isa, *_ in rows}:
        for family, count in Counter(f for f, i, *_ in rows if i == isa).items():
            assert count == scalar[family], (family, isa)


def test_the_table_in_the_docs():
    run = subprocess.run([sys.executable, TABLE, "--check"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
