"""load_quantized: a quantized model from its float skeleton and a state_dict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from lowbit.numerics.errors import FormatError, InvalidProblem
from lowbit.torch.inference.attention import COMPOSED
from lowbit.torch.inference.embedding import QuantizedEmbedding
from lowbit.torch.inference.folding import CLAMPS, Folded, for_inference, replace_modules
from lowbit.torch.inference.layers import QuantizedConv1d, QuantizedConv2d, QuantizedLinear, QuantizedModule
from lowbit.torch.inference.state_dict import DESCRIPTION, TENSOR_NAMES, layer_from_tensors, read_description
from torch import Tensor, nn

_COMPOSED = {made.kind: made for made in COMPOSED.values()}
M = TypeVar("M", bound=nn.Module)
_FLOAT: dict[type[nn.Module], type[nn.Module]] = {
    QuantizedLinear: nn.Linear,
    QuantizedConv1d: nn.Conv1d,
    QuantizedConv2d: nn.Conv2d,
}


def load_quantized(model: M, state: Mapping[str, Tensor]) -> M:
    """Replace the layers of a float model that `state` holds quantized, and load everything else from it.

    model: built as usual; its values do not matter, it may be on the meta device, and it is changed. state: the
    state_dict of a model from `quantize`, as torch.load(weights_only=True) or safetensors give it. Nothing is
    unpickled, and every tensor is checked: FormatError says which does not fit.

    >>> import torch
    >>> def network():
    ...     return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> from lowbit.torch import quantize
    >>> small = quantize(network())
    >>> again = load_quantized(network(), small.state_dict())
    >>> x = torch.randn(2, 64)
    >>> bool((again(x) == small(x)).all())
    True
    """
    if not isinstance(model, nn.Module):
        raise InvalidProblem(f"model: {type(model).__name__}; expected a torch.nn.Module")
    if not isinstance(state, Mapping):
        raise InvalidProblem(f"state: {type(state).__name__}; expected a state_dict")
    modules = dict(model.named_modules(remove_duplicate=False))
    new: dict[str, nn.Module] = {}
    taken = set()
    made: dict[nn.Module, nn.Module] = {}  # a module under two names is made once
    described = [key.rpartition(".")[0] for key in state if key.rpartition(".")[2] == DESCRIPTION]
    for name in sorted(described, key=len):  # a module before those inside it
        prefix = f"{name}." if name else ""
        if prefix + DESCRIPTION in taken:
            continue
        if name not in modules:
            raise FormatError(f"{prefix}{DESCRIPTION}: the model has no module {name!r}")
        own = _own(state, prefix, name or "model")
        taken |= {prefix + n for n in own}
        old = modules[name]
        new[name] = made[old] = made.get(old) or _module(own, old, name or "model")
    meta = any(p.is_meta for p in model.parameters())
    result = replace_modules(model, new)
    rest = {key: value for key, value in state.items() if key not in taken}
    outcome = result.load_state_dict(rest, strict=False, assign=meta)
    missing = [key for key in outcome.missing_keys if key not in taken]
    wrong = {"missing": missing, "unexpected": outcome.unexpected_keys}
    if any(wrong.values()):
        said = [f"{what} {', '.join(keys)}" for what, keys in wrong.items() if keys]
        raise FormatError(f"state: {'; '.join(said)}")
    return for_inference(result)  # type: ignore[no-any-return]


def _own(state: Mapping[str, Tensor], prefix: str, name: str) -> dict[str, Tensor]:
    """The tensors of a module by local names, with those of the products inside it."""
    found = {n: state[prefix + n] for n in TENSOR_NAMES if prefix + n in state}
    if read_description(found, name).get("kind") in _COMPOSED:
        inside = (key.removeprefix(prefix) for key in state if key.startswith(prefix))
        found |= {n: state[prefix + n] for n in inside if n.count(".") == 1 and n.split(".")[1] in TENSOR_NAMES}
    return found


def _module(own: Mapping[str, Tensor], old: Any, name: str) -> nn.Module:
    kind = read_description(own, name).get("kind")
    if kind == "folded":
        if not isinstance(old, nn.modules.batchnorm._BatchNorm | Folded) and type(old) not in CLAMPS:
            raise FormatError(f"{name}: a folded batch norm or activation; the model has {type(old).__name__} there")
        return Folded()
    if kind in _COMPOSED:
        return _COMPOSED[kind].from_tensors(own, old, name)  # type: ignore[no-any-return]
    found: Any
    kinds: tuple[type[nn.Module], ...]
    if kind == "embedding":
        found, kinds = QuantizedEmbedding.from_tensors(own, name), (nn.Embedding, QuantizedEmbedding)
    else:
        layer = layer_from_tensors(own, name)
        of: type[QuantizedModule] = QuantizedLinear if kind == "linear" else QuantizedConv2d
        if isinstance(old, nn.Conv1d | QuantizedConv1d):
            of = QuantizedConv1d
        found, kinds = of.holding(layer), (_FLOAT[of], of)
    shape = tuple(old.weight.shape) if isinstance(old, kinds) and isinstance(old.weight, Tensor) else None
    if shape != tuple(found.weight.shape):
        raise FormatError(f"{name}: {found}; the model has {old} there")
    return found.eval()  # type: ignore[no-any-return]
