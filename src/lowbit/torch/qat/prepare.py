"""Quantization-aware training of a whole model: prepare_qat, train as usual, convert."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

import torch
from lowbit.numerics.errors import InvalidProblem
from lowbit.torch.inference.folding import find_folds, replace_modules
from lowbit.torch.qat.modules import ConvertedConv1d, ConvertedConv2d, ConvertedLinear, QATConv1d, QATConv2d, QATLinear
from lowbit.torch.qat.quantizer import FakeQuantize
from torch import nn

_TRAINED: dict[type[nn.Module], Any] = {nn.Linear: QATLinear, nn.Conv1d: QATConv1d, nn.Conv2d: QATConv2d}
_CONVERTED: dict[type[nn.Module], Any] = {
    QATLinear: ConvertedLinear,
    QATConv1d: ConvertedConv1d,
    QATConv2d: ConvertedConv2d,
}


@dataclasses.dataclass(frozen=True)
class QATRecipe:
    """How the layers of a model are quantized in training.

    weight, activation: dtypes of weights and of layer inputs; None keeps inputs float. Signed dtypes are symmetric,
    unsigned ones asymmetric. weight_axis: the axis with one scale per index (None: one scale per tensor).
    weight_block: instead, the group size along axis 1. learned: whether scales are parameters (LSQ): of weights and
    inputs (True), or of one of them ("weight", "activation"); otherwise weights use their current range, and inputs a
    moving average. on_nonfinite: "raise", or "ignore" for the NaN and Inf that loss scaling causes. skip: names or
    patterns, such as "head.*", of layers that stay float. overrides: {pattern: {field: value}}; the last match wins.
    """

    weight: str = "int8"
    activation: str | None = "uint8"
    weight_axis: int | None = 0
    weight_block: int | None = None
    learned: bool | Literal["weight", "activation"] = False
    observer: str = "moving_average"
    on_nonfinite: Literal["raise", "ignore"] = "raise"
    skip: tuple[str, ...] = ()
    overrides: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, given: QATRecipe | Mapping[str, Any] | None) -> QATRecipe:
        """A recipe from itself, a dict of its fields, or None."""
        if isinstance(given, QATRecipe):
            return given
        return cls()._with(given or {}, "recipe")

    def _with(self, fields: Mapping[str, Any], where: str) -> QATRecipe:
        known = [f.name for f in dataclasses.fields(self)]
        for name in fields:
            if name not in known:
                raise InvalidProblem(f"{where}: {name!r} is not a field; expected one of {', '.join(known)}")
        if isinstance(fields.get("skip"), str):
            raise InvalidProblem(f"{where}: skip is {fields['skip']!r}; expected a tuple of patterns")
        return dataclasses.replace(self, **fields)

    def for_module(self, name: str) -> QATRecipe:
        """This recipe as it applies to one layer."""
        found = self
        for pattern, fields in self.overrides.items():
            if fnmatchcase(name, pattern):
                found = found._with(fields, f"overrides[{pattern!r}]")
        return found

    def quantizers(self, name: str) -> tuple[FakeQuantize, FakeQuantize | None]:
        """New quantizers for the weight and the input of the layer of this name."""
        weight_name, input_name = (f"{name}.{what}".lstrip(".") for what in ("weight", "input"))
        axis = 1 if self.weight_block is not None else self.weight_axis
        if self.learned not in (True, False, "weight", "activation"):
            raise InvalidProblem(f"learned: {self.learned!r}; expected True, False, 'weight' or 'activation'")
        mode = "learned" if self.learned in (True, "weight") else "dynamic"
        found = self.on_nonfinite
        weight = FakeQuantize(self.weight, "linear", axis, self.weight_block, mode, None, found, weight_name)
        if self.activation is None:
            return weight, None
        mode, observer = ("learned", None) if self.learned in (True, "activation") else ("static", self.observer)
        inputs = FakeQuantize(
            self.activation, "linear", mode=mode, observer=observer, on_nonfinite=found, name=input_name
        )
        return weight, inputs


class CoverageRow(NamedTuple):
    """One module and what was done with it."""

    name: str
    kind: str
    treated: bool
    why: str


class Coverage(list[CoverageRow]):
    """Every module with parameters or without children, in the model's order; str() is a table."""

    def __str__(self) -> str:
        rows = [("module", "class", "", "why")]
        rows += [(r.name or "(the model)", r.kind, "yes" if r.treated else "no", r.why) for r in self]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join((*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3])) for row in rows]
        done = sum(r.treated for r in self)
        return "\n".join([*lines, f"{done} of {len(self)} modules quantized or folded"])


def prepare_qat(
    model: nn.Module, recipe: QATRecipe | Mapping[str, Any] | None = None, *, inplace: bool = False
) -> tuple[nn.Module, Coverage]:
    """Prepare the Linear, Conv1d and Conv2d layers of a model for training; give the model and a table of all modules.

    A batch norm is folded into the convolution before it where it is certainly its only consumer: neighbours in a
    plain nn.Sequential, or by a symbolic trace of the model. With `inplace` the parameters are shared, else copied.

    >>> model, coverage = prepare_qat(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), {"skip": ["2"]})
    >>> print(coverage)
    module  class        why
    0       Linear  yes  int8 weight, uint8 input
    1       ReLU    no   nothing to quantize in ReLU
    2       Linear  no   skipped: matches '2'
    1 of 3 modules quantized or folded
    """
    recipe = QATRecipe.of(recipe)
    if not inplace:
        model = copy.deepcopy(model)
    _refuse_unmatched(model, recipe)
    folds = find_folds(model)
    conv_of = {bn: conv for conv, bn in folds.items()}
    coverage, new = Coverage(), dict[str, nn.Module]()
    for name, module in model.named_modules():
        if next(module.children(), None) is not None and next(module.parameters(recurse=False), None) is None:
            continue
        skipped = _matching(name, recipe.skip)
        treated, why = False, _why_not(module)
        if skipped is not None:
            why = f"skipped: matches {skipped!r}"
        elif conv_of.get(name) in new:
            treated, why = True, f"folded into {conv_of[name]}"
            new[name] = nn.Identity()
        elif not why:
            own, bn = recipe.for_module(name), folds.get(name)
            norm = None if bn is None or _matching(bn, recipe.skip) else model.get_submodule(bn)
            new[name] = _TRAINED[type(module)].from_float(module, *own.quantizers(name), norm)
            treated, why = True, f"{own.weight} weight, {own.activation or 'float'} input"
        coverage.append(CoverageRow(name, type(module).__name__, treated, why))
    return replace_modules(model, new), coverage


def _refuse_unmatched(model: nn.Module, recipe: QATRecipe) -> None:
    names = [name for name, _ in model.named_modules()]
    for what, patterns in (("skip", recipe.skip), ("overrides", recipe.overrides)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise InvalidProblem(
                    f"{what}: {pattern!r} matches no module; expected one of {', '.join(names[1:9])} …"
                )


def _matching(name: str, patterns: Iterable[str]) -> str | None:
    return next((p for p in patterns if fnmatchcase(name, p)), None)


def _why_not(module: nn.Module) -> str:
    """Why a module is not prepared; empty where it is."""
    kind = type(module).__name__
    if type(module) in _TRAINED:
        hooked = module._forward_hooks or module._forward_pre_hooks
        return "has hooks, which may change what it computes" if hooked else ""
    if isinstance(module, tuple(_TRAINED)):
        return "a subclass, which may compute something else"
    if next(module.parameters(recurse=False), None) is None:
        return f"nothing to quantize in {kind}"
    if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
        return "not certain to follow one convolution, and nothing else"
    return f"has parameters, but {kind} has no quantized form here"


@torch.no_grad()
def calibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Run batches through a prepared model to set its quantizers: post-training quantization.

    batches: inputs, or tuples whose first item is one. Weights and batch norms do not change. Returns the model in
    eval() mode.

    >>> model, _ = prepare_qat(nn.Sequential(nn.Linear(4, 2)))
    >>> calibrate(model, [torch.ones(3, 4)])[0].input_quant.params().scale.round(4)
    np.float32(0.0039)
    """
    model.eval()
    quantizers = [m for m in model.modules() if isinstance(m, FakeQuantize)]
    if not quantizers:
        raise InvalidProblem("model: no layer prepared by prepare_qat in it")
    for quantizer in quantizers:
        quantizer.train()
    count = 0
    for batch in batches:
        model(batch[0] if isinstance(batch, (tuple, list)) else batch)
        count += 1
    model.eval()
    if count == 0:
        raise InvalidProblem("batches: none; there is nothing to find ranges in")
    return model


def convert(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Convert a trained model for inference, in eval() mode: weights become codes, and ranges are frozen.

    The output equals that of the prepared model in eval() mode to the bit. Arithmetic is float (see ConvertedLinear).
    """
    if not inplace:
        model = copy.deepcopy(model)
    found = {name: m for name, m in model.named_modules() if type(m) in _CONVERTED}
    if not found:
        raise InvalidProblem("model: no layer prepared by prepare_qat in it")
    return replace_modules(model, {name: _CONVERTED[type(m)].from_qat(m) for name, m in found.items()}).eval()
