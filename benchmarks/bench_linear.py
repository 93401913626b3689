"""Linear layers with int8 weights, M×K×N, float32 in and out; each call quantizes its input."""

from __future__ import annotations

from collections.abc import Iterator

import lowbit as lb
from benchmarks.machine import READS, reads
from benchmarks.peers import Peers
from benchmarks.peers_compute import ENGINES, NUMPY_F32, ORT_DYNAMIC, TORCH_F32, ComputePeers, rotating
from benchmarks.problems import Layer
from benchmarks.timing import Call, Case, Contender, GroupTarget, Target
from lowbit.ops.fitting import Products, fastest_fit

_SHAPES = (
    (1, 4096, 4096), (8, 4096, 4096), (64, 4096, 4096), (128, 768, 768), (128, 768, 3072), (1024, 1024, 1024),
    (37, 1000, 1531),
)  # fmt: skip
_ONE_ROW = (1, 4096, 4096)
_BEYOND_CACHES = 80 << 20  # bytes of weights, more than any cache here holds

_PEERS = (*ENGINES, ORT_DYNAMIC, TORCH_F32, NUMPY_F32)
# Without VNNI every peer has 7 bits on one side, since products of 8 saturate: 34 to 35 dB here. lowbit has 8 on both,
# 39 dB, or weights of which no pair saturates, 38 dB, or no four, 36 dB, for which there are faster instructions. All
# are judged.
EIGHT_BITS = "lowbit"
_FITTED: dict[str, Products] = {EIGHT_BITS: 1, "lowbit, pairs fit": 2, "lowbit, fours fit": 4}
_OWN = tuple(_FITTED) if fastest_fit() > 1 else (EIGHT_BITS,)
_MEANS = [GroupTarget("all shapes, weights hot", name, _PEERS, 1.05, "best peer") for name in _OWN]


def cases(peers: Peers) -> Iterator[Case]:
    makers = ComputePeers(peers.threads)
    for shape in _SHAPES:
        p = Layer(*shape)
        targets = [Target(name, _PEERS, 1.2, "best peer") for name in _OWN] if shape == _ONE_ROW else []
        name = f"{p.name}, weights hot" if shape == _ONE_ROW else p.name
        yield _case(p, name, _contenders(makers, p), targets, _MEANS)
    yield _cold(makers, peers.threads)


def _case(
    p: Layer, name: str, contenders: list[Contender], targets: list[Target], means: list[GroupTarget]
) -> Case:  # fmt: skip
    return Case(
        name,
        _bytes(p),
        contenders,
        targets,
        expected=p.y,
        tolerance=p.tolerance,
        operations=p.operations,
        group_targets=means,
    )


def _bytes(p: Layer) -> int:
    """float32 x and y, int8 weights with one scale per row."""
    return 4 * p.x.size + p.w.size + 4 * p.n + 4 * p.y.size


def _cold(makers: ComputePeers, threads: int) -> Case:
    """Every call has other weights, all with the same values: nothing but DRAM can have them."""
    p = Layer(*_ONE_ROW)
    copies = -(-_BEYOND_CACHES // p.w.size)
    cold = [
        Contender(c.name, rotating(c.build, copies), kind=c.kind, answer=c.answer) for c in _contenders(makers, p)
    ]  # fmt: skip
    contenders = [*cold, *reads(_bytes(p) // 64 * 64, copies, threads)]
    targets = [Target(name, READS, 0.85, "reading memory") for name in _OWN]
    return _case(p, f"{p.name}, weights cold", contenders, targets, [])


def lowbit_layer(p: Layer, name: str = EIGHT_BITS) -> Contender:
    def build() -> Call:
        layer = lb.QuantizedLinear(p.w, fit_products=_FITTED[name])
        return lambda: layer(p.x)

    return Contender(name, build, kind="lowbit", answer=lambda y: y)


def _contenders(makers: ComputePeers, p: Layer) -> list[Contender]:
    return [
        *(lowbit_layer(p, name) for name in _OWN),
        *makers.dynamic_layers(p),
        *makers.float_layers(p.x, p.w, lambda y: y),
    ]
