"""Choosing the tensors to quantize, so that ONNX Runtime computes connected parts of the graph in integers.

The input of each node with quantized weights is quantized. From there the search goes up the graph: through nodes that
only move elements (reshape, transpose, max pooling) and keep the scale; through sums, concatenations and averages whose
inputs can all be quantized; to the nodes with quantized weights that produce them. Other tensors stay float. The output
of a convolution is always quantized, since the runtime has no integer convolution with float output.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from onnx import NodeProto

from lowbit.formats.onnx.activations import Activation
from lowbit.formats.onnx.graph import Graph, Use

# Codes pass unchanged: input and output share a scale.
_MOVING = """DepthToSpace Expand Flatten Identity MaxPool Reshape Slice SpaceToDepth Split Squeeze Transpose
    Unsqueeze"""
MOVES = frozenset(_MOVING.split())
# Operators with integer kernels in ONNX Runtime; the output has a scale of its own.
JOINS = {"Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid"}
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


def place(graph: Graph, products: list[NodeProto], activations: Mapping[str, Activation] | None = None) -> Placement:
    """The placement for these nodes, whose first inputs are activations and whose weights will be quantized.

    activations: what `find_activations` finds, each of which counts as one node.
    """
    search = _Search(graph, {id(n) for n in products}, activations or {})
    for node in products:
        search.want(node.input[0], (node, 0))
    for node in products:
        if node.op_type == "Conv":
            search.want(_end(graph, node))
    found = search.found
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


class _Search:
    """The search up the graph from the nodes with quantized weights, the makers."""

    def __init__(self, graph: Graph, makers: set[int], activations: Mapping[str, Activation]) -> None:
        self.graph, self.makers, self.activations = graph, makers, activations
        self.found = Placement()

    def want(self, name: str, reader: Use | None = None) -> None:
        """Quantize a tensor for this reader."""
        found, graph = self.found, self.graph
        if name not in found.readers:
            found.readers[name] = []
            if self._climb(name) and (not graph.is_graph_output(name) or _is_convolved(graph, name)):
                found.inside.add(name)
        if reader is not None and not any(n is reader[0] and i == reader[1] for n, i in found.readers[name]):
            found.readers[name].append(reader)

    def _climb(self, name: str) -> bool:
        """Quantize what this tensor is computed from where possible; returns whether it is computed in integers."""
        node = self.graph.producer(name)
        if node is None or self.graph.in_loop(node):
            return False
        if id(node) in self.makers:
            return True
        if node.op_type in CLIPS and name not in self.activations:
            return len(self.graph.consumers(node.input[0])) == 1 and self._climb(node.input[0])
        operands = self._operands(node)
        if not operands or not all(self._reachable(self._name(use)) for use in operands):
            return False
        for use in operands:
            self.want(self._name(use), use)
        if name in self.activations:
            return self.activations[name].is_gated
        if node.op_type in MOVES and name in self.found.readers:
            self.found.shares[name] = node.input[0]
            for other in node.output[1:]:  # the runtime splits codes only where all parts are quantized
                if self.graph.consumers(other):
                    self.want(other)
        return True

    def _reachable(self, name: str) -> bool:
        """Whether a tensor can be produced by integer kernels: every path up ends at a node with quantized weights."""
        seen: set[str] = set()
        stack = [name]
        while stack:
            at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            node = self.graph.producer(at)
            if node is None or self.graph.in_loop(node):
                return False
            if id(node) not in self.makers:
                operands = self._operands(node)
                if not operands:
                    return False
                stack += map(self._name, operands)
        return True

    def _operands(self, node: NodeProto) -> list[Use]:
        """The inputs that a node, or the activation function that it completes, can take as codes."""
        if (activation := self.activations.get(node.output[0])) is not None:
            return list(activation.inputs)
        if node.op_type in JOINS:
            return [(node, i) for i in range(len(node.input))]
        return [(node, 0)] if node.op_type in CLIPS or _moves(node) else []

    @staticmethod
    def _name(use: Use) -> str:
        name: str = use[0].input[use[1]]
        return name


def _moves(node: NodeProto) -> bool:
    """Whether a node moves elements only."""
    has_indices = node.op_type == "MaxPool" and any(node.output[1:])
    return node.op_type in MOVES and not has_indices


def _is_convolved(graph: Graph, name: str) -> bool:
    node = graph.producer(name)
    while node is not None and node.op_type in CLIPS:
        node = graph.producer(node.input[0])
    return node is not None and node.op_type == "Conv"
