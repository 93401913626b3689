"""The worked example of quantization-aware training: a small run of it, and the page that tells its results."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fashion_mnist_qat", ROOT / "examples/fashion_mnist_qat.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    """The settings of the full run, as kept beside the example."""
    return dict(json.loads((ROOT / "examples/fashion_mnist_qat.json").read_text(encoding="utf-8"))["settings"])


def test_a_small_run_prints_its_table_and_writes_what_it_found(
    example: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not example.FOLDER.exists():
        pytest.skip(f"the Debian package {example.PACKAGE} is not installed: no {example.FOLDER}")
    before = torch.get_num_threads()
    try:
        example.main(["--slice", "1500", "--seeds", "1", "--epochs", "1", "--json", str(tmp_path / "found.json")])
    finally:
        torch.set_num_threads(before)
    printed = capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["images"] == {"train": 1500, "test": 300}
    settings = found["settings"]
    accuracy = {name: setting["mean"] for name, setting in settings.items()}
    for name in settings:
        assert f"\n{name} " in printed
    # 300 images: three points are nine of them.
    assert accuracy["float"] > 60
    assert accuracy["int8 PTQ"] > accuracy["float"] - 3
    assert accuracy["int8 QAT"] > accuracy["float"] - 3
    assert accuracy["int4 QAT"] > accuracy["float"] - 5
    assert accuracy["int2 QAT, learned scales"] > accuracy["int2 PTQ"] + 3
    assert abs(accuracy["int8 QAT"] - accuracy["int8 QAT, torch.ao"]) < 5
    sizes = [settings[name]["weight_bytes"] for name in ("float", "int8 QAT", "int4 QAT", "int2 QAT, learned scales")]
    assert [round(sizes[0] / size, 1) for size in sizes[1:]] == [4.0, 7.9, 15.4]
    assert all(s["convert_equal_to_the_bit"] in (True, None) for s in settings.values())
    assert "to the bit in 8 of 8 cases" in printed


def test_missing_data_is_an_error_that_names_the_package(example: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="Debian package dataset-fashion-mnist"):
        example.load_fashion_mnist(tmp_path)


def test_idx_files_are_read_in_their_shape_and_others_refused(example: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "some.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\x02" + np.array([2, 3], ">u4").tobytes() + bytes(range(6))))
    assert example.read_idx(path).tolist() == [[0, 1, 2], [3, 4, 5]]
    path.write_bytes(gzip.compress(b"P5 28 28"))
    with pytest.raises(ValueError, match="expected an IDX file"):
        example.read_idx(path)


def test_the_kept_results_reach_their_goals(kept: dict[str, Any]) -> None:
    mean = {name: setting["mean"] for name, setting in kept.items()}
    assert all(len(setting["accuracy"]) == 3 for setting in kept.values())
    assert mean["float"] - mean["int4 QAT"] < 1.0
    assert mean["int2 QAT, learned scales"] - mean["int2 PTQ"] > 3.0
    assert mean["int2 QAT, learned scales"] - mean["int2 PTQ, LSQ start, norms renewed"] > 1.0
    assert abs(mean["int8 QAT"] - mean["int8 QAT, torch.ao"]) < 0.3
    assert all(s["convert_equal_to_the_bit"] in (True, None) for s in kept.values())


def test_the_page_shows_the_kept_results(kept: dict[str, Any]) -> None:
    page = (ROOT / "docs/guide/qat.md").read_text(encoding="utf-8")
    for name, setting in kept.items():
        numbers = [*setting["accuracy"].values(), setting["mean"]]
        size = "" if setting["weight_bytes"] is None else f"{setting['weight_bytes']:,}"
        row = f"| {name} | {setting['epochs']} | {' | '.join(f'{n:.2f}' for n in numbers)} | {size} |".replace(
            "  ", " "
        )
        assert row in page
