"""QuantizedMultiheadAttention computes what torch's module does, with the weights that the codes stand for."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import torch
from lowbit.models import Recipe
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported
from lowbit.torch import QuantizedMultiheadAttention, load_quantized, quantize, report
from torch import nn

W8A8 = Recipe.of("W8A8").but(min_elements=1)
NAMES = ("q_proj", "k_proj", "v_proj", "out_proj")


def made(**options: Any) -> nn.MultiheadAttention:
    torch.manual_seed(2)
    module = nn.MultiheadAttention(32, 4, **options).eval()
    for name, p in module.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(p, std=0.3)
    return module


def dequantized(module: nn.MultiheadAttention, small: Any) -> nn.MultiheadAttention:
    """The float module with the weights that the quantized one has."""
    twin = copy.deepcopy(module)
    weights = {name: small.products[name].weight for name in NAMES}
    with torch.no_grad():
        twin.out_proj.weight.copy_(weights["out_proj"])
        if twin.in_proj_weight is not None:
            twin.in_proj_weight.copy_(torch.cat([weights[name] for name in NAMES[:3]]))
        else:
            for name in NAMES[:3]:
                getattr(twin, f"{name}_weight").copy_(weights[name])
    return twin


def close(got: Any, want: Any, bound: float = 0.02) -> bool:
    assert got.shape == want.shape
    return bool((got - want).norm() <= bound * want.norm())


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "no weights": {"need_weights": False},
    "each head": {"average_attn_weights": False},
    "padding": {"key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2])},
    "causal": {"attn_mask": torch.ones(5, 6).triu(1).bool(), "need_weights": False, "is_causal": True},
    "float mask": {"attn_mask": torch.linspace(-2, 2, 30).reshape(5, 6)},
    "mask of each head": {"attn_mask": torch.linspace(-2, 2, 240).reshape(8, 5, 6), "need_weights": False},
    "both masks": {
        "attn_mask": torch.linspace(-2, 2, 240).reshape(8, 5, 6),
        "key_padding_mask": torch.zeros(2, 6).masked_fill(torch.arange(6) > 3, -torch.inf),
    },
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "options",
    [{}, {"batch_first": True}, {"bias": False}, {"kdim": 20, "vdim": 12}, {"add_zero_attn": True}, {"dropout": 0.5}],
    ids=str,
)
def test_results_are_those_of_the_dequantized_module(options: dict[str, Any], call: str) -> None:
    module = made(**options)
    small = QuantizedMultiheadAttention.from_float(module, activation_dtype="float")
    twin = dequantized(module, small)
    q, k, v = torch.randn(2, 5, 32), torch.randn(2, 6, module.kdim), torch.randn(2, 6, module.vdim)
    given = [t if module.batch_first else t.transpose(0, 1) for t in (q, k, v)]
    for inner, bound in ((small, 1e-5), (QuantizedMultiheadAttention.from_float(module), 0.03)):
        y, weights = inner(*given, **CALLS[call])
        want, expected = twin(*given, **CALLS[call])
        assert close(y, want.detach(), bound)
        assert (weights is None) == (expected is None)
        if weights is not None:
            assert close(weights, expected.detach(), bound)


def test_one_sequence_without_a_batch() -> None:
    module = made()
    small = QuantizedMultiheadAttention.from_float(module, activation_dtype="float")
    twin, x = dequantized(module, small), torch.randn(5, 32)
    options = {"key_padding_mask": torch.arange(5) > 3, "attn_mask": torch.linspace(-1, 1, 25).reshape(5, 5)}
    for given in ({}, options, {"need_weights": False}):
        (y, weights), (want, expected) = small(x, x, x, **given), twin(x, x, x, **given)
        assert close(y, want.detach(), 1e-5)
        assert weights is None or close(weights, expected.detach(), 1e-5)


@pytest.mark.parametrize("recipe", ["W8A8", "dynamic-int8", "W8A16", "W4A16", "W4A8"])
def test_models_are_swapped_reported_and_loaded(recipe: str) -> None:
    def network() -> nn.Module:
        torch.manual_seed(0)
        return nn.Transformer(64, 4, 1, 2, 96, batch_first=True).eval()

    model, x, target = network(), torch.randn(2, 7, 64), torch.randn(2, 5, 64)
    small = quantize(model, recipe)
    rows = {row.name: row for row in report(small).rows}
    attentions = [name for name, m in small.named_modules() if isinstance(m, QuantizedMultiheadAttention)]
    assert len(attentions) == 1 + 2 * 2
    for name in attentions:
        assert [rows[f"{name}.{part}.weight"].shape for part in NAMES] == [(64, 64)] * 4
        assert all(rows[f"{name}.{part}.weight"].treated for part in NAMES)
    assert sum(r.bytes_before for r in rows.values()) == sum(p.numel() * 4 for p in model.parameters())
    assert sum(r.bytes_after for r in rows.values()) == report(small).bytes_after
    again = load_quantized(network(), small.state_dict())
    with torch.no_grad():
        y = small(x, target)
        assert close(y, model(x, target), 0.2 if "W4" in recipe else 0.03)
        assert torch.equal(again(x, target), y)
        assert torch.equal(copy.deepcopy(small)(x, target), y)
        compiled = torch.compile(small.decoder.layers[0].multihead_attn, backend="aot_eager", fullgraph=True)
        assert torch.equal(compiled(target, x, x)[0], small.decoder.layers[0].multihead_attn(target, x, x)[0])


def test_an_example_times_attention() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = made(kdim=20, vdim=12)

        def forward(self, x: Any) -> Any:
            return self.attention(x, x[..., :20], x[..., :12])[0]

    rows = report(quantize(Net(), W8A8, example=torch.randn(6, 2, 32), optimize="balanced")).rows
    assert all("ms" in row.note for row in rows)


@pytest.mark.filterwarnings("ignore:quantize")
def test_what_stays_float_has_a_reason() -> None:
    hooked = made()
    hooked.register_forward_hook(lambda *_: None)
    static = Recipe.of("static-int8")
    x = torch.randn(5, 2, 32)
    for module, recipe, why, options in (
        (made(add_bias_kv=True), W8A8, "add_bias_kv", {}),
        (hooked, W8A8, "hooks", {}),
        (made(), static, "expected dynamic or float activations", {"calibration": [(x, x, x)]}),
    ):
        (row,) = report(quantize(module, recipe, **options)).rows
        assert why in row.why_not
        assert row.bytes_before == sum(p.numel() * 4 for p in module.parameters())
    with pytest.raises(Unsupported, match="add_bias_kv"):
        QuantizedMultiheadAttention.from_float(made(add_bias_kv=True))
    with pytest.raises(InvalidProblem, match="attn_mask: missing"):
        QuantizedMultiheadAttention.from_float(made())(x, x, x, is_causal=True)


def test_state_dicts_that_do_not_fit_are_refused() -> None:
    state = quantize(made(), W8A8).state_dict()
    wrong = [
        made(batch_first=True),
        made(kdim=20),
        made(add_bias_kv=True),
        nn.MultiheadAttention(32, 2),
        nn.LSTM(32, 4),
    ]
    for other in wrong:
        with pytest.raises(FormatError):
            load_quantized(other, state)
    with pytest.raises(FormatError, match="k_proj"):
        load_quantized(made(), {k: t for k, t in state.items() if not k.startswith("k_proj.weight")})
