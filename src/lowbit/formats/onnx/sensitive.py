"""Which weights of 4 bits and less a graph does not bear, and what they get instead.

One scale for all of a filter ruins convolutions at 4 bits (OCR: 99.7 % of characters right become 0.15 %). Groups along
the inputs of a filter, with zero points, hold (98.2 %), and 99.0 % with depthwise filters in int8. The first layer and
the one behind each output are a small part of a model, and of the largest effect.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.model_file import reads
from lowbit.formats.onnx.weight_uses import WeightUse
from lowbit.models.recipe import Rule, WeightRecipe

_WIDE = WeightRecipe("int8")
_CONV_GROUP = 32
_LEAST_INPUTS = 32  # of a filter, for groups


def spared(graph: Graph, uses: Iterable[WeightUse]) -> dict[str, str]:
    """Why weights, by name, get 8 bits in a recipe of 4: the first layers, those behind outputs, depthwise filters."""
    uses = [u for u in uses if u.kind != "other"]
    layers = {u.node.name for u in uses}
    first, last = _first(graph, layers), _last(graph, layers)
    found = {}
    for use in uses:
        if use.kind != "embedding" and use.node.name in first:
            found[use.name] = "a first layer"
        elif use.kind != "embedding" and use.node.name in last:
            found[use.name] = "an output layer"
        elif use.kind == "conv" and math.prod(use.shape) // use.shape[use.channel_axis] < _LEAST_INPUTS:
            found[use.name] = "few inputs per filter"
    return found


def adapted(rule: Rule, use: WeightUse, why: str) -> tuple[Rule, str]:
    """The rule for a weight, and a note where it is not the recipe's. why: as `spared` gives it, or empty."""
    w = rule.weights
    if w.dtype not in ("int4", "uint4") or rule.skip:
        return rule, ""
    if why:
        return replace(rule, weights=_WIDE), f"8 bits: {why}"
    if use.kind == "conv" and (w.group_size or math.inf) > _CONV_GROUP:
        return replace(rule, weights=WeightRecipe("uint4", "asymmetric", _CONV_GROUP, method=w.method)), ""
    return rule, ""


def _first(graph: Graph, layers: set[str]) -> set[str]:
    """The layers that no other layer comes before."""
    return _unreached(((n.name, reads(n), n.output) for n in graph.nodes), layers)


def _last(graph: Graph, layers: set[str]) -> set[str]:
    """The layers that no other layer comes after."""
    return _unreached(((n.name, n.output, reads(n)) for n in reversed(graph.nodes)), layers)


def _unreached(steps: Iterable[tuple[str, Iterable[str], Iterable[str]]], layers: set[str]) -> set[str]:
    """The layers on no way from another one; steps: name of a node, tensors on its near side, those on its far side."""
    beyond: set[str] = set()  # tensors on the far side of a layer
    found = set()
    for name, near, far in steps:
        is_reached = any(tensor in beyond for tensor in near)
        if name in layers and not is_reached:
            found.add(name)
        if is_reached or name in layers:
            beyond.update(filter(None, far))  # an empty name is an output or input that is left out
    return found
