"""quantize_model: replace the layers of a model by quantized ones, unless they would be slower."""

from __future__ import annotations

import copy
import itertools
import os
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

from lowbit import __version__
from lowbit.calibration import Calibrator
from lowbit.models.recipe import Recipe
from lowbit.models.report import ModelReport
from lowbit.numerics.errors import InvalidProblem
from lowbit.ops.fitting import Products, fastest_fit
from lowbit.runtime.hardware import hardware
from lowbit.torch.inference.batches import Inputs, inputs_of
from lowbit.torch.inference.encoder_layers import unfuse
from lowbit.torch.inference.folding import FoldedNorm, find_folds, replace_modules
from lowbit.torch.inference.memory_formats import set_memory_formats
from lowbit.torch.inference.observe import observe
from lowbit.torch.inference.reporting import (
    accuracy_on,
    eval_mode,
    latency_on,
    model_bytes,
    weight_rows,
    why_left_float,
)
from lowbit.torch.inference.selection import Candidate, Selection, select
from lowbit.torch.inference.timing import LayerInput, LayerTimer, record_inputs
from lowbit.torch.inference.weight_modules import WeightModule, find_weight_modules
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
RecipeLike = Recipe | str | os.PathLike[str] | Mapping[str, Any]
_CALLER = 5  # stack level of the call of `lowbit.torch.quantize`, for warnings
_NEVER_CALLED = "not called in the run on the example: its weight may be read without it"


# Above 60 lines: its signature and docstring take a third of them, and the steps share their results.
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
    """Quantize a model; the arguments are those of `lowbit.torch.quantize`.

    >>> net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> small = quantize_model(net, "W8A8")
    >>> [(row.name, row.how or row.why_not) for row in report(small).rows][1:]
    [('2', '256 elements; the recipe leaves weights below 1024')]
    >>> type(small[0]).__name__, type(net[0]).__name__
    ('QuantizedLinear', 'Linear')
    """
    started = time.perf_counter()
    recipe = Recipe.of(recipe)
    products = _checked(model, keep_float, fit_products)
    candidates = _candidates(model, recipe)
    if calibration is None and any(c.is_static for c in candidates):
        raise InvalidProblem(f"calibration: missing; {recipe.name} needs batches to find static ranges in")
    if inputs is not None and example is None and calibration is None:
        raise InvalidProblem("inputs: given without batches; expected calibration or example")
    bytes_before, notes = model_bytes(model), []
    if any(m.training for m in model.modules()):
        notes.append("the model was in training mode; what was returned is in eval() mode")
    with eval_mode(model):
        example, calibration = _first_of(example, calibration)
        recorded: dict[int, LayerInput] = {}
        output: Any = None
        if example is None:
            notes.append("neither example nor calibration was given: nothing could be timed, layers may be slower")
        else:
            example = inputs_of(model, example, inputs)
            recorded, output = record_inputs(model, example, [c.source.module for c in candidates if not c.why_not])
            missed = {c.key for c in candidates if not c.why_not} - recorded.keys()
            candidates = [replace(c, why_not=_NEVER_CALLED) if c.key in missed else c for c in candidates]
        ranges = _ranges(model, candidates, calibration, inputs, progress)
        convolutions = any(c.source.kind == "conv" and not c.why_not for c in candidates)
        norms = find_folds(model) if fold_norms and convolutions else {}
        timer = LayerTimer(recorded) if keep_float == "slower" else None
        selections = [select(c, ranges, _norm_of(model, c.source, norms), products, timer) for c in candidates]
    rows = weight_rows(selections, norms)
    _complain(rows, selections, strict)
    result = _replaced(model, selections, norms, inplace)
    names, sizes = (type(model).__name__, type(result).__name__), (bytes_before, model_bytes(result))
    made = ModelReport(*names, "torch", recipe.to_dict(), rows, *sizes, notes=notes, lowbit_version=__version__)
    made = made.but(machine=hardware().to_dict())
    if example is not None:
        made = made.but(accuracy=accuracy_on(output, result, example))
        if not inplace and keep_float == "slower" and any(s.replacement is not None for s in selections):
            made = made.but(latency=[latency_on(model, result, example)])
    result.__dict__["lowbit_report"] = made.but(seconds=time.perf_counter() - started)
    return result


def report(model: nn.Module) -> ModelReport:
    """What `quantize` did to this model: a row for each weight, sizes, and with an example accuracy and latency."""
    found = model.__dict__.get("lowbit_report")
    if not isinstance(found, ModelReport):
        raise InvalidProblem("model: no report in it; expected a model from lowbit.torch.quantize")
    return found


def _checked(model: Any, keep_float: str, fit_products: Products | None) -> Products:
    """Check the arguments; give how many products must fit 16 bits."""
    if not isinstance(model, nn.Module):
        raise InvalidProblem(f"model: {type(model).__name__}; expected a torch.nn.Module")
    if keep_float not in ("slower", "never"):
        raise InvalidProblem(f"keep_float: {keep_float!r}; expected 'slower' or 'never'")
    products = fastest_fit() if fit_products is None else fit_products
    if products not in (1, 2, 4):
        raise InvalidProblem(f"fit_products: {products!r}; expected 1, 2 or 4")
    return products


def _candidates(model: nn.Module, recipe: Recipe) -> list[Candidate]:
    """Every module with weights and the recipe's rule for it; raises for a pattern that matches no module."""
    sources = find_weight_modules(model)
    recipe.refuse_unmatched(
        ([*s.names, *(f"{name}.weight".lstrip(".") for name in s.names)] for s in sources),
        (name for name, _ in model.named_modules(remove_duplicate=False)),
    )
    return [Candidate.of(source, recipe) for source in sources]


def _ranges(
    model: nn.Module,
    candidates: Sequence[Candidate],
    batches: Iterable[Any] | None,
    inputs: Inputs | None,
    progress: bool,
) -> dict[str, Calibrator]:
    """Calibrators of the inputs of all layers with static ranges, filled in one pass."""
    static = {c.key for c in candidates if c.is_static}
    if not static or batches is None:
        return {}
    return observe(model, batches, inputs=inputs, modules=lambda _, module: id(module) in static, progress=progress)


def _complain(rows: Sequence[Any], selections: Sequence[Selection], strict: bool) -> None:
    """Raise where `strict` and a weight asked for was skipped; warn where less than half was quantized."""
    skipped = [row for row in rows if row.skipped]
    if strict and skipped:
        listed = "; ".join(f"{row.name}: {row.why_not}" for row in skipped)
        raise InvalidProblem(f"strict: {len(skipped)} weights asked for were not quantized: {listed}")
    if why := why_left_float(selections):
        warnings.warn(f"quantize: {why}. print(lowbit.torch.report(model)) lists them", stacklevel=_CALLER)


def _norm_of(model: nn.Module, source: WeightModule, norms: dict[str, str]) -> nn.Module | None:
    """The batch norm to fold into a convolution. One with hooks is removed from `norms`."""
    name = norms.get(source.name)
    norm = None if name is None else model.get_submodule(name)
    if norm is not None and (norm._forward_hooks or norm._forward_pre_hooks or "forward" in norm.__dict__):
        del norms[source.name]
        return None
    return norm


def _replaced(model: M, selections: Sequence[Selection], norms: Mapping[str, str], inplace: bool) -> M:
    """The model in eval() mode with the selected replacements; a copy unless `inplace`."""
    new: dict[str, nn.Module] = {
        s.candidate.source.name: s.replacement.module for s in selections if s.replacement is not None
    }
    new |= {norms[name]: FoldedNorm() for name in new if name in norms}
    result: Any
    if inplace:
        result = replace_modules(model, new)
    else:  # the memo makes deepcopy take the new modules instead of copying the old ones
        result = copy.deepcopy(model, {id(model.get_submodule(name)): module for name, module in new.items()})
    result.eval()
    set_memory_formats(result)
    unfuse(result)
    return result  # type: ignore[no-any-return]


def _first_of(example: Any, batches: Iterable[Any] | None) -> tuple[Any, Iterable[Any] | None]:
    """The example, or else the first batch; and all batches, since an iterator gives each batch only once."""
    if batches is None or example is not None:
        return example, batches
    if isinstance(batches, Tensor | Mapping):
        raise InvalidProblem(f"calibration: a {type(batches).__name__}; expected an iterable of batches")
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        raise InvalidProblem("calibration: no batches; there is nothing to find ranges in")
    return first, (batches if isinstance(batches, list | tuple) else itertools.chain([first], rest))
