"""Rows of the report: one for each weight, whatever was done with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.model_file import byte_count
from lowbit.formats.onnx.weight_uses import WeightUse
from lowbit.models import WeightRow
from lowbit.models.recipe import KINDS
from lowbit.numerics.errors import InvalidProblem


def left_row(use: WeightUse, asked: bool, size: int, why: str = "") -> WeightRow:
    """The row of a weight that is not quantized."""
    why = why or use.why_not
    return WeightRow(use.name, use.op, use.shape, use.dtype, "", why, asked, bytes_before=size, bytes_after=size)


def one_row(same: Sequence[WeightRow], stored: int) -> WeightRow:
    """One row for a weight that several nodes read, from theirs; stored: the bytes of all its codes."""
    treated = [r for r in same if r.treated]
    if not treated:
        return next((r for r in same if r.skipped), same[0])
    first = treated[0]
    size = stored or sum({r.how: r.bytes_after for r in treated}.values())
    notes = [n for n in dict.fromkeys(r.note for r in treated) if n]
    left = [r for r in same if not r.treated]
    if left:
        size += first.bytes_before
        notes.append(f"{left[0].kind} reads it as float: {left[0].why_not}")
    if len(same) > 1:
        notes.append(f"read by {len(same)} nodes")
    kinds = "+".join(dict.fromkeys(r.kind for r in same))
    return replace(first, kind=kinds, bytes_after=size, note="; ".join(notes))


def stored_bytes(graph: Graph, name: str) -> int:
    """The bytes of a constant."""
    stored = graph.initializer(name)
    return 0 if stored is None else byte_count(stored)


def once(uses: Iterable[WeightUse]) -> list[WeightUse]:
    """One use of each weight."""
    return list({u.name: u for u in uses}.values())


def notes_on(uses: Sequence[WeightUse], quantized: Sequence[WeightUse], rows: Sequence[WeightRow]) -> list[str]:
    """Notes about the whole model."""
    notes = []
    layers = [u for u in uses if u.kind in KINDS and not u.why_not]
    if quantized:
        left = f"{len(once(quantized))} weights came quantized and are left as they are"
        notes.append(left if layers else f"the model is quantized already: {left}")
    if any(u.in_body for u in uses if not u.why_not):
        notes.append("some weights are inside the body of an If, Loop or Scan; they are treated there")
    if not uses and not quantized:
        notes.append("no float weight of two or more dimensions in the model")
    elif not any(r.treated for r in rows):
        notes.append("nothing was changed")
    return notes


def refuse_skipped(rows: Sequence[WeightRow]) -> None:
    """Raise where a weight was asked for and not quantized."""
    skipped = [r for r in rows if r.skipped]
    if skipped:
        some = "; ".join(f"{r.name} ({r.kind}): {r.why_not}" for r in skipped[:5])
        more = f"; and {len(skipped) - 5} more" if len(skipped) > 5 else ""
        raise InvalidProblem(f"strict: {len(skipped)} weights were asked for and not treated: {some}{more}")
