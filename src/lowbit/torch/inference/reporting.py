"""The parts of a quantized model's report: rows per weight, sizes, accuracy and latency."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch.nn.parameter import is_lazy
from torch.utils import _pytree

import torch
from lowbit.bench.timing import measure
from lowbit.models.report import Accuracy, Latency, WeightRow
from lowbit.numerics.metrics import error_report
from lowbit.runtime.threads import get_num_threads
from lowbit.torch.inference.batches import call_on
from lowbit.torch.inference.layers import QuantizedModule
from lowbit.torch.inference.selection import Candidate
from torch import Tensor, nn

_MODEL_SECONDS = 0.3  # to time both models
_REASONS, _NAMED = 5, 3  # how many reasons a warning gives, and how many modules it names for each


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Set eval() mode, and restore every module's mode afterwards."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def weight_rows(candidates: Sequence[Candidate], norms: Mapping[str, str]) -> list[WeightRow]:
    """A row for each name of each weight. norms: {convolution: batch norm} that may have been folded."""
    quantized = {c.source.name for c in candidates if c.replacement is not None}
    folded_into = {norm: conv for conv, norm in norms.items() if conv in quantized}
    owners: dict[int, str] = {}  # parameters that two modules share are counted once
    rows = []
    for c in candidates:
        source, made = c.source, c.replacement
        own = [p for p in source.module.parameters(recurse=False) if not is_lazy(p)]
        shared = [owners[id(p)] for p in own if id(p) in owners]
        size = sum(p.numel() * p.itemsize for p in own if id(p) not in owners)
        owners.update({id(p): source.name for p in own if id(p) not in owners})
        note = "; ".join([c.note] * bool(c.note) + [f"shares its weight with {name}" for name in shared[:1]])
        row = WeightRow(source.name, type(source.module).__name__, source.shape, source.dtype, note=note)
        row = replace(row, why_not=c.why_not, asked=c.asked, bytes_before=size, bytes_after=size)
        if made is not None:
            row = replace(
                row, how=made.how, sqnr_db=made.sqnr_db, activations=made.activations, bytes_after=made.nbytes
            )
        elif source.name in folded_into:
            row = replace(row, how=f"folded into {folded_into[source.name]}", why_not="", bytes_after=0)
        rows.append(row)
        alias = replace(row, bytes_before=0, bytes_after=0, note=f"the same module as {source.name}")
        rows += [replace(alias, name=name) for name in source.names[1:]]
    return rows


def why_left_float(candidates: Sequence[Candidate]) -> str:
    """Why less than half of the weights were quantized, the most frequent reasons first; empty where half were.

    Counts the elements of matrices, kernels and tables, except those the recipe skips by name or kind.
    """
    elements, reasons, seen, names = 0, Counter[str](), set[int](), dict[str, list[str]]()
    # A shared weight counts as quantized where one of its users is.
    for c in sorted(candidates, key=lambda c: c.replacement is None):
        source = c.source
        if not source.kind or c.declined:
            continue
        own = [p for p in source.module.parameters(recurse=False) if not is_lazy(p) and p.ndim > 1]
        count = sum(p.numel() for p in own if id(p) not in seen)
        seen |= {id(p) for p in own}
        elements += count
        if c.replacement is None:
            reasons[c.why_not] += count
            names.setdefault(c.why_not, []).append(source.name or type(source.module).__name__)
    left = sum(reasons.values())
    if 2 * left <= elements:
        return ""
    parts = [
        f"{why} ({count:,} in {', '.join(names[why][:_NAMED])}{', …' * (len(names[why]) > _NAMED)})"
        for why, count in reasons.most_common(_REASONS)
    ]
    parts += [f"{len(reasons) - _REASONS} more reasons"] if len(reasons) > _REASONS else []
    return f"{elements - left:,} of {elements:,} weights were quantized. The rest stayed float: {'; '.join(parts)}"


def model_bytes(model: nn.Module) -> int:
    """Bytes of parameters, buffers and packed weights; each counted once."""
    tensors = {id(t): t.numel() * t.itemsize for t in (*model.parameters(), *model.buffers()) if not is_lazy(t)}
    return sum(tensors.values()) + sum(m.nbytes for m in model.modules() if isinstance(m, QuantizedModule))


def accuracy_on(expected: Any, model: nn.Module, example: Any) -> list[Accuracy]:
    """How far each float tensor of the model's output on one batch is from the float model's output."""
    with torch.no_grad():
        output = call_on(model, example)
    rows = []
    pairs = zip(_pytree.tree_leaves(expected), _pytree.tree_leaves(output), strict=False)
    for i, (before, after) in enumerate(pairs):
        if isinstance(before, Tensor) and before.is_floating_point() and before.numel():
            x, y = (t.detach().float().contiguous().numpy() for t in (before, after))
            e = error_report(x, y)
            rows.append(Accuracy(f"output {i}", e.sqnr_db, e.cosine, e.max_error, len(before) if before.ndim else 1))
    return rows


def latency_on(before: nn.Module, after: nn.Module, example: Any) -> Latency:
    """Time both models on one batch, interleaved."""
    shapes = ", ".join(str(list(t.shape)) for t in _pytree.tree_leaves(example) if isinstance(t, Tensor))
    calls = {"float": lambda: call_on(before, example), "quantized": lambda: call_on(after, example)}
    with eval_mode(before), torch.inference_mode():
        found = measure(calls, seconds=_MODEL_SECONDS, warmup=1)
    f, q = found["float"], found["quantized"]
    medians, intervals = (1e3 * f.median, 1e3 * q.median), ((1e3 * t.low, 1e3 * t.high) for t in (f, q))
    return Latency("torch", shapes, get_num_threads(), *medians, *intervals)
