"""The committed stubs of the native module are what nanobind makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import lowbit
from lowbit import _core

stubgen = pytest.importorskip("nanobind.stubgen")


def test_stubs_are_up_to_date() -> None:
    generator = stubgen.StubGen(_core)
    generator.put(_core)
    committed = Path(lowbit.__file__).with_name("_core.pyi").read_text()
    assert generator.get() == committed, "run `make stubs`"


def test_every_native_name_is_in_the_stubs() -> None:
    committed = Path(lowbit.__file__).with_name("_core.pyi").read_text()
    for name in dir(_core):
        if not name.startswith("_"):
            assert name in committed, name
