"""Written checkpoints in transformers: the same logits, to the bit, as a float model with our dequantized weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowbit.formats.compressed_tensors.convert import quantize_checkpoint
from lowbit.formats.compressed_tensors.scheme import Scheme, decompressed
from lowbit.formats.safetensors.checkpoint import Checkpoint
from lowbit.models import Override, Recipe, WeightRecipe

os.environ.setdefault("TQDM_DISABLE", "1")
torch = pytest.importorskip("torch")
pytest.importorskip("compressed_tensors")
pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

G32 = WeightRecipe("int4", group_size=32)
RECIPES = {
    "int4-groups": Recipe("g32", G32),
    "uint4-groups": Recipe("g32", WeightRecipe("uint4", "asymmetric", group_size=32)),
    "W8A16": Recipe.of("W8A16"),
    "int8-tensor": Recipe("t", WeightRecipe("int8", granularity="tensor")),
    "uint8-channels": Recipe("t", WeightRecipe("uint8", "asymmetric")),
    "int2-groups": Recipe("g16", WeightRecipe("int2", group_size=16)),
    "mixed": Recipe(
        "mixed", G32, skip=("*.k_proj",),
        overrides=(Override("*.q_proj", WeightRecipe("int8")), Override("lm_head", WeightRecipe("int8"))),
    ),
}  # fmt: skip


def tiny(folder: Path, kind: str, tied: bool = False) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=tied,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(getattr(torch, kind))
    model.save_pretrained(folder, max_shard_size="100KB")
    return model


def logits(folder: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        return model, model(torch.arange(12)[None]).logits


def with_our_weights(model: Any, quantized: Path, recipe: Recipe, report: Any, folder: Path) -> Path:
    """The float checkpoint in which each treated weight is what lowbit says its codes stand for."""
    state = model.state_dict()
    with Checkpoint.open(quantized) as checkpoint:
        for row in report.treated:
            module = row.name.removesuffix(".weight")
            rule = recipe.rule(module, "linear")
            scheme = Scheme(rule.weights, rule.activations)
            planned = scheme.stored(module, row.shape, row.dtype)
            local = {s.name.removeprefix(f"{module}."): np.array(checkpoint.read(s.name)) for s in planned}
            found = decompressed(local, scheme, row.shape, row.dtype)
            state[row.name] = torch.from_numpy(found).to(state[row.name].dtype)
    model.load_state_dict(state)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", RECIPES)
def test_logits_are_those_of_our_dequantized_weights(name, kind, tmp_path):
    recipe = RECIPES[name]
    model = tiny(tmp_path / "f", kind)
    report = quantize_checkpoint(tmp_path / "f", tmp_path / "q", recipe, max_shard_bytes=20_000)
    assert len(report.treated) == (13 if name == "mixed" else 14)
    _, found = logits(tmp_path / "q")
    _, expected = logits(with_our_weights(model, tmp_path / "q", recipe, report, tmp_path / "ours"))
    assert found.dtype == getattr(torch, kind)
    assert torch.equal(found, expected)


def test_tied_embeddings(tmp_path):
    model = tiny(tmp_path / "f", "bfloat16", tied=True)
    recipe = RECIPES["int4-groups"]
    report = quantize_checkpoint(tmp_path / "f", tmp_path / "q", recipe)
    _, found = logits(tmp_path / "q")
    _, expected = logits(with_our_weights(model, tmp_path / "q", recipe, report, tmp_path / "ours"))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", ["W8A8", "W4A8", "dynamic-int8"])
def test_quantized_activations_change_little(name, tmp_path):
    """Their rounding is the loader's own; the weights must be ours, and the outputs near."""
    recipe = Recipe.of(name)
    if recipe.weights.group_size:
        recipe = recipe.but(weights=G32)
    model = tiny(tmp_path / "f", "float32")
    report = quantize_checkpoint(tmp_path / "f", tmp_path / "q", recipe)
    loaded, found = logits(tmp_path / "q")
    ours, expected = logits(with_our_weights(model, tmp_path / "q", recipe, report, tmp_path / "ours"))
    state, other = ours.state_dict(), loaded.state_dict()
    for row in report.treated:
        assert torch.equal(other[row.name], state[row.name]), row.name
    lost = (found - expected).norm() / expected.norm()
    assert 0 < lost < 0.05
