"""The only importer of the native module, and the only place where dtypes become its enums."""

from __future__ import annotations

import numpy as np

from lowbit import _core as core
from lowbit.numerics.granularity import Kind

__all__ = ["CODES", "ELEMENTS", "KINDS", "core"]

Element, Code = core.Element, core.Code

ELEMENTS = {
    np.dtype(np.float32): Element.f32,
    np.dtype(np.float64): Element.f64,
    np.dtype(np.float16): Element.f16,
}  # bfloat16, which NumPy does not have, is Element.bf16
CODES = {
    "int8": Code.s8,
    "uint8": Code.u8,
    "int16": Code.s16,
    "uint16": Code.u16,
    "int4": Code.s4,
    "uint4": Code.u4,
    "int2": Code.s2,
    "uint2": Code.u2,
    "binary": Code.b1,
}
KINDS = {kind: core.GranularityKind[kind.value] for kind in Kind}
