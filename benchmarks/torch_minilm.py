"""python -m benchmarks.torch_minilm [--sentences N] [--rounds N] [--json PATH]

A trained sentence encoder in PyTorch, float and quantized: by lowbit.torch.quantize and by torch.ao's quantize_dynamic.
How well each ranks the test pairs of STS-B, and sentences a second on one thread; the models take turns on every batch.
Exits with 0 even where a target is missed, as the benchmarks do.
"""

from __future__ import annotations

import argparse
import copy
import warnings
from pathlib import Path

import numpy as np

import lowbit as lb
import lowbit.torch as lt
import torch
from benchmarks import minilm
from benchmarks.results import report_table
from torch import nn

FLOAT, LOWBIT, AO = "float", "lowbit dynamic-int8", "torch.ao quantize_dynamic"
TARGETS = {"spearman": 81.90, "times float": 2.0, "times torch.ao": 1.0}


def models(example: minilm.Batch) -> dict[str, nn.Module]:
    """The float model and both quantized ones."""
    base = minilm.load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ao = torch.ao.quantization.quantize_dynamic(copy.deepcopy(base), {nn.Linear}, dtype=torch.qint8)
    return {FLOAT: base, LOWBIT: lt.quantize(base, "dynamic-int8", example=example), AO: ao}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_minilm", description=__doc__.split("\n\n")[1])
    parser.add_argument("--sentences", type=int, default=512, metavar="N", help="to time (default: 512)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="over all of them (default: 5)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lb.set_num_threads(1)
    # Like lengths together, as `minilm.encode` has them.
    batches = minilm.batches(sorted(minilm.sentences(options.sentences, "test"), key=len))
    contenders = models(batches[len(batches) // 2])
    taken = minilm.seconds(contenders, batches, options.rounds)
    scores = {name: minilm.sts_score(model) for name, model in contenders.items()}
    times_float = {name: float(np.median(taken[FLOAT] / s)) for name, s in taken.items()}
    report_table(
        "MiniLM-L6 in PyTorch, STS-B test",
        ["model", "Spearman", "sentences per second", "× float"],
        [[name, scores[name], options.sentences / float(np.median(s)), times_float[name]] for name, s in taken.items()],
        options.json,
    )
    times_ao = float(np.median(taken[AO] / taken[LOWBIT]))
    for (name, target), reached in zip(TARGETS.items(), (scores[LOWBIT], times_float[LOWBIT], times_ao), strict=True):
        print(f"{name}: {reached:.3f}, target {target}: {'met' if reached >= target else 'missed'}")


if __name__ == "__main__":
    main()
