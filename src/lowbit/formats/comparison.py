"""Comparing two models: sizes, error and latency."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.formats.compressed_tensors.plan import model_dtype, read_config
from lowbit.formats.compressed_tensors.scheme import Scheme, decompressed, widened
from lowbit.formats.files import check_measuring, kind_of, load_metric
from lowbit.formats.safetensors.checkpoint import Checkpoint, TensorInfo
from lowbit.models import Accuracy, Latency, MetricResult, WeightRecipe
from lowbit.models.report import plain_fields
from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.numerics.metrics import error_report

Array = npt.NDArray[Any]
_MOST_RANDOM = 1 << 28  # elements of one input


@dataclass(frozen=True)
class WeightDifference:
    """One weight in both checkpoints, the second compared with the first."""

    name: str
    shape: tuple[int, ...]
    first: str  # how it is stored
    second: str
    first_bytes: int
    second_bytes: int
    sqnr_db: float | None  # none where one of them cannot be read as floats


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two models."""

    first: str
    second: str
    first_bytes: int
    second_bytes: int
    weights: Sequence[WeightDifference] = ()
    accuracy: Sequence[Accuracy] = ()
    latency: Sequence[Latency] = ()
    metrics: Sequence[MetricResult] = ()
    notes: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain types for JSON."""
        return plain_fields(self)


def compare_files(
    first: str | os.PathLike[str],
    second: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    batch_size: int | None = None,
    max_batches: int | None = None,
    metric: str | None = None,
    seconds: float = 2.0,
    threads: Sequence[int] = (1,),
) -> Comparison:
    """Compare ONNX models by running them, on data or on random inputs; compare checkpoints weight by weight."""
    kinds = kind_of(first), kind_of(second)
    if kinds[0] != kinds[1]:
        raise InvalidProblem(f"{os.fspath(second)}: {kinds[1]}; expected {kinds[0]}, as {os.fspath(first)} is")
    check_measuring(data, batch_size, max_batches, seconds, threads)
    if kinds[0] == "checkpoint":
        if any(given is not None for given in (data, metric, batch_size, max_batches)):
            raise InvalidProblem(
                "data: given, or an option about data; checkpoints are compared by their weights alone"
            )
        return _checkpoints(first, second)
    if data is None and max_batches is not None:
        raise InvalidProblem("max_batches: given without data; there is one batch of random inputs")
    from lowbit.formats.onnx.batches import Batches, GivenBatches, model_inputs, random_feed
    from lowbit.formats.onnx.graph import Graph
    from lowbit.formats.onnx.measure import measure_models

    paths = Path(first), Path(second)
    graphs = [Graph.load(path) for path in paths]
    sizes = [path.stat().st_size + g.bytes_beside for path, g in zip(paths, graphs, strict=True)]
    inputs = [", ".join(sorted(model_inputs(g.proto))) for g in graphs]
    if inputs[0] != inputs[1]:
        raise InvalidProblem(f"inputs: {inputs[0]} and {inputs[1]}; both models must have the same")
    if metric is not None and data is None:
        raise InvalidProblem("metric: given without data to compute it on")
    function = None if metric is None else (metric, load_metric(metric))
    notes: list[str] = []
    batches: Batches | GivenBatches
    if data is not None:
        batches = Batches(data, graphs[0].proto, batch_size, max_batches)
    else:
        batches = GivenBatches([random_feed(model_inputs(graphs[0].proto), batch_size or 1)])
        notes.append("No data were given: inputs are random, so the figures say how close both are, not how good.")
    measured = measure_models(*paths, batches.feeds, lambda: iter(batches), function, seconds, threads)
    return Comparison(str(paths[0]), str(paths[1]), sizes[0], sizes[1], notes=notes, **measured)


def _checkpoints(first: str | os.PathLike[str], second: str | os.PathLike[str]) -> Comparison:
    with Checkpoint.open(first) as a, Checkpoint.open(second) as b:
        names = {c: dict(_weights(c)) for c in (a, b)}
        notes = []
        for where, one, other in ((first, a, b), (second, b, a)):
            missing = [n for n in names[one] if n not in names[other]]
            if missing:
                notes.append(f"{len(missing)} weights are in {os.fspath(where)} only, the first of them {missing[0]!r}")
        rows = [_difference(n, a, names[a][n], b, names[b][n]) for n in names[a] if n in names[b]]
        return Comparison(os.fspath(first), os.fspath(second), a.nbytes, b.nbytes, rows, notes=notes)


def _weights(c: Checkpoint) -> Iterator[tuple[str, list[str]]]:
    """(name of the weight, names of the tensors that hold it)."""
    parts = ("weight_packed", "weight_scale", "weight_shape", "weight_zero_point")
    for name in c.tensors:
        module, _, last = name.rpartition(".")
        if last == "weight_packed":
            yield f"{module}.weight", [f"{module}.{p}" for p in parts if f"{module}.{p}" in c.tensors]
        elif last == "weight" and f"{module}.weight_scale" in c.tensors:
            yield name, [name, *(f"{module}.{p}" for p in parts[1:] if f"{module}.{p}" in c.tensors)]
        elif last not in parts:
            yield name, [name]


def _difference(name: str, a: Checkpoint, in_a: list[str], b: Checkpoint, in_b: list[str]) -> WeightDifference:
    (x, how_a), (y, how_b) = _value(a, in_a), _value(b, in_b)
    size_a, size_b = (sum(c.tensors[n].nbytes for n in parts) for c, parts in ((a, in_a), (b, in_b)))
    if x is not None and y is not None and x.shape != y.shape:
        raise InvalidProblem(f"{name!r}: shapes {x.shape} and {y.shape}; expected the same")
    shape = x.shape if x is not None else a.tensors[in_a[0]].shape
    sqnr = None if x is None or y is None else error_report(x, y).sqnr_db
    for c, parts in ((a, in_a), (b, in_b)):
        for part in parts:
            c.release(part)
    return WeightDifference(name, tuple(shape), how_a, how_b, size_a, size_b, sqnr)


def _value(c: Checkpoint, parts: list[str]) -> tuple[Array | None, str]:
    """(the weight as float32, how it is stored)."""
    info = c.tensors[parts[0]]
    if len(parts) == 1:
        if info.dtype in ("F32", "F16", "BF16"):
            return widened(c.read(info.name), info.dtype), info.dtype
        return (np.asarray(c.read(info.name), np.float64) if info.dtype == "F64" else None), info.dtype
    try:
        return _decompressed(c, info, {p.rpartition(".")[2]: p for p in parts})
    except (InvalidProblem, FormatError):
        raise
    except (LookupError, ArithmeticError, TypeError, ValueError) as error:
        raise FormatError(
            f"{info.file.name}: {info.name!r} is not stored as compressed-tensors stores weights ({error!r:.80})"
        ) from None


def _decompressed(c: Checkpoint, info: TensorInfo, local: Mapping[str, str]) -> tuple[Array, str]:
    scale = c.tensors[local["weight_scale"]]
    (n, k), bits = info.shape, 8
    if "weight_packed" in local:
        rows, k = (int(v) for v in c.read(local["weight_shape"]))
        if rows != n or k < 1:
            raise ValueError(f"weight_shape ({rows}, {k})")
        bits = info.shape[1] * 32 // k
    groups = scale.shape[1] if len(scale.shape) == 2 else 1
    granularity = "channel" if len(scale.shape) == 2 else "tensor"
    name, scheme = (f"uint{bits}", "asymmetric") if "weight_zero_point" in local else (f"int{bits}", "symmetric")
    recipe = WeightRecipe(name, scheme, k // groups if groups > 1 else None, granularity)
    stored = {short: c.read(full) for short, full in local.items()}
    dtype = model_dtype(c.tensors, read_config(c.folder)) or scale.dtype
    return decompressed(stored, Scheme(recipe), (n, k), dtype, scale.dtype), str(recipe)
