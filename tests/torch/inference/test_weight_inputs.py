"""lowbit.torch.quantize with statistics of the inputs of weights: which are collected, used, shared and freed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
import lowbit.torch as lt  # noqa: E402
from lowbit.calibration import Moments  # noqa: E402
from lowbit.models import ActivationRecipe, Override, Recipe, WeightRecipe  # noqa: E402
from lowbit.models.weights import LayerInputs, quantize_weight  # noqa: E402
from lowbit.numerics.errors import InvalidProblem  # noqa: E402
from lowbit.numerics.metrics import sqnr_db  # noqa: E402
from lowbit.torch.inference import weight_inputs  # noqa: E402
from lowbit.torch.inference.moments import MomentCollector  # noqa: E402
from lowbit.torch.inference.weight_inputs import has_bias  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch_models import row_of  # noqa: E402

INT8 = ActivationRecipe("int8", "symmetric", dynamic=True, granularity="token")
W4 = WeightRecipe("int4", group_size=16)
PER_CHANNEL = WeightRecipe("int4")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def rules(weights: WeightRecipe = W4, activations: ActivationRecipe | None = None, **changes: Any) -> Recipe:
    return Recipe("test", weights, activations, min_elements=0, **changes)


def quantized(model: nn.Module, recipe: Recipe, **options: Any) -> Any:
    return lt.quantize(model, recipe, optimize="size", progress=False, fit_products=1, **options)


class Block(nn.Module):
    """Two layers that share their input, and one after them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate, self.down = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(torch.relu(self.up(x)) * self.gate(x))


def correlated(rows: int, width: int) -> Tensor:
    return torch.randn(rows, 8) @ torch.randn(8, width) + 0.1 * torch.randn(rows, width)


def batches() -> list[Tensor]:
    return [correlated(40, 32) for _ in range(4)]


def codes(module: Any) -> Any:
    q = module.layer.weight
    return q.unpack().tolist(), q.params.scale.tolist()


def expected(module: Any, weights: WeightRecipe, moments: Moments | None) -> Any:
    w = module.weight.detach().numpy()
    inputs = moments and LayerInputs(moments, centered=has_bias(module))
    q = quantize_weight(w, weights, inputs=inputs, either_sign=False)
    return q.unpack().tolist(), q.params.scale.tolist()


# ---- methods and what they are given --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "gptq", "adaround", "weighted", "mse", "rtn"])
def test_calibration_gives_the_codes_of_the_method_on_moments_of_the_inputs(method: str) -> None:
    model, data, weights = Block(), batches(), WeightRecipe("int4", group_size=16, method=method)
    found = quantized(model, rules(weights), calibration=data)
    moments = lt.observe_moments(model, data, gram=method != "weighted", progress=False)
    used = method not in ("mse", "rtn")
    for name, module in model.named_children():
        assert codes(getattr(found, name)) == expected(module, weights, moments[name] if used else None), name
        row = row_of(found, name)
        assert row.method == ("gptq" if method == "auto" else method)
        assert row.how == str(weights)
        assert row.bits == 4 + 32 / 16
        assert row.seconds > 0
        assert (row.predicted_db is not None) is used
    again = quantized(model, rules(weights), stats=moments)
    assert all(codes(getattr(again, name)) == codes(getattr(found, name)) for name, _ in model.named_children())


def test_the_predicted_error_is_that_of_the_outputs_on_the_data() -> None:
    layer, x = nn.Linear(32, 24, bias=False), torch.randint(-4, 5, (200, 32)).float()
    found = quantized(nn.Sequential(layer), rules(), calibration=[x])
    w, q = layer.weight.detach().double(), found[0].weight.double()
    outputs = sqnr_db(float((x.double() @ w.T).square().sum()), float((x.double() @ (w - q).T).square().sum()))
    assert row_of(found, "0").predicted_db == pytest.approx(outputs, abs=0.01)


def test_gptq_lowers_the_error_of_the_outputs() -> None:
    model, data = Block(), batches()
    errors = {}
    for method in ("rtn", "auto"):
        found = quantized(model, rules(WeightRecipe("int4", group_size=16, method=method)), calibration=data)
        errors[method] = lt.report(found).accuracy[0].sqnr_db
    assert errors["auto"] > errors["rtn"] + 3


def test_without_data_scales_are_searched_and_nothing_is_said_of_inputs() -> None:
    found = quantized(Block(), rules())
    row = row_of(found, "up")
    assert (row.method, row.predicted_db, row.note) == ("mse", None, "")
    assert found.up.layer.params.is_symmetric, "positive scales: zero points would be stored and added"
    assert row_of(quantized(Block(), rules(WeightRecipe())), "up").method == "rtn"


@pytest.mark.parametrize("method", ["gptq", "weighted", "adaround"])
def test_a_method_that_needs_data_says_so_before_any_work(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lowbit.torch.inference.codes.quantize_weight", lambda *_, **__: pytest.fail("too late"))
    said = (
        rf"^calibration: missing; {method} needs statistics of the inputs of up: give batches .* stats=observe_moments"
    )
    with pytest.raises(InvalidProblem, match=said):
        quantized(Block(), rules(WeightRecipe("int4", method=method)), example=batches()[0])


def test_awq_is_refused_before_any_work() -> None:
    with pytest.raises(InvalidProblem, match=r"^method: awq; it scales the layer before"):
        quantized(Block(), rules(WeightRecipe("int4", method="awq")), calibration=iter([]))


def test_too_few_rows_for_the_width_of_a_layer_are_warned_of() -> None:
    with pytest.warns(
        UserWarning, match=r"3 layers have more inputs than rows of data \(up: 32 inputs, 20 rows\)"
    ) as caught:
        found = quantized(Block(), rules(), calibration=[correlated(20, 32)])
    assert caught[0].filename == __file__
    assert any("more inputs than rows" in note for note in lt.report(found).notes)


# ---- kinds of layers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conv", "shape"),
    [
        (nn.Conv2d(6, 8, 3, padding=1, groups=2), (4, 6, 8, 8)),
        (nn.Conv2d(8, 8, 3, groups=8), (4, 8, 8, 8)),
        (nn.Conv1d(6, 8, 3, padding="same", dilation=2), (4, 6, 16)),
    ],
)
def test_convolutions_are_rounded_by_their_patches(conv: Any, shape: tuple[int, ...]) -> None:
    data = [torch.randn(shape).cumsum(-1) for _ in range(3)]
    found = quantized(nn.Sequential(conv), rules(PER_CHANNEL, INT8), calibration=data)
    moments = lt.observe_moments(conv, data, progress=False)[""]
    got, scales = codes(found[0])
    wanted, wanted_scales = expected(conv, PER_CHANNEL, moments)
    assert np.array_equal(np.array(got).reshape(np.shape(wanted)), wanted)
    assert scales == wanted_scales
    plain = quantized(nn.Sequential(conv), rules(PER_CHANNEL, INT8), example=data[0])
    x = torch.cat(data)
    error = [float((m[0].weight - conv.weight.detach()).square().sum()) for m in (found, plain)]
    biases = [torch.from_numpy(m[0].layer.bias) for m in (found, plain)]
    images = [conv._conv_forward(x, m[0].weight, bias) for m, bias in zip((found, plain), biases, strict=True)]
    outputs = [float((of - conv(x)).detach().square().mean()) for of in images]
    assert outputs[0] < outputs[1]
    assert error[0] > error[1], "farther from the weights, nearer to the outputs"


@pytest.mark.parametrize("method", ["gptq", "adaround", "weighted"])
@pytest.mark.parametrize("bias", [True, False])
def test_biases_are_corrected_for_the_means_of_the_outputs(method: str, bias: bool) -> None:
    conv = nn.Conv2d(6, 8, 3, groups=2, bias=bias)
    x = torch.randn(12, 6, 8, 8).relu()
    weights = WeightRecipe("int2", granularity="channel", method=method)
    layer = quantized(nn.Sequential(conv), rules(weights, INT8), calibration=[x])[0]
    with torch.no_grad():
        wanted = conv(x).mean((0, 2, 3))
        made = conv._conv_forward(x, layer.weight, torch.from_numpy(layer.layer.bias)).mean((0, 2, 3))
        plain = conv._conv_forward(x, layer.weight, conv.bias).mean((0, 2, 3))
    assert torch.allclose(made, wanted, atol=1e-3)
    assert not torch.allclose(plain, wanted, atol=2e-2)


def test_the_weight_with_its_batch_norm_folded_is_rounded_by_the_same_rows() -> None:
    conv, norm = nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)
    norm.running_var, norm.weight.data = torch.rand(6) + 0.5, torch.rand(6) + 0.5
    model, data = nn.Sequential(conv, norm).eval(), [torch.randn(4, 4, 8, 8) for _ in range(2)]
    found = quantized(model, rules(PER_CHANNEL, INT8), calibration=data)
    folded = (
        conv.weight.double() * (norm.weight / torch.sqrt(norm.running_var + norm.eps)).double()[:, None, None, None]
    )
    moments = lt.observe_moments(model, data, progress=False)["0"]
    inputs = LayerInputs(moments, centered=True)
    q = quantize_weight(folded.detach().float().numpy(), PER_CHANNEL, inputs=inputs, either_sign=False)
    assert np.mean(found[0].layer.weight.unpack() == q.unpack()) > 0.99  # the product by factors is rounded elsewhere
    assert row_of(found, "1").how == "folded into 0"


def test_products_by_inputs_of_composed_modules_use_statistics_and_others_say_that_they_have_none() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.attention = nn.GRU(32, 32, batch_first=True), nn.MultiheadAttention(32, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(*[self.gru(x)[0]] * 3)[0]

    model, data = Mixed().eval(), [correlated(5 * 6, 32).view(5, 6, 32) for _ in range(4)]
    for method in ("auto", "gptq"):
        found = quantized(model, rules(WeightRecipe("int4", group_size=16, method=method)), calibration=data)
        known = ["gru.weight_ih_l0", *(f"attention.{part}_proj.weight" for part in "qkv")]
        for row in lt.report(found).rows:
            assert (row.method, row.predicted_db is not None) == (
                ("gptq", True) if row.name in known else ("mse", False)
            )
            assert ("no statistics of its inputs: mse" in row.note) is (row.name not in known), row.name
            assert row.bits == 4 + 32 / 16
    data_free = quantized(model, rules(), example=data[0])
    assert codes(data_free.gru.hh_l0) == codes(found.gru.hh_l0)
    assert codes(data_free.gru.ih_l0) != codes(found.gru.ih_l0)


def test_embeddings_have_no_inputs() -> None:
    model = nn.Sequential(nn.Embedding(20, 32), nn.Linear(32, 8))
    gptq = WeightRecipe("int4", group_size=16, method="gptq")
    found = quantized(model, rules(gptq, overrides=(Override("0"),)), calibration=[torch.arange(20).repeat(2)])
    assert [row.method for row in lt.report(found).rows] == ["mse", "gptq"]
    assert row_of(found, "0").how == "int4 symmetric, groups of 16, mse"


def test_groups_that_do_not_divide_the_inputs_stay_ragged() -> None:
    layer, data = nn.Linear(40, 16), [torch.randn(64, 40)]
    found = quantized(nn.Sequential(layer), rules(), calibration=data)
    assert found[0].layer.params.scale.shape == (16, 3)
    assert row_of(found, "0").note == ""
    assert 4 + 3 * 32 / 40 <= row_of(found, "0").bits < 8, "the last group may be padded"
    x, bias = torch.randn(3, 40), torch.from_numpy(found[0].layer.bias)
    assert torch.allclose(found(x), nn.functional.linear(x, found[0].weight, bias), atol=1e-5)


def test_an_explicit_method_of_8_bits_is_not_replaced_by_steps_that_fit_16_bits() -> None:
    weights = WeightRecipe("int8", method="gptq")
    found = lt.quantize(
        Block(), rules(weights, INT8), calibration=batches(), optimize="size", fit_products=4, progress=False
    )
    assert row_of(found, "up").how == "int8 symmetric, per channel, gptq"
    plain = lt.quantize(Block(), rules(WeightRecipe(), INT8), optimize="size", fit_products=4)
    assert row_of(plain, "up").how == "int8 symmetric, per channel, fours fit 16 bits"


# ---- passes over the data and memory --------------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The modules that each pass observes."""
    passes: list[set[str]] = []
    init = MomentCollector.__init__

    def noted(self: Any, modules: Any, *rest: Any) -> None:
        passes.append(set(modules))
        init(self, modules, *rest)

    monkeypatch.setattr(MomentCollector, "__init__", noted)
    return passes


def test_what_can_be_read_once_is_read_once_for_ranges_and_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data, passes = Block(), batches(), counted(monkeypatch)
    seen = []

    def stream() -> Iterator[Tensor]:
        for batch in data:
            seen.append(batch)
            yield batch

    static = rules(PER_CHANNEL, ActivationRecipe("int8", "symmetric"))
    found = quantized(model, static, calibration=stream())
    assert (len(seen), passes) == (4, [{"up", "gate", "down"}])
    same = quantized(model, static, calibration=data)
    for name in passes[0]:
        assert codes(getattr(same, name)) == codes(getattr(found, name))
        assert float(getattr(same, name).layer.input_params.scale) == float(
            getattr(found, name).layer.input_params.scale
        )


def test_moments_that_do_not_fit_memory_are_collected_in_several_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = Block(), batches()
    static = rules(PER_CHANNEL, ActivationRecipe("int8", "symmetric"))
    once = quantized(model, static, calibration=data)
    monkeypatch.setattr(weight_inputs, "_MOST_BYTES", 12 * (32 * 32 + 64 * 64))
    passes = counted(monkeypatch)
    found = quantized(model, static, calibration=data)
    assert passes == [{"up", "gate"}, {"down"}]
    for name, _ in model.named_children():
        assert codes(getattr(found, name)) == codes(getattr(once, name))
        assert float(getattr(found, name).layer.input_params.scale) == float(
            getattr(once, name).layer.input_params.scale
        )
    with pytest.raises(
        InvalidProblem, match=r"^calibration: it can be read once, and statistics .* about 0\.0 GB; exp"
    ):
        quantized(model, static, calibration=iter(data))
    diagonal = rules(WeightRecipe("int4", method="weighted"))
    assert row_of(quantized(model, diagonal, calibration=iter(data)), "up").method == "weighted"


def test_layers_that_share_an_input_share_its_factor_and_moments_are_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Noted(LayerInputs):
        def __init__(self, moments: Moments, **options: bool) -> None:
            gc.collect()
            alive = sum(of() is not None for of in made)
            assert alive <= 1, "those of the layer before, until they are replaced"
            super().__init__(moments, **options)
            made.append(weakref.ref(self))

    monkeypatch.setattr(weight_inputs, "LayerInputs", Noted)
    quantized(Block(), rules(), calibration=batches())
    assert len(made) == 2
    assert all(of() is None for of in made)


def test_int8_presets_observe_no_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    passes = counted(monkeypatch)
    quantized(Block(), rules(WeightRecipe(), INT8), calibration=batches())
    assert passes == []


# ---- given statistics -----------------------------------------------------------------------------------------------


def test_statistics_may_be_a_mapping_by_names_of_weights_and_calibration_fills_in() -> None:
    model, data = Block(), batches()
    moments = lt.observe_moments(model, data, progress=False)
    renamed = {f"{name}.weight": m for name, m in moments.items()}
    full = quantized(model, rules(), stats=moments)
    assert codes(quantized(model, rules(), stats=renamed).down) == codes(full.down)
    del renamed["down.weight"]
    partly = quantized(model, rules(), stats=renamed)
    assert (row_of(partly, "down").method, row_of(partly, "down").note) == ("mse", "no statistics of its inputs: mse")
    filled = quantized(model, rules(), stats=renamed, calibration=data)
    assert codes(filled.down) == codes(full.down)
    diagonal = lt.observe_moments(model, data, gram=False, progress=False)
    assert row_of(quantized(model, rules(), stats=diagonal), "up").method == "weighted"


def test_statistics_of_something_else_are_refused() -> None:
    model, moments = Block(), Moments(31)
    moments.add(np.ones((2, 31), np.float32))
    with pytest.raises(
        InvalidProblem, match=r"^stats: of 1 layers such as 'x'; expected names of the model's, such as 'up'"
    ):
        quantized(model, rules(), stats={"x": moments})
    with pytest.raises(InvalidProblem, match=r"^stats: 'up' has moments of 1 × 31 inputs; the layer has 1 × 32"):
        quantized(model, rules(), stats={"up": moments})
    with pytest.raises(InvalidProblem, match=r"^stats: 'up' is a list; expected Moments"):
        quantized(model, rules(), stats={"up": [1.0]})
    with pytest.raises(InvalidProblem, match=r"^stats: an option of a model"):
        lt.quantize(torch.ones(2), 0.1, stats={"up": moments})
    diagonal = lt.observe_moments(model, batches(), gram=False, progress=False)
    with pytest.raises(InvalidProblem, match=r"^up\.weight: gptq needs a Gram matrix"):
        quantized(model, rules(WeightRecipe("int4", method="gptq")), stats=diagonal)


def test_a_layer_that_no_batch_reached_is_rounded_without_data() -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(16, 4), nn.Linear(16, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.two(self.one(x)[:, :1].expand(-1, 16)) if x[0, 0] > 0 else self.one(x)

    found = quantized(Either(), rules(), calibration=[-torch.ones(20, 16)], example=torch.ones(3, 16))
    assert (row_of(found, "one").method, row_of(found, "two").method) == ("gptq", "mse")
    assert row_of(found, "two").note == "no calibration batch reached it: mse"
    bad = -torch.ones(3, 16)
    bad[0, 3] = torch.nan
    with pytest.raises(InvalidProblem, match=r"^batch 1, input of one: nan at index \(0, 3\)"):
        quantized(Either(), rules(), calibration=[-torch.ones(3, 16), bad])
