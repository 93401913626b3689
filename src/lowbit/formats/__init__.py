"""Model files: ONNX, safetensors, GGUF, NumPy and torch pickles, and the compressed-tensors layout.

Modules are imported on demand, since formats need different extras.
"""
