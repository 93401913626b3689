"""Tests of GPU kernels need processes of their own (interpreted, or compiled), so they run when they are named:

TRITON_INTERPRET=1 pytest tests/gpu/test_elementwise.py ...
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    here = Path(__file__).parent
    asked = [config.invocation_params.dir / str(a).split("::")[0] for a in config.invocation_params.args]
    return None if any(path == here or here in path.parents for path in asked) else True
