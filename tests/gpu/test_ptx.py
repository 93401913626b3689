"""The PTX that Triton emits for lowbit's kernels, executed: the same bits as lowbit.reference.

The library's own host code launches; the executor faults on whatever no GPU promises (see ptx_executor.py).
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import pytest

import torch
from gpu.compiled.ahead import Case, compile_case
from gpu.compiled.cases import CASES
from gpu.ptx_executor import decode
from gpu.ptx_launch import on_target
from gpu.ptx_tensors import CODES, FLOATS, GRANULARITIES, TARGETS, Affine, affine_of, as_numpy, same_bits, tensor_of
from lowbit import reference
from lowbit.gpu import launch
from lowbit.gpu.language import jit, tl
from lowbit.numerics.packing import unpack

assert os.environ.get("TRITON_INTERPRET", "0") in ("", "0"), "run these tests without TRITON_INTERPRET: they compile"


def quick_and_deep(most_codes: int) -> list[Any]:
    """(target, floats, codes, granularity), all of them. The quick ones have each pair of floats and the first codes on
    each target, and every granularity with some of them."""
    kinds, all_of = list(GRANULARITIES), []
    for t, target in enumerate(TARGETS):
        for f, floats in enumerate(FLOATS):
            for c, codes in enumerate(CODES):
                for g, granularity in enumerate(kinds):
                    quick = g == (2 * f + c + 3 * t) % 7 and c < most_codes
                    marks = () if quick else pytest.mark.deep
                    all_of.append(pytest.param(target, floats, codes, granularity, marks=marks))
    return all_of


KINDS = ("target", "floats", "codes", "granularity")


@pytest.mark.parametrize(KINDS, quick_and_deep(most_codes=4))
def test_quantize_and_dequantize(target: str, floats: str, codes: str, granularity: str) -> None:
    a = affine_of(floats, codes, granularity)
    with on_target(target) as launches:
        found = launch.quantize(a.x, a.scale, a.zero, a.qmin, a.qmax, a.g, a.dtype)
        back = launch.dequantize(found, a.scale, a.zero, a.g, a.dtype, out=torch.empty_like(a.x))
    assert same_bits(found, a.codes()) == 0
    _, s, z = a.spread
    values = reference.dequantize_affine(unpack(found.numpy(), a.dtype, tuple(a.x.shape)), s, z)
    with np.errstate(over="ignore"):
        assert same_bits(back, tensor_of(values.astype(as_numpy(a.x).dtype))) == 0
    assert [one.kernel for one in launches] == ["quantize", "dequantize"]
    assert not any("div.full" in one.ptx or ".ftz" in one.ptx or "fma." in one.ptx for one in launches)


@pytest.mark.parametrize(KINDS, quick_and_deep(most_codes=1))
def test_fake_quantize_and_its_gradient(target: str, floats: str, codes: str, granularity: str) -> None:
    a = affine_of(floats, codes, granularity, seed=1)
    dy = torch.randn(a.x.shape, generator=torch.Generator().manual_seed(3)).to(a.x.dtype)
    dy.view(-1)[::17] = math.inf
    x, s, z = as_numpy(a.x), a.scale.numpy(), a.zero.numpy()
    with on_target(target):
        y = launch.fake_quantize(a.x, a.scale, a.zero, a.qmin, a.qmax, a.g)
        dx = launch.fake_quantize_backward(dy, a.x, a.scale, a.zero, a.qmin, a.qmax, a.g)
    assert same_bits(y, tensor_of(reference.fake_quantize(x, s, z, a.qmin, a.qmax, a.g))) == 0
    expected = reference.fake_quantize_backward(as_numpy(dy), x, s, z, a.qmin, a.qmax, a.g)
    assert same_bits(dx, tensor_of(expected)) == 0


@pytest.mark.parametrize("target", TARGETS)
def test_sums_of_codes(target: str) -> None:
    """Products that are rounded before they are added: contraction would give other codes."""
    rng = np.random.default_rng(8)
    a, b = rng.integers(-128, 128, 1100).astype(np.int8), rng.integers(0, 256, 1100).astype(np.uint8)
    sa, sb, sy = (np.asarray(s, np.float32) for s in (0.1, 0.3, 0.2))
    za, zb, zy = (np.int32(z) for z in (-3, 120, 5))
    y = reference.dequantize_affine(a, sa, za) + reference.dequantize_affine(b, sb, zb)
    expected = torch.from_numpy(reference.quantize_affine(y, sy, zy, -128, 127).astype(np.int8))
    out = torch.zeros(1100, dtype=torch.int8)
    given = [torch.from_numpy(np.asarray(v)) for v in (a, sa, za, b, sb, zb)]
    with on_target(target) as launches:
        launch.add(*given, -128, 127, out=out, scale=torch.from_numpy(sy), zero=torch.from_numpy(np.asarray(zy)))  # type: ignore[arg-type]
    assert same_bits(out, expected) == 0
    assert not any("div.full" in one.ptx or ".ftz" in one.ptx or "fma." in one.ptx for one in launches)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("floats", [pytest.param(f, marks=() if f == "f16" else pytest.mark.deep) for f in FLOATS])
def test_other_gradients(target: str, floats: str) -> None:
    """quantize's dx = m ? dy / s : 0 and dequantize's dq = dy * s."""
    a = affine_of(floats, "int8", "ragged", seed=2)
    dy = torch.randn(a.x.shape, generator=torch.Generator().manual_seed(4)).to(a.x.dtype)
    s, z = a.scale.numpy(), a.zero.numpy()
    with on_target(target):
        dx = launch.quantize_backward(dy, a.x, a.scale, a.zero, a.qmin, a.qmax, a.g)
        dq = launch.dequantize_backward(dy, a.scale, a.g)
    expected = reference.quantize_backward(as_numpy(dy), as_numpy(a.x), s, z, a.qmin, a.qmax, a.g)
    assert same_bits(dx, tensor_of(expected)) == 0
    assert same_bits(dq, tensor_of(reference.dequantize_backward(as_numpy(dy), s, a.g))) == 0


@pytest.mark.parametrize("target", TARGETS)
def test_in_place_and_off_the_alignment(target: str) -> None:
    """Results where the input was; tensors that start anywhere, as slices do: other code, with narrow accesses."""
    a = affine_of("f32", "uint8", "token")
    room = torch.zeros(a.x.numel() + 3)
    x = room[1 : 1 + a.x.numel()].view(a.x.shape)
    x.copy_(a.x)
    codes = torch.zeros(a.x.numel() + 3, dtype=torch.uint8)[1 : 1 + a.x.numel()].view(a.x.shape)
    with on_target(target):
        launch.quantize(x, a.scale, a.zero, a.qmin, a.qmax, a.g, a.dtype, out=codes)
        launch.fake_quantize(x, a.scale, a.zero, a.qmin, a.qmax, a.g, out=x)
    assert same_bits(codes, a.codes()) == 0
    expected = reference.fake_quantize(a.x.numpy(), a.scale.numpy(), a.zero.numpy(), a.qmin, a.qmax, a.g)
    assert same_bits(x, torch.from_numpy(expected)) == 0
    assert room[0] == room[-1] == room[-2] == 0


QUICK_RANGES = (("f32", "tensor"), ("bf16", "last"), ("f64", "ragged"))


def finite(a: Affine) -> torch.Tensor:
    """Moderate numbers: scales can be chosen for them."""
    return torch.where(a.x.isfinite() & (a.x.abs() < 1e4), a.x, torch.zeros_like(a.x))


def rows_of(x: Any, g: Any) -> list[Any]:
    """The elements of each scale."""
    index = reference.spread(np.arange(math.prod(g.scale_shape)).reshape(g.scale_shape), g, x.shape).reshape(-1)
    return [x.reshape(-1)[index == i] for i in range(math.prod(g.scale_shape))]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("floats", "granularity"),
    [
        pytest.param(f, g, marks=() if (f, g) in QUICK_RANGES else pytest.mark.deep)
        for f in FLOATS for g in GRANULARITIES
    ],
)  # fmt: skip
def test_ranges(target: str, floats: str, granularity: str) -> None:
    a = affine_of(floats, "int8", granularity, seed=5)
    with on_target(target):
        lo, hi, nans = launch.value_range(a.x, a.g)
    for i, row in enumerate(rows_of(as_numpy(a.x), a.g)):
        least, most = reference.value_range(row)
        assert np.array_equal(lo.view(-1)[i].item(), least, equal_nan=True)
        assert np.array_equal(hi.view(-1)[i].item(), most, equal_nan=True)
        assert nans.view(-1)[i].item() == np.isnan(row.astype(np.float64)).sum()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("floats", "codes", "granularity", "symmetric"),
    [
        ("f32", "int8", "token", True),
        ("f16", "uint4", "group", False),
        pytest.param("f32", "uint8", "tensor", False, marks=pytest.mark.deep),
        pytest.param("f64", "int8", "ragged", False, marks=pytest.mark.deep),
        pytest.param("bf16", "int4", "last", True, marks=pytest.mark.deep),
    ],
)
def test_quantize_with_the_range_of_the_data(
    target: str, floats: str, codes: str, granularity: str, symmetric: bool
) -> None:
    """Symmetric: s = max|x| / qmax. Else s = (hi - lo) / (qmax - qmin), z = clamp(rne(qmin - lo / s))."""
    a = affine_of(floats, codes, granularity, seed=6)
    x = finite(a)
    with on_target(target):
        found, scale, zero = launch.quantize_dynamic(x, a.g, a.qmin, a.qmax, a.dtype, symmetric=symmetric)
    for i, row in enumerate(rows_of(as_numpy(x), a.g)):
        lo, hi = reference.value_range(row)
        wide = lo.dtype.type
        if symmetric:
            s, z = max(abs(lo), abs(hi)) / wide(a.qmax), 0
        else:
            lo, hi = min(lo, wide(0)), max(hi, wide(0))
            s = (hi - lo) / wide(a.qmax - a.qmin)
            z = int(np.clip(np.rint(wide(a.qmin) - lo / s), a.qmin, a.qmax))
        assert scale.view(-1)[i].item() == s
        assert (0 if zero is None else zero.view(-1)[i].item()) == z
    zero = torch.zeros(scale.shape, dtype=torch.int32) if zero is None else zero
    assert same_bits(found, a._replace(x=x, scale=scale, zero=zero).codes()) == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("floats", "granularity"),
    [
        pytest.param(f, g, marks=() if (f, g) == ("f32", "token") else pytest.mark.deep)
        for f in FLOATS for g in GRANULARITIES
    ],
)  # fmt: skip
def test_learned_gradients(target: str, floats: str, granularity: str) -> None:
    """Sums in the contract's order, so their bits too."""
    a = affine_of(floats, "int8", granularity, seed=7)
    x = finite(a)
    dy = torch.randn(x.shape, generator=torch.Generator().manual_seed(6)).to(x.dtype)
    with on_target(target):
        found = launch.fake_quantize_learned_backward(dy, x, a.scale, a.zero, a.qmin, a.qmax, a.g)
    expected = reference.fake_quantize_learned_backward(
        as_numpy(dy), as_numpy(x), a.scale.numpy(), a.zero.numpy(), a.qmin, a.qmax, a.g
    )
    for one, other in zip(found, expected, strict=True):
        assert same_bits(one, tensor_of(np.asarray(other))) == 0


@pytest.mark.deep
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_instruction_of_every_case_is_known(case: Case, target: str) -> None:
    """Nothing approximate, nothing that may be contracted, nothing that the executor would have to guess."""
    if target not in case.not_on:
        assert decode(compile_case(case, target)["ptx"]) > 10


# ---- controls: the executor sees what contraction does ------------------------------------------------------


@jit
def quantize_by_product(x, inverse, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """What lowbit does not do: rne(x * (1 / s)), whose product and addition may become one."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + place, mask=place < n, other=0.0) * tl.load(inverse)
    q = ((v + 12582912.0) - 12582912.0).to(tl.int32)
    tl.store(out + place, q, mask=place < n)


@pytest.mark.parametrize("target", TARGETS)
def test_contraction_changes_codes_and_is_seen(target: str) -> None:
    """With one rounding less, x * inverse does not reach the tie it would be rounded to."""
    inverse = torch.tensor([1 / 0.03])
    x = torch.from_numpy(((np.arange(-1024, 1024) + 0.5) * 0.03).astype(np.float32))
    expected = np.rint(x.numpy() * inverse.numpy()).astype(np.int32)
    wrong = {}
    for fusion in (False, True):
        out = torch.zeros(2048, dtype=torch.int32)
        with on_target(target, fusion=fusion) as launches:
            quantize_by_product[(2,)](x, inverse, out, 2048, BLOCK=1024, enable_fp_fusion=False)
        assert ("fma.rn.f32" in launches[0].ptx) == fusion
        wrong[fusion] = int((out.numpy() != expected).sum())
    assert wrong[False] == 0
    assert wrong[True] > 100


@pytest.mark.parametrize("target", TARGETS)
def test_division_leaves_nothing_to_contract(target: str) -> None:
    """lowbit's quantize has no product before its additions: the text is the same either way."""
    a = affine_of("f32", "int8", "tensor")
    texts = []
    for fusion in (False, True):
        with on_target(target, fusion=fusion) as launches:
            launch.quantize(a.x, a.scale, a.zero, a.qmin, a.qmax, a.g, a.dtype)
        texts.append(
            [line for line in launches[0].ptx.splitlines() if line.strip().startswith(("div", "add", "mul", "fma"))]
        )
    assert [t.replace(".rn", "") for t in texts[0]] == [t.replace(".rn", "") for t in texts[1]]
