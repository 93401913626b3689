"""Small causal language models with random weights, as transformers saves them, and text for their tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import transformers

import torch

WORDS = ["<unk>", "<s>", *(f"w{i}" for i in range(60))]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip


def write_llm(
    folder: Path, config: str = "LlamaConfig", *, dtype: Any = None, shard: str = "5GB", **changes: Any
) -> Any:
    """Write a model of this class, and return it in eval() mode."""
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**(SIZES | changes))).eval()
    made = made if dtype is None else made.to(dtype)
    made.save_pretrained(folder, max_shard_size=shard)
    return made


def write_tokenizer(folder: Path, words: list[str] = WORDS, **options: Any) -> None:
    """A tokenizer of whole words."""
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0])
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token=words[0], **options).save_pretrained(folder)


def words(count: int, seed: int = 0) -> str:
    """Text of so many words."""
    return " ".join(f"w{i}" for i in np.random.default_rng(seed).integers(0, 60, count))


def sequences(count: int = 5, length: int = 40, seed: int = 0) -> list[np.ndarray]:
    """Sequences of tokens."""
    return list(np.random.default_rng(seed).integers(2, len(WORDS), (count, length)))


def linear_inputs(model: Any, tokens: list[np.ndarray]) -> dict[str, np.ndarray]:
    """What each Linear is given, [rows, inputs] in float64, by the names of weights: by hooks on the whole model."""
    found: dict[str, list[np.ndarray]] = {}

    def note(name: str) -> Any:
        def hook(_: Any, given: Any) -> None:
            found.setdefault(name, []).append(given[0].reshape(-1, given[0].shape[-1]).double().numpy())

        return hook

    linears = [(f"{n}.weight", m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    handles = [m.register_forward_pre_hook(note(n)) for n, m in linears]
    with torch.no_grad():
        for each in tokens:
            model(torch.from_numpy(each.astype(np.int64))[None])
    for handle in handles:
        handle.remove()
    return {name: np.concatenate(rows) for name, rows in found.items()}
