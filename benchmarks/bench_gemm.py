"""GEMM of uint8 activations with packed int8 weights, M×K×N, to uint8 codes and to int32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lowbit as lb
from benchmarks.machine import DOT_LIMIT, capped, dot_limit
from benchmarks.peers import Peers
from benchmarks.peers_compute import ENGINES, ORT_CODES, ORT_SUMS, TORCH_SUMS, ComputePeers
from benchmarks.problems import A_SCALE, A_ZERO, OUT_ZERO, Product, SmallWeights
from benchmarks.timing import Call, Case, Contender, GroupTarget, Target
from lowbit import _core

CUBE = (1024, 1024, 1024)
_ROUND = ((8, 4096, 4096), (64, 4096, 4096), (128, 768, 768), CUBE)
# A remainder in every direction, a single row, a short and a long sum, few columns.
_AWKWARD = (
    (37, 1000, 1531), (5, 333, 1025), (100, 77, 2049), (1, 1000, 1001), (129, 513, 257),
    (256, 64, 3000), (31, 4095, 63), (200, 1500, 17), (63, 255, 1023), (17, 2048, 515),
)  # fmt: skip

CODES, SUMS = "lowbit, to u8", "lowbit, to s32"
_SUMS_PEERS = (ORT_SUMS, TORCH_SUMS)
# Codes are compared with peers that give codes or, which is less work, int32; int32 only with int32. The second mean of
# codes leaves int32 out.
_AGAINST = {CODES: (*ENGINES, ORT_CODES, *_SUMS_PEERS), SUMS: _SUMS_PEERS}
_LABEL = {CODES: "best int8 peer", SUMS: "best peer to s32"}
_MEANS = [
    *(GroupTarget("all shapes", name, _AGAINST[name], 1.0, _LABEL[name]) for name in (CODES, SUMS)),
    GroupTarget("all shapes, codes alone", CODES, (*ENGINES, ORT_CODES), 1.0, "best peer to u8"),
]
_LIMIT = Target(CODES, DOT_LIMIT, 0.92, "limit")


def cases(peers: Peers) -> Iterator[Case]:
    for shape in (*_ROUND, *_AWKWARD):
        p = Product(*shape)
        limits = [dot_limit(p.operations, peers.threads)] if shape == CUBE else []
        targets = [Target(name, _AGAINST[name], 0.9, _LABEL[name]) for name in (CODES, SUMS)]
        yield Case(
            p.name,
            p.m * p.k + p.k * p.n + p.m * p.n,
            [lowbit_codes(p, CODES), _lowbit_sums(p), *_peers(ComputePeers(peers.threads), p), *limits],
            [*targets, _LIMIT] if limits else targets,
            expected=p.codes,
            tolerance=1,  # torch rounds after it has added the zero point; sums must be exact
            operations=p.operations,
            group_targets=_MEANS,
        )
    # Activations of 7 bits: packing and a look at them show that no pair of products saturates. And weights of 6 bits,
    # of which packing alone shows that no four do.
    yield _avx2_beside_vnni("1024×1024×1024 under AVX2", Product(*CUBE))
    yield _avx2_beside_vnni("1024×1024×1024 under AVX2, small weights", SmallWeights(*CUBE))


def _avx2_beside_vnni(name: str, p: Product) -> Case:
    isas = _core.available_isas()
    if "vnni" not in isas:
        why = f"not measurable on this CPU: it has {', '.join(isas)}"
        return Case(name, p.m * p.n, not_measurable=why, operations=p.operations)
    contenders = [
        lowbit_codes(p, "lowbit, AVX2", around=lambda: capped("avx2")),
        lowbit_codes(p, "lowbit, VNNI", around=lambda: capped("")),
    ]
    if "avxvnni" in isas:
        contenders.append(lowbit_codes(p, "lowbit, AVX-VNNI", around=lambda: capped("avxvnni")))
    targets = [Target("lowbit, AVX2", "lowbit, VNNI", 0.5, "VNNI", any_threads=True)]
    return Case(name, p.m * p.n, contenders, targets, p.codes, tolerance=0, operations=p.operations)


def lowbit_codes(p: Product, name: str, **fields: Any) -> Contender:
    def build() -> Call:
        a = lb.QuantizedTensor(p.a, lb.QuantizationParams("uint8", scale=A_SCALE, zero_point=A_ZERO))
        packed = lb.prepack(_weights(p))
        out_params = lb.QuantizationParams("uint8", scale=p.out_scale, zero_point=OUT_ZERO)
        return lambda: lb.qmatmul(a, packed, out_params=out_params)

    return Contender(name, build, kind="lowbit", answer=lambda q: q.data, **fields)


def _lowbit_sums(p: Product) -> Contender:
    def build() -> Call:
        packed = lb.prepack(_weights(p))
        return lambda: lb.matmul_integer(p.a, packed, a_zero_point=A_ZERO)

    return Contender(SUMS, build, kind="lowbit", answer=p.sums_to_codes)


def _weights(p: Product) -> lb.QuantizedTensor:
    return lb.QuantizedTensor(p.w, lb.QuantizationParams("int8", scale=p.w_scale, axis=1))


def _peers(peers: ComputePeers, p: Product) -> list[Contender]:
    """Those of codes, and as the baseline those that multiply the numbers the codes stand for."""
    a, w = p.numbers
    return [*peers.products(p), *peers.float_layers(a, w.T, p.to_codes)]
