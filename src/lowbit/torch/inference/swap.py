"""quantize(model): a whole model's layers swapped for lowbit's, none of them for a slower one."""

from __future__ import annotations

import copy
import itertools
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeVar

from lowbit import __version__
from lowbit.calibration import Calibrator
from lowbit.models.recipe import Recipe
from lowbit.models.report import ModelReport
from lowbit.numerics.errors import InvalidProblem
from lowbit.ops.fitting import Products, fastest_fit
from lowbit.runtime.hardware import hardware
from lowbit.torch.inference.accounts import accuracy_on, for_inference, latency_on, left_float, model_bytes, weight_rows
from lowbit.torch.inference.batches import Inputs, inputs_of
from lowbit.torch.inference.decisions import Stopwatch, Wanted, decided
from lowbit.torch.inference.fast_paths import leave_fast_paths
from lowbit.torch.inference.folding import FoldedNorm, folds, swapped
from lowbit.torch.inference.inventory import Holder, inventory
from lowbit.torch.inference.memory_formats import settle_memory_formats
from lowbit.torch.inference.never_slower import Sighting, sightings
from lowbit.torch.inference.observe import observe
from torch import Tensor, nn

__all__ = ["quantize_model", "report"]

M = TypeVar("M", bound=nn.Module)
RecipeLike = Recipe | str | os.PathLike[str] | Mapping[str, Any]
_CALLER = 3  # whose call warnings are about: that of `lowbit.torch.quantize`
_NEVER_CALLED = "not called in the run on the example: its weight may be read without it"


def quantize_model(
    model: M,
    recipe: RecipeLike = "dynamic-int8",
    *,
    calibration: Iterable[Any] | None = None,
    example: Any = None,
    inputs: Inputs | None = None,
    inplace: bool = False,
    strict: bool = False,
    keep_float: Literal["slower", "never"] = "slower",
    fold_norms: bool = True,
    fit_products: Products | None = None,
    progress: bool = True,
) -> M:
    """What `lowbit.torch.quantize` gives for a model, with the same arguments.

    >>> net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> small = quantize_model(net, "W8A8")
    >>> [(row.name, row.how or row.why_not) for row in report(small).rows][1:]
    [('2', '256 elements; the recipe leaves weights below 1024')]
    >>> type(small[0]).__name__, type(net[0]).__name__
    ('QuantizedLinear', 'Linear')
    """
    started = time.perf_counter()
    recipe = Recipe.of(recipe)
    if not isinstance(model, nn.Module):
        raise InvalidProblem(f"model: {type(model).__name__}; expected a torch.nn.Module")
    if keep_float not in ("slower", "never"):
        raise InvalidProblem(f"keep_float: {keep_float!r}; expected 'slower' or 'never'")
    products = fastest_fit() if fit_products is None else fit_products
    if products not in (1, 2, 4):
        raise InvalidProblem(f"fit_products: {products!r}; expected 1, 2 or 4")
    holders = inventory(model)
    recipe.refuse_unmatched(
        ([*h.names, *(f"{name}.weight".lstrip(".") for name in h.names)] for h in holders),
        (name for name, _ in model.named_modules(remove_duplicate=False)),
    )
    wanted = [Wanted.of(h, recipe) for h in holders]
    needs_data = any(w.is_static for w in wanted)
    if needs_data and calibration is None:
        raise InvalidProblem(f"calibration: missing; {recipe.name} needs batches to find static ranges in")
    bytes_before = model_bytes(model)
    notes = []
    if any(m.training for m in model.modules()):
        notes.append("the model was in training mode; what was returned is in eval() mode")
    if inputs is not None and example is None and calibration is None:
        raise InvalidProblem("inputs: given without batches; expected calibration or example")
    with for_inference(model):
        example, calibration = _first_of(example, calibration)
        if example is not None:
            example = inputs_of(model, example, inputs)
        seen: dict[int, Sighting] = {}
        output: Any = None
        if example is not None:
            seen, output = sightings(model, example, [w.holder.module for w in wanted if not w.why_not])
            wanted = [w if w.why_not or w.key in seen else replace(w, why_not=_NEVER_CALLED) for w in wanted]
        else:
            notes.append("neither example nor calibration was given: nothing could be timed, layers may be slower")
        ranges = _ranges(model, wanted, calibration, inputs, progress) if needs_data else {}
        norms = folds(model) if fold_norms and any(w.holder.kind == "conv" and not w.why_not for w in wanted) else {}
        stopwatch = Stopwatch(seen) if keep_float == "slower" else None
        done = [decided(w, ranges, _norm_of(model, w.holder, norms), products, stopwatch) for w in wanted]
    rows = weight_rows(done, norms)
    skipped = [row for row in rows if row.skipped]
    if strict and skipped:
        listed = "; ".join(f"{row.name}: {row.why_not}" for row in skipped)
        raise InvalidProblem(f"strict: {len(skipped)} weights asked for were not quantized: {listed}")
    if left := left_float(done):
        warnings.warn(f"quantize: {left}. print(lowbit.torch.report(model)) lists them", stacklevel=_CALLER)
    new: dict[str, nn.Module] = {d.wanted.holder.name: d.made.module for d in done if d.made is not None}
    new |= {norms[name]: FoldedNorm() for name in new if name in norms}
    source = type(model).__name__
    result = _swapped(model, new, inplace)
    result.eval()
    settle_memory_formats(result)
    leave_fast_paths(result)
    made = ModelReport(
        source=source, target=type(result).__name__, format="torch", recipe=recipe.to_dict(), rows=rows,
        bytes_before=bytes_before, bytes_after=model_bytes(result), notes=notes, machine=hardware().to_dict(),
        lowbit_version=__version__,
    )  # fmt: skip
    if example is not None:
        made = made.but(accuracy=accuracy_on(output, result, example))
        if not inplace and new and keep_float == "slower":
            made = made.but(latency=[latency_on(model, result, example)])
    result.__dict__["lowbit_report"] = made.but(seconds=time.perf_counter() - started)
    return result


def report(model: nn.Module) -> ModelReport:
    """What `quantize` did to this model: a row for each weight, sizes, and with an example accuracy and latency."""
    found = model.__dict__.get("lowbit_report")
    if not isinstance(found, ModelReport):
        raise InvalidProblem("model: no report in it; expected a model from lowbit.torch.quantize")
    return found


def _ranges(
    model: nn.Module, wanted: list[Wanted], batches: Any, inputs: Inputs | None, progress: bool
) -> dict[str, Calibrator]:
    """Calibrators of the inputs of all layers with static ranges; every method is served by the same pass."""
    static = {w.key for w in wanted if w.is_static}
    if not static:
        return {}
    return observe(model, batches, inputs=inputs, modules=lambda _, module: id(module) in static, progress=progress)


def _norm_of(model: nn.Module, holder: Holder, norms: dict[str, str]) -> nn.Module | None:
    """The batch norm to fold into a convolution; one with hooks is none."""
    name = norms.get(holder.name)
    norm = None if name is None else model.get_submodule(name)
    if norm is not None and (norm._forward_hooks or norm._forward_pre_hooks or "forward" in norm.__dict__):
        del norms[holder.name]
        return None
    return norm


def _swapped(model: M, new: dict[str, nn.Module], inplace: bool) -> M:
    if inplace:
        return swapped(model, new)  # type: ignore[return-value]
    # What is replaced is never copied: copying finds the new modules where it looks for the old ones.
    return copy.deepcopy(model, {id(model.get_submodule(name)): module for name, module in new.items()})


def _first_of(example: Any, batches: Iterable[Any] | None) -> tuple[Any, Iterable[Any] | None]:
    """The example, or else the first batch; and all batches, for an iterator gives each but once."""
    if batches is None or example is not None:
        return example, batches
    if isinstance(batches, Tensor | Mapping):
        raise InvalidProblem(f"calibration: a {type(batches).__name__}; expected an iterable of batches")
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise InvalidProblem("calibration: no batches; there is nothing to find ranges in")
    return first, (batches if isinstance(batches, list | tuple) else itertools.chain([first], rest))
