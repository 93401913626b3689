"""ONNX Runtime running one operator, from given memory into given memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

MICROSOFT = "com.microsoft"  # the domain of the operators that only ONNX Runtime has


def onnx_call(
    threads: int,
    op: str,
    inputs: Mapping[str, Array],
    out: Array,
    *,
    constants: Mapping[str, Array] | None = None,
    domain: str = "",
    int4_shape: tuple[int, ...] = (),
    **options: Any,
) -> Callable[[], Any]:
    """A call that runs the operator. Constants follow the inputs; the session may pack them once, as it does weights.
    `int4_shape` is that of an input x of packed codes."""
    import onnx
    import onnxruntime

    helper, of_numpy = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype
    constants = constants or {}
    typed = {name: (of_numpy(a.dtype), list(a.shape)) for name, a in inputs.items()}
    if int4_shape:
        typed["x"] = (onnx.TensorProto.INT4, list(int4_shape))
    graph = helper.make_graph(
        [helper.make_node(op, [*inputs, *constants], ["y"], domain=domain, **options)],
        "benchmark",
        [helper.make_tensor_value_info(name, *kind) for name, kind in typed.items()],
        [helper.make_tensor_value_info("y", of_numpy(out.dtype), list(out.shape))],
        [onnx.numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    settings.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, *typed[name], array.ctypes.data)
    binding.bind_output("y", "cpu", 0, of_numpy(out.dtype), list(out.shape), out.ctypes.data)

    def run(_: Any = (inputs, out)) -> None:  # the binding knows addresses only: these stay alive as long as the call
        session.run_with_iobinding(binding)

    return run
