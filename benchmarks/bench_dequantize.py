"""Codes to float32: int8 per tensor, int4 per tensor and in groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import lowbit as lb
from benchmarks.peers import TORCH, Peers
from benchmarks.shapes import CACHED, MATRIX, SCALE, STREAMED, ZERO_POINT, aligned, normal
from benchmarks.timing import Case, Contender, Target, of_lowbit

Array = npt.NDArray[Any]


def cases(peers: Peers) -> Iterator[Case]:
    yield dequantize_int8(peers, "int8 per tensor, 2^18", CACHED, [Target("lowbit", TORCH, 1.0, "torch")])
    yield dequantize_int8(peers, "int8 per tensor, 2^25", STREAMED, [])
    yield _int4_per_tensor(peers)
    yield _int4_groups(peers, 32)


def _lowbit(q: lb.QuantizedTensor) -> Contender:
    out = aligned(q.shape, np.float32)
    return of_lowbit(lambda: lb.dequantize(q, out=out), answer=lambda y: y)


def dequantize_int8(peers: Peers, name: str, n: int, targets: list[Target]) -> Case:
    x = normal(n)
    q = lb.quantize(x, params=lb.QuantizationParams("int8", scale=SCALE, zero_point=ZERO_POINT))
    contenders = [
        _lowbit(q),
        peers.torch_dequantize(x, SCALE, ZERO_POINT),
        peers.ort_dequantize(q.data, SCALE, ZERO_POINT),
        peers.numpy_dequantize(q.data, SCALE, ZERO_POINT),
    ]
    # torch may round a code the other way, so a whole step apart is still the same work.
    return Case(name, 5 * n, contenders, targets, q.dequantize(), tolerance=1.01 * SCALE)


def _int4_per_tensor(peers: Peers) -> Case:
    x = normal(CACHED)
    q = lb.quantize(x, "int4")
    contenders = [_lowbit(q), peers.ort_dequantize_int4(q.data, q.shape, q.params.scale, block=0)]
    nbytes = 4 * CACHED + CACHED // 2
    return Case("int4 per tensor, 2^18", nbytes, contenders, (), q.dequantize(), tolerance=1e-5)


def _int4_groups(peers: Peers, block: int) -> Case:
    w = normal(MATRIX, spread=0.02)
    q = lb.quantize(w, "int4", group_size=block)
    contenders = [
        _lowbit(q),
        peers.ort_dequantize_int4(q.data, q.shape, q.params.scale, block),
        peers.ggml_dequantize(w),
        peers.gguf_dequantize(w),
    ]
    nbytes = 4 * w.size + w.size // 2 + q.params.scale.nbytes
    largest_step = float(np.abs(w).max()) / 7
    return Case(f"int4 groups of {block}, 4096×4096", nbytes, contenders, (), w, tolerance=largest_step)
