"""What a second thread brings. Only lowbit takes part: a peer's workers would spin on the second core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import lowbit as lb
from benchmarks.bench_quantize import lowbit_quantize
from benchmarks.peers import Peers
from benchmarks.shapes import SCALE, SPLIT, ZERO_POINT, normal
from benchmarks.timing import Case, Target, cpus_given

__all__ = ["cases"]

_BOTH = 1.8  # CPUs: with fewer to be had, no pool could show what a second thread brings


def cases(peers: Peers) -> Iterator[Case]:
    name, usable = "per tensor, 2^20", lb.hardware().usable_cpus
    if usable < 2:
        yield Case(name, SPLIT, 5 * SPLIT, not_measurable="not measurable here: one CPU is usable")
        return
    x = normal(SPLIT)
    params = lb.QuantizationParams("int8", scale=SCALE, zero_point=ZERO_POINT)
    contenders = [
        lowbit_quantize(x, params, "lowbit, 2 threads", around=lambda: _threads(2)),
        lowbit_quantize(x, params, "lowbit, 1 thread", around=lambda: _threads(1)),
    ]
    targets = [Target("lowbit, 2 threads", "lowbit, 1 thread", 1.7, "one thread", any_threads=True)]
    given = cpus_given(2)
    doubt = "" if given > _BOTH else f"busy machine, 2 threads get {given:.1f} CPUs"
    yield Case(name, SPLIT, 5 * SPLIT, contenders, targets, settle=1e-3, doubt=doubt)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = lb.get_num_threads()
    lb.set_num_threads(count)
    try:
        yield
    finally:
        lb.set_num_threads(before)
