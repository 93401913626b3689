"""Computing what a graph computes from constants alone, so that weights are found behind slices and concatenations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, helper, numpy_helper

from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.model_file import BITS, byte_count
from lowbit.formats.onnx.runtime import open_session, run_session
from lowbit.formats.onnx.weight_uses import CODES, FLOATS, THROUGH
from lowbit.numerics.errors import FormatError, InvalidProblem

Array = npt.NDArray[Any]

# Deterministic operators on tensors that exporters put between constants and layers.
_COMPUTED = frozenset(
    [
        "Abs",
        "Add",
        "And",
        "Cast",
        "Ceil",
        "Clip",
        "Concat",
        "ConstantOfShape",
        "CumSum",
        "Div",
        "Equal",
        "Exp",
        "Expand",
        "Flatten",
        "Floor",
        "Gather",
        "GatherElements",
        "GatherND",
        "Greater",
        "Identity",
        "Less",
        "Log",
        "MatMul",
        "Max",
        "Mean",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "OneHot",
        "Or",
        "Pad",
        "Pow",
        "Range",
        "Reciprocal",
        "ReduceL1",
        "ReduceL2",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Reshape",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Shape",
        "Sigmoid",
        "Sign",
        "Size",
        "Slice",
        "Softmax",
        "Softplus",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Sum",
        "Tanh",
        "Tile",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
    ]
)
_SHARED_BY_CHANCE = 128  # bytes; axes and sizes that several computations read do not tie them together


class _Result(NamedTuple):
    """A tensor to be computed: the nodes that do, in an order in which they can run, and the constants they read."""

    name: str
    nodes: list[NodeProto]
    sources: list[str]


def skip_identities(graph: Graph) -> None:
    """Let nodes read constants directly rather than through an Identity."""
    for node in graph.all_nodes:
        if node.op_type == "Identity" and not node.domain and graph.constant(node.input[0]) is not None:
            _rewire(graph, node.output[0], node.input[0])
    graph.remove_unused()


def fold_constants(graph: Graph) -> int:
    """Replace tensors that are computed from constants by their values, where the file does not become larger; returns
    their number. Quantized weights are not decoded, and a weight that is only transposed or cast is left to `weights`.
    """
    count = 0
    for group in _groups(graph, _results(graph)):
        values = _values(graph, group)
        idle_nodes, idle_sources = _idle_after(graph, group)
        saved = sum(node.ByteSize() for node in idle_nodes) + sum(_stored_bytes(graph, n) for n in idle_sources)
        if values is None:
            continue
        # Both branches of an If often compute the same from the same weight.
        alike: dict[bytes, list[_Result]] = {}
        for result, value in zip(group, values, strict=True):
            alike.setdefault(f"{value.dtype} {value.shape} ".encode() + value.tobytes(), []).append(result)
        by_name = dict(zip((result.name for result in group), values, strict=True))
        if sum(by_name[same[0].name].nbytes for same in alike.values()) > saved:
            continue
        for same in alike.values():
            name = _stored(graph, same, by_name[same[0].name], idle_sources, len(alike) == 1)
            for result in same:
                _rewire(graph, result.name, name)
        for node in idle_nodes:
            graph.remove(node)
        count += len(group)
    graph.remove_unused()
    graph.refresh()
    return count


def _rewire(graph: Graph, name: str, to: str) -> None:
    """Let all readers of a tensor read another."""
    for reader, index in graph.consumers(name):
        graph.replace_input(reader, index, to)


def _results(graph: Graph) -> list[_Result]:
    """The tensors computed from constants that other nodes read."""
    foldable: dict[int, int] = {}  # id of a node -> its place
    nodes = graph.all_nodes  # those of bodies follow, so that what a node reads comes before it
    for place, node in enumerate(nodes):
        if _is_foldable(graph, node, foldable):
            foldable[id(node)] = place
    wanted: dict[str, None] = {}
    for place in foldable.values():
        for name in nodes[place].output:
            if any(id(reader) not in foldable for reader, _ in graph.consumers(name)):
                wanted[_before_through(graph, name)] = None
    found = []
    for name in wanted:
        places: set[int] = set()
        sources: dict[str, None] = {}
        stack = [name]
        while stack:
            at = stack.pop()
            maker = graph.producer(at)
            if maker is None or id(maker) not in foldable:
                sources[at] = None
            elif foldable[id(maker)] not in places:
                places.add(foldable[id(maker)])
                stack += filter(None, maker.input)
        if places:
            found.append(_Result(name, [nodes[i] for i in sorted(places)], list(sources)))
    return found


def _is_foldable(graph: Graph, node: NodeProto, foldable: dict[int, int]) -> bool:
    if node.op_type not in _COMPUTED or node.domain or not any(node.input):
        return False
    if any(map(graph.is_graph_output, node.output)):
        return False
    for name in filter(None, node.input):
        maker = graph.producer(name)
        if maker is not None and id(maker) in foldable:
            continue
        stored = graph.initializer(name)
        if (stored is not None and stored.data_type in CODES) or graph.constant(name) is None:
            return False
    return True


def _before_through(graph: Graph, name: str) -> str:
    """The tensor that `weights` finds behind Transpose and Cast where that is a weight, else the tensor itself."""
    at = name
    while (node := graph.producer(at)) is not None and node.op_type in THROUGH:
        at = node.input[0]
    stored = graph.initializer(at)
    if stored is None:
        return at
    return at if stored.data_type in FLOATS and len(stored.dims) > 1 else name


def _groups(graph: Graph, results: Sequence[_Result]) -> list[list[_Result]]:
    """Results that share large sources, which are saved only where all of them are computed."""
    leader: dict[str, str] = {}  # of a source or result

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    for result in results:
        for name in result.sources:
            if _stored_bytes(graph, name) > _SHARED_BY_CHANCE:
                leader[find(name)] = find(result.name)
    groups: dict[str, list[_Result]] = {}
    for result in results:
        groups.setdefault(find(result.name), []).append(result)
    return list(groups.values())


def _stored_bytes(graph: Graph, name: str) -> int:
    stored = graph.initializer(name)
    return 0 if stored is None else byte_count(stored)


def _inferred_bytes(graph: Graph, name: str) -> int:
    """The bytes of a tensor as far as they are known without computing it."""
    shape, bits = graph.shape(name), BITS.get(graph.element_type(name), 0)
    return 0 if shape is None or None in shape else math.prod(n or 0 for n in shape) * bits // 8


def _values(graph: Graph, group: Sequence[_Result]) -> list[Array] | None:
    """The values as ONNX Runtime computes them, or None where it does not."""
    feed = {name: graph.constant(name) for result in group for name in result.sources}
    inputs = []
    for name, value in feed.items():
        if value is None or value.dtype.kind not in "fiub":
            return None  # types that NumPy lacks
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))
    outputs = [onnx.ValueInfoProto(name=result.name) for result in group]
    body = helper.make_graph(_nodes(group), "constants", inputs, outputs)
    model = helper.make_model(body, opset_imports=[o for o in graph.proto.opset_import if not o.domain])
    model.ir_version = graph.proto.ir_version
    try:
        session = open_session(model.SerializeToString(), optimized=False)
        return run_session(session, [result.name for result in group], feed)
    except (FormatError, InvalidProblem):
        return None


def _nodes(group: Sequence[_Result]) -> list[NodeProto]:
    """The nodes of all results, each once, in an order in which they can run."""
    return list({id(node): node for result in group for node in result.nodes}.values())


def _idle_after(graph: Graph, group: Sequence[_Result]) -> tuple[list[NodeProto], set[str]]:
    """The nodes and constants that nothing reads once these results are stored."""
    results = {result.name for result in group}
    idle: dict[int, NodeProto] = {}

    def is_idle(name: str) -> bool:
        return not graph.is_graph_output(name) and all(id(reader) in idle for reader, _ in graph.consumers(name))

    for node in reversed(_nodes(group)):
        if all(name in results or is_idle(name) for name in node.output):
            idle[id(node)] = node
    return list(idle.values()), {name for result in group for name in result.sources if is_idle(name)}


def _stored(graph: Graph, same: Sequence[_Result], value: Array, idle: set[str], is_only: bool) -> str:
    """Store the value of some results; returns its name. Recipes know a weight by the name of the constant that it is
    computed from. is_only: no other value is computed from the same constants."""
    homes = [graph.home(result.nodes[-1]) for result in same]
    home = homes[0] if all(h is homes[0] for h in homes) else graph.proto.graph
    weights = [name for name in same[0].sources if len(graph.shape(name) or ()) > 1]
    if len(weights) != 1:
        return graph.add_constant(same[0].name, value, home)
    (name,) = weights
    held = graph.initializer(name)
    if held is None or name not in idle or not is_only:
        return graph.add_constant(name, value, home)
    held.CopyFrom(numpy_helper.from_array(np.asarray(value, order="C"), name))
    return name
