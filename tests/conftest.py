"""What every test may ask for: each ISA of this CPU, each number of threads, and numbers that hurt."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType

import pytest

import compute_reference
import lowbit as lb
from lowbit import _core

if "LOWBIT_SANITIZED" in os.environ:
    assert "sanitized" in _core.__file__, "the instrumented module was asked for, and another one was loaded"

ISAS = _core.available_isas()
THREADS = (1, 2, 3, 7)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Whatever a test set, the next one starts from the defaults."""
    cap, threads = _core.max_isa(), lb.get_num_threads()
    yield
    _core.set_max_isa(cap)
    lb.set_num_threads(threads)


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    _core.set_max_isa(request.param)
    assert _core.active_isa() == request.param
    return str(request.param)


@pytest.fixture
def native() -> ModuleType:
    """lowbit, whose compute functions are under test."""
    if not hasattr(lb, "qmatmul"):  # goes, with this fixture's reason to skip, once the functions are there
        pytest.skip("lowbit.qmatmul and its family are not built yet")
    return lb


@pytest.fixture(params=["reference", *(f"native-{isa}" for isa in ISAS)])
def subject(request: pytest.FixtureRequest) -> ModuleType:
    """Who computes: the reference in NumPy, then lowbit on each ISA of this CPU."""
    if request.param == "reference":
        return compute_reference
    found: ModuleType = request.getfixturevalue("native")
    _core.set_max_isa(request.param.removeprefix("native-"))
    return found
