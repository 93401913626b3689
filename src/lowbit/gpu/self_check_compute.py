"""Comparisons of matrix products and convolutions with the reference, and the list of all comparisons."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import torch
from lowbit.gpu.launch_conv import conv2d, conv_weight
from lowbit.gpu.launch_gemm import GpuEpilogue, Int4Weight, Weight, gemm, gpu_of, linear_int4
from lowbit.gpu.self_check import Check, Counts, elementwise_checks, reduction_checks, there, wrong_bits
from lowbit.numerics.packing import pack_bits
from lowbit.reference import compute as reference
from lowbit.runtime.devices import GpuDevice

F32 = np.float32
_BYTES = {"s8": np.int8, "u8": np.uint8}
_SHAPES = {
    "matrix": [
        (1, 1, 1),
        (7, 33, 16),
        (17, 65, 33),
        (33, 7, 130),
    ],  # odd sizes, two row tiles, two k-blocks
    "dp4a": [(1, 1, 1), (7, 33, 16), (5, 9, 34)],  # one element; whole words; a remainder of k
    "gemv": [(1, 1, 1), (1, 20, 64), (2, 5, 35)],
}
_LARGE_SHAPES = [(1, 4096, 4096), (129, 1030, 2051), (256, 512, 4096)]


def _codes(rng: np.random.Generator, kind: str, *shape: int) -> Any:
    info = np.iinfo(_BYTES[kind])
    return rng.integers(info.min, info.max + 1, shape).astype(_BYTES[kind])


def _product(shape: tuple[int, int, int], path: str, kinds: str, device: GpuDevice) -> Counts:
    """The exact sums, y = f32(sum) * (sa * sb) + bias, and the codes of y."""
    (m, n, k), (kind_a, kind_b) = shape, kinds.split()
    rng = np.random.default_rng([m, n, k])
    a, b = _codes(rng, kind_a, m, k), _codes(rng, kind_b, n, k)
    za, zb = (_codes(rng, kind, size).astype(np.int32) for kind, size in ((kind_a, m), (kind_b, n)))
    sa, sb = ((rng.random(size) + 0.1).astype(F32) / F32(37) for size in (m, n))
    bias = rng.standard_normal(n).astype(F32)
    sums = reference.matmul_integer(a, b.T, za, zb)
    floats = reference.scaled(sums, sa, sb, bias)
    sy = F32(np.abs(floats).max() / 100 + 1e-3)
    steps = np.rint(bias / (sa[:, None] * sb)).astype(np.int64)
    codes = reference.requantize(sums + steps, sa, sb, sy, 5, 0, 255).astype(np.uint8)
    weight = Weight.of(there(b, device), there(sb, device), there(zb, device))
    given = (there(a, device), weight, there(sa, device), there(za, device))
    there_bias = there(bias, device)
    for epilogue, want in (
        (GpuEpilogue(torch.int64), sums),
        (GpuEpilogue(torch.float32, there_bias), floats),
        (GpuEpilogue(torch.uint8, there_bias, scale=float(sy), zero_point=5), codes),
    ):
        yield wrong_bits(gemm(*given, epilogue, path=path), want)


def _convolution(path: str, channels: int, groups: int, device: GpuDevice) -> Counts:
    rng = np.random.default_rng([channels, groups])
    x, w = _codes(rng, "u8", 2, channels, 9, 7), _codes(rng, "s8", 2 * groups, channels // groups, 3, 3)
    zw, sw = rng.integers(-128, 128, len(w)).astype(np.int32), (rng.random(len(w)) + 0.1).astype(F32)
    geometry: dict[str, Any] = {"stride": (2, 1), "padding": (1, 0, 2, 1), "dilation": (1, 1), "groups": groups}
    sums = reference.conv2d_integer(x, w, 7, zw, *geometry.values())
    floats = reference.scaled(np.moveaxis(sums, 1, -1).reshape(-1, len(w)), F32(0.013), sw)
    rows = floats.reshape(sums.shape[0], *sums.shape[2:], len(w))
    weight = conv_weight(there(w, device), there(sw, device), there(zw, device))
    scale, image = there(F32(0.013), device), there(x, device)
    for epilogue, want in ((GpuEpilogue(torch.int64), sums), (GpuEpilogue(torch.float32), np.moveaxis(rows, -1, 1))):
        yield wrong_bits(conv2d(image, weight, scale, 7, epilogue, path=path, **geometry), np.ascontiguousarray(want))


def _int4(shape: tuple[int, int, int, int], dtype: torch.dtype, device: GpuDevice) -> Counts:
    """|y - exact| <= 4 * eps * (sum of |terms| + |bias|)."""
    m, n, k, group = shape
    rng = np.random.default_rng(shape)
    groups = -(-k // group)
    x = torch.from_numpy(rng.standard_normal((m, k)).astype(F32)).to(dtype)
    q, z = rng.integers(0, 16, (n, k)), rng.integers(0, 16, (n, groups))
    s, bias = (rng.random((n, groups)) + 0.1).astype(F32), rng.standard_normal(n).astype(F32)
    packed = pack_bits(np.pad(q, ((0, 0), (0, k % 2))), 4).reshape(n, -1)
    weight = Int4Weight(there(packed, device), there(s, device), there(z, device), k, group, False)
    found = linear_int4(x.to(device.memory), weight, there(bias, device), dtype=torch.float32).double().cpu().numpy()
    each = np.arange(k) // group
    expanded = (q - z[:, each]) * s[:, each].astype(np.float64)
    wide = x.double().numpy()
    exact, size = wide @ expanded.T + bias, np.abs(wide) @ np.abs(expanded).T + np.abs(bias)
    yield found.size, int((~(np.abs(found - exact) <= 4 * 2**-23 * size)).sum())


def _compute_checks(device: GpuDevice, large: bool) -> list[Check]:
    has_dot = gpu_of(torch.empty(0, device=device.memory)).has_int8_dot
    paths = ("matrix", "dp4a", "gemv") if has_dot else ("dp4a", "gemv")
    found = [
        Check(f"product by {path}, {kinds}, {shape}", partial(_product, shape, path, kinds))
        for path in paths
        for shape in _SHAPES[path] + (_LARGE_SHAPES if large else [])
        for kinds in ("s8 s8", "u8 s8", "s8 u8")
        if path != "gemv" or shape[0] <= 16
    ]
    for path in ("matrix", "dp4a") if has_dot else ("dp4a",):
        for channels, groups in ((3, 1), (8, 2)):
            name = f"convolution by {path}, {channels} channels, {groups} groups"
            found.append(Check(name, partial(_convolution, path, channels, groups)))
    found.append(Check("convolution, depthwise", partial(_convolution, "depthwise", 6, 6)))
    shapes = [(3, 20, 128, 32), (17, 5, 129, 64), (1, 9, 60, 20)] + ([(64, 512, 4096, 128)] if large else [])
    for shape in shapes:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            found.append(Check(f"int4 weights, {dtype}, {shape}", partial(_int4, shape, dtype)))
    return found


def all_checks(device: GpuDevice, large: bool = True) -> list[Check]:
    """Every comparison for the device. large: also sizes that fill it, which take hours in the interpreter."""
    return [*elementwise_checks(large), *reduction_checks(large), *_compute_checks(device, large)]
