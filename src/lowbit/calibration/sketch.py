"""Sketches: statistics of a stream of arrays in fixed memory: counts, moments, a histogram, and a sample.

A sketch depends only on the set of arrays it has seen: not on their order, the number of threads, merges, saves or
loads. `core/drivers/sketch.h` says why.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any, Literal

import numpy as np

from lowbit.calibration.distribution import Distribution
from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.numerics.granularity import Granularity, granularity_of
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise
from lowbit.runtime.files.container import read_arrays, write_arrays
from lowbit.runtime.native import core

_ONE = (4096, 3072)  # bins and reservoir of a sketch of one distribution
_SOME = (1024, 256)  # of up to _MANY
_MANY = 8192
_MORE = (256, 64)
_MOST_MEMORY = 2 << 30
_VERSION = 1
Element = core.Element
_GRAINS = {Element.f32: 0, Element.f64: 0, Element.f16: 13, Element.bf16: 16}  # float32 bits left unused


class Sketch:
    """Statistics of a stream of arrays: per tensor, per channel with `axis`, or per group along it.

    Takes float32, float64, float16 and bfloat16 arrays of any shape (with `axis` of one size along it, with
    `group_size` of one shape). Memory is fixed: 61 KB for one distribution, 14 KB each for up to 8,192, 6 KB each for
    more. Histograms have a relative resolution of 1/64 (1/16, 1/4), over 30 octaves below the greatest number; data
    of a smaller range is resolved more finely. float64 numbers are rounded to float32 for the histogram.

    on_nonfinite: "raise" rejects an array with NaN or Inf, naming the first; "ignore" skips and counts such values.
    collect: "range" collects only minimum and maximum, at memory speed.

    >>> s = Sketch()
    >>> s.add(np.float32([1, 2, 4])), s.add(np.float32([[-8]]))
    (None, None)
    >>> d = s.distribution()
    >>> d.count, d.lo, d.hi, d.mean
    (4, -8.0, 4.0, -0.25)
    """

    def __init__(
        self,
        axis: int | None = None,
        group_size: int | None = None,
        *,
        name: str = "x",
        on_nonfinite: Literal["raise", "ignore"] = "raise",
        collect: Literal["all", "range"] = "all",
        bins: int | None = None,
        reservoir: int | None = None,
    ) -> None:
        if on_nonfinite not in ("raise", "ignore"):
            raise InvalidProblem(f"on_nonfinite: {on_nonfinite!r}; expected 'raise' or 'ignore'")
        if collect not in ("all", "range"):
            raise InvalidProblem(f"collect: {collect!r}; expected 'all' or 'range'")
        if collect == "range" and on_nonfinite == "ignore":
            raise InvalidProblem("collect: 'range' cannot leave values out; use 'all' with on_nonfinite='ignore'")
        for field, value in (("axis", axis), ("group_size", group_size)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise InvalidProblem(f"{field}: {value!r}; expected an integer")
        if group_size is not None and axis is None:
            raise InvalidProblem(f"group_size: {group_size} needs an axis")
        if group_size is not None and group_size < 1:
            raise InvalidProblem(f"group_size: {group_size}; expected at least 1")
        for field, size, least in (("bins", bins, 128), ("reservoir", reservoir, 0)):
            if size is not None and (not isinstance(size, int) or size < least or size > 1 << 20 or size % 2):
                raise InvalidProblem(f"{field}: {size!r}; expected an even number from {least} to {1 << 20}")
        self.axis, self.group_size, self.name = axis, group_size, name
        self.on_nonfinite, self.collect = on_nonfinite, collect
        self._sizes = (bins, reservoir)
        self._native: core.Sketches | None = None
        self.shape: tuple[int, ...] = ()  # of the distributions; () for one
        self._axis_size: int | None = None
        self.is_wide = False  # whether float64 arrays were among those seen
        self._grain = 16  # bits of a float32 that no array seen has used

    def add(self, x: Any, name: str | None = None) -> None:
        """Add an array. Raises, and changes nothing, for one that does not fit or is not finite."""
        floats = cpu.as_float_array(x, name or self.name)
        g = granularity_of(floats.shape, self.axis, self.group_size)
        native = self._native_for(g, floats.shape, name)
        bad = native.add(floats.array, floats.element, elementwise.granularity(g), self.on_nonfinite == "ignore")
        if bad and self.on_nonfinite == "raise":
            cpu.refuse_nonfinite(floats, name or self.name)
        self.is_wide = self.is_wide or floats.element is Element.f64
        self._grain = min(self._grain, _GRAINS[floats.element])
        self.__dict__.pop("_arrays", None)

    def merge(self, other: Sketch) -> None:
        """Add the statistics of another sketch."""
        if not isinstance(other, Sketch):
            raise InvalidProblem(f"other: {type(other).__name__}; expected a Sketch")
        if other is self:
            raise InvalidProblem("other: the sketch itself")
        mine = (self.axis, self.group_size, self.collect, self._sizes)
        if mine != (other.axis, other.group_size, other.collect, other._sizes):
            raise InvalidProblem(f"other: {other!r} does not fit {self!r}")
        if other._native is None:
            return
        if self._native is None:
            self.shape, self._axis_size = other.shape, other._axis_size
            self._native = core.Sketches(other._native.scales, other._native.bins, other._native.reservoir)
        if self.shape != other.shape:
            raise InvalidProblem(f"other: scales of shape {other.shape}; expected {self.shape}")
        self._native.merge(other._native)
        self.is_wide, self._grain = self.is_wide or other.is_wide, min(self._grain, other._grain)
        self.__dict__.pop("_arrays", None)

    def _native_for(self, g: Granularity, shape: tuple[int, ...], name: str | None) -> core.Sketches:
        if self._native is not None:
            if g.scale_shape != self.shape or (self.group_size is not None and g.axis != self._axis_size):
                raise InvalidProblem(
                    f"{name or self.name}: shape {shape} has scales of shape {g.scale_shape}; "
                    f"those before had {self.shape}"
                )
            return self._native
        scales = int(np.prod(g.scale_shape))
        if scales == 0:
            raise InvalidProblem(f"{name or self.name}: shape {shape} has nothing along axis {self.axis}")
        default = _ONE if scales == 1 else _SOME if scales <= _MANY else _MORE
        bins, reservoir = (d if s is None else s for s, d in zip(self._sizes, default, strict=True))
        if self.collect == "range":
            bins = reservoir = 0
        each = 8 * bins + 8 * reservoir + 8 * core.sketch_moments * core.sketch_limbs
        if scales * each > _MOST_MEMORY:
            raise InvalidProblem(
                f"{name or self.name}: {scales} sketches of {each} bytes; expected at most {_MOST_MEMORY} in all "
                "(a larger group_size, or fewer bins)"
            )
        self._native = core.Sketches(scales, bins, reservoir)
        self.shape, self._axis_size = g.scale_shape, g.axis
        return self._native

    @property
    def nbytes(self) -> int:
        """Memory in bytes; it does not grow with the stream."""
        return 0 if self._native is None else self._native.nbytes

    @property
    def num_samples(self) -> int:
        """Arrays with at least one finite number."""
        return 0 if self._native is None else int(self._arrays["counters"][:, 2].max())

    @property
    def count(self) -> int:
        """Finite numbers seen."""
        return 0 if self._native is None else int(self._arrays["counters"][:, 0].sum())

    @property
    def num_nonfinite(self) -> int:
        """NaN and Inf skipped."""
        return 0 if self._native is None else int(self._arrays["counters"][:, 3:6].sum())

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the arrays seen, independent of their order: equal data has equal fingerprints."""
        if self._native is None or self.collect == "range":
            return ""
        words = self._arrays["counters"][:, [0, 6, 7]].reshape(-1)
        mixed = np.bitwise_xor.reduce(words * np.arange(1, 2 * words.size, 2, dtype=np.uint64))
        return "".join(f"{int(w):016x}" for w in (words[1], words[2], mixed))

    def distribution(self, index: int = 0) -> Distribution:
        """One of the distributions, counted along `shape` in order."""
        if self._native is None:
            raise InvalidProblem(f"{self.name}: no samples yet")
        if not 0 <= index < self._native.scales:
            raise InvalidProblem(f"index: {index}; expected 0 to {self._native.scales - 1}")
        own = {field: array[index] for field, array in self._arrays.items() if field != "priorities"}
        return Distribution(**own, layout=self._native.bin_layout(index), grain=self._grain)

    def ranges(self) -> tuple[Array, Array]:
        """Least and greatest of each distribution, in float64."""
        extremes = self._arrays["extremes"]
        return extremes[:, 0].reshape(self.shape), extremes[:, 1].reshape(self.shape)

    @functools.cached_property
    def _arrays(self) -> dict[str, Array]:
        if self._native is None:
            raise InvalidProblem(f"{self.name}: no samples yet")
        layout = _layout(self._native.scales, self._native.bins, self._native.reservoir)
        arrays: dict[str, Array] = {field: np.zeros(shape, dtype) for field, (shape, dtype) in layout.items()}
        self._native.state(*_parts(arrays))
        return arrays

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that make an empty sketch like this one."""
        plain = {name: getattr(self, name) for name in ("axis", "group_size", "name", "on_nonfinite", "collect")}
        return plain | dict(zip(("bins", "reservoir"), self._sizes, strict=True))

    def to_arrays(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """The state as arrays and as JSON, for `from_arrays`."""
        native = self._native
        return {} if native is None else dict(self._arrays), {
            "version": _VERSION, "axis": self.axis, "group_size": self.group_size, "name": self.name,
            "on_nonfinite": self.on_nonfinite, "collect": self.collect, "sizes": list(self._sizes),
            "shape": list(self.shape), "axis_size": self._axis_size, "wide": self.is_wide, "grain": self._grain,
            "native": None if native is None else [native.scales, native.bins, native.reservoir],
        }  # fmt: skip

    @classmethod
    def from_arrays(cls, arrays: dict[str, Array], about: dict[str, Any]) -> Sketch:
        """The sketch of `to_arrays`; raises FormatError for anything else."""
        try:
            if about["version"] != _VERSION:
                raise FormatError(f"version: {about['version']!r}; this lowbit reads {_VERSION}")
            bins, reservoir = about["sizes"]
            options = {k: about[k] for k in ("axis", "group_size", "on_nonfinite", "collect")}
            made = cls(name=str(about["name"]), bins=bins, reservoir=reservoir, **options)
            made.shape = tuple(int(n) for n in about["shape"])
            made._axis_size, made.is_wide, made._grain = about["axis_size"], bool(about["wide"]), int(about["grain"])
            if about["native"] is not None:
                made._restore(arrays, about["native"])
        except FormatError:
            raise
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise FormatError(f"not a sketch: {error}") from None
        return made

    def _restore(self, arrays: dict[str, Array], sizes: list[int]) -> None:
        scales, bins, kept = (int(n) for n in sizes)
        if scales != int(np.prod(self.shape)) or scales < 1 or not (bins == 0 or bins >= 128) or kept < 0:
            raise FormatError(f"sizes: {sizes}; not those of a sketch of shape {self.shape}")
        given: dict[str, Array] = {}
        for field, (shape, dtype) in _layout(scales, bins, kept).items():
            a = arrays[field]
            if a.shape != shape or a.dtype.name != dtype:
                raise FormatError(f"{field}: {a.dtype} of shape {a.shape}; expected {dtype} of shape {shape}")
            given[field] = np.array(a, order="C")  # of their own, and writable
        seen = given["counters"][:, 0]
        if bins and (given["counts"].sum(1) != seen).any():
            raise FormatError("counts: they do not add up to the number of values")
        if not np.isfinite(given["extremes"][seen > 0]).all():
            raise FormatError("extremes: not finite")
        if not (np.isfinite(given["values"]).all() and np.isfinite(given["tails"]).all()):
            raise FormatError("values, tails: not finite")
        self._native = core.Sketches(scales, bins, kept)
        self._native.restore(*_parts(given))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the sketch, whole or not at all: a safetensors file with JSON in its header."""
        arrays, about = self.to_arrays()
        write_arrays(path, arrays, {"lowbit.sketch": json.dumps(about)})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sketch:
        """The sketch that `save` wrote; it continues to the bit as if it had not been saved."""
        arrays, metadata = read_arrays(path)
        try:
            about = json.loads(metadata["lowbit.sketch"])
        except (KeyError, ValueError):
            raise FormatError(f"{path}: not a sketch") from None
        return cls.from_arrays(arrays, about)

    def __getstate__(self) -> dict[str, Any]:
        return dict(zip(("arrays", "about"), self.to_arrays(), strict=True))

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(Sketch.from_arrays(state["arrays"], state["about"]).__dict__)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sketch):
            return NotImplemented
        mine, theirs = self.to_arrays(), other.to_arrays()
        return mine[1] == theirs[1] and all(np.array_equal(v, theirs[0][k]) for k, v in mine[0].items())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        scope = "" if self.axis is None else f", axis={self.axis}"
        scope += "" if self.group_size is None else f", group_size={self.group_size}"
        return f"Sketch({self.name!r}{scope}: {self.count} numbers in {self.num_samples} samples)"


def _layout(scales: int, bins: int, kept: int) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and dtype of each array of the state."""
    return {
        "counters": ((scales, core.sketch_counters), "uint64"), "extremes": ((scales, 2), "float64"),
        "limbs": ((scales, core.sketch_moments, core.sketch_limbs), "int64"), "counts": ((scales, bins), "uint64"),
        "priorities": ((scales, kept), "uint32"), "values": ((scales, kept), "float32"),
        "tails": ((scales, 2, core.sketch_tail if bins else 0), "float32"),
    }  # fmt: skip


def _parts(arrays: dict[str, Array]) -> tuple[core.SketchTotals, core.SketchSamples]:
    totals = core.SketchTotals(*(arrays[field] for field in ("counters", "extremes", "limbs")))
    return totals, core.SketchSamples(*(arrays[field] for field in ("counts", "priorities", "values", "tails")))
