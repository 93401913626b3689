"""The minimum and maximum of an array: the first step of quantization without parameters."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks.peers import Peers
from benchmarks.shapes import CACHED, STREAMED, normal
from benchmarks.timing import Case, of_lowbit
from lowbit.numerics.granularity import granularity_of
from lowbit.runtime.arrays import as_float_array
from lowbit.runtime.elementwise import value_range


def cases(peers: Peers) -> Iterator[Case]:
    yield _case(peers, "min and max, 2^18", CACHED)
    yield _case(peers, "min and max, 2^25", STREAMED)


def _case(peers: Peers, name: str, n: int) -> Case:
    x = normal(n)
    lent, whole = as_float_array(x), granularity_of(x.shape, None, None)
    contenders = [
        of_lowbit(lambda: value_range(lent, whole), answer=lambda r: r[:2]),
        peers.numpy_min_max(x),
        peers.torch_aminmax(x),
    ]
    # Nothing is written, so a copy, which reads half of these bytes and writes half, may well be slower.
    return Case(name, 4 * n, contenders, (), np.array([x.min(), x.max()]))
