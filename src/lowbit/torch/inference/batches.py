"""Select the model's inputs from a batch, and record those of its modules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lowbit.numerics.errors import InvalidProblem
from torch import Tensor, nn

Inputs = int | str | Sequence[int] | Sequence[str]

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
    """Call note(module, x) where x, the first argument or the output of a call of one of these modules, is a tensor."""

    def hook(module: nn.Module, given: Any, keywords: dict[str, Any], result: Any = None) -> None:
        x = result if outputs else next(iter((*given, *keywords.values())), None)
        if isinstance(x, Tensor):
            note(module, x.detach())

    handles = [
        (m.register_forward_hook if outputs else m.register_forward_pre_hook)(hook, with_kwargs=True) for m in modules
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


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
