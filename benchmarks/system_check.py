"""python -m benchmarks.system_check [--json PATH]

Check two promises of `QuantizationSystem` on this machine:

- The limits that lowbit's probe measures are within 10 % of the loops in peaks.c, measured in turns.
- With other work on one core, two searches of the tuner choose the same setting, or settings within 5 % of each other.
"""

from __future__ import annotations

import argparse
import ctypes
import multiprocessing
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import report_table
from lowbit import _core
from lowbit.runtime.hardware import hardware
from lowbit.runtime.limits import _sizes
from lowbit.tuning import AutoTuningConfig, QuantizationWorkload, auto_tune

SEARCHED = [("matmul", "128x768x768"), ("matmul", "8x64x64"), ("matmul", "1x2048x2048"),
            ("conv2d", "1x64x28x28,64x64x3x3,padding=1"), ("add", "512x512")]  # fmt: skip
WITHIN, PEAK = 1.05, 0.10


def own_loops(folder: Path) -> ctypes.CDLL:
    source = Path(__file__).parent / "peaks.c"
    target = folder / "peaks.so"
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O3", "-mavx2", "-mfma", "-shared", "-fPIC", source, "-o", target], check=True)
    library = ctypes.CDLL(os.fspath(target))
    library.peak_fma.restype, library.peak_fma.argtypes = ctypes.c_float, [ctypes.c_int64]
    library.peak_dot.restype, library.peak_dot.argtypes = ctypes.c_int32, [ctypes.c_int64]
    library.peak_read.restype, library.peak_read.argtypes = (
        ctypes.c_int64,
        [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64],
    )
    return library


def rate(work: float, call: Callable[[], Any], seconds: float = 0.02) -> float:
    """The best of many calls: other work only takes away."""
    best, end = 0.0, time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        best = max(best, work / (now - start))
        if now > end:
            return best


def check_limits() -> list[list[Any]]:
    """Best rates of lowbit's probe and of the own loops, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        own = own_loops(Path(folder))
    pairs: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "fma": (_core.fma_limit, lambda: rate(20_000 * 192, lambda: own.peak_fma(20_000))),
        "dot": (_core.dot_limit, lambda: rate(20_000 * 384, lambda: own.peak_dot(20_000))),
    }
    for name, size in _sizes(hardware()).items():
        room = np.ones(size // 1024 * 128 + 8, np.int64)
        block = room[(-room.ctypes.data % 64) // 8 :][: size // 1024 * 128]  # a load must not touch two lines
        repeats = max(1, (1 << 25) // block.nbytes)  # else the call itself takes part of the time

        def read(block: Any = block, repeats: int = repeats) -> float:
            return rate(block.nbytes * repeats, lambda: own.peak_read(block.ctypes.data, block.size, repeats))

        pairs[f"read {name}"] = (lambda size=size: _core.read_limit(size, 0.02), read)
    rows = []
    for name, (ours, theirs) in pairs.items():
        best = [0.0, 0.0]
        for _ in range(40):
            best = [max(best[0], ours()), max(best[1], theirs())]
        ratio = best[0] / best[1]
        speeds = f"probe {best[0] / 1e9:.4g} G/s, loop {best[1] / 1e9:.4g} G/s"
        rows.append([f"limit: {name}", speeds, ratio, abs(ratio - 1) <= PEAK])
    return rows


def _busy(cpu: int) -> None:
    os.sched_setaffinity(0, {cpu})
    x = np.random.default_rng(0).standard_normal((400, 400))
    while True:
        x @ x


def check_load(seconds: float) -> list[list[Any]]:
    """Two searches each with one core busy."""
    busy = multiprocessing.get_context("spawn").Process(target=_busy, args=(0,), daemon=True)
    busy.start()
    time.sleep(1)
    rows = []
    try:
        for kind, text in SEARCHED:
            workload = QuantizationWorkload.parse(kind, text)
            config = AutoTuningConfig(max_search_time=seconds)
            first, second = (auto_tune(workload, config=config, cache=False) for _ in range(2))
            names = [r.winner.name if r.winner is not None else "float32" for r in (first, second)]
            ratio = max(_behind(first, names), _behind(second, names))
            holds = names[0] == names[1] or ratio <= WITHIN
            check = f"two searches with a core busy: {kind} {text}"
            rows.append([check, "; ".join(dict.fromkeys(names)), ratio, holds])
    finally:
        busy.kill()
    return rows


def _behind(found: Any, names: list[str]) -> float:
    """How far apart both winners are in one search."""
    timings = {r.name: r.timing.median for r in found.results}
    timings["float32"] = found.baseline.timing.median
    both = [timings.get(n, float("inf")) for n in names]
    return max(both) / min(both)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each search")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    report_table(
        "Measured limits, and the tuner on a busy machine",
        ["check", "found", "ratio", "holds"],
        [*check_limits(), *check_load(options.seconds)],
        options.json,
    )


if __name__ == "__main__":
    main()
