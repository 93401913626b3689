"""Make the replacement of each module with weights that a recipe asks for; and report what was selected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from lowbit.algorithms import bias_correction
from lowbit.calibration import Calibrator
from lowbit.models.recipe import KINDS, ActivationRecipe, Recipe, Rule
from lowbit.models.report import WeightRow
from lowbit.models.weights import LayerInputs, needs_of
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.fitting import Products
from lowbit.runtime.arrays import as_float_array, first_nonfinite
from lowbit.torch.inference.attention import COMPOSED
from lowbit.torch.inference.codes import Codes, codes_of
from lowbit.torch.inference.embedding import QuantizedEmbedding
from lowbit.torch.inference.folding import CLAMPS, fold_batch_norm
from lowbit.torch.inference.layer_rows import products_of
from lowbit.torch.inference.layers import QuantizedConv1d, QuantizedConv2d, QuantizedLinear, geometry_of
from lowbit.torch.inference.runs import LEAST, Choice, Layer, Run
from lowbit.torch.inference.timing import LayerTimer, LayerTiming
from lowbit.torch.inference.weight_modules import WeightModule, require_cpu_floats
from torch import Tensor, nn

SLOWER = "float is faster"
WAY_OUT = 'optimize="size" quantizes it all the same'
_REASONS, _NAMED = 5, 3  # how many reasons a warning gives, and how many modules it names for each


class Part(NamedTuple):
    """One weight of a module that has several, and the product that it became."""

    name: str
    stored: tuple[Tensor, ...]  # the weight, and its bias if any
    codes: Codes
    nbytes: int
    bits: float


class Replacement(NamedTuple):
    """A quantized module and the cells of its row in a report, or of its rows, one per part."""

    module: Any
    codes: Codes  # of the first part, where there are several
    activations: str
    nbytes: int
    bits: float
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True)
class Candidate:
    """A module with weights, the recipe's rule for it, and its replacement, once selected, or why it stays float."""

    source: WeightModule
    rule: Rule
    asked: bool
    why_not: str
    declined: bool = False  # the recipe skips it by its name or its kind
    replacement: Replacement | None = None
    note: str = ""
    folded: tuple[nn.Module, ...] = ()  # a batch norm or an activation, or both, that its replacement includes
    alone: LayerTiming | None = None  # its time and its replacement's, between float layers

    @property
    def key(self) -> int:
        return id(self.source.module)

    @property
    def is_static(self) -> bool:
        """Whether calibration must find a range for its input."""
        a = self.rule.activations
        return not self.why_not and self.source.kind != "embedding" and a is not None and not a.dynamic

    @property
    def needs(self) -> str:
        """What its method uses of its inputs, where that can be observed: "gram", "diagonal", or nothing."""
        return needs_of(self.rule.weights) if not self.why_not and products_of(self.source.module) else ""

    @staticmethod
    def of(source: WeightModule, recipe: Recipe) -> Candidate:
        if not source.kind:
            return Candidate(source, Rule(recipe.weights, None), False, source.why_not)
        elements = int(np.prod(source.shape))
        weights = [f"{name}.weight".lstrip(".") for name in source.names]
        rule = recipe.rule(source.name, source.kind, elements, (*source.names[1:], *weights))
        if rule.skip:
            by_name = recipe.rule(source.name, source.kind, None, (*source.names[1:], *weights))
            return Candidate(source, rule, False, rule.skip, bool(by_name.skip))
        named = any(not o.skip and o.matches(name) for o in recipe.overrides for name in (*source.names, *weights))
        chosen = source.kind == "embedding" and recipe.kinds != KINDS
        if source.stays and not named and not chosen:
            return Candidate(source, rule, False, source.stays, True)
        if not source.why_not:
            require_cpu_floats(source)
        reason = unsupported_reason(rule, source.kind, type(source.module) in COMPOSED)
        return Candidate(source, rule, True, source.why_not or reason)


def with_replacement(
    candidate: Candidate,
    ranges: Mapping[str, Calibrator],
    folded: tuple[nn.Module, ...],
    products: Products,
    inputs: Mapping[str, LayerInputs],
    missing: str,
) -> Candidate:
    """The candidate with its replacement, or with the reason that it has none.

    folded: a batch norm or an activation after it, to be folded into it. products: scale int8 weights so that sums of
    this many products fit 16 bits, where the kernels gain from it. inputs: statistics of the inputs of each of its
    products, by name. missing: why those of the others are not known.
    """
    if candidate.why_not:
        return candidate
    source, rule, params = candidate.source, candidate.rule, None
    if candidate.is_static and rule.activations is not None:
        if source.name not in ranges:
            return replace(candidate, why_not="no calibration batch reached it")
        a = rule.activations
        params = ranges[source.name].calibrate(a.dtype, a.scheme, method=a.calibration_method())
    try:
        make = _composed if type(source.module) in COMPOSED else _replacement
        made = make(source.module, rule, source.name, params, folded, products, inputs, missing)
    except Unsupported as error:
        return replace(candidate, why_not=str(error))
    return replace(candidate, replacement=made, folded=folded)


def timed_alone(candidate: Candidate, timer: LayerTimer) -> Candidate:
    """The candidate with its replacement timed against it, on what it is given in the model."""
    source, made, folded = candidate.source, candidate.replacement, candidate.folded
    if made is None:
        return candidate
    before = nn.Sequential(source.module, *folded) if folded else source.module
    key = (source.dtype, candidate.rule, *map(type, folded))
    timing = timer.time(source.module, before, made.module, key)
    if timing is None:
        return candidate
    return replace(candidate, alone=timing, note=f"{timing} on {list(timer.inputs[candidate.key].shape)}")


def as_layer(candidate: Candidate) -> Layer:
    """What decides whether a candidate that was timed is quantized."""
    assert candidate.replacement is not None
    assert candidate.alone is not None
    saved = sum(p.numel() * p.itemsize for p in candidate.source.parameters) - candidate.replacement.nbytes
    return Layer(candidate.source.name, saved, candidate.alone, candidate.rule.activations is None)


def decided(
    candidates: Sequence[Candidate],
    quantized: Choice,
    inside: Mapping[str, LayerTiming],
    runs: Sequence[Run],
    optimize: str,
) -> list[Candidate]:
    """The candidates without the replacements that were not chosen, and why. inside: their times in the model."""
    run_of = {name: str(run) for run in runs for name in run.names}
    found = []
    for c in candidates:
        name = c.source.name
        if c.alone is not None and name in quantized:
            slow = optimize == "balanced" and c.alone.is_slower and as_layer(c).for_memory
            c = replace(c, note=_joined(c.note, run_of.get(name, ""), "quantized for its size" if slow else ""))
        elif c.alone is not None:
            why = ""
            if as_layer(c).pays_alone(LEAST[optimize]):
                why = f"within the model: {inside[name]}" if name in inside else "the whole model is faster so"
            note = _joined(c.note, why, "" if quantized else WAY_OUT)
            c = replace(c, replacement=None, why_not=SLOWER, note=note, asked=False)
        found.append(c)
    return found


def _joined(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def unsupported_reason(rule: Rule, kind: str, composed: bool = False) -> str:
    """Why lowbit's modules cannot follow a rule for this kind of layer; empty where they can. composed: it has several
    matrices.

    >>> from lowbit.models import Recipe
    >>> unsupported_reason(Recipe.of("W4A16").rule("x", "conv"), "conv")
    'convolutions multiply integers: there is none on float activations'
    """
    w, a = rule.weights, rule.activations
    if kind == "embedding":
        return ""
    if a is not None and a.dtype not in ("int8", "uint8"):
        return f"activations of {a.dtype}: lowbit's layers take int8 and uint8"
    if composed and a is not None and not a.dynamic:
        return "what it computes inside has no range that is found beforehand: expected dynamic or float activations"
    if kind == "conv" and a is None:
        return "convolutions multiply integers: there is none on float activations"
    if kind == "conv" and w.granularity == "group":
        return "groups of weights are for matrices"
    if kind in ("linear", "recurrent") and w.granularity == "group" and a is not None and a.scheme != "symmetric":
        return "weights in groups take symmetric activations"
    return ""


def _replacement(
    module: Any,
    rule: Rule,
    name: str,
    input_params: QuantizationParams | None,
    folded: Sequence[nn.Module],
    products: Products,
    inputs: Mapping[str, LayerInputs],
    missing: str,
) -> Replacement:
    """Quantize a module. input_params: for a static rule. folded: a batch norm or an activation to include."""
    norm = next((m for m in folded if type(m) not in CLAMPS), None)
    floats, bias = _weight_and_bias(module, norm, name)
    products = products if _can_fit(module, rule) else 1
    weight_name = f"{name}.weight".lstrip(".")
    known = inputs.get("")
    codes = codes_of(floats, rule.weights, weight_name, known, products=products, missing=missing)
    q = codes.q
    if known is not None and known.means is not None:
        shift = bias_correction(floats, q, known.means, name=weight_name)
        bias = shift if bias is None else bias + shift
    made: Any
    options, activations = _input_options(rule.activations, input_params, isinstance(module, nn.Linear))
    if isinstance(module, nn.Embedding):
        made, activations = QuantizedEmbedding(q, module.padding_idx, module.weight.dtype), ""
    elif isinstance(module, nn.Linear):
        made = QuantizedLinear(q, bias, **options)
    else:
        clamp = next((CLAMPS[type(m)] for m in folded if type(m) in CLAMPS), None)
        options |= {**geometry_of(module), "clamp": clamp}
        if isinstance(module, nn.Conv2d):
            made = QuantizedConv2d(q, bias, **options)
        else:
            images = QuantizedTensor.from_codes(np.expand_dims(q.unpack(), 2), q.params)
            made = QuantizedConv1d(images, bias, **options)
    return Replacement(made.eval(), codes, activations, made.nbytes, _bits(made, bias, floats.size))


def _composed(
    module: Any,
    rule: Rule,
    name: str,
    input_params: QuantizationParams | None,
    folded: Sequence[nn.Module],
    products: Products,
    inputs: Mapping[str, LayerInputs],
    missing: str,
) -> Replacement:
    """Quantize each matrix of a module that has several; it has no static rule, and nothing is folded into it."""
    of = COMPOSED[type(module)]
    product_of = {matrix.name: key for key, matrix in of.matrices(module).items()}
    made_of: dict[str, Codes] = {}
    products = products if rule.activations is not None else 1

    def quantized(floats: Any, part: str) -> QuantizedTensor:
        known = inputs.get(product_of[part])
        full = f"{name}.{part}".lstrip(".")
        made_of[part] = codes_of(floats, rule.weights, full, known, products=products, missing=missing)
        return made_of[part].q

    options, activations = _input_options(rule.activations, None, True)
    made = of.from_float(module, quantized, **options)
    parts = []
    for key, matrix in of.matrices(module).items():
        product = made.products[key]
        bits = _bits(product, product.layer.bias, matrix.weight.numel())
        parts.append(Part(matrix.name, matrix.stored, made_of[matrix.name], product.nbytes, bits))
    return Replacement(made, parts[0].codes, activations, made.nbytes, parts[0].bits, tuple(parts))


def _bits(made: Any, bias: Any, elements: int) -> float:
    """Bits per weight as stored, with scales and zero points."""
    return float(8 * (made.nbytes - (0 if bias is None else bias.nbytes)) / elements)


def _weight_and_bias(module: Any, norm: Any, name: str) -> tuple[Any, Any]:
    weight, bias = (module.weight, getattr(module, "bias", None)) if norm is None else fold_batch_norm(module, norm)
    floats = np.ascontiguousarray(weight.detach().float().numpy())
    if bias is None:
        return floats, None
    bias = np.ascontiguousarray(bias.detach().float().numpy())
    bad = first_nonfinite(as_float_array(bias))
    if bad is not None:
        raise InvalidProblem(f"{name}.bias: {bad[0]} at {bad[1][0]}")
    return floats, bias


def _can_fit(module: Any, rule: Rule) -> bool:
    if isinstance(module, nn.Embedding) or rule.activations is None:
        return False
    depthwise = getattr(module, "groups", 1) > 1 and module.weight.shape[1] == 1
    return not depthwise


def _input_options(
    a: ActivationRecipe | None, params: QuantizationParams | None, per_token: bool
) -> tuple[dict[str, Any], str]:
    """Options of a layer for its input, and their text in a report."""
    if a is None:
        return {"activation_dtype": "float"}, ""
    if params is not None:
        return {"input_params": params}, str(a)
    dtype = "int8" if a.scheme == "symmetric" else "uint8"
    return {"activation_dtype": dtype}, f"{dtype} {a.scheme}, dynamic per {'token' if per_token else 'tensor'}"


def weight_rows(candidates: Sequence[Candidate], norms: Mapping[str, str]) -> list[WeightRow]:
    """A row for each name of each weight. norms: {convolution: batch norm} that may have been folded."""
    quantized = {c.source.name for c in candidates if c.replacement is not None}
    folded_into = {norm: conv for conv, norm in norms.items() if conv in quantized}
    owners: dict[int, str] = {}  # parameters that two modules share are counted once
    rows = []
    for c in candidates:
        source, made = c.source, c.replacement
        own = source.parameters
        owner = next((owners[id(p)] for p in own if id(p) in owners), None)
        size = sum(p.numel() * p.itemsize for p in own if id(p) not in owners)
        owners.update({id(p): source.name for p in own if id(p) not in owners})
        sharing = "" if owner is None else f"shares its weight with {owner}"
        note = _joined(c.note, sharing)
        row = WeightRow(
            source.name,
            type(source.module).__name__,
            source.shape,
            source.dtype,
            why_not=c.why_not,
            asked=c.asked,
            bytes_before=size,
            bytes_after=size,
            note=note,
        )
        if made is not None:
            row = _with_codes(row, made.codes, made.nbytes, made.bits, activations=made.activations)
        elif source.name in folded_into:
            row = replace(row, how=f"folded into {folded_into[source.name]}", why_not="", bytes_after=0)
        rows += [row] if made is None or not made.parts else [_part_row(row, part, owner) for part in made.parts]
        alias = replace(row, bytes_before=0, bytes_after=0, note=f"the same module as {source.name}")
        rows += [replace(alias, name=name) for name in source.names[1:]]
    return rows


def _part_row(row: WeightRow, part: Part, owner: str | None) -> WeightRow:
    """The row of one weight of a module, from that of the module."""
    return _with_codes(
        row,
        part.codes,
        part.nbytes,
        part.bits,
        name=f"{row.name}.{part.name}".lstrip("."),
        shape=tuple(part.stored[0].shape),
        bytes_before=sum(p.numel() * p.itemsize for p in part.stored) if owner is None else 0,
    )


def _with_codes(row: WeightRow, codes: Codes, nbytes: int, bits: float, **changes: Any) -> WeightRow:
    note = _joined(row.note, codes.note)
    return replace(row, **codes.cells, bytes_after=nbytes, bits=bits, note=note, **changes)


def why_left_float(candidates: Sequence[Candidate]) -> str:
    """Why less than half of the weights were quantized, the most frequent reasons first; empty where half were.

    Counts the elements of matrices, kernels and tables, except those the recipe skips by name or kind.
    """
    elements, reasons, seen, names = 0, Counter[str](), set[int](), dict[str, list[str]]()
    # A shared weight counts as quantized where one of its users is.
    for c in sorted(candidates, key=lambda c: c.replacement is None):
        source = c.source
        if not source.kind or c.declined:
            continue
        own = [p for p in source.parameters if p.ndim > 1]
        count = sum(p.numel() for p in own if id(p) not in seen)
        seen |= {id(p) for p in own}
        elements += count
        if c.replacement is None:
            reasons[c.why_not] += count
            names.setdefault(c.why_not, []).append(source.name or type(source.module).__name__)
    left = sum(reasons.values())
    if 2 * left <= elements:
        return ""
    parts = [
        f"{why} ({count:,} in {', '.join(names[why][:_NAMED])}{', …' * (len(names[why]) > _NAMED)})"
        for why, count in reasons.most_common(_REASONS)
    ]
    parts += [f"{len(reasons) - _REASONS} more reasons"] if len(reasons) > _REASONS else []
    parts += ['optimize="size" quantizes what float is faster for'] if SLOWER in reasons else []
    return f"{elements - left:,} of {elements:,} weights were quantized. The rest stayed float: {'; '.join(parts)}"
