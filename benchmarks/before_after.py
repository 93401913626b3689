"""python -m benchmarks.before_after --before DIR [--only family,...] [--threads N] [--json PATH]

Two source trees, each with its native module built in src/lowbit, timed side by side: one process a tree runs the same
case in turns, and the best of many rounds counts. Prints the geometric mean of before / after and every case below 0.9.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SHORTEST = 2e-4  # seconds of one timing; faster calls are repeated within it
_ROUNDS, _MOST_ROUNDS = 5, 60
_REGRESSION = 0.9


def main() -> int:
    import lowbit as lb

    options = _options()
    trees = {"before": options.before.resolve(), "after": Path(__file__).resolve().parents[1]}
    workers = {name: _Worker(tree, options) for name, tree in trees.items()}
    rows: list[dict[str, Any]] = []
    try:
        names = {name: worker.ask(do="names") for name, worker in workers.items()}
        for only, other in (("before", "after"), ("after", "before")):
            for case in names[only]:
                if case not in names[other]:
                    print(f"only {only} has {': '.join(case)}", flush=True)
        for case in names["before"]:
            if case in names["after"]:
                rows += _case(workers, case, options.seconds)
    finally:
        for worker in workers.values():
            worker.process.kill()
    _report(rows)
    about = {"commits": {n: _commit(t) for n, t in trees.items()}, "cpu": lb.hardware().cpu, "threads": options.threads}
    if options.json:
        options.json.write_text(json.dumps({**about, "rows": rows}, indent=0) + "\n", encoding="utf-8")
    return 0


class _Worker:
    """A process that builds the cases of one tree and times calls when told to."""

    def __init__(self, tree: Path, options: argparse.Namespace) -> None:
        environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}{os.pathsep}{tree}"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--work", ",".join(options.only), "--threads", str(options.threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tree, env=environment,
        )  # fmt: skip

    def ask(self, **what: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(what), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of {self.process.args!r} ended")
        return json.loads(line)


def _case(workers: dict[str, _Worker], case: list[str], seconds: float) -> list[dict[str, Any]]:
    rows, name = [], ": ".join(case)
    contenders = {name: worker.ask(do="case", case=case) for name, worker in workers.items()}
    for contender in contenders["before"]:
        if contender not in contenders["after"]:
            print(f"only before has {name}: {contender}", flush=True)
            continue
        once = {name: worker.ask(do="build", contender=contender) for name, worker in workers.items()}
        if any("error" in found for found in once.values()):
            print(f"{name}: {contender}: {once}", flush=True)
            continue
        repeats = max(1, math.ceil(_SHORTEST / max(1e-8, min(found["seconds"] for found in once.values()))))
        best, end, done = dict.fromkeys(workers, math.inf), time.perf_counter() + seconds, 0
        while done < _ROUNDS or (time.perf_counter() < end and done < _MOST_ROUNDS):
            for tree in sorted(workers, reverse=done % 2 == 1):
                best[tree] = min(best[tree], workers[tree].ask(do="time", repeats=repeats)["seconds"])
            done += 1
        ratio = best["before"] / best["after"]
        rows.append({"family": case[0], "case": case[1], "contender": contender, **best, "ratio": round(ratio, 3)})
        print(f"{ratio:6.3f}  {name}: {contender}", flush=True)
    return rows


def _report(rows: list[dict[str, Any]]) -> None:
    families = list(dict.fromkeys(row["family"] for row in rows))
    for family in [*families, None]:
        ratios = [row["ratio"] for row in rows if family in (None, row["family"])]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
        print(
            f"{family or 'all':12}  {len(ratios):4} cases  geometric mean {mean:.3f}  "
            f"least {min(ratios, default=0):.3f}"
        )
    for row in sorted(rows, key=lambda row: row["ratio"]):
        if row["ratio"] < _REGRESSION:
            print(f"below {_REGRESSION}: {row['ratio']:.3f}  {row['family']}: {row['case']}: {row['contender']}")


# ---- in the process of one tree -------------------------------------------------------------------------------------


def _work(families: list[str], threads: int) -> None:
    import warnings

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a peer prints
    warnings.filterwarnings("ignore")
    import lowbit as lb
    from benchmarks.__main__ import FAMILIES
    from benchmarks.machine import keep_freed_memory
    from benchmarks.peers import Peers

    lb.set_num_threads(threads)
    keep_freed_memory()

    def cases() -> Iterator[tuple[str, Any]]:
        for name in families or FAMILIES:
            for case in FAMILIES[name].cases(Peers(threads)):
                yield name, case

    ahead = cases()
    contenders: dict[str, Any] = {}
    call, contender = (lambda: None), None
    for line in sys.stdin:
        what = json.loads(line)
        answer: Any = {}
        if what["do"] == "names":
            answer = [(name, case.name) for name, case in cases()]
        elif what["do"] == "case":
            case = next(case for name, case in ahead if [name, case.name] == what["case"])
            contenders = {c.name: c for c in case.contenders if c.kind == "lowbit" and c.seconds is None}
            answer = list(contenders)
        elif what["do"] == "build":
            try:
                contender = contenders[what["contender"]]
                with contender.around():
                    call = contender.build()
                    answer = {"seconds": min(_time(call, 1) for _ in range(4))}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
        elif contender is not None:
            with contender.around():
                _time(call, what["repeats"])  # caches as this call leaves them
                answer = {"seconds": _time(call, what["repeats"])}
        print(json.dumps(answer), file=out, flush=True)


def _time(call: Any, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def _commit(tree: Path) -> str:
    found = subprocess.run(["git", "-C", str(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return found.stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks.before_after", description="Two source trees side by side.")
    parser.add_argument("--before", type=Path, required=True, metavar="DIR", help="the other source tree, built")
    parser.add_argument("--only", type=lambda text: text.split(","), default=[], metavar="FAMILY,...")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    parser.add_argument("--seconds", type=float, default=0.6, help="for each case, at the least")
    parser.add_argument("--json", type=Path, metavar="PATH")
    return parser.parse_args()


if __name__ == "__main__":
    if "--work" in sys.argv:
        _work([f for f in sys.argv[2].split(",") if f], int(sys.argv[4]))
    else:
        sys.exit(main())
