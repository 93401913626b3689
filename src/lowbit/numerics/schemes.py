"""Schemes: how a range of numbers is mapped to codes, and which options go with which."""

from __future__ import annotations

import enum
import math

from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.fields import whole


class QuantizationScheme(str, enum.Enum):
    """How a range of numbers is mapped to codes."""

    LINEAR = "linear"  # affine: asymmetric for unsigned, symmetric for signed dtypes
    SYMMETRIC = "symmetric"
    ASYMMETRIC = "asymmetric"
    CHANNEL_WISE = "channel_wise"  # linear, one scale per index of an axis
    BLOCK_WISE = "block_wise"  # linear, one scale per block of consecutive elements
    LOGARITHMIC = "logarithmic"

    @staticmethod
    def of(value: str | QuantizationScheme) -> QuantizationScheme:
        if isinstance(value, QuantizationScheme):
            return value
        key = str(value).strip().lower().replace("-", "_").replace(" ", "_")
        for scheme in QuantizationScheme:
            if key in (scheme.value, scheme.value.replace("_", "")):
                return scheme
        names = ", ".join(s.value for s in QuantizationScheme)
        raise InvalidProblem(f"scheme: {value!r} is not known; expected one of {names}")

    def __str__(self) -> str:
        return self.value


def default_steps_per_octave(bits: int) -> float:
    """Steps that spread the magnitudes of a logarithmic code over about 16 octaves (6 for four bits)."""
    return float(max(1, 1 << max(0, bits - 5)))


def group_size_of(group_size: int | None, block_size: int | None) -> int | None:
    """The group size, by either of its names; raises where both are given and differ."""
    if group_size is not None and block_size is not None and group_size != block_size:
        raise InvalidProblem(f"block_size: {block_size} contradicts group_size, {group_size}")
    return block_size if group_size is None else group_size


def granularity_options(
    scheme: QuantizationScheme, dtype: QuantizedDType, axis: int | None, group_size: int | None
) -> tuple[int | None, int | None]:
    if scheme is QuantizationScheme.CHANNEL_WISE or dtype.is_mixed:
        axis = 0 if axis is None else axis
    if scheme is QuantizationScheme.CHANNEL_WISE and group_size is not None:
        raise InvalidProblem("group_size: channel_wise has one scale per channel; use block_wise")
    if scheme is QuantizationScheme.BLOCK_WISE and group_size is None:
        raise InvalidProblem("group_size: block_wise needs one")
    if dtype.is_mixed and (group_size is not None or scheme is QuantizationScheme.LOGARITHMIC):
        raise InvalidProblem("scheme: mixed widths need linear codes and one scale per channel")
    if dtype.is_mixed and scheme is QuantizationScheme.ASYMMETRIC:
        raise InvalidProblem("scheme: mixed widths are symmetric")
    if group_size is not None:
        axis = -1 if axis is None else axis
        group_size = whole("group_size", group_size)
        if not 1 <= group_size < 1 << 62:
            raise InvalidProblem(f"group_size: {group_size}; expected at least 1")
    return (None if axis is None else whole("axis", axis)), group_size


def checked_steps(scheme: QuantizationScheme, dtype: QuantizedDType, steps: float | None) -> float | None:
    if scheme is not QuantizationScheme.LOGARITHMIC:
        if steps is not None:
            raise InvalidProblem(f"steps_per_octave: only the logarithmic scheme has it, not {scheme}")
        return None
    if not dtype.is_signed:
        raise InvalidProblem(f"scheme: logarithmic codes carry a sign; {dtype} has none")
    steps = default_steps_per_octave(dtype.bits) if steps is None else float(steps)
    if not (math.isfinite(steps) and steps > 0):
        raise InvalidProblem(f"steps_per_octave: {steps}; expected a positive number")
    if (dtype.qmax - 0.5) / steps > 126.5:
        raise InvalidProblem(
            f"steps_per_octave: {steps:g} spreads {dtype.qmax} magnitudes over more octaves than a float has"
        )
    return steps


def default_codes(dtype: QuantizedDType, scheme: QuantizationScheme) -> tuple[int, int]:
    lo, hi = dtype.value_range
    return (-hi if scheme is QuantizationScheme.LOGARITHMIC else lo), hi
