"""Ranges, scales from data and learned gradients: interpreted kernels against the reference, to the bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import torch
from gpu import interpreter_shim

interpreter_shim.install()

from gpu.hurting import CODES, FLOATS, GRANULARITIES, TORCH, Array, Guarded, Hurting, same, tensor  # noqa: E402
from lowbit import reference  # noqa: E402
from lowbit.gpu import launch  # noqa: E402
from lowbit.numerics.dtypes import QuantizedDType  # noqa: E402
from lowbit.numerics.errors import InvalidProblem  # noqa: E402
from lowbit.numerics.granularity import Granularity, granularity_of  # noqa: E402
from lowbit.numerics.packing import pack  # noqa: E402
from lowbit.numerics.ranges import affine_from_range  # noqa: E402
from lowbit.runtime.torch_types import compute_dtype  # noqa: E402

F32 = np.float32


@pytest.fixture
def room() -> Iterator[Guarded]:
    guarded = Guarded()
    yield guarded
    guarded.check()


def members(x: Array, g: Granularity) -> list[Array]:
    """What each scale has, in the order of scales."""
    which = reference.spread(np.arange(int(np.prod(g.scale_shape))).reshape(g.scale_shape), g, x.shape)
    return [x[which == i] for i in range(int(np.prod(g.scale_shape)))]


def wanted_range(x: Array, g: Granularity) -> tuple[Array, Array, Array]:
    found = [reference.value_range(part) for part in members(x, g)]
    lo, hi = (np.array(v).reshape(g.scale_shape) for v in zip(*found, strict=True))
    nans = np.array([np.isnan(part.astype(np.float64)).sum() for part in members(x, g)], np.int64)
    return lo, hi, nans.reshape(g.scale_shape)


def wanted_dynamic(
    x: Array, g: Granularity, dtype: QuantizedDType, symmetric: bool, qmin: int | None = None
) -> tuple[Array, Array, Array]:
    bounds = (dtype.qmin if qmin is None else qmin), dtype.qmax
    lo, hi, _ = wanted_range(x, g)
    s, z = affine_from_range(lo, hi, *bounds, symmetric=symmetric)
    wide = reference.widen(x)
    q = reference.quantize_affine(wide, *(reference.spread(v, g, x.shape) for v in (s, z)), *bounds)
    return pack(q.astype(dtype.code_dtype), dtype), s, z


def dynamic_room(room: Guarded, shape: Any, g: Granularity, dtype: QuantizedDType, kind: str) -> Any:
    like = launch.empty_codes(shape, dtype, torch.empty(0))
    compute = compute_dtype(TORCH[kind])
    return room(tuple(like.shape), like.dtype), room(g.scale_shape, compute), room(g.scale_shape, torch.int32)


# ---- learned scales -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("name", [n for n in GRANULARITIES if n != "tensor, several programs"])
def test_learned_gradients(name: str, kind: str, room: Guarded) -> None:
    qmin, qmax = (-128, 127) if kind in ("f32", "f16") else (0, 15)
    p = Hurting(name, kind, qmin, qmax)
    out = room(p.shape, TORCH[kind]), *(room(p.scale.shape, compute_dtype(TORCH[kind])) for _ in range(2))
    workspace = room((launch.learned_workspace(p.g),), torch.uint8)
    found = launch.fake_quantize_learned_backward(tensor(p.dy), tensor(p.x), *p.on_device, out=out, workspace=workspace)
    for got, kept, want in zip(
        found, out, reference.fake_quantize_learned_backward(p.dy, p.x, *p.affine), strict=True
    ):  # fmt: skip
        assert got is kept
        same(got, want)


@pytest.mark.parametrize(
    ("shape", "axis", "block"),
    [
        pytest.param((64, 29), 0, None, id="lanes of many short rows"),
        pytest.param((9001,), None, None, id="three pieces"),
        pytest.param((3, 2, 4100), 1, None, id="rows of two pieces", marks=pytest.mark.deep),
        pytest.param((2, 8300), 1, 4099, id="ragged groups of two pieces", marks=pytest.mark.deep),
        pytest.param((37, 2, 3), 1, None, id="many rows a scale"),
        pytest.param((131, 5), 1, None, id="three bands"),
        pytest.param((1, 99, 3), 1, 70, id="ragged groups of two bands"),
    ],
)
def test_the_order_of_sums(shape: tuple[int, ...], axis: int | None, block: int | None) -> None:
    """Sums of f64 whose bits tell one order from another."""
    rng = np.random.default_rng(3)
    g = granularity_of(shape, axis, block)
    x = rng.uniform(-20, 20, shape)
    dy = rng.standard_normal(shape) * 10.0 ** rng.integers(-2, 3, shape)
    s, z = rng.uniform(0.05, 0.1, g.scale_shape), rng.integers(-8, 8, g.scale_shape).astype(np.int32)
    s = np.asarray(s)
    got = launch.fake_quantize_learned_backward(tensor(dy), tensor(x), tensor(s), tensor(z), -128, 127, g)
    want = reference.fake_quantize_learned_backward(dy, x, s, np.asarray(z), -128, 127, g)
    for a, b in zip(got, want, strict=True):
        same(a, b)
    y = x / reference.spread(s, g, shape)
    low, high = (reference.spread(np.asarray(v - z), g, shape) for v in (-128, 127))
    t = np.where(np.rint(y) < low, low, np.where(np.rint(y) > high, high, np.rint(y) - y))
    plain = np.array([part.sum() for part in members(dy * t, g)])
    assert (plain.reshape(g.scale_shape) != want[1]).any()  # another order gives other bits


def test_learned_without_zero_points_or_data() -> None:
    p = Hurting("ragged odd groups", "f32", -8, 7)
    zero = np.zeros_like(p.zero)
    found = launch.fake_quantize_learned_backward(tensor(p.dy), tensor(p.x), tensor(p.scale), None, -8, 7, p.g)
    want = reference.fake_quantize_learned_backward(p.dy, p.x, p.scale, zero, -8, 7, p.g)
    for got, expected in zip(found, want, strict=True):
        same(got, expected)
    g = granularity_of((0, 3), 1, None)
    x, s = torch.empty(0, 3), torch.ones(3)
    _, ds, dz = launch.fake_quantize_learned_backward(x, x, s, None, -8, 7, g)
    assert ds.tolist() == dz.tolist() == [0, 0, 0]


# ---- ranges -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("name", GRANULARITIES)
def test_ranges(name: str, kind: str, room: Guarded) -> None:
    p = Hurting(name, kind, -128, 127)
    compute = compute_dtype(TORCH[kind])
    out = room(p.g.scale_shape, compute), room(p.g.scale_shape, compute), room(p.g.scale_shape, torch.int64)
    workspace = room((launch.range_workspace(p.g, TORCH[kind]),), torch.uint8)
    for x in (p.x, np.where(np.isnan(p.x.astype(F32)), np.asarray(-0.0, p.x.dtype), p.x)):
        found = launch.value_range(tensor(x), p.g, out=out, workspace=workspace)
        for got, want in zip(found, wanted_range(x, p.g), strict=True):
            same(got, want)


def test_ranges_of_nothing_but_nan_and_zeros() -> None:
    x = np.array([[np.nan, np.nan, np.nan], [-0.0, -0.0, np.nan], [0.0, -0.0, 0.0], [-np.inf, 1, np.inf]], F32)
    for axis, a in ((0, x), (1, np.ascontiguousarray(x.T))):
        lo, hi, nans = launch.value_range(tensor(a), granularity_of(a.shape, axis, None))
        same(lo, np.array([np.nan, 0.0, 0.0, -np.inf], F32))
        same(hi, np.array([np.nan, 0.0, 0.0, np.inf], F32))
        assert nans.tolist() == [3, 1, 0, 0]


def test_a_range_in_many_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "THREADS", 4096)
    rng = np.random.default_rng(0)
    for shape, axis in (((50_001,), None), ((2, 2, 17_000), 1), ((200, 3), 1)):
        x = rng.standard_normal(shape).astype(F32)
        g = granularity_of(shape, axis, None)
        for got, want in zip(launch.value_range(tensor(x), g), wanted_range(x, g), strict=True):
            same(got, want)


# ---- scales from data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.deep)])
@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("name", GRANULARITIES)
def test_dynamic(name: str, kind: str, every: bool, room: Guarded) -> None:
    modes = {"f32": [("int8", True), ("uint4", False)], "f64": [("uint8", True), ("int4", False)],
             "f16": [("int4", True), ("uint8", False)], "bf16": [("uint4", True), ("int8", False)]}[kind]  # fmt: skip
    for code, symmetric in itertools.product(CODES, (True, False)) if every else modes:
        dtype = QuantizedDType.of(code)
        p = Hurting(name, kind, dtype.qmin, dtype.qmax)
        out = dynamic_room(room, p.shape, p.g, dtype, kind)
        workspace = room((launch.dynamic_workspace(p.g, TORCH[kind], dtype),), torch.uint8)
        got = launch.quantize_dynamic(
            tensor(p.finite), p.g, dtype.qmin, dtype.qmax, dtype, symmetric=symmetric, out=out, workspace=workspace
        )
        for a, b in zip(got, wanted_dynamic(p.finite, p.g, dtype, symmetric), strict=True):
            assert a is not None
            same(a, b)


@pytest.mark.parametrize("name", ["tensor, odd", "tokens", "groups that fill rows", "ragged groups of odd size"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_dynamic_in_steps_is_dynamic_at_once(name: str, symmetric: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    dtype = QuantizedDType.of("int8")
    p = Hurting(name, "f16", dtype.qmin, dtype.qmax)
    assert launch._is_fused(p.g, dtype)
    monkeypatch.setattr(launch, "_LONGEST_FUSED", 1)
    assert not launch._is_fused(p.g, dtype)
    got = launch.quantize_dynamic(tensor(p.finite), p.g, -127, 127, dtype, symmetric=symmetric)
    want = wanted_dynamic(p.finite, p.g, dtype, symmetric, qmin=-127)
    assert (got[2] is None) == symmetric
    for a, b in zip(got, want, strict=True):
        if a is not None:
            same(a, b)


def test_long_rows_take_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "THREADS", 4096)
    x = np.random.default_rng(1).standard_normal((2, 9001)).astype(np.float16)
    g, dtype = granularity_of(x.shape, 0, None), QuantizedDType.of("int4")
    got = launch.quantize_dynamic(tensor(x), g, -8, 7, dtype, symmetric=False)
    for a, b in zip(got, wanted_dynamic(x, g, dtype, False), strict=True):
        assert a is not None
        same(a, b)


def test_zeros_constants_and_tiny_ranges() -> None:
    rows = [[0.0, -0.0, 0.0], [3.0, 3.0, 3.0], [-2.0, -2.0, -2.0], [1e-45, 0.0, -1e-45], [1e-37, 2e-37, 1e-38]]
    x = np.array(rows, F32)
    for axis, a in ((0, x), (1, np.ascontiguousarray(x.T))):
        g = granularity_of(a.shape, axis, None)
        for code in CODES:
            dtype = QuantizedDType.of(code)
            for symmetric in (True, False):
                got = launch.quantize_dynamic(tensor(a), g, dtype.qmin, dtype.qmax, dtype, symmetric=symmetric)
                want = wanted_dynamic(a, g, dtype, symmetric)
                for found, expected in zip(got, want, strict=True):
                    if found is not None:
                        same(found, expected)


@pytest.mark.parametrize("code", ["int8", "int4"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_bad_scale_says_so(code: str, symmetric: bool) -> None:
    """NaN, ±Inf and ranges too wide give their own scale NaN, and no other."""
    dtype = QuantizedDType.of(code)
    x = np.tile(np.array([1.0, -2.0, 0.5, 0.25], F32), (6, 1))
    x[1, 2], x[2, 0], x[3, 3], x[4, 1] = np.nan, np.inf, -np.inf, 3.3e38
    clean = np.where(np.isin(np.arange(6), (0, 5))[:, None], x, 0).astype(F32)
    for axis, a, c in ((0, x, clean), (1, *(np.ascontiguousarray(v.T) for v in (x, clean)))):
        g = granularity_of(a.shape, axis, None)
        _, scale, _ = launch.quantize_dynamic(tensor(a), g, dtype.qmin, dtype.qmax, dtype, symmetric=symmetric)
        wide_enough = 3.3e38 / (dtype.qmax if symmetric else dtype.qmax - dtype.qmin) > 2.0**112
        assert scale.isnan().tolist() == [False, True, True, True, wide_enough, False]
        want = wanted_dynamic(c, g, dtype, symmetric)[1]
        assert scale[[0, 5]].tolist() == want[[0, 5]].tolist()


def test_what_is_refused() -> None:
    dtype, g = QuantizedDType.of("int8"), granularity_of((0, 3), 1, None)
    with pytest.raises(InvalidProblem, match="empty"):
        launch.quantize_dynamic(torch.empty(0, 3), g, -128, 127, dtype, symmetric=True)
    with pytest.raises(InvalidProblem, match="empty"):
        launch.value_range(torch.empty(0, 3), g)
    g = granularity_of((40, 3), 1, None)
    with pytest.raises(InvalidProblem, match=r"workspace: 7 of .*; expected 36 bytes"):
        launch.value_range(torch.ones(40, 3), g, workspace=torch.zeros(7, dtype=torch.uint8))
    out = torch.empty(40, 3, dtype=torch.int8), torch.empty(3), None
    with pytest.raises(InvalidProblem, match="zero_point: None"):
        launch.quantize_dynamic(torch.ones(40, 3), g, -128, 127, dtype, symmetric=False, out=out)


@pytest.mark.parametrize("name", ["channels, short odd rows", "ragged odd groups", "groups of rows"])
def test_indices_of_64_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "indices_are_wide", lambda elements: True)
    dtype = QuantizedDType.of("uint4")
    p = Hurting(name, "f32", dtype.qmin, dtype.qmax)
    found = launch.fake_quantize_learned_backward(tensor(p.dy), tensor(p.x), *p.on_device)
    for got, want in zip(found, reference.fake_quantize_learned_backward(p.dy, p.x, *p.affine), strict=True):
        same(got, want)
    dynamic = launch.quantize_dynamic(tensor(p.finite), p.g, 0, 15, dtype, symmetric=False)
    for a, b in zip(dynamic, wanted_dynamic(p.finite, p.g, dtype, False), strict=True):
        assert a is not None
        same(a, b)
