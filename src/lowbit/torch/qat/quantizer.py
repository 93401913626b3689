"""FakeQuantize: the module that quantizes and dequantizes a tensor in training."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from lowbit.numerics.dtypes import DTypeLike, QuantizedDType
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.ranges import MAX_SCALE, MIN_SCALE
from lowbit.runtime import arrays as cpu
from lowbit.runtime import elementwise
from lowbit.runtime.torch_types import granularity
from lowbit.torch.functional import library
from lowbit.torch.qat.observers import FixedBuffers, Observer, make_observer
from torch import Tensor, nn

_MODES = ("static", "dynamic", "learned")


class FakeQuantize(FixedBuffers):
    """Rounds a tensor to the values its codes represent; gradients pass where no code was clipped.

    mode "static": an observer finds the range in training mode; otherwise the range is frozen.
    mode "dynamic": the range is that of the current tensor; for weights, or for activations of changing size.
    mode "learned": scale is a parameter (LSQ), and with scheme "asymmetric" zero_point too. The first tensor
    initializes them: scale = 2 mean|x| / sqrt(qmax), or the tensor's range where asymmetric. Their gradients are
    multiplied by 1 / sqrt(n qmax), with n elements per scale.

    scheme: "symmetric" (codes ±qmax, zero point 0), "asymmetric", or "linear", which is symmetric for signed dtypes.
    axis, group_size: as in `lowbit.quantize`. NaN or Inf in data whose range is needed is an error that names `name`
    and the index; on_nonfinite="ignore" skips such data (in mode "dynamic", Inf counts as very large). The state_dict
    does not hold the switches enable_observer and enable_fake_quant.

    >>> fq = FakeQuantize("int8", observer="min_max")
    >>> fq(torch.tensor([-1.0, 0.003, 1.27]))
    tensor([-1.0000,  0.0000,  1.2700])
    >>> fq.params()
    QuantizationParams(int8, symmetric, scale=0.01, codes=[-127, 127])
    """

    scale: Tensor
    zero_point: Tensor
    started: Tensor

    def __init__(
        self,
        dtype: DTypeLike = "int8",
        scheme: str = "symmetric",
        axis: int | None = None,
        group_size: int | None = None,
        mode: str = "static",
        observer: str | Observer | None = None,
        on_nonfinite: Literal["raise", "ignore"] = "raise",
        name: str = "x",
    ) -> None:
        super().__init__()
        if on_nonfinite not in ("raise", "ignore"):
            raise InvalidProblem(f"on_nonfinite: {on_nonfinite!r}; expected 'raise' or 'ignore'")
        kind = QuantizedDType.of(dtype)
        if kind.is_mixed or kind.is_binary:
            raise InvalidProblem(f"dtype: {kind}; expected int8, uint8, int16, uint16, int4, uint4, int2 or uint2")
        if mode not in _MODES:
            raise InvalidProblem(f"mode: {mode!r}; expected one of {', '.join(_MODES)}")
        if observer is not None and mode != "static":
            raise InvalidProblem(f"observer: given, but mode {mode!r} has none; expected mode='static'")
        shape_of = QuantizationParams(kind, scheme, axis=axis, group_size=group_size)
        if shape_of.is_logarithmic:
            raise InvalidProblem("scheme: 'logarithmic'; expected 'symmetric', 'asymmetric' or 'linear'")
        self.dtype, self.scheme, self.mode = kind.name, shape_of.scheme.value, mode
        self.axis, self.group_size = shape_of.axis, shape_of.group_size
        self.symmetric = shape_of.is_symmetric
        narrow = self.symmetric and kind.is_signed
        self.qmin, self.qmax = -shape_of.qmax if narrow else shape_of.qmin, shape_of.qmax
        self.observer = make_observer(observer, self.axis, self.group_size) if mode == "static" else None
        self.on_nonfinite, self.name = on_nonfinite, name
        if self.observer is not None:
            self.observer.name, self.observer.ignore_nonfinite = name, on_nonfinite == "ignore"
        self.observing: bool | None = None  # None: while training
        self.fake_quantizing = True
        self._checked = False
        if mode == "learned":
            self.register_buffer("started", torch.tensor(False))
            self.scale = nn.Parameter(torch.ones(()))
            if not self.symmetric:
                self.zero_point = nn.Parameter(torch.zeros(()))
        elif mode == "static":
            self.register_buffer("scale", torch.ones(()))
        if mode == "static" or (mode == "learned" and self.symmetric):
            self.register_buffer("zero_point", torch.zeros((), dtype=torch.int32))

    def enable_observer(self, on: bool | None = True) -> FakeQuantize:
        """Observe ranges: always, never, or (None, the default) in training mode."""
        self.observing = on
        return self

    def enable_fake_quant(self, on: bool = True) -> FakeQuantize:
        """Quantize and dequantize; otherwise tensors pass unchanged."""
        self.fake_quantizing = on
        return self

    def forward(self, x: Tensor) -> Tensor:
        if self.mode == "static":
            if self.training if self.observing is None else self.observing:
                self._refuse_transforms()
                self._observe(x)
            elif not self._checked and self.fake_quantizing and not torch.compiler.is_compiling():
                self._check_started()
        elif not self._checked and self.mode == "learned" and not torch.compiler.is_compiling():
            self._refuse_transforms()
            self._start(x) if self.training else self._check_started()
        if not self.fake_quantizing:
            return x
        if self.mode == "learned":
            by = 1 / math.sqrt(max(1, x.numel() // max(1, self.scale.numel())) * self.qmax)
            return library.fake_quantize_learned(
                x, self.scale, self.zero_point, self.qmin, self.qmax, self.axis, self.group_size, by
            )
        scale, zero = (self.scale, self.zero_point) if self.mode == "static" else self._range_params(x)
        return library.fake_quantize(x, scale, zero, self.qmin, self.qmax, self.axis, self.group_size)

    def params(self, x: Tensor | None = None) -> QuantizationParams:
        """The current params; those of a dynamic quantizer depend on `x`."""
        if self.mode == "dynamic":
            if x is None:
                raise InvalidProblem("x: a dynamic quantizer has no params of its own; expected the data")
            scale, zero = self._range_params(x)
        else:
            self._check_started()
            scale, zero = self.scale.detach(), self.zero_point.detach()
            if self.mode == "learned":
                scale = scale.clamp(MIN_SCALE, MAX_SCALE)
                zero = torch.round(zero).clamp(self.qmin, self.qmax)
        wide = scale if scale.dtype is torch.float64 else scale.float()
        return QuantizationParams(
            self.dtype, self.scheme, wide.numpy(), zero.int().numpy(), self.axis, self.group_size, self.qmin, self.qmax
        )

    def _range_params(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return library.range_params(
            x.detach(), self.qmin, self.qmax, self.symmetric, self.axis, self.group_size, self.name,
            self.on_nonfinite == "ignore",
        )  # fmt: skip

    def _observe(self, x: Tensor) -> None:
        observer = self.observer
        assert observer is not None
        observer.forward(x)
        scale, zero = observer.params(self.qmin, self.qmax, self.symmetric)
        mine = self.scale
        if scale.shape == mine.shape:
            mine.copy_(scale)
            self.zero_point.copy_(zero)
        else:
            self.scale, self.zero_point = scale, zero
        if not self._checked and not torch.compiler.is_compiling():
            self._checked = observer.ready()

    @torch.no_grad()
    def _start(self, x: Tensor) -> None:
        """Initialize learned params from the first tensor, unless a state_dict did."""
        self._checked = True
        if bool(self.started):
            return
        scale, zero = self._range_params(x)
        if self.symmetric:
            floats = cpu.as_float_array(x)
            mean = elementwise.mean_abs(floats, granularity(x.shape, self.axis, self.group_size))
            scale = torch.as_tensor(2 * mean / math.sqrt(self.qmax)).clamp_min(MIN_SCALE)
        self.scale.data = scale.to(self.scale.dtype)
        self.zero_point.data = zero.to(self.zero_point.dtype)
        self.started.fill_(True)

    def _refuse_transforms(self) -> None:
        """Raise under transforms of torch.func, which hide the values a range is found in."""
        if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
            raise Unsupported(
                f"{self.name}: {self.mode} FakeQuantize needs the values of a tensor to find its range, and transforms "
                "of torch.func hide them; calibrate it before, then use eval() mode or enable_observer(False)"
            )

    def _check_started(self) -> None:
        if not (bool(self.started) if self.observer is None else self.observer.ready()):
            raise InvalidProblem(
                f"{self.mode} FakeQuantize: no data seen yet; run data through it in train() mode, "
                "or with enable_observer(), or load a state_dict"
            )
        self._checked = True

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._checked = False

    def extra_repr(self) -> str:
        said = {"axis": self.axis, "group_size": self.group_size}
        parts = [self.dtype, self.scheme, self.mode, f"codes=[{self.qmin}, {self.qmax}]"]
        return ", ".join(parts + [f"{name}={value}" for name, value in said.items() if value is not None])
