"""Convert and check arguments: scales, zero points, statistics and integers. Errors name the field."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.dtypes import Array, is_integer
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE, SCALES


class Immutable:
    """Base of classes whose fields only their own code sets, by `_set`."""

    __slots__ = ()

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, value)


def refuse_masked(name: str, value: Any) -> None:
    """Raises for a masked array, whose mask would otherwise be lost without a word."""
    if isinstance(value, np.ma.MaskedArray):
        raise InvalidProblem(f"{name}: a masked array; expected a plain one ({name}.filled(0), or {name}.compressed())")


def _as_array(name: str, value: npt.ArrayLike, of: str) -> Array:
    refuse_masked(name, value)
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidProblem(f"{name}: not an array of {of} ({error})") from None


def as_scale(scale: npt.ArrayLike) -> tuple[Array, bool]:
    array = _as_array("scale", scale, "numbers")
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype.kind not in "fV" or array.dtype == object:
        raise InvalidProblem(f"scale: expected floating-point numbers, got {array.dtype}")
    weak = isinstance(scale, (float, int, list, tuple)) and not isinstance(scale, np.generic)
    kind = np.float64 if array.dtype == np.float64 else np.float32
    array = np.array(array, dtype=kind, order="C", copy=True)
    array.flags.writeable = False
    return array, weak


def as_zero_point(zero_point: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    array = _as_array("zero_point", zero_point, "integers")
    if array.shape == (1,) and not shape:
        array = array.reshape(())
    if array.dtype.kind == "f":
        integral = np.isfinite(array) & (array == np.rint(array))
        if not integral.all():
            raise InvalidProblem(f"zero_point: {array[~integral].flat[0]}; expected an integer")
        array = np.clip(array, -(2.0**40), 2.0**40).astype(np.int64)
    array = as_integers("zero_point", array, -(2**31), 2**31 - 1)
    try:
        array = np.array(np.broadcast_to(array, shape), np.int32, order="C")
    except ValueError:
        raise InvalidProblem(f"zero_point: shape {array.shape} does not match the scale's {shape}") from None
    array.flags.writeable = False
    return array


def as_integers(name: str, array: Array, least: int, most: int) -> Array:
    """The array as int64, once its own type has shown that every number lies in [least, most]: a cast that comes first
    would turn 2^64 - 5 into -5."""
    if not is_integer(array.dtype):
        raise InvalidProblem(f"{name}: {array.dtype}; expected integers")
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < least or high > most:
            raise InvalidProblem(f"{name}: [{low}, {high}]; expected integers in [{least}, {most}]")
    return array.astype(np.int64)


def as_statistics(lo: npt.ArrayLike, hi: npt.ArrayLike) -> tuple[Array, Array]:
    for name, value in (("lo", lo), ("hi", hi)):
        refuse_masked(name, value)
    low, high = np.asarray(lo), np.asarray(hi)
    single = all(a.dtype.kind == "f" and a.dtype.itemsize < 8 for a in (low, high))
    kind = np.float32 if single else np.float64
    low, high = low.astype(kind), high.astype(kind)
    if low.shape != high.shape:
        raise InvalidProblem(f"lo, hi: shapes {low.shape} and {high.shape} differ")
    for name, found in (("lo", low), ("hi", high)):
        if not np.isfinite(found).all():
            raise InvalidProblem(f"{name}: expected finite numbers, got {found[~np.isfinite(found)].flat[0]}")
    if (low > high).any():
        raise InvalidProblem("lo: above hi")
    return low, high


def check_scale(scale: Array) -> None:
    good = np.isfinite(scale) & (scale >= MIN_SCALE) & (scale <= MAX_SCALE)
    if not good.all():
        bad = scale[~good].flat[0]
        raise InvalidProblem(f"scale: {bad!r}; expected {SCALES}")


def whole(name: str, value: Any) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidProblem(f"{name}: {value!r}; expected an integer") from None
