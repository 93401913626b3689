"""The time of a call on 64 elements, where there is almost nothing to compute."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

import lowbit as lb
from benchmarks.bench_dequantize import dequantize_int8
from benchmarks.peers import TORCH, Peers
from benchmarks.shapes import CALL, SCALE, ZERO_POINT, aligned, normal
from benchmarks.timing import Case, Target, of_lowbit


def cases(peers: Peers) -> Iterator[Case]:
    yield _quantize(peers)
    yield dequantize_int8(peers, "dequantize 64 elements", CALL, [])


def _quantize(peers: Peers) -> Case:
    x = normal(CALL)
    params = lb.QuantizationParams("int8", scale=SCALE, zero_point=ZERO_POINT)
    array = aligned(CALL, np.int8)
    tensor = lb.quantize(x, params=params)
    contenders = [
        of_lowbit(lambda: lb.quantize(x, params=params, out=tensor), "lowbit, out= tensor", lambda q: q.data),
        of_lowbit(lambda: lb.quantize(x, params=params, out=array), "lowbit, out= ndarray", lambda q: q.data),
        of_lowbit(lambda: lb.quantize(x, params=params), "lowbit, no out=", lambda q: q.data),
        peers.torch_quantize(x, SCALE, ZERO_POINT),
        peers.ort_quantize(x, SCALE, ZERO_POINT),
        peers.numpy_quantize(x, SCALE, ZERO_POINT),
    ]
    targets = [Target(f"lowbit, out= {kind}", TORCH, 1.0, "torch") for kind in ("tensor", "ndarray")]
    return Case("quantize 64 elements", 5 * CALL, contenders, targets, tensor.data.copy(), tolerance=1)
