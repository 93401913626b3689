"""The report on the screen: warnings first, a table that fits 80 columns, notes once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("rich")
from rich.console import Console

from lowbit.cli.report import show_report
from lowbit.models import Accuracy, Latency, MetricResult, ModelReport, Recipe, WeightRow
from lowbit.report import html


def row(name: str, **changes: Any) -> WeightRow:
    plain = WeightRow(
        name, "Gemm", (256, 256), "float32", "int8 symmetric, per channel", bytes_before=262144, bytes_after=66560,
        sqnr_db=40.0, activations="uint8 asymmetric, static, adaptive",
    )  # fmt: skip
    return replace(plain, **changes)


def left(name: str, why: str, size: int = 256) -> WeightRow:
    return WeightRow(name, "LSTM", (size, 256), "float32", "", why, bytes_before=4 * 256 * size)


def latency(speedup: float) -> Latency:
    return Latency("a runtime", "x 1x3", 1, 10.0 * speedup, 10.0)


GOOD = ModelReport(
    "m.onnx", "q.onnx", "onnx", Recipe.of("static-int8").to_dict(), [row(f"layer.{i}") for i in range(4)], 4000, 1100,
    accuracy=[Accuracy("y", 30.0, 0.999, 0.1, 64)], latency=[latency(1.5)], metrics=[MetricResult("acc", 0.9, 0.895)],
)  # fmt: skip


def on_screen(report: ModelReport, width: int) -> list[str]:
    shown = Console(width=width, markup=False, highlight=False, emoji=False, record=True, file=None)
    with shown.capture() as captured:
        show_report(report, shown)
    return captured.get().splitlines()


def test_a_good_result_has_no_warning() -> None:
    assert GOOD.warnings == []
    assert not any("arning" in line for line in on_screen(GOOD, 80))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"accuracy": [Accuracy("y", 14.9, 0.9, 1.0, 64)]}, ("y has an SQNR of 14.9 dB", "--skip", "W8A16")),
        ({"accuracy": [Accuracy("y", float("nan"), 0.9, 1.0, 64)]}, ("y is not a number",)),
        ({"accuracy": [Accuracy("y", 14.9, 0.9, 1.0, 64)], "recipe": Recipe.of("W4A16").to_dict()}, ("--group-size",)),
        ({"metrics": [MetricResult("acc", 0.9, 0.89)]}, ("acc falls from 0.9 to 0.89, by 1.1%",)),
        ({"rows": [row("a"), left("b", "no kernel", 300)]}, ("Only 46%", "no kernel")),
        ({"bytes_after": 4000}, ("4,000 bytes, the source 4,000",)),
        ({"latency": [latency(0.8), latency(0.9)]}, ("0.80× as fast", "--optimize balanced or speed")),
    ],
)  # fmt: skip
def test_each_warning_says_what_was_found_and_what_to_try(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    report = GOOD.but(**changes)
    (text,) = report.warnings
    assert all(word in text for word in words), text
    assert "Try " in text
    assert on_screen(report, 300)[0] == f"Warning: {text}"
    assert json.loads(json.dumps(report.to_dict()))["warnings"] == [text]
    assert str(report).startswith(f"Warning: {text}\n")
    page = html(report)
    assert page.index("1 warning<") < page.index("section-sizes")


@pytest.mark.parametrize(
    "changes",
    [
        {"accuracy": [Accuracy("y", 15.0, 0.99, 1.0, 64), Accuracy("z", float("inf"), 1.0, 0.0, 64)]},
        {"metrics": [MetricResult("loss", 0.9, 0.95), MetricResult("zero", 0.0, 0.0)]},
        {"rows": [row("a"), left("b", "no kernel", 256)]},
        {"rows": [row("a"), left("b", "came quantized (MatMulInteger)", 3000)]},
        {"rows": [], "recipe": {}},
        {"latency": [latency(0.98)]},
    ],
)
def test_what_is_no_reason_to_warn(changes: dict[str, Any]) -> None:
    assert GOOD.but(**changes).warnings == []


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_the_screen_and_notes_stand_once(width: int) -> None:
    long = "encoder.layer.{}.attention.self.query.weight"
    rows = [row(long.format(i), note=f"static took {i} µs, float 2 µs; a second note", guard_db=1 + i / 10)
            for i in range(6)]  # fmt: skip
    rows += [left("lstm.W", "no integer LSTM"), row("last", activations="", note="a second note")]
    lines = on_screen(GOOD.but(rows=rows), width)
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert text.count("a second note") == 1
    assert text.count("took") == 1
    assert "5 others alike" in text
    assert "6 weights give up 1.0–1.5 dB for CPUs without VNNI" in " ".join(text.split())
    assert all(line.rstrip().endswith("40.0") for line in lines if "262 kB →" in line)
    heads = next(line.split() for line in lines if line.startswith("weight"))
    assert heads == ["weight", "how", "bytes", "dB"]


def test_a_long_table_points_to_the_warnings_above_it() -> None:
    report = GOOD.but(rows=[row(f"layer.{i}") for i in range(30)], latency=[latency(0.5)])
    assert on_screen(report, 80)[-1] == "1 warning: see the first lines"
