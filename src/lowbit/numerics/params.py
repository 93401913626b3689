"""Schemes and parameters: how numbers map to codes, and which elements share a mapping."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import Array, DTypeLike, QuantizedDType
from lowbit.numerics.fields import as_scale, as_statistics, as_zero_point, whole
from lowbit.numerics.parameter_fields import FIELDS, ParameterFields
from lowbit.numerics.ranges import affine_from_range, log_scale_from_range, mixed_scale_from_range
from lowbit.numerics.schemes import QuantizationScheme as QuantizationScheme
from lowbit.numerics.schemes import check_params, checked_steps, default_codes, granularity_options, group_size_of

Numbers: TypeAlias = npt.ArrayLike


class _ClassOrTemplate:
    """A method of the class, or of an instance whose settings are its defaults."""

    def __init__(self, function: Callable[..., QuantizationParams]) -> None:
        self.function = function
        functools.update_wrapper(self, function)  # type: ignore[arg-type]

    def __get__(
        self, instance: QuantizationParams | None, owner: type[QuantizationParams]
    ) -> Callable[..., QuantizationParams]:
        bound = functools.partial(self.function, owner, instance)
        bound.__doc__ = self.__doc__
        return bound


class QuantizationParams(ParameterFields):
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
        scale: Numbers = 1.0,
        zero_point: Numbers | None = None,
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
        least, most = lo if qmin is None else whole("qmin", qmin), hi if qmax is None else whole("qmax", qmax)
        nearest_zero = min(max(0, least), most)
        zero_points = as_zero_point(nearest_zero if zero_point is None else zero_point, scales.shape)
        self._set(_computed={}, _calls=None, dtype=kind, scheme=mapping, axis=axis, group_size=group_size, scale=scales)
        self._set(weak=weak, qmin=least, qmax=most, zero_point=zero_points)
        self._set(steps_per_octave=checked_steps(mapping, kind, steps_per_octave))
        self.validate()

    @property
    def block_size(self) -> int | None:
        """Alias of `group_size`."""
        return self.group_size

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name}: params do not change, as results are kept for them; use replace({name}=...)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name}: params do not change, as results are kept for them; use replace()")

    def validate(self, shape: tuple[int, ...] | None = None) -> None:
        """Raise InvalidProblem, naming the field that is wrong; with a shape, also check that the params fit it."""
        check_params(self)
        if shape is not None:
            self.granularity(shape)

    def for_compute(self, dtype: npt.DTypeLike) -> QuantizationParams:
        """These params with scales in the type the arithmetic runs in (float32 or float64)."""
        wanted = np.dtype(dtype)
        if self.scale.dtype == wanted and not self.weak:
            return self
        found: QuantizationParams | None = self._computed.get(wanted)
        if found is None:
            found = self._computed.setdefault(wanted, self.replace(scale=self.scale.astype(wanted)))
        return found

    def _with_arrays(self, scale: Array, zero_point: Array, qmin: int) -> QuantizationParams:
        """These params with arrays from a kernel, which are neither copied nor checked."""
        made: Any = ParameterFields()
        made.dtype, made.scheme, made.axis, made.group_size = self.dtype, self.scheme, self.axis, self.group_size
        made.qmin, made.qmax, made.steps_per_octave = qmin, self.qmax, self.steps_per_octave
        scale.flags.writeable = zero_point.flags.writeable = False
        made.scale, made.zero_point, made.weak, made._computed, made._calls = scale, zero_point, False, {}, None
        made.__class__ = QuantizationParams  # immutable from here; `_set` takes longer than a small `quantize`
        return made  # type: ignore[no-any-return]

    def replace(self, **changes: Any) -> QuantizationParams:
        """A copy with some fields changed."""
        fields = {name: getattr(self, name) for name in FIELDS}
        weak = self.weak and "scale" not in changes
        made = QuantizationParams(**{**fields, **changes})
        made._set(weak=made.weak or weak)
        return made

    @_ClassOrTemplate
    def from_statistics(
        cls: type[QuantizationParams],
        template: QuantizationParams | None,
        lo: Numbers,
        hi: Numbers,
        *,
        dtype: DTypeLike | None = None,
        scheme: str | QuantizationScheme | None = None,
        axis: int | None = None,
        group_size: int | None = None,
        qmin: int | None = None,
        qmax: int | None = None,
        full_range: bool = False,
        steps_per_octave: float | None = None,
        mean_abs: Numbers | None = None,
    ) -> QuantizationParams:
        """Params that cover [lo, hi]: scalars for a tensor, arrays for channels or blocks.

        Called on an instance, it starts from that instance's settings. A symmetric mapping narrows the
        codes to ±qmax unless `full_range` keeps the least one too. Binary codes need `mean_abs`.

        >>> QuantizationParams.from_statistics(-1.0, 3.0, dtype="uint8", scheme="asymmetric")
        QuantizationParams(uint8, asymmetric, scale=0.015686275, zero_point=64)
        >>> QuantizationParams.int8_symmetric().from_statistics(-1.0, 2.54).scale
        array(0.02)
        """
        given = {"dtype": dtype, "scheme": scheme, "axis": axis, "group_size": group_size}
        given["steps_per_octave"] = steps_per_octave
        start = template or _DEFAULT
        if (start.qmin, start.qmax) != default_codes(start.dtype, start.scheme):
            qmin, qmax = start.qmin if qmin is None else qmin, start.qmax if qmax is None else qmax
        settings: dict[str, Any] = {k: getattr(start, k) if v is None else v for k, v in given.items()}
        shape_of = cls(**settings, qmin=qmin, qmax=qmax)
        weak = not any(isinstance(v, (np.ndarray, np.floating)) and not isinstance(v, float) for v in (lo, hi))
        return shape_of._covering(*as_statistics(lo, hi), mean_abs, (qmin, qmax), full_range, weak)

    def _covering(
        self,
        lo: Array,
        hi: Array,
        mean_abs: Numbers | None,
        codes: tuple[int | None, int | None],
        full_range: bool,
        weak: bool,
    ) -> QuantizationParams:
        """These params with scales and zero points for the range of each scope."""
        zero, qmin, qmax = np.zeros(lo.shape, np.int32), self.qmin, self.qmax
        if self.is_logarithmic:
            scale = log_scale_from_range(lo, hi)
        elif self.dtype.is_mixed or self.dtype.is_binary:
            mean = None if mean_abs is None else np.asarray(mean_abs, lo.dtype)
            widths = self.dtype.widths or (1,) * max(1, lo.size)
            scale = mixed_scale_from_range(widths, lo, hi, mean, full_range)
            qmin = -qmax if self.dtype.is_mixed and not full_range else qmin
        else:
            narrow = self.is_symmetric and self.dtype.is_signed and codes == (None, None) and not full_range
            qmin = -qmax if narrow else qmin
            scale, zero = affine_from_range(lo, hi, qmin, qmax, symmetric=self.is_symmetric, full_range=full_range)
        made = self.replace(scale=scale, zero_point=zero, qmin=qmin)
        made._set(weak=weak)
        return made

    @classmethod
    def int8_symmetric(cls, scale: Numbers = 1.0, **options: Any) -> QuantizationParams:
        return cls("int8", "symmetric", scale, **options)

    @classmethod
    def uint8_asymmetric(cls, scale: Numbers = 1.0, zero_point: Numbers = 128, **options: Any) -> QuantizationParams:
        return cls("uint8", "asymmetric", scale, zero_point, **options)

    @classmethod
    def int4_symmetric(cls, scale: Numbers = 1.0, **options: Any) -> QuantizationParams:
        return cls("int4", "symmetric", scale, **options)

    @classmethod
    def binary(cls, scale: Numbers = 1.0, **options: Any) -> QuantizationParams:
        return cls("binary", "symmetric", scale, **options)

    @classmethod
    def channel_wise(
        cls, scale: Numbers = 1.0, zero_point: Numbers = 0, axis: int = 0, dtype: DTypeLike = "int8", **options: Any
    ) -> QuantizationParams:
        return cls(dtype, "channel_wise", scale, zero_point, axis=axis, **options)

    @classmethod
    def block_wise(
        cls,
        group_size: int,
        scale: Numbers = 1.0,
        zero_point: Numbers = 0,
        axis: int = -1,
        dtype: DTypeLike = "int8",
        **options: Any,
    ) -> QuantizationParams:
        return cls(dtype, "block_wise", scale, zero_point, axis=axis, group_size=group_size, **options)

    @classmethod
    def logarithmic(
        cls, dtype: DTypeLike = "int8", scale: Numbers = 1.0, steps_per_octave: float | None = None, **options: Any
    ) -> QuantizationParams:
        return cls(dtype, "logarithmic", scale, steps_per_octave=steps_per_octave, **options)

    @classmethod
    def mixed(cls, widths: Numbers, scale: Numbers = 1.0, axis: int = 0, **options: Any) -> QuantizationParams:
        return cls(QuantizedDType.mixed(np.asarray(widths).tolist()), "symmetric", scale, axis=axis, **options)

    def to_dict(self) -> dict[str, Any]:
        fields = {"dtype": self.dtype.to_json(), "scheme": self.scheme.value, "scale": self.scale.tolist()}
        fields |= {"scale_dtype": None if self.weak else self.scale.dtype.name, "zero_point": self.zero_point.tolist()}
        return fields | {k: getattr(self, k) for k in ("axis", "group_size", "qmin", "qmax", "steps_per_octave")}

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
        return all(_same(getattr(self, n), getattr(other, n)) for n in (*FIELDS, "weak"))

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


_DEFAULT = QuantizationParams("int8", "symmetric")


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
