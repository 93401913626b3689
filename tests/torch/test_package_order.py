"""lowbit.torch is three packages, each importing only from those before it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import lowbit

ORDER = ["functional", "inference", "qat"]
ROOT = Path(lowbit.__file__).parent / "torch"


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_from_those_before_it(package: str) -> None:
    later = [f"lowbit.torch.{name}" for name in ORDER[ORDER.index(package) + 1 :]]
    for path in (ROOT / package).glob("*.py"):
        imported = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom) and n.module]
        for node in imported:
            assert node.module != "lowbit.torch", f"{path.name}: import from the module that defines the name"
            assert not any(str(node.module).startswith(name) for name in later), f"{path.name} imports {node.module}"


def test_no_module_of_a_package_imports_another_in_a_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for path in ROOT.glob("*/*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        name = f"lowbit.torch.{path.parent.name}" + ("" if path.stem == "__init__" else f".{path.stem}")
        graph[name] = {str(n.module) for n in nodes if isinstance(n, ast.ImportFrom) and n.module}
    while leaves := [name for name, needs in graph.items() if not needs & graph.keys()]:
        for name in leaves:
            del graph[name]
    assert not graph


def test_modules_are_named_by_what_they_are() -> None:
    assert {p.name for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__"} == set(ORDER)
