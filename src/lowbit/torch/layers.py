"""Modules over quantized weights, for inference: lowbit's integer kernels behind nn.Module.

Weights are packed once and live beside torch's own memory; state_dict keeps them as extra state.
"""

from __future__ import annotations

import itertools
import pickle
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lowbit import layers
from lowbit.errors import InvalidProblem
from lowbit.torch.library import _define

__all__ = ["QuantizedConv2d", "QuantizedLinear"]

# Operators take tensors and numbers: a module goes by its number.
_MODULES: weakref.WeakValueDictionary[int, _Quantized] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


class _Quantized(nn.Module):
    """A layer of lowbit as a module."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        if getattr(layer, "out_params", None) is not None:
            raise InvalidProblem("out_params: given; a module returns float tensors")
        self._hold(layer)

    def _hold(self, layer: Any) -> None:
        self.layer = layer
        self.number = next(_NUMBERS)
        _MODULES[self.number] = self

    def get_extra_state(self) -> Tensor:
        return torch.frombuffer(bytearray(pickle.dumps(self.layer)), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        found = pickle.loads(state.numpy().tobytes())
        if type(found) is not type(self.layer):
            raise InvalidProblem(f"state: a {type(found).__name__}; expected a {type(self.layer).__name__}")
        self._hold(found)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._hold(self.layer)

    def __deepcopy__(self, memo: dict[int, Any]) -> _Quantized:
        twin = type(self).__new__(type(self))
        nn.Module.__init__(twin)
        twin.training = self.training
        twin._hold(pickle.loads(pickle.dumps(self.layer)))
        return twin

    def extra_repr(self) -> str:
        text = repr(self.layer)
        return text[text.index("(") + 1 : -1]


class QuantizedLinear(_Quantized):
    """lowbit.QuantizedLinear as a module: float32, float16 or bfloat16 in, the same out. No gradients.

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
        bias = None if module.bias is None else module.bias.detach().float().numpy()
        return cls(module.weight.detach(), bias, **options)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = quantized_linear(x, self.number, self.layer.out_features)
        return y


class QuantizedConv2d(_Quantized):
    """lowbit.QuantizedConv2d as a module, images [n, c, h, w]. No gradients.

    >>> conv = torch.nn.Conv2d(3, 4, 3, padding=1)
    >>> x = torch.randn(1, 3, 8, 8)
    >>> bool((QuantizedConv2d.from_float(conv)(x) - conv(x)).abs().max() < 0.2)
    True
    """

    def __init__(self, weight: Any, bias: Any = None, **options: Any) -> None:
        if options.get("layout", "NCHW") != "NCHW":
            raise InvalidProblem(f"layout: {options['layout']!r}; a module takes torch's, 'NCHW'")
        super().__init__(layers.QuantizedConv2d(weight, bias, **options))

    @classmethod
    def from_float(cls, module: nn.Conv2d, **options: Any) -> QuantizedConv2d:
        """The same convolution with quantized weights; options as for lowbit.QuantizedConv2d."""
        if module.padding_mode != "zeros" or isinstance(module.padding, str):
            raise InvalidProblem(f"padding: {module.padding}, {module.padding_mode}; expected numbers of zeros")
        bias = None if module.bias is None else module.bias.detach().float().numpy()
        return cls(
            module.weight.detach(), bias, stride=tuple(module.stride), padding=tuple(module.padding),
            dilation=tuple(module.dilation), groups=module.groups, **options,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        shape = self.layer.output_shape(tuple(x.shape))
        y: Tensor = quantized_conv2d(x, self.number, list(shape))
        return y


def _run(x: Tensor, number: int, _: Any) -> Tensor:
    y = _MODULES[number].layer(x)
    if x.dtype is torch.bfloat16:
        return torch.from_numpy(y.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(y)


quantized_linear = _define(
    "quantized_linear(Tensor x, int module, int out) -> Tensor",
    _run, lambda x, _, out: x.new_empty((*x.shape[:-1], out)),
)  # fmt: skip
quantized_conv2d = _define(
    "quantized_conv2d(Tensor x, int module, SymInt[] shape) -> Tensor",
    _run, lambda x, _, shape: x.new_empty(shape),
)  # fmt: skip
