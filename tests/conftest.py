"""What every test may ask for: each ISA of this CPU, each number of threads, and numbers that hurt."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import ModuleType
from typing import Any

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
    return lb


@pytest.fixture(params=["reference", *(f"native-{isa}" for isa in ISAS)])
def subject(request: pytest.FixtureRequest) -> ModuleType:
    """Who computes: the reference in NumPy, then lowbit on each ISA of this CPU."""
    if request.param == "reference":
        return compute_reference
    found: ModuleType = request.getfixturevalue("native")
    _core.set_max_isa(request.param.removeprefix("native-"))
    return found


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """No clock: every quantized layer of torch is twice as fast as float. Gives the list of what was timed."""
    from lowbit.torch.inference import timing
    from torch_models import fake_clock

    return fake_clock(monkeypatch, lambda *_: timing.LayerTiming(2e-3, 1e-3))
