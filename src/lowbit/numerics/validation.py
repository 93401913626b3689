"""Check that the fields of QuantizationParams agree with each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.fields import check_scale
from lowbit.numerics.schemes import QuantizationScheme

if TYPE_CHECKING:
    from lowbit.numerics.params import QuantizationParams


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
