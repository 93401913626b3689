"""What a plan asks of tensors it is run on: the descriptor's shapes and params."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor


def on_axis(p: QuantizationParams, ndim: int) -> QuantizationParams:
    """The same params as a tensor has them: with float32 scales unless they are float64, and an axis from the front."""
    p = p.for_compute(np.float32) if p.weak else p
    if p.axis is None or not -ndim <= p.axis < 0:
        return p
    return p.replace(axis=p.axis % ndim)


def fits(name: str, p: QuantizationParams, shape: tuple[int, ...]) -> None:
    try:
        p.granularity(shape)
    except InvalidProblem as error:
        raise InvalidProblem(f"{name}: {error}") from None


def operand(
    name: str,
    value: Any,
    shape: tuple[int, ...],
    params: QuantizationParams,
    packed: type | None = None,
    only_packed: bool = False,
) -> None:
    """Checks a tensor, or what was packed of one, against the descriptor's shape and params."""
    is_packed = packed is not None and isinstance(value, packed)
    if not is_packed and (only_packed or not isinstance(value, QuantizedTensor)):
        kinds = [] if only_packed else ["QuantizedTensor"]
        expected = " or ".join([*kinds, *([packed.__name__] if packed is not None else [])])
        raise InvalidProblem(f"{name}: {type(value).__name__}; expected a {expected}")
    if value.shape != shape:
        raise InvalidProblem(f"{name}: shape {value.shape}; expected {shape}")
    same_params(name, value.params, params, len(shape))
    if not is_packed and not (value.data.flags.c_contiguous and value.data.flags.aligned):
        raise InvalidProblem(f"{name}: expected aligned, C-contiguous codes")


def same_params(name: str, found: QuantizationParams | None, expected: QuantizationParams | None, ndim: int) -> None:
    if found is expected or (found is not None and expected is not None and on_axis(found, ndim) == expected):
        return
    raise InvalidProblem(f"{name}: {found!r}; expected {expected!r}, as the descriptor says")
