"""Small ONNX models, quantized here and by ONNX Runtime's own tools: coverage, size, speed and SQNR side by side.

    python -m benchmarks.onnx_zoo [--only NAME,...] [--recipes W8A16,...] [--seconds S] [--json PATH]

The models are tests/onnx_zoo.py's. Everything runs in ONNX Runtime with default options on one thread, float, ours and
theirs interleaved. SQNR is that of the worst output against the float model.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime import quantization as theirs
from onnxruntime.quantization.shape_inference import quant_pre_process

from benchmarks.results import report_table
from lowbit.bench.timing import measure
from lowbit.formats.onnx.convert import quantize_onnx
from lowbit.formats.onnx.measure import compare_outputs
from lowbit.formats.onnx.runtime import new_session
from lowbit.numerics.errors import InvalidProblem

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

RESULT = Path(__file__).parent / "results" / "onnx-zoo.json"
RECIPES = ("W8A16", "W4A16", "dynamic-int8", "static-int8")
BATCHES, LEAST_WEIGHT = 8, 1024
COLUMNS = (
    "model", "recipe", "weights", "size", "× float", "SQNR dB", "SQNR dB, --target-cpu vnni",
    "fastest of ONNX Runtime's tools, × float", "most accurate of them, dB",
)  # fmt: skip


def main() -> int:
    options = _options()
    import onnx_zoo

    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows = []
    for name in options.only or onnx_zoo.MODELS:
        entry = onnx_zoo.MODELS[name]()
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "float.onnx"
            onnx.save(entry.model, source)
            for recipe in options.recipes:
                row = {"model": name, "trap": entry.trap, "recipe": recipe}
                rows.append(row | compare(source, entry, recipe, options.seconds))
                print(_line(rows[-1]), flush=True)
    print("\n".join(summary(rows)))
    done = [_cells(row) for row in rows if "error" not in row]
    report_table("Small ONNX models in ONNX Runtime", COLUMNS, done, options.json)
    return 0


def compare(source: Path, entry: Any, recipe: str, seconds: float) -> dict[str, Any]:
    """One model by one recipe; `theirs` holds each of the runtime's own tools that serves it."""
    data = list(entry.feeds(BATCHES))
    files = {"float": source}
    found: dict[str, Any] = {}
    begun = time.perf_counter()
    try:
        ours = source.with_name("ours.onnx")
        report = quantize_onnx(source, ours, recipe, data=data, overwrite=True, force=True, progress=False)
        files["lowbit"] = ours
        weights = [r for r in report.rows if math.prod(r.shape) >= LEAST_WEIGHT]
        reached = sum(math.prod(r.shape) for r in weights if r.treated)
        found["coverage"] = round(reached / max(1, sum(math.prod(r.shape) for r in weights)), 4)
        found["left"] = sorted({r.why_not for r in weights if not r.treated})
        found["took"] = round(time.perf_counter() - begun, 1)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:200]
    if recipe in ("dynamic-int8", "static-int8"):  # as the runtime's own tools, which let sums saturate without VNNI
        like = source.with_name("like.onnx")
        try:
            quantize_onnx(source, like, recipe, data=data, overwrite=True, progress=False, target_cpu="vnni")
            files["lowbit, vnni"] = like
        except InvalidProblem:  # nothing is multiplied in integers
            files |= {"lowbit, vnni": files["lowbit"]} if "lowbit" in files else {}
    for label, make in _peers(recipe).items():
        target = source.with_name(f"{label}.onnx")
        try:
            make(source, target, data)
            new_session(target, 1)
            files[label] = target
        except Exception:
            continue
    sessions = {label: new_session(path, 1) for label, path in files.items()}
    feed = data[0]
    timed = measure({k: (lambda s=s: s.run(None, feed)) for k, s in sessions.items()}, seconds=seconds * len(sessions))
    for label, path in files.items():
        if label == "float":
            continue
        errors = compare_outputs(sessions["float"], sessions[label], entry.feeds(4, seed=1))
        row = {
            "size": round(os.path.getsize(path) / os.path.getsize(source), 4),
            "speed": round(timed["float"].median / timed[label].median, 3),
            "sqnr": round(min((a.sqnr_db for a in errors), default=math.inf), 2),
        }
        if label == "lowbit":
            found |= row
        elif label == "lowbit, vnni":
            found["vnni"] = row
        else:
            found.setdefault("theirs", {})[label] = row
    return found


Make = Callable[[Path, Path, Sequence[Mapping[str, Any]]], None]


def _peers(recipe: str) -> dict[str, Make]:
    if recipe == "dynamic-int8":
        return {f"dynamic, {k}": _dynamic(v) for k, v in {"per tensor": False, "per channel": True}.items()}
    if recipe == "static-int8":
        signs = {"u8s8": "QUInt8", "s8s8": "QInt8"}
        return {f"static, {k}": _static(getattr(theirs.QuantType, v)) for k, v in signs.items()}
    return {}


def _dynamic(per_channel: bool) -> Make:
    def make(source: Path, target: Path, data: Sequence[Mapping[str, Any]]) -> None:
        theirs.quantize_dynamic(source, target, per_channel=per_channel, weight_type=theirs.QuantType.QInt8)

    return make


def _static(activations: Any) -> Make:
    def make(source: Path, target: Path, data: Sequence[Mapping[str, Any]]) -> None:
        prepared = source.with_name("prepared.onnx")
        quant_pre_process(str(source), str(prepared))
        theirs.quantize_static(
            prepared, target, _Reader(data), per_channel=True, activation_type=activations,
            weight_type=theirs.QuantType.QInt8,
        )  # fmt: skip

    return make


class _Reader(theirs.CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, data: Sequence[Mapping[str, Any]]) -> None:
        self._left = iter(data)

    def get_next(self) -> dict[str, Any] | None:
        feed = next(self._left, None)
        return None if feed is None else dict(feed)


def summary(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Geometric means and worst cases of each recipe, beside float and beside the best of the runtime's tools."""
    lines = []
    for recipe in dict.fromkeys(r["recipe"] for r in rows):
        mine = [r for r in rows if r["recipe"] == recipe and "speed" in r]
        if not mine:
            continue
        line = f"{recipe}: {_spread([r['speed'] for r in mine])} × float, largest {max(r['size'] for r in mine):.2f}"
        both = [r for r in mine if r.get("theirs")]
        if both:
            ratios = [r["speed"] / max(t["speed"] for t in r["theirs"].values()) for r in both]
            line += f"; {_spread(ratios)} × the best tool"
            for label, own in (
                ("", both),
                (" for VNNI", [r["vnni"] | {"theirs": r["theirs"]} for r in both if "vnni" in r]),
            ):
                gains = [r["sqnr"] - max(t["sqnr"] for t in r["theirs"].values()) for r in own]
                line += f", SQNR{label} {np.mean(gains):+.1f} dB (least {min(gains):+.1f})"
        lines.append(line)
    return lines


def _spread(values: Sequence[float]) -> str:
    return f"{math.exp(np.mean(np.log(values))):.2f} (least {min(values):.2f})"


def _cells(row: Mapping[str, Any]) -> list[Any]:
    """The row of a table; what there is not is empty."""
    peers = row.get("theirs", {}).values()
    best = [max((t[name] for t in peers), default="") for name in ("speed", "sqnr")]
    own = [f"{row['coverage']:.1%}", row["size"], row["speed"], row["sqnr"], row.get("vnni", {}).get("sqnr", "")]
    return [row["model"], row["recipe"], *own, *best]


def _line(row: Mapping[str, Any]) -> str:
    if "error" in row:
        return f"{row['model']:18} {row['recipe']:13} {row['error']}"
    own = f"{row['coverage']:6.1%} {row['size']:5.2f} {row['speed']:5.2f}× {row['sqnr']:6.1f} dB {row['took']:5.1f} s"
    others = ({"vnni": row["vnni"]} if "vnni" in row else {}) | row.get("theirs", {})
    peers = "".join(f" | {k} {t['size']:.2f} {t['speed']:.2f}× {t['sqnr']:.1f}" for k, t in others.items())
    return f"{row['model']:18} {row['recipe']:13} {own}{peers}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    several = lambda text: tuple(text.split(","))  # noqa: E731
    parser.add_argument("--only", type=several, default=(), metavar="NAME,...")
    parser.add_argument("--recipes", type=several, default=RECIPES, metavar="NAME,...")
    parser.add_argument("--seconds", type=float, default=0.5, help="of timing, for each file")
    parser.add_argument("--json", type=Path, nargs="?", const=RESULT)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
