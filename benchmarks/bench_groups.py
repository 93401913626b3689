"""A 4096×4096 matrix to 4-bit codes in groups: range, scales, codes and packing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import lowbit as lb
from benchmarks.peers import GGML, ORT_4BITS, Peers
from benchmarks.shapes import MATRIX, normal
from benchmarks.timing import Case, Target, of_lowbit


def cases(peers: Peers) -> Iterator[Case]:
    w = normal(MATRIX, spread=0.02)
    for block in (128, 32):
        yield _case(peers, w, block, "int4", "symmetric")
        yield _case(peers, w, block, "uint4", "asymmetric")


def _case(peers: Peers, w: npt.NDArray[np.float32], block: int, dtype: str, scheme: str) -> Case:
    symmetric = scheme == "symmetric"
    options: dict[str, Any] = {"dtype": dtype, "scheme": scheme, "group_size": block}
    out = lb.quantize(w, **options)
    contenders = [
        of_lowbit(lambda: lb.quantize(w, **options), answer=lambda q: q.dequantize()),
        of_lowbit(lambda: lb.quantize(w, **options, out=out), "lowbit, out=", lambda q: q.dequantize()),
        peers.ggml_quantize(w),
        peers.gguf_quantize(w),
        peers.ort_matmul_4bits(w, block, symmetric),
    ]
    targets = [Target("lowbit", GGML, 4, "ggml"), Target("lowbit", ORT_4BITS, 15, "ORT")]
    parameters = w.size // block * (4 if symmetric else 8)  # float32 scales and int32 zero points
    return Case(
        f"{dtype} {scheme}, groups of {block}",
        4 * w.size + w.size // 2 + parameters,
        contenders,
        targets,
        expected=w,
        tolerance=float(np.abs(w).max()) / 7,  # the largest step there can be
    )
