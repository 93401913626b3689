"""Mutation testing: every fault in mutants.txt must make one of its tests fail.

    python scripts/mutants.py                 all mutants
    python scripts/mutants.py params ranges   those whose path or text contains one of the words
    python scripts/mutants.py --list
    python scripts/mutants.py --check         every entry's text occurs exactly once in its file; runs no tests

A mutant is a file, the text that is replaced (`-`), its replacement (`+`), and the pytest arguments that must fail
with it (`?`). Mutants of core/ are built; `? c++` runs the C++ tests for them. The repository is never changed:
a mutant is a copy of the package, which is imported in place of the installed one.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NATIVE = ROOT / "build" / "mutants"  # a copy of the C++ sources and their build, kept between runs
SECONDS = 600  # a mutant that makes a loop endless is killed, too
# The editable install would put its own module first.
NO_EDITABLE = 'import sys\nsys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]\n'


@dataclass(frozen=True)
class Mutant:
    path: str
    old: str
    new: str
    tests: str

    def __str__(self) -> str:
        return f"{self.path}: {' '.join(self.old.split())[:60]} -> {' '.join(self.new.split())[:60] or 'nothing'}"

    @property
    def is_native(self) -> bool:
        return self.path.startswith("core/")

    def applied(self, source: str) -> str:
        """The mutated source."""
        return source.replace(self.old, self.new)

    def mistake(self) -> str | None:
        """What is wrong with the entry: its text must occur exactly once in its file, its tests must exist."""
        path = ROOT / self.path
        found = path.read_text().count(self.old) if path.is_file() else 0
        if found != 1:
            return f"{self}: the text occurs {found} times in the file; expected once"
        named = [] if self.tests.startswith("c++") else [test for test in self.tests.split() if test.endswith(".py")]
        missing = [test for test in named if not (ROOT / test).is_file()]
        return f"{self}: no test file {', '.join(missing)}" if missing else None


def read_mutants(text: str) -> list[Mutant]:
    """Blocks of lines, separated by blank lines; `#` begins a comment."""
    mutants = []
    for block in re.split(r"\n\s*\n", text):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        if not lines:
            continue
        path, parts = lines[0], {sign: [x[2:] for x in lines[1:] if x[0] == sign] for sign in "-+?"}
        if not parts["-"] or not parts["?"] or any(line[0] not in "-+?" for line in lines[1:]):
            raise SystemExit(f"mutants.txt: a block must be a path, then lines of '-', '+' and '?':\n{block}")
        mutants.append(Mutant(path, "\n".join(parts["-"]), "\n".join(parts["+"]), " ".join(parts["?"])))
    return mutants


def run(command: list[str], **environment: str) -> int:
    """The exit code; None of the output is kept, a mutant's failure is expected to be noisy."""
    env = {**os.environ, **environment}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    try:
        return subprocess.run(command, cwd=ROOT, env=env, timeout=SECONDS, check=False, **quiet).returncode
    except subprocess.TimeoutExpired:
        return 1


def pytest_code(tests: str, site: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *shlex.split(tests)]
    return run(command, PYTHONPATH=str(site), PYTHONDONTWRITEBYTECODE="1", HYPOTHESIS_STORAGE_DIRECTORY=str(site))


def package_in(folder: Path, core: Path) -> Path:
    """A copy of the package with this native module, in a folder for PYTHONPATH."""
    shutil.copytree(ROOT / "src" / "lowbit", folder / "lowbit", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(core, folder / "lowbit")
    (folder / "sitecustomize.py").write_text(NO_EDITABLE)
    return folder


def verdict(code: int) -> str:
    """pytest's exit codes: 0 all passed, 1 some failed; anything else says nothing about the mutant. Below 0, a signal
    ended the tests, as a mutant that corrupts memory does."""
    return "survived" if code == 0 else "killed" if code == 1 or code < 0 else f"error: pytest exit code {code}"


def judge_python(mutant: Mutant, core: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        site = package_in(Path(folder), core)
        target = site / Path(mutant.path).relative_to("src")
        target.write_text(mutant.applied(target.read_text()))
        return verdict(pytest_code(mutant.tests, site))


def judge_native(mutant: Mutant) -> str:
    """Builds the mutant where the unchanged sources were built, so that one file is compiled."""
    target = NATIVE / mutant.path
    source = target.read_text()
    target.write_text(mutant.applied(source))
    try:
        tests = mutant.tests.split()
        module = tests[0] != "c++"
        if run(["cmake", "--build", str(NATIVE / "build"), "--target", "_core" if module else "lowbit_tests"]) != 0:
            return "error: does not compile"
        if not module:
            return verdict(1 if run([str(NATIVE / "build" / "lowbit_tests"), *tests[1:]]) else 0)
        with tempfile.TemporaryDirectory() as folder:
            core = next((NATIVE / "build").glob("_core*.so"))
            return verdict(pytest_code(mutant.tests, package_in(Path(folder), core)))
    finally:
        target.write_text(source)


def configure_native() -> None:
    for source in (ROOT / "CMakeLists.txt", *(ROOT / "core").rglob("*")):
        target = NATIVE / source.relative_to(ROOT)
        # Only what differs: an unchanged file is not compiled again, one that an ended run left mutated is.
        if source.is_file() and (not target.exists() or target.read_bytes() != source.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    configure = ["cmake", "-S", str(NATIVE), "-B", str(NATIVE / "build"), "-G", "Ninja", "-DLOWBIT_TESTS=ON"]
    if run([*configure, f"-DPython_EXECUTABLE={sys.executable}"]) != 0:
        raise SystemExit("build/mutants: cmake could not configure the build")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="run only mutants whose path or text contains one of these")
    parser.add_argument("--list", action="store_true", help="print the mutants, run nothing")
    parser.add_argument("--check", action="store_true", help="check that every entry matches its file, run nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants of the Python package at a time")
    options = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # cmake and ninja

    mutants = read_mutants((ROOT / "scripts" / "mutants.txt").read_text())
    if options.words:
        mutants = [m for m in mutants if any(word in f"{m.path} {m.old} {m.new}" for word in options.words)]
    mistakes = [mistake for mutant in mutants if (mistake := mutant.mistake())]
    if mistakes:
        print("\n".join(mistakes))
        return 1
    if options.check:
        print(f"{len(mutants)} mutants match their files")
        return 0
    if options.list:
        print("\n".join(map(str, mutants)))
        return 0

    core = Path(importlib.import_module("lowbit._core").__file__)
    outcomes: dict[str, int] = {}

    def report(mutant: Mutant, outcome: str) -> None:
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        print(f"{outcome:10} {mutant}", flush=True)

    python, native = [m for m in mutants if not m.is_native], [m for m in mutants if m.is_native]
    with tempfile.TemporaryDirectory() as folder:  # a test that fails anyway kills nothing
        site = package_in(Path(folder), core)
        selections = {m.tests for m in mutants if not m.tests.startswith("c++")}
        plain = sorted({test for tests in selections if " -" not in tests for test in tests.split()})
        for tests in [*([" ".join(plain)] if plain else []), *sorted(t for t in selections if " -" in t)]:
            if (code := pytest_code(tests, site)) != 0:
                raise SystemExit(f"{tests}: pytest exit code {code} without a mutant; expected 0")
    with ThreadPoolExecutor(options.jobs) as pool:
        for mutant, outcome in zip(python, pool.map(lambda m: judge_python(m, core), python), strict=True):
            report(mutant, outcome)
    if native:
        configure_native()
    for mutant in native:
        report(mutant, judge_native(mutant))
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items())))
    return 0 if set(outcomes) <= {"killed"} else 1


if __name__ == "__main__":
    sys.exit(main())
