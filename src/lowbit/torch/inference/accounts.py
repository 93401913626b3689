"""What was done to a model, counted and measured: the parts of its report."""

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
from lowbit.torch.inference.decisions import Decision
from lowbit.torch.inference.layers import QuantizedModule
from torch import Tensor, nn

__all__ = ["accuracy_on", "for_inference", "latency_on", "left_float", "model_bytes", "weight_rows"]

_MODEL_SECONDS = 0.3  # to time both models
_REASONS, _NAMED = 5, 3  # how many reasons a warning gives, and how many modules it names for each


@contextmanager
def for_inference(model: nn.Module) -> Iterator[None]:
    """In eval() mode, and afterwards as before."""
    modes = [(m, m.training) for m in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def weight_rows(done: Sequence[Decision], norms: Mapping[str, str]) -> list[WeightRow]:
    """A row for each weight under each of its names. norms: {convolution: batch norm} that may have been folded."""
    treated = {d.wanted.holder.name for d in done if d.made is not None}
    into = {norm: conv for conv, norm in norms.items() if conv in treated}
    owners: dict[int, str] = {}  # of parameters: one that two modules share is counted once
    rows = []
    for d in done:
        h, made = d.wanted.holder, d.made
        own = [p for p in h.module.parameters(recurse=False) if not is_lazy(p)]
        shared = [owners[id(p)] for p in own if id(p) in owners]
        before = sum(p.numel() * p.itemsize for p in own if id(p) not in owners)
        owners.update({id(p): h.name for p in own if id(p) not in owners})
        notes = [d.note] if d.note else []
        notes += [f"shares its weight with {shared[0]}"] if shared else []
        row = WeightRow(
            h.name, type(h.module).__name__, h.shape, h.dtype, why_not=d.why_not, asked=d.asked, bytes_before=before,
            bytes_after=before, note="; ".join(notes),
        )  # fmt: skip
        if made is not None:
            row = replace(
                row, how=made.how, bytes_after=made.nbytes, sqnr_db=made.sqnr_db, activations=made.activations
            )
        elif h.name in into:
            row = replace(row, how=f"folded into {into[h.name]}", why_not="", bytes_after=0)
        rows.append(row)
        rows += [
            replace(row, name=other, bytes_before=0, bytes_after=0, note=f"the same module as {h.name}")
            for other in h.names[1:]
        ]
    return rows


def left_float(done: Sequence[Decision]) -> str:
    """Why less than half of what could be quantized was: the reasons, by how much they hold back. Empty where at least
    half was. Counted are elements of matrices, kernels and tables, but for what the recipe names as left alone."""
    elements, reasons, seen, names = 0, Counter[str](), set[int](), dict[str, list[str]]()
    for d in sorted(done, key=lambda d: d.made is None):  # what is shared counts as treated where one of its users is
        if not d.wanted.holder.kind or d.wanted.declined:
            continue
        own = [p for p in d.wanted.holder.module.parameters(recurse=False) if not is_lazy(p) and p.ndim > 1]
        count = sum(p.numel() for p in own if id(p) not in seen)
        seen |= {id(p) for p in own}
        elements += count
        if d.made is None:
            reasons[d.why_not] += count
            names.setdefault(d.why_not, []).append(d.wanted.holder.name or type(d.wanted.holder.module).__name__)
    left = sum(reasons.values())
    if 2 * left <= elements:
        return ""
    said = [
        f"{why} ({count:,} in {', '.join(names[why][:_NAMED])}{', …' * (len(names[why]) > _NAMED)})"
        for why, count in reasons.most_common(_REASONS)
    ]
    said += [f"{len(reasons) - _REASONS} more reasons"] if len(reasons) > _REASONS else []
    return f"{elements - left:,} of {elements:,} weights were quantized. The rest stayed float: {'; '.join(said)}"


def model_bytes(model: nn.Module) -> int:
    """Of parameters, buffers, and what lowbit's modules keep beside them; each counted once."""
    tensors = {id(t): t.numel() * t.itemsize for t in (*model.parameters(), *model.buffers()) if not is_lazy(t)}
    return sum(tensors.values()) + sum(m.nbytes for m in model.modules() if isinstance(m, QuantizedModule))


def accuracy_on(output: Any, model: nn.Module, example: Any) -> list[Accuracy]:
    """Of each float tensor in the result on one batch, against the float model's."""
    with torch.no_grad():
        found = call_on(model, example)
    rows = []
    pairs = zip(_pytree.tree_leaves(output), _pytree.tree_leaves(found), strict=False)
    for i, (before, after) in enumerate(pairs):
        if isinstance(before, Tensor) and before.is_floating_point() and before.numel():
            x, y = (t.detach().float().contiguous().numpy() for t in (before, after))
            e = error_report(x, y)
            rows.append(Accuracy(f"output {i}", e.sqnr_db, e.cosine, e.max_error, len(before) if before.ndim else 1))
    return rows


def latency_on(before: nn.Module, after: nn.Module, example: Any) -> Latency:
    """Of both models on one batch, taking turns."""
    shapes = [str(list(t.shape)) for t in _pytree.tree_leaves(example) if isinstance(t, Tensor)]
    calls = {"float": lambda: call_on(before, example), "quantized": lambda: call_on(after, example)}
    with for_inference(before), torch.inference_mode():
        found = measure(calls, seconds=_MODEL_SECONDS, warmup=1)
    f, q = found["float"], found["quantized"]
    return Latency(
        "torch", ", ".join(shapes), get_num_threads(), 1e3 * f.median, 1e3 * q.median,
        (1e3 * f.low, 1e3 * f.high), (1e3 * q.low, 1e3 * q.high),
    )  # fmt: skip
