"""Weights by recipe: the reference's codes, groups and channels, and a range search that never loses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from lowbit import reference
from lowbit.models import Latency, ModelReport, WeightRecipe, WeightRow
from lowbit.models.weights import quantize_weight, refuse_nonfinite
from lowbit.numerics.errors import InvalidProblem

W = np.random.default_rng(3).standard_t(4, (24, 100)).astype(np.float32)


@pytest.mark.parametrize("method", ["min_max", "mse"])
@pytest.mark.parametrize(
    "setting",
    [("int8", "symmetric", None), ("uint8", "asymmetric", None), ("int4", "symmetric", 32), ("uint4", "asymmetric", 32),
     ("int2", "symmetric", 16), ("int4", "asymmetric", 100), ("int4", "symmetric", 128)],
    ids=str,
)  # fmt: skip
def test_codes_are_the_references(setting: tuple[str, str, int | None], method: str) -> None:
    q = quantize_weight(W, WeightRecipe(*setting, method=method))
    assert np.array_equal(q.unpack(), reference.quantize(W, q.params))


@pytest.mark.parametrize("dtype", ["int8", "int4", "int2"])
@pytest.mark.parametrize("granularity", ["tensor", "channel", "group"])
def test_the_search_never_loses(dtype: str, granularity: str) -> None:
    size = 20 if granularity == "group" else None
    plain, searched = (
        quantize_weight(W, WeightRecipe(dtype, group_size=size, granularity=granularity, method=m)).dequantize()
        for m in ("min_max", "mse")
    )
    lost = [np.square(W.astype(np.float64) - y) for y in (plain, searched)]
    if granularity == "group":
        lost = [e.reshape(24, 5, 20).sum(-1) for e in lost]
    else:
        lost = [e.sum(-1 if granularity == "channel" else None) for e in lost]
    # Losses were compared in float32 squares, so by that much they may differ.
    assert np.all(lost[1] <= lost[0] * (1 + 1e-5) + 1e-9)


def test_channels_of_a_convolution_along_either_axis() -> None:
    w = W.reshape(24, 4, 5, 5)
    for axis in (0, 1):
        q = quantize_weight(w, WeightRecipe(), axis=axis)
        assert q.params.scale.shape == (w.shape[axis],)


def test_a_bad_weight_is_named() -> None:
    w = W.copy()
    w[3, 4] = np.nan
    with pytest.raises(InvalidProblem, match=r"blocks\.3\.w: .*\(3, 4\)|blocks\.3\.w: .*304"):
        quantize_weight(w, WeightRecipe(), name="blocks.3.w")
    with pytest.raises(InvalidProblem, match=r"c: shape .* groups need a matrix"):
        quantize_weight(W.reshape(24, 10, 10), WeightRecipe("int4", group_size=5), name="c")


def test_a_report_is_json_whatever_it_holds(tmp_path: Path) -> None:
    rows = [
        WeightRow("a", "Linear", (4, 4), "float32", "int8", bytes_before=64, bytes_after=20, sqnr_db=math.inf),
        WeightRow("b", "Linear", (4, 4), "float32", why_not="float is faster"),
        WeightRow("c", "Linear", (4, 4), "float32", why_not="the recipe skips it", asked=False),
    ]
    latency = [Latency("ONNX Runtime", "1x4", 1, 2.0, 1.0)]
    report = ModelReport("a.onnx", "b.onnx", "onnx", {}, rows, 100, 40, latency=latency)
    assert [r.name for r in report.skipped] == ["b"]
    report.save(tmp_path / "r.json")
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["rows"][0]["sqnr_db"] == "inf"
    assert found["latency"][0]["speedup"] == 2.0
    assert found["latency"][0]["float_interval"] == ["nan", "nan"]
    assert (found["treated"], found["skipped"]) == (1, ["b"])


def test_a_nan_is_found_in_every_row_of_a_block():
    w = np.zeros((3, 5), np.float32)
    w[2, 1] = np.inf
    with pytest.raises(InvalidProblem, match=r"up: inf at index \(2, 1\)"):
        refuse_nonfinite(w, "up")
    with pytest.raises(InvalidProblem, match=r"up: inf at index \(9, 1\)"):
        refuse_nonfinite(w, "up", first_row=7)
