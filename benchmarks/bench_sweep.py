"""An int8 layer beside float32 layers, M×K×N over a grid; lists the cases in which float32 is faster."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from benchmarks.bench_linear import lowbit_layer
from benchmarks.peers import Peers
from benchmarks.peers_compute import NUMPY_F32, TORCH_F32, ComputePeers
from benchmarks.problems import Layer
from benchmarks.timing import Case, GroupTarget

_ROWS, _SIZES = (1, 2, 4, 16, 64, 256), (256, 1024, 4096)
_MEAN = GroupTarget("the grid", "lowbit", (NUMPY_F32, TORCH_F32), 1.0, "the faster f32", lists_slower=True)


def cases(peers: Peers) -> Iterator[Case]:
    for k, n, m in product(_SIZES, _SIZES, _ROWS):
        p = Layer(m, k, n)
        yield Case(
            p.name,
            4 * (m * k + k * n + m * n),
            [lowbit_layer(p), *ComputePeers(peers.threads).float_layers(p.x, p.w, lambda y: y)],
            expected=p.y,
            tolerance=p.tolerance,
            operations=p.operations,
            group_targets=[_MEAN],
            share=0.1,
        )
