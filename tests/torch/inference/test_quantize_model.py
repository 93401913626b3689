"""lowbit.torch.quantize: what is swapped, what is left alone and why, and that nothing becomes slower or is lost."""

from __future__ import annotations

import copy
import inspect
import json
import pydoc
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import lowbit as lb

torch = pytest.importorskip("torch")
import lowbit.torch as lt  # noqa: E402
from lowbit.models import Override, Recipe, WeightRecipe  # noqa: E402
from lowbit.models.weights import quantize_weight  # noqa: E402
from lowbit.numerics.metrics import error_report  # noqa: E402
from lowbit.ops.fitting import Products, fit_products  # noqa: E402
from lowbit.torch.functional import ops  # noqa: E402
from lowbit.torch.inference import timing  # noqa: E402
from lowbit.torch.inference.folding import Folded  # noqa: E402
from lowbit.torch.inference.layers import numeric_padding  # noqa: E402
from lowbit.torch.inference.quantize import quantize_model  # noqa: E402
from torch import nn  # noqa: E402
from torch_models import cnn, fake_clock, recipe, row_of  # noqa: E402


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# ---- what the modules compute ---------------------------------------------------------------------------------------


def test_linear_is_the_layer_of_lowbit_with_the_recipes_weights() -> None:
    linear = nn.Linear(70, 19)
    x = torch.randn(3, 70)
    w, b = linear.weight.detach().numpy(), linear.bias.detach().numpy()
    cases = {
        "W8A8": (WeightRecipe(), {"activation_dtype": "int8"}),
        "dynamic-int8": (WeightRecipe(), {"activation_dtype": "uint8"}),
        "W8A16": (WeightRecipe(), {"activation_dtype": "float"}),
        "W4A16": (WeightRecipe("int4", group_size=128), {"activation_dtype": "float"}),
        "W4A16_ASYM": (WeightRecipe("uint4", "asymmetric", group_size=128), {"activation_dtype": "float"}),
        "W4A8": (WeightRecipe("int4", group_size=128), {"activation_dtype": "int8"}),
    }
    for name, (weights, options) in cases.items():
        found = lt.quantize(linear, recipe(name), fit_products=1)
        layer = lb.QuantizedLinear(quantize_weight(w, weights, either_sign=False), b, **options)
        assert np.array_equal(found(x).numpy(), layer(x.numpy())), name
        assert lt.report(found).rows[0].how == str(weights)


def test_static_ranges_are_those_of_a_calibrator_in_one_pass(fast: list[Any]) -> None:
    model = nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 7))
    batches = [torch.randn(5, 24) for _ in range(4)]
    seen = []

    def stream() -> Iterator[Any]:
        for batch in batches:
            seen.append(batch)
            yield batch

    found = lt.quantize(model, recipe("static-int8"), calibration=stream(), progress=False)
    assert len(seen) == len(batches)
    calibrator = lb.Calibrator("adaptive")
    for batch in batches:
        calibrator.add(torch.relu(model[0](batch)).detach())
    expected = calibrator.calibrate("uint8", "asymmetric")
    given = found[2].layer.input_params
    assert float(given.scale) == float(expected.scale)
    assert int(given.zero_point) == int(expected.zero_point)
    assert row_of(found, "2").activations == "uint8 asymmetric, static, adaptive"
    assert len(lt.report(found).accuracy) == 1
    assert lt.report(found).accuracy[0].sqnr_db > 25


ONES = torch.ones(2, 8)


@pytest.mark.parametrize("batch", [(ONES, ONES), {"b": ONES, "a": ONES}])
def test_batches_are_arguments_or_keywords(batch: Any, fast: list[Any]) -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, a: Any, b: Any) -> Any:
            return self.one(a) + self.two(input=b)

    found = lt.quantize(Sum(), recipe("static-int8"), calibration=[batch], progress=False)
    assert [row.treated for row in lt.report(found).rows] == [True, True]


def test_a_layer_that_no_batch_reached_has_no_range(fast: list[Any]) -> None:
    class Either(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

        def forward(self, x: Any) -> Any:
            return (self.one if x[0, 0] > 0 else self.two)(x)

    rules = recipe("static-int8")
    found = lt.quantize(Either(), rules, calibration=[ONES], progress=False)
    assert "not called" in row_of(found, "two").why_not
    found = lt.quantize(Either(), rules, calibration=[ONES], example=-ONES, progress=False)
    assert row_of(found, "two").why_not == "no calibration batch reached it"


@pytest.mark.parametrize("dtype", ["int8", "int4", "uint4", "int2"])
@pytest.mark.parametrize("block", [None, 16, 5])
def test_an_embedding_gives_the_dequantized_rows(dtype: str, block: int | None) -> None:
    table = nn.Embedding(11, 33)
    scheme = "asymmetric" if dtype == "uint4" else "symmetric"
    q = lb.quantize(
        table.weight.detach().numpy(), dtype, scheme=scheme, axis=1 if block else 0, group_size=block
    )  # fmt: skip
    module = lt.QuantizedEmbedding.from_float(table, dtype, scheme, block)
    ids = torch.tensor([[0, 10, 3], [3, 3, 1]])
    assert np.array_equal(module(ids).numpy(), q.dequantize()[ids.numpy()])
    assert module.quantized_weight == q
    assert module(torch.zeros(0, dtype=torch.long)).shape == (0, 33)
    assert module.half()(ids).dtype is torch.float16
    per_byte = 8 // q.dtype.bits
    assert module.codes.numel() == 11 * -(-33 // per_byte)
    with pytest.raises(IndexError):
        module(torch.tensor([11]))


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv1d(6, 8, 3, stride=2, padding=2, dilation=2, groups=2),
        nn.Conv1d(6, 8, 4, padding="same"),
        nn.Conv1d(6, 6, 3, groups=6, bias=False),
        nn.Conv1d(6, 8, 3, padding="valid"),
    ],
    ids=str,
)
def test_a_row_convolution_gives_what_lowbit_gives(conv: Any) -> None:
    x = torch.randn(2, 6, 17)
    module = lt.QuantizedConv1d.from_float(conv)
    q = lb.quantize(conv.weight.detach().numpy(), axis=0)
    left, right = numeric_padding(conv)[1::2]
    bias = None if conv.bias is None else conv.bias.detach().numpy()
    expected = lb.qconv1d(
        lb.quantize(x.numpy()), q, bias, stride=conv.stride[0], padding=(left, right), dilation=conv.dilation[0],
        groups=conv.groups,
    )  # fmt: skip
    assert np.array_equal(module(x).numpy(), expected)
    assert module(x).shape == conv(x).shape
    assert torch.equal(module(x[0]), module(x[:1])[0])
    assert module.weight.shape == conv.weight.shape


def test_images_keep_their_memory_format() -> None:
    conv = nn.Conv2d(3, 8, 3, padding="same")
    module = lt.QuantizedConv2d.from_float(conv, activation_dtype="uint8")
    x = torch.randn(2, 3, 6, 5)
    y, last = module(x), module(x.to(memory_format=torch.channels_last))
    assert torch.equal(y, last)
    assert y.is_contiguous()
    assert last.is_contiguous(memory_format=torch.channels_last)
    for made in (torch.channels_last, torch.contiguous_format):
        module.memory_format = made
        for image in (x, x.to(memory_format=torch.channels_last)):
            assert torch.equal(module(image), y)
            assert module(image).is_contiguous(memory_format=made)
    assert torch.equal(module(x[0]), module(x[:1])[0])
    assert module(torch.zeros(0, 3, 6, 5)).shape == (0, 8, 6, 5)


@pytest.mark.parametrize("products", [2, 4])
@pytest.mark.parametrize("shape", [(9, 31), (4, 6, 3, 3), (5, 3, 2, 2), (3, 7, 5)])
def test_products_fit_sixteen_bits_and_little_is_lost(shape: tuple[int, ...], products: Products) -> None:
    w = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    q = lb.quantize(w, axis=0)
    fitted = fit_products(w, q, products)
    rows = np.moveaxis(fitted.unpack().astype(int), 1, -1)
    if len(shape) == 4:  # rows of a kernel are filled up
        rows = rows.reshape(shape[0], shape[2], -1)
        rows = np.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[2] % 8)))
        assert lb.prepack_conv2d(fitted).parts[0].fits >= products
    rows = rows.reshape(shape[0], -1)
    rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % 8))).reshape(shape[0], -1, 4 // products, products // 2, 2, 2)
    rows = rows.swapaxes(3, 4).reshape(shape[0], -1, products)  # neighbours, or with those four places after them
    assert max(np.maximum(rows, 0).sum(-1).max(), np.maximum(-rows, 0).sum(-1).max()) <= 128
    assert (fitted.params.scale >= q.params.scale).all()
    assert (fitted.params.scale <= 1.01 * products * q.params.scale).all()
    assert fit_products(w, fitted, products) is fitted
    if len(shape) == 2:
        assert (
            lb.prepack(lb.QuantizedTensor.from_codes(fitted.unpack().T, fitted.params.replace(axis=1))).native.fits
            >= products
        )


@pytest.mark.parametrize(("products", "said"), [(2, "pairs"), (4, "fours")])
def test_products_are_fitted_where_asked_and_the_row_says_so(products: Products, said: str) -> None:
    linear = nn.Linear(32, 8)
    found = lt.quantize(linear, recipe("W8A8"), fit_products=products)
    assert lt.report(found).rows[0].how == f"int8 symmetric, per channel, {said} fit 16 bits"
    assert found.layer._packed.native.fits >= products
    assert "fit" not in lt.report(lt.quantize(linear, recipe("W8A16"), fit_products=products)).rows[0].how


def test_products_fit_by_ones_twos_and_fours() -> None:
    with pytest.raises(lb.InvalidProblem, match=r"fit_products: 3; expected 1, 2 or 4"):
        lt.quantize(nn.Linear(32, 8), recipe("W8A8"), fit_products=3)  # type: ignore[call-overload]


# ---- what is swapped, and what not ----------------------------------------------------------------------------------


def test_batch_norms_become_part_of_the_convolution_before_them() -> None:
    model = cnn()
    found = lt.quantize(model, recipe("dynamic-int8"))
    assert isinstance(found[1], Folded)
    assert row_of(found, "1").how == "folded into 0"
    x = torch.randn(4, 3, 8, 8)
    assert error_report(model(x).detach().numpy(), found(x).numpy()).sqnr_db > 25
    apart = lt.quantize(model, recipe("dynamic-int8"), fold_norms=False)
    assert isinstance(apart[1], nn.BatchNorm2d)
    assert "batch norm" in row_of(apart, "1").why_not
    skipped = lt.quantize(model, recipe("dynamic-int8", skip=["0"]))
    assert isinstance(skipped[1], nn.BatchNorm2d)
    assert isinstance(skipped[0], nn.Conv2d)


def test_a_pattern_that_matches_no_module_is_an_error() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    with pytest.raises(lb.InvalidProblem, match="skip: 'lm_head' matches no weight; the nearest names"):
        lt.quantize(model, recipe("dynamic-int8", skip=["lm_head"]))
    with pytest.raises(lb.InvalidProblem, match="overrides: '1' matches no weight"):
        lt.quantize(model, recipe("dynamic-int8", overrides=[Override("1")]))
    assert isinstance(lt.quantize(model, recipe("dynamic-int8", skip=["0.weight", "1"]))[0], nn.Linear)


def test_a_recipes_names_skips_and_overrides_count() -> None:
    model = nn.ModuleDict({"a": nn.Linear(40, 40), "b": nn.Linear(40, 40), "head": nn.Linear(40, 10)})
    rules = Recipe.of("W8A8").but(
        skip=["b"], overrides=[Override("a", weights=WeightRecipe("int4", group_size=8), activations=None)]
    )
    found = lt.quantize(model, rules)
    assert lt.report(lt.quantize(model, Recipe.of("W8A8").but(skip=["*.weight"]))).treated == []
    assert row_of(found, "a").how == "int4 symmetric, groups of 8"
    assert row_of(found, "a").activations == ""
    assert (row_of(found, "b").why_not, row_of(found, "b").asked) == ("the recipe skips 'b'", False)
    assert "below 1024" in row_of(found, "head").why_not
    assert type(found["b"]) is type(found["head"]) is nn.Linear
    assert not lt.report(found).skipped


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 16)
        self.body = nn.Linear(16, 16)
        self.again = self.body
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Any) -> Any:
        return self.head(self.again(self.body(self.embedding(ids))))


@pytest.mark.parametrize("inplace", [False, True])
def test_what_is_shared_stays_shared(inplace: bool, fast: list[Any]) -> None:
    model = Tied()
    ids = torch.arange(30)[None]
    before = model(ids).detach()
    named = recipe("W8A8", overrides=[Override("embedding"), Override("head")])
    found = lt.quantize(model, named, example=ids, inplace=inplace)
    assert (found is model) is inplace
    assert found.again is found.body
    assert isinstance(found.body, lt.QuantizedLinear)
    assert isinstance(found.embedding, lt.QuantizedEmbedding)
    assert row_of(found, "again").note == "the same module as body"
    assert "shares its weight with embedding" in row_of(found, "head").note
    assert row_of(found, "head").bytes_before == 0
    made = lt.report(found)
    assert sum(r.bytes_before for r in made.rows) == made.bytes_before == 4 * (30 * 16 + 16 * 16 + 16)
    assert sum(r.bytes_after for r in made.rows) == made.bytes_after
    assert error_report(before.numpy(), found(ids).numpy()).sqnr_db > 30
    if not inplace:
        assert type(model.body) is nn.Linear
        assert torch.equal(model(ids), before)


HEAD, TABLE = "the output head stays as it is", "embeddings stay as they are"


def test_presets_leave_embeddings_and_output_heads_as_they_are() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.output = nn.Embedding(40, 16), nn.Linear(16, 40)
            self.decoder = nn.ModuleDict({"lm_head": nn.Linear(16, 24), "output": nn.Linear(16, 40)})
            self.experts, self.gate = nn.ModuleList([nn.Linear(16, 16)]), nn.Linear(16, 2)
            self.mlp = nn.ModuleDict({"gate": nn.Linear(16, 16)})

    left = {"wte": TABLE, "output": HEAD, "decoder.lm_head": HEAD, "gate": "routers stay as they are"}
    for model, reasons in ((Tied(), {"embedding": TABLE, "head": HEAD}), (Named(), left)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = lt.quantize(model, recipe("W8A8"), strict=True)
        rows = {row.name: row for row in lt.report(found).rows}
        assert {name for name, row in rows.items() if not row.treated} == set(reasons)
        for name, why in reasons.items():
            assert rows[name].why_not.startswith(f"{why} unless an override names ")
            assert not rows[name].asked
        named = lt.quantize(model, recipe("W8A8", overrides=[Override(f"{name}.weight") for name in reasons]))
        assert all(row.treated for row in lt.report(named).rows)
    tables = lt.quantize(Tied(), recipe("W8A8", kinds=["embedding"]))
    assert [row.name for row in lt.report(tables).treated] == ["embedding"], "a recipe for embeddings alone names them"
    plain = lt.quantize(nn.Sequential(nn.Linear(16, 8)), recipe("W8A8"))
    assert len(lt.report(plain).treated) == 1


class Halved(nn.Linear):
    def forward(self, x: Any) -> Any:
        return super().forward(x) / 2


def hooked() -> nn.Linear:
    module = nn.Linear(8, 8)
    module.register_forward_hook(lambda *_: None)
    return module


def replaced() -> nn.Linear:
    module = nn.Linear(8, 8)
    module.forward = lambda x: x  # type: ignore[method-assign]
    return module


def old_weight_norm() -> nn.Linear:
    module = nn.utils.weight_norm(nn.Linear(8, 8))
    with torch.no_grad():
        module(torch.ones(1, 8))  # only now can it be copied
    return module


class Conv1D(nn.Module):
    """As transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.nf, self.weight = 8, nn.Parameter(torch.ones(4, 8))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Halved(8, 8), "subclass"),
        (hooked, "hooks"),
        (replaced, "forward was replaced"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), "parametrized"),
        (old_weight_norm, "computed from other parameters"),
        (lambda: nn.Linear(8, 8).double(), "float64"),
        (lambda: nn.Linear(0, 8), "empty"),
        (lambda: nn.LazyLinear(8), "subclass"),
        (lambda: nn.Conv2d(2, 2, 3, padding_mode="reflect"), "reflect"),
        (lambda: nn.Conv3d(2, 2, 3), "no quantized form of Conv3d"),
        (lambda: nn.ConvTranspose2d(2, 2, 3), "no quantized form"),
        (lambda: nn.RNN(4, 4), "no quantized form of RNN"),
        (lambda: nn.Embedding(4, 4, max_norm=1.0), "max_norm"),
        (lambda: nn.EmbeddingBag(4, 4), "no quantized form"),
        (Conv1D, "Conv1D"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_what_may_compute_something_else_is_left_alone(make: Any, why: str) -> None:
    model = nn.Sequential(make())
    kind = type(model[0])
    rules = recipe("W8A8", overrides=[Override("*")])  # embeddings are asked for only by name
    found = lt.quantize(model, rules)
    assert type(found[0]) is kind
    row = lt.report(found).rows[0]
    assert why in row.why_not
    assert row.skipped
    with pytest.raises(lb.InvalidProblem, match=rf"^strict: 1 weights .*{why}"):
        lt.quantize(model, rules, strict=True)


def test_norms_are_named_but_not_missed() -> None:
    found = lt.quantize(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), recipe("W8A8"), strict=True)
    row = row_of(found, "1")
    assert not row.treated
    assert not row.asked


class OddAttention(nn.MultiheadAttention):
    """A subclass, which may compute something else."""


def test_odd_attention_works_as_before(fast: list[Any]) -> None:
    x = torch.randn(2, 5, 16)
    attention = OddAttention(16, 2, batch_first=True).eval()
    with pytest.warns(UserWarning, match="0 of 1,024 weights"):
        found = lt.quantize(attention, recipe("W8A8"), example=(x, x, x))
    assert torch.equal(found(x, x, x)[0], attention(x, x, x)[0])
    assert row_of(found, "out_proj").why_not.startswith("OddAttention reads")


class Odd(nn.TransformerEncoderLayer):
    """A subclass, which may compute something else."""


def encoder(layer: type[nn.Module] = nn.TransformerEncoderLayer, nested: bool = False, **options: Any) -> nn.Module:
    made = layer(16, 2, 64, **({"batch_first": True} | options))
    return nn.TransformerEncoder(made, 2, enable_nested_tensor=nested).eval()


PROJECTIONS = [f"self_attn.{name}_proj.weight" for name in ("q", "k", "v", "out")]


@pytest.mark.parametrize(
    ("options", "example"),
    [({}, True), ({"norm_first": True}, False), ({"activation": "gelu"}, False), ({"batch_first": False}, True)],
    ids=str,
)
def test_encoder_layers_call_their_quantized_layers(
    options: dict[str, Any], example: bool, fast: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's fused kernel would read float weights instead."""
    model, x = encoder(**options), torch.randn(2, 5, 16)
    found = lt.quantize(model, recipe("W8A8"), example=x if example else None)
    twins = [copy.deepcopy(found), lt.load_quantized(encoder(**options), found.state_dict())]
    assert [row.name for row in lt.report(found).treated] == [
        f"layers.{i}.{name}" for i in (0, 1) for name in (*PROJECTIONS, "linear1", "linear2")
    ]  # fmt: skip
    mask = torch.zeros(5, 5).masked_fill(torch.ones(5, 5).triu(1).bool(), -torch.inf)
    calls: list[Any] = []
    forward = lt.QuantizedLinear.forward
    monkeypatch.setattr(lt.QuantizedLinear, "forward", lambda self, x: calls.append(self) or forward(self, x))
    monkeypatch.setattr(lt.QuantizedLinear, "weight", property(lambda self: pytest.fail("read")))
    for grad in (False, True):
        for given in ({}, {"mask": mask} if options.get("batch_first", True) else {}):
            with torch.set_grad_enabled(grad):
                y, expected = found(x, **given).detach(), model(x, **given).detach()
                assert all(torch.equal(twin(x, **given), y) for twin in twins)
            assert error_report(expected.numpy(), y.numpy()).sqnr_db > 30
    assert len(calls) == 12 * 4 * 3


@pytest.mark.parametrize("inplace", [False, True])
def test_encoder_layers_with_a_float_attention_call_their_quantized_layers(
    inplace: bool, fast: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = encoder(), torch.randn(2, 5, 16)
    expected = model(x).detach()
    found = lt.quantize(model, recipe("W8A8").but(skip=["*self_attn*"]), inplace=inplace)
    assert [row.name for row in lt.report(found).treated] == [f"layers.{i}.linear{j}" for i in (0, 1) for j in (1, 2)]
    monkeypatch.setattr(lt.QuantizedLinear, "weight", property(lambda self: pytest.fail("read")))
    with torch.no_grad():
        y = found(x)
    assert error_report(expected.numpy(), y.numpy()).sqnr_db > 30


def test_encoders_that_might_compute_something_else_are_left_alone() -> None:
    with pytest.warns(UserWarning, match="0 of "):
        found = lt.quantize(encoder(Odd), recipe("W8A8"))
    assert all("without calling it" in row_of(found, f"layers.0.linear{i}").why_not for i in (1, 2))
    assert row_of(found, "layers.0.self_attn").why_not.startswith("Odd reads")


def test_encoders_do_not_take_nested_tensors() -> None:
    """Torch's kernels for them would read float weights; without them, padded positions are computed, too."""
    model, x = encoder(nested=True), torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    found = lt.quantize(model, recipe("W8A8"))
    assert len(lt.report(found).treated) == 12
    assert (model.use_nested_tensor, found.use_nested_tensor) == (True, False)
    with torch.no_grad():
        y = found(x, src_key_padding_mask=padding)
    model.use_nested_tensor = False
    expected = model(x, src_key_padding_mask=padding).detach()  # with gradients, so that nothing is fused
    assert error_report(expected.numpy(), y.numpy()).sqnr_db > 30


# ---- nothing is silent ----------------------------------------------------------------------------------------------


def test_a_warning_gives_the_reasons_where_less_than_half_is_quantized() -> None:
    model = nn.ModuleDict({"a": nn.Linear(64, 32), "b": Halved(64, 33), "c": nn.LSTMCell(64, 4)})
    with pytest.warns(UserWarning, match=r"^quantize: 2,048 of 5,248 weights were quantized. The rest") as caught:
        found = lt.quantize(model)
    assert len(caught) == 1
    said = str(caught[0].message)
    assert "stayed float: Halved is a subclass of Linear, which may compute something else (2,112 in b); " in said
    assert "; no quantized form of LSTMCell here (1,088 in c). " in said
    assert said.endswith("print(lowbit.torch.report(model)) lists them")
    assert caught[0].filename == __file__
    assert len(lt.report(found).treated) == 1


@pytest.mark.parametrize(
    ("model", "rules"),
    [
        (lambda: nn.Sequential(nn.Linear(64, 32), Halved(64, 32)), {}),  # just half
        (lambda: nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(4096)), {}),  # norms do not count
        (lambda: nn.Sequential(nn.Linear(64, 32), nn.Linear(64, 64)), {"skip": ["1"]}),  # as it was told
        (lambda: nn.Sequential(nn.Linear(64, 32), nn.Embedding(64, 64)), {"kinds": ["linear"]}),
        (lambda: nn.Sequential(nn.ReLU()), {}),
        (Tied, {"min_elements": 0}),
    ],
)
def test_no_warning_where_half_is_quantized_or_the_recipe_says_so(model: Any, rules: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lt.quantize(model(), Recipe.of("W8A8").but(**rules))


def test_a_weight_that_two_modules_share_counts_once() -> None:
    model = Tied()
    model.body = model.again = Halved(16, 16)
    model.embedding.max_norm = 1.0  # so that only the head is quantized
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lt.quantize(model, recipe("W8A8", overrides=[Override("head"), Override("embedding")]))
    assert [row.name for row in lt.report(found).treated] == ["head"]


@pytest.mark.parametrize(
    ("model", "rules", "why"),
    [
        (lambda: nn.Linear(8, 8), "W8A8", r"0 of 64 weights .*64 elements; the recipe leaves weights below 1024"),
        (lambda: nn.Conv2d(8, 16, 3), "W4A16", r"0 of 1,152 weights .*float activations"),
    ],
)
def test_a_warning_says_that_nothing_was_done(model: Any, rules: str, why: str) -> None:
    with pytest.warns(UserWarning, match=why):
        lt.quantize(model(), rules)


def test_layers_that_float_is_faster_for_are_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_clock(monkeypatch, lambda *_: timing.LayerTiming(1e-3, 5e-3))
    with pytest.warns(UserWarning, match=r"0 of 64 weights .*float is faster \(64 in 0\)"):
        lt.quantize(nn.Sequential(nn.Linear(8, 8)), recipe("W8A8"), example=torch.ones(4, 8))


def test_a_report_prints_as_a_table(fast: list[Any]) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), Halved(16, 4))
    found = lt.quantize(model, recipe("W8A8"), example=torch.randn(4, 8), fit_products=1)
    lines = str(lt.report(found)).splitlines()
    assert lines[0].split() == ["weight", "used", "by", "shape", "bytes", "SQNR", "dB", "how,", "or", "why", "not"]
    assert lines[1].startswith("0       Linear      16×8  576 → 384 ")
    assert "int8 symmetric, per channel; activations int8 symmetric, dynamic per token" in lines[1]
    assert lines[2].endswith("nothing in LayerNorm is multiplied with a weight")
    assert "Halved is a subclass of Linear" in lines[3]
    assert lines[4].startswith("1 of 3 weights quantized; ")
    assert lines[5].startswith("output 0: SQNR ")
    column = lines[0].index("how, or why not")
    assert all(line[column - 2 : column] == "  " and line[column] != " " for line in lines[1:4])


# ---- how it is called -----------------------------------------------------------------------------------------------


def test_the_signature_names_every_parameter() -> None:
    found = inspect.signature(lt.quantize).parameters
    kinds = {p.kind for p in found.values()}
    assert kinds == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    for of, renamed in ((quantize_model, {"model": "x"}), (ops.quantize, {})):
        for name, p in inspect.signature(of).parameters.items():
            assert renamed.get(name, name) in found
            if p.default is not inspect.Parameter.empty:
                assert found[name].default == p.default
    text = pydoc.plain(pydoc.render_doc(lt.quantize))
    assert "calibration: batches, such as" in text
    assert "Quantize a model for inference" in text


def test_options_of_the_other_kind_are_refused() -> None:
    linear, x = nn.Linear(64, 32), torch.ones(3)
    for name, value in {"scale": 0.1, "zero_point": 1, "qmin": -8, "axis": 0, "dtype": torch.int8}.items():
        with pytest.raises(lb.InvalidProblem, match=rf"^{name}: an option of a tensor"):
            lt.quantize(linear, **{name: value})
    for name, value in {"calibration": [], "example": x, "inplace": True, "progress": False, "inputs": 0}.items():
        with pytest.raises(lb.InvalidProblem, match=rf"^{name}: an option of a model"):
            lt.quantize(x, 0.1, **{name: value})
    with pytest.raises(lb.InvalidProblem, match=r"^scale: missing"):
        lt.quantize(x)
    with pytest.raises(lb.InvalidProblem, match=r"^scale: given twice"):
        lt.quantize(x, 0.1, scale=0.1)
    assert torch.equal(lt.quantize(x, scale=0.1), lt.quantize(x, 0.1, 0, qmin=-128))
    assert isinstance(lt.quantize(linear, recipe="W8A8", qmin=-128), lt.QuantizedLinear)


def test_what_is_returned_is_a_copy_unless_told_otherwise() -> None:
    model = nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32))
    found = lt.quantize(model, "W8A8")
    assert type(model[0]) is nn.Linear
    assert found[1].weight is not model[1].weight
    assert found[1].weight.data_ptr() != model[1].weight.data_ptr()
    assert lt.quantize(model, "W8A8", inplace=True) is model
    assert isinstance(model[0], lt.QuantizedLinear)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, a: Any, b: Any = None) -> Any:
        return self.one(a) + (0 if b is None else self.two(b))


def ranges_of(model: nn.Module) -> list[float]:
    return [float(m.layer.input_params.scale) for m in model.modules() if isinstance(m, lt.QuantizedLinear)]


def test_batches_of_a_data_loader_with_labels_work(fast: list[Any]) -> None:
    data = torch.utils.data.TensorDataset(torch.randn(12, 8), torch.arange(12))
    loader = torch.utils.data.DataLoader(data, batch_size=4)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    found = lt.quantize(model, recipe("static-int8"), calibration=loader, progress=False)
    expected = lt.quantize(model, recipe("static-int8"), calibration=[x for x, _ in loader], progress=False)
    assert ranges_of(found) == ranges_of(expected)
    assert lt.report(found).accuracy == lt.report(expected).accuracy
    example = lt.quantize(model, recipe("W8A8"), example=next(iter(loader)))
    assert lt.report(example).accuracy
    observed = lt.observe(model, loader, progress=False)
    assert observed["0"].count == 12 * 8


@pytest.mark.parametrize(
    ("batch", "inputs", "treated"),
    [
        ((9, ONES), 1, ["one"]),
        ([9, ONES, ONES], (1, 2), ["one", "two"]),
        ((9, 2 * ONES, ONES), (2, 1), ["one", "two"]),
        ((ONES, ONES, 9), [0], ["one"]),
        ((9, ONES), -1, ["one"]),
        ({"image": ONES, "label": 9}, "image", ["one"]),
        ({"b": ONES, "a": ONES, "label": 9}, ["a", "b"], ["one", "two"]),
        ((ONES, ONES), None, ["one", "two"]),
        ({"b": ONES, "a": ONES}, None, ["one", "two"]),
    ],
)
def test_inputs_say_what_of_a_batch_is_meant(batch: Any, inputs: Any, treated: list[str], fast: list[Any]) -> None:
    found = lt.quantize(Two(), recipe("static-int8"), calibration=[batch], inputs=inputs, progress=False)
    assert [row.name for row in lt.report(found).treated] == treated
    if inputs == (2, 1):
        one, two = ranges_of(found)
        assert two == pytest.approx(2 * one)
    assert lt.observe(Two(), [batch], inputs=inputs, progress=False).keys() == set(treated)


@pytest.mark.parametrize(
    ("batch", "inputs", "said"),
    [
        ((ONES, ONES, 9), None, r"^batch: 3 elements; forward takes 2 \(a, b\).*inputs="),
        ({"a": ONES, "label": 9}, None, r"^batch: the key 'label', which forward does not take \(a, b\).*inputs="),
        (ONES, 0, r"^inputs: 0; batches are Tensor, expected tuples or lists"),
        ((ONES, 9), "a", r"^inputs: 'a'; batches are tuple, expected mappings"),
        ({"a": ONES}, 0, r"^inputs: 0; batches are dict, expected tuples or lists"),
        ((ONES, 9), 2, r"^inputs: 2; a batch has 2 elements"),
        ({"a": ONES}, ["a", "c"], r"^inputs: \['a', 'c'\]; a batch has 'a'"),
        ((ONES, 9), [], r"^inputs: \[\]; expected an index or a key"),
        ((ONES, 9), [0, "a"], r"^inputs: \[0, 'a'\]; expected an index or a key"),
        ((ONES, 9), [True], r"^inputs: \[True\]; expected an index or a key"),
        ((ONES, 9), 0.5, r"^inputs: 0.5; expected an index or a key"),
    ],
)
def test_batches_that_do_not_fit_are_named(batch: Any, inputs: Any, said: str, fast: list[Any]) -> None:
    for call in (
        lambda: lt.quantize(Two(), recipe("static-int8"), calibration=[batch], inputs=inputs, progress=False),
        lambda: lt.quantize(Two(), recipe("W8A8"), example=batch, inputs=inputs),
        lambda: lt.observe(Two(), [batch], inputs=inputs, progress=False),
    ):
        with pytest.raises(lb.InvalidProblem, match=said):
            call()


def test_inputs_without_batches_are_refused() -> None:
    with pytest.raises(lb.InvalidProblem, match=r"^inputs: given without batches"):
        lt.quantize(nn.Linear(8, 8), recipe("W8A8"), inputs=0)


def test_a_module_that_is_never_called_stays_as_it_is(fast: list[Any]) -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.linear = nn.Embedding(9, 8), nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            return self.linear(x + self.table.weight[: x.shape[1]])

    rules = recipe("W8A8", overrides=[Override("table")])
    found = lt.quantize(Positions(), rules, example=torch.ones(1, 3, 8))
    assert type(found.table) is nn.Embedding
    assert "not called" in row_of(found, "table").why_not
    assert found(torch.ones(1, 3, 8)).shape == (1, 3, 8)
    blind = lt.quantize(Positions(), rules)  # without a run nobody can know, and reading still works
    assert isinstance(blind.table, lt.QuantizedEmbedding)
    assert torch.isfinite(blind(torch.ones(1, 3, 8))).all()


@pytest.mark.parametrize(
    ("name", "make", "why"),
    [
        ("W4A16", lambda: nn.Conv2d(4, 4, 3), "float activations"),
        ("W4A8", lambda: nn.Conv2d(4, 4, 3), "groups"),
        ("W8A8", lambda: nn.Linear(8, 8), "int16"),
    ],
)
def test_a_rule_that_no_module_can_follow_is_said(name: str, make: Any, why: str) -> None:
    rules = recipe(name)
    if why == "int16":
        rules = Recipe.of({"preset": "W8A8", "activations": {"dtype": "int16"}, "min_elements": 0})
    found = lt.quantize(nn.Sequential(make()), rules)
    assert why in lt.report(found).rows[0].why_not
    assert lt.report(found).skipped


def test_quantizing_twice_changes_nothing() -> None:
    once = lt.quantize(nn.Sequential(nn.Linear(8, 8), nn.Embedding(8, 8)), recipe("W8A8", overrides=[Override("1")]))
    twice = lt.quantize(once, recipe("W4A16"))
    assert [r.why_not for r in lt.report(twice).rows] == ["it is quantized already"] * 2
    x = torch.randn(2, 8)
    assert torch.equal(twice[0](x), once[0](x))


def test_a_model_in_training_mode_is_left_so_and_its_copy_is_for_inference() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)).train()
    found = lt.quantize(model, recipe("W8A8"))
    assert model.training
    assert model[1].training
    assert not any(m.training for m in found.modules())
    assert any("training mode" in note for note in lt.report(found).notes)


def test_images_stay_channels_last_only_between_modules_that_do_not_mind() -> None:
    def conv() -> nn.Conv2d:
        return nn.Conv2d(4, 4, 3, padding=1)

    shared = conv()
    cases = [
        ([conv(), nn.ReLU(), conv()], [torch.channels_last, torch.contiguous_format]),
        ([conv(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 3)], [torch.channels_last]),
        ([conv(), nn.PixelShuffle(2)], [None]),
        ([conv(), nn.BatchNorm2d(4)], [None]),
        ([shared, nn.ReLU(), shared], [None]),
    ]
    x = torch.randn(2, 4, 8, 8)
    for modules, formats in cases:
        model = nn.Sequential(*modules).eval()
        found = lt.quantize(model, recipe("dynamic-int8"))
        settled = {id(m): m for m in found if isinstance(m, lt.QuantizedConv2d)}
        assert [m.memory_format for m in settled.values()] == formats
        y = found(x)
        assert y.is_contiguous()
        for m in settled.values():
            m.memory_format = None
        assert torch.equal(found(x), y)


# ---- never slower ---------------------------------------------------------------------------------------------------


def test_a_layer_stays_float_where_float_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3))
    timed = fake_clock(monkeypatch, lambda before, _: timing.LayerTiming(1e-3, 5e-3 if before.shape[1] == 3 else 5e-4))
    found = lt.quantize(model, recipe("W8A8"), example=torch.ones(4, 8), strict=True)
    assert isinstance(found[0], lt.QuantizedLinear)
    assert type(found[1]) is nn.Linear
    row = row_of(found, "1")
    assert row.why_not == "float is faster"
    assert row.note == "float 1 ms, quantized 5 ms on [4, 8]"
    assert not row.asked
    assert row_of(found, "0").note == "float 1 ms, quantized 0.5 ms on [4, 8]"
    assert len(timed) == 3  # two layers, the slower one twice
    assert lt.report(found).latency[0].float_ms > 0
    never = lt.quantize(model, recipe("W8A8"), example=torch.ones(4, 8), keep_float="never")
    assert isinstance(never[1], lt.QuantizedLinear)
    assert len(timed) == 3


def test_layers_alike_are_timed_once_and_norms_with_their_convolution(fast: list[Any]) -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)))
    lt.quantize(model, recipe("W8A8"), example=torch.ones(4, 8))
    assert len(fast) == 1
    fast.clear()
    images = torch.randn(2, 3, 8, 8)
    net = cnn()
    lt.quantize(net, recipe("W8A8"), example=images)
    assert torch.equal(fast[0][0], net[2](net[1](net[0](images))))


def test_a_busy_machine_does_not_keep_a_layer_float(monkeypatch: pytest.MonkeyPatch) -> None:
    paces = iter([timing.LayerTiming(1e-3, 9e-3), timing.LayerTiming(1.2e-3, 5e-4)])
    fake_clock(monkeypatch, lambda *_: next(paces))
    found = lt.quantize(nn.Sequential(nn.Linear(8, 8)), recipe("W8A8"), example=torch.ones(4, 8))
    assert isinstance(found[0], lt.QuantizedLinear)
    assert row_of(found, "0").note.startswith("float 1 ms, quantized 0.5 ms")


def test_times_within_noise_are_the_same() -> None:
    assert not timing.LayerTiming(1.0, 1.01).is_slower
    assert timing.LayerTiming(1.0, 1.03).is_slower


def test_the_real_clock_times_both() -> None:
    pace = timing.time_pair(lambda: None, lambda: sum(range(1000)), 0.01)
    assert 0 < pace.float_s < pace.quantized_s


def test_without_data_the_report_says_that_nothing_was_timed() -> None:
    found = lt.quantize(nn.Sequential(nn.Linear(8, 8)), recipe("W8A8"))
    assert any("nothing could be timed" in note for note in lt.report(found).notes)
    assert not lt.report(found).accuracy
    assert json.dumps(lt.report(found).to_dict())


# ---- bad input ------------------------------------------------------------------------------------------------------


def with_nan() -> nn.Linear:
    module = nn.Linear(8, 8)
    with torch.no_grad():
        module.weight[3, 5] = float("nan")
    return module


@pytest.mark.parametrize(
    ("make", "options", "error", "said"),
    [
        (lambda: nn.ModuleDict({"a": with_nan()}), {}, lb.InvalidProblem, r"^a\.weight: .*\(3, 5\)"),
        (lambda: nn.ModuleDict({"a": nn.Linear(8, 8, device="meta")}), {}, lb.Unsupported, r"^a\.weight: .*meta"),
        (lambda: nn.ModuleDict({"a": nn.Linear(8, 8, dtype=torch.complex64)}), {}, TypeError, r"^a\.weight: .*complex"),
        (lambda: 3, {}, lb.InvalidProblem, "^model: int"),
        (lambda: nn.Linear(8, 8), {"recipe": "W9"}, lb.InvalidProblem, "^recipe"),
        (lambda: nn.Linear(8, 8), {"keep_float": "always"}, lb.InvalidProblem, "^keep_float"),
        (lambda: nn.Linear(8, 8), {"recipe": recipe("static-int8")}, lb.InvalidProblem, "^calibration: missing"),
        (lambda: nn.Linear(8, 8), {"calibration": []}, lb.InvalidProblem, "^calibration: no batches"),
        (lambda: nn.Linear(8, 8), {"calibration": torch.ones(2, 8)}, lb.InvalidProblem, "^calibration: a Tensor"),
        (lambda: nn.Linear(8, 8), {"example": 3}, lb.InvalidProblem, "^example"),
    ],
)
def test_bad_input_is_named(make: Any, options: dict[str, Any], error: Any, said: str) -> None:
    model = make()
    with pytest.raises(error, match=said):
        quantize_model(model, **({"recipe": recipe("W8A8")} | options))


def test_a_failure_leaves_the_model_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Halved(8, 8)).train()
    with pytest.raises(lb.InvalidProblem, match="strict"):
        lt.quantize(model, recipe("W8A8"), inplace=True, strict=True)
    assert type(model[0]) is nn.Linear
    assert model.training
    assert not model[0]._forward_pre_hooks
    with pytest.raises(lb.InvalidProblem, match="no report"):
        lt.report(model)
