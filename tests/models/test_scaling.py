"""Which tensors of decoders take back the scales of inputs, and that the function stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lowbit.models.scaling import Shapes, folded, scaling_groups
from lowbit.numerics.errors import InvalidProblem

Array = np.ndarray[Any, Any]
HIDDEN, INNER, HEAD = 24, 40, 4


def layer(heads: int = 6, values: int = 2, bias: bool = False) -> Shapes:
    made = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        "self_attn.q_proj.weight": (heads * HEAD, HIDDEN),
        "self_attn.k_proj.weight": (values * HEAD, HIDDEN),
        "self_attn.v_proj.weight": (values * HEAD, HIDDEN),
        "self_attn.o_proj.weight": (HIDDEN, heads * HEAD),
        "mlp.gate_proj.weight": (INNER, HIDDEN),
        "mlp.up_proj.weight": (INNER, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INNER),
    }
    if bias:
        made |= {"input_layernorm.bias": (HIDDEN,), "self_attn.v_proj.bias": (values * HEAD,)}
        made |= {"mlp.up_proj.bias": (INNER,)}
    return {f"model.layers.0.{name}": shape for name, shape in made.items()}


def decoder(t: dict[str, Array], x: Array, heads: int, values: int) -> Array:
    """A decoder layer in float64, over the rows of x as one sequence; attention without positions or a mask."""
    p = {name.removeprefix("model.layers.0."): tensor.astype(np.float64) for name, tensor in t.items()}

    def linear(name: str, x: Array) -> Array:
        return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)

    def norm(name: str, x: Array) -> Array:
        rms = np.sqrt(np.square(x).mean(-1, keepdims=True))
        return x / rms * p[f"{name}.weight"] + p.get(f"{name}.bias", 0)

    y = norm("input_layernorm", x)
    q, k, v = (linear(f"self_attn.{n}_proj", y).reshape(len(x), -1, HEAD).swapaxes(0, 1) for n in "qkv")
    k, v = (np.repeat(a, heads // values, 0) for a in (k, v))
    score = np.exp(q @ k.swapaxes(1, 2) / HEAD)
    mixed = (score / score.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(x), -1)
    x = x + linear("self_attn.o_proj", mixed)
    y = norm("post_attention_layernorm", x)
    return x + linear("mlp.down_proj", np.tanh(linear("mlp.gate_proj", y)) * linear("mlp.up_proj", y))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("heads", "values"), [(6, 6), (6, 2), (6, 1)])
def test_the_function_stays(heads: int, values: int, bias: bool) -> None:
    rng = np.random.default_rng(0)
    shapes = layer(heads, values, bias)
    before = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    x = rng.standard_normal((7, HIDDEN))
    want, after = decoder(before, x, heads, values), dict(before)
    groups, skipped = scaling_groups(shapes, head_dim=HEAD)
    assert not skipped
    assert len(groups) == 4
    for group in groups:
        of_channel = np.exp2(rng.integers(-3, 4, group.channel.max() + 1))  # powers of two: no tensor is rounded
        after |= folded(group, of_channel[group.channel], after)
    assert all(
        (after[name] != before[name]).any() for name in shapes if ".q_norm" not in name and "k_proj.bias" not in name
    )
    np.testing.assert_allclose(decoder(after, x, heads, values), want, rtol=1e-9, atol=1e-9)


def test_a_scale_of_one_changes_no_bit() -> None:
    rng = np.random.default_rng(0)
    before = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in layer().items()}
    for group in scaling_groups(layer(), head_dim=HEAD)[0]:
        for name, tensor in folded(group, np.ones(len(group.channel)), before).items():
            assert tensor.dtype == np.float32
            np.testing.assert_array_equal(tensor, before[name])


def test_query_heads_share_the_scales_of_their_value_head() -> None:
    group = scaling_groups(layer(6, 2), head_dim=HEAD)[0][1]
    assert group.divided == ("model.layers.0.self_attn.v_proj.weight",)
    assert group.channel.reshape(6, HEAD).tolist() == 3 * [[0, 1, 2, 3]] + 3 * [[4, 5, 6, 7]]
    tensors = {group.divided[0]: np.ones((8, HIDDEN)), group.multiplied[0]: np.ones((HIDDEN, 24))}
    with pytest.raises(InvalidProblem, match=r"^scale: differs between inputs that one channel makes"):
        folded(group, np.arange(1, 25), tensors)
    with pytest.raises(InvalidProblem, match=r"^scale: shape \(3,\); expected 24 positive numbers"):
        folded(group, np.ones(3), tensors)
    with pytest.raises(InvalidProblem, match=r"^scale: "):
        folded(group, np.zeros(24), tensors)


def test_the_size_of_a_head_is_found_where_queries_have_a_norm() -> None:
    norms = {f"model.layers.0.self_attn.{n}_norm.weight": (HEAD,) for n in "qk"}
    found = scaling_groups(layer() | norms)[0]
    assert [g.channel.tolist() for g in found] == [
        g.channel.tolist() for g in scaling_groups(layer(), head_dim=HEAD)[0]
    ]
    skipped = scaling_groups(layer())[1]
    assert [(s.name, s.reason) for s in skipped] == [
        (
            "model.layers.0.self_attn.o_proj",
            "v_proj makes 8 channels and o_proj reads 24, with an unknown head_dim",
        )
    ]


def _with(*names: str) -> Shapes:
    return layer() | {f"model.layers.0.{name}.weight": (HIDDEN,) for name in names}


def _without(*names: str) -> Shapes:
    return {name: shape for name, shape in layer().items() if not any(f".{n}." in name for n in names)}


@pytest.mark.parametrize(
    ("shapes", "left"),
    [
        (_with("pre_feedforward_layernorm"), {"self_attn.v_proj", "mlp.up_proj"}),  # Gemma 2: norms after the blocks
        (_without("input_layernorm"), {"self_attn.v_proj", "post_attention_layernorm", "mlp.up_proj"}),
        (_without("post_attention_layernorm"), {"self_attn.v_proj", "mlp.up_proj"}),  # a norm before both blocks
        (_with("self_attn.sub_norm"), {"post_attention_layernorm", "mlp.up_proj"}),  # before o_proj, perhaps
        (_with("mlp.act"), {"input_layernorm", "self_attn.v_proj"}),
        (_with("mlp.gate_proj.lora"), {"input_layernorm", "self_attn.v_proj"}),
    ],
    ids=["gemma2", "no-norm", "parallel", "attention-norm", "mlp-norm", "adapter"],
)
def test_what_is_not_known_is_left_alone(shapes: Shapes, left: set[str]) -> None:
    groups, skipped = scaling_groups(shapes, head_dim=HEAD)
    made = {g.divided[0].removeprefix("model.layers.0.").removesuffix(".weight") for g in groups}
    assert made == left
    assert len(groups) + len(skipped) == 4


def test_experts_and_fused_layers() -> None:
    experts = {
        f"model.layers.3.mlp.experts.{i}.{n}_proj.weight": (8, INNER) if n == "down" else (INNER, 8)
        for i in range(2)
        for n in ("gate", "up", "down")
    }
    groups, skipped = scaling_groups(experts | {"model.layers.3.mlp.gate.weight": (2, 8)})
    assert [g.divided for g in groups] == [(f"model.layers.3.mlp.experts.{i}.up_proj.weight",) for i in range(2)]
    assert [s.name.split(".")[-1] for s in skipped] == ["input_layernorm", "o_proj", "post_attention_layernorm"]
    fused = {
        "input_layernorm": (8,), "post_attention_layernorm": (8,), "self_attn.qkv_proj": (24, 8),
        "self_attn.o_proj": (8, 8), "mlp.gate_up_proj": (32, 8), "mlp.down_proj": (8, 16),
    }  # fmt: skip
    groups = scaling_groups({f"layers.0.{name}.weight": shape for name, shape in fused.items()})[0]
    assert [g.multiplied for g in groups] == [
        ("layers.0.self_attn.qkv_proj.weight",),
        ("layers.0.mlp.gate_up_proj.weight",),
    ]


def test_other_tensors_and_other_shapes() -> None:
    assert scaling_groups({"lm_head.weight": (9, 3), "model.norm.weight": (3,)}) == ([], [])
    wrong = layer() | {"model.layers.0.mlp.down_proj.weight": (HIDDEN, INNER // 2)}
    assert scaling_groups(wrong, head_dim=HEAD)[1][0].reason == "up_proj makes 40 channels and down_proj reads 20"
    wrong = layer() | {"model.layers.0.mlp.up_proj.weight": (INNER, 3)}
    assert "post_attention_layernorm.weight has shape (24,)" in scaling_groups(wrong, head_dim=HEAD)[1][0].reason
