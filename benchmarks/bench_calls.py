"""The time of a call on 64 elements, where there is almost nothing to compute."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import lowbit as lb
from benchmarks.peers import TORCH, Peers
from benchmarks.shapes import CALL, SCALE, ZERO_POINT, aligned, normal
from benchmarks.timing import Case, Contender, Target


def cases(peers: Peers) -> Iterator[Case]:
    yield _quantize(peers)
    yield _dequantize(peers)


def _quantize(peers: Peers) -> Case:
    x = normal(CALL)
    params = lb.QuantizationParams("int8", scale=SCALE, zero_point=ZERO_POINT)
    array = aligned(CALL, np.int8)
    tensor = lb.quantize(x, params=params)
    contenders = [
        Contender(
            "lowbit, out= tensor",
            lambda: lambda: lb.quantize(x, params=params, out=tensor),
            kind="lowbit",
            answer=lambda q: q.data,
        ),
        Contender(
            "lowbit, out= ndarray",
            lambda: lambda: lb.quantize(x, params=params, out=array),
            kind="lowbit",
            answer=lambda q: q.data,
        ),
        Contender(
            "lowbit, no out=",
            lambda: lambda: lb.quantize(x, params=params),
            kind="lowbit",
            answer=lambda q: q.data,
        ),
        peers.torch_quantize(x, SCALE, ZERO_POINT),
        peers.ort_quantize(x, SCALE, ZERO_POINT),
        peers.numpy_quantize(x, SCALE, ZERO_POINT),
    ]
    targets = [Target(f"lowbit, out= {kind}", TORCH, 1.0, "torch") for kind in ("tensor", "ndarray")]
    return Case("quantize 64 elements", CALL, 5 * CALL, contenders, targets, tensor.data.copy(), tolerance=1)


def _dequantize(peers: Peers) -> Case:
    x = normal(CALL)
    q = lb.quantize(x, params=lb.QuantizationParams("int8", scale=SCALE, zero_point=ZERO_POINT))
    out = aligned(CALL, np.float32)
    contenders = [
        Contender("lowbit", lambda: lambda: lb.dequantize(q, out=out), kind="lowbit", answer=lambda y: y),
        peers.torch_dequantize(x, SCALE, ZERO_POINT),
        peers.ort_dequantize(q.data, SCALE, ZERO_POINT),
        peers.numpy_dequantize(q.data, SCALE, ZERO_POINT),
    ]
    return Case("dequantize 64 elements", CALL, 5 * CALL, contenders, (), q.dequantize(), tolerance=1.01 * SCALE)
