"""Linear layers on a GPU: the weights of a `QuantizedLinear`, moved there once, called on floats.

| path    | x becomes                             | result                                            |
|---------|---------------------------------------|---------------------------------------------------|
| integer | codes, one scale per row or as given  | the CPU's, to the bit                             |
| float   | stays; int4 weights in groups         | within the contract's bound: sums of another order |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lowbit.gpu.ops import gpu_epilogue, pack, wrapped
from lowbit.layers import QuantizedLinear, linear_path
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.granularity import granularity_of
from lowbit.numerics.packing import pack_bits
from lowbit.numerics.params import QuantizationParams
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.epilogue import Epilogue
from lowbit.runtime.devices import find_device

if TYPE_CHECKING:
    from lowbit.gpu.launch_compute import Int4Weight
    from torch import Tensor


def gpu_linear_path(p: QuantizationParams, activation_dtype: str, given: QuantizationParams | None = None) -> str:
    """The path a layer takes on a GPU; Unsupported where no kernel has it.

    >>> gpu_linear_path(QuantizationParams("int8"), "int8")
    'integer'
    """
    path = linear_path(p, activation_dtype, given)
    int4_groups = p.dtype.name in ("int4", "uint4") and not p.is_logarithmic and p.axis in (None, 0, 1, -1, -2)
    if path == "integer" or (path == "float" and int4_groups):
        return path
    raise Unsupported(
        f"weight: {p!r} with activation_dtype {activation_dtype!r} takes path {path!r}; "
        "GPU kernels have 'integer', and 'float' for weights of 4 bits"
    )


class GpuLinear:
    """A `QuantizedLinear` on a device. NaN and Inf in x make codes undefined: nothing waits to say so."""

    def __init__(self, layer: QuantizedLinear, device: str = "cuda") -> None:
        self.device = find_device(device)  # first, as the import needs torch and Triton
        from lowbit.gpu.tensors import moved

        self.path = gpu_linear_path(layer.params, layer.activation_dtype, layer.input_params)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.params, self.activation_dtype = layer.params, layer.activation_dtype
        self.input_params, self.out_params = layer.input_params, layer.out_params
        bias = layer.bias
        self.bias = None if bias is None else moved(bias, self.device)
        self._fixed: tuple[Tensor, Tensor | None] | None = None  # scale and zero point of x, where they are given
        if (p := self.input_params) is not None:
            scale, zero = moved(p.scale.astype(np.float32), self.device), p.zero_point.astype(np.int32)
            self._fixed = scale, moved(zero, self.device) if zero.any() else None
        if self.path == "float" and (self.out_params is not None or (bias is not None and bias.dtype.kind != "f")):
            raise Unsupported("out_params, bias: codes or integers; on GPUs int4 weights give floats")
        self._weight: Any
        if self.path == "integer":
            self._weight = pack(layer.weight.T.to(self.device.name)).weight
        else:
            self._weight = self._nibbles(layer.weight)

    def _nibbles(self, weight: QuantizedTensor) -> Int4Weight:
        """Rows that start on a byte, scales [out, groups]."""
        from lowbit.gpu.launch_compute import Int4Weight
        from lowbit.gpu.tensors import moved

        (n, k), p = weight.shape, weight.params
        group = k if p.group_size is None else min(p.group_size, k)
        if p.group_size is not None and p.axis not in (1, -1):
            raise Unsupported(f"weight: blocks along axis {p.axis}; GPU kernels have them along the last")
        groups = -(-k // group) if k else 0
        packed = pack_bits(np.pad(weight.unpack(), ((0, 0), (0, k % 2))), 4).reshape(n, -(-k // 2))
        scale, zero = (
            np.broadcast_to(v.reshape(-1, groups) if v.size > 1 else v, (n, groups)) for v in (p.scale, p.zero_point)
        )
        there = moved(zero.astype(np.int8), self.device) if zero.any() else None
        scales = moved(scale.astype(np.float32), self.device)
        return Int4Weight(moved(packed, self.device), scales, there, k, group, p.dtype.is_signed)

    def __call__(self, x: Tensor) -> Any:
        """x [..., in] on the device to [..., out] of x's type, or a GpuQuantizedTensor of out_params."""
        from lowbit.gpu.launch_compute import gemm, linear_int4

        if not self.device.holds(x) or x.shape[-1:] != (self.in_features,):
            raise InvalidProblem(f"x: {tuple(x.shape)} on {x.device}; expected (..., {self.in_features}) on the device")
        rows = x.detach().reshape(-1, self.in_features).contiguous()
        shape = (*x.shape[:-1], self.out_features)
        if self.path == "float":
            return linear_int4(rows, self._weight, self.bias).reshape(shape)
        epilogue = Epilogue.of(self.out_features, None, self.out_params, str(x.dtype).removeprefix("torch."))
        given = gpu_epilogue(epilogue, self.bias, self.device)
        codes, scale, zero = self._codes(rows)
        return wrapped(gemm(codes, self._weight, scale, zero, given).reshape(shape), epilogue, self.device)

    def _codes(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Codes of x with their scales and zero points, none of which leaves the device."""
        import torch
        from lowbit.gpu import launch

        shape, p = tuple(rows.shape), self.input_params
        if self._fixed is not None and p is not None:
            g = granularity_of(shape, None, None)
            return launch.quantize(rows, *self._fixed, p.qmin, p.qmax, g, p.dtype), *self._fixed
        kind, symmetric = QuantizedDType.of(self.activation_dtype), self.activation_dtype == "int8"
        if not rows.numel():
            return launch.empty_codes(shape, kind, rows), rows.new_ones(1, dtype=torch.float32), None
        qmin, qmax = (-127, 127) if symmetric else (0, 255)
        return launch.quantize_dynamic(rows, granularity_of(shape, 0, None), qmin, qmax, kind, symmetric=symmetric)
