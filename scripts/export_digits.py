"""Writes src/lowbit/data/digits_cnn.onnx: the digits network of digits_cnn.npz as an ONNX model.

    python scripts/export_digits.py

Needs onnx. Input "images", float32 [batch, 1, 8, 8], pixels divided by 16; output "logits", float32 [batch, 10]. The
same bytes each time: nothing is trained here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lowbit.data import load_digits_cnn

TARGET = Path(__file__).parents[1] / "src/lowbit/data/digits_cnn.onnx"
LAYERS = ("conv1", "conv2", "fc1", "fc2")


def model() -> onnx.ModelProto:
    """The network, operator by operator."""
    arrays = load_digits_cnn()
    names = [f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")]
    pads = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        helper.make_node("Conv", ["images", "conv1.weight", "conv1.bias"], ["c1"], name="conv1", **pads),
        helper.make_node("Relu", ["c1"], ["r1"], name="relu1"),
        helper.make_node("Conv", ["r1", "conv2.weight", "conv2.bias"], ["c2"], name="conv2", **pads),
        helper.make_node("Relu", ["c2"], ["r2"], name="relu2"),
        helper.make_node("MaxPool", ["r2"], ["pooled"], name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["pooled"], ["flat"], name="flatten", axis=1),
        helper.make_node("Gemm", ["flat", "fc1.weight", "fc1.bias"], ["h"], name="fc1", transB=1),
        helper.make_node("Relu", ["h"], ["r3"], name="relu3"),
        helper.make_node("Gemm", ["r3", "fc2.weight", "fc2.bias"], ["logits"], name="fc2", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits_cnn",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(np.ascontiguousarray(arrays[n], np.float32), n) for n in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="lowbit")


def main() -> None:
    made = model()
    onnx.checker.check_model(made, full_check=True)
    TARGET.write_bytes(made.SerializeToString())
    print(f"{TARGET.name}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
