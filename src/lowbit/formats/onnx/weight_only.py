"""Weight-only quantization: weights are stored in few bits and multiplied as floats.

Either DequantizeLinear, which every runtime has, converts them before the layer, or MatMulNBits of ONNX Runtime does
both at once. Embeddings are gathered as codes and dequantized afterwards: DequantizeLinear before a Gather would
convert the whole table at each call.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import NodeProto, TensorProto, helper

from lowbit.formats.onnx.code_store import CodeStore
from lowbit.formats.onnx.graph import MICROSOFT, Graph
from lowbit.formats.onnx.stored_weight import StoredWeight, narrow
from lowbit.formats.onnx.weight_uses import WeightUse, attribute
from lowbit.models.recipe import Rule, WeightRecipe
from lowbit.numerics.errors import Unsupported
from lowbit.numerics.packing import pack_rows

Array = npt.NDArray[Any]

OPERATORS = ("auto", "fold", "dequantize", "matmul_nbits")
# Opsets with scales along an axis, float16 scales, and blocks and 4-bit codes.
_PER_CHANNEL, _HALF_SCALES, _NARROW = 13, 19, 21
_LONG = 4096  # rows from which a table stores its scales as one byte each
FLOAT_COMPUTE, INT8_COMPUTE = 0, 4  # accuracy levels of MatMulNBits


def opset_needed(use: WeightUse, rule: Rule, way: str) -> int:
    """The opset that this weight needs; way: as in a Plan of `rewrite`."""
    recipe = rule.weights
    if way == "nbits":
        return 1
    if recipe.dtype not in ("int8", "uint8"):
        return _NARROW
    if way == "fold":
        return _PER_CHANNEL
    if recipe.granularity == "group" and use.kind != "conv":
        return _NARROW
    return _PER_CHANNEL if use.dtype == "float32" else _HALF_SCALES


def apply_weight_only(store: CodeStore, use: WeightUse, rule: Rule, way: str) -> StoredWeight:
    """Let the node read codes. Raises Unsupported, before any change, where no operator can hold them.

    way: "nbits", MatMulNBits; "fold", codes times scales, which the runtime multiplies once as it loads the model;
    "weight", DequantizeLinear, or for embeddings a Gather of codes.
    """
    needed = opset_needed(use, rule, way)
    if store.graph.opset < needed:
        raise Unsupported(f"needs opset {needed}, and the model cannot be raised from {store.graph.opset}")
    if rule.weights.dtype in ("int2", "uint2") and way != "nbits":
        raise Unsupported("2 bits are for MatMulNBits only: MatMul or Gemm with groups of 16, 32, 64, ...")
    if way == "fold":
        stored = store.put(use, rule.weights, home=store.graph.proto.graph)
        by_columns = stored.is_matrix and use.channel_axis == 1
        store.graph.replace_input(use.node, use.input_index, stored.as_float(by_columns))
        return stored
    if use.kind == "embedding":
        return _embedding(store, use, rule.weights)
    stored = store.put(use, rule.weights)
    if way == "nbits":
        level = INT8_COMPUTE if rule.activations is not None else FLOAT_COMPUTE
        _matmul_nbits(store.graph, use, stored, level)
    else:
        _dequantize(store.graph, use, stored)
    return stored


def _dequantize(graph: Graph, use: WeightUse, w: StoredWeight) -> None:
    by_columns = w.is_matrix and use.channel_axis == 1
    shape = "turned" if by_columns and w.recipe.granularity == "group" else ""
    inputs = [w.codes(by_columns), w.scale(shape)]
    if w.has_zero_point:
        inputs.append(w.zero_point(shape))
    options: dict[str, Any] = {}
    axis = use.channel_axis if w.unrolled is None else 0
    if w.recipe.granularity == "group":
        options = {"axis": 1 - axis, "block_size": w.recipe.group_size}
    elif w.recipe.granularity == "channel":
        options = {"axis": axis}
    graph.dequantize_input(use.node, use.input_index, f"{use.name}_float", inputs, **options)
    for op, others, options in w.rolled_up():
        made = graph.fresh(f"{use.name}_{op.lower()}")
        node = helper.make_node(op, [use.node.input[use.input_index], *others], [made], name=made, **options)
        graph.insert_before(use.node, [node])
        graph.replace_input(use.node, use.input_index, made)


def takes_nbits(use: WeightUse, recipe: WeightRecipe, operator: str = "auto") -> bool:
    """Whether MatMulNBits can hold this weight, and `operator` allows it."""
    fits = _is_block(recipe.group_size) and len(use.shape) == 2
    if operator in ("dequantize", "fold") or not fits or use.op not in ("MatMul", "Gemm"):
        return False
    return all(attribute(use.node, name, plain) == plain for name, plain in (("alpha", 1), ("beta", 1), ("transA", 0)))


def _is_block(size: int | None) -> bool:
    """Whether operators on blocks take groups of this size: 16, 32, 64, ..."""
    return size is not None and size >= 16 and size & (size - 1) == 0


def _matmul_nbits(graph: Graph, use: WeightUse, w: StoredWeight, level: int) -> None:
    """x [.., K] by codes [N, blocks, block * bits / 8], low bits first; the last block of a row may be partial."""
    n, k = w.q.shape
    size = w.recipe.group_size
    assert size is not None
    offset = 1 << (w.bits - 1) if w.signed else 0
    if level != FLOAT_COMPUTE:  # where no optimization casts scales beforehand, the runtime loses them
        w.half = False
    codes = pack_rows(w.code_array.astype(np.int16) + offset, w.bits, size).reshape(n, -(-k // size), -1)
    inputs = [use.node.input[0], w.constant("nbits", codes), w.scale()]
    zero = w.zero_point_array + offset
    if not (zero == 1 << (w.bits - 1)).all():
        inputs.append(w.constant("nbits_zero", pack_rows(zero, w.bits, 8 // w.bits)))
    graph.use_domain(MICROSOFT)
    node, out = use.node, use.node.output[0]
    bias = node.input[2] if use.op == "Gemm" and len(node.input) > 2 else ""
    product = graph.fresh(f"{out}_product") if bias else out
    options: dict[str, Any] = {"K": k, "N": n, "bits": w.bits, "block_size": size, "accuracy_level": level}
    name = graph.fresh(f"{node.name or out}_nbits")
    new = [helper.make_node("MatMulNBits", inputs, [product], name=name, domain=MICROSOFT, **options)]
    if bias:
        new.append(helper.make_node("Add", [product, bias], [out], name=graph.fresh(f"{node.name or out}_bias")))
    graph.replace(node, new)


def _embedding(store: CodeStore, use: WeightUse, recipe: WeightRecipe) -> StoredWeight:
    graph, node = store.graph, use.node
    size = recipe.group_size
    blocks = size if _is_block(size) else None
    if recipe.dtype not in ("int8", "uint8") and blocks is None:
        # A scale per row is repeated for each of its blocks.
        blocks = next((b for b in (128, 64, 32, 16) if use.shape[1] % b == 0), None)
        if blocks is None or size is not None:
            raise Unsupported("rows of 4 bits need groups of 16, 32, 64, ... or a multiple of 16 columns")
    if recipe.granularity == "group" and blocks is None:
        raise Unsupported(f"groups of {size}; an embedding takes 16, 32, 64, ...")
    long = use.shared == 1 and use.shape[0] >= _LONG and use.dtype == "float32" and recipe.granularity == "channel"
    w = store.put(use, recipe, stepped=long and blocks is None)
    out = node.output[0]
    if blocks is None:
        graph.replace(node, _gather_rows(graph, w, node, out))
    else:
        graph.replace(node, _gather_blocks(graph, w, node, out, blocks))
    return w


def _gather_rows(graph: Graph, w: StoredWeight, gather: NodeProto, out: str) -> list[NodeProto]:
    """(codes[i] - zero[i]) * scale[i]"""
    made: list[NodeProto] = []
    indices, layer = gather.input[1], gather.name or out

    def step(op: str, inputs: list[str], label: str, **options: Any) -> str:
        name = out if label == "" else graph.fresh(f"{out}_{label}")
        made.append(helper.make_node(op, inputs, [name], name=graph.fresh(f"{layer}_{label or 'row'}"), **options))
        return name

    codes = step("Gather", [w.codes(), indices], "codes", axis=0)
    if w.recipe.granularity == "tensor":
        step("DequantizeLinear", [codes, w.scale(), *([w.zero_point()] if w.has_zero_point else [])], "")
        return made
    element = helper.np_dtype_to_tensor_dtype(np.dtype(w.element))
    row = step("Cast", [codes], "cast", to=element)
    if w.has_zero_point:
        zero = step("Gather", [w.zero_point("column"), indices], "zero", axis=0)
        row = step("Sub", [row, step("Cast", [zero], "zero-cast", to=element)], "from-zero")
    if w.steps is None:
        scale = step("Gather", [w.scale("column"), indices], "scale", axis=0)
    else:
        which, steps = w.scale_steps()
        at = step("Cast", [step("Gather", [which, indices], "step", axis=0)], "step-cast", to=TensorProto.INT32)
        scale = step("Gather", [steps, at], "scale", axis=0)
    step("Mul", [row, scale], "")
    return made


def _gather_blocks(graph: Graph, w: StoredWeight, gather: NodeProto, out: str, size: int) -> list[NodeProto]:
    rows, columns = w.q.shape
    count = -(-columns // size)
    scale = np.broadcast_to(w.scale_array.reshape(rows, -1), (rows, count))
    zero = np.broadcast_to(w.zero_point_array.reshape(rows, -1), (rows, count))
    codes = w.code_array
    options: dict[str, Any] = {"block_size": size, "gather_axis": 0, "quantize_axis": 1}
    if w.bits == 8:  # the operator's bytes are unsigned, with 128 as the default zero point
        offset = 128 if w.signed else 0
        codes, zero = (codes.astype(np.int16) + offset).astype(np.uint8), (zero + offset).astype(np.uint8)
        options["bits"] = 8
    else:
        codes, zero = narrow(codes, w.recipe.dtype), narrow(zero, w.recipe.dtype)
    inputs = [w.constant("blocks", codes), gather.input[1], w.cast_scale("blocks_scale", scale)]
    if bool((zero != 128).any()) if w.bits == 8 else w.has_zero_point:
        inputs.append(w.constant("blocks_zero", zero))
    graph.use_domain(MICROSOFT)
    name = graph.fresh(f"{gather.name or out}_blocks")
    return [helper.make_node("GatherBlockQuantized", inputs, [out], name=name, domain=MICROSOFT, **options)]
