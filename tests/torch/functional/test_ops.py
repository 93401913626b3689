"""The torch operators: the contract's numbers to the bit, its gradients, and what torch asks of an operator."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from strategies import hard_values

torch = pytest.importorskip("torch")

import lowbit as lb  # noqa: E402
import lowbit.torch as lt  # noqa: E402
from lowbit import InvalidProblem, QuantizationParams, Unsupported, reference  # noqa: E402
from lowbit.numerics.granularity import granularity_of  # noqa: E402

torch.set_num_threads(1)

# How each granularity is asked for, and the shape its scales have over an array of SHAPE.
SHAPE = (3, 4, 10)
GRANULARITIES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "tensor": ({}, ()),
    "channel": ({"axis": 1}, (4,)),
    "last channel": ({"axis": -1}, (10,)),
    "group": ({"axis": -1, "group_size": 4}, (3, 4, 3)),
    "group of a middle axis": ({"axis": 1, "group_size": 3}, (3, 2, 10)),
    "token": ({"per_token": True}, (3, 4)),
}
FLOATS = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.float16: np.float16,
    torch.bfloat16: ml_dtypes.bfloat16,
}
INT4 = {"qmin": -8, "qmax": 7}


@pytest.fixture(params=GRANULARITIES)
def granularity(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=FLOATS, ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


def case(granularity: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Hard values, scales, zero points and options of one granularity."""
    options, shape = GRANULARITIES[granularity]
    rng = np.random.default_rng(7)
    x = torch.from_numpy(hard_values(rng, SHAPE, 0.1, np.dtype(np.float64))).to(dtype)
    scale = torch.from_numpy(rng.uniform(0.05, 0.2, shape)).to(wide(dtype))
    zero = torch.from_numpy(np.asarray(rng.integers(-8, 8, shape), np.int32))
    return x, scale, zero, {**options, **INT4}


def gradient(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(8).standard_normal(shape)).to(dtype)


def array(t: torch.Tensor) -> np.ndarray[Any, Any]:
    """The same numbers as a NumPy array, bfloat16 too."""
    t = t.detach()
    return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if t.dtype is torch.bfloat16 else t.numpy()


def same(a: torch.Tensor, b: np.ndarray[Any, Any]) -> None:
    """Equal to the bit, -0 apart from +0; any NaN is as good as another."""
    got = array(a)
    assert got.dtype == b.dtype
    assert got.shape == b.shape
    nan = np.isnan(got)
    np.testing.assert_array_equal(nan, np.isnan(b))
    np.testing.assert_array_equal(got[~nan].tobytes(), b[~nan].tobytes())


def by_reference(name: str, granularity: str, dtype: torch.dtype, *first: torch.Tensor) -> Any:
    """A function of lowbit.reference on the same case."""
    x, scale, zero, options = case(granularity, dtype)
    shape = SHAPE
    if options.pop("per_token", False):
        options["axis"], shape = 0, (12, 10)
    g = granularity_of(shape, options.get("axis"), options.get("group_size"))
    arrays = [array(t).reshape(shape) for t in (*first, x)]
    s, z = array(scale).reshape(g.scale_shape), zero.numpy().reshape(g.scale_shape)
    return getattr(reference, name)(*arrays, s, z, *INT4.values(), g)


# ---- numbers --------------------------------------------------------------------------------------------


def test_fake_quantize_is_the_reference_to_the_bit(granularity: str, dtype: torch.dtype) -> None:
    x, scale, zero, options = case(granularity, dtype)
    x.requires_grad_()
    y = lt.fake_quantize(x, scale, zero, **options)
    same(y, by_reference("fake_quantize", granularity, dtype).reshape(SHAPE))
    dy = gradient(SHAPE, dtype)
    y.backward(dy)
    same(x.grad, by_reference("fake_quantize_backward", granularity, dtype, dy).reshape(SHAPE))


def test_learned_is_the_reference_to_the_bit(granularity: str, dtype: torch.dtype) -> None:
    x, scale, zero, options = case(granularity, dtype)
    zero = zero.to(scale.dtype)
    for t in (x, scale, zero):
        t.requires_grad_()
    y = lt.fake_quantize_learned(x, scale, zero, **options)
    same(y, by_reference("fake_quantize", granularity, dtype).reshape(SHAPE))
    dy = gradient(SHAPE, dtype)
    y.backward(dy)
    dx, ds, dz = by_reference("fake_quantize_learned_backward", granularity, dtype, dy)
    same(x.grad, dx.reshape(SHAPE))
    same(scale.grad, ds.reshape(scale.shape))
    same(zero.grad, dz.reshape(zero.shape))


def test_codes_as_integers_and_as_floats(granularity: str, dtype: torch.dtype) -> None:
    x, scale, zero, options = case(granularity, dtype)
    codes = lt.quantize(x, scale, zero, **options)
    assert codes.dtype is torch.int8
    x.requires_grad_()
    floats = lt.quantize_ste(x, scale, zero, **options)
    same(floats, array(codes.to(dtype)))
    dy = gradient(SHAPE, dtype)
    floats.backward(dy)
    same(x.grad, by_reference("quantize_backward", granularity, dtype, dy).reshape(SHAPE))

    del options["qmin"], options["qmax"]
    y = lt.dequantize(codes, scale, zero, dtype=dtype, **options)
    fake = lt.fake_quantize(x.detach(), scale, zero, **options, **INT4)
    same(y.masked_fill(x.isnan(), 0), array(fake.masked_fill(x.isnan(), 0)))
    leaf = floats.detach().requires_grad_()
    back = lt.dequantize_ste(leaf, scale, zero, **options)
    same(back, array(y))
    back.backward(dy)
    expected = dy.to(wide(dtype)) * spread(scale, granularity)
    same(leaf.grad, array(expected.to(dtype)))


@pytest.mark.parametrize(("qmin", "qmax", "expected"), [
    (-8, 7, torch.int8), (0, 255, torch.uint8), (-200, 200, torch.int16), (0, 65535, torch.uint16),
])  # fmt: skip
def test_codes_take_the_narrowest_type(qmin: int, qmax: int, expected: torch.dtype) -> None:
    codes = lt.quantize(torch.tensor([-1e9, 1e9]), 1.0, qmin=qmin, qmax=qmax)
    assert codes.dtype is expected
    assert codes.tolist() == [qmin, qmax]


def test_numbers_and_tensors_mean_the_same(dtype: torch.dtype) -> None:
    x = torch.linspace(-2, 2, 33, dtype=dtype)
    same(lt.fake_quantize(x, 0.1, 3), array(lt.fake_quantize(x, torch.tensor(0.1, dtype=wide(dtype)), torch.tensor(3))))


def test_strided_input() -> None:
    x = torch.randn(4, 6, 8).transpose(0, 2)
    assert not x.is_contiguous()
    y = lt.fake_quantize(x, 0.1, axis=0, qmin=-8, qmax=7)
    assert torch.equal(y, lt.fake_quantize(x.contiguous(), 0.1, axis=0, qmin=-8, qmax=7))
    leaf = x.detach().requires_grad_()
    lt.fake_quantize(leaf, 0.1).sum().backward()  # the gradient of a sum has strides of 0
    assert torch.equal(leaf.grad, torch.ones_like(x))


# ---- gradients ------------------------------------------------------------------------------------------


def spread(values: torch.Tensor, granularity: str) -> torch.Tensor:
    """Scales as an array of SHAPE, said in another way than the library does."""
    options, _ = GRANULARITIES[granularity]
    if options.get("per_token"):
        return values[..., None].expand(SHAPE)
    if "group_size" in options:
        return values.repeat_interleave(options["group_size"], options["axis"]).narrow(
            options["axis"], 0, SHAPE[options["axis"]]
        )
    return (
        values.expand(SHAPE)
        if values.ndim == 0
        else values.movedim(0, -1).reshape([-1 if d == options["axis"] % 3 else 1 for d in range(3)]).expand(SHAPE)
    )


def total(terms: torch.Tensor, like: torch.Tensor, granularity: str) -> torch.Tensor:
    """Sums of the terms that share a scale: the transpose of `spread`."""
    leaf = torch.zeros_like(like).requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(spread(leaf, granularity), leaf, terms)[0]


def test_gradients_are_the_contract_written_in_torch(granularity: str) -> None:
    x, scale, zero, options = case(granularity, torch.float64)
    x = x.nan_to_num(0.3, 5.0, -5.0)
    x = x.clamp(-40, 40).requires_grad_()
    scale.requires_grad_()
    zero = zero.double().requires_grad_()
    dy = gradient(SHAPE, torch.float64)
    lt.fake_quantize_learned(x, scale, zero, **options).backward(dy)
    with torch.no_grad():
        s, z = spread(scale, granularity), spread(zero, granularity)
        code = torch.round(x / s) + z
        inside, below = (code >= -8) & (code <= 7), code < -8
        t = torch.where(inside, torch.round(x / s) - x / s, torch.where(below, -8 - z, 7 - z))
        assert torch.equal(x.grad, torch.where(inside, dy, 0))
        torch.testing.assert_close(scale.grad, total(dy * t, scale, granularity), rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(
            zero.grad, total(torch.where(inside, 0, -s * dy), zero, granularity), rtol=1e-13, atol=1e-13
        )


def unrounded(x: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """fake_quantize with its rounding left out: smooth but for the two ends of the range."""
    return torch.clamp(x / s, -8 - z, 7 - z) * s


def test_where_rounding_does_nothing_the_gradient_is_the_derivative() -> None:
    """On the grid x = k * s the rounding-free function has the same value, and x, s and z the same derivative:
    dx = 1 and ds = k - x/s = 0 inside, dx = 0, ds = qmin - z or qmax - z and dz = -s outside."""
    s = torch.tensor(0.25, dtype=torch.float64, requires_grad=True)
    z = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    k = torch.tensor([-14, -12, -11, -9, -3, 0, 1, 4, 6, 7, 40], dtype=torch.float64)  # inside is [-10, 5]
    x = (k * 0.25).requires_grad_()
    assert torch.autograd.gradcheck(unrounded, (x, s, z))
    dy = gradient(tuple(x.shape), torch.float64)
    expected = torch.autograd.grad(unrounded(x, s, z), (x, s, z), dy)
    got = torch.autograd.grad(lt.fake_quantize_learned(x, s, z, qmin=-8, qmax=7), (x, s, z), dy)
    assert torch.equal(lt.fake_quantize(x, s, 2, qmin=-8, qmax=7), unrounded(x, s, z))
    for mine, true in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-15, atol=1e-15)


def test_between_grid_points_the_scale_gradient_is_that_of_a_frozen_rounding() -> None:
    """LSQ holds the rounding's error e = rne(x/s) - x/s still: y = (x/s + e) * s, so dy/ds = (x/s + e) - x/s."""
    x = torch.linspace(-1.9, 1.2, 37, dtype=torch.float64)
    s = torch.tensor(0.25, dtype=torch.float64, requires_grad=True)
    error = (torch.round(x / s) - x / s).detach()
    dy = gradient(tuple(x.shape), torch.float64)

    def frozen(scale: torch.Tensor) -> torch.Tensor:
        return (x / s.detach() + error) * scale - (scale - s.detach()) * x / s.detach()

    assert torch.autograd.gradcheck(frozen, s)
    expected = torch.autograd.grad(frozen(s), s, dy)[0]
    got = torch.autograd.grad(lt.fake_quantize_learned(x, s, qmin=-8, qmax=7), s, dy)[0]
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-13)


def test_a_clipped_place_gives_zero_whatever_comes_back() -> None:
    x = torch.tensor([9.0, -9.0, float("nan"), float("inf"), 0.1], requires_grad=True)
    for function in (lt.fake_quantize, lt.quantize_ste):
        x.grad = None
        function(x, 0.5, qmin=-2, qmax=2).backward(torch.full((5,), float("inf")))
        assert x.grad.tolist() == [0, 0, 0, 0, float("inf")]


def test_a_scale_for_all_learns_from_all_channels() -> None:
    x = torch.randn(4, 6, dtype=torch.float64)
    one = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
    lt.fake_quantize_learned(x, one, axis=0, qmin=-8, qmax=7).sum().backward()
    each = torch.full((4,), 0.1, dtype=torch.float64, requires_grad=True)
    lt.fake_quantize_learned(x, each, axis=0, qmin=-8, qmax=7).sum().backward()
    torch.testing.assert_close(one.grad, each.grad.sum())


def test_gradient_scale_multiplies_what_the_scale_learns() -> None:
    s = torch.tensor(0.1, requires_grad=True)
    x = torch.randn(100)
    plain = torch.autograd.grad(lt.fake_quantize_learned(x, s).sum(), s)[0]
    assert torch.equal(torch.autograd.grad(lt.fake_quantize_learned(x, s, gradient_scale=0.5).sum(), s)[0], plain * 0.5)


def test_learned_parameters_stay_in_range_and_keep_learning() -> None:
    s = torch.tensor(-1.0, requires_grad=True)
    z = torch.tensor(300.0, requires_grad=True)
    y = lt.fake_quantize_learned(torch.tensor([1.0, -1.0]), s, z, qmin=0, qmax=255)
    y.backward(torch.tensor([0.0, 1.0]))
    assert torch.isfinite(y).all()
    assert s.grad.item() == -255


@pytest.mark.parametrize("function", [lt.fake_quantize, lt.quantize_ste, lt.dequantize_ste])
def test_second_derivatives_are_right(function: Any) -> None:
    """Each gradient is linear in dy: its derivative by dy is itself, and none by x."""
    x = torch.randn(20, dtype=torch.float64, requires_grad=True)
    dy = torch.randn(20, dtype=torch.float64, requires_grad=True)
    dx = torch.autograd.grad(function(x, 0.1), x, dy, create_graph=True)[0]
    v = torch.randn(20, dtype=torch.float64)
    got = torch.autograd.grad(dx, dy, v)[0]
    torch.testing.assert_close(got, v * (dx / dy).detach())


def test_second_derivative_of_a_learned_scale_is_refused() -> None:
    s = torch.tensor(0.1, requires_grad=True)
    ds = torch.autograd.grad(lt.fake_quantize_learned(torch.randn(5), s).square().sum(), s, create_graph=True)[0]
    with pytest.raises(Unsupported, match="second derivative"):
        ds.backward()


# ---- where torch's own fake quantization differs; these pin what ours does ------------------------------


def test_torch_multiplies_by_the_reciprocal() -> None:
    """torch rounds x * (1 / s): another code where that product falls on the other side of a tie."""
    s = torch.tensor(0.3)
    x = (torch.arange(0, 43) + 0.5) * s
    ours = lt.fake_quantize(x, s)
    torchs = torch.fake_quantize_per_tensor_affine(x, 0.3, 0, -128, 127)
    assert torch.equal(ours, torch.round(x / s) * s)
    assert (ours != torchs).nonzero().flatten().tolist() == [7, 12, 22, 27, 30, 42]


def test_special_values_beside_torchs() -> None:
    x = torch.tensor([float("nan"), float("inf"), float("-inf")])
    ours = lt.fake_quantize(x, 0.5, qmin=-2, qmax=2)
    assert ours[0].isnan()
    assert ours[1:].tolist() == [1, -1]
    channel = torch.fake_quantize_per_channel_affine(
        x[:, None], torch.full((3,), 0.5), torch.zeros(3, dtype=torch.int32), 0, -2, 2
    )
    assert channel[1].item() == -1  # torch clips +Inf to the least code, channel-wise
    assert lt.fake_quantize(x[:, None], torch.full((3,), 0.5), axis=0, qmin=-2, qmax=2)[1].item() == 1


# ---- what torch asks of an operator ---------------------------------------------------------------------


OPERATORS = ("fake_quantize", "fake_quantize_learned", "quantize", "quantize_ste", "dequantize", "dequantize_ste")


def operator_calls(granularity: str) -> dict[str, tuple[Any, ...]]:
    """Arguments for each operator, as the public functions give them."""
    x, scale, zero, options = case(granularity)
    x = x.nan_to_num(0.3, 5.0, -5.0)
    axis, block = options.get("axis"), options.get("group_size")
    if options.get("per_token"):
        x, scale, zero, axis = x.flatten(0, -2), scale.flatten(), zero.flatten(), 0
    dy = torch.randn_like(x)
    leaf, learned = x.clone().requires_grad_(), scale.clone().requires_grad_()
    codes = torch.randint(-8, 8, x.shape, dtype=torch.int8)
    ends = (-8, 7, axis, block)
    return {
        "fake_quantize": (leaf, scale, zero, *ends),
        "fake_quantize_backward": (dy.clone().requires_grad_(), x, scale, zero, *ends),
        "keep_where": (dy.clone().requires_grad_(), torch.randint(0, 256, (x.numel() // 8,), dtype=torch.uint8)),
        "fake_quantize_learned": (leaf, learned, zero.float().requires_grad_(), *ends, 0.5),
        "fake_quantize_learned_backward": (dy, x, scale, zero.float(), *ends, 0.5),
        "quantize": (x, scale, zero, *ends, torch.int8),
        "quantize_ste": (leaf, scale, zero, *ends),
        "quantize_ste_backward": (dy.clone().requires_grad_(), x, scale, zero, *ends),
        "dequantize": (codes, scale, zero, axis, block, torch.float32),
        "dequantize_ste": (codes.float().requires_grad_(), scale, zero, axis, block),
        "dequantize_ste_backward": (dy.clone().requires_grad_(), scale, axis, block),
        "range_params": (x, -8, 7, False, axis, block, "x", False),
        "affine_params": (-scale, scale, -8, 7, False),
        "observe_": (
            x,
            torch.full_like(scale, torch.inf),
            torch.full_like(scale, -torch.inf),
            torch.zeros((), dtype=torch.int64),
            0.1,
            axis,
            block,
            "x",
            False,
        ),
    }


@pytest.mark.parametrize("name", sorted(operator_calls("tensor")))
def test_opcheck(name: str, granularity: str) -> None:
    arguments = operator_calls(granularity)[name]
    torch.library.opcheck(getattr(torch.ops.lowbit, name).default, arguments)


def steps(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, **options: Any) -> torch.Tensor:
    """Every function in one."""
    ends = {k: options[k] for k in ("qmin", "qmax")}
    where = {k: v for k, v in options.items() if k not in ends}
    y = lt.fake_quantize(x * 1.5, scale, zero, **options)
    y = lt.fake_quantize_learned(y + x, scale, zero, **options)
    y = lt.dequantize_ste(lt.quantize_ste(y, scale, zero, **options), scale, zero, **where)
    return y + lt.dequantize(lt.quantize(x, scale, zero, **options), scale, zero, **where)


def assert_compiled_is_eager(backend: str, granularity: str) -> None:
    x, scale, zero, options = case(granularity)
    x = x.nan_to_num(0.3, 5.0, -5.0)

    def run(function: Any) -> list[torch.Tensor]:
        leaf, learned = x.clone().requires_grad_(), scale.clone().requires_grad_()
        y = function(leaf, learned, zero, **options)
        y.square().sum().backward()
        return [y.detach(), leaf.grad, learned.grad]

    torch.compiler.reset()
    compiled = run(torch.compile(steps, fullgraph=True, backend=backend))
    for a, b in zip(compiled, run(steps), strict=True):
        assert torch.equal(a, b)


def test_compiled_whole_and_equal(granularity: str) -> None:
    assert_compiled_is_eager("aot_eager", granularity)


def test_inductor_gives_the_same() -> None:
    assert_compiled_is_eager("inductor", "group")


@pytest.mark.deep
def test_inductor_gives_the_same_everywhere(granularity: str) -> None:
    assert_compiled_is_eager("inductor", granularity)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(10, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = lt.fake_quantize(self.linear.weight, 0.01, axis=0)
        return torch.nn.functional.linear(lt.fake_quantize(x, 0.1, 3, per_token=True), weight)


def test_exported_program_runs() -> None:
    net, x = Net(), torch.randn(3, 10)
    program = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert "lowbit.fake_quantize" in str(program.graph)
    for batch in (3, 7):
        x = torch.randn(batch, 10)
        assert torch.equal(program.module()(x), net(x))


def test_autocast_keeps_the_input_type(dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 9, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = lt.fake_quantize(x, 0.1)
    assert inside.dtype is dtype
    same(inside, array(lt.fake_quantize(x, 0.1)))


def test_meta_tensors_have_shapes_only() -> None:
    y = lt.fake_quantize(torch.empty(3, 4, device="meta"), 0.1)
    assert y.shape == (3, 4)
    assert y.device.type == "meta"


def test_other_devices_are_named() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), pytest.raises(Unsupported, match="x: on xpu"):
        lt.fake_quantize(torch.empty(3, device="xpu"), 0.1)


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: lt.fake_quantize(x.numpy(), 0.1), "x: ndarray"),
    (lambda x: lt.fake_quantize(x, 0.1, axis=0, per_token=True), "per_token"),
    (lambda x: lt.fake_quantize(x, torch.ones(5), axis=0), "scale: shape"),
    (lambda x: lt.fake_quantize(x, torch.ones(5), per_token=True), "scale: shape"),
    (lambda x: lt.fake_quantize_learned(x, torch.ones(5), axis=0), "scale: shape"),
    (lambda x: lt.fake_quantize(x, 0.1, qmin=3, qmax=2), "qmin"),
    (lambda x: lt.quantize(x, 0.1, qmin=0, qmax=70000), "qmin, qmax"),
    (lambda x: lt.fake_quantize(x, 0.1, axis=3), "axis"),
    (lambda x: torch.ops.lowbit.fake_quantize_backward(x[:2], x, x[0, 0] + 1, x[0, 0].int(), -8, 7, None, None), "dy"),
])  # fmt: skip
def test_errors_name_the_argument(call: Any, message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        call(torch.zeros(3, 4))


@pytest.mark.parametrize("call", [
    lambda x: lt.fake_quantize(x.int(), 0.1), lambda x: lt.dequantize(x, 0.1),
    lambda x: lt.quantize(x, 0.1, dtype=torch.int32),
])  # fmt: skip
def test_types_without_meaning_are_refused(call: Any) -> None:
    with pytest.raises(TypeError, match="expected"):
        call(torch.zeros(3))


# ---- tensors as `out=` of lowbit's own functions ---------------------------------------------------------------------


WITH_OUT = {
    "dequantize": lambda x, out: lb.dequantize(lb.quantize(x), out=out),
    "dequantize method": lambda x, out: lb.quantize(x).dequantize(out=out),
    "fake_quantize": lambda x, out: lb.fake_quantize(x, 0.1, out=out),
    "fake_quantize_backward": lambda x, out: lb.fake_quantize_backward(x, x, 0.1, out=out),
    "quantize_backward": lambda x, out: lb.quantize_backward(x, x, 0.1, out=out),
    "dequantize_backward": lambda x, out: lb.dequantize_backward(x, 0.1, out=out),
    "fake_quantize_learned_backward": lambda x, out: lb.fake_quantize_learned_backward(x, x, 0.1, out=out),
}


@pytest.mark.parametrize("name", WITH_OUT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_tensor_that_autograd_follows_is_not_written_into(name: str, dtype: torch.dtype) -> None:
    x = torch.linspace(-1, 1, 9, dtype=dtype)
    leaf = torch.full((9,), 5.0, dtype=dtype, requires_grad=True)
    for out in (leaf, leaf * 1):
        for given in (x, x.float().numpy()) if dtype is torch.float32 else (x,):
            with pytest.raises(InvalidProblem, match=r"^out: requires grad; .*out\.detach\(\)"):
                WITH_OUT[name](given, out)
        with torch.no_grad(), pytest.raises(InvalidProblem, match=r"^out: requires grad"):
            WITH_OUT[name](x, out)
        assert torch.equal(out.detach(), torch.full((9,), 5.0, dtype=dtype))
    WITH_OUT[name](x, leaf.detach())
    assert not torch.equal(leaf.detach(), torch.full((9,), 5.0, dtype=dtype))


# ---- zero points and scales that are none ----------------------------------------------------------------------------


# Each function of a zero point, of x and that.
WITH_ZERO_POINT = {
    "fake_quantize": lambda x, z, **where: lt.fake_quantize(x, 0.1, z, **where),
    "fake_quantize_learned": lambda x, z, **where: lt.fake_quantize_learned(x, torch.tensor(0.1), z, **where),
    "quantize": lambda x, z, **where: lt.quantize(x, 0.1, z, **where),
    "quantize_ste": lambda x, z, **where: lt.quantize_ste(x, 0.1, z, **where),
    "dequantize": lambda x, z, **where: lt.dequantize(x.to(torch.int8), 0.1, z, **where),
    "dequantize_ste": lambda x, z, **where: lt.dequantize_ste(x, 0.1, z, **where),
}


@pytest.mark.parametrize("name", WITH_ZERO_POINT)
@pytest.mark.parametrize("zero", [2.7, np.float32(2.7), np.array(2.7), float("nan"), float("inf"), torch.tensor(2.7)])
def test_a_zero_point_is_not_cut_to_an_integer(name: str, zero: Any) -> None:
    if name == "fake_quantize_learned" and isinstance(zero, torch.Tensor):
        pytest.skip("which rounds it, and lets it learn")
    with pytest.raises(InvalidProblem, match=r"zero_point: .*expected (an )?integer"):
        WITH_ZERO_POINT[name](torch.ones(3), zero)
    for options in ({"axis": 0}, {"axis": 0, "group_size": 1}, {"per_token": True}):
        zeros = zero.expand(3) if isinstance(zero, torch.Tensor) else [0, 1, float(zero)]
        with pytest.raises(InvalidProblem, match=r"zero_point: .*expected (an )?integer"):
            WITH_ZERO_POINT[name](
                torch.ones(3, 1), zeros if "group_size" not in options else [[z] for z in zeros], **options
            )


@pytest.mark.parametrize("name", WITH_ZERO_POINT)
@pytest.mark.parametrize(
    "zero", [2**31, -(2**31) - 1, 2**64 - 5, 2**80, np.uint64(2**64 - 5), torch.tensor(2**40), 1e20]
)
def test_a_zero_point_does_not_wrap_around(name: str, zero: Any) -> None:
    with pytest.raises(InvalidProblem, match="zero_point: "):
        WITH_ZERO_POINT[name](torch.ones(3), zero)


@pytest.mark.parametrize("name", WITH_ZERO_POINT)
@pytest.mark.parametrize("zero", [2.0, np.float64(2), np.uint64(2), np.int8(2), np.array([2]), [2], torch.tensor(2.0)])
def test_a_zero_point_may_be_any_integer_that_is_one(name: str, zero: Any) -> None:
    x = torch.linspace(-2, 2, 9)
    assert torch.equal(WITH_ZERO_POINT[name](x, zero), WITH_ZERO_POINT[name](x, 2))


def test_a_learned_zero_point_that_is_lost_is_named() -> None:
    with pytest.raises(InvalidProblem, match="zero_point: nan"):
        lt.fake_quantize_learned(torch.ones(3), torch.tensor(0.1), torch.tensor(float("nan")))


@pytest.mark.parametrize("scale", [None, "0.1", [[0.1], [0.1, 0.2]], object()])
def test_a_scale_that_is_no_number_is_named(scale: Any) -> None:
    with pytest.raises(InvalidProblem, match="scale: "):
        lt.fake_quantize(torch.ones(3), scale)


def test_codes_agree_with_quantized_tensors() -> None:
    x = torch.randn(6, 8)
    params = QuantizationParams(
        "uint8", "asymmetric", scale=np.full(6, 0.05, np.float32), zero_point=np.arange(6), axis=0
    )
    codes = lt.quantize(x, torch.full((6,), 0.05), torch.arange(6), qmin=0, qmax=255, axis=0)
    np.testing.assert_array_equal(codes.numpy(), lb.quantize(x, params=params).unpack())
