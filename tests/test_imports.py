"""The house stays in order: imports point down, public names are pinned, importing is light."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import lowbit as lb

PACKAGE = Path(lb.__file__).parent

# Layers from the bottom up. A module may import its own layer's earlier modules and every layer below.
LAYERS = [
    ["errors", "_version", "whole_file", "cachefile", "gpu_features"],
    ["dtypes"],
    ["ranges", "logarithm"],
    ["fields"],
    ["granularity"],
    ["schemes"],
    ["params"],
    ["packing", "container", "metrics"],
    ["indexing"],
    ["tensor"],
    ["reference"],
    ["reference_compute", "reference_calibration"],
    ["hardware", "threads", "kernels", "limits", "hints"],
    ["ops"],
    ["layers"],
    ["accuracy"],
    ["calibration"],
    ["quantization_ops", "gpu_ops", "gpu_linear"],
    ["plans"],
    ["specialized"],
    ["bench"],
    ["tuning"],
    ["system"],
    ["models"],
    ["data"],
    ["survey"],
    ["formats", "torch"],
    ["report"],
    [
        "cli_errors",
        "cli_calibrate",
        "cli_bench",
        "cli_tune",
        "cli_quantize",
        "cli_inspect",
        "cli_compare",
        "cli_dtypes",
        "cli_demo",
        "cli_gpu",
    ],
    ["cli"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FACTS = {
    "errors", "_version", "gpu_features", "dtypes", "ranges", "logarithm", "fields", "granularity", "schemes", "params",
    "packing",
    "container", "metrics", "indexing", "tensor", "reference", "reference_compute",
    "reference_calibration",
}  # fmt: skip

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


def room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The rooms of lowbit this file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "lowbit":
                found |= {parts[1]} if len(parts) > 1 else {a.name for a in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("lowbit.")}
    return found


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    here = room(path)
    assert here in RANK, f"{here} has no place in the house: add it to LAYERS"
    for other in imported(path) - {here, "_core"}:
        assert RANK.get(other, -1) < RANK[here] or (
            RANK[other] == RANK[here] and LAYERS[RANK[here]].index(other) < LAYERS[RANK[here]].index(here)
        ), f"{here} imports {other}"
    if here in FACTS:
        assert "_core" not in imported(path), f"{here} is a fact: it must not need the native module"


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


@pytest.mark.skipif("LOWBIT_SANITIZED" in os.environ, reason="an instrumented module is slow to load")
def test_import_is_under_100_ms_beyond_numpy(tmp_path: Path) -> None:
    """With compiled bytecode, as an installed package has it."""
    code = "import time, numpy; t = time.process_time(); import lowbit; print(time.process_time() - t)"
    cached = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(tmp_path)}
    assert min(float(run(code, **cached)) for _ in range(5)) < 0.1


def test_facts_work_without_the_native_module() -> None:
    code = (
        "import sys; sys.modules['lowbit._core'] = None\n"
        "import types, importlib.util, pathlib\n"
        f"pkg = types.ModuleType('lowbit'); pkg.__path__ = [{str(PACKAGE)!r}]; sys.modules['lowbit'] = pkg\n"
        "import numpy as np\n"
        "from lowbit import reference\n"
        "from lowbit.params import QuantizationParams\n"
        "p = QuantizationParams('int4', scale=0.5)\n"
        "print(reference.quantize(np.float32([1.0, -9.0]), p).tolist())\n"
    )
    assert run(code).strip() == "[2, -8]"
