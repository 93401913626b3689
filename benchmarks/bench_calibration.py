"""Statistics of activations for every calibration method, and the range alone. GB/s are bytes read."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.machine import READS, reads
from benchmarks.peers import Peers
from benchmarks.shapes import CACHED, MEDIUM, SPLIT, STREAMED, normal
from benchmarks.timing import Call, Case, Contender, Target
from lowbit.calibration.sketch import Sketch

Array = npt.NDArray[Any]

TORCH_HISTOGRAM = "torch HistogramObserver"
ORT_ENTROPY, ORT_PERCENTILE = "ORT entropy", "ORT percentile"
_RANGE = "lowbit, range only"
# What onnxruntime.quantization.calibrate.create_calibrator gives each where nothing else is asked for.
_ORT_DEFAULTS: dict[str, dict[str, Any]] = {
    ORT_ENTROPY: {"method": "entropy", "symmetric": False, "num_bins": 128},
    ORT_PERCENTILE: {"method": "percentile", "symmetric": True, "num_bins": 2048},
}


def cases(peers: Peers) -> Iterator[Case]:
    for name, n in (("2^18", CACHED), ("2^20", SPLIT), ("2^22", MEDIUM)):
        yield _everything(peers, f"all statistics, {name}", n)
    yield _range_alone(peers, "range alone, 2^25", STREAMED)


def _everything(peers: Peers, name: str, n: int) -> Case:
    """Once each has seen the array: from then on its ranges, and with them its bins, stay."""
    x = normal(n)
    return Case(
        name,
        4 * n,
        [_lowbit("lowbit", x), _torch(peers, x), _ort(ORT_ENTROPY, x), _ort(ORT_PERCENTILE, x)],
        [
            Target("lowbit", TORCH_HISTOGRAM, 4.0, "torch's histogram"),
            Target("lowbit", ORT_ENTROPY, 10.0, ORT_ENTROPY),
            Target("lowbit", ORT_PERCENTILE, 10.0, ORT_PERCENTILE),
        ],
        np.array([x.min(), x.max()]),
    )


def _range_alone(peers: Peers, name: str, n: int) -> Case:
    x = normal(n)
    return Case(
        name,
        4 * n,
        [_lowbit(_RANGE, x, collect="range"), peers.torch_aminmax(x), *reads(4 * n, 1, peers.threads)],
        [Target(_RANGE, READS, 0.9, "reading memory")],
        np.array([x.min(), x.max()]),
    )


def _lowbit(name: str, x: Array, **options: Any) -> Contender:
    """What Calibrator.add does, which has such a sketch."""

    def build() -> Call:
        sketch = Sketch(**options)

        def add() -> Sketch:
            sketch.add(x)
            return sketch

        return add

    return Contender(name, build, kind="lowbit", answer=lambda sketch: sketch.ranges())


def _torch(peers: Peers, x: Array) -> Contender:
    def build(torch: Any) -> Call:
        tensor = torch.from_numpy(x)
        from torch.ao.quantization import HistogramObserver

        observer = HistogramObserver()

        def observe() -> Any:
            observer(tensor)
            return observer

        return observe

    return peers.torch(build, TORCH_HISTOGRAM, answer=lambda o: [float(o.min_val), float(o.max_val)])


def _ort(name: str, x: Array) -> Contender:
    """On one thread throughout: it is NumPy. Its calibrator lists the arrays of a tensor."""

    def build() -> Call:
        collector = ort_collector(name)

        def collect() -> Any:
            collector.collect({"x": [x]})
            return collector

        return collect

    # It announces every call.
    return Contender(
        name, build, answer=lambda c: c.histogram_dict["x"][2:4], around=lambda: redirect_stdout(io.StringIO())
    )


def ort_collector(name: str) -> Any:
    """The collector of ONNX Runtime's entropy or percentile calibrator, as that makes it."""
    from onnxruntime.quantization.calibrate import HistogramCollector

    settings = {"num_quantized_bins": 128, "percentile": 99.999, "scenario": "same", **_ORT_DEFAULTS[name]}
    return HistogramCollector(**settings)
