"""ONNX models: what passes through their tensors, and their weights made smaller.

Needs onnx and onnxruntime: pip install 'lowbit[onnx]'.
"""

from __future__ import annotations

from lowbit.formats.onnx.observe import observe

__all__ = ["observe"]
