"""Views of quantized tensors: which slices and shapes keep every scale with its elements."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import Any

from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.params import QuantizationParams


@dataclass(frozen=True)
class Cut:
    """One indexing step: what to take of the codes, and the params and shape of the result."""

    index: tuple[int | slice, ...]
    params: QuantizationParams
    shape: tuple[int, ...]

    def byte_span(self, shape: tuple[int, ...]) -> slice | None:
        """The bytes of packed codes this cut takes, if they are whole and consecutive."""
        lead = next((i for i, s in enumerate(self.index) if s != slice(0, shape[i], 1)), 0)
        rest = self.index[lead + 1 :]
        if not shape or any(s != slice(0, n, 1) for s, n in zip(rest, shape[lead + 1 :], strict=True)):
            return None
        if math.prod(shape[:lead]) != 1 or self.params.dtype.is_mixed:
            return None
        at = self.index[lead]
        begin, end, step = (at, at + 1, 1) if isinstance(at, int) else (at.start, at.stop, at.step)
        row = math.prod(shape[lead + 1 :]) * self.params.dtype.bits
        whole = end == shape[lead] or end * row % 8 == 0
        if step != 1 or begin * row % 8 or not whole:
            return None
        return slice(begin * row // 8, -(-end * row // 8))


def sliced(params: QuantizationParams, shape: tuple[int, ...], index: Any) -> Cut:
    """What `tensor[index]` means; InvalidProblem where a scale would lose some of its elements."""
    full = _normalized(shape, index)
    new_shape = tuple(len(range(s.start, s.stop, s.step)) for s in full if isinstance(s, slice))
    if params.axis is None:
        return Cut(full, params, new_shape)
    axis = params.axis % len(shape)
    at = full[axis]
    dropped = sum(isinstance(s, int) for s in full[:axis])
    if params.group_size is None:
        return Cut(full, _channel_params(params, at, axis - dropped, shape[axis]), new_shape)
    block = params.group_size
    if isinstance(at, int) or at.step != 1 or (at.start % block and at.start != at.stop):
        got = at if isinstance(at, int) else f"{at.start}:{at.stop}:{at.step}"
        raise InvalidProblem(
            f"index: axis {axis} is quantized in blocks of {block}; begin at a multiple of it, got {got}"
        )
    if params.scale.ndim == 0:
        return Cut(full, params.replace(axis=axis - dropped), new_shape)
    blocks = slice(at.start // block, -(-at.stop // block), 1)
    pick = (*full[:axis], blocks, *full[axis + 1 :])
    changed = params.replace(scale=params.scale[pick], zero_point=params.zero_point[pick], axis=axis - dropped)
    return Cut(full, changed, new_shape)


def _channel_params(params: QuantizationParams, at: int | slice, axis: int, channels: int) -> QuantizationParams:
    changes: dict[str, Any] = {"axis": axis}
    if params.dtype.is_mixed:
        if at == slice(0, channels, 1):
            return params.replace(**changes)
        if isinstance(at, int):
            raise InvalidProblem("index: take a slice of mixed channels, not a single one")
        changes["dtype"] = QuantizedDType.mixed(params.dtype.widths[at])
        changes["qmin"] = changes["qmax"] = None
    if params.scale.ndim:
        changes["scale"], changes["zero_point"] = params.scale[at], params.zero_point[at]
    if isinstance(at, int):
        changes["axis"] = None
        if str(params.scheme) == "channel_wise":
            changes["scheme"] = "linear"
    return params.replace(**changes)


def reshaped_granularity(
    params: QuantizationParams, old: tuple[int, ...], new: tuple[int, ...]
) -> tuple[tuple[int, ...], QuantizationParams]:
    """The full new shape, and params that lie over it as they lay over the old one."""
    new = _complete(old, new)
    if params.axis is None:
        return new, params
    axis = params.axis % len(old)
    outer, size, inner = math.prod(old[:axis]), old[axis], math.prod(old[axis + 1 :])
    for k in range(len(new)):
        if math.prod(new[:k]) == outer and new[k] == size and math.prod(new[k + 1 :]) == inner:
            changes: dict[str, Any] = {"axis": k}
            if params.group_size is not None and params.scale.ndim:
                shape = (*new[:k], params.scale.shape[axis], *new[k + 1 :])
                changes["scale"] = params.scale.reshape(shape)
                changes["zero_point"] = params.zero_point.reshape(shape)
            return new, params.replace(**changes)
    kind = "channel" if params.group_size is None else "block"
    raise InvalidProblem(
        f"shape: {old} -> {new} would mix elements of different scales: axis {axis} ({size}) has one per {kind} "
        "and must stay whole"
    )


def transposed_granularity(params: QuantizationParams, axes: tuple[int, ...]) -> QuantizationParams:
    """Params that lie over `array.transpose(axes)` as they lay over the array."""
    if params.axis is None:
        return params
    changes: dict[str, Any] = {"axis": axes.index(params.axis % len(axes))}
    if params.group_size is not None and params.scale.ndim:
        changes["scale"], changes["zero_point"] = params.scale.transpose(axes), params.zero_point.transpose(axes)
    return params.replace(**changes)


def _complete(old: tuple[int, ...], new: tuple[int, ...]) -> tuple[int, ...]:
    new = tuple(int(n) for n in new)
    unknown = [i for i, n in enumerate(new) if n == -1]
    known = math.prod(n for n in new if n != -1)
    if len(unknown) == 1 and known and math.prod(old) % known == 0:
        new = tuple(math.prod(old) // known if n == -1 else n for n in new)
    if any(n < 0 for n in new) or math.prod(new) != math.prod(old):
        raise InvalidProblem(f"shape: cannot reshape {old} into {new}")
    return new


def _normalized(shape: tuple[int, ...], index: Any) -> tuple[int | slice, ...]:
    """One int or full (start, stop, step) slice an axis."""
    given = index if isinstance(index, tuple) else (index,)
    if sum(i is Ellipsis for i in given) > 1:
        raise InvalidProblem("index: more than one '...'")
    at = next((k for k, i in enumerate(given) if i is Ellipsis), None)
    if at is not None:
        missing = len(shape) - (len(given) - 1)
        given = (*given[:at], *(slice(None),) * missing, *given[at + 1 :])
    if len(given) > len(shape):
        raise InvalidProblem(f"index: {len(given)} indices for {len(shape)} dimensions")
    given = (*given, *(slice(None),) * (len(shape) - len(given)))
    out: list[int | slice] = []
    for axis, (i, n) in enumerate(zip(given, shape, strict=True)):
        if isinstance(i, slice):
            start, stop, step = i.indices(n)
            if step < 1:
                raise InvalidProblem(f"index: axis {axis} has a negative step")
            out.append(slice(start, stop, step) if stop > start else slice(0, 0, 1))
        else:
            k = _integer(i)
            if not -n <= k < n:
                raise IndexError(f"index {k} is out of bounds for axis {axis} with size {n}")
            out.append(k % n)
    return tuple(out)


def _integer(i: Any) -> int:
    try:
        if not isinstance(i, bool):
            return operator.index(i)
    except TypeError:
        pass
    raise InvalidProblem(f"index: expected integers and slices, got {type(i).__name__}")
