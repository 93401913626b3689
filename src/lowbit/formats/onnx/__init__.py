"""ONNX models: observing ranges of their tensors, and quantizing them.

Needs onnx and onnxruntime: pip install 'lowbit[onnx]'.
"""

from __future__ import annotations

from lowbit.formats.onnx.convert import quantize_onnx
from lowbit.formats.onnx.graph import Graph
from lowbit.formats.onnx.observe import observe

__all__ = ["Graph", "observe", "quantize_onnx"]
