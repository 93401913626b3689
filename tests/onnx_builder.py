"""ONNX models built a layer at a time, with random weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper, shape_inference


class Builder:
    """Nodes and constants, one after another; names count up."""

    def __init__(self, inputs: dict[str, list[Any]], seed: int = 0, opset: int = 17) -> None:
        self.inputs, self.opset = inputs, opset
        self.rng = np.random.default_rng(seed)
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.count = 0

    def constant(self, array: Any, name: str | None = None) -> str:
        self.count += 1
        name = name or f"c{self.count}"
        self.constants.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def normal(self, *shape: int, scale: float = 1.0, name: str | None = None) -> str:
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32), name)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        self.count += 1
        made = f"{op.lower()}{self.count}"
        self.nodes.append(helper.make_node(op, list(inputs), [made], name=f"n{self.count}", **attributes))
        return made

    def conv(self, x: str, i: int, o: int, k: int = 3, *, bias: bool = True, group: int = 1, **options: Any) -> str:
        name = f"w{self.count}"
        weight = self.normal(o, i // group, k, k, scale=(i * k * k / group) ** -0.5, name=name)
        parts = [x, weight, self.normal(o, scale=0.1)] if bias else [x, weight]
        return self.add("Conv", *parts, pads=[k // 2] * 4, group=group, **options)

    def batch_norm(self, x: str, n: int) -> str:
        gamma, var = (self.constant(self.rng.uniform(0.5, 1.5, n).astype(np.float32)) for _ in range(2))
        return self.add("BatchNormalization", x, gamma, self.normal(n, scale=0.1), self.normal(n, scale=0.1), var)

    def model(self, *results: str) -> ModelProto:
        given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in self.inputs.items()]
        made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in results]
        graph = helper.make_graph(self.nodes, "g", given, made, self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        return shape_inference.infer_shapes(model)


def residual_cnn(opset: int = 13) -> ModelProto:
    """Convolutions with batch norms, a residual sum, depthwise, pooling, and two products at the end."""
    b = Builder({"x": ["n", 3, 16, 16]}, opset=opset)
    relu = lambda t: b.add("Relu", t)  # noqa: E731
    x = relu(b.batch_norm(b.conv("x", 3, 16, bias=False), 16))
    y = relu(b.batch_norm(b.conv(x, 16, 16, bias=False), 16))
    x = relu(b.add("Add", b.batch_norm(b.conv(y, 16, 16), 16), x))
    x = b.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = relu(b.conv(x, 16, 16, group=16))
    x = relu(b.conv(x, 16, 32, 1))
    x = b.add("Flatten", b.add("GlobalAveragePool", x))
    x = relu(b.add("Gemm", x, b.normal(64, 32, scale=0.2, name="fc1"), b.normal(64), transB=1))
    x = b.add("Add", b.add("MatMul", x, b.normal(64, 10, scale=0.1, name="fc2")), b.normal(10))
    return b.model(x)
