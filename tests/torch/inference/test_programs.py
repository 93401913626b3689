"""Programs made of quantized models: compiled ones compute the same, saved ones never compute with other weights; and
gradients that cannot be given are an error."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import subprocess
import sys
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import lowbit.torch as lt  # noqa: E402
from lowbit import InvalidProblem, Unsupported  # noqa: E402
from torch import Tensor, nn  # noqa: E402

KINDS: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
    "linear": (lt.QuantizedLinear, lambda: nn.Linear(8, 8), (5, 8)),
    "conv1d": (lt.QuantizedConv1d, lambda: nn.Conv1d(8, 8, 3, padding=1), (2, 8, 6)),
    "conv2d": (lt.QuantizedConv2d, lambda: nn.Conv2d(8, 8, 3, padding=1), (2, 8, 6, 6)),
}
WAY_OUT = "export the float model and quantize the ONNX file"


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def model_of(kind: str) -> tuple[nn.Sequential, Tensor]:
    """A float layer, a quantized one, and data."""
    quantized, make, shape = KINDS[kind]
    return nn.Sequential(make(), quantized.from_float(make())), torch.randn(shape)


# ---- programs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_export_is_refused_with_a_way_out(kind: str, strict: bool) -> None:
    model, x = model_of(kind)
    with pytest.raises((Unsupported, torch._dynamo.exc.Unsupported), match=rf"torch\.export: .*{WAY_OUT}"):
        torch.export.export(model, (x,), strict=strict)


def test_a_jit_trace_is_refused_with_a_way_out(kind: str) -> None:
    model, x = model_of(kind)
    with pytest.raises(Unsupported, match=rf"^torch\.jit\.trace: .*{WAY_OUT}"):
        torch.jit.trace(model, (x,))


@pytest.mark.filterwarnings("ignore:.*legacy TorchScript-based ONNX export:DeprecationWarning")
def test_the_old_onnx_export_is_refused_with_a_way_out(kind: str) -> None:
    model, x = model_of(kind)
    with pytest.raises(Unsupported, match=rf"^torch\.onnx\.export\(dynamo=False\): .*{WAY_OUT}"):
        torch.onnx.export(model, (x,), io.BytesIO(), dynamo=False)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("grad", [False, True])
def test_compiled_models_give_the_same_with_and_without_gradients(kind: str, backend: str, grad: bool) -> None:
    model, x = model_of(kind)
    torch.compiler.reset()
    with torch.set_grad_enabled(grad):
        found = torch.compile(model, backend=backend, fullgraph=True)(x)
    assert torch.equal(found, model(x))


def test_a_graph_that_outlives_its_module_finds_no_other() -> None:
    model, x = model_of("linear")
    number = model[1].number
    others = [lt.QuantizedLinear.from_float(nn.Linear(8, 8)) for _ in range(3)]
    assert torch.equal(torch.ops.lowbit.quantized_linear(x, number, 8), model[1](x))
    del model
    gc.collect()
    for stale in (number, 0, 1, len(others)):
        with pytest.raises(InvalidProblem, match=r"^module: no quantized module .*load_quantized"):
            torch.ops.lowbit.quantized_linear(x, stale, 8)
    with pytest.raises(InvalidProblem, match=r"^module: no quantized module"):
        torch.ops.lowbit.quantized_conv2d(torch.randn(1, 8, 3, 3), number, [1, 8, 3, 3])


def test_numbers_of_modules_are_not_those_of_another_process() -> None:
    program = "import torch, lowbit.torch as lt; print(lt.QuantizedLinear.from_float(torch.nn.Linear(2, 2)).number)"
    found = {int(subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout)}
    layers = [lt.QuantizedLinear.from_float(nn.Linear(2, 2)) for _ in range(100)]
    found |= {layer.number for layer in layers}
    found |= {twin(layers[0]).number for twin in (copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m)))}
    assert len(found) == 104
    assert sum(n > 2**32 for n in found) > 100  # no count reaches this, and a random number misses it once in 2**30
    assert max(found) < 2**63


# ---- gradients ------------------------------------------------------------------------------------------------------


def test_a_layer_before_a_quantized_one_is_told_that_it_has_no_gradient(kind: str) -> None:
    model, x = model_of(kind)
    y = model(x)  # which by itself is no error
    assert torch.equal(y, torch.no_grad()(model)(x))
    with pytest.raises(Unsupported, match=r"^quantized_\w+: a gradient .*torch\.no_grad.*prepare_qat"):
        y.sum().backward()
    assert model[0].weight.grad is None


def test_a_residual_block_does_not_get_half_a_gradient(kind: str) -> None:
    model, x = model_of(kind)
    h = model[0](x)
    with pytest.raises(Unsupported, match=r"^quantized_\w+: a gradient"):
        (h + model[1](h)).sum().backward()
    (h + model[1](h.detach())).sum().backward()  # where it is meant, it can be said


def test_the_input_is_told_so_too(kind: str) -> None:
    model, x = model_of(kind)
    x.requires_grad_()
    for create_graph in (False, True):
        with pytest.raises(Unsupported, match=r"^quantized_\w+: a gradient"):
            torch.autograd.grad(model[1](x).sum(), x, create_graph=create_graph)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_layer_after_a_quantized_one_learns(kind: str, compiled: bool) -> None:
    model, x = model_of(kind)
    head = nn.Sequential(model[1], KINDS[kind][1]())
    if compiled:
        torch.compiler.reset()
    (torch.compile(head, backend="aot_eager") if compiled else head)(x).sum().backward()
    assert head[1].weight.grad.any()


def test_a_compiled_model_fails_where_the_gradient_is_asked_for(kind: str) -> None:
    model, x = model_of(kind)
    torch.compiler.reset()
    y = torch.compile(model, backend="aot_eager", fullgraph=True)(x)
    with pytest.raises(Unsupported, match=r"^quantized_\w+: a gradient"):
        y.sum().backward()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("given", [torch.contiguous_format, torch.channels_last])
def test_results_may_be_written_into(memory_format: Any, given: Any) -> None:
    model, x = model_of("conv2d")
    model[1].memory_format = memory_format
    x = x.to(memory_format=given)
    expected = torch.no_grad()(model)(x).relu()
    y = nn.Sequential(*model, nn.ReLU(inplace=True))(x)  # with gradients enabled, as many a model is called
    assert torch.equal(y, expected)
    assert y.is_contiguous(memory_format=memory_format)


def test_nothing_is_recorded_where_no_gradient_is_needed(kind: str) -> None:
    model, x = model_of(kind)
    assert model[1](x).grad_fn is None
    with torch.no_grad():
        assert model(x).grad_fn is None
    with torch.inference_mode():
        assert model(x).is_inference()


def test_an_embedding_has_nothing_to_learn() -> None:
    table = lt.QuantizedEmbedding.from_float(nn.Embedding(10, 8))
    head = nn.Linear(8, 2)
    head(table(torch.tensor([1, 2]))).sum().backward()
    assert head.weight.grad.any()
    assert not any(b.requires_grad for b in table.buffers())


def test_an_embedding_is_exported_with_its_rows() -> None:
    table = lt.QuantizedEmbedding.from_float(nn.Embedding(10, 8), "int4", group_size=4)
    file = io.BytesIO()
    torch.export.save(torch.export.export(table, (torch.tensor([1, 2]),)), file)
    file.seek(0)
    ids = torch.tensor([9, 0])
    assert torch.equal(torch.export.load(file).module()(ids), table(ids))
