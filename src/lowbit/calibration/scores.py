"""The error of ranges for a distribution at a target dtype, from its histogram."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit import reference
from lowbit.calibration.distribution import Distribution, Floats, Histogram
from lowbit.numerics.dtypes import Array
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.ranges import affine_from_range
from lowbit.runtime.native import core

FLOOR = 2.0**-40  # of the codes' distribution in a divergence
# Gauss-Legendre points and weights: logarithmic codes are evaluated at points of each bin.
_POINTS, _WEIGHTS = (v / 2 + c for v, c in zip(np.polynomial.legendre.leggauss(3), (0.5, 0.0), strict=True))


@dataclass(frozen=True)
class Target:
    """The dtype and mapping that ranges are for; `template` holds them without granularity."""

    template: QuantizationParams
    full_range: bool = False
    wide: bool = False  # scales in float64
    codes: tuple[int, int] | None = None  # given by the caller

    @property
    def is_symmetric(self) -> bool:
        return self.template.is_symmetric

    def params(self, lo: Array, hi: Array, mean_abs: Array | None = None, **scope: Any) -> QuantizationParams:
        """Params for ranges; scope: axis and group_size."""
        real = np.float64 if self.wide else np.float32
        least, most = self.codes or (None, None)
        return QuantizationParams.from_statistics(
            np.asarray(lo, real), np.asarray(hi, real), dtype=self.template.dtype, scheme=self.template.scheme,
            qmin=least, qmax=most, full_range=self.full_range, steps_per_octave=self.template.steps_per_octave,
            mean_abs=None if mean_abs is None else np.asarray(mean_abs, real), **scope,
        )  # fmt: skip

    @functools.cached_property
    def code_range(self) -> tuple[int, int]:
        """The least and greatest code that params for a range have."""
        p = self.params(np.float64(-1.0), np.float64(1.0))
        return p.qmin, p.qmax

    def mapping(self, lo: Floats, hi: Floats) -> tuple[Array, Array, Array]:
        """Scales, and the least and greatest multiple of each, that params for ranges have. Linear codes only."""
        real = np.float64 if self.wide else np.float32
        least, most = self.code_range
        scale, zero = affine_from_range(
            lo.astype(real), hi.astype(real), least, most, symmetric=self.is_symmetric, full_range=self.full_range
        )
        codes = zero.astype(np.int64)
        return scale.astype(np.float64), least - codes, most - codes

    def candidates(self, d: Distribution, lo: Floats, hi: Floats) -> QuantizationParams:
        """Params for each of several ranges of one distribution."""
        mean = np.full(lo.shape, d.mean_abs) if self.template.dtype.is_binary else None
        return self.params(lo, hi, mean, axis=0)


def mean_squared_error(d: Distribution, target: Target, lo: npt.ArrayLike, hi: npt.ArrayLike) -> Floats:
    """The mean of (x - dequantize(quantize(x)))^2 over all numbers seen, for each range [lo, hi].

    Numbers are assumed uniform within the bins of the histogram; linear codes represent zeros exactly.
    """
    low, high = np.atleast_1d(np.asarray(lo, np.float64)), np.atleast_1d(np.asarray(hi, np.float64))
    if target.template.dtype.is_binary:  # mean (|x| - s)^2, without any histogram
        s = target.candidates(d, low, high).scale.astype(np.float64)
        return np.maximum(d.mean_square - 2 * s * d.mean_abs + s * s, 0.0)
    if target.template.is_logarithmic:
        return _at_points(d.histogram, target.candidates(d, low, high)) / max(1, d.count)
    out = np.empty(low.shape)
    core.squared_error(core.Histogram(*d.histogram), *target.mapping(low, high), out)
    return out / max(1, d.count)


def divergence(d: Distribution, target: Target, lo: npt.ArrayLike, hi: npt.ArrayLike) -> Floats:
    """The Kullback-Leibler divergence of `lowbit.reference.calibration` for each range [lo, hi], without zeros."""
    low, high = np.atleast_1d(np.asarray(lo, np.float64)), np.atleast_1d(np.asarray(hi, np.float64))
    out = np.empty(low.shape)
    core.divergence(core.Histogram(*d.smooth), *target.mapping(low, high), FLOOR, out)
    return out


def _at_points(h: Histogram, p: QuantizationParams) -> Floats:
    """Squared errors by quantizing points of every bin."""
    x = (h.lower[:, None] + (h.upper - h.lower)[:, None] * _POINTS).reshape(-1)
    weight = (h.counts[:, None] * _WEIGHTS).reshape(-1)
    found = []
    for scale in p.scale:
        one = p.replace(scale=scale.astype(np.float64), zero_point=0, axis=None)
        back = reference.dequantize(reference.quantize(x, one), one, np.float64)
        found.append(float((weight * (x - back) ** 2).sum()))
    return np.asarray(found)
