"""Quantization-aware training of a whole model: prepare_qat, train as ever, convert."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

import torch
from lowbit.numerics.errors import InvalidProblem
from lowbit.torch.inference.folding import folds as find_folds
from lowbit.torch.inference.folding import swapped
from lowbit.torch.qat.modules import (
    ConvertedConv1d,
    ConvertedConv2d,
    ConvertedLinear,
    QATConv1d,
    QATConv2d,
    QATLinear,
)
from lowbit.torch.qat.quantizer import FakeQuantize
from torch import nn

__all__ = ["Coverage", "CoverageRow", "QATRecipe", "calibrate", "convert", "prepare_qat"]

_TRAINED: dict[type[nn.Module], Any] = {nn.Linear: QATLinear, nn.Conv1d: QATConv1d, nn.Conv2d: QATConv2d}
_FINAL: dict[type[nn.Module], Any] = {
    QATLinear: ConvertedLinear,
    QATConv1d: ConvertedConv1d,
    QATConv2d: ConvertedConv2d,
}


@dataclasses.dataclass(frozen=True)
class QATRecipe:
    """Which numbers a model trains with.

    weight, activation: dtypes of weights and of layer inputs; None leaves inputs alone. Signed dtypes map
    symmetrically, unsigned ones asymmetrically. weight_axis: one scale for each of its indices (None: one for all).
    weight_block: instead, one scale for so many consecutive inputs (axis 1). learned: scales are parameters (LSQ), of
    weights and inputs (True) or of the one ("weight", "activation"); otherwise weights take the range they have, and
    inputs a moving average of theirs. on_nonfinite: "raise", or "ignore" for data with NaN or Inf, as loss scaling
    makes. skip: names, or patterns such as "head.*", of layers left alone. overrides: {pattern: {field: value}}, the
    last that matches counting.
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
        """The recipe meant by a recipe, a dict of its fields, or nothing."""
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
    """The model with its Linear, Conv1d and Conv2d layers made ready for training, and a table of what was done.

    A batch norm is folded into the convolution before it where that is certain: neighbours in a plain nn.Sequential,
    or, by a symbolic trace of the model, the only user of its output. Parameters are shared with a model prepared in
    place, copied otherwise.

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
    names = [name for name, _ in model.named_modules()]
    for what, patterns in (("skip", recipe.skip), ("overrides", recipe.overrides)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise InvalidProblem(
                    f"{what}: {pattern!r} matches no module; expected one of {', '.join(names[1:9])} …"
                )
    folds = find_folds(model)
    folded = {bn: conv for conv, bn in folds.items()}
    coverage, swaps = Coverage(), {}
    for name, module in model.named_modules():
        if next(module.children(), None) is not None and next(module.parameters(recurse=False), None) is None:
            continue
        treated, why = False, f"nothing to quantize in {type(module).__name__}"
        skipped = next((p for p in recipe.skip if fnmatchcase(name, p)), None)
        if skipped is not None:
            why = f"skipped: matches {skipped!r}"
        elif name in folded and folded[name] in swaps:
            treated, why = True, f"folded into {folded[name]}"
            swaps[name] = nn.Identity()
        elif type(module) in _TRAINED and (module._forward_hooks or module._forward_pre_hooks):
            why = "has hooks, which may change what it computes"
        elif type(module) in _TRAINED:
            own = recipe.for_module(name)
            bn_name = folds.get(name)
            fold = bn_name is not None and not any(fnmatchcase(bn_name, p) for p in recipe.skip)
            bn = model.get_submodule(bn_name) if fold and bn_name is not None else None
            swaps[name] = _TRAINED[type(module)].from_float(module, *own.quantizers(name), bn)
            treated, why = True, f"{own.weight} weight, {own.activation or 'float'} input"
        elif isinstance(module, tuple(_TRAINED)):
            why = "a subclass, which may compute something else"
        elif next(module.parameters(recurse=False), None) is not None:
            why = f"has parameters, but {type(module).__name__} has no quantized form here"
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                why = "not certain to follow one convolution, and nothing else"
        coverage.append(CoverageRow(name, type(module).__name__, treated, why))
    return swapped(model, swaps), coverage


@torch.no_grad()
def calibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Post-training quantization: lets batches pass through a prepared model, and only its quantizers learn from them.

    batches: inputs, or tuples whose first item is one. Weights and batch norms stay as they are. Gives the model back
    in eval() mode.

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
    """The trained model for inference: weights become codes, ranges are frozen; in eval() mode.

    Its output is to the bit that of the prepared model in eval() mode. Arithmetic is float (see ConvertedLinear).
    """
    if not inplace:
        model = copy.deepcopy(model)
    found = {name: m for name, m in model.named_modules() if type(m) in _FINAL}
    if not found:
        raise InvalidProblem("model: no layer prepared by prepare_qat in it")
    return swapped(model, {name: _FINAL[type(m)].from_qat(m) for name, m in found.items()}).eval()
