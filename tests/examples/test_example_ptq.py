"""The worked example of post-training quantization: a small run of it, and the figures it keeps."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import lowbit as lb

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fashion_mnist_ptq", ROOT / "examples/fashion_mnist_ptq.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_a_small_run_writes_what_it_found(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("/usr/share/datasets/fashion-mnist").exists():
        pytest.skip("the Debian package dataset-fashion-mnist is not installed")
    before = torch.get_num_threads(), lb.get_num_threads()
    try:
        small = ["--slice", "320", "--width", "8", "--epochs", "1", "--rounds", "1"]
        example.main([*small, "--json", str(tmp_path / "found.json")])
    finally:
        torch.set_num_threads(before[0])
        lb.set_num_threads(before[1])
    assert "times float" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["images"] == {"train": 320, "test": 64}
    assert [layer["kind"] for layer in found["layers"]].count("Conv2d") == 7
    assert found["onnx"]["treated"] == "8 of 8"


def test_the_exported_network_scores_as_the_network_does(example: ModuleType, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    torch.manual_seed(0)
    model = example.network(8).eval()
    example.export_onnx(tmp_path / "net.onnx", model)
    x = torch.rand(3, 1, 28, 28)
    session = runtime.InferenceSession(str(tmp_path / "net.onnx"), providers=["CPUExecutionProvider"])
    (scores,) = session.run(None, {"image": x.numpy()})
    assert np.allclose(scores, model(x).detach().numpy(), atol=1e-4)


def test_the_kept_run_is_of_all_images() -> None:
    kept = json.loads((ROOT / "examples/fashion_mnist_ptq.json").read_text(encoding="utf-8"))
    assert kept["images"] == {"train": 60000, "test": 10000}
    assert kept["accuracy"]["float"] - kept["accuracy"]["int8"] <= 0.3
