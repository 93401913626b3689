"""Inspecting ONNX models: their stored tensors, and the operators that use quantized ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

from lowbit.formats.inspection import Inspection, QuantizationFound, StoredTensor
from lowbit.formats.onnx import model_file
from lowbit.formats.onnx.inputs import given_inputs, shape_text
from lowbit.formats.onnx.weight_uses import CODE_INPUTS
from lowbit.numerics.errors import FormatError

_THROUGH = {"Cast", "Gather", "Transpose", "Identity", "Reshape", "Unsqueeze", "Squeeze"}
_MAX_STEPS = 8
_CODES = {"int8", "uint8", "int4", "uint4"}
_SCHEMES = {"DequantizeLinear": "QDQ", "Mul": "codes times scales"}
_SHORT = {"float": "float32", "double": "float64"}


def inspect_onnx(file: Path) -> Inspection:
    """The tensors of a model, with those of bodies and functions; external data are located and not read."""
    proto = model_file.read_proto(file)
    if not proto.HasField("graph"):
        raise FormatError(f"{file}: not an ONNX model: there is no graph in it")
    parts = [proto.graph, *(GraphProto(node=f.node) for f in proto.functions)]
    stored: dict[str, StoredTensor] = {}
    beside = {}
    try:
        for graph in parts:
            for name, t in model_file.named_tensors(graph):
                model_file.check_tensor(t, file.parent)
                if t.data_location == TensorProto.EXTERNAL:
                    place = model_file.external_place(t, file.parent)[0]
                    beside[place] = place.stat().st_size
                # Bodies may use a name again; both are stored.
                name = _text(name)
                key = name if name not in stored else f"{name} ({len(stored)})"
                nbytes = model_file.byte_count(t) or sum(map(len, t.string_data))
                stored[key] = StoredTensor(key, _dtype(t.data_type), tuple(t.dims), nbytes)
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from None
    said, found = _recognised([n for g in parts for n in model_file.nodes(g)], stored)
    tensors = tuple(replace(t, quantized=said.get(name, "")) for name, t in stored.items())
    opsets = ", ".join(f"{_text(o.domain) or 'ai.onnx'} {o.version}" for o in proto.opset_import)
    facts = {"IR": str(proto.ir_version), "opset": opsets}
    if proto.producer_name:
        facts["producer"] = f"{_text(proto.producer_name)} {_text(proto.producer_version)}".strip()
    if inputs := [_input_text(i) for i in given_inputs(proto).values()]:
        facts["inputs"] = "; ".join(inputs)
    if beside:
        facts["files beside it"] = ", ".join(p.name for p in beside)
    return Inspection(str(file), "onnx", file.stat().st_size + sum(beside.values()), tensors, found, facts)


def _input_text(declared: ValueInfoProto) -> str:
    tensor = declared.type.tensor_type
    shape = f" {shape_text(declared)}" if tensor.HasField("shape") else ""
    known = tensor.elem_type in TensorProto.DataType.values() and tensor.elem_type
    return f"{_text(declared.name)} {_dtype(tensor.elem_type) if known else 'of unknown type'}{shape}"


def _dtype(number: int) -> str:
    name: str = TensorProto.DataType.Name(number).lower()
    return _SHORT.get(name, name)


def _recognised(
    every: Sequence[NodeProto], stored: Mapping[str, StoredTensor]
) -> tuple[dict[str, str], tuple[QuantizationFound, ...]]:
    """The role of each tensor for operators on codes, and the number of uses of each way of quantizing."""
    said: dict[str, str] = {}
    counts: Counter[tuple[str, str, int | None, int | None]] = Counter()
    origins = _Origins(every, stored)
    for node in every:
        op = _text(node.op_type)
        if op == "DynamicQuantizeLinear":
            counts[op, "activations uint8, dynamic per tensor", 8, None] += 1
        elif op == "QuantizeLinear" and node.input and _text(node.input[0]) not in stored:
            dtype = _activation_dtype(node, stored)
            counts["QDQ", f"activations {dtype}, static", _width(dtype), None] += 1
        found: list[tuple[StoredTensor | None, list[StoredTensor], list[StoredTensor]]] = []
        for at, scales, zeros in CODE_INPUTS.get(op, ()):
            found.append((origins.of(node, at), origins.those_of(node, scales), origins.those_of(node, zeros)))
        if op == "Mul" and (decoded := origins.decoded(node)) is not None:
            found.append(decoded)
        for weight, scale, zero in found:
            if weight is not None:
                dtype, scope, group = _weight(node, weight, scale)
                what = f"{dtype}, {scope}"
                if weight.name not in said:
                    role = "biases" if dtype == "int32" else "weights"
                    counts[_SCHEMES.get(op, op), f"{role} {what}", _width(dtype), group] += 1
                said[weight.name] = what
            said = dict.fromkeys([t.name for t in zero], "zero points") | said
            said = dict.fromkeys([t.name for t in scale], "scales") | said
    return said, tuple(QuantizationFound(s, what, n, bits, group) for (s, what, bits, group), n in counts.most_common())


class _Origins:
    """The stored tensors behind the inputs of nodes."""

    def __init__(self, every: Sequence[NodeProto], stored: Mapping[str, StoredTensor]) -> None:
        self._stored = stored
        self._makers = {_text(o): node for node in every for o in node.output}

    def of(self, node: NodeProto, at: int) -> StoredTensor | None:
        """The stored tensor behind an input, through Gather and reshapes, and of scales in float16 through a Cast."""
        name, is_cast = _text(node.input[at]) if at < len(node.input) else "", False
        for _ in range(_MAX_STEPS):
            maker = self._makers.get(name)
            if name in self._stored or maker is None or maker.op_type not in _THROUGH or not maker.input:
                break
            name, is_cast = _text(maker.input[0]), is_cast or maker.op_type == "Cast"
        found = self._stored.get(name)
        return found if found is None or not is_cast or found.dtype == "float16" else None

    def those_of(self, node: NodeProto, inputs: Sequence[int]) -> list[StoredTensor]:
        return [t for i in inputs if (t := self.of(node, i)) is not None]

    def decoded(self, node: NodeProto) -> tuple[StoredTensor, list[StoredTensor], list[StoredTensor]] | None:
        """(codes, scales, zero points) of a Mul by scales of what Cast, and Sub if any, make of codes."""
        for at in range(len(node.input)):
            zeros: list[StoredTensor] = []
            maker = self._makers.get(_text(node.input[at]))
            if maker is not None and maker.op_type == "Sub" and len(maker.input) > 1:
                zero = self._cast(_text(maker.input[1]))
                zeros = [] if zero is None else [zero]
                maker = self._makers.get(_text(maker.input[0]))
            codes = None if maker is None or not maker.output else self._cast(_text(maker.output[0]))
            scales = self.those_of(node, [1 - at])
            if codes is not None and scales:
                return codes, scales, zeros
        return None

    def _cast(self, name: str) -> StoredTensor | None:
        """The stored codes that a Cast makes floats."""
        maker = self._makers.get(name)
        found = self.of(maker, 0) if maker is not None and maker.op_type == "Cast" else None
        return found if found is not None and found.dtype in _CODES else None


def _weight(node: NodeProto, weight: StoredTensor, scales: Sequence[StoredTensor]) -> tuple[str, str, int | None]:
    """(dtype, scope, group size) of a weight's codes; `scales` are all scales of the node."""
    dtype = weight.dtype
    if node.op_type in ("MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"):
        bits = _integer(node, "bits", 4)
        dtype = f"{'float' if node.op_type == 'MatMulBnb4' else 'uint'}{bits}" if dtype == "uint8" else dtype
    block = _integer(node, "block_size", 128 if node.op_type == "GatherBlockQuantized" else 0)
    if block > 0:
        return dtype, f"groups of {block}", block
    if not scales:
        return dtype, "scaled afterwards", None
    # Only a weight's scale can have more than one number; those of activations are per tensor.
    count = max(t.elements for t in scales)
    if node.op_type == "Mul" and len(weight.shape) == len(scales[0].shape) == 3 and scales[0].shape[1] > 1:
        return dtype, f"groups of {weight.shape[2]}", weight.shape[2]
    return dtype, "per channel" if count > 1 else "per tensor", None


def _activation_dtype(node: NodeProto, stored: Mapping[str, StoredTensor]) -> str:
    zero = stored.get(_text(node.input[2])) if len(node.input) > 2 else None
    if zero is not None:
        return zero.dtype
    kind = _integer(node, "output_dtype", 0) or TensorProto.UINT8
    return _dtype(kind) if kind in model_file.BITS else "of unknown type"


def _integer(node: NodeProto, name: str, default: int) -> int:
    """An integer attribute; the default where it is missing or of another type."""
    found = next((a for a in node.attribute if a.name == name and a.type == AttributeProto.INT), None)
    return default if found is None else int(found.i)


def _text(name: str | bytes) -> str:
    """A string; protobuf gives bytes where it is not UTF-8."""
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else name


def _width(dtype: str) -> int | None:
    digits = re.match(r"(?:float|uint|int)?(\d+)", dtype)
    return int(digits[1]) if digits else None
