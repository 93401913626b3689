"""Calibrators: collect statistics of a stream of arrays, then compute params by any method for any dtype."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterable, Sized
from typing import Any, Literal

import numpy as np

from lowbit.calibration.cache import CalibrationCache
from lowbit.calibration.distribution import Distribution
from lowbit.calibration.methods import Adaptive, CalibrationMethod, Choice, MinMax, Percentile
from lowbit.calibration.scores import Target
from lowbit.calibration.sketch import Sketch
from lowbit.calibration.statistics import CalibrationStatistics, statistics_of
from lowbit.numerics.dtypes import DTypeLike, QuantizedDType
from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.schemes import QuantizationScheme
from lowbit.runtime.files.container import read_arrays, write_arrays

MethodLike = CalibrationMethod | str | Callable[[Distribution], tuple[float, float]]
SchemeLike = str | QuantizationScheme


class Calibrator:
    """Collects statistics of arrays in one pass and fixed memory, then gives params for any method and dtype.

    Ranges are per tensor; with `axis` per channel; with `group_size` per group along it. `name` names the tensor in
    errors. on_nonfinite="ignore" skips and counts NaN and Inf.

    >>> import lowbit as lb
    >>> c = lb.Calibrator("percentile", name="layer1.input")
    >>> for batch in np.random.default_rng(0).standard_normal((4, 1000)).astype(np.float32):
    ...     c.add(batch)
    >>> c.num_samples, c.count
    (4, 4000)
    >>> p = c.calibrate("int8")
    >>> c.calibrate("uint4", method="mse").zero_point
    array(8, dtype=int32)
    """

    def __init__(
        self,
        method: MethodLike = "adaptive",
        *,
        axis: int | None = None,
        group_size: int | None = None,
        name: str = "x",
        on_nonfinite: Literal["raise", "ignore"] = "raise",
        collect: Literal["all", "range"] = "all",
        bins: int | None = None,
        reservoir: int | None = None,
    ) -> None:
        self.method = CalibrationMethod.of(method)
        self.sketch = Sketch(
            axis, group_size, name=name, on_nonfinite=on_nonfinite, collect=collect, bins=bins, reservoir=reservoir
        )
        self.choices: list[Choice] = []  # how the last `calibrate` found each range
        self.from_cache = False  # whether the last `calibrate` found its answer in a cache

    def add(self, x: Any) -> None:
        """Add an array. Raises, and changes nothing, if it has NaN or Inf or does not fit."""
        self.sketch.add(x)

    def add_many(self, samples: Iterable[Any], progress: bool = False) -> None:
        """Add each array of an iterable; with a progress bar if rich is installed."""
        for i, x in enumerate(tracked(samples, f"Calibrating {self.name}", progress)):
            self.sketch.add(x, f"{self.name}[{i}]")

    def clear(self) -> None:
        """Forget all samples."""
        self.sketch = Sketch(**self.sketch.options)
        self.choices = []

    def merge(self, other: Calibrator | Sketch) -> None:
        """Add the statistics of another calibrator; the order of merges does not matter."""
        if not isinstance(other, Calibrator | Sketch):
            raise InvalidProblem(f"other: {type(other).__name__}; expected a Calibrator")
        self.sketch.merge(other.sketch if isinstance(other, Calibrator) else other)

    @property
    def _scope(self) -> dict[str, Any]:
        return {"axis": self.sketch.axis, "group_size": self.sketch.group_size}

    @property
    def name(self) -> str:
        return self.sketch.name

    @property
    def num_samples(self) -> int:
        """Arrays seen."""
        return self.sketch.num_samples

    @property
    def count(self) -> int:
        """Finite numbers seen."""
        return self.sketch.count

    @property
    def nbytes(self) -> int:
        """Memory in bytes, independent of the length of the stream."""
        return self.sketch.nbytes

    @property
    def fingerprint(self) -> str:
        """A fingerprint of the arrays seen, independent of their order."""
        return self.sketch.fingerprint

    def calibrate(
        self,
        dtype: DTypeLike = "int8",
        scheme: SchemeLike = "linear",
        *,
        method: MethodLike | None = None,
        qmin: int | None = None,
        qmax: int | None = None,
        full_range: bool = False,
        steps_per_octave: float | None = None,
        cache: CalibrationCache | str | os.PathLike[str] | None = None,
    ) -> QuantizationParams:
        """Params for the arrays seen. scheme "linear" is symmetric for signed dtypes and asymmetric for unsigned ones.

        `choices` then records how each range was chosen. A cache may hold the params of the same data, method and
        target; `from_cache` tells.
        """
        chosen = self.method if method is None else CalibrationMethod.of(method)
        template = _template(dtype, scheme, self._scope, qmin, qmax, steps_per_octave)
        chosen.check(template)
        self._require_samples(chosen, template)
        codes = (template.qmin, template.qmax) if (qmin, qmax) != (None, None) else None
        target = Target(template, full_range, self.sketch.is_wide, codes)
        store = CalibrationCache.of(cache)
        key = store.key(self.fingerprint, chosen, target, self._scope) if store is not None else None
        found = store.get(key) if store is not None and key is not None else None
        self.from_cache = found is not None
        if found is not None:
            self.choices = []
            return found
        params = self._derive(chosen, target)
        if store is not None and key is not None:
            store.put(key, params)
        return params

    def statistics(
        self, dtype: DTypeLike = "int8", scheme: SchemeLike = "linear", index: int = 0
    ) -> CalibrationStatistics:
        """Statistics, the error of each method at this dtype, and the recommended ones; with an axis, of one index."""
        template = _template(dtype, scheme, self._scope)
        self._require_samples(Adaptive(), template)
        return statistics_of(self.sketch, Target(template, wide=self.sketch.is_wide), index)

    def _require_samples(self, method: CalibrationMethod, template: QuantizationParams) -> None:
        if self.count == 0:
            seen = f"; {self.sketch.num_nonfinite} NaN and Inf were left out" if self.sketch.num_nonfinite else ""
            raise InvalidProblem(f"{self.name}: no samples{seen}")
        needs = method.needs_histogram or template.dtype.is_binary or 1 in template.dtype.widths
        if needs and self.sketch.collect == "range":
            raise InvalidProblem(f"{self.name}: only ranges were collected; {method.name} needs collect='all'")
        widths = template.dtype.widths
        if widths and self.sketch.shape != (len(widths),):
            raise InvalidProblem(
                f"dtype: {len(widths)} mixed channels; {self.name} was seen with scales of shape {self.sketch.shape}"
            )

    def _derive(self, method: CalibrationMethod, target: Target) -> QuantizationParams:
        shape = self.sketch.shape
        scope = self._scope
        p = target.template
        mean = None
        if p.dtype.is_binary or 1 in p.dtype.widths:
            each = [self.sketch.distribution(i).mean_abs for i in range(int(np.prod(shape)))]
            mean = np.asarray(each).reshape(shape)
        if isinstance(method, MinMax):
            lo, hi = self.sketch.ranges()
            self.choices = [Choice(float(a), float(b), method.name) for a, b in zip(lo.flat, hi.flat, strict=True)]
            return target.params(lo, hi, mean, **scope)
        self.choices = []
        for i in range(int(np.prod(shape))):
            d = self.sketch.distribution(i)
            if d.count == 0:
                raise InvalidProblem(f"{self.name}: no finite numbers for index {i} of axis {scope['axis']}")
            channel = target
            if p.dtype.widths:
                channel = Target(QuantizationParams(p.dtype.channel(i), p.scheme), target.full_range, target.wide)
            self.choices.append(method.choose(d, channel))
        lo, hi = (np.asarray([getattr(c, end) for c in self.choices]).reshape(shape) for end in ("lo", "hi"))
        return target.params(lo, hi, mean, **scope)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics, whole or not at all; `load` continues from them."""
        arrays, about = self.sketch.to_arrays()
        write_arrays(path, arrays, {"lowbit.calibrator": json.dumps({"method": self.method.name, "sketch": about})})

    @classmethod
    def load(cls, path: str | os.PathLike[str], method: MethodLike | None = None) -> Calibrator:
        """The calibrator that `save` wrote; it continues to the bit as if it had not been saved.

        Methods are saved by name; pass `method` for one with options, or a callable.
        """
        arrays, metadata = read_arrays(path)
        try:
            about = json.loads(metadata["lowbit.calibrator"])
            kept, sketch = about["method"], about["sketch"]
        except (KeyError, TypeError, ValueError):
            raise FormatError(f"{path}: not a calibrator") from None
        made = cls(kept if method is None and kept != "custom" else method or "adaptive")
        made.sketch = Sketch.from_arrays(arrays, sketch)
        return made

    @staticmethod
    def observe(model: Any, loader: Iterable[Any], **options: Any) -> dict[str, Calibrator]:
        """A calibrator for each tensor of a model, filled by running the model on the loader's batches.

        model: a torch.nn.Module (lowbit.torch.observe has the options), or an ONNX model or a path to one
        (lowbit.formats.onnx.observe).
        """
        is_module = any(t.__module__.startswith("torch.") and t.__name__ == "Module" for t in type(model).__mro__)
        # Named instead of imported: this package must not depend on torch or onnx.
        package = importlib.import_module("lowbit.torch" if is_module else "lowbit.formats.onnx")
        found: dict[str, Calibrator] = package.observe(model, loader, **options)
        return found

    def __repr__(self) -> str:
        return f"Calibrator({self.method!r}, {self.sketch!r})"


class PercentileCalibrator(Calibrator):
    """A calibrator that clips outliers: p percent of the numbers stay in range.

    >>> c = PercentileCalibrator(50.0)
    >>> c.add(np.linspace(0, 1, 1001, dtype=np.float32))
    >>> round(float(c.calibrate("uint8").scale) * 255, 2)
    0.75
    """

    def __init__(self, percentile: float = 99.99, **options: Any) -> None:
        super().__init__(Percentile(percentile), **options)


def calibrate(
    samples: Any,
    dtype: DTypeLike = "int8",
    method: MethodLike = "adaptive",
    *,
    scheme: SchemeLike = "linear",
    axis: int | None = None,
    group_size: int | None = None,
    name: str = "samples",
    on_nonfinite: Literal["raise", "ignore"] = "raise",
    cache: CalibrationCache | str | os.PathLike[str] | None = None,
    fingerprint: str | None = None,
    progress: bool = False,
    **options: Any,
) -> QuantizationParams:
    """Params for samples: an array, or an iterable of arrays of any shapes. Options: of `Calibrator.calibrate`.

    With a cache and a `fingerprint` that identifies the data, cached params are returned without reading the samples.

    >>> calibrate(np.float32([-1, 0.5]), "int8", "min_max").scale
    array(0.00787402, dtype=float32)
    >>> calibrate([np.float32([0.0, 1.0]), np.float32([[2.55]])], "uint8", "min_max")
    QuantizationParams(uint8, linear, scale=0.01, zero_point=0)
    """
    chosen = CalibrationMethod.of(method)
    scope = {"axis": axis, "group_size": group_size}
    template = _template(dtype, scheme, scope, *map(options.get, ("qmin", "qmax", "steps_per_octave")))
    chosen.check(template)
    store = CalibrationCache.of(cache)
    key = None
    if fingerprint is not None:
        if store is None or not fingerprint:
            raise InvalidProblem(f"fingerprint: {fingerprint!r}; it identifies data in a cache, and there is none")
        asked = {**scope, "options": repr(sorted({**options, "on_nonfinite": on_nonfinite}.items()))}
        key = store.key(fingerprint, chosen, Target(template), asked)
        found = store.get(key) if key is not None else None
        if found is not None:
            return found
    light = isinstance(chosen, MinMax) and on_nonfinite == "raise" and cache is None
    light = light and not (template.dtype.is_binary or 1 in template.dtype.widths)
    c = Calibrator(chosen, **scope, name=name, on_nonfinite=on_nonfinite, collect="range" if light else "all")
    if hasattr(samples, "shape") or hasattr(samples, "__dlpack__"):
        c.add(samples)
    elif isinstance(samples, str | bytes) or not isinstance(samples, Iterable):
        raise InvalidProblem(f"{name}: {type(samples).__name__}; expected an array or an iterable of arrays")
    else:
        c.add_many(samples, progress)
    params = c.calibrate(dtype, scheme, cache=store if key is None else None, **options)
    if store is not None and key is not None:
        store.put(key, params)
    return params


def _template(
    dtype: DTypeLike, scheme: SchemeLike, scope: dict[str, Any], qmin: Any = None, qmax: Any = None, steps: Any = None
) -> QuantizationParams:
    """Params of the target without scales; raises for an unsupported combination."""
    kind, wanted = QuantizedDType.of(dtype), QuantizationScheme.of(scheme)
    if wanted is QuantizationScheme.ASYMMETRIC and (kind.is_binary or kind.is_mixed):
        raise InvalidProblem(f"scheme: asymmetric; {kind} codes are symmetric")
    if wanted in (QuantizationScheme.CHANNEL_WISE, QuantizationScheme.BLOCK_WISE):
        needs = "axis" if wanted is QuantizationScheme.CHANNEL_WISE else "group_size"
        if scope[needs] is None:
            raise InvalidProblem(f"scheme: {wanted} needs the calibrator to have {needs}")
        wanted = QuantizationScheme.LINEAR
    axis = scope["axis"] if kind.is_mixed else None
    return QuantizationParams(kind, wanted, axis=axis, qmin=qmin, qmax=qmax, steps_per_octave=steps)


def tracked(samples: Iterable[Any], title: str, progress: bool) -> Iterable[Any]:
    """The samples, with a progress bar if stderr is a terminal and rich is installed."""
    if not progress:
        return samples
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return samples
    console = Console(stderr=True)
    if not console.is_terminal:
        return samples
    length = len(samples) if isinstance(samples, Sized) else None
    return track(samples, title, total=length, transient=True, console=console)
