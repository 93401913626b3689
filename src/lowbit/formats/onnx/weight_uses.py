"""The weights of an ONNX graph: the constants that its layers multiply with, and why others stay float."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from lowbit.formats.onnx.model_file import BITS

if TYPE_CHECKING:
    from lowbit.formats.onnx.graph import Graph

Array = npt.NDArray[Any]

FLOATS: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.BFLOAT16: "bfloat16",
    TensorProto.DOUBLE: "float64",
}
# Types of codes.
CODES = {kind for kind, bits in BITS.items() if bits <= 8} - {TensorProto.BOOL}
CodeInput = tuple[int, tuple[int, ...], tuple[int, ...]]  # inputs of a weight, of scales, and of zero points
_CODE_INPUTS: dict[str, CodeInput] = {
    "DequantizeLinear": (0, (1,), (2,)), "MatMulNBits": (1, (2,), (3,)), "MatMulBnb4": (1, (2,), ()),
    "GatherBlockQuantized": (0, (2,), (3,)), "QLinearConv": (3, (1, 4, 6), (2, 5, 7)),
    "QLinearMatMul": (3, (1, 4, 6), (2, 5, 7)), "QGemm": (3, (1, 4, 7), (2, 5, 8)), "MatMulInteger": (1, (), (2, 3)),
    "ConvInteger": (1, (), (2, 3)), "MatMulIntegerToFloat": (1, (2, 3), (4, 5)),
    "DynamicQuantizeMatMul": (1, (2,), (3,)), "QAttention": (1, (3, 4), (6, 7)),
}  # fmt: skip
# Operators on codes, and which inputs hold each of their weights.
CODE_INPUTS: dict[str, tuple[CodeInput, ...]] = {op: (inputs,) for op, inputs in _CODE_INPUTS.items()}
CODE_INPUTS["DynamicQuantizeLSTM"] = ((1, (8,), (9,)), (2, (10,), (11,)))
_QUANTIZED = {op: tuple(at for at, _, _ in inputs) for op, inputs in CODE_INPUTS.items()}
_QUANTIZED |= {"QMoE": (2,), "QuantizeLinear": (0,), "DynamicQuantizeLinear": (0,)}
RECURRENT = {"LSTM", "GRU", "RNN"}
THROUGH = {"Transpose", "Identity", "Cast"}
_DECODING = ("Cast", "Sub", "Mul", "Reshape", "Slice", "Transpose")  # codes into floats, as the runtime loads a model


@dataclass(frozen=True, eq=False)
class WeightUse:
    """One constant as one node reads it. A weight with several readers has several uses of the same name."""

    name: str  # of the stored constant
    node: NodeProto
    input_index: int
    kind: str  # of models.recipe.KINDS; "other" is never quantized
    op: str
    channel_axis: int  # of the outputs, in the shape the node sees
    shape: tuple[int, ...]  # as the node sees it
    dtype: str
    steps: tuple[NodeProto, ...] = ()  # Transpose, Identity and Cast between the constant and the node
    why_not: str = ""  # the reason not to quantize it, or empty
    in_body: bool = False
    shared: int = 1  # how many nodes read the constant

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def channel_axes(self) -> tuple[int, ...]:
        """The axes of the outputs: a gate's rows of a recurrent weight belong to one direction, the columns of a matrix
        to one of a stack."""
        if self.kind == "recurrent":
            return 0, 1
        stacked = range(len(self.shape) - 2) if self.kind == "linear" else range(0)
        return (*stacked, self.channel_axis)

    def value(self, graph: Graph) -> Array:
        """The array as the node reads it."""
        array = graph.constant(self.name)
        assert array is not None
        for step in self.steps:
            if step.op_type == "Transpose":
                array = array.transpose(attribute(step, "perm", None))
            elif step.op_type == "Cast":
                to = attribute(step, "to", TensorProto.FLOAT)
                array = array.astype(np.dtype(helper.tensor_dtype_to_np_dtype(to)))
        return array


def attribute(node: NodeProto, name: str, default: Any) -> Any:
    """An attribute of a node, or its default."""
    found = next((a for a in node.attribute if a.name == name), None)
    return default if found is None else helper.get_attribute_value(found)


def weights(graph: Graph) -> list[WeightUse]:
    """Every use of a float constant of rank 2 and more, in the order of the nodes. Those of Conv, ConvTranspose, Gemm,
    MatMul, Gather, LSTM, GRU and RNN that can be quantized have an empty `why_not`.

    Transpose, Identity and Cast between constant and node, which exporters write, are looked through.

    >>> from importlib import resources
    >>> from lowbit.formats.onnx.graph import Graph
    >>> with resources.as_file(resources.files("lowbit.data") / "digits_cnn.onnx") as path:
    ...     [(u.name, u.kind, u.channel_axis) for u in weights(Graph.load(path))][1:3]
    [('conv2.weight', 'conv', 0), ('fc1.weight', 'linear', 0)]
    """
    found: list[WeightUse] = []
    for node in graph.all_nodes:
        if node.op_type in _QUANTIZED or (node.op_type in THROUGH and graph.consumers(node.output[0])):
            continue  # scales of quantized operators, and nodes that are looked through
        if node.op_type == "Mul" and any(_is_decoded(graph, name) for name in node.input):
            continue  # scales of folded weights
        uses = [_use(graph, node, index, tensor) for index, tensor in enumerate(node.input) if tensor]
        found += [use for use in uses if use is not None]
    readers = Counter(u.name for u in found)
    return [replace(u, shared=readers[u.name]) for u in found]


def quantized_uses(graph: Graph) -> list[WeightUse]:
    """Weights that are already quantized: constants of integers or small floats that a quantized operator reads."""
    found = []
    for node in graph.all_nodes:
        folded = _starts_decoding(graph, node)
        # A Gather of codes.
        inputs = (0,) if node.op_type == "Gather" or folded else _QUANTIZED.get(node.op_type, ())
        for at in inputs:
            name = _origin(graph, node.input[at])[0] if at < len(node.input) and not folded else node.input[0]
            stored = graph.initializer(name)
            if stored is None or len(stored.dims) < 2 or stored.data_type not in CODES:
                continue
            if node.op_type == "Gather" and stored.dims[-1] == 1:
                continue  # zero points and scales of rows
            reader = _reader(graph, node, folded)
            shape, dtype = tuple(stored.dims), TensorProto.DataType.Name(stored.data_type).lower()
            why_not = f"came quantized ({'codes times scales' if folded else node.op_type})"
            in_body = graph.in_body(node)
            use = WeightUse(name, reader, at, "other", reader.op_type, 0, shape, dtype, (), why_not, in_body)
            found.append(use)
    return found


def _starts_decoding(graph: Graph, node: NodeProto) -> bool:
    """Whether a node makes codes floats, from which zero points may be subtracted, to be multiplied by scales."""
    if node.op_type != "Cast":
        return False
    readers = graph.consumers(node.output[0])
    return any(n.op_type == "Mul" or (n.op_type == "Sub" and index == 0) for n, index in readers)


def _reader(graph: Graph, node: NodeProto, folded: bool) -> NodeProto:
    """The layer that multiplies what a node dequantizes, or the node itself."""
    while node.op_type in ("DequantizeLinear", *(_DECODING if folded else ())):
        after = next((n for n, _ in graph.consumers(node.output[0])), None)
        if after is None:
            break
        node = after
    return node


def _use(graph: Graph, node: NodeProto, index: int, tensor: str) -> WeightUse | None:
    """A node's use of a tensor, if that is a float constant of two or more dimensions."""
    name, steps = _origin(graph, tensor)
    stored = graph.initializer(name)
    if stored is None or stored.data_type not in FLOATS or len(stored.dims) < 2 or math.prod(stored.dims) < 2:
        return None
    shape, element = tuple(stored.dims), stored.data_type
    for step in steps:
        if step.op_type == "Transpose":
            shape = tuple(shape[i] for i in attribute(step, "perm", list(range(len(shape)))[::-1]))
        element = attribute(step, "to", element) if step.op_type == "Cast" else element
    kind, axis, why_not = _role(node, index, shape)
    why_not = why_not or _obstacle(graph, node, name, element)
    dtype = FLOATS.get(element, "not float")
    return WeightUse(name, node, index, kind, node.op_type, axis, shape, dtype, steps, why_not, graph.in_body(node))


def _is_decoded(graph: Graph, name: str) -> bool:
    """Whether a tensor is the codes of a weight as floats, less their zero points if any."""
    node = graph.producer(name)
    if node is not None and node.op_type == "Sub":
        node = graph.producer(node.input[0])
    stored = graph.initializer(node.input[0]) if node is not None and node.op_type == "Cast" else None
    return stored is not None and stored.data_type in CODES


def _obstacle(graph: Graph, node: NodeProto, name: str, element: int) -> str:
    """Why a constant that a layer could quantize stays float, or an empty string."""
    if graph.may_be_given(name):
        return "also an input of the model, so that callers may replace it"
    if element not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        return f"{FLOATS.get(element, 'not float')}; expected float32 or float16"
    # Embeddings are dequantized by the same operator; only after QuantizeLinear it is an activation.
    for maker in map(graph.producer, node.input):
        if maker is not None and maker.op_type == "DequantizeLinear":
            rounded = graph.producer(maker.input[0])
            if rounded is not None and rounded.op_type == "QuantizeLinear":
                return "its layer came quantized (QuantizeLinear)"
    return ""


def _origin(graph: Graph, tensor: str) -> tuple[str, tuple[NodeProto, ...]]:
    """The constant behind a tensor, and the steps from it; the tensor itself where there is none."""
    name, steps = tensor, []
    while graph.initializer(name) is None:
        node = graph.producer(name)
        if node is None or node.op_type not in THROUGH or node.domain not in ("", "ai.onnx"):
            return tensor, ()
        steps.append(node)
        name = node.input[0]
    return name, tuple(reversed(steps))


def _role(node: NodeProto, index: int, shape: tuple[int, ...]) -> tuple[str, int, str]:
    """(kind, channel axis, why not) of a constant at an input of a node."""
    op, rank = node.op_type, len(shape)
    if node.domain not in ("", "ai.onnx"):
        return "other", 0, f"used by {node.domain}.{op}"
    if op in ("Conv", "ConvTranspose") and index == 1:
        return "conv", 0 if op == "Conv" else 1, ""
    if op == "Gemm" and index == 1:
        return "linear", 0 if attribute(node, "transB", 0) else 1, ""
    if op == "MatMul" and index == 1:
        return "linear", rank - 1, ""
    if op == "MatMul" or (op == "Gemm" and index == 0):
        return "linear", rank - 2, f"the left operand of {op}"
    if op in RECURRENT and rank == 3 and index in (1, 2):
        return "recurrent", 1, ""
    if op == "Gather" and index == 0 and shape[-1] > 1:
        if attribute(node, "axis", 0) in (0, -rank) and rank == 2:
            return "embedding", 0, ""
        return "embedding", 0, "gathered along another axis than rows"
    return "other", 0, f"used by {op}"
