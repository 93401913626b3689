"""Products of codes: interpreted kernels against the reference. Integers exactly, floats to the bit."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import torch
from gpu import interpreter_shim

interpreter_shim.install()

from lowbit.gpu.launch_compute import MAX_DEPTH, GpuEpilogue, Weight, gemm  # noqa: E402
from lowbit.gpu.tiles import Gpu  # noqa: E402
from lowbit.numerics.errors import InvalidProblem, Unsupported, UnsupportedDType  # noqa: E402
from lowbit.reference import compute as reference  # noqa: E402

F32 = np.float32
AMPERE, TURING, REFERENCE = Gpu("cuda", 80), Gpu("cuda", 75), Gpu("reference", 0)
PATHS = {"matrix": AMPERE, "dp4a": TURING, "gemv": TURING}
BYTES = {"s8": np.int8, "u8": np.uint8}
ONE = torch.ones(1)


def codes(rng: np.random.Generator, kind: str, *shape: int) -> Any:
    info = np.iinfo(BYTES[kind])
    return rng.integers(info.min, info.max + 1, shape).astype(BYTES[kind])


def zeros_at_extremes(kind: str, count: int) -> Any:
    """Least, greatest and a few between, in turn."""
    info = np.iinfo(BYTES[kind])
    return np.resize([info.min, info.max, 3, info.max - 100], count).astype(np.int32)


class Product:
    """Codes a [m, k], b [n, k], with zero points and scales by row on both sides, and their exact sums."""

    def __init__(self, m: int, n: int, k: int, a: str = "s8", b: str = "s8", zero: bool = True, seed: int = 0) -> None:
        rng = np.random.default_rng([m, n, k, seed])
        self.a, self.b = codes(rng, a, m, k), codes(rng, b, n, k)
        self.za = zeros_at_extremes(a, m) if zero else None
        self.zb = zeros_at_extremes(b, n) if zero else None
        self.sa, self.sb = ((rng.random(size) + 0.1).astype(F32) / F32(37) for size in (m, n))
        self.bias = rng.standard_normal(n).astype(F32)
        self.sums = reference.matmul_integer(self.a, self.b.T, 0 if self.za is None else self.za,
                                             0 if self.zb is None else self.zb)  # fmt: skip

    def run(self, finish: GpuEpilogue, path: str, gpu: Gpu | None = None) -> torch.Tensor:
        za, zb = (None if z is None else torch.from_numpy(z) for z in (self.za, self.zb))
        weight = Weight.of(torch.from_numpy(self.b), torch.from_numpy(self.sb), zb)
        a, sa = torch.from_numpy(self.a), torch.from_numpy(self.sa)
        return gemm(a, weight, sa, za, finish, gpu=gpu or PATHS[path], path=path)


# one; odd all round; one more than a tile of rows; k past a block of 128; narrow; deep
SHAPES = [(1, 1, 1), (7, 33, 16), (17, 65, 33), (33, 7, 130), (100, 1, 7), (2, 16, 300)]


@pytest.mark.parametrize("kinds", ["s8 s8", "s8 u8", "u8 s8", "u8 u8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_on_matrix_units(shape: tuple[int, int, int], kinds: str) -> None:
    for zero in (True, False):
        p = Product(*shape, *kinds.split(), zero=zero)
        found = p.run(GpuEpilogue(torch.int32), "matrix")
        assert found.dtype == torch.int32
        np.testing.assert_array_equal(found.numpy(), p.sums)


@pytest.mark.parametrize("kinds", ["s8 s8", "u8 s8", "s8 u8"])
@pytest.mark.parametrize("path", ["dp4a", "gemv"])
# whole words, and k that leaves 1, 2 and 3 codes
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 70, 12), (3, 5, 34), (1, 17, 75)], ids=str)
def test_sums_by_dp4a(path: str, shape: tuple[int, int, int], kinds: str) -> None:
    p = Product(*shape, *kinds.split())
    np.testing.assert_array_equal(p.run(GpuEpilogue(torch.int32), path).numpy(), p.sums)


@pytest.mark.parametrize("path", ["dp4a", "gemv"])
def test_shifts_and_products_are_dp4a(path: str) -> None:
    """The form for AMD, from which the assembly of NVIDIA must not differ."""
    for kinds in ("s8 s8", "u8 u8"):
        p = Product(3, 18, 16, *kinds.split())
        np.testing.assert_array_equal(p.run(GpuEpilogue(torch.int32), path, REFERENCE).numpy(), p.sums)
        assert torch.equal(p.run(GpuEpilogue(torch.int32), path), p.run(GpuEpilogue(torch.int32), path, Gpu("hip", 0)))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("a", "b", "za", "zb"), [(-128, -128, 0, 0), (-128, -128, 127, 127), (127, -128, -128, 127)])
def test_sums_of_the_greatest_products(path: str, a: int, b: int, za: int, zb: int) -> None:
    left, right = (np.full((2, 520), v, np.int8) for v in (a, b))
    weight = Weight.of(torch.from_numpy(right), ONE, torch.tensor(zb))
    found = gemm(torch.from_numpy(left), weight, ONE, torch.tensor(za), GpuEpilogue(torch.int32), gpu=AMPERE, path=path)
    assert (found == (a - za) * (b - zb) * 520).all()


def test_deepest_sums() -> None:
    """128 * 128 * 131,071 is the last int32; past int32, with zero points, sums are int64."""
    least = torch.full((1, MAX_DEPTH), -128, dtype=torch.int8)
    found = gemm(least, Weight.of(least, ONE), ONE, None, GpuEpilogue(torch.int32), gpu=AMPERE, path="matrix")
    assert found.item() == 16384 * MAX_DEPTH
    more = torch.full((1, 33026), 255, dtype=torch.uint8)
    weight = Weight.of(more, ONE)
    assert gemm(more, weight, ONE, None, GpuEpilogue(torch.int64), gpu=AMPERE, path="matrix").item() == 65025 * 33026
    y = gemm(more, weight, ONE, None, GpuEpilogue(torch.float32), gpu=AMPERE, path="gemv")
    assert y.item() == float(F32(65025 * 33026))
    with pytest.raises(Unsupported, match="int32 sums of 33026 products"):
        gemm(more, weight, ONE, None, GpuEpilogue(torch.int32), gpu=AMPERE)
    deeper = torch.zeros((1, MAX_DEPTH + 1), dtype=torch.int8)
    with pytest.raises(Unsupported, match="at most 131071"):
        gemm(deeper, Weight.of(deeper, ONE), ONE, None, GpuEpilogue(torch.float32), gpu=AMPERE)


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # to Inf in f16, as is right
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_float_results_to_the_bit(path: str, dtype: torch.dtype) -> None:
    p = Product(5, 35, 20, "u8", "s8")
    y = reference.scaled(p.sums, p.sa, p.sb, p.bias)
    found = p.run(GpuEpilogue(dtype, torch.from_numpy(p.bias), floor=-20.0, ceiling=30.0), path)
    assert ((y < -20).any(), (y > 30).any(), (abs(y) < 20).any()) == (True, True, True)
    assert torch.equal(found, torch.from_numpy(np.clip(y, F32(-20), F32(30))).to(dtype))
    steps = np.arange(-17, 18, dtype=np.int32) * 2**26  # past int32 with the sums
    found = p.run(GpuEpilogue(dtype, torch.from_numpy(steps)), path)
    assert torch.equal(found, torch.from_numpy(reference.scaled(p.sums + steps, p.sa, p.sb)).to(dtype))


def test_scales_one_or_many_and_nan() -> None:
    """One scale for all rows or columns is the same number as one for each; NaN in a bias is not clamped away."""
    p = Product(5, 6, 20)
    for sa, sb in ((p.sa, p.sb[:1]), (p.sa[:1], p.sb), (p.sa[:1], p.sb[:1])):
        weight = Weight.of(torch.from_numpy(p.b), torch.from_numpy(sb), torch.from_numpy(p.zb))
        found = gemm(torch.from_numpy(p.a), weight, torch.from_numpy(sa), torch.from_numpy(p.za),
                     GpuEpilogue(torch.float32), gpu=AMPERE)  # fmt: skip
        expected = reference.scaled(p.sums, np.broadcast_to(sa, 5), np.broadcast_to(sb, 6))
        np.testing.assert_array_equal(found.numpy(), expected)
    found = p.run(GpuEpilogue(torch.float32, torch.full((6,), math.nan), floor=0.0, ceiling=6.0), "matrix")
    assert found.isnan().all()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("dtype", "zero", "lo", "hi"),
    [(torch.int8, 0, -128, 127), (torch.int8, -128, -128, 127), (torch.uint8, 255, 0, 255), (torch.uint8, 9, 9, 200)],
)
def test_codes(path: str, dtype: torch.dtype, zero: int, lo: int, hi: int) -> None:
    p = Product(6, 34, 20, "s8", "u8")
    sy = F32(0.35)
    codes = reference.requantize(p.sums, p.sa, p.sb, sy, zero, lo, hi)
    assert len(np.unique(codes)) > 20
    finish = GpuEpilogue(dtype, scale=float(sy), zero_point=zero, lo=lo, hi=hi)
    np.testing.assert_array_equal(p.run(finish, path).numpy(), codes)
    # A bias of floats becomes steps of each row's sums.
    bias = (p.bias * F32(10)).astype(F32)
    steps = np.rint(bias / (p.sa[:, None] * p.sb)).astype(np.int64)
    codes = reference.requantize(p.sums + steps, p.sa, p.sb, sy, zero, lo, hi)
    finish = GpuEpilogue(dtype, torch.from_numpy(bias), scale=float(sy), zero_point=zero, lo=lo, hi=hi)
    np.testing.assert_array_equal(p.run(finish, path).numpy(), codes)


@pytest.mark.parametrize("path", PATHS)
def test_ties_go_to_even_before_the_zero_point(path: str) -> None:
    a = torch.arange(-7, 8, dtype=torch.int8).reshape(-1, 1)
    weight = Weight.of(torch.tensor([[1], [3]], dtype=torch.int8), ONE)
    found = gemm(a, weight, ONE, None, GpuEpilogue(torch.int8, scale=2.0, zero_point=1), gpu=AMPERE, path=path)
    np.testing.assert_array_equal(found.numpy(), np.rint(a.numpy() * F32([1, 3]) / 2) + 1)


def test_bias_ties_and_huge_steps() -> None:
    """rne(bias / (sa * sb)) where halves are exact in f32, up to 2^22 and past 2^31."""
    bias = np.array([0.5, 1.5, -0.5, -2.5, 4194303.5, -4194302.5, 8388606.5, 3e9, -3e9, 1e20], F32)
    a = torch.zeros((2, 4), dtype=torch.int8)
    weight = Weight.of(torch.zeros((10, 4), dtype=torch.int8), ONE)
    for sy in (1.0, 65536.0, 3e7):
        found = gemm(a, weight, ONE, None, GpuEpilogue(torch.int8, torch.from_numpy(bias), scale=sy), gpu=AMPERE)
        expected = np.clip(np.rint(np.rint(bias) * (F32(1) / F32(sy))), -128, 127)
        np.testing.assert_array_equal(found.numpy(), np.stack([expected] * 2))


def test_rows_apart_and_nothing_at_all() -> None:
    wide = torch.from_numpy(codes(np.random.default_rng(1), "s8", 5, 40))
    weight = Weight.of(torch.from_numpy(codes(np.random.default_rng(2), "s8", 6, 20)), ONE)
    for a in (wide[:, 7:27], wide[:, :20], wide.T[3:5, :].T.repeat(1, 10)):
        for path in PATHS:
            found = gemm(a, weight, ONE, None, GpuEpilogue(torch.int32), gpu=AMPERE, path=path)
            assert torch.equal(found.long(), a.long() @ weight.codes.long().T)
    assert gemm(wide[:0, :20], weight, ONE, None, GpuEpilogue(torch.int32), gpu=AMPERE).shape == (0, 6)
    empty = Weight.of(torch.empty((6, 0), dtype=torch.int8), ONE)
    assert not gemm(wide[:, :0], empty, ONE, None, GpuEpilogue(torch.int32), gpu=AMPERE).any()


@pytest.mark.parametrize("path", PATHS)
def test_rows_a_gigabyte_apart(path: str) -> None:
    """The last row starts past 2^31 bytes. Memory that is not touched is not taken."""
    far = torch.empty(2**31 + 64, dtype=torch.int8).as_strided((3, 12), (2**30 + 16, 1))
    near = torch.from_numpy(codes(np.random.default_rng(4), "s8", 3, 12))
    far.copy_(near)
    weight = Weight.of(near, ONE)
    found = gemm(far, weight, ONE, None, GpuEpilogue(torch.int32), gpu=AMPERE, path=path)
    assert torch.equal(found.long(), near.long() @ near.long().T)


def test_paths_follow_shape_and_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from lowbit.gpu import launch_compute

    seen: list[str] = []
    for name in ("int8_gemm", "int8_gemm_dp4a", "int8_gemv_dp4a"):
        kernel = getattr(launch_compute, name)

        class Spy:
            def __init__(self, name: str, kernel: Any) -> None:
                self.name, self.kernel = name, kernel

            def __getitem__(self, grid: Any) -> Any:
                seen.append(self.name)
                return self.kernel[grid]

        monkeypatch.setattr(launch_compute, name, Spy(name, kernel))
    weight = Weight.of(torch.ones((3, 8), dtype=torch.int8), ONE)
    for rows, gpu in ((1, AMPERE), (2, AMPERE), (2, TURING), (2, Gpu("hip", 0))):
        gemm(torch.ones((rows, 8), dtype=torch.int8), weight, ONE, None, GpuEpilogue(torch.int32), gpu=gpu)
    assert seen == ["int8_gemv_dp4a", "int8_gemm", "int8_gemm_dp4a", "int8_gemm"]
    with pytest.raises(Unsupported, match="matrix on sm_75"):
        gemm(
            torch.ones((2, 8), dtype=torch.int8), weight, ONE, None, GpuEpilogue(torch.int32), gpu=TURING, path="matrix"
        )


def test_what_is_refused() -> None:
    a = torch.ones((2, 8), dtype=torch.int8)
    weight = Weight.of(torch.ones((3, 8), dtype=torch.int8), ONE)
    for finish, error, text in (
        (GpuEpilogue(torch.float64), UnsupportedDType, "out: torch.float64"),
        (GpuEpilogue(torch.int32, torch.ones(3)), InvalidProblem, "bias: with sums"),
        (GpuEpilogue(torch.float32, torch.ones(2)), InvalidProblem, "bias: shape"),
        (GpuEpilogue(torch.uint8, zero_point=-1), InvalidProblem, "zero point -1"),
        (GpuEpilogue(torch.int8, lo=5, hi=4), InvalidProblem, "codes"),
    ):
        with pytest.raises(error, match=text):
            gemm(a, weight, ONE, None, finish, gpu=AMPERE)
    with pytest.raises(InvalidProblem, match="a_scale: 3 values"):
        gemm(a, weight, torch.ones(3), None, GpuEpilogue(torch.float32), gpu=AMPERE)
    with pytest.raises(InvalidProblem, match=r"expected bytes \[m, 8\]"):
        gemm(a[:, :7], weight, ONE, None, GpuEpilogue(torch.float32), gpu=AMPERE)
