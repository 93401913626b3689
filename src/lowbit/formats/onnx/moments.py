"""Second moments of what each weight of an ONNX model is multiplied with, collected while the model runs over data."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lowbit.calibration.calibrator import tracked
from lowbit.calibration.moments import Moments
from lowbit.formats.onnx.arrangement import layout_of
from lowbit.formats.onnx.batches import read_once
from lowbit.formats.onnx.branches import branch_tensors
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.inference import check_model
from lowbit.formats.onnx.observe import values_of
from lowbit.formats.onnx.patches import Patches, Product, operand
from lowbit.formats.onnx.prepare import prepare
from lowbit.formats.onnx.weight_uses import WeightUse, weights
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime import arrays as cpu

MAX_BYTES = 2 << 30
POSITIONS = 256
_EXPONENTS = 4  # sums that the moments of a tensor usually have: rows within a factor of 16 share one


@dataclass(frozen=True)
class Input:
    """What some weights are multiplied with: tensors, each with the way in which rows are taken from it."""

    weights: tuple[str, ...]
    operands: tuple[tuple[str, Product | Patches], ...]

    @property
    def width(self) -> int:
        return self.operands[0][1].width

    @property
    def groups(self) -> int:
        return self.operands[0][1].groups

    def nbytes(self, gram: bool) -> int:
        """An estimate of what its moments take."""
        return _EXPONENTS * self.groups * (4 * self.width**2 if gram else 8 * self.width)


def observe_moments(
    model: Any,
    batches: Iterable[Any],
    *,
    weights: Iterable[str] | Callable[[str], bool] | None = None,
    gram: bool = True,
    positions: int = POSITIONS,
    progress: bool = True,
) -> dict[str, Moments]:
    """The moments of the rows that each weight of MatMul, Gemm and Conv is multiplied with, by the weight's name; of an
    LSTM, GRU or RNN, those of its input weight.

    model: a path, an onnx.ModelProto or a Graph. batches: mappings from input names to arrays (an array alone stands
    for the only input); a few are held at a time. weights: names, or a predicate on names, of those wanted. gram:
    E[x x^T], else E[x^2]. positions: how many outputs of a convolution per image at most whose patches count, spread
    evenly.

    Rows are float activations as the model sees them, padding included. Weights that multiply the same tensor share
    one Moments; one that several nodes read gets the rows of all. Weights in a Loop, and those that no row reached, are
    missing. The rows of a stack of matrices are in groups. Memory: `iterate_moments` has a bound on it.

    >>> from importlib import resources
    >>> import numpy as np
    >>> with resources.as_file(resources.files("lowbit.data") / "digits_cnn.onnx") as path:
    ...     found = observe_moments(path, [np.ones((4, 1, 8, 8), np.float32)], progress=False)
    >>> found["fc1.weight"].count, found["conv2.weight"].width
    (4, 288)
    """
    graph = prepared(model)
    inputs = inputs_of(graph, _wanted(graph, weights), positions)
    grams = {name for each in inputs for name in each.weights} if gram else set[str]()
    found: dict[str, Moments] = {}
    for part in in_passes(graph, batches, inputs, grams, math.inf, progress):
        found |= part
    return found


def iterate_moments(
    model: Any,
    batches: Iterable[Any],
    *,
    weights: Iterable[str] | Callable[[str], bool] | None = None,
    gram: bool = True,
    positions: int = POSITIONS,
    max_bytes: int = MAX_BYTES,
    progress: bool = True,
) -> Iterator[dict[str, Moments]]:
    """The same in parts, each of at most `max_bytes` or of one layer; a pass over the batches for each part. An
    iterator can be read only once, and raises InvalidProblem where several passes are needed."""
    graph = prepared(model)
    inputs = inputs_of(graph, _wanted(graph, weights), positions)
    grams = {name for each in inputs for name in each.weights} if gram else set[str]()
    yield from in_passes(graph, batches, inputs, grams, max_bytes, progress)


def prepared(model: Any) -> Graph:
    """The graph whose weights have the names that rows of reports have."""
    if isinstance(model, Graph):
        return model
    graph = Graph.load(model)
    check_model(graph.proto, os.fspath(model) if isinstance(model, str | os.PathLike) else "model")
    prepare(graph)
    return graph


def inputs_of(graph: Graph, uses: Sequence[WeightUse], positions: int = POSITIONS) -> list[Input]:
    """What these weights are multiplied with; without weights that no observable tensor is multiplied with."""
    shared: dict[frozenset[Any], list[str]] = {}
    found = {name: tuple(pairs) for name, (_, pairs) in _operands(graph, uses, positions).items()}
    for name, operands in found.items():
        shared.setdefault(frozenset(operands), []).append(name)
    return [Input(tuple(names), found[names[0]]) for names in shared.values()]


def observed_layouts(graph: Graph, uses: Sequence[WeightUse]) -> dict[str, Any]:
    """The layout of the uses that the moments of a weight are for, by its name."""
    return {name: layout for name, (layout, _) in _operands(graph, uses, POSITIONS).items()}


def _operands(
    graph: Graph, uses: Sequence[WeightUse], positions: int
) -> dict[str, tuple[Any, list[tuple[str, Product | Patches]]]]:
    """For each weight the layout of the first use that can be observed, and what uses like that multiply it with."""
    observable = {i.name for i in graph.proto.graph.input} | set(branch_tensors(graph.proto.graph))
    observable |= {o for node in graph.nodes if node.op_type != "Constant" for o in node.output if o}
    found: dict[str, tuple[Any, list[tuple[str, Product | Patches]]]] = {}
    for use in uses:
        rows, tensor = operand(use, positions), use.node.input[0]
        if isinstance(rows, str) or use.why_not or tensor not in observable or graph.initializer(tensor) is not None:
            continue
        layout, operands = found.setdefault(use.name, (layout_of(use), []))
        first = operands[0][1] if operands else rows
        if (layout, first.width, first.groups) == (layout_of(use), rows.width, rows.groups):
            operands.append((tensor, rows))
    return found


def in_passes(
    graph: Graph,
    batches: Iterable[Any],
    inputs: Sequence[Input],
    grams: Collection[str],
    max_bytes: float,
    progress: bool = True,
) -> Iterator[dict[str, Moments]]:
    """Moments by the names of weights, in parts of at most `max_bytes` or of one input. grams: the weights that need
    E[x x^T]; the others get E[x^2], unless they share an input with one of these.

    The runtime computes each batch on one thread, so that moments depend on neither their number nor the batches'
    order. Where batches are cut does not matter, either, as far as the runtime computes the same for a row whatever
    else is in its batch: products do, and a length that texts are padded to changes what attention sees.
    """
    parts = _parts(inputs, grams, max_bytes)
    if len(parts) > 1 and read_once(batches):
        total = sum(each.nbytes(_has_gram(each, grams)) for each in inputs)
        raise InvalidProblem(
            f"batches: an iterator, which is read once; moments of {total:,} bytes need {len(parts)} passes in "
            f"{max_bytes:,} bytes; give a list or files"
        )
    for i, part in enumerate(parts):
        title = "Observing inputs" if len(parts) == 1 else f"Observing inputs ({i + 1} of {len(parts)})"
        yield _observed(graph, tracked(batches, title, progress), part, grams)


def few_rows(found: Mapping[str, Moments]) -> list[str]:
    """A note where weights have more inputs than rows of data, and so a singular Gram matrix."""
    few = {name: m for name, m in found.items() if m.has_gram and m.count < m.width}
    if not few:
        return []
    worst = max(few, key=lambda name: few[name].width / few[name].count)
    return [
        f"{'1 weight has' if len(few) == 1 else f'{len(few)} weights have'} more inputs than rows of data ({worst}: "
        f"{few[worst].width} inputs, {few[worst].count} rows): a Gram matrix of few rows is singular, and damping "
        "decides what data leave open; give more data"
    ]


def _wanted(graph: Graph, names: Iterable[str] | Callable[[str], bool] | None) -> list[WeightUse]:
    """The uses of the weights of these names."""
    uses = weights(graph)
    if names is None:
        return uses
    if callable(names):
        return [use for use in uses if names(use.name)]
    asked, known = dict.fromkeys(names), dict.fromkeys(use.name for use in uses)
    absent = next((name for name in asked if name not in known), None)
    if absent is not None:
        raise InvalidProblem(f"weights: {absent!r} is no weight of the model; expected {', '.join(list(known)[:8])}")
    return [use for use in uses if use.name in asked]


def _has_gram(each: Input, grams: Collection[str]) -> bool:
    return any(name in grams for name in each.weights)


def _parts(inputs: Sequence[Input], grams: Collection[str], max_bytes: float) -> list[list[Input]]:
    """The inputs, in their order, in parts that fit into memory."""
    parts: list[list[Input]] = []
    room = -1.0
    for each in inputs:
        needed = each.nbytes(_has_gram(each, grams))
        if needed > room or not parts:
            parts.append([])
            room = max_bytes
        parts[-1].append(each)
        room -= needed
    return parts


def _observed(
    graph: Graph, batches: Iterable[Any], inputs: Sequence[Input], grams: Collection[str]
) -> dict[str, Moments]:
    made = [Moments(i.width, gram=_has_gram(i, grams), groups=i.groups, name=i.operands[0][0]) for i in inputs]
    names = dict.fromkeys(tensor for each in inputs for tensor, _ in each.operands)
    for count, values in enumerate(values_of(graph.proto, graph.path, names, batches, reproducible=True)):
        for name, value in values.items():
            _refuse_nonfinite(value, name, count)
        for each, moments in zip(inputs, made, strict=True):
            for tensor, reader in each.operands:
                for rows in reader.rows(values[tensor]) if tensor in values else ():
                    try:
                        moments.add(rows)
                    except InvalidProblem as error:
                        raise InvalidProblem(f"batch {count}: {error}") from None
    return {name: m for each, m in zip(inputs, made, strict=True) if m.count for name in each.weights}


def _refuse_nonfinite(value: Any, name: str, batch: int) -> None:
    found = cpu.first_nonfinite(cpu.as_float_array(value, name))
    if found is not None:
        number, index = found
        raise InvalidProblem(
            f"batch {batch}: {name!r} is {float(number)} at index {tuple(map(int, index))}; moments need finite "
            "activations; leave the batch out, or correct what the model computes on it"
        )
