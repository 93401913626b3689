"""A quantized tensor as a safetensors file: codes as stored, scales, zero points, and a description in JSON."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.numerics.packing import pack_bits, unpack_bits
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime.files.container import read_arrays, read_description, write_arrays

Array = npt.NDArray[Any]

# The members of a description. Files call the group size `block_size`.
_MEMBERS = {"dtype", "scheme", "axis", "block_size", "qmin", "qmax", "steps_per_octave", "shape"}


def save_tensor(q: QuantizedTensor, path: str | os.PathLike[str]) -> None:
    """Write the tensor, whole or not at all."""
    p = q.params
    arrays = {"codes": q.data, "scale": p.scale}
    if p.stores_zero_point:
        zero = p.zero_point.reshape(-1)
        arrays["zero_point"] = (
            pack_bits(zero, p.dtype.bits) if p.dtype.is_sub_byte else zero.astype(p.dtype.storage_dtype)
        )
    members = p.to_dict() | {"block_size": p.group_size, "shape": list(q.shape)}
    described = {name: value for name, value in members.items() if name in _MEMBERS}
    write_arrays(path, arrays, {"format": "lowbit", "version": "1", "tensor": json.dumps(described)})


def load_tensor(path: str | os.PathLike[str]) -> QuantizedTensor:
    """The tensor that `save_tensor` wrote, equal to the bit; FormatError for any other file."""
    arrays, metadata = read_arrays(path)
    name = os.fspath(path)
    if metadata.get("format") != "lowbit" or metadata.get("version") != "1":
        raise FormatError(f"{name}: not a tensor saved by lowbit (format {metadata.get('format')!r})")
    try:
        return _tensor(arrays, read_description(metadata, name), name)
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError, NotImplementedError, OverflowError, RecursionError) as error:
        raise FormatError(f"{name}: {type(error).__name__}: {error}") from None


def _tensor(arrays: dict[str, Array], fields: dict[str, Any], name: str) -> QuantizedTensor:
    if set(fields) != _MEMBERS:
        raise FormatError(f"{name}: a tensor is described by {', '.join(sorted(_MEMBERS))}")
    shape, fields["group_size"] = fields.pop("shape"), fields.pop("block_size")
    if not isinstance(shape, list) or any(type(n) is not int for n in shape):
        raise FormatError(f"{name}: the tensor's shape is not a list of integers")
    scale = arrays.pop("scale")
    if scale.dtype.kind != "f":
        raise FormatError(f"{name}: scale is {scale.dtype}")
    stored = arrays.pop("zero_point", None)
    zero = _zero_point(stored, QuantizedDType.from_json(fields["dtype"]), scale.size).reshape(scale.shape)
    params = QuantizationParams.from_dict(
        {**fields, "scale": scale, "scale_dtype": scale.dtype.name, "zero_point": zero}
    )
    if stored is None and params.stores_zero_point:
        raise FormatError(f"{name}: no zero_point, which {params.scheme} needs")
    codes = arrays.pop("codes")
    if arrays:
        raise FormatError(f"{name}: unexpected arrays {sorted(arrays)}")
    return QuantizedTensor(codes, params, tuple(shape))


def _zero_point(stored: Array | None, dtype: QuantizedDType, count: int) -> Array:
    """Zero points as stored: in the codes' own type, packed where codes are packed, or absent where all are 0."""
    if stored is None:
        return np.zeros(count, np.int32)
    if not dtype.is_sub_byte:
        if stored.dtype != dtype.storage_dtype:
            raise InvalidProblem(f"zero_point: {stored.dtype}; {dtype} has {dtype.storage_dtype}")
        return stored
    if stored.dtype != np.uint8 or stored.shape != (dtype.storage_bytes(count),):
        raise InvalidProblem(f"zero_point: {stored.dtype} of shape {stored.shape} for {count} of {dtype}")
    return unpack_bits(stored, dtype.bits, count, dtype.is_signed)
