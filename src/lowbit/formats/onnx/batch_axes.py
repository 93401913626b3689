"""Along which axis the inputs of a model are cut into batches, from their declared shapes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import onnx

from lowbit.formats.onnx.inputs import fixed_sizes
from lowbit.numerics.errors import InvalidProblem

_BATCH = "batch"
_SEQUENCES = ("seq", "time", "frame", "len", "token")  # in the names of axes that are no batch


class Cut(NamedTuple):
    """How one array is cut: an axis, and how many of its indices go into one batch."""

    axis: int
    step: int


def batch_axes(inputs: Mapping[str, onnx.ValueInfoProto]) -> dict[str, int | None]:
    """The batch axis of each input where its declared shape tells; None where it has none, or only the data tell.

    That is an axis with "batch" in its name, else the first one if it is dynamic and no axis of a sequence; else one of
    the same name as those.
    """
    names = {name: _axis_names(declared) for name, declared in inputs.items()}
    found: dict[str, int | None] = {name: _first_guess(axes) for name, axes in names.items()}
    beside = {axis for name, axes in names.items() for i, axis in enumerate(axes) if found[name] not in (None, i)}
    for name, axes in names.items():
        at = found[name]
        if at is not None and axes[at] and axes[at] in beside and _BATCH not in str(axes[at]).lower():
            found[name] = None  # a mask of sequence by sequence beside tokens of batch by sequence
    batch = {axes[at] for name, axes in names.items() if (at := found[name]) is not None and axes[at]}
    for name, axes in names.items():
        if found[name] is None:
            found[name] = next((i for i, axis in enumerate(axes) if axis in batch), None)
    return found


def _axis_names(declared: onnx.ValueInfoProto) -> list[str | None]:
    """The names of an input's axes: empty for a dynamic one without a name, None for a fixed one."""
    dims = declared.type.tensor_type.shape.dim
    return [None if n is not None else d.dim_param for d, n in zip(dims, fixed_sizes(declared), strict=True)]


def _first_guess(axes: list[str | None]) -> int | None:
    called = next((i for i, axis in enumerate(axes) if axis is not None and _BATCH in axis.lower()), None)
    if called is not None or not axes or axes[0] is None:
        return called
    return None if any(word in axes[0].lower() for word in _SEQUENCES) else 0


def cuts_of(
    inputs: Mapping[str, onnx.ValueInfoProto],
    axes: Mapping[str, int | None],
    arrays: Mapping[str, Any],
    batch_size: int | None,
    default: int,
) -> tuple[dict[str, Cut], int]:
    """How the arrays of a file are cut, by the name of the input, and into how many batches.

    Whatever is not among the cuts is passed whole to every call. The step is the batch size that the model fixes, or
    `batch_size`, or the default. Raises InvalidProblem where axes that must agree have different sizes.
    """
    along: dict[str, int] = {}
    fixed: dict[str, int] = {}
    for name, declared in inputs.items():
        sizes, axis, shape = fixed_sizes(declared), axes[name], arrays[name].shape
        if not declared.type.tensor_type.HasField("shape"):
            axis = 0
        elif axis is None and len(shape) == len(sizes) > 0 and sizes[0] and shape[0] > sizes[0]:
            axis, fixed[name] = 0, sizes[0]  # several batches of the model's own size
        if axis is not None and axis < len(shape):
            along[name] = axis
    rows = {name: arrays[name].shape[axis] for name, axis in along.items()}
    if not rows or _are_one_call(inputs, along, rows):
        return {}, 1
    first, count = next(iter(rows.items()))
    if count == 0:
        raise InvalidProblem(f"{first!r} has no rows")
    step = next(iter(fixed.values()), batch_size or default)
    other = next((n for n, size in fixed.items() if size != (batch_size or step)), None)
    if other is not None:
        raise InvalidProblem(f"batch_size: {batch_size or step}; the model's is fixed at {fixed[other]} for {other!r}")
    if count > step:
        for name in inputs:
            axis = None if name in along else _matching(inputs[name], arrays[name].shape, count, step)
            if axis is not None:
                along[name] = axis
    return {name: Cut(axis, step) for name, axis in along.items()}, count // step if fixed else -(-count // step)


def _are_one_call(inputs: Mapping[str, onnx.ValueInfoProto], along: Mapping[str, int], rows: Mapping[str, int]) -> bool:
    """Whether numbers of rows differ that need not be the same, so that the arrays belong together as they are."""
    first = next(iter(rows))
    odd = next((name for name in rows if rows[name] != rows[first]), None)
    if odd is None:
        return False
    called = [_axis_names(inputs[name])[along[name] :][:1] for name in (first, odd)]
    if called[0] == called[1] != [""] or [None] in called:
        raise InvalidProblem(f"{odd!r} has {rows[odd]} rows, {first!r} has {rows[first]}; expected the same number")
    return True


def _matching(declared: onnx.ValueInfoProto, shape: tuple[int, ...], rows: int, step: int) -> int | None:
    """The axis that has as many rows as the others, where any number may be there, or one at a time."""
    names, sizes = _axis_names(declared), fixed_sizes(declared)
    if len(shape) != len(sizes):
        return None
    free = (i for i, name in enumerate(names) if name == "" or (sizes[i] == 1 == step))
    return next((i for i in free if shape[i] == rows), None)
