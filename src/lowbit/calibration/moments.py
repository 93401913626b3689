"""Second moments of the rows that a layer multiplies, exact and mergeable.

    E[x x^T] = sum over t of (sqrt(w_t) x_t) (sqrt(w_t) x_t)^T / sum of w_t
             = sum over exponents e of 4^(e - 19) * (sum over rows t of e of n_t^T n_t) / sum of w_t

`fixed_point` says what n and e are. The sums of n^T n are integers, so equal sets of rows give equal bits.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from lowbit.calibration.fixed_point import (
    BITS,
    EXPONENTS,
    LIMIT,
    ExactSums,
    fixed_point,
    largest,
    mirror,
    weighted_sum,
)
from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.runtime import arrays as cpu

_VERSION = 1
_WEIGHT_BITS = 16  # weights are multiples of 2^-16
_ONE = 1 << _WEIGHT_BITS
_MOST_WEIGHT = 1 << 16  # of one row
_MOST_TOTAL = 1 << 27  # of all rows: the sums of the mean are then at most 2^(19 + 27 + 16), in int64


class Moments:
    """Exact second moments of the rows that a layer multiplies: E[x^2] per input, or all of E[x x^T].

    Takes float32, float16, bfloat16 and float64 rows (rounded to float32), NumPy's or torch's. Equal sets of rows give
    equal bits, whatever their order, the calls that added them, merges, saves, threads and the machine.

    Rows are rounded to multiples of at most 2^-15 of their own largest magnitude, and never finer than 2^-39.
    gram: collect E[x x^T], at `width`^2 multiplications per row and about 4 * `width`^2 bytes per exponent seen (rows
    whose largest magnitudes lie within a factor of 16 share one). False: E[x^2], at `width` and 8 * `width`.
    cross: each call of `add` also gets rows y of a reference, such as what the float model sees where the quantized
    one sees x; E[y x^T] is collected besides, at three times the cost and the memory.
    groups: of a grouped convolution; each has moments of its own.

    >>> m = Moments(2)
    >>> m.add(np.float32([[1, 2], [3, -4]]))
    >>> m.gram()
    array([[ 5., -5.],
           [-5., 10.]])
    >>> m.add(np.float32([[0, 6]]), weights=[2])
    >>> m.count, m.weight, m.mean(), m.diagonal().round(3)
    (3, 4.0, array([1. , 2.5]), array([ 2.5, 23. ]))
    """

    def __init__(self, width: int, *, gram: bool = True, cross: bool = False, groups: int = 1, name: str = "x") -> None:
        for field, value in (("width", width), ("groups", groups)):
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise InvalidProblem(f"{field}: {value!r}; expected a positive integer")
        if cross and not gram:
            raise InvalidProblem("cross: it needs gram=True")
        self.width, self.groups, self.name = int(width), int(groups), name
        self.has_gram, self.has_cross = bool(gram), bool(cross)
        self.count = 0
        self._weight = 0  # in multiples of 2^-16
        self._products: dict[int, ExactSums] = {}  # by exponent
        self._totals: dict[int, Array] = {}  # sums of weight * n, by exponent; of x, and then of the reference

    @property
    def weight(self) -> float:
        """The sum of the weights."""
        return self._weight / _ONE

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return sum(s.nbytes for s in self._products.values()) + sum(s.nbytes for s in self._totals.values())

    def add(self, x: Any, weights: Any = None, *, reference: Any = None) -> None:
        """Add rows: x [..., width], or [..., groups, width] for several groups; weights [...], 1 where None.

        A weight is rounded to a multiple of 2^-16. A row of weight 0 counts for nothing, whatever is in it. Raises, and
        changes nothing, for rows that do not fit, are not finite, or reach 2^40 in magnitude.
        reference: rows of the same shape, where the moments have cross=True.
        """
        given = {self.name: x}
        if self.has_cross != (reference is not None):
            expected = "rows of the same shape as x" if self.has_cross else "Moments(..., cross=True) to use it"
            raise InvalidProblem(f"reference: {'missing' if reference is None else 'given'}; expected {expected}")
        if reference is not None:
            given[f"{self.name} (reference)"] = reference
        floats = {name: cpu.as_float_array(a, name) for name, a in given.items()}
        lead = self._lead(floats)
        with np.errstate(over="ignore"):  # what is too large for float32 is refused below
            parts = [
                f.widened().astype(np.float32, copy=False).reshape(-1, self.groups, self.width) for f in floats.values()
            ]
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=-1)
        weight = np.full(len(rows), _ONE) if weights is None else _integer_weights(weights, lead)
        kept = np.flatnonzero(weight)
        if len(kept) < len(rows):
            rows, weight = rows[kept], weight[kept]

        magnitude = largest(rows)
        root = np.sqrt(weight / _ONE).astype(np.float32)[:, None]
        with np.errstate(over="ignore"):
            scaled_magnitude = magnitude * root
        good = ((magnitude < LIMIT) & (scaled_magnitude < LIMIT)).all(1)
        if not good.all():
            self._refuse(floats, int(kept[np.argmin(good)]))
        blocks = scaled = fixed_point(rows, magnitude)
        if not (weight == _ONE).all():
            scaled = fixed_point(rows * root[..., None], scaled_magnitude)
        total = int(weight.sum())
        self._require_room({block.exponent: (len(block.rows), None) for block in scaled}, total)

        for block in scaled:
            self._sums(block.exponent).add(block.values)
        for block in blocks:
            self._add_total(block.exponent, weighted_sum(block.values, weight[block.rows]))
        self.count += len(rows)
        self._weight += total

    def _lead(self, floats: dict[str, cpu.FloatArray]) -> tuple[int, ...]:
        """The axes before those of a row; raises for arrays that are not of such rows, or not of as many."""
        inner = (self.width,) if self.groups == 1 else (self.groups, self.width)
        shape = next(iter(floats.values())).shape
        for name, f in floats.items():
            if len(f.shape) < len(inner) or f.shape[-len(inner) :] != inner:
                raise InvalidProblem(f"{name}: shape {f.shape}; expected [..., {', '.join(map(str, inner))}]")
            if f.shape != shape:
                raise InvalidProblem(f"{name}: shape {f.shape}; expected that of {self.name}, {shape}")
        return shape[: -len(inner)]

    def merge(self, other: Moments) -> None:
        """Add the rows of other moments, exactly."""
        if not isinstance(other, Moments):
            raise InvalidProblem(f"other: {type(other).__name__}; expected Moments")
        if other is self:
            raise InvalidProblem("other: the moments themselves")
        mine, theirs = ((m.width, m.groups, m.has_gram, m.has_cross) for m in (self, other))
        if mine != theirs:
            raise InvalidProblem(f"other: {other!r}; it does not fit {self!r}")
        self._require_room({e: (0, sums) for e, sums in other._products.items()}, other._weight)
        for e, sums in other._products.items():
            self._sums(e).absorb(sums)
        for e, total in other._totals.items():
            self._add_total(e, total)
        self.count += other.count
        self._weight += other._weight

    def mean(self) -> Array:
        """E[x], float64 [width], or [groups, width]."""
        total = np.zeros((self.groups, self.width))
        for e, sums in sorted(self._totals.items()):
            total += sums[:, : self.width] * 2.0 ** (e - BITS - _WEIGHT_BITS)
        return self._expected(total)

    def diagonal(self) -> Array:
        """E[x^2], float64 [width], or [groups, width]."""
        total = np.zeros((self.groups, self.width))
        for e, sums in sorted(self._products.items()):
            total += sums.diagonal() * 4.0 ** (e - BITS)
        return self._expected(total)

    def gram(self) -> Array:
        """E[x x^T], float64 [width, width], or [groups, width, width]; symmetric to the bit. A new array each time."""
        if not self.has_gram:
            raise InvalidProblem(f"{self.name}: only E[x^2] was collected; expected Moments(..., gram=True)")
        total = np.zeros((self.groups, self.width, self.width))
        for e, sums in sorted(self._products.items()):
            sums.add_to(total, 4.0 ** (e - BITS))
        mirror(total)
        return self._expected(total)

    def cross(self) -> Array:
        """E[y x^T] of reference rows y, float64 [width, width], or [groups, width, width]. A new array each time."""
        if not self.has_cross:
            raise InvalidProblem(f"{self.name}: there was no reference; expected Moments(..., cross=True)")
        total = np.zeros((self.groups, self.width, self.width))
        for e, sums in sorted(self._products.items()):
            sums.add_to(total, 4.0 ** (e - BITS), crossed=True)
        return self._expected(total)

    def _expected(self, total: Array) -> Array:
        if not self._weight:
            raise InvalidProblem(f"{self.name}: no rows yet")
        total /= self.weight
        return total if self.groups > 1 else total[0]

    def _sums(self, exponent: int) -> ExactSums:
        if exponent not in self._products:
            self._products[exponent] = self._no_sums()
        return self._products[exponent]

    def _no_sums(self) -> ExactSums:
        return ExactSums(self.groups, self.width, self.has_gram, self.has_cross)

    def _add_total(self, exponent: int, total: Array) -> None:
        self._totals[exponent] = self._totals.get(exponent, 0) + total

    def _require_room(self, added: dict[int, tuple[int, ExactSums | None]], weight: int) -> None:
        """Raise unless int64 holds the sums with these rows, or these sums, by exponent."""
        if self._weight + weight > _MOST_TOTAL << _WEIGHT_BITS:
            raise InvalidProblem(f"{self.name}: weights of more than {_MOST_TOTAL} in all; expected smaller ones")
        for e, (rows, sums) in added.items():
            if not self._products.get(e, self._no_sums()).has_room(rows, sums):
                raise InvalidProblem(f"{self.name}: too many rows of magnitudes near {2.0**e:g} for 64-bit sums")

    def _refuse(self, floats: dict[str, cpu.FloatArray], row: int) -> None:
        """Raise for the first number of a row that is not finite or too large."""
        for name, f in floats.items():
            values = f.widened().reshape(-1, self.groups * self.width)[row]
            bad = ~(np.abs(values) < LIMIT)
            if bad.any():
                column = int(np.argmax(bad))
                index = tuple(int(i) for i in np.unravel_index(row * values.size + column, f.shape))
                why = "moments need finite numbers"
                if np.isfinite(values[column]):
                    why = "expected less than 2^40; the activations diverge"
                raise InvalidProblem(f"{name}: {values[column]} at index {index}; {why}")
        raise InvalidProblem(f"{self.name}: row {row} times the root of its weight reaches 2^40; expected less")

    def to_arrays(self) -> tuple[dict[str, Array], str]:
        """The state as arrays and as JSON, for `from_arrays`; a Gram matrix as its lower triangle."""
        arrays = {f"{self._kind}.{e}": sums.packed() for e, sums in sorted(self._products.items())}
        arrays |= {f"rows.{e}": total for e, total in sorted(self._totals.items())}
        about = {
            "version": _VERSION, "name": self.name, "width": self.width, "groups": self.groups, "gram": self.has_gram,
            "cross": self.has_cross, "count": self.count, "weight": self._weight,
        }  # fmt: skip
        return arrays, json.dumps(about)

    @property
    def _kind(self) -> str:
        return "products" if self.has_gram else "squares"

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array], about: str) -> Moments:
        """The moments of `to_arrays`, which go on to the bit as if they had not been saved; FormatError otherwise."""
        try:
            fields = json.loads(about)
            if fields["version"] != _VERSION:
                raise FormatError(f"version: {fields['version']!r}; this lowbit reads {_VERSION}")
            kinds = {field: fields[field] is True for field in ("gram", "cross")}
            made = cls(fields["width"], groups=fields["groups"], name=str(fields["name"]), **kinds)
            made.count, made._weight = (_natural(fields, field) for field in ("count", "weight"))
            for name, array in arrays.items():
                made._restore(name, array)
        except FormatError:
            raise
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise FormatError(f"not moments: {type(error).__name__}: {error}") from None
        return made

    def _restore(self, name: str, array: Array) -> None:
        kind, _, text = name.partition(".")
        exponent = int(text)
        if kind not in (self._kind, "rows") or exponent not in EXPONENTS or text != str(exponent):
            raise FormatError(f"{name}: an unexpected array")
        size = self._no_sums().packed_size if kind == self._kind else self.width * (1 + self.has_cross)
        if array.dtype != np.int64 or array.shape != (self.groups, size):
            raise FormatError(f"{name}: {array.dtype} of shape {array.shape}; expected int64 of {(self.groups, size)}")
        if kind == "rows":
            self._totals[exponent] = array.copy()
            return
        sums = self._sums(exponent)
        sums.unpack(array)
        if sums.diagonal().min() < 0:
            raise FormatError(f"{name}: a sum of squares is negative")

    def __repr__(self) -> str:
        kind = "E[x x^T]" if self.has_gram else "E[x^2]"
        groups = f" in {self.groups} groups" if self.groups > 1 else ""
        return f"Moments({self.name!r}: {kind} of {self.width} inputs{groups}, {self.count} rows)"


def _natural(fields: dict[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int or value < 0:
        raise FormatError(f"{name}: {value!r}; expected a natural number")
    return value


def _integer_weights(given: Any, shape: tuple[int, ...]) -> Array:
    """Weights as multiples of 2^-16, int64, flat; floats, integers and booleans."""
    try:
        if cpu.is_torch_tensor(given) and not given.dtype.is_floating_point:
            weights = cpu.borrowed("weights", given)[0]
        else:
            weights = np.asarray(given)
        if weights.dtype.kind not in "iub":
            weights = cpu.as_float_array(given if cpu.is_torch_tensor(given) else weights, "weights").widened()
        weights = weights.astype(np.float64)
    except (ValueError, OverflowError) as error:
        raise InvalidProblem(f"weights: {error}") from None
    if weights.shape != shape:
        raise InvalidProblem(f"weights: shape {weights.shape}; expected one for each row, {shape}")
    good = (weights >= 0) & (weights <= _MOST_WEIGHT)
    if not good.all():
        raise InvalidProblem(f"weights: {weights[~good].flat[0]}; expected numbers from 0 to {_MOST_WEIGHT}")
    integers: Array = np.rint(weights.reshape(-1) * _ONE).astype(np.int64)
    return integers
