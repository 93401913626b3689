"""One float module by one rule: the quantized module, what was done to it, and what its weight lost."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from lowbit.models.recipe import ActivationRecipe, Rule
from lowbit.models.weights import quantize_weight
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.metrics import error_report
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.fitting import Products, fit_products
from lowbit.torch.inference.embedding import QuantizedEmbedding
from lowbit.torch.inference.folding import folded
from lowbit.torch.inference.layers import QuantizedConv1d, QuantizedConv2d, QuantizedLinear, numeric_padding
from torch import nn

__all__ = ["Made", "made_module", "obstacle_in"]

_FITTED = {2: "pairs", 4: "fours"}


class Made(NamedTuple):
    """A quantized module, and what a row of a report says of it."""

    module: Any
    how: str
    activations: str
    sqnr_db: float
    nbytes: int


def obstacle_in(rule: Rule, kind: str) -> str:
    """Why lowbit's modules cannot do what a rule asks of this kind of layer; empty where they can.

    >>> from lowbit.models import Recipe
    >>> obstacle_in(Recipe.of("W4A16").rule("x", "conv"), "conv")
    'convolutions multiply integers: there is none on float activations'
    """
    w, a = rule.weights, rule.activations
    if kind == "embedding":
        return ""
    if a is not None and a.dtype not in ("int8", "uint8"):
        return f"activations of {a.dtype}: lowbit's layers take int8 and uint8"
    if kind == "conv" and a is None:
        return "convolutions multiply integers: there is none on float activations"
    if kind == "conv" and w.granularity == "group":
        return "groups of weights are for matrices"
    if kind == "linear" and w.granularity == "group" and a is not None and a.scheme != "symmetric":
        return "weights in groups take symmetric activations"
    return ""


def made_module(
    module: Any, rule: Rule, name: str, *, given: QuantizationParams | None, norm: Any = None, products: Products = 1
) -> Made:
    """The module by this rule. given: params of its input, for a static rule; norm: a batch norm to fold into it.

    products: weights are scaled so that so many of them fit 16 bits, where that helps.
    """
    weight, bias = (module.weight, getattr(module, "bias", None)) if norm is None else folded(module, norm)
    floats = np.ascontiguousarray(weight.detach().float().numpy())
    offset = None if bias is None else np.ascontiguousarray(bias.detach().float().numpy())
    if offset is not None and not np.isfinite(offset).all():
        raise InvalidProblem(f"{name}.bias: {offset[~np.isfinite(offset)][0]} at {np.argmin(np.isfinite(offset))}")
    q = quantize_weight(floats, rule.weights, axis=0, name=f"{name}.weight".lstrip("."))
    how = str(rule.weights)
    if products > 1 and _may_fit(module, rule, q):
        q = fit_products(floats, q, products)
        how += f", {_FITTED[products]} fit 16 bits"
    lost = error_report(floats, np.asarray(q.dequantize())).sqnr_db
    if isinstance(module, nn.Embedding):
        table = QuantizedEmbedding(q, module.padding_idx, module.weight.dtype)
        return Made(table.eval(), how, "", lost, table.nbytes)
    options, said = _input_of(rule.activations, given, isinstance(module, nn.Linear))
    made: Any
    if isinstance(module, nn.Linear):
        made = QuantizedLinear(q, offset, **options)
    else:
        geometry = {"padding": numeric_padding(module), "groups": module.groups}
        turns = {"stride": module.stride, "dilation": module.dilation}
        if isinstance(module, nn.Conv1d):
            p = q.params
            q = QuantizedTensor.from_codes(np.expand_dims(q.unpack(), 2), p)
            made = QuantizedConv1d(q, offset, **geometry, **{k: (1, *v) for k, v in turns.items()}, **options)
        else:
            made = QuantizedConv2d(q, offset, **geometry, **turns, **options)
    return Made(made.eval(), how, said, lost, made.nbytes)


def _may_fit(module: Any, rule: Rule, q: QuantizedTensor) -> bool:
    if isinstance(module, nn.Embedding) or rule.activations is None:
        return False
    depthwise = getattr(module, "groups", 1) > 1 and module.weight.shape[1] == 1
    return q.params.axis == 0 and q.params.is_symmetric and q.dtype.name == "int8" and not depthwise


def _input_of(a: ActivationRecipe | None, given: QuantizationParams | None, rows: bool) -> tuple[dict[str, Any], str]:
    """Options of a layer, and how they are said. Dynamic ranges are as fine as the kernels find them: a token's."""
    if a is None:
        return {"activation_dtype": "float"}, ""
    if not a.dynamic:
        if given is None:
            raise Unsupported("no calibration batch reached it")
        return {"input_params": given}, str(a)
    code = "int8" if a.scheme == "symmetric" else "uint8"
    return {"activation_dtype": code}, f"{code} {a.scheme}, dynamic per {'token' if rows else 'tensor'}"
