"""Two ONNX models in ONNX Runtime: the difference of their outputs, their latency, and a metric of both."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lowbit.bench.timing import measure as measure_calls
from lowbit.formats.onnx.runtime import RUNTIME, open_session, run_session
from lowbit.models import Accuracy, Latency, MetricResult
from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.numerics.metrics import cosine, sqnr_db

Metric = Callable[[Callable[[Mapping[str, Any]], dict[str, Any]], Iterable[Mapping[str, Any]]], float]


def measure_models(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    feeds: Callable[[], Iterable[Mapping[str, Any]]],
    batches: Callable[[], Iterable[Mapping[str, Any]]],
    metric: tuple[str, Metric] | None,
    seconds: float,
    threads: Sequence[int],
) -> dict[str, Any]:
    """`accuracy`, `metrics` and `latency` of both models: fields of a ModelReport or Comparison.

    feeds: the inputs of the models alone; batches: what the metric takes, labels included.
    """
    pair = open_session(first), open_session(second)
    accuracy = compare_outputs(*pair, feeds())
    metrics = [] if metric is None else [compare_metric(*metric, *pair, batches)]
    latency = compare_speed(first, second, next(iter(feeds())), threads, seconds) if seconds > 0 else []
    return {"accuracy": accuracy, "metrics": metrics, "latency": latency}


def compare_outputs(float_session: Any, quantized_session: Any, feeds: Iterable[Mapping[str, Any]]) -> list[Accuracy]:
    """The error of each float output of the second against the first, over all feeds. One feed is held at a time."""
    names = [o.name for o in float_session.get_outputs()]
    others = {o.name for o in quantized_session.get_outputs()}
    if not set(names) <= others:
        raise InvalidProblem(f"outputs: {', '.join(names)} and {', '.join(sorted(others))}; expected the same names")
    sums = {name: np.zeros(4) for name in names}  # signal, noise, dot, other
    worst = dict.fromkeys(names, 0.0)
    samples = 0
    for feed in feeds:
        pairs = (run_session(s, names, feed) for s in (float_session, quantized_session))
        samples += len(next(iter(feed.values()))) if feed and next(iter(feed.values())).ndim else 1
        for name, a, b in zip(names, *pairs, strict=True):
            if not isinstance(a, np.ndarray) or a.dtype.kind != "f" or a.size == 0:
                continue
            if a.shape != b.shape:
                raise InvalidProblem(f"{name!r}: shapes {a.shape} and {b.shape}; both models must have the same")
            x, y = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
            d = x - y
            sums[name] += (x @ x, d @ d, x @ y, y @ y)
            worst[name] = max(worst[name], float(np.abs(d).max()))
    if samples == 0:
        raise InvalidProblem("data: no batches; there is nothing to compare on")
    found = []
    for name in names:
        if sums[name].any():
            signal, noise, dot, other = map(float, sums[name])
            found.append(Accuracy(name, sqnr_db(signal, noise), cosine(signal, other, dot), worst[name], samples))
    return found


def compare_speed(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    feed: Mapping[str, Any],
    threads: Sequence[int] = (1,),
    seconds: float = 2.0,
) -> list[Latency]:
    """Interleaved latency of both on one feed, for each number of threads."""
    shape = ", ".join(f"{name} {'x'.join(map(str, np.shape(a)))}" for name, a in feed.items())
    found = []
    for count in threads:
        pair = {name: open_session(path, threads=count) for name, path in (("float", first), ("quantized", second))}
        calls = {name: (lambda s=s: s.run(None, dict(feed))) for name, s in pair.items()}
        timed = measure_calls(calls, seconds=seconds)
        found.append(Latency.of(RUNTIME, shape, count, timed["float"], timed["quantized"]))
    return found


def compare_metric(
    name: str, metric: Metric, float_session: Any, quantized_session: Any, batches: Callable[[], Iterable[Any]]
) -> MetricResult:
    """metric(predict, batches) of both models, where predict maps a batch to outputs by name."""
    values = []
    for s in (float_session, quantized_session):
        try:
            value = metric(partial(_predicted, s), batches())
        except (InvalidProblem, FormatError):
            raise
        except Exception as error:  # whatever the user's own function raises
            raise InvalidProblem(f"metric: {name} raised {type(error).__name__}: {error}") from error
        if not isinstance(value, int | float | np.floating | np.integer):
            raise InvalidProblem(f"metric: {name} gave {type(value).__name__}; expected a number")
        values.append(float(value))
    return MetricResult(name, *values)


def _predicted(session: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    outputs = [o.name for o in session.get_outputs()]
    feed = {i.name: batch[i.name] for i in session.get_inputs()}
    return dict(zip(outputs, run_session(session, outputs, feed), strict=True))
