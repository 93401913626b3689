"""The inputs that a model declares, and whether arrays fit them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from lowbit.numerics.errors import InvalidProblem


def given_inputs(proto: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """The inputs of a model that no initializer provides."""
    constants = {t.name for t in proto.graph.initializer}
    return {i.name: i for i in proto.graph.input if i.name not in constants}


def fixed_sizes(declared: onnx.ValueInfoProto) -> list[int | None]:
    """The sizes of an input's axes; None where any size is allowed, which old exporters write as -1."""
    dims = declared.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in dims]


def shape_text(declared: onnx.ValueInfoProto) -> str:
    """The declared shape as a person reads it: (n, 3, ?)."""
    dims = zip(declared.type.tensor_type.shape.dim, fixed_sizes(declared), strict=True)
    return f"({', '.join(d.dim_param or '?' if size is None else str(size) for d, size in dims)})"


def check_fits(declared: onnx.ValueInfoProto, array: Any, where: str) -> None:
    """Raise where an array differs from what an input declares: its dtype, its rank, or a fixed size."""
    tensor = declared.type.tensor_type
    expected = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else None
    if expected is not None and array.dtype != expected:
        said = f"{declared.name!r} has dtype {array.dtype}; the model takes {expected}"
        raise InvalidProblem(f"{where}: {said}; convert it with .astype({str(expected)!r})")
    if not tensor.HasField("shape"):
        return
    dims = fixed_sizes(declared)
    if not _fit(dims, array.shape):
        said = f"{declared.name!r} has shape {array.shape}; the model takes {shape_text(declared)}"
        raise InvalidProblem(f"{where}: {said}; {_remedy(dims, array.shape)}")


def _remedy(sizes: list[int | None], shape: tuple[int, ...]) -> str:
    """What to do with an array whose shape does not fit."""
    for axis in range(len(sizes)):
        if _fit(sizes, (*shape[:axis], 1, *shape[axis:])):
            return f"add the axis that is missing: np.expand_dims(array, {axis})"
    if len(shape) > 2 and _fit(sizes, (shape[0], shape[-1], *shape[1:-1])):
        return "the channels come first: np.moveaxis(array, -1, 1)"
    return "axes with a name or ? may have any size, the others are fixed"


def _fit(sizes: list[int | None], shape: tuple[int, ...]) -> bool:
    return len(sizes) == len(shape) and all(d in (None, n) for d, n in zip(sizes, shape, strict=True))


def feed_of(batch: Any, inputs: list[str], index: int) -> dict[str, Any]:
    """The batch of this index as a mapping from the names of inputs; an array stands for the only one."""
    if not isinstance(batch, Mapping):
        if len(inputs) != 1:
            raise InvalidProblem(f"loader: batch {index} is not a mapping; the model has inputs {', '.join(inputs)}")
        return {inputs[0]: np.asarray(batch)}
    missing = [n for n in inputs if n not in batch]
    if missing:
        raise InvalidProblem(f"loader: batch {index} has no {missing[0]!r}; the model has inputs {', '.join(inputs)}")
    return {n: np.asarray(batch[n]) for n in inputs}
