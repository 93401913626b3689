"""Layers that run one at a time see what the whole model shows its layers, for each architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
from safetensors.numpy import load_file, save_file

import torch
from lowbit.formats.causal_lm.network import LayerwiseModel
from lowbit.formats.causal_lm.observe import Observed, observe_layers
from lowbit.formats.causal_lm.text import Text
from lowbit.formats.safetensors.checkpoint import Checkpoint
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported
from tiny_llm import linear_inputs, sequences, write_llm

PLAIN: dict[str, Any] = {"first_token_share": 0.0}  # all tokens alike
TOKENS = [*sequences(3, 40), *sequences(1, 23, seed=1)]
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "LlamaConfig": {}, "MistralConfig": {"sliding_window": 16}, "Qwen3Config": {"head_dim": 16},
    "Gemma2Config": {"head_dim": 16, "sliding_window": 16}, "Gemma3TextConfig": {"head_dim": 16, "sliding_window": 16},
    "PhiConfig": {}, "GPTNeoXConfig": {}, "OPTConfig": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "BloomConfig": {"n_head": 4, "n_layer": 3}, "FalconConfig": {}, "CohereConfig": {}, "MambaConfig": {},
}  # fmt: skip


def observed(folder: Path, tokens: Any = TOKENS, **options: Any) -> list[Observed]:
    with Checkpoint.open(folder) as opened:
        return list(
            observe_layers(LayerwiseModel(opened), Text(tokens), lambda name, width: "gram", **(PLAIN | options))
        )


@pytest.mark.parametrize("config", ARCHITECTURES)
def test_moments_are_those_of_the_whole_model(config: str, tmp_path: Path) -> None:
    model = write_llm(tmp_path, config, **ARCHITECTURES[config])
    seen = {name.removeprefix(f"{model.base_model_prefix}."): x for name, x in linear_inputs(model, TOKENS).items()}
    count = 0
    for _, weights, moments in observed(tmp_path):
        for name in weights:
            rows = seen[name.removeprefix(f"{model.base_model_prefix}.")]
            expected = rows.T @ rows / len(rows)
            assert moments.count == len(rows)
            assert np.abs(moments.gram() - expected).max() <= 1e-4 * np.abs(expected).max(), name
            count += 1
    inside = {name for name in seen if ".0." in name}
    assert count == 3 * len(inside) > 0


def test_tied_and_renamed_tensors_are_found(tmp_path: Path) -> None:
    write_llm(tmp_path, tie_word_embeddings=True)
    plain = [o.moments.gram() for o in observed(tmp_path)]
    file = tmp_path / "model.safetensors"
    save_file({name.removeprefix("model."): a for name, a in load_file(file).items()}, file, {"format": "pt"})
    found = observed(tmp_path)
    assert next(iter(found[0].weights)) == "layers.0.self_attn.q_proj.weight"
    assert all(np.array_equal(a, b.moments.gram()) for a, b in zip(plain, found, strict=True))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_are_widened(dtype: Any, tmp_path: Path) -> None:
    model = write_llm(tmp_path, dtype=dtype)
    weights = {name: w for o in observed(tmp_path) for name, w in o.weights.items()}
    for name, parameter in model.named_parameters():
        if name in weights:
            assert np.array_equal(weights[name], parameter.detach().float().numpy())


def test_passes_and_spilled_states_change_no_bit(tmp_path: Path) -> None:
    write_llm(tmp_path)
    plain = observed(tmp_path)
    tight = observed(tmp_path, max_bytes=200_000, scratch=tmp_path)
    assert [list(o.weights) for o in plain] == [list(o.weights) for o in tight]
    assert all(np.array_equal(a.moments.gram(), b.moments.gram()) for a, b in zip(plain, tight, strict=True))
    assert not list(tmp_path.glob(".hidden*"))


def test_one_layer_is_in_memory(tmp_path: Path) -> None:
    write_llm(tmp_path)
    with Checkpoint.open(tmp_path) as opened:
        model = LayerwiseModel(opened)
        for each in observe_layers(model, Text(TOKENS), lambda name, width: "diagonal"):
            loaded = [all(not p.is_meta for p in layer.parameters()) for layer in model.layers]
            assert loaded == [i == each.layer for i in range(3)]


def test_layers_in_which_nothing_is_wanted_only_pass_states_on(tmp_path: Path) -> None:
    write_llm(tmp_path)
    plain = {name: o.moments for o in observed(tmp_path) for name in o.weights}
    name = "model.layers.2.mlp.down_proj.weight"
    with Checkpoint.open(tmp_path) as opened:
        model = LayerwiseModel(opened)
        [only] = observe_layers(model, Text(TOKENS), lambda n, width: "gram" if n == name else "", **PLAIN)
    assert list(only.weights) == [name]
    assert np.array_equal(only.moments.gram(), plain[name].gram())


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_the_first_token_counts_a_share_of_its_sequence(share: float, tmp_path: Path) -> None:
    model = write_llm(tmp_path)
    seen = linear_inputs(model, [TOKENS[0]])
    found = {name: o.moments for o in observed(tmp_path, [TOKENS[0]], first_token_share=share) for name in o.weights}
    for name, rows in seen.items():
        if name in found:
            energy = np.square(rows).sum(1)
            weights = np.ones(len(rows))
            weights[0] = max(1.0, share * len(rows) / max(1.0, energy[0] / energy.mean()))
            expected = (rows.T * weights) @ rows / weights.sum()
            assert found[name].weight == pytest.approx(weights.sum(), rel=1e-4)
            assert np.abs(found[name].gram() - expected).max() <= 1e-4 * np.abs(expected).max()


# ---- what is refused ------------------------------------------------------------------------------------


def test_experts_in_another_form_are_refused(tmp_path: Path) -> None:
    write_llm(tmp_path, "Qwen3MoeConfig", num_experts=4, moe_intermediate_size=32, head_dim=16)
    with pytest.raises(Unsupported, match=r"experts.*without data"):
        observed(tmp_path)


def test_a_config_that_names_no_language_model_is_refused(tmp_path: Path) -> None:
    write_llm(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "no-such-model"}')
    with pytest.raises(InvalidProblem, match="no-such-model"):
        observed(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    with pytest.raises(Unsupported, match="vit"):
        observed(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(InvalidProblem, match=r"config\.json"):
        observed(tmp_path)


def test_other_shapes_than_the_config_says_are_refused(tmp_path: Path) -> None:
    write_llm(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"intermediate_size": 96', '"intermediate_size": 95'))
    with pytest.raises(FormatError, match=r"mlp.*\(96, 64\).*\(95, 64\)"):
        observed(tmp_path)


def test_activations_that_are_not_finite_name_the_layer(tmp_path: Path) -> None:
    write_llm(tmp_path)
    file = tmp_path / "model.safetensors"
    arrays = load_file(file)
    arrays["model.layers.1.input_layernorm.weight"][5] = np.nan
    save_file(arrays, file, {"format": "pt"})
    with pytest.raises(InvalidProblem, match=r"sequence 0: model\.layers\.1\.self_attn\.q_proj: nan at index \(0, 5\)"):
        observed(tmp_path)
