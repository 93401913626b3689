"""optimize of lowbit.torch.quantize: what is chosen of a model by its times, and that the report and warnings say why.

Times are made up, but in the tests of a real clock, which look at nothing that depends on it.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from typing import Any

import pytest

import lowbit as lb

torch = pytest.importorskip("torch")
import lowbit.torch as lt  # noqa: E402
from lowbit.bench.timing import Timing  # noqa: E402
from lowbit.numerics.metrics import error_report  # noqa: E402
from lowbit.torch.inference import timing  # noqa: E402
from lowbit.torch.inference.folding import Folded  # noqa: E402
from lowbit.torch.inference.runs import Choice  # noqa: E402
from lowbit.torch.inference.trials import ModelClock  # noqa: E402
from torch import nn  # noqa: E402
from torch_models import fake_clock, mobilenet, plain_cnn, recipe, row_of  # noqa: E402

LAYERS = ["0", "3", "6", "9", "12", "15", "18", "23"]  # of mobilenet, with weights


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture
def images() -> Any:
    return torch.randn(1, 3, 32, 32)


def quantized_modules(model: nn.Module) -> list[str]:
    return [name for name, m in model.named_modules() if isinstance(m, lt.QuantizedLinear | lt.QuantizedConv2d)]


def chained(monkeypatch: pytest.MonkeyPatch, quantized: float, conversion: float) -> None:
    """Every layer takes 1 ms in float, so many quantized, and each end of a run of quantized layers a conversion."""
    fake_clock(monkeypatch, lambda *_: timing.LayerTiming(1e-3, quantized + 2 * conversion))

    def by_layer(clock: Any, choices: Sequence[Choice]) -> list[dict[str, float]]:
        names = list(clock.modules)
        found = []
        for choice in choices:
            times = dict.fromkeys(names, 1e-3)
            for before, name, after in zip(["", *names], names, [*names[1:], ""], strict=False):
                if name in choice:
                    times[name] = quantized + conversion * ((before not in choice) + (after not in choice))
            found.append(times)
        return found

    def compare(clock: Any, choices: Sequence[Choice]) -> list[Timing]:
        return [Timing.of([sum(times.values())]) for times in by_layer(clock, choices)]

    monkeypatch.setattr(ModelClock, "by_layer", by_layer)
    monkeypatch.setattr(ModelClock, "compare", compare)


def test_layers_that_pay_only_together_are_quantized_and_the_rows_say_so(
    monkeypatch: pytest.MonkeyPatch, images: Any
) -> None:
    chained(monkeypatch, quantized=0.5e-3, conversion=0.4e-3)
    found = lt.quantize(mobilenet(), recipe("dynamic-int8"), example=images)
    assert quantized_modules(found) == LAYERS
    for name in LAYERS:
        note = row_of(found, name).note
        assert note.startswith("float 1 ms, quantized 1.3 ms on [1, ")
        assert note.endswith("; with its run of 8 layers, 0 to 23: float 8 ms, quantized 4.8 ms")
    (latency,) = lt.report(found).latency
    assert (latency.float_ms, latency.quantized_ms) == pytest.approx((8, 4.8))
    assert latency.shape == "[1, 3, 32, 32]"
    one_by_one = [note for note in lt.report(found).notes if note.startswith("layers timed whole")]
    assert one_by_one == []  # nothing pays alone: there was one choice


def test_runs_are_cut_where_a_rule_keeps_layers_float(monkeypatch: pytest.MonkeyPatch, images: Any) -> None:
    chained(monkeypatch, quantized=0.5e-3, conversion=0.4e-3)
    found = lt.quantize(mobilenet(), recipe("dynamic-int8", skip=["6", "12"]), example=images)
    assert quantized_modules(found) == ["0", "3", "9", "15", "18", "23"]


@pytest.mark.parametrize("optimize", ["balanced", "speed"])
def test_where_all_layers_lose_a_warning_and_every_row_give_the_way_out(
    optimize: Any, monkeypatch: pytest.MonkeyPatch, images: Any
) -> None:
    fake_clock(monkeypatch, lambda *_: timing.LayerTiming(1e-3, 2e-3))
    said = r'^quantize: 0 of .*float is faster \(.*; optimize="size" quantizes what float is faster for'
    with pytest.warns(UserWarning, match=said) as caught:
        found = lt.quantize(mobilenet(), recipe("W8A8"), example=images, optimize=optimize)
    assert caught[0].filename == __file__
    assert quantized_modules(found) == []
    for name in LAYERS:
        row = row_of(found, name)
        assert row.why_not == "float is faster"
        assert row.note.startswith("float 1 ms, quantized 2 ms on [")
        assert row.note.endswith('; optimize="size" quantizes it all the same')
        assert not row.asked
    assert type(found[1]) is nn.BatchNorm2d
    assert not lt.report(found).latency
    assert any("quantized 0.50" in note for note in lt.report(found).notes)


def test_size_quantizes_everything_and_measures_what_it_costs(monkeypatch: pytest.MonkeyPatch, images: Any) -> None:
    timed = fake_clock(monkeypatch, lambda *_: timing.LayerTiming(1e-3, 9e-3))
    for options in ({"optimize": "size"}, {"keep_float": "never"}):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = lt.quantize(mobilenet(), recipe("W8A8"), example=images, **options)
        assert quantized_modules(found) == LAYERS
        assert isinstance(found[1], Folded)
        assert len(lt.report(found).latency) == 1
    assert timed == []


def transformer_block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).eval()


@pytest.mark.parametrize("rules", ["W8A16", "W4A16"])
def test_recipes_for_memory_are_kept_where_they_are_slower_and_a_warning_says_the_cost(
    rules: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_clock(monkeypatch, lambda *_: timing.LayerTiming(1e-3, 2e-3))
    x = torch.randn(4, 32)
    with pytest.warns(UserWarning, match=r"make the model slower \(4 ms, float 2 ms\); optimize=\"speed\"") as caught:
        found = lt.quantize(transformer_block(), recipe(rules), example=x)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert quantized_modules(found) == ["0", "2"]
    assert row_of(found, "0").note == "float 1 ms, quantized 2 ms on [4, 32]; quantized for its size"
    assert lt.report(found).latency[0].quantized_ms == pytest.approx(4)
    assert any("make the model slower" in note for note in lt.report(found).notes)
    with pytest.warns(UserWarning, match="0 of .*float is faster"):
        fast = lt.quantize(transformer_block(), recipe(rules), example=x, optimize="speed")
    assert quantized_modules(fast) == []


def test_recipes_for_memory_that_cost_nothing_say_nothing(fast: list[Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lt.quantize(transformer_block(), recipe("W8A16"), example=torch.randn(4, 32))
    assert row_of(found, "0").note == "float 2 ms, quantized 1 ms on [4, 32]"
    assert lt.report(found).notes == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimize": "small"}, "^optimize: 'small'; expected balanced, speed, size"),
        ({"optimize": "speed", "keep_float": "never"}, "^keep_float: 'never'; optimize='speed' keeps"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], said: str) -> None:
    with pytest.raises(lb.InvalidProblem, match=said):
        lt.quantize(nn.Linear(8, 8), recipe("W8A8"), **options)
    with pytest.raises(lb.InvalidProblem, match=r"^optimize: an option of a model"):
        lt.quantize(torch.ones(3), 0.1, optimize="size")  # type: ignore[call-overload]


class Locked(nn.Module):
    """A model that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.linear = threading.Lock(), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        return self.linear(x)


def test_a_model_that_cannot_be_copied_is_quantized_in_place_by_its_layers_times(
    fast: list[Any], monkeypatch: Any
) -> None:
    x = torch.ones(2, 8)
    monkeypatch.setattr(ModelClock, "compare", lambda self, choices: [self._trial(c) for c in choices])
    with pytest.raises(lb.Unsupported, match=r"^model: it cannot be copied .*use inplace=True"):
        lt.quantize(Locked(), recipe("W8A8"), example=x)
    found = lt.quantize(Locked(), recipe("W8A8"), example=x, inplace=True)
    assert quantized_modules(found) == ["linear"]
    assert row_of(found, "linear").note == "float 2 ms, quantized 1 ms on [2, 8]"


# ---- real times -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [mobilenet, plain_cnn])
@pytest.mark.parametrize("rules", ["dynamic-int8", "static-int8"])
@pytest.mark.filterwarnings("ignore:quantize")
def test_with_a_real_clock_the_result_is_right_and_every_row_has_its_reason(make: Any, rules: str, images: Any) -> None:
    model = make()
    before = [p.clone() for p in model.parameters()]
    expected = model(images).detach()
    found = lt.quantize(model, recipe(rules), calibration=[images], progress=False)
    assert error_report(expected.numpy(), found(images).detach().numpy()).sqnr_db > 20
    for row in lt.report(found).rows:
        if row.kind != "BatchNorm2d":
            assert row.treated or row.why_not == "float is faster"
            assert "float " in row.note
            assert " ms, quantized " in row.note
            assert row.treated is (row.name in quantized_modules(found))
    assert torch.equal(model(images), expected)
    assert all(torch.equal(p, q) for p, q in zip(before, model.parameters(), strict=True))
    assert not any(m._forward_pre_hooks for m in (*model.modules(), *found.modules()))


def test_trials_share_weights_but_not_the_formats_that_depend_on_neighbours(images: Any) -> None:
    model = mobilenet()
    every = lt.quantize(model, recipe("dynamic-int8"))
    clock = ModelClock(model, images, {name: [str(int(name) + 1), str(int(name) + 2)] for name in LAYERS[:-1]})
    clock.modules = {name: every.get_submodule(name) for name in LAYERS}
    expected = every(images)
    whole, half = (clock._trial(frozenset(c)) for c in (LAYERS, LAYERS[:4]))
    assert clock._trial(frozenset()) is model
    assert torch.equal(whole(images), expected)
    assert half[9].memory_format is not torch.channels_last
    assert whole[9].memory_format is every[9].memory_format is torch.channels_last
    assert half[12] is model[12]
    assert whole[0].layer is half[0].layer is every[0].layer
    first, second = clock.by_layer([frozenset(), frozenset(LAYERS)])
    assert first.keys() == second.keys() == set(LAYERS)
    assert all(seconds > 0 for seconds in (*first.values(), *second.values()))
    assert len(clock.compare([frozenset(), frozenset(LAYERS)])) == 2
