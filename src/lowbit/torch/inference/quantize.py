"""`quantize`: a model for inference, whose layers are replaced unless they would be slower, or codes of a tensor."""

from __future__ import annotations

import inspect
import itertools
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar, overload

import torch
from lowbit import __version__
from lowbit.calibration import Moments
from lowbit.models.recipe import Recipe
from lowbit.models.report import ModelReport
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.ops.fitting import Products, fastest_fit
from lowbit.runtime.hardware import hardware
from lowbit.torch.functional import ops
from lowbit.torch.functional.ops import Number
from lowbit.torch.inference.batches import Inputs, inputs_of
from lowbit.torch.inference.folding import Folded, find_activations, find_folds, for_inference, replace_modules
from lowbit.torch.inference.runs import OPTIMIZE, Decision, decide, pay_alone
from lowbit.torch.inference.selection import (
    Candidate,
    as_layer,
    decided,
    timed_alone,
    weight_rows,
    why_left_float,
    with_replacement,
)
from lowbit.torch.inference.timing import (
    LayerTimer,
    accuracy_on,
    eval_mode,
    latency_of,
    latency_on,
    model_bytes,
    record_inputs,
)
from lowbit.torch.inference.trials import ModelClock, replaced_copy
from lowbit.torch.inference.weight_inputs import WeightInputs
from lowbit.torch.inference.weight_modules import find_weight_modules
from torch import Tensor, nn

M = TypeVar("M", bound=nn.Module)
Optimize = Literal["balanced", "speed", "size"]
RecipeLike = Recipe | str | os.PathLike[str] | Mapping[str, Any]
_RECIPE = "dynamic-int8"
_CALLER = 5  # stack level of the call of `quantize`, for warnings
_NEVER_CALLED = "not called in the run on the example: its weight may be read without it"


@overload
def quantize(
    x: M,
    recipe: RecipeLike = _RECIPE,
    *,
    calibration: Iterable[Any] | None = None,
    stats: Mapping[str, Moments] | None = None,
    example: Any = None,
    inputs: Inputs | None = None,
    inplace: bool = False,
    strict: bool = False,
    optimize: Optimize = "balanced",
    keep_float: Literal["slower", "never"] = "slower",
    fold_norms: bool = True,
    fit_products: Products | None = None,
    progress: bool = True,
) -> M: ...
@overload
def quantize(
    x: Tensor,
    scale: Number,
    zero_point: Number = 0,
    *,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    group_size: int | None = None,
    per_token: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor: ...
def quantize(  # type: ignore[misc]  # the second argument is a model's recipe, or a tensor's scale
    x: Any,
    recipe: Any = _RECIPE,
    zero_point: Any = 0,
    *,
    calibration: Iterable[Any] | None = None,
    stats: Mapping[str, Moments] | None = None,
    example: Any = None,
    inputs: Inputs | None = None,
    inplace: bool = False,
    strict: bool = False,
    optimize: Optimize = "balanced",
    keep_float: Literal["slower", "never"] = "slower",
    fold_norms: bool = True,
    fit_products: Products | None = None,
    progress: bool = True,
    scale: Any = None,
    qmin: int = -128,
    qmax: int = 127,
    axis: int | None = None,
    group_size: int | None = None,
    per_token: bool = False,
    dtype: torch.dtype | None = None,
) -> Any:
    """Quantize a model for inference (Linear, Conv, Embedding, LSTM, GRU, attention), or a tensor to integer codes.

    quantize(model, recipe="dynamic-int8", *, calibration=None, stats=None, example=None, inputs=None, inplace=False,
    strict=False, optimize="balanced", keep_float="slower", fold_norms=True, fit_products=None, progress=True) gives a
    copy of the model in eval() mode.

    recipe: a preset's name, a Recipe, a mapping, or a YAML or JSON file. calibration: batches, such as a DataLoader, in
    which static ranges are found, and second moments of the inputs of weights of 4 bits or fewer and of those whose
    method uses them: such weights are rounded so that the layers' outputs change least, and the biases of such layers
    make up for what changes their means. stats: such moments, as of
    `observe_moments`, by name. example: one batch; by default the first of calibration. With an
    example, layers are timed one by one, in runs of neighbours, and all together. optimize: "balanced" takes the
    smallest of the models within 3 % of the fastest, and none more than 3 % slower than float, but for layers of which
    a recipe quantizes only the weights, to be small; "speed" quantizes only what is faster; "size" whatever the recipe
    asks for, at any speed, as does keep_float="never". inputs: which elements of a batch are the model's arguments: an
    index, a key, or a sequence of either; by default all of a mapping as keywords, all of a tuple or list as positional
    arguments, and only the first element where the model takes one argument. inplace: change the model itself. strict:
    InvalidProblem where a weight asked for was not quantized. fold_norms: fold batch norms and ReLUs that certainly
    follow a convolution into it. fit_products: 2 or 4 scales int8 weights so that sums of that many products fit 16
    bits; this costs 1 to 5 dB, or 3 to 9, and makes CPUs without VNNI faster; 1 follows the recipe. The default is 4
    where it is faster. `report(model)` gives what was done to each weight, and the times; a warning says so where less
    than half was quantized.

    quantize(tensor, scale, zero_point=0, *, qmin=-128, qmax=127, axis=None, group_size=None, per_token=False,
    dtype=None) gives integer codes, one per element, in the narrowest type for [qmin, qmax] or in `dtype`. Granularity
    is that of `fake_quantize`. Not differentiable.

    >>> quantize(nn.Sequential(nn.Linear(64, 32)), "W8A8")
    Sequential(
      (0): QuantizedLinear(in=64, out=32, int8, activation_dtype='int8')
    )
    >>> net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
    >>> small = quantize(net, "W8A16", example=torch.randn(4, 64), optimize="size")
    >>> len(report(small).treated), len(report(small).latency)
    (2, 1)
    >>> quantize(torch.tensor([-9.0, 0.3, 1.0]), 0.5, qmin=-8, qmax=7)
    tensor([-8,  1,  2], dtype=torch.int8)
    """
    options = {name: value for name, value in locals().items() if name not in ("x", "recipe")}
    return _dispatched(x, recipe, options)  # a function of its own: torch.compile reads no locals() that closures share


def _dispatched(x: Any, recipe: Any, options: dict[str, Any]) -> Any:
    of_model = {name: options.pop(name) for name in _MODEL_OPTIONS}
    if isinstance(x, nn.Module):
        _refuse_given(options, "a tensor", "a model")
        return quantize_model(x, recipe, **of_model)
    _refuse_given(of_model, "a model", "a tensor")
    scale = options.pop("scale")
    if recipe is not _RECIPE:
        if scale is not None:
            raise InvalidProblem("scale: given twice; expected one")
        scale = recipe
    if scale is None:
        raise InvalidProblem("scale: missing; codes of a tensor need one")
    return ops.quantize(x, scale, **options)


def _refuse_given(options: dict[str, Any], of: str, given: str) -> None:
    """Raise where one of these options, which have no effect on what was given, differs from its default."""
    for name, value in options.items():
        default = _DEFAULTS[name]
        if value is not default and (type(value) is not type(default) or value != default):
            raise InvalidProblem(f"{name}: an option of {of}; quantize was given {given}")


# Above 60 lines: its signature and docstring take a third of them, and the steps share their results.
def quantize_model(
    model: M,
    recipe: RecipeLike = _RECIPE,
    *,
    calibration: Iterable[Any] | None = None,
    stats: Mapping[str, Moments] | None = None,
    example: Any = None,
    inputs: Inputs | None = None,
    inplace: bool = False,
    strict: bool = False,
    optimize: Optimize = "balanced",
    keep_float: Literal["slower", "never"] = "slower",
    fold_norms: bool = True,
    fit_products: Products | None = None,
    progress: bool = True,
) -> M:
    """Quantize a model; the arguments are those of `quantize`.

    >>> net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> small = quantize_model(net, "W8A8")
    >>> [(row.name, row.how or row.why_not) for row in report(small).rows][1:]
    [('2', '256 elements; the recipe leaves weights below 1024')]
    >>> type(small[0]).__name__, type(net[0]).__name__
    ('QuantizedLinear', 'Linear')
    """
    started = time.perf_counter()
    recipe = Recipe.of(recipe)
    products = _checked(model, optimize, keep_float, fit_products)
    if keep_float == "never":
        optimize = "size"
    candidates = _candidates(model, recipe)
    _refuse_without_data(candidates, recipe, calibration, stats)
    if inputs is not None and example is None and calibration is None:
        raise InvalidProblem("inputs: given without batches; expected calibration or example")
    bytes_before = model_bytes(model)
    notes = []
    if any(m.training for m in model.modules()):
        notes.append("the model was in training mode; what was returned is in eval() mode")
    with eval_mode(model):
        again = None if isinstance(calibration, Iterator) else calibration
        example, calibration = _first_of(example, calibration)
        recorded: dict[int, Tensor] = {}
        output: Any = None
        if example is None:
            notes.append("neither example nor calibration was given: nothing could be timed, layers may be slower")
        else:
            example = inputs_of(model, example, inputs)
            recorded, output = record_inputs(model, example, [c.source.module for c in candidates if not c.why_not])
            missed = {c.key for c in candidates if not c.why_not} - recorded.keys()
            candidates = [replace(c, why_not=_NEVER_CALLED) if c.key in missed else c for c in candidates]
        known = WeightInputs(model, candidates, stats, calibration, again, inputs, progress)
        convolutions = any(c.source.kind == "conv" and not c.why_not for c in candidates)
        norms, folds = _foldable(model) if fold_norms and convolutions else ({}, {})
        after = {conv: tuple(map(model.get_submodule, folded)) for conv, folded in folds.items()}
        candidates = [
            with_replacement(c, known.ranges, after.get(c.source.name, ()), products, known.of(c), known.missing(c))
            for c in candidates
        ]
        notes += [known.too_few] if known.too_few else []
        decision = None
        if example is not None and optimize != "size":
            clock = ModelClock(model, example, folds)
            candidates, decision = _by_time(candidates, LayerTimer(recorded), clock, optimize, inplace)
    rows = weight_rows(candidates, norms)
    _complain(rows, candidates, decision, strict, known.too_few)
    result = _replaced(model, candidates, folds, inplace)
    source, target = type(model).__name__, type(result).__name__
    made = ModelReport(source, target, "torch", recipe.to_dict(), rows, bytes_before, model_bytes(result), notes=notes)
    if example is not None:
        made = made.but(accuracy=accuracy_on(output, result, example))
        if decision is not None:
            notes += decision.notes
            made = made.but(
                latency=[latency_of(example, decision.before, decision.after)] if decision.quantized else []
            )
        elif not inplace and any(c.replacement is not None for c in candidates):
            made = made.but(latency=[latency_on(model, result, example)])
    result.__dict__["lowbit_report"] = made.but(
        machine=hardware().to_dict(), seconds=time.perf_counter() - started, lowbit_version=__version__
    )
    return result


def report(model: nn.Module) -> ModelReport:
    """What `quantize` did to this model: a row for each weight, sizes, and with an example accuracy and latency."""
    found = model.__dict__.get("lowbit_report")
    if not isinstance(found, ModelReport):
        raise InvalidProblem("model: no report in it; expected a model from lowbit.torch.quantize")
    return found


def _by_time(
    candidates: Sequence[Candidate], timer: LayerTimer, clock: ModelClock, optimize: str, inplace: bool
) -> tuple[list[Candidate], Decision | None]:
    """The candidates with those replacements that pay, and the decision; None where nothing could be replaced."""
    timed = [timed_alone(c, timer) for c in candidates]
    by_key = {c.key: c for c in timed if c.alone is not None}
    layers = [as_layer(by_key[key]) for key in timer.inputs if key in by_key]  # in the order of their calls
    if not layers:
        return timed, None
    clock.modules = {c.source.name: c.replacement.module for c in by_key.values() if c.replacement is not None}
    try:
        decision = decide(layers, clock, optimize)
    except Unsupported:  # the model cannot be copied
        if not inplace:
            raise
        return decided(timed, pay_alone(layers, optimize), {}, [], optimize), None
    return decided(timed, decision.quantized, decision.inside, decision.runs, optimize), decision


def _checked(model: Any, optimize: str, keep_float: str, fit_products: Products | None) -> Products:
    """Check the arguments; give how many products must fit 16 bits."""
    if not isinstance(model, nn.Module):
        raise InvalidProblem(f"model: {type(model).__name__}; expected a torch.nn.Module")
    if keep_float not in ("slower", "never"):
        raise InvalidProblem(f"keep_float: {keep_float!r}; expected 'slower' or 'never'")
    if optimize not in OPTIMIZE:
        raise InvalidProblem(f"optimize: {optimize!r}; expected {', '.join(OPTIMIZE)}")
    if optimize == "speed" and keep_float == "never":
        raise InvalidProblem("keep_float: 'never'; optimize='speed' keeps layers float that are not faster")
    products = fastest_fit() if fit_products is None else fit_products
    if products not in (1, 2, 4):
        raise InvalidProblem(f"fit_products: {products!r}; expected 1, 2 or 4")
    return products


def _refuse_without_data(candidates: Sequence[Candidate], recipe: Recipe, calibration: Any, stats: Any) -> None:
    """Raise before any work where a method cannot run, or lacks data."""
    if any(c.asked and not c.why_not and c.rule.weights.method == "awq" for c in candidates):
        raise InvalidProblem(
            "method: awq; it scales the layer before each weight, which lowbit.torch does not do; expected gptq, "
            "adaround, weighted, hqq, mse or rtn"
        )
    if calibration is not None:
        return
    if any(c.is_static for c in candidates):
        raise InvalidProblem(f"calibration: missing; {recipe.name} needs batches to find static ranges in")
    asking = [c for c in candidates if c.needs and c.rule.weights.method != "auto"]
    if asking and stats is None:
        name, method = asking[0].source.name, asking[0].rule.weights.method
        raise InvalidProblem(
            f"calibration: missing; {method} needs statistics of the inputs of {name or 'the model'}: give batches as "
            "calibration, or stats=observe_moments(model, batches)"
        )


def _candidates(model: nn.Module, recipe: Recipe) -> list[Candidate]:
    """Every module with weights and the recipe's rule for it; raises for a pattern that matches no module."""
    sources = find_weight_modules(model)
    recipe.refuse_unmatched(
        ([*s.names, *(f"{name}.weight".lstrip(".") for name in s.names)] for s in sources),
        (name for name, _ in model.named_modules(remove_duplicate=False)),
    )
    return [Candidate.of(source, recipe) for source in sources]


def _complain(
    rows: Sequence[Any], candidates: Sequence[Candidate], decision: Decision | None, strict: bool, too_few: str
) -> None:
    """Raise where `strict` and a weight asked for was skipped; warn where less than half was quantized, where data were
    too few, or where what was quantized for memory makes the model slower."""
    skipped = [row for row in rows if row.skipped]
    if strict and skipped:
        listed = "; ".join(f"{row.name}: {row.why_not}" for row in skipped)
        raise InvalidProblem(f"strict: {len(skipped)} weights asked for were not quantized: {listed}")
    if why := why_left_float(candidates):
        warnings.warn(f"quantize: {why}. print(lowbit.torch.report(model)) lists them", stacklevel=_CALLER)
    if too_few:
        warnings.warn(f"quantize: {too_few}", stacklevel=_CALLER)
    if decision is not None and (why := decision.slower):
        warnings.warn(f"quantize: {why}", stacklevel=_CALLER)


def _foldable(model: nn.Module) -> tuple[dict[str, str], dict[str, list[str]]]:
    """{convolution: batch norm}, and all names of what may be folded into each convolution: the norm, an activation.

    Without modules whose hooks, or another `forward`, may change what they compute.
    """

    def plain(found: Mapping[str, str]) -> dict[str, str]:
        modules = {conv: model.get_submodule(name) for conv, name in found.items()}
        changed = {c for c, m in modules.items() if m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m)}
        return {conv: name for conv, name in found.items() if conv not in changed}

    norms = plain(find_folds(model))
    activations = plain(find_activations(model, norms))
    return norms, {
        conv: [found[conv] for found in (norms, activations) if conv in found] for conv in norms | activations
    }


def _replaced(model: M, candidates: Sequence[Candidate], folds: Mapping[str, Sequence[str]], inplace: bool) -> M:
    """The model in eval() mode with the selected replacements; a copy unless `inplace`."""
    new: dict[str, nn.Module] = {c.source.name: c.replacement.module for c in candidates if c.replacement is not None}
    new |= {folded: Folded() for name in list(new) for folded in folds.get(name, ())}
    if inplace:
        return for_inference(replace_modules(model, new))  # type: ignore[no-any-return]
    return replaced_copy(model, new)


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


_DEFAULTS = {name: p.default for name, p in inspect.signature(quantize).parameters.items()}
_MODEL_OPTIONS = tuple(inspect.signature(quantize_model).parameters)[2:]
