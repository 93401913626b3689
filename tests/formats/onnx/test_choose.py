"""Which form each weight takes: decisions by given seconds, and what the runtime's profile is attributed to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import onnx_zoo
from lowbit.formats.onnx import choose
from lowbit.formats.onnx.convert import quantize_onnx
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.profile import attributed, node_seconds
from lowbit.formats.onnx.rewrite import Rewrite
from lowbit.models import ModelReport, Recipe
from onnx_builder import Builder

ROUNDED = {"QLinearConv", "QuantizeLinear", "DequantizeLinear", "MatMulInteger", "DynamicQuantizeLinear"}


def three_layers() -> onnx.ModelProto:
    b = Builder({"x": [4, 64]})
    x = "x"
    for i in range(3):
        x = b.add("Relu", b.add("MatMul", x, b.normal(64, 64, scale=0.2, name=f"w{i}")))
    return b.model(x)


@pytest.fixture
def quantized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ModelReport, list[str]]]:
    """quantized(seconds, whole): seconds(layer, is_float) of the three layers, whole(number of integer layers)."""

    def run(seconds: Any, whole: Any, recipe: str = "dynamic-int8", **options: Any) -> tuple[ModelReport, list[str]]:
        source = tmp_path / "float.onnx"
        onnx.save(three_layers(), source)

        def integers(timed: Any) -> int:
            return sum(n.op_type == "MatMulInteger" for n in timed.graph.nodes)

        def by_layer(timed: Any, plans: Any) -> dict[str, float]:
            is_float = integers(timed) == 0 and not any(n.op_type == "Cast" for n in timed.graph.nodes)
            return {p.use.node.name: seconds(p.use.name, is_float or p.way == "fold") for p in plans}

        def speeds(plain: Any, others: Mapping[str, Any]) -> dict[str, float]:
            return {name: whole(integers(timed)) for name, timed in others.items()}

        monkeypatch.setattr(choose._Timed, "by_layer", by_layer)
        monkeypatch.setattr(choose, "_speeds", speeds)
        report = quantize_onnx(source, tmp_path / "q.onnx", recipe, progress=False, overwrite=True, **options)
        return report, [n.op_type for n in onnx.load(tmp_path / "q.onnx").graph.node]

    return run


def test_a_layer_that_is_slower_than_float_is_folded(quantized: Any) -> None:
    report, ops = quantized(
        lambda name, is_float: 10e-6 if is_float or name != "w1" else 30e-6, lambda integers: {3: 0.9, 2: 1.5}[integers]
    )
    assert ops.count("MatMulInteger") == 2
    by_name = {r.name: r for r in report.rows}
    assert by_name["w1"].note == "dynamic took 30 µs, float 10 µs"
    assert not by_name["w1"].activations
    assert by_name["w1"].how == by_name["w0"].how
    assert by_name["w1"].bytes_after < by_name["w1"].bytes_before / 3


def test_what_is_no_faster_as_a_whole_is_dropped(quantized: Any) -> None:
    _, ops = quantized(
        lambda name, is_float: 10e-6 if is_float or name != "w1" else 30e-6,
        lambda integers: {3: 2.0}.get(integers, 1.0),
    )
    assert ops.count("MatMulInteger") == 3


def test_a_model_that_is_slower_although_no_layer_is_gets_folded_whole(quantized: Any) -> None:
    report, ops = quantized(lambda name, is_float: 10e-6, lambda integers: 0.8 if integers else 1.0)
    assert not ROUNDED & set(ops)
    assert {r.note for r in report.rows} == {"the model is faster so"}


@pytest.mark.parametrize(("optimize", "kept"), [("balanced", 3), ("speed", 0), ("size", 3)])
def test_layers_that_are_as_fast_as_float_stay_unless_speed_is_all(quantized: Any, optimize: str, kept: int) -> None:
    _, ops = quantized(lambda name, is_float: 10e-6, lambda integers: 1.0 if integers else 1.01, optimize=optimize)
    assert ops.count("MatMulInteger") == kept


def test_size_measures_nothing(quantized: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: Any) -> None:
        raise AssertionError("measured")

    _, ops = quantized(measured, measured, optimize="size")
    assert ops.count("MatMulInteger") == 3


def test_a_model_that_cannot_run_on_random_inputs_is_left_as_asked_and_says_so(tmp_path: Path) -> None:
    b = Builder({"ids": ["n", 4]})
    picked = b.add(
        "Gather", b.constant(np.arange(8)), b.add("Cast", b.add("Mul", "ids", b.constant(np.float32(1e6))), to=7)
    )
    y = b.add("MatMul", b.add("Cast", picked, to=1), b.normal(4, 64, name="w"))
    onnx.save(b.model(y), tmp_path / "m.onnx")
    report = quantize_onnx(tmp_path / "m.onnx", tmp_path / "q.onnx", Recipe.of("dynamic-int8").but(min_elements=1),
                           progress=False)  # fmt: skip
    assert any("layers were not measured" in n for n in report.notes)
    assert report.rows[0].activations


@pytest.mark.parametrize(("gain", "scope"), [(1.3, "per tensor"), (1.05, "per channel")])
def test_an_lstm_gets_one_scale_where_that_is_much_faster(
    gain: float, scope: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def speeds(plain: Any, others: Mapping[str, Any]) -> dict[str, float]:
        return {name: 2.0 * gain if name == "attempt" else 2.0 for name in others}

    monkeypatch.setattr(choose, "_speeds", speeds)
    monkeypatch.setattr(choose._Timed, "by_layer", lambda timed, plans: {p.use.node.name: 1.0 for p in plans})
    onnx.save(onnx_zoo.lstm().model, tmp_path / "m.onnx")
    report = quantize_onnx(tmp_path / "m.onnx", tmp_path / "q.onnx", "dynamic-int8", progress=False)
    rows = [r for r in report.rows if r.kind == "LSTM" and r.treated]
    assert len(rows) == 4
    assert {r.how for r in rows} == {f"int8 symmetric, {scope}"}
    assert all(("one scale" in r.note) == (scope == "per tensor") for r in rows)


@pytest.mark.parametrize("recipe", ["dynamic-int8", "static-int8", "W4A16"])
@pytest.mark.parametrize("name", ["resnet", "mobilenet", "vit", "gpt", "shared_weights", "loop", "branches"])
def test_every_layer_gets_its_share_of_the_profile(name: str, recipe: str, tmp_path: Path) -> None:
    entry = onnx_zoo.MODELS[name]()
    onnx.save(entry.model, tmp_path / "m.onnx")
    rewrite = Rewrite(tmp_path / "m.onnx", Recipe.of(recipe), "auto", list(entry.feeds(1)), False)
    plain, _ = rewrite.prepared()
    done = rewrite.done()
    feed = next(entry.feeds(1))
    for graph in (plain, done.graph):
        timed = choose._Timed(graph, feed)
        found = timed.by_layer(done.plans)
        asked = {p.use.node.name for p in done.plans if p.way and not p.use.in_body}
        assert asked <= set(found)


def test_seconds_are_attributed_by_the_names_that_the_runtime_makes() -> None:
    b = Builder({"x": [1, 3, 8, 8]})
    graph = Graph(b.model(b.add("Relu", b.conv("x", 3, 8))), None)
    conv, relu = graph.nodes
    given = {f"{conv.name}_token_3": 1.0, f"{relu.output[0]}_nchwc": 2.0, f"fused {conv.name}": 4.0, "Transpose": 8.0}
    assert attributed(graph, given) == {conv.name: 5.0, relu.name: 2.0, "": 8.0}


def test_a_profile_names_every_node_that_runs(tmp_path: Path) -> None:
    onnx.save(three_layers(), tmp_path / "m.onnx")
    found = node_seconds(tmp_path / "m.onnx", {"x": np.zeros((4, 64), np.float32)}, threads=1)
    assert len(found) >= 3
    assert all(value >= 0 for value in found.values())


def test_batches_are_looked_at_without_being_lost() -> None:
    assert list(choose.Peeked([1, 2, 3])) == [1, 2, 3]
    once = choose.Peeked(iter([1, 2, 3]))
    assert (once.peek(), once.peek(), list(once), once.first) == (1, 1, [1, 2, 3], 1)
    again = choose.Peeked([1, 2])
    assert (again.peek(), list(again), list(again)) == (1, [1, 2], [1, 2])
    assert choose.Peeked(iter([])).peek() is None
