"""The pages tell the truth: their programs run and print what is shown, their links lead somewhere."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lowbit.models import load_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/**/*.md"))]

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"\s*\n```text\n(?P<body>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)  # of mkdocstrings
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Program:
    """A ```python block, its line in the page, and what it should print, if a ```text block follows."""

    source: str
    line: int
    output: str | None


def programs(text: str) -> Iterator[Program]:
    for fence in FENCE.finditer(text):
        if fence["info"].strip() == "python":
            line = text.count("\n", 0, fence.start("body")) + 1
            after = SHOWN.match(text, fence.end())
            yield Program(fence["body"], line, after["body"] if after else None)


def lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip("\n").splitlines()]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_programs_run_and_print_what_is_shown(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # some of them write files
    shared = {"__name__": "__main__"}
    for program in programs(page.read_text(encoding="utf-8")):
        printed = io.StringIO()
        # Empty lines in front, so that a traceback has the line of the page.
        code = compile("\n" * (program.line - 1) + program.source, str(page), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, shared)
        if program.output is not None:
            where = f"{name_of(page)}:{program.line}"
            assert lines(printed.getvalue()) == lines(program.output), where


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("\n```") % 2 == 0
    known = {"", "python", "python no-run", "text", "sh", "cpp", "cmake", "make", "yaml"}
    assert {fence["info"].strip() for fence in FENCE.finditer(text)} <= known


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_recipes_load(page: Path, tmp_path: Path) -> None:
    for i, fence in enumerate(FENCE.finditer(page.read_text(encoding="utf-8"))):
        if fence["info"].strip() == "yaml":
            (tmp_path / f"{i}.yaml").write_text(fence["body"])
            load_recipe(tmp_path / f"{i}.yaml")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_to_files(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    targets = [link.partition("#")[0] for link in LINK.findall(text) if "://" not in link]
    assert [t for t in targets if t and not (page.parent / t).exists()] == []


def test_the_navigation_leads_to_every_page() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = {ROOT / "docs" / name for name in re.findall(r"[:-] ([\w/]+\.md)$", nav, re.MULTILINE)}
    assert [name_of(page) for page in ROOT.glob("docs/**/*.md") if page not in listed] == []


@pytest.mark.parametrize("target", ["demo", "test", "docs", "bench", "check", "test-deep"])
def test_the_pages_name_the_commands_and_the_makefile_has_them(target: str) -> None:
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md")]
    assert any(re.search(rf"make {target}\b(?!-)", text) for text in texts)
    makefiles = [(ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "scripts/deep.mk")]
    assert any(re.search(rf"^{target}:", text, re.MULTILINE) for text in makefiles)


def test_the_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


def test_the_benchmark_pages_are_those_that_the_results_give() -> None:
    from benchmarks import page

    assert page.PAGE.read_text(encoding="utf-8") == page.page()
    assert page.readme_table() in page.README.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "module",
    ["", ".plans", ".torch", ".calibration", ".algorithms", ".tuning", ".bench", ".models", ".system"],
    ids=lambda name: name or "lowbit",
)
def test_every_public_name_is_in_the_api_reference(module: str) -> None:
    if module == ".torch":
        pytest.importorskip("torch")
    text = (ROOT / f"docs/reference/api/{module[1:] or 'lowbit'}.md").read_text(encoding="utf-8")
    documented = {name.rpartition(".")[2] for name in DIRECTIVE.findall(text)} | set(
        re.findall(r"`(?:lb\.)?(\w+)`", text)
    )
    assert set(importlib.import_module(f"lowbit{module}").__all__) - documented == set()


def test_the_reference_documents_what_exists() -> None:
    for path in ROOT.glob("docs/reference/api/*.md"):
        for name in DIRECTIVE.findall(path.read_text(encoding="utf-8")):
            home, _, member = name.rpartition(".")
            home = home if importlib.util.find_spec(home) else home.rpartition(".")[0]
            assert hasattr(importlib.import_module(home), member), f"{path.name}: {name}"


def test_the_command_reference_is_that_of_the_commands() -> None:
    pytest.importorskip("typer")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/cli_reference.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_program_that_ends_the_quantization_page_is_short_and_shown_with_its_output() -> None:
    *_, last = programs((ROOT / "docs/guide/quantization.md").read_text(encoding="utf-8"))
    assert len(last.source.splitlines()) < 40
    assert last.output
    assert "import numpy as np\nimport lowbit as lb\n" in last.source


def test_the_four_walks_lead_through_files_that_exist_and_none_twice() -> None:
    text = (ROOT / "docs/internals/architecture.md").read_text(encoding="utf-8")
    walks = text.partition("## Four walks")[2].partition("\n## ")[0].split("\n**")[1:]
    assert len(walks) == 4
    for walk in walks:
        files = re.findall(r"^\| \d+ \| `([^`]+)` \|", walk, re.MULTILINE)
        assert [name for name in files if not (ROOT / name).is_file()] == []
        assert 5 < len(set(files)) == len(files) <= 10


NEIGHBOUR = ROOT / "docs/guide/from_rust_crates.md"


def resolve(name: str) -> None:
    """Raises where a dotted name, maybe with a keyword argument as `f(x=)`, leads nowhere."""
    dotted, _, keyword = name.partition("(")
    parts = dotted.replace("lb", "lowbit", 1).split(".") if dotted.startswith("lb.") else dotted.split(".")
    found: Any = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 2):
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(".".join(parts[:i]))
        fields = {*getattr(found, "__dataclass_fields__", ()), *getattr(found, "__slots__", ())}
        found = getattr(found, part, found) if part in fields else getattr(found, part)
    if keyword:
        assert keyword.rstrip("=)") in inspect.signature(found).parameters, name


@pytest.mark.parametrize("page", [NEIGHBOUR, ROOT / "docs/guide/coming_from.md"], ids=lambda page: page.stem)
def test_names_of_ours_that_neighbours_are_sent_to_exist(page: Path) -> None:
    rows = re.findall(r"^\| `[^|]*\|([^|]*)\|", page.read_text(encoding="utf-8"), re.MULTILINE)
    names = [n for row in rows for n in re.findall(r"`((?:lb|lowbit)\.[\w.]+(?:\(\w+=\))?)", row)]
    assert len(names) > 5
    for name in names:
        resolve(name)


def test_every_public_name_of_the_rust_crates_has_its_row() -> None:
    text = NEIGHBOUR.read_text(encoding="utf-8")
    theirs = " ".join(re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE))
    names = (ROOT / "tests/docs/rust_names.txt").read_text(encoding="utf-8").split()
    assert len(names) > 150
    assert [name for name in names if not re.search(rf"(?<!\w){name}(?!\w)", theirs)] == []
