"""Schemes and parameters: how numbers map to codes, and which elements share a mapping."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import DTypeLike, QuantizedDType
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.fields import as_scale, as_statistics, as_zero_point, check_scale, code_bound
from lowbit.numerics.granularity import Granularity, granularity_of
from lowbit.numerics.ranges import MIN_SCALE, affine_from_range, log_scale_from_range
from lowbit.numerics.schemes import (
    QuantizationScheme,
    checked_steps,
    default_codes,
    default_steps_per_octave,
    granularity_options,
    group_size_of,
)

__all__ = ["QuantizationParams", "QuantizationScheme", "default_steps_per_octave"]

Array = npt.NDArray[Any]


class _ClassOrTemplate:
    """A method that may be called on the class, or on an instance whose settings it then starts from."""

    def __init__(self, function: Callable[..., QuantizationParams]) -> None:
        self.function = function
        self.__doc__ = function.__doc__

    def __get__(
        self, instance: QuantizationParams | None, owner: type[QuantizationParams]
    ) -> Callable[..., QuantizationParams]:
        def bound(*args: Any, **kwargs: Any) -> QuantizationParams:
            return self.function(owner, instance, *args, **kwargs)

        bound.__doc__ = self.__doc__
        return bound


class _Fields:
    """The fields of params while they are made."""

    __slots__ = (
        "_cache",
        "axis",
        "dtype",
        "group_size",
        "qmax",
        "qmin",
        "scale",
        "scheme",
        "steps_per_octave",
        "weak",
        "zero_point",
    )

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
    _cache: dict[Any, Any]  # what kernels prepare from these params; never compared, never stored


class QuantizationParams(_Fields):
    """Scales, zero points and code range: per tensor, per channel with `axis`, or per group of `group_size` along it.

    The constructor enforces that every scale is finite and in [2^-125, FLT_MAX / 65536], and that every zero point
    lies in [qmin, qmax], a range within the dtype's. `scale` and `zero_point` share a shape: () per tensor,
    (channels,) per channel, and per group the array's shape with `axis` divided by `group_size` (`block_size=` is an
    alias). The default zero point is the code nearest to 0. Python numbers keep their full precision and take the
    type of the data they meet; NumPy arrays keep theirs. Params are immutable: `replace` gives changed ones.

    >>> p = QuantizationParams(dtype="int8", scale=0.5, zero_point=3)
    >>> p
    QuantizationParams(int8, linear, scale=0.5, zero_point=3)
    >>> p.replace(zero_point=0)
    QuantizationParams(int8, linear, scale=0.5)
    >>> QuantizationParams.from_json(p.to_json()) == p
    True
    """

    __slots__ = ()

    def __init__(
        self,
        dtype: DTypeLike = "int8",
        scheme: str | QuantizationScheme = "linear",
        scale: npt.ArrayLike = 1.0,
        zero_point: npt.ArrayLike | None = None,
        axis: int | None = None,
        group_size: int | None = None,
        qmin: int | None = None,
        qmax: int | None = None,
        steps_per_octave: float | None = None,
        *,
        block_size: int | None = None,
    ) -> None:
        group_size = group_size_of(group_size, block_size)
        kind, mapping = QuantizedDType.of(dtype), QuantizationScheme.of(scheme)
        axis, group_size = granularity_options(mapping, kind, axis, group_size)
        scales, weak = as_scale(scale)
        if axis is None and scales.shape == (1,):
            scales = scales.reshape(())
        lo, hi = default_codes(kind, mapping)
        least, most = code_bound("qmin", qmin, lo), code_bound("qmax", qmax, hi)
        nearest_zero = min(max(0, least), most)
        self._set(
            _cache={}, dtype=kind, scheme=mapping, axis=axis, group_size=group_size, scale=scales, weak=weak,
            steps_per_octave=checked_steps(mapping, kind, steps_per_octave), qmin=least, qmax=most,
            zero_point=as_zero_point(nearest_zero if zero_point is None else zero_point, scales.shape),
        )  # fmt: skip
        self.validate()

    @property
    def block_size(self) -> int | None:
        """Alias of `group_size`."""
        return self.group_size

    def _set(self, **fields: Any) -> None:
        """The way around immutability of those who make params."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: params do not change, as results are kept for them; use replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: params do not change, as results are kept for them; use replace()")

    # ---- checks -----------------------------------------------------------------------------------

    def validate(self, shape: tuple[int, ...] | None = None) -> None:
        """Raises InvalidProblem naming the field that is wrong; with a shape, also checks that they fit."""
        lo, hi = self.dtype.value_range
        if self.qmin > self.qmax:
            raise InvalidProblem(f"qmin: {self.qmin} is above qmax {self.qmax}")
        if self.qmin < lo or self.qmax > hi:
            raise InvalidProblem(f"qmin, qmax: [{self.qmin}, {self.qmax}] reaches beyond {self.dtype}'s [{lo}, {hi}]")
        check_scale(self.scale)
        if self.dtype.is_binary and self.scheme is QuantizationScheme.ASYMMETRIC:
            raise InvalidProblem("scheme: binary codes are symmetric")
        if self.dtype.is_mixed and (self.zero_point.any() or self.qmax != hi or self.qmin not in (lo, -hi)):
            raise InvalidProblem(
                f"zero_point, qmin, qmax: mixed codes have no zero point, and [{lo}, {hi}] or [{-hi}, {hi}] as range"
            )
        special = self.dtype.is_binary or self.scheme is QuantizationScheme.LOGARITHMIC
        if special and (self.zero_point.any() or (self.qmin, self.qmax) != (-hi if lo else 0, hi)):
            kind = "binary" if self.dtype.is_binary else "logarithmic"
            raise InvalidProblem(f"zero_point, qmin, qmax: {kind} codes have none of their own to set")
        least, most = (int(self.zero_point.min()), int(self.zero_point.max())) if self.zero_point.size else (0, 0)
        if not special and self.zero_point.size and (least < self.qmin or most > self.qmax):
            raise InvalidProblem(f"zero_point: [{least}, {most}] reaches beyond the codes' [{self.qmin}, {self.qmax}]")
        if self.axis is None and self.scale.ndim > 0:
            raise InvalidProblem(
                f"scale: shape {self.scale.shape} needs an axis (and group_size); without one it is a scalar"
            )
        if self.axis is not None and self.group_size is None and self.scale.ndim > 1:
            raise InvalidProblem(f"scale: one per channel has one dimension, got shape {self.scale.shape}")
        if self.dtype.is_mixed and self.scale.ndim and self.scale.shape != (len(self.dtype.widths),):
            raise InvalidProblem(
                f"scale: shape {self.scale.shape}; {len(self.dtype.widths)} mixed channels need one each"
            )
        if shape is not None:
            self.granularity(shape)

    def granularity(self, shape: tuple[int, ...]) -> Granularity:
        """How these params lie over an array of this shape; raises InvalidProblem if they do not fit."""
        found = granularity_of(shape, self.axis, self.group_size)
        if self.dtype.is_mixed and self.axis is not None and found.axis != len(self.dtype.widths):
            widths = len(self.dtype.widths)
            raise InvalidProblem(f"axis: {found.axis} channels in shape {shape}, but {widths} bit widths")
        if self.scale.ndim and self.scale.shape != found.scale_shape:
            raise InvalidProblem(
                f"scale: shape {self.scale.shape} does not fit an array of shape {shape}; expected {found.scale_shape}"
            )
        return found

    # ---- what they say ------------------------------------------------------------------------------

    @property
    def is_symmetric(self) -> bool:
        """Whether a range is mapped symmetrically about 0, so that derived zero points are 0."""
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
        """How many scales there are."""
        return self.scale.size

    def channel_range(self, channel: int) -> tuple[int, int]:
        """The codes one channel may take: the params' own, or of a mixed dtype those of its width."""
        if not self.dtype.is_mixed:
            return self.qmin, self.qmax
        lo, hi = self.dtype.channel(channel).value_range
        return (-hi if lo and self.qmin == -self.qmax else lo), hi

    @property
    def min_val(self) -> Array:
        """The least number a code stands for, one for each scale, in the scales' type.

        >>> QuantizationParams("uint8", scale=0.5, zero_point=4).min_val
        array(-2.)
        >>> QuantizationParams.mixed([8, 4, 1], [0.5, 0.5, 0.5]).min_val
        array([-64. ,  -4. ,  -0.5])
        """
        return self._ends()[0]

    @property
    def max_val(self) -> Array:
        """The greatest number a code stands for, one for each scale, in the scales' type.

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

    # ---- making new ones --------------------------------------------------------------------------

    def for_compute(self, dtype: npt.DTypeLike) -> QuantizationParams:
        """These params with scales in the type the arithmetic runs in (float32 or float64)."""
        wanted = np.dtype(dtype)
        if self.scale.dtype == wanted and not self.weak:
            return self
        key = ("compute", wanted)
        if key not in self._cache:
            self._cache[key] = self.replace(scale=self.scale.astype(wanted))
        found: QuantizationParams = self._cache[key]
        return found

    def _with_arrays(self, scale: Array, zero_point: Array, qmin: int) -> QuantizationParams:
        """These params with arrays a kernel made and checked; they are kept, not copied."""
        made: Any = _Fields()
        made.dtype, made.scheme, made.axis, made.group_size = self.dtype, self.scheme, self.axis, self.group_size
        made.qmin, made.qmax, made.steps_per_octave = qmin, self.qmax, self.steps_per_octave
        scale.flags.writeable = zero_point.flags.writeable = False
        made.scale, made.zero_point, made.weak, made._cache = scale, zero_point, False, {}
        made.__class__ = QuantizationParams  # sealed; `_set` would take longer than some calls of `quantize`
        return made  # type: ignore[no-any-return]

    def replace(self, **changes: Any) -> QuantizationParams:
        """A copy with some fields changed."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        weak = self.weak and "scale" not in changes
        made = QuantizationParams(**{**fields, **changes})
        made._set(weak=made.weak or weak)
        return made

    @_ClassOrTemplate
    def from_statistics(
        cls: type[QuantizationParams],
        template: QuantizationParams | None,
        lo: npt.ArrayLike,
        hi: npt.ArrayLike,
        *,
        dtype: DTypeLike | None = None,
        scheme: str | QuantizationScheme | None = None,
        axis: int | None = None,
        group_size: int | None = None,
        qmin: int | None = None,
        qmax: int | None = None,
        full_range: bool = False,
        steps_per_octave: float | None = None,
        mean_abs: npt.ArrayLike | None = None,
    ) -> QuantizationParams:
        """Params that cover [lo, hi]: scalars for a tensor, arrays for channels or blocks.

        Called on an instance, it starts from that instance's settings. A symmetric mapping narrows the
        codes to ±qmax unless `full_range` keeps the least one too. Binary codes need `mean_abs`.

        >>> QuantizationParams.from_statistics(-1.0, 3.0, dtype="uint8", scheme="asymmetric")
        QuantizationParams(uint8, asymmetric, scale=0.015686275, zero_point=64)
        >>> QuantizationParams.int8_symmetric().from_statistics(-1.0, 2.54).scale
        array(0.02)
        """
        if template is not None:
            dtype = template.dtype if dtype is None else dtype
            scheme = template.scheme if scheme is None else scheme
            axis = template.axis if axis is None else axis
            group_size = template.group_size if group_size is None else group_size
            steps_per_octave = template.steps_per_octave if steps_per_octave is None else steps_per_octave
            if (template.qmin, template.qmax) != default_codes(template.dtype, template.scheme):
                qmin, qmax = template.qmin if qmin is None else qmin, template.qmax if qmax is None else qmax
        shape_of = cls(
            "int8" if dtype is None else dtype,
            "symmetric" if scheme is None else scheme,
            axis=axis, group_size=group_size, qmin=qmin, qmax=qmax, steps_per_octave=steps_per_octave,
        )  # fmt: skip
        weak = not any(isinstance(v, (np.ndarray, np.floating)) and not isinstance(v, float) for v in (lo, hi))
        low, high = as_statistics(lo, hi)
        return _derive(shape_of, low, high, mean_abs, (qmin, qmax), full_range, weak)

    @classmethod
    def int8_symmetric(cls, scale: npt.ArrayLike = 1.0, **options: Any) -> QuantizationParams:
        return cls("int8", "symmetric", scale, **options)

    @classmethod
    def uint8_asymmetric(
        cls, scale: npt.ArrayLike = 1.0, zero_point: npt.ArrayLike = 128, **options: Any
    ) -> QuantizationParams:
        return cls("uint8", "asymmetric", scale, zero_point, **options)

    @classmethod
    def int4_symmetric(cls, scale: npt.ArrayLike = 1.0, **options: Any) -> QuantizationParams:
        return cls("int4", "symmetric", scale, **options)

    @classmethod
    def binary(cls, scale: npt.ArrayLike = 1.0, **options: Any) -> QuantizationParams:
        return cls("binary", "symmetric", scale, **options)

    @classmethod
    def channel_wise(
        cls,
        scale: npt.ArrayLike = 1.0,
        zero_point: npt.ArrayLike = 0,
        axis: int = 0,
        dtype: DTypeLike = "int8",
        **options: Any,
    ) -> QuantizationParams:
        return cls(dtype, "channel_wise", scale, zero_point, axis=axis, **options)

    @classmethod
    def block_wise(
        cls,
        group_size: int,
        scale: npt.ArrayLike = 1.0,
        zero_point: npt.ArrayLike = 0,
        axis: int = -1,
        dtype: DTypeLike = "int8",
        **options: Any,
    ) -> QuantizationParams:
        return cls(dtype, "block_wise", scale, zero_point, axis=axis, group_size=group_size, **options)

    @classmethod
    def logarithmic(
        cls,
        dtype: DTypeLike = "int8",
        scale: npt.ArrayLike = 1.0,
        steps_per_octave: float | None = None,
        **options: Any,
    ) -> QuantizationParams:
        return cls(dtype, "logarithmic", scale, steps_per_octave=steps_per_octave, **options)

    @classmethod
    def mixed(
        cls, widths: npt.ArrayLike, scale: npt.ArrayLike = 1.0, axis: int = 0, **options: Any
    ) -> QuantizationParams:
        return cls(QuantizedDType.mixed(np.asarray(widths).tolist()), "symmetric", scale, axis=axis, **options)

    # ---- as text ------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype.to_json(),
            "scheme": self.scheme.value,
            "scale": self.scale.tolist(),
            "scale_dtype": None if self.weak else self.scale.dtype.name,
            "zero_point": self.zero_point.tolist(),
            "axis": self.axis,
            "group_size": self.group_size,
            "qmin": self.qmin,
            "qmax": self.qmax,
            "steps_per_octave": self.steps_per_octave,
        }

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> QuantizationParams:
        fields = dict(fields)
        dtype = QuantizedDType.from_json(fields.pop("dtype"))
        scale_dtype = fields.pop("scale_dtype", None)
        scale = np.asarray(fields.pop("scale"), scale_dtype or np.float64)
        made = cls(dtype=dtype, scale=scale, **fields)
        made._set(weak=scale_dtype is None)
        return made

    def to_json(self) -> str:
        """Text from which from_json makes equal params, to the bit."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> QuantizationParams:
        return cls.from_dict(json.loads(text))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantizationParams):
            return NotImplemented
        return all(_same(getattr(self, n), getattr(other, n)) for n in (*_FIELDS, "weak"))

    def __hash__(self) -> int:
        return hash((self.dtype, self.scheme, self.axis, self.group_size, self.scale.tobytes()))

    def __reduce__(self) -> tuple[Any, ...]:
        return QuantizationParams.from_dict, ({**self.to_dict(), "scale": self.scale, "zero_point": self.zero_point},)

    def __repr__(self) -> str:
        parts = [str(self.dtype), self.scheme.value]
        narrow = self.scale.dtype == np.float32 or self.weak
        parts.append(f"scale={_brief(self.scale.astype(np.float32) if narrow else self.scale)}")
        if self.stores_zero_point:
            parts.append(f"zero_point={_brief(self.zero_point)}")
        if (self.qmin, self.qmax) != default_codes(self.dtype, self.scheme):
            parts.append(f"codes=[{self.qmin}, {self.qmax}]")
        for name in ("axis", "group_size", "steps_per_octave"):
            if getattr(self, name) is not None:
                parts.append(f"{name}={getattr(self, name):g}")
        return f"QuantizationParams({', '.join(parts)})"


_FIELDS = (
    "dtype", "scheme", "scale", "zero_point", "axis", "group_size", "qmin", "qmax", "steps_per_octave",
)  # fmt: skip


def _derive(
    shape_of: QuantizationParams,
    lo: Array,
    hi: Array,
    mean_abs: npt.ArrayLike | None,
    codes: tuple[int | None, int | None],
    full_range: bool,
    weak: bool,
) -> QuantizationParams:
    """Params for the statistics of each scope; `shape_of` says dtype, scheme and granularity."""
    p, zero, qmin, qmax = shape_of, np.zeros(lo.shape, np.int32), shape_of.qmin, shape_of.qmax
    mean = None if mean_abs is None else np.asarray(mean_abs, lo.dtype)
    if p.is_logarithmic:
        scale = log_scale_from_range(lo, hi)
    elif p.dtype.is_mixed or p.dtype.is_binary:
        scale = _mixed_scale(p.dtype, lo, hi, mean, full_range)
        qmin = -qmax if p.dtype.is_mixed and not full_range else qmin
    else:
        narrow = p.is_symmetric and p.dtype.is_signed and codes == (None, None) and not full_range
        qmin = -qmax if narrow else qmin
        scale, zero = affine_from_range(lo, hi, qmin, qmax, symmetric=p.is_symmetric, full_range=full_range)
    made = QuantizationParams(p.dtype, p.scheme, scale, zero, p.axis, p.group_size, qmin, qmax, p.steps_per_octave)
    made._set(weak=weak)
    return made


def _mixed_scale(dtype: QuantizedDType, lo: Array, hi: Array, mean_abs: Array | None, full_range: bool) -> Array:
    """One scale per channel: mean|x| where the channel is binary, else the symmetric formula."""
    widths = np.asarray(dtype.widths or (1,) * max(1, lo.size)).reshape(lo.shape)
    if (widths == 1).any() and mean_abs is None:
        raise InvalidProblem("mean_abs: a binary scale is the mean of |x|; a range does not tell it")
    out = np.empty(lo.shape, lo.dtype)
    for width in set(widths.reshape(-1).tolist()):
        at = widths == width
        if width == 1:
            assert mean_abs is not None
            mean = np.broadcast_to(mean_abs, lo.shape)[at]
            out[at] = np.where(mean > 0, np.maximum(mean, lo.dtype.type(MIN_SCALE)), 1)
        else:
            top = (1 << (width - 1)) - 1
            least = -top - 1 if full_range else -top
            out[at] = affine_from_range(lo[at], hi[at], least, top, symmetric=True, full_range=full_range)[0]
    return out


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    return bool(a == b)


def _brief(a: Array) -> str:
    if a.ndim == 0:
        return str(a[()])
    if a.size == 0:
        return f"[] {a.shape}"
    return f"[{a.min()!s} … {a.max()!s}] {a.shape}"
