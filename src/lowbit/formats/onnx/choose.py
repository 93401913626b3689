"""Choosing the form of each weight by what ONNX Runtime measures: what is slower than float is folded."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onnx import NodeProto

from lowbit.bench.timing import measure
from lowbit.formats.onnx.batches import model_inputs, random_feed
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.inputs import feed_of
from lowbit.formats.onnx.profile import attributed, node_seconds
from lowbit.formats.onnx.rewrite import Plan, Rewrite, Rewritten
from lowbit.formats.onnx.runtime import open_session, run_session
from lowbit.numerics.errors import FormatError, InvalidProblem

OPTIMIZE = ("balanced", "speed", "size")
_MEASURED = {"static", "dynamic", "nbits", "weight"}  # forms that may be slower than float; a folded one is not
# Of the model's time, for a layer to count; and for an embedding, whose table is large in memory as floats.
_LEAST_LOSS, _LEAST_LOSS_OF_TABLE = 0.005, 0.03
_LEAST = {"balanced": 1.0, "speed": 1.03}  # times the speed of float below which a layer is folded
_NOISE = 0.985  # times the speed of float below which a model is slower than that
_ATTEMPTS = 6
_MUCH_FASTER = 1.15  # times, for which weights of an LSTM may lose 1 to 2 dB
_SECONDS = 0.3  # of each comparison, for each model
_MOST_BYTES = (1 << 31) - 1  # of a model that the runtime takes from memory
_ROUNDS = {"QuantizeLinear", "DynamicQuantizeLinear"}


class Peeked:
    """Batches as they were given, the first of which can be looked at."""

    def __init__(self, data: Iterable[Any]) -> None:
        self._data = data
        self.is_read_once = iter(data) is data
        self._read: list[Any] = []  # of an iterator, what was looked at
        self.first: Any = None

    def peek(self) -> Any:
        """The first batch; None where there is none."""
        if self.first is None:
            left = iter(self._data)
            self.first = next(left, None)
            self._read = [self.first] if left is self._data and self.first is not None else []
        return self.first

    def __iter__(self) -> Iterator[Any]:
        read, self._read = self._read, []
        for batch in itertools.chain(read, self._data):
            if self.first is None:
                self.first = batch
            yield batch


def fastest(rewrite: Rewrite, first: Rewritten, batch: Any, optimize: str) -> Rewritten:
    """The rewritten model with those layers folded that are slower than in float, on a batch or on random inputs.

    Seconds are attributed to layers by the runtime's own profile. A layer owns what follows it up to the next, as the
    runtime fuses there. What is kept in the end was timed whole, beside float and beside the attempts before it.
    """
    if not any(p.way in _MEASURED for p in first.plans):
        return first
    graph, _ = rewrite.prepared()
    inputs = model_inputs(graph.proto)
    try:
        feed = random_feed(inputs, 1) if batch is None else feed_of(batch, list(inputs), 0)
        plain, best = _Timed(graph, feed), _Timed(first.graph, feed)
        return _search(rewrite, first, plain, best, _LEAST[optimize])
    except (InvalidProblem, FormatError) as error:
        note = f"layers were not measured, and are as the recipe asks: {error}"
        return replace(first, notes=[*first.notes, note])


def _search(rewrite: Rewrite, first: Rewritten, plain: _Timed, best: _Timed, least: float) -> Rewritten:
    kept, folded = first, dict[int, str]()
    speed = _speeds(plain, {"best": best})["best"]
    float_seconds = plain.by_layer(first.plans)
    share, losing = 1.0, _losing(first.plans, float_seconds, best.by_layer(first.plans), least, 1.0)
    for _ in range(_ATTEMPTS):
        if not losing:
            if speed >= min(least, _NOISE) or not any(p.way in _MEASURED for p in kept.plans):
                break  # else no layer is slower, but all of them together are
            losing = {i: "the model is faster so" for i, p in enumerate(kept.plans) if p.way in _MEASURED}
        attempt = rewrite.done(folded | losing)
        timed = _Timed(attempt.graph, plain.feed)
        found = _speeds(plain, {"best": best, "attempt": timed})
        if found["attempt"] > found["best"]:
            kept, best, speed, folded, share = attempt, timed, found["attempt"], folded | losing, 1.0
        elif losing and len(losing) == sum(p.way in _MEASURED for p in kept.plans):
            break  # not even without all of them
        else:
            share /= 3
        losing = _losing(kept.plans, float_seconds, best.by_layer(kept.plans), least, share) if share > 0.1 else {}
    return _with_one_scale(rewrite, kept, folded, plain, best)


def _with_one_scale(
    rewrite: Rewrite, kept: Rewritten, folded: Mapping[int, str], plain: _Timed, best: _Timed
) -> Rewritten:
    """The same with one scale for each weight of an LSTM, where the runtime is much faster with that."""
    if not any(p.way == "dynamic" and p.use.kind == "recurrent" for p in kept.plans):
        return kept
    rewrite.one_scale = "ONNX Runtime's integer LSTM is faster with one scale"
    attempt = rewrite.done(folded)
    found = _speeds(plain, {"best": best, "attempt": _Timed(attempt.graph, plain.feed)})
    return attempt if found["attempt"] >= _MUCH_FASTER * found["best"] else kept


class _Timed:
    """A model in the runtime, and the seconds of its layers."""

    def __init__(self, graph: Graph, feed: Mapping[str, Any]) -> None:
        if graph.proto.ByteSize() > _MOST_BYTES:
            raise InvalidProblem("the model is larger than 2 GB")
        self.graph, self.feed = graph, feed
        self._model = graph.proto.SerializeToString()
        self._options = {"threads": 1, "data_folder": "" if graph.folder is None else str(graph.folder)}
        self._session = open_session(self._model, **self._options)

    def run(self) -> None:
        run_session(self._session, [], self.feed)

    def by_layer(self, plans: Sequence[Plan]) -> dict[str, float]:
        """Seconds by the name of the node that multiplies, with those of the nodes that it owns."""
        seconds = attributed(self.graph, node_seconds(self._model, self.feed, **self._options))
        owners = _owners(self.graph, {p.use.node.name for p in plans if p.use.kind != "other"})
        found: dict[str, float] = defaultdict(float)
        for name, value in seconds.items():
            found[owners.get(name, "")] += value
        return found


def _owners(graph: Graph, layers: set[str]) -> dict[str, str]:
    """The layer that each node belongs to, by names: the last one before it, or for what rounds the input of a layer,
    that layer."""
    order = {name: i for i, name in enumerate(n.name for n in graph.all_nodes)}
    behind: dict[str, str] = {}  # tensor -> layer
    found: dict[str, str] = {}
    for node in graph.all_nodes:
        layer = _layer(node.name, layers)
        if layer is None:
            given = [behind[i] for i in node.input if i in behind]
            layer = max(given, key=lambda name: order.get(name, 0), default=None)
        if layer is not None:
            found[node.name] = layer
            behind |= dict.fromkeys(filter(None, node.output), layer)
    for node in graph.all_nodes:
        if node.op_type in _ROUNDS and (layer := _next_layer(graph, node, layers)):
            found[node.name] = layer
    return found


def _next_layer(graph: Graph, node: NodeProto, layers: set[str]) -> str | None:
    """The layer that reads the codes of a node, directly or dequantized."""
    for reader, _ in graph.consumers(node.output[0]):
        if reader.op_type == "DequantizeLinear":
            reader = next((r for r, _ in graph.consumers(reader.output[0])), reader)
        if layer := _layer(reader.name, layers):
            return layer
    return None


def _layer(name: str, layers: set[str]) -> str | None:
    """The layer that a node computes: it has its name, or that with what was done appended."""
    return next((n for n in (name, name.rpartition("_")[0]) if n in layers), None)


def _losing(
    plans: Sequence[Plan], plain: Mapping[str, float], now: Mapping[str, float], least: float, share: float
) -> dict[int, str]:
    """Why plans, by number, are to be folded: those of the layers that lose most, up to a share of all that lose."""
    loss, total = {}, sum(now.values())
    for plan in plans:
        name = plan.use.node.name
        lost = now.get(name, 0.0) - plain.get(name, 0.0) / least
        if plan.way in _MEASURED and lost > total * (_LEAST_LOSS_OF_TABLE if plan.way == "weight" else _LEAST_LOSS):
            loss[name] = lost
    worst = sorted(loss, key=lambda name: -loss[name])[: max(1, round(share * len(loss)))]
    return {
        i: f"{plan.way} took {now[plan.use.node.name] * 1e6:.0f} µs, float {plain[plan.use.node.name] * 1e6:.0f} µs"
        for i, plan in enumerate(plans)
        if plan.way in _MEASURED and plan.use.node.name in worst
    }


def _speeds(plain: _Timed, others: Mapping[str, _Timed]) -> dict[str, float]:
    """The speed of each as a multiple of float's, interleaved."""
    calls = {"float": plain.run, **{name: timed.run for name, timed in others.items()}}
    timed = measure(calls, seconds=_SECONDS * len(calls))
    return {name: timed["float"].median / timed[name].median for name in others}
