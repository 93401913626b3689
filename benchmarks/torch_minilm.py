"""python -m benchmarks.torch_minilm [--sentences N] [--rounds N] [--json PATH]

A trained sentence encoder in PyTorch, float and quantized: by lowbit.torch.quantize and by torch.ao's quantize_dynamic.
How well each ranks the test pairs of STS-B, and sentences a second on one thread; the models take turns on every batch.
Exits with 0 even where a target is missed, as the benchmarks do.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import lowbit as lb
import lowbit.torch as lt
import torch
from benchmarks import minilm
from benchmarks.results import write_table
from torch import Tensor, nn

_BATCH = 32
FLOAT, LOWBIT, AO = "float", "lowbit dynamic-int8", "torch.ao quantize_dynamic"
TARGETS = {"spearman": 81.90, "times float": 2.0, "times torch.ao": 1.0}

Batches = list[tuple[Tensor, Tensor]]


def batches_of(count: int) -> Batches:
    """Test sentences, like lengths together, as `minilm.encode` has them."""
    texts = sorted(minilm.sentences(count, "test"), key=len)
    return [minilm._tokens(texts[i : i + _BATCH]) for i in range(0, len(texts), _BATCH)]


def models(example: tuple[Tensor, Tensor]) -> dict[str, nn.Module]:
    """The float model and both quantized ones."""
    base = minilm.load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ao = torch.ao.quantization.quantize_dynamic(copy.deepcopy(base), {nn.Linear}, dtype=torch.qint8)
    return {FLOAT: base, LOWBIT: lt.quantize(base, "dynamic-int8", example=example), AO: ao}


@torch.inference_mode()
def seconds(contenders: Mapping[str, nn.Module], batches: Batches, rounds: int) -> dict[str, list[float]]:
    """Of each model, a number a round: the sum over all batches, on each of which the models take turns."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for r in range(rounds + 1):  # the first warms up
        sums = dict.fromkeys(contenders, 0.0)
        for batch in batches:
            for name, model in contenders.items():
                start = time.perf_counter()
                model(*batch)
                sums[name] += time.perf_counter() - start
        if r:
            for name, total in sums.items():
                found[name].append(total)
    return found


def results(sentences: int, rounds: int) -> dict[str, Any]:
    batches = batches_of(sentences)
    contenders = models(batches[len(batches) // 2])
    found = seconds(contenders, batches, rounds)
    medians = {name: statistics.median(s) for name, s in found.items()}
    rows = {
        name: {
            "spearman": round(minilm.sts_score(model), 3),
            "sentences_per_second": round(sentences / medians[name], 1),
            "times_float": round(statistics.median(f / s for f, s in zip(found[FLOAT], found[name], strict=True)), 3),
        }
        for name, model in contenders.items()
    }
    times_ao = statistics.median(a / s for a, s in zip(found[AO], found[LOWBIT], strict=True))
    reached = {"spearman": rows[LOWBIT]["spearman"], "times float": rows[LOWBIT]["times_float"]}
    reached["times torch.ao"] = round(times_ao, 3)
    return {
        "targets": {k: {"target": v, "reached": reached[k], "met": reached[k] >= v} for k, v in TARGETS.items()},
        "models": rows,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.torch_minilm", description=__doc__.split("\n\n")[1])
    parser.add_argument("--sentences", type=int, default=512, metavar="N", help="to time (default: 512)")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="over all of them (default: 5)")
    parser.add_argument("--json", type=Path, metavar="PATH", help="where to write the results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lb.set_num_threads(1)
    found = results(options.sentences, options.rounds)
    table = Table("model", "Spearman", "sentences/s", "× float")
    for name, row in found["models"].items():
        table.add_row(name, *(str(row[key]) for key in ("spearman", "sentences_per_second", "times_float")))
    Console().print(table)
    for name, entry in found["targets"].items():
        print(f"{name}: {entry['reached']}, target {entry['target']}: {'met' if entry['met'] else 'missed'}")
    if options.json is not None:
        keys = ("spearman", "sentences_per_second", "times_float")
        write_table(
            options.json,
            "MiniLM-L6 in PyTorch, STS-B test",
            ["model", "Spearman", "sentences per second", "× float"],
            [[name, *(row[key] for key in keys)] for name, row in found["models"].items()],
        )


if __name__ == "__main__":
    main()
