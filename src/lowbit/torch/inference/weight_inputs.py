"""Statistics of the inputs of weights: ranges and second moments, collected in as few passes as memory allows."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lowbit.calibration import Calibrator, Moments
from lowbit.models.weights import LayerInputs, needs_of
from lowbit.numerics.errors import InvalidProblem
from lowbit.torch.inference.batches import Inputs, calibrating, run_on_all
from lowbit.torch.inference.layer_rows import RowShape, products_of
from lowbit.torch.inference.moments import MomentCollector, product_name
from lowbit.torch.inference.selection import Candidate
from torch import nn

Stats = Mapping[str, Moments]

_MOST_BYTES = 2 << 30  # of the moments that one pass collects
_BYTES = {"gram": 12, "diagonal": 24}  # for each element, where three exponents are seen
_UNREACHED = "no calibration batch reached it"
_ABSENT = "no statistics of its inputs"


class WeightInputs:
    """Ranges and moments of the inputs of candidates. Each candidate's moments are handed out once, and then freed.

    Layers are observed in groups whose moments fit memory, each group in a pass of its own when its first candidate is
    asked for. The first pass finds the ranges as well.
    """

    def __init__(
        self,
        model: nn.Module,
        candidates: Sequence[Candidate],
        stats: Stats | None,
        batches: Iterable[Any] | None,
        again: Iterable[Any] | None,
        inputs: Inputs | None,
        progress: bool,
    ) -> None:
        """stats: moments that were observed before, which are taken first. batches: to observe the others in. again:
        the same batches, to be read another time; None where they can be read once."""
        self._model, self._stats, self._inputs, self._progress = model, stats or {}, inputs, progress
        self._next, self._again = batches, again
        self._found: dict[str, Moments] = {}
        self._few: list[str] = []
        self._last: tuple[weakref.ref[Moments], bool, LayerInputs] | None = None
        wanted = {c.source.name: (c.source.module, needs_of(c.rule.weights) == "gram") for c in candidates if c.needs}
        self._refuse_others(candidates)
        missing = {name: each for name, each in wanted.items() if not self._is_given(name, each[0])}
        self._groups = _groups(missing) if batches is not None else []
        if len(self._groups) > 1 and again is None:
            total = sum(map(_nbytes, missing.values())) / 1e9
            raise InvalidProblem(
                f"calibration: it can be read once, and statistics of all layers take about {total:.1f} GB; expected "
                "batches that can be read again, such as a list or a DataLoader, to observe some layers at a time"
            )
        static = {c.source.name: c.source.module for c in candidates if c.is_static}
        self._calibrators = {name: Calibrator("adaptive", name=name or "model") for name in static}
        self._watched = {module: self._calibrators[name] for name, module in static.items()}
        if batches is not None and (static or self._groups):
            self._observe(self._groups.pop(0) if self._groups else {})

    @property
    def ranges(self) -> dict[str, Calibrator]:
        """By the names of the modules with static inputs, of those that a batch reached."""
        return {name: c for name, c in self._calibrators.items() if c.num_samples}

    def of(self, candidate: Candidate) -> dict[str, LayerInputs]:
        """Statistics of the inputs of each product of the candidate, by the product's name; "" where it is one."""
        if not candidate.needs:
            return {}
        name, found = candidate.source.name, {}
        while any(name in group for group in self._groups):
            self._observe(self._groups.pop(0))
        for product, shape in products_of(candidate.source.module).items():
            full = product_name(name, product)
            moments = self._found.pop(full, None)
            if moments is None and (key := self._key(full)) is not None:
                moments = self._stats[key]
                _check(key, moments, shape)
            if moments is not None:
                found[product] = self._shared(moments, has_bias(candidate.source.module))
                if moments.has_gram and moments.count < moments.width:
                    self._few.append(f"{full or 'the model'}: {moments.width} inputs, {moments.count} rows")
        return found

    @property
    def too_few(self) -> str:
        """What it means that layers, of those whose inputs were handed out, have more inputs than rows of data."""
        if not self._few:
            return ""
        which = "1 layer has" if len(self._few) == 1 else f"{len(self._few)} layers have"
        return (
            f"{which} more inputs than rows of data ({self._few[0]}): weights fit the noise of few rows, and other "
            "inputs are multiplied with a larger error; give more data"
        )

    def _shared(self, moments: Moments, centered: bool) -> LayerInputs:
        """What layers that share moments share, so that it is factored once."""
        if self._last is None or self._last[0]() is not moments or self._last[1] != centered:
            self._last = weakref.ref(moments), centered, LayerInputs(moments, centered=centered)
        return self._last[2]

    def missing(self, candidate: Candidate) -> str:
        """Why the inputs of a candidate may be unknown; empty where no data were given."""
        if self._next is None and not self._stats:
            return ""
        return _ABSENT if products_of(candidate.source.module).keys() != {""} or self._next is None else _UNREACHED

    def _observe(self, group: Mapping[str, tuple[nn.Module, bool]]) -> None:
        assert self._next is not None
        collector = MomentCollector(group)
        with calibrating(self._watched), collector.listening():
            run_on_all(self._model, self._next, self._inputs, "Calibrating", self._progress, collector.begin)
        self._found |= collector.result()
        self._watched = {}
        self._next = self._again if self._again is not None else ()

    def _key(self, full: str) -> str | None:
        """Under which name the statistics have a layer: its module's, or its weight's."""
        return next((key for key in (full, f"{full}.weight".lstrip(".")) if key in self._stats), None)

    def _is_given(self, name: str, module: nn.Module) -> bool:
        return all(self._key(product_name(name, product)) is not None for product in products_of(module))

    def _refuse_others(self, candidates: Sequence[Candidate]) -> None:
        """Raise where the statistics given are of none of the layers that need them."""
        needing = [c for c in candidates if c.needs]
        named = [product_name(c.source.name, product) for c in needing for product in products_of(c.source.module)]
        if self._stats and named and all(self._key(name) is None for name in named):
            raise InvalidProblem(
                f"stats: of {len(self._stats)} layers such as {next(iter(self._stats))!r}; expected names of the "
                f"model's, such as {named[0]!r}"
            )


def has_bias(module: nn.Module) -> bool:
    """Whether a layer's bias can be corrected: a convolution gets one where it has none, a linear layer does not."""
    return type(module) in (nn.Conv1d, nn.Conv2d) or (type(module) is nn.Linear and module.bias is not None)


def _groups(wanted: Mapping[str, tuple[nn.Module, bool]]) -> list[dict[str, tuple[nn.Module, bool]]]:
    """Neighbours whose moments fit memory together, by a bound of their size: layers may share moments."""
    groups: list[dict[str, tuple[nn.Module, bool]]] = []
    room = 0
    for name, each in wanted.items():
        size = _nbytes(each)
        if size > room:
            groups.append({})
            room = _MOST_BYTES
        groups[-1][name] = each
        room -= size
    return groups


def _nbytes(each: tuple[nn.Module, bool]) -> int:
    module, gram = each
    per = _BYTES["gram" if gram else "diagonal"]
    return sum(per * shape.groups * shape.width ** (1 + gram) for shape in set(products_of(module).values()))


def _check(key: str, moments: Any, shape: RowShape) -> None:
    if not isinstance(moments, Moments):
        raise InvalidProblem(f"stats: {key!r} is a {type(moments).__name__}; expected Moments, as of observe_moments")
    if (moments.width, moments.groups) != (shape.width, shape.groups):
        raise InvalidProblem(
            f"stats: {key!r} has moments of {moments.groups} × {moments.width} inputs; the layer has "
            f"{shape.groups} × {shape.width}"
        )
