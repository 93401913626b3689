"""Result files: one run with its CPU, date and commit, as one line of JSON per case or per row of a table.

A run of the suite has `cases`; every other benchmark has a `title`, `columns` and `rows`. `python -m benchmarks.page`
reads both.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import lowbit as lb
from benchmarks.peers import package_versions
from benchmarks.rows import Row


def facts(machine: str = "", threads: int = 1) -> dict[str, Any]:
    """When, on what and of which commit a run is; `machine` names the CPU better than the operating system does."""
    hardware = lb.hardware()
    head = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False, cwd=Path(__file__).parent
    )
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "commit": head.stdout.strip() or "unknown",
        "cpu": machine or hardware.cpu,
        "isa": hardware.isa,
        "cores": hardware.cores,
        "threads": threads,
        "versions": package_versions(),
    }


def cases_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """For each case, seconds of every contender, and what was measured for each target."""
    return [_case(family, case, list(group)) for (family, case), group in groupby(rows, lambda r: (r.family, r.case))]


def _case(family: str, name: str, rows: Sequence[Row]) -> dict[str, Any]:
    first = rows[0]
    case: dict[str, Any] = {"family": family, "case": name}
    if first.operations:
        case["operations"] = first.operations
    elif first.nbytes:
        case["bytes"] = first.nbytes
    for kind in ("lowbit", "peer", "limit"):
        if found := {r.contender: _short(r.seconds) for r in rows if r.kind == kind and r.seconds is not None}:
            case[kind] = found
    if copy := next((r.seconds for r in rows if r.kind == "copy" and r.nbytes == first.nbytes), None):
        case["copy"] = _short(copy)
    if absent := {r.contender: r.absence for r in rows if r.status != "measured"}:
        case["absent"] = absent
    targets = [[r.contender, v.text, v.measured and _short(v.measured), v.met] for r in rows for v in r.targets]
    return {**case, "targets": targets} if targets else case


def _short(value: float) -> float:
    """Four significant digits."""
    return float(f"{value:.4g}")


def report_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], path: Path | None) -> None:
    """Prints a run that is a table and, where there is a path, writes it with its facts."""
    short = [[_short(cell) if isinstance(cell, float) else cell for cell in row] for row in rows]
    table = Table(*columns, title=title, title_justify="left")
    for row in short:
        table.add_row(*map(str, row))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if path is not None:
        write(path, {"title": title, **facts(), "columns": list(columns), "rows": short})
        print(f"Written to {path}")


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Writes JSON with one line per member, and per element of a list of cases or rows."""

    def text(value: Any) -> str:
        if isinstance(value, list) and value and isinstance(value[0], (dict, list)):
            return "[\n" + ",\n".join(f"  {json.dumps(it, ensure_ascii=False)}" for it in value) + "\n ]"
        return json.dumps(value, ensure_ascii=False)

    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f" {json.dumps(name)}: {text(value)}" for name, value in content.items())
    path.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
