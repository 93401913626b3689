"""int4 weights on floats within the contract's bound, and convolutions of codes to the bit: interpreted kernels against
the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import torch
from gpu import interpreter_shim

interpreter_shim.install()

from lowbit.gpu.launch_compute import GpuEpilogue, Int4Weight, conv2d, conv_weight, linear_int4  # noqa: E402
from lowbit.gpu.tiles import Gpu  # noqa: E402
from lowbit.numerics.errors import InvalidProblem, Unsupported  # noqa: E402
from lowbit.numerics.packing import pack_bits  # noqa: E402
from lowbit.ops.conv_geometry import ConvGeometry  # noqa: E402
from lowbit.reference import compute as reference  # noqa: E402

F32 = np.float32
AMPERE, TURING = Gpu("cuda", 80), Gpu("cuda", 75)
BYTES = {"s8": np.int8, "u8": np.uint8}
ONE = torch.ones(1)


def codes(rng: np.random.Generator, kind: str, *shape: int) -> Any:
    info = np.iinfo(BYTES[kind])
    return rng.integers(info.min, info.max + 1, shape).astype(BYTES[kind])


def zeros_at_extremes(kind: str, count: int) -> Any:
    """Least, greatest and a few between, in turn."""
    info = np.iinfo(BYTES[kind])
    return np.resize([info.min, info.max, 3, info.max - 100], count).astype(np.int32)


# m, n, k, group: whole groups; ragged last group; k odd; a row a group; groups that no power of two divides
INT4 = [(3, 20, 128, 32), (17, 5, 129, 64), (2, 66, 200, 128), (20, 3, 71, 71), (1, 9, 60, 20)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", INT4, ids=str)
def test_int4_weights_on_floats(shape: tuple[int, int, int, int], dtype: torch.dtype) -> None:
    m, n, k, group = shape
    rng = np.random.default_rng(shape)
    x = torch.from_numpy(rng.standard_normal((m, k)).astype(F32)).to(dtype)
    groups = -(-k // group)
    for signed, zero in ((True, False), (False, True), (True, True)):
        least = -8 if signed else 0
        q = rng.integers(least, least + 16, (n, k))
        z = rng.integers(least, least + 16, (n, groups)) if zero else np.zeros((n, groups), int)
        s = (rng.random((n, groups)) + 0.1).astype(F32)
        packed = pack_bits(np.pad(q, ((0, 0), (0, k % 2))), 4).reshape(n, -1)
        weight = Int4Weight(torch.from_numpy(packed), torch.from_numpy(s), torch.from_numpy(z) if zero else None, k,
                            group, signed)  # fmt: skip
        bias = torch.from_numpy(rng.standard_normal(n).astype(F32))
        of = np.arange(k) // group
        terms = x.double().numpy()[:, None, :] * ((q - z[:, of]) * s[:, of].astype(np.float64))
        exact = terms.sum(-1) + bias.numpy()
        bound = 4 * 2**-23 * (np.abs(terms).sum(-1) + np.abs(bias.numpy()))
        found = linear_int4(x, weight, bias, dtype=torch.float32, gpu=AMPERE)
        assert (np.abs(found.double().numpy() - exact) <= bound).all()
        assert torch.equal(linear_int4(x, weight, bias, gpu=AMPERE), found.to(dtype))


def test_what_int4_refuses() -> None:
    with pytest.raises(Unsupported, match="groups of 3"):
        Int4Weight(torch.zeros((2, 4), dtype=torch.uint8), torch.ones((2, 3)), None, 8, 3, True)
    with pytest.raises(InvalidProblem, match=r"scale of shape \(2, 1\); expected \(2, 2\)"):
        Int4Weight(torch.zeros((2, 4), dtype=torch.uint8), torch.ones((2, 1)), None, 8, 4, True)
    with pytest.raises(InvalidProblem, match="expected packed bytes"):
        Int4Weight(torch.zeros((2, 8), dtype=torch.uint8), torch.ones((2, 2)), None, 8, 4, True)
    weight = Int4Weight(torch.zeros((2, 4), dtype=torch.uint8), torch.ones((2, 2)), None, 8, 4, True)
    with pytest.raises(InvalidProblem, match=r"expected floats \[m, 8\]"):
        linear_int4(torch.ones((1, 7)), weight, gpu=AMPERE)


# x and w kinds, channels, out, groups, kernel, stride, padding, dilation, zero point of x, paths
CONVS = {
    "stride 2, asymmetric padding, 3 channels": (
        "u8", "s8", 3, 5, 1, (3, 3), (2, 2), (1, 0, 2, 1), (1, 1), 200, ("matrix", "dp4a")),
    "dilation 2, groups": (
        "s8", "u8", 8, 6, 2, (3, 2), (1, 2), (1, 1, 1, 1), (2, 2), -128, ("matrix", "dp4a")),
    "1 by 1": ("s8", "s8", 36, 6, 1, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 0, ("matrix", "dp4a")),
    "channels past a block": (
        "u8", "u8", 34, 3, 1, (2, 2), (1, 1), (1, 1, 0, 0), (1, 1), 255, ("matrix", "dp4a")),
    "depthwise": ("u8", "s8", 6, 6, 6, (3, 3), (2, 1), (1, 1, 1, 1), (1, 1), 7, ("matrix", "depthwise", "dp4a")),
    "two filters a channel": (
        "s8", "u8", 5, 10, 5, (3, 3), (1, 1), (0, 2, 1, 0), (2, 1), 127, ("depthwise",)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONVS)
def test_convolutions(name: str) -> None:
    a, b, c, out, groups, kernel, stride, padding, dilation, zero, paths = CONVS[name]
    rng = np.random.default_rng(len(name))
    x, w = codes(rng, a, 2, c, 7, 6), codes(rng, b, out, c // groups, *kernel)
    zw, sw = zeros_at_extremes(b, out), (rng.random(out) + 0.1).astype(F32)
    sums = reference.conv2d_integer(x, w, zero, zw, stride, padding, dilation, groups)
    weight = conv_weight(torch.from_numpy(w), torch.from_numpy(sw), torch.from_numpy(zw))
    sx, bias = F32(0.013), rng.standard_normal(out).astype(F32)
    rows = np.moveaxis(sums, 1, -1).reshape(-1, out)
    floats = reference.scaled(rows, sx, sw, bias).reshape(2, *sums.shape[2:], out)
    sy = F32(abs(floats).max() / 100)
    steps = np.rint(bias / (sx * sw)).astype(np.int64)
    requantized = reference.requantize(rows + steps, sx, sw, sy, 5, 5, 255).reshape(floats.shape)
    geometry = ConvGeometry.of(stride, padding, dilation, groups, "NCHW")
    for path in paths:
        for finish, expected in (
            (GpuEpilogue(torch.int32), sums),
            (GpuEpilogue(torch.float32, torch.from_numpy(bias)), np.moveaxis(floats, -1, 1)),
            (GpuEpilogue(torch.uint8, torch.from_numpy(bias), scale=float(sy), zero_point=5, lo=5),
             np.moveaxis(requantized, -1, 1)),
        ):  # fmt: skip
            found = conv2d(torch.from_numpy(x), weight, torch.tensor(sx), zero, finish, geometry, gpu=AMPERE, path=path)
            np.testing.assert_array_equal(found.numpy(), expected, err_msg=path)


def test_convolutions_by_layout_and_gpu() -> None:
    rng = np.random.default_rng(3)
    x, w = torch.from_numpy(codes(rng, "u8", 1, 8, 5, 5)), torch.from_numpy(codes(rng, "s8", 4, 8, 3, 3))
    weight = conv_weight(w, ONE)
    plain, gpus = ConvGeometry.of(1, 0, 1, 1, "NCHW"), (AMPERE, TURING, Gpu("hip", 0))
    found = [conv2d(x, weight, ONE, 9, GpuEpilogue(torch.int32), plain, gpu=gpu) for gpu in gpus]
    nhwc = plain._replace(layout="NHWC")
    last = conv2d(x.permute(0, 2, 3, 1), weight, ONE, 9, GpuEpilogue(torch.int32), nhwc, gpu=AMPERE)
    found.append(last.permute(0, 3, 1, 2))
    expected = torch.from_numpy(reference.conv2d_integer(x.numpy(), w.numpy(), 9))
    assert all(torch.equal(y.long(), expected) for y in found)
    with pytest.raises(Unsupported, match="matrix on sm_75"):
        conv2d(x, weight, ONE, 9, GpuEpilogue(torch.int32), plain, gpu=TURING, path="matrix")
    with pytest.raises(InvalidProblem, match="groups: 3"):
        conv2d(x, weight, ONE, 9, GpuEpilogue(torch.int32), plain._replace(groups=3), gpu=AMPERE)
    with pytest.raises(InvalidProblem, match="smaller than the kernel"):
        conv2d(x[:, :, :2], weight, ONE, 9, GpuEpilogue(torch.int32), plain, gpu=AMPERE)
