"""Quantizes a checkpoint by a peer, in the environment of that peer, for `accuracy_peers`; imports nothing of lowbit.

    python accuracy_peer_runs.py PEER CHECKPOINT TOKENS.npy OUT.safetensors BITS GROUP

Writes what the codes of the decoder's linear layers stand for, by module, and prints true bits and seconds as JSON.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from safetensors.torch import load_file

import torch

Weights = dict[str, Any]
_PREFIX = "model."  # of names of modules in a causal language model


def hqq(checkpoint: str, tokens: Any, bits: int, group: int) -> tuple[Weights, float]:
    """Data-free; a scale and a zero point of 16 bits each."""
    from hqq.core.quantize import Quantizer

    made = {}
    for name, w in _linears(_loaded(checkpoint)).items():
        codes, meta = Quantizer.quantize(
            w, nbits=bits, group_size=group, axis=1, optimize=True, device="cpu", compute_dtype=torch.float32
        )
        made[name] = Quantizer.dequantize(codes, meta).float().reshape(w.shape).numpy()
    return made, bits + 32 / group


def gptqmodel(checkpoint: str, tokens: Any, bits: int, group: int) -> tuple[Weights, float]:
    """GPTQ, asymmetric, without g_idx."""
    from gptqmodel import GPTQModel, QuantizeConfig

    config = QuantizeConfig(bits=bits, group_size=group, desc_act=False, sym=False)
    model = GPTQModel.load(checkpoint, config, device="cpu")
    ids = [torch.from_numpy(row)[None] for row in tokens]
    model.quantize([{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in ids], batch_size=1)
    with tempfile.TemporaryDirectory() as folder:
        model.save(folder)
        return _from_gptq(Path(folder), bits), bits + (16 + bits) / group


def auto_round(checkpoint: str, tokens: Any, bits: int, group: int) -> tuple[Weights, float]:
    """SignRound, asymmetric, with a tenth of its default steps."""
    from auto_round import AutoRound
    from transformers import AutoTokenizer

    model, tokenizer = _loaded(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    given = [
        {"input_ids": torch.from_numpy(row), "attention_mask": torch.ones(len(row), dtype=torch.long)} for row in tokens
    ]
    loader = torch.utils.data.DataLoader(given, batch_size=1)
    rounding = AutoRound(
        model, tokenizer, bits=bits, group_size=group, sym=False, iters=20, dataset=loader, batch_size=1,
        nsamples=len(tokens), seqlen=tokens.shape[1], device_map="cpu",
    )  # fmt: skip
    made, _ = rounding.quantize()
    return {name: w.float().numpy() for name, w in _linears(made).items()}, bits + (16 + bits) / group


def llmcompressor(checkpoint: str, tokens: Any, bits: int, group: int) -> tuple[Weights, float]:
    """GPTQ on scales of least importance-weighted error, asymmetric."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.quantization import GPTQModifier

    model = _loaded(checkpoint)
    rows = {"input_ids": tokens.tolist(), "attention_mask": np.ones_like(tokens).tolist()}
    args = QuantizationArgs(num_bits=bits, group_size=group, strategy="group", symmetric=False, observer="imatrix_mse")
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    recipe = GPTQModifier(config_groups={"group_0": scheme}, ignore=["lm_head"])
    oneshot(
        model=model, dataset=Dataset.from_dict(rows), recipe=recipe, max_seq_length=tokens.shape[1],
        num_calibration_samples=len(tokens),
    )  # fmt: skip
    return {name: w.float().numpy() for name, w in _linears(model).items()}, bits + (16 + bits) / group


def _loaded(checkpoint: str) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def _linears(model: Any) -> dict[str, Any]:
    """Weights of the decoder's linear layers, by module."""
    layers = {n: m for n, m in model.model.named_modules() if hasattr(m, "weight") and n.endswith("_proj")}
    return {name: layer.weight.detach() for name, layer in layers.items()}


def _from_gptq(folder: Path, bits: int) -> Weights:
    """Weights [outputs, inputs] of a checkpoint with qweight, qzeros and scales; v1 stores zero points less 1."""
    tensors: dict[str, Any] = {}
    for file in folder.glob("*.safetensors"):
        tensors |= load_file(file)
    config = json.loads((folder / "quantize_config.json").read_text("utf-8"))
    less = config.get("checkpoint_format", config.get("format", "gptq")) == "gptq"
    made = {}
    for name in [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]:
        scales = tensors[f"{name}.scales"].float().numpy()
        codes = _unpacked(tensors[f"{name}.qweight"].numpy().T, bits).T
        zeros = _unpacked(tensors[f"{name}.qzeros"].numpy(), bits)[:, : scales.shape[1]] + less
        groups = tensors[f"{name}.g_idx"].numpy()
        w = (codes - (zeros & ((1 << bits) - 1))[groups]) * scales[groups]
        made[name.removeprefix(_PREFIX)] = np.ascontiguousarray(w.T, np.float32)
    return made


def _unpacked(words: Any, bits: int) -> Any:
    """Codes [rows, columns] of 32-bit words along rows, the first in the lowest bits."""
    stream = np.unpackbits(np.ascontiguousarray(words).view(np.uint8), axis=1, bitorder="little")
    return (stream.reshape(len(words), -1, bits) << np.arange(bits)).sum(-1).astype(np.int32)


RUNS: dict[str, Callable[[str, Any, int, int], tuple[Weights, float]]] = {
    "hqq": hqq, "gptqmodel": gptqmodel, "auto-round": auto_round, "llmcompressor": llmcompressor,
}  # fmt: skip


def main() -> None:
    peer, checkpoint, tokens, out, bits, group = sys.argv[1:]
    wall = time.perf_counter()
    weights, true_bits = RUNS[peer](checkpoint, np.load(tokens), int(bits), int(group))
    save_file(weights, out)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(u.ru_utime + u.ru_stime for u in used)
    seconds = {"wall seconds": time.perf_counter() - wall, "CPU seconds": cpu, "peak MB": used[0].ru_maxrss / 1024}
    print(json.dumps({"true bits": true_bits, **seconds}))


if __name__ == "__main__":
    main()
