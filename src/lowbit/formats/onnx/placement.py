"""Choosing the tensors to quantize, so that ONNX Runtime computes connected parts of the graph in integers.

The input of each node with quantized weights is quantized. From there the search goes up the graph: through nodes that
only move elements (reshape, transpose, max pooling) and keep the scale; through sums, concatenations and averages whose
inputs can all be quantized; to the nodes with quantized weights that produce them. Other tensors stay float. The output
of a convolution is always quantized, since the runtime has no integer convolution with float output.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx import NodeProto

from lowbit.formats.onnx.graph import Graph, Use

# Codes pass unchanged: input and output share a scale.
_MOVING = "DepthToSpace Expand Flatten Identity MaxPool Reshape Slice SpaceToDepth Squeeze Transpose Unsqueeze"
MOVES = frozenset(_MOVING.split())
# Operators with integer kernels in ONNX Runtime; the output has a scale of its own.
JOINS = {"Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool"}
# Absorbed by the quantization that follows: codes saturate at the same bounds.
CLIPS = {"Relu", "Clip"}


@dataclass
class Placement:
    """readers: who reads each tensor to quantize. shares: for some tensors, the one whose scale they use. inside: those
    produced by integer kernels, of which all readers get the quantized tensor so that no float copy is needed."""

    readers: dict[str, list[Use]] = field(default_factory=dict)
    shares: dict[str, str] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)

    def root(self, name: str) -> str:
        """The tensor whose range determines the scale."""
        while name in self.shares:
            name = self.shares[name]
        return name


def place(graph: Graph, products: list[NodeProto]) -> Placement:
    """The placement for these nodes, whose first inputs are activations and whose weights will be quantized."""
    found = Placement()
    makers = {id(n) for n in products}
    for node in products:
        _want(graph, node.input[0], makers, found, (node, 0))
    for node in products:
        if node.op_type == "Conv":
            _want(graph, _end(graph, node), makers, found)
    for name in found.inside:
        found.readers[name] = graph.consumers(name)
    return found


def _end(graph: Graph, node: NodeProto) -> str:
    """A node's output, after a clip that will be absorbed."""
    name: str = node.output[0]
    readers = graph.consumers(name)
    if len(readers) == 1 and readers[0][0].op_type in CLIPS and not graph.is_graph_output(name):
        name = readers[0][0].output[0]
    return name


def _want(graph: Graph, name: str, makers: set[int], found: Placement, reader: Use | None = None) -> None:
    """Quantize a tensor for this reader."""
    if name not in found.readers:
        found.readers[name] = []
        if _climb(graph, name, makers, found) and (not graph.is_graph_output(name) or _is_convolved(graph, name)):
            found.inside.add(name)
    if reader is not None and not any(n is reader[0] and i == reader[1] for n, i in found.readers[name]):
        found.readers[name].append(reader)


def _is_convolved(graph: Graph, name: str) -> bool:
    node = graph.producer(name)
    while node is not None and node.op_type in CLIPS:
        node = graph.producer(node.input[0])
    return node is not None and node.op_type == "Conv"


def _climb(graph: Graph, name: str, makers: set[int], found: Placement) -> bool:
    """Quantize the inputs of the node that produces this tensor where possible; returns whether it was."""
    node = graph.producer(name)
    if node is None or graph.in_body(node):
        return False
    if id(node) in makers:
        return True
    if node.op_type in CLIPS:
        return len(graph.consumers(node.input[0])) == 1 and _climb(graph, node.input[0], makers, found)
    operands = _operands(node)
    if not operands or not all(_reachable(graph, i, makers) for i in operands):
        return False
    for at, i in enumerate(operands):
        _want(graph, i, makers, found, (node, at))
    if node.op_type in MOVES and name in found.readers:
        found.shares[name] = node.input[0]
    return True


def _reachable(graph: Graph, name: str, makers: set[int]) -> bool:
    """Whether a tensor can be produced by integer kernels: every path up ends at a node with quantized weights."""
    seen: set[str] = set()
    stack = [name]
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        seen.add(at)
        node = graph.producer(at)
        if node is None or graph.in_body(node):
            return False
        if id(node) not in makers:
            operands = _operands(node)
            if not operands:
                return False
            stack += operands
    return True


def _operands(node: NodeProto) -> list[str]:
    """The inputs that a node can take as codes."""
    if node.op_type in JOINS:
        return list(node.input)
    moves = node.op_type in MOVES and not any(node.output[1:])  # indices of a pooling are not codes
    return [node.input[0]] if moves or node.op_type in CLIPS else []
