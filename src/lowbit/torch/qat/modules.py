"""Layers that train with quantized weights and inputs, and the layers they become."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

import torch
from lowbit import ops
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.torch.qat.observers import FixedBuffers
from lowbit.torch.qat.quantizer import FakeQuantize
from torch import Tensor, nn


class _QAT(nn.Module):
    """A float layer with quantizers for its weight and its input, and the batch norm that follows it, if any.

    The weight that is quantized is weight * f with f = gamma / sqrt(running_var + eps) per channel. In training the
    quantized weight is divided by f again, so that the batch norm sees and learns what it would without quantization.
    In inference its statistics are part of the bias. The gradient treats f as a constant, because f cancels out but
    for rounding.
    """

    weight: Any
    bias: Any
    weight_quant: FakeQuantize
    input_quant: FakeQuantize | None
    bn: Any  # the BatchNorm1d or BatchNorm2d, or None
    _compute: Callable[..., Tensor]  # of x, weight and bias

    @classmethod
    def from_float(
        cls, layer: nn.Module, weight_quant: FakeQuantize, input_quant: FakeQuantize | None = None, bn: Any = None
    ) -> Any:
        """Add quantizers to a layer; the parameters are shared, not copied."""
        new = cls.__new__(cls)
        nn.Module.__init__(new)
        new.__dict__.update({k: v for k, v in layer.__dict__.items() if k not in new.__dict__})
        new.training = layer.training
        new.weight = layer.weight
        new.register_parameter("bias", layer.bias)  # type: ignore[arg-type]
        new.weight_quant, new.input_quant, new.bn = weight_quant, input_quant, bn
        if bn is not None and (bn.running_var is None or bn.running_mean is None):
            raise InvalidProblem("bn: keeps no running statistics; expected track_running_stats=True")
        if weight_quant.mode == "learned":
            weight_quant._start(new._folded()[0].detach())
        weight_quant.train(layer.training)
        if input_quant is not None:
            input_quant.train(layer.training)
        return new

    def _factor(self) -> Tensor:
        factor = torch.rsqrt(self.bn.running_var + self.bn.eps)
        return factor if self.bn.weight is None else factor * self.bn.weight

    def _channels(self, values: Tensor) -> Tensor:
        """One value per output channel, shaped to broadcast with the weight."""
        return values.reshape(-1, *(1 for _ in self.weight.shape[1:]))

    def _folded(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias of the layer and its batch norm as one layer in inference."""
        bn = self.bn
        if bn is None:
            return self.weight, self.bias
        factor, mean = self._factor(), bn.running_mean
        bias = -factor * (mean if self.bias is None else mean - self.bias)
        return self.weight * self._channels(factor), bias if bn.bias is None else bias + bn.bias

    def forward(self, x: Tensor) -> Tensor:
        if self.input_quant is not None:
            x = self.input_quant(x)
        bn = self.bn
        if bn is None or not bn.training:
            weight, bias = self._folded()
            return self._compute(x, self.weight_quant(weight), bias)
        factor = self._factor().detach()
        # Where gamma is 0 the output is beta, whatever the weight.
        factor = self._channels(torch.where(factor == 0, 1, factor))
        weight = self.weight_quant(self.weight * factor) / factor
        y: Tensor = bn(self._compute(x, weight, self.bias))
        return y


class QATLinear(_QAT, nn.Linear):
    """nn.Linear with fake-quantized weight and input; parameters and their names are those of nn.Linear.

    >>> layer = QATLinear.from_float(nn.Linear(4, 2), FakeQuantize("int8", axis=0, mode="dynamic"))
    >>> layer(torch.zeros(3, 4)).shape
    torch.Size([3, 2])
    """

    _compute = staticmethod(F.linear)


class QATConv1d(_QAT, nn.Conv1d):
    """nn.Conv1d with fake-quantized weight and input; a batch norm after it may be folded."""

    _compute = nn.Conv1d._conv_forward


class QATConv2d(_QAT, nn.Conv2d):
    """nn.Conv2d with fake-quantized weight and input; a batch norm after it may be folded."""

    _compute = nn.Conv2d._conv_forward


class _Converted(FixedBuffers):
    """A layer whose weight is kept as codes (buffers weight_codes, weight_scale, weight_zero_point).

    The arithmetic is float, on a dequantized weight that is recomputed whenever the codes change. The output equals
    that of the QAT layer in eval() mode to the bit. Gradients pass to the input.
    """

    weight_codes: Tensor
    weight_scale: Tensor
    weight_zero_point: Tensor
    bias: Tensor | None
    input_quant: FakeQuantize | None
    shape: tuple[int, ...]
    dtype: torch.dtype  # of the dequantized weight
    _strides: tuple[int, ...]  # likewise: the order in which convolutions accumulate depends on them
    _fields: dict[str, Any]  # of the weight's params, except scale and zero point
    _dense: Tensor | None
    _compute: Callable[..., Tensor]

    @classmethod
    def from_qat(cls, layer: _QAT) -> Any:
        """Quantize the weight of a trained layer and freeze its ranges."""
        new = cls.__new__(cls)
        nn.Module.__init__(new)
        new.__dict__.update({k: v for k, v in layer.__dict__.items() if k not in new.__dict__})
        with torch.no_grad():
            weight, bias = (None if t is None else t.detach() for t in layer._folded())
            assert weight is not None
            params = layer.weight_quant.params(weight)
            codes = ops.quantize(weight, params=params)
        p = codes.params
        new.shape, new.dtype, new._strides = tuple(weight.shape), weight.dtype, weight.stride()
        new._fields = {n: getattr(p, n) for n in ("dtype", "scheme", "axis", "group_size", "qmin", "qmax")}
        new.register_buffer("weight_codes", torch.from_numpy(codes.data))
        new.register_buffer("weight_scale", torch.from_numpy(p.scale.copy()))
        new.register_buffer("weight_zero_point", torch.from_numpy(p.zero_point.copy()))
        new.register_buffer("bias", None if bias is None else bias.clone())
        new.input_quant = layer.input_quant
        if new.input_quant is not None and new.input_quant.mode == "static":
            new.input_quant.params()  # raises if nothing was ever observed
            new.input_quant.enable_observer(False)
        new._dequantize()
        return new.eval()

    @property
    def quantized_weight(self) -> QuantizedTensor:
        """The weight: a view of the buffers."""
        scale, zero = self.weight_scale.numpy(), self.weight_zero_point.numpy()
        params = QuantizationParams(scale=scale, zero_point=zero, **self._fields)
        return QuantizedTensor(self.weight_codes.numpy(), params, self.shape)

    @property
    def weight(self) -> Tensor:
        """The dequantized weight."""
        if self._dense is None:
            raise Unsupported(f"weight_codes: on {self.weight_codes.device}; expected CPU memory")
        return self._dense

    def _dequantize(self) -> None:
        """Dequantize the weight. In `forward`, a tracer or a transform would capture the dequantization."""
        self._dense = None
        if self.weight_codes.is_cpu:
            with torch.inference_mode(False):  # autograd cannot save an inference tensor
                plain = torch.empty(self.shape, dtype=self.dtype, device="cpu")
                ops.dequantize(self.quantized_weight, out=plain)  # type: ignore[arg-type]
                self._dense = torch.empty_strided(self.shape, self._strides, dtype=self.dtype, device="cpu")
                self._dense.copy_(plain)

    def forward(self, x: Tensor) -> Tensor:
        return self._compute(x if self.input_quant is None else self.input_quant(x), self.weight, self.bias)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # Shows which dtype and strides `fn` gives the dequantized weight.
        probe = fn(torch.empty_strided(self.shape, self._strides, dtype=self.dtype, device="cpu"))
        super()._apply(fn, recurse)
        self.weight_codes = self.weight_codes.contiguous()
        if self.bias is not None and self.bias.dtype != probe.dtype:
            self.bias = self.bias.to(probe.dtype)
        self.dtype, self._strides = probe.dtype, probe.stride()
        self._dequantize()
        return self

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._dequantize()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dense": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._dequantize()

    def extra_repr(self) -> str:
        bits = 8 * self.weight_codes.numel() * self.weight_codes.itemsize / max(1, math.prod(self.shape))
        weight = f"weight {self._fields['dtype']} {list(self.shape)}, {bits:g} bits per weight"
        return f"{weight}, bias={self.bias is not None}"


class ConvertedLinear(_Converted):
    """The result of `convert` for a QATLinear."""

    _compute = staticmethod(F.linear)


class ConvertedConv1d(_Converted):
    """The result of `convert` for a QATConv1d."""

    _compute = nn.Conv1d._conv_forward


class ConvertedConv2d(_Converted):
    """The result of `convert` for a QATConv2d."""

    _compute = nn.Conv2d._conv_forward
