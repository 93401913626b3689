"""Find the modules of a model that hold weights, and why lowbit has no module for one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch.nn.parameter import is_lazy

import torch
from lowbit.models.roles import HEADS, ROUTERS
from lowbit.numerics.errors import Unsupported, UnsupportedDType
from lowbit.torch.inference.embedding import QuantizedEmbedding
from lowbit.torch.inference.layers import QuantizedModule
from torch import nn

_QUANTIZED: dict[type[nn.Module], str] = {nn.Linear: "linear", nn.Conv1d: "conv", nn.Conv2d: "conv"}
_QUANTIZED |= {nn.Embedding: "embedding", nn.LSTM: "recurrent", nn.GRU: "recurrent", nn.MultiheadAttention: "linear"}
# Modules that multiply by weights, or look them up, for which lowbit has no quantized form.
_FLOAT_ONLY: dict[type[nn.Module], str] = {
    nn.Bilinear: "linear",
    **dict.fromkeys((nn.RNNBase, nn.RNNCellBase), "recurrent"),
    **dict.fromkeys((nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), "conv"),
    nn.EmbeddingBag: "embedding",
}
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class WeightModule:
    """A module with weights, under all of its names."""

    names: tuple[str, ...]
    module: nn.Module
    kind: str  # of models.recipe.KINDS, or empty where nothing is multiplied by its weights
    why_not: str = ""  # why lowbit has no module for it
    stays: str = ""  # why it stays float unless an override names it

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Its own parameters that have values."""
        inside = type(self.module) is nn.MultiheadAttention  # its out_proj is not a module that it calls
        return [p for p in self.module.parameters(recurse=inside) if not is_lazy(p)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its largest parameter."""
        if isinstance(self.module, QuantizedModule | QuantizedEmbedding):
            return tuple(self.module.weight.shape)
        return tuple(max(self.parameters, key=lambda p: p.numel()).shape) if self.parameters else ()

    @property
    def dtype(self) -> str:
        own = next(self.module.parameters(recurse=False), None)
        return "" if own is None else str(own.dtype).removeprefix("torch.")


def find_weight_modules(model: nn.Module) -> list[WeightModule]:
    """Find every module with parameters of its own, in the model's order; each once.

    >>> [(m.name, m.kind, m.why_not) for m in find_weight_modules(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))]
    [('0', 'linear', ''), ('1', '', 'nothing in LayerNorm is multiplied with a weight')]
    """
    names: dict[int, list[str]] = {}
    modules: dict[int, nn.Module] = {}
    inside: dict[int, str] = {}
    parts: set[int] = set()
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(id(module), []).append(name)
        modules[id(module)] = module
        if type(module) is nn.MultiheadAttention:
            parts |= {id(child) for child in module.modules() if child is not module}
        elif read := fused_reader(module):
            for child in module.modules():
                if child is not module:
                    inside[id(child)] = read  # the innermost wins
    found = []
    for key, module in modules.items():
        if key in parts:
            continue
        is_done = isinstance(module, QuantizedModule | QuantizedEmbedding)
        if not is_done and next(module.parameters(recurse=False), None) is None:
            continue
        kind, why_not = ("", "it is quantized already") if is_done else _classify(module, inside.get(key))
        found.append(WeightModule(tuple(names[key]), module, kind, why_not))
    return [replace(m, stays=_stays(m, found, model)) for m in found]


def _stays(source: WeightModule, among: Iterable[WeightModule], model: nn.Module) -> str:
    """Why presets leave it float, as they do in checkpoints: little time is won in it, and much accuracy lost."""
    if source.kind == "embedding":
        return "embeddings stay as they are unless an override names them"
    if not isinstance(source.module, nn.Linear):
        return ""
    tables = [m.module for m in among if isinstance(m.module, nn.Embedding)]
    tied = any(source.module.weight is table.weight for table in tables)
    vocabulary = any(source.module.out_features == table.num_embeddings for table in tables)
    if tied or any(HEADS.search(name) or (name == "output" and vocabulary) for name in source.names):
        return "the output head stays as it is unless an override names it"
    if ROUTERS.search(source.name) and hasattr(model.get_submodule(source.name.rpartition(".")[0]), "experts"):
        return "routers stay as they are unless an override names them"
    return ""


def _classify(module: nn.Module, reader: str | None) -> tuple[str, str]:
    """(kind, why_not) of a module; reader: why its weight is read without a call, if it is."""
    called = type(module).__name__
    for base, kind in _QUANTIZED.items():
        if isinstance(module, base):
            return kind, _unsupported_layer(module, base, reader)
    for base, kind in _FLOAT_ONLY.items():
        if isinstance(module, base):
            return kind, f"no quantized form of {called} here"
    if called == "Conv1D" and hasattr(module, "nf"):  # of transformers
        return "linear", "Conv1D keeps its weight the other way round; no quantized form of it here"
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return "", "a batch norm that is not certain to follow one quantized convolution, and nothing else"
    if type(module).__module__.startswith("torch.nn."):
        return "", f"nothing in {called} is multiplied with a weight"
    return "", f"parameters of {called} itself"


def _unsupported_layer(module: nn.Module, base: type[nn.Module], reader: str | None) -> str:
    if reader is not None:
        return reader
    if hasattr(module, "parametrizations"):
        return "its weight is parametrized"
    if type(module) is not base:
        return f"{type(module).__name__} is a subclass of {base.__name__}, which may compute something else"
    matrices = [p for p in module.parameters(recurse=False) if p.ndim > 1]
    has_one = base not in (nn.LSTM, nn.GRU, nn.MultiheadAttention)
    if not matrices or (has_one and "weight" not in module._parameters):
        return "its weight is computed from other parameters"
    if "forward" in module.__dict__:
        return "its forward was replaced"
    if any(getattr(module, hooks) for hooks in _HOOKS):
        return "has hooks, which may change what it computes"
    if any(p.numel() == 0 for p in matrices):
        return "its weight is empty"
    if any(p.dtype is torch.float64 for p in matrices):
        return "float64, which lowbit's layers do not take"
    if getattr(module, "proj_size", 0):
        return "proj_size: its state is projected, which lowbit's recurrent layers do not do"
    if isinstance(module, nn.MultiheadAttention) and module.bias_k is not None:
        return "add_bias_kv: it adds a key and a value, which lowbit's attention does not do"
    if isinstance(module, nn.Conv1d | nn.Conv2d) and module.padding_mode != "zeros":
        return f"it pads by {module.padding_mode!r}; lowbit's convolutions pad with zeros"
    if isinstance(module, nn.Embedding) and module.max_norm is not None:
        return "max_norm changes its rows as they are looked up"
    return ""


def require_cpu_floats(source: WeightModule) -> None:
    """Raise, naming the parameter, unless all parameters are dense floats in CPU memory."""
    for name, p in source.module.named_parameters(recurse=False):
        full = f"{source.name}.{name}".lstrip(".")
        if p.is_meta:
            raise Unsupported(f"{full}: on the meta device, where it has no values; load the model first")
        if p.device.type != "cpu":
            raise Unsupported(f"{full}: on {p.device}; expected CPU memory: model.cpu()")
        if p.is_nested or p.layout is not torch.strided:
            raise UnsupportedDType(f"{full}: a nested or sparse tensor; expected a dense one")
        if p.dtype not in _FLOATS:
            raise UnsupportedDType(f"{full}: {p.dtype}; expected float32, float16 or bfloat16")


def fused_reader(module: nn.Module) -> str:
    """Why the inner modules of `module` must stay float; empty where they are called, or `for_inference` makes them so.

    The kernels of torch's fused encoder layers read the weights of inner modules without calling them.
    """
    called = type(module).__name__
    if isinstance(module, nn.MultiheadAttention) or (
        isinstance(module, nn.TransformerEncoderLayer) and type(module) is not nn.TransformerEncoderLayer
    ):
        return f"{called} reads its weight without calling it"
    return ""
