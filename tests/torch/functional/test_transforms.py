"""Operators under torch's transforms and tracers: the numbers of a plain call, or an error that names the operator."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.autograd.forward_ad as forward_ad  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import lowbit.torch as lt  # noqa: E402
from lowbit import Unsupported  # noqa: E402
from torch import Tensor, nn  # noqa: E402

SHAPE = (4, 3, 8)
ENDS = {"qmin": -8, "qmax": 7}
# How scales are shared, and the shape of scales over an array of SHAPE.
GRANULARITIES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "tensor": ({}, ()),
    "channel": ({"axis": 1}, (3,)),
    "last channel": ({"axis": -1}, (8,)),
    "group": ({"axis": 1, "group_size": 2}, (4, 2, 8)),
    "group of the last axis": ({"group_size": 3}, (4, 3, 3)),
    "token": ({"per_token": True}, (4, 3)),
}
# The differentiable functions whose derivative by x is diagonal.
DIAGONAL = ("fake_quantize", "quantize_ste", "dequantize_ste")
ALL = (*DIAGONAL, "fake_quantize_learned", "quantize", "dequantize")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=GRANULARITIES)
def granularity(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def function(name: str, granularity: str) -> tuple[Callable[..., Tensor], Tensor, Tensor, Tensor]:
    """A function of (x, scale, zero point), and its arguments; some of x is clipped."""
    options, shape = GRANULARITIES[granularity]
    scale, zero = torch.rand(shape) / 10 + 0.05, torch.randint(-2, 3, shape, dtype=torch.int32)
    x = torch.randn(SHAPE)
    if name.startswith("dequantize"):
        codes = torch.randint(-8, 8, SHAPE, dtype=torch.int8)
        x = codes if name == "dequantize" else codes.float()
    else:
        options = options | ENDS
    return lambda x, s=scale, z=zero: getattr(lt, name)(x, s, z, **options), x, scale, zero


def other(x: Tensor) -> Tensor:
    """Data of the same shape and kind, with other values."""
    return x.flip(0) if x.dtype is torch.int8 else x.flip(0) * 0.7


# ---- tracers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_a_jit_trace_holds_the_operator_and_gives_its_numbers(name: str, granularity: str) -> None:
    f, x, _, _ = function(name, granularity)
    traced = torch.jit.trace(f, (x,))
    assert f"lowbit::{name}(" in str(traced.graph)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    for run in (traced, torch.jit.load(file)):
        assert torch.equal(run(other(x)), f(other(x)))


def test_a_jit_trace_gives_gradients() -> None:
    traced = torch.jit.trace(lambda x: lt.fake_quantize(x, 0.1, **ENDS), (torch.randn(9),))
    x = torch.linspace(-2, 2, 9).requires_grad_()
    traced(x).sum().backward()
    assert x.grad.tolist() == (x.detach().abs() < 0.7).float().tolist()


def test_a_traced_quantizer_gives_what_the_quantizer_gives() -> None:
    for mode in ("static", "dynamic", "learned"):
        quantizer = lt.FakeQuantize("int4", mode=mode)
        quantizer(torch.randn(5, 6))
        quantizer.eval()
        traced = torch.jit.trace(quantizer, (torch.randn(5, 6),))
        x = torch.randn(5, 6)
        assert torch.equal(traced(x), quantizer(x)), mode


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("name", ALL)
def test_make_fx_holds_the_operator_and_gives_its_numbers(name: str, tracing_mode: str) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    f, x, scale, zero = function(name, "channel")
    graph = make_fx(lambda x, s, z: f(x, s, z), tracing_mode=tracing_mode)(x, scale, zero)
    assert f"lowbit.{name}." in graph.code
    assert torch.equal(graph(other(x), scale, zero), f(other(x)))


def test_the_old_onnx_export_names_the_operator() -> None:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return lt.fake_quantize(x, 0.1)

    with (
        pytest.warns(DeprecationWarning, match="legacy TorchScript"),
        pytest.raises(Exception, match=r"lowbit::fake_quantize"),
    ):
        torch.onnx.export(Net(), (torch.randn(3),), io.BytesIO(), dynamo=False)


# ---- modes and subclasses -------------------------------------------------------------------------------------------


class Seen(TorchDispatchMode):
    """The operators called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


class Marked(Tensor):
    """A subclass that is told of every operator."""

    names: list[str] = []  # noqa: RUF012

    @staticmethod
    def __new__(cls, inner: Tensor) -> Any:
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.names.append(str(func))
        return func(*(a.inner if isinstance(a, cls) else a for a in args), **(kwargs or {}))


@pytest.mark.parametrize("name", ALL)
def test_a_dispatch_mode_sees_the_operator(name: str) -> None:
    f, x, _, _ = function(name, "tensor")
    with Seen() as seen:
        y = f(x)
    assert f"lowbit.{name}.default" in seen.names
    assert torch.equal(y, f(x))


@pytest.mark.parametrize("name", ["fake_quantize", "fake_quantize_learned", "quantize_ste"])
@pytest.mark.parametrize("which", ["x", "scale", "zero_point"])
def test_a_subclass_is_told_of_the_operator_whichever_argument_it_is(name: str, which: str) -> None:
    f, x, scale, zero = function(name, "tensor")
    arguments = {"x": x, "scale": scale, "zero_point": zero}
    arguments[which] = Marked(arguments[which])
    Marked.names.clear()
    y = f(*arguments.values())
    assert f"lowbit.{name}.default" in Marked.names
    assert torch.equal(y, f(x, scale, zero))


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("name", ALL)
def test_a_default_device_changes_nothing(name: str, learns: bool, device: str, granularity: str) -> None:
    f, x, _, _ = function(name, granularity)
    expected = f(x)
    if learns and x.is_floating_point():
        x.requires_grad_()
    with torch.device(device):
        y = f(x)
        assert torch.equal(y, expected)
        if y.requires_grad:
            (dx,) = torch.autograd.grad(y, x, torch.ones_like(y))
    if y.requires_grad:
        assert torch.equal(dx, torch.autograd.grad(f(x), x, torch.ones_like(y))[0])


@pytest.mark.parametrize("learns", [False, True])
def test_a_default_device_does_not_change_modules(learns: bool) -> None:
    module = lt.QuantizedLinear.from_float(nn.Linear(8, 4))
    x = torch.randn(3, 8, requires_grad=learns)
    expected = module(x)
    with torch.device("meta"):
        assert torch.equal(module(x), expected)


# ---- torch.func -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_functionalized_gives_the_same(name: str, granularity: str) -> None:
    f, x, _, _ = function(name, granularity)
    assert torch.equal(torch.func.functionalize(f)(x), f(x))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ALL)
def test_vmap_over_x_is_a_loop(name: str, granularity: str) -> None:
    f, x, _, _ = function(name, granularity)
    batch = torch.stack([x, other(x), x.flip(2)])
    expected = torch.stack([f(one) for one in batch])
    assert torch.equal(torch.vmap(f)(batch), expected)
    assert torch.equal(torch.vmap(f, in_dims=2, out_dims=1)(batch.movedim(0, 2)), expected.movedim(0, 1))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ALL)
def test_vmap_over_scales_is_a_loop(name: str, granularity: str) -> None:
    f, x, scale, zero = function(name, granularity)
    scales, zeros = torch.stack([scale, 2 * scale]), torch.stack([zero, zero + 1])
    expected = torch.stack([f(x, s, z) for s, z in zip(scales, zeros, strict=True)])
    assert torch.equal(torch.vmap(f, in_dims=(None, 0, 0))(x, scales, zeros), expected)
    batch = torch.stack([x, other(x)])
    expected = torch.stack([f(*one) for one in zip(batch, scales, zeros, strict=True)])
    assert torch.equal(torch.vmap(f)(batch, scales, zeros), expected)


def gradient_of(f: Callable[..., Tensor], x: Tensor, dy: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf, dy)[0]


@pytest.mark.parametrize("name", [*DIAGONAL, "fake_quantize_learned"])
def test_func_grad_is_autograd(name: str, granularity: str) -> None:
    f, x, _, _ = function(name, granularity)
    dy = torch.randn(SHAPE)
    expected = gradient_of(f, x, dy)
    assert torch.equal(torch.func.grad(lambda x: (f(x) * dy).sum())(x), expected)
    assert torch.equal(torch.func.vjp(f, x)[1](dy)[0], expected)


def test_func_grad_by_a_learned_scale_is_autograd(granularity: str) -> None:
    f, x, scale, zero = function("fake_quantize_learned", granularity)
    leaf = scale.clone().requires_grad_()
    expected = torch.autograd.grad(f(x, leaf, zero).sum(), leaf)[0]
    assert torch.equal(torch.func.grad(lambda s: f(x, s, zero).sum())(scale), expected)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", [*DIAGONAL, "fake_quantize_learned"])
def test_gradients_of_each_sample(name: str, granularity: str) -> None:
    f, x, _, _ = function(name, granularity)
    batch, dy = torch.stack([x, other(x)]), torch.randn(SHAPE)
    found = torch.vmap(torch.func.grad(lambda x: (f(x) * dy).sum()))(batch)
    assert torch.equal(found, torch.stack([gradient_of(f, one, dy) for one in batch]))
    summed = torch.func.grad(lambda b: (torch.vmap(f)(b) * dy).sum())(batch)
    assert torch.equal(summed, found)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", [*DIAGONAL, "fake_quantize_learned"])
@pytest.mark.parametrize("last", [False, True])
def test_batched_gradients_of_a_plain_call(name: str, last: bool) -> None:
    x = torch.randn(2, 3, 4, 5)
    x = (x.to(memory_format=torch.channels_last) if last else x).requires_grad_()
    scale = torch.tensor(0.1)
    f = getattr(lt, name)
    y = f(x, scale) if name == "dequantize_ste" else f(x, scale, **ENDS)
    dy = torch.randn(3, *y.shape)
    found = torch.autograd.grad(y, x, dy, is_grads_batched=True, retain_graph=True)[0]
    expected = torch.stack([torch.autograd.grad(y, x, one, retain_graph=True)[0] for one in dy])
    assert torch.equal(found, expected)


# ---- forward-mode differentiation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DIAGONAL)
def test_forward_mode_carries_the_tangent(name: str, granularity: str) -> None:
    f, x, _, _ = function(name, granularity)
    tangent = torch.randn(SHAPE)
    expected = gradient_of(f, x, tangent)  # the derivative is diagonal
    y, dy = torch.func.jvp(f, (x,), (tangent,))
    assert torch.equal(y, f(x))
    assert torch.equal(dy, expected)
    for leaf in (x, x.clone().requires_grad_()):
        with forward_ad.dual_level():
            found = forward_ad.unpack_dual(f(forward_ad.make_dual(leaf, tangent)))
            assert torch.equal(found.primal, y)
            assert torch.equal(found.tangent, expected)


@pytest.mark.parametrize("name", DIAGONAL)
def test_forward_and_reverse_mode_give_one_jacobian(name: str) -> None:
    f, _, _, _ = function(name, "tensor")
    x = torch.randn(6).round() if name == "dequantize_ste" else torch.randn(6)
    assert torch.equal(torch.func.jacfwd(f)(x), torch.func.jacrev(f)(x))
    assert torch.equal(torch.func.jacfwd(torch.func.jacrev(f))(x), torch.zeros(6, 6, 6))


def test_forward_over_reverse_is_linear_in_the_gradient() -> None:
    x = torch.randn(6, requires_grad=True)
    y = lt.fake_quantize(x, 0.1, **ENDS)
    with forward_ad.dual_level():
        dy, tangent = torch.randn(6), torch.randn(6)
        dx = torch.autograd.grad(y, x, forward_ad.make_dual(dy, tangent), create_graph=True)[0]
        assert torch.equal(forward_ad.unpack_dual(dx).tangent, torch.where(x.abs() < 0.75, tangent, 0))


def test_a_scale_that_does_not_learn_has_no_tangent_to_give() -> None:
    x, scale = torch.randn(6), torch.tensor(0.1)
    y, dy = torch.func.jvp(lambda s: lt.fake_quantize(x, s), (scale,), (torch.tensor(1.0),))
    assert torch.equal(y, lt.fake_quantize(x, scale))
    assert not dy.any()


@pytest.mark.parametrize("which", [0, 1])
def test_forward_mode_through_a_learned_quantizer_is_refused(which: int) -> None:
    arguments = [torch.randn(6), torch.tensor(0.1)]

    def f(v: Tensor) -> Tensor:
        return lt.fake_quantize_learned(*(v if i == which else a for i, a in enumerate(arguments)))

    v = arguments[which]
    with pytest.raises(Unsupported, match=r"fake_quantize_learned: .*forward-mode"):
        torch.func.jvp(f, (v,), (torch.ones_like(v),))
    with forward_ad.dual_level(), pytest.raises(Unsupported, match=r"fake_quantize_learned: .*forward-mode"):
        f(forward_ad.make_dual(v, torch.ones_like(v)))


def test_codes_have_no_tangent() -> None:
    x = torch.randn(6)
    with forward_ad.dual_level():
        codes = lt.quantize(forward_ad.make_dual(x, torch.ones(6)), 0.1)
        assert forward_ad.unpack_dual(codes).tangent is None
    assert torch.equal(codes, lt.quantize(x, 0.1))


# ---- quantizers and observers ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": -1, "group_size": 4}], ids=str)
def test_a_dynamic_quantizer_under_vmap_finds_a_range_for_each_sample(options: dict[str, Any]) -> None:
    quantizer = lt.FakeQuantize("int4", mode="dynamic", **options)
    batch = torch.randn(3, 5, 8) * torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    assert torch.equal(torch.vmap(quantizer)(batch), torch.stack([quantizer(x) for x in batch]))


@pytest.mark.parametrize("mode", ["static", "learned"])
@pytest.mark.parametrize("transform", [
    torch.vmap, torch.func.functionalize, lambda f: torch.func.grad(lambda x: f(x).sum()),
    lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
], ids=["vmap", "functionalize", "grad", "jvp"])  # fmt: skip
def test_no_range_is_found_under_a_transform(mode: str, transform: Any) -> None:
    quantizer, x = lt.FakeQuantize("int4", mode=mode, name="hidden"), torch.randn(3, 5)
    with pytest.raises(Unsupported, match=rf"^hidden: {mode} FakeQuantize .*torch.func"):
        transform(quantizer)(x)
    twin = lt.FakeQuantize("int4", mode=mode)
    assert torch.equal(quantizer(x), twin(x))  # nothing was left behind


def test_the_operator_that_watches_ranges_refuses_vmap() -> None:
    ends = torch.tensor(torch.inf), torch.tensor(-torch.inf), torch.tensor(0)
    with pytest.raises(Unsupported, match=r"^observe_: under torch.vmap"):
        torch.vmap(lambda x: torch.ops.lowbit.observe_(x, *ends, None, None, None, "x", False))(torch.randn(3, 5))


@pytest.mark.parametrize("mode", ["static", "dynamic", "learned"])
def test_a_quantizer_functionalized_gives_the_same(mode: str) -> None:
    quantizer = lt.FakeQuantize("int4", mode=mode)
    x = torch.randn(5, 6)
    quantizer(x)
    quantizer.eval()
    assert torch.equal(torch.func.functionalize(quantizer)(x), quantizer(x))


# ---- modules for inference ------------------------------------------------------------------------------------------


def modules() -> dict[str, tuple[nn.Module, Tensor]]:
    return {
        "linear": (lt.QuantizedLinear.from_float(nn.Linear(8, 4)), torch.randn(5, 8)),
        "conv1d": (lt.QuantizedConv1d.from_float(nn.Conv1d(3, 4, 3)), torch.randn(2, 3, 8)),
        "conv2d": (lt.QuantizedConv2d.from_float(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 6, 6)),
    }


@pytest.fixture(params=["linear", "conv1d", "conv2d"])
def layer(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    return modules()[request.param]


@pytest.mark.filterwarnings("error")
def test_a_module_under_vmap_is_a_loop(layer: tuple[nn.Module, Tensor]) -> None:
    module, x = layer
    batch = torch.stack([x, 3 * x, x.flip(0)])
    assert torch.equal(torch.vmap(module)(batch), torch.stack([module(one) for one in batch]))


def test_a_module_functionalized_gives_the_same(layer: tuple[nn.Module, Tensor]) -> None:
    module, x = layer
    assert torch.equal(torch.func.functionalize(module)(x), module(x))


def test_a_dispatch_mode_sees_a_modules_operator(layer: tuple[nn.Module, Tensor]) -> None:
    module, x = layer
    with Seen() as seen:
        y = module(x)
    assert any(name.startswith("lowbit.quantized_") for name in seen.names)
    assert torch.equal(y, module(x))


def test_a_module_refuses_forward_mode(layer: tuple[nn.Module, Tensor]) -> None:
    module, x = layer
    with pytest.raises(Unsupported, match=r"quantized_\w+: .*forward-mode"):
        torch.func.jvp(module, (x,), (torch.ones_like(x),))
    with forward_ad.dual_level(), pytest.raises(Unsupported, match=r"quantized_\w+: .*forward-mode"):
        module(forward_ad.make_dual(x, torch.ones_like(x)))


def test_a_module_refuses_func_grad(layer: tuple[nn.Module, Tensor]) -> None:
    module, x = layer
    with pytest.raises(Unsupported, match=r"quantized_\w+: .*prepare_qat"):
        torch.func.grad(lambda x: module(x).sum())(x)


# ---- what training became -------------------------------------------------------------------------------------------


def converted() -> tuple[nn.Module, Callable[[], nn.Module], Tensor]:
    """A trained model, what makes it one for inference, and data."""
    x = torch.randn(5, 8)
    trained, _ = lt.prepare_qat(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)))
    trained(x)
    return trained.eval(), lambda: lt.convert(trained), x


def on_meta(model: nn.Module, x: Tensor) -> None:
    with torch.device("meta"):
        model(x)


FIRST_USES: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "functionalize": lambda model, x: torch.func.functionalize(model)(x),
    "vmap": lambda model, x: torch.vmap(model)(x),
    "jvp": lambda model, x: torch.func.jvp(model, (x,), (x,)),
    "inference_mode": lambda model, x: torch.inference_mode()(model)(x),
    "meta device": on_meta,
    "jit.trace": lambda model, x: torch.jit.trace(model, (x,)),
    "export": lambda model, x: torch.export.export(model, (x,)),
    "strict export": lambda model, x: torch.export.export(model, (x,), strict=True),
    "compile": lambda model, x: torch.compile(model, backend="aot_eager", fullgraph=True)(x),
}


@pytest.mark.parametrize("use", FIRST_USES)
def test_a_converted_model_is_the_same_whatever_first_used_it(use: str) -> None:
    trained, make, x = converted()
    model = make()
    FIRST_USES[use](model, x)
    leaf = x.clone().requires_grad_()
    y = model(leaf)
    assert torch.equal(y, trained(x))
    y.sum().backward()
    assert torch.equal(leaf.grad, gradient_of(trained, x, torch.ones_like(y)))


def test_a_model_converted_for_inference_still_passes_gradients() -> None:
    trained, make, x = converted()
    with torch.inference_mode():
        model = make()
    assert torch.equal(gradient_of(model, x, torch.ones(5, 4)), gradient_of(trained, x, torch.ones(5, 4)))


def test_a_converted_model_is_exported_with_its_weights() -> None:
    trained, make, x = converted()
    file = io.BytesIO()
    torch.export.save(torch.export.export(make(), (x,)), file)
    file.seek(0)
    assert torch.equal(torch.export.load(file).module()(other(x)), trained(other(x)))
