"""Which layers `decide` quantizes: neighbours are judged together, by models whose times are made up."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
from lowbit.bench.timing import Timing
from lowbit.torch.inference.runs import Choice, Layer, decide
from lowbit.torch.inference.timing import LayerTiming


@dataclass
class Chain:
    """Layers one after another: each takes its time, and each end of a quantized run a conversion."""

    floats: Sequence[float]
    quantized: Sequence[float]
    conversion: float = 0.0

    def __post_init__(self) -> None:
        self.compared: list[list[Choice]] = []

    @property
    def names(self) -> list[str]:
        return [f"layer{i}" for i in range(len(self.floats))]

    def layers(self, **options: Any) -> list[Layer]:
        twice = 2 * self.conversion
        return [
            Layer(name, 100, LayerTiming(f, q + twice), **options)
            for name, f, q in zip(self.names, self.floats, self.quantized, strict=True)
        ]

    def of(self, *places: int) -> Choice:
        return frozenset(f"layer{i}" for i in places)

    def seconds(self, choice: Choice) -> float:
        return sum(self.by_layer([choice])[0].values())

    def by_layer(self, choices: Sequence[Choice]) -> list[dict[str, float]]:
        found = []
        for choice in choices:
            times = {}
            for i, name in enumerate(self.names):
                around = [f"layer{i - 1}", f"layer{i + 1}"]
                ends = sum(neighbour not in choice for neighbour in around)
                times[name] = self.quantized[i] + ends * self.conversion if name in choice else self.floats[i]
            found.append(times)
        return found

    def compare(self, choices: Sequence[Choice]) -> list[Timing]:
        self.compared.append(list(choices))
        return [Timing.of([self.seconds(c)]) for c in choices]


def test_layers_that_lose_one_by_one_are_quantized_where_they_pay_together() -> None:
    chain = Chain([1.0] * 6, [0.5] * 6, conversion=0.4)
    assert not any(layer.pays_alone(0.97) for layer in chain.layers())
    found = decide(chain.layers(), chain, "balanced")
    assert found.quantized == chain.of(*range(6))
    (run,) = found.runs
    assert run.names == tuple(chain.names)
    assert (run.timing.float_s, run.timing.quantized_s) == pytest.approx((6.0, 3.8))
    assert str(run) == "with its run of 6 layers, layer0 to layer5: float 6000 ms, quantized 3800 ms"


def test_a_run_is_split_where_a_layer_loses_more_than_two_conversions_cost() -> None:
    slow = [0.5, 0.5, 0.5, 3.0, 0.5, 0.5, 0.5]
    chain = Chain([1.0] * 7, slow, conversion=0.2)
    assert decide(chain.layers(), chain, "balanced").quantized == chain.of(0, 1, 2, 4, 5, 6)
    bearable = Chain([1.0] * 7, [1.3 if q > 1 else q for q in slow], conversion=0.2)
    found = decide(bearable.layers(), bearable, "balanced")
    assert found.quantized == chain.of(*range(7))
    assert len(found.runs) == 1


def test_the_ends_of_a_run_that_lose_are_cut_off() -> None:
    chain = Chain([1.0] * 8, [2.0, 2.0, 0.4, 0.4, 0.4, 0.4, 2.0, 2.0], conversion=0.35)
    found = decide(chain.layers(), chain, "balanced")
    assert found.quantized == chain.of(2, 3, 4, 5)
    assert [run.names for run in found.runs] == [("layer2", "layer3", "layer4", "layer5")]


def test_what_pays_only_one_by_one_is_quantized_one_by_one() -> None:
    chain = Chain([1.0, 1.0, 1.0], [0.2, 5.0, 0.2])
    found = decide(chain.layers(), chain, "balanced")
    assert found.quantized == chain.of(0, 2)
    assert found.runs == []


def test_where_all_pay_one_by_one_only_the_whole_model_is_timed() -> None:
    chain = Chain([1.0] * 3, [0.5] * 3)
    found = decide(chain.layers(), chain, "balanced")
    assert found.quantized == chain.of(0, 1, 2)
    assert chain.compared == [[frozenset(), found.quantized]]
    assert found.notes == []
    assert (found.before.median, found.after.median) == (3.0, 1.5)


times = st.floats(0.1, 5.0)


@settings(deadline=None)
@given(
    st.lists(st.tuples(times, times), min_size=1, max_size=6), st.floats(0, 1), st.sampled_from(["balanced", "speed"])
)
def test_the_choice_was_timed_beside_float_and_is_as_fast_as_was_promised(
    layers: list[tuple[float, float]], conversion: float, optimize: str
) -> None:
    chain = Chain(*zip(*layers, strict=True), conversion)  # type: ignore[arg-type, misc]
    found = decide(chain.layers(), chain, optimize)
    whole, seconds = chain.seconds(frozenset()), chain.seconds(found.quantized)
    assert any({frozenset(), found.quantized} <= set(choices) for choices in chain.compared)
    assert found.before.median == pytest.approx(whole)
    assert found.after.median == pytest.approx(seconds)
    every = chain.seconds(chain.of(*range(len(layers))))
    if optimize == "balanced":
        assert 0.97 * seconds <= min(whole, every) * (1 + 1e-9)
    else:
        assert not found.quantized or 1.03 * seconds <= whole * (1 + 1e-9)
        assert seconds <= every or 1.03 * every > whole


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(times, times), min_size=2, max_size=6), st.floats(0, 1))
def test_no_choice_is_much_faster(layers: list[tuple[float, float]], conversion: float) -> None:
    chain = Chain(*zip(*layers, strict=True), conversion)  # type: ignore[arg-type, misc]
    found = decide(chain.layers(), chain, "balanced")
    n = len(layers)
    best = min(chain.seconds(chain.of(*c)) for k in range(n + 1) for c in itertools.combinations(range(n), k))
    assert chain.seconds(found.quantized) <= 1.1 * best


@pytest.mark.parametrize(
    ("pace", "balanced", "speed"),
    [(0.9, True, True), (0.99, True, False), (1.01, True, False), (1.05, False, False)],
)
def test_balanced_takes_what_is_no_slower_and_speed_only_what_is_faster(
    pace: float, balanced: bool, speed: bool
) -> None:
    chain = Chain([1.0] * 4, [pace] * 4)
    assert bool(decide(chain.layers(), chain, "balanced").quantized) is balanced
    assert bool(decide(chain.layers(), chain, "speed").quantized) is speed


def test_balanced_takes_the_smallest_of_what_is_nearly_as_fast() -> None:
    chain = Chain([1.0, 10.0], [1.1, 5.0])  # the first one loses 0.1
    assert decide(chain.layers(), chain, "balanced").quantized == chain.of(0, 1)
    assert decide(chain.layers(), chain, "speed").quantized == chain.of(1)


def test_layers_that_are_quantized_for_memory_stay_so_unless_speed_is_asked_for() -> None:
    chain = Chain([1.0, 1.0], [2.0, 0.5])
    found = decide(chain.layers(for_memory=True), chain, "balanced")
    assert found.quantized == chain.of(0, 1)
    assert "make the model slower (2500 ms, float 2000 ms)" in found.slower
    assert 'optimize="speed"' in found.slower
    assert found.notes == [found.slower]
    found = decide(chain.layers(for_memory=True), chain, "speed")
    assert found.quantized == chain.of(1)
    assert found.slower == ""


def test_layers_for_memory_are_no_excuse_for_others() -> None:
    chain = Chain([1.0, 1.0], [2.0, 2.0])
    first, second = chain.layers()[0], chain.layers(for_memory=True)[1]
    assert decide([first, second], chain, "balanced").quantized == chain.of(1)


class Unlike(Chain):
    """Whole models take longer than their layers."""

    def seconds(self, choice: Choice) -> float:
        return super().seconds(choice) * (2 if choice else 1)


def test_the_time_of_the_whole_model_decides() -> None:
    chain = Unlike([1.0] * 3, [0.8] * 3)
    found = decide(chain.layers(), chain, "balanced")
    assert found.quantized == frozenset()
    assert len(chain.compared) == 2  # twice, as the machine may have been busy
    assert found.notes == ["layers timed whole, as multiples of float's speed: 3 quantized 0.62"]


class Busy(Chain):
    """Other work on the machine disturbs the first comparison."""

    def seconds(self, choice: Choice) -> float:
        return super().seconds(choice) * (9 if choice and len(self.compared) == 1 else 1)


def test_a_busy_machine_does_not_keep_a_model_float() -> None:
    chain = Busy([1.0] * 3, [0.8] * 3)
    assert decide(chain.layers(), chain, "balanced").quantized == chain.of(0, 1, 2)
