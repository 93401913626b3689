"""What a plan is run on, and the checks it passes first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.fields import as_zero_point, refuse_masked
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.plans.kinds import CODES, STORED, ElementKind
from lowbit.runtime import arrays as cpu
from lowbit.runtime.arrays import Array

INT32 = np.dtype(np.int32)


@dataclass
class ForwardArgs:
    """scale, zero_point: numbers where there is one for all, else arrays; zero_point None is 0. Arrays of scales may be
    float16 or bfloat16, which widen exactly."""

    input: Any
    scale: Any
    zero_point: Any
    output: Any


@dataclass
class BackwardArgs:
    """The input of the forward run, the gradient of its output, and where that of the input goes."""

    input: Any
    scale: Any
    zero_point: Any
    d_output: Any
    d_input: Any
    d_scale: Any = None
    d_zero_point: Any = None
    workspace: Any = None


@dataclass
class DequantizeBackwardArgs:
    d_output: Any
    scale: Any
    d_input: Any


@dataclass
class DynamicArgs:
    """scale and zero_point are written. Symmetric plans need no zero_point."""

    input: Any
    output: Any
    scale: Any
    zero_point: Any = None
    workspace: Any = None


def array(name: str, value: Any, kind: ElementKind, shape: tuple[int, ...], writable: bool = False) -> Array:
    """The memory of an argument, as kernels take it; no copy is made."""
    stored = STORED[kind]
    if type(value) is np.ndarray and value.dtype is stored and kind is not ElementKind.BF16:
        found: Array = value
    else:
        found = _lent(name, value, kind)
    bits = CODES[kind][1] if kind in CODES else 8
    expected = shape if bits >= 8 else (-(-math.prod(shape) * bits // 8),)
    if found.shape != expected:
        raise InvalidProblem(f"{name}: shape {found.shape}; expected {expected}")
    flags = found.flags
    if not flags.carray and (writable or not (flags.c_contiguous and flags.aligned)):
        raise InvalidProblem(f"{name}: expected a{' writable,' if writable else 'n'} aligned, C-contiguous array")
    return found if type(found) is np.ndarray else found.view(np.ndarray)


def _lent(name: str, value: Any, kind: ElementKind) -> Array:
    if cpu.is_torch_tensor(value):
        value, given = cpu.borrowed(name, value)
    elif isinstance(value, np.ndarray):
        refuse_masked(name, value)
        given = value.dtype.name
        value = value.view(np.uint16) if given == "bfloat16" and value.flags.c_contiguous else value
    else:
        raise InvalidProblem(f"{name}: {type(value).__name__}; expected an array")
    expected = "bfloat16" if kind is ElementKind.BF16 else str(STORED[kind])
    if given != expected or not value.dtype.isnative:
        raise Unsupported(f"{name}: {given}; expected {expected}, which the descriptor calls {kind}")
    return value  # type: ignore[no-any-return]


def load(array: Array, kind: ElementKind, shape: tuple[int, ...]) -> Array:
    """The numbers or codes in a kernel's memory: floats as a view, codes of 4 bits unpacked."""
    if kind is ElementKind.BF16:
        return array.view(cpu.float_dtype("bfloat16"))
    if kind in CODES and CODES[kind][1] < 8:
        return cpu.unpack(array, CODES[kind][1], kind is ElementKind.S4, shape)
    return array


def widened(scale: Any, dtype: np.dtype[Any]) -> Any:
    """Arrays of float16 and bfloat16 in the type the arithmetic runs in, which is exact; anything else as it is."""
    given = getattr(scale, "dtype", dtype)
    if given == dtype or str(given).removeprefix("torch.") not in ("float16", "bfloat16"):
        return scale
    if cpu.is_torch_tensor(scale):
        return scale.detach().float().numpy().astype(dtype) if scale.device.type == "cpu" else scale
    return scale.astype(dtype) if isinstance(scale, np.ndarray) else scale


def parameters(name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if isinstance(value, (int, float, np.generic)) and not isinstance(value, bool) and not shape:
        return as_zero_point(value, shape) if dtype == INT32 else np.array(value, dtype)
    if cpu.is_torch_tensor(value):
        if value.device.type != "cpu" or str(value.dtype) == "torch.bfloat16":
            raise Unsupported(f"{name}: {value.dtype} on {value.device}; expected {dtype} in CPU memory")
        value = value.detach().numpy()
    if not isinstance(value, np.ndarray):
        raise InvalidProblem(f"{name}: {type(value).__name__}; expected an array of shape {shape}")
    refuse_masked(name, value)
    if value.dtype != dtype:
        raise Unsupported(f"{name}: {value.dtype}; expected {dtype}")
    if value.shape != shape and not (not shape and value.shape == (1,)):
        raise InvalidProblem(f"{name}: shape {value.shape}; expected {shape}")
    if not (value.flags.c_contiguous and value.flags.aligned):
        raise InvalidProblem(f"{name}: expected an aligned, C-contiguous array")
    return value.reshape(shape).view(np.ndarray)


def output_parameters(name: str, value: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    if value is None or isinstance(value, (int, float)):
        raise InvalidProblem(f"{name}: {value!r}; expected an array of shape {shape} to write into")
    found = parameters(name, value, dtype, shape)
    if not found.flags.writeable:
        raise InvalidProblem(f"{name}: expected a writable array")
    return found


def workspace(value: Any, size: int) -> Array:
    if not isinstance(value, np.ndarray) or not value.flags.carray:
        raise InvalidProblem(f"workspace: {type(value).__name__}; expected a contiguous array of {size} bytes")
    if value.nbytes < size or value.ctypes.data % 8:
        raise InvalidProblem(f"workspace: {value.nbytes} bytes; expected {size}, aligned to 8")
    return value


def store(values: Array, out: Array, kind: ElementKind) -> None:
    """Writes numbers or codes as kernels store them."""
    if kind in CODES and CODES[kind][1] < 8:
        out[...] = cpu.pack(values.astype(np.int8 if kind is ElementKind.S4 else np.uint8), CODES[kind][1])
        return
    target = load(out, kind, out.shape)
    with np.errstate(over="ignore"):
        target[...] = values.astype(target.dtype)


# ---- tensors: the shapes and params of the descriptor ----


def on_axis(p: QuantizationParams, ndim: int) -> QuantizationParams:
    """The same params as a tensor has them: with float32 scales unless they are float64, and an axis from the front."""
    p = p.for_compute(np.float32) if p.weak else p
    if p.axis is None or not -ndim <= p.axis < 0:
        return p
    return p.replace(axis=p.axis % ndim)


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
