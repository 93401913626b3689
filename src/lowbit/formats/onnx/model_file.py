"""Reading ONNX files with sizes, external data and names checked."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Container, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from lowbit.numerics.errors import FormatError

Array = npt.NDArray[Any]
Place = tuple[Path, int, int]  # file, offset, length

_MAX_PROTO = (1 << 31) - 1  # protobuf's own limit for one message
_BITS_OF = {
    "UINT2 INT2": 2,
    "UINT4 INT4 FLOAT4E2M1": 4,
    "UINT8 INT8 BOOL FLOAT8E4M3FN FLOAT8E4M3FNUZ FLOAT8E5M2 FLOAT8E5M2FNUZ FLOAT8E8M0": 8,
    "UINT16 INT16 FLOAT16 BFLOAT16": 16,
    "FLOAT INT32 UINT32": 32,
    "DOUBLE INT64 UINT64 COMPLEX64": 64,
    "COMPLEX128": 128,
}
# Types that this version of onnx does not know are left out.
_KINDS: dict[str, int] = dict(TensorProto.DataType.items())
BITS = {_KINDS[name]: bits for names, bits in _BITS_OF.items() for name in names.split() if name in _KINDS}
_PLAIN_NAMES = "FLOAT DOUBLE FLOAT16 BFLOAT16 INT8 UINT8 INT16 UINT16 INT32 UINT32 INT64 UINT64 BOOL"
# Types that are read in place; all others go through onnx's own reader.
_PLAIN = {_KINDS[name]: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(_KINDS[name])) for name in _PLAIN_NAMES.split()}


def read_proto(path: str | os.PathLike[str]) -> ModelProto:
    """The model in a file, without its external data; FormatError where it is not valid."""
    name = os.fspath(path)
    size = os.stat(path).st_size
    if not Path(path).is_file():
        raise FormatError(f"{name}: not a file")
    if not 0 < size <= _MAX_PROTO:
        raise FormatError(f"{name}: {size} bytes; an ONNX file has 1 to {_MAX_PROTO}")
    proto = ModelProto()
    try:
        proto.ParseFromString(Path(path).read_bytes())
    except Exception as error:  # protobuf's own kinds of error have no common base
        raise FormatError(f"{name}: not an ONNX model, or cut short ({error})") from None
    return proto


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The bodies of an If, Loop or Scan."""
    for a in node.attribute:
        if a.type == AttributeProto.GRAPH:
            yield a.g
        elif a.type == AttributeProto.GRAPHS:
            yield from a.graphs


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph, and all bodies of its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs(inner)


def nodes(graph: GraphProto) -> list[NodeProto]:
    """The nodes of a graph and of all bodies."""
    return [node for g in graphs(graph) for node in g.node]


def tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Every tensor in a graph and all bodies: initializers, and those in attributes."""
    return (t for _, t in named_tensors(graph))


def named_tensors(graph: GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Every tensor with the name it is known by: for one in a Constant, the name of the node's output."""
    yield from ((t.name, t) for t in graph.initializer)
    for sparse in graph.sparse_initializer:
        yield from ((sparse.values.name, sparse.values), (f"{sparse.values.name} indices", sparse.indices))
    for node in graph.node:
        for a in node.attribute:
            is_constant = node.op_type == "Constant" and node.output
            name = node.output[0] if is_constant else f"{node.name or node.op_type}.{a.name}"
            if a.type == AttributeProto.TENSOR:
                yield name, a.t
            elif a.type == AttributeProto.TENSORS:
                yield from ((f"{name}.{i}", t) for i, t in enumerate(a.tensors))
            elif a.type == AttributeProto.SPARSE_TENSOR:
                yield from ((name, a.sparse_tensor.values), (f"{name} indices", a.sparse_tensor.indices))
        for inner in subgraphs(node):
            yield from named_tensors(inner)


def drop(field: Any, names: Container[str]) -> None:
    """Remove the entries of these names from a repeated field."""
    for i in reversed([i for i, t in enumerate(field) if t.name in names]):
        del field[i]


def copy_graph(into: GraphProto, graph: GraphProto, replaced: Callable[[GraphProto, Any], bool]) -> None:
    """Copy a graph and all bodies, except for initializers and nodes in whose place `replaced` puts something else."""
    for t in graph.initializer:
        if not replaced(into, t):
            into.initializer.append(t)
    for node in graph.node:
        if replaced(into, node):
            continue
        if not any(True for _ in subgraphs(node)):
            into.node.append(node)
            continue
        new = into.node.add()
        copy_fields(new, node, "attribute")
        for a in node.attribute:
            made = new.attribute.add()
            copy_fields(made, a, "g")
            if a.type == AttributeProto.GRAPH:
                copy_graph(made.g, a.g, replaced)
    copy_fields(into, graph, "initializer", "node")


def copy_fields(into: Any, message: Any, *left_out: str) -> None:
    """Copy a message of protobuf without some fields."""
    for field, value in message.ListFields():
        if field.name in left_out:
            continue
        if field.is_repeated:
            getattr(into, field.name).extend(value)
        elif field.message_type is not None:
            getattr(into, field.name).CopyFrom(value)
        else:
            setattr(into, field.name, value)


# ---- tensors ------------------------------------------------------------------------------------------


def check_tensor(t: TensorProto, folder: Path | None) -> None:
    """Raise where the size of a tensor's data differs from its shape."""
    if any(d < 0 for d in t.dims) or len(t.dims) > 32 or math.prod(d or 1 for d in t.dims) >= 1 << 60:
        raise FormatError(f"{t.name!r}: bad shape {list(t.dims)[:8]}")
    count = math.prod(t.dims)
    if t.HasField("segment"):
        raise FormatError(f"{t.name!r}: data in segments; no runtime supports them")
    if t.data_type == TensorProto.STRING:
        if t.data_location == TensorProto.EXTERNAL or len(t.string_data) != count:
            raise FormatError(f"{t.name!r}: {len(t.string_data)} texts for shape {list(t.dims)}")
        return
    if t.data_type not in BITS:
        raise FormatError(f"{t.name!r}: unknown element type {t.data_type}")
    if t.data_location == TensorProto.EXTERNAL:
        external_place(t, folder)
        return
    if t.HasField("raw_data"):
        expected, given, what = byte_count(t), len(t.raw_data), "bytes of data"
    else:
        field = onnx.helper.tensor_dtype_to_field(t.data_type)
        expected = count if BITS[t.data_type] >= 8 else byte_count(t)
        expected *= 2 if t.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128) else 1
        given, what = len(getattr(t, field)), f"numbers in {field}"
    if given != expected:
        raise FormatError(f"{t.name!r}: {given} {what}; shape {list(t.dims)} needs {expected}")


def byte_count(t: TensorProto) -> int:
    """The bytes of a tensor's data in a file."""
    return -(-math.prod(t.dims) * BITS[t.data_type] // 8) if t.data_type in BITS else 0


def external_place(t: TensorProto, folder: Path | None) -> Place:
    """The place of external data: a file in or below the model's folder that is long enough."""
    entries = {e.key: e.value for e in t.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise FormatError(f"{t.name!r}: external data at {location!r}; load the model by its path")
    if any(isinstance(text, bytes) for pair in entries.items() for text in pair):  # invalid UTF-8
        raise FormatError(f"{t.name!r}: external data at {location!r}; expected text")
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or os.path.isabs(location) or ".." in parts or ":" in parts[0]:
        raise FormatError(f"{t.name!r}: external data at {location!r}; expected a path inside the model's folder")
    root = folder.resolve()
    try:
        file = (root / location).resolve()
        there = file.is_file()
    except (OSError, RuntimeError, ValueError) as error:  # too long, not a file name, circular links
        raise FormatError(f"{t.name!r}: external data at {location[:80]!r} ({error})") from None
    if not file.is_relative_to(root):
        raise FormatError(f"{t.name!r}: external data at {location!r} lead out of the model's folder")
    if not there:
        raise FormatError(f"{t.name!r}: its external data {location!r} are not there")
    needed = byte_count(t)
    offset, length = (_natural(t, entries, key, default) for key, default in (("offset", 0), ("length", needed)))
    size = file.stat().st_size
    if length != needed or offset + length > size:
        raise FormatError(
            f"{t.name!r}: bytes {offset} to {offset + length} of {location!r} for shape {list(t.dims)}, "
            f"which needs {needed}; the file has {size}"
        )
    return file, offset, length


def _natural(t: TensorProto, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise FormatError(f"{t.name!r}: external data with {key} {text!r}; expected a number")
    return int(text)


def tensor_array(t: TensorProto, folder: Path | None) -> Array:
    """The tensor as an array; external data are mapped. Do not write to it."""
    shape = tuple(t.dims)
    if t.data_location == TensorProto.EXTERNAL:
        file, offset, length = external_place(t, folder)
        if t.data_type in _PLAIN and length:
            return np.memmap(file, _PLAIN[t.data_type], mode="r", offset=offset, shape=shape)
        with open(file, "rb") as source:
            source.seek(offset)
            raw = source.read(length)
        t = TensorProto(data_type=t.data_type, dims=t.dims, raw_data=raw)
    elif t.data_type in _PLAIN and t.HasField("raw_data"):
        return np.frombuffer(t.raw_data, _PLAIN[t.data_type]).reshape(shape)
    return np.asarray(numpy_helper.to_array(t))


# ---- names --------------------------------------------------------------------------------------------


def check_graph(graph: GraphProto) -> None:
    """Sort the nodes topologically, and rename tensors of bodies so that names are unique in the whole model.
    FormatError for cycles, unknown names and duplicates."""
    _settle(graph, {}, {})


def _settle(graph: GraphProto, outer: dict[str, str], taken: dict[str, int]) -> None:
    given = [i.name for i in graph.input]
    initialised = [t.name for t in graph.initializer] + [t.values.name for t in graph.sparse_initializer]
    made = [o for node in graph.node for o in node.output if o]
    for listed, what in ((initialised, "initializers"), (made, "node outputs"), (given, "inputs")):
        double = next((n for n, seen in Counter(listed).items() if seen > 1), None)
        if double is not None:
            raise FormatError(f"{double!r}: two {what} of this name")
    clash = next(iter({*made} & {*given, *initialised}), None)
    if clash is not None:
        raise FormatError(f"{clash!r}: a node output that is also an input or initializer")
    names = outer | {n: unused(n, taken) for n in dict.fromkeys([*given, *initialised, *made])}
    _sort(graph, names)
    _rename(graph, names)
    for node in graph.node:
        for inner in subgraphs(node):
            _settle(inner, names, taken)
    known = set(names.values())
    for o in graph.output:
        if o.name not in known:
            raise FormatError(f"{o.name!r}: an output of the graph that no node produces")


def unused(name: str, taken: dict[str, int]) -> str:
    """The name, or its first numbered form that is not taken. `taken` holds the last number tried for each name, so
    that many bodies with the same name take linear time."""
    made = name
    while made in taken:
        taken[name] = taken.get(name, 0) + 1
        made = f"{name}_{taken[name]}"
    taken[made] = 0
    return made


def _rename(graph: GraphProto, names: dict[str, str]) -> None:
    sparse = [t.values for t in graph.sparse_initializer]
    for named in (*graph.initializer, *sparse, *graph.input, *graph.output, *graph.value_info):
        if names.get(named.name, named.name) != named.name:
            named.name = names[named.name]
    for node in graph.node:
        for field in (node.input, node.output):
            for i, n in enumerate(field):
                if names.get(n, n) != n:
                    field[i] = names[n]


def reads(node: NodeProto) -> list[str]:
    """The names a node reads: its inputs, and what its bodies take from outside."""
    found = [n for n in node.input if n]
    for inner in subgraphs(node):
        own = {i.name for i in inner.input} | {t.name for t in inner.initializer}
        own |= {t.values.name for t in inner.sparse_initializer}
        own |= {o for n in inner.node for o in n.output}
        inside = [r for n in inner.node for r in reads(n)] + [o.name for o in inner.output]
        found += [r for r in inside if r not in own]
    return found


def _sort(graph: GraphProto, known: Container[str]) -> None:
    """Sort nodes topologically; an order that is valid already is kept."""
    made = {o: i for i, node in enumerate(graph.node) for o in node.output if o}
    before: dict[int, set[int]] = {}
    for i, node in enumerate(graph.node):
        names = reads(node)
        missing = next((n for n in names if n not in known), None)
        if missing is not None:
            raise FormatError(f"{node.op_type} {node.name!r} reads {missing!r}, which no node produces")
        before[i] = {made[n] for n in names if n in made}
    if all(j < i for i, js in before.items() for j in js):
        return
    try:
        order = list(TopologicalSorter(before).static_order())
    except CycleError as error:
        stuck = graph.node[min(error.args[1])]
        raise FormatError(f"{stuck.op_type} {stuck.name!r}: the graph has a cycle through it") from None
    nodes = [NodeProto.FromString(n.SerializeToString()) for n in graph.node]
    del graph.node[:]
    graph.node.extend(nodes[i] for i in order)
