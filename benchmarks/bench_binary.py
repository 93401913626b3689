"""Binary GEMM, M×K×N, packed weights, to scaled float32, beside the same product in int8 and in float32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

import lowbit as lb
from benchmarks.peers import Peers
from benchmarks.peers_compute import ComputePeers
from benchmarks.shapes import aligned
from benchmarks.timing import Case, Contender, Target, of_lowbit

Array = npt.NDArray[Any]

_OWN, _INT8 = "lowbit, int8", "torch int8"
_STEP = 4.0  # of torch's codes: sums of k = 4096 signs stay below 128 of them


def cases(peers: Peers) -> Iterator[Case]:
    ours = Target("lowbit", _OWN, 4.0, "lowbit's int8")
    yield _product(peers, 1024, 1024, 1024, [ours, Target("lowbit", _INT8, 4.0, "torch int8")])
    yield _product(peers, 1, 4096, 4096, [Target("lowbit", _INT8, 4.0, "torch int8")])


def _product(peers: Peers, m: int, k: int, n: int, targets: list[Target]) -> Case:
    rng = np.random.default_rng(0)
    a, w = (rng.integers(0, 2, shape, np.uint8) for shape in ((m, k), (n, k)))
    signs_a, signs_w = (2 * codes.astype(np.float32) - 1 for codes in (a, w))
    contenders = [
        _lowbit(a, w),
        _own_int8(signs_a, signs_w),
        _torch_int8(peers, signs_a, signs_w),
        ComputePeers(peers.threads).numpy_layer(signs_a, signs_w, lambda y: y),
    ]
    nbytes = (m * k + n * k) // 8 + 4 * m * n
    return Case(
        f"{m}×{k}×{n}",
        nbytes,
        contenders,
        targets,
        expected=signs_a @ signs_w.T,
        tolerance=_STEP / 2,  # torch gives codes; all others are exact
    )


def _lowbit(a: Array, w: Array) -> Contender:
    params = lb.QuantizationParams("binary", scale=1.0)
    rows, packed = lb.QuantizedTensor.from_codes(a, params), lb.prepack_binary(lb.QuantizedTensor.from_codes(w, params))
    out = aligned((len(a), len(w)), np.float32)
    return of_lowbit(lambda: lb.binary_matmul(rows, packed, out=out), answer=lambda y: y)


def _own_int8(a: Array, w: Array) -> Contender:
    """The same signs as int8 codes."""
    params = lb.QuantizationParams("int8", scale=1.0)
    rows, packed = lb.quantize(a, params=params), lb.prepack(lb.quantize(w.T.copy(), params=params))
    return of_lowbit(lambda: lb.qmatmul(rows, packed), _OWN, answer=lambda y: y)


def _torch_int8(peers: Peers, a: Array, w: Array) -> Contender:
    """A quantized linear layer, the fastest int8 product torch has without VNNI."""

    def build(torch: Any) -> Any:
        torch.backends.quantized.engine = "x86"
        x = torch.quantize_per_tensor(torch.from_numpy(a), 1.0, 1, torch.quint8)
        weights = torch.quantize_per_tensor(torch.from_numpy(w), 1.0, 0, torch.qint8)
        packed = torch.ops.quantized.linear_prepack(weights, None)
        return lambda: torch.ops.quantized.linear(x, packed, _STEP, 128)

    return peers.torch(build, _INT8, answer=lambda y: y.dequantize().numpy())
