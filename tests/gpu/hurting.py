"""Problems for GPU kernels: every granularity, and numbers that hurt (ties, ends of the range, NaN, ±Inf, ±0)."""

from __future__ import annotations

import zlib
from typing import Any

import ml_dtypes
import numpy as np

import torch
from lowbit import reference
from lowbit.numerics.granularity import Granularity, granularity_of, per_token

Array = np.ndarray[Any, Any]

FLOATS: dict[str, Any] = {"f32": np.float32, "f64": np.float64, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
TORCH = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}
CODES = ("int8", "uint8", "int4", "uint4")
GRANULARITIES: dict[str, tuple[tuple[int, ...], Granularity]] = {
    name: (shape, per_token(shape) if axis == "token" else granularity_of(shape, axis, block))  # type: ignore[arg-type]
    for name, shape, axis, block in [
        ("tensor, no dimensions", (), None, None),
        ("tensor, odd", (3, 5, 7), None, None),
        ("tensor, several programs", (4133,), None, None),
        ("channels, short odd rows", (2, 3, 5, 3), 1, None),
        ("channels, rows longer than a program", (3, 1301), 0, None),
        ("channels of the last axis", (33, 5), 1, None),
        ("channels of the last axis, long", (3, 700), 1, None),
        ("one channel", (9, 1), 1, None),
        ("tokens", (2, 3, 65), "token", None),
        ("tokens of one feature", (7, 1), "token", None),
        ("groups that fill rows", (4, 64), 1, 16),
        ("ragged odd groups", (6, 71), 1, 16),
        ("ragged groups of odd size", (3, 40), -1, 7),
        ("one group longer than its row", (2, 9), 1, 100),
        ("groups of rows", (70, 6), 0, 16),
        ("groups of long rows", (2, 7, 301), 1, 3),
        ("groups of one", (3, 4), 1, 1),
    ]
}  # fmt: skip


class Hurting:
    """x and dy of a kind, and a scale and a zero point for each of the granularity."""

    def __init__(self, name: str, kind: str, qmin: int, qmax: int) -> None:
        self.shape, self.g = GRANULARITIES[name]
        rng = np.random.default_rng(zlib.crc32(f"{name} {kind} {qmin}".encode()))
        compute = np.float64 if kind == "f64" else np.float32
        self.scale = np.asarray(rng.uniform(0.01, 0.1, self.g.scale_shape)).astype(compute)
        self.zero = np.asarray(rng.integers(qmin, qmax + 1, self.g.scale_shape)).astype(np.int32)
        s = reference.spread(self.scale.astype(np.float64), self.g, self.shape)
        z = reference.spread(self.zero, self.g, self.shape)
        x = (rng.uniform(-0.3, 1.3, self.shape) * (qmax - qmin) + qmin - z) * s
        pick = rng.random(self.shape)
        x = np.where(pick < 0.3, (np.rint(x / s) + 0.5) * s, x)
        for k, special in enumerate((np.nan, np.inf, -np.inf, 0.0, -0.0)):
            x = np.where((pick > 0.9 + 0.02 * k) & (pick < 0.91 + 0.02 * k), special, x)
        dy = np.where(rng.random(self.shape) > 0.98, np.inf, rng.standard_normal(self.shape))
        with np.errstate(over="ignore"):
            self.x, self.dy = (np.asarray(v).astype(FLOATS[kind]) for v in (x, dy))
            self.finite = np.asarray(np.where(np.isfinite(x), x, 0)).astype(FLOATS[kind])
        self.affine = (self.scale, self.zero, qmin, qmax, self.g)
        self.on_device = (tensor(self.scale), tensor(self.zero), qmin, qmax, self.g)


def tensor(a: Any) -> torch.Tensor:
    a = np.array(a, order="C")
    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(a.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(a)


def array(t: torch.Tensor) -> Array:
    if t.dtype is torch.bfloat16:
        return t.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return t.numpy()


def same(found: torch.Tensor, want: Any) -> None:
    """Type, shape and every bit, but for those of a NaN."""
    a, b = array(found), np.asarray(want)
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    if a.dtype.kind in "fV":
        a, b = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_array_equal(np.signbit(a) & ~np.isnan(a), np.signbit(b) & ~np.isnan(b))
    np.testing.assert_array_equal(a, b)


class Guarded:
    """Room for results between bytes that nobody may write."""

    def __init__(self) -> None:
        self.rooms: list[tuple[torch.Tensor, torch.Tensor, int]] = []

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        whole = torch.full((size + 256,), 0xA5, dtype=torch.uint8)
        room = whole[128 : 128 + size].view(dtype).view(shape)
        self.rooms.append((whole, room, size))
        return room

    def check(self) -> None:
        assert self.rooms
        for whole, _, size in self.rooms:
            assert (whole[:128] == 0xA5).all()
            assert (whole[128 + size :] == 0xA5).all()
