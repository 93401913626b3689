"""Models in ONNX Runtime: opened and run, with its errors as one line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import onnxruntime  # type: ignore[import-untyped]

from lowbit.numerics.errors import FormatError, InvalidProblem

RUNTIME = f"ONNX Runtime {onnxruntime.__version__}"
_LONGEST = 240  # characters of a foreign error message


def open_session(model: str | os.PathLike[str] | bytes, **options: Any) -> Any:
    """A session with the options of `new_session`; FormatError, with the path, where it cannot be loaded."""
    try:
        return new_session(model, **options)
    except Exception as error:  # onnxruntime's errors have no common base
        shown = "model" if isinstance(model, bytes) else os.fspath(model)
        raise FormatError(f"{shown}: ONNX Runtime does not load it ({brief(error)})") from None


def new_session(
    model: str | os.PathLike[str] | bytes,
    threads: int | None = None,
    optimized: bool = True,
    data_folder: str = "",
    providers: list[str] | None = None,
    profile: str = "",
) -> Any:
    """A session with default options, except for the number of threads and whether operators are fused.

    data_folder: where the external data of a serialized model lie. profile: the beginning of the name of the file that
    the seconds of each node are written to.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised; the log would write names of the model unescaped
    if threads is not None:
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if data_folder:
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", data_folder)
    if profile:
        options.enable_profiling = True
        options.profile_file_prefix = profile
    given = model if isinstance(model, bytes) else os.fspath(model)
    return onnxruntime.InferenceSession(given, options, providers=providers or ["CPUExecutionProvider"])


def run_session(session: Any, outputs: list[str], feed: Mapping[str, Any], name: str = "data") -> list[Any]:
    """The outputs for a feed; InvalidProblem, with `name` for the feed, where the model cannot be run on it."""
    try:
        return list(session.run(outputs, dict(feed)))
    except Exception as error:  # onnxruntime's errors have no common base
        raise InvalidProblem(f"{name}: ONNX Runtime cannot run the model on it ({brief(error)})") from None


def brief(error: Exception) -> str:
    """The end of the first line of a foreign error, where runtimes put the reason."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return line if len(line) <= _LONGEST else f"... {line[-_LONGEST:]}"
