"""python -m benchmarks.page [--check]

Writes docs/benchmarks.md, and the table of the README, from benchmarks/results/*.json. With --check it writes nothing,
and fails where either differs from what the results say.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from benchmarks import accuracy_page

ROOT = Path(__file__).resolve().parent.parent
RESULTS, PAGE, README = ROOT / "benchmarks" / "results", ROOT / "docs" / "benchmarks.md", ROOT / "README.md"
BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"

# Families with peers, in the order of the page, and what their cases are called in the summary.
FAMILIES = {
    "quantize": "`quantize` to int8",
    "dequantize": "`dequantize`",
    "groups": "range, `quantize` and packing of 4-bit groups",
    "fake_quant": "`fake_quantize`, forward and backward",
    "gemm": "GEMM of 8-bit codes",
    "linear": "`QuantizedLinear`, float32 in and out",
    "int4": "linear layers, 4-bit weights, int8 activations",
    "conv": "convolutions of 8-bit codes, NHWC",
}
OTHERS = ["qat", "calls", "range", "calibration", "binary", "codes", "threads"]
LISTED_BY_MEAN = ["sweep"]  # of many cases only those in which lowbit is the slower are listed
FLOATS = ("f32", "bf16", "float")

Json = dict[str, Any]


class Ratio(NamedTuple):
    """How many times as fast as the fastest comparable peer a contender of lowbit is."""

    case: str
    contender: str
    value: float
    peer: str
    is_first: bool  # of the case: means are over these


def runs() -> list[Json]:
    """Runs of the suite, the newest first."""
    found = [json.loads(path.read_text(encoding="utf-8")) | {"file": path.name} for path in RESULTS.glob("*.json")]
    return sorted(found, key=lambda run: (run["date"], run["file"]), reverse=True)


def name_of(run: Json) -> str:
    threads = "one thread" if run["threads"] == 1 else f"{run['threads']} threads"
    return f"{run['cpu']}, {run['isa']}, {threads}"


def origin_of(run: Json) -> str:
    return f"{run['date'][:10]}, commit `{run['commit']}`"


def ratios(cases: Iterable[Json]) -> list[Ratio]:
    """For every contender of lowbit that has a peer which does the same work."""
    found = []
    for case in cases:
        for i, (contender, seconds) in enumerate(case.get("lowbit", {}).items()):
            peers = {peer: s for peer, s in case.get("peer", {}).items() if comparable(contender, peer)}
            if peers:
                peer = min(peers, key=lambda name: peers[name])
                found.append(Ratio(case["case"], contender, peers[peer] / seconds, peer, i == 0))
    return found


def comparable(contender: str, peer: str) -> bool:
    """Whether both do the same: int32 results, float16 input and float activations are beside their like."""
    if peer == "float":
        return False
    if peer.endswith("float16"):
        return contender.endswith(" f16")
    if peer.endswith("to s32") or contender.endswith("to s32"):
        return peer.endswith("to s32") and contender.endswith("to s32")
    if contender.endswith("float activations"):
        return peer.endswith(("accuracy 0", "int4pack, bf16", *FLOATS))
    return not peer.endswith(("accuracy 0", "int4pack, bf16"))


def of_family(run: Json, family: str) -> list[Json]:
    return [case for case in run.get("cases", []) if case["family"] == family]


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns of figures are aligned to the right."""
    figures = re.compile(r"-?[\d.,]+ ?(?:[×%s]|[mµn]s|G.*)?|")
    rule = ["---:" if all(map(figures.fullmatch, cells)) else "---" for cells in zip(*rows, strict=True)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [columns, rule, *rows]) + "\n"


def number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, float):
        return str(value)
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def seconds_text(value: float) -> str:
    unit, size = next(((u, s) for u, s in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)) if value >= s), ("ns", 1e-9))
    return f"{value / size:.3g} {unit}"


def rate_text(case: Json, seconds: float) -> str:
    if "operations" in case:
        return f"{case['operations'] / seconds / 1e9:.3g} GOPS"
    return f"{case['bytes'] / seconds / 1e9:.3g} GB/s" if case.get("bytes", 0) > 1000 else ""


def limit_text(case: Json, seconds: float) -> str:
    """The share of the fastest measured limit, else of a copy of as many bytes."""
    limits = [case["copy"]] if "copy" in case and "limit" not in case else list(case.get("limit", {}).values())
    return f"{100 * min(limits) / seconds:.0f} %" if limits and case.get("bytes", 1 << 20) > 1000 else ""


def summary(run: Sequence[Json]) -> str:
    """The geometric mean and the least ratio of every family, for the runs of one CPU."""
    rows = []
    for family, about in FAMILIES.items():
        found = [r for one in run for r in ratios(of_family(one, family)) if r.is_first]
        if found:
            least = min(found, key=lambda r: r.value)
            mean = geometric_mean([r.value for r in found])
            rows.append([about, str(len(found)), f"{number(mean)}×", f"{number(least.value)}×", least.case])
    return table(["work", "cases", "geometric mean", "least", "least case"], rows)


def newest_complete() -> list[Json]:
    """The runs on one thread of the CPU that has every family, the newest such."""
    by_cpu: dict[str, list[Json]] = {}
    for run in runs():
        if "cases" in run and run["threads"] == 1:
            by_cpu.setdefault(run["cpu"], []).append(run)
    for found in by_cpu.values():
        if all(any(of_family(run, family) for run in found) for family in FAMILIES):
            return found
    raise SystemExit(f"{RESULTS}: no CPU has runs of all of {', '.join(FAMILIES)}")


def readme_table() -> str:
    found = newest_complete()
    origins = "; ".join(dict.fromkeys(map(origin_of, found)))
    return (
        f"{BEGIN}\nSpeed relative to the fastest peer (torch, ONNX Runtime, ggml, NumPy) that does the same work.\n"
        f"{name_of(found[0])}; {origins}.\n\n{summary(found)}{END}"
    )


def family_section(suites: Sequence[Json], family: str) -> str:
    module = ROOT / "benchmarks" / f"bench_{family}.py"
    about = (ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or "").splitlines()[0]
    text = f"## {family}\n\n{about}\n"
    for run in suites:
        cases = [case for case in of_family(run, family) if case.get("lowbit")]
        if not cases:
            continue
        found = {(r.case, r.contender): r for r in ratios(cases)}
        rows = []
        for case in cases:
            for contender, seconds in case["lowbit"].items():
                ratio = found.get((case["case"], contender))
                if family in LISTED_BY_MEAN and (ratio is None or ratio.value >= 1):
                    continue
                name = case["case"] + ("" if contender == "lowbit" else f", {contender.removeprefix('lowbit, ')}")
                beside = f"{number(ratio.value)}× {ratio.peer}" if ratio else ""
                rates = [seconds_text(seconds), rate_text(case, seconds), limit_text(case, seconds), beside]
                rows.append([name, *rates])
        text += f"\n**{name_of(run)}** ({origin_of(run)})"
        if any(r.is_first for r in found.values()):
            values = [r.value for r in found.values() if r.is_first]
            text += f": geometric mean {number(geometric_mean(values))}×, least {number(min(values))}×"
            text += f", {len(values)} case{'s' if len(values) > 1 else ''}"
        missed = [t for case in of_family(run, family) for t in case.get("targets", []) if t[3] is False]
        text += f", {len(missed)} target{'s' if len(missed) > 1 else ''} missed" if missed else ""
        if rows:
            text += "\n\n" + table(["case", "time", "rate", "of the limit", "relative to the fastest peer"], rows)
        else:
            text += ", lowbit is the slower in none\n"
    return text


def page() -> str:
    everything = runs()
    suites, tables = [r for r in everything if "cases" in r], [r for r in everything if "rows" in r]
    text = f"""# Benchmarks

How fast lowbit is beside its peers, case by case: generated from the files in
[`benchmarks/results`](../benchmarks/results) by `make bench-page`.

All contenders of a case take turns, round after round, in both orders; the figure of each is its best round. A
contender whose result exceeds the case's tolerance is disqualified. Only ratios within one run can be compared. The
limit is the fastest loop for this work that was measured in the same rounds (dot products, or reads), else `np.copyto`
of as many bytes. Means are over the first contender of each case. `make bench` measures all of this on your machine.

## Summary

{name_of(newest_complete()[0])}; each ratio is relative to the fastest peer that does the same work.

{summary(newest_complete())}
## Runs

"""
    rows = []
    for run in suites:
        families = ", ".join(dict.fromkeys(case["family"] for case in run["cases"]))
        link = f"[{run['file'].removesuffix('.json')}](../benchmarks/results/{run['file']})"
        rows.append([name_of(run), run["date"][:10], f"`{run['commit']}`", families, link])
    text += table(["machine", "date", "commit", "families", "file"], rows)
    versions = ", ".join(f"{name} {found}" for name, found in suites[0]["versions"].items() if found)
    text += f"\nPeers of the newest run: {versions}.\n\n"
    sections = [family_section(suites, family) for family in [*FAMILIES, *OTHERS, *LISTED_BY_MEAN]]
    text += "\n".join(sections) + "\n"
    if accuracy := accuracy_page.section([r for r in everything if "measurements" in r], table):
        text += accuracy + "\n"
    text += "## Models and checks\n"
    for run in sorted(tables, key=lambda r: (r["title"], r["file"])):
        link = f"[file](../benchmarks/results/{run['file']})"
        cells = [[number(cell) for cell in row] for row in run["rows"]]
        text += f"\n**{run['title']}**, {name_of(run)} ({origin_of(run)}, {link})\n\n{table(run['columns'], cells)}"
    return text


def main() -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.page", description="Benchmark pages from the result files.")
    parser.add_argument("--check", action="store_true", help="fail where a page differs from the results")
    options = parser.parse_args()
    readme = README.read_text(encoding="utf-8")
    before, _, rest = readme.partition(BEGIN)
    made = {PAGE: page(), README: before + readme_table() + rest.partition(END)[2] if rest else readme}
    stale = [path for path, text in made.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if options.check:
        print(
            "\n".join(f"{path.relative_to(ROOT)}: differs from benchmarks/results: make bench-page" for path in stale)
        )
        return 1 if stale else 0
    for path in stale:
        path.write_text(made[path], encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
