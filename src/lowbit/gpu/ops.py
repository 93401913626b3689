"""The operations of a backend on a GPU: quantize, dequantize, products, convolutions and sums of codes, on torch's
stream.

What has no GPU kernel raises Unsupported by its name; nothing runs on the CPU instead. torch is imported when a
`GpuQuantizationOps` is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lowbit.numerics.dtypes import DTypeLike
from lowbit.numerics.errors import InvalidProblem, Unsupported
from lowbit.numerics.granularity import granularity_of
from lowbit.numerics.params import QuantizationParams, QuantizationScheme
from lowbit.numerics.tensor import QuantizedTensor
from lowbit.ops.conv import ConvGeometry, check_image, conv_path_of
from lowbit.ops.conv_paths import check_kernel
from lowbit.ops.epilogue import Epilogue
from lowbit.ops.matmul import path_of
from lowbit.ops.reference_ops import arrays_of
from lowbit.runtime.devices import GpuDevice, find_device
from lowbit.runtime.hardware import HardwareFeatures, hardware

if TYPE_CHECKING:
    from typing_extensions import Unpack

    import torch
    from lowbit.gpu.launch_compute import GpuEpilogue, Weight
    from lowbit.gpu.tensors import GpuQuantizedTensor
    from lowbit.ops.epilogue import EpilogueOptions
    from torch import Tensor


class GpuPacked(NamedTuple):
    """A matrix [k, n] or filters [out, in / groups, kh, kw], arranged once as GPU kernels read them."""

    weight: Weight
    params: QuantizationParams
    shape: tuple[int, ...]


def require_integer(name: str, path: str, a: QuantizationParams, b: QuantizationParams) -> None:
    """Raises for the paths of products and convolutions that GPU kernels do not have."""
    if path not in ("integer", "depthwise"):
        raise Unsupported(f"{name}: {a!r} by {b!r} takes path {path!r}; GPU kernels have 'integer'")


def pack(b: GpuQuantizedTensor) -> GpuPacked:
    """b [k, n] for products. Kernels read [n, k], so this copies."""
    if b.ndim != 2:
        raise Unsupported(f"b: shape {b.shape}; GPU kernels have products of matrices, [k, n]")
    from lowbit.gpu.launch_compute import Weight

    return GpuPacked(Weight.of(_bytes("b", b).T, b.scale, b.zero_point), b.params, b.shape)


def pack_conv(w: GpuQuantizedTensor) -> GpuPacked:
    """Filters [out, in / groups, kh, kw] for convolutions; copied, with channels last."""
    from lowbit.gpu.launch_compute import conv_weight

    return GpuPacked(conv_weight(_bytes("w", w), w.scale, w.zero_point), w.params, w.shape)


def gpu_epilogue(epilogue: Epilogue, bias: Any, device: GpuDevice) -> GpuEpilogue:
    """The epilogue as GPU kernels take it. bias: numbers of the host, which are copied, or a tensor on the device."""
    import torch
    from lowbit.gpu.launch_compute import GpuEpilogue

    dtype, given, p = getattr(torch, epilogue.dtype.name), _bias(bias, device), epilogue.params
    if p is None:
        return GpuEpilogue(dtype, given, epilogue.floor, epilogue.ceiling)
    scale, zero = float(p.scale), int(p.zero_point)
    return GpuEpilogue(dtype, given, scale=scale, zero_point=zero, lo=epilogue.lo, hi=epilogue.hi)


def multiply(a: GpuQuantizedTensor, b: GpuPacked, epilogue: GpuEpilogue, path: str | None = None) -> Tensor:
    """a [..., k] by b [k, n], after the epilogue. path: as in `launch_compute.gemm`."""
    from lowbit.gpu.launch_compute import gemm

    if a.ndim < 1 or a.shape[-1] != b.shape[0]:
        raise InvalidProblem(f"a: shape {a.shape}; expected (..., {b.shape[0]})")
    codes = _bytes("a", a)
    y = gemm(codes.reshape(-1, b.shape[0]), b.weight, a.scale, a.zero_point, epilogue, path=path)
    return y.reshape(*a.shape[:-1], b.shape[1])


def convolve(
    x: GpuQuantizedTensor, w: GpuPacked, g: ConvGeometry, epilogue: GpuEpilogue, path: str | None = None
) -> Tensor:
    """x by w, after the epilogue. path: as in `launch_compute.conv2d`."""
    from lowbit.gpu.launch_compute import conv2d

    require_integer("qconv2d", conv_path_of(x.params, w.params, w.shape, g.groups), x.params, w.params)
    check_image(x.shape, x.params, w.shape, g)
    check_kernel(w.shape, w.params, g.groups)
    return conv2d(_bytes("x", x), w.weight, x.scale, int(x.params.zero_point), epilogue, g, path=path)


def wrapped(y: Tensor, epilogue: Epilogue, device: GpuDevice) -> Any:
    """The result of an epilogue as callers get it: floats, or codes as a GpuQuantizedTensor."""
    from lowbit.gpu.tensors import GpuQuantizedTensor

    p = epilogue.params
    return y if p is None else GpuQuantizedTensor(y.contiguous(), p, tuple(y.shape), device)


class GpuQuantizationOps:
    """QuantizationOps on a device: GpuQuantizedTensor and torch tensors in and out. Those of the host, QuantizedTensor
    and arrays, are copied there first; results stay there. `path` fixes the instruction: None, "matrix" or "dp4a".

    Unsupported, with the reason, where the device is not there.
    """

    def __init__(self, device: str = "cuda", path: str | None = None) -> None:
        self.device, self.path = find_device(device), path

    @property
    def hardware_features(self) -> HardwareFeatures:
        return hardware()

    def calibrate(
        self, samples: Any, dtype: DTypeLike = "int8", *, scheme: str | QuantizationScheme = "linear"
    ) -> QuantizationParams:
        """Params that cover the least and the greatest number of samples: one array or tensor, or an iterable of them.
        It waits for the device."""
        from lowbit.gpu import launch
        from lowbit.gpu.tensors import supported

        supported("dtype", QuantizationParams(dtype, scheme))
        ranges = []
        for i, x in enumerate(arrays_of(samples)):
            there = self._floats(f"samples[{i}]", x)
            if not there.numel():
                continue
            lo, hi, nans = launch.value_range(there, granularity_of(tuple(there.shape), None, None))
            found = np.array([lo.item(), hi.item()], str(lo.dtype).removeprefix("torch."))
            if nans.item() or not np.isfinite(found).all():
                raise InvalidProblem(f"samples[{i}]: NaN or Inf; a range needs finite numbers")
            ranges.append(found)
        if not ranges:
            raise InvalidProblem("samples: none; there is nothing to find a range in")
        lows, highs = np.stack(ranges, 1)
        return QuantizationParams.from_statistics(
            np.asarray(lows.min()), np.asarray(highs.max()), dtype=dtype, scheme=scheme
        )

    def quantize(self, x: Any, params: QuantizationParams) -> GpuQuantizedTensor:
        there = self._floats("x", x)
        return self._quantized(there, _usable("params", params, there.dtype))

    def dequantize(self, q: Any) -> Tensor:
        return self._there("q", q).dequantize()

    def qmatmul(self, a: Any, b: Any, *, bias: Any = None, **options: Unpack[EpilogueOptions]) -> Any:
        """a @ b. b may be a GpuPacked of `pack`, which saves a copy per call."""
        left, right = self._there("a", a), b if isinstance(b, GpuPacked) else self._there("b", b)
        way = path_of(left.params, right.params, left.ndim, len(right.shape))
        require_integer("qmatmul", way, left.params, right.params)
        packed = right if isinstance(right, GpuPacked) else pack(right)
        epilogue = Epilogue.of(packed.shape[-1], None, **options)
        y = multiply(left, packed, gpu_epilogue(epilogue, bias, self.device), self.path)
        return wrapped(y, epilogue, self.device)

    def qconv2d(
        self,
        x: Any,
        w: Any,
        bias: Any = None,
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        layout: str = "NCHW",
        **options: Unpack[EpilogueOptions],
    ) -> Any:
        """A convolution. w may be a GpuPacked of `pack_conv`."""
        g = ConvGeometry.of(stride, padding, dilation, groups, layout)
        packed = w if isinstance(w, GpuPacked) else pack_conv(self._there("w", w))
        epilogue = Epilogue.of(packed.shape[0], None, **options)
        y = convolve(self._there("x", x), packed, g, gpu_epilogue(epilogue, bias, self.device), self.path)
        return wrapped(y, epilogue, self.device)

    def qadd(self, a: Any, b: Any, *, out_params: QuantizationParams | None = None) -> GpuQuantizedTensor:
        """quantize((qa - za) * sa + (qb - zb) * sb), with the params of `a` where no others are given. Whole codes of
        one shape with one scale take one kernel; packed codes, more scales and broadcasting take three."""
        import torch
        from lowbit.gpu import launch

        left, right = self._there("a", a), self._there("b", b)
        compute = torch.promote_types(left.scale.dtype, right.scale.dtype)
        p = _usable("out_params", left.params if out_params is None else out_params, compute)
        try:
            np.broadcast_shapes(left.shape, right.shape)
        except ValueError:
            raise InvalidProblem(f"a, b: shapes {left.shape} and {right.shape} do not broadcast") from None
        plain = all(not q.dtype.is_packed and q.axis is None for q in (left.params, right.params, p))
        if not plain or left.shape != right.shape:
            return self._quantized((left.dequantize(compute) + right.dequantize(compute)).contiguous(), p)
        q = self._empty(left.data, left.shape, p)
        operands = (left.data, left.scale.to(compute), left.zero_point)
        others = (right.data, right.scale.to(compute), right.zero_point)
        launch.add(*operands, *others, p.qmin, p.qmax, out=q.data, scale=q.scale, zero=q.zero_point)
        return q

    def qrelu(self, a: Any) -> GpuQuantizedTensor:
        """max(code, zero point), by torch, for codes with one scale that are not packed."""
        from lowbit.gpu.tensors import GpuQuantizedTensor

        q = self._there("a", a)
        if q.dtype.is_packed or q.params.axis is not None or q.dtype.name == "uint16":
            raise Unsupported(f"qrelu: {q.params!r}; on GPUs it takes int8, uint8 or int16 with one scale")
        codes = q.data.clamp(min=int(q.params.zero_point))
        return GpuQuantizedTensor(codes, q.params, q.shape, self.device, q.scale, q.zero_point)

    def _quantized(self, x: Tensor, p: QuantizationParams) -> GpuQuantizedTensor:
        from lowbit.gpu import launch

        q = self._empty(x, tuple(x.shape), p)
        launch.quantize(x, q.scale, q.zero_point, p.qmin, p.qmax, p.granularity(q.shape), p.dtype, out=q.data)
        return q

    def _empty(self, like: Tensor, shape: tuple[int, ...], p: QuantizationParams) -> GpuQuantizedTensor:
        from lowbit.gpu import launch
        from lowbit.gpu.tensors import GpuQuantizedTensor

        return GpuQuantizedTensor(launch.empty_codes(shape, p.dtype, like), p, shape, self.device)

    def _floats(self, name: str, x: Any) -> Tensor:
        """x on the device."""
        import torch

        there = torch.as_tensor(x).detach().to(self.device.memory).contiguous()
        if not there.is_floating_point():
            raise Unsupported(f"{name}: {there.dtype}; expected floats")
        return there

    def _there(self, name: str, q: Any) -> GpuQuantizedTensor:
        from lowbit.gpu.tensors import GpuQuantizedTensor

        if isinstance(q, QuantizedTensor):
            return GpuQuantizedTensor.of(q, self.device.name)
        if not isinstance(q, GpuQuantizedTensor):
            raise InvalidProblem(f"{name}: {type(q).__name__}; expected a GpuQuantizedTensor or QuantizedTensor")
        if q.device != self.device:
            raise InvalidProblem(f"{name}: on {q.device.name}; expected {self.device.name}")
        return q

    def __repr__(self) -> str:
        return f"GpuQuantizationOps({self.device.name!r}, {self.device.architecture})"


def _usable(name: str, params: QuantizationParams, dtype: torch.dtype) -> QuantizationParams:
    """The params for data of this dtype, with an error for those that no kernel on GPUs has."""
    from lowbit.gpu.tensors import supported

    return supported(name, params.for_compute(np.float64 if str(dtype) == "torch.float64" else np.float32))


def _bytes(name: str, q: GpuQuantizedTensor) -> Tensor:
    if q.dtype.bits > 8:
        raise Unsupported(f"{name}: {q.dtype}; GPU kernels multiply codes of at most 8 bits")
    return q.unpack()


def _bias(bias: Any, device: GpuDevice) -> Any:
    """int32 or float32, on the device."""
    if bias is None:
        return None
    import torch

    try:
        there = torch.as_tensor(bias).detach().to(device.memory)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidProblem(f"bias: {type(bias).__name__}; expected an array of numbers") from None
    if there.is_floating_point():
        return there.to(torch.float32)
    if there.dtype in (torch.int32, torch.int64, torch.int16, torch.int8):
        if there.dtype is torch.int64 and there.numel() and int(there.abs().max()) >= 2**31:
            raise InvalidProblem("bias: integers beyond int32")
        return there.to(torch.int32)
    raise Unsupported(f"bias: {there.dtype}; expected floats or integers")
