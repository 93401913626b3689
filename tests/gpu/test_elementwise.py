"""Quantize, dequantize, fake-quantize and their gradients: interpreted kernels against the reference, to the bit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import torch
from gpu import interpreter_shim

interpreter_shim.install()

from gpu.hurting import CODES, FLOATS, GRANULARITIES, TORCH, Guarded, Hurting, same, tensor  # noqa: E402
from lowbit import reference  # noqa: E402
from lowbit.gpu import launch  # noqa: E402
from lowbit.numerics.dtypes import QuantizedDType  # noqa: E402
from lowbit.numerics.errors import InvalidProblem, Unsupported  # noqa: E402
from lowbit.numerics.granularity import granularity_of  # noqa: E402
from lowbit.numerics.packing import pack, unpack  # noqa: E402

F32 = np.float32


@pytest.fixture
def room() -> Iterator[Guarded]:
    guarded = Guarded()
    yield guarded
    guarded.check()


def codes_room(room: Guarded, shape: tuple[int, ...], dtype: QuantizedDType) -> torch.Tensor:
    like = launch.empty_codes(shape, dtype, torch.empty(0))
    return room(tuple(like.shape), like.dtype)


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("name", GRANULARITIES)
def test_codes_and_back(name: str, kind: str, room: Guarded) -> None:
    for code in CODES:
        dtype = QuantizedDType.of(code)
        p = Hurting(name, kind, dtype.qmin, dtype.qmax)
        s, z = (reference.spread(v, p.g, p.shape) for v in (p.scale, p.zero))
        q = reference.quantize_affine(reference.widen(p.x), s, z, dtype.qmin, dtype.qmax).astype(dtype.code_dtype)
        got = launch.quantize(tensor(p.x), *p.on_device, dtype, out=codes_room(room, p.shape, dtype))
        same(got, pack(q, dtype))
        out = room(p.shape, TORCH[kind])
        assert launch.dequantize(got, tensor(p.scale), tensor(p.zero), p.g, dtype, out=out) is out
        same(out, reference.dequantize_affine(q, s, z).astype(p.x.dtype))


@pytest.mark.parametrize("kind", FLOATS)
@pytest.mark.parametrize("name", GRANULARITIES)
def test_fake_quantize_and_gradients(name: str, kind: str, room: Guarded) -> None:
    for qmin, qmax in ((-128, 127), (0, 15)):
        p = Hurting(name, kind, qmin, qmax)
        x, dy = tensor(p.x), tensor(p.dy)
        rooms = [room(p.shape, TORCH[kind]) for _ in range(4)]
        same(launch.fake_quantize(x, *p.on_device, out=rooms[0]), reference.fake_quantize(p.x, *p.affine))
        same(
            launch.fake_quantize_backward(dy, x, *p.on_device, out=rooms[1]),
            reference.fake_quantize_backward(p.dy, p.x, *p.affine),
        )
        same(
            launch.quantize_backward(dy, x, *p.on_device, out=rooms[2]),
            reference.quantize_backward(p.dy, p.x, *p.affine),
        )
        same(
            launch.dequantize_backward(dy, p.on_device[0], p.g, out=rooms[3]),
            reference.dequantize_backward(p.dy, p.scale, p.g),
        )


@pytest.mark.parametrize("name", ["tensor, odd", "channels of the last axis", "tokens", "ragged odd groups"])
def test_without_zero_points(name: str, room: Guarded) -> None:
    for code in ("int8", "int4"):
        dtype = QuantizedDType.of(code)
        p = Hurting(name, "f32", dtype.qmin, dtype.qmax)
        given, zero = (p.on_device[0], None, *p.on_device[2:]), np.zeros_like(p.zero)
        s, z = (reference.spread(v, p.g, p.shape) for v in (p.scale, zero))
        q = reference.quantize_affine(p.x, s, z, dtype.qmin, dtype.qmax).astype(dtype.code_dtype)
        got = launch.quantize(tensor(p.x), *given, dtype, out=codes_room(room, p.shape, dtype))
        same(got, pack(q, dtype))
        out = launch.dequantize(got, given[0], None, p.g, dtype, out=room(p.shape, torch.float32))
        same(out, reference.dequantize_affine(q, s, z))
        affine = (p.scale, zero, *p.affine[2:])
        same(launch.fake_quantize(tensor(p.x), *given), reference.fake_quantize(p.x, *affine))
        same(
            launch.quantize_backward(tensor(p.dy), tensor(p.x), *given),
            reference.quantize_backward(p.dy, p.x, *affine),
        )


@pytest.mark.parametrize("code", ["int16", "uint16"])
def test_codes_of_two_bytes(code: str, room: Guarded) -> None:
    dtype = QuantizedDType.of(code)
    for kind in ("f32", "f64"):
        p = Hurting("ragged odd groups", kind, dtype.qmin, dtype.qmax)
        s, z = (reference.spread(v, p.g, p.shape) for v in (p.scale, p.zero))
        q = reference.quantize_affine(p.x, s, z, dtype.qmin, dtype.qmax).astype(dtype.code_dtype)
        got = launch.quantize(tensor(p.x), *p.on_device, dtype, out=codes_room(room, p.shape, dtype))
        same(got, q)
        out = launch.dequantize(got, tensor(p.scale), tensor(p.zero), p.g, dtype, out=room(p.shape, TORCH[kind]))
        same(out, reference.dequantize_affine(q, s, z))


@pytest.mark.parametrize("scales", [5, pytest.param(200, marks=pytest.mark.deep)])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("code", "zero"), [("int8", -7), ("uint4", 3)])
def test_all_halves(kind: str, code: str, zero: int, scales: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "THREADS", 8192)  # one program
    x = np.arange(65536, dtype=np.uint16).view(FLOATS[kind])
    dy, z, dtype = np.ones_like(x), np.int32(zero), QuantizedDType.of(code)
    g = granularity_of(x.shape, None, None)
    drawn = np.exp2(np.random.default_rng(scales).uniform(-24, 12, scales))
    for scale in (0.03, 1.0, 2.0**-20, 0.0657, 300.0, *drawn)[:scales]:
        s, bounds = np.asarray(scale, F32), (dtype.qmin, dtype.qmax)
        on_device = (tensor(s), tensor(z), *bounds, g)
        want = reference.quantize_affine(reference.widen(x), s, z, *bounds).astype(dtype.code_dtype)
        same(launch.quantize(tensor(x), *on_device, dtype), pack(want, dtype))
        same(launch.fake_quantize(tensor(x), *on_device), reference.fake_quantize(x, s, z, *bounds, g))
        same(
            launch.fake_quantize_backward(tensor(dy), tensor(x), *on_device),
            reference.fake_quantize_backward(dy, x, s, z, *bounds, g),
        )


@pytest.mark.parametrize("kind", FLOATS)
def test_every_code_back(kind: str) -> None:
    for code in CODES:
        dtype = QuantizedDType.of(code)
        q = np.arange(dtype.qmin, dtype.qmax + 1).astype(dtype.code_dtype)
        g = granularity_of(q.shape, None, None)
        for scale, zero in ((0.1, dtype.qmin), (2.0**-125, 1), (5e33, dtype.qmax)):
            s = np.asarray(scale, np.float64 if kind == "f64" else F32)
            with np.errstate(over="ignore"):
                want = reference.dequantize_affine(q, s, np.int32(zero)).astype(FLOATS[kind])
            out = torch.empty(q.shape, dtype=TORCH[kind])
            stored = tensor(pack(q, dtype))
            same(launch.dequantize(stored, tensor(s), tensor(np.int32(zero)), g, dtype, out=out), want)


def test_beside_every_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a multiplication by 1 / s, or a contraction, would give another code."""
    monkeypatch.setattr(launch, "THREADS", 8192)
    rng, dtype = np.random.default_rng(5), QuantizedDType.of("int8")
    steps = np.arange(-130, 130) + 0.5
    wrong = 0
    for scale in rng.uniform(1e-3, 1, 24).astype(F32):
        ties = (steps * np.float64(scale)).astype(F32)
        x = np.concatenate([np.nextafter(ties, F32(np.inf)), ties, np.nextafter(ties, F32(-np.inf))])
        g = granularity_of(x.shape, None, None)
        want = reference.quantize_affine(x, scale, np.int32(0), -128, 127).astype(np.int8)
        same(launch.quantize(tensor(x), tensor(scale), None, -128, 127, g, dtype), want)
        wrong += int((np.clip(np.rint(x * (F32(1) / scale)), -128, 127) != want).sum())
    assert wrong > 100  # these inputs can tell


@pytest.mark.parametrize("kind", FLOATS)
def test_the_smallest_and_the_greatest(kind: str) -> None:
    info = {"f16": np.finfo(np.float16), "f32": np.finfo(F32), "f64": np.finfo(np.float64)}.get(kind)
    tiny = [2.0**-133, 2.0**-126] if info is None else [float(info.smallest_subnormal), float(info.tiny)]
    big = 3.3e38 if info is None else float(info.max)
    x = np.array([v for t in (0.0, *tiny, 1.5 * tiny[1], big, np.inf) for v in (t, -t)] + [np.nan]).astype(FLOATS[kind])
    g = granularity_of(x.shape, None, None)
    for scale in (2.0**-125, 2.0**-124 * 1.5, 1.0, 5e33):
        s, z = np.asarray(scale, np.float64 if kind == "f64" else F32), np.int32(3)
        same(launch.fake_quantize(tensor(x), tensor(s), tensor(z), -128, 127, g),
             reference.fake_quantize(x, s, z, -128, 127, g))  # fmt: skip
        for back, formula in ((launch.quantize_backward, reference.quantize_backward),
                              (launch.fake_quantize_backward, reference.fake_quantize_backward)):  # fmt: skip
            same(back(tensor(x), tensor(x[::-1]), tensor(s), tensor(z), -128, 127, g),
                 formula(x, x[::-1].copy(), s, z, -128, 127, g))  # fmt: skip
        with np.errstate(all="ignore"):
            same(launch.dequantize_backward(tensor(x), tensor(s), g), reference.dequantize_backward(x, s, g))


@pytest.mark.parametrize("name", GRANULARITIES)
def test_indices_of_64_bits(name: str, monkeypatch: pytest.MonkeyPatch, room: Guarded) -> None:
    monkeypatch.setattr(launch, "indices_are_wide", lambda elements: True)
    monkeypatch.setattr(launch, "THREADS", 64)
    dtype = QuantizedDType.of("uint4")
    p = Hurting(name, "f32", dtype.qmin, dtype.qmax)
    s, z = (reference.spread(v, p.g, p.shape) for v in (p.scale, p.zero))
    q = reference.quantize_affine(p.x, s, z, dtype.qmin, dtype.qmax).astype(dtype.code_dtype)
    got = launch.quantize(tensor(p.x), *p.on_device, dtype, out=codes_room(room, p.shape, dtype))
    same(got, pack(q, dtype))
    same(launch.fake_quantize(tensor(p.x), *p.on_device), reference.fake_quantize(p.x, *p.affine))


@pytest.mark.parametrize("n", [1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 129])
def test_lengths_about_a_program(n: int, monkeypatch: pytest.MonkeyPatch, room: Guarded) -> None:
    monkeypatch.setattr(launch, "THREADS", 16)  # 64 floats a program
    x = np.random.default_rng(n).uniform(-1, 1, n).astype(F32)
    g, s = granularity_of((n,), None, None), np.asarray(0.1, F32)
    for code in ("int4", "int8"):
        dtype = QuantizedDType.of(code)
        want = reference.quantize_affine(x, s, np.int32(0), dtype.qmin, dtype.qmax).astype(np.int8)
        out = codes_room(room, (n,), dtype)
        got = launch.quantize(tensor(x), tensor(s), None, dtype.qmin, dtype.qmax, g, dtype, out=out)
        same(got, pack(want, dtype))
        back = launch.dequantize(got, tensor(s), None, g, dtype, out=room((n,), torch.float32))
        same(back, reference.dequantize_affine(unpack(got.numpy(), dtype, (n,)), s, np.int32(0)))


def test_one_scale_serves_any_granularity() -> None:
    p = Hurting("ragged odd groups", "f32", -8, 7)
    s, z = np.asarray(0.05, F32), np.int32(2)
    same(launch.fake_quantize(tensor(p.x), tensor(s), tensor(z), -8, 7, p.g),
         reference.fake_quantize(p.x, s, np.asarray(z), -8, 7, p.g))  # fmt: skip


def test_nothing_at_all() -> None:
    dtype = QuantizedDType.of("int4")
    for shape, axis, block in (((0,), None, None), ((0, 4), 1, None), ((4, 0), 1, 8)):
        g = granularity_of(shape, axis, block)
        x, s = torch.empty(shape), torch.ones(g.scale_shape)
        assert launch.quantize(x, s, None, -8, 7, g, dtype).shape == (0,)
        assert launch.fake_quantize(x, s, None, -8, 7, g).shape == shape
        assert launch.quantize_backward(x, x, s, None, -8, 7, g).shape == shape
        assert launch.dequantize_backward(x, s, g).shape == shape


@pytest.mark.parametrize("n", [1, 63, 64, 65, 300])
def test_sums(n: int, monkeypatch: pytest.MonkeyPatch, room: Guarded) -> None:
    """Every pair of codes in turn, with scales at which the sum is beside a tie; the ends of all ranges."""
    monkeypatch.setattr(launch, "THREADS", 16)  # 64 codes a program
    rng = np.random.default_rng(n)
    for left, right, target in (("int8", "uint8", "int8"), ("uint8", "int16", "uint16"), ("int16", "int16", "uint8")):
        da, db, dy = (QuantizedDType.of(name) for name in (left, right, target))
        a, b = (rng.integers(*d.value_range, n, endpoint=True).astype(d.code_dtype) for d in (da, db))
        a[:1], b[:1] = da.qmax, db.qmin
        for kind, scales in ((F32, (0.1, 0.3, 0.2)), (np.float64, (1.7, 2.0**-125, 0.9)), (F32, (5e33, 5e33, 5e33))):
            sa, sb, sy = (np.asarray(s, kind) for s in scales)
            za, zb, zy = np.int32(1), np.int32(0), np.int32(dy.qmin + 3)
            with np.errstate(over="ignore"):
                y = reference.dequantize_affine(a, sa, za) + reference.dequantize_affine(b, sb, zb)
            want = reference.quantize_affine(y, sy, zy, dy.qmin, dy.qmax).astype(dy.code_dtype)
            out = codes_room(room, (n,), dy)
            given = tensor(a), tensor(sa), tensor(za), tensor(b), tensor(sb), None
            got = launch.add(*given, dy.qmin, dy.qmax, out=out, scale=tensor(sy), zero=tensor(zy))
            assert got is out
            same(got, want)


def test_in_place() -> None:
    p = Hurting("tokens", "bf16", -8, 7)
    x, dy = tensor(p.x), tensor(p.dy)
    launch.quantize_backward(dy, x, *p.on_device, out=dy)
    launch.fake_quantize(x, *p.on_device, out=x)
    same(dy, reference.quantize_backward(p.dy, p.x, *p.affine))
    same(x, reference.fake_quantize(p.x, *p.affine))


def test_what_is_refused() -> None:
    g, s = granularity_of((4, 6), None, None), torch.ones(())
    with pytest.raises(InvalidProblem, match="contiguous"):
        launch.fake_quantize(torch.zeros(6, 4).T, s, None, -8, 7, g)
    with pytest.raises(Unsupported, match="int2"):
        launch.quantize(torch.zeros(4, 6), s, None, -2, 1, g, QuantizedDType.of("int2"))


# ---- the shim ---------------------------------------------------------------------------------------------


def test_the_shim_rounds_to_bfloat16() -> None:
    bits = np.random.default_rng(0).integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    bits[::4] = bits[::4] & 0xFFFF0000 | 0x8000  # ties
    x = bits.view(F32)
    got, want = interpreter_shim.to_bfloat16(x), x.astype(FLOATS["bf16"])
    nan = np.isnan(x)
    np.testing.assert_array_equal(got[~nan], want.view(np.uint16)[~nan])
    assert np.isnan(got[nan].view(FLOATS["bf16"]).astype(F32)).all()
    assert (got[~nan] != (bits >> 16).astype(np.uint16)[~nan]).any()  # not what truncation gives
