"""Linear layers with 4-bit weights in groups along K, M×K×N, float32 in and out; equal weights for all."""

from __future__ import annotations

from collections.abc import Iterator

import lowbit as lb
from benchmarks.machine import reads
from benchmarks.peers import Peers
from benchmarks.peers_compute import INT4PACK, NBITS, ComputePeers
from benchmarks.problems import Groups
from benchmarks.timing import Call, Case, Contender, Target

_SHAPES = ((1, 4096, 4096), (1, 4096, 11008), (4, 4096, 4096), (32, 4096, 4096), (128, 4096, 4096))
# How many times as fast as the best peer: by group, then rows.
_AT_LEAST = {128: {1: 1.3, 4: 1.5, 32: 1.8, 128: 1.8}, 32: {1: 1.3, 4: 1.5, 32: 1.5, 128: 1.5}}


def cases(peers: Peers) -> Iterator[Case]:
    for block, at_least in _AT_LEAST.items():
        for shape in _SHAPES:
            p = Groups(*shape, block)
            yield _case(ComputePeers(peers.threads), p, at_least[p.m], peers.threads)


def _case(makers: ComputePeers, p: Groups, at_least: float, threads: int) -> Case:
    weights = p.w.size // 2 + 4 * p.w_scale.size
    contenders = [
        _lowbit(p, "lowbit", "int8"),
        _lowbit(p, "lowbit, float activations", "float"),
        *makers.four_bit_layers(p),
        *makers.float_layers(p.x, p.w, lambda y: y),
        makers.bfloat_layer(p),
        *(reads(weights, 1, threads) if p.m == 1 else []),  # what one row cannot do without
    ]
    return Case(
        f"{p.name}, groups of {p.block}",
        4 * p.x.size + weights + 4 * p.y.size,
        contenders,
        [Target("lowbit", (*NBITS, INT4PACK), at_least, "best int4 peer")],
        expected=p.y,
        tolerance=p.tolerance,  # weights are the same: it is x that some take in 8 bits or as bfloat16
        operations=p.operations,
    )


def _lowbit(p: Groups, name: str, activation: str) -> Contender:
    def build() -> Call:
        layer = lb.QuantizedLinear(p.tensor, activation_dtype=activation)
        return lambda: layer(p.x)

    return Contender(name, build, kind="lowbit", answer=lambda y: y)
