"""`observe_moments`: exact second moments of the inputs of a model's layers, in one pass over batches.

Layers that are given the same tensor in every call, such as the projections of an attention, share their moments: a
tensor is added when all of them have been called on it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from lowbit.calibration import Moments
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.arrays import as_float_array, first_nonfinite
from lowbit.torch.inference.batches import Inputs, run_on_all
from lowbit.torch.inference.layer_rows import RowShape, inputs_of_products, lead_of, products_of, rows_of
from torch import Tensor, nn

Weights = str | Callable[[Any], Any]


def observe_moments(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    inputs: Inputs | None = None,
    modules: Callable[[str, nn.Module], bool] | None = None,
    gram: bool = True,
    weights: Weights | None = None,
    progress: bool = True,
) -> dict[str, Moments]:
    """Second moments of what each Linear, Conv1d and Conv2d multiplies, by module name, for `quantize(..., stats=...)`.

    Equal inputs of the layers give equal bits, whatever the order of the batches. gram: collect E[x x^T], about
    4 * width^2 bytes a layer and more where magnitudes differ; False: E[x^2] only. Rows of a convolution are its
    patches, in moments of its groups. The products of an LSTM, GRU or MultiheadAttention by its inputs have names such
    as `lstm.ih_l0` and `attention.q_proj`. Layers that always share an input share one Moments object. The model keeps
    its mode. The result omits layers that no batch reached.

    loader, inputs: batches, and which elements are arguments (see `quantize`). modules: selects modules, by name and
    module. weights: how much each row counts: a function of a batch, or a key of it, giving a tensor of the leading
    dimensions of the inputs, such as an attention mask, so that padding does not count, or numbers that give the first
    token of each text more weight. Where inputs have other leading dimensions, each row counts 1.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> found = observe_moments(model, [torch.tensor([[1.0, 2.0], [3.0, -4.0]])], progress=False)
    >>> found["0"].gram()
    array([[ 5., -5.],
           [-5., 10.]])
    >>> mask = torch.tensor([0.0, 1.0])
    >>> observe_moments(model, [(torch.ones(2, 2), mask)], weights=lambda batch: batch[1], progress=False)["2"].count
    1
    """
    if not isinstance(model, nn.Module):
        raise InvalidProblem(f"model: {type(model).__name__}; expected a torch.nn.Module")
    named = model.named_modules()
    found = {name: (m, gram) for name, m in named if products_of(m) and (modules is None or modules(name, m))}
    if not found:
        raise InvalidProblem("model: no layer to observe in it; expected a Linear, Conv1d or Conv2d, for example")
    collector = MomentCollector(found, weights)
    with collector.listening():
        run_on_all(model, loader, inputs, "Observing", progress, collector.begin)
    return collector.result()


@dataclass(frozen=True)
class _Seen:
    """A tensor, as it was when a layer took it. Changes of tensors made in inference mode leave no trace: none is known
    to be what it was."""

    tensor: weakref.ref[Tensor]
    version: int

    @classmethod
    def of(cls, x: Tensor) -> _Seen:
        return cls(weakref.ref(x), _version(x))

    def is_still(self, x: Tensor) -> bool:
        return self.tensor() is x and self.version == _version(x) and not x.is_inference()


@dataclass(eq=False)
class _Shared:
    """Moments, and the layers that were given the same tensors so far."""

    moments: Moments
    shape: tuple[RowShape, bool]
    members: set[str]
    calls: int = 0
    last: _Seen | None = None
    pending: Tensor | None = None  # a copy of `last`, not added until every member is called on it
    pending_weights: Tensor | None = None
    called: set[str] = field(default_factory=set)


class MomentCollector:
    """Collects the moments of layers while a model runs: `begin` each batch and call the model, inside `listening`."""

    def __init__(self, modules: Mapping[str, tuple[nn.Module, bool]], weights: Weights | None = None) -> None:
        """modules: by name, with whether E[x x^T] is wanted."""
        self._modules = {module: name for name, (module, _) in modules.items()}
        self._layers: dict[str, tuple[nn.Module, tuple[RowShape, bool]]] = {}
        for name, (module, gram) in modules.items():
            for product, shape in products_of(module).items():
                self._layers[product_name(name, product)] = module, (shape, gram)
        self._weights = weights
        self._weight: Tensor | None = None
        self._shared: dict[str, _Shared] = {}  # by the names of layers
        self._batch = -1

    @contextmanager
    def listening(self) -> Iterator[None]:
        handles = [m.register_forward_pre_hook(self._hook, with_kwargs=True) for m in self._modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self._settle()

    def begin(self, batch: Any) -> None:
        """Take the weights of the next batch."""
        self._settle()
        self._batch += 1
        self._weight = None if self._weights is None else _weights_of(batch, self._weights)

    def result(self) -> dict[str, Moments]:
        """The moments by name, of layers that were reached."""
        return {name: self._shared[name].moments for name in self._layers if name in self._shared}

    def _hook(self, module: nn.Module, given: Any, keywords: dict[str, Any]) -> None:
        for product, x in inputs_of_products(module, given, keywords):
            self._note(product_name(self._modules[module], product), x)

    def _note(self, name: str, x: Tensor) -> None:
        shared = self._shared.get(name)
        if shared is None:
            shared = self._joined(name, x)
            if name in shared.called:
                return
        elif shared.pending is not None:
            assert shared.last is not None
            if name not in shared.called and shared.last.is_still(x):
                shared.called.add(name)
                if shared.called == shared.members:
                    self._add_pending(shared)
                return
            shared = self._split(shared)[name]
        shared.calls += 1
        shared.last, shared.called = _Seen.of(x), {name}
        if len(shared.members) == 1:
            self._add(shared, x, self._weight)
        else:
            shared.pending, shared.pending_weights = x.detach().clone(), self._weight

    def _joined(self, name: str, x: Tensor) -> _Shared:
        """What a layer that is called for the first time has alone, or shares: then it is in `called`."""
        wanted = self._layers[name][1]
        for other in self._shared.values():
            if other.shape == wanted and other.calls == 1 and other.last is not None and other.last.is_still(x):
                other.members.add(name)
                other.called.add(name)
                self._shared[name] = other
                return other
        shape, gram = wanted
        made = Moments(shape.width, gram=gram, groups=shape.groups, name=name or "model")
        self._shared[name] = _Shared(made, wanted, {name})
        return self._shared[name]

    def _split(self, shared: _Shared) -> dict[str, _Shared]:
        """Part the members that were called on the pending tensor from those that were not."""
        m = shared.moments
        others = shared.members - shared.called
        name = min(others)
        copied = Moments(m.width, gram=m.has_gram, groups=m.groups, name=name)
        copied.merge(m)
        apart = _Shared(copied, shared.shape, others, shared.calls)
        self._shared |= dict.fromkeys(others, apart)
        shared.members = set(shared.called)
        self._add_pending(shared)
        return self._shared

    def _settle(self) -> None:
        for shared in set(self._shared.values()):
            if shared.pending is not None:
                self._split(shared)
            shared.last = None  # the next batch may give the same tensor other weights

    def _add_pending(self, shared: _Shared) -> None:
        assert shared.pending is not None
        x, weights = shared.pending, shared.pending_weights
        shared.pending = shared.pending_weights = None
        self._add(shared, x, weights)

    def _add(self, shared: _Shared, x: Tensor, weights: Tensor | None) -> None:
        name = min(shared.members)
        module, x = self._layers[name][0], x.detach()
        try:
            for rows, weight in rows_of(module, x, _fitting(weights, lead_of(module, x))):
                shared.moments.add(rows, weight)
        except InvalidProblem as error:
            found = first_nonfinite(as_float_array(x)) if weights is None else None
            bad = f"{name or 'model'}: {found[0]} at index {found[1]}; moments need finite numbers" if found else error
            raise InvalidProblem(f"batch {self._batch}, input of {bad}") from None


def product_name(name: str, product: str) -> str:
    """The name of the moments of a module's product (see `products_of`)."""
    return ".".join(filter(None, (name, product)))


def _version(x: Tensor) -> int:
    return -1 if x.is_inference() else x._version


def _weights_of(batch: Any, weights: Weights) -> Tensor:
    if callable(weights):
        found = weights(batch)
    elif isinstance(batch, Mapping) and weights in batch:
        found = batch[weights]
    else:
        has = ", ".join(map(repr, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        raise InvalidProblem(f"weights: {weights!r}; a batch has {has}")
    return torch.as_tensor(found)


def _fitting(weights: Tensor | None, lead: torch.Size) -> Tensor | None:
    """Weights of rows with these leading dimensions, which further ones share, or which are flat; None where they do
    not fit."""
    if weights is None:
        return None
    if weights.shape == lead[: weights.ndim]:
        return weights.reshape(*weights.shape, *(1,) * (len(lead) - weights.ndim)).expand(lead)
    return weights.reshape(lead) if len(lead) == 1 and weights.numel() == lead[0] else None
