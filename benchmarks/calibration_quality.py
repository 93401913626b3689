"""python -m benchmarks.calibration_quality [--sentences N] [--json PATH]

How much a real model's activations lose to quantization, by who calibrated: lowbit's adaptive method, torch's
HistogramObserver, ONNX Runtime's calibrators. Two passes over the same sentences: one that all calibrators see, one in
which every value is quantized with what they found. Exits with 0 even where a target is missed, as the benchmarks do.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

import lowbit as lb
from benchmarks import minilm
from benchmarks.bench_calibration import ORT_ENTROPY, ORT_PERCENTILE, TORCH_HISTOGRAM, ort_collector
from benchmarks.results import write_table

Array = npt.NDArray[Any]

ORT_MIN_MAX = "ORT min-max"
TORCH_16 = "torch with 16 codes"
PEERS = (TORCH_HISTOGRAM, TORCH_16, ORT_ENTROPY, ORT_PERCENTILE, ORT_MIN_MAX)
_TIE = 1e-6  # of the other's error
_AT_LEAST = 0.9  # of tensors on which lowbit is to lose no more


@dataclass(frozen=True)
class Goal:
    """Codes that all calibrate for, so that ranges are compared and nothing else."""

    name: str
    dtype: str
    qmin: int
    qmax: int
    full_range: bool = False  # for lowbit to use the least code too

    @property
    def is_symmetric(self) -> bool:
        return self.qmin < 0

    @property
    def peers(self) -> tuple[str, ...]:
        """torch searches for 256 codes whatever quant_min and quant_max say: for 16 it is also told so by hand."""
        return tuple(p for p in PEERS if p != TORCH_16 or self.dtype == "int4")


GOALS = (
    Goal("int8", "int8", -127, 127),
    Goal("int4", "int4", -7, 7),
    Goal("int8, all codes", "int8", -128, 127, full_range=True),
    Goal("int4, all codes", "int4", -8, 7, full_range=True),
    Goal("uint8, affine", "uint8", 0, 255),
)


@dataclass
class Result:
    """One tensor at one goal."""

    tensor: str
    goal: str
    count: int
    lo: float
    hi: float
    chosen: str  # by lowbit, and why
    scales: dict[str, float]
    zero_points: dict[str, int]
    mse: dict[str, float] = field(default_factory=dict)


class Watch:
    """Everyone's view of one tensor."""

    def __init__(self, name: str) -> None:
        from torch.ao.quantization import HistogramObserver

        self.name = name
        self.ours = lb.Calibrator(name=name)
        self.histogram = HistogramObserver()
        self.collectors = {peer: ort_collector(peer) for peer in (ORT_ENTROPY, ORT_PERCENTILE)}
        self.chosen: dict[Goal, str] = {}  # by lowbit

    def add(self, x: Array) -> None:
        import torch

        self.ours.add(x)
        self.histogram(torch.from_numpy(x))
        for collector in self.collectors.values():  # a list a batch: batches differ in length, which one list cannot
            collector.collect({self.name: [x]})

    def params(self, goal: Goal) -> dict[str, lb.QuantizationParams]:
        """What each would quantize with."""
        found = {"lowbit": self.ours.calibrate(goal.dtype, full_range=goal.full_range)}
        self.chosen[goal] = str(self.ours.choices[0])
        for peer in goal.peers:
            by_ort = peer in self._ort_ranges
            scale, zero = _of_ort(goal, *self._ort_ranges[peer]) if by_ort else self._of_torch(goal, peer == TORCH_16)
            found[peer] = lb.QuantizationParams(
                goal.dtype, scale=np.float32(scale), zero_point=zero, qmin=goal.qmin, qmax=goal.qmax
            )
        assert (found["lowbit"].qmin, found["lowbit"].qmax) == (goal.qmin, goal.qmax)
        return found

    @cached_property
    def _ort_ranges(self) -> dict[str, tuple[Array, Array]]:
        found = {peer: c.compute_collection_result()[self.name][:2] for peer, c in self.collectors.items()}
        return {**found, ORT_MIN_MAX: self.ours.sketch.ranges()}

    def _of_torch(self, goal: Goal, few: bool) -> tuple[float, int]:
        from torch.ao.quantization import HistogramObserver

        import torch

        scheme = torch.per_tensor_symmetric if goal.is_symmetric else torch.per_tensor_affine
        dtype = torch.qint8 if goal.is_symmetric else torch.quint8
        asked = HistogramObserver(dtype=dtype, qscheme=scheme, quant_min=goal.qmin, quant_max=goal.qmax)
        asked.load_state_dict(self.histogram.state_dict())
        if few:
            asked.dst_nbins = goal.qmax - goal.qmin + 1
        scale, zero = asked.calculate_qparams()
        return float(scale), int(zero)


def _of_ort(goal: Goal, lo: Array, hi: Array) -> tuple[float, int]:
    from onnxruntime.quantization.quant_utils import compute_scale_zp

    ends = (np.array(v, np.float32) for v in (lo, hi))
    codes = (np.array(v, np.int16) for v in (goal.qmin, goal.qmax))
    zero, scale = compute_scale_zp(*ends, *codes, symmetric=goal.is_symmetric)
    return float(scale), int(zero)


def _measure(texts: Sequence[str]) -> list[Result]:
    model = minilm.load()
    watches: dict[str, Watch] = {}
    with redirect_stdout(io.StringIO()):  # ONNX Runtime's collectors announce every call
        for name, x in _tensors(model, texts):
            watches.setdefault(name, Watch(name)).add(x)
        params = {(name, goal): w.params(goal) for name, w in watches.items() for goal in GOALS}
    squares = {key: dict.fromkeys(found, 0.0) for key, found in params.items()}
    for name, x in _tensors(model, texts):
        flat = x.reshape(-1)
        for goal in GOALS:
            for who, p in params[name, goal].items():
                lost = np.subtract(flat, lb.dequantize(lb.quantize(flat, params=p)), dtype=np.float64)
                squares[name, goal][who] += float(lost @ lost)
    return [_result(watches[name], goal, found, squares[name, goal]) for (name, goal), found in params.items()]


def _tensors(model: Any, texts: Sequence[str]) -> Any:
    """The inputs of linear layers, each once: query, key and value are given the same."""
    for name, x in minilm.linear_inputs(model, texts):
        if not name.endswith((".key", ".value")):
            yield name.removeprefix("encoder.").replace("self.query", "self.query, key, value"), x


def _result(watch: Watch, goal: Goal, params: Mapping[str, lb.QuantizationParams], lost: Mapping[str, float]) -> Result:
    lo, hi = (float(v) for v in watch.ours.sketch.ranges())
    count = watch.ours.count
    return Result(
        watch.name,
        goal.name,
        count,
        lo,
        hi,
        watch.chosen[goal],
        {who: float(p.scale) for who, p in params.items()},
        {who: int(p.zero_point) for who, p in params.items()},
        {who: total / count for who, total in lost.items()},
    )


def is_win(ours: float, theirs: float) -> bool:
    return ours <= theirs * (1 + _TIE)


def shares(results: Sequence[Result]) -> list[dict[str, Any]]:
    """For each goal and peer, on how many tensors lowbit's error is no greater."""
    found = []
    for goal in GOALS:
        of_goal = [r for r in results if r.goal == goal.name]
        for peer in goal.peers:
            lost = [r.tensor for r in of_goal if not is_win(r.mse["lowbit"], r.mse[peer])]
            share = 1 - len(lost) / len(of_goal)
            ratios = [r.mse[peer] / r.mse["lowbit"] for r in of_goal]
            found.append(
                {
                    "goal": goal.name, "peer": peer, "tensors": len(of_goal), "share": share, "at_least": _AT_LEAST,
                    "met": share >= _AT_LEAST, "mean_ratio": float(np.exp(np.mean(np.log(ratios)))), "lost": lost,
                }
            )  # fmt: skip
    return found


def _print(console: Console, results: Sequence[Result], found: Sequence[dict[str, Any]]) -> None:
    for goal in GOALS:
        table = Table(box=box.HORIZONTALS, header_style="dim", pad_edge=False, title_justify="left")
        table.title = Text.assemble((goal.name, "bold"), ("  squared error over lowbit's; below 1 lowbit loses", "dim"))
        table.add_column("input of", no_wrap=True)
        for header in ("range", "lowbit MSE", *goal.peers):
            table.add_column(header, justify="right")
        for r in (r for r in results if r.goal == goal.name):
            ratios = [_ratio(r.mse["lowbit"], r.mse[peer]) for peer in goal.peers]
            table.add_row(r.tensor, f"{r.lo:.3g} … {r.hi:.3g}", f"{r.mse['lowbit']:.4g}", *ratios)
        table.add_section()
        of_goal = [s for s in found if s["goal"] == goal.name]
        verdicts = [Text(f"{s['share']:.0%}", "green" if s["met"] else "bold red") for s in of_goal]
        table.add_row(f"lowbit loses no more, target ≥ {_AT_LEAST:.0%}", "", "", *verdicts)
        console.print(table, "")
    missed = [s for s in found if not s["met"]]
    console.print(f"[bold]Targets:[/] {len(found) - len(missed)} met, {len(missed)} missed.")
    for s in missed:
        console.print(f"  [bold red]MISSED[/] {s['goal']}: {s['share']:.0%} of tensors against {s['peer']}")


def _ratio(ours: float, theirs: float) -> Text:
    """Enough digits to tell it from 1."""
    ratio = theirs / ours
    digits = 2 if abs(ratio - 1) > 0.005 else 4 if abs(ratio - 1) > 5e-5 else 7
    return Text(f"{ratio:.{digits}f}", "" if is_win(ours, theirs) else "bold red")


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.calibration_quality", description="Calibrators on a real model."
    )
    parser.add_argument("--sentences", type=int, default=256, metavar="N", help="of STS-B's training split")
    parser.add_argument("--json", type=Path, default=Path("results/calibration_quality.json"), metavar="PATH")
    options = parser.parse_args()
    results = _measure(minilm.sentences(options.sentences))
    found = shares(results)
    _print(Console(width=None if sys.stdout.isatty() else 160), results, found)
    count = len({r.tensor for r in results})
    write_table(
        options.json,
        f"Squared error of calibrated ranges, inputs of {count} linear layers of MiniLM-L6",
        ["codes", "peer", "tensors where lowbit loses no more, %", "peer's error / lowbit's, geometric mean"],
        [[s["goal"], s["peer"], 100 * s["share"], s["mean_ratio"]] for s in found],
    )
    print(f"Written to {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
