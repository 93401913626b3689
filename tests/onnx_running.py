"""ONNX models run in ONNX Runtime as they are and optimised, and their outputs compared."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto

from lowbit.formats.onnx.model_file import nodes


def run(model: ModelProto | Path, feed: dict[str, Any], *, optimise: bool = True, written: Path | None = None) -> Any:
    """The outputs; written: where to write what the runtime makes of the model."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if written is not None:
        options.optimized_model_filepath = str(written)
    source = model.SerializeToString() if isinstance(model, ModelProto) else str(model)
    return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"]).run(None, feed)


def operators(path: Path) -> Counter[str]:
    """How often each operator is in a file, bodies included."""
    return Counter(n.op_type for n in nodes(onnx.load(path).graph))


def sqnr(a: Any, b: Any) -> float:
    """Decibels between a tensor and its deviation; infinite where there is none."""
    if np.array_equal(a, b):
        return float("inf")
    return float(10 * np.log10(np.square(a, dtype=np.float64).sum() / np.square(a - b, dtype=np.float64).sum()))
