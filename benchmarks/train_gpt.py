"""A small language model with weights that were never quantized: python -m benchmarks.train_gpt --out FOLDER

A llama of 6 layers and its tokenizer, trained on the articles and plays of `accuracy_texts`, and saved as transformers
saves them, with the held-out texts beside. Seeded. Where the steps do not fit in the given minutes, the learning rate
falls sooner and fewer are made. Float sums differ between CPUs and numbers of threads, so the weights do, too: compare
figures of one folder only.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import tokenizers
import transformers
from torch.nn import functional

import torch
from benchmarks.accuracy_texts import held_out_texts, training_text
from torch import Tensor

VOCABULARY, WINDOW, BATCH = 2048, 256, 16
STEPS, MINUTES = 1500, 28.0
PEAK_RATE, WARM_UP, DECAY = 1.5e-3, 0.03, 0.1  # of AdamW
END = "<|end|>"
_CONFIG = {
    "vocab_size": VOCABULARY, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 6,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 2 * WINDOW,
    "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": 0, "pad_token_id": None,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.train_gpt", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--cache", type=Path, default=Path("build/accuracy"), metavar="FOLDER", help="for the texts")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"of {BATCH} x {WINDOW} tokens")
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="N", help="at most")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    options = parser.parse_args()
    train(options.out, options.cache, options.steps, options.minutes, options.seed)


def train(folder: Path, cache_folder: Path, steps: int = STEPS, minutes: float = MINUTES, seed: int = 0) -> None:
    """Writes a trained model, its tokenizer and the held-out texts to the folder."""
    text, held_out = training_text(cache_folder), held_out_texts(cache_folder)
    tokenizer = tokenizer_of(text)
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**_CONFIG))
    fit(model, tokenizer(text, return_tensors="pt").input_ids[0], steps, 60 * minutes, seed)
    for name, judged in held_out.items():
        tokens = tokenizer(judged, return_tensors="pt").input_ids[0]
        print(f"{name}: perplexity {math.exp(mean_loss(model, tokens)):.2f}")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    for name, judged in held_out.items():
        (folder / f"held-out-{name}.txt").write_text(judged, encoding="utf-8")
    print(f"Written to {folder}")


def tokenizer_of(text: str) -> Any:
    """Byte pairs of this text."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(text.split("\n\n"), trainer)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)


def fit(model: Any, tokens: Tensor, steps: int, seconds: float, seed: int) -> None:
    """Trains on windows that start anywhere; the rate rises, then falls to 0 as a cosine of steps or time spent."""
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.95))
    fast = torch.cpu._is_avx512_bf16_supported()  # elsewhere bfloat16 is emulated, and slow
    start, mean = time.monotonic(), math.log(VOCABULARY)
    model.train()
    for step, batch in enumerate(_batches(tokens, seed)):
        done = max(step / steps, (time.monotonic() - start) / seconds)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min((step + 1) / (WARM_UP * steps), 0.5 + 0.5 * math.cos(math.pi * done))
        with torch.autocast("cpu", torch.bfloat16) if fast else nullcontext():
            logits = model(batch[:, :-1]).logits
        loss = functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean += 0.02 * (loss.item() - mean)
        if step % 50 == 0:
            print(f"{step:5d} of {steps}: loss {mean:.3f}, {time.monotonic() - start:.0f} s", flush=True)
    model.eval().requires_grad_(False)


@torch.inference_mode()
def mean_loss(model: Any, tokens: Tensor, windows: int = 32) -> float:
    """Of the first windows, in nats per token."""
    given = tokens[: windows * WINDOW].reshape(-1, WINDOW)
    logits = model(given).logits[:, :-1]
    return float(functional.cross_entropy(logits.flatten(0, 1), given[:, 1:].flatten()))


def _batches(tokens: Tensor, seed: int) -> Iterator[Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(tokens.numel() - WINDOW, (BATCH,), generator=drawn)
        yield torch.stack([tokens[s : s + WINDOW + 1] for s in starts.tolist()])


if __name__ == "__main__":
    main()
