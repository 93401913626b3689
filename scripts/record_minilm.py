"""Writes tests/data/minilm_activations.npz: what goes into three linear layers of MiniLM for sentences of STS-B.

    python -m scripts.record_minilm

Needs what `make bench` installs. Numbers drawn without order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks.minilm import linear_inputs, load, sentences

TARGET = Path(__file__).parents[1] / "tests/data/minilm_activations.npz"
LAYERS = {
    "attention": "encoder.layer.2.attention.self.query",  # behind a layer norm
    "context": "encoder.layer.3.attention.output.dense",  # sums weighted by attention
    "gelu": "encoder.layer.5.output.dense",  # one-sided, with a long tail
}
COUNT = {"attention": 20_000, "context": 20_000, "gelu": 100_000}


def main() -> None:
    rng = np.random.default_rng(0)
    seen: dict[str, list[np.ndarray]] = {name: [] for name in LAYERS}
    short = {layer: name for name, layer in LAYERS.items()}
    for layer, x in linear_inputs(load(), sentences(256)):
        if layer in short:
            seen[short[layer]].append(x.reshape(-1).copy())
    arrays = {name: rng.choice(np.concatenate(x), COUNT[name], replace=False) for name, x in seen.items()}
    TARGET.parent.mkdir(exist_ok=True)
    np.savez_compressed(TARGET, **arrays)
    print(f"wrote {TARGET.name}: {TARGET.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
