"""How long each node of a model takes in ONNX Runtime, attributed to the nodes of the model as it was written."""

from __future__ import annotations

import json
import os
import re
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.runtime import open_session, run_session

_RUNS = 12
# What the runtime's optimizers append to the name of a node, or to that of its output.
_APPENDED = re.compile(
    r"(_token_\d+|_nchwc|/duplicated|_dq|_q|/\w+Fusion\w*/?|_kernel_time|_matmul|/MatMulAddFusion)+$"
)


def node_seconds(model: str | os.PathLike[str] | bytes, feed: Mapping[str, Any], **options: Any) -> dict[str, float]:
    """Median seconds per call of each executed node, by the runtime's own name of it. options: of `new_session`."""
    with tempfile.TemporaryDirectory() as folder:
        session = open_session(model, profile=os.fspath(Path(folder) / "p"), **options)
        for _ in range(_RUNS):
            run_session(session, [], feed)
        with open(session.end_profiling(), encoding="utf-8") as file:
            events = json.load(file)
    spent: dict[str, list[float]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            spent[event["name"].removesuffix("_kernel_time")].append(event["dur"] * 1e-6)
    # A node inside a Loop runs several times per call.
    return {name: statistics.median(each) * len(each) / _RUNS for name, each in spent.items()}


def attributed(graph: Graph, seconds: Mapping[str, float]) -> dict[str, float]:
    """The same by names of the nodes of a graph; what cannot be attributed is under an empty name.

    The runtime names a node that it makes after the node or the tensor in whose place it stands, and numbers it.
    """
    by_tensor = {o: n.name for n in graph.all_nodes for o in n.output if o}
    known = {n.name for n in graph.all_nodes if n.name}
    found: dict[str, float] = defaultdict(float)
    for name, value in seconds.items():
        found[_known(name, known, by_tensor)] += value
    return dict(found)


def _known(name: str, known: set[str], by_tensor: Mapping[str, str]) -> str:
    name = name.removeprefix("fused ")
    while name:
        if name in known:
            return name
        if name in by_tensor:
            return by_tensor[name]
        shorter = _APPENDED.sub("", name)
        if shorter == name:
            return ""
        name = shorter
    return ""
