"""Scales of inputs, taken back by the tensors that make these inputs: which ones, in decoders such as llama's.

    y = W x = (W diag(s)) (x / s)

The columns of every W that reads x are multiplied by s, and the tensors that make x are divided by it:

    input_layernorm          -> q_proj, k_proj, v_proj       the norm's weight and bias
    post_attention_layernorm -> gate_proj, up_proj           the norm's weight and bias
    v_proj                   -> o_proj                       its rows and bias; query heads of one value head share s
    up_proj                  -> down_proj                    its rows and bias; down_proj reads act(gate) * up

Tensors are told by their names and shapes. Where a layer has others that might read or make x as well, it is
left alone, since a scale that one reader misses changes the function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from lowbit.numerics.errors import InvalidProblem

Shapes = Mapping[str, tuple[int, ...]]
Index = npt.NDArray[np.intp]

_LAYER = re.compile(r"(.*\blayers\.\d+)\.(.+)")
_NORMS = {"input_layernorm", "post_attention_layernorm"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_FUSED_ATTENTION = {"qkv_proj", "o_proj"}
_MLP = {"gate_proj", "up_proj", "down_proj"}
_FUSED_MLP = {"gate_up_proj", "down_proj"}
_OF_QUERIES = {"q_norm", "k_norm", "rotary_emb"}  # neither reads what norms make, nor makes what o_proj reads


@dataclass(frozen=True)
class ScalingGroup:
    """Tensors that take a scale together: those divided along axis 0, the channels that they make, and those multiplied
    along axis 1, the inputs that they read.

    channel: of each input, the channel that makes it; inputs of the same one have the same scale.
    """

    divided: tuple[str, ...]
    multiplied: tuple[str, ...]
    channel: Index


@dataclass(frozen=True)
class Skipped:
    """A place of a layer that is left alone, and why."""

    name: str
    reason: str


def scaling_groups(shapes: Shapes, *, head_dim: int | None = None) -> tuple[list[ScalingGroup], list[Skipped]]:
    """The groups of a decoder's tensors, and the places that have none.

    shapes: of all tensors, by name, as checkpoints have them (`model.layers.0.self_attn.q_proj.weight`). head_dim: the
    size of a head, which is needed where query heads share value heads; that of a q_norm where there is one. Norms
    must multiply by their weight, and not by 1 + weight as Gemma's do.

    >>> mlp = {"gate_proj": (96, 32), "up_proj": (96, 32), "down_proj": (32, 96)}
    >>> shapes = {f"layers.0.mlp.{name}.weight": shape for name, shape in mlp.items()}
    >>> groups, skipped = scaling_groups(shapes | {"layers.0.post_attention_layernorm.weight": (32,)})
    >>> [(group.divided, len(group.multiplied)) for group in groups][1]
    (('layers.0.mlp.up_proj.weight',), 1)
    """
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        if found := _LAYER.fullmatch(name):
            layers.setdefault(found[1], {})[found[2]] = tuple(shape)
    groups: list[ScalingGroup] = []
    skipped: list[Skipped] = []
    for prefix, tensors in layers.items():
        layer = _Layer(prefix, tensors, head_dim)
        places: list[tuple[str, Callable[[], ScalingGroup]]] = [
            ("input_layernorm", layer.attention_inputs),
            ("self_attn.o_proj", layer.values),
            ("post_attention_layernorm", layer.mlp_inputs),
        ]
        places += [(f"{path}.down_proj", partial(layer.products, path)) for path in layer.parents_of("down_proj")]
        for place, find in places:
            try:
                groups.append(find())
            except _Unknown as reason:
                skipped.append(Skipped(f"{prefix}.{place}", str(reason)))
    return groups, skipped


def folded(group: ScalingGroup, scale: Any, tensors: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a group with the scale folded in, in float32 or wider.

    scale: s of each input, such as that of `awq(..., tied=group.channel)`.

    >>> group = ScalingGroup(("norm",), ("w",), np.arange(2))
    >>> folded(group, [2, 4], {"norm": np.float32([1, 1]), "w": np.float32([[3, 5]])})
    {'norm': array([0.5 , 0.25], dtype=float32), 'w': array([[ 6., 20.]], dtype=float32)}
    """
    s = np.asarray(scale, np.float32)
    if s.shape != group.channel.shape or not (np.isfinite(s) & (s > 0)).all():
        raise InvalidProblem(f"scale: shape {s.shape}; expected {len(group.channel)} positive numbers")
    made = {name: _wide(tensors[name]) for name in (*group.divided, *group.multiplied)}
    of_channel = np.ones(len(made[group.divided[0]]), np.float32)
    of_channel[group.channel] = s
    if not (of_channel[group.channel] == s).all():
        raise InvalidProblem("scale: differs between inputs that one channel makes; expected one for each channel")
    for name in group.divided:
        made[name] = made[name] / of_channel.reshape(-1, *[1] * (made[name].ndim - 1))
    for name in group.multiplied:
        made[name] = made[name] * s
    return made


def _wide(tensor: Any) -> npt.NDArray[Any]:
    array = np.asarray(tensor)
    return array.astype(np.result_type(array.dtype, np.float32), copy=False)


class _Unknown(Exception):
    """Why a place has no group."""


@dataclass(frozen=True)
class _Layer:
    prefix: str
    tensors: Shapes  # by the names within the layer
    head_dim: int | None

    def attention_inputs(self) -> ScalingGroup:
        self._require_norms("input_layernorm", "post_attention_layernorm")
        readers = self._children("self_attn", _ATTENTION, _FUSED_ATTENTION) - {"o_proj"}
        return self._after_norm("input_layernorm", "self_attn", readers)

    def mlp_inputs(self) -> ScalingGroup:
        self._require_norms("post_attention_layernorm")
        readers = self._children("mlp", _MLP, _FUSED_MLP) - {"down_proj"}
        return self._after_norm("post_attention_layernorm", "mlp", readers)

    def values(self) -> ScalingGroup:
        self._children("self_attn", _ATTENTION)
        (made, _), (_, read) = (self._matrix(f"self_attn.{name}") for name in ("v_proj", "o_proj"))
        return self._between("self_attn.v_proj", "self_attn.o_proj", self._heads(made, read))

    def products(self, path: str) -> ScalingGroup:
        self._children(path, _MLP)
        (made, _), (_, read) = (self._matrix(f"{path}.{name}") for name in ("up_proj", "down_proj"))
        if made != read:
            raise _Unknown(f"up_proj makes {made} channels and down_proj reads {read}")
        return self._between(f"{path}.up_proj", f"{path}.down_proj", np.arange(made))

    def parents_of(self, name: str) -> list[str]:
        return [found.removesuffix(f".{name}.weight") for found in self.tensors if found.endswith(f".{name}.weight")]

    def _heads(self, made: int, read: int) -> Index:
        """The channel of v_proj that makes each input of o_proj."""
        if made == read:
            return np.arange(made)
        size = self.head_dim or next(iter(self.tensors.get("self_attn.q_norm.weight", ())), 0)
        if not size or made % size or read % made:
            found = f"head_dim {size}" if size else "an unknown head_dim"
            raise _Unknown(f"v_proj makes {made} channels and o_proj reads {read}, with {found}")
        head = np.arange(read // size) // (read // made)
        return (head[:, None] * size + np.arange(size)).reshape(-1)

    def _require_norms(self, *names: str) -> None:
        parts = {name.split(".")[0] for name in self.tensors}
        if missing := set(names) - parts:
            raise _Unknown(f"no {', '.join(sorted(missing))}")
        if others := parts - _NORMS - {"self_attn", "mlp"}:
            raise _Unknown(f"what {', '.join(sorted(others))} reads or makes is not known")

    def _children(self, path: str, *known: set[str]) -> set[str]:
        """The linear layers below a path, which must be one of the known sets."""
        below = [name.removeprefix(f"{path}.").split(".") for name in self.tensors if name.startswith(f"{path}.")]
        found = {parts[0] for parts in below} - _OF_QUERIES
        if found not in known:
            raise _Unknown(
                f"{path} has {', '.join(sorted(found)) or 'nothing'}; known is {', '.join(sorted(known[0]))}"
            )
        if others := {".".join(parts) for parts in below if parts[1:] not in (["weight"], ["bias"])} - _OF_QUERIES:
            raise _Unknown(f"{path} has {', '.join(sorted(others))}; expected weights and biases")
        return found

    def _matrix(self, module: str) -> tuple[int, int]:
        shape = self.tensors.get(f"{module}.weight", ())
        if len(shape) != 2:
            raise _Unknown(f"{module}.weight has shape {shape}; expected a matrix")
        return shape[0], shape[1]

    def _after_norm(self, norm: str, path: str, readers: set[str]) -> ScalingGroup:
        modules = [f"{path}.{name}" for name in sorted(readers)]
        inputs = {self._matrix(module)[1] for module in modules}
        if len(inputs) > 1 or self.tensors.get(f"{norm}.weight") != (*inputs,):
            raise _Unknown(
                f"{norm}.weight has shape {self.tensors.get(f'{norm}.weight')}; {path} reads {inputs} inputs"
            )
        multiplied = tuple(f"{self.prefix}.{module}.weight" for module in modules)
        return ScalingGroup(self._parameters(norm), multiplied, np.arange(*inputs))

    def _between(self, maker: str, reader: str, channel: Index) -> ScalingGroup:
        return ScalingGroup(self._parameters(maker), (f"{self.prefix}.{reader}.weight",), channel)

    def _parameters(self, module: str) -> tuple[str, ...]:
        names = (f"{module}.{field}" for field in ("weight", "bias"))
        return tuple(f"{self.prefix}.{name}" for name in names if name in self.tensors)
