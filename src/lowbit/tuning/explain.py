"""The schedule of a matrix product, as data and as text, with the CPU model behind it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from lowbit.numerics.errors import InvalidProblem
from lowbit.runtime.native import core
from lowbit.runtime.threads import get_num_threads
from lowbit.tuning.workload import QuantizationWorkload


@dataclass(frozen=True)
class ScheduleExplanation:
    """How an int8 linear layer [n, k] is computed on m rows, and the CPU model behind it."""

    workload: str
    schedule: dict[str, Any]
    cpu: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[tuple[str, str]]:
        """The schedule in words: a topic and a sentence each."""
        s, c = self.schedule, self.cpu
        order = {"by_rows": "tasks that share rows", "by_columns": "tasks that share panels"}[s["order"]]
        rows = {
            "in_place": "read where they lie",
            "packed_once": "packed once, before any task",
            "packed_per_task": "packed by each task",
        }[s["rows"]]
        where = "in the result" if s["in_place"] else "in scratch"
        sizes = {name: f"{c[name] >> 10:,} KiB" if c[name] else "unknown" for name in ("l1", "l2", "l3")}
        caches = ", ".join(f"{name.upper()} {size}" for name, size in sizes.items())
        return [
            ("kernel", f"{s['kernel']}, tiles of {s['tile_rows']} rows, {1 + s['paired']} panel(s) wide"),
            ("tasks", f"{s['row_tasks']} x {s['panel_tasks']}, of {s['task_rows']} rows x {s['task_panels']} panels"),
            ("panel", f"{s['panel_columns']} columns"),
            ("threads", f"{s['threads']}; each runs consecutive {order}"),
            ("k-blocks", f"{s['k_blocks']} of {s['k_block']} elements at most"),
            ("rows of x", f"{rows}, {s['packed_stride']} bytes apart if packed"),
            ("accumulators", f"{where}, {s['panels_at_once']} panels at once, {s['rows_per_call']} rows per call"),
            ("scratch", f"{s['scratch_bytes']:,} bytes per thread"),
            ("CPU model", f"{caches}; {c['dot_ports']} dot product(s) start per cycle"),
        ]


def explain(workload: QuantizationWorkload, threads: int | None = None) -> ScheduleExplanation:
    """The schedule of a matrix product for int8 weights and activations, on this machine. Measures nothing.

    >>> explain(QuantizationWorkload.matmul(8, 64, 32), threads=1).schedule["row_tasks"]
    1
    """
    if workload.kind != "matmul":
        raise InvalidProblem(f"workload: {workload}; expected a matrix product")
    m, n, k = workload.shape
    found = core.int8_schedule(m, n, k, get_num_threads() if threads is None else threads)
    return ScheduleExplanation("x".join(map(str, workload.shape)), _fields(found), _fields(core.cpu_model()))


def _fields(found: Any) -> dict[str, Any]:
    """The properties of a native object, enums by name."""
    values = {name: getattr(found, name) for name in vars(type(found)) if not name.startswith("_")}
    return {name: getattr(value, "name", value) for name, value in values.items()}
