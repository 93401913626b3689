"""Dynamic int8: activations are quantized at run time by their own range, and multiplied as integers.

    xq, xs, xz = DynamicQuantizeLinear(x);   y = Cast(MatMulInteger(xq, wq, xz)) * (xs * ws)  [+ bias]

ONNX Runtime fuses this into MatMulIntegerToFloat. Signed weights get scales with which no accumulator saturates on any
CPU (see lowbit.ops.fitting), so that they are exact. Recipes with uint8 weights get zero points; those are exact as
well, and slower without VNNI. An LSTM becomes DynamicQuantizeLSTM, which rounds its input, and its state at each step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper

from lowbit.formats.onnx.code_store import CodeStore, is_int8
from lowbit.formats.onnx.graph import MICROSOFT
from lowbit.formats.onnx.stored_weight import StoredWeight
from lowbit.formats.onnx.weight_uses import WeightUse, attribute
from lowbit.models.recipe import Rule

OPSET = 11  # DynamicQuantizeLinear


def why_not_dynamic(use: WeightUse, rule: Rule) -> str:
    """Why this weight is not multiplied in integers, or an empty string."""
    is_symmetric = rule.weights.scheme == "symmetric"
    reasons = (
        (use.kind == "embedding", "rows are looked up, not multiplied"),
        (use.op in ("GRU", "RNN"), f"ONNX Runtime has no integer {use.op}"),
        (use.op == "Conv", "ONNX Runtime's integer Conv is slower than its float one"),
        (use.kind == "conv", f"ONNX Runtime has no integer {use.op}"),
        (use.dtype != "float32", f"activations are {use.dtype}; ONNX Runtime rounds float32 only"),
        (not is_int8(rule.weights), f"integer products take 8 bits per tensor or channel, not {rule.weights}"),
        (use.op == "LSTM" and bool(attribute(use.node, "layout", 0)), "ONNX Runtime's integer LSTM has no layout"),
        (
            use.op == "LSTM" and not is_symmetric,
            f"ONNX Runtime's integer LSTM takes symmetric int8, not {rule.weights}",
        ),
        (len(use.shape) != 2 and use.kind != "recurrent", "a stack of matrices"),
        (use.op == "Gemm" and attribute(use.node, "transA", 0), "its input is transposed"),
    )
    return next((why for applies, why in reasons if applies), "")


class Dynamic:
    """Rewrites matrix products and LSTMs of one graph; an activation that several products read is quantized once."""

    def __init__(self, store: CodeStore) -> None:
        self.store, self.graph = store, store.graph
        self._rounded: dict[tuple[str, int], tuple[str, str, str]] = {}
        self._parts: dict[int, dict[int, StoredWeight]] = {}  # of LSTMs: the weights stored so far, by input

    def apply(self, use: WeightUse, rule: Rule) -> StoredWeight:
        """Rewrite a node that `why_not_dynamic` allows, an LSTM with its second weight. Call in the order of nodes."""
        if use.kind == "recurrent":
            return self._lstm(use, rule)
        graph, node, out = self.graph, use.node, use.node.output[0]
        w = self.store.put(use, rule.weights, bounded=True)
        codes, scale, zero = self._round(use)
        name = node.name or out
        sums, floats, factor = (graph.fresh(f"{out}_{label}") for label in ("sums", "floats", "factor"))
        inputs = [codes, w.codes(by_columns=True), zero]
        if w.has_zero_point:
            inputs.append(w.zero_point())
        alpha, beta = float(attribute(node, "alpha", 1.0)), float(attribute(node, "beta", 1.0))
        bias = node.input[2] if use.op == "Gemm" and len(node.input) > 2 else ""
        made: list[NodeProto] = []

        def step(op: str, read: list[str], write: str, label: str, **options: Any) -> None:
            made.append(helper.make_node(op, read, [write], name=graph.fresh(f"{name}_{label}"), **options))

        scaled = w.scale() if alpha == 1.0 else w.constant("scale", w.scale_array * np.float32(alpha), ("a", alpha))
        product = graph.fresh(f"{out}_product") if bias else out
        step("MatMulInteger", inputs, sums, "integer")
        step("Cast", [sums], floats, "cast", to=TensorProto.FLOAT)
        step("Mul", [scale, scaled], factor, "factor")
        step("Mul", [floats, factor], product, "scaled")
        if bias:
            if beta != 1.0:
                times = graph.add_constant(f"{name}_beta", np.float32(beta).reshape(()))
                old, bias = bias, graph.fresh(f"{out}_bias")
                step("Mul", [old, times], bias, "bias_scaled")
            step("Add", [product, bias], out, "bias")
        graph.replace(node, made)
        return w

    def _lstm(self, use: WeightUse, rule: Rule) -> StoredWeight:
        """Store one of the two weights of an LSTM, and with the second replace the node."""
        graph, node = self.graph, use.node
        w = self.store.put(use, rule.weights, bounded=True)
        parts = self._parts.setdefault(id(node), {})
        parts[use.input_index] = w
        if len(parts) < 2:
            return w
        inputs = [*node.input, *[""] * (8 - len(node.input))]
        for index, part in sorted(parts.items()):
            inputs[index] = part.stacked_codes()
            shape = use.shape[: 2 if part.recipe.granularity == "channel" else 1]
            scale = np.broadcast_to(part.scale_array.reshape(-1, *shape[1:]), shape)
            inputs.append(part.constant("scale", scale, ("scale", shape)))
            inputs.append(part.constant("zero_point", np.zeros(shape, np.int8), ("zero", shape)))
        graph.use_domain(MICROSOFT)
        made = helper.make_node("DynamicQuantizeLSTM", inputs, node.output, domain=MICROSOFT)
        made.name = graph.fresh(f"{node.name or node.output[0]}_integer")
        made.attribute.extend(a for a in node.attribute if a.name != "layout")
        home = graph.home(node)
        graph.replace(node, [made])
        # onnx infers no types behind an operator that it does not know, and its check fails there.
        known = {v.name for v in (*home.value_info, *home.output)}
        unknown = [o for o in node.output if o and o not in known]
        home.value_info.extend(helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in unknown)
        return w

    def _round(self, use: WeightUse) -> tuple[str, str, str]:
        """The names of (codes, scale, zero point) of the activation that a node reads."""
        graph, x = self.graph, use.node.input[0]
        key = (x, id(graph.home(use.node)))
        if key not in self._rounded:
            names = graph.fresh(f"{x}_codes"), graph.fresh(f"{x}_scale"), graph.fresh(f"{x}_zero_point")
            node = helper.make_node("DynamicQuantizeLinear", [x], names, name=graph.fresh(f"{x}_quantize"))
            graph.insert_before(use.node, [node])
            self._rounded[key] = names
        return self._rounded[key]


def dynamic_note(rule: Rule) -> str:
    """How the runtime deviates from the recipe, or an empty string."""
    a = rule.activations
    plain = a is None or (a.granularity == "tensor" and a.dtype == "uint8")
    return "" if plain else "activations uint8 per tensor, the only kind ONNX Runtime supports"
