"""Quantized layers as the plain tensors of a state_dict, without pickle.

A layer is codes, scales, zero points, a bias, and `lowbit`: a tensor of bytes with a JSON description.
torch.load(weights_only=True) and safetensors read all of them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

import torch
from lowbit import layers
from lowbit.numerics.errors import FormatError
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from torch import Tensor, nn

DESCRIPTION = "lowbit"  # the tensor that describes the others
TENSOR_NAMES = (
    *(DESCRIPTION, "weight_codes", "weight_scale", "weight_zero_point"),
    *("bias", "input_scale", "input_zero_point"),
)
_VERSION = 1
_TENSORS = ("scale", "zero_point", "scale_dtype")  # the fields of params that are not in the description
_GEOMETRY = ("stride", "padding", "dilation", "groups")
_KINDS: dict[str, type[Any]] = {"linear": layers.QuantizedLinear, "conv2d": layers.QuantizedConv2d}


def layer_tensors(layer: Any) -> dict[str, Tensor]:
    """The tensors of a QuantizedLinear or QuantizedConv2d of lowbit.

    >>> found = layer_tensors(layers.QuantizedLinear(np.eye(4, dtype=np.float32)))
    >>> sorted(found)
    ['lowbit', 'weight_codes', 'weight_scale', 'weight_zero_point']
    >>> layer_from_tensors(found, "layer")
    QuantizedLinear(in=4, out=4, int8, activation_dtype='int8')
    """
    kind = next(name for name, of in _KINDS.items() if type(layer) is of)
    text: dict[str, Any] = {"kind": kind, "activation": layer.activation_dtype}
    tensors: dict[str, Tensor] = {}
    if kind == "conv2d":
        text |= {name: getattr(layer.geometry, name) for name in _GEOMETRY}
        if layer.clamp is not None:
            text["clamp"] = [str(bound) for bound in layer.clamp]  # JSON has no infinity
    if layer.bias is not None:
        tensors["bias"] = torch.from_numpy(layer.bias.copy())
    given = layer.input_params
    if given is not None:
        text["input"] = _fields(given)
        tensors |= _scale_tensors(given, "input")
    return tensors | weight_tensors(layer.weight, text)


class SavedModule(nn.Module):
    """A module that a state_dict holds as the tensors of `_saved`, by local names."""

    tensor_names: ClassVar[tuple[str, ...]] = TENSOR_NAMES
    _saved: Callable[[], dict[str, Tensor]]

    def _restore(self, tensors: Mapping[str, Any], prefix: str) -> None:
        """Take the tensors back; FormatError where they do not fit."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        for name, tensor in self._saved().items():
            destination[prefix + name] = tensor

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, metadata: Any, strict: bool, missing: Any, unexpected: Any, errors: Any
    ) -> None:
        own = {key[len(prefix) :]: value for key, value in state_dict.items() if key.startswith(prefix)}
        unexpected += [prefix + key for key in own if strict and key not in self.tensor_names]
        if DESCRIPTION not in own:
            missing.append(prefix + DESCRIPTION)
            return
        try:
            self._restore(own, prefix)
        except FormatError as error:
            errors.append(str(error))


def weight_tensors(weight: QuantizedTensor, text: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a weight; `text` describes its layer."""
    p = weight.params
    said = {**text, "weight": {**_fields(p), "shape": list(weight.shape)}}
    return {
        DESCRIPTION: description_tensor(said),
        "weight_codes": torch.from_numpy(np.array(weight.data)),
        **_scale_tensors(p, "weight"),
    }


def _scale_tensors(p: QuantizationParams, of: str) -> dict[str, Tensor]:
    return {
        f"{of}_scale": torch.from_numpy(np.array(p.scale, np.float32)),
        f"{of}_zero_point": torch.from_numpy(np.array(p.zero_point, np.int32)),
    }


def description_tensor(text: Mapping[str, Any]) -> Tensor:
    """A description as a tensor of bytes."""
    said = {"version": _VERSION, **text}
    return torch.frombuffer(bytearray(json.dumps(said).encode()), dtype=torch.uint8)


def read_description(tensors: Mapping[str, Tensor], name: str) -> dict[str, Any]:
    """The description of a layer: its kind and its settings. `name` names the layer in errors."""
    raw = tensors.get(DESCRIPTION)
    if not isinstance(raw, Tensor) or raw.dtype is not torch.uint8 or raw.ndim != 1:
        raise FormatError(f"{name}.{DESCRIPTION}: expected a row of bytes")
    try:
        text = json.loads(raw.cpu().numpy().tobytes())
    except ValueError as error:
        raise FormatError(f"{name}.{DESCRIPTION}: not JSON ({error})") from None
    if not isinstance(text, dict) or text.get("version") != _VERSION:
        raise FormatError(f"{name}.{DESCRIPTION}: expected a description of version {_VERSION}")
    return text


def layer_from_tensors(tensors: Mapping[str, Tensor], name: str) -> Any:
    """The layer that `layer_tensors` saved. Everything is checked; FormatError says what does not fit."""
    text = read_description(tensors, name)
    kind = text.get("kind")
    if kind not in _KINDS:
        raise FormatError(f"{name}.{DESCRIPTION}: a layer of kind {kind!r}; expected {' or '.join(_KINDS)}")
    weight = weight_from_tensors(tensors, text, name)
    try:
        options: dict[str, Any] = {"activation_dtype": text.get("activation")}
        if kind == "conv2d":
            options |= {key: text[key] for key in _GEOMETRY}
            options["clamp"] = text.get("clamp")
        if "input" in text:
            options["input_params"] = _params(text["input"], tensors, "input", name)
        bias = _array(tensors, "bias", name) if "bias" in tensors else None
        return _KINDS[kind](weight, bias, **options)
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise format_error(name, error) from None


def weight_from_tensors(tensors: Mapping[str, Tensor], text: Mapping[str, Any], name: str) -> QuantizedTensor:
    """The weight that `weight_tensors` saved."""
    try:
        said = dict(text["weight"])
        shape = tuple(said.pop("shape"))
        codes = _array(tensors, "weight_codes", name)
        return QuantizedTensor(codes, _params(said, tensors, "weight", name), shape)
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise format_error(name, error) from None


def format_error(name: str, error: Exception) -> FormatError:
    """The error as one of the layer of this name."""
    if isinstance(error, FormatError) and str(error).startswith(name):
        return error
    what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    return FormatError(f"{name}: {what}")


def _fields(p: QuantizationParams) -> dict[str, Any]:
    return {k: v for k, v in p.to_dict().items() if k not in _TENSORS}


def _params(said: Mapping[str, Any], tensors: Mapping[str, Tensor], of: str, name: str) -> QuantizationParams:
    scale, zero = (_array(tensors, f"{of}_{part}", name) for part in ("scale", "zero_point"))
    if scale.dtype != np.float32 or zero.dtype != np.int32:
        raise FormatError(f"scale, zero_point: {scale.dtype}, {zero.dtype}; expected float32 and int32")
    return QuantizationParams.from_dict({**said, "scale": scale, "scale_dtype": "float32", "zero_point": zero})


def _array(tensors: Mapping[str, Tensor], key: str, name: str) -> Any:
    found = tensors.get(key)
    if not isinstance(found, Tensor):
        raise FormatError(f"{name}.{key}: missing")
    return found.detach().cpu().contiguous().numpy()
