"""A long stream through many tensors: memory stays where it was, and shards may be merged in any order."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest

from lowbit.calibration import Calibrator

TENSORS, SHARDS = 100, 8


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def stream(total: int):
    """(tensor, array) of changing shapes, so many bytes in all; one array is alive at a time."""
    rng = np.random.default_rng(0)
    base = rng.standard_t(4, 1 << 20).astype(np.float32)
    buffer = np.empty_like(base)
    given = 0
    for i in itertools.count():
        if given >= total:
            return
        size = int(rng.integers(1, 1 << 20))
        start = int(rng.integers(0, base.size - size + 1))
        x = np.multiply(base[start : start + size], np.float32(1 + i % 7), out=buffer[:size])
        rows = int(rng.integers(1, 65))
        yield i % TENSORS, x[: size // rows * rows].reshape(rows, -1)
        given += x.nbytes


def run_stream(total: int) -> None:
    next(stream(1))
    gc.collect()
    before = most = resident()
    shards = [[Calibrator("mse", name=f"t{t}") for t in range(TENSORS)] for _ in range(SHARDS)]
    for i, (tensor, x) in enumerate(stream(total)):
        if x.size:
            shards[i // TENSORS % SHARDS][tensor].add(x)
        if i % 16 == 0:
            most = max(most, resident())
    orders = [range(SHARDS), range(SHARDS)[::-1], np.random.default_rng(1).permutation(SHARDS)]
    found = []
    for order in orders:
        params = []
        for t in range(TENSORS):
            whole = Calibrator("mse", name=f"t{t}")
            for s in order:
                whole.merge(shards[s][t])
            if whole.count:
                params.append(whole.calibrate("int8" if t % 2 else "uint4").to_json())
        found.append(params)
        most = max(most, resident())
    assert found[0] == found[1] == found[2]
    assert found[0]
    assert most - before < 100e6


def test_a_gigabyte_through_a_hundred_tensors_stays_in_memory():
    run_stream(10**9)


@pytest.mark.deep
def test_twenty_gigabytes_through_a_hundred_tensors_stay_in_memory():
    run_stream(20 * 10**9)
