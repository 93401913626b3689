"""Tables of the logarithmic codes, exact to the last bit on every machine.

Magnitude m of M stands for 2^(-(M - m) / r) of the scale. Powers are computed in decimal arithmetic and
rounded once, never by a maths library whose last bit differs from the next one's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from lowbit.numerics.dtypes import Array

if TYPE_CHECKING:
    from decimal import Decimal
    from fractions import Fraction


@functools.lru_cache(maxsize=64)
def log_tables(levels: int, steps_per_octave: float, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """(thresholds, magnitudes) for m = 1 .. levels, both ascending.

    thresholds[m - 1] is the least number of `dtype` that rounds, in the log domain and ties to even, to
    magnitude m or more: a code is the count of thresholds that do not exceed |x| / s.

    >>> thresholds, magnitudes = log_tables(3, 1.0, np.dtype(np.float32))
    >>> magnitudes.tolist()
    [0.25, 0.5, 1.0]
    >>> thresholds
    array([0.1767767, 0.3535534, 0.7071068], dtype=float32)
    """
    from fractions import Fraction  # slow to import, and few programs use logarithmic codes

    r = Fraction(steps_per_octave)
    thresholds, magnitudes = np.empty(levels, dtype), np.empty(levels, dtype)
    for m in range(1, levels + 1):
        magnitudes[m - 1] = _scaled(Fraction(levels - m) / r, dtype, _nearest)
        boundary = Fraction(2 * (levels - m) + 1, 2) / r
        if boundary.denominator == 1:  # a power of two: a true tie, which goes to the even magnitude
            exact = np.ldexp(dtype.type(1), -int(boundary))
            thresholds[m - 1] = exact if m % 2 == 0 else np.nextafter(exact, dtype.type(1))
        else:
            thresholds[m - 1] = _scaled(boundary, dtype, _least_not_below)
    thresholds.flags.writeable = magnitudes.flags.writeable = False
    return thresholds, magnitudes


def _scaled(exponent: Fraction, dtype: np.dtype[Any], rounding: Any) -> Any:
    """2^-exponent, its mantissa rounded as told."""
    octaves = int(exponent)
    return np.ldexp(rounding(exponent - octaves, dtype), -octaves)


@functools.lru_cache(maxsize=1 << 14)
def _power(fraction: Fraction) -> Decimal:
    """2^-fraction to 60 digits."""
    from decimal import Context, Decimal

    context = Context(prec=60)
    return context.power(Decimal(2), context.divide(Decimal(-fraction.numerator), Decimal(fraction.denominator)))


@functools.lru_cache(maxsize=1 << 14)
def _nearest(fraction: Fraction, dtype: np.dtype[Any]) -> Any:
    return dtype.type(float(_power(fraction)))


@functools.lru_cache(maxsize=1 << 14)
def _least_not_below(fraction: Fraction, dtype: np.dtype[Any]) -> Any:
    near = _nearest(fraction, dtype)
    return np.nextafter(near, dtype.type(2)) if _power(fraction) > float(near) else near
