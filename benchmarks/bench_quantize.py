"""Floats to int8 with given parameters: per tensor, per channel, from 16-bit floats, and under AVX2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import lowbit as lb
from benchmarks.machine import capped
from benchmarks.peers import ORT, TORCH, Peers, numpy_codes
from benchmarks.shapes import CACHED, MATRIX, MEDIUM, SCALE, STREAMED, ZERO_POINT, aligned, normal
from benchmarks.timing import Case, Contender, Target, of_lowbit
from lowbit import _core

AWKWARD = 0.065

Array = npt.NDArray[Any]


def cases(peers: Peers) -> Iterator[Case]:
    yield _per_tensor(peers, "per tensor, 2^18", CACHED, [Target("lowbit", TORCH, 1.2, "torch")])
    targets = [Target("lowbit", ORT, 1.0, "ORT"), Target("lowbit", "copy", 0.9, "copy")]
    yield _per_tensor(peers, "per tensor, 2^25", STREAMED, targets)
    for axis in (0, 1):
        yield _per_channel(peers, axis)
    own = float(np.abs(normal(CACHED)).max()) / 127
    yield _half_width(peers, "from f16 and bf16, 2^18", CACHED, own)
    # Beside that, a scale that no single multiplication can stand in for (one in twenty of round decimals).
    yield _half_width(peers, "from f16 and bf16, 2^18, awkward scale", CACHED, AWKWARD)
    yield _half_width(peers, "from f16 and bf16, 2^22", MEDIUM, own)
    yield _under_avx2()


def lowbit_quantize(x: Array, params: lb.QuantizationParams, name: str = "lowbit", **fields: Any) -> Contender:
    """lb.quantize into a tensor that is there already."""
    out = lb.quantize(x, params=params, out=aligned(x.shape, np.int8))
    return of_lowbit(lambda: lb.quantize(x, params=params, out=out), name, answer=lambda q: q.data, **fields)


def _per_tensor(peers: Peers, name: str, n: int, targets: list[Target]) -> Case:
    x = normal(n)
    contenders = [
        lowbit_quantize(x, lb.QuantizationParams("int8", scale=SCALE, zero_point=ZERO_POINT)),
        peers.torch_quantize(x, SCALE, ZERO_POINT),
        peers.ort_quantize(x, SCALE, ZERO_POINT),
        peers.numpy_quantize(x, SCALE, ZERO_POINT),
    ]
    return Case(name, 5 * n, contenders, targets, numpy_codes(x, SCALE, ZERO_POINT), tolerance=1)


def _per_channel(peers: Peers, axis: int) -> Case:
    x = normal(MATRIX)
    scales = np.random.default_rng(1).uniform(0.01, 0.03, MATRIX[axis]).astype(np.float32)
    params = lb.QuantizationParams.channel_wise(scales, axis=axis)
    contenders = [lowbit_quantize(x, params), peers.torch_quantize_channels(x, scales, axis)]
    along = scales[:, None] if axis == 0 else scales
    return Case(
        f"per channel, 4096×4096, axis {axis}",
        5 * x.size + scales.nbytes,
        contenders,
        [Target("lowbit", TORCH, 15, "torch")],
        numpy_codes(x, along, 0),
        tolerance=1,
    )


def _half_width(peers: Peers, name: str, n: int, scale: float) -> Case:
    """Half the bytes in should never cost more time. torch quantizes float32 only."""
    import ml_dtypes

    x, f16 = normal(n), normal(n, np.float16)
    params = lb.QuantizationParams("int8", scale=scale, zero_point=ZERO_POINT)
    contenders = [
        lowbit_quantize(f16, params, "lowbit, f16"),
        lowbit_quantize(normal(n, ml_dtypes.bfloat16), params, "lowbit, bf16"),
        lowbit_quantize(x, params, "lowbit, f32", nbytes=5 * n),
        peers.ort_quantize(f16, scale, ZERO_POINT),
    ]
    targets = [Target(f"lowbit, {half}", "lowbit, f32", 1.0, "f32") for half in ("f16", "bf16")]
    # bfloat16 keeps 8 bits of a number and float16 rounds the scale: a few codes move further than by one.
    return Case(name, 3 * n, contenders, targets, numpy_codes(x, scale, ZERO_POINT), tolerance=2)


def _under_avx2() -> Case:
    name = "AVX2 and AVX-512, 2^18"
    isas = _core.available_isas()
    if "avx512" not in isas:
        has = ", ".join(isas)
        return Case(name, 5 * CACHED, not_measurable=f"not measurable on this CPU: it has {has}")
    x = normal(CACHED)
    params = lb.QuantizationParams("int8", scale=SCALE, zero_point=ZERO_POINT)
    contenders = [
        lowbit_quantize(x, params, "lowbit, AVX2", around=lambda: capped("avx2")),
        lowbit_quantize(x, params, "lowbit, AVX-512", around=lambda: capped("")),
    ]
    targets = [Target("lowbit, AVX2", "lowbit, AVX-512", 0.6, "AVX-512", any_threads=True)]
    return Case(name, 5 * CACHED, contenders, targets, numpy_codes(x, SCALE, ZERO_POINT), tolerance=1)
