"""The mask that fake quantization keeps for its gradient: a bit an element, right to the last float on either side."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lowbit as lb
import lowbit.torch as lt
import torch
from lowbit import reference
from lowbit.numerics.errors import InvalidProblem
from lowbit.numerics.granularity import granularity_of
from lowbit.torch.functional import kernels, library

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
RANGES = [(-128, 127), (0, 15), (-30000, 30000)]
FITTING: list[tuple[tuple[int, ...], int | None, int | None]] = [
    ((1,), None, None), ((7,), None, None), ((8,), None, None), ((3, 11), None, None), ((100_003,), None, None),
    ((5, 8), 0, None), ((3, 4, 6, 8), 1, None), ((2, 40_000), 0, None), ((3, 5, 1024), 1, None),
    ((4, 64), 1, 8), ((4, 72), 1, 16), ((3, 2048), 1, 1024), ((70, 1032), 1, 520),
]  # fmt: skip
OTHERS: list[tuple[tuple[int, ...], int | None, int | None]] = [
    ((5, 7), 0, None), ((5, 8), 1, None), ((4, 64), 0, 2), ((4, 66), 1, 8), ((4, 64), 1, 4),
]  # fmt: skip


def array(t: torch.Tensor) -> np.ndarray[Any, Any]:
    t = t.detach()
    return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if t.dtype is torch.bfloat16 else t.numpy()


def tensor(a: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.asarray(a)).to(dtype)


def hard(shape: tuple[int, ...], scale: float, reach: int, dtype: torch.dtype) -> torch.Tensor:
    """Around the ends of the range, on ties and one float beside them; now and then no number at all."""
    rng = np.random.default_rng(3)
    steps = rng.integers(-reach - 3, reach + 4, shape) + rng.choice([0.0, 0.5, 0.25], shape)
    x = np.asarray(steps * scale, np.float32)
    x = np.where(rng.random(shape) < 0.6, np.nextafter(x, rng.choice([np.inf, -np.inf], shape).astype(np.float32)), x)
    special = rng.choice([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, 3e38], shape)
    return tensor(np.where(rng.random(shape) < 0.05, special, x), dtype)


def equal(got: torch.Tensor, want: np.ndarray[Any, Any]) -> None:
    a = array(got)
    nan = np.isnan(want)
    np.testing.assert_array_equal(np.isnan(a), nan)
    assert a[~nan].tobytes() == np.asarray(want, a.dtype)[~nan].tobytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("ends", RANGES, ids=str)
@pytest.mark.parametrize(("shape", "axis", "block"), FITTING + OTHERS)
def test_numbers_and_gradient_are_the_reference(
    shape: tuple[int, ...], axis: int | None, block: int | None, ends: tuple[int, int], dtype: torch.dtype
) -> None:
    g = granularity_of(shape, axis, block)
    compute = np.float64 if dtype is torch.float64 else np.float32
    rng = np.random.default_rng(4)
    scale = np.asarray(rng.uniform(0.01, 0.05, g.scale_shape), compute)
    zero = np.asarray(rng.integers(ends[0], ends[1] + 1, g.scale_shape), np.int32)
    x = hard(shape, float(scale.flat[0]), min(300, ends[1] - ends[0]), dtype).requires_grad_()
    dy = tensor(rng.standard_normal(shape), dtype)
    y = lt.fake_quantize(
        x, torch.from_numpy(scale), torch.from_numpy(zero), qmin=ends[0], qmax=ends[1], axis=axis, group_size=block
    )
    fits = (shape, axis, block) in FITTING
    kept = y.grad_fn.saved_tensors
    assert (len(kept) == 1 and kept[0].dtype is torch.uint8 and kept[0].numel() == -(-x.numel() // 8)) == fits
    equal(y, reference.fake_quantize(array(x), scale, zero, *ends, g))
    y.backward(dy)
    equal(x.grad, reference.fake_quantize_backward(array(dy), array(x), scale, zero, *ends, g))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_half_has_the_right_bit(dtype: torch.dtype) -> None:
    x = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(dtype)
    numbers, g = array(x), granularity_of((65536,), None, None)
    ones = np.ones(65536, numbers.dtype)
    for scale in np.random.default_rng(5).uniform(-20, 12, 60):
        s, z = np.float32(2.0**scale), np.int32(int(scale * 5) % 256 - 128)
        _, bits = kernels.fake_quantize_masked(x, torch.tensor(s), torch.tensor(z), -128, 127, None, None)
        want = reference.fake_quantize_backward(ones, numbers, s, z, -128, 127, g) != 0
        np.testing.assert_array_equal(np.unpackbits(bits.numpy(), bitorder="little"), want)


@given(
    scale=st.floats(2.0**-60, 2.0**90, width=32), zero=st.integers(-128, 127), away=st.integers(-3, 3),
    low=st.booleans(),
)  # fmt: skip
@settings(max_examples=500, deadline=None)
def test_floats_beside_the_ends(scale: float, zero: int, away: int, low: bool) -> None:
    """Floats on either side of the last that is not clipped, wherever the equation has it."""
    s = np.float32(scale)
    x = np.float32((-128 - zero - 0.5 if low else 127 - zero + 0.5) * float(s))
    for _ in range(abs(away)):
        x = np.nextafter(x, np.float32(np.inf if away > 0 else -np.inf))
    numbers = np.full(600, x)
    y, bits = kernels.fake_quantize_masked(
        torch.from_numpy(numbers), torch.tensor(s), torch.tensor(zero, dtype=torch.int32), -128, 127, None, None
    )
    steps = np.rint(x / s)
    inside = -128 - zero <= steps <= 127 - zero
    assert set(bits.numpy()) == {255 if inside else 0}
    expected = np.float32(np.clip(steps, np.float32(-128 - zero), np.float32(127 - zero)) + np.float32(0)) * s
    assert y.numpy().tobytes() == np.full(600, expected).tobytes()


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_threads_change_nothing(threads: int) -> None:
    x = hard((70_001,), 0.02, 128, torch.float32)
    scale, zero = torch.tensor(0.02), torch.tensor(3, dtype=torch.int32)
    before = lb.get_num_threads()
    lb.set_num_threads(threads)
    try:
        y, bits = kernels.fake_quantize_masked(x, scale, zero, -128, 127, None, None)
        kept = kernels.keep_where(x, bits)
    finally:
        lb.set_num_threads(before)
    equal(y, array(kernels.fake_quantize(x, scale, zero, -128, 127, None, None)))
    equal(kept, array(kernels.fake_quantize_backward(x, x, scale, zero, -128, 127, None, None)))


def test_a_large_tensor_is_written_past_the_caches_with_the_same_bits() -> None:
    x = hard((64, 1 << 17), 0.02, 128, torch.float32)[:, : (1 << 17) - 8]
    scale, zero = torch.full((64,), 0.02), torch.zeros(64, dtype=torch.int32)
    y, bits = kernels.fake_quantize_masked(x, scale, zero, -128, 127, 0, None)
    equal(y, array(kernels.fake_quantize(x, scale, zero, -128, 127, 0, None)))
    equal(kernels.keep_where(x, bits), array(kernels.fake_quantize_backward(x, x, scale, zero, -128, 127, 0, None)))


def test_a_second_derivative_and_strange_gradients() -> None:
    x = torch.tensor([0.1, 9.0, -0.2, 0.3], requires_grad=True)
    y = lt.fake_quantize(x, 0.1, qmin=-8, qmax=7)
    dy = torch.tensor([1.0, torch.inf, 2.0, torch.nan], requires_grad=True)
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    assert torch.equal(dx.detach(), torch.tensor([1.0, 0.0, 2.0, torch.nan])) or dx[3].isnan()
    assert dx[1].item() == 0.0  # a clipped place, whatever comes back to it
    (again,) = torch.autograd.grad(dx, dy, torch.ones(4))
    assert again.tolist() == [1.0, 0.0, 1.0, 1.0]
    y = lt.fake_quantize(x, 0.1, qmin=-8, qmax=7)
    y.sum().backward()  # an expanded scalar: no element of it lies in memory beside another
    assert x.grad.tolist() == [1.0, 0.0, 1.0, 1.0]


def test_a_second_derivative_passes_images_that_lie_channels_last() -> None:
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last).requires_grad_()
    dy = torch.randn(2, 3, 4, 5, requires_grad=True)
    (dx,) = torch.autograd.grad(lt.fake_quantize(x, 0.1, qmin=-8, qmax=7), x, dy, create_graph=True)
    assert dx.is_contiguous(memory_format=torch.channels_last)
    v = torch.randn(2, 3, 4, 5)
    (again,) = torch.autograd.grad(dx, dy, v)
    assert torch.equal(again, torch.where(dx == 0, 0, v))


def test_x_may_change_once_it_was_used() -> None:
    x = torch.tensor([0.1, 9.0], requires_grad=True)
    h = x * 1.0
    y = lt.fake_quantize(h, 0.1, qmin=-8, qmax=7)
    with torch.no_grad():
        h.zero_()
    y.sum().backward()
    assert x.grad.tolist() == [1.0, 0.0]


def test_an_empty_tensor() -> None:
    x = torch.empty(0, requires_grad=True)
    lt.fake_quantize(x, 0.1).sum().backward()
    assert x.grad.shape == (0,)


@pytest.mark.parametrize("bits", [torch.zeros(1, dtype=torch.uint8), torch.zeros(2, dtype=torch.int8)])
def test_bits_that_do_not_fit_are_refused(bits: torch.Tensor) -> None:
    with pytest.raises(InvalidProblem, match=r"bits: .*expected torch.uint8 \(2,\)"):
        library.keep_where(torch.zeros(9), bits)
