"""What kernels are called: element kinds, guarantees, SKUs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.runtime.native import core


class ElementKind(str, Enum):
    """What an array holds: floats, or codes as they are stored (s4 and u4 two a byte)."""

    F32, F64, F16, BF16 = "f32", "f64", "f16", "bf16"
    S8, U8, S16, U16, S4, U4 = "s8", "u8", "s16", "u16", "s4", "u4"

    def __str__(self) -> str:
        return self.value

    @property
    def is_float(self) -> bool:
        return self in FLOATS


FLOATS = {kind: core.Element[kind.value] for kind in ElementKind if kind.value in core.Element.__members__}
_DTYPES_OF_CODES = {kind: QuantizedDType.of(kind.value) for kind in ElementKind if kind not in FLOATS}
CODES = {  # native code, bits, least and greatest code
    kind: (core.Code[kind.value], dtype.bits, *dtype.value_range) for kind, dtype in _DTYPES_OF_CODES.items()
}
_DTYPES = ("f4", "f8", "f2", "u2", "i1", "u1", "i2", "u2", "u1", "u1")  # bfloat16 as its bits
STORED = {kind: np.dtype(text) for kind, text in zip(ElementKind, _DTYPES, strict=True)}


def kind_of(name: str, value: Any) -> ElementKind:
    try:
        return ElementKind(value)
    except ValueError:
        expected = ", ".join(k.value for k in ElementKind)
        raise Unsupported(f"{name}: {value!r}; expected one of {expected}") from None


def code_name(p: QuantizationParams) -> str:
    """What the codes of these params are called in a SKU: an ElementKind, or s2, u2, binary, log4, log8, ..., mixed.

    >>> code_name(QuantizationParams("uint4"))
    'u4'
    """
    if p.dtype.is_mixed or p.dtype.is_binary:
        return p.dtype.name
    return f"{'log' if p.is_logarithmic else 's' if p.dtype.is_signed else 'u'}{p.dtype.bits}"


@dataclass(frozen=True)
class PrecisionGuarantee:
    """What may be relied on, to the bit."""

    math_precision: str  # of the arithmetic on each element: an ElementKind
    accumulator: str  # of sums, where there are any: an ElementKind, or s32 or s64
    deterministic: bool = True  # the same result on every run and for any number of threads
    bit_stable: bool = True  # and on every instruction set


@dataclass(frozen=True)
class KernelSku:
    """Which kernel a plan runs. Prints as a short, stable name."""

    category: str
    op: str
    element: str  # an ElementKind, or a name of code_name's, as is the other
    aux_element: str | None
    arch: str
    backend: str
    precision_guarantee: PrecisionGuarantee

    def __str__(self) -> str:
        kinds = str(self.element) if self.aux_element is None else f"{self.element}-{self.aux_element}"
        return f"{self.category}/{self.op}/{kinds}/{self.arch}/{self.backend}"
