"""Schemes: how a range of numbers is mapped to codes, which options go with which, and the check of whole params."""

from __future__ import annotations

import enum
import math
from typing import TYPE_CHECKING

from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.fields import check_scale, whole

if TYPE_CHECKING:
    from lowbit.numerics.params import QuantizationParams


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
    # The default spreads the magnitudes over about 16 octaves (6 for four bits).
    steps = float(1 << max(0, dtype.bits - 5)) if steps is None else float(steps)
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


def check_params(p: QuantizationParams) -> None:
    """Raise InvalidProblem, naming the field, unless the fields of params agree with each other."""
    lo, hi = p.dtype.value_range
    if p.qmin > p.qmax:
        raise InvalidProblem(f"qmin: {p.qmin} is above qmax {p.qmax}")
    if p.qmin < lo or p.qmax > hi:
        raise InvalidProblem(f"qmin, qmax: [{p.qmin}, {p.qmax}] reaches beyond {p.dtype}'s [{lo}, {hi}]")
    check_scale(p.scale)
    if p.dtype.is_binary and p.scheme is QuantizationScheme.ASYMMETRIC:
        raise InvalidProblem("scheme: binary codes are symmetric")
    if p.dtype.is_mixed and (p.zero_point.any() or p.qmax != hi or p.qmin not in (lo, -hi)):
        raise InvalidProblem(
            f"zero_point, qmin, qmax: mixed codes have zero point 0 and the range [{lo}, {hi}] or [{-hi}, {hi}]"
        )
    special = p.dtype.is_binary or p.is_logarithmic
    if special and (p.zero_point.any() or (p.qmin, p.qmax) != (-hi if lo else 0, hi)):
        kind = "binary" if p.dtype.is_binary else "logarithmic"
        raise InvalidProblem(f"zero_point, qmin, qmax: {kind} codes allow only the default")
    least, most = (int(p.zero_point.min()), int(p.zero_point.max())) if p.zero_point.size else (0, 0)
    if not special and p.zero_point.size and (least < p.qmin or most > p.qmax):
        raise InvalidProblem(f"zero_point: [{least}, {most}] reaches beyond the codes' [{p.qmin}, {p.qmax}]")
    if p.axis is None and p.scale.ndim > 0:
        raise InvalidProblem(f"scale: shape {p.scale.shape} needs an axis (and group_size); without one it is a scalar")
    if p.axis is not None and p.group_size is None and p.scale.ndim > 1:
        raise InvalidProblem(f"scale: one per channel has one dimension, got shape {p.scale.shape}")
    if p.dtype.is_mixed and p.scale.ndim and p.scale.shape != (len(p.dtype.widths),):
        raise InvalidProblem(f"scale: shape {p.scale.shape}; {len(p.dtype.widths)} mixed channels need one each")
