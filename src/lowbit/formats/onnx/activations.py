"""Activation functions that graphs spell out in several nodes, recognised by the values that they give.

Exporters write SiLU, hard-swish and GELU in many orders and with many constants. So the nodes between two tensors are
evaluated on a grid, and compared with the functions that ONNX Runtime has a kernel for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, helper

from lowbit.formats.onnx.graph import Graph, Use
from lowbit.formats.onnx.weight_uses import attribute

Array = npt.NDArray[Any]

DOMAIN = "com.microsoft"
GATE_SCALE = np.float32(1 / 255)  # of codes from 0 to 1
_MOST_NODES = 10
_GRID = np.concatenate([np.linspace(-8, 8, 129), [-30, -12.5, 11.3, 25]])
_TOLERANCE = 1e-4  # constants of exporters have five digits; GELU by Erf and by Tanh differ by five times that


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


def _hard_sigmoid(x: Array, alpha: float = 0.2, beta: float = 0.5) -> Array:
    return np.clip(alpha * x + beta, 0, 1)


def _erf(x: Array) -> Array:
    return np.asarray(np.vectorize(math.erf, otypes=[np.float64])(x))


# Functions with a kernel, its operator in ONNX Runtime's own domain, and its attributes.
_FUSED: dict[str, tuple[Callable[[Array], Array], str, dict[str, float]]] = {
    "silu": (lambda x: x * _sigmoid(x), "QuickGelu", {"alpha": 1.0}),
    "quick_gelu": (lambda x: x * _sigmoid(1.702 * x), "QuickGelu", {"alpha": 1.702}),
    "gelu": (lambda x: 0.5 * x * (1 + _erf(x / 2**0.5)), "Gelu", {}),
    "gelu_tanh": (
        lambda x: 0.5 * x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))),
        "FastGelu",
        {},
    ),
}
_SIXTH = {"alpha": 1 / 6, "beta": 0.5}
# Functions of a gate that one integer sum computes: clip(alpha * x + beta, 0, 1), alone or times x.
_GATED: dict[str, tuple[Callable[[Array], Array], dict[str, float]]] = {
    "hard_swish": (lambda x: x * _hard_sigmoid(x, **_SIXTH), _SIXTH),
    "hard_sigmoid": (lambda x: _hard_sigmoid(x, **_SIXTH), _SIXTH),
}
_COMPUTED: dict[str, Callable[..., Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power, "Neg": np.negative,
    "Tanh": np.tanh, "Erf": _erf, "Sigmoid": _sigmoid, "HardSigmoid": _hard_sigmoid, "Identity": np.positive,
    "Relu": lambda x: np.maximum(x, 0),
    "Clip": lambda x, low=-np.inf, high=np.inf: np.clip(x, low, high),
    "HardSwish": lambda x: x * _hard_sigmoid(x, 1 / 6),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Activation:
    """A function of one tensor, computed by some nodes that nothing else depends on; the last gives the result."""

    kind: str
    source: str
    inputs: tuple[Use, ...]  # that read the source
    nodes: tuple[NodeProto, ...]
    attributes: dict[str, float]

    @property
    def is_gated(self) -> bool:
        """Whether integer sums and multiplications compute it."""
        return self.kind in _GATED


class _Value(NamedTuple):
    """A tensor as a function of another one: its values on the grid, and the nodes that compute it."""

    origin: str
    values: Array
    nodes: tuple[NodeProto, ...]


def find_activations(graph: Graph) -> dict[str, Activation]:
    """The activation functions in a graph, by the names of their results."""
    known: dict[str, _Value] = {}
    found = {}
    for node in graph.all_nodes:
        value = None if node.domain or node.op_type not in _COMPUTED else _evaluated(graph, node, known)
        if value is None:
            continue
        known[node.output[0]] = value
        kind, attributes = _kind(value)
        if kind and _is_closed(graph, value.nodes):
            reads = tuple((n, i) for n in value.nodes for i, name in enumerate(n.input) if name == value.origin)
            found[node.output[0]] = Activation(kind, value.origin, reads, value.nodes, attributes)
    return found


def _evaluated(graph: Graph, node: NodeProto, known: dict[str, _Value]) -> _Value | None:
    """The result of a node as a function of one tensor; None where it depends on several, or on too many nodes."""
    options = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    low, high = (options.pop(name, None) for name in ("min", "max"))  # of a Clip before opset 11
    given: list[Array | None] = []
    origins: dict[str, None] = {}
    nodes: dict[int, NodeProto] = {}
    for name in node.input:
        constant = graph.constant(name) if name else None
        if not name or constant is not None:
            if constant is not None and (constant.size != 1 or constant.dtype.kind not in "fi"):
                return None
            given.append(None if constant is None else constant.reshape(()).astype(np.float64))
            continue
        value = known.get(name, _Value(name, _GRID, ()))
        origins[value.origin] = None
        nodes |= {id(n): n for n in value.nodes}
        given.append(value.values)
    if len(origins) != 1 or len(nodes) >= _MOST_NODES or options.keys() - {"alpha", "beta"}:
        return None
    if node.op_type == "Clip":
        given = [*given, low, high][:3] if len(given) == 1 else given
        given = [np.asarray((-np.inf, np.inf)[i - 1]) if g is None else g for i, g in enumerate(given)]
    with np.errstate(all="ignore"):
        values = _COMPUTED[node.op_type](*given, **options)
    return _Value(next(iter(origins)), values, (*nodes.values(), node))


def _kind(value: _Value) -> tuple[str, dict[str, float]]:
    """Which function a value is, and its attributes; an empty name where it is none of interest."""
    last = value.nodes[-1]
    if last.op_type == "HardSigmoid" and len(value.nodes) == 1:
        alpha, beta = (float(attribute(last, name, default)) for name, default in (("alpha", 0.2), ("beta", 0.5)))
        return ("hard_sigmoid" if min(alpha, beta) > 0 else ""), {"alpha": alpha, "beta": beta}
    if len(value.nodes) > 1 or last.op_type == "HardSwish":
        for kind, (function, _, attributes) in _FUSED.items():
            if np.allclose(value.values, function(_GRID), rtol=_TOLERANCE, atol=_TOLERANCE):
                return kind, attributes
        for kind, (function, attributes) in _GATED.items():
            if np.allclose(value.values, function(_GRID), rtol=_TOLERANCE, atol=_TOLERANCE):
                return kind, attributes
    return "", {}


def _is_closed(graph: Graph, nodes: tuple[NodeProto, ...]) -> bool:
    """Whether only these nodes read what they compute, the last result excepted, all in one graph or body."""
    within = {id(n) for n in nodes}
    for node in nodes[:-1]:
        name = node.output[0]
        if graph.is_graph_output(name) or any(id(reader) not in within for reader, _ in graph.consumers(name)):
            return False
    return all(graph.home(n) is graph.home(nodes[-1]) for n in nodes)


def merge_activations(graph: Graph, found: Mapping[str, Activation], quantized: Container[str]) -> None:
    """Let one kernel compute each activation function of a quantized tensor, or where the result is quantized, too,
    integer sums and multiplications.

    The runtime would fuse the nodes itself if it did not give each of them a DequantizeLinear of its own.
    """
    gone: set[int] = set()
    for result, a in reversed(list(found.items())):  # a hard sigmoid may be a part of a hard swish
        rounded = {node.input[i] for node, i in a.inputs if id(node) not in gone}
        last = a.nodes[-1]
        if id(last) in gone or a.source not in quantized or (a.is_gated and result not in quantized):
            continue
        (source,) = rounded
        if a.is_gated:
            new = _gated(graph, a, source)
        else:
            _, op, _ = _FUSED[a.kind]
            graph.use_domain(DOMAIN)
            options: dict[str, Any] = dict(a.attributes)
            new = [helper.make_node(op, [source], last.output, name=last.name, domain=DOMAIN, **options)]
        graph.insert_before(last, new)
        decoded = graph.producer(source)
        for node in reversed(a.nodes):
            graph.remove(node)
            gone.add(id(node))
        if decoded is not None and not graph.consumers(source) and not graph.is_graph_output(source):
            graph.remove(decoded)


def _gated(graph: Graph, a: Activation, source: str) -> list[NodeProto]:
    """Nodes that compute a gate as a sum of codes: those of the source with their scale times alpha, and beta. Where
    the sum is quantized it is cut off at 0 and 1."""
    last, decoded = a.nodes[-1], graph.producer(source)
    assert decoded is not None
    codes, scale, zero = decoded.input
    stored_scale, stored_zero = graph.constant(scale), graph.constant(zero)
    assert stored_scale is not None
    assert stored_zero is not None
    dtype, home = stored_zero.dtype, graph.home(last)
    steps: list[NodeProto] = []

    def constant(label: str, value: Any) -> str:
        return graph.add_constant(f"{a.source}_{label}", np.asarray(value), home)

    def step(op: str, *inputs: str, to: str = "") -> str:
        made = to or graph.fresh(f"{a.source}_gate")
        steps.append(helper.make_node(op, inputs, [made], name=last.name if to else made))
        return made

    slope = step(
        "DequantizeLinear", codes, constant("gate_scale", stored_scale * np.float32(a.attributes["alpha"])), zero
    )
    one, origin = constant("one", np.ones((), dtype)), constant("zero", np.zeros((), dtype))
    offset = step("DequantizeLinear", one, constant("gate_offset", np.float32(a.attributes["beta"])), origin)
    if a.kind == "hard_sigmoid":
        step("Add", slope, offset, to=last.output[0])
        return steps
    unit = constant("gate_unit", GATE_SCALE), constant("gate_zero", np.asarray(np.iinfo(dtype).min, dtype))
    gate = step("DequantizeLinear", step("QuantizeLinear", step("Add", slope, offset), *unit), *unit)
    step("Mul", source, gate, to=last.output[0])
    return steps
