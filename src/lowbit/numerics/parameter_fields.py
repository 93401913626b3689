"""The fields of QuantizationParams, and the facts that follow from them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import Array, QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.fields import Immutable
from lowbit.numerics.granularity import Granularity, granularity_of
from lowbit.numerics.schemes import QuantizationScheme

# The arguments of QuantizationParams, by which params are compared and copied.
FIELDS = "dtype", "scheme", "scale", "zero_point", "axis", "group_size", "qmin", "qmax", "steps_per_octave"


class ParameterFields(Immutable):
    """The fields of params, which may be set only in this class."""

    __slots__ = (*FIELDS, "_calls", "_computed", "weak")

    dtype: QuantizedDType
    scheme: QuantizationScheme
    scale: Array
    zero_point: Array
    axis: int | None
    group_size: int | None
    qmin: int
    qmax: int
    steps_per_octave: float | None
    weak: bool  # the scale came as Python numbers: it takes the type of the data
    _calls: Any  # settled calls: lowbit.runtime.cache
    _computed: dict[
        np.dtype[Any], Any
    ]  # what `for_compute` made: the same object each time, as settled calls go by its id

    def granularity(self, shape: tuple[int, ...]) -> Granularity:
        """Which elements of an array of this shape share a scale; InvalidProblem where the params do not fit it."""
        found = granularity_of(shape, self.axis, self.group_size)
        if self.dtype.is_mixed and self.axis is not None and found.axis != len(self.dtype.widths):
            widths = len(self.dtype.widths)
            raise InvalidProblem(f"axis: {found.axis} channels in shape {shape}, but {widths} bit widths")
        if self.scale.ndim and self.scale.shape != found.scale_shape:
            raise InvalidProblem(
                f"scale: shape {self.scale.shape} does not fit an array of shape {shape}; expected {found.scale_shape}"
            )
        return found

    @property
    def is_symmetric(self) -> bool:
        """Whether ranges map symmetrically about 0, with zero point 0."""
        if self.scheme is QuantizationScheme.ASYMMETRIC:
            return False
        if self.scheme in (QuantizationScheme.SYMMETRIC, QuantizationScheme.LOGARITHMIC):
            return True
        return self.dtype.is_signed or self.dtype.is_binary

    @property
    def is_logarithmic(self) -> bool:
        return self.scheme is QuantizationScheme.LOGARITHMIC

    @property
    def stores_zero_point(self) -> bool:
        return bool(self.zero_point.any()) or not self.is_symmetric

    @property
    def num_parameter_sets(self) -> int:
        """The number of scales."""
        return self.scale.size

    def channel_range(self, channel: int) -> tuple[int, int]:
        """The codes of one channel: those of the params, or for a mixed dtype those of its width."""
        if not self.dtype.is_mixed:
            return self.qmin, self.qmax
        lo, hi = self.dtype.channel(channel).value_range
        return (-hi if lo and self.qmin == -self.qmax else lo), hi

    @property
    def min_val(self) -> Array:
        """The least value a code represents, per scale, in the scales' type.

        >>> from lowbit import QuantizationParams
        >>> QuantizationParams("uint8", scale=0.5, zero_point=4).min_val
        array(-2.)
        >>> QuantizationParams.mixed([8, 4, 1], [0.5, 0.5, 0.5]).min_val
        array([-64. ,  -4. ,  -0.5])
        """
        return self._ends()[0]

    @property
    def max_val(self) -> Array:
        """The greatest value a code represents, per scale, in the scales' type.

        >>> from lowbit import QuantizationParams
        >>> QuantizationParams("int8", scale=0.5).max_val
        array(63.5)
        >>> QuantizationParams.logarithmic(scale=2.0).max_val
        array(2.)
        """
        return self._ends()[1]

    def _ends(self) -> tuple[Array, Array]:
        if self.is_logarithmic or self.dtype.is_binary:
            return np.asarray(-self.scale), self.scale
        codes: Any = (self.qmin, self.qmax)
        if self.dtype.is_mixed:  # a channel of one bit is -s or +s
            ranges = [(-1, 1) if w == 1 else self.channel_range(i) for i, w in enumerate(self.dtype.widths)]
            codes = np.array(ranges, np.int32).T
        low, high = (np.asarray((c - self.zero_point).astype(self.scale.dtype) * self.scale) for c in codes)
        return low, high

    @property
    def magnitude_levels(self) -> int:
        """M: the greatest magnitude code of a logarithmic dtype."""
        return self.dtype.qmax

    @property
    def nbytes(self) -> int:
        """Bytes of scales and zero points as stored: zero points take the codes' width, and only
        asymmetric mappings have them."""
        scales = self.scale.size * (4 if self.weak else self.scale.itemsize)
        zeros = (self.scale.size * self.dtype.bits + 7) // 8 if self.stores_zero_point else 0
        return scales + zeros + len(self.dtype.widths)

    def codes_nbytes(self, shape: tuple[int, ...]) -> int:
        """Bytes the codes of an array of this shape take."""
        elements = math.prod(shape)
        if self.dtype.is_mixed:
            elements //= max(1, len(self.dtype.widths))
        return self.dtype.storage_bytes(elements)

    def compression_ratio(self, shape: tuple[int, ...], source: npt.DTypeLike = np.float32) -> float:
        """Bytes before over bytes after, scales and zero points counted.

        >>> from lowbit import QuantizationParams
        >>> QuantizationParams("int4", scale=np.ones((64, 32), np.float32), axis=-1,
        ...                    group_size=32).compression_ratio((64, 1024))
        6.4
        """
        self.granularity(shape)
        before = math.prod(shape) * np.dtype(source).itemsize
        return before / max(1, self.codes_nbytes(shape) + self.nbytes)

    def error_bound(self) -> float:
        """The largest |x - dequantize(quantize(x))| for any x within range: half a step, and the rounding
        of the arithmetic. Infinite for binary codes, which bound nothing."""
        if self.dtype.is_binary or 1 in self.dtype.widths:
            return math.inf
        s = float(self.scale.max(initial=0.0))
        if self.is_logarithmic:
            r, levels = float(self.steps_per_octave or 1), self.magnitude_levels
            return s * max(1 - 2 ** (-0.5 / r), 2 ** (-(levels - 0.5) / r)) * (1 + 2**-20)
        eps = 2.0**-52 if self.scale.dtype == np.float64 and not self.weak else 2.0**-23
        return s * (0.5 + (self.qmax - self.qmin) * eps)
