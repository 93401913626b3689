"""What a second thread gains. Only lowbit takes part: the workers of a peer would spin on the second core."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import lowbit as lb
from benchmarks.bench_gemm import CUBE, lowbit_codes
from benchmarks.bench_quantize import lowbit_quantize
from benchmarks.machine import cpus_given
from benchmarks.peers import Peers
from benchmarks.problems import Product
from benchmarks.shapes import SCALE, SPLIT, ZERO_POINT, normal
from benchmarks.timing import Case, Target
from lowbit.runtime.threads import threads_set_to

_TWO, _ONE = "lowbit, 2 threads", "lowbit, 1 thread"
_BOTH = 1.8  # CPUs: with fewer to be had, no pool could show what a second thread brings


def cases(peers: Peers) -> Iterator[Case]:
    yield _case(_quantize())
    yield _case(_product())


def _case(case: Case) -> Case:
    """The case, in doubt or not measurable where the machine has no two CPUs to give."""
    if lb.hardware().usable_cpus < 2:
        return replace(case, not_measurable="not measurable here: one CPU is usable")
    given = cpus_given(2)
    return replace(case, doubt="" if given > _BOTH else f"busy machine, 2 threads get {given:.1f} CPUs")


def _quantize() -> Case:
    x = normal(SPLIT)
    params = lb.QuantizationParams("int8", scale=SCALE, zero_point=ZERO_POINT)
    contenders = [
        lowbit_quantize(x, params, _TWO, around=lambda: threads_set_to(2)),
        lowbit_quantize(x, params, _ONE, around=lambda: threads_set_to(1)),
    ]
    return Case("quantize per tensor, 2^20", 5 * SPLIT, contenders, [_target(1.7)], settle=1e-3)


def _product() -> Case:
    p = Product(*CUBE)
    contenders = [
        lowbit_codes(p, _TWO, around=lambda: threads_set_to(2)),
        lowbit_codes(p, _ONE, around=lambda: threads_set_to(1)),
    ]
    return Case(
        f"product, {p.name}",
        p.m * p.k + p.k * p.n + p.m * p.n,
        contenders,
        [_target(1.85)],
        expected=p.codes,
        settle=1e-3,
        operations=p.operations,
    )


def _target(at_least: float) -> Target:
    return Target(_TWO, _ONE, at_least, "one thread", any_threads=True)
