"""Where a graph's tensors are rounded to codes, so that ONNX Runtime keeps whole stretches of it in integers.

Each product with quantized weights asks for its input in codes. From there the wish goes up the graph: through what
only moves elements (reshape, transpose, max pooling), which keeps the scale; through sums, joins and averages whose
inputs can all be had in codes; to the products that make them. What else made a tensor stays float. A convolution's
own result is rounded in any case, also where it leaves the graph: the runtime has no kernel from codes to floats.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from onnx import NodeProto

from lowbit.formats.onnx.graph import Graph

# Codes pass unchanged: what comes out has the scale of what goes in.
_MOVING = "DepthToSpace Expand Flatten Identity MaxPool Reshape Slice SpaceToDepth Squeeze Transpose Unsqueeze"
MOVES = frozenset(_MOVING.split())
# The runtime has integer kernels for these; each result has a scale of its own.
JOINS = {"Add", "Mul", "Concat", "AveragePool", "GlobalAveragePool"}
# Absorbed by the rounding that follows: codes cannot be below the zero point's value anyway.
CLIPS = {"Relu", "Clip"}


@dataclass
class Placement:
    """tensors: those to round to codes. shares: of some of these, the one whose scale they take. inside: those
    made in codes, whose readers all take the rounded numbers so that no float copy is needed."""

    tensors: list[str] = field(default_factory=list)
    shares: dict[str, str] = field(default_factory=dict)
    inside: set[str] = field(default_factory=set)
    readers: dict[str, list[tuple[NodeProto, int]]] = field(default_factory=dict)  # who takes the rounded numbers

    def root(self, name: str) -> str:
        """The tensor whose range decides this one's scale."""
        while name in self.shares:
            name = self.shares[name]
        return name


def place(graph: Graph, products: list[NodeProto]) -> Placement:
    """The placement for these products, whose first inputs are activations and whose weights will be codes."""
    found = Placement()
    makers = {id(n) for n in products}
    for node in products:
        _want(graph, node.input[0], makers, found)
        _read(found, node.input[0], node, 0)
    for node in products:
        if node.op_type == "Conv":
            _want(graph, _end(graph, node), makers, found)
    for name in found.tensors:
        if name in found.inside:
            found.readers[name] = graph.consumers(name)
    return found


def _end(graph: Graph, node: NodeProto) -> str:
    """A node's result, behind the clipping that will be absorbed."""
    name: str = node.output[0]
    readers = graph.consumers(name)
    if len(readers) == 1 and readers[0][0].op_type in CLIPS and not graph.is_graph_output(name):
        name = readers[0][0].output[0]
    return name


def _want(graph: Graph, name: str, makers: set[int], found: Placement) -> None:
    if name in found.readers:
        return
    found.tensors.append(name)
    found.readers[name] = []
    if _climb(graph, name, makers, found) and (not graph.is_graph_output(name) or _is_convolved(graph, name)):
        found.inside.add(name)


def _is_convolved(graph: Graph, name: str) -> bool:
    node = graph.producer(name)
    while node is not None and node.op_type in CLIPS:
        node = graph.producer(node.input[0])
    return node is not None and node.op_type == "Conv"


def _climb(graph: Graph, name: str, makers: set[int], found: Placement) -> bool:
    """Puts what makes this tensor into codes where that can be done; whether it was."""
    node = graph.producer(name)
    if node is None or graph.in_body(node):
        return False
    if id(node) in makers:
        return True
    if node.op_type in CLIPS:
        return len(graph.consumers(node.input[0])) == 1 and _climb(graph, node.input[0], makers, found)
    if _moves(node) and _reachable(graph, node.input[0], makers):
        _want(graph, node.input[0], makers, found)
        _read(found, node.input[0], node, 0)
        if name in found.readers:
            found.shares[name] = node.input[0]
        return True
    if node.op_type in JOINS and all(_reachable(graph, i, makers) for i in node.input):
        for at, i in enumerate(node.input):
            _want(graph, i, makers, found)
            _read(found, i, node, at)
        return True
    return False


def _reachable(graph: Graph, name: str, makers: set[int]) -> bool:
    """Whether a tensor is made in codes, or can be: there is a product at the end of every way up."""
    seen: dict[str, bool] = {}
    stack = [name]
    while stack:
        at = stack.pop()
        if at in seen:
            continue
        node = graph.producer(at)
        seen[at] = node is not None and not graph.in_body(node)
        if node is None or not seen[at]:
            return False
        if id(node) in makers:
            continue
        if _moves(node) or node.op_type in CLIPS:
            stack.append(node.input[0])
        elif node.op_type in JOINS:
            stack.extend(node.input)
        else:
            return False
    return True


def _moves(node: NodeProto) -> bool:
    return node.op_type in MOVES and not any(node.output[1:])  # a pooling's indices are no codes


def _read(found: Placement, name: str, node: NodeProto, index: int) -> None:
    if not any(n is node and i == index for n, i in found.readers[name]):
        found.readers[name].append((node, index))
