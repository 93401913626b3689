"""Products of codes, as executed PTX: exact sums, and the same bits after them, by DP4A and by Tensor Cores."""

from __future__ import annotations

import numpy as np
import pytest

import torch
from gpu.ptx_launch import on_target
from gpu.ptx_products import S8, U8, codes_of, floats_of, multiply, product_case, sums_of
from gpu.ptx_tensors import FLOATS, TARGETS, gpu_of, same_bits
from lowbit.gpu import launch_compute
from lowbit.gpu.launch_compute import GpuEpilogue
from lowbit.ops.conv_geometry import ConvGeometry

PATHS = [(t, p) for t in TARGETS for p in ("gemv", "dp4a", "matrix") if not (t == "sm_75" and p == "matrix")]


@pytest.mark.parametrize(("target", "path"), PATHS)
@pytest.mark.parametrize(
    ("a_type", "b_type"), [(S8, S8), *(pytest.param(*p, marks=pytest.mark.deep) for p in [(U8, S8), (U8, U8)])]
)
def test_sums_are_exact(target: str, path: str, a_type: torch.dtype, b_type: torch.dtype) -> None:
    """Whole words and tiles."""
    c = product_case(2 if path == "gemv" else 64, 64, 128, a_type, b_type)
    assert (multiply(c, GpuEpilogue(torch.int32), target, path).numpy() == sums_of(c)).all()


@pytest.mark.parametrize(("target", "path"), PATHS)
def test_floats_after_a_product(target: str, path: str) -> None:
    """Rows of words that no tile divides."""
    c = product_case(18, 68, 96, S8, S8)
    y = multiply(c, GpuEpilogue(torch.float32, bias=c["bias"]), target, path)
    assert same_bits(y, torch.from_numpy(floats_of(c))) == 0


@pytest.mark.parametrize(
    ("target", "path"), [p if p[0] == "sm_80" else pytest.param(*p, marks=pytest.mark.deep) for p in PATHS]
)
def test_codes_after_a_product(target: str, path: str) -> None:
    """Rows that are no whole words; unsigned activations, which are centred first."""
    c = product_case(7, 37, 75, U8, S8)
    q = multiply(c, GpuEpilogue(torch.int8, scale=37.5, zero_point=-3), target, path)
    assert (q.numpy() == codes_of(c, 37.5, -3)).all()


@pytest.mark.deep
@pytest.mark.parametrize(("target", "path"), PATHS)
@pytest.mark.parametrize(
    "shape", [(70, 112, 208), (130, 200, 384), (129, 131, 257), (1, 70, 132), (2, 3, 1), (5, 64, 1000)]
)
def test_more_shapes(target: str, path: str, shape: tuple[int, int, int]) -> None:
    c = product_case(*shape, U8, S8)
    assert (multiply(c, GpuEpilogue(torch.int32), target, path).numpy() == sums_of(c)).all()


@pytest.mark.parametrize("target", ["sm_80", "sm_120"])
@pytest.mark.parametrize("floats", ["f16", pytest.param("bf16", marks=pytest.mark.deep)])
def test_int4_weights(target: str, floats: str) -> None:
    """Whole numbers as activations and powers of two as scales: every order of summing gives the exact result."""
    rng = np.random.default_rng(8)
    m, n, k, group = 9, 70, 192, 64
    codes, x = rng.integers(-8, 8, (n, k)), rng.integers(-4, 5, (m, k))
    scale = np.exp2(rng.integers(-2, 2, (n, k // group))).astype(np.float32)
    packed = ((codes[:, ::2] & 15) | ((codes[:, 1::2] & 15) << 4)).astype(np.uint8)
    weight = launch_compute.Int4Weight(torch.from_numpy(packed), torch.from_numpy(scale), None, k, group, True)
    with on_target(target):
        y = launch_compute.linear_int4(
            torch.from_numpy(x).to(FLOATS[floats]), weight, dtype=torch.float32, gpu=gpu_of(target)
        )
    assert (y.numpy() == x @ (codes * np.repeat(scale, group, axis=1)).T).all()


CONVOLUTIONS = [
    (t, p) for t in TARGETS for p in ("matrix", "dp4a", "depthwise") if not (t == "sm_75" and p == "matrix")
]


@pytest.mark.parametrize(
    ("target", "path"), [c if c[0] == "sm_80" else pytest.param(*c, marks=pytest.mark.deep) for c in CONVOLUTIONS]
)
def test_convolution(target: str, path: str) -> None:
    """Padded with the zero point, steps of two, four channels (one where each has its own filter)."""
    make = torch.Generator().manual_seed(9)
    groups = 6 if path == "depthwise" else 1
    channels = 6 if path == "depthwise" else 4
    x = torch.randint(0, 256, (2, channels, 9, 7), generator=make).to(U8)
    w = torch.randint(-128, 128, (6, channels // groups, 3, 3), generator=make).to(S8)
    geometry = ConvGeometry.of((2, 1), 1, 1, groups, "NCHW")
    with on_target(target):
        weight = launch_compute.conv_weight(w, torch.ones(6))
        found = launch_compute.conv2d(
            x, weight, torch.ones(1), 77, GpuEpilogue(torch.int32), geometry, gpu=gpu_of(target), path=path
        )
    exact = torch.nn.functional.conv2d(x.double() - 77, w.double(), stride=(2, 1), padding=1, groups=groups)
    assert (found.double() == exact).all()


@pytest.mark.parametrize("target", TARGETS)
def test_contraction_changes_floats_after_a_product(target: str) -> None:
    """The same kernel as shipped, with contraction: y = fma(sum, by, bias) has other bits."""
    c = product_case(18, 68, 96, S8, S8)
    y = multiply(c, GpuEpilogue(torch.float32, bias=c["bias"]), target, "gemv", fusion=True)
    assert same_bits(y, torch.from_numpy(floats_of(c))) > 10
