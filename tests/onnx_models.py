"""Small ONNX models by hand, for the tests of the ONNX door."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

F = TensorProto.FLOAT


def node(op, inputs, outputs, **options):
    return helper.make_node(
        op, inputs, [outputs] if isinstance(outputs, str) else outputs, name=f"{op}_{outputs}", **options
    )


def info(name, shape, kind=F):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, inputs, outputs, constants=(), opset=17, ir=8):
    """A checked model; constants: name to array."""
    tensors = [numpy_helper.from_array(a, n) for n, a in dict(constants).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)
    onnx.checker.check_model(made, full_check=True)
    return made


def saved(proto, folder, name="model.onnx"):
    path = Path(folder) / name
    path.write_bytes(proto.SerializeToString())
    return path


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def product(k=64, n=32, dtype=np.float32):
    """y = x w"""
    kind = F if dtype == np.float32 else TensorProto.FLOAT16
    nodes = [node("MatMul", ["x", "w"], "y")]
    return model(nodes, [info("x", ["m", k], kind)], [info("y", ["m", n], kind)], {"w": normal(k, n, dtype=dtype)})


def matmul(k=64, n=32, dtype=np.float32, **options):
    """y = x w + b"""
    kind = F if dtype == np.float32 else TensorProto.FLOAT16
    return model(
        [node("MatMul", ["x", "w"], "p"), node("Add", ["p", "b"], "y")],
        [info("x", ["m", k], kind)], [info("y", ["m", n], kind)],
        {"w": normal(k, n, dtype=dtype), "b": normal(n, dtype=dtype)}, **options,
    )  # fmt: skip


def gemm(k=64, n=32, trans_b=1, alpha=1.0, beta=1.0, bias=True):
    w = normal(n, k) if trans_b else normal(k, n)
    return model(
        [node("Gemm", ["x", "w", *(["b"] if bias else [])], "y", transB=trans_b, alpha=alpha, beta=beta)],
        [info("x", ["m", k])], [info("y", ["m", n])], {"w": w, **({"b": normal(n)} if bias else {})},
    )  # fmt: skip


def two_layers(k=64, inner=96, n=32):
    """relu(x u) read by two products."""
    return model(
        [
            node("MatMul", ["x", "u"], "h"), node("Relu", ["h"], "r"), node("MatMul", ["r", "v"], "y"),
            node("MatMul", ["r", "w"], "z"),
        ],
        [info("x", ["m", k])], [info("y", ["m", n]), info("z", ["m", n])],
        {"u": normal(k, inner), "v": normal(inner, n, seed=1), "w": normal(inner, n, seed=2)},
    )  # fmt: skip


def tied(rows=200, width=64):
    """An embedding whose table, turned round, is also the last product's weight."""
    return model(
        [
            node("Gather", ["table", "i"], "e"), node("Relu", ["e"], "r"),
            node("Transpose", ["table"], "turned", perm=[1, 0]), node("MatMul", ["r", "turned"], "y"),
        ],
        [info("i", ["b", "l"], TensorProto.INT64)], [info("y", ["b", "l", rows])], {"table": normal(rows, width)},
    )  # fmt: skip


def embedding(rows=300, width=64, dtype=np.float32):
    kind = F if dtype == np.float32 else TensorProto.FLOAT16
    return model(
        [node("Gather", ["table", "i"], "y")],
        [info("i", ["b", "l"], TensorProto.INT64)], [info("y", ["b", "l", width], kind)],
        {"table": normal(rows, width, dtype=dtype)},
    )  # fmt: skip


def conv(inputs=8, outputs=16, transpose=False):
    op = "ConvTranspose" if transpose else "Conv"
    w = normal(inputs, outputs, 3, 3) if transpose else normal(outputs, inputs, 3, 3)
    return model(
        [node(op, ["x", "w"], "y", pads=[1, 1, 1, 1])],
        [info("x", ["m", inputs, 8, 8])], [info("y", ["m", outputs, 8, 8])], {"w": w},
    )  # fmt: skip


def recurrent(op="LSTM", inputs=24, hidden=16, directions=1, **options):
    """y of [steps, directions, 3, hidden]; the weights are W and R."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    way = {"direction": "bidirectional"} if directions == 2 else {}
    constants = {
        "W": normal(directions, gates * hidden, inputs) * np.float32(inputs**-0.5),
        "R": normal(directions, gates * hidden, hidden) * np.float32(hidden**-0.5),
        "B": normal(directions, 2 * gates * hidden) * np.float32(0.1),
    }
    return model(
        [node(op, ["x", *constants], "y", hidden_size=hidden, **way, **options)],
        [info("x", ["t", 3, inputs])], [info("y", ["t", directions, 3, hidden])], constants,
    )  # fmt: skip


def branches(k=64, n=32):
    """If(flag) x w else x v, both weights inside; the branches use the same names."""

    def body(weight):
        return helper.make_graph(
            [node("MatMul", ["x", "w"], "p")], "body", [], [info("p", ["m", n])], [numpy_helper.from_array(weight, "w")]
        )

    return model(
        [node("If", ["flag"], "y", then_branch=body(normal(k, n)), else_branch=body(normal(k, n, seed=1)))],
        [info("flag", [], TensorProto.BOOL), info("x", ["m", k])], [info("y", ["m", n])],
    )  # fmt: skip


def run(path, feeds):
    """The outputs in ONNX Runtime with default options."""
    given = path.SerializeToString() if isinstance(path, onnx.ModelProto) else str(path)
    return onnxruntime.InferenceSession(given, providers=["CPUExecutionProvider"]).run(None, feeds)
