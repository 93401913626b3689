"""The speed of the kernels and of torch on the same device, which `lowbit gpu-check` reports.

Times are medians of the device's own clock: they contain gaps between kernels, but no launches. Triton's interpreter,
for tests, makes one run by the host's clock; the report says that this is no measurement of speed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from lowbit.gpu import launch
from lowbit.gpu.launch_compute import GpuEpilogue, Int4Weight, Weight, conv2d, conv_weight, gemm, linear_int4
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.granularity import granularity_of
from lowbit.ops.conv_geometry import ConvGeometry
from lowbit.runtime.devices import GpuDevice
from torch import Tensor

_INT8 = QuantizedDType.of("int8")
_ROWS = "quantize rows of 1024 by their own range"
_SHORTEST, _MOST_RUNS = 0.2, 200  # of the runs that a median is taken over: least seconds, most runs


@dataclass(frozen=True)
class Speed:
    """seconds: of one run. rate: GB/s of memory that must be read and written, or GOPS. torch_*: its counterpart."""

    name: str
    unit: str
    seconds: float
    rate: float
    torch_name: str = ""
    torch_seconds: float | None = None
    torch_error: str = ""

    @property
    def times_torch(self) -> float | None:
        return None if self.torch_seconds is None else self.torch_seconds / self.seconds

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"times_torch": self.times_torch}


def measure(device: GpuDevice, small: bool = False) -> list[Speed]:
    """Measure the kernels on sizes that fill a device. small: sizes for tests of this module."""
    return [*_elementwise(device, 4096 if small else 1 << 25), *_products(device, 32 if small else 4096, small)]


def _elementwise(device: GpuDevice, n: int) -> list[Speed]:
    x = torch.randn(n, device=device.memory)
    scale, zero = torch.full((), 0.02, device=device.memory), torch.zeros((), dtype=torch.int32, device=device.memory)
    whole, rows = granularity_of((n,), None, None), x.reshape(-1, 1024)
    token = granularity_of(tuple(rows.shape), 0, None)
    codes, y = launch.empty_codes((n,), _INT8, x), torch.empty_like(x)
    affine: launch.Affine = (scale, zero, -128, 127, whole)
    launch.quantize(x, *affine, _INT8, out=codes)
    ours: dict[str, tuple[int, Callable[[], Any]]] = {  # bytes per element, kernel
        "copy f32 (memory bandwidth)": (8, lambda: y.copy_(x)),
        "quantize f32 to int8": (5, lambda: launch.quantize(x, *affine, _INT8, out=codes)),
        "dequantize int8 to f32": (5, lambda: launch.dequantize(codes, scale, zero, whole, _INT8, out=y)),
        "fake_quantize f32": (8, lambda: launch.fake_quantize(x, *affine, out=y)),
        "fake_quantize backward": (12, lambda: launch.fake_quantize_backward(y, x, *affine, out=y)),
        _ROWS: (5, lambda: launch.quantize_dynamic(rows, token, -127, 127, _INT8, symmetric=True)),
        "range of a tensor": (4, lambda: launch.value_range(x, whole)),
    }
    peers: dict[str, tuple[str, Callable[[], Any]]] = {
        "quantize f32 to int8": ("div, round, clamp, to", lambda: (x / 0.02).round_().clamp_(-128, 127).to(torch.int8)),
        "dequantize int8 to f32": ("to, mul", lambda: codes.to(torch.float32).mul_(0.02)),
        "fake_quantize f32": (
            "fake_quantize_per_tensor_affine",
            lambda: torch.fake_quantize_per_tensor_affine(x, 0.02, 0, -128, 127),
        ),
        _ROWS: ("amax, div, round, to", lambda: (rows / (rows.abs().amax(1, True) / 127)).round_().to(torch.int8)),
        "range of a tensor": ("aminmax", lambda: torch.aminmax(x)),
    }
    return [_speed(device, name, size * n, run, *peers.get(name, ())) for name, (size, run) in ours.items()]


def _products(device: GpuDevice, size: int, small: bool) -> list[Speed]:
    def codes(*shape: int) -> Tensor:
        return torch.randint(-128, 128, shape, dtype=torch.int8, device=device.memory)

    one, found = torch.ones(1, device=device.memory), []
    b = codes(size, size)
    weight = Weight.of(b, one)
    half = torch.randn(size, size, device=device.memory, dtype=torch.float16)
    group = min(128, size)
    packed = torch.randint(0, 256, (size, size // 2), dtype=torch.uint8, device=device.memory)
    int4 = Int4Weight(packed, torch.ones((size, size // group), device=device.memory), None, size, group, True)
    for m in (1, 4) if small else (1, 16, 128, 4096):
        a, x = codes(m, size), torch.randn(m, size, device=device.memory, dtype=torch.float16)
        ops = 2 * m * size * size
        ours = partial(gemm, a, weight, one, None, GpuEpilogue(torch.float16))
        int4_ours = partial(linear_int4, x, int4)
        name = f"{m} x {size} x {size}"
        peer, f16_peer = partial(torch._int_mm, a, b.T), partial(torch.matmul, x, half.T)
        found.append(_speed(device, f"int8 product {name}", ops, ours, "_int_mm", peer, "GOPS"))
        found.append(_speed(device, f"int4 weights on f16 {name}", ops, int4_ours, "f16 matmul", f16_peer, "GOPS"))
    n, channels, side = (1, 4, 4) if small else (32, 64, 56)
    geometry = ConvGeometry.of(1, 1, 1, 1, "NHWC")
    image, filters = codes(n, side, side, channels), conv_weight(codes(channels, channels, 3, 3), one)
    found.append(
        _speed(
            device,
            f"int8 convolution 3 x 3, {n} x {channels} x {side} x {side}",
            18 * n * side * side * channels**2,
            lambda: conv2d(image, filters, one, 0, GpuEpilogue(torch.float16), geometry),
            unit="GOPS",
        )
    )
    return found


def _speed(
    device: GpuDevice,
    name: str,
    amount: int,
    run: Callable[[], Any],
    torch_name: str = "",
    torch_run: Callable[[], Any] | None = None,
    unit: str = "GB/s",
) -> Speed:
    seconds, theirs, error = _seconds(device, run), None, ""
    if torch_run is not None:
        try:
            theirs = _seconds(device, torch_run)
        except (RuntimeError, NotImplementedError) as found:  # torch has no such kernel on this device
            error = str(found).splitlines()[0][:200]
    return Speed(name, unit, seconds, amount / seconds / 1e9, torch_name, theirs, error)


def _seconds(device: GpuDevice, run: Callable[[], Any]) -> float:
    if device.backend == "interpreter":
        started = time.perf_counter()
        run()
        return time.perf_counter() - started
    with torch.cuda.device(device.memory):
        for _ in range(3):  # compile, and wake the clocks
            run()
        torch.cuda.synchronize()
        times, begun = list[float](), time.perf_counter()
        while len(times) < 5 or (time.perf_counter() - begun < _SHORTEST and len(times) < _MOST_RUNS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            run()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1000)
        return statistics.median(times)
