"""Imports point down, public names are pinned, importing is light.

A package imports from itself and from those above it in this order, which is a table in docs/internals/architecture.md:

    numerics reference runtime ops layers plans calibration algorithms data bench tuning models
    system formats torch gpu report     the edge: none imports another, only fleet (formats) and cli import them
    fleet cli

`data` is a small network with its images, and imports nothing. `bench` times functions. `tuning` measures settings with
`bench` and recommends one. All three work on arrays and layers, so they are below `models`, which knows whole networks.
The modules of `gpu` are named once, as strings, in runtime/devices.py, and imported when a GPU is asked for.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lowbit as lb

PACKAGE = Path(lb.__file__).parent

CORE = [
    "numerics",
    "reference",
    "runtime",
    "ops",
    "layers",
    "plans",
    "calibration",
    "algorithms",
    "data",
    "bench",
    "tuning",
    "models",
]
EDGE = {"system", "formats", "torch", "gpu", "report"}
ALLOWED = {name: {"_core", "_version", *CORE[:rank]} for rank, name in enumerate(CORE)}
ALLOWED |= {name: {"_version", *CORE} for name in EDGE} | {"_version": set()}
ALLOWED["fleet"] = {"_version", *CORE, "formats"}
ALLOWED["cli"] = {"_version", *CORE, *EDGE, "fleet"}
ALLOWED["__main__"] = {"cli"}

PUBLIC = {
    "AccuracyImpact", "CalibrationMethod", "CalibrationStatistics", "Calibrator", "CpuQuantizationOps",
    "ErrorReport", "FormatError", "HardwareFeatures", "InvalidProblem", "PackedConv", "PackedMatrix",
    "PercentileCalibrator", "QuantizationOps", "QuantizationParams", "QuantizationScheme", "QuantizationSystem",
    "QuantizedConv2d", "QuantizedDType", "QuantizedLinear", "QuantizedTensor", "ReferenceQuantizationOps",
    "Unsupported", "UnsupportedDType", "__version__", "auto_quantize_tensor", "binary_conv2d", "binary_matmul",
    "calibrate", "conv2d_integer", "create_optimal_params", "create_quantization_system", "dequantize",
    "dequantize_backward", "dequantize_from_int8", "estimate_accuracy_impact", "estimate_memory_savings",
    "fake_quantize", "fake_quantize_backward", "fake_quantize_learned_backward", "get_num_threads", "hardware",
    "matmul_integer", "measure_accuracy_impact", "prepack", "prepack_binary", "prepack_binary_conv2d",
    "prepack_conv2d", "qadd", "qavg_pool2d", "qclamp", "qconcat", "qconv1d", "qconv2d", "qmatmul", "qmax_pool2d",
    "qmul", "qrelu", "quantize", "quantize_backward", "quantize_to_int8", "set_num_threads",
}  # fmt: skip


def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


def package(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The packages of lowbit this file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "lowbit":
                found |= {parts[1]} if len(parts) > 1 else {a.name for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("lowbit.")}
    return found - {"__version__"}


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    here = package(path)
    assert here in ALLOWED, f"{here} has no place in the architecture: add it to CORE or EDGE"
    assert imported(path) - {here} <= ALLOWED[here]


def test_the_documented_table_has_this_order() -> None:
    page = PACKAGE.parents[1] / "docs" / "internals" / "architecture.md"
    table = page.read_text(encoding="utf-8").partition("## Python")[2].partition("\n\n_")[0]
    rows = re.findall(r"^\| `(\w+)` \|", table, re.M)
    assert rows[: len(CORE)] == CORE
    assert set(rows[len(CORE) : -2]) == EDGE
    assert rows[-2:] == ["fleet", "cli"]


def test_gpu_modules_are_named_in_one_place() -> None:
    named = [p for p in modules() if package(p) not in ("gpu", "cli") and '"lowbit.gpu.' in p.read_text()]
    assert named == [PACKAGE / "runtime" / "devices.py"]


def test_the_native_module_has_one_importer() -> None:
    assert [p for p in modules() if "_core" in imported(p)] == [PACKAGE / "runtime" / "native.py"]


def test_public_names_are_pinned() -> None:
    assert set(lb.__all__) == PUBLIC
    assert all(hasattr(lb, name) for name in PUBLIC)


def run(code: str, **environment: str) -> str:
    env = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_needs_numpy_and_nothing_else() -> None:
    allowed = run(
        "import sys, numpy; a = set(sys.modules); import lowbit; "
        "print('\\n'.join(sorted({m.split('.')[0] for m in set(sys.modules) - a})))"
    ).split()
    third_party = set(allowed) - set(sys.stdlib_module_names) - {"lowbit", "numpy"}
    assert not {m for m in third_party if not m.startswith("_")}, third_party


def documented_modules() -> set[str]:
    """Modules of lowbit that docs, the README or examples name."""
    root = PACKAGE.parents[1]
    texts = [*(root / "docs").rglob("*.md"), root / "README.md", *(root / "examples").rglob("*.py")]
    named = {m for path in texts for m in re.findall(r"\blowbit\.([a-z_]+)", path.read_text(encoding="utf-8"))}
    return {m for m in named if (PACKAGE / m).is_dir() or (PACKAGE / f"{m}.py").exists()}


def test_documented_modules_are_attributes_that_are_imported_when_used() -> None:
    lazy = {"bench", "formats", "models", "plans", "torch", "tuning", "system"}
    modules = sorted((documented_modules() | lazy | {"calibration"}) - {"cli"})
    code = (
        "import sys, types, lowbit as lb\n"
        f"eager = [m for m in {sorted(lazy)} if f'lowbit.{{m}}' in sys.modules]\n"
        "assert not eager and 'torch' not in sys.modules, eager\n"
        f"for name in {modules}:\n"
        "    found = getattr(lb, name)\n"
        "    assert name in dir(lb), name\n"
        "    assert isinstance(found, types.ModuleType) or found.__module__ == f'lowbit.{name}', name\n"
        "assert lb.plans.QuantizePerTensorPlan and lb.tuning.auto_tune\n"
        "try:\n    lb.nothing\nexcept AttributeError as error:\n    print(error)\n"
    )
    assert run(code).strip() == "module 'lowbit' has no attribute 'nothing'"


def test_the_package_runs_as_a_command() -> None:
    pytest.importorskip("typer")
    for arguments in (["--version"], ["hardware", "--json"]):
        done = subprocess.run([sys.executable, "-m", "lowbit", *arguments], capture_output=True, text=True, check=True)
        assert lb.__version__ in done.stdout or "architecture" in done.stdout


def test_hints_to_install_name_what_there_is() -> None:
    """Each names an extra of ours that has the missing package, or a package that an extra has."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 has it")
    project = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {
        name: {re.split(r"[<>=]", package)[0].lower() for package in packages}
        for name, packages in project["optional-dependencies"].items()
    }
    needed = {
        "YAML": "pyyaml", "ONNX": "onnx", "onnxruntime": "onnxruntime", "matplotlib": "matplotlib", "triton": "triton",
        "command": "typer", "bfloat16": "ml_dtypes",
    }  # fmt: skip
    hints = 0
    for path in modules():
        for line in path.read_text(encoding="utf-8").splitlines():
            for hint in re.findall(r"pip install '?([\w\[\],-]+)", line):
                hints += 1
                name, _, extra = hint.rstrip("]").partition("[")
                assert extra in extras if name == "lowbit" else any(hint in e for e in extras.values()), line
                has = extras[extra] if extra else {hint}
                missing = [package for word, package in needed.items() if word in line]
                assert not missing or has & set(missing), line
    assert hints > 6


@pytest.mark.skipif("LOWBIT_SANITIZED" in os.environ, reason="an instrumented module is slow to load")
def test_import_is_under_100_ms_beyond_numpy(tmp_path: Path) -> None:
    """With compiled bytecode, as an installed package has it."""
    code = "import time, numpy; t = time.process_time(); import lowbit; print(time.process_time() - t)"
    cached = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    assert min(float(run(code, **cached)) for _ in range(20)) < 0.1


def test_facts_work_without_the_native_module() -> None:
    code = (
        "import sys; sys.modules['lowbit._core'] = None\n"
        "import types, importlib.util, pathlib\n"
        f"pkg = types.ModuleType('lowbit'); pkg.__path__ = [{str(PACKAGE)!r}]; sys.modules['lowbit'] = pkg\n"
        "import numpy as np\n"
        "from lowbit import reference\n"
        "from lowbit.numerics.params import QuantizationParams\n"
        "p = QuantizationParams('int4', scale=0.5)\n"
        "print(reference.quantize(np.float32([1.0, -9.0]), p).tolist())\n"
    )
    assert run(code).strip() == "[2, -8]"
