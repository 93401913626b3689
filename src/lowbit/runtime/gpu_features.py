"""The formats that a GPU multiplies, by the name of its architecture, from the vendors' instruction sets.

An unknown architecture has no features.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from lowbit.numerics.errors import InvalidProblem


class GpuFeatures(NamedTuple):
    """dot4: the instruction that adds four products of bytes to 32 bits. matrix_unit: Tensor Cores, MFMA or WMMA.
    formats: what that unit multiplies. Each is empty where there is none."""

    dot4: str
    matrix_unit: str
    formats: tuple[str, ...]

    def multiplies(self, name: str) -> bool:
        """Whether the matrix unit takes this format: "s8", "s4", "b1", "f16", "bf16", "f8" or "f4"."""
        return name in self.formats


# From this compute capability on. sm_90 and later take s4 instructions, but have no unit for them.
_TENSOR_CORES = (
    ((7, 0), ("f16",)),
    ((7, 2), ("f16", "s8")),
    ((7, 5), ("f16", "s8", "s4", "b1")),
    ((8, 0), ("f16", "bf16", "s8", "s4", "b1")),
    ((8, 9), ("f16", "bf16", "s8", "s4", "b1", "f8")),
    ((9, 0), ("f16", "bf16", "s8", "b1", "f8")),
    ((10, 0), ("f16", "bf16", "s8", "f8", "f4")),
)
_DP4A = (6, 1)

_RDNA3 = GpuFeatures("v_dot4_i32_iu8", "WMMA", ("f16", "bf16", "s8", "s4"))
_RDNA4 = _RDNA3._replace(formats=(*_RDNA3.formats, "f8"))
_CDNA = GpuFeatures("v_dot4_i32_i8", "MFMA", ("f16", "bf16", "s8"))
_AMD = {
    "gfx906": GpuFeatures("v_dot4_i32_i8", "", ()),
    "gfx908": _CDNA,
    "gfx90a": _CDNA,
    "gfx942": _CDNA._replace(formats=(*_CDNA.formats, "f8")),
    "gfx950": _CDNA._replace(formats=(*_CDNA.formats, "f8", "f4")),
    "gfx1030": GpuFeatures("v_dot4_i32_i8", "", ()),
    "gfx1100": _RDNA3,
    "gfx1101": _RDNA3,
    "gfx1102": _RDNA3,
    "gfx1200": _RDNA4,
    "gfx1201": _RDNA4,
}


def architecture_of(capability: tuple[int, int]) -> str:
    """NVIDIA's name for a compute capability.

    >>> architecture_of((12, 0))
    'sm_120'
    """
    return f"sm_{capability[0]}{capability[1]}"


def gpu_features(architecture: str) -> GpuFeatures:
    """The features of "sm_80", "gfx942" and their like.

    >>> gpu_features("sm_75")
    GpuFeatures(dot4='dp4a', matrix_unit='Tensor Cores', formats=('f16', 's8', 's4', 'b1'))
    >>> gpu_features("gfx1100").matrix_unit
    'WMMA'
    """
    if architecture.startswith("gfx"):
        return _AMD.get(architecture.partition(":")[0], GpuFeatures("", "", ()))
    found = re.fullmatch(r"sm_(\d+)(\d)a?", architecture)
    if found is None:
        raise InvalidProblem(f"architecture: {architecture!r}; expected a name like 'sm_80' or 'gfx942'")
    capability = int(found[1]), int(found[2])
    formats: tuple[str, ...] = ()
    for least, takes in _TENSOR_CORES:
        formats = takes if capability >= least else formats
    return GpuFeatures("dp4a" if capability >= _DP4A else "", "Tensor Cores" if formats else "", formats)
