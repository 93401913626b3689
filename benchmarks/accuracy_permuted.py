"""SmolLM2-135M with the inputs of every linear layer in another order, and the same function.

Its file holds 4-bit codes, with a scale and a minimum for every 32 inputs: as it is, each such group is on a grid of 16
numbers, and what has groups of 32 would find that grid again. In another order, the numbers of a group are from many
grids. Three kinds of permutations keep the function, up to the rounding of float sums:

- of the hidden state, the same in all layers: the columns of what reads it, the rows of what writes it, and its norms;
- of the intermediate state of each MLP: rows of gate_proj and up_proj, columns of down_proj;
- of each value head: rows of v_proj, and columns of o_proj in every query head that reads it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

import transformers

import torch
from benchmarks.minilm import package_file
from benchmarks.smollm2 import MODEL, dequantized
from torch import Tensor

SEED = 20
FARTHEST = 1e-3  # of logits, relative to the largest: what another order of float sums may change


def write_permuted(folder: Path) -> None:
    """Writes the model and its tokenizer to a folder, as transformers saves them."""
    gguf = package_file(*MODEL)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = dequantized(gguf)
    given = tokenizer("The order of sums must not matter: 2 + 3 is 3 + 2.", return_tensors="pt").input_ids
    with torch.inference_mode():
        before = model(given).logits
        permute(model)
        after = model(given).logits
    farthest = float((after - before).abs().max() / before.abs().max())
    if farthest > FARTHEST:
        raise AssertionError(f"logits: permuting moved them by {farthest:.2g} of the largest; expected {FARTHEST}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def permute(model: Any, seed: int = SEED) -> None:
    """Reorders the inputs of all linear layers of a llama in place; seeded."""
    drawn, config = torch.Generator().manual_seed(seed), model.config
    hidden = torch.randperm(config.hidden_size, generator=drawn)
    _columns(model.model.embed_tokens, hidden)
    if model.lm_head.weight is not model.model.embed_tokens.weight:
        _columns(model.lm_head, hidden)
    _rows(model.model.norm, hidden)
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            _rows(norm, hidden)
        for reader in (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj):
            _columns(reader, hidden)
        for writer in (attention.o_proj, mlp.down_proj):
            _rows(writer, hidden)
        inner = torch.randperm(config.intermediate_size, generator=drawn)
        _rows(mlp.gate_proj, inner)
        _rows(mlp.up_proj, inner)
        _columns(mlp.down_proj, inner)
        _permute_values(attention, config, drawn)


def _permute_values(attention: Any, config: Any, drawn: torch.Generator) -> None:
    width, heads = attention.head_dim, config.num_key_value_heads
    within = torch.stack([torch.randperm(width, generator=drawn) for _ in range(heads)])
    _rows(attention.v_proj, (within + width * torch.arange(heads)[:, None]).flatten())
    readers = within.repeat_interleave(config.num_attention_heads // heads, 0)
    _columns(attention.o_proj, (readers + width * torch.arange(len(readers))[:, None]).flatten())


def _rows(module: Any, order: Tensor) -> None:
    module.weight.copy_(module.weight[order].clone())


def _columns(module: Any, order: Tensor) -> None:
    module.weight.copy_(module.weight[:, order].clone())
