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
from lowbit.gpu import launch, launch_reductions
from lowbit.numerics.dtypes import QuantizedDType
from lowbit.numerics.granularity import Granularity, granularity_of, per_token
from lowbit.numerics.packing import pack
from lowbit.numerics.ranges import affine_from_range
from lowbit.runtime.devices import GpuDevice
from torch import Tensor

Array = npt.NDArray[Any]
Counts: TypeAlias = Iterator[tuple[int, int]]
FLOATS = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
CODES = ("int8", "uint8", "int4", "uint4")


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


def there(array: Any, device: GpuDevice, dtype: torch.dtype | None = None) -> Tensor:
    """A copy of the array on the device."""
    found = torch.from_numpy(np.array(array, order="C"))
    return (found if dtype is None else found.to(dtype)).to(device.memory)


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
        self.x, self.dy = self._rounded(x.astype(wide)), self._rounded(rng.standard_normal(shape).astype(wide))

    def _rounded(self, wide: Array) -> Array:
        """The nearest numbers that the narrow type can represent, widened again."""
        return self.narrow(wide).to(torch.float64 if wide.dtype == np.float64 else torch.float32).numpy()

    def narrow(self, wide: Any) -> Tensor:
        return torch.from_numpy(np.asarray(wide)).to(self.dtype)

    def moved(self, device: GpuDevice) -> tuple[Tensor, Tensor, Any]:
        affine: Any = (there(self.scale, device), there(self.zero, device), *self.codes, self.g)
        return there(self.x, device, self.dtype), there(self.dy, device, self.dtype), affine

    @property
    def affine(self) -> Any:
        return (self.scale, self.zero, *self.codes, self.g)


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
        a, b = (
            rng.integers(*d.value_range, n, endpoint=True).astype(d.code_dtype)
            for d in (QuantizedDType.of(left), QuantizedDType.of(right))
        )
        dtype = QuantizedDType.of(target)
        sa, sb, sy = (np.asarray(s, np.float32) for s in (0.1, 0.3, 0.2))
        za, zb, zy = (np.asarray(z, np.int32) for z in (5, 1, 3))
        y = reference.dequantize_affine(a, sa, za) + reference.dequantize_affine(b, sb, zb)
        want = reference.quantize_affine(y, sy, zy, *dtype.value_range).astype(dtype.code_dtype)
        given: Any = (*(there(v, device) for v in (a, sa, za, b, sb, zb)), *dtype.value_range)
        out = launch.empty_codes((n,), dtype, given[0])
        launch.add(*given, out=out, scale=there(sy, device), zero=there(zy, device))
        yield wrong_bits(out, want)


def _learned(case: _Case, device: GpuDevice) -> Counts:
    """dx, and the gradients of scales and zero points, whose sums have the contract's order."""
    p = _Problem(case, (-128, 127))
    _, dy, affine = p.moved(device)
    x = there(p.finite, device, p.dtype)
    dx, ds, dz = launch_reductions.fake_quantize_learned_backward(dy, x, *affine)
    want = reference.fake_quantize_learned_backward(p.dy, p.finite, *p.affine)
    yield wrong_bits(dx, p.narrow(want[0]))
    yield wrong_bits(ds, want[1])
    yield wrong_bits(dz, want[2])


def _dynamic(case: _Case, device: GpuDevice) -> Counts:
    """Ranges, scales and zero points from data, and its codes."""
    p, g = _Problem(case, (-128, 127)), case.g
    x = there(p.finite, device, p.dtype)
    lo, hi = reference.range_by_scale(p.finite, g)
    found_lo, found_hi, nans = launch_reductions.value_range(x, g)
    yield wrong_bits(found_lo, lo)
    yield wrong_bits(found_hi, hi)
    yield wrong_bits(nans, np.zeros(g.scale_shape, np.int64))
    for code in CODES:
        dtype = QuantizedDType.of(code)
        symmetric = dtype.is_signed
        s, z = affine_from_range(lo, hi, *dtype.value_range, symmetric=symmetric)
        each_s, each_z = (reference.spread(v, g, p.shape) for v in (s, z))
        q = reference.quantize_affine(p.finite, each_s, each_z, *dtype.value_range).astype(dtype.code_dtype)
        codes, scale, zero = launch_reductions.quantize_dynamic(x, g, *dtype.value_range, dtype, symmetric=symmetric)
        yield wrong_bits(codes, pack(q, dtype))
        yield wrong_bits(scale, s)
        if zero is not None:
            yield wrong_bits(zero, z)


def _checks(large: bool, families: dict[str, Any]) -> list[Check]:
    return [
        Check(f"{family}, {kind}, {name}", partial(run, _Case(name, kind, shape, g)))
        for family, run in families.items()
        for kind in FLOATS
        for name, (shape, g) in _granularities(large).items()
    ]


def elementwise_checks(large: bool) -> list[Check]:
    families = {"codes and back": _codes_and_back, "fake quantize and gradients": _fake_and_gradients}
    return [*_checks(large, families), Check("sums of codes", partial(_sums, 4_000_037 if large else 1_531))]


def reduction_checks(large: bool) -> list[Check]:
    return _checks(large, {"learned gradients": _learned, "scales from data": _dynamic})
