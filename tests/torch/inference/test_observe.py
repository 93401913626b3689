"""Models observed as batches pass through them: torch modules and ONNX graphs."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import lowbit as lb
import torch
from lowbit.formats.onnx import observe as observe_onnx
from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.torch import observe as observe_torch
from torch import nn


def batches(count=4, features=6):
    rng = np.random.default_rng(0)
    return [rng.standard_normal((n + 1, features)).astype(np.float32) for n in range(count)]


# ---- torch ----------------------------------------------------------------------------------------------------------


def torch_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5)), nn.Linear(4, 3))


def test_inputs_of_layers_are_seen_by_name():
    model, data = torch_model().eval(), batches()
    found = lb.Calibrator.observe(model, [torch.from_numpy(x) for x in data], progress=False)
    assert set(found) == {"0", "2.0", "3"}
    whole = lb.Calibrator(name="0")
    whole.add_many(data)
    assert found["0"].sketch == whole.sketch
    assert found["3"].count == 4 * sum(len(x) for x in data)
    hidden = model[:2](torch.from_numpy(np.concatenate(data))).detach().numpy()
    assert found["2.0"].sketch.ranges()[1] == hidden.max()
    assert not any(m._forward_pre_hooks for m in model.modules()), "hooks are gone"


def test_outputs_other_modules_and_other_forms_of_batches():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.Tanh()

        def forward(self, a, b):
            return self.act(a) + b

    x = torch.ones(2, 3)
    found = observe_torch(
        Two(), [(x, x), {"a": x, "b": x}], modules=lambda name, m: name == "act", outputs=True, progress=False,
        method="min_max",
    )  # fmt: skip
    assert found["act"].count == 12
    assert float(found["act"].calibrate("int8").scale) * 127 == pytest.approx(np.tanh(1), rel=1e-6)


def test_half_precision_and_channels():
    model = nn.Sequential(nn.Linear(6, 5)).to(torch.bfloat16)
    data = [torch.from_numpy(x).to(torch.bfloat16) for x in batches()]
    found = observe_torch(model, data, axis=-1, progress=False)
    assert found["0"].sketch.shape == (6,)
    assert found["0"].calibrate("int8", method="mse").scale.shape == (6,)


def test_a_generator_is_streamed_and_the_mode_is_kept():
    model = torch_model().train()
    seen = observe_torch(model, (torch.from_numpy(x) for x in batches()), progress=True)
    assert model.training
    assert seen["0"].num_samples == 4


def test_torch_errors():
    with pytest.raises(InvalidProblem, match="no batches"):
        observe_torch(torch_model(), [], progress=False)
    with pytest.raises(InvalidProblem, match="no module to observe"):
        observe_torch(nn.ReLU(), [torch.ones(1)], progress=False)
    model = torch_model()
    model[0].bias.data[1] = float("nan")
    with pytest.raises(InvalidProblem, match=r"2\.0: nan at index"):
        observe_torch(model, [torch.ones(2, 6)], progress=False)
    assert not any(m._forward_pre_hooks for m in model.modules()), "hooks are gone after an error too"


# ---- ONNX -----------------------------------------------------------------------------------------------------------


def onnx_model():
    rng = np.random.default_rng(1)
    w1, w2 = (rng.standard_normal(s).astype(np.float32) for s in ((6, 5), (5, 3)))
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(w1, "w1"), numpy_helper.from_array(w2, "w2")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), w1, w2


@pytest.mark.parametrize("where", ["proto", "path", "external"])
def test_tensors_of_a_graph_are_seen_by_name(where, tmp_path):
    proto, w1, _ = onnx_model()
    model = proto
    if where != "proto":
        model = tmp_path / "m.onnx"
        onnx.save(proto, model, save_as_external_data=where == "external", location="weights.bin", size_threshold=0)
    data = batches()
    found = lb.Calibrator.observe(model, [{"x": x} for x in data], progress=False)
    assert list(found) == ["x", "h", "r", "y"]
    every = np.concatenate(data)
    assert found["x"].count == every.size
    np.testing.assert_allclose(found["h"].sketch.ranges()[1], (every @ w1).max(), rtol=1e-5)
    assert found["r"].sketch.distribution().lo == 0
    assert len(onnx_model()[0].graph.output) == 1


def test_an_array_alone_and_chosen_tensors():
    proto, *_ = onnx_model()
    found = observe_onnx(proto, iter(batches()), tensors=["r"], method="percentile", progress=True)
    assert list(found) == ["r"]
    found = observe_onnx(proto, batches(), tensors=lambda name: name in "hy", progress=False)
    assert list(found) == ["h", "y"]


def test_onnx_errors(tmp_path):
    proto, *_ = onnx_model()
    with pytest.raises(InvalidProblem, match="'z' is not in the model"):
        observe_onnx(proto, batches(), tensors=["z"], progress=False)
    with pytest.raises(InvalidProblem, match="batch 0 has no 'x'"):
        observe_onnx(proto, [{"y": 1}], progress=False)
    with pytest.raises(InvalidProblem, match="no batches"):
        observe_onnx(proto, [], progress=False)
    (tmp_path / "bad.onnx").write_bytes(b"\x08\xff\xff")
    with pytest.raises(FormatError, match="not an ONNX model"):
        observe_onnx(tmp_path / "bad.onnx", batches(), progress=False)
    with pytest.raises(FileNotFoundError):
        observe_onnx(tmp_path / "none.onnx", batches(), progress=False)
    with pytest.raises(InvalidProblem, match="expected an onnx"):
        observe_onnx(3, batches(), progress=False)
