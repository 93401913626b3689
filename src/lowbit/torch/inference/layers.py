"""QuantizedLinear, QuantizedConv1d and QuantizedConv2d: lowbit's layers as modules for inference.

Weights are packed once, in memory that torch does not own. A state_dict holds them as plain tensors (`state_dict`).
"""

from __future__ import annotations

import secrets
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

import torch
from lowbit import layers
from lowbit.numerics.errors import FormatError, InvalidProblem, Unsupported
from lowbit.torch.functional.channels_last import is_channels_last
from lowbit.torch.functional.registration import register
from lowbit.torch.inference.state_dict import SavedModule, layer_from_tensors, layer_tensors
from torch import Tensor, nn

# Operators take tensors and numbers, so a module is passed by its number. Numbers are random: a program saved by
# another process must find no module here, rather than a wrong one.
_MODULES: weakref.WeakValueDictionary[int, QuantizedModule] = weakref.WeakValueDictionary()
_NUMBER_BITS = 62


def module_of(number: int) -> QuantizedModule:
    """The quantized module of this number."""
    found = _MODULES.get(number)
    if found is None:
        raise InvalidProblem(
            f"module: no quantized module of this process has the number {number}; expected one that is alive. Saved "
            "programs hold no weights of quantized modules: save state_dict(), and load it with load_quantized"
        )
    return found


def refuse_programs() -> None:
    """Raise while torch saves a program: it would hold a module's number instead of its weights."""
    if torch.compiler.is_exporting():
        asked = "torch.export"
    elif torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]
        asked = "torch.onnx.export(dynamo=False)" if torch.onnx.is_in_onnx_export() else "torch.jit.trace"
    else:
        return
    raise Unsupported(
        f"{asked}: quantized modules keep their weights outside of torch, and the program would not hold them; "
        "export the float model and quantize the ONNX file (`lowbit quantize`), or save state_dict() and load it with "
        "load_quantized"
    )


class QuantizedModule(SavedModule):
    """A layer of lowbit as a module. Copies share the packed weights, which are immutable."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        if getattr(layer, "out_params", None) is not None:
            raise InvalidProblem("out_params: given; a module returns float tensors")
        self._hold(layer)

    @classmethod
    def holding(cls, layer: Any) -> Any:
        """A module of a layer that was made elsewhere."""
        made = cls.__new__(cls)
        QuantizedModule.__init__(made, layer)
        return made

    def _hold(self, layer: Any) -> None:
        self.layer = layer
        self.number = secrets.randbits(_NUMBER_BITS)
        _MODULES[self.number] = self

    @property
    def weight(self) -> Tensor:
        """The dequantized weight, computed at each access; the kernels do not use it."""
        return torch.from_numpy(np.asarray(self.layer.weight.dequantize(dtype=np.float32)))

    @property
    def bias(self) -> Tensor | None:
        return None if self.layer.bias is None else torch.from_numpy(self.layer.bias)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weights, their scales, and the bias."""
        return int(self.layer.nbytes)

    def _saved(self) -> dict[str, Tensor]:
        return layer_tensors(self.layer)

    def _restore(self, tensors: Any, prefix: str) -> None:
        name = prefix.rstrip(".")
        found = layer_from_tensors(tensors, name or type(self).__name__)
        if type(found) is not type(self.layer) or found.weight.shape != self.layer.weight.shape:
            raise FormatError(f"{name}: {found!r}; expected {self.layer!r}")
        self.layer = found  # the number stays: compiled graphs use the new weights

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._hold(self.layer)

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedModule:
        twin = type(self).__new__(type(self))
        twin.__dict__.update({k: v.copy() if isinstance(v, dict) else v for k, v in self.__dict__.items()})
        twin._hold(self.layer)
        memo[id(self)] = twin
        return twin

    def extra_repr(self) -> str:
        text = repr(self.layer)
        return text[text.index("(") + 1 : -1]


class QuantizedLinear(QuantizedModule):
    """lowbit.QuantizedLinear as a module: float32, float16 or bfloat16 in, the same out. A gradient is an error.

    >>> linear = torch.nn.Linear(8, 4)
    >>> quantized = QuantizedLinear.from_float(linear, dtype="int8")
    >>> x = torch.randn(3, 8)
    >>> bool((quantized(x) - linear(x)).abs().max() < 0.1)
    True
    """

    def __init__(self, weight: Any, bias: Any = None, **options: Any) -> None:
        super().__init__(layers.QuantizedLinear(weight, bias, **options))

    @classmethod
    def from_float(cls, module: nn.Linear, **options: Any) -> QuantizedLinear:
        """The same layer with quantized weights; options as for lowbit.QuantizedLinear."""
        return cls(module.weight.detach(), _bias(module), **options)

    @property
    def in_features(self) -> int:
        return int(self.layer.in_features)

    @property
    def out_features(self) -> int:
        return int(self.layer.out_features)

    def forward(self, input: Tensor) -> Tensor:  # named as nn.Linear's
        return quantized_linear(input, self.number, self.layer.out_features)


class QuantizedConv2d(QuantizedModule):
    """lowbit.QuantizedConv2d as a module, images [n, c, h, w] or [c, h, w]. A gradient is an error.

    Images in torch.channels_last give results in that format, without transpositions. `memory_format`, where set, is
    the format of all results (`for_inference` sets it).

    >>> conv = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> x = torch.randn(1, 3, 8, 8)
    >>> bool((QuantizedConv2d.from_float(conv)(x) - conv(x)).abs().max() < 0.2)
    True
    """

    def __init__(self, weight: Any, bias: Any = None, **options: Any) -> None:
        if options.get("layout", "NCHW") != "NCHW":
            raise InvalidProblem(f"layout: {options['layout']!r}; a module takes torch's, 'NCHW'")
        super().__init__(layers.QuantizedConv2d(weight, bias, **options))
        self.memory_format: torch.memory_format | None = None  # None: that of the input

    @classmethod
    def from_float(cls, module: nn.Conv2d, **options: Any) -> QuantizedConv2d:
        """The same convolution with quantized weights; options as for lowbit.QuantizedConv2d."""
        return cls(module.weight.detach(), _bias(module), **geometry_of(module), **options)

    def forward(self, input: Tensor) -> Tensor:
        if input.ndim == 3:
            return self.forward(input.unsqueeze(0)).squeeze(0)
        return quantized_conv2d(input, self.number, list(self.layer.output_shape(tuple(input.shape))))


class QuantizedConv1d(QuantizedModule):
    """nn.Conv1d over quantized weights: [n, c, w] or [c, w], computed as images of height 1. A gradient is an error.

    >>> conv = torch.nn.Conv1d(3, 4, 3, padding=1)
    >>> x = torch.randn(2, 3, 8)
    >>> bool((QuantizedConv1d.from_float(conv)(x) - conv(x)).abs().max() < 0.2)
    True
    """

    def __init__(self, weight: Any, bias: Any = None, **options: Any) -> None:
        super().__init__(layers.QuantizedConv2d(weight, bias, **options))
        if self.layer.weight.shape[2] != 1:
            raise InvalidProblem(f"weight: shape {self.layer.weight.shape}; expected (out, in / groups, 1, width)")

    @classmethod
    def from_float(cls, module: nn.Conv1d, **options: Any) -> QuantizedConv1d:
        """The same convolution with quantized weights; options as for lowbit.QuantizedConv2d."""
        return cls(module.weight.detach().unsqueeze(2), _bias(module), **geometry_of(module), **options)

    @property
    def weight(self) -> Tensor:
        """The dequantized weight [out, in / groups, width], computed at each access."""
        return super().weight.squeeze(2)

    def forward(self, input: Tensor) -> Tensor:
        image = (input.unsqueeze(0) if input.ndim == 2 else input).unsqueeze(2).contiguous()
        y = quantized_conv2d(image, self.number, list(self.layer.output_shape(tuple(image.shape))))
        return y.squeeze(2).squeeze(0) if input.ndim == 2 else y.squeeze(2)


def numeric_padding(module: nn.Conv1d | nn.Conv2d) -> tuple[int, int, int, int]:
    """(top, left, bottom, right) of a convolution that pads with zeros.

    >>> numeric_padding(nn.Conv2d(1, 1, (2, 3), padding="same"))
    (0, 1, 1, 1)
    """
    if module.padding_mode != "zeros":
        raise InvalidProblem(f"padding_mode: {module.padding_mode!r}; expected 'zeros'")
    if isinstance(module.padding, str):
        reach = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        pairs = [(r // 2, r - r // 2) if module.padding == "same" else (0, 0) for r in reach]
    else:
        pairs = [(p, p) for p in module.padding]
    (top, bottom), (left, right) = [(0, 0)] * (2 - len(pairs)) + pairs
    return top, left, bottom, right


def geometry_of(module: nn.Conv1d | nn.Conv2d) -> dict[str, Any]:
    """The options of a convolution of lowbit over images; those of an nn.Conv1d have height 1."""
    height = (1,) * (2 - len(module.stride))
    return {
        "stride": (*height, *module.stride),
        "padding": numeric_padding(module),
        "dilation": (*height, *module.dilation),
        "groups": module.groups,
    }


def _bias(module: Any) -> Any:
    return None if module.bias is None else module.bias.detach().float().numpy()


def _tensor(y: Any, like: Tensor) -> Tensor:
    if like.dtype is torch.bfloat16:
        return torch.from_numpy(y.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(y)


def _array(x: Tensor) -> Any:
    """x for a layer of lowbit: NumPy arrays are the cheapest to pass."""
    return x.detach().numpy() if x.dtype is torch.float32 else x.detach()


def _linear(x: Tensor, number: int, _: int) -> Tensor:
    return _tensor(module_of(number).layer(_array(x)), x)


def _gives_channels_last(x: Tensor, module: QuantizedModule) -> bool:
    said = getattr(module, "memory_format", None)
    return is_channels_last(x) if said is None else said is torch.channels_last


def _conv2d(x: Tensor, number: int, _: Any) -> Tensor:
    module = module_of(number)
    images, is_last, gives_last = _array(x), is_channels_last(x), _gives_channels_last(x, module)
    if not (is_last or gives_last):
        return _tensor(module.layer(images), x)
    if is_last:
        images = images.transpose(0, 2, 3, 1) if isinstance(images, np.ndarray) else images.permute(0, 2, 3, 1)
    y = module.layer(images, "NHWC" if is_last else "NCHW", "NHWC")
    result = _tensor(y.transpose(0, 3, 1, 2), x)  # transposed by NumPy: torch has rules for writing to its own views
    return result if gives_last else result.contiguous()


def _conv2d_shape(x: Tensor, number: int, shape: Any) -> Tensor:
    y = x.new_empty(shape)
    return y.to(memory_format=torch.channels_last) if _gives_channels_last(x, module_of(number)) else y


def _refuse_gradient(dy: Tensor, x: Tensor, of: str) -> Tensor:
    raise Unsupported(
        f"{of}: a gradient by its input was asked for, and quantized modules have none; call them under "
        "torch.no_grad() or detach their result for inference, and train with lowbit.torch.prepare_qat"
    )


# An operator, so that a compiled model fails only where a gradient is asked for.
no_gradient = register(
    "no_gradient(Tensor dy, Tensor x, str of) -> Tensor", _refuse_gradient, lambda dy, x, of: torch.empty_like(x)
)


def _register(schema: str, kernel: Callable[..., Any], shapes: Callable[..., Any]) -> Callable[..., Tensor]:
    """Register an operator of quantized modules, whose gradient is an error."""
    name = schema[: schema.index("(")]
    return register(
        schema,
        kernel,
        shapes,
        tensors=1,
        gradient=lambda dy, x, *_: (no_gradient(dy, x, name),),
        diagonal=False,
        guard=refuse_programs,
    )


quantized_linear = _register(
    "quantized_linear(Tensor x, int module, int out) -> Tensor",
    _linear,
    lambda x, _, out: x.new_empty((*x.shape[:-1], out)),
)
quantized_conv2d = _register("quantized_conv2d(Tensor x, int module, SymInt[] shape) -> Tensor", _conv2d, _conv2d_shape)
