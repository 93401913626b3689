"""Run a model on batches: its inputs in one, the tensors that its modules take, and calibrators of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.nn.utils.rnn import PackedSequence

import torch
from lowbit.calibration import Calibrator
from lowbit.calibration.calibrator import MethodLike, tracked
from lowbit.numerics.errors import InvalidProblem
from torch import Tensor, nn

Inputs = int | str | Sequence[int] | Sequence[str]

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d)
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def inputs_of(model: nn.Module, batch: Any, inputs: Inputs | None = None) -> tuple[Any, ...] | dict[str, Any]:
    """The model's arguments in a batch: a tuple of positional ones, or a dict of keywords.

    inputs: an index or a key for the only argument, a sequence of indices for positional arguments, or of keys for
    keywords. By default a mapping gives keywords, and a tuple or list positional arguments; where `forward` takes one
    argument, that is the first element, as in (x, label). Anything else is the only argument.

    >>> inputs_of(nn.Linear(2, 2), ("x", "label"))
    ('x',)
    >>> inputs_of(nn.Linear(2, 2), {"image": "x", "label": 3}, "image")
    ('x',)
    """
    if inputs is not None:
        return _chosen(batch, inputs)
    if not isinstance(batch, Mapping | tuple | list):
        return (batch,)
    parameters = inspect.signature(model.forward).parameters
    kinds, names = [p.kind for p in parameters.values()], ", ".join(parameters)
    if isinstance(batch, Mapping):
        unknown = [key for key in batch if key not in parameters]
        if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise InvalidProblem(
                f"batch: the key {unknown[0]!r}, which forward does not take ({names}); choose keys with "
                "inputs=['image']"
            )
        return dict(batch)
    takes = sum(kind in _POSITIONAL for kind in kinds)
    if inspect.Parameter.VAR_POSITIONAL in kinds or len(batch) <= takes:
        return tuple(batch)
    if takes == 1:
        return (batch[0],)
    raise InvalidProblem(
        f"batch: {len(batch)} elements; forward takes {takes} ({names}); choose some with inputs=(0, 1)"
    )


def call_on(model: nn.Module, batch: Any, inputs: Inputs | None = None) -> Any:
    """Call the model on its inputs in a batch."""
    given = inputs_of(model, batch, inputs)
    return model(**given) if isinstance(given, dict) else model(*given)


@contextmanager
def first_tensors(
    modules: Iterable[nn.Module], note: Callable[[nn.Module, Tensor], None], outputs: bool = False
) -> Iterator[None]:
    """Call note(module, x) where x, the first argument or the output of a call of one of these modules, is a tensor, or
    the rows of a packed sequence."""

    def hook(module: nn.Module, given: Any, keywords: dict[str, Any], result: Any = None) -> None:
        x = result if outputs else next(iter((*given, *keywords.values())), None)
        x = x.data if isinstance(x, PackedSequence) else x
        if isinstance(x, Tensor):
            note(module, x)

    handles = [
        (m.register_forward_hook if outputs else m.register_forward_pre_hook)(hook, with_kwargs=True) for m in modules
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def observe(
    model: nn.Module,
    loader: Iterable[Any],
    *,
    inputs: Inputs | None = None,
    modules: Callable[[str, nn.Module], bool] | None = None,
    outputs: bool = False,
    method: MethodLike = "adaptive",
    axis: int | None = None,
    progress: bool = True,
    **options: Any,
) -> dict[str, Calibrator]:
    """A calibrator for the input of each Linear, Conv1d and Conv2d, by name; memory does not grow with the loader.

    loader: batches. inputs: which elements of a batch are the model's arguments (see `lowbit.torch.quantize`). modules:
    selects other modules, by name and module. outputs: observe outputs instead of inputs. axis and other options are
    those of Calibrator. The model keeps its mode and runs without gradients. The result omits modules that no batch
    reached.

    >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> found = observe(model, [torch.ones(2, 4), torch.zeros(5, 4)], progress=False)
    >>> {name: c.count for name, c in found.items()}
    {'0': 28, '2': 21}
    """
    if not isinstance(model, nn.Module):
        raise InvalidProblem(f"model: {type(model).__name__}; expected a torch.nn.Module")
    chosen = modules or (lambda _, module: isinstance(module, _LAYERS))
    watched = {name: m for name, m in model.named_modules() if chosen(name, m)}
    if not watched:
        raise InvalidProblem("model: no module to observe in it")
    found = {name: Calibrator(method, axis=axis, name=name or "model", **options) for name in watched}
    with calibrating({m: found[name] for name, m in watched.items()}, outputs):
        run_on_all(model, loader, inputs, "Calibrating", progress)
    return {name: c for name, c in found.items() if c.num_samples}


@contextmanager
def calibrating(calibrators: Mapping[nn.Module, Calibrator], outputs: bool = False) -> Iterator[None]:
    """Add what these modules are given, or give, to their calibrators."""

    def note(module: nn.Module, x: Tensor) -> None:
        if x.is_floating_point() and x.numel():
            calibrators[module].add(x.detach())

    with first_tensors(calibrators, note, outputs):
        yield


def run_on_all(
    model: nn.Module,
    loader: Iterable[Any],
    inputs: Inputs | None,
    title: str,
    progress: bool,
    begin: Callable[[Any], None] | None = None,
) -> None:
    """Call the model on each batch, without gradients; raises where there is none. begin: is given each one before."""
    batches = 0
    with torch.no_grad():
        for batch in tracked(loader, title, progress):
            if begin is not None:
                begin(batch)
            call_on(model, batch, inputs)
            batches += 1
    if batches == 0:
        raise InvalidProblem("loader: no batches; there is nothing to observe")


def _chosen(batch: Any, inputs: Inputs) -> tuple[Any, ...] | dict[str, Any]:
    many = isinstance(inputs, Sequence) and not isinstance(inputs, str)
    wanted: Any = tuple(inputs) if many else (inputs,)  # type: ignore[arg-type]
    if not wanted or not (all(type(w) is int for w in wanted) or all(isinstance(w, str) for w in wanted)):
        raise InvalidProblem(f"inputs: {inputs!r}; expected an index or a key of batches, or a sequence of them")
    by_key = isinstance(wanted[0], str)
    if not isinstance(batch, Mapping if by_key else tuple | list):
        expected = "mappings" if by_key else "tuples or lists"
        raise InvalidProblem(f"inputs: {inputs!r}; batches are {type(batch).__name__}, expected {expected}")
    try:
        found = [batch[w] for w in wanted]
    except (KeyError, IndexError):
        has = ", ".join(map(repr, batch)) if by_key else f"{len(batch)} elements"
        raise InvalidProblem(f"inputs: {inputs!r}; a batch has {has}") from None
    return dict(zip(wanted, found, strict=True)) if by_key and many else tuple(found)
