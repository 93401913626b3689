"""Observers: track the range of a tensor in training, and derive its scale and zero point."""

from __future__ import annotations

from typing import Any

import torch
from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.torch_types import granularity
from lowbit.torch.functional import library
from torch import Tensor, nn


class FixedBuffers(nn.Module):
    """Buffers that keep their float type under model.half(), and take their shape from a state_dict.

    model.half() is meant for weights and activations; in float16 a range or a scale would change its value.
    """

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        kept = {name: b for name, b in self._buffers.items() if b is not None and b.is_floating_point()}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, before in kept.items():
            after = self._buffers[name]
            if after is not None and after.dtype != before.dtype:
                self._buffers[name] = before.to(after.device)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, tensor in (*self._buffers.items(), *self._parameters.items()):
            saved = state_dict.get(prefix + name)
            if tensor is not None and isinstance(saved, Tensor) and saved.shape != tensor.shape:
                tensor.data = tensor.data.new_empty(saved.shape)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Observer(FixedBuffers):
    """Tracks minimum and maximum: per tensor, per channel along `axis`, or per group along it.

    NaN or Inf is an error that names the tensor and the first index. With `ignore_nonfinite`, NaN is ignored, and a
    tensor with Inf is skipped and counted in `left_out`, because loss scaling discards such steps anyway.
    Buffers: lo and hi (float32; lo > hi until data was seen), left_out.
    """

    lo: Tensor
    hi: Tensor
    left_out: Tensor
    name = "x"  # the tensor's name in errors
    ignore_nonfinite = False
    momentum: float | None = None  # of the moving average; None: the range only grows

    def __init__(self, axis: int | None = None, group_size: int | None = None) -> None:
        super().__init__()
        self.axis, self.group_size = axis, group_size
        self.register_buffer("lo", torch.tensor(torch.inf))
        self.register_buffer("hi", torch.tensor(-torch.inf))
        self.register_buffer("left_out", torch.tensor(0))

    def _shape_to(self, x: Tensor) -> None:
        shape = granularity(x.shape, self.axis, self.group_size).scale_shape
        if self.lo.shape != shape:
            if self.ready():
                raise InvalidProblem(
                    f"x: shape {tuple(x.shape)} has scales of shape {tuple(shape)}; "
                    f"so far they had {tuple(self.lo.shape)}"
                )
            self.lo, self.hi = self.lo.new_full(shape, torch.inf), self.hi.new_full(shape, -torch.inf)

    def forward(self, x: Tensor) -> Tensor:
        """Take x into account and return it."""
        if x.numel():
            if self.axis is not None or self.group_size is not None:
                self._shape_to(x)
            library.observe_(
                x.detach(), self.lo, self.hi, self.left_out, self.momentum, self.axis, self.group_size, self.name,
                self.ignore_nonfinite,
            )  # fmt: skip
        return x

    def ready(self) -> bool:
        """Whether data was seen."""
        return bool((self.lo <= self.hi).all())

    def params(self, qmin: int, qmax: int, symmetric: bool) -> tuple[Tensor, Tensor]:
        """Scales and zero points that cover the range seen, by the formulas of `lowbit.numerics.ranges`.

        >>> o = MinMax()
        >>> o(torch.tensor([-1.0, 3.0])).shape
        torch.Size([2])
        >>> o.params(0, 255, symmetric=False)
        (tensor(0.0157), tensor(64, dtype=torch.int32))
        """
        return library.affine_params(self.lo, self.hi, qmin, qmax, symmetric)

    def extra_repr(self) -> str:
        said = {"axis": self.axis, "group_size": self.group_size, "momentum": self.momentum}
        return ", ".join(f"{name}={value}" for name, value in said.items() if value is not None)


class MinMax(Observer):
    """The range of all data seen."""


class MovingAverage(Observer):
    """The exponential moving average of the ranges seen: lo += momentum * (new - lo).

    >>> o = MovingAverage(0.5)
    >>> for batch in ([0.0, 1.0], [0.0, 3.0]):
    ...     _ = o(torch.tensor(batch))
    >>> o.hi
    tensor(2.)
    """

    def __init__(self, momentum: float = 0.01, axis: int | None = None, group_size: int | None = None) -> None:
        super().__init__(axis, group_size)
        if not 0 < momentum <= 1:
            raise InvalidProblem(f"momentum: {momentum}; expected in (0, 1]")
        self.momentum = momentum


class Histogram(Observer):
    """A histogram of the data seen, and from it the range of least mean squared error.

    Bins are 2^exponent wide and start at a multiple of that. Where the range outgrows them, pairs of bins merge, so
    that counts stay exact. Meant for calibration: `params` tries dozens of ranges, which takes milliseconds.
    Buffers: counts ([scales, bins], int64), exponent and first (the left edge of bin i is (first + i) * 2^exponent).
    """

    counts: Tensor
    exponent: Tensor
    first: Tensor

    def __init__(self, bins: int = 2048, axis: int | None = None, shares: int = 48) -> None:
        super().__init__(axis)
        if bins < 16:
            raise InvalidProblem(f"bins: {bins}; expected at least 16")
        self.bins, self.shares = bins, shares
        self.register_buffer("counts", torch.zeros(1, bins, dtype=torch.int64))
        self.register_buffer("exponent", torch.full((1,), -200))
        self.register_buffer("first", torch.zeros(1, dtype=torch.int64))

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        seen = self.left_out.item()
        super().forward(x)
        if x.numel() == 0 or self.left_out.item() != seen:
            return x
        rows = x.detach().reshape(1, -1) if self.axis is None else x.detach().movedim(self.axis, 0).flatten(1)
        rows = rows.double()
        if len(self.counts) != len(rows):
            self.counts = self.counts.new_zeros(len(rows), self.bins)
            self.exponent, self.first = self.exponent.new_full((len(rows),), -200), self.first.new_zeros(len(rows))
        self._grow()
        bin_of = torch.floor(torch.ldexp(rows, -self.exponent[:, None])).nan_to_num(0).long() - self.first[:, None]
        self.counts.scatter_add_(1, bin_of.clamp_(0, self.bins - 1), (~rows.isnan()).long())
        return x

    def _grow(self) -> None:
        """Merge bins until they cover [lo, hi]."""
        lo, hi = self.lo.double().reshape(-1), self.hi.double().reshape(-1)
        # hi - lo takes at most bins - 2 of them; bins narrower than `finest` would be inexact in float32.
        wanted = torch.frexp((hi - lo) / (self.bins - 2)).exponent
        finest = torch.frexp(torch.maximum(-lo, hi)).exponent - 30
        exponent = torch.maximum(self.exponent, torch.maximum(wanted, finest).long())
        first = torch.floor(torch.ldexp(lo, -exponent)).long()
        at = torch.arange(self.bins) + self.first[:, None]
        moved = torch.bitwise_right_shift(at, (exponent - self.exponent).clamp_max(62)[:, None]) - first[:, None]
        empty = self.counts == 0
        self.counts = torch.zeros_like(self.counts).scatter_add_(
            1, moved.masked_fill(empty, 0).clamp_(0, self.bins - 1), self.counts
        )
        self.exponent, self.first = exponent, first

    def params(self, qmin: int, qmax: int, symmetric: bool) -> tuple[Tensor, Tensor]:
        """Scales and zero points of the sub-range of least mean squared error."""
        width = torch.ldexp(torch.ones(()), self.exponent.float())[:, None]
        centers = (self.first[:, None] + torch.arange(self.bins) + 0.5) * width
        weights = self.counts.double()

        def loss(lo: Tensor, hi: Tensor) -> Tensor:
            s, z = (v.reshape(-1, 1) for v in library.affine_params(lo, hi, qmin, qmax, symmetric))
            y = torch.round(centers / s).clamp_(qmin - z, qmax - z) * s
            return ((y - centers).square_().double() * weights).sum(1).reshape(self.lo.shape)

        lo, hi = self.lo, self.hi
        least = loss(lo, hi)
        for end in (True,) if symmetric else (True, False):  # one end after the other; both at once where symmetric
            from_lo, from_hi = lo, hi
            for step in range(1, self.shares):
                share = 1 - step / self.shares
                a = from_lo * share if symmetric or not end else from_lo
                b = from_hi * share if end else from_hi
                found = loss(a, b)
                better = found < least
                lo, hi = torch.where(better, a, lo), torch.where(better, b, hi)
                least = torch.minimum(found, least)
        return library.affine_params(lo, hi, qmin, qmax, symmetric)


def make_observer(given: str | Observer | None, axis: int | None, group_size: int | None) -> Observer:
    """An observer by name ("min_max", "moving_average", "histogram"), or the one given."""
    if isinstance(given, Observer):
        if (given.axis, given.group_size) != (axis, group_size):
            raise InvalidProblem(
                f"observer: axis={given.axis}, group_size={given.group_size}; expected axis={axis}, "
                f"group_size={group_size} as in the quantizer"
            )
        return given
    if given in (None, "moving_average"):
        return MovingAverage(axis=axis, group_size=group_size)
    if given == "min_max":
        return MinMax(axis, group_size)
    if given == "histogram":
        if group_size is not None:
            raise InvalidProblem("observer: 'histogram' is per tensor or per channel; expected no group_size")
        return Histogram(axis=axis)
    raise InvalidProblem(f"observer: {given!r}; expected 'min_max', 'moving_average', 'histogram' or an Observer")
