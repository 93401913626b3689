"""python -m benchmarks.accuracy [--beds minilm,smollm2] [--methods gptq,weighted] [--bits 4] [--groups 64] [--json OUT]

What models lose with weights of few bits: every method at every setting, on beds with held-out data. Rows that are in
the file already are kept and not measured again, so that a run that was stopped goes on where it was.

For each row: true bits per weight (codes, 16-bit scales, zero points), loss and its standard error, seconds of solving
all layers, and the peak memory of the process while it did; rows "statistics" have the seconds of the moments. Loss is
perplexity above float's in percent for language models, and noise relative to the signal in dB for MiniLM.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lowbit as lb
import torch
from benchmarks import accuracy_beds as beds
from benchmarks import accuracy_methods as methods
from benchmarks.accuracy_methods import NEEDS, SEQUENTIAL, Setting
from benchmarks.accuracy_peers import PEERS, Run, peer_weights, runs_of
from benchmarks.accuracy_plot import plot
from benchmarks.accuracy_sequential import put_sequentially
from benchmarks.results import facts, write
from lowbit.calibration import Moments

RESULT = Path(__file__).parent / "results" / "accuracy.json"
TITLE = "Accuracy at few bits"
KEY = ("bed", "calibrated", "method", "bits", "group", "scheme")
BEDS: dict[str, Callable[[int, int], beds.Bed]] = {
    "minilm": beds.minilm_bed,
    "smollm2": beds.smollm2_bed,
    "gpt": beds.gpt_bed,
}
# Sentences, or windows of tokens and of each text: to calibrate with, to judge on, and to judge on with --quick.
SIZES = {"minilm": (512, 512, 128), "smollm2": (8, 16, 2), "gpt": (32, 64, 8)}
_QUICK = {"bits": (4,), "groups": (64,), "schemes": ("asym",)}


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.accuracy", description=(__doc__ or "").split("\n\n")[1])
    names = {"beds": BEDS, "methods": methods.METHODS, "schemes": methods.SCHEMES}
    for option, known in names.items():
        parser.add_argument(
            f"--{option}", type=_names(known), default=list(known), metavar="A,B", help=", ".join(known)
        )
    parser.add_argument("--bits", type=_numbers, default=methods.BITS, metavar="N,N", help="default: 2,3,4,8")
    parser.add_argument("--groups", type=_numbers, default=methods.GROUPS, metavar="N,N", help="0: a scale per output")
    parser.add_argument("--peers", type=_names(PEERS), default=[], metavar="A,B", help=", ".join(PEERS))
    parser.add_argument("--calibrated", type=int, metavar="N", help="sentences or windows; 8 x 1024 tokens of SmolLM2")
    parser.add_argument("--quick", action="store_true", help="little held-out data, 4 bits in groups of 64")
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="default: 2")
    parser.add_argument("--json", type=Path, metavar="PATH", help="rows found here are kept, new ones added")
    parser.add_argument("--plot", type=Path, metavar="PATH", help="an SVG or PNG: loss over true bits, of all rows")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    lb.set_num_threads(options.threads)
    if options.quick:
        vars(options).update(_QUICK)
    wanted = methods.settings(options.methods, options.bits, options.groups, options.schemes)
    rows = Rows(options.json, options.threads)
    for name in options.beds:
        calibrated, judged, quick = SIZES[name]
        calibrated = options.calibrated or calibrated
        missing = [s for s in wanted if not rows.has(_key(name, calibrated, s))]
        runs = [
            run for peer in options.peers for run in runs_of(peer) if not rows.has(_key_of_peer(name, calibrated, run))
        ]
        if missing or runs:
            bed = BEDS[name](calibrated, quick if options.quick else judged)
            measure(bed, missing, rows)
            measure_peers(bed, runs, rows)
    if options.plot:
        plot(rows.rows, options.plot)


class Rows:
    """The rows so far, and the file that has them after every one."""

    def __init__(self, path: Path | None, threads: int) -> None:
        self.path, self.threads = path, threads
        self.rows: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self.rows = json.loads(path.read_text("utf-8"))["measurements"]

    def has(self, key: tuple[Any, ...]) -> bool:
        return any(tuple(row.get(k) for k in KEY) == key for row in self.rows)

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows.append({name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()})
        shown = (f"{name} {v:.3f}" for name, v in row.items() if isinstance(v, float))
        print(*(row.get(k, "") for k in KEY), "|", ", ".join(shown), flush=True)
        if self.path is not None:
            write(self.path, {"title": TITLE, **facts(threads=self.threads), "measurements": self.rows})


def measure(bed: beds.Bed, wanted: list[Setting], rows: Rows) -> None:
    """Adds a row for each setting, those that need the same statistics together."""
    for needs in ("", "diagonal", "gram"):
        chosen = [s for s in wanted if s.method != SEQUENTIAL and NEEDS[s.method] == needs]
        moments: Mapping[str, Moments] = {}
        if needs and chosen:
            with measured() as cost:
                moments = bed.moments(gram=needs == "gram")
            rows.add({"bed": bed.name, "calibrated": bed.calibrated, "method": f"statistics, {needs}", **cost})
        for setting in chosen:
            _measure_setting(bed, setting, moments, rows)
    for setting in wanted:
        if setting.method == SEQUENTIAL:
            _measure_setting(bed, setting, {}, rows)


def _measure_setting(bed: beds.Bed, setting: Setting, moments: Mapping[str, Moments], rows: Rows) -> None:
    """Solves all layers, judges the model, and puts its float weights back."""
    with measured() as cost:
        if setting.method == SEQUENTIAL:
            put_sequentially(bed, setting)
        else:
            for name, w in methods.solutions(bed.floats, setting, moments, bed.tied):
                bed.put(name, w)
    weights = bed.floats.values()
    bits = sum(methods.true_bits(w, setting.grid(w.shape[1])) for w in weights) / sum(w.size for w in weights)
    said = bed.judge()
    bed.restore()
    key = dict(zip(KEY, _key(bed.name, bed.calibrated, setting), strict=True))
    rows.add({**key, "true bits": bits, **said, **cost, "unit": bed.unit})


def measure_peers(bed: beds.Bed, runs: list[Run], rows: Rows) -> None:
    """Adds a row for each run; one that fails says why, and has no loss."""
    moments = bed.moments(gram=False) if any(run.peer == "ggml" for run in runs) else {}
    for run in runs:
        key = dict(zip(KEY, _key_of_peer(bed.name, bed.calibrated, run), strict=True))
        try:
            with measured() as cost:
                weights, known = peer_weights(bed, run, moments)
        except (RuntimeError, ValueError, subprocess.SubprocessError) as error:
            rows.add({**key, "failed": str(error)})
            continue
        for name in bed.floats:
            bed.put(name, weights[name])
        said = bed.judge()
        bed.restore()
        rows.add({**key, **said, **cost, **known, "unit": bed.unit})


def _key_of_peer(bed: str, calibrated: int, run: Run) -> tuple[Any, ...]:
    return bed, calibrated, run.name, run.bits, run.group, ""


def _key(bed: str, calibrated: int, s: Setting) -> tuple[Any, ...]:
    return bed, calibrated, s.method, s.bits, s.group, s.scheme


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """CPU and wall seconds of a block, and the peak memory of the process in it, in MB."""
    with suppress(OSError):  # on other systems than Linux, the peak is that of the whole run
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts over at what is used now
    cost: dict[str, float] = {}
    wall, cpu = time.perf_counter(), time.process_time()
    yield cost
    cost |= {"wall seconds": time.perf_counter() - wall, "CPU seconds": time.process_time() - cpu}
    cost["peak MB"] = _peak_mb()


def _peak_mb() -> float:
    status = Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _names(known: Any) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [name for name in found if name not in known]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}; expected some of {', '.join(known)}")
        return found

    return names


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    main()
