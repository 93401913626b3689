"""Comparisons of GPU kernels with the NumPy reference. `lowbit gpu-check` runs them on a device, tests run them in
Triton's interpreter.

A check generates hard inputs (ties, ends of the range, NaN, Inf, odd sizes), runs a kernel on the device and counts the
results whose bits differ from the reference. Sums of floats with int4 weights are compared within the contract's bound.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

import torch
from lowbit import reference
from lowbit.gpu import launch
from lowbit.gpu.launch_compute import GpuEpilogue, Int4Weight, Weight, conv2d, conv_weight, gemm, gpu_of, linear_int4
from lowbit.gpu.tensors import moved
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.granularity import Granularity, granularity_of, per_token
from lowbit.numerics.packing import pack, pack_bits
from lowbit.numerics.ranges import affine_from_range
from lowbit.ops.conv_geometry import ConvGeometry
from lowbit.reference import compute
from lowbit.runtime.devices import GpuDevice
from lowbit.runtime.torch_types import FLOATS
from torch import Tensor

Array = npt.NDArray[Any]
Counts: TypeAlias = Iterator[tuple[int, int]]
CODES = ("int8", "uint8", "int4", "uint4")
F32 = np.float32
_SHAPES = {
    "matrix": [(1, 1, 1), (7, 33, 16), (17, 65, 33), (33, 7, 130)],  # odd sizes, two row tiles, two k-blocks
    "dp4a": [(1, 1, 1), (7, 33, 16), (5, 9, 34)],  # one element; whole words; a remainder of k
    "gemv": [(1, 1, 1), (1, 20, 64), (2, 5, 35)],
}
_LARGE_SHAPES = [(1, 4096, 4096), (129, 1030, 2051), (256, 512, 4096)]


@dataclass(frozen=True)
class Result:
    """wrong: how many results differ from the reference; error: the exception that a kernel raised, or empty."""

    name: str
    compared: int
    wrong: int
    error: str = ""

    @property
    def is_right(self) -> bool:
        return not self.wrong and not self.error and self.compared > 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Check:
    """run(device) yields (number of results, number that differ from the reference) per comparison."""

    name: str
    run: Callable[[GpuDevice], Counts]


def result_of(check: Check, device: GpuDevice) -> Result:
    """The result of a check. An exception is recorded, so that the report covers every check."""
    compared = wrong = 0
    try:
        for count, bad in check.run(device):
            compared, wrong = compared + count, wrong + bad
    except Exception as error:
        return Result(check.name, compared, wrong, f"{type(error).__name__}: {error}"[:400])
    return Result(check.name, compared, wrong)


def wrong_bits(found: Tensor, want: Any) -> tuple[int, int]:
    """(number of results, number that differ in value or in the sign of a zero). NaN equals NaN. All results count as
    different where the type or the shape is not the expected one."""
    expected = want if isinstance(want, Tensor) else torch.from_numpy(np.asarray(want))
    have = found.detach().cpu()
    if have.dtype is not expected.dtype or have.shape != expected.shape:
        return max(1, expected.numel()), max(1, expected.numel())
    a, b = (v.double() if v.is_floating_point() else v.long() for v in (have, expected))
    same = (a == b) & (torch.signbit(a) == torch.signbit(b)) | ((a != a) & (b != b))
    return expected.numel(), int((~same).sum())


class _Case(NamedTuple):
    name: str
    kind: str  # of the floats
    shape: tuple[int, ...]
    g: Granularity


def _granularities(large: bool) -> dict[str, tuple[tuple[int, ...], Granularity]]:
    token = (5, 3, 65)
    found = {
        "tensor": ((3, 5, 77), granularity_of((3, 5, 77), None, None)),
        "channel": ((2, 3, 67), granularity_of((2, 3, 67), 1, None)),
        "last channel": ((33, 5), granularity_of((33, 5), 1, None)),
        "token": (token, per_token(token)),
        "group": ((4, 64), granularity_of((4, 64), 1, 16)),
        "ragged group": ((6, 71), granularity_of((6, 71), 1, 16)),
        "group of rows": ((70, 6), granularity_of((70, 6), 0, 16)),
    }
    if large:  # many programs, rows longer than a program, more than one wave on the largest GPU
        found |= {
            "tensor, large": ((1031, 4099), granularity_of((1031, 4099), None, None)),
            "channel, large": ((257, 9001), granularity_of((257, 9001), 0, None)),
            "token, large": ((515, 4096), per_token((515, 4096))),
            "group, large": ((512, 4224), granularity_of((512, 4224), 1, 128)),
        }
    return found


class _Problem:
    """Inputs of a case, rounded to its float type. `x`, `finite` and `dy` are widened, as the reference computes."""

    def __init__(self, case: _Case, codes: tuple[int, int]) -> None:
        (name, kind, shape, g), (qmin, qmax) = case, codes
        rng = np.random.default_rng(zlib.crc32(f"{name} {kind} {qmin}".encode()))
        self.dtype, self.g, self.shape, self.codes = FLOATS[kind], g, shape, codes
        wide = np.float64 if kind == "f64" else np.float32
        self.scale = np.asarray(rng.uniform(0.01, 0.1, g.scale_shape)).astype(wide)
        self.zero = np.asarray(rng.integers(qmin, qmax + 1, g.scale_shape)).astype(np.int32)
        s, z = (reference.spread(v, g, shape) for v in (self.scale.astype(np.float64), self.zero))
        x = (rng.uniform(-0.3, 1.3, shape) * (qmax - qmin) + qmin - z) * s
        pick = rng.random(shape)
        x = np.where(pick < 0.3, (np.rint(x / s) + 0.5) * s, x)
        self.finite = self._rounded(x.astype(wide))
        for k, special in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0)):
            x = np.where((pick > 0.9 + 0.02 * k) & (pick < 0.91 + 0.02 * k), special, x)
        self.affine: Any = (self.scale, self.zero, *codes, g)
        self.x, self.dy = self._rounded(x.astype(wide)), self._rounded(rng.standard_normal(shape).astype(wide))

    def _rounded(self, wide: Array) -> Array:
        """The nearest numbers that the narrow type can represent, widened again."""
        return self.narrow(wide).to(torch.float64 if wide.dtype == np.float64 else torch.float32).numpy()

    def narrow(self, wide: Any) -> Tensor:
        return torch.from_numpy(np.asarray(wide)).to(self.dtype)

    def moved(self, device: GpuDevice) -> tuple[Tensor, Tensor, Any]:
        affine: Any = (moved(self.scale, device), moved(self.zero, device), *self.codes, self.g)
        return moved(self.x, device).to(self.dtype), moved(self.dy, device).to(self.dtype), affine


def _codes_and_back(case: _Case, device: GpuDevice) -> Counts:
    """q = int(clamp(rne(x / s), qmin - z, qmax - z)) + z, and y = float(q - z) * s."""
    for code in CODES:
        dtype = QuantizedDType.of(code)
        p, g = _Problem(case, dtype.value_range), case.g
        x, _, affine = p.moved(device)
        s, z = (reference.spread(v, g, p.shape) for v in (p.scale, p.zero))
        q = reference.quantize_affine(p.x, s, z, *p.codes).astype(dtype.code_dtype)
        found = launch.quantize(x, affine[0], affine[1], *p.codes, g, dtype)
        yield wrong_bits(found, pack(q, dtype))
        y = launch.dequantize(found, affine[0], affine[1], g, dtype, out=torch.empty_like(x))
        yield wrong_bits(y, p.narrow(reference.dequantize_affine(q, s, z)))


def _fake_and_gradients(case: _Case, device: GpuDevice) -> Counts:
    for codes in ((-128, 127), (0, 15)):
        p = _Problem(case, codes)
        x, dy, affine = p.moved(device)
        yield wrong_bits(launch.fake_quantize(x, *affine), p.narrow(reference.fake_quantize(p.x, *p.affine)))
        for kernel, formula in (
            (launch.fake_quantize_backward, reference.fake_quantize_backward),
            (launch.quantize_backward, reference.quantize_backward),
        ):
            yield wrong_bits(kernel(dy, x, *affine), p.narrow(formula(p.dy, p.x, *p.affine)))
        found = launch.dequantize_backward(dy, affine[0], p.g)
        yield wrong_bits(found, p.narrow(reference.dequantize_backward(p.dy, p.scale, p.g)))


def _sums(n: int, device: GpuDevice) -> Counts:
    """q = quantize((qa - za) * sa + (qb - zb) * sb), with scales that put sums next to ties."""
    rng = np.random.default_rng(n)
    for left, right, target in (("int8", "uint8", "int8"), ("uint8", "int16", "uint16")):
        a, b = _codes(rng, left, n), _codes(rng, right, n)
        dtype = QuantizedDType.of(target)
        sa, sb, sy = (np.asarray(s, np.float32) for s in (0.1, 0.3, 0.2))
        za, zb, zy = (np.asarray(z, np.int32) for z in (5, 1, 3))
        y = reference.dequantize_affine(a, sa, za) + reference.dequantize_affine(b, sb, zb)
        want = reference.quantize_affine(y, sy, zy, *dtype.value_range).astype(dtype.code_dtype)
        given: Any = (*(moved(v, device) for v in (a, sa, za, b, sb, zb)), *dtype.value_range)
        out = launch.empty_codes((n,), dtype, given[0])
        launch.add(*given, out=out, scale=moved(sy, device), zero=moved(zy, device))
        yield wrong_bits(out, want)


def _learned(case: _Case, device: GpuDevice) -> Counts:
    """dx, and the gradients of scales and zero points, whose sums have the contract's order."""
    p = _Problem(case, (-128, 127))
    _, dy, affine = p.moved(device)
    x = moved(p.finite, device).to(p.dtype)
    dx, ds, dz = launch.fake_quantize_learned_backward(dy, x, *affine)
    want = reference.fake_quantize_learned_backward(p.dy, p.finite, *p.affine)
    yield wrong_bits(dx, p.narrow(want[0]))
    yield wrong_bits(ds, want[1])
    yield wrong_bits(dz, want[2])


def _dynamic(case: _Case, device: GpuDevice) -> Counts:
    """Ranges, scales and zero points from data, and its codes."""
    p, g = _Problem(case, (-128, 127)), case.g
    x = moved(p.finite, device).to(p.dtype)
    lo, hi = reference.range_by_scale(p.finite, g)
    found_lo, found_hi, nans = launch.value_range(x, g)
    yield wrong_bits(found_lo, lo)
    yield wrong_bits(found_hi, hi)
    yield wrong_bits(nans, np.zeros(g.scale_shape, np.int64))
    for code in CODES:
        dtype = QuantizedDType.of(code)
        symmetric = dtype.is_signed
        s, z = affine_from_range(lo, hi, *dtype.value_range, symmetric=symmetric)
        each_s, each_z = (reference.spread(v, g, p.shape) for v in (s, z))
        q = reference.quantize_affine(p.finite, each_s, each_z, *dtype.value_range).astype(dtype.code_dtype)
        codes, scale, zero = launch.quantize_dynamic(x, g, *dtype.value_range, dtype, symmetric=symmetric)
        yield wrong_bits(codes, pack(q, dtype))
        yield wrong_bits(scale, s)
        if zero is not None:
            yield wrong_bits(zero, z)


def _codes(rng: np.random.Generator, kind: str, *shape: int) -> Any:
    dtype = QuantizedDType.of(kind)
    return rng.integers(*dtype.value_range, shape, endpoint=True).astype(dtype.code_dtype)


def _product(shape: tuple[int, int, int], path: str, kinds: str, device: GpuDevice) -> Counts:
    """The exact sums, y = f32(sum) * (sa * sb) + bias, and the codes of y."""
    (m, n, k), (kind_a, kind_b) = shape, kinds.split()
    rng = np.random.default_rng([m, n, k])
    a, b = _codes(rng, kind_a, m, k), _codes(rng, kind_b, n, k)
    za, zb = (_codes(rng, kind, size).astype(np.int32) for kind, size in ((kind_a, m), (kind_b, n)))
    sa, sb = ((rng.random(size) + 0.1).astype(F32) / F32(37) for size in (m, n))
    bias = rng.standard_normal(n).astype(F32)
    sums = compute.matmul_integer(a, b.T, za, zb)
    floats = compute.scaled(sums, sa, sb, bias)
    sy = F32(np.abs(floats).max() / 100 + 1e-3)
    steps = np.rint(bias / (sa[:, None] * sb)).astype(np.int64)
    codes = compute.requantize(sums + steps, sa, sb, sy, 5, 0, 255).astype(np.uint8)
    weight = Weight.of(moved(b, device), moved(sb, device), moved(zb, device))
    given = (moved(a, device), weight, moved(sa, device), moved(za, device))
    there_bias = moved(bias, device)
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
    geometry = ConvGeometry.of((2, 1), (1, 0, 2, 1), 1, groups, "NCHW")
    sums = compute.conv2d_integer(x, w, 7, zw, *geometry[:4])
    floats = compute.scaled(np.moveaxis(sums, 1, -1).reshape(-1, len(w)), F32(0.013), sw)
    rows = floats.reshape(sums.shape[0], *sums.shape[2:], len(w))
    weight = conv_weight(moved(w, device), moved(sw, device), moved(zw, device))
    scale, image = moved(F32(0.013), device), moved(x, device)
    for epilogue, want in ((GpuEpilogue(torch.int64), sums), (GpuEpilogue(torch.float32), np.moveaxis(rows, -1, 1))):
        yield wrong_bits(conv2d(image, weight, scale, 7, epilogue, geometry, path=path), np.ascontiguousarray(want))


def _int4(shape: tuple[int, int, int, int], dtype: torch.dtype, device: GpuDevice) -> Counts:
    """|y - exact| <= 4 * eps * (sum of |terms| + |bias|)."""
    m, n, k, group = shape
    rng = np.random.default_rng(shape)
    groups = -(-k // group)
    x = torch.from_numpy(rng.standard_normal((m, k)).astype(F32)).to(dtype)
    q, z = rng.integers(0, 16, (n, k)), rng.integers(0, 16, (n, groups))
    s, bias = (rng.random((n, groups)) + 0.1).astype(F32), rng.standard_normal(n).astype(F32)
    packed = pack_bits(np.pad(q, ((0, 0), (0, k % 2))), 4).reshape(n, -1)
    weight = Int4Weight(moved(packed, device), moved(s, device), moved(z, device), k, group, False)
    found = linear_int4(x.to(device.memory), weight, moved(bias, device), dtype=torch.float32).double().cpu().numpy()
    each = np.arange(k) // group
    expanded = (q - z[:, each]) * s[:, each].astype(np.float64)
    wide = x.double().numpy()
    exact, size = wide @ expanded.T + bias, np.abs(wide) @ np.abs(expanded).T + np.abs(bias)
    yield found.size, int((~(np.abs(found - exact) <= 4 * 2**-23 * size)).sum())


def _compute_checks(device: GpuDevice, large: bool) -> list[Check]:
    has_dot = gpu_of(torch.empty(0, device=device.memory)).has_int8_dot
    tiled = ("matrix", "dp4a") if has_dot else ("dp4a",)
    products = [
        Check(f"product by {path}, {kinds}, {shape}", partial(_product, shape, path, kinds))
        for path in (*tiled, "gemv")
        for shape in _SHAPES[path] + (_LARGE_SHAPES if large else [])
        for kinds in ("s8 s8", "u8 s8", "s8 u8")
        if path != "gemv" or shape[0] <= 16
    ]
    convolutions = [
        Check(
            f"convolution by {path}, {channels} channels, {groups} groups",
            partial(_convolution, path, channels, groups),
        )
        for path in tiled
        for channels, groups in ((3, 1), (8, 2))
    ]
    depthwise = Check("convolution, depthwise", partial(_convolution, "depthwise", 6, 6))
    shapes = [(3, 20, 128, 32), (17, 5, 129, 64), (1, 9, 60, 20)] + ([(64, 512, 4096, 128)] if large else [])
    int4 = [
        Check(f"int4 weights, {dtype}, {shape}", partial(_int4, shape, dtype))
        for shape in shapes
        for dtype in (torch.float32, torch.float16, torch.bfloat16)
    ]
    return [*products, *convolutions, depthwise, *int4]


def all_checks(device: GpuDevice, large: bool = True) -> list[Check]:
    """Every comparison for the device. large: also sizes that fill it, which take hours in the interpreter."""
    elementwise = {"codes and back": _codes_and_back, "fake quantize and gradients": _fake_and_gradients}
    sums = Check("sums of codes", partial(_sums, 4_000_037 if large else 1_531))
    reductions = {"learned gradients": _learned, "scales from data": _dynamic}
    return [*_checks(large, elementwise), sums, *_checks(large, reductions), *_compute_checks(device, large)]


def _checks(large: bool, families: dict[str, Any]) -> list[Check]:
    return [
        Check(f"{family}, {kind}, {name}", partial(run, _Case(name, kind, shape, g)))
        for family, run in families.items()
        for kind in FLOATS
        for name, (shape, g) in _granularities(large).items()
    ]
