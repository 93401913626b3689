"""Ranges of the tensors of an ONNX model, observed while it runs over data."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import onnx

from lowbit.calibration import Calibrator
from lowbit.calibration.calibrator import MethodLike, tracked
from lowbit.formats.onnx.branches import branch_tensors, lift
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.inference import check_model, inferred_types
from lowbit.formats.onnx.inputs import check_fits, feed_of, given_inputs
from lowbit.formats.onnx.model_file import read_proto
from lowbit.formats.onnx.runtime import open_session, run_session
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.threads import get_num_threads

_AT_ONCE = 4  # batches
_FLOATS = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE}
_OPS = ("Conv", "ConvTranspose", "Gemm", "MatMul")


def observe(
    model: Any,
    loader: Iterable[Any],
    *,
    tensors: Iterable[str] | Callable[[str], bool] | None = None,
    method: MethodLike = "adaptive",
    axis: int | None = None,
    progress: bool = True,
    providers: list[str] | None = None,
    **options: Any,
) -> dict[str, Calibrator]:
    """A calibrator for each float tensor that a Conv, Gemm or MatMul takes or gives, by name.

    model: an onnx.ModelProto, a path, or a Graph. loader: batches, each a mapping from input names to arrays (an
    array alone stands for the only input). tensors: names, or a predicate on names, to observe instead; names may be
    those of tensors in branches of an If, which are observed when their branch runs. One batch is held at a time, and
    memory does not grow with the loader. axis and other options are those of Calibrator.
    """
    proto, path = _opened(model)
    names = _names(proto, tensors)
    found = {name: Calibrator(method, axis=axis, name=name, **options) for name in names}
    for values in values_of(proto, path, names, tracked(loader, "Calibrating", progress), providers):
        for name, value in values.items():
            found[name].add(value)
    return {name: c for name, c in found.items() if c.num_samples}


def values_of(
    proto: onnx.ModelProto,
    path: Path | None,
    names: Iterable[str],
    loader: Iterable[Any],
    providers: list[str] | None = None,
    *,
    reproducible: bool = False,
) -> Iterator[dict[str, Any]]:
    """The values of these tensors for each batch, by name; without those of branches that did not run. path: the
    model's, of which external data are in the same folder.

    reproducible: values do not depend on the number of threads. ONNX Runtime splits its sums by threads, so each batch
    has one, and up to 4 batches run at once.
    """
    names, inputs = list(names), given_inputs(proto)
    hidden = [n for n in names if n not in inputs]
    session, lifted = _session(proto, path, hidden, providers, threads=1 if reproducible else None)
    shown = {lifted.get(name, name): name for name in names}  # by the name of an output
    outputs = [o.name for o in session.get_outputs() if o.name in shown]

    def run(numbered: tuple[int, Any]) -> dict[str, Any]:
        index, batch = numbered
        feed = feed_of(batch, list(inputs), index)
        for name, array in feed.items():
            check_fits(inputs[name], array, f"batch {index}")
        results = run_session(session, outputs, feed, f"batch {index}") if outputs else []
        values = {name: feed[name] for name in names if name in feed}
        for name, value in zip(outputs, results, strict=True):
            if value.size and value.dtype.kind == "f":
                values[shown[name]] = value
        return values

    at_once = min(_AT_ONCE, get_num_threads()) if reproducible else 1
    batches = 0
    for values in _in_order(run, enumerate(loader), at_once):
        yield values
        batches += 1
    if batches == 0:
        raise InvalidProblem("loader: no batches; expected at least one to find ranges in")


def _in_order(call: Callable[[Any], Any], items: Iterable[Any], at_once: int) -> Iterator[Any]:
    """What `call` returns for each item, in their order; several calls run at once."""
    if at_once == 1:
        yield from map(call, items)
        return
    with ThreadPoolExecutor(at_once) as pool:
        waiting: deque[Future[Any]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(call, item))
                if len(waiting) == at_once:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _opened(model: Any) -> tuple[onnx.ModelProto, Path | None]:
    """A checked model, and where it lies."""
    if isinstance(model, Graph):  # it was checked when it was loaded
        return model.proto, model.path
    if isinstance(model, onnx.ModelProto):
        check_model(model, "model")
        return model, None
    if isinstance(model, str | os.PathLike):
        proto = read_proto(model)
        check_model(proto, os.fspath(model))
        return proto, Path(model)
    raise InvalidProblem(f"model: {type(model).__name__}; expected an onnx.ModelProto or a path")


def _names(proto: onnx.ModelProto, tensors: Iterable[str] | Callable[[str], bool] | None) -> list[str]:
    """The names of the tensors to observe."""
    graph = proto.graph
    constants = {t.name for t in graph.initializer} | {n.output[0] for n in graph.node if n.op_type == "Constant"}
    every = [i.name for i in graph.input] + [o for n in graph.node for o in n.output if o]
    there = dict.fromkeys(name for name in every if name not in constants)
    if tensors is None:
        about = [n for node in graph.node if node.op_type in _OPS for n in (*node.input[:2], *node.output)]
        names = [n for n in dict.fromkeys(about) if n in there]
    elif callable(tensors):
        names = [n for n in there if tensors(n)]
    else:
        names = list(dict.fromkeys(tensors))
        there |= dict.fromkeys(branch_tensors(graph))
        absent = next((n for n in names if n not in there), None)
        if absent is not None:
            known = ", ".join(list(there)[:8])
            raise InvalidProblem(f"tensors: {absent!r} is not in the model; expected names such as {known} ...")
    if not names:
        raise InvalidProblem("model: no tensor to observe; name some with tensors=")
    return names


def _session(
    proto: onnx.ModelProto,
    source: Path | None,
    wanted: list[str],
    providers: list[str] | None,
    threads: int | None = None,
) -> tuple[Any, dict[str, str]]:
    """A session of the model with these tensors among its outputs, and the names of those that are in branches."""
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    already = {o.name for o in shown.graph.output}
    known = inferred_types(shown)
    lifted = lift(shown.graph, set(wanted) & set(branch_tensors(shown.graph)), known)
    for name in wanted:
        kind = known.get(name) if name not in lifted else None
        name = lifted.get(name, name)
        if name not in already and (kind is None or kind.tensor_type.elem_type in _FLOATS):
            shown.graph.output.append(onnx.ValueInfoProto(name=name, type=kind))
    folder = "" if source is None else str(source.absolute().parent)  # of external data
    # Fused away, a tensor could not be observed.
    options: dict[str, Any] = {"data_folder": folder, "providers": providers, "threads": threads}
    session = open_session(shown.SerializeToString(), optimized=False, **options)
    return session, lifted
