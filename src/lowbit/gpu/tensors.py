"""Quantized tensors in a GPU's memory: codes, scales and zero points as torch tensors, params on the host.

q = lb.quantize(x).to("cuda")      y = q.dequantize()      q.to("cpu") == lb.quantize(x)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import torch
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.runtime.devices import GpuDevice, find_device
from lowbit.runtime.torch_types import STORED, compute_dtype
from torch import Tensor


def supported(name: str, p: QuantizationParams) -> QuantizationParams:
    """The params, with an error for those that no kernel on GPUs has."""
    if p.is_logarithmic or p.dtype.name not in STORED:
        raise Unsupported(f"{name}: {p.dtype}, {p.scheme}; GPU kernels have linear codes of {', '.join(STORED)}")
    return p.for_compute(np.float32) if p.weak else p


class GpuQuantizedTensor:
    """`data` holds the codes as QuantizedTensor stores them, in one contiguous tensor. `zero_point` is None where all
    are 0."""

    __slots__ = ("data", "device", "params", "scale", "shape", "zero_point")

    def __init__(
        self,
        data: Tensor,
        params: QuantizationParams,
        shape: tuple[int, ...],
        device: GpuDevice,
        scale: Tensor | None = None,
        zero_point: Tensor | None = None,
    ) -> None:
        """scale, zero_point: the params' own, where they are on the device already."""
        p = supported("params", params)
        p.validate(shape)
        expected = (p.codes_nbytes(shape),) if p.dtype.is_sub_byte else shape
        if data.dtype is not STORED[p.dtype.name] or tuple(data.shape) != expected:
            raise InvalidProblem(
                f"data: {data.dtype} {tuple(data.shape)}; {p.dtype} of {shape} is stored as {expected}"
            )
        if not device.holds(data) or not data.is_contiguous():
            raise InvalidProblem(f"data: on {data.device}; expected a contiguous tensor on {device.memory}")
        self.data, self.params, self.shape, self.device = data, p, tuple(shape), device
        self.scale = moved(p.scale, device) if scale is None else scale
        if zero_point is None and p.zero_point.any():
            zero_point = moved(p.zero_point.astype(np.int32), device)
        self.zero_point = zero_point

    @classmethod
    def of(cls, q: QuantizedTensor, device: str = "cuda") -> GpuQuantizedTensor:
        """A copy of q on the device; Unsupported, with the reason, where there is none."""
        gpu = find_device(device)
        supported("q", q.params)
        return cls(moved(q.data, gpu), q.params, q.shape, gpu)

    @property
    def dtype(self) -> Any:
        return self.params.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and zero points on the device."""
        held = (self.data, self.scale, *(() if self.zero_point is None else (self.zero_point,)))
        return sum(t.numel() * t.element_size() for t in held)

    def dequantize(self, dtype: torch.dtype | None = None) -> Tensor:
        """The numbers the codes stand for, on the device: float32 (float64 if made from it) unless told otherwise."""
        from lowbit.gpu import launch

        dtype = self.scale.dtype if dtype is None else dtype
        out = torch.empty(self.shape, dtype=dtype, device=self.data.device)
        scale = self.scale.to(compute_dtype(dtype))
        g = self.params.granularity(self.shape)
        return launch.dequantize(self.data, scale, self.zero_point, g, self.dtype, out=out)

    def unpack(self) -> Tensor:
        """The codes, one an element, in the logical shape; no copy where they are not packed."""
        if not self.dtype.is_sub_byte:
            return self.data
        nibbles = torch.stack((self.data & 15, self.data >> 4), -1).reshape(-1)[: math.prod(self.shape)]
        if self.dtype.is_signed:
            nibbles = (nibbles ^ 8).to(torch.int8) - 8
        return nibbles.reshape(self.shape)

    def to(self, device: str) -> Any:
        """ "cpu": a QuantizedTensor equal to the one this was made from. It waits for the device."""
        if device == "cpu":
            return QuantizedTensor(self.data.cpu().numpy(), self.params, self.shape)
        gpu = find_device(device)
        if gpu == self.device:
            return self
        return GpuQuantizedTensor(self.data.to(gpu.memory), self.params, self.shape, gpu)

    def __repr__(self) -> str:
        where = "" if self.device.backend != "interpreter" else ", interpreted"
        return f"GpuQuantizedTensor(shape={self.shape}, {self.params!r}, device={self.device.name!r}{where})"


def moved(array: Any, device: GpuDevice) -> Tensor:
    """A copy, always: on the interpreter's device too, whose memory is the CPU's."""
    return torch.from_numpy(np.array(array, order="C")).to(device.memory)
