"""What a quantized ONNX file must give, computed apart from the runtime's quantized kernels.

Node by node: all that has to do with codes is done here in NumPy, in exact integers; float operators run alone in ONNX
Runtime, on plain arrays. A session from `exact_session`, which leaves ONNX Runtime no choice of kernels, gives the same
bits for files with quantized weights, and for those with rounded activations too where sums do not saturate.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime  # type: ignore[import-untyped]
from onnx import ModelProto, NodeProto, TensorProto, helper

from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.model_file import reads
from lowbit.formats.onnx.weight_uses import attribute
from lowbit.numerics.errors import InvalidProblem

__all__ = ["emulate", "exact_session"]

Array = npt.NDArray[Any]
Inputs = list[Array | None]


def exact_session(model: str | os.PathLike[str] | ModelProto) -> Any:
    """The file in ONNX Runtime as it is written: nothing fused, no weight rearranged, floats multiplied as floats."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # Weights in another order are summed in another order.
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    given = model.SerializeToString() if isinstance(model, ModelProto) else os.fspath(model)
    return onnxruntime.InferenceSession(given, options, providers=["CPUExecutionProvider"])


def emulate(
    model: str | os.PathLike[str] | ModelProto | Graph, feeds: Mapping[str, Array], outputs: list[str] | None = None
) -> list[Array]:
    """The outputs of a model for these inputs; or any of its tensors, by name.

    Slow, since each node is a session of its own: for small inputs, to compare with. Quantized operators in the bodies
    of If, Loop and Scan are left to the runtime. Every tensor of float16 is rounded to it, where ONNX Runtime keeps
    float32 from one operator to the next.

    >>> x = helper.make_tensor_value_info("x", TensorProto.UINT8, [2])
    >>> y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])
    >>> half = helper.make_tensor("half", TensorProto.FLOAT, [], [0.5])
    >>> graph = helper.make_graph([helper.make_node("DequantizeLinear", ["x", "half"], ["y"])], "g", [x], [y], [half])
    >>> model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    >>> emulate(model, {"x": np.uint8([3, 4])})[0]
    array([1.5, 2. ], dtype=float32)
    """
    graph = model if isinstance(model, Graph) else Graph.load(model)
    wanted = outputs or [o.name for o in graph.proto.graph.output]
    values: dict[str, Array] = dict(feeds)

    def value(name: str) -> Array | None:
        if not name:
            return None
        if name not in values:
            found = graph.constant(name)
            if found is None:
                raise InvalidProblem(f"feeds: no {name!r}; the model needs it")
            values[name] = found
        return values[name]

    for node in graph.nodes:
        if node.op_type == "Constant":
            continue
        inputs = [value(n) for n in node.input]
        own = _OWN.get(node.op_type)
        if own is not None:
            made = own(node, inputs)
        else:
            made = _by_runtime(graph, node, {n: v for n in reads(node) if (v := value(n)) is not None})
        values |= dict(zip([o for o in node.output if o], made, strict=True))
    return [np.asarray(value(n)) for n in wanted]


def _by_runtime(graph: Graph, node: NodeProto, inputs: dict[str, Array]) -> list[Array]:
    """One float operator, alone; weights are inputs like others."""
    typed = [_info(n, a) for n, a in inputs.items()]
    made = [helper.make_empty_tensor_value_info(o) for o in node.output if o]
    model = helper.make_model(
        helper.make_graph([node], "one", typed, made),
        opset_imports=graph.proto.opset_import,
        ir_version=graph.proto.ir_version,
    )
    return list(exact_session(model).run(None, inputs))


def _info(name: str, a: Array) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)


# ---- operators with codes -----------------------------------------------------------------------------


def _quantize(node: NodeProto, inputs: Inputs) -> list[Array]:
    x, scale, zero = _given(inputs, 0), _given(inputs, 1), inputs[2] if len(inputs) > 2 else None
    kind = np.dtype(np.uint8) if zero is None else zero.dtype
    s = _spread(node, scale, x.shape)
    z = np.int64(0) if zero is None else _spread(node, zero.astype(np.int64), x.shape)
    info = np.iinfo(kind)
    return [np.clip(np.rint(x / s) + z, info.min, info.max).astype(kind)]


def _dequantize(node: NodeProto, inputs: Inputs) -> list[Array]:
    x, scale, zero = _given(inputs, 0), _given(inputs, 1), inputs[2] if len(inputs) > 2 else None
    wide = x.astype(np.int32)
    if zero is not None:
        wide = wide - _spread(node, zero.astype(np.int32), x.shape)
    s = _spread(node, scale.astype(np.float32), x.shape)
    return [(wide.astype(np.float32) * s).astype(scale.dtype)]


def _dynamic_quantize(node: NodeProto, inputs: Inputs) -> list[Array]:
    x = _given(inputs, 0)
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = np.float32(1) if high == low else np.float32((high - low) / np.float32(255))
    zero = np.clip(np.rint(-low / scale), 0, 255)
    codes = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
    return [codes, np.asarray(scale, np.float32), np.asarray(zero, np.uint8)]


def _matmul_integer(node: NodeProto, inputs: Inputs) -> list[Array]:
    a, b = _given(inputs, 0).astype(np.float64), _given(inputs, 1).astype(np.float64)
    az, bz = (inputs[i] if len(inputs) > i else None for i in (2, 3))
    a = a if az is None else a - az.astype(np.float64)
    b = b if bz is None else b - bz.astype(np.float64)
    return [(a @ b).astype(np.int32)]  # below 2^53 such floats are exact integers


def _matmul_nbits(node: NodeProto, inputs: Inputs) -> list[Array]:
    """Made floats, and then the product that ONNX Runtime's float path computes: by rows of the weight, in float32."""
    x, packed, scale = (_given(inputs, i) for i in range(3))
    zero = inputs[3] if len(inputs) > 3 else None
    bits, size, n, k = (int(attribute(node, a, 4)) for a in ("bits", "block_size", "N", "K"))
    codes = _unpacked(packed.reshape(n, -1), bits)[:, :k].astype(np.int32)
    blocks = scale.reshape(n, -1)
    z = np.full(blocks.shape, 1 << (bits - 1), np.int32)
    if zero is not None:
        z = _unpacked(zero.reshape(n, -1), bits)[:, : blocks.shape[1]].astype(np.int32)
    weight = (codes - _repeat(z, size, k)).astype(np.float32) * _repeat(blocks.astype(np.float32), size, k)
    names = ["x", "w"]
    product = helper.make_node("FusedMatMul", names, ["y"], domain="com.microsoft", transB=1)
    feeds = {"x": x.astype(np.float32), "w": weight}
    graph = helper.make_graph(
        [product], "one", [_info(m, a) for m, a in feeds.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
    y = exact_session(helper.make_model(graph, opset_imports=imports, ir_version=8)).run(None, feeds)[0]
    return [np.asarray(y).astype(x.dtype)]


def _gather_blocks(node: NodeProto, inputs: Inputs) -> list[Array]:
    data, indices, scale = (_given(inputs, i) for i in range(3))
    zero = inputs[3] if len(inputs) > 3 else None
    size = int(attribute(node, "block_size", 128))
    columns = data.shape[1]
    z = (
        np.int32(128 if data.dtype == np.uint8 else 0)
        if zero is None
        else _repeat(zero.astype(np.int32), size, columns)
    )
    table = (data.astype(np.int32) - z).astype(np.float32) * _repeat(scale.astype(np.float32), size, columns)
    return [table.astype(scale.dtype)[indices]]


def _cast(node: NodeProto, inputs: Inputs) -> list[Array]:
    """Here, as the runtime takes no arrays of 4 bits."""
    to = next(a.i for a in node.attribute if a.name == "to")
    return [_given(inputs, 0).astype(helper.tensor_dtype_to_np_dtype(to))]


_OWN: dict[str, Callable[[NodeProto, Inputs], list[Array]]] = {
    "Cast": _cast,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "MatMulNBits": _matmul_nbits,
    "GatherBlockQuantized": _gather_blocks,
}


def _given(inputs: Inputs, index: int) -> Array:
    found = inputs[index]
    if found is None:
        raise InvalidProblem(f"input {index} of an operator is missing")
    return found


def _spread(node: NodeProto, values: Array, shape: tuple[int, ...]) -> Array:
    """Scales or zero points in a shape that broadcasts over the tensor: one for all, along an axis, or in blocks."""
    if values.size == 1 and values.ndim < 2:
        return values.reshape(())
    axis = int(attribute(node, "axis", 1)) % len(shape)
    size = int(attribute(node, "block_size", 0))
    if size:
        return np.take(values, np.arange(shape[axis]) // size, axis=axis)
    return values.reshape([-1 if i == axis else 1 for i in range(len(shape))])


def _repeat(blocks: Array, size: int, columns: int) -> Array:
    return np.repeat(blocks, size, axis=1)[:, :columns]


def _unpacked(rows: Array, bits: int) -> Array:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes: Array = (rows[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return codes.reshape(len(rows), -1)
