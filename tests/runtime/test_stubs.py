"""The committed stubs of the native module are what nanobind makes of it, and every native signature is typed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import lowbit
from lowbit import _core

STUBS = Path(lowbit.__file__).with_name("_core.pyi").read_text()
MOST_PARAMETERS = 6  # besides self


def signatures() -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.parse(STUBS).body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{f.name}", f) for f in node.body if isinstance(f, ast.FunctionDef))


def test_stubs_are_up_to_date() -> None:
    stubgen = pytest.importorskip("nanobind.stubgen")
    generator = stubgen.StubGen(_core)
    generator.put(_core)
    assert generator.get() == STUBS, "run `make stubs`"


def test_every_native_name_is_in_the_stubs() -> None:
    for name in dir(_core):
        if not name.startswith("_"):
            assert name in STUBS, name


def test_every_parameter_has_a_type() -> None:
    untyped = {name for name, f in signatures() if "object" in ast.unparse(f).split('"""')[0]}
    assert untyped == set()


def test_no_function_has_more_than_six_parameters() -> None:
    def parameters(f: ast.FunctionDef) -> int:
        return sum(a.arg != "self" for a in (*f.args.posonlyargs, *f.args.args, *f.args.kwonlyargs))

    assert {name for name, f in signatures() if parameters(f) > MOST_PARAMETERS} == set()
