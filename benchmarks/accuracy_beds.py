"""The models that `benchmarks.accuracy` quantizes, what they are calibrated with, and how they are judged.

A bed hands out a float model, the names of the layers that count, the moments of their inputs, and a judge: a function
of the model as it is now that tells how far it is from the float model, with the standard error of that.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
import transformers
from torch.nn import functional

import torch
from benchmarks import minilm, train_gpt
from benchmarks.accuracy_permuted import write_permuted
from benchmarks.accuracy_texts import calibration_text, held_out_texts
from lowbit.calibration import Moments
from lowbit.torch.inference.moments import observe_moments
from torch import Tensor, nn

CACHE = Path("build/accuracy")
# How often the first token of a window counts. All others attend to it, and one row of 1024 says too little of it: GPTQ
# would round it worse than rounding to nearest does.
FIRST_TOKEN = 64
Judge = Callable[[], dict[str, float]]


@dataclass
class Bed:
    """A model in float32, the batches it is calibrated with, and its judge."""

    name: str
    model: Any
    body: nn.Module  # the part of the model that has the layers; it runs on the batches
    blocks: nn.ModuleList  # of it, one after the other: the first of their arguments is what the one before returns
    batches: list[Any]
    judge: Judge  # "loss" is what is plotted, and "loss error" its standard error
    unit: str  # of the loss
    weights: Callable[[Any], Any] | None = None  # of the rows of a batch; None: 1 each
    tied: dict[str, Any] = field(default_factory=dict)  # of layers whose inputs can be scaled: see accuracy_methods
    calibrated: int = 0  # sentences or windows
    checkpoint: Path | None = None

    def __post_init__(self) -> None:
        self.layers = {name: m for name, m in self.body.named_modules() if isinstance(m, nn.Linear)}
        self.floats = {name: layer.weight.numpy().copy() for name, layer in self.layers.items()}

    def moments(self, *, gram: bool) -> dict[str, Moments]:
        """Of the inputs of each layer; layers with the same inputs share theirs."""
        return observe_moments(
            self.body,
            self.batches,
            modules=lambda name, _: name in self.layers,
            gram=gram,
            weights=self.weights,
            progress=False,
        )

    @torch.no_grad()
    def put(self, name: str, weight: Any) -> None:
        """Gives a layer another weight."""
        self.layers[name].weight.copy_(torch.from_numpy(weight))

    def restore(self) -> None:
        """Gives every layer its float weight."""
        for name, weight in self.floats.items():
            self.put(name, weight)


# ---- language models ----------------------------------------------------------------------------------


def language_bed(name: str, folder: Path, window: int, calibrated: int, judged: int, cache: Path = CACHE) -> Bed:
    """A checkpoint of transformers: calibrated on so many windows, judged by perplexity on so many of each text."""
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval().requires_grad_(False)
    given = windows(tokenizer, calibration_text(cache), window, calibrated)
    held_out = {text: windows(tokenizer, words, window, judged) for text, words in held_out_texts(cache).items()}
    return Bed(
        name, model, model.model, model.model.layers, [row[None] for row in given], _perplexities(model, held_out),
        "% of perplexity", _more_of_first, _tied_in_llama(model.config), calibrated, folder,
    )  # fmt: skip


def _more_of_first(batch: Tensor) -> Tensor:
    weights = torch.ones(batch.shape)
    weights[:, 0] = FIRST_TOKEN
    return weights


def _tied_in_llama(config: Any) -> dict[str, Any]:
    """Norms take scales of the inputs of q, k, v, gate and up back, and rows of up those of down. Rows of v do for o,
    where query heads that share a value head have the same scales."""
    width = config.hidden_size // config.num_attention_heads
    head = np.arange(config.num_attention_heads) // (config.num_attention_heads // config.num_key_value_heads)
    shared = (head[:, None] * width + np.arange(width)).ravel()
    readers = {"self_attn.q_proj": None, "self_attn.o_proj": shared, "mlp.gate_proj": None, "mlp.down_proj": None}
    return {f"layers.{i}.{name}": tied for i in range(config.num_hidden_layers) for name, tied in readers.items()}


def windows(tokenizer: Any, text: str, window: int, count: int) -> Tensor:
    """This number of windows [count, window], spread evenly over a text."""
    tokens = torch.tensor(tokenizer(text, verbose=False).input_ids)
    rows = tokens[: len(tokens) // window * window].reshape(-1, window)
    if count > len(rows):
        raise ValueError(f"windows: {count}; the text has {len(rows)} of {window} tokens")
    return rows[torch.arange(count) * len(rows) // count]


def _perplexities(model: Any, held_out: dict[str, Tensor]) -> Judge:
    """How much higher the perplexity is than that of the model as it is now, in percent, by text and of all windows.

    The standard error is that of the mean difference of a window.
    """
    floats = {text: _window_losses(model, rows) for text, rows in held_out.items()}

    def judge() -> dict[str, float]:
        found = {text: _window_losses(model, rows) for text, rows in held_out.items()}
        more = {f"loss {text}": found[text] - floats[text] for text in held_out}
        said = {f"perplexity {text}": math.exp(rows.mean()) for text, rows in found.items()}
        for name, rows in {"loss": torch.cat(list(more.values())), **more}.items():
            said[name], said[f"{name} error"] = percent_more(rows)
        return said

    return judge


def percent_more(nats: Tensor) -> tuple[float, float]:
    """The change of perplexity in percent of differences of mean losses, and its standard error."""
    mean, error = float(nats.mean()), float(nats.std()) / math.sqrt(len(nats))
    return 100 * math.expm1(mean), 100 * math.exp(mean) * error


@torch.inference_mode()
def _window_losses(model: Any, rows: Tensor) -> Tensor:
    """The mean loss of each window, float64, in nats."""
    per_batch = max(1, 1024 // rows.shape[1])
    found = []
    for batch in rows.split(per_batch):
        logits = model(batch).logits[:, :-1].float()
        each = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="none")
        found.append(each.double().reshape(len(batch), -1).mean(1))
    return torch.cat(found)


# ---- the sentence encoder -----------------------------------------------------------------------------


def minilm_bed(calibrated: int = 512, judged: int = 512) -> Bed:
    """MiniLM-L6: calibrated on sentences for training, judged by the SQNR of the vectors of others, and Spearman."""
    model = minilm.load()
    batches = minilm.batches(minilm.sentences(calibrated, "train"))
    texts = minilm.sentences(judged, "test")
    exact = minilm.encode(model, texts).astype(np.float64)

    def judge() -> dict[str, float]:
        noise = np.square(minilm.encode(model, texts) - exact).sum(1)
        db, error = sqnr_of(np.square(exact).sum(1), noise)
        return {"loss": -db, "loss error": error, "spearman": minilm.sts_score(model)}

    # Rows of the values take scales back; norms cannot, as sums read them too, and nothing does after a GELU.
    blocks = model.encoder["layer"]
    tied = {f"encoder.layer.{i}.attention.output.dense": None for i in range(len(blocks))}
    return Bed("minilm", model, model, blocks, batches, judge, "dB of noise", lambda batch: batch[1], tied, calibrated)


def sqnr_of(signal: minilm.Array, noise: minilm.Array, draws: int = 200) -> tuple[float, float]:
    """The SQNR in dB of the energies of each sentence, and its standard error by a bootstrap over sentences."""
    if not noise.any():
        return math.inf, 0.0
    drawn = np.random.default_rng(0).integers(len(noise), size=(draws, len(noise)))
    spread = 10 * np.log10(signal[drawn].sum(1) / noise[drawn].sum(1))
    return 10 * math.log10(signal.sum() / noise.sum()), float(spread.std(ddof=1))


# ---- by name ------------------------------------------------------------------------------------------


def smollm2_bed(calibrated: int = 8, judged: int = 12, cache: Path = CACHE) -> Bed:
    """SmolLM2-135M with permuted inputs, written once to the cache."""
    folder = cache / "smollm2-permuted"
    if not (folder / "tokenizer.json").is_file():
        write_permuted(folder)
    return language_bed("smollm2", folder, 1024, calibrated, judged, cache)


def gpt_bed(calibrated: int = 32, judged: int = 64, cache: Path = CACHE) -> Bed:
    """The GPT of `benchmarks.train_gpt`, trained once, for its half hour."""
    folder = cache / "gpt"
    if not (folder / "tokenizer.json").is_file():
        train_gpt.train(folder, cache)
    return language_bed("gpt", folder, train_gpt.WINDOW, calibrated, judged, cache)
