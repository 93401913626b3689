"""A causal language model of transformers, of which the weights of one decoder layer are in memory at a time.

The model is built without its weights. Its own code computes what each decoder layer is called with: in a run where all
layers only note their arguments. A layer is then given its weights and called on the hidden states of each sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import transformers

import torch
from lowbit.formats.compressed_tensors.scheme import FLOATS, widened
from lowbit.formats.safetensors.checkpoint import Checkpoint
from lowbit.numerics.dtypes import Array
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported
from lowbit.runtime.threads import get_num_threads
from torch import Tensor, nn

_RESIDENT = 1 << 26  # bytes of a parameter outside the layers that stays in memory, such as a norm's


class _Stop(Exception):
    """Ends a run of the model after its last layer."""


class LayerwiseModel:
    """The model of a checkpoint folder; weights are computed with in float32."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.model = _built(checkpoint)
        self.layers_name, self.layers = _decoder_layers(self.model)
        self._arguments: dict[int, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}  # by length, of each layer
        self._tensors = self._find_tensors()
        self._load_rest()

    @property
    def vocabulary(self) -> int:
        """Tokens that have an embedding."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    @property
    def positions(self) -> int | None:
        """Tokens of a sequence at most; None where the model does not say."""
        found = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        return found if isinstance(found, int) else None

    @property
    def width(self) -> int:
        return int(self.model.get_input_embeddings().weight.shape[1])

    def linears(self, index: int) -> dict[str, nn.Linear]:
        """The linear layers in a decoder layer, by the names of their weights in the checkpoint."""
        prefix = f"{self.layers_name}.{index}."
        found = {
            f"{prefix}{name}.weight": m for name, m in self.layers[index].named_modules() if isinstance(m, nn.Linear)
        }
        return {self._tensors[name]: m for name, m in found.items()}

    def layer_nbytes(self, index: int) -> int:
        """Memory of a layer's weights."""
        return 4 * sum(p.numel() for p in self.layers[index].parameters())

    def running_nbytes(self, lengths: Iterable[int]) -> int:
        """An estimate of what running a layer takes besides its weights: activations, in each thread."""
        widest = max((m.out_features for m in self.linears(0).values()), default=self.width)
        return 4 * get_num_threads() * max(lengths, default=0) * (3 * widest + 8 * self.width)

    def embedded(self, tokens: Array) -> Tensor:
        """What the first layer is given of a sequence, [1, tokens, width]."""
        found: list[Tensor] = []

        def note(index: int, hidden: Tensor, rest: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
            if index == 0:
                found.append(hidden)
            return hidden

        self._run(tokens, note)
        if found[0].is_meta:
            missing = [n for n, _ in self.model.named_parameters() if n not in self._tensors]
            raise FormatError(
                f"{', '.join(missing[:3])}: not in the checkpoint, which {type(self.model).__name__} needs"
            )
        return found[0]

    def prepare(self, tokens: Array) -> None:
        """Find what the layers are called with for sequences of this length."""
        if len(tokens) in self._arguments:
            return
        other = (tokens[::-1] + 1) % self.vocabulary
        found = [self._noted(given) for given in (tokens, other)]
        if not all(_same(a, b) for a, b in zip(*found, strict=True)):
            raise Unsupported(
                f"{type(self.model).__name__}: its layers take arguments that depend on the tokens, so they cannot "
                f"run one "
                "at a time; quantize with statistics of torch's modules (lowbit.torch.observe_moments)"
            )
        self._arguments[len(tokens)] = found[0]

    def call(self, index: int, hidden: Tensor) -> Tensor:
        """What a loaded layer makes of hidden states [1, tokens, width]."""
        rest, keywords = self._arguments[hidden.shape[1]][index]
        made = self.layers[index](hidden, *rest, **keywords)
        return made[0] if isinstance(made, tuple) else made  # type: ignore[no-any-return]

    @contextmanager
    def loaded(self, index: int) -> Iterator[nn.Module]:
        """A decoder layer with its weights."""
        layer = self.layers[index]
        prefix = f"{self.layers_name}.{index}."
        try:
            self._load(layer, prefix)
            yield layer
        finally:
            layer.to("meta")

    def _noted(self, tokens: Array) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        found = []

        def note(index: int, hidden: Tensor, rest: tuple[Any, ...], keywords: dict[str, Any]) -> Tensor:
            found.append((rest, keywords))
            return hidden

        self._run(tokens, note)
        return found

    def _run(self, tokens: Array, call: Callable[[int, Tensor, tuple[Any, ...], dict[str, Any]], Tensor]) -> None:
        """Run the model with `call` in place of each layer, up to the last."""
        real = list(self.layers)
        embedding = self.model.get_input_embeddings()
        # Only the rows of tokens that occur are read; where they are is what the model sees as tokens.
        unique, places = _unique(tokens)
        rows = self._rows(self._tensors[_name_of(self.model, embedding.weight)], unique)
        kept, padding = embedding.weight, getattr(embedding, "padding_idx", None)
        try:
            for i in range(len(real)):
                self.layers[i] = _Noting(real[i], i, i + 1 == len(real), call)
            embedding.weight, embedding.padding_idx = nn.Parameter(rows, requires_grad=False), None
            with torch.no_grad():
                self.model(input_ids=places, use_cache=False)
        except _Stop:
            return
        finally:
            for i, layer in enumerate(real):
                self.layers[i] = layer
            embedding.weight, embedding.padding_idx = kept, padding
        raise Unsupported(f"{type(self.model).__name__}: it does not call its layers one after the other")

    def _rows(self, name: str, tokens: Array) -> Tensor:
        table = self._checkpoint.read(name)
        rows = torch.from_numpy(np.array(widened(table[tokens], self._checkpoint.tensors[name].dtype)))
        del table
        self._checkpoint.release(name)
        return rows

    def _find_tensors(self) -> dict[str, str]:
        """The tensor of the checkpoint for each parameter, by name."""
        held = self._checkpoint.tensors
        base = f"{self.model.base_model_prefix}."
        tied = _tied_names(self.model)
        found, absent = {}, []
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            names = (name, name.removeprefix(base), base + name, *tied.get(name, ()))
            stored = next((n for n in names if n in held), None)
            if stored is None:
                absent.append(name)
            elif held[stored].shape != tuple(parameter.shape):
                raise FormatError(
                    f"{stored}: shape {held[stored].shape}; {type(self.model).__name__} by config.json has "
                    f"{tuple(parameter.shape)} there"
                )
            elif held[stored].dtype not in FLOATS:
                raise FormatError(f"{stored}: {held[stored].dtype}; expected {', '.join(FLOATS)}")
            else:
                found[name] = stored
        inside = [name for name in absent if name.startswith(f"{self.layers_name}.")]
        if inside:
            raise Unsupported(
                f"{inside[0]}: not in the checkpoint as {type(self.model).__name__} of transformers holds it, with "
                f"{len(inside)} "
                "more in its layers, so it cannot run one layer at a time; quantize without data (method mse)"
            )
        return found

    def _load_rest(self) -> None:
        """Load the parameters outside the layers that are small, such as position embeddings and norms."""
        inside = f"{self.layers_name}."
        for name, parameter in list(self.model.named_parameters()):
            if name in self._tensors and not name.startswith(inside) and 4 * parameter.numel() <= _RESIDENT:
                module, _, last = name.rpartition(".")
                _set(self.model.get_submodule(module), last, self._tensor(self._tensors[name]))

    def _load(self, module: nn.Module, prefix: str) -> None:
        for name, _ in list(module.named_parameters()):
            inner, _, last = name.rpartition(".")
            _set(module.get_submodule(inner), last, self._tensor(self._tensors[prefix + name]))

    def _tensor(self, name: str) -> Tensor:
        array = self._checkpoint.read(name)
        found = torch.from_numpy(np.array(widened(array, self._checkpoint.tensors[name].dtype)))
        del array
        self._checkpoint.release(name)
        return found


class _Noting(nn.Module):
    """Stands for a decoder layer, with its attributes, and only notes what it is called with."""

    def __init__(self, layer: nn.Module, index: int, is_last: bool, note: Callable[..., Tensor]) -> None:
        super().__init__()
        self._like, self._index, self._is_last, self._noted = [layer], index, is_last, note

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._like[0], name)

    def forward(self, *given: Any, **keywords: Any) -> Any:
        hidden = given[0] if given else keywords.pop("hidden_states")
        made = self._noted(self._index, hidden, given[1:], keywords)
        if self._is_last:
            raise _Stop
        return made


def _built(checkpoint: Checkpoint) -> Any:
    folder = checkpoint.folder
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever the file makes transformers raise
        text = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        raise InvalidProblem(
            f"data: {folder} has no config.json of a model that transformers knows ({text}), so it cannot be run"
        ) from None
    try:
        with _parameters_on_meta():
            kind: Any = transformers.AutoModelForCausalLM
            model = kind.from_config(config, dtype=torch.float32, trust_remote_code=False)
    except ValueError as error:
        text = str(error).strip().splitlines()[0][:200]
        raise Unsupported(
            f"data: transformers has no causal language model for {config.model_type!r} ({text})"
        ) from None
    return model.eval().requires_grad_(False)


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Build modules whose parameters take no memory; buffers are made as usual."""
    plain = nn.Module.register_parameter

    def register(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        plain(module, name, parameter)

    nn.Module.register_parameter = register  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        nn.Module.register_parameter = plain  # type: ignore[method-assign]


def _decoder_layers(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The list of modules that holds most parameters, and its name."""
    lists = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise Unsupported(f"{type(model).__name__}: no list of decoder layers in it")
    return max(lists, key=lambda each: (sum(p.numel() for p in each[1].parameters()), -len(each[0])))


def _tied_names(model: nn.Module) -> dict[str, list[str]]:
    """The other names of parameters that share their tensor."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    if getattr(model.config, "tie_word_embeddings", False) and model.get_output_embeddings() is not None:  # type: ignore[operator]
        head, table = (_name_of(model, m.weight) for m in (model.get_output_embeddings(), model.get_input_embeddings()))  # type: ignore[operator]
        names.setdefault(-1, []).extend([head, table])
    return {name: shared for shared in names.values() for name in shared}


def _name_of(model: nn.Module, parameter: Tensor) -> str:
    return next(name for name, p in model.named_parameters(remove_duplicate=False) if p is parameter)


def _set(module: nn.Module, name: str, value: Tensor) -> None:
    setattr(module, name, nn.Parameter(value, requires_grad=False))


def _unique(tokens: Array) -> tuple[Array, Tensor]:
    unique, places = torch.unique(torch.from_numpy(tokens.copy()), return_inverse=True)
    return unique.numpy(), places[None]


def _same(a: Any, b: Any) -> bool:
    """Whether arguments of two calls are equal."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return a is b or (a == b if isinstance(a, bool | int | float | str) else type(a) is type(b))
