"""Quantization-aware training: observers, quantizers, layers, and whole models from preparing to converting."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import lowbit.torch as lt  # noqa: E402
from lowbit import InvalidProblem, QuantizationParams  # noqa: E402
from lowbit.numerics.ranges import MAX_SCALE, affine_from_range  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)

DTYPES = ("int8", "uint8", "int4", "uint4", "int2", "uint2")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))


class ConvNet(nn.Module):
    """Convolutions with batch norms: one in a Sequential, one by attributes, one that must not be folded."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 1)
        self.bn2 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        x = torch.relu(self.bn1(self.conv1(x)))
        y = self.conv2(x)
        x = self.bn2(y) + y  # y has two users
        return self.head(x.mean((2, 3)))


class Conv1dNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6), nn.Flatten(), nn.Linear(36, 2))


def train(model: nn.Module, x: torch.Tensor, steps: int = 3, lr: float = 0.05) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


MODELS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "mlp": (mlp, (5, 8)), "convnet": (ConvNet, (2, 3, 6, 6)), "conv1d": (Conv1dNet, (4, 3, 8)),
}  # fmt: skip
RECIPES: dict[str, dict[str, Any]] = {
    "int8": {},
    "int4 in groups": {"weight": "int4", "weight_block": 4},
    "weight only": {"weight": "uint4", "activation": None},
    "learned": {"weight": "int4", "learned": True},
    "one scale, signed inputs": {"weight_axis": None, "activation": "int8", "observer": "min_max"},
}


def prepared(model: str, recipe: str) -> tuple[nn.Module, torch.Tensor]:
    make, shape = MODELS[model]
    net, _ = lt.prepare_qat(make(), RECIPES[recipe])
    x = torch.randn(shape)
    train(net, x)
    return net, x


# ---- observers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"axis": 1}, {"axis": -1, "group_size": 3}])
@pytest.mark.parametrize("symmetric", [True, False])
def test_min_max_covers_all_it_saw_by_the_formulas_of_ranges(options: dict[str, Any], symmetric: bool) -> None:
    o = lt.MinMax(**options)
    batches = [torch.randn(4, 5, 7) * k for k in (1, 3, 2)]
    for b in batches:
        assert o(b) is b
    whole = torch.stack(batches)
    if not options:
        lo, hi = whole.min(), whole.max()
    elif "group_size" not in options:
        lo, hi = whole.amin((0, 1, 3)), whole.amax((0, 1, 3))
    else:
        parts = whole.split(3, -1)
        lo, hi = (torch.stack([f(p, (0, -1)) for p in parts], -1) for f in (torch.amin, torch.amax))
    assert torch.equal(o.lo, lo)
    assert torch.equal(o.hi, hi)
    qmin, qmax = (-7, 7) if symmetric else (0, 15)
    expected = affine_from_range(lo.numpy(), hi.numpy(), qmin, qmax, symmetric=symmetric)
    for got, want in zip(o.params(qmin, qmax, symmetric), expected, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("symmetric", [True, False])
def test_params_are_those_of_ranges_at_the_edges(symmetric: bool) -> None:
    """The short way for ordinary ranges and the long one for the rest give the same numbers."""
    rng = np.random.default_rng(3)
    ends = [
        0.0,
        0.0,
        1e-45,
        1e-38,
        2.0**-125,
        1.0,
        255.0,
        1e30,
        *(rng.standard_normal(200) * 10.0 ** rng.integers(-6, 6, 200)),
    ]
    for kind in (np.float32, np.float64):
        lo, hi = -np.abs(np.array(ends, kind)), np.abs(rng.permutation(np.array(ends, kind)))
        lo[::7] *= -1  # ranges that leave 0 out
        lo, hi = np.minimum(lo, hi), np.maximum(lo, hi)
        qmin, qmax = (-127, 127) if symmetric else (-128, 127)
        for a, b in [(lo, hi), *((np.array(x), np.array(y)) for x, y in zip(lo, hi, strict=True))]:
            scale, zero = affine_from_range(a, b, qmin, qmax, symmetric=symmetric)
            got = torch.ops.lowbit.affine_params(torch.from_numpy(a), torch.from_numpy(b), qmin, qmax, symmetric)
            np.testing.assert_array_equal(got[0].numpy(), scale)
            np.testing.assert_array_equal(got[1].numpy(), zero)
            assert got[0].numpy().dtype == scale.dtype


def test_moving_average_starts_at_the_first_range_and_moves() -> None:
    o = lt.MovingAverage(0.25, axis=0)
    o(torch.tensor([[-1.0, 2.0], [0.0, 4.0]]))
    assert o.hi.tolist() == [2, 4]
    o(torch.tensor([[-3.0, 4.0], [0.0, 0.0]]))
    assert o.lo.tolist() == [-1.5, 0]
    assert o.hi.tolist() == [2.5, 3]


@pytest.mark.parametrize("make", [lt.MinMax, lt.MovingAverage, lt.Histogram])
def test_observers_leave_out_what_is_not_finite_if_told_to(make: Any) -> None:
    o = make()
    for bad in ("nan", "inf"):
        with pytest.raises(InvalidProblem, match=rf"x: {bad} at index \(1,\)"):
            o(torch.tensor([1.0, float(bad)]))
    assert not o.ready()
    o.ignore_nonfinite = True
    o(torch.tensor([1.0, float("nan"), -2.0]))
    o(torch.tensor([float("inf"), 0.0]))
    assert (o.lo.item(), o.hi.item(), o.left_out.item()) == (-2, 1, 1)


def test_what_is_not_finite_is_named() -> None:
    model, _ = lt.prepare_qat(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    with pytest.raises(InvalidProblem, match=r"0\.input: inf at index \(0, 1\)"):
        model(torch.tensor([[1.0, float("inf")]]))
    with torch.no_grad():
        model[1].weight[1, 0] = float("nan")
    with pytest.raises(InvalidProblem, match=r"1\.weight: nan at index \(1, 0\)"):
        model(torch.ones(1, 2))


def test_all_zero_data_gets_scale_one() -> None:
    fq = lt.FakeQuantize("uint8", "asymmetric")
    assert fq(torch.zeros(3)).tolist() == [0, 0, 0]
    assert (fq.scale.item(), fq.zero_point.item()) == (1, 0)


@pytest.mark.parametrize("axis", [None, 1])
def test_histogram_grows_without_losing_a_count(axis: int | None) -> None:
    o = lt.Histogram(bins=64, axis=axis)
    seen = 0
    for k in (1e-6, 1.0, 3.0, 0.1, 1000.0):
        x = torch.randn(50, 2) * k
        o(x)
        seen += x.numel()
        assert o.counts.sum().item() == seen
    left = o.first.double() * 2.0**o.exponent
    right = (o.first + 64).double() * 2.0**o.exponent
    assert (left <= o.lo.reshape(-1)).all()
    assert (right > o.hi.reshape(-1)).all()


def test_histogram_counts_land_in_their_bins() -> None:
    """Counted in one go or in pieces of growing range, the counts are the same."""
    x = torch.cat([torch.randn(500) * 0.1, torch.randn(100) * 8])
    once, pieces = lt.Histogram(bins=128), lt.Histogram(bins=128)
    once(x)
    for part in x.split(100):
        pieces(part)
    assert once.exponent == pieces.exponent
    assert once.first == pieces.first
    assert torch.equal(once.counts, pieces.counts)


@pytest.mark.parametrize("symmetric", [True, False])
def test_histogram_clips_outliers_where_that_loses_less(symmetric: bool) -> None:
    x = torch.cat([torch.randn(20000), torch.tensor([40.0])])
    codes = (-7, 7) if symmetric else (0, 15)
    errors = {}
    for o in (lt.MinMax(), lt.Histogram()):
        o(x)
        s, z = o.params(*codes, symmetric)
        errors[type(o)] = (lt.fake_quantize(x, s, z, qmin=codes[0], qmax=codes[1]) - x).square().mean().item()
    assert errors[lt.Histogram] < errors[lt.MinMax] / 3


# ---- quantizers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": -1, "group_size": 4}])
def test_static_and_dynamic_agree_with_params_from_statistics(dtype: str, scheme: str, options: dict[str, Any]) -> None:
    x = torch.randn(6, 10)
    fq = lt.FakeQuantize(dtype, scheme, observer="min_max", **options)
    y = fq(x)
    observer = fq.observer
    expected = QuantizationParams.from_statistics(
        observer.lo.numpy(), observer.hi.numpy(), dtype=dtype, scheme=scheme, **options
    )
    assert fq.params() == expected
    dynamic = lt.FakeQuantize(dtype, scheme, mode="dynamic", **options)
    assert torch.equal(dynamic(x), y)
    assert dynamic.params(x) == expected
    assert torch.equal(y, lt.fake_quantize(x, fq.scale, fq.zero_point, qmin=fq.qmin, qmax=fq.qmax, **options))


def test_switches() -> None:
    fq = lt.FakeQuantize(observer="min_max")
    x = torch.randn(10)
    fq(x)
    before = fq.scale.clone()
    fq.eval()(x * 5)
    assert torch.equal(fq.scale, before), "eval() freezes ranges"
    fq.enable_observer()(x * 5)
    assert fq.scale > before
    after = fq.scale.clone()
    fq.train().enable_observer(False)(x * 50)
    assert torch.equal(fq.scale, after)
    fq.enable_fake_quant(False)
    assert fq(x) is x


def test_unseen_ranges_are_an_error_that_says_what_to_do() -> None:
    for mode in ("static", "learned"):
        with pytest.raises(InvalidProblem, match="no data seen yet"):
            lt.FakeQuantize(mode=mode).eval()(torch.ones(3))


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("options", [{}, {"axis": 0}, {"axis": -1, "group_size": 4}])
def test_learned_starts_as_lsq_does_and_learns(scheme: str, options: dict[str, Any]) -> None:
    fq = lt.FakeQuantize("int4", scheme, mode="learned", **options)
    x = torch.randn(6, 10)
    fq(x / 4)  # starts too narrow
    if not options and scheme == "symmetric":
        assert fq.scale.item() == pytest.approx(2 * (x / 4).abs().mean().item() / 7**0.5, rel=1e-6)
    optimizer = torch.optim.SGD(fq.parameters(), lr=0.05)
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = (fq(x) - x).square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2
    assert len(list(fq.parameters())) == (1 if scheme == "symmetric" else 2)


@pytest.mark.parametrize(("dtype", "scheme"), [("int4", "symmetric"), ("uint8", "asymmetric")])
@pytest.mark.parametrize(
    ("options", "sharing"), [({}, 60), ({"axis": 0}, 10), ({"axis": 1}, 6), ({"axis": -1, "group_size": 5}, 5)], ids=str
)
def test_learned_gradients_are_divided_by_the_root_of_elements_and_codes(
    dtype: str, scheme: str, options: dict[str, Any], sharing: int
) -> None:
    x, dy = torch.randn(6, 10) * 3, torch.randn(6, 10)
    fq = lt.FakeQuantize(dtype, scheme, mode="learned", **options)
    fq(x / 2)  # so that some of x is clipped, from which zero points learn
    fq(x).backward(dy)
    scale, zero = (v.detach().clone() for v in (fq.scale, fq.zero_point))
    learned = [scale.requires_grad_()] + ([zero.requires_grad_()] if scheme == "asymmetric" else [])
    lt.fake_quantize_learned(x, scale, zero, qmin=fq.qmin, qmax=fq.qmax, **options).backward(dy)
    for mine, plain in zip((fq.scale, fq.zero_point), learned, strict=False):
        assert plain.grad.any()
        torch.testing.assert_close(mine.grad, plain.grad / (sharing * fq.qmax) ** 0.5, rtol=1e-6, atol=0)


@pytest.mark.parametrize("mode", ["static", "dynamic", "learned"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_passes_through(mode: str, dtype: torch.dtype) -> None:
    fq = lt.FakeQuantize("uint8", "asymmetric", mode=mode)
    x = torch.randn(4, 5, dtype=dtype, requires_grad=True)
    y = fq(x)
    y.sum().backward()
    assert y.dtype is x.grad.dtype is dtype
    if mode == "static":
        assert fq.half().scale.dtype is torch.float32, "scales keep their type"


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_inf_does_not_poison_a_quantizer(mode: str) -> None:
    observer = "moving_average" if mode == "static" else None
    fq = lt.FakeQuantize(mode=mode, observer=observer, on_nonfinite="ignore")
    fq(torch.randn(10))
    y = fq(torch.tensor([1.0, float("inf")]))
    assert torch.isfinite(y).all()
    if mode == "dynamic":
        assert y.max() <= MAX_SCALE * 128
    assert fq(torch.tensor([0.5, -0.5])).abs().max() > 0.4


@pytest.mark.parametrize(("options", "message"), [
    ({"dtype": "binary"}, "dtype"), ({"mode": "fixed"}, "mode"), ({"scheme": "logarithmic"}, "scheme"),
    ({"mode": "dynamic", "observer": "min_max"}, "observer"), ({"observer": "mean"}, "observer"),
    ({"observer": lt.MinMax(axis=1)}, "observer"), ({"axis": 0, "group_size": 4, "observer": "histogram"}, "observer"),
])  # fmt: skip
def test_errors_name_the_argument(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        lt.FakeQuantize(**options)


# ---- preparing ------------------------------------------------------------------------------------------


def test_every_module_is_in_the_table() -> None:
    model = ConvNet()
    net, coverage = lt.prepare_qat(model, lt.QATRecipe(skip=("head",)))
    told = {row.name: row for row in coverage}
    assert set(told) == {name for name, m in model.named_modules() if not list(m.children())}
    assert [n for n, r in told.items() if r.treated] == ["stem.0", "stem.1", "conv1", "bn1", "conv2"]
    assert told["stem.1"].why == "folded into stem.0"
    assert told["bn1"].why == "folded into conv1"
    assert "not certain" in told["bn2"].why
    assert told["head"].why == "skipped: matches 'head'"
    assert "5 of 8" in str(coverage)
    assert type(net.conv2) is lt.QATConv2d
    assert net.conv2.bn is None
    assert type(model.conv1) is nn.Conv2d, "the model given is left alone"


def test_what_cannot_be_known_is_left_alone_and_said() -> None:
    class Twice(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
            self.twice, self.hooked, self.embed = Twice(3, 3), nn.Linear(3, 3), nn.Embedding(3, 3)
            self.gain = nn.Parameter(torch.ones(()))
            self.hooked.register_forward_hook(lambda *_: None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.sum() > 0:  # cannot be traced
                return self.bn(self.conv(x))
            return self.conv(self.bn(x))

    _, coverage = lt.prepare_qat(Odd())
    why = {row.name: row.why for row in coverage if not row.treated}
    assert set(why) == {"", "bn", "twice", "hooked", "embed"}
    assert "subclass" in why["twice"]
    assert "hooks" in why["hooked"]
    assert "no quantized form" in why["embed"]


def test_overrides_and_dicts() -> None:
    recipe = {"weight": "int4", "overrides": {"0": {"weight": "int8", "activation": None}}}
    net, _ = lt.prepare_qat(mlp(), recipe)
    assert net[0].weight_quant.dtype == "int8"
    assert net[0].input_quant is None
    assert net[2].weight_quant.dtype == "int4"
    for wrong in ({"weights": "int4"}, {"skip": ("x*",)}, {"overrides": {"0": {"bits": 4}}}, {"skip": "0"}):
        with pytest.raises(InvalidProblem, match=r"recipe|skip|overrides"):
            lt.prepare_qat(mlp(), wrong)


def test_a_single_layer_is_a_model() -> None:
    net, _ = lt.prepare_qat(nn.Linear(4, 2))
    x = torch.randn(3, 4)
    train(net, x)
    assert torch.equal(lt.convert(net)(x), net.eval()(x))


def test_shared_layers_and_tied_weights_stay_so() -> None:
    shared = nn.Linear(4, 4)
    net, _ = lt.prepare_qat(nn.Sequential(shared, nn.ReLU(), shared))
    assert net[0] is net[2]
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    net, _ = lt.prepare_qat(tied)
    assert net[0].weight is net[1].weight


# ---- layers ---------------------------------------------------------------------------------------------


def switched_off(net: nn.Module) -> nn.Module:
    for m in net.modules():
        if isinstance(m, lt.FakeQuantize):
            m.enable_fake_quant(False)
    return net


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("training", [True, False])
def test_without_rounding_a_prepared_model_is_the_model(model: str, training: bool) -> None:
    make, shape = MODELS[model]
    plain = make()
    for m in plain.modules():
        if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.uniform_(m.weight, 0.5, 2)
            nn.init.normal_(m.bias)
    x = torch.randn(shape)
    plain(x)
    net = switched_off(lt.prepare_qat(plain)[0])
    plain.train(training)
    net.train(training)
    expected, got = plain(x), net(x)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    expected.square().sum().backward()
    got.square().sum().backward()
    for (name, p), q in zip(plain.named_parameters(), net.parameters(), strict=False):
        assert p.shape == q.shape, name
    a = torch.cat([p.grad.flatten() for p in plain.parameters()]).sort().values
    b = torch.cat([p.grad.flatten() for p in net.parameters()]).sort().values
    torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3)


def test_batch_norm_statistics_are_those_without_folding() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    net = switched_off(lt.prepare_qat(plain)[0])
    x = torch.randn(5, 3, 6, 6)
    plain(x)
    net(x)
    torch.testing.assert_close(net[0].bn.running_mean, plain[1].running_mean)
    torch.testing.assert_close(net[0].bn.running_var, plain[1].running_var)


def test_a_batch_norm_of_gain_zero() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    nn.init.zeros_(plain[1].weight)
    nn.init.ones_(plain[1].bias)
    net, _ = lt.prepare_qat(plain)
    x = torch.randn(5, 3, 6, 6)
    y = net(x)
    y.square().sum().backward()
    assert torch.equal(y, torch.ones_like(y))
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())
    assert torch.equal(lt.convert(net)(x), torch.ones_like(y))


# ---- converting -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", MODELS)
def test_converted_is_the_trained_model_to_the_bit(model: str, recipe: str) -> None:
    net, x = prepared(model, recipe)
    final = lt.convert(net)
    assert torch.equal(final(x), net.eval()(x))
    weights = [m.quantized_weight for m in final.modules() if isinstance(m, (lt.ConvertedLinear, lt.ConvertedConv2d))]
    assert weights
    assert all(w.dtype.name == RECIPES[recipe].get("weight", "int8") for w in weights)
    for m in final.modules():
        m.train(isinstance(m, lt.FakeQuantize))
    final(x * 100)
    assert torch.equal(final(x), net(x)), "ranges are frozen for good"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_converted_in_other_precisions(dtype: torch.dtype) -> None:
    net = lt.prepare_qat(mlp().to(dtype))[0]
    x = torch.randn(5, 8, dtype=dtype)
    train(net, x)
    final = lt.convert(net)
    assert torch.equal(final(x), net.eval()(x))
    assert final.float()(x.float()).dtype is torch.float32


def test_nothing_to_convert_is_said() -> None:
    with pytest.raises(InvalidProblem, match="prepare_qat"):
        lt.convert(mlp())


def test_packed_weights_are_small() -> None:
    net, coverage = lt.prepare_qat(nn.Sequential(nn.Linear(256, 256)), {"weight": "int4", "activation": None})
    final = lt.convert(net)
    assert coverage[0].treated
    assert final[0].weight_codes.nbytes == 256 * 128
    buffer = io.BytesIO()
    torch.save(final.state_dict(), buffer)
    assert buffer.tell() < 256 * 256 * 4 / 6


# ---- what models go through -----------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("model", ["mlp", "convnet"])
@pytest.mark.parametrize("converted", [False, True])
def test_state_dict_deepcopy_and_pickle(model: str, recipe: str, converted: bool) -> None:
    net, x = prepared(model, recipe)
    fresh = lt.prepare_qat(MODELS[model][0](), RECIPES[recipe])[0]
    if converted:
        net = lt.convert(net)
        other, _ = prepared(model, recipe)
        fresh = lt.convert(other)
    expected = net.eval()(x)
    fresh.load_state_dict(net.state_dict())
    assert torch.equal(fresh.eval()(x), expected)
    assert torch.equal(copy.deepcopy(net)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), expected)
    assert all(isinstance(v, torch.Tensor) for v in net.state_dict().values())


def test_ranges_are_buffers_that_other_processes_can_be_given() -> None:
    """What DistributedDataParallel broadcasts: buffers, found by name, equal in shape once data was seen."""
    net, x = prepared("mlp", "int8")
    names = {name for name, _ in net.named_buffers()}
    assert {"0.input_quant.observer.lo", "0.input_quant.observer.hi", "0.input_quant.scale"} <= names
    other, _ = prepared("mlp", "int8")
    for mine, theirs in zip(other.buffers(), net.buffers(), strict=True):
        mine.copy_(theirs)
    other.load_state_dict(dict(net.named_parameters()), strict=False)
    assert torch.equal(other.eval()(x), net.eval()(x))


@pytest.mark.parametrize("recipe", ["int8", "learned"])
@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_a_training_step_under_autocast(model: str, recipe: str) -> None:
    make, shape = MODELS[model]
    net, _ = lt.prepare_qat(make(), RECIPES[recipe])
    x = torch.randn(shape)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    before = [p.detach().clone() for p in net.parameters()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = net(x)
        loss = y.float().square().mean()
    loss.backward()
    optimizer.step()
    assert y.dtype is torch.bfloat16
    assert all(torch.isfinite(p).all() for p in net.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=False))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(lt.convert(net)(x), net.eval()(x))


@pytest.mark.parametrize("training", [True, False])
def test_compiled_whole(training: bool) -> None:
    net, x = prepared("mlp", "int8")
    net.train(training).zero_grad()
    twin = copy.deepcopy(net)
    torch.compiler.reset()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        a, b = compiled(x), twin(x)
        assert torch.equal(a, b)
        a.sum().backward()
        b.sum().backward()
    for p, q in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad)
    for p, q in zip(net.buffers(), twin.buffers(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("recipe", [{"weight": "int4"}, {"weight": "int4", "learned": True}, {"weight": "int2"}])
def test_training_with_few_bits_learns(recipe: dict[str, Any]) -> None:
    centers = torch.randn(3, 8) * 1.5
    labels = torch.randint(0, 3, (256,))
    x = centers[labels] + 0.5 * torch.randn(256, 8)
    net, _ = lt.prepare_qat(mlp(), recipe)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), labels).backward()
        optimizer.step()
    accuracy = (lt.convert(net)(x).argmax(1) == labels).float().mean().item()
    assert accuracy > 0.95


def test_calibrate_moves_nothing_but_ranges() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    model, _ = lt.prepare_qat(net)
    before = {k: v.clone() for k, v in model.state_dict().items() if "quant" not in k}
    batches = [(torch.rand(5, 1, 8, 8), torch.zeros(5)) for _ in range(3)]
    assert lt.calibrate(model, batches) is model
    assert not any(m.training for m in model.modules())
    after = model.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())
    assert model[0].input_quant.observer.ready()
    with pytest.raises(InvalidProblem, match="batches: none"):
        lt.calibrate(model, [])
    with pytest.raises(InvalidProblem, match="no layer prepared"):
        lt.calibrate(net, batches)


@pytest.mark.parametrize(
    ("learned", "modes"), [("weight", ("learned", "static")), ("activation", ("dynamic", "learned"))]
)
def test_scales_of_one_kind_may_learn(learned: Any, modes: tuple[str, str]) -> None:
    model, _ = lt.prepare_qat(nn.Sequential(nn.Linear(4, 2)), lt.QATRecipe(learned=learned))
    assert (model[0].weight_quant.mode, model[0].input_quant.mode) == modes
    with pytest.raises(InvalidProblem, match="learned: 'both'"):
        lt.prepare_qat(nn.Sequential(nn.Linear(4, 2)), {"learned": "both"})
